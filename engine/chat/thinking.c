/* thinking.c -- separates reasoning from the answer while bytes arrive (thinking.h has the marks).
 *
 * A state machine over `raw`, the bytes that are not decided yet:
 *
 *   BEFORE --open mark--> INSIDE --close mark--> GAP --first visible byte--> TEXT
 *      +------- other bytes: an answer without reasoning ----------------------^
 *
 *   HEAD --<|message|>--> INSIDE or TEXT --<|end|>--> HEAD      channels (GPT-OSS)
 *   HEAD --to=functions--> CALLING --<|call|>--> HEAD
 *
 * advance() makes one transition or moves bytes to `thoughts` or `text`; the reader repeats it
 * until it needs more bytes.  It holds back at most a possible beginning of a mark with the white
 * space before it, and for channels a message's head of up to CHANNEL_HEAD_MAX bytes.  So an answer
 * streams with that delay only.
 *
 * Marks may be split between pushes at any byte.  TEXT is final except for channels, where several
 * messages follow one another: a mark in the answer is text.  A head that can't be one makes the
 * rest text.
 *
 * thinking_start_of() looks at the end of the prompt: many templates write the opening mark (or an
 * empty pair) themselves.
 */
#include "engine/chat/thinking.h"

#include <stdlib.h>
#include <string.h>

enum { TAIL_TOKENS = 64, CHANNEL_HEAD_MAX = 256 };

/* BEFORE: only white space so far; GAP: white space after the reasoning; HEAD: of channels, between
 * two messages; CALLING: of channels, a message to a function. */
enum { BEFORE, INSIDE, GAP, TEXT, HEAD, CALLING };

typedef struct {
    const char *open, *close, *gap;
} marks;

static const marks styles[THINKING_STYLES] = {
    [THINKING_NONE] = {"", "", ""},
    [THINKING_TAG] = {"<think>", "</think>", "\n\n"},
    [THINKING_BRACKET] = {"[THINK]", "[/THINK]", ""},
    [THINKING_SEED] = {"<seed:think>", "</seed:think>", ""},
    [THINKING_COMMAND] = {"<|START_THINKING|>", "<|END_THINKING|>", ""},
    [THINKING_GRANITE] = {"Here is my thought process:", "Here is my response:", "\n"},
    [THINKING_THOUGHT] = {"<|channel>thought", "<channel|>", ""},
    [THINKING_CHANNEL] = {"<|channel|>analysis<|message|>", "<|end|>",
                          "<|start|>assistant<|channel|>final<|message|>"},
};

/* Marks in a template by which its style is recognised; the first one that occurs decides. */
static const struct {
    const char *text;
    thinking_style style;
} signs[] = {
    {"<|channel|>", THINKING_CHANNEL},
    {"<|channel>", THINKING_THOUGHT},
    {"<channel|>", THINKING_THOUGHT},
    {"<seed:think>", THINKING_SEED},
    {"[THINK]", THINKING_BRACKET},
    {"<|START_THINKING|>", THINKING_COMMAND},
    {"Here is my thought process:", THINKING_GRANITE},
    {"<think>", THINKING_TAG},
    {"</think>", THINKING_TAG},
};

thinking_style thinking_style_of(const chat_template *ct)
{
    for (size_t i = 0; ct && i < sizeof(signs) / sizeof(signs[0]); i++) {
        if (chat_template_says(ct, signs[i].text)) return signs[i].style;
    }
    return THINKING_NONE;
}

const char *thinking_open(thinking_style style)
{
    return styles[style].open;
}

const char *thinking_close(thinking_style style)
{
    return styles[style].close;
}

const char *thinking_gap(thinking_style style, bool calls)
{
    if (calls && style == THINKING_CHANNEL) return "<|start|>assistant<|channel|>commentary";
    return styles[style].gap;
}

const char *thinking_gap_apart(thinking_style style)
{
    return style == THINKING_CHANNEL ? "<|start|>assistant" : styles[style].gap;
}

static const char *const channel_marks[THINKING_MARKS_MAX] = {
    "<|start|>",     "<|channel|>", "<|message|>", "<|end|>",
    "<|constrain|>", "<|call|>",    "<|return|>"};

const char *thinking_mark(thinking_style style, int i)
{
    if (i < 0 || i >= THINKING_MARKS_MAX || style == THINKING_NONE) return NULL;
    if (style == THINKING_CHANNEL) return channel_marks[i];
    if (style == THINKING_THOUGHT) return i == 0 ? "<|channel>" : i == 1 ? "<channel|>" : NULL;
    return i == 0 ? styles[style].open : i == 1 ? styles[style].close : NULL;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool ends_with(const char *s, size_t len, const char *mark)
{
    size_t n = strlen(mark);
    return n > 0 && len >= n && memcmp(s + len - n, mark, n) == 0;
}

thinking_start thinking_start_of(thinking_style style, const tokenizer *tok, const int32_t *ids,
                                 int n_ids, const char *opening)
{
    int from = n_ids > TAIL_TOKENS ? n_ids - TAIL_TOKENS : 0;
    size_t len = 0;
    if (style == THINKING_NONE) return THINKING_OVER;
    char *tail = tokenizer_decode(tok, ids + from, (size_t)(n_ids - from), false, &len);
    if (!tail) return THINKING_MAY;
    bool begun = ends_with(tail, len, opening), pair = style != THINKING_CHANNEL;
    while (len > 0 && is_space(tail[len - 1])) len--;
    thinking_start start = begun                                                 ? THINKING_OVER
                           : ends_with(tail, len, thinking_open(style))          ? THINKING_OPENED
                           : pair && ends_with(tail, len, thinking_close(style)) ? THINKING_OVER
                                                                                 : THINKING_MAY;
    free(tail);
    return start;
}

/* --------------------------------------------------------------------- the reader -- */

void thinking_reader_init(thinking_reader *r, thinking_style style, thinking_start start)
{
    *r = (thinking_reader){.style = style};
    r->phase = start == THINKING_OPENED ? INSIDE : start == THINKING_OVER ? TEXT : BEFORE;
    if (style == THINKING_CHANNEL && r->phase == BEFORE) r->phase = HEAD;
}

void thinking_reader_clear(thinking_reader *r)
{
    free(r->raw.s);
    free(r->thoughts.s);
    free(r->text.s);
    *r = (thinking_reader){0};
}

static void add(thinking_reader *r, held_bytes *b, const char *s, size_t len)
{
    if (!r->failed && !held_add(b, s, len)) r->failed = true;
}

static void drop(thinking_reader *r, size_t n)
{
    held_drop(&r->raw, n);
}

static void pass(thinking_reader *r, held_bytes *to, size_t n)
{
    add(r, to, r->raw.s, n);
    drop(r, n);
}

static size_t leading_spaces(const thinking_reader *r)
{
    size_t n = 0;
    while (n < r->raw.len && is_space(r->raw.s[n])) n++;
    return n;
}

/* The position in the held bytes where `mark` begins (*whole is true), or where a beginning of it
 * stands at their end (*whole is false). */
static size_t find_mark(const thinking_reader *r, const char *mark, bool *whole)
{
    size_t len = strlen(mark), n = r->raw.len < len - 1 ? r->raw.len : len - 1;
    const char *at = memmem(r->raw.s, r->raw.len, mark, len);
    *whole = at != NULL;
    if (at) return (size_t)(at - r->raw.s);
    while (n > 0 && memcmp(r->raw.s + r->raw.len - n, mark, n) != 0) n--;
    return r->raw.len - n;
}

/* Text up to a mark, without the white space around it.  True: the mark is there, and dropped. */
static bool pass_until(thinking_reader *r, held_bytes *to, const char *mark)
{
    bool whole;
    if (to->len == 0) drop(r, leading_spaces(r));
    size_t at = find_mark(r, mark, &whole), n = at;
    while (n > 0 && is_space(r->raw.s[n - 1])) n--;
    pass(r, to, n);
    if (whole) drop(r, at - n + strlen(mark));
    return whole;
}

/* The beginning: the opening mark, or an answer.  True: look again. */
static bool begin(thinking_reader *r)
{
    const char *open = thinking_open(r->style);
    size_t n = leading_spaces(r), len = strlen(open), have = r->raw.len - n;
    if (have == 0) return false;
    if (memcmp(r->raw.s + n, open, have < len ? have : len) != 0) {
        r->phase = TEXT;
        return true;
    }
    if (have < len) return false;
    drop(r, n + len);
    r->phase = INSIDE;
    return true;
}

/* Of channels: the head up to "<|message|>" names the kind of message.  A head that names a
 * function is text from that name on, where the reader of calls finds it.  True: look again. */
static bool read_head(thinking_reader *r)
{
    static const char mark[] = "<|message|>", to[] = "to=functions.";
    bool whole, first = r->text.len == 0 && r->thoughts.len == 0;
    size_t at = find_mark(r, mark, &whole), n = leading_spaces(r), left = r->raw.len - n;
    if (left == 0) return false;
    bool head = r->raw.s[n] == '<' || !first || memcmp(r->raw.s + n, to, left < 3 ? left : 3) == 0;
    if (head && !whole && r->raw.len < CHANNEL_HEAD_MAX + sizeof(mark) - 1) return false;
    if (!head || !whole || at > CHANNEL_HEAD_MAX) { /* not the head of a message */
        r->phase = TEXT;
        return true;
    }
    const char *call = memmem(r->raw.s, at, to, sizeof(to) - 1);
    bool thought = !call && memmem(r->raw.s, at, "analysis", strlen("analysis")) != NULL;
    if (call) drop(r, (size_t)(call - r->raw.s));
    r->phase = call ? CALLING : thought ? INSIDE : TEXT;
    if (!call) drop(r, at + sizeof(mark) - 1);
    return true;
}

/* Of channels: a call, its end included.  True: look again. */
static bool read_call(thinking_reader *r)
{
    static const char mark[] = "<|call|>";
    bool whole;
    size_t at = find_mark(r, mark, &whole);
    pass(r, &r->text, at + (whole ? sizeof(mark) - 1 : 0));
    if (whole) r->phase = HEAD;
    return whole;
}

/* Of channels: a message ends where the next begins.  True: look again. */
static bool read_message(thinking_reader *r, held_bytes *to)
{
    if (!pass_until(r, to, "<|end|>")) return false;
    r->phase = HEAD;
    return true;
}

static bool advance(thinking_reader *r)
{
    bool channel = r->style == THINKING_CHANNEL;
    switch (r->phase) {
    case BEFORE: return begin(r);
    case HEAD: return read_head(r);
    case CALLING: return read_call(r);
    case INSIDE:
        if (channel) return read_message(r, &r->thoughts);
        if (!pass_until(r, &r->thoughts, thinking_close(r->style))) return false;
        r->phase = GAP;
        return true;
    case GAP:
        drop(r, leading_spaces(r));
        if (r->raw.len) r->phase = TEXT;
        return r->raw.len > 0;
    default: break;
    }
    if (channel) return read_message(r, &r->text);
    pass(r, &r->text, r->raw.len);
    return false;
}

void thinking_reader_push(thinking_reader *r, const char *s, size_t len)
{
    add(r, &r->raw, s, len);
    while (!r->failed && r->raw.len && advance(r)) {
    }
}

void thinking_reader_finish(thinking_reader *r)
{
    if (r->failed) return;
    bool over = r->phase == GAP || (r->phase == HEAD && (r->text.len || r->thoughts.len));
    if (over) drop(r, r->raw.len);
    pass(r, r->phase == INSIDE ? &r->thoughts : &r->text, r->raw.len);
}

static const char *take(held_bytes *b, size_t *len)
{
    const char *s = b->s ? b->s + b->given : "";
    *len = b->len - b->given;
    b->given = b->len;
    return s;
}

const char *thinking_reader_take_thoughts(thinking_reader *r, size_t *len)
{
    return take(&r->thoughts, len);
}

const char *thinking_reader_take_text(thinking_reader *r, size_t *len)
{
    return take(&r->text, len);
}

bool thinking_reader_inside(const thinking_reader *r)
{
    return r->phase == INSIDE;
}
