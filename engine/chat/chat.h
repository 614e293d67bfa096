/* chat.h -- a conversation as the prompt that a model was trained on.
 *
 * The model's own chat_template (chat_template.jinja, tokenizer_config.json or
 * chat_template.json, in this order; of a list of named ones "default", and "tool_use" where
 * tools are given) is rendered as transformers' apply_chat_template does, by engine/chat/jinja.h:
 * the same ids.  Where a model has none, or the operator wants another, model.chat_template names
 * a built-in one or a file.
 *
 * Where it differs from transformers on purpose:
 *   - What a message, a tool or an argument says never becomes a special token, nor any added token
 *     that the template writes: "<|im_end|>" in a message is encoded as ordinary text.  Where a
 *     family's markers are no tokens of the model ([INST] of Llama-2 and the first Mistrals), they
 *     are ordinary text in the template as well, and nothing tells the two apart.
 *   - A "developer" message is a system message where the template knows no developers.
 *
 * Threads: any thread.
 */
#ifndef ENGINE_CHAT_CHAT_H
#define ENGINE_CHAT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/err.h"
#include "engine/text/tokenizer.h"

typedef struct chat_template chat_template;

typedef struct chat_message {
    const char *role; /* "system", "developer", "user", "assistant", "tool" */
    const char *text;
    size_t len;
    const char *reasoning;    /* an assistant's thoughts, apart from its text; NULL: none */
    const char *name;         /* NULL: none */
    const char *tool_call_id; /* of a tool's answer; NULL: none */
    const cJSON *tool_calls;  /* an assistant's: array, with arguments as objects; NULL: none */
} chat_message;

typedef struct chat_ask {
    const chat_message *msgs;
    size_t n_msgs;
    bool add_generation_prompt;
    bool continue_final;    /* the text ends with the last message's: what closes it is left out */
    const cJSON *tools;     /* array as in OpenAI's API; NULL: none */
    const cJSON *documents; /* array, for templates that read it; NULL: none */
    const char *effort;     /* reasoning_effort, likewise; NULL: none */
    int thinking;           /* 1, -1: enable_thinking and thinking, likewise; 0: as it is */
    const cJSON *kwargs;    /* object: further variables of the template; NULL: none */
    const char *opening;    /* what the answer begins with: the template's hand; NULL: nothing */
} chat_ask;

/* `name`: NULL or "auto" for the model's own template, the path of a file (it has a '/'), or one of
 * chat_builtin.h.  ERR_NOT_FOUND: the model has none; ERR_UNSUPPORTED: the template cannot be read,
 * or the model lacks a built-in one's markers, with the way out; ERR_INPUT: unknown name.  `tok`
 * must outlive the template. */
err_code chat_template_load(chat_template **out, const char *dir, const char *name,
                            const tokenizer *tok, err *e);
void chat_template_destroy(chat_template *ct);

/* The clock for templates that ask for the date (local time); seconds since 1970.  The system's
 * clock if never called.  Before the template is shared by threads. */
void chat_template_set_clock(chat_template *ct, int64_t (*now)(void));

/* Encodes the conversation.  Returns the number of ids, *ids malloced, or a negative err_code with
 * *e (the template refuses these roles, for example). */
int64_t chat_encode(const chat_template *ct, const tokenizer *tok, const chat_ask *ask,
                    int32_t **ids, err *e);

/* Stop ids of the template (<|im_end|>, <|eot_id|> ..., the eos token);
 * returns how many (at most cap). */
enum { CHAT_STOP_MAX = 8 };
int chat_stop_ids(const chat_template *ct, int32_t *ids, int cap);

/* Whether the template's text has `part`: how it writes tool calls, whether it has tools at all. */
bool chat_template_says(const chat_template *ct, const char *part);

/* Whether the template looks at a variable of that name. */
bool chat_template_reads(const chat_template *ct, const char *name);

/* Whether `name` is a variable that the gateway or the tokenizer sets, so no kwarg. */
bool chat_reserved(const char *name);

#endif
