/* exchange_log.c -- the log's line for each request: what HTTP knows of it, what the
 * handlers noted, its trace. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "gateway/http/exchange.h"

enum { OWN_FIELDS = 8 };

/* The one of that name, or a new one; NULL: there is no room. */
static struct exchange_field *note(exchange *x, const char *name)
{
    int i = 0;
    while (i < x->n_notes && strcmp(x->note[i].name, name) != 0) i++;
    if (i == EXCHANGE_NOTES_MAX) return NULL;
    if (i == x->n_notes) x->n_notes++;
    x->note[i].name = name;
    return &x->note[i];
}

void exchange_note(exchange *x, const char *name, const char *fmt, ...)
{
    struct exchange_field *f = note(x, name);
    va_list ap;
    if (!f) return;
    va_start(ap, fmt);
    vsnprintf(f->value, sizeof(f->value), fmt, ap);
    va_end(ap);
}

void exchange_note_number(exchange *x, const char *name, double v, int digits)
{
    struct exchange_field *f = note(x, name);
    if (!f) return;
    snprintf(f->value, sizeof(f->value), "%.*f", digits, v);
    f->number = true;
}

void exchange_log(const exchange *x)
{
    char status[12], ms[24], bytes[24];
    bool traced = x->trace.trace_id[0] != 0;
    snprintf(status, sizeof(status), "%d", x->status);
    snprintf(ms, sizeof(ms), "%.1f", (double)(clock_now_us() - x->arrived_us) / 1000);
    snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)x->sent_bytes);
    log_field f[OWN_FIELDS + EXCHANGE_NOTES_MAX] = {
        {"id", x->request_id, false},
        {"method", x->method[0] ? x->method : NULL, false},
        {"path", x->path[0] ? x->path : NULL, false},
        {"status", status, true},
        {"ms", ms, true},
        {"bytes", bytes, true},
    };
    int n = 6;
    for (int i = 0; i < x->n_notes; i++)
        f[n++] = (log_field){x->note[i].name, x->note[i].value, x->note[i].number};
    f[n++] = (log_field){"trace_id", traced ? x->trace.trace_id : NULL, false};
    f[n++] = (log_field){"parent_id", x->trace.parent_id[0] ? x->trace.parent_id : NULL, false};
    bool quiet = x->plane == PLANE_METRICS || (x->watches && x->status == 200);
    log_fields(quiet ? LOG_DEBUG : LOG_INFO, "gateway", "request", f, n);
}
