/* sampler.h -- from logits to a token, by the request's own rules.
 *
 * Pure: the same logits, rules, history and draw number give the same token, alone or in any
 * batch.  The random number of output token i is a counter-based function of (seed, i).
 *
 * Order of processing (that of vLLM and Hugging Face): logit_bias, repetition penalty over
 * prompt and output, presence and frequency penalties over output, min_tokens (eos banned), what a
 * grammar does not allow; temperature, top-k, top-p, min-p, draw.  sampling.logprobs says where
 * log-probabilities are taken.
 * Threads: any thread.
 */
#ifndef ENGINE_SAMPLE_SAMPLER_H
#define ENGINE_SAMPLE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sample/sampling_list.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SAMPLE_TOP_MAX = 20,
    SAMPLE_BIAS_MAX = 1024, /* a device has room for so many */
    SAMPLE_STOP_MAX = 256,
};

typedef struct logit_bias {
    int32_t token;
    float bias; /* -100 .. 100 */
} logit_bias;

/* Of which distribution log-probabilities are, by vLLM's names but for the first. */
typedef enum {
    LOGPROBS_ADJUSTED,  /* after biases, penalties and bans, before the temperature */
    LOGPROBS_PROCESSED, /* what the token was drawn from: also after temperature and cuts */
    LOGPROBS_RAW,       /* the model's own */
} logprobs_mode;

/* Temperature 0 is greedy.  With ignore_eos, stop_id has only the request's own ids, not those of
 * the model. */
typedef struct sampling {
    SAMPLING_LIST(SAMPLING_FIELD)
    uint64_t seed;
    const logit_bias *bias;
    int n_bias;
    const int32_t *stop_id; /* end-of-sequence and the request's own stop token ids */
    int n_stop_id;          /* none of these ids is drawn before min_tokens tokens */
    int n_top; /* alternatives wanted with log-probabilities; -1: no log-probabilities */
    logprobs_mode logprobs; /* of picked tokens; those of a prompt are always the model's own */
} sampling;

typedef struct sampled {
    int32_t token;
    float logprob; /* of the chosen token, by sampling.logprobs; valid if n_top >= 0 */
    int32_t rank;  /* of a scored token: 1 is the best; 0 where a token was picked */
    int n_top;
    int32_t top_id[SAMPLE_TOP_MAX];
    float top_logprob[SAMPLE_TOP_MAX]; /* descending */
} sampled;

/* Scratch for one thread; about 15 bytes per vocabulary entry. */
typedef struct sampler sampler;

/* For rows of n_vocab logits at most; NULL: no memory. */
sampler *sampler_create(int n_vocab);
/* Rows of logits have n_vocab values from now on: at most what it was created with. */
void sampler_set_vocab(sampler *sp, int n_vocab);

/* NULL is fine. */
void sampler_destroy(sampler *sp);

/* Picks one token.  `logits` [n_vocab] may be modified.  `prompt` and `output` are the tokens so
 * far; n_output is also the draw number.  Only tokens whose bits are set in `allowed` [(n_vocab +
 * 31) / 32] come, at least one (NULL: all may); log-probabilities are those among them, and
 * min_tokens gives way where only stop ids are allowed.  Non-finite logits: *out->token = -1 (the
 * row is broken: the caller fails that request alone). */
void sampler_pick(sampler *sp, float *logits, const sampling *rules, const uint32_t *allowed,
                  const int32_t *prompt, int n_prompt, const int32_t *output, int n_output,
                  sampled *out);

/* Log-probability and rank of `token` and the n_top best, for the scoring of prompts. */
void sampler_score(sampler *sp, const float *logits, int32_t token, int n_top, sampled *out);

#ifdef __cplusplus
}
#endif

#endif
