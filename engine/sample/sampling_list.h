/* sampling_list.h -- every sampling parameter that is one value, in one table.
 *
 * X(kind, name, low, high, neutral, most, gguf)
 *
 *   kind       real: a float from low to high.  above: a float greater than low, at most high.
 *              whole: an int from low to high.  flag: a bool.
 *   name       the field, the member of a request's body, and the key in generation_config.json
 *   low, high  limits of the API.  n_vocab and max_context stand for those of the model: whoever
 *              expands `high` has variables of these names.
 *   neutral    the value without effect, and the default
 *   most       the largest value that generation_config.json may have and the engine accepts
 *   gguf       the key of a GGUF file with its default; "": none
 *
 * The table generates: struct sampling, the defaults of a model, the row on the device
 * (engine/cuda/sample.h), the format between nodes (gateway/move/wire.h), the parser and the tables
 * of known fields (gateway/openai/, gateway/doors/), the range check of sched_submit(),
 * conf/openapi.json and docs/reference/api.md.  A new parameter needs a row here and its arithmetic
 * in sampler.c and engine/cuda/sample.cu.  Values of several parts (logit_bias, stop ids) and those
 * that a request has under two names (logprobs) are not here.
 *
 * Threads: data only.
 */
#ifndef ENGINE_SAMPLE_SAMPLING_LIST_H
#define ENGINE_SAMPLE_SAMPLING_LIST_H

#include <stdbool.h>
#include <stdint.h>

/* clang-format off */

/* A model may come with defaults of these. */
#define SAMPLING_MODEL_LIST(X) \
    X(real,  temperature,        0,  2,           1, 100,       "general.sampling.temp") \
    X(above, top_p,              0,  1,           1, 1,         "general.sampling.top_p") \
    X(whole, top_k,              -1, n_vocab,     0, INT32_MAX, "general.sampling.top_k") \
    X(real,  min_p,              0,  1,           0, 1,         "general.sampling.min_p") \
    X(above, repetition_penalty, 0,  10,          1, 10,        "general.sampling.penalty_repeat")

/* Only a request has these. */
#define SAMPLING_REQUEST_LIST(X) \
    X(real,  presence_penalty,   -2, 2,           0, 2,         "") \
    X(real,  frequency_penalty,  -2, 2,           0, 2,         "") \
    X(flag,  ignore_eos,         0,  1,           0, 1,         "") \
    X(whole, min_tokens,         0,  max_context, 0, INT32_MAX, "")

/* clang-format on */

#define SAMPLING_LIST(X) SAMPLING_MODEL_LIST(X) SAMPLING_REQUEST_LIST(X)

typedef float sampling_real, sampling_above;
typedef int sampling_whole;
typedef bool sampling_flag;

/* A field of a struct; an initialiser without effect; one that copies from `from`. */
#define SAMPLING_FIELD(kind, name, low, high, neutral, most, gguf)   sampling_##kind name;
#define SAMPLING_NEUTRAL(kind, name, low, high, neutral, most, gguf) .name = (neutral),
#define SAMPLING_COPY(kind, name, low, high, neutral, most, gguf)    .name = from->name,

/* The defaults that a model comes with. */
typedef struct sampling_defaults {
    SAMPLING_MODEL_LIST(SAMPLING_FIELD)
} sampling_defaults;

#endif
