/* networks.c -- CIDR blocks by inet_pton(), and a walk through X-Forwarded-For from its end.
 *
 * An address of IPv4 in IPv6 (::ffff:0:0/96) is the IPv4 address, in lists as on sockets. Host
 * bits beyond a prefix are refused in what is stored, with the block that was probably meant; a
 * comparison ignores them.
 *
 * The client is the last address of X-Forwarded-For that is none of the trusted proxies':
 *
 *      socket <- proxy B <- "9.9.9.9, 203.0.113.7, proxy A"
 *                trusted     forged    the client   trusted
 *
 * Each hop counts only since the one that reports it is trusted; a hop that cannot be read ends
 * the walk and is nobody's address, which no list holds.
 */
#include "gateway/http/networks.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <civetweb.h>

enum { MAPPED_BITS = 96 }; /* of ::ffff:0:0, before the IPv4 address */

static network_address of_v6(const uint8_t b[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    network_address a = {.bits = 128};
    if (memcmp(b, mapped, sizeof(mapped)) == 0) {
        a.bits = 32;
        memcpy(a.b, b + 12, 4);
    } else {
        memcpy(a.b, b, 16);
    }
    return a;
}

network_address networks_of_socket(const struct sockaddr_storage *from)
{
    network_address a = {.bits = 0};
    if (from->ss_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, from, sizeof(in));
        memcpy(a.b, &in.sin_addr, 4);
        a.bits = 32;
    } else if (from->ss_family == AF_INET6) {
        struct sockaddr_in6 in;
        memcpy(&in, from, sizeof(in));
        a = of_v6(in.sin6_addr.s6_addr);
    }
    return a;
}

void networks_print(const network_address *a, char out[NETWORK_TEXT_MAX])
{
    int family = a->bits == 32 ? AF_INET : AF_INET6;
    if (!a->bits || !inet_ntop(family, a->b, out, NETWORK_TEXT_MAX))
        snprintf(out, NETWORK_TEXT_MAX, "unknown");
}

/* `mapped`: it was written as IPv6 and is IPv4. */
static bool parse_address(const char *s, size_t len, network_address *out, bool *mapped)
{
    char text[NETWORK_TEXT_MAX];
    uint8_t b[16];
    *mapped = false;
    if (len == 0 || len >= sizeof(text)) return false;
    memcpy(text, s, len);
    text[len] = 0;
    if (strlen(text) != len) return false;
    *out = (network_address){.bits = 32};
    if (inet_pton(AF_INET, text, out->b) == 1) return true;
    if (inet_pton(AF_INET6, text, b) != 1) return false;
    *out = of_v6(b);
    *mapped = out->bits == 32;
    return true;
}

/* The first `n` bits of an address stay. */
static network_address cut(network_address a, int n)
{
    assert(n >= 0 && n <= 128);
    for (int i = 0; i < 16; i++) {
        int left = n - i * 8;
        if (left < 8) a.b[i] &= (uint8_t)(left <= 0 ? 0 : 0xff << (8 - left));
    }
    return a;
}

/* A block: its first address, with *prefix bits in common; host bits are the caller's to judge. */
static bool parse_block(const char *s, size_t len, network_address *a, int *prefix)
{
    const char *slash = memchr(s, '/', len);
    size_t n = slash ? (size_t)(slash - s) : len;
    bool mapped;
    if (!parse_address(s, n, a, &mapped)) return false;
    *prefix = a->bits;
    if (!slash) return true;
    size_t digits = len - n - 1;
    if (digits < 1 || digits > 3 || (digits > 1 && slash[1] == '0')) return false;
    int v = 0;
    for (size_t i = 0; i < digits; i++) {
        if (slash[1 + i] < '0' || slash[1 + i] > '9') return false;
        v = v * 10 + (slash[1 + i] - '0');
    }
    if (mapped) v -= MAPPED_BITS; /* a block around all of IPv4 is none that we can mean */
    *prefix = v;
    return v >= 0 && v <= a->bits;
}

err_code networks_canonical(const char *text, char out[NETWORK_TEXT_MAX], err *e)
{
    network_address a;
    int prefix;
    char name[NETWORK_TEXT_MAX];
    if (!parse_block(text, strlen(text), &a, &prefix)) {
        return err_set(
            e, ERR_INPUT,
            "'%.60s' is neither an address nor a block such as 192.0.2.0/24 or 2001:db8::/32",
            text);
    }
    network_address first = cut(a, prefix);
    networks_print(&first, name);
    snprintf(out, NETWORK_TEXT_MAX, "%.45s/%d", name, prefix);
    if (memcmp(first.b, a.b, sizeof(a.b)) != 0) {
        return err_set(e, ERR_INPUT, "'%.60s' has bits beyond its prefix; is %s meant?", text, out);
    }
    return ERR_NONE;
}

static const char *next_part(const char **list, size_t *len)
{
    const char *p = *list + strspn(*list, ", ");
    size_t n = strcspn(p, ",");
    *list = p + n;
    while (n && p[n - 1] == ' ') n--;
    *len = n;
    return n ? p : NULL;
}

err_code networks_check_list(const char *list, err *e)
{
    size_t n;
    for (const char *p; (p = next_part(&list, &n));) {
        char one[80], canonical[NETWORK_TEXT_MAX];
        snprintf(one, sizeof(one), "%.*s", (int)(n < 79 ? n : 79), p);
        if (networks_canonical(one, canonical, e)) return e->code;
    }
    return ERR_NONE;
}

bool networks_hold(const char *list, const network_address *a)
{
    size_t n;
    for (const char *p; (p = next_part(&list, &n));) {
        network_address block;
        int prefix;
        if (!a->bits || !parse_block(p, n, &block, &prefix) || block.bits != a->bits) continue;
        network_address here = cut(*a, prefix), there = cut(block, prefix);
        if (memcmp(here.b, there.b, sizeof(here.b)) == 0) return true;
    }
    return false;
}

/* One entry of X-Forwarded-For: some proxies write the port, too. */
static network_address read_hop(const char *s, size_t len)
{
    network_address a;
    bool mapped;
    while (len && (*s == ' ' || *s == '\t')) s++, len--;
    while (len && (s[len - 1] == ' ' || s[len - 1] == '\t')) len--;
    const char *colon = memchr(s, ':', len), *end = len && *s == '[' ? memchr(s, ']', len) : NULL;
    if (end) {
        len = (size_t)(end - s) - 1;
        s++;
    } else if (colon && !memchr(colon + 1, ':', len - (size_t)(colon + 1 - s))) {
        len = (size_t)(colon - s);
    }
    return parse_address(s, len, &a, &mapped) ? a : (network_address){.bits = 0};
}

network_address networks_client(const char *proxies, network_address peer,
                                const struct mg_request_info *ri)
{
    if (!*proxies || !networks_hold(proxies, &peer)) return peer;
    for (int i = ri->num_headers - 1; i >= 0; i--) {
        const char *v = ri->http_headers[i].value;
        if (strcasecmp(ri->http_headers[i].name, "X-Forwarded-For") != 0) continue;
        for (size_t end = strlen(v);;) {
            size_t begin = end;
            while (begin && v[begin - 1] != ',') begin--;
            peer = read_hop(v + begin, end - begin);
            if (!networks_hold(proxies, &peer)) return peer; /* an unknown one, too */
            if (!begin) break;
            end = begin - 1;
        }
    }
    return peer;
}
