/* networks.h -- from which addresses a key may be used: lists of CIDR blocks,
 * and whose address counts.
 *
 * A list is text, "192.0.2.0/24,2001:db8::/32": what the database keeps and the API shows.  An IPv4
 * address inside IPv6 (::ffff:192.0.2.1, as a listener on [::] sees it) is that IPv4 address, in
 * lists too; no IPv6 block holds an IPv4 address.
 *
 * Ownership: plain values.  Threads: any thread.
 */
#ifndef GATEWAY_HTTP_NETWORKS_H
#define GATEWAY_HTTP_NETWORKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "engine/base/err.h"

struct mg_request_info;

enum { NETWORK_TEXT_MAX = 46 + 4 }; /* the longest IPv6 address, "/128" */

typedef struct network_address {
    uint8_t b[16]; /* IPv4: the first 4 */
    int bits;      /* 32, 128; 0: unknown, which is in no network */
} network_address;

network_address networks_of_socket(const struct sockaddr_storage *from);

/* The address in letters; "unknown". */
void networks_print(const network_address *a, char out[NETWORK_TEXT_MAX]);

/* One block, or one address, in its canonical form.  ERR_INPUT: neither, or bits beyond the prefix
 * (10.0.0.1/8: the sentence says which block was meant). */
err_code networks_canonical(const char *text, char out[NETWORK_TEXT_MAX], err *e);

/* Each part of a comma-separated list is a block. */
err_code networks_check_list(const char *list, err *e);

/* Is the address in one of the blocks?  A part that is no block holds nothing. */
bool networks_hold(const char *list, const network_address *a);

/* Who asks: the peer; where that is one of `proxies` (a list, empty: nobody), the last address in
 * X-Forwarded-For that is none of them.  Unknown where such a proxy wrote no address there. */
network_address networks_client(const char *proxies, network_address peer,
                                const struct mg_request_info *ri);

#endif
