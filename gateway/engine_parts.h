/* engine_parts.h -- what a server has for inference: the model, its texts, and the engine.
 *
 * Ownership: start/parts.c makes and frees; handlers borrow.  Threads: read-only after the start;
 * what a pointer leads to says for itself.
 */
#ifndef GATEWAY_ENGINE_PARTS_H
#define GATEWAY_ENGINE_PARTS_H

#include "engine/chat/thinking.h"
#include "engine/model/model.h"
#include "engine/model/pooled.h"
#include "engine/sched/sched.h"
#include "gateway/config/config.h"

typedef struct server server;

typedef struct engine_parts {
    struct backend *be;
    struct devmem *arena; /* the device's: KV pages and adapters */
    char gpu_unused[320]; /* device_gpu_unused(): a warning for operators, or "" */
    model *model, *draft; /* draft: NULL where none is configured */
    struct tokenizer *tok;
    pooled_config pooled; /* how prompts are embedded or classified */
    struct grammar_maker *grammars;
    struct vocabularies *vocabularies; /* openai/vocabulary.h */
    struct chat_template *chat;        /* NULL: the model has none that is supported */
    char chat_problem[248];            /* why not */
    thinking_style thinking;           /* how answers mark reasoning; NONE: it stays text */
    sched *sched;
    struct meter_file *meters;
    struct settler *settler;
    struct nice_pool *encoders; /* tokenise long texts at low priority; NULL in tests of parts */
    struct spans *spans;        /* NULL: no traces are sent */
    struct mover *mover;        /* gateway/move/mover.h; NULL: no request moves to another node */
    char class_name[SLO_CLASS_MAX][CLASS_WORD_MAX + 1]; /* in the configuration's order */
    int n_class;
    char fingerprint[32]; /* system_fingerprint */
} engine_parts;

/* Those of `s`. */
engine_parts *engine_of(const server *s);

/* Short for engine_of(s)->sched. */
sched *sched_of(const server *s);

/* Milliseconds after which a refused request may try again: when the predicted first token would
 * meet its target; from 250 to 60,000. */
int64_t engine_retry_after_ms(const engine_parts *parts, const request *rq);

#endif
