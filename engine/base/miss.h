/* miss.h -- why a promise was broken: one word for each cause, the same in metrics, the log, the
 * usage rows and /stats.
 *
 * A promise is broken by a request whose first token came later than its class's target, whose
 * further tokens took longer than theirs, that failed, or that the server refused.  Which cause it
 * was is decided once (engine/watch/cause.h); here are the words alone.
 *
 * Threads: any; nothing changes.
 */
#ifndef ENGINE_BASE_MISS_H
#define ENGINE_BASE_MISS_H

/* X(NAME, word) -- append only: the numbers stand in the meter file.  docs/howto/watch.md tells
 * what each means and what helps. */
#define MISS_LIST(X)                                                                         \
    X(QUEUE, queue)               /* others had the seats */                                 \
    X(LIMITS, limits)             /* its tenant's limits were looked up */                   \
    X(ADAPTER_LOAD, adapter_load) /* its adapter was not on the device */                    \
    X(PROMPT, prompt)             /* its own prompt: received, made into tokens, computed */ \
    X(DECODE_STEPS, decode_steps) /* rows of others in the steps */                          \
    X(PREEMPTION, preemption)     /* it gave way, and was computed again */                  \
    X(SWAP, swap)                 /* KV was copied to host memory, or back */                \
    X(STORAGE, storage)           /* the disk: files of adapters, room for usage */          \
    X(RESTART, restart)           /* the device was opened again, or the server ended */     \
    X(MACHINE, machine)           /* steps slower than is known, or too slow even alone */

#define MISS_ENUM_(name, word) MISS_##name,
typedef enum {
    MISS_NONE, /* the promise was kept, or none was tried */
    MISS_LIST(MISS_ENUM_) MISS_CAUSES
} miss_cause;
#undef MISS_ENUM_

/* "" for MISS_NONE. */
static inline const char *miss_cause_name(int cause)
{
#define MISS_WORD_(name, word) #word,
    static const char *const words[MISS_CAUSES] = {"", MISS_LIST(MISS_WORD_)};
#undef MISS_WORD_
    return words[cause];
}

#endif
