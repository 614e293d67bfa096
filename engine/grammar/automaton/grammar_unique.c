/* grammar_unique.c -- uniqueItems: array items must differ from all earlier items of their array.
 *
 * The automaton cannot compare texts, so a run keeps the bytes of every open array that has a
 * STEP_OPEN edge, with one `said` (offset, length, hash of the value, trailing zeros) per finished
 * item. The same structure serves objects, whose member names must differ.
 *
 * A set of configurations passes STEP_NEW if the hash of the item just ended is not among them
 * (unique_is_new()). That alone could lead into a dead end: `[1,2,` with an item schema of 1 or 2
 * has no continuation. Therefore a token is also tested with unique_can_end(): is some continuation
 * of the unfinished item different from every earlier item?
 *
 *   judge()     DEAD no; NEW differs already; OPEN still a prefix of an earlier item
 *   can_end()   depth-first search from an OPEN set over the allowed bytes, STEPS_MAX steps;
 *               closing brackets first, because they decide soonest
 *
 * Only tokens that follow the text of an earlier item can fail, so unique_doubtful() enumerates
 * just those with the vocabulary trie instead of testing the whole mask.
 *
 * Threads: a unique_text belongs to its run. Limits: ITEMS_MAX items per array, after which the
 * array must end.
 */
#include "engine/grammar/automaton/grammar_unique.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    ITEMS_MAX = 4096,  /* of one array; then it ends */
    PUT_MAX = 64,      /* items within the bytes of a walk */
    SPARE = 4096,      /* bytes that a walk may put */
    STEPS_MAX = 20000, /* of a search for something new */
    NONE = -1,         /* no item has begun */
    IN_VALUE = -2,     /* of an object: behind a name */
};

/* A number goes on in zeros that change nothing. */
typedef enum { NO_TAIL, POINT_AND_ZEROS, ZEROS } tail_kind;

typedef struct {
    int32_t at, len; /* of a number without such zeros */
    uint64_t hash;
    tail_kind tail;
} said;

/* Scanner over the text of one array or object, from its opening bracket on. */
typedef struct {
    int32_t depth, item; /* brackets that are open; where the item began */
    bool object, in_string, escaped, closed;
} scan;

typedef struct {
    int32_t from;
    scan s;
    said *item;
    int n, cap;
} open_array;

struct unique_text {
    uint8_t *text; /* from `base` on */
    int32_t base, at, cap;
    open_array array[GRAMMAR_DEPTH_MAX];
    int n;
    bool escapes, hangs; /* a backslash has come; see unique_hangs() */
};

/* ------------------------------------------------------------------------ the text -- */

static bool is_space(uint8_t ch)
{
    return ch == ' ' || ch == '\n' || ch == '\t' || ch == '\r';
}

static uint8_t byte_at(const unique_text *u, int32_t at)
{
    return u->text[at - u->base];
}

static scan scan_from(const unique_text *u, int32_t from)
{
    assert(from > u->base && from - u->base <= u->cap);
    return (scan){.depth = 1, .item = NONE, .object = byte_at(u, from - 1) == '{'};
}

/* Scans one byte. True: it ends an item (or a member's name), which began at *item. */
static bool scan_byte(scan *s, int32_t at, uint8_t byte, int32_t *item)
{
    if (s->in_string) {
        s->in_string = s->escaped || byte != '"';
        s->escaped = byte == '\\' && !s->escaped;
        return false;
    }
    *item = s->item;
    if (is_space(byte)) return false;
    if (s->depth == 1 && byte == ',') {
        s->item = NONE;
        return *item >= 0;
    }
    if (s->depth == 1 && s->object && byte == ':') {
        s->item = IN_VALUE;
        return *item >= 0;
    }
    if (s->depth == 1 && s->item == NONE) s->item = at;
    s->in_string = byte == '"';
    s->depth += (byte == '[' || byte == '{') - (byte == ']' || byte == '}');
    s->closed = s->depth == 0;
    return false;
}

/* A number ends where only zeros behind the point follow. */
static void cut_zeros(const uint8_t *p, said *x)
{
    bool number = *p == '-' || (*p >= '0' && *p <= '9'), point = false;
    for (int32_t i = 0; number && i < x->len; i++) {
        point |= p[i] == '.';
        number = (p[i] | 0x20) != 'e';
    }
    if (!number) return;
    while (point && p[x->len - 1] == '0') x->len--;
    if (point && p[x->len - 1] == '.') {
        x->len--;
        point = false;
    }
    x->tail = point ? ZEROS : POINT_AND_ZEROS;
}

static said said_between(const unique_text *u, int32_t at, int32_t end)
{
    assert(at >= u->base && at <= end && end - u->base <= u->cap);
    while (end > at && is_space(byte_at(u, end - 1))) end--;
    const uint8_t *p = u->text + (at - u->base);
    said x = {at, end - at, unique_hash(p, (size_t)(end - at)), NO_TAIL};
    if (x.len > 0) cut_zeros(p, &x);
    return x;
}

static open_array *find(unique_text *u, int32_t from)
{
    for (int i = 0; i < u->n; i++)
        if (u->array[i].from == from) return &u->array[i];
    return NULL;
}

/* An array after the bytes of a walk: the accepted items, and those that the walk has added. */
typedef struct {
    const unique_text *u;
    const said *item;
    int n;
    said put[PUT_MAX];
    int n_put;
    scan s;
    bool full;
} place;

static void place_byte(place *p, int32_t at)
{
    int32_t item;
    if (p->s.closed || !scan_byte(&p->s, at, byte_at(p->u, at), &item)) return;
    if (p->n_put < PUT_MAX) p->put[p->n_put++] = said_between(p->u, item, at);
    p->full |= p->n_put == PUT_MAX || p->n + p->n_put >= ITEMS_MAX;
}

/* False: the array began before the bytes that are kept. */
static bool place_at(unique_text *u, int32_t from, int32_t end, place *p)
{
    const open_array *a = find(u, from);
    int32_t at = a ? u->at : from;
    if (from <= u->base || end - u->base > u->cap) return false;
    p->u = u;
    p->item = a ? a->item : NULL;
    p->n = a ? a->n : 0;
    p->n_put = 0;
    p->s = a ? a->s : scan_from(u, from);
    p->full = p->n >= ITEMS_MAX;
    for (; at < end; at++) place_byte(p, at);
    return true;
}

bool unique_is_new(unique_text *u, int32_t from, int32_t end)
{
    place p;
    if (!place_at(u, from, end, &p) || p.full) return false;
    if (p.s.item < 0) return true;
    uint64_t hash = said_between(u, p.s.item, end).hash;
    for (int i = 0; i < p.n; i++)
        if (p.item[i].hash == hash) return false;
    for (int i = 0; i < p.n_put; i++)
        if (p.put[i].hash == hash) return false;
    return true;
}

unique_text *unique_create(void)
{
    unique_text *u = calloc(1, sizeof(*u));
    if (u) u->text = malloc(SPARE);
    if (u) u->cap = SPARE;
    if (u && u->text) return u;
    free(u);
    return NULL;
}

void unique_destroy(unique_text *u)
{
    if (!u) return;
    for (int i = 0; i < GRAMMAR_DEPTH_MAX; i++) free(u->array[i].item);
    free(u->text);
    free(u);
}

static bool copy_array(open_array *to, const open_array *from)
{
    said *item = to->item;
    if (to->cap < from->n) item = realloc(item, (size_t)from->cap * sizeof(*item));
    if (!item) return from->n == 0;
    int cap = to->cap < from->n ? from->cap : to->cap;
    memcpy(item, from->item, (size_t)from->n * sizeof(*item));
    *to = *from;
    to->item = item;
    to->cap = cap;
    return true;
}

bool unique_copy(unique_text *to, const unique_text *from)
{
    uint8_t *text = to->cap < from->cap ? realloc(to->text, (size_t)from->cap) : to->text;
    if (!text) return false;
    int32_t cap = to->cap < from->cap ? from->cap : to->cap;
    memcpy(text, from->text, (size_t)from->cap);
    to->text = text;
    to->cap = cap;
    to->base = from->base;
    to->at = from->at;
    to->n = from->n;
    to->escapes = from->escapes;
    to->hangs = from->hangs;
    for (int i = 0; i < from->n; i++) {
        if (!copy_array(&to->array[i], &from->array[i])) return false;
    }
    return true;
}

int32_t unique_at(const unique_text *u)
{
    return u->at;
}

bool unique_is_open(const unique_text *u)
{
    return u->n > 0;
}

bool unique_hangs(const unique_text *u)
{
    return u->hangs;
}

void unique_put(unique_text *u, int32_t at, uint8_t byte)
{
    assert(at >= u->base);
    if (at - u->base < u->cap) u->text[at - u->base] = byte;
}

/* ----------------------------------------------------------------- items alongside -- */

/* Iterator over a text that skips the white space outside of strings. */
typedef struct {
    const uint8_t *p, *end;
    bool in_string, escaped;
    tail_kind tail;
} bare;

static bare bare_of(const unique_text *u, int32_t at, int32_t end)
{
    const uint8_t *text = u->text - u->base;
    return (bare){.p = text + at, .end = text + end};
}

/* An earlier item. */
static bare bare_item(const unique_text *u, const said *x)
{
    bare b = bare_of(u, x->at, x->at + x->len);
    b.tail = x->tail;
    return b;
}

static void bare_skip(bare *b)
{
    while (b->p < b->end && !b->in_string && is_space(*b->p)) b->p++;
}

/* -1: the end. */
static int bare_next(const bare *b)
{
    static const int tails[] = {[NO_TAIL] = -1, [POINT_AND_ZEROS] = '.', [ZEROS] = '0'};
    return b->p < b->end ? *b->p : tails[b->tail];
}

static void bare_step(bare *b)
{
    if (b->p == b->end) {
        b->tail = ZEROS;
        return;
    }
    uint8_t ch = *b->p++;
    if (b->in_string) {
        b->in_string = b->escaped || ch != '"';
        b->escaped = ch == '\\' && !b->escaped;
    } else {
        b->in_string = ch == '"';
    }
}

/* Whether an item begins with the bytes from `at` to `end`; *rest: its remaining bytes. */
static bool begins_with(const unique_text *u, const said *x, int32_t at, int32_t end, bare *rest)
{
    bare a = bare_item(u, x), b = bare_of(u, at, end);
    for (;;) {
        bare_skip(&a);
        bare_skip(&b);
        if (b.p == b.end) break;
        if (bare_next(&a) != *b.p) return false;
        bare_step(&a);
        bare_step(&b);
    }
    *rest = a;
    return true;
}

/* ------------------------------------------------------------------- what is taken -- */

/* Scans the bytes from `at` to `end` into an array, and appends the items that end there. */
static bool read_on(unique_text *u, open_array *a, int32_t at, int32_t end)
{
    int32_t item;
    for (; at < end && !a->s.closed; at++) {
        if (!scan_byte(&a->s, at, byte_at(u, at), &item) || a->n >= ITEMS_MAX) continue;
        if (a->n == a->cap) {
            int cap = a->cap ? a->cap * 2 : 16;
            said *more = realloc(a->item, (size_t)cap * sizeof(*more));
            if (!more) return false;
            a->item = more;
            a->cap = cap;
        }
        a->item[a->n++] = said_between(u, item, at);
    }
    return true;
}

/* Adds an array that began within the kept bytes and is not in the list. */
static bool note_open(unique_text *u, int32_t from, int32_t end)
{
    if (from <= u->base || find(u, from) || u->n == GRAMMAR_DEPTH_MAX) return true;
    open_array *a = &u->array[u->n];
    a->from = from;
    a->s = scan_from(u, from);
    a->n = 0;
    if (!read_on(u, a, from, end)) return false;
    u->n += !a->s.closed;
    return true;
}

static bool is_named(int32_t from, const g_conf *conf, int n, const g_node *node)
{
    for (int i = 0; i < n; i++) {
        if (conf[i].from == from) return true;
        for (int32_t k = conf[i].node; k >= 0; k = node[k].parent)
            if (node[k].from == from) return true;
    }
    return false;
}

/* Whether the mask depends on the items so far: always, except inside a string that is no prefix of
 * an earlier item. */
static bool hangs(const unique_text *u)
{
    for (int k = 0; k < u->n; k++) {
        const open_array *a = &u->array[k];
        bool text = a->s.depth == 1 && a->s.in_string && !u->escapes;
        bool ended = a->s.item >= 0 && a->s.depth == 1 && !a->s.in_string;
        if (a->s.item == IN_VALUE) continue;
        if (a->n > 0 ? !text : ended) return true;
        for (int i = 0; i < a->n; i++) {
            bare rest;
            if (begins_with(u, &a->item[i], a->s.item, u->at, &rest)) return true;
        }
    }
    return false;
}

bool unique_take(unique_text *u, int32_t end, const g_conf *conf, int n, const g_node *node)
{
    assert(end >= u->at);
    bool ok = end - u->base <= u->cap;
    for (int i = 0; i < u->n && ok;) {
        open_array *a = &u->array[i];
        ok = read_on(u, a, u->at, end);
        if (!a->s.closed && is_named(a->from, conf, n, node)) {
            i++;
            continue;
        }
        open_array gone = *a; /* its memory serves the next one */
        *a = u->array[--u->n];
        u->array[u->n] = gone;
    }
    for (int i = 0; i < n && ok; i++) {
        ok = note_open(u, conf[i].from, end);
        for (int32_t k = conf[i].node; k >= 0 && ok; k = node[k].parent)
            ok = note_open(u, node[k].from, end);
    }
    for (int32_t at = u->at; at < end && ok; at++) u->escapes |= byte_at(u, at) == '\\';
    u->at = end;
    if (u->n == 0) {
        u->base = end;
        u->escapes = false;
    }
    u->hangs = !ok || hangs(u);
    int32_t want = end - u->base + SPARE;
    if (ok && want > u->cap) {
        uint8_t *more = realloc(u->text, (size_t)want * 2);
        if (!more) return false;
        u->text = more;
        u->cap = want * 2;
    }
    return ok;
}

/* --------------------------------------------------------------- something new to say -- */

/* The unfinished item is a prefix of an earlier one. */
static bool is_along(const place *p, int32_t end)
{
    bare rest;
    if (p->s.item == IN_VALUE) return false;
    int32_t at = p->s.item == NONE ? end : p->s.item;
    for (int i = 0; i < p->n + p->n_put; i++) {
        const said *x = i < p->n ? &p->item[i] : &p->put[i - p->n];
        if (begins_with(p->u, x, at, end, &rest)) return true;
    }
    return false;
}

typedef struct {
    g_walk *w;
    int32_t from;
    int begin, steps;
} search;

typedef enum { DEAD, NEW, OPEN, OPEN_STRING } verdict; /* OPEN: it hangs on what follows */

/* Of the array in set `depth`.  Not inlined: a search calls itself often, and a place is large. */
static __attribute__((noinline)) verdict judge(const search *s, int depth)
{
    place p;
    int32_t end = s->w->pos + depth;
    if (!place_at(s->w->unique, s->from, end, &p)) return DEAD;
    if (p.s.closed || p.s.item == IN_VALUE || p.n + p.n_put == 0) return NEW;
    if (p.full && p.s.item == NONE) return DEAD;
    if (p.s.item >= 0 && !is_along(&p, end)) {
        bool ended = p.s.depth == 1 && !p.s.in_string;
        if (!ended || depth > s->begin) return NEW; /* the array itself must go on or end */
    }
    return p.s.in_string ? OPEN_STRING : OPEN;
}

static bool can_end(search *s, int depth);

static bool can_go_on(search *s, int depth, uint8_t byte)
{
    if (!walk_byte(s->w, depth, byte)) return false;
    verdict v = judge(s, depth + 1);
    return v == NEW || (v != DEAD && can_end(s, depth + 1));
}

static bool has(const uint64_t *bits, int byte)
{
    return bits[byte / 64] >> (byte % 64) & 1;
}

/* Whether a different item can still follow set `depth`, whose verdict is OPEN. */
static bool can_end(search *s, int depth)
{
    g_walk *w = s->w;
    const g_auto *a = w->a;
    uint64_t may[4] = {0};
    bool in_string = judge(s, depth) == OPEN_STRING;
    bool far = depth + 1 >= WALK_DEEP || w->conf_at[depth + 1] > WALK_CONFS - 2 * GRAMMAR_SET_MAX;
    if (far || s->steps++ > STEPS_MAX) return true;
    for (int i = w->conf_at[depth]; i < w->conf_at[depth + 1]; i++) {
        const g_edge *e = &a->edge[a->first[w->conf[i].state]];
        for (int k = 0; k < a->n_bytes[w->conf[i].state]; k++, e++)
            for (int b = e->lo; b <= e->hi; b++) may[b / 64] |= 1ULL << (b % 64);
    }
    static const uint8_t ends[] = "]}:";
    for (int k = 0; !in_string && k < 3; k++) {
        if (has(may, ends[k]) && can_go_on(s, depth, ends[k])) return true;
        may[ends[k] / 64] &= ~(1ULL << (ends[k] % 64));
    }
    if (!in_string) may[0] &= ~(1ULL << ' '); /* what follows it follows without it as well */
    for (int b = 255; b >= 0; b--)
        if (has(may, b) && can_go_on(s, depth, (uint8_t)b)) return true;
    return false;
}

/* Whether some configuration of the set is inside no array with uniqueItems. */
static bool is_free(const g_walk *w, int depth)
{
    for (int i = w->conf_at[depth]; i < w->conf_at[depth + 1]; i++) {
        const g_conf *f = &w->conf[i];
        int32_t from = f->from, node = f->node;
        for (; from == 0 && node >= 0; node = walk_node(w, node)->parent)
            from = walk_node(w, node)->from;
        if (from == 0) return true;
    }
    return false;
}

bool unique_can_end(g_walk *w, int depth)
{
    int32_t looked[GRAMMAR_DEPTH_MAX];
    int n = 0;
    if (!w->unique || is_free(w, depth)) return true;
    for (int i = w->conf_at[depth]; i < w->conf_at[depth + 1]; i++) {
        int32_t from = w->conf[i].from, node = w->conf[i].node;
        for (;;) {
            int k = 0;
            while (k < n && looked[k] != from) k++;
            if (from > 0 && k == n && n < GRAMMAR_DEPTH_MAX) looked[n++] = from;
            if (node < 0) break;
            from = walk_node(w, node)->from;
            node = walk_node(w, node)->parent;
        }
    }
    for (int i = 0; i < n; i++) {
        search s = {w, looked[i], depth, 0};
        verdict v = judge(&s, depth);
        if (v == DEAD || (v != NEW && !can_end(&s, depth))) return false;
    }
    return true;
}

/* ------------------------------------------------------------------ doubtful tokens -- */

typedef struct {
    const token_trie *t;
    void (*look)(void *arg, int32_t token);
    void *arg;
} looker;

/* The child of a node (-1: the root) for a byte; -1: none. */
static int32_t child(const token_trie *t, int32_t node, uint8_t byte)
{
    if (node < 0) return t->top[byte];
    if (!(t->node[node].below >> t->group[byte] & 1)) return -1;
    for (int32_t k = node + 1; k < t->node[node].skip; k = t->node[k].skip)
        if (t->node[k].byte == byte) return k;
    return -1;
}

static void look_at(const looker *l, int32_t node)
{
    const trie_node *n = &l->t->node[node];
    for (int i = 0; i < n->n_tokens; i++) l->look(l->arg, l->t->id[n->token + i]);
}

/* Tokens below the node that follow the text, with spaces or without. */
static void look_along(const looker *l, int32_t node, bare at)
{
    bare_skip(&at);
    int32_t space = at.in_string ? -1 : child(l->t, node, ' ');
    if (space >= 0) {
        look_at(l, space);
        look_along(l, space, at);
    }
    int byte = bare_next(&at);
    int32_t next = byte < 0 ? -1 : child(l->t, node, (uint8_t)byte);
    if (next < 0) return;
    look_at(l, next);
    bare_step(&at);
    look_along(l, next, at);
}

/* Tokens behind an item: spaces, a comma, spaces, then the beginning of an earlier item. */
static void look_behind(const looker *l, int32_t node, const unique_text *u, const open_array *a,
                        const said *now, bool comma)
{
    int32_t space = child(l->t, node, ' '), next = comma ? -1 : child(l->t, node, ',');
    if (space >= 0) {
        look_at(l, space);
        look_behind(l, space, u, a, now, comma);
    }
    if (next >= 0) {
        look_at(l, next);
        look_behind(l, next, u, a, now, true);
    }
    for (int i = 0; comma && i < a->n + (now != NULL); i++) {
        look_along(l, node, bare_item(u, i < a->n ? &a->item[i] : now));
    }
}

void unique_doubtful(unique_text *u, const token_trie *t, void (*look)(void *arg, int32_t token),
                     void *arg)
{
    looker l = {t, look, arg};
    for (int k = 0; k < u->n; k++) {
        const open_array *a = &u->array[k];
        int32_t at = a->s.item < 0 ? u->at : a->s.item;
        said now = said_between(u, at, u->at);
        for (int i = 0; i < a->n && a->s.item != IN_VALUE; i++) {
            bare rest;
            if (begins_with(u, &a->item[i], at, u->at, &rest)) look_along(&l, -1, rest);
        }
        if (a->s.depth == 1 && !a->s.in_string && a->s.item != NONE)
            look_behind(&l, -1, u, a, a->s.item >= 0 ? &now : NULL, false);
    }
}
