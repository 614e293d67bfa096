/* inflight.c -- the list of all requests under way, under one mutex.
 *
 * An entry lies in its request and is linked in and out, so adding takes no memory and cannot
 * fail. inflight_list() copies: its memory is taken before the lock, and taken anew with half as
 * much again where the list has grown meanwhile. Stopping sets a flag that the request looks at;
 * nothing here waits for it.
 */
#include "gateway/inflight.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/lock.h"

struct inflight {
    lock mu;
    inflight_entry *head, *tail; /* in order of arrival */
    size_t n;
};

inflight *inflight_create(void)
{
    inflight *f = calloc(1, sizeof(*f));
    if (f) lock_init(&f->mu, LOCK_INFLIGHT);
    return f;
}

void inflight_destroy(inflight *f)
{
    if (!f) return;
    assert(f->n == 0);
    lock_free(&f->mu);
    free(f);
}

void inflight_add(inflight *f, inflight_entry *e)
{
    lock_take(&f->mu);
    assert(!e->listed && !f->head == !f->tail);
    e->next = NULL;
    e->prev = f->tail;
    if (f->tail)
        f->tail->next = e;
    else
        f->head = e;
    f->tail = e;
    f->n++;
    e->listed = true;
    lock_release(&f->mu);
}

void inflight_remove(inflight *f, inflight_entry *e)
{
    if (!e->listed) return;
    lock_take(&f->mu);
    *(e->prev ? &e->prev->next : &f->head) = e->next;
    *(e->next ? &e->next->prev : &f->tail) = e->prev;
    assert(f->n > 0);
    f->n--;
    e->listed = false;
    lock_release(&f->mu);
}

bool inflight_list(inflight *f, inflight_info **out, size_t *n)
{
    size_t cap = 64;
    *n = 0;
    *out = NULL;
    for (;;) { /* memory is taken without the lock: the list may have grown meanwhile */
        free(*out);
        *out = malloc(cap * sizeof(**out));
        if (!*out) return false;
        lock_take(&f->mu);
        size_t have = f->n;
        if (have <= cap) {
            for (const inflight_entry *e = f->head; e; e = e->next) {
                inflight_info *info = &(*out)[(*n)++];
                *info = e->info;
                if (e->writing_us) info->writing_us = atomic_load(e->writing_us);
            }
        }
        lock_release(&f->mu);
        assert(have > cap || *n == have);
        if (have <= cap) return true;
        cap = have + have / 2;
    }
}

bool inflight_stop(inflight *f, const char *which, inflight_info *info)
{
    char id[24];
    bool found = false;
    lock_take(&f->mu);
    for (const inflight_entry *e = f->head; e; e = e->next) {
        snprintf(id, sizeof(id), "%llu", (unsigned long long)e->info.id);
        if (strcmp(which, id) != 0 && strcmp(which, e->info.request_id) != 0) continue;
        if (!found && info) *info = e->info;
        found = true;
        atomic_store(e->stop, true);
    }
    lock_release(&f->mu);
    return found;
}

int inflight_stop_all(inflight *f, uint64_t tenant_id, uint64_t key_id)
{
    int n = 0;
    lock_take(&f->mu);
    for (const inflight_entry *e = f->head; e; e = e->next) {
        bool his =
            (tenant_id && e->info.tenant_id == tenant_id) || (key_id && e->info.key_id == key_id);
        if (!his) continue;
        atomic_store(e->stop, true);
        n++;
    }
    lock_release(&f->mu);
    return n;
}
