/* streams.h -- the streams of connections that speak HTTP/2, each of which is served like a
 * connection of its own.
 *
 * A stream is a visitor whose descriptor is one end of a pair of sockets.  The worker reads an
 * HTTP/1.1 request there and writes the answer.  The lobby has the other end, and passes bytes on
 * between it and the frames of the connection (h2.h).  So deadlines, watches and a client that has
 * gone are what they are for a connection, and the socket's buffer is all that is kept of an answer
 * that nobody reads.
 *
 * What differs: an answer's end is the return of its visitor, so it needs no chunks; its worker
 * says by visitor.cut that the answer is not whole.
 *
 * Ownership: of lobby.h's structs.  Threads: the lobby's.
 */
#ifndef GATEWAY_NET_STREAMS_H
#define GATEWAY_NET_STREAMS_H

#include "gateway/net/lobby.h"

/* The connection's handshake is complete, and HTTP/2 was chosen. */
void streams_open(lobby *l, visitor *v);
/* An event of such a connection's socket, or of the lobby's end of a stream. */
void streams_event(lobby *l, visitor *v, uint32_t events);
/* A worker has returned a stream. */
void streams_returned(lobby *l, visitor *v);
/* The lobby answers a stream itself. */
void streams_refuse(lobby *l, visitor *v, lobby_refusal why);
/* The phase of a connection or of a stream is over. */
void streams_due(lobby *l, visitor *v);
/* The connection ends, so do its streams: v has no carrier any more. */
void streams_end(lobby *l, visitor *v);
/* All clients are told that no more requests are taken. */
void streams_drain(lobby *l);
/* All such connections. */
void streams_end_all(lobby *l);

#endif
