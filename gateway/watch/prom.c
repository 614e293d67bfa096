/* prom.c -- the text format's few rules: one HELP and TYPE, escapes, cumulative buckets.
 *
 *     # HELP name help                    \ and newline escaped
 *     # TYPE name histogram
 *     name_bucket{label="value",le="0.1"} 3      all that are at most 0.1; the last one is +Inf
 *     name_sum{label="value"} 0.27
 *     name_count{label="value"} 3
 *
 * Source: Prometheus' text format 0.0.4. Counts are printed as integers, since %.15g would lose
 * some of 64 bits. Labels come from tenants (names of adapters), so what is no valid UTF-8, or a
 * control character, becomes "?".
 *
 * A page that memory was short for has `failed` set, and is not sent.
 */
#include "gateway/watch/prom.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

void prom_init(prom *p)
{
    *p = (prom){0};
}

void prom_clear(prom *p)
{
    free(p->text);
    *p = (prom){0};
}

static void put(prom *p, const char *s, size_t n)
{
    if (p->failed) return;
    if (p->cap - p->len <= n) {
        size_t cap = p->cap ? 2 * p->cap : 32768;
        while (cap - p->len <= n) cap *= 2;
        char *text = realloc(p->text, cap);
        if (!text) {
            p->failed = true;
            return;
        }
        p->text = text;
        p->cap = cap;
    }
    memcpy(p->text + p->len, s, n);
    p->len += n;
    p->text[p->len] = 0;
}

static void put_str(prom *p, const char *s)
{
    put(p, s, strlen(s));
}

/* Backslash and newline everywhere, quotes in label values only. */
static void put_escaped(prom *p, const char *s, bool quotes)
{
    for (size_t i = 0, used, n = strlen(s); i < n; i += used) {
        uint32_t c = utf8_decode(s + i, n - i, &used);
        if (c == '\n')
            put_str(p, "\\n");
        else if (c == '\\')
            put_str(p, "\\\\");
        else if (c == '"' && quotes)
            put_str(p, "\\\"");
        else if (c == 0xFFFD || c < 0x20 || c == 0x7f)
            put_str(p, "?");
        else
            put(p, s + i, used);
    }
}

static void put_number(prom *p, double v)
{
    char text[40];
    if (isnan(v))
        put_str(p, "NaN");
    else if (isinf(v))
        put_str(p, v > 0 ? "+Inf" : "-Inf");
    else
        put(p, text, (size_t)snprintf(text, sizeof(text), "%.15g", v));
}

void prom_family(prom *p, const char *name, const char *type, const char *help)
{
    assert(name && type && help);
    p->name = name;
    put_str(p, "# HELP ");
    put_str(p, name);
    put_str(p, " ");
    put_escaped(p, help, false);
    put_str(p, "\n# TYPE ");
    put_str(p, name);
    put_str(p, " ");
    put_str(p, type);
    put_str(p, "\n");
}

/* name + suffix {labels, le="..."} and a space. */
static void put_series(prom *p, const char *suffix, const char *le, va_list labels)
{
    assert(p->name); /* prom_family() came before */
    const char *sep = "{", *name, *value;
    put_str(p, p->name);
    put_str(p, suffix);
    while ((name = va_arg(labels, const char *))) {
        value = va_arg(labels, const char *);
        put_str(p, sep);
        put_str(p, name);
        put_str(p, "=\"");
        put_escaped(p, value, true);
        put_str(p, "\"");
        sep = ",";
    }
    if (le) {
        put_str(p, sep);
        put_str(p, "le=\"");
        put_str(p, le);
        put_str(p, "\"");
        sep = ",";
    }
    put_str(p, *sep == ',' ? "} " : " ");
}

static void put_line(prom *p, uint64_t v)
{
    char text[24];
    put(p, text, (size_t)snprintf(text, sizeof(text), "%llu\n", (unsigned long long)v));
}

void prom_sample(prom *p, double v, ...)
{
    va_list ap;
    va_start(ap, v);
    put_series(p, "", NULL, ap);
    va_end(ap);
    put_number(p, v);
    put_str(p, "\n");
}

void prom_count(prom *p, uint64_t v, ...)
{
    va_list ap;
    va_start(ap, v);
    put_series(p, "", NULL, ap);
    va_end(ap);
    put_line(p, v);
}

void prom_histogram(prom *p, const histogram_counts *h, const histogram_scale *scale, ...)
{
    va_list ap;
    uint64_t below = 0;
    for (int i = 0; i <= scale->n; i++) {
        char le[32] = "+Inf";
        if (i < scale->n) snprintf(le, sizeof(le), "%.9g", (double)scale->bound[i] * scale->unit);
        below += h->bucket[i];
        va_start(ap, scale);
        put_series(p, "_bucket", le, ap);
        va_end(ap);
        put_line(p, below);
    }
    va_start(ap, scale);
    put_series(p, "_sum", NULL, ap);
    va_end(ap);
    put_number(p, (double)h->sum * scale->unit);
    put_str(p, "\n");
    va_start(ap, scale);
    put_series(p, "_count", NULL, ap);
    va_end(ap);
    put_line(p, below);
}

void prom_gauge(prom *p, const char *name, const char *help, double v)
{
    prom_family(p, name, "gauge", help);
    prom_sample(p, v, NULL);
}

void prom_counter(prom *p, const char *name, const char *help, uint64_t v)
{
    prom_family(p, name, "counter", help);
    prom_count(p, v, NULL);
}
