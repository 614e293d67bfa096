/* live.c -- copies with counts of their readers, under one short lock. */
#include "gateway/config/live.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/lock.h"

struct live_copy {
    config c; /* first: a reader's pointer is the copy's */
    int pins; /* live.mu; one is ours while it is in force */
};

struct live {
    lock mu;
    live_copy *now;
};

live_copy *live_prepare(const config *c)
{
    live_copy *made = calloc(1, sizeof(*made));
    if (!made) return NULL;
    made->c = *c;
    made->pins = 1;
    return made;
}

live *live_create(const config *c)
{
    live *l = calloc(1, sizeof(*l));
    if (!l) return NULL;
    lock_init(&l->mu, LOCK_LIVE);
    l->now = live_prepare(c);
    if (l->now) return l;
    lock_free(&l->mu);
    free(l);
    return NULL;
}

void live_destroy(live *l)
{
    if (!l) return;
    assert(l->now->pins == 1);
    free(l->now);
    lock_free(&l->mu);
    free(l);
}

const config *live_pin(live *l)
{
    lock_take(&l->mu);
    live_copy *held = l->now;
    assert(held && held->pins > 0); /* ours */
    held->pins++;
    lock_release(&l->mu);
    return &held->c;
}

static void unpin(live *l, live_copy *held)
{
    lock_take(&l->mu);
    assert(held->pins > 0);
    bool last = --held->pins == 0;
    lock_release(&l->mu);
    if (last) free(held);
}

void live_release(live *l, const config *c)
{
    if (c) unpin(l, (live_copy *)c);
}

void live_publish(live *l, live_copy *fresh)
{
    assert(fresh && fresh->pins == 1);
    lock_take(&l->mu);
    live_copy *old = l->now;
    l->now = fresh;
    lock_release(&l->mu);
    unpin(l, old);
}

void live_drop(live_copy *fresh)
{
    free(fresh);
}
