/* prompt.h -- what a request says becomes what the model reads: ids.
 *
 * Completions, chat and /tokenize all come through here, so what one
 * counts is what the other reads.
 *
 * Threads: any thread.
 */
#ifndef GATEWAY_OPENAI_PROMPT_H
#define GATEWAY_OPENAI_PROMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/chat/thinking.h"
#include "engine/text/tokenizer.h"
#include "gateway/openai/openai.h"
#include "gateway/openai/tool_reader.h"
#include "gateway/server.h"

/* What openai_parse() must know of this server. */
void prompt_limits(const exchange *x, openai_limits *out);

/* Whether the chat template can serve the request, and *tools: how this model writes calls.  Where
 * a call is forced, the request's form becomes that of calls.  False: *p says why. */
bool prompt_open_chat(const server *s, openai_request *rq, tool_style *tools, openai_problem *p);

/* Prompt `p` of the request (chat: its messages, p is not read) in ids.  Returns their number, *ids
 * malloced (NULL after a failure), or a negative err_code. */
int64_t prompt_encode(const server *s, const tokenizer *tok, const openai_request *rq,
                      tool_style tools, const openai_prompt *p, int32_t **ids, err *e);

/* Whether an answer to a chat's prompt begins with thoughts. */
thinking_start prompt_start(const server *s, const tokenizer *tok, const openai_request *rq,
                            tool_style tools, const int32_t *ids, int n_ids);

/* How many of n ids are left out, from the first: truncate_prompt_tokens. */
int64_t prompt_excess(const openai_request *rq, int64_t n);

#endif
