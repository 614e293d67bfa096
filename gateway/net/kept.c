/* kept.c -- restart without closing the listening sockets: the new process inherits them over
 * execv().
 *
 *   kept_hold()     duplicate every listening socket (before the server closes its own)
 *   kept_replace()  write their numbers to the environment as "PID:fd,fd", clear FD_CLOEXEC on them
 *                   only, execv("/proc/self/exe") with the same arguments
 *   kept_take()     in the new process: hand out the socket that is bound to the address
 *   kept_settle()   close those that nobody took
 *
 * Connections wait in the kernel's accept queue meanwhile, so no client sees a refused connection.
 * The process id stays the same over execv() and is checked, so that a child process that inherits
 * the environment does not take the numbers for its own.
 *
 * All other descriptors are set to close on exec: a leaked database or CUDA handle would be shared
 * with the next process.
 *
 * Threads: the main thread at start and stop. Limits: KEPT_MAX sockets, COMMAND_BYTES of arguments.
 */
#include "gateway/net/kept.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEPT_MAX = 64, ARGUMENTS_MAX = 64, COMMAND_BYTES = 65536, FIRST_FD = 3 };

static const char NAME[] = "LORAD_KEPT";

static int kept[KEPT_MAX];
static int n_kept = -1; /* -1: the environment was not read yet */

/* Whether it is one of our network sockets. CUDA has a listening Unix socket, named by the process
 * id, and the next process's CUDA finds no device if that name is taken. */
static bool listens(int fd)
{
    int yes = 0, domain = AF_UNIX;
    socklen_t n = sizeof(yes), m = sizeof(domain);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &n) == 0 && yes &&
           getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &m) == 0 && domain != AF_UNIX;
}

/* Calls fn for each descriptor from the fourth on; false: they cannot be listed. */
static bool each_descriptor(bool (*fn)(int fd))
{
    DIR *d = opendir("/proc/self/fd");
    bool ok = d != NULL;
    for (const struct dirent *at; ok && (at = readdir(d));) {
        int fd = (int)strtol(at->d_name, NULL, 10);
        if (fd >= FIRST_FD && fd != dirfd(d)) ok = fn(fd);
    }
    if (d) (void)closedir(d);
    return ok;
}

static bool is_kept(int fd)
{
    for (int i = 0; i < n_kept; i++) {
        if (kept[i] == fd) return true;
    }
    return false;
}

static bool hold(int fd)
{
    assert(n_kept >= 0 && n_kept <= KEPT_MAX);
    if (is_kept(fd) || !listens(fd)) return true;
    int twin = n_kept < KEPT_MAX ? fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD) : -1;
    if (twin < 0) return false;
    kept[n_kept++] = twin;
    return true;
}

static void drop_all(void)
{
    for (int i = 0; i < n_kept; i++) (void)close(kept[i]);
    n_kept = 0;
}

err_code kept_hold(err *e)
{
    n_kept = 0;
    bool ok = each_descriptor(hold);
    if (!ok) drop_all();
    return ok ? ERR_NONE : err_set(e, ERR_LIMIT, "the listening sockets cannot be kept");
}

static bool close_on_exec(int fd)
{
    int now = fcntl(fd, F_GETFD);
    int wanted = is_kept(fd) ? now & ~FD_CLOEXEC : now | FD_CLOEXEC;
    return now >= 0 && fcntl(fd, F_SETFD, wanted) == 0;
}

/* The arguments of this process; NULL: they cannot be read. */
static char **arguments(void)
{
    static char text[COMMAND_BYTES], *list[ARGUMENTS_MAX + 1];
    FILE *f = fopen("/proc/self/cmdline", "rb");
    size_t got = f ? fread(text, 1, sizeof(text), f) : 0;
    if (f) (void)fclose(f);
    if (got == 0 || got == sizeof(text) || text[got - 1] != '\0') return NULL;
    int n = 0;
    for (size_t at = 0; at < got; at += strlen(text + at) + 1) {
        if (n == ARGUMENTS_MAX) return NULL;
        list[n++] = text + at;
    }
    list[n] = NULL;
    return list;
}

/* Reads the list of the previous process; valid for this process id only. */
static void read_kept(void)
{
    const char *text = getenv(NAME);
    char *rest;
    n_kept = 0;
    if (!text || strtol(text, &rest, 10) != (long)getpid() || *rest != ':') return;
    while (*rest && n_kept < KEPT_MAX) {
        int fd = (int)strtol(rest + 1, &rest, 10);
        if (fd < FIRST_FD || (*rest && *rest != ',')) break;
        if (listens(fd) && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0) kept[n_kept++] = fd;
    }
    (void)unsetenv(NAME);
}

err_code kept_replace(err *e)
{
    char text[KEPT_MAX * 12];
    char **argv = arguments();
    if (n_kept < 0) read_kept(); /* sockets of the previous process that were not taken */
    if (!argv) return err_set(e, ERR_IO, "the arguments of this process cannot be read");
    int at = snprintf(text, sizeof(text), "%ld:", (long)getpid());
    for (int i = 0; i < n_kept; i++)
        at += snprintf(text + at, sizeof(text) - (size_t)at, "%s%d", i ? "," : "", kept[i]);
    assert(at > 0 && (size_t)at < sizeof(text));
    bool ok = each_descriptor(close_on_exec) && setenv(NAME, text, 1) == 0;
    if (ok) (void)execv("/proc/self/exe", argv);
    return err_set(e, ERR_IO, "the next process cannot be started: %s", strerror(errno));
}

static bool stands_at(int fd, const struct sockaddr *to, socklen_t n)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof(at);
    return getsockname(fd, (struct sockaddr *)&at, &len) == 0 && len == n &&
           memcmp(&at, to, n) == 0;
}

int kept_take(const struct sockaddr *to, socklen_t n)
{
    if (n_kept < 0) read_kept();
    for (int i = 0; i < n_kept; i++) {
        if (!stands_at(kept[i], to, n)) continue;
        int fd = kept[i];
        kept[i] = kept[--n_kept];
        return fd;
    }
    return -1;
}

void kept_settle(void)
{
    drop_all();
}
