/* chat.h -- a conversation as the prompt that a model was trained on.
 *
 * No template engine: the model's own chat_template (tokenizer_config.json, chat_template.jinja)
 * is recognised as one of the common ones (ChatML, Llama-2, Llama-3, Mistral, Qwen, the demo's)
 * by what it contains, and rendered by code.  Another template is refused plainly, with the way
 * out (config key model.chat_template = one of the names).
 *
 * Messages' text can't forge markers: it is encoded without parsing special tokens.
 * Threads: any thread.
 */
#ifndef ENGINE_CHAT_H
#define ENGINE_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/tokenizer.h"

typedef struct chat_template chat_template;

typedef struct chat_message {
    const char *role; /* "system", "developer", "user", "assistant" */
    const char *text;
    size_t len;
} chat_message;

/* `name`: NULL or "auto" recognises the model's own template; else one of chat_template_names().
 * ERR_UNSUPPORTED with the way out when it is not recognised; ERR_NOT_FOUND: the model has none. */
err_code chat_template_load(chat_template **out, const char *dir, const char *name,
                            const tokenizer *tok, err *e);
void chat_template_destroy(chat_template *ct);
const char *chat_template_name(const chat_template *ct);
const char *chat_template_names(void); /* comma-separated, for messages */

/* Encodes the conversation, with the assistant's opening if `add_generation_prompt`.  Returns the
 * count as tokenizer_encode() does, or a negative err_code with *e (roles in an order the template
 * cannot express, for example). */
int64_t chat_encode(const chat_template *ct, const tokenizer *tok, const chat_message *msgs,
                    size_t n_msgs, bool add_generation_prompt, int32_t *ids, size_t cap, err *e);

/* Extra stop ids of the template (<|im_end|>, <|eot_id|> ...); returns how many (at most cap). */
int chat_stop_ids(const chat_template *ct, int32_t *ids, int cap);

#endif
