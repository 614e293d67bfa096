/* health.c -- handlers of /healthz, /readyz and /version. */
#include <string.h>

#include "engine/base/clock.h"
#include "gateway/handlers.h"
#include "gateway/server.h"

enum { STALL_US = 30 * 1000000 };

void health_live(exchange *x)
{
    sched_stats st;
    x->watches = true;
    sched_stats_get(x->server->sched, &st);
    int64_t silent = clock_now_us() - sched_heartbeat_us(x->server->sched);
    /* Loading the weights again takes its time: that is no reason to be killed. */
    bool ok = st.healthy && (st.restarting || silent < STALL_US);
    const char *body = ok           ? "{\"status\":\"ok\"}"
                       : st.healthy ? "{\"status\":\"stalled\"}"
                                    : "{\"status\":\"device failed\"}";
    exchange_reply(x, ok ? 200 : 503, "application/json", body, strlen(body));
}

void health_ready(exchange *x)
{
    sched_stats st;
    x->watches = true;
    sched_stats_get(x->server->sched, &st);
    bool draining = atomic_load(&x->server->http.draining);
    meter_file_stats spool;
    meter_file_stats_get(x->server->meters, &spool);
    bool ok =
        atomic_load(&x->server->ready) && !draining && st.healthy && !st.restarting && !spool.full;
    const char *body = ok              ? "{\"status\":\"ready\"}"
                       : draining      ? "{\"status\":\"draining\"}"
                       : !st.healthy   ? "{\"status\":\"device failed\"}"
                       : st.restarting ? "{\"status\":\"engine restarting\"}"
                       : spool.full    ? "{\"status\":\"storage unavailable\"}"
                                       : "{\"status\":\"not ready\"}";
    exchange_reply(x, ok ? 200 : 503, "application/json", body, strlen(body));
}

void version_get(exchange *x)
{
    static const char body[] = "{\"version\":\"" LORAD_VERSION "\"}";
    exchange_reply(x, 200, "application/json", body, sizeof(body) - 1);
}
