/* snapshot.c -- an array by slot, an array by page, and a stack of free slots.
 *
 * The search for the least recently used is linear: a snapshot costs a copy of some megabytes,
 * beside which a scan of a few thousand numbers is nothing.
 */
#include "engine/memory/snapshot.h"

#include <assert.h>
#include <stdlib.h>

enum { NONE = -1 };

typedef struct {
    int page; /* NONE: the slot is free */
    unsigned uses;
    uint64_t used; /* `now` of its latest use, or of its making */
} entry;

struct snapshots {
    int n_slots, n_pages, n_free;
    entry *slot;    /* [n_slots] */
    int *free_slot; /* [n_slots], a stack */
    int *of_page;   /* [n_pages] */
    uint64_t now;   /* uses and makings so far */
    snapshot_counts sums;
};

snapshots *snapshots_create(int n_slots, int n_pages)
{
    assert(n_slots > 0 && n_pages > 0);
    snapshots *t = calloc(1, sizeof(*t));
    if (!t) return NULL;
    t->n_slots = t->n_free = n_slots;
    t->n_pages = n_pages;
    t->slot = calloc((size_t)n_slots, sizeof(*t->slot));
    t->free_slot = calloc((size_t)n_slots, sizeof(*t->free_slot));
    t->of_page = calloc((size_t)n_pages, sizeof(*t->of_page));
    if (!t->slot || !t->free_slot || !t->of_page) {
        snapshots_destroy(t);
        return NULL;
    }
    for (int i = 0; i < n_slots; i++) {
        t->slot[i].page = NONE;
        t->free_slot[i] = n_slots - 1 - i; /* 0 is on top */
    }
    for (int i = 0; i < n_pages; i++) t->of_page[i] = NONE;
    return t;
}

void snapshots_destroy(snapshots *t)
{
    if (!t) return;
    free(t->slot);
    free(t->free_slot);
    free(t->of_page);
    free(t);
}

static int least_recent(const snapshots *t)
{
    int least = 0;
    for (int i = 1; i < t->n_slots; i++)
        if (t->slot[i].used < t->slot[least].used) least = i;
    return least;
}

int snapshots_put(snapshots *t, int page)
{
    assert(page >= 0 && page < t->n_pages && t->of_page[page] == NONE);
    if (t->n_free == 0) {
        t->sums.n_evicted++;
        snapshots_drop(t, t->slot[least_recent(t)].page);
    }
    int i = t->free_slot[--t->n_free];
    t->slot[i] = (entry){.page = page, .used = ++t->now};
    t->of_page[page] = i;
    t->sums.n_taken++;
    return i;
}

int snapshots_find(const snapshots *t, int page)
{
    assert(page >= 0 && page < t->n_pages);
    return t->of_page[page];
}

void snapshots_use(snapshots *t, int page)
{
    entry *en = &t->slot[snapshots_find(t, page)];
    assert(en->page == page);
    en->uses++;
    en->used = ++t->now;
    t->sums.n_hits++;
}

unsigned snapshots_uses(const snapshots *t, int page)
{
    int i = snapshots_find(t, page);
    return i == NONE ? 0 : t->slot[i].uses;
}

void snapshots_drop(snapshots *t, int page)
{
    int i = snapshots_find(t, page);
    if (i == NONE) return;
    t->of_page[page] = NONE;
    t->slot[i].page = NONE;
    t->free_slot[t->n_free++] = i;
}

void snapshots_count(const snapshots *t, snapshot_counts *out)
{
    *out = (snapshot_counts){0};
    if (!t) return;
    *out = t->sums;
    out->n_slots = t->n_slots;
    out->n_used = t->n_slots - t->n_free;
}

bool snapshots_check(const snapshots *t)
{
    int n_used = 0, n_named = 0;
    for (int i = 0; i < t->n_slots; i++) {
        int page = t->slot[i].page;
        n_used += page != NONE;
        if (page != NONE && t->of_page[page] != i) return false;
    }
    for (int i = 0; i < t->n_pages; i++) n_named += t->of_page[i] != NONE;
    return n_used == t->n_slots - t->n_free && n_named == n_used;
}
