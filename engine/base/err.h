/* err.h -- the one error type of the project.
 *
 * A function that can fail returns err_code (0: success, negative: failure)
 * and fills the caller's `err` with one sentence that a tenant or an operator
 * can act on.  The sentence is written once, where the fact is known; callers
 * pass the code up and add context only when they have some.  It holds no path,
 * no address and no other tenant's data, because it may be shown to a client.
 *
 * The gateway alone knows how a code looks in HTTP (gateway/http/http_status.h).
 * Threads: any thread.
 */
#ifndef ENGINE_BASE_ERR_H
#define ENGINE_BASE_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, text) -- append only: values go into logs and the ledger. */
#define ERR_LIST(X)                             \
    X(ERR_NONE, 0, "ok")                        \
    X(ERR_INPUT, -1, "invalid input")           \
    X(ERR_CORRUPT, -2, "corrupt data")          \
    X(ERR_NOT_FOUND, -3, "not found")           \
    X(ERR_EXISTS, -4, "already exists")         \
    X(ERR_DENIED, -5, "not allowed")            \
    X(ERR_LIMIT, -6, "limit reached")           \
    X(ERR_BUSY, -7, "try again later")          \
    X(ERR_CANCELLED, -8, "cancelled by client") \
    X(ERR_TIMEOUT, -9, "deadline passed")       \
    X(ERR_NOMEM, -10, "out of memory")          \
    X(ERR_IO, -11, "input/output error")        \
    X(ERR_DEVICE, -12, "device error")          \
    X(ERR_INTERNAL, -13, "internal error")      \
    X(ERR_UNSUPPORTED, -14, "not supported")    \
    X(ERR_CONFLICT, -15, "conflicting state")   \
    X(ERR_EXPIRED, -16, "expired")              \
    X(ERR_SUSPENDED, -17, "suspended")          \
    X(ERR_NO_ROOM, -18, "disk full")            \
    X(ERR_STALE, -19, "changed meanwhile")      \
    X(ERR_RESTARTING, -20, "engine restarting") \
    X(ERR_DAMAGED, -21, "damaged on the disk")  \
    X(ERR_STOPPING, -22, "shutting down")       \
    X(ERR_ELSEWHERE, -23, "on another node")

#define ERR_ENUM_(name, value, text) name = (value),
typedef enum { ERR_LIST(ERR_ENUM_) } err_code;
#undef ERR_ENUM_

typedef struct {
    err_code code;
    char msg[248]; /* never empty after a failure; safe to show to a tenant */
} err;

/* Fill `e` (may be NULL) and return `code`, so that a failure is one line:
 *     return err_set(e, ERR_LIMIT, "rank %d exceeds %d", rank, max);
 * Control characters in the result are replaced by '?'. */
err_code err_set(err *e, err_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Put "context: " in front of the message of a failure passed upwards; returns e->code. */
err_code err_context(err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif

#endif
