/* classes.c -- the classes that there are without a section of any, and the rules for all.
 *
 * A request names a class by a word: its name, or one of its `tiers`, words that other APIs have
 * for the same (OpenAI's service_tier). check_word() sees to it that a word asks for one class
 * only: it is no other class's name, and no tier of this or an earlier class. "auto" stays the
 * default class's.
 *
 *      interactive  priority, fast     first token 0.5 s, then 50 ms a token
 *      standard     default, scale     2 s, 100 ms
 *      batch        flex               60 s, 1 s
 *
 * Threads: data of the caller; nothing is kept.
 */
#include "gateway/config/classes.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const config_class initial[] = {
    /* "fast", says OpenAI, is the same as priority */
    {"interactive", "priority, fast", "queue", 500000, 50000, 4000, 0, -1, 0, {0}},
    /* "scale" without such a contract is the default tier */
    {"standard", "default, scale", "queue", 2000000, 100000, 2000, 0, -1, 0, {0}},
    {"batch", "flex", "queue", 60000000, 1000000, 1000, 0, -1, 0, {0}},
};

enum { N_INITIAL = (int)(sizeof(initial) / sizeof(initial[0])) };

void classes_begin(config_classes *c)
{
    classes_clear(c);
    memcpy(c->each, initial, sizeof(initial));
    c->n = N_INITIAL;
}

bool classes_is_initial(const char *name)
{
    for (int i = 0; i < N_INITIAL; i++) {
        if (strcmp(name, initial[i].name) == 0) return true;
    }
    return false;
}

void classes_clear(config_classes *c)
{
    memset(c->each, 0, sizeof(c->each));
    c->n = 0;
}

/* ------------------------------------------------------------------------- words -- */

bool class_next_tier(const char **list, const char **word, int *len)
{
    const char *p = *list + strspn(*list, ", \t");
    *word = p;
    *len = (int)strcspn(p, ", \t");
    *list = p + *len;
    return *len > 0;
}

static bool is_word(const char *s, int len)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz", rest[] = "0123456789_-";
    bool good = len > 0 && len <= CLASS_WORD_MAX && strchr(letters, *s);
    for (int i = 1; good && i < len; i++) good = strchr(letters, s[i]) || strchr(rest, s[i]);
    return good;
}

static bool is_same(const char *word, int len, const char *text)
{
    return strncmp(word, text, (size_t)len) == 0 && !text[len];
}

static bool has_tier(const config_class *k, const char *text)
{
    const char *list = k->tiers, *word;
    int len;
    while (class_next_tier(&list, &word, &len)) {
        if (is_same(word, len, text)) return true;
    }
    return false;
}

int class_of_name(const config_classes *c, const char *name)
{
    for (int i = 0; i < c->n; i++) {
        if (strcmp(name, c->each[i].name) == 0) return i;
    }
    return -1;
}

int class_of_tier(const config_classes *c, const char *text)
{
    for (int i = 0; i < c->n; i++) {
        if (has_tier(&c->each[i], text)) return i;
    }
    return class_of_name(c, text);
}

void class_tier(const config_classes *c, int i, char out[CLASS_WORD_MAX + 1])
{
    const char *list = c->each[i].tiers, *word;
    int len;
    bool some = class_next_tier(&list, &word, &len);
    snprintf(out, CLASS_WORD_MAX + 1, "%.*s", some ? len : CLASS_WORD_MAX,
             some ? word : c->each[i].name);
}

/* ------------------------------------------------------------------------- rules -- */

config_class *classes_add(config_classes *c, const char *name, err *e)
{
    if (!is_word(name, (int)strnlen(name, CLASS_WORD_MAX + 1))) {
        (void)err_set(e, ERR_INPUT, "class.%.40s: a class's name must match [a-z][a-z0-9_-]{0,%d}",
                      name, CLASS_WORD_MAX - 1);
        return NULL;
    }
    if (class_of_name(c, name) >= 0) {
        (void)err_set(e, ERR_INPUT, "there are two classes '%s'", name);
        return NULL;
    }
    if (c->n == CLASS_MAX) {
        (void)err_set(e, ERR_INPUT, "class.%s is one too many: there can be at most %d classes",
                      name, CLASS_MAX);
        return NULL;
    }
    assert(c->n < CLASS_MAX);
    config_class *k = &c->each[c->n++];
    snprintf(k->name, sizeof(k->name), "%s", name);
    return k;
}

/* Which class a word asks for already, looking at classes and tiers before the one at `end`; -1. */
static int owner_of(const config_classes *c, int class, const char *end, const char *word, int len)
{
    assert(class >= 0 && class < c->n);
    for (int i = 0; i <= class; i++) {
        const char *list = c->each[i].tiers, *other;
        int n;
        while (class_next_tier(&list, &other, &n) && other < end) {
            if (n == len && memcmp(other, word, (size_t)len) == 0) return i;
        }
    }
    return -1;
}

static err_code check_word(const config_classes *c, int class, const char *word, int len, err *e)
{
    const char *name = c->each[class].name;
    if (!is_word(word, len)) {
        return err_set(e, ERR_INPUT, "class.%s.tiers: '%.*s' does not match [a-z][a-z0-9_-]{0,%d}",
                       name, len < 40 ? len : 40, word, CLASS_WORD_MAX - 1);
    }
    if (is_same(word, len, "auto"))
        return err_set(e, ERR_INPUT, "class.%s.tiers: 'auto' asks for the default class", name);
    int other = owner_of(c, class, word, word, len);
    for (int i = 0; other < 0 && i < c->n; i++) {
        if (is_same(word, len, c->each[i].name)) other = i;
    }
    if (other < 0) return ERR_NONE;
    return err_set(e, ERR_INPUT, "class.%s.tiers: '%.*s' asks for the class '%s' already", name,
                   len, word, c->each[other].name);
}

static err_code check_class(const config_classes *c, int i, err *e)
{
    assert(i >= 0 && i < c->n);
    const config_class *k = &c->each[i];
    const char *list = k->tiers, *word;
    int len;
    err_code rc = ERR_NONE;
    if (strcmp(k->name, "auto") == 0)
        return err_set(e, ERR_INPUT, "class.auto: 'auto' asks for the default class");
    if (k->ttft_us <= 0 || k->tpot_us <= 0) {
        return err_set(e, ERR_INPUT, "class.%s.%s is not set: a class needs both targets", k->name,
                       k->ttft_us <= 0 ? "ttft" : "tpot");
    }
    if (strcmp(k->overload, "queue") != 0 && strcmp(k->overload, "reject") != 0) {
        return err_set(e, ERR_INPUT, "class.%s.overload: '%.40s' is neither queue nor reject",
                       k->name, k->overload);
    }
    while (!rc && class_next_tier(&list, &word, &len)) rc = check_word(c, i, word, len, e);
    return rc;
}

/* Environment variables know no hyphen. */
static bool is_alike(const char *a, const char *b)
{
    while (*a && (*a == *b || (strchr("-_", *a) && *b && strchr("-_", *b)))) a++, b++;
    return *a == *b;
}

err_code classes_check(const config_classes *c, err *e)
{
    err_code rc = ERR_NONE;
    for (int i = 0; !rc && i < c->n; i++) {
        rc = check_class(c, i, e);
        for (int k = 0; !rc && k < i; k++) {
            if (!is_alike(c->each[i].name, c->each[k].name)) continue;
            rc = err_set(e, ERR_INPUT, "the classes '%s' and '%s' differ in - and _ alone",
                         c->each[k].name, c->each[i].name);
        }
    }
    if (!rc && class_of_name(c, c->default_name) < 0) {
        rc = err_set(e, ERR_INPUT, "classes.default: there is no class '%.40s'", c->default_name);
    }
    return rc;
}
