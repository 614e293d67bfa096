/* test_registry.c -- names, versions, aliases, pins; what a restart and a delete leave. */
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

#include "adapters/store/registry.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static char dir[64];
static store *st;
static registry *reg;
static uint64_t acme, bolt;
static err e;

static void open_all(void)
{
    ck_assert_msg(store_open(&st, dir, &(store_options){.create = true}, &e) == ERR_NONE, "%s",
                  e.msg);
    registry_config cfg = {.reserved = {"base"}, .n_reserved = 1};
    ck_assert_msg(registry_create(&reg, st, &cfg, &e) == ERR_NONE, "%s", e.msg);
}

static void reopen(void)
{
    registry_destroy(reg);
    store_close(st);
    open_all();
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
    tmpdir_make(dir);
    open_all();
    acme = make_tenant("acme");
    bolt = make_tenant("bolt");
}

static void teardown(void)
{
    registry_destroy(reg);
    store_close(st);
    tmpdir_remove(dir);
}

/* Files of content number `n`, as an upload leaves them. */
static void make_files(int n, uint8_t digest[DIGEST_BYTES])
{
    char path[256], file[300];
    digest_bytes(&n, sizeof n, digest);
    registry_path(reg, digest, path, sizeof path);
    mkdir(path, 0700);
    const char *names[] = {"adapter_config.json", "adapter_model.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        FILE *f = fopen(file, "w");
        ck_assert_ptr_nonnull(f);
        fprintf(f, "content %d", n);
        fclose(f);
    }
}

static bool files_there(int n)
{
    uint8_t digest[DIGEST_BYTES];
    char path[256];
    digest_bytes(&n, sizeof n, digest);
    registry_path(reg, digest, path, sizeof path);
    return access(path, F_OK) == 0;
}

static err_code publish_as(uint64_t tenant_id, const char *name, int content, bool activate,
                           adapter_version *out, bool *existed, int64_t max_adapters,
                           int64_t max_bytes)
{
    uint8_t digest[DIGEST_BYTES];
    make_files(content, digest);
    registry_new_version nv = {.tenant_id = tenant_id,
                               .name = name,
                               .digest = digest,
                               .file_bytes = 1000,
                               .packed_bytes = 2000,
                               .rank_max = 8,
                               .info = "{\"r\":8}",
                               .activate = activate,
                               .max_adapters = max_adapters,
                               .max_bytes = max_bytes};
    return registry_publish(reg, &nv, out, existed, &e);
}

static adapter_version publish(uint64_t tenant_id, const char *name, int content, bool activate)
{
    adapter_version v;
    ck_assert_msg(publish_as(tenant_id, name, content, activate, &v, NULL, 0, 0) == ERR_NONE, "%s",
                  e.msg);
    return v;
}

static int version_of(uint64_t tenant_id, const char *model)
{
    const adapter_version *v;
    if (registry_acquire(reg, tenant_id, model, false, &v, &e) != ERR_NONE) return -(int)e.code;
    int n = v->version;
    registry_release(reg, v);
    return n;
}

START_TEST(test_resolve)
{
    publish(acme, "poet", 1, true);
    publish(acme, "poet", 2, false);
    publish(acme, "poet", 3, true);
    publish(bolt, "poet", 4, true);
    publish(acme, "hymn", 6, true);
    publish(acme, "hymn", 7, false);
    uint64_t generation;
    ck_assert_int_eq(registry_set_alias(reg, acme, "poet", "canary", 2, -1, &generation, &e),
                     ERR_NONE);
    for (int pass = 0; pass < 2; pass++) {
        ck_assert_int_eq(version_of(acme, "poet"), 3);
        ck_assert_int_eq(version_of(acme, "poet@1"), 1);
        ck_assert_int_eq(version_of(acme, "poet:canary"), 2);
        ck_assert_int_eq(version_of(acme, "poet:default"), 3);
        ck_assert_int_eq(version_of(bolt, "poet"), 1);
        ck_assert_int_eq(version_of(acme, "hymn"), 1);
        ck_assert_int_eq(version_of(acme, "hymn@latest"), 2);
        reopen();
    }
    const char *unknown[] = {"",
                             "Poet",
                             "poet@",
                             "poet@0",
                             "poet@01",
                             "poet@9",
                             "poet@x",
                             "poet@1x",
                             "poet:",
                             "poet:nope",
                             "poet@1:a",
                             "acme/poe",
                             "bolt/poet",
                             "poet@-1",
                             "poet:De",
                             "poet/x",
                             "other",
                             "/poet",
                             "poet@1@1",
                             "poet@99999999999",
                             "poet@latest7",
                             "poet@Latest",
                             "other@latest",
                             "poet@latest:canary"};
    char first[248] = "";
    for (size_t i = 0; i < sizeof unknown / sizeof(*unknown); i++) {
        const adapter_version *v;
        ck_assert_msg(registry_acquire(reg, acme, unknown[i], false, &v, &e) == ERR_NOT_FOUND,
                      "'%s' gives %d", unknown[i], e.code);
        ck_assert_ptr_null(v);
    }
    /* Another tenant's adapter and one that nobody has: the same sentence but for the name. */
    publish(bolt, "only-bolts", 5, true);
    const adapter_version *v;
    ck_assert_int_eq(registry_acquire(reg, acme, "only-bolts", false, &v, &e), ERR_NOT_FOUND);
    snprintf(first, sizeof first, "%s", strstr(e.msg, "' "));
    ck_assert_int_eq(registry_acquire(reg, acme, "nobodys", false, &v, &e), ERR_NOT_FOUND);
    ck_assert_str_eq(first, strstr(e.msg, "' "));
    /* Administrators name the tenant. */
    ck_assert_int_eq(registry_acquire(reg, 0, "bolt/poet@1", true, &v, &e), ERR_NONE);
    ck_assert_uint_eq(v->tenant_id, bolt);
    registry_release(reg, v);
    ck_assert_int_eq(registry_acquire(reg, 0, "zork/poet", true, &v, &e), ERR_NOT_FOUND);
    ck_assert_int_eq(publish_as(acme, "base", 9, true, NULL, NULL, 0, 0), ERR_INPUT);
    ck_assert_int_eq(publish_as(acme, "Bad Name", 9, true, NULL, NULL, 0, 0), ERR_INPUT);
}
END_TEST

START_TEST(test_aliases)
{
    publish(acme, "poet", 1, true);
    publish(acme, "poet", 2, true);
    uint64_t g;
    adapter_entry en;
    ck_assert_int_eq(registry_get(reg, acme, "poet", &en, &e), ERR_NONE);
    g = en.generation;
    ck_assert_int_eq(registry_set_alias(reg, acme, "poet", "default", 1, (int64_t)g + 7, NULL, &e),
                     ERR_STALE);
    ck_assert_int_eq(registry_set_alias(reg, acme, "poet", "default", 1, (int64_t)g, &g, &e),
                     ERR_NONE);
    ck_assert_uint_gt(g, en.generation);
    ck_assert_int_eq(version_of(acme, "poet"), 1);
    ck_assert_int_eq(registry_set_alias(reg, acme, "poet", "default", 9, -1, NULL, &e),
                     ERR_NOT_FOUND);
    ck_assert_int_eq(registry_set_alias(reg, acme, "poet", "No", 1, -1, NULL, &e), ERR_INPUT);
    ck_assert_int_eq(registry_set_alias(reg, bolt, "poet", "x", 1, -1, NULL, &e), ERR_NOT_FOUND);
    int n;
    ck_assert_int_eq(registry_rollback(reg, acme, "poet", "default", -1, &n, &e), ERR_NONE);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(registry_rollback(reg, acme, "poet", "default", -1, &n, &e), ERR_NONE);
    ck_assert_int_eq(n, 1); /* and forth again */
    ck_assert_int_eq(registry_rollback(reg, acme, "poet", "nope", -1, &n, &e), ERR_NOT_FOUND);
    publish(acme, "solo", 3, true);
    ck_assert_int_eq(registry_rollback(reg, acme, "solo", "default", -1, &n, &e), ERR_CONFLICT);

    char alias[16];
    for (int i = 0; i < REGISTRY_ALIAS_MAX - 1; i++) {
        snprintf(alias, sizeof alias, "a%d", i);
        ck_assert_int_eq(registry_set_alias(reg, acme, "poet", alias, 1, -1, NULL, &e), ERR_NONE);
    }
    ck_assert_int_eq(registry_set_alias(reg, acme, "poet", "more", 1, -1, NULL, &e), ERR_LIMIT);
    ck_assert_int_eq(registry_drop_alias(reg, acme, "poet", "default", -1, &e), ERR_CONFLICT);
    ck_assert_int_eq(registry_drop_alias(reg, acme, "poet", "nope", -1, &e), ERR_NOT_FOUND);
    ck_assert_int_eq(registry_drop_alias(reg, acme, "poet", "a3", -1, &e), ERR_NONE);
    ck_assert_int_eq(version_of(acme, "poet:a3"), -ERR_NOT_FOUND);
    bool pinned = true;
    ck_assert_int_eq(registry_set_meta(reg, acme, "poet", "writes verse", &pinned, &e), ERR_NONE);
    reopen();
    ck_assert_int_eq(registry_get(reg, acme, "poet", &en, &e), ERR_NONE);
    ck_assert_int_eq(en.n_alias, REGISTRY_ALIAS_MAX - 1);
    ck_assert_int_eq(en.default_version, 1);
    ck_assert_str_eq(en.description, "writes verse");
    ck_assert(en.pinned);
    ck_assert_int_eq(en.n_versions, 2);
}
END_TEST

START_TEST(test_same_content)
{
    adapter_version v;
    bool existed;
    publish(acme, "poet", 1, true);
    ck_assert_int_eq(publish_as(acme, "poet", 1, true, &v, &existed, 0, 0), ERR_NONE);
    ck_assert(existed);
    ck_assert_int_eq(v.version, 1);
    publish(acme, "poet", 2, true);
    ck_assert_int_eq(publish_as(acme, "poet", 1, true, &v, &existed, 0, 0), ERR_NONE);
    ck_assert(!existed); /* an older one's content again: a new version of it */
    ck_assert_int_eq(v.version, 3);
    /* Another tenant uploads the same bytes: one copy on the disk, two adapters. */
    adapter_version w = publish(bolt, "mine", 1, true);
    ck_assert_uint_ne(w.id, v.id);
    ck_assert_int_eq(version_of(acme, "mine"), -ERR_NOT_FOUND);
    ck_assert_int_eq(registry_delete(reg, acme, "poet", 0, false, NULL, &e), ERR_NONE);
    ck_assert(files_there(1)); /* bolt still has it */
    ck_assert(!files_there(2));
    ck_assert_int_eq(version_of(bolt, "mine"), 1);
    ck_assert_int_eq(registry_delete(reg, bolt, "mine", 0, false, NULL, &e), ERR_NONE);
    ck_assert(!files_there(1));
}
END_TEST

static uint64_t last_gone;
static atomic_int n_gone;

static void gone_cb(void *self, uint64_t id)
{
    ck_assert_ptr_eq(self, &n_gone);
    last_gone = id;
    atomic_fetch_add(&n_gone, 1);
}

START_TEST(test_delete_while_pinned)
{
    atomic_store(&n_gone, 0);
    registry_on_gone(reg, gone_cb, &n_gone);
    publish(acme, "poet", 1, true);
    adapter_version two = publish(acme, "poet", 2, true);
    const adapter_version *v, *again;
    bool draining;
    /* One version: not while an alias points at it, not while it is held, then with drain. */
    ck_assert_int_eq(registry_delete(reg, acme, "poet", 2, true, &draining, &e), ERR_CONFLICT);
    ck_assert_int_eq(registry_delete(reg, acme, "poet", 7, true, &draining, &e), ERR_NOT_FOUND);
    ck_assert_int_eq(registry_acquire(reg, acme, "poet@1", false, &v, &e), ERR_NONE);
    ck_assert_int_eq(registry_delete(reg, acme, "poet", 1, false, &draining, &e), ERR_CONFLICT);
    ck_assert_int_eq(version_of(acme, "poet@1"), 1);
    ck_assert_int_eq(registry_delete(reg, acme, "poet", 1, true, &draining, &e), ERR_NONE);
    ck_assert(draining);
    ck_assert_int_eq(version_of(acme, "poet@1"), -ERR_CONFLICT);
    ck_assert(files_there(1));
    ck_assert_int_eq(registry_acquire_id(reg, v->id, &again, &e), ERR_NONE); /* for the loader */
    registry_release(reg, again);
    ck_assert_int_eq(atomic_load(&n_gone), 0);
    ck_assert_str_eq(v->name, "poet");
    registry_release(reg, v);
    ck_assert_int_eq(atomic_load(&n_gone), 1);
    ck_assert(!files_there(1));
    ck_assert_int_eq(version_of(acme, "poet@1"), -ERR_NOT_FOUND);
    ck_assert_int_eq(version_of(acme, "poet"), 2);

    /* The whole name. */
    ck_assert_int_eq(registry_acquire(reg, acme, "poet", false, &v, &e), ERR_NONE);
    ck_assert_int_eq(registry_delete(reg, acme, "poet", 0, false, &draining, &e), ERR_CONFLICT);
    ck_assert_int_eq(registry_delete(reg, acme, "poet", 0, true, &draining, &e), ERR_NONE);
    ck_assert(draining);
    ck_assert_int_eq(version_of(acme, "poet"), -ERR_NOT_FOUND);
    adapter_entry en;
    ck_assert_int_eq(registry_get(reg, acme, "poet", &en, &e), ERR_NOT_FOUND);
    ck_assert_int_eq(publish_as(acme, "poet", 5, true, NULL, NULL, 0, 0), ERR_CONFLICT);
    registry_release(reg, v);
    ck_assert_int_eq(atomic_load(&n_gone), 2);
    ck_assert_uint_eq(last_gone, two.id);
    adapter_version fresh = publish(acme, "poet", 2, true);
    ck_assert_int_eq(fresh.version, 1);
    ck_assert_uint_ne(fresh.id, two.id);
    reopen();
    ck_assert_int_eq(version_of(acme, "poet"), 1);
    ck_assert_int_eq(version_of(acme, "poet@2"), -ERR_NOT_FOUND);
}
END_TEST

/* A trainer publishes every minute: what nobody holds or names goes, the rest with its last
 * hold. */
START_TEST(test_prune)
{
    const adapter_version *held;
    atomic_store(&n_gone, 0);
    registry_on_gone(reg, gone_cb, &n_gone);
    for (int i = 1; i <= 6; i++) publish(acme, "poet", i, true);
    ck_assert_int_eq(registry_set_alias(reg, acme, "poet", "best", 2, -1, NULL, &e), ERR_NONE);
    ck_assert_int_eq(registry_acquire(reg, acme, "poet@3", false, &held, &e), ERR_NONE);
    ck_assert_int_eq(registry_prune(reg, acme, "poet", 0), 0);
    ck_assert_int_eq(registry_prune(reg, acme, "ghost", 1), 0);
    ck_assert_int_eq(registry_prune(reg, acme, "poet", 6), 0);
    ck_assert_int_eq(registry_prune(reg, acme, "poet", 2), 2);
    ck_assert_int_eq(atomic_load(&n_gone), 2);
    const int there[] = {0, 2, 3, 0, 5, 6};
    for (int i = 0; i < 6; i++) {
        char model[16];
        snprintf(model, sizeof model, "poet@%d", i + 1);
        ck_assert_int_eq(version_of(acme, model), there[i] ? there[i] : -ERR_NOT_FOUND);
        ck_assert_int_eq(files_there(i + 1), there[i] > 0);
    }
    registry_release(reg, held); /* the last hold takes it along */
    ck_assert_int_eq(version_of(acme, "poet@3"), -ERR_NOT_FOUND);
    ck_assert_int_eq(atomic_load(&n_gone), 3);
    ck_assert(!files_there(3));
    ck_assert_int_eq(registry_prune(reg, acme, "poet", 2), 0);
    /* One that is named meanwhile stays. */
    ck_assert_int_eq(registry_acquire(reg, acme, "poet@5", false, &held, &e), ERR_NONE);
    ck_assert_int_eq(registry_prune(reg, acme, "poet", 1), 0);
    ck_assert_int_eq(registry_set_alias(reg, acme, "poet", "spare", 5, -1, NULL, &e), ERR_NONE);
    registry_release(reg, held);
    ck_assert_int_eq(version_of(acme, "poet:spare"), 5);
    ck_assert_int_eq(registry_set_alias(reg, acme, "poet", "default", 5, -1, NULL, &e), ERR_NONE);
    ck_assert_int_eq(registry_prune(reg, acme, "poet", 1), 0);
    reopen();
    ck_assert_int_eq(version_of(acme, "poet@3"), -ERR_NOT_FOUND);
    ck_assert_int_eq(version_of(acme, "poet"), 5);
    ck_assert_int_eq(version_of(acme, "poet@latest"), 6);
    ck_assert_int_eq(version_of(acme, "poet:best"), 2);
    ck_assert_int_eq(publish(acme, "poet", 9, true).version, 7);
}
END_TEST

/* A process that dies between a delete and its last release: the next start finishes it. */
START_TEST(test_restart_finishes)
{
    adapter_version gone = publish(acme, "gone", 1, true);
    publish(acme, "kept", 2, true);
    publish(acme, "lost", 3, true);
    registry_destroy(reg);
    store_close(st);
    pid_t pid = fork();
    if (pid == 0) {
        const adapter_version *v;
        if (store_open(&st, dir, NULL, NULL) != ERR_NONE ||
            registry_create(&reg, st, NULL, NULL) != ERR_NONE ||
            registry_acquire(reg, acme, "gone", false, &v, NULL) != ERR_NONE ||
            registry_delete(reg, acme, "gone", 0, true, NULL, NULL) != ERR_NONE)
            _exit(1);
        kill(getpid(), SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    open_all();
    ck_assert(!files_there(1));
    ck_assert_int_eq(version_of(acme, "gone"), -ERR_NOT_FOUND);
    ck_assert_int_eq(version_of(acme, "kept"), 1);
    adapter_version fresh = publish(acme, "gone", 4, true);
    ck_assert_uint_gt(fresh.id, gone.id);

    /* Files without a row go; a row without files is failed, not served. */
    uint8_t digest[DIGEST_BYTES];
    make_files(77, digest);
    int n = 3;
    char path[256], file[300];
    digest_bytes(&n, sizeof n, digest);
    registry_path(reg, digest, path, sizeof path);
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", path);
    ck_assert_int_eq(unlink(file), 0);
    reopen();
    ck_assert(!files_there(77));
    ck_assert_int_eq(version_of(acme, "lost"), -ERR_CONFLICT);
    ck_assert_ptr_nonnull(strstr(e.msg, "missing"));
    version_entry ve;
    ck_assert_int_eq(registry_version(reg, acme, "lost", 1, &ve, &e), ERR_NONE);
    ck_assert_int_eq(ve.state, ADAPTER_FAILED);
}
END_TEST

START_TEST(test_limits_and_lists)
{
    char name[16];
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "n%d", 4 - i);
        ck_assert_int_eq(publish_as(acme, name, i, true, NULL, NULL, 5, 7000), ERR_NONE);
    }
    ck_assert_int_eq(publish_as(acme, "n9", 9, true, NULL, NULL, 5, 7000), ERR_LIMIT);
    ck_assert_int_eq(publish_as(acme, "n1", 10, true, NULL, NULL, 5, 7000), ERR_NONE);
    ck_assert_int_eq(publish_as(acme, "n1", 11, true, NULL, NULL, 5, 6500), ERR_LIMIT);
    ck_assert_int_eq(publish_as(bolt, "b", 12, true, NULL, NULL, 5, 7000), ERR_NONE);
    adapter_entry *list;
    size_t n;
    ck_assert_int_eq(registry_list(reg, acme, NULL, 0, &list, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 5);
    ck_assert_str_eq(list[0].name, "n0");
    ck_assert_str_eq(list[4].name, "n4");
    ck_assert_int_eq(list[1].n_versions, 2);
    ck_assert_uint_eq(list[1].file_bytes, 2000);
    free(list);
    ck_assert_int_eq(registry_list(reg, acme, "n1", 2, &list, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 2);
    ck_assert_str_eq(list[0].name, "n2");
    free(list);
    ck_assert_int_eq(registry_list(reg, 0, NULL, 0, &list, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 6);
    free(list);
    version_entry *versions;
    ck_assert_int_eq(registry_versions(reg, acme, "n1", &versions, &n, &e), ERR_NONE);
    ck_assert_uint_eq(n, 2);
    ck_assert_int_eq(versions[0].v.version, 2);
    version_entry one;
    ck_assert_int_eq(registry_version(reg, acme, "n1", 2, &one, &e), ERR_NONE);
    ck_assert_str_eq(one.info, "{\"r\":8}");
    free(versions);
    ck_assert_int_eq(registry_versions(reg, bolt, "n1", &versions, &n, &e), ERR_NOT_FOUND);
    registry_totals t;
    registry_totals_get(reg, acme, &t);
    ck_assert_uint_eq(t.n_adapters, 5);
    ck_assert_uint_eq(t.n_versions, 6);
    ck_assert_uint_eq(t.file_bytes, 6000);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

static atomic_bool stop;

static void *requests_main(void *arg)
{
    long *served = arg;
    const char *models[] = {"poet", "poet@1", "poet:canary", "temp", "nope"};
    for (unsigned i = 0; !atomic_load(&stop); i++) {
        const adapter_version *v;
        err mine;
        err_code code = registry_acquire(reg, acme, models[i % 5], false, &v, &mine);
        if (code != ERR_NONE) {
            ck_assert(code == ERR_NOT_FOUND || code == ERR_CONFLICT);
            continue;
        }
        ck_assert_uint_eq(v->tenant_id, acme);
        ck_assert_int_eq(v->rank_max, 8);
        char path[256];
        registry_path(reg, v->digest, path, sizeof path);
        ck_assert_int_eq(access(path, F_OK), 0); /* held: its files are there */
        registry_release(reg, v);
        ++*served;
    }
    return NULL;
}

START_TEST(test_changes_under_load)
{
    publish(acme, "poet", 1, true);
    publish(acme, "poet", 2, true);
    atomic_store(&stop, false);
    pthread_t th[3];
    long served[3] = {0};
    for (int i = 0; i < 3; i++) pthread_create(&th[i], NULL, requests_main, &served[i]);
    for (int i = 0; i < 25; i++) {
        ck_assert_int_eq(registry_set_alias(reg, acme, "poet", "canary", 1 + i % 2, -1, NULL, &e),
                         ERR_NONE);
        ck_assert_int_eq(registry_rollback(reg, acme, "poet", "default", -1, NULL, &e), ERR_NONE);
        err_code code = publish_as(acme, "temp", 100 + i, true, NULL, NULL, 0, 0);
        ck_assert(code == ERR_NONE || code == ERR_CONFLICT);
        code = registry_delete(reg, acme, "temp", 0, i % 2 == 0, NULL, &e);
        ck_assert(code == ERR_NONE || code == ERR_CONFLICT || code == ERR_NOT_FOUND);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++) pthread_join(th[i], NULL);
    ck_assert_int_gt(served[0] + served[1] + served[2], 0);
    registry_totals t;
    registry_totals_get(reg, 0, &t);
    ck_assert_uint_eq(t.n_pins, 0);
}
END_TEST

START_TEST(test_generations)
{
    adapter_version v;
    registry_new_version nv = {.tenant_id = acme, .name = "cas", .if_generation = true};
    uint8_t digest[DIGEST_BYTES];
    make_files(1, digest);
    nv.digest = digest;
    nv.generation = 3;
    ck_assert_int_eq(registry_publish(reg, &nv, &v, NULL, &e), ERR_STALE);
    nv.generation = 0; /* must be new */
    ck_assert_int_eq(registry_publish(reg, &nv, &v, NULL, &e), ERR_NONE);
    make_files(2, digest);
    ck_assert_int_eq(registry_publish(reg, &nv, &v, NULL, &e), ERR_STALE);
    adapter_entry en;
    ck_assert_int_eq(registry_get(reg, acme, "cas", &en, &e), ERR_NONE);
    nv.generation = en.generation;
    nv.activate = true;
    ck_assert_int_eq(registry_publish(reg, &nv, &v, NULL, &e), ERR_NONE);
    int number;
    ck_assert_int_eq(
        registry_rollback(reg, acme, "cas", "default", (int64_t)en.generation, &number, &e),
        ERR_STALE);
    ck_assert_int_eq(version_of(acme, "cas"), 2);
    ck_assert_int_eq(
        registry_rollback(reg, acme, "cas", "default", (int64_t)en.generation + 1, &number, &e),
        ERR_NONE);
    ck_assert_int_eq(version_of(acme, "cas"), 1);
    registry_meta m = {.description = "text", .expected_generation = (int64_t)en.generation};
    ck_assert_int_eq(registry_update(reg, acme, "cas", &m, &e), ERR_STALE);
    ck_assert_int_eq(registry_get(reg, acme, "cas", &en, &e), ERR_NONE);
    ck_assert_str_eq(en.description, "");
    m.expected_generation = (int64_t)en.generation;
    ck_assert_int_eq(registry_update(reg, acme, "cas", &m, &e), ERR_NONE);
    reopen();
    ck_assert_int_eq(registry_get(reg, acme, "cas", &en, &e), ERR_NONE);
    ck_assert_str_eq(en.description, "text");
    ck_assert_uint_eq(en.generation, (uint64_t)m.expected_generation + 1);
    ck_assert_uint_ne(en.default_id, 0);
}
END_TEST

/* Another node has written the rows, and this one has not heard of it yet. */
START_TEST(test_changed_elsewhere)
{
    const adapter_limits none = {0}, two = {.max_concurrent = 2}, five = {.max_concurrent = 5};
    adapter_entry en;
    for (int i = 1; i <= 3; i++) publish(acme, "far", i, true);
    ck_assert_int_eq(registry_get(reg, acme, "far", &en, &e), ERR_NONE);
    ck_assert_int_eq(adapter_rows_set_alias(st, en.id, "canary", 1, 0, en.generation + 1, &e),
                     ERR_NONE);
    ck_assert_int_eq(registry_delete(reg, acme, "far", 1, true, NULL, &e), ERR_STALE);
    (void)registry_prune(reg, acme, "far", 1);
    reopen();
    ck_assert_int_eq(registry_get(reg, acme, "far", &en, &e), ERR_NONE);
    ck_assert_int_eq(en.n_versions, 2); /* 2 went, 1 has an alias */
    const adapter_version *v;
    ck_assert_int_eq(registry_acquire(reg, acme, "far:canary", false, &v, &e), ERR_NONE);
    registry_release(reg, v);
    ck_assert_int_eq(adapter_rows_set_limits(st, en.id, &none, &two, &e), ERR_NONE);
    ck_assert_int_eq(registry_set_limits(reg, acme, "far", &none, &five, &e), ERR_CONFLICT);
}
END_TEST

START_TEST(test_limits_of_a_name)
{
    publish(acme, "poet", 1, true);
    adapter_entry en;
    const adapter_limits none = {0}, two = {.max_concurrent = 2}, rate = {.requests_per_minute = 5},
                         wrong = {.tokens_per_minute = -1};
    ck_assert_int_eq(registry_set_limits(reg, acme, "poet", &none, &two, &e), ERR_NONE);
    /* Made from what stood there before: it would undo the other's change. */
    ck_assert_int_eq(registry_set_limits(reg, acme, "poet", &none, &rate, &e), ERR_CONFLICT);
    ck_assert_int_eq(registry_set_limits(reg, acme, "poet", &two, &wrong, &e), ERR_INPUT);
    ck_assert_int_eq(registry_set_limits(reg, acme, "none", &none, &two, &e), ERR_NOT_FOUND);
    for (int pass = 0; pass < 2; pass++) {
        ck_assert_int_eq(registry_get(reg, acme, "poet", &en, &e), ERR_NONE);
        ck_assert_mem_eq(&en.limits, &two, sizeof two);
        reopen();
    }
}
END_TEST

static int shared_with(uint64_t tenant_id)
{
    adapter_entry page[8];
    registry_query q = {.shared_with = tenant_id, .limit = 8};
    registry_cursor next;
    size_t n;
    registry_page(reg, &q, page, &n, &next);
    ck_assert(!next.more);
    return (int)n;
}

START_TEST(test_sharing)
{
    publish(acme, "poet", 1, true);
    publish(bolt, "poet", 2, true);
    uint64_t carol = make_tenant("carol");
    ck_assert_int_eq(version_of(bolt, "acme/poet"), -ERR_NOT_FOUND);
    ck_assert_int_eq(version_of(acme, "acme/poet"), 1);
    registry_meta m = {.share = true, .shared = &bolt, .n_shared = 1, .expected_generation = -1};
    ck_assert_int_eq(registry_update(reg, acme, "poet", &m, &e), ERR_NONE);
    for (int pass = 0; pass < 2; pass++) {
        ck_assert_int_eq(version_of(bolt, "acme/poet@1"), 1);
        ck_assert_int_eq(version_of(carol, "acme/poet"), -ERR_NOT_FOUND);
        ck_assert_int_eq(version_of(bolt, "acme/poet/x"), -ERR_NOT_FOUND);
        ck_assert_int_eq(version_of(bolt, "/poet"), -ERR_NOT_FOUND);
        ck_assert_int_eq(shared_with(bolt), 1);
        ck_assert_int_eq(shared_with(acme), 0);
        ck_assert_int_eq(shared_with(carol), 0);
        reopen();
    }
    m = (registry_meta){.share = true, .shared_all = true, .expected_generation = -1};
    ck_assert_int_eq(registry_update(reg, acme, "poet", &m, &e), ERR_NONE);
    ck_assert_int_eq(version_of(carol, "acme/poet"), 1);
    ck_assert_int_eq(shared_with(carol), 1);
    ck_assert_int_eq(registry_delete(reg, acme, "poet", 0, true, NULL, &e), ERR_NONE);
    ck_assert_int_eq(shared_with(carol), 0);
    publish(acme, "poet", 3, true); /* a new one of the name is nobody else's */
    reopen();
    ck_assert_int_eq(version_of(carol, "acme/poet"), -ERR_NOT_FOUND);
}
END_TEST

START_TEST(test_pages)
{
    char name[24];
    for (int i = 0; i < 300; i++) {
        int k = i * 7 % 300; /* not in order */
        snprintf(name, sizeof name, "%c%03d", k % 3 == 0 ? 'a' : 'b', k);
        publish(acme, name, 1, true);
        if (i % 100 == 0) publish(bolt, name, 1, true);
    }
    for (int pass = 0; pass < 2; pass++) {
        size_t seen = 0, n, rounds = 0;
        registry_query q = {.tenant_id = acme, .prefix = "b", .limit = 7};
        registry_cursor next = {.more = true};
        adapter_entry page[7];
        char last[ADAPTER_NAME_MAX + 1] = "";
        while (next.more && rounds++ < 100) {
            registry_page(reg, &q, page, &n, &next);
            ck_assert_uint_le(n, 7);
            for (size_t i = 0; i < n; i++, seen++) {
                ck_assert_int_lt(strcmp(last, page[i].name), 0);
                ck_assert_int_eq(page[i].name[0], 'b');
                ck_assert_uint_eq(page[i].tenant_id, acme);
                snprintf(last, sizeof last, "%s", page[i].name);
            }
            q.after = next.name; /* the same memory: allowed */
        }
        ck_assert_uint_eq(seen, 200);
        seen = 0;
        q = (registry_query){.limit = 7, .state = ADAPTER_READY}; /* all tenants */
        next.more = true;
        for (rounds = 0; next.more && rounds < 100; rounds++) {
            registry_page(reg, &q, page, &n, &next);
            seen += n;
            q.after = next.name;
            q.after_tenant_id = next.tenant_id;
        }
        ck_assert_uint_eq(seen, 303);
        q = (registry_query){.tenant_id = acme, .limit = 7, .after = "b150x"};
        registry_page(reg, &q, page, &n, &next);
        ck_assert_str_eq(page[0].name, "b151");
        q.prefix = "c";
        registry_page(reg, &q, page, &n, &next);
        ck_assert(n == 0 && !next.more);
        reopen();
    }
}
END_TEST

/* A folder that an operator owns, linked: a delete takes the link, never the files. */
START_TEST(test_links_are_not_followed)
{
    uint8_t digest[DIGEST_BYTES];
    char path[256], outside[200], file[300];
    make_files(9, digest);
    registry_path(reg, digest, path, sizeof path);
    snprintf(outside, sizeof outside, "%s/outside", dir);
    ck_assert_int_eq(rename(path, outside), 0);
    char real[PATH_MAX];
    ck_assert_ptr_nonnull(realpath(outside, real));
    ck_assert_int_eq(symlink(real, path), 0);
    registry_new_version nv = {.tenant_id = acme, .name = "linked", .digest = digest};
    ck_assert_int_eq(registry_publish(reg, &nv, NULL, NULL, &e), ERR_NONE);
    reopen();
    ck_assert_int_eq(version_of(acme, "linked"), 1);
    ck_assert_int_eq(registry_delete(reg, acme, "linked", 0, true, NULL, &e), ERR_NONE);
    ck_assert_int_ne(access(path, F_OK), 0);
    snprintf(file, sizeof file, "%s/adapter_config.json", outside);
    ck_assert_int_eq(access(file, F_OK), 0);
    /* The same at the start, for a link that no row knows. */
    ck_assert_int_eq(symlink(real, path), 0);
    reopen();
    ck_assert_int_ne(access(path, F_OK), 0);
    ck_assert_int_eq(access(file, F_OK), 0);
}
END_TEST

/* What a registered adapter costs while nobody uses it. */
START_TEST(test_memory)
{
    enum { N = 300 };
    char name[ADAPTER_NAME_MAX + 1];
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "an-adapter-with-a-name-of-usual-length-%04d", i);
        publish(acme, name, 1, true);
    }
    size_t each = (mallinfo2().uordblks - before) / N; /* 0 with a sanitizer's malloc */
    ck_assert_msg(each < 2048, "%zu bytes", each);     /* the database's cache included */
    reopen();
    registry_totals t;
    registry_totals_get(reg, acme, &t);
    ck_assert_uint_eq(t.n_adapters, N);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("registry");
    TCase *tc = tcase_create("registry");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_resolve);
    tcase_add_test(tc, test_aliases);
    tcase_add_test(tc, test_same_content);
    tcase_add_test(tc, test_delete_while_pinned);
    tcase_add_test(tc, test_prune);
    tcase_add_test(tc, test_restart_finishes);
    tcase_add_test(tc, test_limits_and_lists);
    tcase_add_test(tc, test_limits_of_a_name);
    tcase_add_test(tc, test_changed_elsewhere);
    tcase_add_test(tc, test_changes_under_load);
    tcase_add_test(tc, test_generations);
    tcase_add_test(tc, test_sharing);
    tcase_add_test(tc, test_pages);
    tcase_add_test(tc, test_links_are_not_followed);
    tcase_add_test(tc, test_memory);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
