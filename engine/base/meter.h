/* meter.h -- what the engine made for one request, where a crash can't lose it.
 *
 * A slot lies in a file that storage/meter_file.c maps shared, so the counts
 * survive kill -9: the engine raises a count before it hands the token out, and
 * at the next start storage settles every slot that was still in use.  Requests
 * that nobody bills (benchmarks, tests) point at a slot in plain memory.
 *
 * Threads: the engine thread writes, any thread reads.
 */
#ifndef ENGINE_BASE_METER_H
#define ENGINE_BASE_METER_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct meter {
    _Atomic uint32_t prompt_tokens;  /* prompt tokens whose KV was computed or found in the cache */
    _Atomic uint32_t cached_tokens;  /* of these, found in the prefix cache */
    _Atomic uint32_t output_tokens;  /* tokens handed to the client's ring */
    _Atomic uint32_t first_token_ms; /* time to first token; 0: none yet */
} meter;

#endif
