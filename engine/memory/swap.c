/* swap.c -- host memory for the KV pages of pre-empted requests: page-sized slots in one mapping, a
 * stack of free ones, and measured copy times.
 *
 * swap_save() copies a request's pages to slots and swap_load() back; a page of -1 (outside the
 * sliding window) takes no slot. A recurrent state is saved as a "piece" over several slots.
 *
 * swap_round_trip_us() is what the scheduler compares with recomputation (sched_plan.c). It starts
 * from a calibration at creation (the least of three copies, because an interrupted one is
 * meaningless) and follows each copy with a weight of `newest`.
 *
 * The mapping is reserved without commitment (MAP_NORESERVE): memory is used only for slots that
 * were used, the lowest first. It is pinned for the device if possible.
 *
 * Threads: the engine's. A slot belongs to its request from save until swap_drop().
 */
#include "engine/memory/swap.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "engine/base/clock.h"

enum { TRIALS = 3 };

/* Weight of the newest copy in the mean. */
static const double newest = 0.2;

struct swap_pool {
    backend *be;
    kv_pool *kv;
    unsigned char *data;
    bool pinned; /* data */
    size_t page_bytes;
    int n_slot, n_free;
    int32_t *free_slot;      /* [n_slot], a stack */
    double save_us, load_us; /* of one page */
    uint64_t n_saved, n_loaded;
};

static void *bytes_of(const swap_pool *sw, int32_t slot)
{
    assert(slot >= 0 && slot < sw->n_slot);
    return sw->data + (size_t)slot * sw->page_bytes;
}

/* Takes the least of a few copies: an interrupted one is meaningless. */
static void calibrate(swap_pool *sw)
{
    for (int i = 0; i < TRIALS; i++) {
        int64_t t0 = clock_now_us();
        be_kv_save(sw->be, sw->kv, 0, bytes_of(sw, 0));
        be_kv_copied(sw->be);
        int64_t t1 = clock_now_us();
        be_kv_load(sw->be, sw->kv, 0, bytes_of(sw, 0));
        be_kv_copied(sw->be);
        int64_t t2 = clock_now_us();
        if (i == 0 || (double)(t1 - t0) < sw->save_us) sw->save_us = (double)(t1 - t0);
        if (i == 0 || (double)(t2 - t1) < sw->load_us) sw->load_us = (double)(t2 - t1);
    }
}

err_code swap_create(swap_pool **out, backend *be, kv_pool *kv, size_t page_bytes, size_t bytes,
                     err *e)
{
    *out = NULL;
    assert(page_bytes > 0);
    size_t n = bytes / page_bytes;
    if (n == 0) return ERR_NONE;
    swap_pool *sw = calloc(1, sizeof(*sw));
    if (!sw) return err_set(e, ERR_NOMEM, "no memory for the swap pool");
    sw->be = be;
    sw->kv = kv;
    sw->page_bytes = page_bytes;
    sw->n_slot = n > INT32_MAX ? INT32_MAX : (int)n;
    size_t all = (size_t)sw->n_slot * page_bytes;
    sw->free_slot = calloc((size_t)sw->n_slot, sizeof(*sw->free_slot));
    void *data =
        mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    sw->data = data == MAP_FAILED ? NULL : data;
    if (!sw->free_slot || !sw->data) {
        swap_destroy(sw);
        return err_set(e, ERR_NOMEM, "no memory to swap %zu bytes of KV pages", all);
    }
    sw->n_free = sw->n_slot;
    for (int i = 0; i < sw->n_slot; i++) sw->free_slot[i] = sw->n_slot - 1 - i; /* 0 is on top */
    sw->pinned = be_pin(be, sw->data, all);
    calibrate(sw);
    *out = sw;
    return ERR_NONE;
}

void swap_destroy(swap_pool *sw)
{
    if (!sw) return;
    if (sw->pinned) be_unpin(sw->be, sw->data);
    if (sw->data) (void)munmap(sw->data, (size_t)sw->n_slot * sw->page_bytes);
    free(sw->free_slot);
    free(sw);
}

/* How many of n entries are present. */
static int count(const int32_t *at, int n)
{
    int all = 0;
    for (int i = 0; i < n; i++) all += at[i] >= 0;
    return all;
}

bool swap_save(swap_pool *sw, const int32_t *page, int n, int32_t *slot)
{
    assert(n >= 0);
    int some = count(page, n);
    if (some > sw->n_free) return false;
    int64_t t0 = clock_now_us();
    for (int i = 0; i < n; i++) {
        slot[i] = page[i] < 0 ? -1 : sw->free_slot[--sw->n_free];
        if (slot[i] >= 0) be_kv_save(sw->be, sw->kv, page[i], bytes_of(sw, slot[i]));
    }
    be_kv_copied(sw->be);
    sw->n_saved += (uint64_t)some;
    if (some > 0) sw->save_us += newest * ((double)(clock_now_us() - t0) / some - sw->save_us);
    return true;
}

void swap_load(swap_pool *sw, const int32_t *slot, int n, const int32_t *page)
{
    int some = count(slot, n);
    assert(n >= 0 && some <= sw->n_slot - sw->n_free); /* no more than were saved */
    int64_t t0 = clock_now_us();
    for (int i = 0; i < n; i++)
        if (slot[i] >= 0) be_kv_load(sw->be, sw->kv, page[i], bytes_of(sw, slot[i]));
    be_kv_copied(sw->be);
    sw->n_loaded += (uint64_t)some;
    if (some > 0) sw->load_us += newest * ((double)(clock_now_us() - t0) / some - sw->load_us);
}

int swap_slots_of(const swap_pool *sw, size_t bytes)
{
    return (int)((bytes + sw->page_bytes - 1) / sw->page_bytes);
}

/* Bytes of the i-th slot of such a piece. */
static size_t part_bytes(const swap_pool *sw, size_t bytes, int i)
{
    size_t left = bytes - (size_t)i * sw->page_bytes;
    return left < sw->page_bytes ? left : sw->page_bytes;
}

err_code swap_save_piece(swap_pool *sw, const void *there, size_t bytes, int32_t *slot, err *e)
{
    int n = swap_slots_of(sw, bytes);
    if (n > sw->n_free) return err_set(e, ERR_LIMIT, "the swap pool is full");
    err_code rc = be_sync(sw->be, e);
    for (int i = 0; i < n && !rc; i++) {
        slot[i] = sw->free_slot[sw->n_free - 1 - i];
        rc =
            be_download(sw->be, bytes_of(sw, slot[i]),
                        (const char *)there + (size_t)i * sw->page_bytes, part_bytes(sw, bytes, i));
    }
    if (!rc) sw->n_free -= n;
    return rc;
}

err_code swap_load_piece(const swap_pool *sw, const int32_t *slot, size_t bytes, void *there,
                         err *e)
{
    err_code rc = ERR_NONE;
    for (int i = 0; i < swap_slots_of(sw, bytes) && !rc; i++)
        rc = be_upload(sw->be, (char *)there + (size_t)i * sw->page_bytes, bytes_of(sw, slot[i]),
                       part_bytes(sw, bytes, i));
    return rc ? err_set(e, rc, "a swapped state cannot be written") : ERR_NONE;
}

void swap_drop(swap_pool *sw, const int32_t *slot, int n)
{
    for (int i = n - 1; i >= 0; i--) {
        if (slot[i] < 0) continue;
        assert(sw->n_free < sw->n_slot && slot[i] < sw->n_slot);
        sw->free_slot[sw->n_free++] = slot[i];
    }
}

double swap_round_trip_us(const swap_pool *sw, int n)
{
    assert(n >= 0);
    return n * (sw->save_us + sw->load_us);
}

void swap_count(const swap_pool *sw, swap_counts *out)
{
    *out = (swap_counts){0};
    if (!sw) return;
    *out = (swap_counts){.n_pages = sw->n_slot,
                         .n_used = sw->n_slot - sw->n_free,
                         .page_bytes = sw->page_bytes,
                         .n_saved = sw->n_saved,
                         .n_loaded = sw->n_loaded,
                         .page_us = sw->save_us + sw->load_us};
}
