/* sample.h -- from logits to tokens on the device: engine/sample/sampler.h for
 * many rows, one block each.
 *
 * The same rules in the same order, and the same random numbers: a row with the same seed, draw
 * number and logits gives the token that sampler_pick() gives, up to the rounding of exp().  Sums
 * are taken in a fixed order, so a row's answer depends on that row alone.
 *
 * All pointers are device memory, those inside cu_sample_row too.  The rows and their lists travel
 * with the step; the results are one small struct a row.  Logits are changed in place (bias,
 * penalties, bans).  Held to engine/sample/sampler.c by tests/emu/test_sample.cu.
 */
#ifndef ENGINE_CUDA_SAMPLE_H
#define ENGINE_CUDA_SAMPLE_H

#include <stdint.h>

#include <cuda_runtime.h>

#include "engine/sample/sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One row; fields as in struct sampling. */
typedef struct cu_sample_row {
    /* Its logits: args.logits + logit_row * args.stride; negative: this row is left out. */
    int32_t logit_row;
    SAMPLING_LIST(SAMPLING_FIELD)
    uint64_t seed;
    int32_t n_bias, n_stop_id;
    const logit_bias *bias;  /* [n_bias], tokens inside the vocabulary */
    const int32_t *stop_id;  /* [n_stop_id] */
    const int32_t *prompt;   /* [n_prompt]; read only where a penalty asks for it */
    const int32_t *output;   /* [n_output]; likewise */
    const uint32_t *allowed; /* [(n_vocab + 31) / 32] bits, none beyond n_vocab; NULL: all */
    int32_t n_prompt;
    int32_t n_vocab;  /* tokens, at most args.stride */
    int32_t n_output; /* also the draw number */
    /* Alternatives with log-probabilities, at most SAMPLE_TOP_MAX; -1: no log-probabilities. */
    int32_t n_top;
    int32_t processed; /* not 0: log-probabilities of what is drawn from, else before temperature */
    int32_t score;     /* a token: nothing is picked, it is scored (sampler_score()); -1: pick */
} cu_sample_row;

typedef struct cu_sample_args {
    float *logits; /* [..][stride] */
    const cu_sample_row *rows;
    /* [n_rows]; token -1: the row's logits are not numbers.  Entries from
     * n_top on are not written. */
    sampled *out;
    int n_rows, stride;
} cu_sample_args;

/* Enqueues one launch. */
cudaError_t cu_sample(cudaStream_t stream, const cu_sample_args *args);

#ifdef __cplusplus
}
#endif

#endif
