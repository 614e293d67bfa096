/* peers.c -- counts connections per client address and in total, for the two limits.
 *
 * A hash table of 1024 chains under one mutex, with an entry only for clients that are connected
 * now: an entry is freed with the last connection, so its size is bounded by the total limit.
 *
 * A client is an IPv4 address or an IPv6 /64 network, because one customer usually gets a whole
 * /64; IPv4-mapped addresses count as IPv4 (peers_identify()).
 *
 * peers_enter() decides and counts in one step, so two accepting threads cannot exceed a limit
 * together. New limits apply to new connections; open ones stay (peers_limit()).
 *
 * Threads: any; the mutex is a leaf lock.
 */
#include "gateway/net/peers.h"

#include <assert.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/lock.h"

enum { BUCKET_BITS = 10 };

typedef struct client {
    struct client *next;
    peer_id id;
    int64_t n;
} client;

struct peers {
    lock mu;
    int64_t max_total, max_per_client, n;
    client *table[1 << BUCKET_BITS];
};

peers *peers_create(int64_t max_total, int64_t max_per_client)
{
    peers *p = calloc(1, sizeof(*p));
    if (!p) return NULL;
    p->max_total = max_total;
    p->max_per_client = max_per_client;
    lock_init(&p->mu, LOCK_PEERS);
    return p;
}

void peers_destroy(peers *p)
{
    if (!p) return;
    for (int i = 0; i < 1 << BUCKET_BITS; i++) {
        for (client *c = p->table[i]; c;) {
            client *next = c->next;
            free(c);
            c = next;
        }
    }
    lock_free(&p->mu);
    free(p);
}

void peers_limit(peers *p, int64_t max_total, int64_t max_per_client)
{
    lock_take(&p->mu);
    p->max_total = max_total;
    p->max_per_client = max_per_client;
    lock_release(&p->mu);
}

static uint64_t big_endian(const uint8_t *b, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) v = v << 8 | b[i];
    return v;
}

peer_id peers_identify(const struct sockaddr_storage *from)
{
    if (from->ss_family == AF_INET) {
        struct sockaddr_in a;
        memcpy(&a, from, sizeof(a));
        return (peer_id){ntohl(a.sin_addr.s_addr), 4};
    }
    if (from->ss_family == AF_INET6) {
        struct sockaddr_in6 a;
        memcpy(&a, from, sizeof(a));
        const uint8_t *b = a.sin6_addr.s6_addr;
        if (IN6_IS_ADDR_V4MAPPED(&a.sin6_addr)) return (peer_id){big_endian(b + 12, 4), 4};
        return (peer_id){big_endian(b, 8), 6};
    }
    return (peer_id){0, 0};
}

/* The link to the client's entry, or to the NULL where it belongs. `mu` is held. */
static client **find(peers *p, peer_id id)
{
    client **at = &p->table[hash_id(id.bits + id.family) & ((1 << BUCKET_BITS) - 1)];
    while (*at && ((*at)->id.bits != id.bits || (*at)->id.family != id.family)) at = &(*at)->next;
    return at;
}

static peer_verdict enter(peers *p, peer_id id)
{
    if (p->max_total > 0 && p->n >= p->max_total) return PEER_TOTAL_FULL;
    client **at = find(p, id);
    if (!*at) {
        *at = calloc(1, sizeof(**at));
        if (!*at) return PEER_TOTAL_FULL;
        (*at)->id = id;
    } else if (p->max_per_client > 0 && (*at)->n >= p->max_per_client) {
        return PEER_CLIENT_FULL;
    }
    (*at)->n++;
    p->n++;
    return PEER_ADMITTED;
}

peer_verdict peers_enter(peers *p, peer_id id)
{
    lock_take(&p->mu);
    peer_verdict v = enter(p, id);
    lock_release(&p->mu);
    return v;
}

void peers_leave(peers *p, peer_id id)
{
    lock_take(&p->mu);
    client **at = find(p, id);
    if (*at) {
        assert(p->n > 0 && (*at)->n > 0);
        p->n--;
        if (--(*at)->n == 0) {
            client *gone = *at;
            *at = gone->next;
            free(gone);
        }
    }
    lock_release(&p->mu);
}

int64_t peers_open(peers *p)
{
    lock_take(&p->mu);
    int64_t n = p->n;
    lock_release(&p->mu);
    return n;
}
