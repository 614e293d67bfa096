/* health.c -- handlers of /healthz, /readyz and /version. */
#include <string.h>

#include "engine/base/clock.h"
#include "gateway/engine_parts.h"
#include "gateway/handlers.h"
#include "gateway/http/jsonw.h"
#include "gateway/process_parts.h"
#include "gateway/watch/stats.h"
#include "storage/disk.h"
#include "storage/settler.h"

enum { STALL_US = 30 * 1000000 };

void health_live(exchange *x)
{
    sched_stats st;
    x->watches = true;
    sched_stats_get(sched_of(x->app), &st);
    int64_t silent = clock_now_us() - sched_heartbeat_us(sched_of(x->app));
    /* Loading the weights again takes its time: that is no reason to be killed. */
    bool ok = st.healthy && (st.restarting || silent < STALL_US);
    const char *body = ok           ? "{\"status\":\"ok\"}"
                       : st.healthy ? "{\"status\":\"stalled\"}"
                                    : "{\"status\":\"device failed\"}";
    exchange_reply(x, ok ? 200 : 503, "application/json", body, strlen(body));
}

/* What does not keep requests away, and needs an operator.  Left out where there is nothing. */
static void write_warnings(const struct server *s, jsonw *w)
{
    disk_room disk;
    settler_stats spool;
    int64_t until_us = atomic_load(&process_of(s)->http.cert_expires_wall_us);
    uint64_t floor = atomic_load(&process_of(s)->disk_floor_bytes);
    settler_stats_get(engine_of(s)->settler, &spool);
    bool low = disk_is_low(process_of(s)->cfg->data.dir, floor, &disk);
    bool behind = spool.state == SPOOL_BEHIND;
    bool ends = until_us > 0 && until_us < clock_wall_us() + STATS_CERTIFICATE_S * INT64_C(1000000);
    if (!low && !behind && !ends && !engine_of(s)->gpu_unused[0]) return;
    jsonw_open(w, "warnings", '[');
    if (low) jsonw_str(w, NULL, "disk low: uploads are refused");
    if (behind) jsonw_str(w, NULL, "database behind: usage rows are queued on disk");
    if (engine_of(s)->gpu_unused[0]) jsonw_str(w, NULL, engine_of(s)->gpu_unused);
    if (ends) jsonw_str(w, NULL, "the certificate ends within 14 days, or has expired");
    jsonw_close(w, ']');
}

void health_ready(exchange *x)
{
    sched_stats st;
    x->watches = true;
    sched_stats_get(sched_of(x->app), &st);
    bool draining = atomic_load(&process_of(x->app)->http.draining);
    meter_file_stats spool;
    meter_file_stats_get(engine_of(x->app)->meters, &spool);
    bool ok = atomic_load(&process_of(x->app)->ready) && !draining && st.healthy &&
              !st.restarting && !spool.full;
    jsonw w = {0};
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "status",
              ok              ? "ready"
              : draining      ? "draining"
              : !st.healthy   ? "device failed"
              : st.restarting ? "engine restarting"
              : spool.full    ? "storage unavailable"
                              : "not ready");
    write_warnings(x->app, &w);
    jsonw_close(&w, '}');
    exchange_reply_json(x, ok ? 200 : 503, &w);
    jsonw_clear(&w);
}

void version_get(exchange *x)
{
    static const char body[] = "{\"version\":\"" LORAD_VERSION "\"}";
    exchange_reply(x, 200, "application/json", body, sizeof(body) - 1);
}
