/* meter_file.c -- one fixed slot per running request in a memory-mapped file, so that usage
 * survives a crash of the process.
 *
 *   page 0             header: magic, bytes of a slot, number of slots
 *   4096 + i * 576     slot i: state, checksum, counters, owner, checksum, end
 *
 *   FREE --acquire--> USED (the engine counts) --end--> ENDED --row in the database--> FREE
 *
 * The kernel keeps what a killed process wrote to a shared mapping, so nothing here needs a sync.
 * Every state is stored last, after the fields that it makes valid. A power failure may tear a
 * slot: its checksum then fails, and it is dropped with a line in the log.
 *
 * At start, slots of the last run become usage rows: ENDED ones as they are, USED ones with the
 * counts so far and finish "crash". If the database refuses them, they stay in the file
 * (keep_rows()), which is replaced only by rename.
 *
 * The file's blocks are allocated when it is made: a write to a hole on a full disk would be a
 * SIGBUS. Files of earlier formats (no end, no price) are read, too.
 *
 * Threads: a slot belongs to its request; `mu` guards the free list and the counts.
 */
#include "storage/meter_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"

enum { HEADER_BYTES = 4096, SLOTS_MAX = 1 << 21, SLOT_FREE = 0, SLOT_USED = 0x5553 };
enum { SLOT_ENDED = 0x4e44 };

static const char MAGIC[8] = "LRDMETR2", MAGIC_BEFORE[8] = "LRDMETR1";

struct header {
    char magic[8];
    uint32_t slot_bytes, n_slots;
};

/* The rest of a usage row. */
typedef struct slot_end {
    uint32_t prompt_tokens, cached_tokens, output_tokens;
    int32_t status;
    char finish[16];
    int64_t queue_ms, ttft_ms, duration_ms, ended_wall_us;
    /* Was one field of 64 bits before causes existed: 0 is MISS_NONE. */
    uint32_t recovered, missed;
    int64_t cost; /* not in slots of older versions */
} slot_end;

struct meter_slot {
    _Atomic uint32_t state;
    uint32_t pad;
    uint64_t sum; /* over `owner` */
    _Alignas(64) meter counts;
    _Alignas(64) meter_owner owner;
    _Alignas(64) uint64_t end_sum; /* over `end` */
    slot_end end;
};

_Static_assert(sizeof(meter_slot) == METER_SLOT_BYTES, "config.c's arithmetic is about this size");
_Static_assert(sizeof(struct header) == 16 && sizeof(struct header) <= HEADER_BYTES &&
                   offsetof(struct header, slot_bytes) == 8,
               "the file's form");
_Static_assert(offsetof(meter_slot, counts) == 64 && offsetof(meter_slot, owner) == 128 &&
                   offsetof(meter_slot, end_sum) % 64 == 0,
               "the file's form");
_Static_assert(METER_SLOT_BYTES % 64 == 0, "slots stay aligned to cache lines");
enum { SLOT_BYTES_BEFORE = offsetof(meter_slot, end_sum) }; /* of MAGIC_BEFORE */

/* Versions without prices wrote checksums over the bytes before these fields. */
enum { OWNER_BYTES_UNPRICED = offsetof(meter_owner, price) };
enum { END_BYTES_UNPRICED = offsetof(slot_end, cost) };
_Static_assert(OWNER_BYTES_UNPRICED == 272 && END_BYTES_UNPRICED == 72, "the file's form");

struct meter_file {
    int n_slots, running_max, spool_max;
    size_t map_bytes;
    uint8_t *map;
    lock mu; /* guards all below */
    int n_running, n_ended, n_free;
    int *free_slot; /* [n_slots], a stack: so few pages are touched */
};

static uint64_t sum_of(const void *data, size_t bytes)
{
    return hash_bytes(HASH_BASIS_OF_FILES, data, bytes);
}

static size_t file_bytes(uint32_t slot_bytes, int n_slots)
{
    return HEADER_BYTES + (size_t)n_slots * slot_bytes;
}

/* ---- rows and slots ----------------------------------------------------------------- */

static void fill_end(meter_slot *s, const usage_row *r)
{
    s->end = (slot_end){.prompt_tokens = r->prompt_tokens,
                        .cached_tokens = r->cached_tokens,
                        .output_tokens = r->output_tokens,
                        .status = r->status,
                        .queue_ms = r->queue_ms,
                        .ttft_ms = r->ttft_ms,
                        .duration_ms = r->duration_ms,
                        .ended_wall_us = r->ended_wall_us,
                        .recovered = r->recovered,
                        .missed = (uint32_t)r->missed,
                        .cost = r->cost};
    snprintf(s->end.finish, sizeof s->end.finish, "%s", r->finish);
    s->end_sum = sum_of(&s->end, sizeof s->end);
    atomic_store(&s->state, SLOT_ENDED); /* last: a slot has its whole end or none */
}

/* Fields that ended and interrupted requests have in common. */
static void row_of_owner(const meter_owner *o, usage_row *r)
{
    memset(r, 0, sizeof(*r));
    r->request_id = o->request_id;
    r->tenant_id = o->tenant_id;
    r->key_id = o->key_id;
    r->adapter_id = o->adapter_id;
    snprintf(r->model, sizeof r->model, "%.*s", MODEL_LABEL_MAX, o->model);
    snprintf(r->slo_class, sizeof r->slo_class, "%.31s", o->slo_class);
    snprintf(r->endpoint, sizeof r->endpoint, "%.31s", o->endpoint);
    r->started_wall_us = o->started_wall_us;
}

/* The checksum does not detect forgery: an impossible cost is dropped. */
static int64_t cost_of(const meter_slot *slot)
{
    const slot_end *end = &slot->end;
    bool priced = slot->end_sum == sum_of(end, sizeof(*end));
    return priced && end->cost > 0 && end->cost < INT64_MAX / 1024 ? end->cost : 0;
}

void meter_slot_row(const meter_slot *slot, usage_row *r)
{
    const slot_end *end = &slot->end;
    row_of_owner(&slot->owner, r);
    snprintf(r->finish, sizeof r->finish, "%.15s", end->finish);
    r->prompt_tokens = end->prompt_tokens;
    r->cached_tokens = end->cached_tokens;
    r->output_tokens = end->output_tokens;
    r->cost = cost_of(slot);
    r->status = end->status;
    r->queue_ms = end->queue_ms;
    r->ttft_ms = end->ttft_ms;
    r->duration_ms = end->duration_ms;
    r->ended_wall_us = end->ended_wall_us;
    r->recovered = end->recovered != 0;
    r->missed = end->missed < MISS_CAUSES ? (miss_cause)end->missed : MISS_NONE;
}

/* The row of an interrupted request: what the engine had counted. */
static void row_of_counts(const meter_slot *s, int64_t ended_us, usage_row *r)
{
    const meter_owner *o = &s->owner;
    row_of_owner(o, r);
    snprintf(r->finish, sizeof r->finish, "crash");
    if (o->choice == 0) {
        r->prompt_tokens = atomic_load(&s->counts.prompt_tokens);
        r->cached_tokens = atomic_load(&s->counts.cached_tokens);
    }
    r->output_tokens = atomic_load(&s->counts.output_tokens);
    if (s->sum == sum_of(o, sizeof(*o)))
        r->cost = price_cost(&o->price, r->prompt_tokens, r->cached_tokens, r->output_tokens);
    uint32_t first_ms = atomic_load(&s->counts.first_token_ms);
    r->queue_ms = -1;
    r->ttft_ms = first_ms > 0 ? (int64_t)first_ms : -1;
    r->duration_ms = -1;
    r->missed = MISS_RESTART;
    r->ended_wall_us = ended_us > o->started_wall_us ? ended_us : o->started_wall_us;
    r->recovered = true;
}

/* ---- what a process before left ------------------------------------------------------- */

typedef struct leftover {
    int fd; /* of <dir>/meters; -1: closed */
    struct header head;
    bool readable, same_format;
    int64_t ended_us; /* when the file was last written */
    usage_row *rows;  /* [n] */
    size_t n, n_torn;
} leftover;

static bool head_is_sound(const struct header *h, off_t bytes)
{
    bool now = memcmp(h->magic, MAGIC, sizeof MAGIC) == 0 && h->slot_bytes == METER_SLOT_BYTES;
    bool before =
        memcmp(h->magic, MAGIC_BEFORE, sizeof MAGIC) == 0 && h->slot_bytes == SLOT_BYTES_BEFORE;
    return (now || before) && h->n_slots <= SLOTS_MAX &&
           (size_t)bytes >= file_bytes(h->slot_bytes, (int)h->n_slots);
}

static bool end_is_sound(const meter_slot *s)
{
    return atomic_load(&s->state) == SLOT_ENDED &&
           (s->end_sum == sum_of(&s->end, sizeof s->end) ||
            s->end_sum == sum_of(&s->end, END_BYTES_UNPRICED));
}

static bool owner_is_sound(const meter_slot *s)
{
    return s->owner.request_id != 0 && (s->sum == sum_of(&s->owner, sizeof s->owner) ||
                                        s->sum == sum_of(&s->owner, OWNER_BYTES_UNPRICED));
}

/* False: the slot is free, or torn. */
static bool read_slot(const meter_slot *s, int i, int64_t ended_us, usage_row *out)
{
    uint32_t state = atomic_load(&s->state);
    if (state == SLOT_FREE) return false;
    bool sound = (state == SLOT_USED || state == SLOT_ENDED) && owner_is_sound(s);
    if (sound && end_is_sound(s)) {
        meter_slot_row(s, out);
        return true;
    }
    if (sound) { /* where the end is torn, the counts still stand */
        row_of_counts(s, ended_us, out);
        return true;
    }
    log_warn("storage", "meter slot %d is torn and was dropped", i);
    return false;
}

static err_code read_slots(leftover *l, err *e)
{
    size_t bytes = file_bytes(l->head.slot_bytes, (int)l->head.n_slots), n = 0;
    uint8_t *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, l->fd, 0);
    if (map == MAP_FAILED) return err_set(e, ERR_IO, "cannot map the meter file");
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < (int)l->head.n_slots; i++) {
            const meter_slot *s = (const meter_slot *)(map + file_bytes(l->head.slot_bytes, i));
            if (pass == 0) n += atomic_load(&s->state) != SLOT_FREE;
            if (pass == 1 && read_slot(s, i, l->ended_us, &l->rows[l->n])) l->n++;
        }
        if (n == 0) break;
        if (pass == 0) l->rows = calloc(n, sizeof(*l->rows));
        if (!l->rows) break;
    }
    munmap(map, bytes);
    l->n_torn = n - l->n;
    return n == 0 || l->rows != NULL ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
}

static void leftover_clear(leftover *l)
{
    if (l->fd >= 0) close(l->fd);
    free(l->rows);
}

/* Opens the file, or makes an empty one, and reads its rows. */
static err_code leftover_read(leftover *l, store *st, bool create, err *e)
{
    char path[4096];
    struct stat sb;
    *l = (leftover){.fd = -1};
    snprintf(path, sizeof path, "%s/meters", store_dir(st));
    l->fd = open(path, O_RDWR | (create ? O_CREAT : 0) | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->fd < 0 && !create && errno == ENOENT) return ERR_NONE;
    if (l->fd < 0) return err_set(e, ERR_IO, "cannot open the meter file: %s", strerror(errno));
    if (fstat(l->fd, &sb) != 0) return err_set(e, ERR_IO, "cannot read the meter file");
    if (sb.st_size == 0) return ERR_NONE;
    if (sb.st_size < HEADER_BYTES || pread(l->fd, &l->head, sizeof l->head, 0) != sizeof l->head ||
        !head_is_sound(&l->head, sb.st_size)) {
        log_error("storage",
                  "the meter file is damaged or another program's; a new one is created");
        return ERR_NONE;
    }
    l->readable = true;
    l->same_format = l->head.slot_bytes == METER_SLOT_BYTES;
    l->ended_us = (int64_t)sb.st_mtim.tv_sec * 1000000 + sb.st_mtim.tv_nsec / 1000;
    err_code code = read_slots(l, e);
    /* New ids must be above these, which the database may not have yet. */
    for (size_t i = 0; i < l->n; i++) store_raise_ids(st, l->rows[i].request_id);
    return code;
}

err_code meter_file_recover(store *st, int *n_settled, err *e)
{
    leftover l;
    *n_settled = 0;
    err_code code = leftover_read(&l, st, false, e);
    if (code == ERR_NONE) code = ledger_settle(st, l.rows, l.n, e);
    if (code == ERR_NONE && l.n > 0) {
        *n_settled = (int)l.n;
        if (ftruncate(l.fd, 0) != 0) log_warn("storage", "the meter file could not be cleared");
    }
    leftover_clear(&l);
    return code;
}

/* ---- life ------------------------------------------------------------------------------ */

static err_code map_file(meter_file *mf, int fd, int n_slots, err *e)
{
    mf->n_slots = n_slots;
    mf->map_bytes = file_bytes(METER_SLOT_BYTES, n_slots);
    void *map = mmap(NULL, mf->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return err_set(e, ERR_IO, "cannot map the meter file");
    mf->map = map;
    return ERR_NONE;
}

/* All slots are free. */
static err_code make_anew(meter_file *mf, int fd, int n_slots, err *e)
{
    struct header h = {.slot_bytes = METER_SLOT_BYTES, .n_slots = (uint32_t)n_slots};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    if (ftruncate(fd, 0) != 0) return err_set(e, ERR_IO, "cannot clear the meter file");
    int rc = posix_fallocate(fd, 0, (off_t)file_bytes(METER_SLOT_BYTES, n_slots));
    if (rc != 0)
        return err_set(e, ERR_IO, "can't reserve disk space for the meter file: %s", strerror(rc));
    if (pwrite(fd, &h, sizeof h, 0) != sizeof h || fsync(fd) != 0)
        return err_set(e, ERR_IO, "cannot write the meter file: %s", strerror(errno));
    return map_file(mf, fd, n_slots, e);
}

static void fill_owner(meter_slot *s, const meter_owner *owner)
{
    memcpy(&s->owner, owner, sizeof(*owner));
    s->sum = sum_of(&s->owner, sizeof s->owner);
}

static void free_all(meter_file *mf)
{
    for (int i = 0; i < mf->n_slots; i++) {
        meter_slot *s = meter_file_slot(mf, i);
        if (atomic_load(&s->state) != SLOT_FREE) atomic_store(&s->state, SLOT_FREE);
    }
}

/* Rows become the first slots, ended. */
static void put_rows(meter_file *mf, const leftover *l)
{
    assert(l->n <= (size_t)mf->n_slots);
    for (int i = 0; i < (int)l->n; i++) {
        meter_slot *s = meter_file_slot(mf, i);
        const usage_row *r = &l->rows[i];
        meter_owner o = {.request_id = r->request_id,
                         .tenant_id = r->tenant_id,
                         .key_id = r->key_id,
                         .adapter_id = r->adapter_id,
                         .started_wall_us = r->started_wall_us};
        snprintf(o.model, sizeof o.model, "%s", r->model);
        snprintf(o.slo_class, sizeof o.slo_class, "%s", r->slo_class);
        snprintf(o.endpoint, sizeof o.endpoint, "%s", r->endpoint);
        fill_owner(s, &o);
        fill_end(s, r);
    }
}

/* Writes a new file beside the old one and renames it over that once the rows are on the disk. */
static err_code replace_file(meter_file *mf, store *st, const leftover *l, int n_slots, err *e)
{
    char path[4096], fresh[4096];
    snprintf(path, sizeof path, "%s/meters", store_dir(st));
    snprintf(fresh, sizeof fresh, "%s/meters.new", store_dir(st));
    int fd = open(fresh, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return err_set(e, ERR_IO, "cannot make a meter file: %s", strerror(errno));
    err_code code = make_anew(mf, fd, n_slots, e);
    if (code == ERR_NONE) {
        put_rows(mf, l);
        bool kept = msync(mf->map, mf->map_bytes, MS_SYNC) == 0 && rename(fresh, path) == 0;
        if (!kept) code = err_set(e, ERR_IO, "cannot keep the meter file: %s", strerror(errno));
    }
    if (code != ERR_NONE) {
        unlink(fresh);
        if (mf->map) munmap(mf->map, mf->map_bytes);
        mf->map = NULL;
    }
    close(fd);
    return code;
}

/* Keeps rows that the ledger did not accept; no step may lose them. */
static err_code keep_rows(meter_file *mf, store *st, const leftover *l, int n_slots, err *e)
{
    bool fits = l->same_format && (int)l->head.n_slots == n_slots;
    err_code code = ERR_IO;
    if (!fits) code = replace_file(mf, st, l, n_slots + (int)l->n, e);
    if (code != ERR_NONE && l->same_format && (int)l->head.n_slots > mf->running_max) {
        if (!fits) log_warn("storage", "the spool keeps its size: %s", e->msg);
        code = map_file(mf, l->fd, (int)l->head.n_slots, e);
        for (int i = 0; code == ERR_NONE && i < mf->n_slots; i++) {
            meter_slot *s = meter_file_slot(mf, i);
            usage_row r;
            if (!read_slot(s, i, l->ended_us, &r))
                atomic_store(&s->state, SLOT_FREE);
            else if (!end_is_sound(s)) /* others are left alone: a kill tears none of them */
                fill_end(s, &r);
        }
    }
    return code;
}

/* Pages of a file without rows are not touched here. */
static err_code count_slots(meter_file *mf, bool any_ended, err *e)
{
    mf->free_slot = malloc((size_t)mf->n_slots * sizeof(*mf->free_slot));
    if (!mf->free_slot) return err_set(e, ERR_NOMEM, "out of memory");
    for (int i = mf->n_slots - 1; i >= 0; i--) {
        if (any_ended && atomic_load(&meter_file_slot(mf, i)->state) == SLOT_ENDED)
            mf->n_ended++;
        else
            mf->free_slot[mf->n_free++] = i;
    }
    mf->spool_max = mf->n_slots - mf->running_max;
    assert(mf->spool_max > 0 && mf->n_free + mf->n_ended == mf->n_slots);
    return ERR_NONE;
}

/* No row waits: all slots are free, in a file of the requested size. */
static err_code begin_clean(meter_file *mf, const leftover *l, int n_slots, err *e)
{
    bool fits = l->readable && l->same_format && (int)l->head.n_slots == n_slots;
    if (!fits) return make_anew(mf, l->fd, n_slots, e);
    err_code code = map_file(mf, l->fd, n_slots, e);
    if (code == ERR_NONE && l->n + l->n_torn > 0) free_all(mf);
    return code;
}

err_code meter_file_open(meter_file **out, store *st, int n_running, int n_spool, int *n_settled,
                         err *e)
{
    err own, why;
    leftover l;
    *out = NULL;
    if (!e) e = &own;
    if (n_settled) *n_settled = 0;
    if (n_running < 1 || n_spool < 1 || n_running > SLOTS_MAX / 4 || n_spool > SLOTS_MAX / 4)
        return err_set(e, ERR_INPUT, "the number of meter slots is 1 to %d", SLOTS_MAX / 4);
    meter_file *mf = calloc(1, sizeof(*mf));
    if (!mf) return err_set(e, ERR_NOMEM, "out of memory");
    mf->running_max = n_running;
    lock_init(&mf->mu, LOCK_METER_FILE);
    err_code code = leftover_read(&l, st, true, e);
    bool kept = code == ERR_NONE && ledger_settle(st, l.rows, l.n, &why) != ERR_NONE;
    if (kept) {
        log_warn("storage", "%zu requests of a process before wait in the spool: %s", l.n, why.msg);
        code = keep_rows(mf, st, &l, n_running + n_spool, e);
    } else if (code == ERR_NONE) {
        if (l.n > 0) log_info("storage", "settled %zu requests of a process before", l.n);
        if (n_settled) *n_settled = (int)l.n;
        code = begin_clean(mf, &l, n_running + n_spool, e);
    }
    if (code == ERR_NONE) code = count_slots(mf, kept, e);
    leftover_clear(&l);
    if (code != ERR_NONE) {
        meter_file_close(mf);
        return code;
    }
    *out = mf;
    return ERR_NONE;
}

void meter_file_close(meter_file *mf)
{
    if (!mf) return;
    if (mf->map) munmap(mf->map, mf->map_bytes);
    lock_free(&mf->mu);
    free(mf->free_slot);
    free(mf);
}

/* ---- slots ----------------------------------------------------------------------------- */

meter_slot *meter_file_slot(meter_file *mf, int i)
{
    assert(i >= 0 && i < mf->n_slots);
    return (meter_slot *)(mf->map + HEADER_BYTES) + i;
}

int meter_file_index(const meter_file *mf, const meter_slot *slot)
{
    int i = (int)(slot - (const meter_slot *)(mf->map + HEADER_BYTES));
    assert(i >= 0 && i < mf->n_slots);
    return i;
}

int meter_file_n_slots(const meter_file *mf)
{
    return mf->n_slots;
}

meter_slot *meter_file_next_ended(meter_file *mf, int *i)
{
    while (*i < mf->n_slots) {
        meter_slot *s = meter_file_slot(mf, (*i)++);
        if (atomic_load(&s->state) == SLOT_ENDED) return s;
    }
    return NULL;
}

err_code meter_file_acquire(meter_file *mf, const meter_owner *owner, meter_slot **out, err *e)
{
    *out = NULL;
    lock_take(&mf->mu);
    bool full = mf->n_ended >= mf->spool_max, busy = mf->n_running >= mf->running_max;
    int i = -1;
    if (!full && !busy) {
        assert(mf->n_free > 0);
        i = mf->free_slot[--mf->n_free]; /* running_max + spool_max slots: there is one */
        mf->n_running++;
    }
    lock_release(&mf->mu);
    if (full) return err_set(e, ERR_IO, "usage cannot be written and its spool is full");
    if (busy) return err_set(e, ERR_BUSY, "too many requests are running");
    meter_slot *s = meter_file_slot(mf, i);
    assert(atomic_load(&s->state) == SLOT_FREE);
    atomic_store(&s->counts.prompt_tokens, 0);
    atomic_store(&s->counts.cached_tokens, 0);
    atomic_store(&s->counts.output_tokens, 0);
    atomic_store(&s->counts.first_token_ms, 0);
    fill_owner(s, owner);
    atomic_store(&s->state, SLOT_USED); /* last: a slot is whole or free */
    *out = s;
    return ERR_NONE;
}

meter *meter_slot_meter(meter_slot *slot)
{
    return &slot->counts;
}

void meter_file_end(meter_file *mf, meter_slot *slot, const usage_row *row)
{
    assert(atomic_load(&slot->state) == SLOT_USED); /* a request ends once */
    fill_end(slot, row);
    lock_take(&mf->mu);
    assert(mf->n_running > 0);
    mf->n_running--;
    mf->n_ended++;
    lock_release(&mf->mu);
}

void meter_file_release(meter_file *mf, meter_slot *slot)
{
    assert(atomic_load(&slot->state) != SLOT_FREE);
    bool ended = atomic_load(&slot->state) == SLOT_ENDED;
    atomic_store(&slot->state, SLOT_FREE);
    lock_take(&mf->mu);
    assert(mf->n_free < mf->n_slots);
    mf->free_slot[mf->n_free++] = meter_file_index(mf, slot);
    mf->n_ended -= ended;
    mf->n_running -= !ended;
    assert(mf->n_ended >= 0 && mf->n_running >= 0 && mf->n_free <= mf->n_slots);
    lock_release(&mf->mu);
}

void meter_file_stats_get(meter_file *mf, meter_file_stats *out)
{
    lock_take(&mf->mu);
    *out = (meter_file_stats){.n_running = mf->n_running,
                              .n_ended = mf->n_ended,
                              .n_spool = mf->spool_max,
                              .full = mf->n_ended >= mf->spool_max};
    lock_release(&mf->mu);
}
