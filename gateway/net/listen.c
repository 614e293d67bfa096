/* listen.c -- parses an address, resolves it, binds and listens.
 *
 *     8443            every address of IPv4      +8443    of IPv6 and IPv4, by one socket
 *     host:8443       the host's first address   [::1]:8443
 *
 * A socket that an earlier process has left for this one (gateway/net/kept.h) is taken in place
 * of a new one, so that a restart refuses nobody. SO_REUSEADDR: connections that are still
 * closing do not keep the port.
 */
#include "gateway/net/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gateway/net/kept.h"

enum { ADDRESS_MAX = 300 };

/* The first address of the list; NULL: no address is left. */
static const char *next_address(const char *list, size_t *len)
{
    list += strspn(list, ", ");
    *len = strcspn(list, ", ");
    return *len ? list : NULL;
}

int listen_count(const char *addresses)
{
    int n = 0;
    size_t len;
    for (const char *p = addresses ? addresses : ""; (p = next_address(p, &len)); p += len) n++;
    return n;
}

/* Splits host and port in place; the host is NULL for every address, *dual is set for "+port". */
static bool split(char *text, const char **host, const char **port, bool *dual)
{
    char *colon = strrchr(text, ':');
    *dual = text[0] == '+';
    *host = NULL;
    *port = colon ? colon + 1 : text + *dual;
    if (!colon) return **port != 0;
    *colon = 0;
    *host = text;
    if (text[0] != '[') return text[0] && !*dual && !strchr(text, ':') && **port;
    char *end = strchr(text, ']');
    if (!end || end[1]) return false;
    *end = 0;
    *host = text + 1;
    return **host && **port;
}

static err_code refuse(const char *address, err *e)
{
    return err_set(e, ERR_IO, "can't listen on %s: %s%s", address, strerror(errno),
                   errno == EADDRINUSE ? " ('ss -ltnp' shows by whom)" : "");
}

/* A bound socket that listens; below 0: errno has the reason. */
static int open_one(const struct addrinfo *a, bool dual)
{
    int yes = 1, only = !dual, fd = kept_take(a->ai_addr, a->ai_addrlen);
    if (fd >= 0) {
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        return fd;
    }
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    bool six = a->ai_family == AF_INET6;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
        (!six || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only)) == 0) &&
        bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0) {
        return fd;
    }
    int why = errno;
    (void)close(fd);
    errno = why;
    return -1;
}

static err_code add(const char *address, int *fd, int *n, err *e)
{
    char text[ADDRESS_MAX];
    const char *host, *port;
    bool dual;
    struct addrinfo *found = NULL,
                    like = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    snprintf(text, sizeof(text), "%s", address);
    if (!split(text, &host, &port, &dual))
        return err_set(e, ERR_INPUT, "can't listen on %s: an address is host:port or [::1]:port",
                       address);
    if (*n == LISTEN_MAX)
        return err_set(e, ERR_LIMIT, "can't listen on %s: at most %d addresses", address,
                       LISTEN_MAX);
    if (!host) like.ai_family = dual ? AF_INET6 : AF_INET;
    int rc = getaddrinfo(host, port, &like, &found);
    if (rc != 0) return err_set(e, ERR_IO, "can't listen on %s: %s", address, gai_strerror(rc));
    fd[*n] = open_one(found, dual);
    freeaddrinfo(found);
    if (fd[*n] < 0) return refuse(address, e);
    (*n)++;
    return ERR_NONE;
}

err_code listen_open(const char *addresses, int *fd, int *n, err *e)
{
    size_t len;
    for (const char *p = addresses; (p = next_address(p, &len)); p += len) {
        char one[ADDRESS_MAX];
        if (len >= sizeof(one))
            return err_set(e, ERR_INPUT, "can't listen on '%.40s...': it is too long", p);
        memcpy(one, p, len);
        one[len] = 0;
        if (add(one, fd, n, e)) return e->code;
    }
    return ERR_NONE;
}
