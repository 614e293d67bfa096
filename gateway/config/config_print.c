/* config_print.c -- options as text: the documented file, and in what two configurations differ. */
#include <string.h>

#include "gateway/config/classes.h"
#include "gateway/config/config_inside.h"

/* The tables one after the other, a class's keys behind the section [classes]. */
static const option *option_at(int i)
{
    int at = 0;
    while (strcmp(config_options[at].section, "classes") != 0) at++;
    if (i <= at) return &config_options[i];
    if (i <= at + CONFIG_CLASS_OPTIONS) return &config_class_options[i - at - 1];
    return i < config_n_options + CONFIG_CLASS_OPTIONS ? &config_options[i - CONFIG_CLASS_OPTIONS]
                                                       : NULL;
}

bool config_describe(int i, config_option_text *out)
{
    const option *o = i < 0 ? NULL : option_at(i);
    if (!o) return false;
    *out = (config_option_text){o->section, o->key, o->initial ? o->initial : "", o->help};
    return true;
}

static void print_value(const void *of, const option *o, FILE *f)
{
    const void *field = (const char *)of + o->offset;
    int64_t v = 0;
    if (o->kind != OPT_TEXT && o->kind != OPT_BOOL) memcpy(&v, field, sizeof(v));
    switch (o->kind) {
    case OPT_TEXT: fprintf(f, "%s", (const char *)field); break;
    case OPT_BOOL: fprintf(f, "%s", *(const bool *)field ? "yes" : "no"); break;
    case OPT_INT: fprintf(f, "%lld", (long long)v); break;
    case OPT_MILLI: fprintf(f, "%.7g", (double)v / 1000); break;
    case OPT_BYTES:
        if (v % CONFIG_GIB == 0 && v)
            fprintf(f, "%lldGiB", (long long)(v / CONFIG_GIB));
        else if (v % CONFIG_MIB == 0 && v)
            fprintf(f, "%lldMiB", (long long)(v / CONFIG_MIB));
        else
            fprintf(f, "%lld", (long long)v);
        break;
    case OPT_TIME:
        if (v % CONFIG_SECOND == 0)
            fprintf(f, "%llds", (long long)(v / CONFIG_SECOND));
        else if (v % 1000 == 0)
            fprintf(f, "%lldms", (long long)(v / 1000));
        else
            fprintf(f, "%lldus", (long long)v);
        break;
    }
}

static bool same_value(const option *o, const void *a, const void *b)
{
    const char *x = (const char *)a + o->offset, *y = (const char *)b + o->offset;
    switch (o->kind) {
    case OPT_TEXT: return strcmp(x, y) == 0;
    case OPT_BOOL: return memcmp(x, y, sizeof(bool)) == 0;
    default: return memcmp(x, y, sizeof(int64_t)) == 0;
    }
}

typedef struct {
    char *text;
    size_t cap, n;
} names;

static void add_name(names *to, const char *section, const char *key)
{
    if (to->n + 1 >= to->cap) return;
    size_t left = to->cap - to->n;
    int wrote = snprintf(to->text + to->n, left, "%s%s%s%s", to->n ? ", " : "", section,
                         *key ? "." : "", key);
    to->n += (size_t)wrote < left ? (size_t)wrote : left - 1;
}

/* Classes that only one of them has, or in another place; of the others the keys. */
static void name_classes(const config *a, const config *b, names *to)
{
    char section[CONFIG_SECTION_MAX];
    for (int i = 0; i < a->n_classes; i++) {
        const config_class *k = &a->classes[i];
        int at = class_of_name(b, k->name);
        snprintf(section, sizeof(section), "%s%s", CONFIG_CLASS, k->name);
        if (at != i) add_name(to, section, "");
        for (int n = 0; at == i && n < CONFIG_CLASS_OPTIONS; n++) {
            if (!same_value(&config_class_options[n], k, &b->classes[at]))
                add_name(to, section, config_class_options[n].key);
        }
    }
    for (int i = 0; i < b->n_classes; i++) {
        snprintf(section, sizeof(section), "%s%s", CONFIG_CLASS, b->classes[i].name);
        if (class_of_name(a, b->classes[i].name) < 0) add_name(to, section, "");
    }
}

bool config_differs(const config *a, const config *b, char *text, size_t cap)
{
    names to = {.text = text, .cap = cap};
    text[0] = 0;
    for (int i = 0; i < config_n_options; i++) {
        const option *o = &config_options[i];
        if (!same_value(o, a, b)) add_name(&to, o->section, o->key);
    }
    name_classes(a, b, &to);
    return to.n > 0;
}

static void print_option(const void *of, const option *o, bool with_help, FILE *f)
{
    for (const char *p = o->help; with_help && *p;) {
        size_t n = strcspn(p, "\n");
        fprintf(f, "# %.*s\n", (int)n, p);
        p += n + (p[n] == '\n');
    }
    fprintf(f, "%s = ", o->key);
    print_value(of, o, f);
    fprintf(f, "\n");
}

/* The first says what the keys are. */
static void print_classes(const config *c, FILE *f)
{
    for (int i = 0; i < c->n_classes; i++) {
        fprintf(f, "\n[%s%s]\n", CONFIG_CLASS, c->classes[i].name);
        for (int k = 0; k < CONFIG_CLASS_OPTIONS; k++) {
            if (i == 0 && k > 0) fprintf(f, "\n");
            print_option(&c->classes[i], &config_class_options[k], i == 0, f);
        }
    }
}

void config_print(const config *c, FILE *f)
{
    fprintf(f, "# lorad.conf -- every option with its default.  Written by lorad --print-conf.\n"
               "# An option is overridden by LORAD_SECTION_KEY in the environment, and that by\n"
               "# --set section.key=value.  Sizes: 512MiB, 4GiB.  Times: 500ms, 30s, 5min.\n");
    const char *section = "";
    for (int i = 0; i < config_n_options; i++) {
        const option *o = &config_options[i];
        if (strcmp(section, o->section) != 0)
            fprintf(f, "\n[%s]\n", o->section);
        else
            fprintf(f, "\n");
        section = o->section;
        print_option(c, o, true, f);
        if (strcmp(section, "classes") == 0) print_classes(c, f);
    }
}
