/* notify.c -- tells systemd the server's state: one datagram, no answer is waited for. */
#include "gateway/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/clock.h"

void notify_send(const char *fmt, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char text[512];
    va_list ap;
    if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(a.sun_path)) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    memcpy(a.sun_path, path, strlen(path));
    if (a.sun_path[0] == '@') a.sun_path[0] = 0;
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    (void)sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&a, len);
    (void)close(fd);
}

void notify_reloading(void)
{
    notify_send("RELOADING=1\nMONOTONIC_USEC=%lld", (long long)clock_now_us());
}

int64_t notify_watchdog_us(void)
{
    const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!us || (pid && strtoll(pid, NULL, 10) != (long long)getpid())) return 0;
    int64_t v = strtoll(us, NULL, 10);
    return v > 0 ? v : 0;
}
