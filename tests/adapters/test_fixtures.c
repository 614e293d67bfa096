/* test_fixtures.c -- folders that PEFT itself saved, packed by the system's tar in each of its
 * formats, through the whole room: upload, publish, load, packed weights.
 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "adapters/format/peft.h"
#include "adapters/residency/residency.h"
#include "adapters/store/upload.h"
#include "engine/model/safetensors.h"
#include "tests/run_suite.h"
#include "tests/tmpdir.h"

static const char *const names[] = {"r1", "r4", "r16", "r64", "r256", "mlp", "rslora", "pattern"};
enum { N_NAMES = sizeof names / sizeof(*names) };

static char dir[64];
static store *st;
static registry *reg;
static backend *be;
static uint64_t tenant_id;
static err e;

static void setup(void)
{
    tmpdir_make(dir);
    ck_assert_int_eq(store_open(&st, dir, &(store_options){.create = true}, &e), ERR_NONE);
    ck_assert_int_eq(registry_create(&reg, st, NULL, &e), ERR_NONE);
    backend_config cfg = {.n_threads = 1, .isa = "portable"};
    ck_assert_int_eq(be_open(&be, &backend_cpu, &cfg, &e), ERR_NONE);
    tenant t;
    ck_assert_int_eq(tenants_create(st, &(tenant){.name = "acme"}, &t, &e), ERR_NONE);
    tenant_id = t.id;
}

static void teardown(void)
{
    registry_destroy(reg);
    store_close(st);
    be_close(be);
    tmpdir_remove(dir);
}

/* Sends the folder as `tar` makes it. */
static adapter_version upload_folder(const char *parent, const char *folder, const char *format,
                                     const model_config *base)
{
    upload_env env = {.reg = reg, .base = base, .be = be};
    upload_options o = {
        .tenant_id = tenant_id, .name = folder, .activate = true, .content_bytes = -1};
    char command[256], piece[10007];
    snprintf(command, sizeof command, "tar --format=%s -cf - -C %s %s", format, parent, folder);
    FILE *f = popen(command, "r");
    ck_assert_ptr_nonnull(f);
    upload *u;
    adapter_version v;
    ck_assert_int_eq(upload_begin(&u, &env, &o, &e), ERR_NONE);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
        ck_assert_msg(upload_write(u, piece, n, &e) == ERR_NONE, "%s", e.msg);
    ck_assert_int_eq(pclose(f), 0);
    ck_assert_msg(upload_finish(u, &v, NULL, &e) == ERR_NONE, "%s/%s: %s", parent, folder, e.msg);
    return v;
}

/* One matrix pair packed here from the mapped file must be the same bytes as residency's. */
static void compare_pair(const model_config *base, const safetensors *f, int layer, proj p,
                         const lora_mat *m)
{
    char name[160];
    snprintf(name, sizeof name, "base_model.model.model.layers.%d.%s.lora_A.weight", layer,
             module_name(p));
    const st_tensor *a = safetensors_find(f, name);
    strstr(name, "lora_A")[5] = 'B';
    const st_tensor *b = safetensors_find(f, name);
    ck_assert_int_eq(a != NULL, m->a != NULL);
    if (a == NULL) return;
    int d_out, d_in;
    dtype type;
    model_proj_shape(base, p, &d_out, &d_in);
    ck_assert_int_eq(m->rank, (int)a->shape[0]);
    ck_assert(st_usable(a->dtype, &type));
    size_t n_a = be_lora_a_bytes(be, base->type, m->rank, d_in);
    size_t n_b = be_lora_b_bytes(be, base->type, m->rank, d_out);
    void *pa = be_alloc(be, n_a), *pb = be_alloc(be, n_b);
    ck_assert_int_eq(
        be_lora_pack(be, base->type, pa, pb, a->data, b->data, type, m->rank, d_in, d_out, &e),
        ERR_NONE);
    ck_assert_mem_eq(pa, m->a, n_a);
    ck_assert_mem_eq(pb, m->b, n_b);
    be_free(be, pa);
    be_free(be, pb);
}

static void check_loaded(residency *rs, const adapter_version *v, const model_config *base,
                         const char *parent)
{
    lora_source door = residency_source(rs);
    const lora_view *view;
    err_code code;
    while ((code = door.acquire(door.self, v->id, &view, &e)) == ERR_BUSY) usleep(500);
    ck_assert_msg(code == ERR_NONE, "%s", e.msg);
    char path[256];
    safetensors *f;
    snprintf(path, sizeof path, "%s/%s/adapter_model.safetensors", parent, v->name);
    ck_assert_int_eq(safetensors_open(&f, path, &st_limits_upload, &e), ERR_NONE);
    for (int layer = 0; layer < base->n_layer; layer++)
        for (int p = PROJ_Q; p <= PROJ_DOWN; p++)
            compare_pair(base, f, layer, (proj)p, &view->mat[layer * PROJ_COUNT + p]);
    safetensors_close(f);
    if (strcmp(v->name, "pattern") == 0) {
        const lora_mat *m = view->mat;
        ck_assert_double_eq_tol(m[PROJ_Q].scale, 16.0 / 3, 1e-6);
        ck_assert_double_eq_tol(m[PROJ_V].scale, 5.0 / 8, 1e-6);
        ck_assert_double_eq_tol(m[PROJ_DOWN].scale, 24.0 / 8, 1e-6);
        ck_assert_double_eq_tol(m[PROJ_COUNT + PROJ_DOWN].scale, 16.0 / 8, 1e-6);
        ck_assert_double_eq_tol(m[PROJ_COUNT + PROJ_UP].scale, 16.0 / 20, 1e-6);
    }
    if (strcmp(v->name, "rslora") == 0)
        ck_assert_double_eq_tol(view->mat[PROJ_Q].scale, 4 / sqrt(8), 1e-6);
    door.release(door.self, view);
}

static void run_all(const char *model_dir, const char *parent)
{
    static const char *const formats[] = {"gnu", "pax", "ustar"};
    model_config base;
    ck_assert_msg(model_config_read(model_dir, &base, &e) == ERR_NONE, "%s", e.msg);
    residency *rs;
    residency_config cfg = {.budget_bytes = 64 << 20, .chunk_bytes = 4 << 20}; /* no splits */
    ck_assert_int_eq(residency_create(&rs, &cfg, be, &base, reg, &e), ERR_NONE);
    for (int i = 0; i < N_NAMES; i++) {
        adapter_version v = {0};
        for (int k = 0; k < 3; k++) v = upload_folder(parent, names[i], formats[k], &base);
        ck_assert_int_eq(v.version, 1); /* the same content however it was packed */
        check_loaded(rs, &v, &base, parent);
    }
    residency_destroy(rs);
}

START_TEST(test_llama)
{
    run_all("fixtures/models/llama-f32", "fixtures/models/adapters-a");
}
END_TEST

START_TEST(test_qwen3)
{
    run_all("fixtures/models/qwen3-bf16", "fixtures/models/adapters-b");
}
END_TEST

/* An adapter of another base is refused, not bent to fit. */
START_TEST(test_wrong_base)
{
    model_config base;
    ck_assert_int_eq(model_config_read("fixtures/models/llama-f32", &base, &e), ERR_NONE);
    base.dim *= 2;
    upload_env env = {.reg = reg, .base = &base};
    upload_options o = {.tenant_id = tenant_id, .name = "r4", .content_bytes = -1};
    upload *u;
    adapter_version v;
    char piece[4096];
    FILE *f = popen("tar -cf - -C fixtures/models/adapters-a r4", "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(upload_begin(&u, &env, &o, &e), ERR_NONE);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
        ck_assert_int_eq(upload_write(u, piece, n, &e), ERR_NONE);
    pclose(f);
    ck_assert_int_eq(upload_finish(u, &v, NULL, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "it must be"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("fixtures");
    TCase *tc = tcase_create("fixtures");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, test_llama);
    tcase_add_test(tc, test_qwen3);
    tcase_add_test(tc, test_wrong_base);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
