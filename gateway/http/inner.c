/* inner.c -- makes an exchange around a body in memory, and keeps what is answered. */
#include "gateway/http/inner.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/memory.h"
#include "gateway/http/host.h"

void inner_run(http_host *host, inner_request *r, void (*handler)(exchange *x))
{
    assert(handler && r->method && r->path);
    exchange x = {.host = host,
                  .app = host->app,
                  .conf = r->conf,
                  .caller = r->who,
                  .inner = r,
                  .plane = PLANE_INFERENCE,
                  .method = r->method,
                  .memory_failures = memory_failures(),
                  .arrived_us = clock_now_us(),
                  .content_length = -1};
    r->status = 499;
    r->answer = NULL;
    r->answer_len = 0;
    r->retry_ms = -1;
    arena_init(&x.arena, EXCHANGE_ARENA_BYTES);
    snprintf(x.path, sizeof(x.path), "%s", r->path);
    snprintf(x.request_id, sizeof(x.request_id), "req_%016llx", (unsigned long long)r->id);
    exchange_note(&x, "tenant", "%s", r->tenant);
    if (r->batch) exchange_note(&x, "batch", "%s", r->batch);
    handler(&x);
    exchange_finish(&x);
    exchange_log(&x);
    arena_clear(&x.arena);
}

void inner_end(inner_request *r)
{
    free(r->answer);
    r->answer = NULL;
}

bool inner_take(inner_request *r, int status, const char *body, size_t len)
{
    assert(r && !r->answer); /* one answer */
    r->answer = malloc(len + 1);
    if (!r->answer) return false;
    if (len) memcpy(r->answer, body, len);
    r->answer[len] = 0;
    r->answer_len = len;
    r->status = status;
    return true;
}
