/* openai_reply.h -- answers in OpenAI's shapes: whole objects and stream chunks.
 *
 * Keys that typed clients require are always there (index, finish_reason, logprobs, usage), the
 * role stands once, in the first delta, and no chunk has empty choices unless it is the usage
 * chunk that the client asked for.  Nothing here knows sockets or the engine's threads.
 *
 * Threads: any thread; the writer belongs to the caller.
 */
#ifndef GATEWAY_OPENAI_OPENAI_REPLY_H
#define GATEWAY_OPENAI_OPENAI_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/sample/sampler.h"
#include "engine/text/tokenizer.h"
#include "gateway/http/jsonw.h"
#include "gateway/openai/tools/tool_reader.h"

/* The same in every chunk of an answer. */
typedef struct openai_head {
    bool chat;
    const char *id; /* "chatcmpl-..." */
    int64_t created_s;
    const char *model;        /* as the request named it */
    const char *service_tier; /* the tier that was used; NULL: left out */
    const char *fingerprint;
} openai_head;

typedef struct openai_usage {
    int64_t prompt_tokens, cached_tokens, output_tokens;
    int64_t reasoning_tokens; /* of output_tokens */
} openai_usage;

/* Log-probabilities of consecutive tokens. */
typedef struct openai_logprobs {
    const tokenizer *tok;
    /* the prompt's own tokens, for echo; n_prompt 0: none */
    const int32_t *prompt;
    const sampled *prompt_score; /* [n_prompt]; entry 0 has no probability */
    int n_prompt, n_prompt_top;  /* alternatives shown of those that were scored */
    const sampled *token;
    int n_token;
    bool ends;          /* the last token ended the text, which does not show it */
    bool as_ids;        /* return_tokens_as_token_ids: tokens are named "token_id:7" */
    bool keep_special;  /* the text shows special tokens */
    size_t text_offset; /* of the first token, in bytes of the choice's text */
} openai_logprobs;

/* Bytes of the choice's text that are this token's: none of a special token that it leaves out. */
size_t openai_text_bytes(const openai_logprobs *lp, int32_t token);

/* What one choice says now: the whole answer, or one delta. */
typedef struct openai_choice {
    int index;
    const char *text;
    size_t len;
    const char *thoughts; /* a chat's reasoning_content */
    size_t n_thoughts;
    bool first;                      /* chat stream: the delta that carries the role */
    const char *finish;              /* "stop", "length", or NULL: still going */
    const char *stop_string;         /* what ended it, for stop_reason; NULL: none */
    int32_t stop_token;              /* likewise; -1: none */
    const openai_logprobs *logprobs; /* NULL: null */
    tool_reader *calls;              /* its calls; a delta takes what is new; NULL: none */
    const int32_t *prompt_ids, *ids; /* return_token_ids; NULL: left out */
    int n_prompt_ids, n_ids;
    /* prompt_logprobs: prompt, prompt_score and their counts; NULL: left out. */
    const openai_logprobs *prompt;
} openai_choice;

/* A whole answer. */
void openai_write_answer(jsonw *w, const openai_head *h, const openai_choice *choices, int n,
                         const openai_usage *u);

/* "data: {...}\n\n" with one choice (NULL: none, the usage chunk).  usage: NULL leaves it out,
 * unless null_usage asks for "usage": null. */
void openai_write_chunk(jsonw *w, const openai_head *h, const openai_choice *c,
                        const openai_usage *u, bool null_usage);

/* "data: {"error":{...}}\n\n": an error after the status line has gone. */
void openai_write_stream_error(jsonw *w, const char *type, const char *code, const char *msg);

#endif
