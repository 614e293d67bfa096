/* exchange_log.c -- the log's line for each request: what HTTP knows of it, what the
 * handlers noted, its trace. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "gateway/http/exchange.h"

enum { OWN_FIELDS = 8 };

void exchange_note(exchange *x, const char *name, const char *fmt, ...)
{
    int i = 0;
    while (i < x->n_notes && strcmp(x->note[i].name, name) != 0) i++;
    if (i == EXCHANGE_NOTES_MAX) return;
    if (i == x->n_notes) x->n_notes++;
    x->note[i].name = name;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(x->note[i].value, sizeof(x->note[i].value), fmt, ap);
    va_end(ap);
}

void exchange_log(const exchange *x)
{
    char status[12], ms[24], bytes[24];
    bool traced = x->trace.trace_id[0] != 0;
    snprintf(status, sizeof(status), "%d", x->status);
    snprintf(ms, sizeof(ms), "%.1f", (double)(clock_now_us() - x->arrived_us) / 1000);
    snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)x->sent_bytes);
    log_field f[OWN_FIELDS + EXCHANGE_NOTES_MAX] = {
        {"id", x->request_id},
        {"method", x->method[0] ? x->method : NULL},
        {"path", x->path[0] ? x->path : NULL},
        {"status", status},
        {"ms", ms},
        {"bytes", bytes},
    };
    int n = 6;
    for (int i = 0; i < x->n_notes; i++) f[n++] = (log_field){x->note[i].name, x->note[i].value};
    f[n++] = (log_field){"trace_id", traced ? x->trace.trace_id : NULL};
    f[n++] = (log_field){"parent_id", traced ? x->trace.parent_id : NULL};
    log_fields(x->plane == PLANE_METRICS ? LOG_DEBUG : LOG_INFO, "gateway", "request", f, n);
}
