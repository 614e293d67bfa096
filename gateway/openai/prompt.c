/* prompt.c -- the chat template, tools, truncation: everything between a parsed body and its
 * ids. */
#include "gateway/openai/prompt.h"

#include <stdlib.h>

#include "engine/sched/sched.h"
#include "gateway/openai/openai_tools.h"

void prompt_limits(const exchange *x, openai_limits *out)
{
    const server *s = x->server;
    const model_config *mc = model_get_config(s->model);
    *out = (openai_limits){
        .n_vocab = mc->n_vocab + mc->added_max, /* openai_check_ids() knows better */
        .max_context = sched_max_context(s->sched),
        .max_choices = (int)x->conf->server_max_choices,
        .temperature = mc->gen_temperature >= 0 ? mc->gen_temperature : 1,
        .top_p = mc->gen_top_p > 0 ? mc->gen_top_p : 1,
        .top_k = mc->gen_top_k > 0 ? mc->gen_top_k : 0,
        .min_p = mc->gen_min_p,
        .repetition_penalty = mc->gen_repetition_penalty,
        .reads_effort = s->chat && chat_template_reads(s->chat, "reasoning_effort"),
        .reads_documents = s->chat && chat_template_reads(s->chat, "documents"),
        .reads_switch = s->chat && (chat_template_reads(s->chat, "enable_thinking") ||
                                    chat_template_reads(s->chat, "thinking")),
        .thinks = s->thinking != THINKING_NONE,
        .no_raw = be_can_sample(s->be)};
    (void)openai_logprobs_mode(s->cfg->engine_logprobs_mode, &out->logprobs);
}

bool prompt_open_chat(const server *s, openai_request *rq, tool_style *tools, openai_problem *p)
{
    *tools = TOOLS_NONE;
    if (!s->chat) {
        return openai_refuse(p, 400, "unsupported_model", "model",
                             "this model has no chat template; use /v1/completions");
    }
    if (!rq->tools) return true;
    *tools = tool_style_of(s->chat);
    /* A call that must come is a bare object, where the family's has the name outside of it. */
    if (rq->tool_choice >= TOOL_CHOICE_REQUIRED && tool_style_names_outside(*tools))
        *tools = TOOLS_LLAMA;
    if (*tools == TOOLS_NONE) {
        return openai_refuse(p, 400, "unsupported_parameter", "tools",
                             "'tools' is not supported: this model's chat template has none");
    }
    return openai_form_calls(rq, *tools, s->chat, p);
}

thinking_start prompt_start(const server *s, const tokenizer *tok, const openai_request *rq,
                            tool_style tools, const int32_t *ids, int n_ids)
{
    bool forced = rq->tool_choice >= TOOL_CHOICE_REQUIRED;
    const chat_message *last = &rq->msgs[rq->n_msgs - 1];
    if (rq->continue_final && last->len > 0) return THINKING_OVER; /* more of an answer */
    return thinking_start_of(s->thinking, tok, ids, n_ids, forced ? tool_style_opening(tools) : "");
}

/* A call that is forced opens behind the thoughts, where there may be some. */
static int64_t encode_chat(const server *s, const tokenizer *tok, const openai_request *rq,
                           tool_style tools, int32_t **ids, err *e)
{
    bool forced = rq->tool_choice >= TOOL_CHOICE_REQUIRED;
    bool thinks = thinking_close(s->thinking)[0];
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
    int64_t n = chat_encode(s->chat, tok, &ask, ids, e);
    if (n < 0 || !forced || !thinks || n > INT32_MAX ||
        prompt_start(s, tok, rq, tools, *ids, (int)n) != THINKING_OVER)
        return n;
    free(*ids);
    ask.opening = tool_style_opening(tools);
    return chat_encode(s->chat, tok, &ask, ids, e);
}

int64_t prompt_encode(const server *s, const tokenizer *tok, const openai_request *rq,
                      tool_style tools, const openai_prompt *p, int32_t **ids, err *e)
{
    *ids = NULL;
    if (rq->chat) return encode_chat(s, tok, rq, tools, ids, e);
    int flags = TOK_PARSE_SPECIAL | (rq->add_special_tokens ? TOK_ADD_SPECIAL : 0);
    int64_t n = tokenizer_encode(tok, p->text, p->len, flags, NULL, 0);
    *ids = n >= 0 ? malloc(((size_t)n + 1) * sizeof(**ids)) : NULL;
    if (*ids) n = tokenizer_encode(tok, p->text, p->len, flags, *ids, (size_t)n);
    if (*ids && n >= 0) return n;
    free(*ids);
    *ids = NULL;
    return err_set(e, ERR_NOMEM, "out of memory");
}

int64_t prompt_excess(const openai_request *rq, int64_t n)
{
    return rq->truncate_prompt >= 0 && n > rq->truncate_prompt ? n - rq->truncate_prompt : 0;
}
