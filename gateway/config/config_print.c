/* config_print.c -- options as text: the documented file. */
#include <string.h>

#include "gateway/config/classes.h"
#include "gateway/config/config_inside.h"

/* The tables one after the other, a class's keys behind the section [classes]. */
static const option *option_at(int i)
{
    int at = 0;
    if (i < 0) return NULL;
    while (strcmp(config_options[at].section, "classes") != 0) at++;
    if (i <= at) return &config_options[i];
    if (i <= at + CONFIG_CLASS_OPTIONS) return &config_class_options[i - at - 1];
    return i < config_n_options + CONFIG_CLASS_OPTIONS ? &config_options[i - CONFIG_CLASS_OPTIONS]
                                                       : NULL;
}

bool config_describe(int i, config_option_text *out)
{
    const option *o = option_at(i);
    if (!o) return false;
    *out = (config_option_text){o->section, o->key, o->initial ? o->initial : "", o->help,
                                (o->kind & OPT_LIVE) != 0};
    return true;
}

static void print_option(const void *of, const option *o, bool with_help, FILE *f)
{
    for (const char *p = o->help; with_help && *p;) {
        size_t n = strcspn(p, "\n");
        fprintf(f, "# %.*s\n", (int)n, p);
        p += n + (p[n] == '\n');
    }
    char value[CONFIG_TEXT_MAX];
    if (with_help && (o->kind & OPT_LIVE)) fprintf(f, "# Live.\n");
    config_value_text(of, o, value);
    fprintf(f, "%s = %s\n", o->key, value);
}

static bool is_default(const config *c, const option *o)
{
    config initial;
    char value[CONFIG_TEXT_MAX], unset[CONFIG_TEXT_MAX];
    config_defaults(&initial);
    config_value_text(c, o, value);
    config_value_text(&initial, o, unset);
    return strcmp(value, unset) == 0;
}

/* The first says what the keys are. */
static void print_classes(const config *c, FILE *f)
{
    for (int i = 0; i < c->classes.n; i++) {
        fprintf(f, "\n[%s%s]\n", CONFIG_CLASS, c->classes.each[i].name);
        for (int k = 0; k < CONFIG_CLASS_OPTIONS; k++) {
            if (i == 0 && k > 0) fprintf(f, "\n");
            print_option(&c->classes.each[i], &config_class_options[k], i == 0, f);
        }
    }
}

void config_print(const config *c, FILE *f)
{
    fprintf(f,
            "# lorad.conf -- every option with its default.  Written by lorad --print-conf.\n"
            "# LORAD_SECTION_KEY in the environment overrides an option; --set section.key=value\n"
            "# overrides both.  Sizes: 512MiB, 4GiB.  Times: 500ms, 30s, 5min.\n"
            "# Live: a running server applies a change on SIGHUP, loractl reload or loractl "
            "config set.\n");
    const char *section = "";
    for (int i = 0; i < config_n_options; i++) {
        const option *o = &config_options[i];
        if (strcmp(o->section, "debug") == 0 && is_default(c, o)) continue;
        if (strcmp(section, o->section) != 0)
            fprintf(f, "\n[%s]\n", o->section);
        else
            fprintf(f, "\n");
        section = o->section;
        print_option(c, o, true, f);
        if (strcmp(section, "classes") == 0) print_classes(c, f);
    }
}
