/* prompt.c -- the chat template, tools, truncation: everything between a parsed body and its
 * ids.
 *
 *     limits   prompt_limits()     what the model and the configuration allow a body
 *     chat     prompt_open_chat()  tools: told in the template's own way, else in a system message
 *     ids      prompt_encode()     render, tokenize; on nice threads where it is long
 *     start    prompt_start()      whether the answer begins with thoughts
 *
 * A call that must come (tool_choice) opens in the prompt, so that the model writes only its
 * rest. Where the model thinks first it may open only behind the thoughts: the prompt is made
 * once without the opening, and anew with it if it turns out to end behind them.
 *
 * Texts above SHORT_BYTES go to the nice pool, one tenant after the other: a worker that encodes
 * megabytes would keep a core from the engine.
 *
 * Threads: the exchange's worker waits for its text.
 */
#include "gateway/openai/prompt.h"

#include <stdlib.h>

#include "engine/program/nice_pool.h"
#include "engine/sched/sched.h"
#include "gateway/auth.h"
#include "gateway/engine_parts.h"
#include "gateway/openai/openai_tools.h"
#include "gateway/process_parts.h"

/* A text of that length takes a few milliseconds; longer ones go to engine_parts.encoders. */
enum { SHORT_BYTES = 16 << 10 };

void prompt_limits(const exchange *x, openai_limits *out)
{
    const server *s = x->app;
    const model_config *mc = model_get_config(engine_of(s)->model);
    *out = (openai_limits){
        .n_vocab = mc->n_vocab + mc->added_max, /* openai_check_ids() knows better */
        .base = x->conf->model.name,
        .max_context = sched_max_context(sched_of(s)),
        .max_new_tokens = mc->gen_max_tokens,
        .max_choices = (int)x->conf->server.max_choices,
        .max_beams = (int)x->conf->server.max_beams, /* at most BEAMS_MAX */
        .defaults = mc->generation,
        .reads_effort =
            engine_of(s)->chat && chat_template_reads(engine_of(s)->chat, "reasoning_effort"),
        .reads_documents =
            engine_of(s)->chat && chat_template_reads(engine_of(s)->chat, "documents"),
        .reads_switch =
            engine_of(s)->chat && (chat_template_reads(engine_of(s)->chat, "enable_thinking") ||
                                   chat_template_reads(engine_of(s)->chat, "thinking")),
        .thinks = engine_of(s)->thinking != THINKING_NONE,
        .no_raw = be_can_sample(engine_of(s)->be)};
    (void)openai_logprobs_mode(x->conf->engine.logprobs_mode, &out->logprobs);
}

bool prompt_open_chat(const engine_parts *parts, openai_request *rq, tool_style *tools,
                      openai_problem *p)
{
    *tools = TOOLS_NONE;
    if (!parts->chat) {
        return openai_refuse(p, 400, "unsupported_model", "model",
                             "this model has no chat template; use /v1/completions");
    }
    if (!openai_has_tools(rq)) return true;
    tool_style style = tool_style_of(parts->chat);
    bool told = style == TOOLS_NONE, forced = rq->tool_choice >= TOOL_CHOICE_REQUIRED;
    /* A template may write calls without knowing tools. */
    if (told && !chat_template_says(parts->chat, "tool_calls") && !openai_tell_history(rq, p))
        return false;
    if (!rq->tools) return true;
    if (told && !openai_tell_tools(rq, p)) return false;
    /* A call that must come is a bare object, where the family's has the name outside of it. */
    *tools = told || (forced && tool_style_names_outside(style)) ? TOOLS_LLAMA : style;
    return openai_form_calls(rq, *tools, parts->chat, p);
}

thinking_start prompt_start(const engine_parts *parts, const tokenizer *tok,
                            const openai_request *rq, tool_style tools, const int32_t *ids,
                            int n_ids)
{
    bool forced = rq->tool_choice >= TOOL_CHOICE_REQUIRED;
    const chat_message *last = &rq->msgs[rq->n_msgs - 1];
    if (rq->continue_final && last->len > 0) return THINKING_OVER; /* more of an answer */
    return thinking_start_of(parts->thinking, tok, ids, n_ids,
                             forced ? tool_style_opening(tools) : "");
}

/* A call that is forced opens behind the thoughts, where there may be some. */
static int64_t encode_chat(const engine_parts *parts, const tokenizer *tok,
                           const openai_request *rq, tool_style tools, int32_t **ids, err *e)
{
    bool forced = rq->tool_choice >= TOOL_CHOICE_REQUIRED;
    bool thinks = thinking_close(parts->thinking)[0];
    chat_ask ask = {.msgs = rq->msgs,
                    .n_msgs = (size_t)rq->n_msgs,
                    .add_generation_prompt = rq->add_generation_prompt,
                    .continue_final = rq->continue_final,
                    .tools = rq->tools,
                    .documents = rq->documents,
                    .effort = rq->effort,
                    .thinking = rq->thinking,
                    .opening = forced && !thinks ? tool_style_opening(tools) : NULL,
                    .kwargs = rq->template_kwargs};
    int64_t n = chat_encode(parts->chat, tok, &ask, ids, e);
    if (n < 0 && e->code == ERR_INPUT && openai_mend_calls(rq))
        n = chat_encode(parts->chat, tok, &ask, ids, e);
    if (n < 0 || !forced || !thinks || n > INT32_MAX ||
        prompt_start(parts, tok, rq, tools, *ids, (int)n) != THINKING_OVER)
        return n;
    free(*ids);
    ask.opening = tool_style_opening(tools);
    return chat_encode(parts->chat, tok, &ask, ids, e);
}

size_t prompt_bytes(const openai_request *rq, const openai_prompt *p)
{
    size_t sum = 0;
    if (!rq->chat) return p->len;
    for (int i = 0; i < rq->n_msgs; i++) sum += rq->msgs[i].len;
    return sum;
}

typedef struct encoding {
    const exchange *x;
    const tokenizer *tok;
    const openai_request *rq; /* of a chat; NULL: the text */
    tool_style tools;
    const char *text;
    size_t len;
    int flags;
    int32_t **ids;
    err *e;
    int64_t n; /* out */
} encoding;

/* Half as many tokens as bytes are enough for most texts: one pass. */
static int64_t encode_text(encoding *j)
{
    size_t cap = j->len / 2 + 16;
    for (int pass = 0; pass < 2; pass++) {
        *j->ids = malloc((cap + 1) * sizeof(**j->ids));
        if (!*j->ids) break;
        int64_t n = tokenizer_encode(j->tok, j->text, j->len, j->flags, *j->ids, cap);
        if (n >= 0 && (size_t)n <= cap) return n;
        free(*j->ids);
        *j->ids = NULL;
        if (n < 0) break;
        cap = (size_t)n;
    }
    return err_set(j->e, ERR_NOMEM, "out of memory");
}

static void run_encoding(void *arg)
{
    encoding *j = arg;
    *j->ids = NULL;
    j->n = j->rq ? encode_chat(engine_of(j->x->app), j->tok, j->rq, j->tools, j->ids, j->e)
                 : encode_text(j);
}

static int64_t encode(encoding *j, size_t bytes, int64_t *busy_us)
{
    nice_pool *pool = bytes > SHORT_BYTES ? engine_of(j->x->app)->encoders : NULL;
    *busy_us += nice_pool_run(pool, j->x->caller->tenant.id, run_encoding, j);
    return j->n;
}

int64_t prompt_encode_text(const exchange *x, const tokenizer *tok, const char *text, size_t len,
                           int flags, int32_t **ids, int64_t *busy_us)
{
    err e;
    encoding j = {
        .x = x, .tok = tok, .text = text, .len = len, .flags = flags, .ids = ids, .e = &e};
    return encode(&j, len, busy_us);
}

int64_t prompt_encode(const exchange *x, const tokenizer *tok, const openai_request *rq,
                      tool_style tools, const openai_prompt *p, int32_t **ids, int64_t *busy_us,
                      err *e)
{
    encoding j = {.x = x, .tok = tok, .tools = tools, .ids = ids, .e = e};
    size_t bytes = prompt_bytes(rq, p);
    if (rq->chat) {
        j.rq = rq; /* tools and documents are in the body as well */
        return encode(&j, bytes > x->body.bytes ? bytes : x->body.bytes, busy_us);
    }
    j.text = p->text;
    j.len = p->len;
    j.flags = (rq->plain_special ? 0 : TOK_PARSE_SPECIAL) |
              (rq->add_special_tokens ? TOK_ADD_SPECIAL : 0);
    return encode(&j, bytes, busy_us);
}

int64_t prompt_excess(const openai_request *rq, int64_t n)
{
    return rq->truncate_prompt >= 0 && n > rq->truncate_prompt ? n - rq->truncate_prompt : 0;
}
