/* meter_file.c -- fixed slots in a shared mapping.
 *
 *   page 0             header
 *   64 + i * 512 ...   slot i: state, checksum, counters, owner
 *
 * The kernel keeps what a killed process wrote to a shared mapping, so no write here needs a sync.
 * A power cut may tear a slot: its checksum then fails and it is dropped with a line in the log.
 * The file's blocks are allocated when it is made, for a write to a hole on a full disk would be a
 * SIGBUS.
 */
#include "storage/meter_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"

enum { HEADER_BYTES = 4096, SLOTS_MAX = 1 << 20, SLOT_FREE = 0, SLOT_USED = 0x5553 };

static const char MAGIC[8] = "LRDMETR1";

struct header {
    char magic[8];
    uint32_t slot_bytes, n_slots;
};

struct meter_slot {
    _Atomic uint32_t state;
    uint32_t pad;
    uint64_t sum; /* over `owner` */
    _Alignas(64) meter counts;
    _Alignas(64) meter_owner owner;
};

_Static_assert(sizeof(meter_slot) % 64 == 0, "slots stay aligned to cache lines");

struct meter_file {
    store *st;
    int fd, n_slots;
    size_t map_bytes;
    uint8_t *map;
    pthread_mutex_t mu; /* leaf lock; guards both below */
    int n_free;
    int *free_slot; /* [n_slots], a stack */
};

static meter_slot *slot_at(uint8_t *map, int i)
{
    return (meter_slot *)(map + HEADER_BYTES) + i;
}

static uint64_t sum_of(const meter_owner *o)
{
    const uint8_t *p = (const uint8_t *)o;
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < sizeof *o; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static size_t file_bytes(int n_slots)
{
    return HEADER_BYTES + (size_t)n_slots * sizeof(meter_slot);
}

/* ---- recovery ----------------------------------------------------------------------- */

static void row_of(const meter_slot *s, int64_t ended_us, usage_row *r)
{
    const meter_owner *o = &s->owner;
    memset(r, 0, sizeof *r);
    r->request_id = o->request_id;
    r->tenant_id = o->tenant_id;
    r->key_id = o->key_id;
    r->adapter_id = o->adapter_id;
    snprintf(r->model, sizeof r->model, "%.*s", MODEL_LABEL_MAX, o->model);
    snprintf(r->slo_class, sizeof r->slo_class, "%.31s", o->slo_class);
    snprintf(r->endpoint, sizeof r->endpoint, "%.31s", o->endpoint);
    snprintf(r->finish, sizeof r->finish, "crash");
    if (o->choice == 0) {
        r->prompt_tokens = atomic_load(&s->counts.prompt_tokens);
        r->cached_tokens = atomic_load(&s->counts.cached_tokens);
    }
    r->output_tokens = atomic_load(&s->counts.output_tokens);
    uint32_t first_ms = atomic_load(&s->counts.first_token_ms);
    r->queue_ms = -1;
    r->ttft_ms = first_ms > 0 ? (int64_t)first_ms : -1;
    r->duration_ms = -1;
    r->started_wall_us = o->started_wall_us;
    r->ended_wall_us = ended_us > o->started_wall_us ? ended_us : o->started_wall_us;
    r->recovered = true;
}

/* Settles what the old file's slots hold; nothing is cleared before it is durable. */
static err_code settle_slots(store *st, uint8_t *map, int n_slots, int64_t ended_us, int *n_out,
                             err *e)
{
    usage_row *rows = NULL;
    size_t n = 0;
    for (int i = 0; i < n_slots; i++) n += atomic_load(&slot_at(map, i)->state) != SLOT_FREE;
    *n_out = 0;
    if (n == 0) return ERR_NONE;
    rows = calloc(n, sizeof *rows);
    if (rows == NULL) return err_set(e, ERR_NOMEM, "out of memory");
    n = 0;
    for (int i = 0; i < n_slots; i++) {
        const meter_slot *s = slot_at(map, i);
        if (atomic_load(&s->state) == SLOT_FREE) continue;
        if (atomic_load(&s->state) != SLOT_USED || s->sum != sum_of(&s->owner) ||
            s->owner.request_id == 0) {
            log_warn("storage", "meter slot %d is torn and was dropped", i);
            continue;
        }
        row_of(s, ended_us, &rows[n++]);
    }
    err_code code = ledger_settle(st, rows, n, e);
    free(rows);
    if (code == ERR_NONE) *n_out = (int)n;
    return code;
}

/* Reads an older file, whatever its number of slots, and settles it. */
static err_code recover(store *st, int fd, int *n_out, err *e)
{
    struct stat sb;
    struct header h;
    *n_out = 0;
    if (fstat(fd, &sb) != 0) return err_set(e, ERR_IO, "cannot read the meter file");
    if (sb.st_size == 0) return ERR_NONE;
    if (sb.st_size < HEADER_BYTES || pread(fd, &h, sizeof h, 0) != sizeof h ||
        memcmp(h.magic, MAGIC, sizeof MAGIC) != 0 || h.slot_bytes != sizeof(meter_slot) ||
        h.n_slots > SLOTS_MAX || (size_t)sb.st_size < file_bytes((int)h.n_slots)) {
        log_error("storage", "the meter file is damaged or foreign; it is made anew");
        return ERR_NONE;
    }
    size_t bytes = file_bytes((int)h.n_slots);
    uint8_t *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return err_set(e, ERR_IO, "cannot map the meter file");
    int64_t ended_us = (int64_t)sb.st_mtim.tv_sec * 1000000 + sb.st_mtim.tv_nsec / 1000;
    err_code code = settle_slots(st, map, (int)h.n_slots, ended_us, n_out, e);
    munmap(map, bytes);
    return code;
}

/* ---- life ------------------------------------------------------------------------------ */

static err_code make_anew(meter_file *mf, err *e)
{
    struct header h = {.slot_bytes = sizeof(meter_slot), .n_slots = (uint32_t)mf->n_slots};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    mf->map_bytes = file_bytes(mf->n_slots);
    if (ftruncate(mf->fd, 0) != 0) return err_set(e, ERR_IO, "cannot clear the meter file");
    int rc = posix_fallocate(mf->fd, 0, (off_t)mf->map_bytes);
    if (rc != 0) return err_set(e, ERR_IO, "no room for the meter file: %s", strerror(rc));
    if (pwrite(mf->fd, &h, sizeof h, 0) != sizeof h || fsync(mf->fd) != 0)
        return err_set(e, ERR_IO, "cannot write the meter file: %s", strerror(errno));
    void *map = mmap(NULL, mf->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, mf->fd, 0);
    if (map == MAP_FAILED) return err_set(e, ERR_IO, "cannot map the meter file");
    mf->map = map;
    return ERR_NONE;
}

err_code meter_file_open(meter_file **out, store *st, int n_slots, int *n_recovered, err *e)
{
    *out = NULL;
    if (n_recovered != NULL) *n_recovered = 0;
    if (n_slots < 1 || n_slots > SLOTS_MAX)
        return err_set(e, ERR_INPUT, "the number of meter slots is 1 to %d", SLOTS_MAX);
    meter_file *mf = calloc(1, sizeof *mf);
    if (mf == NULL) return err_set(e, ERR_NOMEM, "out of memory");
    mf->st = st;
    mf->n_slots = n_slots;
    pthread_mutex_init(&mf->mu, NULL);
    char path[4096];
    snprintf(path, sizeof path, "%s/meters", store_dir(st));
    mf->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    err_code code = ERR_NONE;
    int n = 0;
    if (mf->fd < 0) code = err_set(e, ERR_IO, "cannot open the meter file: %s", strerror(errno));
    if (code == ERR_NONE) code = recover(st, mf->fd, &n, e);
    if (code == ERR_NONE) code = make_anew(mf, e);
    if (code == ERR_NONE) {
        mf->free_slot = malloc((size_t)n_slots * sizeof *mf->free_slot);
        if (mf->free_slot == NULL) code = err_set(e, ERR_NOMEM, "out of memory");
    }
    if (code != ERR_NONE) {
        meter_file_close(mf);
        return code;
    }
    for (int i = 0; i < n_slots; i++) mf->free_slot[i] = n_slots - 1 - i;
    mf->n_free = n_slots;
    if (n > 0) log_info("storage", "settled %d requests that a crash had cut short", n);
    if (n_recovered != NULL) *n_recovered = n;
    *out = mf;
    return ERR_NONE;
}

void meter_file_close(meter_file *mf)
{
    if (mf == NULL) return;
    if (mf->map != NULL) munmap(mf->map, mf->map_bytes);
    if (mf->fd >= 0) close(mf->fd);
    pthread_mutex_destroy(&mf->mu);
    free(mf->free_slot);
    free(mf);
}

err_code meter_file_acquire(meter_file *mf, const meter_owner *owner, meter_slot **out, err *e)
{
    pthread_mutex_lock(&mf->mu);
    int i = mf->n_free > 0 ? mf->free_slot[--mf->n_free] : -1;
    pthread_mutex_unlock(&mf->mu);
    *out = NULL;
    if (i < 0) return err_set(e, ERR_BUSY, "too many requests are running");
    meter_slot *s = slot_at(mf->map, i);
    atomic_store(&s->counts.prompt_tokens, 0);
    atomic_store(&s->counts.cached_tokens, 0);
    atomic_store(&s->counts.output_tokens, 0);
    atomic_store(&s->counts.first_token_ms, 0);
    memcpy(&s->owner, owner, sizeof *owner);
    s->sum = sum_of(&s->owner);
    atomic_store(&s->state, SLOT_USED); /* last: a slot is whole or free */
    *out = s;
    return ERR_NONE;
}

meter *meter_slot_meter(meter_slot *slot)
{
    return &slot->counts;
}

void meter_file_release(meter_file *mf, meter_slot *slot)
{
    atomic_store(&slot->state, SLOT_FREE);
    pthread_mutex_lock(&mf->mu);
    mf->free_slot[mf->n_free++] = (int)(slot - slot_at(mf->map, 0));
    pthread_mutex_unlock(&mf->mu);
}

int meter_file_in_use(meter_file *mf)
{
    pthread_mutex_lock(&mf->mu);
    int n = mf->n_slots - mf->n_free;
    pthread_mutex_unlock(&mf->mu);
    return n;
}
