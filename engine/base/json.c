/* json.c -- a validating scan (RFC 8259, nothing more), then cJSON, then a
 * look for duplicate names.
 *
 * The scan recurses at most max_depth deep and keeps nothing.  Duplicates are looked for in
 * the tree, where names are decoded ("a" and "\u0061" are the same name), by sorting.
 */
#include "engine/base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hex.h"
#include "engine/base/utf8.h"

const json_limits json_limits_request = {4U << 20, 64, 65536, false};
const json_limits json_limits_trusted = {64U << 20, 64, 8 << 20, false};

enum {
    NUMBER_MAX = 128,
    PLAIN_MAX = 15 /* characters of a whole number that a double prints alike */
};

/* A number whose text is to be kept: the nth of all. */
typedef struct {
    size_t nth, len;
    const unsigned char *at;
} long_number;

typedef struct {
    const unsigned char *text, *p, *end;
    const json_limits *lim;
    int depth, n_values;
    err *e;
    bool keep; /* the numbers' texts, in `kept` */
    long_number *kept;
    size_t n_kept, cap_kept, n_numbers;
} scan;

static bool fail(scan *s, const char *what)
{
    (void)err_set(s->e, ERR_INPUT, "invalid JSON at byte %zu: %s", (size_t)(s->p - s->text), what);
    return false;
}

static void skip_space(scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r')) {
        s->p++;
    }
}

/* ---------------------------------------------------------------- strings -- */

static bool scan_unicode_escape(scan *s)
{
    const char *p = (const char *)s->p, *end = (const char *)s->end;
    int v = hex_value(p + 2, end, 4);
    if (v < 0) return fail(s, "\\u needs four hexadecimal digits");
    if (v == 0) return fail(s, "\\u0000 is not accepted");
    if (v >= 0xDC00 && v <= 0xDFFF) return fail(s, "a low surrogate stands alone");
    s->p += 6;
    if (v < 0xD800 || v > 0xDBFF) return true;
    bool pair = end - p >= 8 && p[6] == '\\' && p[7] == 'u';
    int low = pair ? hex_value(p + 8, end, 4) : -1;
    if (low < 0xDC00 || low > 0xDFFF) return fail(s, "a high surrogate stands alone");
    s->p += 6;
    return true;
}

static bool scan_string(scan *s)
{
    s->p++;
    while (s->p < s->end) {
        unsigned char c = *s->p;
        if (c == '"') {
            s->p++;
            return true;
        }
        if (c < 0x20) return fail(s, "control character in a string");
        if (c == '\\') {
            if (s->end - s->p < 2) break;
            if (s->p[1] == 'u') {
                if (!scan_unicode_escape(s)) return false;
                continue;
            }
            if (!s->p[1] || !strchr("\"\\/bfnrt", s->p[1])) return fail(s, "unknown escape");
            s->p += 2;
            continue;
        }
        uint32_t code;
        int len = c < 0x80 ? 1 : utf8_read((const char *)s->p, (size_t)(s->end - s->p), &code);
        if (len <= 0) return fail(s, "invalid UTF-8");
        s->p += len;
    }
    return fail(s, "unterminated string");
}

/* ------------------------------------------------------- numbers and words -- */

static bool digits(scan *s)
{
    const unsigned char *from = s->p;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9') s->p++;
    return s->p > from;
}

/* The text of the number is [from, s->p). */
static bool keep_number(scan *s, const unsigned char *from, bool plain)
{
    size_t len = (size_t)(s->p - from), nth = s->n_numbers++;
    if (!s->keep || (plain && len <= PLAIN_MAX)) return true;
    if (s->n_kept == s->cap_kept) {
        size_t cap = 2 * s->cap_kept + 16;
        long_number *more = realloc(s->kept, cap * sizeof(*more));
        if (!more) {
            (void)err_set(s->e, ERR_NOMEM, "no memory to parse JSON");
            return false;
        }
        s->kept = more;
        s->cap_kept = cap;
    }
    s->kept[s->n_kept++] = (long_number){nth, len, from};
    return true;
}

static bool scan_number(scan *s)
{
    const unsigned char *from = s->p;
    bool plain = true;
    if (*s->p == '-') s->p++;
    if (s->p < s->end && *s->p == '0')
        s->p++;
    else if (!digits(s))
        return fail(s, "a number needs a digit");
    if (s->p < s->end && *s->p == '.') {
        plain = false;
        s->p++;
        if (!digits(s)) return fail(s, "a digit must follow the decimal point");
    }
    if (s->p < s->end && (*s->p == 'e' || *s->p == 'E')) {
        plain = false;
        s->p++;
        if (s->p < s->end && (*s->p == '+' || *s->p == '-')) s->p++;
        if (!digits(s)) return fail(s, "an exponent needs a digit");
    }
    size_t len = (size_t)(s->p - from);
    if (len > NUMBER_MAX) return fail(s, "a number is longer than 128 characters");
    char buf[NUMBER_MAX + 1];
    memcpy(buf, from, len);
    buf[len] = 0;
    if (!isfinite(strtod(buf, NULL))) return fail(s, "a number is too large");
    return keep_number(s, from, plain);
}

static bool scan_word(scan *s, const char *word)
{
    size_t len = strlen(word);
    if ((size_t)(s->end - s->p) < len || memcmp(s->p, word, len) != 0) {
        return fail(s, "unexpected character");
    }
    s->p += len;
    return true;
}

/* --------------------------------------------------------------- containers -- */

static bool scan_value(scan *s);

static bool scan_member_name(scan *s)
{
    skip_space(s);
    if (s->p >= s->end || *s->p != '"') return fail(s, "a member name must be a string");
    if (!scan_string(s)) return false;
    skip_space(s);
    if (s->p >= s->end || *s->p != ':') return fail(s, "':' expected");
    s->p++;
    return true;
}

static bool scan_container(scan *s, unsigned char close)
{
    if (++s->depth > s->lim->max_depth) {
        (void)err_set(s->e, ERR_LIMIT, "JSON is nested deeper than %d levels", s->lim->max_depth);
        return false;
    }
    s->p++;
    skip_space(s);
    bool empty = s->p < s->end && *s->p == close;
    while (!empty) {
        if (close == '}' && !scan_member_name(s)) return false;
        if (!scan_value(s)) return false;
        skip_space(s);
        if (s->p >= s->end) return fail(s, "unexpected end");
        if (*s->p == close) break;
        if (*s->p != ',')
            return fail(s, close == '}' ? "',' or '}' expected" : "',' or ']' expected");
        s->p++;
    }
    s->p++;
    s->depth--;
    return true;
}

static bool scan_value(scan *s)
{
    skip_space(s);
    if (++s->n_values > s->lim->max_values) {
        (void)err_set(s->e, ERR_LIMIT, "JSON has more than %d values", s->lim->max_values);
        return false;
    }
    if (s->p >= s->end) return fail(s, "unexpected end");
    switch (*s->p) {
    case '{': return scan_container(s, '}');
    case '[': return scan_container(s, ']');
    case '"': return scan_string(s);
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    default:
        if (*s->p == '-' || (*s->p >= '0' && *s->p <= '9')) return scan_number(s);
        return fail(s, "unexpected character");
    }
}

static err_code scan_all(scan *s, const char *text, size_t len)
{
    if (len > s->lim->max_bytes) {
        return err_set(s->e, ERR_LIMIT, "JSON has %zu bytes, the limit is %zu", len,
                       s->lim->max_bytes);
    }
    s->p = s->text = (const unsigned char *)text;
    s->end = s->text + len;
    if (!scan_value(s)) return s->e->code;
    skip_space(s);
    if (s->p == s->end) return ERR_NONE;
    (void)fail(s, "something follows the value");
    return s->e->code;
}

err_code json_check(const char *text, size_t len, const json_limits *lim, err *e)
{
    err local;
    scan s = {.lim = lim, .e = e ? e : &local};
    return scan_all(&s, text, len);
}

/* --------------------------------------------------------------- duplicates -- */

typedef struct {
    cJSON *v;
    size_t at;
} named;

static int by_name(const void *a, const void *b)
{
    const named *x = a, *y = b;
    int cmp = strcmp(x->v->string, y->v->string);
    return cmp ? cmp : x->at < y->at ? -1 : 1;
}

/* Looks at this object, not at those in it; `keep_last`: drops all but the last of one name. */
static err_code unique_names(cJSON *obj, bool keep_last, err *e)
{
    size_t n = (size_t)cJSON_GetArraySize(obj), i = 0;
    if (n < 2) return ERR_NONE;
    named *all = malloc(n * sizeof(*all));
    if (!all) return err_set(e, ERR_NOMEM, "out of memory");
    for (cJSON *v = obj->child; v; v = v->next, i++) all[i] = (named){v, i};
    qsort(all, n, sizeof(*all), by_name);
    err_code rc = ERR_NONE;
    for (i = 1; i < n && !rc; i++) {
        if (strcmp(all[i - 1].v->string, all[i].v->string) != 0) continue;
        if (keep_last)
            cJSON_Delete(cJSON_DetachItemViaPointer(obj, all[i - 1].v));
        else
            rc = err_set(e, ERR_INPUT, "invalid JSON: the name '%.64s' appears twice in one object",
                         all[i].v->string);
    }
    free(all);
    return rc;
}

/* Depth is bounded: the scan has passed. */
static err_code all_unique(cJSON *v, bool keep_last, err *e)
{
    err_code rc = cJSON_IsObject(v) ? unique_names(v, keep_last, e) : ERR_NONE;
    if (!cJSON_IsObject(v) && !cJSON_IsArray(v)) return rc;
    for (cJSON *c = v->child; c && !rc; c = c->next) rc = all_unique(c, keep_last, e);
    return rc;
}

/* ------------------------------------------------------------------ numbers -- */

/* Gives the numbers of the tree their kept texts; the scan met them in the same order. */
static bool give_texts(const scan *s, cJSON *v, size_t *number, size_t *given)
{
    if (cJSON_IsNumber(v) && *given < s->n_kept && s->kept[*given].nth == *number) {
        const long_number *k = &s->kept[(*given)++];
        v->valuestring = cJSON_malloc(k->len + 1); /* cJSON_Delete() frees it */
        if (!v->valuestring) return false;
        memcpy(v->valuestring, k->at, k->len);
        v->valuestring[k->len] = 0;
    }
    *number += cJSON_IsNumber(v);
    for (cJSON *c = v->child; c; c = c->next) {
        if (!give_texts(s, c, number, given)) return false;
    }
    return true;
}

err_code json_parse(const char *text, size_t len, const json_limits *lim, cJSON **out, err *e)
{
    err local;
    size_t number = 0, given = 0;
    scan s = {.lim = lim, .e = e ? e : &local, .keep = true};
    err_code rc = scan_all(&s, text, len);
    *out = rc ? NULL : cJSON_ParseWithLengthOpts(text, len, NULL, 0);
    if (!rc && (!*out || !give_texts(&s, *out, &number, &given)))
        rc = err_set(s.e, ERR_NOMEM, "out of memory");
    if (!rc) rc = all_unique(*out, lim->last_wins, s.e);
    free(s.kept);
    if (rc) {
        cJSON_Delete(*out);
        *out = NULL;
    }
    return rc;
}

/* Numbers of a copy become what cJSON prints as it stands. */
static void print_as_written(cJSON *v)
{
    if (cJSON_IsNumber(v) && v->valuestring) v->type = (v->type & ~0xFF) | cJSON_Raw;
    for (cJSON *c = v->child; c; c = c->next) print_as_written(c);
}

char *json_print(const cJSON *v)
{
    cJSON *copy = cJSON_Duplicate(v, true);
    if (!copy) return NULL;
    print_as_written(copy);
    char *text = cJSON_PrintUnformatted(copy);
    cJSON_Delete(copy);
    return text;
}

bool json_whole(const cJSON *v, int64_t *out)
{
    if (!cJSON_IsNumber(v) || v->valuedouble != floor(v->valuedouble)) return false;
    if (v->valuestring && !strpbrk(v->valuestring, ".eE")) {
        errno = 0;
        *out = strtoll(v->valuestring, NULL, 10);
        return errno == 0;
    }
    bool fits = v->valuedouble >= -9223372036854775808.0 && v->valuedouble < 9223372036854775808.0;
    if (fits) *out = (int64_t)v->valuedouble;
    return fits;
}

int json_order(const cJSON *a, const cJSON *b)
{
    int64_t x, y;
    if (a->valuedouble != b->valuedouble) return a->valuedouble < b->valuedouble ? -1 : 1;
    if (json_whole(a, &x) && json_whole(b, &y)) return x < y ? -1 : x > y;
    /* Beyond 64 bits: whole numbers without zeros in front, of one length, or the
     * doubles would differ more. */
    bool texts = a->valuestring && b->valuestring && !strpbrk(a->valuestring, ".eE") &&
                 !strpbrk(b->valuestring, ".eE");
    int cmp = texts ? strcmp(a->valuestring, b->valuestring) : 0;
    return a->valuedouble < 0 ? -cmp : cmp;
}

bool json_same(const cJSON *a, const cJSON *b)
{
    if (cJSON_IsNumber(a) && cJSON_IsNumber(b)) return json_order(a, b) == 0;
    bool lists = cJSON_IsArray(a) && cJSON_IsArray(b);
    bool objects = cJSON_IsObject(a) && cJSON_IsObject(b);
    if (!lists && !objects) return cJSON_Compare(a, b, true);
    if (cJSON_GetArraySize(a) != cJSON_GetArraySize(b)) return false;
    const cJSON *other = b->child;
    for (const cJSON *c = a->child; c; c = c->next) {
        const cJSON *with = lists ? other : json_get(b, c->string);
        if (!with || !json_same(c, with)) return false;
        other = other->next;
    }
    return true;
}

/* ------------------------------------------------------------ typed members -- */

const cJSON *json_get(const cJSON *obj, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(obj, name);
}

static const char *type_name(const cJSON *v)
{
    if (cJSON_IsString(v)) return "a string";
    if (cJSON_IsNumber(v)) return "a number";
    if (cJSON_IsBool(v)) return "a boolean";
    if (cJSON_IsArray(v)) return "an array";
    if (cJSON_IsObject(v)) return "an object";
    return "null";
}

/* The member, or NULL when absent or null; sets *found. */
static const cJSON *present(const cJSON *obj, const char *name, bool *found)
{
    const cJSON *v = json_get(obj, name);
    if (cJSON_IsNull(v)) v = NULL;
    if (found) *found = v != NULL;
    return v;
}

static err_code wrong_type(const cJSON *v, const char *name, const char *want, err *e)
{
    return err_set(e, ERR_INPUT, "'%s' must be %s, not %s", name, want, type_name(v));
}

err_code json_int(const cJSON *obj, const char *name, int64_t lo, int64_t hi, int64_t *out,
                  bool *found, err *e)
{
    const cJSON *v = present(obj, name, found);
    if (!v) return ERR_NONE;
    if (!cJSON_IsNumber(v)) return wrong_type(v, name, "an integer", e);
    double d = v->valuedouble;
    if (d != floor(d)) return err_set(e, ERR_INPUT, "'%s' must be an integer", name);
    if (!(d >= (double)lo && d <= (double)hi) || fabs(d) >= 9007199254740992.0) {
        return err_set(e, ERR_INPUT, "'%s' must be from %lld to %lld", name, (long long)lo,
                       (long long)hi);
    }
    *out = (int64_t)d;
    return ERR_NONE;
}

err_code json_num(const cJSON *obj, const char *name, double lo, double hi, double *out,
                  bool *found, err *e)
{
    const cJSON *v = present(obj, name, found);
    if (!v) return ERR_NONE;
    if (!cJSON_IsNumber(v)) return wrong_type(v, name, "a number", e);
    if (!(v->valuedouble >= lo && v->valuedouble <= hi)) {
        return err_set(e, ERR_INPUT, "'%s' must be from %g to %g", name, lo, hi);
    }
    *out = v->valuedouble;
    return ERR_NONE;
}

err_code json_bool(const cJSON *obj, const char *name, bool *out, bool *found, err *e)
{
    const cJSON *v = present(obj, name, found);
    if (!v) return ERR_NONE;
    if (!cJSON_IsBool(v)) return wrong_type(v, name, "true or false", e);
    *out = cJSON_IsTrue(v);
    return ERR_NONE;
}

err_code json_str(const cJSON *obj, const char *name, const char **out, bool *found, err *e)
{
    const cJSON *v = present(obj, name, found);
    if (!v) return ERR_NONE;
    if (!cJSON_IsString(v)) return wrong_type(v, name, "a string", e);
    *out = v->valuestring;
    return ERR_NONE;
}
