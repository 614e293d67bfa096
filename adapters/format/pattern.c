/* pattern.c -- Thompson's construction and Pike's simulation, without captures.
 *
 * The compiler is a recursive descent that writes instructions; a repeat copies the instructions of
 * what it repeats.  Offsets are relative, so that a piece of program can be copied as it is.
 *
 * A look-ahead is an instruction in front of a program of its own, which ends in OP_MATCH.  Before
 * the simulation a backward pass over the text finds the places where that program matches what
 * follows: an instruction leads to a match at a place if what it leads to does, there or one byte
 * later.  Inner look-aheads stand behind outer ones and are settled first.
 *
 * Why not engine/grammar/regex: that engine writes texts, so it reads an expression as the texts on
 * which all dialects agree, refuses \b, \B and look-aheads in one another, and makes a
 * deterministic automaton, which can be exponentially large.  PEFT accepts all of these patterns,
 * and here each costs time and memory in proportion to its length.
 */
#include "adapters/format/pattern.h"

#include <stdlib.h>
#include <string.h>

enum { PROGRAM_MAX = 20000, TEXT_MAX = 8192, DEPTH_MAX = 64, REPEAT_MAX = 1000, AHEAD_MAX = 16 };

typedef enum {
    OP_SET,   /* one byte of a class */
    OP_SPLIT, /* go on at +x and at +y */
    OP_JUMP,  /* go on at +x */
    OP_START,
    OP_END,   /* x: also before the newline that ends the text */
    OP_WORD,  /* border of a word; x: negated */
    OP_AHEAD, /* look-ahead y / 2, negated if y is odd, whose program follows; go on at +x */
    OP_MATCH
} op;

typedef struct inst {
    uint8_t op;
    int32_t x, y;
    uint32_t set[8]; /* OP_SET: bit b of byte class */
} inst;

struct pattern {
    inst *code;
    int n, cap;
    int *now, *next;    /* sets of threads: instruction numbers */
    unsigned *now_mark; /* generation in which an instruction was added */
    unsigned generation;
    int n_ahead;     /* look-aheads; the copies that a repeat makes count as one */
    uint16_t *ahead; /* [PATTERN_AHEAD_MAX + 1] places of the text: bit y / 2 where it matches */
    bool *leads[2];  /* [n] instructions that lead to a match from a place and from the next one */
};

typedef struct compiler {
    const char *at;
    pattern *p;
    int depth;
    err_code code;
    err *e;
} compiler;

static void fail(compiler *c, err_code code, const char *what)
{
    if (c->code == ERR_NONE) c->code = err_set(c->e, code, "the pattern %s", what);
}

static int emit(compiler *c, op o, int x, int y)
{
    pattern *p = c->p;
    if (c->code != ERR_NONE) return 0;
    if (p->n == PROGRAM_MAX) {
        fail(c, ERR_LIMIT, "is too large");
        return 0;
    }
    if (p->n == p->cap) {
        int cap = p->cap ? p->cap * 2 : 64;
        inst *more = realloc(p->code, (size_t)cap * sizeof(*more));
        if (!more) {
            fail(c, ERR_NOMEM, "needs more memory than is available");
            return 0;
        }
        p->code = more;
        p->cap = cap;
    }
    p->code[p->n] = (inst){.op = (uint8_t)o, .x = x, .y = y};
    return p->n++;
}

/* Makes room for one instruction at `at`; what stands behind moves, its relative targets hold. */
static void insert(compiler *c, int at, op o, int x, int y)
{
    emit(c, OP_JUMP, 0, 0);
    if (c->code != ERR_NONE) return;
    pattern *p = c->p;
    memmove(p->code + at + 1, p->code + at, (size_t)(p->n - 1 - at) * sizeof(*p->code));
    p->code[at] = (inst){.op = (uint8_t)o, .x = x, .y = y};
}

static void copy_piece(compiler *c, int from, int len)
{
    for (int i = 0; i < len && c->code == ERR_NONE; i++) {
        int at = emit(c, OP_JUMP, 0, 0);
        if (c->code == ERR_NONE) c->p->code[at] = c->p->code[from + i];
    }
}

/* ---- classes ---------------------------------------------------------------------------- */

static void set_add(uint32_t set[8], int lo, int hi)
{
    for (int b = lo; b <= hi; b++) set[b >> 5] |= 1u << (b & 31);
}

static void set_invert(uint32_t set[8])
{
    for (int i = 0; i < 8; i++) set[i] = ~set[i];
}

/* \d \w \s and their opposites, into `set`; false: not a class. */
static bool set_escape(char letter, uint32_t set[8])
{
    uint32_t one[8] = {0};
    switch (letter | 0x20) {
    case 'd': set_add(one, '0', '9'); break;
    case 'w':
        set_add(one, '0', '9');
        set_add(one, 'a', 'z');
        set_add(one, 'A', 'Z');
        set_add(one, '_', '_');
        break;
    case 's':
        set_add(one, '\t', '\r');
        set_add(one, ' ', ' ');
        break;
    default: return false;
    }
    if (letter < 'a') set_invert(one);
    for (int i = 0; i < 8; i++) set[i] |= one[i];
    return true;
}

/* The byte that an escape stands for, or -1. */
static int plain_escape(compiler *c, char letter)
{
    bool alnum = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
                 (letter >= 'A' && letter <= 'Z');
    if (letter == 0)
        fail(c, ERR_INPUT, "ends with a backslash");
    else if (letter >= '1' && letter <= '9')
        fail(c, ERR_UNSUPPORTED, "uses a back-reference, which is not supported");
    else if (letter == 'n')
        return '\n';
    else if (letter == 't')
        return '\t';
    else if (letter == 'r')
        return '\r';
    else if (alnum)
        fail(c, ERR_UNSUPPORTED, "uses an escape that is not supported");
    else
        return (unsigned char)letter;
    return -1;
}

/* One member of a class; -1 when it was a whole class (\d) or an error. */
static int class_member(compiler *c, uint32_t set[8])
{
    char ch = *c->at++;
    if (ch != '\\') return (unsigned char)ch;
    char letter = *c->at;
    if (letter != 0) c->at++;
    if (letter != 0 && set_escape(letter, set)) return -1;
    if (letter == 'b') return '\b';
    return plain_escape(c, letter);
}

/* [...] of bytes, behind its bracket; a ] in the first place is a character, as in Python. */
static void parse_class(compiler *c)
{
    uint32_t set[8] = {0};
    bool invert = *c->at == '^';
    if (invert) c->at++;
    for (bool first = true; c->code == ERR_NONE && (*c->at != ']' || first); first = false) {
        if (*c->at == 0) {
            fail(c, ERR_INPUT, "has a '[' without ']'");
            return;
        }
        int lo = class_member(c, set);
        bool range = c->at[0] == '-' && c->at[1] != ']' && c->at[1] != 0;
        if (lo < 0) {
            if (range) fail(c, ERR_INPUT, "has a range that begins with a class");
            continue;
        }
        int hi = lo;
        if (range) {
            c->at++;
            hi = class_member(c, set);
            if (hi < lo) {
                fail(c, ERR_INPUT, "has a range that is turned round");
                return;
            }
        }
        set_add(set, lo, hi);
    }
    if (c->code != ERR_NONE) return;
    c->at++;
    if (invert) set_invert(set);
    int at = emit(c, OP_SET, 0, 0);
    if (c->code == ERR_NONE) memcpy(c->p->code[at].set, set, sizeof set);
}

static void emit_set(compiler *c, const uint32_t set[8])
{
    int at = emit(c, OP_SET, 0, 0);
    if (c->code == ERR_NONE) memcpy(c->p->code[at].set, set, 8 * sizeof(*set));
}

static void emit_byte(compiler *c, int byte)
{
    uint32_t set[8] = {0};
    set_add(set, byte, byte);
    emit_set(c, set);
}

/* ---- grammar ------------------------------------------------------------------------------- */

static void parse_choice(compiler *c);

/* The instruction in front of a look-ahead's program; its x is set once that is written. */
static int emit_ahead(compiler *c, bool negated)
{
    if (c->p->n_ahead == AHEAD_MAX) fail(c, ERR_LIMIT, "has too many look-aheads");
    int at = emit(c, OP_AHEAD, 0, 2 * c->p->n_ahead + negated);
    c->p->n_ahead++;
    return at;
}

/* (...), (?:...), (?P<name>...), and look-ahead; the bracket is already read. Nothing captures. */
static void parse_group(compiler *c)
{
    int ahead = -1;
    if (++c->depth > DEPTH_MAX) {
        fail(c, ERR_LIMIT, "nests too deep");
        return;
    }
    if (c->at[0] == '?') {
        if (c->at[1] == ':') {
            c->at += 2;
        } else if (c->at[1] == 'P' && c->at[2] == '<') {
            const char *end = strchr(c->at, '>');
            if (!end) {
                fail(c, ERR_INPUT, "has a group name without '>'");
                return;
            }
            c->at = end + 1;
        } else if (c->at[1] == '=' || c->at[1] == '!') {
            ahead = emit_ahead(c, c->at[1] == '!');
            c->at += 2;
        } else {
            fail(c, ERR_UNSUPPORTED,
                 "uses look-behind, flags or another '(?' that is not supported");
            return;
        }
    }
    parse_choice(c);
    if (ahead >= 0) emit(c, OP_MATCH, 0, 0);
    if (c->code != ERR_NONE) return;
    if (ahead >= 0) c->p->code[ahead].x = c->p->n - ahead;
    if (*c->at != ')') {
        fail(c, ERR_INPUT, "has a '(' without ')'");
        return;
    }
    c->at++;
    c->depth--;
}

static void parse_escape(compiler *c)
{
    char letter = *c->at;
    uint32_t set[8] = {0};
    if (letter != 0) c->at++;
    if (letter == 'b' || letter == 'B') {
        emit(c, OP_WORD, letter == 'B', 0);
    } else if (letter == 'A') {
        emit(c, OP_START, 0, 0);
    } else if (letter == 'Z') {
        emit(c, OP_END, 0, 0);
    } else if (letter != 0 && set_escape(letter, set)) {
        emit_set(c, set);
    } else {
        int byte = plain_escape(c, letter);
        if (byte >= 0) emit_byte(c, byte);
    }
}

/* "{m}", "{m,}", "{,n}", "{m,n}"; anything else after '{' is literal, as in Python. */
static bool parse_bounds(compiler *c, int *lo, int *hi)
{
    const char *p = c->at + 1;
    int value[2] = {-1, -1};
    int i = 0;
    for (;; p++) {
        if (*p >= '0' && *p <= '9') {
            if (value[i] < 0) value[i] = 0;
            if (value[i] <= REPEAT_MAX) value[i] = value[i] * 10 + (*p - '0');
        } else if (*p == ',' && i == 0) {
            i = 1;
        } else {
            break;
        }
    }
    if (*p != '}' || (value[0] < 0 && i == 0)) return false;
    c->at = p + 1;
    *lo = value[0] < 0 ? 0 : value[0];
    *hi = i == 0 ? *lo : value[1]; /* -1: no upper bound */
    if (*lo > REPEAT_MAX || *hi > REPEAT_MAX) fail(c, ERR_LIMIT, "repeats too often");
    if (*hi >= 0 && *hi < *lo) fail(c, ERR_INPUT, "has bounds that are turned round");
    return true;
}

static void parse_atom(compiler *c)
{
    int lo, hi;
    if (*c->at == '{' && parse_bounds(c, &lo, &hi)) {
        fail(c, ERR_INPUT, "repeats nothing");
        return;
    }
    char ch = *c->at++;
    switch (ch) {
    case '(': parse_group(c); break;
    case '[': parse_class(c); break;
    case '\\': parse_escape(c); break;
    case '^': emit(c, OP_START, 0, 0); break;
    case '$': emit(c, OP_END, 1, 0); break;
    case '.': {
        uint32_t set[8] = {0};
        set_add(set, '\n', '\n');
        set_invert(set);
        emit_set(c, set);
        break;
    }
    case '*':
    case '+':
    case '?': fail(c, ERR_INPUT, "repeats nothing"); break;
    default: emit_byte(c, (unsigned char)ch); break;
    }
}

/* What stands from `from` on, between lo and hi times. */
static void repeat(compiler *c, int from, int lo, int hi)
{
    int len = c->p->n - from;
    if (len == 0 || c->code != ERR_NONE) return;
    if (hi == 0) {
        c->p->n = from;
        return;
    }
    for (int i = 1; i < lo; i++) copy_piece(c, from, len);
    if (hi < 0) {
        if (lo == 0) { /* L: split +1, out; piece; jump L */
            insert(c, from, OP_SPLIT, 1, len + 2);
            emit(c, OP_JUMP, -(len + 1), 0);
        } else { /* piece; split back, +1 */
            emit(c, OP_SPLIT, -len, 1);
        }
        return;
    }
    if (lo == 0) {
        insert(c, from, OP_SPLIT, 1, len + 1);
        if (c->code != ERR_NONE) return;
        from++;
        lo = 1;
    }
    for (int i = lo; i < hi && c->code == ERR_NONE; i++) {
        emit(c, OP_SPLIT, 1, len + 1);
        copy_piece(c, from, len);
    }
}

static void parse_piece(compiler *c)
{
    int from = c->p->n;
    bool escape = c->at[0] == '\\' && c->at[1] != 0;
    bool anchor = escape ? strchr("bBAZ", c->at[1]) != NULL : *c->at == '^' || *c->at == '$';
    parse_atom(c);
    bool repeated = false;
    while (c->code == ERR_NONE) {
        int lo, hi;
        char ch = *c->at;
        if (ch == '*' || ch == '+' || ch == '?') {
            lo = ch == '+';
            hi = ch == '?' ? 1 : -1;
            c->at++;
        } else if (ch != '{' || !parse_bounds(c, &lo, &hi)) {
            return;
        }
        if (repeated || anchor) {
            fail(c, ERR_INPUT, anchor ? "repeats a place" : "repeats a repeat");
            return;
        }
        repeated = true;
        repeat(c, from, lo, hi);
        if (*c->at == '?') c->at++; /* lazy: the same answer */
        if (*c->at == '+') fail(c, ERR_UNSUPPORTED, "uses a possessive repeat");
    }
}

static void parse_choice(compiler *c)
{
    int from = c->p->n;
    while (c->code == ERR_NONE && *c->at != 0 && *c->at != ')' && *c->at != '|') parse_piece(c);
    if (*c->at != '|' || c->code != ERR_NONE) return;
    c->at++;
    /* split +1, other; this; jump out; other */
    int len = c->p->n - from;
    insert(c, from, OP_SPLIT, 1, len + 2);
    int jump = emit(c, OP_JUMP, 0, 0);
    if (c->code != ERR_NONE) return;
    if (++c->depth > DEPTH_MAX * 64) { /* alternatives recurse to the right */
        fail(c, ERR_LIMIT, "has too many alternatives");
        return;
    }
    parse_choice(c);
    c->depth--;
    if (c->code == ERR_NONE) c->p->code[jump].x = c->p->n - jump;
}

/* Memory for matches. */
static bool reserve(pattern *p)
{
    size_t n = (size_t)p->n;
    p->now = malloc(n * sizeof(*p->now));
    p->next = malloc(n * sizeof(*p->next));
    p->now_mark = calloc(n, sizeof(*p->now_mark));
    if (!p->now || !p->next || !p->now_mark) return false;
    if (p->n_ahead == 0) return true;
    p->ahead = malloc((PATTERN_AHEAD_MAX + 1) * sizeof(*p->ahead));
    p->leads[0] = malloc(n * sizeof(bool));
    p->leads[1] = malloc(n * sizeof(bool));
    return p->ahead && p->leads[0] && p->leads[1];
}

err_code pattern_create(pattern **out, const char *text, err *e)
{
    *out = NULL;
    if (strlen(text) > TEXT_MAX)
        return err_set(e, ERR_LIMIT, "the pattern is longer than %d bytes", TEXT_MAX);
    pattern *p = calloc(1, sizeof(*p));
    if (!p) return err_set(e, ERR_NOMEM, "out of memory");
    compiler c = {.at = text, .p = p, .e = e};
    parse_choice(&c);
    if (c.code == ERR_NONE && *c.at == ')') fail(&c, ERR_INPUT, "has a ')' without '('");
    emit(&c, OP_MATCH, 0, 0);
    if (c.code == ERR_NONE && !reserve(p))
        fail(&c, ERR_NOMEM, "needs more memory than is available");
    if (c.code != ERR_NONE) {
        pattern_destroy(p);
        return c.code;
    }
    *out = p;
    return ERR_NONE;
}

void pattern_destroy(pattern *p)
{
    if (!p) return;
    free(p->code);
    free(p->now);
    free(p->next);
    free(p->now_mark);
    free(p->ahead);
    free(p->leads[0]);
    free(p->leads[1]);
    free(p);
}

int pattern_size(const pattern *p)
{
    return p->n;
}

/* ---- matching -------------------------------------------------------------------------------- */

static bool is_word(char ch)
{
    return (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') ||
           ch == '_';
}

typedef struct place {
    const char *text;
    size_t at, len;
} place;

static bool holds(const pattern *p, const inst *i, const place *pl)
{
    if (i->op == OP_AHEAD) return (p->ahead[pl->at] >> (i->y / 2) & 1) != (i->y & 1);
    if (i->op == OP_START) return pl->at == 0;
    if (i->op == OP_END)
        return pl->at == pl->len || (i->x && pl->at + 1 == pl->len && pl->text[pl->at] == '\n');
    bool left = pl->at > 0 && is_word(pl->text[pl->at - 1]);
    bool right = pl->at < pl->len && is_word(pl->text[pl->at]);
    return (left != right) != (i->x != 0);
}

/* Adds instruction `first` and all that it leads to without a byte.  `list` serves as the stack of
 * what is still to be followed: it never holds more than n entries, for each is marked once. */
static int add(pattern *p, int *list, int n, int first, const place *pl, uint64_t *work)
{
    int done = n;
    if (p->now_mark[first] == p->generation) return n;
    p->now_mark[first] = p->generation;
    list[n++] = first;
    int keep = done;
    for (; done < n; done++) {
        ++*work;
        int pc = list[done];
        const inst *i = &p->code[pc];
        int to[2] = {-1, -1};
        if (i->op == OP_SET || i->op == OP_MATCH) {
            list[keep++] = pc;
            continue;
        }
        if (i->op == OP_JUMP || i->op == OP_SPLIT) {
            to[0] = pc + i->x;
            if (i->op == OP_SPLIT) to[1] = pc + i->y;
        } else if (holds(p, i, pl)) {
            to[0] = pc + (i->op == OP_AHEAD ? i->x : 1);
        }
        for (int k = 0; k < 2; k++)
            if (to[k] >= 0 && p->now_mark[to[k]] != p->generation) {
                p->now_mark[to[k]] = p->generation;
                list[n++] = to[k];
            }
    }
    return keep;
}

/* Whether instruction `pc` leads to a match from this place; `leads` is filled behind it. */
static bool leads_on(const pattern *p, int pc, const place *pl)
{
    const inst *i = &p->code[pc];
    const bool *here = p->leads[0], *later = p->leads[1];
    unsigned char byte = (unsigned char)pl->text[pl->at];
    switch (i->op) {
    case OP_MATCH: return true;
    case OP_SET: return pl->at < pl->len && (i->set[byte >> 5] >> (byte & 31) & 1) && later[pc + 1];
    case OP_JUMP: return here[pc + i->x];
    case OP_SPLIT: return here[pc + i->x] || here[pc + i->y];
    default: return here[pc + (i->op == OP_AHEAD ? i->x : 1)] && holds(p, i, pl);
    }
}

/* The places where the program behind the look-ahead at `pc` matches. */
static void settle_ahead(pattern *p, int pc, place pl, uint64_t *work)
{
    int first = pc + 1, end = pc + p->code[pc].x, bit = p->code[pc].y / 2;
    memset(p->leads[0], 0, (size_t)p->n * sizeof(bool));
    for (size_t left = pl.len + 1; left > 0; left--) {
        bool *swap = p->leads[1];
        p->leads[1] = p->leads[0];
        p->leads[0] = swap;
        memset(p->leads[0] + first, 0, (size_t)(end - first) * sizeof(bool));
        pl.at = left - 1;
        for (bool more = true; more;) { /* again where a jump leads back */
            more = false;
            for (int k = end - 1; k >= first; k--, ++*work) {
                if (p->leads[0][k] || !leads_on(p, k, &pl)) continue;
                p->leads[0][k] = more = true;
            }
        }
        if (p->leads[0][first]) p->ahead[pl.at] |= (uint16_t)(1U << bit);
    }
}

static void settle_aheads(pattern *p, const place *pl, uint64_t *work)
{
    unsigned settled = 0;
    memset(p->ahead, 0, (PATTERN_AHEAD_MAX + 1) * sizeof(*p->ahead));
    for (int pc = p->n - 1; pc >= 0; pc--) {
        unsigned bit = p->code[pc].op == OP_AHEAD ? 1U << (p->code[pc].y / 2) : 0;
        if (bit & ~settled) settle_ahead(p, pc, *pl, work);
        settled |= bit;
    }
}

bool pattern_matches(pattern *p, const char *text, uint64_t *work)
{
    uint64_t own = 0;
    if (!work) work = &own;
    place pl = {text, 0, strlen(text)};
    if (p->n_ahead > 0 && pl.len > PATTERN_AHEAD_MAX) return false;
    if (p->n_ahead > 0) settle_aheads(p, &pl, work);
    p->generation++;
    int n = add(p, p->now, 0, 0, &pl, work);
    for (; pl.at < pl.len && n > 0;) {
        unsigned char byte = (unsigned char)text[pl.at++];
        p->generation++;
        int n_next = 0;
        for (int k = 0; k < n; k++) {
            const inst *i = &p->code[p->now[k]];
            ++*work;
            if (i->op == OP_SET && (i->set[byte >> 5] >> (byte & 31) & 1))
                n_next = add(p, p->next, n_next, p->now[k] + 1, &pl, work);
        }
        int *swap = p->now;
        p->now = p->next;
        p->next = swap;
        n = n_next;
    }
    for (int k = 0; k < n; k++)
        if (p->code[p->now[k]].op == OP_MATCH) return pl.at == pl.len;
    return false;
}
