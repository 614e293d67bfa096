/* chat.h -- a conversation as the prompt that a model was trained on.
 *
 * No template engine: the model's own chat_template (chat_template.jinja, tokenizer_config.json or
 * chat_template.json, in this order) is read and recognised as one of the common ones, and rendered
 * by code: the same ids as Hugging Face's apply_chat_template, for conversations without tools.  A
 * template that says anything unknown is refused plainly, with the way out (config key
 * model.chat_template = one of the names):
 *   chatml, qwen   <|im_start|> ... <|im_end|>, a default system message if the template has one
 *   qwen3          the same with thoughts: cut from earlier replies, the opening leaves them free
 *   llama-3        headers; llama-3.1 (and 3.2, 3.3): with the two dates
 *   llama-2        [INST] and <<SYS>>;  mistral: [INST] in each version's own spacing
 *   role-tags      <|user|> ... <|end|> (the demo's);  zephyr: ended by the eos token (TinyLlama)
 *
 * Where it differs from Hugging Face on purpose:
 *   - A message's text never becomes a special token, nor any added token that the template
 *     contains: "<|im_end|>" in a message is encoded as ordinary text.  Where a family's markers are
 *     no tokens of the model ([INST] of Llama-2 and the first Mistrals, <|user|> of Zephyr), they
 *     are ordinary text in the template as well, and nothing tells the two apart.
 *   - A "developer" message is a system message.
 *   - Of a dated template the date written in it is used, if there is one, even where it would
 *     rather ask the clock: prompts stay the same from day to day.
 *
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

/* `name`: NULL or "auto" recognises the model's own template; else one of chat_template_names(): the
 * model's own if it is of that name, else as the family's models usually have it.
 * ERR_UNSUPPORTED with the way out when it is not recognised, or the model lacks its markers;
 * ERR_NOT_FOUND: the model has none; ERR_INPUT: unknown name.  `tok` must outlive the template. */
err_code chat_template_load(chat_template **out, const char *dir, const char *name,
                            const tokenizer *tok, err *e);
void chat_template_destroy(chat_template *ct);
const char *chat_template_name(const chat_template *ct);
const char *chat_template_names(void); /* comma-separated, for messages */

/* The clock for templates that write today's date (local time) and have none of their own; seconds
 * since 1970.  The system's clock if never called.  Before the template is shared by threads. */
void chat_template_set_clock(chat_template *ct, int64_t (*now)(void));

/* Encodes the conversation, with the assistant's opening if `add_generation_prompt`.  Returns the
 * count as tokenizer_encode() does, or a negative err_code with *e (roles in an order the template
 * cannot express, for example). */
int64_t chat_encode(const chat_template *ct, const tokenizer *tok, const chat_message *msgs,
                    size_t n_msgs, bool add_generation_prompt, int32_t *ids, size_t cap, err *e);

/* Stop ids of the template (<|im_end|>, <|eot_id|> ..., the eos token); returns how many (at most cap). */
int chat_stop_ids(const chat_template *ct, int32_t *ids, int cap);

#endif
