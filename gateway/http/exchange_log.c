/* exchange_log.c -- the log's line for each request. */
#include <stdio.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "gateway/http/exchange.h"

static const char *count_of(int64_t n, char text[24])
{
    snprintf(text, 24, "%lld", (long long)n);
    return n < 0 ? NULL : text;
}

static const char *ms_of(int64_t us, char text[24])
{
    snprintf(text, 24, "%.2f", (double)us / 1000);
    return us < 0 ? NULL : text;
}

void exchange_log(const exchange *x)
{
    char prompt[24], cached[24], output[24], queue[24], ttft[24], tpot[24];
    bool traced = x->trace.trace_id[0] != 0;
    char status[12], ms[24], bytes[24], who[TENANT_NAME_MAX + 1];
    snprintf(status, sizeof(status), "%d", x->status);
    snprintf(ms, sizeof(ms), "%.1f", (double)(clock_now_us() - x->arrived_us) / 1000);
    snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)x->sent_bytes);
    snprintf(who, sizeof(who), "%s", x->tenant.name);
    log_fields(x->plane == PLANE_METRICS ? LOG_DEBUG : LOG_INFO, "gateway", "request", "id",
               x->request_id, "method", x->method[0] ? x->method : NULL, "path",
               x->path[0] ? x->path : NULL, "status", status, "ms", ms, "bytes", bytes, "tenant",
               who[0] ? who : NULL, "key", x->key.id ? x->key.public_id : NULL, "model",
               x->log_model[0] ? x->log_model : NULL, "class", x->log_class, "prompt_tokens",
               count_of(x->log_prompt, prompt), "cached_tokens", count_of(x->log_cached, cached),
               "output_tokens", count_of(x->log_output, output), "queue_ms",
               ms_of(x->log_queue_us, queue), "ttft_ms", ms_of(x->log_ttft_us, ttft), "tpot_ms",
               ms_of(x->log_tpot_us, tpot), "finish", x->log_finish[0] ? x->log_finish : NULL,
               "trace_id", traced ? x->trace.trace_id : NULL, "parent_id",
               traced ? x->trace.parent_id : NULL, NULL);
}
