/* config_read.c -- options from a file, the environment and the command line.
 *
 * The file's grammar is small: [section], key = value, # comments.  Whoever says it last wins.
 * An upgrade must not stop a server, so a file may have the names that options had before.
 */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "gateway/config/classes.h"
#include "gateway/config/config_inside.h"

/* ------------------------------------------------------------------------- names -- */

/* Edit distance, for "did you mean". */
static int distance(const char *a, const char *b)
{
    int row[80];
    int n = (int)strlen(b);
    if (n >= 79) return 99;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diag = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int old = row[j], best = diag + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
            diag = old;
        }
    }
    return row[n];
}

/* Options that had another name in an earlier version. */
static const char *const moved[][2] = {
    {"engine.cuda_graphs", "debug.cuda_graphs"}, {"engine.cuda_without", "debug.cuda_without"},
    {"engine.overlap", "debug.overlap"},         {"model.packed_cache", "debug.packed_cache"},
    {"adapters.copy_share", "debug.copy_share"}, {"adapters.loaders", "debug.loaders"},
    {"adapters.probe", "debug.probe"},           {"server.threads", "server.max_streams"}};

/* The present name of an option that had another one; NULL: `name` is none of those. */
static const char *present_name(const char *name)
{
    for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++)
        if (strcmp(moved[i][0], name) == 0) return moved[i][1];
    return NULL;
}

static const option *find_option(const char *section, const char *key, err *e)
{
    char name[128], best_name[128] = "";
    snprintf(name, sizeof(name), "%.60s.%.60s", section, key);
    const char *present = present_name(name);
    if (present) {
        (void)err_set(e, ERR_INPUT, "the option '%s' is now '%s'", name, present);
        return NULL;
    }
    int best = 5;
    for (int i = 0; i < config_n_options; i++) {
        char known[128];
        snprintf(known, sizeof(known), "%s.%s", config_options[i].section, config_options[i].key);
        if (strcmp(known, name) == 0) return &config_options[i];
        int d = distance(name, known);
        if (d < best) {
            best = d;
            strcpy(best_name, known);
        }
    }
    if (best_name[0]) {
        (void)err_set(e, ERR_INPUT, "unknown option '%s'; did you mean '%s'?", name, best_name);
    } else {
        (void)err_set(e, ERR_INPUT, "unknown option '%s'", name);
    }
    return NULL;
}

/* ----------------------------------------------------------------------- classes -- */

/* "gold" of "class.gold"; NULL: it is no section of a class. */
static const char *class_in(const char *section)
{
    return strncmp(section, CONFIG_CLASS, (sizeof(CONFIG_CLASS) - 1)) == 0
               ? section + (sizeof(CONFIG_CLASS) - 1)
               : NULL;
}

/* A class with the defaults of its keys, the least urgent so far. */
static err_code add_class(config *c, const char *name, err *e)
{
    config_class *k = classes_add(&c->classes, name, e);
    for (int i = 0; k && i < CONFIG_CLASS_OPTIONS; i++) {
        const option *o = &config_class_options[i];
        if (o->initial && config_set_option(k, o, o->initial, e))
            abort(); /* a fault of the table */
    }
    return k ? ERR_NONE : e->code;
}

static err_code set_class(config_class *k, const char *key, const char *text, config_source from,
                          err *e)
{
    char section[CONFIG_SECTION_MAX];
    snprintf(section, sizeof(section), "%s%s", CONFIG_CLASS, k->name);
    for (int i = 0; i < CONFIG_CLASS_OPTIONS; i++) {
        option o = config_class_options[i];
        o.section = section;
        if (strcmp(o.key, key) != 0) continue;
        if (config_set_option(k, &o, text, e)) return e->code;
        k->from[i] = (uint8_t)from;
        return ERR_NONE;
    }
    return err_set(e, ERR_INPUT,
                   "unknown option '%s.%.40s'; a class has ttft, tpot, weight, overload and tiers",
                   section, key);
}

err_code config_unknown(const char *name, err *e)
{
    char section[CONFIG_NAME_MAX], key[CONFIG_NAME_MAX];
    const char *dot = strrchr(name, '.');
    int n = dot ? (int)(dot - name) : 0;
    snprintf(section, sizeof(section), "%.*s", n, name);
    snprintf(key, sizeof(key), "%s", dot ? dot + 1 : name);
    if (class_in(section))
        return err_set(e, ERR_INPUT,
                       "unknown option '%.60s': a class that is configured has ttft, tpot, weight, "
                       "overload and tiers",
                       name);
    return find_option(section, key, e) ? err_set(e, ERR_INPUT, "'%.60s' is no option", name)
                                        : e->code;
}

/* "ttft:500ms tpot:50ms weight:4" after [classes] NAME: how files before the sections had it. */
static err_code set_class_line(config_class *k, const char *text, config_source from, err *e)
{
    char buf[CONFIG_TEXT_MAX], *save = NULL;
    config_class made = *k;
    made.ttft_us = made.tpot_us = made.weight_milli = 0;
    err_code rc = set_class(&made, "overload", "queue", from, e);
    if (strlen(text) >= sizeof(buf)) return err_set(e, ERR_INPUT, "the line is too long");
    strcpy(buf, text);
    for (char *w = strtok_r(buf, " \t", &save); !rc && w; w = strtok_r(NULL, " \t", &save)) {
        char *colon = strchr(w, ':');
        if (!colon)
            return err_set(e, ERR_INPUT, "classes.%s: '%.40s' is not key:value", k->name, w);
        *colon = 0;
        rc = set_class(&made, w, colon + 1, from, e);
    }
    if (rc) return rc;
    if (!made.ttft_us || !made.tpot_us || !made.weight_milli)
        return err_set(e, ERR_INPUT, "classes.%s needs ttft, tpot and weight", k->name);
    *k = made;
    return ERR_NONE;
}

/* The class of an option [classes] NAME; NULL: there is no such option any more. */
static config_class *class_of_line(config *c, const char *section, const char *key)
{
    if (strcmp(section, "classes") != 0 || !classes_is_initial(key)) return NULL;
    int i = class_of_name(&c->classes, key);
    return i < 0 ? NULL : &c->classes.each[i];
}

/* ----------------------------------------------------------------------- sources -- */

/* One "section.key = text", from wherever. */
static err_code assign(config *c, const char *section, const char *key, const char *text,
                       config_source from, err *e)
{
    const char *class = class_in(section);
    if (class) {
        if (class_of_name(&c->classes, class) < 0 && add_class(c, class, e)) return e->code;
        return set_class(&c->classes.each[class_of_name(&c->classes, class)], key, text, from, e);
    }
    config_class *line = class_of_line(c, section, key);
    if (line) return set_class_line(line, text, from, e);
    const option *o = find_option(section, key, e);
    if (!o || config_set_option(c, o, text, e)) return e->code;
    assert(o >= config_options && o < config_options + config_n_options);
    c->from[o - config_options] = (uint8_t)from;
    return ERR_NONE;
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s)) s++;
    char *end = s + strlen(s);
    while (end > s && isspace((unsigned char)end[-1])) end--;
    *end = 0;
    return s;
}

typedef struct {
    char section[64];
    bool sections, lines; /* of classes: they do not go together */
} reader;

static err_code begin_section(config *c, reader *r, const char *name, err *e)
{
    snprintf(r->section, sizeof(r->section), "%s", name);
    const char *class = class_in(name);
    if (class && r->lines) {
        return err_set(e, ERR_INPUT,
                       "[%s] does not go together with the options of [classes] above: write each "
                       "of their classes as a section",
                       name);
    }
    if (class) {
        if (!r->sections) classes_clear(&c->classes);
        r->sections = true;
        return add_class(c, class, e);
    }
    for (int i = 0; i < config_n_options; i++) {
        if (strcmp(config_options[i].section, name) == 0) return ERR_NONE;
    }
    return err_set(e, ERR_INPUT, "unknown section [%.40s]", name);
}

/* A section, an option or nothing; cuts the line up in place. Options that have been renamed are
 * taken under their old name, with a warning. */
static err_code read_line(config *c, char *line, reader *r, err *e)
{
    char *s = trim(line);
    if (!*s || *s == '#') return ERR_NONE;
    size_t len = strlen(s);
    if (*s == '[') {
        if (s[len - 1] != ']' || len > 60) return err_set(e, ERR_INPUT, "malformed [section]");
        s[len - 1] = 0;
        return begin_section(c, r, s + 1, e);
    }
    char *eq = strchr(s, '=');
    if (!eq) return err_set(e, ERR_INPUT, "'key = value' expected");
    if (!r->section[0]) return err_set(e, ERR_INPUT, "an option stands before the first [section]");
    *eq = 0;
    const char *key = trim(s);
    if (strcmp(r->section, "classes") == 0 && classes_is_initial(key)) {
        if (r->sections) {
            return err_set(e, ERR_INPUT,
                           "classes.%s does not go together with the sections [class.NAME] above: "
                           "write [class.%s]",
                           key, key);
        }
        r->lines = true;
    }
    char name[CONFIG_NAME_MAX];
    snprintf(name, sizeof(name), "%s.%s", r->section, key);
    const char *present = present_name(name);
    if (!present) return assign(c, r->section, key, trim(eq + 1), CONFIG_FILE, e);
    log_warn("gateway", "the configuration file's option '%s' is now '%s': rename it", name,
             present);
    return config_assign(c, present, trim(eq + 1), CONFIG_FILE, e);
}

err_code config_read_file(config *c, const char *path, err *e)
{
    FILE *f = fopen(path, "r");
    if (!f) return err_set(e, ERR_NOT_FOUND, "the config file can't be read: %s", strerror(errno));
    char line[2048];
    reader r = {.section = ""};
    err_code rc = ERR_NONE;
    for (int n = 1; !rc && fgets(line, sizeof(line), f); n++) {
        if (!strchr(line, '\n') && !feof(f))
            rc = err_set(e, ERR_INPUT, "the line is too long");
        else
            rc = read_line(c, line, &r, e);
        if (rc) (void)err_context(e, "line %d", n);
    }
    (void)fclose(f);
    return rc ? rc : classes_check(&c->classes, e);
}

/* The variable of an option; NULL: it is not set. */
static const char *env_of(const char *section, const char *key)
{
    char name[128];
    snprintf(name, sizeof(name), "LORAD_%s_%s", section, key);
    for (char *p = name; *p; p++)
        *p = *p == '.' || *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    return getenv(name);
}

static err_code take_env(config *c, const char *section, const char *key, err *e)
{
    const char *v = env_of(section, key);
    if (!v || !assign(c, section, key, v, CONFIG_ENVIRONMENT, e)) return ERR_NONE;
    (void)err_context(e, "environment");
    return e->code;
}

err_code config_read_env(config *c, err *e)
{
    err_code rc = ERR_NONE;
    for (int i = 0; !rc && i < config_n_options; i++)
        rc = take_env(c, config_options[i].section, config_options[i].key, e);
    for (int i = 0; !rc && i < c->classes.n; i++) {
        char section[CONFIG_SECTION_MAX];
        snprintf(section, sizeof(section), "%s%s", CONFIG_CLASS, c->classes.each[i].name);
        if (class_of_line(c, "classes", c->classes.each[i].name))
            rc = take_env(c, "classes", c->classes.each[i].name, e);
        for (int k = 0; !rc && k < CONFIG_CLASS_OPTIONS; k++)
            rc = take_env(c, section, config_class_options[k].key, e);
    }
    return rc;
}

err_code config_set(config *c, const char *assignment, err *e)
{
    char buf[2048];
    if (strlen(assignment) >= sizeof(buf)) return err_set(e, ERR_INPUT, "--set: too long");
    strcpy(buf, assignment);
    char *eq = strchr(buf, '=');
    if (!eq || !memchr(buf, '.', (size_t)(eq - buf)))
        return err_set(e, ERR_INPUT, "--set needs section.key=value");
    *eq = 0;
    return config_assign(c, buf, trim(eq + 1), CONFIG_COMMAND_LINE, e);
}

err_code config_assign(config *c, const char *name, const char *text, config_source from, err *e)
{
    char buf[2048];
    snprintf(buf, sizeof(buf), "%s", name);
    char *dot = strrchr(buf, '.');
    if (!dot) return err_set(e, ERR_INPUT, "'%.60s' is no section.key", name);
    *dot = 0;
    return assign(c, trim(buf), trim(dot + 1), text, from, e);
}
