/* test_residency.c -- the cache behind the engine's door, with the CPU backend and real files.
 *
 * The tests play the engine: they ask, are told ERR_BUSY, and ask again on a later
 * "step".  No test depends on how long anything takes; each loop ends by its own
 * condition (or by the suite's limit).
 */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <check.h>

#include "adapters/residency/load.h"
#include "adapters/residency/residency.h"
#include "adapters/store/upload.h"
#include "engine/backend_ops.h"
#include "engine/base/clock.h"
#include "tests/adapters/make_adapter.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

enum { N_ADAPTERS = 12 };

static char dir[64];
static store *st;
static registry *reg;
static backend *be;
static model_config base;
static uint64_t tenant_id;
static err e;
static uint64_t ids[N_ADAPTERS];
static uint64_t packed; /* bytes of one */
static size_t chunk;    /* as large as one, so that budgets can be told in adapters */
static size_t host;     /* budget of host memory */
static residency *rs;
static lora_source door;

/* ---- a disk and a device that can be stopped ------------------------------------------------- */

typedef enum { GOES, READS_HANG, PACKS_HANG } stall;

static struct {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    stall at;
    int n_hanging;
} gate = {.mu = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static _Thread_local bool is_engine; /* this thread plays the engine now */
static atomic_int n_engine_reads;

static void pass(stall what)
{
    pthread_mutex_lock(&gate.mu);
    gate.n_hanging++;
    pthread_cond_broadcast(&gate.changed);
    while (gate.at == what) pthread_cond_wait(&gate.changed, &gate.mu);
    gate.n_hanging--;
    pthread_mutex_unlock(&gate.mu);
}

static void set_gate(stall at)
{
    pthread_mutex_lock(&gate.mu);
    gate.at = at;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.mu);
}

static void await_hanging(int n)
{
    pthread_mutex_lock(&gate.mu);
    while (gate.n_hanging < n) pthread_cond_wait(&gate.changed, &gate.mu);
    pthread_mutex_unlock(&gate.mu);
}

/* Stands before libc's for all of this program. */
ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    char name[16] = "";
    if (is_engine) atomic_fetch_add(&n_engine_reads, 1);
    (void)pthread_getname_np(pthread_self(), name, sizeof name);
    if (strcmp(name, "loader") == 0) pass(READS_HANG);
    return syscall(SYS_pread64, fd, to, n, at);
}

static backend_ops stoppable; /* the CPU's */
static atomic_bool is_lost;   /* the device is */

static bool lost(const backend *b)
{
    (void)b;
    return atomic_load(&is_lost);
}

static err_code slow_pack(backend *b, dtype type, void *a_dst, void *b_dst, const void *a_src,
                          const void *b_src, dtype src, int rank, int d_in, int d_out, err *why)
{
    if (is_engine) atomic_fetch_add(&n_engine_reads, 1);
    pass(PACKS_HANG);
    if (lost(b)) return err_set(why, ERR_DEVICE, "the device is lost");
    return backend_cpu.lora_pack(b, type, a_dst, b_dst, a_src, b_src, src, rank, d_in, d_out, why);
}

static bool filling; /* uploads go up at once */

static adapter_version upload_one(const char *name, int r, const char *type, float value)
{
    upload_env env = {.reg = reg, .base = &base, .be = be};
    if (filling) {
        env.fill = residency_fill;
        env.filler = rs;
    }
    upload_options o = {
        .tenant_id = tenant_id, .name = name, .activate = true, .content_bytes = -1};
    bytes config = make_config(r), weights = make_weights(&base, r, type, value);
    bytes tar = make_tar("a", &config, &weights);
    upload *u;
    adapter_version v;
    ck_assert_int_eq(upload_begin(&u, &env, &o, &e), ERR_NONE);
    ck_assert_int_eq(upload_write(u, tar.p, tar.n, &e), ERR_NONE);
    ck_assert_msg(upload_finish(u, &v, NULL, &e) == ERR_NONE, "%s", e.msg);
    bytes_free(&config);
    bytes_free(&weights);
    bytes_free(&tar);
    return v;
}

static void start(size_t budget, int n_loaders)
{
    residency_config cfg = {
        .budget_bytes = budget, .chunk_bytes = chunk, .host_bytes = host, .n_loaders = n_loaders};
    ck_assert_msg(residency_create(&rs, &cfg, be, &base, reg, &e) == ERR_NONE, "%s", e.msg);
    door = residency_source(rs);
}

static void setup(void)
{
    base = tiny_base();
    rs = NULL;
    tmpdir_make(dir);
    ck_assert_int_eq(store_open(&st, dir, &(store_options){.create = true}, &e), ERR_NONE);
    ck_assert_int_eq(registry_create(&reg, st, NULL, &e), ERR_NONE);
    backend_config cfg = {.n_threads = 1, .isa = "portable"};
    stoppable = backend_cpu;
    stoppable.lora_pack = slow_pack;
    stoppable.lost = lost;
    ck_assert_msg(be_open(&be, &stoppable, &cfg, &e) == ERR_NONE, "%s", e.msg);
    tenant t;
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "acme"}, &t, &e), ERR_NONE);
    tenant_id = t.id;
    char name[16];
    for (int i = 0; i < N_ADAPTERS; i++) {
        snprintf(name, sizeof name, "a%d", i);
        adapter_version v = upload_one(name, 4, "F32", 0.1f + 0.01f * (float)i);
        ids[i] = v.id;
        packed = v.packed_bytes;
    }
    chunk = packed;
    host = 0;
}

static void teardown(void)
{
    residency_destroy(rs);
    registry_destroy(reg);
    store_close(st);
    be_close(be);
    tmpdir_remove(dir);
}

/* Asks until the answer is not ERR_BUSY. */
static err_code wait_for(uint64_t id, const lora_view **view)
{
    for (;;) {
        err_code code = door.acquire(door.self, id, view, &e);
        if (code == ERR_NONE) door.used(door.self, *view);
        if (code != ERR_BUSY) return code;
        usleep(500);
    }
}

static residency_stats stats_now(void)
{
    residency_stats s;
    residency_stats_get(rs, &s);
    return s;
}

/* A hint is loaded without anybody asking again. */
static residency_state wait_for_hint(uint64_t id)
{
    residency_state s;
    while ((s = residency_get(rs, id, NULL)) != RESIDENCY_RESIDENT && s != RESIDENCY_FAILED)
        usleep(200);
    return s;
}

START_TEST(test_loads_what_was_uploaded)
{
    start(packed * 4, 1);
    const lora_view *v, *w;
    ck_assert_int_eq(door.acquire(door.self, ids[0], &v, &e), ERR_BUSY); /* never waits */
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
    ck_assert_uint_eq(v->adapter_id, ids[0]);
    ck_assert_int_eq(v->n_layer, base.n_layer);
    ck_assert_int_eq(v->rank_max, 4);
    int n = 0;
    for (int i = 0; i < base.n_layer * PROJ_COUNT; i++) {
        const lora_mat *m = &v->mat[i];
        bool wrapped = i % PROJ_COUNT == PROJ_Q || i % PROJ_COUNT == PROJ_V;
        ck_assert((m->a != NULL) == wrapped);
        if (!wrapped) continue;
        n++;
        ck_assert_int_eq(m->rank, 4);
        ck_assert_double_eq_tol(m->scale, 4, 1e-6);
        ck_assert_uint_eq((uintptr_t)m->a % 64, 0);
        ck_assert_uint_eq((uintptr_t)m->b % 64, 0);
    }
    ck_assert_int_eq(n, 4);
    ck_assert_int_eq(wait_for(ids[0], &w), ERR_NONE);
    ck_assert_ptr_eq(v, w);
    ck_assert_int_eq(residency_get(rs, ids[0], NULL), RESIDENCY_RESIDENT);
    ck_assert_int_eq(residency_get(rs, ids[1], NULL), RESIDENCY_DISK);
    door.release(door.self, v);
    door.release(door.self, w);
    residency_stats s = stats_now();
    ck_assert_uint_eq(s.used_bytes, packed);
    ck_assert_uint_eq(s.n_loads, 1);
    ck_assert_uint_eq(s.n_misses, 1);
    ck_assert_uint_eq(s.n_hits, 1);
    ck_assert_int_eq(wait_for(12345, &v), ERR_NOT_FOUND);
}
END_TEST

/* What has just been published is on the device when its upload returns, with nothing read again,
 * and is what its files would give; without idle room it waits to be asked for. */
START_TEST(test_filled)
{
    const lora_view *v, *held;
    start(packed, 1);
    filling = true;
    adapter_version fresh = upload_one("fresh", 4, "F32", 0.25F);
    ck_assert_int_eq(residency_get(rs, fresh.id, NULL), RESIDENCY_RESIDENT);
    ck_assert_uint_eq(stats_now().n_loads, 1);
    ck_assert_uint_eq(stats_now().read_bytes, 0);
    ck_assert_int_eq(wait_for(fresh.id, &held), ERR_NONE);
    ck_assert_uint_eq(stats_now().n_misses, 0);
    size_t n = be_lora_a_bytes(be, base.type, 4, base.dim);
    void *as_filled = malloc(n);
    memcpy(as_filled, held->mat[PROJ_Q].a, n);
    adapter_version full = upload_one("full", 4, "F32", 0.5F);
    ck_assert_int_eq(residency_get(rs, full.id, NULL), RESIDENCY_DISK);
    filling = false;
    door.release(door.self, held);
    ck_assert_int_eq(wait_for(full.id, &v), ERR_NONE);
    ck_assert_int_ne(memcmp(as_filled, v->mat[PROJ_Q].a, n), 0);
    door.release(door.self, v);
    ck_assert_int_eq(wait_for(fresh.id, &v), ERR_NONE);
    ck_assert_int_eq(memcmp(as_filled, v->mat[PROJ_Q].a, n), 0);
    door.release(door.self, v);
    ck_assert_uint_gt(stats_now().read_bytes, 0);
    free(as_filled);
}
END_TEST

/* What is asked for often stays, though the others came later. */
START_TEST(test_popular_stays)
{
    start(packed * 3, 2);
    const lora_view *v;
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(wait_for(ids[i], &v), ERR_NONE);
        door.release(door.self, v);
    }
    for (int i = 0; i < 100000; i++) {
        ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
        door.release(door.self, v);
    }
    for (int i = 3; i < 6; i++) {
        ck_assert_int_eq(wait_for(ids[i], &v), ERR_NONE);
        door.release(door.self, v);
        ck_assert_int_eq(residency_get(rs, ids[0], NULL), RESIDENCY_RESIDENT);
    }
    residency_stats s = stats_now();
    ck_assert_uint_eq(s.n_evictions, 3);
    ck_assert_uint_le(s.used_bytes, s.budget_bytes);
}
END_TEST

/* A request that looks for its adapter in each step while it waits for pages has not used it. */
START_TEST(test_waiting_is_no_use)
{
    start(packed * 2, 1);
    const lora_view *v;
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
    door.release(door.self, v);
    ck_assert_int_eq(wait_for(ids[1], &v), ERR_NONE);
    door.release(door.self, v);
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(wait_for(ids[1], &v), ERR_NONE);
        door.release(door.self, v);
    }
    for (int i = 0; i < 1000; i++) {
        ck_assert_int_eq(door.acquire(door.self, ids[0], &v, &e), ERR_NONE);
        door.release(door.self, v);
    }
    residency_row row;
    residency_row_get(rs, ids[0], &row);
    ck_assert_uint_eq(row.n_hits, 0);
    ck_assert_uint_eq(stats_now().n_hits, 8);
}
END_TEST

/* An acquired adapter stays, whatever is asked for meanwhile. */
START_TEST(test_acquired_stays)
{
    start(packed * 2, 1);
    const lora_view *v[2], *w;
    ck_assert_int_eq(wait_for(ids[0], &v[0]), ERR_NONE);
    ck_assert_int_eq(wait_for(ids[1], &v[1]), ERR_NONE);
    lora_mat before = v[0]->mat[PROJ_Q];
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(door.acquire(door.self, ids[2], &w, &e), ERR_BUSY);
        door.want(door.self, ids[3 + i % 5], 0);
    }
    ck_assert_ptr_eq(v[0]->mat[PROJ_Q].a, before.a);
    ck_assert_int_eq(residency_get(rs, ids[0], NULL), RESIDENCY_RESIDENT);
    ck_assert_int_eq(residency_get(rs, ids[1], NULL), RESIDENCY_RESIDENT);
    door.release(door.self, v[1]);
    ck_assert_int_eq(wait_for(ids[2], &w), ERR_NONE);
    ck_assert_int_eq(residency_get(rs, ids[0], NULL), RESIDENCY_RESIDENT);
    door.release(door.self, v[0]);
    door.release(door.self, w);
}
END_TEST

/* More adapters wanted at once than fit: everybody is served, in bounded rounds. */
static void serve_all(size_t budget, int n_loaders, int n_requests)
{
    start(budget, n_loaders);
    struct {
        int adapter, steps_left;
        const lora_view *v;
        bool done;
    } rq[200] = {0};
    ck_assert_int_le(n_requests, 200);
    for (int i = 0; i < n_requests; i++) {
        rq[i].adapter = (i * 7 + i / 5) % N_ADAPTERS;
        rq[i].steps_left = 1 + i % 4;
    }
    int n_done = 0;
    while (n_done < n_requests) {
        int running = 0;
        for (int i = 0; i < n_requests; i++) {
            if (rq[i].done) continue;
            if (rq[i].v == NULL) {
                door.want(door.self, ids[rq[i].adapter], 0);
                if (running >= 8) continue; /* the engine's own limit */
                err_code code = door.acquire(door.self, ids[rq[i].adapter], &rq[i].v, &e);
                ck_assert_msg(code == ERR_NONE || code == ERR_BUSY, "%s", e.msg);
                if (code == ERR_BUSY) continue;
                ck_assert_uint_eq(rq[i].v->adapter_id, ids[rq[i].adapter]);
            }
            running++;
            if (--rq[i].steps_left == 0) {
                door.release(door.self, rq[i].v);
                rq[i].done = true;
                n_done++;
            }
        }
        ck_assert_uint_le(stats_now().used_bytes, budget);
        usleep(200);
    }
    ck_assert_int_eq(stats_now().n_acquired, 0);
    residency_destroy(rs);
    rs = NULL;
}

START_TEST(test_small_budgets)
{
    serve_all(packed, 1, 40); /* room for a single one */
    serve_all(packed * 2 + packed / 2, 1, 60);
    serve_all(packed * 3, 3, 100);
    serve_all(packed * N_ADAPTERS, 2, 200);
}
END_TEST

/* Requests for one adapter overlap without end: another one still gets its turn. */
START_TEST(test_no_starvation)
{
    start(packed, 1);
    const lora_view *held, *next, *other = NULL;
    ck_assert_int_eq(wait_for(ids[0], &held), ERR_NONE);
    bool refused = false;
    while (other == NULL) {
        err_code code = door.acquire(door.self, ids[1], &other, &e);
        ck_assert(code == ERR_BUSY || code == ERR_NONE);
        if (code == ERR_NONE) break;
        if (held == NULL) {
            usleep(200);
            continue;
        }
        code = door.acquire(door.self, ids[0], &next, &e); /* the next overlaps the last */
        door.release(door.self, held);
        held = code == ERR_NONE ? next : NULL;
        refused |= code == ERR_BUSY;
        usleep(200);
    }
    ck_assert(refused);
    ck_assert_ptr_nonnull(other);
    door.release(door.self, other);
    ck_assert_int_eq(wait_for(ids[0], &held), ERR_NONE); /* and the first comes back */
    door.release(door.self, held);
}
END_TEST

/* A demand whose request went away does not hold its room for ever. */
START_TEST(test_abandoned_demand)
{
    start(packed, 1);
    const lora_view *v;
    ck_assert_int_eq(door.acquire(door.self, ids[0], &v, &e), ERR_BUSY);
    while (residency_get(rs, ids[0], NULL) != RESIDENCY_RESIDENT) usleep(500);
    ck_assert_int_eq(wait_for(ids[1], &v), ERR_NONE);
    door.release(door.self, v);
}
END_TEST

START_TEST(test_too_large)
{
    chunk = packed / 2;
    start(packed - 1, 1);
    const lora_view *v;
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(e.msg, "bytes"));
    ck_assert_int_eq(residency_get(rs, ids[0], NULL), RESIDENCY_FAILED);
    adapter_version small = upload_one("small", 1, "BF16", 0.5f);
    ck_assert_uint_lt(small.packed_bytes, packed);
    ck_assert_int_eq(wait_for(small.id, &v), ERR_NONE); /* the others go on */
    door.release(door.self, v);
}
END_TEST

static char rotten; /* the byte that damage() has overwritten */

static int open_stored(uint64_t id, const char *file_name)
{
    const adapter_version *v;
    char path[256], file[320];
    ck_assert_int_eq(registry_acquire_id(reg, id, &v, &e), ERR_NONE);
    registry_path(reg, v->digest, path, sizeof path);
    registry_release(reg, v);
    snprintf(file, sizeof file, "%s/%s", path, file_name);
    int fd = open(file, O_RDWR);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static void damage(uint64_t id, const char *file_name, bool cut)
{
    int fd = open_stored(id, file_name);
    off_t size = lseek(fd, 0, SEEK_END);
    ck_assert_int_eq(pread(fd, &rotten, 1, size - 9), 1);
    if (cut)
        ck_assert_int_eq(ftruncate(fd, size / 2), 0);
    else
        ck_assert_int_eq(pwrite(fd, "\x3c", 1, size - 9), 1);
    close(fd);
}

static void mend(uint64_t id)
{
    int fd = open_stored(id, "adapter_model.safetensors");
    ck_assert_int_eq(pwrite(fd, &rotten, 1, lseek(fd, 0, SEEK_END) - 9), 1);
    close(fd);
}

START_TEST(test_damaged_files)
{
    start(packed * 4, 1);
    const lora_view *v;
    damage(ids[0], "adapter_model.safetensors", false); /* one byte of one weight */
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_DAMAGED);
    ck_assert_ptr_nonnull(strstr(e.msg, "a0@1"));
    damage(ids[1], "adapter_model.safetensors", true);
    ck_assert_int_eq(wait_for(ids[1], &v), ERR_DAMAGED);
    damage(ids[2], "adapter_config.json", true);
    ck_assert_int_eq(wait_for(ids[2], &v), ERR_DAMAGED);
    ck_assert_int_eq(wait_for(ids[3], &v), ERR_NONE);
    door.release(door.self, v);
    residency_stats s = stats_now();
    ck_assert_uint_eq(s.n_failures, 3);
    ck_assert_uint_eq(s.used_bytes, packed);
}
END_TEST

/* The files are whole again: whoever comes next has it, without a pause. */
START_TEST(test_mended_files)
{
    start(packed * 4, 1);
    const lora_view *v;
    damage(ids[0], "adapter_model.safetensors", false);
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_DAMAGED);
    mend(ids[0]);
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_DAMAGED); /* within the pause */
    residency_renew(rs, ids[0]);
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
    door.release(door.self, v);
    residency_renew(rs, ids[0]); /* resident: nothing happens */
    residency_renew(rs, 4711);
    ck_assert_int_eq(residency_get(rs, ids[0], NULL), RESIDENCY_RESIDENT);
}
END_TEST

START_TEST(test_pins)
{
    start(packed * 4, 1);
    bool pinned;
    const lora_view *v;
    ck_assert_int_eq(residency_pin(rs, ids[0], &e), ERR_NONE);
    ck_assert_int_eq(residency_pin(rs, ids[1], &e), ERR_NONE);
    ck_assert_int_eq(residency_pin(rs, ids[1], &e), ERR_NONE);
    ck_assert_int_eq(residency_pin(rs, ids[2], &e), ERR_LIMIT);
    ck_assert_int_eq(residency_pin(rs, 4711, &e), ERR_NOT_FOUND);
    while (stats_now().n_resident < 2) usleep(500);
    for (int round = 0; round < 2; round++)
        for (int i = 2; i < N_ADAPTERS; i++) {
            ck_assert_int_eq(wait_for(ids[i], &v), ERR_NONE);
            door.release(door.self, v);
        }
    ck_assert_int_eq(residency_get(rs, ids[0], &pinned), RESIDENCY_RESIDENT);
    ck_assert(pinned);
    ck_assert_int_eq(residency_get(rs, ids[1], &pinned), RESIDENCY_RESIDENT);
    ck_assert_int_eq(stats_now().n_pinned, 2);
    residency_unpin(rs, ids[0]);
    for (int i = 0; residency_get(rs, ids[0], &pinned) == RESIDENCY_RESIDENT; i++) {
        ck_assert_int_eq(wait_for(ids[2 + i % 4], &v), ERR_NONE); /* the clock rises past it */
        door.release(door.self, v);
    }
    ck_assert(!pinned);
    residency_destroy(rs);
    /* Pinned by name: resident again after a restart. */
    bool on = true;
    ck_assert_int_eq(registry_set_meta(reg, tenant_id, "a7", NULL, &on, &e), ERR_NONE);
    start(packed * 4, 1);
    while (residency_get(rs, ids[7], &pinned) != RESIDENCY_RESIDENT) usleep(500);
    ck_assert(pinned);
}
END_TEST

/* A step of what rows show moves the count; a look at them does not. */
START_TEST(test_changes)
{
    start(packed * 4, 1);
    const lora_view *v;
    residency_row *row = NULL;
    size_t n = 0, cap = 0;
    uint64_t seen = residency_changes(rs);
    ck_assert_uint_ne(seen, 0);
#define MOVED()                               \
    do {                                      \
        uint64_t now = residency_changes(rs); \
        ck_assert_uint_ne(now, seen);         \
        seen = now;                           \
    } while (0)
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
    MOVED();
    door.used(door.self, v);
    ck_assert_int_eq(residency_rows(rs, &row, &n, &cap, &e), ERR_NONE);
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(row[0].acquired, 1);
    (void)residency_get(rs, ids[0], NULL);
    (void)stats_now();
    ck_assert_uint_eq(residency_changes(rs), seen);
    door.release(door.self, v);
    MOVED();
    ck_assert_int_eq(residency_pin(rs, ids[0], &e), ERR_NONE);
    MOVED();
    residency_unpin(rs, ids[0]);
    MOVED();
    ck_assert_int_eq(residency_evict(rs, ids[0], &e), ERR_NONE);
    MOVED();
    residency_warm(rs, ids[1]);
    MOVED();
    free(row);
#undef MOVED
}
END_TEST

/* Somebody else takes the room of an idle adapter: who only looks carries
 * nothing out; the next step does. */
START_TEST(test_looking_evicts_nothing)
{
    enum { CHUNKS = 4 };
    devmem *arena;
    const lora_view *v;
    residency_row *row = NULL;
    size_t n = 0, cap = 0;
    ck_assert_int_eq(devmem_create(&arena, be, CHUNKS, chunk, 0, &e), ERR_NONE);
    residency_config cfg = {.arena = arena, .n_loaders = 1};
    ck_assert_msg(residency_create(&rs, &cfg, be, &base, reg, &e) == ERR_NONE, "%s", e.msg);
    door = residency_source(rs);
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
    door.release(door.self, v);
    devmem_lease *all =
        devmem_lease_take(arena, CHUNKS, DEVMEM_DEMAND, clock_now_us() + DEVMEM_FRESH_US, &cfg);
    ck_assert_ptr_nonnull(all);
    uint64_t seen = residency_changes(rs);
    ck_assert_int_eq(stats_now().n_evictions, 0);
    ck_assert_int_eq(residency_rows(rs, &row, &n, &cap, &e), ERR_NONE);
    ck_assert_int_eq(residency_get(rs, ids[0], NULL), RESIDENCY_RESIDENT);
    ck_assert_uint_eq(residency_changes(rs), seen);
    door.step(door.self, 0, INFINITY);
    ck_assert_int_eq(stats_now().n_evictions, 1);
    ck_assert_int_eq(residency_get(rs, ids[0], NULL), RESIDENCY_DISK);
    devmem_lease_drop(all);
    residency_destroy(rs);
    rs = NULL;
    devmem_destroy(arena);
    free(row);
}
END_TEST

/* The device goes while one is loaded: nobody is blamed, all come back, the pinned one unasked. */
START_TEST(test_lost_device)
{
    start(packed * 4, 1 + _i);
    const lora_view *v;
    ck_assert_int_eq(residency_pin(rs, ids[0], &e), ERR_NONE);
    while (stats_now().n_resident < 1) usleep(500);
    ck_assert_int_eq(wait_for(ids[1], &v), ERR_NONE);
    door.release(door.self, v);
    set_gate(PACKS_HANG);
    ck_assert_int_eq(door.acquire(door.self, ids[2], &v, &e), ERR_BUSY);
    await_hanging(1);
    atomic_store(&is_lost, true);
    set_gate(GOES);
    door.suspend(door.self);
    residency_stats s = stats_now();
    ck_assert_int_eq(s.n_resident, 0);
    ck_assert_uint_eq(s.used_bytes, 0);
    ck_assert_uint_eq(s.n_failures, 0);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(door.acquire(door.self, ids[i], &v, &e), ERR_BUSY);
    door.want(door.self, ids[3], 0);
    uint64_t loads = stats_now().n_loads;
    usleep(5000); /* a loader that did not wait would be seen */
    ck_assert_uint_eq(stats_now().n_loads, loads);
    atomic_store(&is_lost, false);
    door.resume(door.self);
    while (residency_get(rs, ids[0], NULL) != RESIDENCY_RESIDENT) usleep(500);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(wait_for(ids[i], &v), ERR_NONE);
        door.release(door.self, v);
    }
    ck_assert_uint_eq(stats_now().n_failures, 0);
}
END_TEST

/* Deleted while the engine has it: it stays until it is given back, then its memory goes. */
START_TEST(test_deleted)
{
    start(packed * 4, 1);
    const adapter_version *pin;
    const lora_view *v;
    ck_assert_int_eq(registry_acquire(reg, tenant_id, "a0", false, &pin, &e), ERR_NONE);
    ck_assert_int_eq(registry_delete(reg, tenant_id, "a0", 0, true, NULL, &e), ERR_NONE);
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE); /* a running request may still load it */
    ck_assert_uint_eq(stats_now().used_bytes, packed);
    door.release(door.self, v);
    registry_release(reg, pin);
    /* The loader may still hold its own pin for an instant. */
    while (stats_now().used_bytes != 0) usleep(500);
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NOT_FOUND);

    ck_assert_int_eq(wait_for(ids[1], &v), ERR_NONE);
    ck_assert_int_eq(registry_delete(reg, tenant_id, "a1", 0, true, NULL, &e), ERR_NONE);
    while (residency_get(rs, ids[1], NULL) != RESIDENCY_RESIDENT) usleep(500);
    ck_assert_uint_eq(v->adapter_id, ids[1]);
    ck_assert_ptr_nonnull(v->mat[PROJ_Q].a);
    door.release(door.self, v);
    while (stats_now().used_bytes != 0) usleep(500);
}
END_TEST

/* ---- the tier between ------------------------------------------------------------------------ */

/* What was read stays in host memory: brought back without the disk, in a bounded room. */
START_TEST(test_host_copies)
{
    host = 64u << 20;
    start(packed, 1);
    const lora_view *v;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 4; i++) {
            ck_assert_int_eq(wait_for(ids[i], &v), ERR_NONE);
            ck_assert_uint_eq(v->adapter_id, ids[i]);
            door.release(door.self, v);
        }
    ck_assert_int_eq(residency_get(rs, ids[0], NULL), RESIDENCY_HOST);
    ck_assert_int_eq(residency_get(rs, ids[9], NULL), RESIDENCY_DISK);
    residency_stats s = stats_now();
    ck_assert_uint_eq(s.n_host_misses, 4);
    ck_assert_uint_eq(s.n_host_hits, 4);
    ck_assert_int_eq(s.n_host, 4);
    size_t one = s.host_used_bytes / 4;
    residency_row row;
    residency_row_get(rs, ids[0], &row);
    ck_assert_uint_eq(row.n_loads, 2);
    ck_assert_uint_eq(row.host_bytes, one);
    ck_assert_int_gt(row.last_use_us, 0);
    damage(ids[1], "adapter_model.safetensors", false); /* the disk is not asked */
    ck_assert_int_eq(wait_for(ids[1], &v), ERR_NONE);
    door.release(door.self, v);
    residency_destroy(rs);

    host = one * 3 + one / 2;
    start(packed, 1);
    for (int i = 0; i < 40; i++) {
        ck_assert_int_eq(wait_for(ids[2 + i * 5 % 9], &v), ERR_NONE);
        door.release(door.self, v);
    }
    /* The loader evicts after it has loaded: an instant later. */
    while (stats_now().host_used_bytes > host) usleep(500);
    s = stats_now();
    ck_assert_int_eq(s.n_host, 3);
    ck_assert_uint_gt(s.n_host_evictions, 0);
    ck_assert_int_eq(registry_delete(reg, tenant_id, "a2", 0, true, NULL, &e), ERR_NONE);
    residency_row_get(rs, ids[2], &row);
    ck_assert_uint_eq(row.host_bytes + row.n_loads, 0); /* nothing is left of it */
}
END_TEST

/* All of a view's A and B, wherever the chunks' borders cut them, one after another. */
static size_t gather(const lora_view *v, char *out, size_t cap, int *cuts)
{
    size_t at = 0;
    for (int i = 0; i < v->n_layer * PROJ_COUNT; i++) {
        const lora_mat *m = &v->mat[i];
        const lora_split *sp = m->split;
        if (m->rank == 0) continue;
        int d_out, d_in;
        model_proj_shape(&base, (proj)(i % PROJ_COUNT), &d_out, &d_in);
        size_t row = be_lora_a_bytes(be, base.type, 1, d_in);
        int cols = be_caps(be)->lora_cols, blocks = (d_out + cols - 1) / cols;
        size_t block = be_lora_b_bytes(be, base.type, m->rank, cols);
        const char *a = m->a, *b = m->b;
        *cuts += sp != NULL;
        for (int r = 0, n, piece = 0; r < m->rank; r += n, at += (size_t)n * row) {
            n = sp == NULL ? m->rank : r == 0 ? sp->a_first : sp->a_each;
            if (n > m->rank - r) n = m->rank - r;
            ck_assert_uint_le(at + (size_t)n * row, cap);
            memcpy(out + at, r == 0 ? a : (const char *)sp->a[piece++], (size_t)n * row);
        }
        for (int k = 0, n, piece = 0; k < blocks; k += n, at += (size_t)n * block) {
            n = sp == NULL || sp->b == NULL ? blocks : (k == 0 ? sp->b_first : sp->b_each) / cols;
            if (n > blocks - k) n = blocks - k;
            ck_assert_uint_le(at + (size_t)n * block, cap);
            memcpy(out + at, k == 0 ? b : (const char *)sp->b[piece++], (size_t)n * block);
        }
    }
    return at;
}

/* A copy goes up again with the same bits that were packed from the files,
 * over many chunks' borders. */
static void goes_up_again(const char *name, int rank, const char *type, bool as_chunks)
{
    enum { ROOM = 1 << 20 };
    adapter_version av = upload_one(name, rank, type, 0.3f);
    chunk = adapter_chunk_least(&base, be) + 4096; /* borders inside of A */
    host = 64u << 20;
    start(chunk * 10, 1); /* one, not two */
    char *before = malloc(ROOM), *after = malloc(ROOM);
    const lora_view *v;
    int cuts = 0, cuts_after = 0;
    ck_assert_int_eq(wait_for(av.id, &v), ERR_NONE);
    size_t n = gather(v, before, ROOM, &cuts);
    door.release(door.self, v);
    residency_row row;
    residency_row_get(rs, av.id, &row);
    ck_assert_int_eq(row.host_bytes >= n, as_chunks); /* B has 16 columns, on the device 32 */
    /* Others take all of the room. */
    for (int i = 0; residency_get(rs, av.id, NULL) == RESIDENCY_RESIDENT; i++) {
        char other[16];
        snprintf(other, sizeof other, "%s-%d", name, i);
        ck_assert_int_eq(wait_for(upload_one(other, rank, type, 0.01f * (float)i).id, &v),
                         ERR_NONE);
        door.release(door.self, v);
    }
    ck_assert_int_eq(residency_get(rs, av.id, NULL), RESIDENCY_HOST);
    uint64_t hits = stats_now().n_host_hits;
    ck_assert_int_eq(wait_for(av.id, &v), ERR_NONE);
    ck_assert_uint_eq(stats_now().n_host_hits, hits + 1);
    ck_assert_uint_eq(gather(v, after, ROOM, &cuts_after), n);
    ck_assert_int_eq(memcmp(before, after, n), 0);
    ck_assert_int_gt(cuts, 0);
    ck_assert_int_eq(cuts, cuts_after);
    door.release(door.self, v);
    free(before);
    free(after);
    residency_destroy(rs);
    rs = NULL;
}

START_TEST(test_copies_go_up_again)
{
    goes_up_again("wide", 256, "F32", true);
    goes_up_again("half", 256, "F16",
                  false); /* twice as large on the device: stays as its file is */
}
END_TEST

/* The nearest deadline is loaded first, whoever came first. */
START_TEST(test_deadlines_order_the_queue)
{
    start(packed, 1);
    const lora_view *held, *v;
    ck_assert_int_eq(wait_for(ids[0], &held), ERR_NONE); /* the only room */
    for (int i = 1; i <= 3; i++) {
        door.want(door.self, ids[i], (int64_t)1 << (50 - i)); /* the last is due first */
        ck_assert_int_eq(door.acquire(door.self, ids[i], &v, &e), ERR_BUSY);
    }
    door.release(door.self, held);
    for (int i = 3; i >= 1; i--) {
        while (residency_get(rs, ids[i], NULL) != RESIDENCY_RESIDENT) {
            for (int k = 1; k < i; k++)
                ck_assert_int_eq(residency_get(rs, ids[k], NULL), RESIDENCY_LOADING);
            usleep(200);
        }
        ck_assert_int_eq(wait_for(ids[i], &v), ERR_NONE);
        door.release(door.self, v);
    }
}
END_TEST

/* Hints are fetched in the order in which their requests will start, whatever the order of the
 * asking; and what the engine is told to plan with: the time of a load, and how many fit. */
START_TEST(test_hints_in_order_of_start)
{
    double load_us = -1;
    int room = 0;
    const lora_view *v;
    uint64_t load_id[4];
    start(packed * 8, 1);
    door.outlook(door.self, &load_us, &room);
    ck_assert_double_eq(load_us, 0); /* not known yet */
    ck_assert_int_ge(room, 1);
    set_gate(READS_HANG);
    door.want(door.self, ids[0], 1);
    await_hanging(1);
    for (int i = 1; i <= 3; i++) door.want(door.self, ids[i], 1000 - i);
    set_gate(GOES);
    for (int i = 0; i <= 3; i++) {
        ck_assert_int_eq(wait_for_hint(ids[i]), RESIDENCY_RESIDENT);
        ck_assert_int_eq(wait_for(ids[i], &v), ERR_NONE);
        load_id[i] = v->load_id;
        door.release(door.self, v);
    }
    ck_assert(load_id[0] < load_id[3] && load_id[3] < load_id[2] && load_id[2] < load_id[1]);
    door.outlook(door.self, &load_us, &room);
    ck_assert_double_gt(load_us, 0);
    ck_assert_int_eq(room, 1 + 8 / 3); /* all is idle or free; half of it */
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
    door.outlook(door.self, &load_us, &room);
    ck_assert_int_eq(room, 1 + 7 / 3);
    door.release(door.self, v);
}
END_TEST

/* While streams have no time to give, a load goes on by a piece in a step,
 * and at once when they have. */
START_TEST(test_copies_in_pace_with_steps)
{
    residency_config cfg = {
        .budget_bytes = packed * 2, .chunk_bytes = packed, .n_loaders = 1, .copy_share = 50};
    ck_assert_msg(residency_create(&rs, &cfg, be, &base, reg, &e) == ERR_NONE, "%s", e.msg);
    door = residency_source(rs);
    const lora_view *v;
    residency_stats s = {0};
    door.step(door.self, 1e-3, -1000);
    ck_assert_int_eq(door.acquire(door.self, ids[0], &v, &e), ERR_BUSY);
    while (s.pace.n_waits == 0) s = stats_now();
    ck_assert_int_gt((int)s.pace.budget, 0);
    for (int i = 0; i < 20; i++) door.step(door.self, 1e-3, -1000);
    door.step(door.self, 1e-3, INFINITY);
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
    s = stats_now();
    ck_assert_uint_eq(s.pace.budget, 0);
    ck_assert_double_gt(s.pace.rate, 0);
    door.release(door.self, v);
}
END_TEST

/* What admission asks: an adapter's own load and those before it, at the rate that loads had. */
START_TEST(test_eta)
{
    host = packed * 20;
    start(packed * 2, 1);
    const lora_view *v;
    int64_t end = INT64_MAX, now = clock_now_us();
    ck_assert_int_eq(door.eta(door.self, ids[1], end), 0); /* no load was seen */
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
    door.release(door.self, v);
    ck_assert_int_eq(door.eta(door.self, ids[0], end), 0);
    ck_assert_int_eq(door.eta(door.self, 12345, end), door.eta(door.self, ids[1], end));
    int64_t one = door.eta(door.self, ids[1], end); /* its size is the registry's */
    ck_assert_int_gt(one, 0);
    int copies = 0;
    for (int i = 9; i < 12; i++) { /* two fit */
        ck_assert_int_eq(wait_for(ids[i], &v), ERR_NONE);
        door.release(door.self, v);
    }
    one = door.eta(door.self, ids[1], end);
    for (int i = 0; i < N_ADAPTERS; i++) {
        if (residency_get(rs, ids[i], NULL) != RESIDENCY_HOST) continue;
        copies++;
        ck_assert_int_gt(door.eta(door.self, ids[i], end), 0);
        ck_assert_int_lt(door.eta(door.self, ids[i], end), one); /* it has been read already */
    }
    ck_assert_int_eq(copies, 2);

    set_gate(READS_HANG);
    for (int i = 1; i <= 3; i++)
        ck_assert_int_eq(door.acquire(door.self, ids[i], &v, &e), ERR_BUSY);
    await_hanging(1);
    ck_assert_int_le(llabs(door.eta(door.self, ids[4], end) - 4 * one), 4);
    ck_assert_int_le(llabs(door.eta(door.self, ids[3], end) - 3 * one), 4);
    door.want(door.self, ids[5], now + 1000); /* a hint, for who has this deadline */
    ck_assert_int_le(llabs(door.eta(door.self, ids[4], now) - 4 * one), 4);
    ck_assert_int_le(llabs(door.eta(door.self, ids[4], now + 2000) - 5 * one), 4);
    set_gate(GOES);
    for (int i = 1; i <= 3; i++) {
        ck_assert_int_eq(wait_for(ids[i], &v), ERR_NONE);
        door.release(door.self, v);
    }
}
END_TEST

/* In int8 each weight is off by at most 1/254 of the largest of its group; the same bits, whether
 * from the disk or from host memory. */
START_TEST(test_int8_copies)
{
    residency_config cfg = {.budget_bytes = packed * 2,
                            .chunk_bytes = packed,
                            .host_bytes = 64u << 20,
                            .host_int8 = true,
                            .n_loaders = 1};
    ck_assert_int_eq(residency_create(&rs, &cfg, be, &base, reg, &e), ERR_NONE);
    door = residency_source(rs);
    const lora_view *v;
    const int n = 4 * 16; /* A of q_proj: rank 4, 16 columns */
    float first[64];
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
    ck_assert_int_eq(v->mat[PROJ_Q].rank, 4);
    memcpy(first, v->mat[PROJ_Q].a, sizeof first);
    door.release(door.self, v);
    for (int i = 1; residency_get(rs, ids[0], NULL) == RESIDENCY_RESIDENT; i = i % 4 + 1) {
        ck_assert_int_eq(wait_for(ids[i], &v), ERR_NONE);
        door.release(door.self, v);
    }
    ck_assert_int_eq(residency_get(rs, ids[0], NULL), RESIDENCY_HOST);
    uint64_t hits = stats_now().n_host_hits;
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
    ck_assert_int_eq(memcmp(first, v->mat[PROJ_Q].a, sizeof first), 0);
    door.release(door.self, v);
    residency_stats s = stats_now();
    ck_assert_uint_eq(s.n_host_hits, hits + 1);
    residency_row row;
    residency_row_get(rs, ids[0], &row);
    ck_assert_uint_lt(row.host_bytes * 3, (uint64_t)packed); /* F32 */
    residency_destroy(rs);

    start(packed, 1); /* exact ones, to compare */
    float exact[64], top = 0, worst = 0;
    ck_assert_int_eq(wait_for(ids[0], &v), ERR_NONE);
    memcpy(exact, v->mat[PROJ_Q].a, sizeof exact);
    door.release(door.self, v);
    for (int i = 0; i < n; i++) top = fmaxf(top, fabsf(exact[i]));
    for (int i = 0; i < n; i++) worst = fmaxf(worst, fabsf(exact[i] - first[i]));
    ck_assert_float_gt(top, 0);
    ck_assert_float_le(worst, top / 254 * 1.0001f);
}
END_TEST

/* ---- a cold adapter waits alone -------------------------------------------------------------- */

/* The engine asks for what is there, lets go of it, hints and asks for more, again and again. */
static void engine_runs_on(uint64_t cold)
{
    const lora_view *v, *w;
    is_engine = true;
    for (int i = 0; i < 2000; i++) {
        ck_assert_int_eq(door.acquire(door.self, ids[i % 2], &v, &e), ERR_NONE);
        ck_assert_int_gt(door.chunks(door.self, v), 0);
        ck_assert_int_eq(door.acquire(door.self, cold, &w, &e), ERR_BUSY);
        door.want(door.self, ids[6 + i % 6], 1 + i);
        door.want(door.self, ids[6 + i % 6], 0);
        door.release(door.self, v);
    }
    is_engine = false;
}

/* A disk that does not answer, then packing that does not end: the engine is never kept waiting,
 * and never reads a file or packs a weight itself. */
START_TEST(test_stalls_nobody_else)
{
    const lora_view *v;
    host = packed * 16;
    for (stall at = READS_HANG; at <= PACKS_HANG; at++) {
        start(packed * 4, 2);
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(wait_for(ids[i], &v), ERR_NONE);
            door.release(door.self, v);
        }
        set_gate(at);
        uint64_t cold = ids[2 + (int)at];
        ck_assert_int_eq(door.acquire(door.self, cold, &v, &e), ERR_BUSY);
        await_hanging(1);
        engine_runs_on(cold);
        residency_warm(rs, ids[11]);
        (void)stats_now();
        ck_assert_int_eq(residency_get(rs, cold, NULL), RESIDENCY_LOADING);
        set_gate(GOES);
        ck_assert_int_eq(wait_for(cold, &v), ERR_NONE);
        door.release(door.self, v);
        residency_destroy(rs);
        rs = NULL;
    }
    ck_assert_int_eq(atomic_load(&n_engine_reads), 0);
}
END_TEST

/* ---- other threads warm, pin and delete while the engine works ------------------------------- */

static atomic_bool stop;

static void *meddler_main(void *arg)
{
    (void)arg;
    for (unsigned i = 0; !atomic_load(&stop); i++) {
        residency_warm(rs, ids[i % N_ADAPTERS]);
        if (i % 3 == 0 && residency_pin(rs, ids[i % 5], NULL) == ERR_NONE)
            residency_unpin(rs, ids[i % 5]);
        (void)stats_now();
        usleep(100);
    }
    return NULL;
}

START_TEST(test_meddling)
{
    host = packed * 4;
    start(packed * 3, 2);
    pthread_t th;
    atomic_store(&stop, false);
    pthread_create(&th, NULL, meddler_main, NULL);
    for (int i = 0; i < 150; i++) {
        const lora_view *v;
        int k = i * 5 % (N_ADAPTERS - 2);
        ck_assert_msg(wait_for(ids[k], &v) == ERR_NONE, "%s", e.msg);
        ck_assert_uint_eq(v->adapter_id, ids[k]);
        door.release(door.self, v);
        if (i == 70) registry_delete(reg, tenant_id, "a11", 0, true, NULL, &e);
    }
    atomic_store(&stop, true);
    pthread_join(th, NULL);
    ck_assert_uint_le(stats_now().used_bytes, packed * 3);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("residency");
    TCase *tc = tcase_create("residency");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_loads_what_was_uploaded);
    tcase_add_test(tc, test_filled);
    tcase_add_test(tc, test_popular_stays);
    tcase_add_test(tc, test_waiting_is_no_use);
    tcase_add_test(tc, test_acquired_stays);
    tcase_add_test(tc, test_small_budgets);
    tcase_add_test(tc, test_no_starvation);
    tcase_add_test(tc, test_abandoned_demand);
    tcase_add_test(tc, test_too_large);
    tcase_add_test(tc, test_damaged_files);
    tcase_add_test(tc, test_mended_files);
    tcase_add_test(tc, test_pins);
    tcase_add_test(tc, test_changes);
    tcase_add_test(tc, test_looking_evicts_nothing);
    tcase_add_loop_test(tc, test_lost_device, 0, 2);
    tcase_add_test(tc, test_deleted);
    tcase_add_test(tc, test_host_copies);
    tcase_add_test(tc, test_copies_go_up_again);
    tcase_add_test(tc, test_deadlines_order_the_queue);
    tcase_add_test(tc, test_hints_in_order_of_start);
    tcase_add_test(tc, test_copies_in_pace_with_steps);
    tcase_add_test(tc, test_eta);
    tcase_add_test(tc, test_int8_copies);
    tcase_add_test(tc, test_stalls_nobody_else);
    tcase_add_test(tc, test_meddling);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
