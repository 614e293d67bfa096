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
#include "gateway/engine_parts.h"
#include "gateway/http/exchange.h"
#include "gateway/openai/openai.h"
#include "gateway/openai/tools/tool_reader.h"

/* What openai_parse() must know of this server. */
void prompt_limits(const exchange *x, openai_limits *out);

/* Whether the chat template can serve the request, and *tools: how this model writes calls.  Where
 * a call is forced, the request's form becomes that of calls.  False: *p says why. */
bool prompt_open_chat(const engine_parts *parts, openai_request *rq, tool_style *tools,
                      openai_problem *p);

/* Prompt `p` of the request (chat: its messages, p is not read) in ids.  Returns their number, *ids
 * malloced (NULL after a failure), or a negative err_code.  Long texts are tokenised on threads of
 * low priority (engine_parts.encoders): *busy_us += their processor time. */
int64_t prompt_encode(const exchange *x, const tokenizer *tok, const openai_request *rq,
                      tool_style tools, const openai_prompt *p, int32_t **ids, int64_t *busy_us,
                      err *e);

/* The same for one text; `flags` as for tokenizer_encode(). */
int64_t prompt_encode_text(const exchange *x, const tokenizer *tok, const char *text, size_t len,
                           int flags, int32_t **ids, int64_t *busy_us);

/* Bytes of text in the prompt, or in the messages of a chat. */
size_t prompt_bytes(const openai_request *rq, const openai_prompt *p);

/* Whether an answer to a chat's prompt begins with thoughts. */
thinking_start prompt_start(const engine_parts *parts, const tokenizer *tok,
                            const openai_request *rq, tool_style tools, const int32_t *ids,
                            int n_ids);

/* How many of n ids are left out, from the first: truncate_prompt_tokens. */
int64_t prompt_excess(const openai_request *rq, int64_t n);

#endif
