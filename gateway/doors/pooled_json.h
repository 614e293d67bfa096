/* pooled_json.h -- what the APIs of embeddings, reranking, scores and classes share.
 *
 * Threads: the exchange's worker.
 */
#ifndef GATEWAY_DOORS_POOLED_JSON_H
#define GATEWAY_DOORS_POOLED_JSON_H

#include <stdbool.h>

#include "gateway/doors/door_json.h"
#include "gateway/openai/completion_door.h"

/* What all of their bodies may have; `own` are one API's fields, in front. */
bool pooled_fields(exchange *x, const cJSON *body, const door_field *own, size_t n,
                   openai_request *rq, openai_problem *p);

/* Members of a body, absent or null: *out stays.  False: *p names the member and its limits. */
bool pooled_int(const cJSON *body, const char *name, int64_t lo, int64_t hi, int64_t *out,
                openai_problem *p);
bool pooled_bool(const cJSON *body, const char *name, bool *out, openai_problem *p);

/* A list as vLLM writes it, before its data's items (id, object, created, model) and behind them
 * (usage). */
void pooled_open_list(jsonw *w, const pooled_answer *a);
void pooled_close_list(jsonw *w, const pooled_answer *a);

/* usage: prompt_tokens and total_tokens. */
void pooled_write_usage(jsonw *w, const pooled_answer *a);

#endif
