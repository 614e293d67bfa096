/* config_items.c -- options one by one: value as text, origin, and the difference between two
 * configurations.
 *
 * Items are numbered: first the options of config_options[] in the order of the file, and in
 * place of the section [classes] one row for each option of each class. place_of() maps a number
 * to the option's table row, the struct that holds it and the byte with its origin.
 *
 * A reload compares the running configuration with the wanted one and takes what can change at
 * run time (OPT_LIVE). goes_live() has the exceptions: a live option cannot exceed what was
 * allocated at the start (queue_room, connection_room), and classes change live only if their
 * names and order stay the same, because requests and tables use a class's index.
 *
 * config_hide() removes passwords and query strings from URLs before a value is shown or logged.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/config/classes.h"
#include "gateway/config/config_inside.h"

/* ------------------------------------------------------------------------- values -- */

static void bytes_text(int64_t v, char out[CONFIG_TEXT_MAX])
{
    if (v && v % CONFIG_GIB == 0)
        snprintf(out, CONFIG_TEXT_MAX, "%lldGiB", (long long)(v / CONFIG_GIB));
    else if (v && v % CONFIG_MIB == 0)
        snprintf(out, CONFIG_TEXT_MAX, "%lldMiB", (long long)(v / CONFIG_MIB));
    else
        snprintf(out, CONFIG_TEXT_MAX, "%lld", (long long)v);
}

static void time_text(int64_t v, char out[CONFIG_TEXT_MAX])
{
    if (v % CONFIG_SECOND == 0)
        snprintf(out, CONFIG_TEXT_MAX, "%llds", (long long)(v / CONFIG_SECOND));
    else if (v % 1000 == 0)
        snprintf(out, CONFIG_TEXT_MAX, "%lldms", (long long)(v / 1000));
    else
        snprintf(out, CONFIG_TEXT_MAX, "%lldus", (long long)v);
}

void config_value_text(const void *of, const option *o, char out[CONFIG_TEXT_MAX])
{
    const void *field = (const char *)of + o->offset;
    option_kind kind = option_kind_of(o);
    int64_t v = 0;
    if (kind != OPT_TEXT && kind != OPT_BOOL) memcpy(&v, field, sizeof(v));
    switch (kind) {
    case OPT_TEXT: snprintf(out, CONFIG_TEXT_MAX, "%s", (const char *)field); break;
    case OPT_BOOL: strcpy(out, *(const bool *)field ? "yes" : "no"); break;
    case OPT_INT: snprintf(out, CONFIG_TEXT_MAX, "%lld", (long long)v); break;
    case OPT_MILLI: snprintf(out, CONFIG_TEXT_MAX, "%.7g", (double)v / 1000); break;
    case OPT_BYTES: bytes_text(v, out); break;
    case OPT_TIME: time_text(v, out); break;
    }
}

static size_t value_bytes(const option *o)
{
    switch (option_kind_of(o)) {
    case OPT_TEXT: return CONFIG_TEXT_MAX;
    case OPT_BOOL: return sizeof(bool);
    default: return sizeof(int64_t);
    }
}

static bool same_value(const option *o, const void *a, const void *b)
{
    const char *x = (const char *)a + o->offset, *y = (const char *)b + o->offset;
    return option_kind_of(o) == OPT_TEXT ? strcmp(x, y) == 0 : memcmp(x, y, value_bytes(o)) == 0;
}

const char *config_source_name(config_source from)
{
    assert((unsigned)from <= CONFIG_ADMIN);
    static const char *const names[] = {"default", "file", "environment", "command line",
                                        "admin API"};
    return names[from];
}

void config_hide(char value[CONFIG_TEXT_MAX])
{
    char *host = strstr(value, "://");
    if (!host) return;
    host += 3;
    char *end = host + strcspn(host, "/?"), *at = memrchr(host, '@', (size_t)(end - host));
    char *colon = at ? memchr(host, ':', (size_t)(at - host)) : NULL;
    char *query = strchr(host, '?'), rest[CONFIG_TEXT_MAX];
    if (query && query[1]) snprintf(query, CONFIG_TEXT_MAX - (size_t)(query - value), "?***");
    if (!colon) return;
    snprintf(rest, sizeof(rest), "%s", at);
    snprintf(colon, CONFIG_TEXT_MAX - (size_t)(colon - value), ":***%s", rest);
}

/* -------------------------------------------------------------------------- items -- */

/* Where the option of item i lies: in the config, or in one of its classes. */
typedef struct {
    const option *o;
    const void *of;
    const config_class *class; /* NULL: it is no class's */
    const uint8_t *from;
} place;

static bool place_of(const config *c, int i, place *out)
{
    int before = 0;
    if (i < 0) return false;
    while (strcmp(config_options[before].section, "classes") != 0) before++;
    int key = i - before - 1, n_keys = c->classes.n * CONFIG_CLASS_OPTIONS;
    if (key >= 0 && key < n_keys) {
        const config_class *k = &c->classes.each[key / CONFIG_CLASS_OPTIONS];
        key %= CONFIG_CLASS_OPTIONS;
        *out = (place){&config_class_options[key], k, k, &k->from[key]};
        return true;
    }
    if (key >= 0) i -= n_keys;
    if (i >= config_n_options) return false;
    *out = (place){&config_options[i], c, NULL, &c->from[i]};
    return true;
}

static void name_of(const place *p, char out[CONFIG_NAME_MAX])
{
    if (p->class)
        snprintf(out, CONFIG_NAME_MAX, CONFIG_CLASS "%s.%s", p->class->name, p->o->key);
    else
        snprintf(out, CONFIG_NAME_MAX, "%s.%s", p->o->section, p->o->key);
}

/* As its value would be shown: 86400s for 24h. */
static void initial_text(const option *o, char out[CONFIG_TEXT_MAX])
{
    union {
        char text[CONFIG_TEXT_MAX];
        int64_t number;
        bool flag;
    } alone = {.number = 0};
    option at_once = *o;
    at_once.offset = 0;
    out[0] = 0;
    if (o->initial && !config_set_option(&alone, &at_once, o->initial, NULL))
        config_value_text(&alone, &at_once, out);
}

bool config_item_at(const config *c, int i, config_item *out)
{
    place p;
    if (!place_of(c, i, &p)) return false;
    name_of(&p, out->name);
    config_value_text(p.of, p.o, out->value);
    initial_text(p.o, out->initial);
    out->from = (config_source)*p.from;
    out->live = (p.o->kind & OPT_LIVE) != 0;
    out->path = (p.o->kind & OPT_PATH) != 0;
    return true;
}

err_code config_item_find(const config *c, const char *name, config_item *out, err *e)
{
    for (int i = 0; config_item_at(c, i, out); i++) {
        if (strcmp(out->name, name) == 0) return ERR_NONE;
    }
    return config_unknown(name, e);
}

/* ------------------------------------------------------------------------ changes -- */

static bool same_classes(const config *a, const config *b)
{
    bool same = a->classes.n == b->classes.n;
    for (int i = 0; same && i < a->classes.n; i++)
        same = strcmp(a->classes.each[i].name, b->classes.each[i].name) == 0;
    return same;
}

static bool is_option(const option *o, const char *section, const char *key)
{
    return strcmp(o->section, section) == 0 && strcmp(o->key, key) == 0;
}

/* What runs has room for so much, and no more before the next start. */
static bool goes_live(const place *p, const config *runs, const config *wanted)
{
    if (!(p->o->kind & OPT_LIVE)) return false;
    if (p->class || is_option(p->o, "classes", "default")) return same_classes(runs, wanted);
    if (is_option(p->o, "engine", "max_queued"))
        return wanted->engine.max_queued <= runs->queue_room;
    if (is_option(p->o, "server", "max_connections"))
        return config_max_connections(&wanted->server) <= runs->connection_room;
    return true;
}

static void add_change(config_changes *to, const place *a, const place *b, bool live)
{
    config_change *c = &to->each[to->n++];
    name_of(a, c->name);
    config_value_text(a->of, a->o, c->value);
    config_value_text(b->of, b->o, c->wanted);
    c->from = (config_source)*a->from;
    c->wanted_from = (config_source)*b->from;
    c->live = live;
}

static void add_class(config_changes *to, const char *name)
{
    config_change *c = &to->each[to->n++];
    *c = (config_change){.live = false};
    snprintf(c->name, sizeof(c->name), CONFIG_CLASS "%s", name);
}

/* The place of the same option, where it has one. */
static bool same_place(const config *c, const place *p, place *out)
{
    char name[CONFIG_NAME_MAX], other[CONFIG_NAME_MAX];
    name_of(p, name);
    for (int i = 0; place_of(c, i, out); i++) {
        name_of(out, other);
        if (strcmp(name, other) == 0) return true;
    }
    return false;
}

/* Classes that only one of them has, or in another place. */
static void compare_classes(const config *runs, const config *wanted, config_changes *to)
{
    for (int i = 0; i < runs->classes.n; i++) {
        const char *name = runs->classes.each[i].name;
        if (class_of_name(&wanted->classes, name) != i) add_class(to, name);
    }
    for (int i = 0; i < wanted->classes.n; i++) {
        const char *name = wanted->classes.each[i].name;
        if (class_of_name(&runs->classes, name) < 0) add_class(to, name);
    }
}

err_code config_compare(const config *runs, const config *wanted, config_changes *out, err *e)
{
    size_t cap =
        (size_t)config_n_options + (size_t)CLASS_MAX * (CONFIG_CLASS_OPTIONS + 2); /* at most */
    *out = (config_changes){.each = calloc(cap, sizeof(*out->each))};
    if (!out->each) return err_set(e, ERR_NOMEM, "no memory to compare configurations");
    place a, b;
    for (int i = 0; place_of(runs, i, &a); i++) {
        if (!same_place(wanted, &a, &b) || same_value(a.o, a.of, b.of)) continue;
        add_change(out, &a, &b, goes_live(&a, runs, wanted));
    }
    compare_classes(runs, wanted, out);
    assert((size_t)out->n <= cap);
    return ERR_NONE;
}

void config_take(config *runs, const config *wanted)
{
    place a, b;
    for (int i = 0; place_of(runs, i, &a); i++) {
        if (!goes_live(&a, runs, wanted) || !same_place(wanted, &a, &b)) continue;
        memcpy((char *)a.of + a.o->offset, (const char *)b.of + b.o->offset, value_bytes(a.o));
        *(uint8_t *)a.from = *b.from;
    }
}
