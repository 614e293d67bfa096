/* notify.h -- tells the service manager how we are: sd_notify's protocol, without its library.
 *
 * One datagram per call to the socket that $NOTIFY_SOCKET names (a path, or '@' and an abstract
 * name); without that variable nothing happens.  Never fails: nobody could do anything about it.
 *
 * Threads: any.
 */
#ifndef GATEWAY_NOTIFY_H
#define GATEWAY_NOTIFY_H

#include <stdint.h>

/* Assignments, one a line: notify_send("READY=1\nSTATUS=%s", text). */
void notify_send(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* RELOADING=1 with the time that systemd wants beside it; READY=1 must follow. */
void notify_reloading(void);

/* Microseconds within which the manager wants a WATCHDOG=1, or 0: it does not watch this
 * process. */
int64_t notify_watchdog_us(void);

#endif
