/* connection.h -- this worker's connection: its socket, its deadline, its client,
 * whether it is over a limit.
 *
 * There is one for each worker, from the first byte to the close.
 * Threads: workers of a listener, each its own; anywhere else there is no socket.
 */
#ifndef GATEWAY_HTTP_CONNECTION_H
#define GATEWAY_HTTP_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include <openssl/ssl.h>

#include "gateway/http/networks.h"
#include "gateway/net/peers.h"

struct listener;
struct mg_connection;
struct mg_context;

int connection_socket(void); /* -1: unknown */

/* At `at_us` (monotonic) the socket is shut down for reading (and writing if `both`).  One
 * deadline per worker; a new one replaces the old; 0 takes it away.  Every worker has one: there
 * is no table that could be full. */
void connection_deadline(int64_t at_us, bool both);

network_address connection_peer(void);

/* Anything but PEER_ADMITTED: it is over a limit and gets one answer, which says so. */
peer_verdict connection_verdict(void);

/* Of a long body, past civetweb's buffer, which is empty: up to `cap` bytes as they come, more than
 * one TLS record's where more are there.  How many; 0: none in time; -1: none will come. */
int connection_read(const struct mg_connection *conn, char *to, int cap);

/* TLS reads the socket by CONNECTION_AHEAD bytes instead of by record: while more than that is
 * to come of the body.  What it has read so, only connection_read() finds. */
enum { CONNECTION_AHEAD = 64 << 10 };
void connection_ahead(bool on);

/* When it is closed, first read for a moment what the client still sends. */
void connection_linger(bool on);

/* A silent one on a plane of few workers, where others wait; and all when the listener closes. */
bool connection_gives_way(struct listener *l, struct mg_context *ctx);

/* ---- for listener.c: what calls in ----------------------------------------------------------- */

/* OpenSSL's info callback: a connection begins with its handshake. */
void connection_tls_info(const SSL *ssl, int where, int ret);
/* civetweb's callbacks: a connection without TLS begins (0: it has been answered, and ends);
 * before and after the socket is closed. */
int connection_plain(const struct mg_connection *conn, int fd);
void connection_close(const struct mg_connection *conn);
void connection_closed(const struct mg_connection *conn);

#endif
