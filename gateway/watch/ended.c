/* ended.c -- a ring of the last ones, and beside it a bag of the slowest, kept for an hour. */
#include "gateway/watch/ended.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"

static const int64_t hour_us = 3600 * INT64_C(1000000);

typedef struct slow_row {
    uint64_t number; /* of its note, from 1 on; 0: free */
    ended_row row;
} slow_row;

struct ended {
    lock mu;
    uint64_t n; /* ever noted */
    ended_row last[ENDED_LAST];
    slow_row slow[ENDED_SLOWEST];
};

ended *ended_create(void)
{
    ended *e = calloc(1, sizeof(*e));
    if (e) lock_init(&e->mu, LOCK_ENDED);
    return e;
}

void ended_destroy(ended *e)
{
    if (!e) return;
    lock_free(&e->mu);
    free(e);
}

static int64_t positive(int64_t us)
{
    return us > 0 ? us : 0;
}

static ended_phases phases_of(const usage_row *row, const request *rq)
{
    ended_phases p = {.adapter_us = cause_adapter_us(&rq->times.clock)};
    int64_t left = row->duration_ms * 1000;
    int64_t waited =
        rq->times.admitted_us ? positive(rq->times.admitted_us - rq->arrived_us) : left;
    if (p.adapter_us > waited) p.adapter_us = waited;
    p.queue_us = waited - p.adapter_us;
    if (rq->times.first_token_us) {
        p.prompt_us = positive(rq->times.first_token_us - rq->times.admitted_us);
        p.decode_us = positive(rq->times.last_token_us - rq->times.first_token_us);
    }
    p.rest_us = positive(left - p.queue_us - p.adapter_us - p.prompt_us - p.decode_us);
    if (rq->times.last_token_us) p.send_us = positive(clock_now_us() - rq->times.last_token_us);
    if (p.send_us > p.rest_us) p.send_us = p.rest_us;
    return p;
}

/* The place of one that is free, or too old, or of the quickest. */
static slow_row *slow_place(ended *e, int64_t now_wall_us)
{
    slow_row *least = &e->slow[0];
    for (int i = 0; i < ENDED_SLOWEST; i++) {
        slow_row *s = &e->slow[i];
        if (s->number && now_wall_us - s->row.usage.ended_wall_us > hour_us) s->number = 0;
        if (!s->number) return s;
        if (s->row.usage.duration_ms < least->row.usage.duration_ms) least = s;
    }
    return least;
}

void ended_note(ended *e, const usage_row *row, const request *rq, const char *request_id)
{
    assert(row->missed >= 0 && row->missed < MISS_CAUSES);
    ended_row r = {.usage = *row,
                   .slo_class = rq->slo_class,
                   .beside = row->missed == MISS_DECODE_STEPS ? rq->missed.beside : -1,
                   .phase = phases_of(row, rq)};
    snprintf(r.request_id, sizeof(r.request_id), "%s", request_id);
    lock_take(&e->mu);
    e->last[e->n++ % ENDED_LAST] = r;
    slow_row *s = slow_place(e, row->ended_wall_us);
    if (!s->number || s->row.usage.duration_ms < row->duration_ms) *s = (slow_row){e->n, r};
    lock_release(&e->mu);
}

static int slowest_first(const void *a, const void *b)
{
    int64_t x = ((const ended_row *)a)->usage.duration_ms;
    int64_t y = ((const ended_row *)b)->usage.duration_ms;
    return x > y ? -1 : x < y;
}

static int latest_first(const void *a, const void *b)
{
    int64_t x = ((const ended_row *)a)->usage.ended_wall_us;
    int64_t y = ((const ended_row *)b)->usage.ended_wall_us;
    return x > y ? -1 : x < y;
}

bool ended_list(ended *e, int64_t slow_ms, ended_row **out, size_t *n)
{
    ended_row *list = malloc((ENDED_LAST + ENDED_SLOWEST) * sizeof(*list));
    *out = list;
    *n = 0;
    if (!list) return false;
    lock_take(&e->mu);
    size_t kept = e->n < ENDED_LAST ? (size_t)e->n : ENDED_LAST;
    for (size_t i = 0; i < kept; i++) {
        if (e->last[i].usage.duration_ms >= slow_ms) list[(*n)++] = e->last[i];
    }
    for (int i = 0; i < ENDED_SLOWEST; i++) { /* but for those that are in the ring, too */
        const slow_row *s = &e->slow[i];
        if (s->number && s->number + ENDED_LAST <= e->n && s->row.usage.duration_ms >= slow_ms)
            list[(*n)++] = s->row;
    }
    lock_release(&e->mu);
    assert(*n <= ENDED_LAST + ENDED_SLOWEST);
    qsort(list, *n, sizeof(*list), slow_ms > 0 ? slowest_first : latest_first);
    return true;
}
