/* fuzz_json.c -- the strict reader of JSON against a second one, written from RFC 8259 for this. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "tests/fuzz/fuzz.h"

/* ----------------------------------------------- a recogniser that shares nothing -- */

typedef struct {
    const uint8_t *s;
    size_t len, at;
    int values;
} text;

static int peek(const text *t)
{
    return t->at < t->len ? t->s[t->at] : -1;
}

static bool eat(text *t, int c)
{
    if (peek(t) != c) return false;
    t->at++;
    return true;
}

static void space(text *t)
{
    while (eat(t, ' ') || eat(t, '\n') || eat(t, '\t') || eat(t, '\r')) continue;
}

/* The UTF-8 sequence as the table of RFC 3629 has it. */
static bool utf8(text *t)
{
    static const struct {
        uint8_t lo, hi, lo2, hi2, more;
    } rows[] = {{0xC2, 0xDF, 0x80, 0xBF, 1}, {0xE0, 0xE0, 0xA0, 0xBF, 2},
                {0xE1, 0xEC, 0x80, 0xBF, 2}, {0xED, 0xED, 0x80, 0x9F, 2},
                {0xEE, 0xEF, 0x80, 0xBF, 2}, {0xF0, 0xF0, 0x90, 0xBF, 3},
                {0xF1, 0xF3, 0x80, 0xBF, 3}, {0xF4, 0xF4, 0x80, 0x8F, 3}};
    int c = peek(t);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (c < rows[i].lo || c > rows[i].hi) continue;
        t->at++;
        for (int k = 0; k < rows[i].more; k++) {
            int lo = k ? 0x80 : rows[i].lo2, hi = k ? 0xBF : rows[i].hi2;
            if (peek(t) < lo || peek(t) > hi) return false;
            t->at++;
        }
        return true;
    }
    return false;
}

static int unit(text *t)
{
    int v = 0;
    for (int i = 0; i < 4; i++, t->at++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        int c = peek(t);
        const char *d = c > 0 ? strchr(digits, c) : NULL;
        if (!d) return -1;
        v = v * 16 + (int)(d - digits) % 16;
    }
    return v;
}

static bool string(text *t)
{
    if (!eat(t, '"')) return false;
    for (int c; (c = peek(t)) != '"';) {
        if (c < 0x20) return false; /* the end, too */
        if (c >= 0x80) {
            if (!utf8(t)) return false;
            continue;
        }
        t->at++;
        if (c != '\\') continue;
        c = peek(t);
        t->at++;
        if (c > 0 && strchr("\"\\/bfnrt", c)) continue;
        if (c != 'u') return false;
        int u = unit(t);
        if (u <= 0 || (u >= 0xDC00 && u <= 0xDFFF)) return false;
        if (u < 0xD800 || u > 0xDBFF) continue;
        if (!eat(t, '\\') || !eat(t, 'u')) return false;
        u = unit(t);
        if (u < 0xDC00 || u > 0xDFFF) return false;
    }
    return eat(t, '"');
}

static bool some_digits(text *t)
{
    size_t from = t->at;
    while (peek(t) >= '0' && peek(t) <= '9') t->at++;
    return t->at > from;
}

static bool number(text *t)
{
    size_t from = t->at;
    (void)eat(t, '-');
    if (!eat(t, '0') && !some_digits(t)) return false;
    if (eat(t, '.') && !some_digits(t)) return false;
    if (eat(t, 'e') || eat(t, 'E')) {
        if (!eat(t, '+')) (void)eat(t, '-');
        if (!some_digits(t)) return false;
    }
    char copy[129];
    size_t n = t->at - from;
    if (n > 128) return false; /* ours to decide */
    memcpy(copy, t->s + from, n);
    copy[n] = 0;
    return isfinite(strtod(copy, NULL));
}

static bool value(text *t, int depth);

static bool members(text *t, int close, int depth)
{
    t->at++;
    space(t);
    if (eat(t, close)) return true;
    do {
        space(t);
        if (close == '}') {
            if (!string(t)) return false;
            space(t);
            if (!eat(t, ':')) return false;
        }
        if (!value(t, depth)) return false;
        space(t);
    } while (eat(t, ','));
    return eat(t, close);
}

static bool word(text *t, const char *w)
{
    for (; *w; w++) {
        if (!eat(t, *w)) return false;
    }
    return true;
}

static bool value(text *t, int depth)
{
    space(t);
    if (++t->values > json_limits_request.max_values) return false;
    switch (peek(t)) {
    case '{':
    case '[':
        if (depth >= json_limits_request.max_depth) return false;
        return members(t, peek(t) == '{' ? '}' : ']', depth + 1);
    case '"': return string(t);
    case 't': return word(t, "true");
    case 'f': return word(t, "false");
    case 'n': return word(t, "null");
    default: return number(t);
    }
}

static bool valid(const uint8_t *data, size_t size)
{
    text t = {.s = data, .len = size};
    if (!value(&t, 0)) return false;
    space(&t);
    return t.at == size;
}

/* -------------------------------------------------------------------- the harness -- */

static bool names_differ(const cJSON *v)
{
    for (const cJSON *a = v->child; a; a = a->next) {
        for (const cJSON *b = a->next; b && cJSON_IsObject(v); b = b->next) {
            if (strcmp(a->string, b->string) == 0) return false;
        }
        if (!names_differ(a)) return false;
    }
    return true;
}

/* The exact integer of a member is the rounded one, where a double can hold it. */
static void check_integers(const cJSON *tree)
{
    const cJSON *m;
    cJSON_ArrayForEach(m, tree)
    {
        int64_t exact = 0, rounded = 0;
        bool found = false;
        err e;
        if (json_int(tree, m->string, INT64_MIN, INT64_MAX, &rounded, &found, &e) || !found)
            continue;
        FUZZ_CHECK(json_whole(m, &exact) && exact == rounded);
    }
}

/* What is printed is the same value. */
static void check_printed(const cJSON *tree)
{
    char *printed = json_print(tree);
    cJSON *again = NULL;
    err e;
    FUZZ_CHECK(printed);
    FUZZ_CHECK(!json_parse(printed, strlen(printed), &json_limits_request, &again, &e));
    FUZZ_CHECK(json_same(tree, again));
    cJSON_Delete(again);
    free(printed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *own = calloc(1, size ? size : 1);
    if (!own) abort();
    if (size) memcpy(own, data, size);
    const char *s = (const char *)own;
    cJSON *tree;
    err e = {.msg = ""};
    bool scanned = json_check(s, size, &json_limits_request, &e) == ERR_NONE;
    FUZZ_CHECK(scanned || e.msg[0]);
    FUZZ_CHECK(scanned == valid(own, size));
    err_code rc = json_parse(s, size, &json_limits_request, &tree, &e);
    FUZZ_CHECK((rc == ERR_NONE) == (tree != NULL));
    FUZZ_CHECK(rc == ERR_NONE || rc == ERR_INPUT || rc == ERR_LIMIT);
    if (scanned && rc) FUZZ_CHECK(strstr(e.msg, "twice"));
    if (tree) {
        FUZZ_CHECK(size > 1000 || names_differ(tree));
        if (cJSON_IsObject(tree)) check_integers(tree);
        check_printed(tree);
    }
    cJSON_Delete(tree);
    free(own);
    return 0;
}
