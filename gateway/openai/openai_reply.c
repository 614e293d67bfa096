/* openai_reply.c -- writes OpenAI's JSON of chat and text completions, whole or as chunks of a
 * stream, in the order of OpenAI's documentation.
 *
 * One openai_choice serves all four shapes:
 *
 *              whole                         stream (per frame "data: {...}\n\n")
 *   chat       choices[].message             choices[].delta
 *   text       choices[].text                choices[].text
 *
 * Calls in a stream: the first delta of a call has its id and name (c->told), later ones the new
 * pieces of its arguments; write_call() takes exactly what is new from the tool reader.
 *
 * A token's bytes need not be valid UTF-8: log-probabilities show U+FFFD for broken bytes, and
 * `bytes` has the original ones.  Fields of vLLM's (stop_reason, prompt_logprobs, token_ids,
 * reasoning) follow OpenAI's.
 */
#include "gateway/openai/openai_reply.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

/* ------------------------------------------------------------ token texts -- */

/* A token's bytes as valid UTF-8: each byte that is not becomes U+FFFD. */
static size_t token_text(const tokenizer *tok, int32_t id, char out[3 * DETOK_MAX])
{
    size_t n = 0, len = 0;
    const char *s = tokenizer_bytes(tok, id, &len);
    if (!s) return 0;
    if (len > DETOK_MAX) len = DETOK_MAX;
    for (size_t i = 0; i < len;) {
        uint32_t c = UTF8_BROKEN;
        int k = utf8_read(s + i, len - i, &c);
        n += utf8_encode(c, out + n);
        i += k > 0 ? (size_t)k : 1;
    }
    assert(n <= 3 * DETOK_MAX);
    return n;
}

static void write_token_text(jsonw *w, const char *name, const tokenizer *tok, int32_t id)
{
    char text[3 * DETOK_MAX];
    jsonw_strn(w, name, text, token_text(tok, id, text));
}

/* ---------------------------------------------------------- log-probabilities -- */

/* A token's name in log-probabilities, NUL-ended; returns its length. */
static size_t token_name(const openai_logprobs *lp, int32_t id, char out[3 * DETOK_MAX + 1])
{
    size_t n = lp->as_ids ? (size_t)snprintf(out, 3 * DETOK_MAX, "token_id:%d", (int)id)
                          : token_text(lp->tok, id, out);
    out[n] = 0;
    return n;
}

static void write_token_name(jsonw *w, const char *name, const openai_logprobs *lp, int32_t id)
{
    char text[3 * DETOK_MAX + 1];
    jsonw_strn(w, name, text, token_name(lp, id, text));
}

static void write_chat_token(jsonw *w, const openai_logprobs *lp, int32_t id, float logprob)
{
    size_t len = 0;
    const unsigned char *bytes = (const unsigned char *)tokenizer_bytes(lp->tok, id, &len);
    write_token_name(w, "token", lp, id);
    jsonw_num(w, "logprob", (double)logprob);
    jsonw_open(w, "bytes", '[');
    for (size_t i = 0; bytes && i < len; i++) jsonw_int(w, NULL, bytes[i]);
    jsonw_close(w, ']');
}

static void write_chat_logprobs(jsonw *w, const openai_logprobs *lp)
{
    assert(lp->n_token >= 0);
    jsonw_open(w, "logprobs", '{');
    jsonw_open(w, "content", '[');
    for (int i = 0; i < lp->n_token; i++) {
        const sampled *t = &lp->token[i];
        jsonw_open(w, NULL, '{');
        write_chat_token(w, lp, t->token, t->logprob);
        jsonw_open(w, "top_logprobs", '[');
        for (int k = 0; k < t->n_top; k++) {
            jsonw_open(w, NULL, '{');
            write_chat_token(w, lp, t->top_id[k], t->top_logprob[k]);
            jsonw_close(w, '}');
        }
        jsonw_close(w, ']');
        jsonw_close(w, '}');
    }
    jsonw_close(w, ']');
    jsonw_null(w, "refusal");
    jsonw_close(w, '}');
}

static void write_top(jsonw *w, const openai_logprobs *lp, const sampled *t, int n_top)
{
    char text[3 * DETOK_MAX + 1];
    jsonw_open(w, NULL, '{');
    for (int k = 0; k < t->n_top && k < n_top; k++) {
        (void)token_name(lp, t->top_id[k], text);
        jsonw_num(w, text, (double)t->top_logprob[k]);
    }
    jsonw_close(w, '}');
}

static int32_t text_token(const openai_logprobs *lp, int i)
{
    assert(i >= 0 && i < lp->n_prompt + lp->n_token);
    return i < lp->n_prompt ? lp->prompt[i] : lp->token[i - lp->n_prompt].token;
}

size_t openai_text_bytes(const openai_logprobs *lp, int32_t token)
{
    size_t len = 0;
    if (!lp->keep_special && tokenizer_is_special(lp->tok, token)) return 0;
    return tokenizer_bytes(lp->tok, token, &len) ? len : 0;
}

static const sampled *text_score(const openai_logprobs *lp, int i)
{
    assert(i >= 0 && i < lp->n_prompt + lp->n_token);
    if (i >= lp->n_prompt) return &lp->token[i - lp->n_prompt];
    return i == 0 ? NULL : &lp->prompt_score[i]; /* nothing comes before the first token */
}

static void write_text_logprobs(jsonw *w, const openai_logprobs *lp)
{
    int n = lp->n_prompt + lp->n_token;
    jsonw_open(w, "logprobs", '{');
    jsonw_open(w, "tokens", '[');
    for (int i = 0; i < n; i++) {
        bool silent = lp->ends && i == n - 1 && !lp->as_ids; /* not part of the answer's text */
        if (silent)
            jsonw_str(w, NULL, "");
        else
            write_token_name(w, NULL, lp, text_token(lp, i));
    }
    jsonw_close(w, ']');
    jsonw_open(w, "token_logprobs", '[');
    for (int i = 0; i < n; i++) {
        const sampled *t = text_score(lp, i);
        if (t)
            jsonw_num(w, NULL, (double)t->logprob);
        else
            jsonw_null(w, NULL);
    }
    jsonw_close(w, ']');
    jsonw_open(w, "top_logprobs", '[');
    for (int i = 0; i < n; i++) {
        const sampled *t = text_score(lp, i);
        if (t)
            write_top(w, lp, t, i < lp->n_prompt ? lp->n_prompt_top : t->n_top);
        else
            jsonw_null(w, NULL);
    }
    jsonw_close(w, ']');
    jsonw_open(w, "text_offset", '[');
    size_t offset = lp->text_offset;
    for (int i = 0; i < n; i++) {
        jsonw_int(w, NULL, (int64_t)offset);
        offset += openai_text_bytes(lp, text_token(lp, i));
    }
    jsonw_close(w, ']');
    jsonw_close(w, '}');
}

static void write_ranked(jsonw *w, const tokenizer *tok, int32_t id, float logprob, int rank)
{
    char name[16];
    snprintf(name, sizeof(name), "%d", (int)id);
    jsonw_open(w, name, '{');
    jsonw_num(w, "logprob", (double)logprob);
    jsonw_int(w, "rank", rank);
    write_token_text(w, "decoded_token", tok, id);
    jsonw_close(w, '}');
}

/* vLLM's prompt_logprobs: the token itself, then the best, by their ids. */
static void write_prompt(jsonw *w, const openai_logprobs *lp)
{
    if (!lp) return;
    jsonw_open(w, "prompt_logprobs", '[');
    if (lp->n_prompt > 0) jsonw_null(w, NULL); /* nothing comes before the first */
    for (int i = 1; i < lp->n_prompt; i++) {
        const sampled *t = &lp->prompt_score[i];
        jsonw_open(w, NULL, '{');
        write_ranked(w, lp->tok, t->token, t->logprob, t->rank);
        for (int k = 0; k < t->n_top && k < lp->n_prompt_top; k++) {
            if (t->top_id[k] != t->token)
                write_ranked(w, lp->tok, t->top_id[k], t->top_logprob[k], k + 1);
        }
        jsonw_close(w, '}');
    }
    jsonw_close(w, ']');
}

static void write_logprobs(jsonw *w, bool chat, const openai_logprobs *lp)
{
    if (!lp)
        jsonw_null(w, "logprobs");
    else if (chat)
        write_chat_logprobs(w, lp);
    else
        write_text_logprobs(w, lp);
}

/* ------------------------------------------------------------------ pieces -- */

static void write_head(jsonw *w, const openai_head *h, const char *object)
{
    jsonw_str(w, "id", h->id);
    jsonw_str(w, "object", object);
    jsonw_int(w, "created", h->created_s);
    jsonw_str(w, "model", h->model);
    if (h->service_tier) jsonw_str(w, "service_tier", h->service_tier);
    jsonw_str(w, "system_fingerprint", h->fingerprint);
}

static void write_usage(jsonw *w, const openai_usage *u)
{
    jsonw_open(w, "usage", '{');
    jsonw_int(w, "prompt_tokens", u->prompt_tokens);
    jsonw_int(w, "completion_tokens", u->output_tokens);
    jsonw_int(w, "total_tokens", u->prompt_tokens + u->output_tokens);
    jsonw_open(w, "prompt_tokens_details", '{');
    jsonw_int(w, "cached_tokens", u->cached_tokens);
    jsonw_close(w, '}');
    jsonw_open(w, "completion_tokens_details", '{');
    jsonw_int(w, "reasoning_tokens", u->reasoning_tokens);
    jsonw_close(w, '}');
    jsonw_close(w, '}');
}

static void write_ids(jsonw *w, const char *name, const int32_t *ids, int n)
{
    assert(n >= 0);
    if (!ids) return;
    jsonw_open(w, name, '[');
    for (int i = 0; i < n; i++) jsonw_int(w, NULL, ids[i]);
    jsonw_close(w, ']');
}

/* In a text completion part of its choice; in a chat, which has one prompt, part of the answer. */
static void write_prompt_of(jsonw *w, const openai_choice *c)
{
    write_prompt(w, c->prompt);
    write_ids(w, "prompt_token_ids", c->prompt_ids, c->n_prompt_ids);
}

/* What follows the text in every shape. */
static void write_choice_end(jsonw *w, bool chat, const openai_choice *c)
{
    bool none = c->finish && c->logprobs && !c->logprobs->n_token && !c->logprobs->n_prompt;
    write_logprobs(w, chat, none ? NULL : c->logprobs);
    jsonw_str(w, "finish_reason", c->finish);
    if (c->finish) { /* vLLM's field: the stop string or token */
        if (c->stop_string)
            jsonw_str(w, "stop_reason", c->stop_string);
        else if (c->stop_token >= 0)
            jsonw_int(w, "stop_reason", c->stop_token);
        else
            jsonw_null(w, "stop_reason");
    }
    if (!chat) write_prompt_of(w, c);
    write_ids(w, "token_ids", c->ids, c->n_ids);
}

/* One call, or what is new of it. */
static void write_call(jsonw *w, tool_reader *r, tool_call *c, int index)
{
    const char *kind = c->text ? "custom" : "function";
    held_bytes news = {0};
    jsonw_open(w, NULL, '{');
    if (index >= 0) jsonw_int(w, "index", index);
    if (c->told) {
        jsonw_str(w, "id", c->id);
        jsonw_str(w, "type", kind);
    }
    jsonw_open(w, kind, '{');
    if (c->told) jsonw_str(w, "name", c->name);
    if (!tool_reader_take_news(r, c, &news)) w->failed = true;
    jsonw_strn(w, c->text ? "input" : "arguments", news.s ? news.s : "", news.len);
    jsonw_close(w, '}');
    jsonw_close(w, '}');
    c->told = false;
    free(news.s);
}

static void write_calls(jsonw *w, tool_reader *r)
{
    if (!r || r->n_calls == 0) return;
    jsonw_open(w, "tool_calls", '[');
    for (int i = 0; i < r->n_calls; i++) write_call(w, r, &r->call[i], -1);
    jsonw_close(w, ']');
}

/* What is new since the last delta: a call's id and name once, then pieces of its arguments. */
static void write_call_deltas(jsonw *w, tool_reader *r)
{
    bool any = false;
    for (int i = 0; r && i < r->n_calls; i++) {
        tool_call *c = &r->call[i];
        if (!c->told && c->given == c->len) continue;
        if (!any) jsonw_open(w, "tool_calls", '[');
        any = true;
        write_call(w, r, c, i);
    }
    if (any) jsonw_close(w, ']');
}

/* Under the name that clients read, and vLLM's newer one. */
static void write_thoughts(jsonw *w, const openai_choice *c)
{
    if (!c->n_thoughts) return;
    jsonw_strn(w, "reasoning_content", c->thoughts, c->n_thoughts);
    jsonw_strn(w, "reasoning", c->thoughts, c->n_thoughts);
}

static void write_whole_choice(jsonw *w, bool chat, const openai_choice *c)
{
    jsonw_open(w, NULL, '{');
    jsonw_int(w, "index", c->index);
    if (chat) {
        jsonw_open(w, "message", '{');
        jsonw_str(w, "role", "assistant");
        if (c->len == 0 && c->calls && c->calls->n_calls)
            jsonw_null(w, "content");
        else
            jsonw_strn(w, "content", c->text, c->len);
        write_thoughts(w, c);
        jsonw_null(w, "refusal");
        write_calls(w, c->calls);
        jsonw_close(w, '}');
    } else {
        jsonw_strn(w, "text", c->text, c->len);
    }
    write_choice_end(w, chat, c);
    jsonw_close(w, '}');
}

static void write_delta_choice(jsonw *w, bool chat, const openai_choice *c)
{
    jsonw_open(w, NULL, '{');
    jsonw_int(w, "index", c->index);
    if (chat) {
        jsonw_open(w, "delta", '{');
        if (c->first) jsonw_str(w, "role", "assistant");
        write_thoughts(w, c);
        if (c->first || c->len) jsonw_strn(w, "content", c->text, c->len);
        if (!c->first) write_call_deltas(w, c->calls);
        jsonw_close(w, '}');
    } else {
        jsonw_strn(w, "text", c->text, c->len);
    }
    write_choice_end(w, chat, c);
    jsonw_close(w, '}');
}

/* ------------------------------------------------------------------- whole -- */

void openai_write_answer(jsonw *w, const openai_head *h, const openai_choice *choices, int n,
                         const openai_usage *u)
{
    assert(n > 0);
    jsonw_open(w, NULL, '{');
    write_head(w, h, h->chat ? "chat.completion" : "text_completion");
    jsonw_open(w, "choices", '[');
    for (int i = 0; i < n; i++) write_whole_choice(w, h->chat, &choices[i]);
    jsonw_close(w, ']');
    if (h->chat) write_prompt_of(w, &choices[0]);
    write_usage(w, u);
    jsonw_close(w, '}');
}

/* A frame is independent JSON: no comma reaches over from the one before. */
static void begin_frame(jsonw *w)
{
    jsonw_raw(w, "data: ", 6);
    w->comma = false;
    jsonw_open(w, NULL, '{');
}

static void end_frame(jsonw *w)
{
    jsonw_close(w, '}');
    jsonw_raw(w, "\n\n", 2);
}

void openai_write_chunk(jsonw *w, const openai_head *h, const openai_choice *c,
                        const openai_usage *u, bool null_usage)
{
    begin_frame(w);
    write_head(w, h, h->chat ? "chat.completion.chunk" : "text_completion");
    jsonw_open(w, "choices", '[');
    if (c) write_delta_choice(w, h->chat, c);
    jsonw_close(w, ']');
    if (c && h->chat) write_prompt_of(w, c);
    if (u)
        write_usage(w, u);
    else if (null_usage)
        jsonw_null(w, "usage");
    end_frame(w);
}

void openai_write_stream_error(jsonw *w, const char *type, const char *code, const char *msg)
{
    begin_frame(w);
    jsonw_open(w, "error", '{');
    jsonw_str(w, "message", msg);
    jsonw_str(w, "type", type);
    jsonw_null(w, "param");
    jsonw_str(w, "code", code);
    jsonw_close(w, '}');
    end_frame(w);
}
