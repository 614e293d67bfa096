/* connection.h -- the connection of this worker: its socket, its deadline, its client.
 *
 * A worker has one from lobby_take() to lobby_return().
 * Threads: workers of a listener, each its own; on any other thread there is no socket.
 */
#ifndef GATEWAY_HTTP_CONNECTION_H
#define GATEWAY_HTTP_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gateway/http/networks.h"

struct mg_connection;
struct mg_ready;
struct lobby;

int connection_socket(void); /* -1: none */

/* At `at_us` (monotonic) the socket is shut down for reading (and writing if `both`).  One
 * deadline per worker; a new one replaces the old; 0 takes it away. */
void connection_deadline(int64_t at_us, bool both);

network_address connection_peer(void);

/* One of the streams of a connection that speaks HTTP/2: its answers need no chunks, for what ends
 * them is connection_end(). */
bool connection_is_stream(void);
/* The answer is not whole, though it will have no more bytes: a stream is reset then. */
void connection_cut(void);

/* Of a long body, past civetweb's buffer, which is empty: up to `cap` bytes as they come, more than
 * one TLS record's where more are there.  How many; 0: none in time; -1: none will come. */
int connection_read(const struct mg_connection *conn, char *to, int cap);

/* TLS reads the socket by CONNECTION_AHEAD bytes instead of by record: while more than that is
 * to come of the body.  What it has read so, only connection_read() finds. */
enum { CONNECTION_AHEAD = 64 << 10 };
void connection_ahead(bool on);

/* Writes all; returns the number of bytes written, or -1.  conn NULL: into the memory of
 * connection_capture(). */
int connection_write(struct mg_connection *conn, const void *bytes, size_t n);

/* ---- for listener.c ---------------------------------------------------------------------- */

/* From now on, bytes that this thread writes without a connection go to `out`. */
void connection_capture(char *out, size_t cap);
size_t connection_captured(void); /* bytes; ends the capture */

/* Waits for the next request, and copies what has come of it to `buf`, which has LOBBY_HEAD_BYTES.
 * False: the listener closes. */
bool connection_begin(struct lobby *l, char *buf, struct mg_ready *r);
/* Hands the connection back with the n bytes that belong to the next request; `end`: it is closed.
 */
void connection_end(struct lobby *l, const char *rest, int n, bool end);

#endif
