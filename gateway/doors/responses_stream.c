/* responses_stream.c -- the events of a response that is, or was, made in the background.
 *
 * While it is made they are in memory, then in its row: the same bytes.  What a process did not
 * live to say is one event that tells how the response stands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "gateway/auth.h"
#include "gateway/doors/background.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

typedef struct follower {
    exchange *x;
    const char *id;
    int64_t after; /* events up to that number are known to the client */
    int64_t n;     /* events seen so far: their numbers are in order, from 0 */
    size_t at;     /* bytes of them */
    bool ended;    /* the last of them ends a response */
} follower;

static bool ends(const char *event)
{
    static const char *const types[] = {"response.completed", "response.incomplete",
                                        "response.failed"};
    const char *type = strncmp(event, "event: ", 7) == 0 ? event + 7 : "";
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        size_t len = strlen(types[i]);
        if (strncmp(type, types[i], len) == 0 && type[len] == '\n') return true;
    }
    return false;
}

/* `text`: whole events, which follow those before.  False: the client is gone. */
static bool send_events(follower *f, const char *text)
{
    const char *from = NULL, *event = text;
    for (const char *end; (end = strstr(event, "\n\n")); event = end + 2) {
        if (!from && f->n > f->after) from = event;
        f->ended = ends(event);
        f->n++;
    }
    f->at += (size_t)(event - text);
    return !from || exchange_stream_write(f->x, from, (size_t)(event - from));
}

/* How the response stands, as the event that the stream lacks. */
static bool send_state(follower *f, const response_row *row)
{
    responses_run r = {.x = f->x, .sequence = (int)(f->n > f->after ? f->n : f->after + 1)};
    jsonw w;
    err e;
    if (json_parse(row->body, strlen(row->body), &json_limits_trusted, &r.response, &e))
        return false;
    const char *status = door_text(r.response, "status");
    bool good = status && (strcmp(status, "completed") == 0 || strcmp(status, "incomplete") == 0);
    char type[48];
    snprintf(type, sizeof(type), "response.%s", good ? status : "failed");
    jsonw_init(&w);
    responses_event(&r, &w, type);
    bool ok = !w.failed && exchange_stream_write(f->x, w.text, w.len);
    jsonw_clear(&w);
    cJSON_Delete(r.response);
    return ok;
}

/* What is in the row, behind what was sent from memory. */
static void send_rest(follower *f)
{
    exchange *x = f->x;
    server *s = x->app;
    uint64_t tenant_id = x->caller->tenant.id;
    char *events = NULL;
    response_row row = {0};
    err e;
    bool ok =
        !responses_get(store_of(s), tenants_seal_key(tenants_of(s)), tenant_id, f->id, &row, &e);
    if (ok &&
        !responses_get_events(store_of(s), tenants_seal_key(tenants_of(s)), tenant_id, f->id,
                              &events, &e) &&
        events && strlen(events) >= f->at)
        ok = send_events(f, events + f->at);
    /* One that still runs is of a server that stops: its stream is cut. */
    ok = ok && !row.running && (f->ended || send_state(f, &row));
    response_row_clear(&row);
    free(events);
    if (ok)
        exchange_stream_end(x);
    else
        exchange_drop(x);
}

/* False: answered. */
static bool has_events(exchange *x, const char *id)
{
    server *s = x->app;
    char *events;
    err e;
    err_code rc = responses_get_events(store_of(s), tenants_seal_key(tenants_of(s)),
                                       x->caller->tenant.id, id, &events, &e);
    bool some = events != NULL;
    free(events);
    if (rc)
        exchange_reply_err(x, &e, NULL);
    else if (!some)
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "stream",
                       "only a response that was made with \"background\" and \"stream\" can be "
                       "streamed again");
    return !rc && some;
}

void responses_follow(exchange *x, const char *id, int64_t after)
{
    follower f = {.x = x, .id = id, .after = after};
    background *b = process_of(x->app)->background;
    bool on = true;
    jsonw news;
    if (!has_events(x, id)) return;
    if (!exchange_stream_begin(x, "text/event-stream; charset=utf-8")) return;
    jsonw_init(&news);
    while (on && b && background_news(b, x->caller->tenant.id, id, f.at, &news)) {
        on = !news.failed && !exchange_client_gone(x) && (!news.len || send_events(&f, news.text));
        jsonw_reset(&news);
    }
    jsonw_clear(&news);
    if (on)
        send_rest(&f);
    else
        exchange_drop(x);
}
