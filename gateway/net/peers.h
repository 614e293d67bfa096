/* peers.h -- how many connections are open, in all and from each client.
 *
 * A client is an IPv4 address or the /64 of an IPv6 address, because a
 * single subscriber holds a whole
 *  /64.  An IPv4 address inside IPv6 (::ffff:a.b.c.d) is the IPv4 address.
 *
 * Ownership: one for each listener.  Threads: any thread.
 */
#ifndef GATEWAY_NET_PEERS_H
#define GATEWAY_NET_PEERS_H

#include <stdint.h>
#include <sys/socket.h>

typedef struct peers peers;

typedef enum { PEER_ADMITTED, PEER_TOTAL_FULL, PEER_CLIENT_FULL } peer_verdict;

typedef struct peer_id { /* private */
    uint64_t bits;
    uint8_t family; /* 4, 6; 0: neither, all of these together are one client */
} peer_id;

/* At most max_total at once, at most max_per_client from one client; 0: no limit. */
peers *peers_create(int64_t max_total, int64_t max_per_client);
void peers_destroy(peers *p);
/* Other limits, for those who come from now on. */
void peers_limit(peers *p, int64_t max_total, int64_t max_per_client);

/* Who is this?  For tests, too. */
peer_id peers_identify(const struct sockaddr_storage *from);

/* PEER_ADMITTED: counted until peers_leave() with the same id.  Else nothing is counted. */
peer_verdict peers_enter(peers *p, peer_id id);
void peers_leave(peers *p, peer_id id);

/* Connections that are open now. */
int64_t peers_open(peers *p);

#endif
