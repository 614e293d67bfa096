/* test_storeroom.c -- the disk's floor, tenants' quotas, and room that idle
 * uploads lend; on a small disk. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

#include "adapters/store/staging.h"
#include "adapters/store/upload.h"
#include "tests/adapters/make_adapter.h"
#include "tests/run_suite.h"
#include "tests/storage/smalldisk.h"
#include "tests/tmpdir.h"

enum { MIB = 1 << 20, FLOOR = 4 * MIB };

static char dir[64];
static store *st;
static registry *reg;
static storeroom *room;
static staging *sg;
static upload_env env;
static model_config base;
static uint64_t acme, bolt;
static bool mounted;
static err e;

static void open_all(uint64_t floor_bytes)
{
    ck_assert_int_eq(store_open(&st, dir, &(store_options){.create = true}, &e), ERR_NONE);
    ck_assert_int_eq(registry_create(&reg, st, NULL, &e), ERR_NONE);
    ck_assert_int_eq(storeroom_create(&room, dir, floor_bytes, &e), ERR_NONE);
    env = (upload_env){.reg = reg, .room = room, .base = &base, .max_bytes = 64 * MIB};
    ck_assert_int_eq(staging_open(&sg, &env, &(staging_config){.max_open = 100}, &e), ERR_NONE);
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
    mounted = small_disk(dir, "32m");
    open_all(FLOOR);
    acme = make_tenant("acme");
    bolt = make_tenant("bolt");
}

static void teardown(void)
{
    close_all();
    small_disk_end(dir);
    tmpdir_remove(dir);
}

/* A manifest of so many bytes, of which nothing is sent. */
static err_code begin(uint64_t tenant_id, const char *name, uint64_t size, int64_t limit,
                      int64_t share, staged_upload *out)
{
    bool resumed;
    staging_manifest m = {
        .tenant_id = tenant_id, .name = name, .bytes = {100, size - 100}, .quota = {limit, share}};
    return staging_create(sg, &m, out, &resumed, &e);
}

static err_code begin_free(uint64_t tenant_id, const char *name, uint64_t size, staged_upload *out)
{
    return begin(tenant_id, name, size, 0, 0, out);
}

static staged_writer *writer(uint64_t tenant_id, const char *name, const char *id, int64_t offset)
{
    staged_writer *w;
    uint64_t at;
    ck_assert_msg(staging_write_begin(sg, tenant_id, name, id, PART_WEIGHTS, offset, &w, &at, &e) ==
                      ERR_NONE,
                  "%s", e.msg);
    return w;
}

START_TEST(test_quotas)
{
    staged_upload u;
    char name[20];
    int n = 0;
    /* The attack: manifests, and not a byte sent. */
    for (; n < 19; n++) {
        snprintf(name, sizeof name, "a%d", n);
        if (begin(acme, name, MIB, 0, 3 * MIB + 5, &u) != ERR_NONE) break;
    }
    ck_assert_int_eq(n, 3);
    ck_assert_int_eq(e.code, ERR_LIMIT);
    ck_assert_msg(strstr(e.msg, "adapters.tenant_bytes, which is 3145733") != NULL, "%s", e.msg);
    ck_assert_msg(strstr(e.msg, "uploads 3145728; 1048576 more") != NULL, "%s", e.msg);
    ck_assert_uint_eq(storeroom_held(room, acme), 3 * MIB);
    ck_assert_int_eq(begin(acme, "b", MIB, 3 * MIB, 0, &u), ERR_LIMIT);
    ck_assert_msg(strstr(e.msg, "its limit max_adapter_bytes, which is 3145728") != NULL, "%s",
                  e.msg);
    ck_assert_int_eq(begin(bolt, "b", MIB, 0, MIB, &u), ERR_NONE); /* each for itself */
    /* Held across a restart; gone with the upload. */
    close_all();
    open_all(FLOOR);
    ck_assert_uint_eq(storeroom_held(room, acme), 3 * MIB);
    ck_assert_uint_eq(storeroom_held(room, bolt), MIB);
    ck_assert_int_eq(staging_drop(sg, bolt, "b", u.id, &e), ERR_NONE);
    ck_assert_uint_eq(storeroom_held(room, bolt), 0);
    ck_assert_int_eq(staging_drop_all(sg, acme), 3);
    ck_assert_uint_eq(storeroom_held(room, acme), 0);
    ck_assert_int_eq(staging_drop_all(sg, acme), 0);
}
END_TEST

/* What is published counts, tiny ones for more than they have, an operator's tree for nothing. */
START_TEST(test_published_counts)
{
    uint8_t digest[DIGEST_BYTES] = {0};
    registry_new_version nv = {.tenant_id = acme,
                               .name = "tiny",
                               .digest = digest,
                               .file_bytes = 10,
                               .packed_bytes = 10,
                               .rank_max = 1,
                               .info = "{}"};
    registry_totals t;
    staged_upload u;
    ck_assert_int_eq(registry_publish(reg, &nv, NULL, NULL, &e), ERR_NONE);
    digest[0] = 1;
    nv.in_place = true;
    nv.file_bytes = 5 * MIB;
    nv.name = "big";
    ck_assert_int_eq(registry_publish(reg, &nv, NULL, NULL, &e), ERR_NONE);
    registry_totals_get(reg, acme, &t);
    ck_assert_uint_eq(t.file_bytes, 5 * MIB + 10);
    ck_assert_uint_eq(t.disk_bytes, REGISTRY_VERSION_LEAST);
    ck_assert_int_eq(begin(acme, "a", MIB, 0, MIB, &u), ERR_LIMIT);
    ck_assert_int_eq(begin(acme, "a", MIB, 0, MIB + REGISTRY_VERSION_LEAST, &u), ERR_NONE);
    ck_assert_int_eq(begin(acme, "b", MIB, 6 * MIB, 0, &u), ERR_LIMIT);
}
END_TEST

START_TEST(test_floor)
{
    staged_upload u;
    if (!mounted) return;
    uint64_t room_now = small_disk_free(dir) - FLOOR;
    ck_assert_int_eq(begin_free(acme, "a", room_now + 4096, &u), ERR_NO_ROOM);
    ck_assert_uint_ge(small_disk_free(dir), FLOOR + room_now - 65536); /* nothing is left behind */
    ck_assert_uint_eq(storeroom_held(room, acme), 0);
    ck_assert_int_eq(begin_free(acme, "a", room_now - 65536, &u), ERR_NONE);
    ck_assert_uint_ge(small_disk_free(dir), FLOOR);
    /* A writer at work lends, too; what it writes then is asked for piece by piece. */
    static char piece[MIB];
    uint64_t at;
    staged_writer *w = writer(acme, "a", u.id, 0);
    ck_assert_int_eq(staging_write(w, piece, 5000, &e), ERR_NONE);
    ck_assert_int_eq(begin_free(bolt, "b", 2 * MIB, &u), ERR_NONE);
    ck_assert_int_eq(staging_write(w, piece, sizeof piece, &e), ERR_NONE);
    ck_assert_uint_ge(small_disk_free(dir), FLOOR);
    ck_assert(small_disk_fill(dir, FLOOR - MIB)); /* somebody else's; bolt has nearly 2 to lend */
    ck_assert_int_eq(staging_write(w, piece, sizeof piece / 4, &e), ERR_NONE);
    ck_assert_int_eq(staging_write(w, piece, sizeof piece, &e), ERR_NO_ROOM);
    ck_assert_int_eq(staging_write_end(w, &at, &e), ERR_NONE);
    ck_assert_uint_eq(at, 5000 + MIB + MIB / 4);
    small_disk_empty(dir);
}
END_TEST

static uint64_t blocks_of(const char *id)
{
    char path[300];
    struct stat sb;
    snprintf(path, sizeof path, "%s/adapters/uploads/%s/adapter_model.safetensors", dir, id);
    ck_assert_int_eq(stat(path, &sb), 0);
    return (uint64_t)sb.st_blocks * 512;
}

START_TEST(test_idle_uploads_lend)
{
    staged_upload a[2], b, now;
    char some[5000];
    uint64_t at;
    if (!mounted) return;
    memset(some, 'x', sizeof some);
    ck_assert_int_eq(begin_free(acme, "a0", 8 * MIB, &a[0]), ERR_NONE);
    ck_assert_int_eq(begin_free(acme, "a1", 12 * MIB, &a[1]), ERR_NONE);
    staged_writer *w = writer(acme, "a0", a[0].id, 0);
    ck_assert_int_eq(staging_write(w, some, sizeof some, &e), ERR_NONE);
    ck_assert_int_eq(staging_write_end(w, &at, &e), ERR_NONE);
    ck_assert_uint_ge(blocks_of(a[0].id), 7 * MIB);
    /* The one idle for longer lends first, and no more than is needed. */
    ck_assert_int_eq(begin_free(bolt, "b", 10 * MIB, &b), ERR_NONE);
    ck_assert_uint_eq(blocks_of(a[1].id), 0);
    ck_assert_uint_ge(blocks_of(a[0].id), 7 * MIB);
    ck_assert_uint_ge(blocks_of(b.id), 9 * MIB);
    ck_assert_uint_ge(small_disk_free(dir), FLOOR);
    /* Who comes back takes it again, from whoever is idle: its own other upload here. */
    ck_assert_int_eq(staging_write_begin(sg, acme, "a1", a[1].id, PART_WEIGHTS, 0, &w, &at, &e),
                     ERR_NONE);
    ck_assert_uint_ge(blocks_of(a[1].id), 11 * MIB);
    ck_assert_uint_lt(blocks_of(a[0].id), MIB);
    ck_assert_uint_ge(blocks_of(b.id), 9 * MIB); /* the smaller holder's stays */
    /* What was confirmed is there. */
    ck_assert_int_eq(staging_write_end(w, &at, &e), ERR_NONE);
    ck_assert_int_eq(staging_get(sg, acme, "a0", a[0].id, &now, &e), ERR_NONE);
    ck_assert_uint_eq(now.file[PART_WEIGHTS].offset, sizeof some);
    w = writer(acme, "a0", a[0].id, sizeof some);
    ck_assert_int_eq(staging_write(w, some, sizeof some, &e), ERR_NONE);
    ck_assert_int_eq(staging_write_end(w, &at, &e), ERR_NONE);
    ck_assert_uint_eq(at, 2 * sizeof some);
    ck_assert_uint_ge(small_disk_free(dir), FLOOR);
}
END_TEST

/* A tar in one piece keeps to both rules as well, and is lent to. */
START_TEST(test_a_tar)
{
    upload *u;
    staged_upload s;
    upload_options o = {.tenant_id = acme, .name = "t", .content_bytes = -1, .quota = {0, 2 * MIB}};
    uint8_t head[512];
    tar_header(head, "adapter_model.safetensors", '0', 3 * MIB);
    ck_assert_int_eq(upload_begin(&u, &env, &o, &e), ERR_NONE);
    ck_assert_int_eq(upload_write(u, head, sizeof head, &e), ERR_LIMIT);
    upload_abort(u);
    ck_assert_uint_eq(storeroom_held(room, acme), 0);
    o.quota.share = 0;
    tar_header(head, "adapter_model.safetensors", '0', 12 * MIB);
    if (mounted) ck_assert_int_eq(begin_free(bolt, "b", 20 * MIB, &s), ERR_NONE);
    ck_assert_int_eq(upload_begin(&u, &env, &o, &e), ERR_NONE);
    ck_assert_msg(upload_write(u, head, sizeof head, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_uint_eq(storeroom_held(room, acme), 12 * MIB);
    if (mounted) ck_assert_uint_ge(small_disk_free(dir), FLOOR);
    if (mounted) ck_assert_int_eq(begin_free(bolt, "c", 20 * MIB, &s), ERR_NO_ROOM);
    upload_abort(u);
    ck_assert_uint_eq(storeroom_held(room, acme), 0);
    if (mounted) ck_assert_int_eq(begin_free(bolt, "c", 20 * MIB, &s), ERR_NONE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("storeroom");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, test_quotas);
    tcase_add_test(tc, test_published_counts);
    tcase_add_test(tc, test_floor);
    tcase_add_test(tc, test_idle_uploads_lend);
    tcase_add_test(tc, test_a_tar);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
