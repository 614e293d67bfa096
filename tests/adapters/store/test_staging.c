/* test_staging.c -- uploads in pieces: offsets, writers, checksums, restarts, expiry, no room. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

#include "adapters/store/staging.h"
#include "engine/base/clock.h"
#include "tests/adapters/make_adapter.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static char dir[64];
static store *st;
static registry *reg;
static storeroom *room;
static uint64_t floor_bytes;
static staging *sg;
static model_config base;
static uint64_t acme, bolt;
static bytes config, weights;
static err e;

static void open_all(void)
{
    ck_assert_int_eq(store_open(&st, dir, &(store_options){.create = true}, &e), ERR_NONE);
    registry_config cfg = {.reserved = {"base"}, .n_reserved = 1};
    ck_assert_int_eq(registry_create(&reg, st, &cfg, &e), ERR_NONE);
    ck_assert_int_eq(storeroom_create(&room, dir, floor_bytes, &e), ERR_NONE);
    upload_env env = {.reg = reg, .room = room, .base = &base, .max_bytes = 1 << 20};
    staging_config sc = {.max_open = 3, .expiry_us = 3600000000};
    ck_assert_int_eq(staging_open(&sg, &env, &sc, &e), ERR_NONE);
}

static void close_all(void)
{
    staging_close(sg);
    storeroom_destroy(room);
    registry_destroy(reg);
    store_close(st);
}

static uint64_t make_tenant(const char *name)
{
    tenant want = {0}, t;
    snprintf(want.name, sizeof want.name, "%s", name);
    ck_assert_int_eq(tenants_create(st, &want, &t, &e), ERR_NONE);
    return t.id;
}

static void setup(void)
{
    base = tiny_base();
    tmpdir_make(dir);
    open_all();
    acme = make_tenant("acme");
    bolt = make_tenant("bolt");
    config = make_config(4);
    weights = make_weights(&base, 4, "F32", 0.25f);
}

static void teardown(void)
{
    close_all();
    tmpdir_remove(dir);
    bytes_free(&config);
    bytes_free(&weights);
}

static staging_manifest manifest_of(uint64_t tenant_id, const char *name)
{
    staging_manifest m = {
        .tenant_id = tenant_id, .name = name, .activate = true, .bytes = {config.n, weights.n}};
    digest_bytes(config.p, config.n, m.sha[PART_CONFIG]);
    digest_bytes(weights.p, weights.n, m.sha[PART_WEIGHTS]);
    return m;
}

static staged_upload begin(uint64_t tenant_id, const char *name)
{
    staging_manifest m = manifest_of(tenant_id, name);
    staged_upload u;
    bool resumed;
    ck_assert_msg(staging_create(sg, &m, &u, &resumed, &e) == ERR_NONE, "%s", e.msg);
    return u;
}

/* One piece; what staging_write_begin(), the write or the end said first, and the new offset. */
static err_code put(const staged_upload *u, uint64_t tenant_id, folder_part p, int64_t offset,
                    const void *data, size_t len, uint64_t *at)
{
    staged_writer *w;
    uint64_t end;
    err_code code = staging_write_begin(sg, tenant_id, u->name, u->id, p, offset, &w, at, &e);
    if (code != ERR_NONE) return code;
    err why;
    code = staging_write(w, data, len, &e);
    err_code ended = staging_write_end(w, &end, &why);
    *at = end;
    if (code == ERR_NONE && ended != ERR_NONE) e = why;
    return code != ERR_NONE ? code : ended;
}

static void put_all(const staged_upload *u, uint64_t tenant_id)
{
    uint64_t at;
    ck_assert_int_eq(put(u, tenant_id, PART_CONFIG, 0, config.p, config.n, &at), ERR_NONE);
    ck_assert_int_eq(put(u, tenant_id, PART_WEIGHTS, 0, weights.p, weights.n, &at), ERR_NONE);
    ck_assert_uint_eq(at, weights.n);
}

static err_code commit(const staged_upload *u, uint64_t tenant_id, adapter_version *v,
                       folder_part *bad)
{
    publish_options o = {.tenant_id = tenant_id, .name = u->name};
    bool existed;
    return staging_commit(sg, u->id, &o, NULL, v, &existed, bad, &e);
}

static int count_files(const char *sub)
{
    char path[128];
    snprintf(path, sizeof path, "%s/adapters/%s", dir, sub);
    int n = 0;
    DIR *d = opendir(path);
    if (d == NULL) return 0;
    for (struct dirent *de; (de = readdir(d)) != NULL;) n += de->d_name[0] != '.';
    closedir(d);
    return n;
}

START_TEST(test_pieces)
{
    staged_upload u = begin(acme, "poet"), again;
    uint64_t at = 0;
    adapter_version v;
    folder_part bad;
    ck_assert(staging_is_id(u.id) && !staging_is_id("7") && !staging_is_id("u7"));
    ck_assert_int_eq(commit(&u, acme, &v, &bad), ERR_CONFLICT);
    ck_assert_int_eq(put(&u, acme, PART_CONFIG, 0, config.p, config.n, &at), ERR_NONE);
    for (size_t from = 0; from < weights.n; from = (size_t)at) {
        size_t len = weights.n - from < 1000 ? weights.n - from : 1000;
        ck_assert_int_eq(put(&u, acme, PART_WEIGHTS, (int64_t)from + 1, "x", 1, &at), ERR_CONFLICT);
        ck_assert_uint_eq(at, from);
        ck_assert_int_eq(put(&u, acme, PART_WEIGHTS, (int64_t)from, weights.p + from, len, &at),
                         ERR_NONE);
        ck_assert_uint_eq(at, from + len);
    }
    /* A complete file takes nothing more. */
    ck_assert_int_eq(put(&u, acme, PART_WEIGHTS, (int64_t)weights.n, "x", 1, &at), ERR_LIMIT);
    /* Nobody else's business. */
    ck_assert_int_eq(staging_get(sg, bolt, "poet", u.id, &again, &e), ERR_NOT_FOUND);
    ck_assert_int_eq(staging_get(sg, acme, "other", u.id, &again, &e), ERR_NOT_FOUND);
    ck_assert_int_eq(put(&u, bolt, PART_WEIGHTS, 0, "x", 1, &at), ERR_NOT_FOUND);
    ck_assert_int_eq(staging_drop(sg, bolt, "poet", u.id, &e), ERR_NOT_FOUND);
    ck_assert_msg(commit(&u, acme, &v, &bad) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(v.version, 1);
    ck_assert_int_eq(count_files("uploads"), 0);
    ck_assert_int_eq(count_files("tmp"), 0);
    ck_assert_int_eq(commit(&u, acme, &v, &bad), ERR_NOT_FOUND);
}
END_TEST

START_TEST(test_known_files_are_linked)
{
    staged_upload u = begin(acme, "poet");
    adapter_version v;
    folder_part bad;
    put_all(&u, acme);
    ck_assert_int_eq(commit(&u, acme, &v, &bad), ERR_NONE);
    staged_upload other = begin(bolt, "poet"); /* another tenant learns nothing */
    ck_assert(!other.file[0].skipped && !other.file[1].skipped);
    u = begin(acme, "second");
    ck_assert(u.file[0].skipped && u.file[1].skipped);
    /* Writing anew does not touch the published bytes. */
    uint64_t at;
    bytes zeros = {.p = calloc(1, weights.n), .n = weights.n};
    ck_assert_int_eq(put(&u, acme, PART_WEIGHTS, -1, zeros.p, zeros.n, &at), ERR_CORRUPT);
    ck_assert_uint_eq(at, 0);
    char path[300];
    registry_path(reg, v.digest, path, sizeof path);
    strcat(path, "/adapter_model.safetensors");
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fread(zeros.p, 1, zeros.n, f), weights.n);
    fclose(f);
    ck_assert_mem_eq(zeros.p, weights.p, weights.n);
    bytes_free(&zeros);
    ck_assert_int_eq(put(&u, acme, PART_WEIGHTS, 0, weights.p, weights.n, &at), ERR_NONE);
    ck_assert_int_eq(commit(&u, acme, &v, &bad), ERR_NONE);
    /* A link whose bytes rotted is found out before it is published. */
    u = begin(acme, "third");
    ck_assert(u.file[PART_WEIGHTS].skipped);
    int fd = open(path, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, "\x55", 1, (off_t)weights.n - 3), 1);
    close(fd);
    ck_assert_int_eq(commit(&u, acme, &v, &bad), ERR_CORRUPT);
    ck_assert_int_eq(bad, PART_WEIGHTS);
    ck_assert_int_eq(put(&u, acme, PART_WEIGHTS, 0, weights.p, weights.n, &at), ERR_NONE);
}
END_TEST

START_TEST(test_restart)
{
    staged_upload u = begin(acme, "poet"), again;
    uint64_t at;
    ck_assert_int_eq(put(&u, acme, PART_WEIGHTS, 0, weights.p, 777, &at), ERR_NONE);
    close_all();
    /* What a crash may leave: half a manifest, a folder without one, a file too long. */
    char path[300];
    snprintf(path, sizeof path, "%s/adapters/uploads/u0000000000000001", dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/adapters/uploads/u0000000000000002.json", dir);
    FILE *f = fopen(path, "w");
    fputs("{\"tenant\":\"1\",", f);
    fclose(f);
    snprintf(path, sizeof path, "%s/adapters/uploads/u0000000000000003.new", dir);
    f = fopen(path, "w");
    fclose(f);
    open_all();
    ck_assert_int_eq(count_files("uploads"), 2);
    staging_manifest m = manifest_of(acme, "poet");
    bool resumed;
    ck_assert_int_eq(staging_create(sg, &m, &again, &resumed, &e), ERR_NONE);
    ck_assert(resumed && strcmp(again.id, u.id) == 0);
    ck_assert_uint_eq(again.file[PART_WEIGHTS].offset, 777);
    ck_assert_int_eq(put(&u, acme, PART_WEIGHTS, 777, weights.p + 777, weights.n - 777, &at),
                     ERR_NONE);
    close_all();
    snprintf(path, sizeof path, "%s/adapters/uploads/%s/adapter_model.safetensors", dir, u.id);
    ck_assert_int_eq(truncate(path, (off_t)weights.n + 1), 0);
    open_all();
    ck_assert_int_eq(staging_get(sg, acme, "poet", u.id, &again, &e), ERR_NOT_FOUND);
    ck_assert_int_eq(count_files("uploads"), 0);
}
END_TEST

/* Every byte of a manifest on the disk, changed or cut: taken as it is or removed, never a
 * crash. */
START_TEST(test_broken_manifests)
{
    staged_upload u = begin(acme, "poet");
    char path[300], text[4096];
    snprintf(path, sizeof path, "%s/adapters/uploads/%s.json", dir, u.id);
    FILE *f = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    for (size_t i = 0; i < n; i += 3) {
        staging_close(sg);
        char folder[300];
        snprintf(folder, sizeof folder, "%s/adapters/uploads/%s", dir, u.id);
        mkdir(folder, 0700);
        f = fopen(path, "w");
        if (i % 2 == 0) {
            char c = text[i];
            text[i] = (char)(c ^ 0x15);
            fwrite(text, 1, n, f);
            text[i] = c;
        } else {
            fwrite(text, 1, i, f);
        }
        fclose(f);
        upload_env env = {.reg = reg, .room = room, .base = &base, .max_bytes = 1 << 20};
        ck_assert_int_eq(staging_open(&sg, &env, &(staging_config){0}, &e), ERR_NONE);
    }
}
END_TEST

START_TEST(test_limits_and_expiry)
{
    staging_manifest m = manifest_of(acme, "poet");
    staged_upload u;
    bool resumed;
    m.bytes[PART_WEIGHTS] = 2 << 20;
    ck_assert_int_eq(staging_create(sg, &m, &u, &resumed, &e), ERR_LIMIT);
    m = manifest_of(acme, "poet");
    m.bytes[PART_WEIGHTS] = UINT64_MAX;
    ck_assert_int_eq(staging_create(sg, &m, &u, &resumed, &e), ERR_LIMIT);
    m = manifest_of(acme, "poet");
    m.quota.bytes = 100;
    ck_assert_int_eq(staging_create(sg, &m, &u, &resumed, &e), ERR_LIMIT);
    m = manifest_of(acme, "base");
    ck_assert_int_eq(staging_create(sg, &m, &u, &resumed, &e), ERR_INPUT);
    m = manifest_of(acme, "../x");
    ck_assert_int_eq(staging_create(sg, &m, &u, &resumed, &e), ERR_INPUT);
    ck_assert_int_eq(count_files("uploads"), 0);
    begin(acme, "one");
    begin(acme, "two");
    begin(acme, "three");
    m = manifest_of(acme, "four");
    ck_assert_int_eq(staging_create(sg, &m, &u, &resumed, &e), ERR_LIMIT);
    staged_upload b = begin(bolt, "one"); /* each tenant for itself */
    /* A writer at work keeps its upload; the idle ones go. */
    staged_writer *w;
    uint64_t at;
    ck_assert_int_eq(staging_write_begin(sg, bolt, "one", b.id, PART_CONFIG, 0, &w, &at, &e),
                     ERR_NONE);
    ck_assert_int_eq(staging_expire(sg, clock_now_us() + 3000000000), 0);
    ck_assert_int_eq(staging_expire(sg, clock_now_us() + 3601000000), 3);
    ck_assert_int_eq(staging_write(w, config.p, config.n, &e), ERR_NONE);
    ck_assert_int_eq(staging_write_end(w, &at, &e), ERR_NONE);
    ck_assert_int_eq(count_files("uploads"), 2);
}
END_TEST

/* The kernel's limit on a file's size stands for a full disk where none can be mounted. */
START_TEST(test_no_room)
{
    staged_upload u = begin(acme, "poet");
    uint64_t at;
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 3000;
    setrlimit(RLIMIT_FSIZE, &small);
    err_code code = put(&u, acme, PART_WEIGHTS, 0, weights.p, weights.n, &at);
    setrlimit(RLIMIT_FSIZE, &old);
    ck_assert_int_gt((int)weights.n, 3000);
    ck_assert_msg(code == ERR_NO_ROOM, "%d %s", code, e.msg);
    ck_assert_uint_eq(at, 3000);
    ck_assert_int_eq(put(&u, acme, PART_WEIGHTS, 3000, weights.p + 3000, weights.n - 3000, &at),
                     ERR_NONE);
    ck_assert_int_eq(put(&u, acme, PART_CONFIG, 0, config.p, config.n, &at), ERR_NONE);
    adapter_version v;
    folder_part bad;
    ck_assert_msg(commit(&u, acme, &v, &bad) == ERR_NONE, "%s", e.msg);
}
END_TEST

typedef struct {
    staged_upload u;
    atomic_int n_won, n_busy, n_other;
} race;

static void *push(void *arg)
{
    race *r = arg;
    for (int i = 0; i < 30; i++) {
        staged_writer *w;
        uint64_t at;
        err why;
        staged_upload seen;
        err_code code =
            staging_write_begin(sg, acme, r->u.name, r->u.id, PART_WEIGHTS, -1, &w, &at, &why);
        if (code == ERR_NONE) {
            for (size_t from = 0; from < weights.n && code == ERR_NONE; from += 999) {
                size_t len = weights.n - from < 999 ? weights.n - from : 999;
                code = staging_write(w, weights.p + from, len, &why);
            }
            if (staging_write_end(w, &at, &why) != ERR_NONE || at != weights.n) code = ERR_CORRUPT;
        }
        atomic_fetch_add(code == ERR_NONE   ? &r->n_won
                         : code == ERR_BUSY ? &r->n_busy
                                            : &r->n_other,
                         1);
        (void)staging_get(sg, acme, r->u.name, r->u.id, &seen, &why);
        (void)staging_expire(sg, clock_now_us());
    }
    return NULL;
}

/* Many writers of one file: one at a time gets in, the others are told so,
 * the bytes are never mixed. */
START_TEST(test_writers_race)
{
    race r = {.u = begin(acme, "poet")};
    pthread_t th[4];
    for (int i = 0; i < 4; i++) pthread_create(&th[i], NULL, push, &r);
    for (int i = 0; i < 4; i++) pthread_join(th[i], NULL);
    ck_assert_int_eq(r.n_other, 0);
    ck_assert_int_gt(r.n_won, 0);
    ck_assert_int_eq(r.n_won + r.n_busy, 120);
    uint64_t at;
    ck_assert_int_eq(put(&r.u, acme, PART_CONFIG, 0, config.p, config.n, &at), ERR_NONE);
    adapter_version v;
    folder_part bad;
    ck_assert_msg(commit(&r.u, acme, &v, &bad) == ERR_NONE, "%s", e.msg);
}
END_TEST

START_TEST(test_bad_adapters_end)
{
    staging_manifest m = manifest_of(acme, "poet");
    staged_upload u;
    bool resumed;
    uint64_t at;
    digest_bytes("{}", 2, m.sha[PART_CONFIG]);
    m.bytes[PART_CONFIG] = 2;
    ck_assert_int_eq(staging_create(sg, &m, &u, &resumed, &e), ERR_NONE);
    ck_assert_int_eq(put(&u, acme, PART_CONFIG, 0, "{}", 2, &at), ERR_NONE);
    ck_assert_int_eq(put(&u, acme, PART_WEIGHTS, 0, weights.p, weights.n, &at), ERR_NONE);
    adapter_version v;
    folder_part bad;
    err_code code = commit(&u, acme, &v, &bad);
    ck_assert_msg(code == ERR_INPUT || code == ERR_UNSUPPORTED, "%d %s", code, e.msg);
    ck_assert_int_eq(bad, PART_ALL);
    ck_assert_int_eq(count_files("uploads"), 0);
    ck_assert_int_eq(count_files("tmp"), 0);
    adapter_entry a;
    ck_assert_int_eq(registry_get(reg, acme, "poet", &a, &e), ERR_NOT_FOUND);
    /* Refused for a moment's reason: it stays and can be committed later. */
    u = begin(acme, "poet");
    put_all(&u, acme);
    publish_options o = {.tenant_id = acme, .name = "poet", .if_generation = true, .generation = 5};
    bool existed;
    ck_assert_int_eq(staging_commit(sg, u.id, &o, NULL, &v, &existed, &bad, &e), ERR_STALE);
    ck_assert_int_eq(count_files("tmp"), 0);
    o.generation = 0;
    ck_assert_int_eq(staging_commit(sg, u.id, &o, NULL, &v, &existed, &bad, &e), ERR_NONE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("staging");
    TCase *tc = tcase_create("staging");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_pieces);
    tcase_add_test(tc, test_known_files_are_linked);
    tcase_add_test(tc, test_restart);
    tcase_add_test(tc, test_broken_manifests);
    tcase_add_test(tc, test_limits_and_expiry);
    tcase_add_test(tc, test_no_room);
    tcase_add_test(tc, test_writers_race);
    tcase_add_test(tc, test_bad_adapters_end);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
