/* thinking.h -- what a model thinks, apart from what it answers.
 *
 * The families' ways of writing it, told by the marks in the chat template:
 *   THINKING_TAG      <think> .. </think>              (Qwen3, DeepSeek, GLM, SmolLM3, Granite 3.3)
 *   THINKING_BRACKET  [THINK] .. [/THINK]              (Magistral)
 *   THINKING_SEED     <seed:think> .. </seed:think>    (Seed-OSS)
 *   THINKING_COMMAND  <|START_THINKING|> .. <|END_THINKING|>    (Command A)
 *   THINKING_GRANITE  "Here is my thought process:" .. "Here is my response:"   (Granite 3.2)
 *   THINKING_THOUGHT  <|channel>thought .. <channel|>    (Gemma 4)
 *   THINKING_CHANNEL  <|channel|>analysis<|message|> .. <|end|>, then "final" (GPT-OSS); a message
 *                     to a function is text from "to=functions." on
 * Thoughts are what stands first; marks behind the answer's first byte are its text.  White space
 * around the marks belongs to neither side.
 *
 * Ownership: the owner's struct, freed by _clear.  Threads: owner thread.
 */
#ifndef ENGINE_CHAT_THINKING_H
#define ENGINE_CHAT_THINKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/chat/chat.h"
#include "engine/chat/held.h"

typedef enum {
    THINKING_NONE,
    THINKING_TAG,
    THINKING_BRACKET,
    THINKING_SEED,
    THINKING_COMMAND,
    THINKING_GRANITE,
    THINKING_THOUGHT,
    THINKING_CHANNEL,
    THINKING_STYLES
} thinking_style;

/* By the template's marks; NULL is a model without one. */
thinking_style thinking_style_of(const chat_template *ct);
/* What the template writes around thoughts, and what an answer begins with behind them; `calls`:
 * or a call of a tool. */
const char *thinking_open(thinking_style style);

/* What ends the thoughts; static, as all of these. */
const char *thinking_close(thinking_style style);

/* What stands between the end of the thoughts and the answer. */
const char *thinking_gap(thinking_style style, bool calls);
/* Its beginning that a call and an answer have in common. */
const char *thinking_gap_apart(thinking_style style);
/* The i-th mark that the reader must see, a special token or not; NULL: there are no more. */
enum { THINKING_MARKS_MAX = 7 };
const char *thinking_mark(thinking_style style, int i);

/* Where an answer begins. */
typedef enum {
    THINKING_MAY,    /* the model decides whether it reasons */
    THINKING_OPENED, /* the prompt ends within the reasoning */
    THINKING_OVER    /* the prompt has ended the reasoning, or continues an answer */
} thinking_start;

/* By the last ids of a prompt, behind which an answer is to begin.  `opening`: what stands there
 * where the answer has begun already; "": nothing. */
thinking_start thinking_start_of(thinking_style style, const tokenizer *tok, const int32_t *ids,
                                 int n_ids, const char *opening);

typedef struct thinking_reader {
    thinking_style style;
    int phase;                 /* private */
    held_bytes raw;            /* what came and is not yet understood */
    held_bytes thoughts, text; /* given: taken already */
    bool failed;               /* no memory */
} thinking_reader;

/* A reader for one answer, which begins as `start` says. */
void thinking_reader_init(thinking_reader *r, thinking_style style, thinking_start start);

/* Frees its texts; not the struct. */
void thinking_reader_clear(thinking_reader *r);

/* The answer's next bytes, which may end within a mark or a character: what could still be a
 * mark is held back. */
void thinking_reader_push(thinking_reader *r, const char *s, size_t len);
/* The end of the answer: what is held back is what it looks like so far. */
void thinking_reader_finish(thinking_reader *r);

/* What came since the last call; borrowed until the next push. */
const char *thinking_reader_take_thoughts(thinking_reader *r, size_t *len);

/* The same of the answer itself. */
const char *thinking_reader_take_text(thinking_reader *r, size_t *len);

/* Thoughts have begun and not ended. */
bool thinking_reader_inside(const thinking_reader *r);

#endif
