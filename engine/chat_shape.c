/* chat_shape.c -- what a chat template says, read without running it.
 *
 * A Jinja template is brought into one plain form: a list of records, each one either what is
 * output between two statements (joined into one expression) or a statement.  Spelling is made
 * the same everywhere: no spaces outside literals, 'single quotes', message.role for
 * message["role"], |trim for .strip(), + for ~, neighbouring literals joined, raw text as a
 * literal, whitespace control applied as Hugging Face configures Jinja (trim_blocks,
 * lstrip_blocks).  The families are then recognised by their records; texts that differ from
 * model to model (a default system message, the spaces around [INST], dates) are cut out of them.
 *
 * A template that outputs anything unknown is refused.  One exception: a template that can render
 * tools has outputs for them that are passed over, since lorad's conversations have no tools.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/chat_inside.h"
#include "engine/unicode.h"

/* An apostrophe inside a literal; real quotes bound literals. */
static const char QUOTE = '\x01';

/* -------------------------------------------------------------- the plain form -- */

typedef struct {
    bool output; /* or a statement */
    const char *s;
    size_t len;
} record;

typedef struct {
    char *out; /* the plain form; never longer than the template and three bytes a tag */
    size_t n;
    record *recs;
    size_t n_recs;
    bool open; /* the last record is an output that may still grow */
    bool failed;
    bool tools; /* the template speaks of tools */
} plain;

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static char swapped(char c, char from, char to)
{
    if (c == from) return to;
    return c;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static void add(plain *p, char c)
{
    p->out[p->n++] = c;
}

static void begin_record(plain *p, bool output)
{
    if (output && p->open) {
        add(p, '+');
        return;
    }
    p->recs[p->n_recs++] = (record){output, p->out + p->n, 0};
    p->open = output;
}

static void end_record(plain *p)
{
    record *r = &p->recs[p->n_recs - 1];
    r->len = (size_t)(p->out + p->n - r->s);
}

/* Opens a literal, or goes on with the one that the plain form ends with. */
static void open_literal(plain *p)
{
    const record *r = &p->recs[p->n_recs - 1];
    const char *end = p->out + p->n;
    if (end - r->s >= 2 && end[-1] == '+' && end[-2] == '\'')
        p->n -= 2;
    else
        add(p, '\'');
}

static void add_in_literal(plain *p, char c)
{
    if (c == QUOTE) p->failed = true;
    add(p, swapped(c, '\'', QUOTE));
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* \xhh and \uhhhh; others as they are written.  Returns what was read after the backslash. */
static size_t escape(plain *p, const char *s, const char *end)
{
    static const char from[] = "ntr\\'\"", to[] = "\n\t\r\\'\"";
    const char *plain_one = s < end ? strchr(from, *s) : NULL;
    if (s < end && *s && plain_one) {
        add_in_literal(p, to[plain_one - from]);
        return 1;
    }
    int digits = s < end && *s == 'x' ? 2 : s < end && *s == 'u' ? 4 : 0;
    uint32_t c = 0;
    for (int i = 1; i <= digits; i++) {
        int d = s + i < end ? hex_digit(s[i]) : -1;
        if (d < 0) digits = 0;
        c = c * 16 + (uint32_t)(d < 0 ? 0 : d);
    }
    if (digits == 0 || c < 0x20 || (c >= 0xD800 && c < 0xE000)) {
        p->failed = true; /* rare, and not needed by any known template */
        return 0;
    }
    char utf8[4];
    size_t n = utf8_encode(c, utf8);
    for (size_t i = 0; i < n; i++) add_in_literal(p, utf8[i]);
    return (size_t)digits + 1;
}

/* A literal at s; returns where it ends. */
static const char *literal(plain *p, const char *s, const char *end)
{
    char quote = *s++;
    open_literal(p);
    while (s < end && *s != quote) {
        char c = *s++;
        if (c == '\\')
            s += escape(p, s, end);
        else
            add_in_literal(p, c);
    }
    add(p, '\'');
    if (s == end) p->failed = true;
    return s < end ? s + 1 : end;
}

/* ['name'] -> .name; returns where the subscript ends, or NULL if it is another. */
static const char *member(plain *p, const char *s, const char *end)
{
    const char *a = s + 1;
    while (a < end && is_blank(*a)) a++;
    if (a == end || (*a != '\'' && *a != '"')) return NULL;
    const char *name = a + 1, *b = name;
    while (b < end && is_word(*b)) b++;
    if (b == end || b == name || *b != *a) return NULL;
    const char *close = b + 1;
    while (close < end && is_blank(*close)) close++;
    if (close == end || *close != ']') return NULL;
    add(p, '.');
    for (; name < b; name++) add(p, *name);
    return close + 1;
}

static bool ends_with(const plain *p, const char *tail)
{
    size_t n = strlen(tail);
    const record *r = &p->recs[p->n_recs - 1];
    return (size_t)(p->out + p->n - r->s) >= n && memcmp(p->out + p->n - n, tail, n) == 0;
}

static void expression(plain *p, const char *s, const char *end)
{
    bool space = false;
    while (s < end) {
        char c = *s;
        if (is_blank(c)) {
            space = true;
            s++;
            continue;
        }
        bool first = p->out + p->n == p->recs[p->n_recs - 1].s;
        if (space && is_word(c) && !first && is_word(p->out[p->n - 1])) add(p, ' ');
        space = false;
        const char *after = c == '[' ? member(p, s, end) : NULL;
        if (after) {
            s = after;
        } else if (c == '\'' || c == '"') {
            s = literal(p, s, end);
        } else {
            add(p, swapped(c, '~', '+'));
            s++;
            if (c == ')' && ends_with(p, ".strip()")) {
                p->n -= strlen(".strip()");
                memcpy(p->out + p->n, "|trim", 5);
                p->n += 5;
            }
        }
    }
}

static void raw_text(plain *p, const char *s, const char *end)
{
    if (s >= end) return;
    begin_record(p, true);
    open_literal(p);
    for (; s < end; s++) add_in_literal(p, *s);
    add(p, '\'');
    end_record(p);
}

/* Where the tag that begins at s ends ("}}", "%}", "#}"), literals and braces passed over. */
static const char *tag_end(const char *s, char kind)
{
    char first = swapped(kind, '{', '}');
    int depth = 0;
    for (; *s; s++) {
        if (kind != '#' && (*s == '\'' || *s == '"')) {
            char quote = *s++;
            while (*s && *s != quote) s += *s == '\\' && s[1] ? 2 : 1;
            if (!*s) return NULL;
        } else if (depth == 0 && s[0] == first && s[1] == '}') {
            return s;
        } else if (kind != '#') {
            depth += *s == '{' ? 1 : *s == '}' ? -1 : 0;
        }
    }
    return NULL;
}

/* The raw text before a tag, cut as the tag (and lstrip_blocks) say. */
static const char *cut_right(const char *from, const char *tag, bool line_starts)
{
    const char *end = tag;
    if (tag[2] == '-') {
        while (end > from && is_blank(end[-1])) end--;
    } else if (tag[1] != '{' && tag[2] != '+') {
        while (end > from && (end[-1] == ' ' || end[-1] == '\t')) end--;
        if (end > from ? end[-1] != '\n' : !line_starts) end = tag;
    }
    return end;
}

static void statement(plain *p, const char *s, const char *end)
{
    while (s < end && is_blank(*s)) s++;
    while (end > s && is_blank(end[-1])) end--;
    size_t n = (size_t)(end - s);
    bool training = (n == 10 && memcmp(s, "generation", 10) == 0) ||
                    (n == 13 && memcmp(s, "endgeneration", 13) == 0);
    if (training) return; /* marks what is trained on, outputs nothing */
    if (n >= 3 && memcmp(s, "raw", 3) == 0) p->failed = true;
    begin_record(p, false);
    expression(p, s, end);
    end_record(p);
}

static void read_template(plain *p, const char *s)
{
    const char *end = s + strlen(s);
    if (end > s && end[-1] == '\n') end--; /* as Jinja: the last newline is no text */
    bool line_starts = true;
    while (s < end && !p->failed) {
        const char *tag = s;
        while (tag < end && !(tag[0] == '{' && (tag[1] == '{' || tag[1] == '%' || tag[1] == '#')))
            tag++;
        if (tag >= end) {
            raw_text(p, s, end);
            return;
        }
        raw_text(p, s, cut_right(s, tag, line_starts));
        const char *in = tag + 2, *close = tag_end(in, tag[1]);
        if (!close || close >= end) {
            p->failed = true;
            return;
        }
        bool cut = close > in && close[-1] == '-';
        const char *stop = close - (close > in && (cut || close[-1] == '+'));
        if (*in == '-' || *in == '+') in++;
        if (in > stop) in = stop;
        if (tag[1] == '{') {
            begin_record(p, true);
            expression(p, in, stop);
            end_record(p);
        } else if (tag[1] == '%') {
            statement(p, in, stop);
        }
        s = close + 2;
        line_starts = false;
        if (cut) {
            for (; s < end && is_blank(*s); s++) line_starts = *s == '\n';
        } else if (tag[1] != '{' && s < end && *s == '\n' && close[-1] != '+') {
            s++;
            line_starts = true;
        }
    }
}

static bool make_plain(plain *p, const char *text)
{
    size_t len = strlen(text), tags = 1;
    for (const char *s = text; (s = strchr(s, '{')) != NULL; s++) tags++;
    *p = (plain){.out = malloc(2 * len + 4 * tags + 16),
                 .recs = calloc(2 * tags + 1, sizeof(*p->recs)),
                 .tools = strstr(text, "tool") != NULL};
    p->failed = !p->out || !p->recs;
    if (!p->failed) read_template(p, text);
    return !p->failed;
}

static void free_plain(plain *p)
{
    free(p->out);
    free(p->recs);
}

/* ----------------------------------------------------------- asking the records -- */

typedef struct {
    const char *s;
    size_t len;
} span;

/* '*' in a pattern stands for any text inside a literal. */
static bool like_at(const char *s, const char *end, const char *pattern, span *caught)
{
    for (; *pattern; pattern++) {
        if (*pattern == '*') {
            for (const char *stop = s;; stop++) {
                *caught = (span){s, (size_t)(stop - s)};
                if (like_at(stop, end, pattern + 1, caught + 1)) return true;
                if (stop == end || *stop == '\'') return false;
            }
        }
        if (s == end || *s != *pattern) return false;
        s++;
    }
    return s == end;
}

static bool like(const record *r, const char *pattern, span *caught)
{
    return like_at(r->s, r->s + r->len, pattern, caught);
}

static bool is(const record *r, const char *text)
{
    return r->len == strlen(text) && memcmp(r->s, text, r->len) == 0;
}

static bool starts(const record *r, const char *text)
{
    return r->len >= strlen(text) && memcmp(r->s, text, strlen(text)) == 0;
}

static bool holds(const record *r, const char *text)
{
    return memmem(r->s, r->len, text, strlen(text)) != NULL;
}

/* A statement that is (or, with a '*', is like) the pattern. */
static const record *statement_like(const plain *p, const char *pattern, span *caught)
{
    for (size_t i = 0; i < p->n_recs; i++) {
        if (!p->recs[i].output && like(&p->recs[i], pattern, caught)) return &p->recs[i];
    }
    return NULL;
}

static bool has_statement(const plain *p, const char *text)
{
    span none[1];
    return statement_like(p, text, none) != NULL;
}

static bool any_holds(const plain *p, const char *text)
{
    for (size_t i = 0; i < p->n_recs; i++) {
        if (holds(&p->recs[i], text)) return true;
    }
    return false;
}

/* A caught text, kept in the shape; NULL: no room. */
static const char *keep(chat_shape *s, span c)
{
    if (SHAPE_TEXT - s->used <= c.len) return NULL;
    char *at = s->text + s->used;
    for (size_t i = 0; i < c.len; i++) at[i] = swapped(c.s[i], QUOTE, '\'');
    at[c.len] = 0;
    s->used += c.len + 1;
    return at;
}

/* Keeps a text that may be said more than once, but only ever the same. */
static bool keep_same(chat_shape *s, const char **at, span c)
{
    const char *before = *at, *now = keep(s, c);
    if (!now || (before && strcmp(before, now) != 0)) return false;
    *at = now;
    return true;
}

static const record *before(const plain *p, size_t i)
{
    static const record nothing = {false, "", 0};
    return i > 0 ? &p->recs[i - 1] : &nothing;
}

/* The assistant's opening is rendered if add_generation_prompt and only then. */
static bool opens_if_asked(const plain *p, size_t i)
{
    const record *r = before(p, i);
    return is(r, "if add_generation_prompt") || is(r, "if loop.last and add_generation_prompt");
}

/* --------------------------------------------------------------------- families -- */

#define FIRST_SYSTEM "messages[0].content"

static bool chatml_system(chat_shape *s, const plain *p, size_t i)
{
    const record *r = &p->recs[i], *cond = before(p, i);
    span c[2];
    if (like(r, "'<|im_start|>system\n*<|im_end|>\n'", c)) {
        bool conditional = is(cond, "else") || holds(cond, "!='system'");
        return conditional && keep_same(s, &s->default_system, c[0]);
    }
    if (is(r, "'<|im_start|>system\n'+" FIRST_SYSTEM "+'<|im_end|>\n'")) return true;
    if (is(r, "'<|im_start|>system\n'")) return starts(cond, "if tools");
    return !starts(r, "'<|im_start|>system"); /* part of what tools need */
}

static bool chatml_opening(chat_shape *s, const plain *p, size_t i)
{
    const record *r = &p->recs[i];
    if (is(r, "'<|im_start|>assistant\n'") && opens_if_asked(p, i)) {
        s->opening = "<|im_start|>assistant\n";
    } else if (s->style == STYLE_QWEN3 && is(r, "'<|im_start|>assistant\n<think>\n'") &&
               opens_if_asked(p, i)) {
        s->opening = "<|im_start|>assistant\n<think>\n";
    } else {
        return false;
    }
    return true;
}

#define REPLY_PLAIN "'<|im_start|>'+message.role+'\n'+content"
#define REPLY_THOUGHT                                                          \
    "'<|im_start|>'+message.role+'\n<think>\n'+reasoning_content.strip('\n')+" \
    "'\n</think>\n\n'+content.lstrip('\n')"

/* Replies after the last question keep their thoughts, earlier ones lose them. */
static bool is_qwen3(const plain *p)
{
    return any_holds(p, REPLY_THOUGHT) && any_holds(p, REPLY_PLAIN) &&
           any_holds(p, ".split('</think>')") && any_holds(p, "ns.last_query_index=index") &&
           has_statement(p, "if loop.index0>ns.last_query_index") &&
           has_statement(p, "if loop.last or(not loop.last and reasoning_content)");
}

/* Whether an output that is none of the whole messages may be passed over: it is for tools, or one
 * of those that begin a reply and end it elsewhere. */
static bool chatml_part(const record *r, bool qwen3, bool named)
{
    if (holds(r, "bos_token") || holds(r, "eos_token")) return false;
    if (!starts(r, "'<|im_start|>'") || !holds(r, "content")) return true;
    return (qwen3 || named) && (is(r, REPLY_PLAIN) || (qwen3 && is(r, REPLY_THOUGHT)));
}

static bool read_chatml(chat_shape *s, const plain *p)
{
    bool qwen3 = is_qwen3(p), body = false;
    s->style = qwen3 ? STYLE_QWEN3 : STYLE_CHATML;
    if (!qwen3 && (any_holds(p, "think>") || any_holds(p, "_thinking"))) return false;
    if (any_holds(p, "strftime_now") || any_holds(p, "raise_exception")) return false;
    bool named = has_statement(p, "set content=message.content");
    for (size_t i = 0; i < p->n_recs; i++) {
        const record *r = &p->recs[i];
        if (!r->output) continue;
        if (is(r, "'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>\n'") ||
            (named && is(r, "'<|im_start|>'+message.role+'\n'+content+'<|im_end|>\n'"))) {
            body = true;
        } else if (is(r, "bos_token")) {
            s->bos = true;
        } else if (starts(r, "'<|im_start|>assistant\n")) {
            if (!chatml_opening(s, p, i)) return false;
        } else if (starts(r, "'<|im_start|>system")) {
            if (!chatml_system(s, p, i)) return false;
        } else if ((!p->tools && !qwen3) || !chatml_part(r, qwen3, named)) {
            return false;
        }
    }
    const char *d = s->default_system;
    bool qwen = d && (strncmp(d, "You are Qwen", 12) == 0 ||
                      strcmp(d, "You are a helpful assistant.") == 0);
    s->name = qwen3 ? "qwen3" : qwen ? "qwen" : "chatml";
    return body && s->opening;
}

#define HEADER3(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define BODY3 \
    "'<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'+message.content|trim+'<|eot_id|>'"

static bool read_dates(chat_shape *s, const plain *p)
{
    static const char *const ways[] = {
        "'Cutting Knowledge Date: *\nToday Date: '+date_string+'\n\n'",
        "'" HEADER3("system") "Cutting Knowledge Date: *\nToday Date: '+date_string+'\n\n'",
        "'" HEADER3("system") "Cutting Knowledge Date: *\nToday Date: '+date_string+'\n\n'+"
                              "system_message+'<|eot_id|>'",
    };
    span c[2];
    for (size_t i = 0; i < p->n_recs; i++) {
        for (size_t k = 0; k < sizeof(ways) / sizeof(ways[0]); k++) {
            if (!p->recs[i].output || !like(&p->recs[i], ways[k], c)) continue;
            s->dated = true;
            if (!keep_same(s, &s->knowledge, c[0])) return false;
        }
    }
    if (statement_like(p, "set date_string='*'", c)) {
        s->date = keep(s, c[0]);
        if (!s->date) return false;
    } else if (!has_statement(p, "set date_string=strftime_now('%d %b %Y')")) {
        return false;
    }
    if (statement_like(p, "set system_message='*'", c) && c[0].len > 0) {
        s->default_system = keep(s, c[0]);
        if (!s->default_system) return false;
    }
    return s->dated && any_holds(p, "system_message+'<|eot_id|>'") &&
           has_statement(p, "set system_message=" FIRST_SYSTEM "|trim") &&
           has_statement(p, "set messages=messages[1:]");
}

static bool read_llama3(chat_shape *s, const plain *p)
{
    s->style = STYLE_LLAMA3;
    bool body = has_statement(p, "set content=" BODY3), set = body;
    bool dates = any_holds(p, "Cutting Knowledge Date");
    s->bos = has_statement(p, "set content=bos_token+content");
    for (size_t i = 0; i < p->n_recs; i++) {
        const record *r = &p->recs[i];
        if (!r->output) continue;
        if (is(r, BODY3) || (set && is(r, "content"))) {
            body = true;
        } else if (is(r, "bos_token")) {
            s->bos = true;
        } else if (is(r, "'" HEADER3("assistant") "'") && opens_if_asked(p, i)) {
            s->opening = HEADER3("assistant");
        } else if (!p->tools && !dates) {
            return false;
        }
    }
    if (!body || !s->opening || (dates && !read_dates(s, p))) return false;
    if (!dates && (any_holds(p, "system_message") || any_holds(p, "date_string"))) return false;
    s->name = dates ? "llama-3.1" : "llama-3";
    return true;
}

static bool read_llama2(chat_shape *s, const plain *p)
{
    static const char *const known[] = {
        "bos_token+'[INST] '+content|trim+' [/INST]'", "' '+content|trim+' '+eos_token",
        "'<<SYS>>\n'+content|trim+'\n<</SYS>>\n\n'", /* of a system message later on: refused */
    };
    span c[2];
    int found = 0;
    for (size_t i = 0; i < p->n_recs; i++) {
        const record *r = &p->recs[i];
        if (!r->output || starts(r, "raise_exception(")) continue;
        if (is(r, known[0]))
            found |= 1;
        else if (is(r, known[1]))
            found |= 2;
        else if (!is(r, known[2]))
            return false;
    }
    if (found != 3 || statement_like(p, "set system_message='*'", c)) return false;
    s->style = STYLE_LLAMA2;
    s->name = "llama-2";
    s->bos = true;
    s->opening = "";
    return has_statement(p, "set content='<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+"
                            "message.content") &&
           has_statement(p, "set system_message=" FIRST_SYSTEM);
}

/* [INST] in front, [/INST] behind. */
static bool is_turn(span a, span b)
{
    return memmem(a.s, a.len, "[INST]", 6) && memmem(b.s, b.len, "[/INST]", 7);
}

static bool mistral_user(chat_shape *s, const record *r, bool *known)
{
    span c[3];
    bool plain_one = like(r, "'*'+message.content+'*'", c);
    *known = (plain_one || like(r, "'*'+message.content|trim+'*'", c)) && is_turn(c[0], c[1]);
    if (!*known) return true;
    if (s->user[0] && s->trim_user == plain_one) return false;
    s->trim_user = !plain_one;
    return keep_same(s, &s->user[0], c[0]) && keep_same(s, &s->user[1], c[1]);
}

static bool mistral_system(chat_shape *s, const plain *p, size_t i, bool *known)
{
    span c[4];
    const record *cond = before(p, i);
    *known =
        like(&p->recs[i], "'*'+system_message+'*'+message.content+'*'", c) && is_turn(c[0], c[2]);
    if (!*known) return true;
    system_place place = holds(cond, "loop.last") ? SYSTEM_IN_LAST
                         : holds(cond, "loop.first") || holds(cond, "loop.index0==0")
                             ? SYSTEM_IN_FIRST
                             : SYSTEM_REFUSED;
    s->trim_system = has_statement(p, "set system_message=" FIRST_SYSTEM "|trim");
    if (!s->trim_system && !has_statement(p, "set system_message=" FIRST_SYSTEM)) return false;
    if (place == SYSTEM_REFUSED || (s->system != SYSTEM_REFUSED && s->system != place)) {
        return false;
    }
    s->system = place;
    for (int k = 0; k < 3; k++) {
        if (!keep_same(s, &s->with_system[k], c[k])) return false;
    }
    return true;
}

static bool mistral_reply(chat_shape *s, const record *r, bool *known)
{
    static const struct {
        const char *pattern;
        bool trim, pre, post;
    } ways[] = {
        {"message.content+eos_token", false, false, false},
        {"message.content|trim+eos_token", true, false, false},
        {"message.content+eos_token+'*'", false, false, true},
        {"message.content|trim+eos_token+'*'", true, false, true},
        {"'*'+message.content+eos_token", false, true, false},
        {"'*'+message.content|trim+eos_token", true, true, false},
        {"'*'+message.content+eos_token+'*'", false, true, true},
        {"'*'+message.content|trim+eos_token+'*'", true, true, true},
    };
    static const span empty = {"", 0};
    *known = false;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        span c[3];
        if (!like(r, ways[i].pattern, c)) continue;
        *known = true;
        if (s->reply[0] && s->trim_reply != ways[i].trim) return false;
        s->trim_reply = ways[i].trim;
        return keep_same(s, &s->reply[0], ways[i].pre ? c[0] : empty) &&
               keep_same(s, &s->reply[1], ways[i].post ? c[ways[i].pre ? 1 : 0] : empty);
    }
    return true;
}

static bool read_mistral(chat_shape *s, const plain *p)
{
    span c[2];
    s->style = STYLE_MISTRAL;
    s->name = "mistral";
    s->opening = "";
    for (size_t i = 0; i < p->n_recs; i++) {
        const record *r = &p->recs[i];
        if (!r->output || starts(r, "raise_exception(")) continue;
        bool user, reply, system;
        if (!mistral_user(s, r, &user) || !mistral_reply(s, r, &reply) ||
            !mistral_system(s, p, i, &system)) {
            return false;
        }
        if (is(r, "bos_token"))
            s->bos = true;
        else if (!user && !reply && !system && !p->tools)
            return false;
    }
    if (any_holds(p, "strftime_now") || any_holds(p, "[SYSTEM_PROMPT]")) return false;
    if (statement_like(p, "set system_message='*'", c) && c[0].len > 0) return false;
    return s->user[0] && s->reply[0];
}

/* <|role|> tags, of which every role has one; the message ends with a marker, or the eos token. */
static bool read_role_tags(chat_shape *s, const plain *p)
{
    span c[2];
    int roles = 0;
    s->style = STYLE_ROLE_TAGS;
    s->name = "role-tags";
    for (size_t i = 0; i < p->n_recs; i++) {
        const record *r = &p->recs[i];
        if (!r->output) continue;
        bool role = true;
        if (is(r, "bos_token")) {
            s->bos = true;
            role = false;
        } else if (is(r, "'<|assistant|>\n'") && opens_if_asked(p, i)) {
            s->opening = "<|assistant|>\n";
            role = false;
        } else if (like(r, "'<|'+message.role+'|>\n'+message.content+'<|*|>\n'", c)) {
            roles = 7;
        } else {
            static const char *const by_role[] = {
                "'<|system|>\n'+message.content+eos_token+'\n'",
                "'<|user|>\n'+message.content+eos_token+'\n'",
                "'<|assistant|>\n'+message.content+eos_token+'\n'"};
            int k = 0;
            while (k < 3 && !is(r, by_role[k])) k++;
            if (k == 3) return false;
            roles |= 1 << k;
            role = false;
        }
        if (!role) continue;
        c[0] = (span){c[0].s - 2, c[0].len + 4}; /* with its <| and |> */
        if (!keep_same(s, &s->end, c[0])) return false;
    }
    if (!s->end) s->name = "zephyr";
    return roles == 7 && s->opening;
}

bool chat_shape_read(chat_shape *s, const char *text)
{
    plain p;
    *s = (chat_shape){.name = ""};
    bool ok = make_plain(&p, text);
    if (ok && strstr(text, "<|im_start|>"))
        ok = read_chatml(s, &p);
    else if (ok && strstr(text, "<|start_header_id|>"))
        ok = read_llama3(s, &p);
    else if (ok && strstr(text, "<<SYS>>"))
        ok = read_llama2(s, &p);
    else if (ok && strstr(text, "[INST]"))
        ok = read_mistral(s, &p);
    else if (ok)
        ok = read_role_tags(s, &p);
    free_plain(&p);
    return ok;
}

bool chat_shape_named(chat_shape *s, const char *name)
{
    static const chat_shape known[] = {
        {.style = STYLE_CHATML, .name = "chatml", .opening = "<|im_start|>assistant\n"},
        {.style = STYLE_CHATML,
         .name = "qwen",
         .default_system = "You are a helpful assistant.",
         .opening = "<|im_start|>assistant\n"},
        {.style = STYLE_QWEN3, .name = "qwen3", .opening = "<|im_start|>assistant\n"},
        {.style = STYLE_ROLE_TAGS,
         .name = "role-tags",
         .bos = true,
         .opening = "<|assistant|>\n",
         .end = "<|end|>"},
        {.style = STYLE_ROLE_TAGS, .name = "zephyr", .opening = "<|assistant|>\n"},
        {.style = STYLE_LLAMA3, .name = "llama-3", .bos = true, .opening = HEADER3("assistant")},
        {.style = STYLE_LLAMA3,
         .name = "llama-3.1",
         .bos = true,
         .opening = HEADER3("assistant"),
         .dated = true,
         .knowledge = "December 2023",
         .date = "26 Jul 2024"},
        {.style = STYLE_LLAMA2, .name = "llama-2", .bos = true, .opening = ""},
        {.style = STYLE_MISTRAL,
         .name = "mistral",
         .bos = true,
         .opening = "",
         .user = {" [INST] ", " [/INST]"},
         .with_system = {" [INST] ", "\n\n", " [/INST]"},
         .reply = {" ", ""},
         .system = SYSTEM_IN_FIRST},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(known[i].name, name) != 0) continue;
        *s = known[i];
        return true;
    }
    return false;
}
