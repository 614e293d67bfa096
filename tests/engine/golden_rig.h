/* golden_rig.h -- a model of fixtures/models on some backend, its adapters, and sequences that
 * walk through golden cases.
 *
 * The loader of adapters here is a short one for files we made ourselves;
 * adapters/ has the real one.
 */
#ifndef TESTS_ENGINE_GOLDEN_RIG_H
#define TESTS_ENGINE_GOLDEN_RIG_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "engine/base/json.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "tests/engine/golden.h"

enum {
    MAX_ROWS = 128,
    N_ADAPTER = 8,
    N_PAGES = 16 * 12,
};

static const char *const adapter_names[N_ADAPTER] = {"r1",   "r4",     "r16",     "r64",
                                                     "r256", "rslora", "pattern", "mlp"};

/* -------------------------------------------------------------------------- adapters -- */

typedef struct adapter {
    lora_view view;
    lora_mat *mat;
} adapter;

static const char *const modules[PROJ_COUNT] = {
    [PROJ_Q] = "self_attn.q_proj", [PROJ_K] = "self_attn.k_proj", [PROJ_V] = "self_attn.v_proj",
    [PROJ_O] = "self_attn.o_proj", [PROJ_GATE] = "mlp.gate_proj", [PROJ_UP] = "mlp.up_proj",
    [PROJ_DOWN] = "mlp.down_proj",
};

/* PEFT: a key of a pattern matches the end of a module's name, at a dot. */
static inline double from_pattern(const cJSON *config, const char *field, const char *module,
                                  double fallback)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json_get(config, field))
    {
        size_t n = strlen(module), k = strlen(item->string);
        if (k <= n && strcmp(module + n - k, item->string) == 0 &&
            (k == n || module[n - k - 1] == '.')) {
            return item->valuedouble;
        }
    }
    return fallback;
}

static inline cJSON *read_json(const char *path)
{
    char text[16384];
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(text, 1, sizeof(text), f);
    (void)fclose(f);
    err e;
    cJSON *j;
    ck_assert_msg(json_parse(text, n, &json_limits_trusted, &j, &e) == ERR_NONE, "%s", e.msg);
    return j;
}

static inline void load_pair(backend *be, const model_config *c, const cJSON *config,
                             const safetensors *f, const char *module, proj p, lora_mat *out)
{
    char name[160];
    snprintf(name, sizeof(name), "base_model.model.%s.lora_A.weight", module);
    const st_tensor *a = safetensors_find(f, name);
    snprintf(name, sizeof(name), "base_model.model.%s.lora_B.weight", module);
    const st_tensor *b = safetensors_find(f, name);
    ck_assert_int_eq(a == NULL, b == NULL);
    if (!a) return;

    int d_out, d_in;
    model_proj_shape(c, p, &d_out, &d_in);
    int rank = (int)a->shape[0];
    ck_assert(a->aligned && b->aligned && (int)a->shape[1] == d_in);
    ck_assert((int)b->shape[0] == d_out && (int)b->shape[1] == rank);
    double r = from_pattern(config, "rank_pattern", module, json_get(config, "r")->valuedouble);
    ck_assert_int_eq(rank, (int)r);
    double alpha =
        from_pattern(config, "alpha_pattern", module, json_get(config, "lora_alpha")->valuedouble);
    bool rs = cJSON_IsTrue(json_get(config, "use_rslora"));

    dtype type;
    err e;
    ck_assert(st_usable(a->dtype, &type) && a->dtype == b->dtype);
    void *pa = be_alloc(be, be_lora_a_bytes(be, c->type, rank, d_in));
    void *pb = be_alloc(be, be_lora_b_bytes(be, c->type, rank, d_out));
    ck_assert(pa && pb);
    ck_assert_int_eq(
        be_lora_pack(be, c->type, pa, pb, a->data, b->data, type, rank, d_in, d_out, &e), 0);
    *out = (lora_mat){.a = pa, .b = pb, .rank = rank, .scale = (float)(alpha / (rs ? sqrt(r) : r))};
}

static inline void adapter_load(adapter *ad, backend *be, const model_config *c, const char *dir,
                                int id)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/adapter_config.json", dir);
    cJSON *config = read_json(path);
    snprintf(path, sizeof(path), "%s/adapter_model.safetensors", dir);
    safetensors *f;
    err e;
    ck_assert_msg(safetensors_open(&f, path, &st_limits_upload, &e) == 0, "%s: %s", path, e.msg);

    ad->mat = calloc((size_t)c->n_layer * PROJ_COUNT, sizeof(*ad->mat));
    ad->view = (lora_view){.adapter_id = (uint64_t)id + 1, .n_layer = c->n_layer, .mat = ad->mat};
    int found = 0;
    for (int l = 0; l < c->n_layer; l++) {
        for (int p = PROJ_Q; p <= PROJ_DOWN; p++) {
            char module[96];
            snprintf(module, sizeof(module), "model.layers.%d.%s", l, modules[p]);
            lora_mat *m = &ad->mat[l * PROJ_COUNT + p];
            load_pair(be, c, config, f, module, (proj)p, m);
            if (m->rank > ad->view.rank_max) ad->view.rank_max = m->rank;
            found += 2 * (m->a != NULL);
        }
    }
    ck_assert_int_eq(found, safetensors_count(f)); /* nothing left over */
    safetensors_close(f);
    cJSON_Delete(config);
}

static inline void adapter_clear(adapter *ad, backend *be)
{
    for (int i = 0; i < ad->view.n_layer * PROJ_COUNT; i++) {
        if (!ad->mat[i].a) continue;
        be_free(be, (void *)(uintptr_t)ad->mat[i].a);
        be_free(be, (void *)(uintptr_t)ad->mat[i].b);
    }
    free(ad->mat);
}

/* ------------------------------------------------------------------------------- run -- */

typedef struct rig {
    backend *be;
    model *m;
    kv_pool *kv;
    adapter adapter[N_ADAPTER];
    int page_tokens, n_vocab;
} rig;

/* With the first n_adapter of them; the others may come later (rig_adapter()). */
static inline void rig_adapter(rig *r, const char *dir, int i)
{
    char path[128];
    char set = strstr(dir, "qwen3")   ? 'b'
               : strstr(dir, "-h128") ? 'c'
               : strstr(dir, "-h64")  ? 'd'
               : strstr(dir, "-tp")   ? 'e'
                                      : 'a';
    snprintf(path, sizeof(path), "fixtures/models/adapters-%c/%s", set, adapter_names[i]);
    adapter_load(&r->adapter[i], r->be, model_get_config(r->m), path, i);
}

/* The directory, or the GGUF in it. */
static inline const char *rig_model_path(const char *dir, char out[256])
{
    static const char *const names[] = {"model.gguf", "model-00001-of-00002.gguf"};
    for (int i = 0; i < 2; i++) {
        snprintf(out, 256, "%s/%s", dir, names[i]);
        if (access(out, F_OK) == 0) return out;
    }
    return dir;
}

/* Takes the backend over. */
static inline void rig_open_as(rig *r, const char *dir, backend *be, int n_adapter,
                               weights_form weights)
{
    err e = {0};
    memset(r, 0, sizeof(*r));
    r->be = be;
    r->page_tokens = be_caps(r->be)->page_tokens;
    char path[256];
    err_code rc = model_load_with(&r->m, rig_model_path(dir, path), r->be, MAX_ROWS, MAX_ROWS,
                                  &(model_options){.weights = weights}, &e);
    ck_assert_msg(rc == ERR_NONE, "%s: %s", dir, e.msg);
    r->n_vocab = model_get_config(r->m)->n_vocab;
    attn_shape shape = model_attn_shape(r->m);
    ck_assert_int_eq(be_kv_create(r->be, &r->kv, &shape, N_PAGES, &e), ERR_NONE);
    for (int i = 0; i < n_adapter; i++) rig_adapter(r, dir, i);
}

static inline void rig_open(rig *r, const char *dir, backend *be, int n_adapter)
{
    rig_open_as(r, dir, be, n_adapter, WEIGHTS_AUTO);
}

/* Keys and values of this type from now on. */
static inline void rig_keep(rig *r, dtype type)
{
    err e = {0};
    be_kv_destroy(r->be, r->kv);
    ck_assert_msg(model_set_kv_type(r->m, type, &e) == ERR_NONE, "%s", e.msg);
    attn_shape shape = model_attn_shape(r->m);
    ck_assert_int_eq(be_kv_create(r->be, &r->kv, &shape, N_PAGES, &e), ERR_NONE);
}

static inline void rig_close(rig *r)
{
    for (int i = 0; i < N_ADAPTER; i++) adapter_clear(&r->adapter[i], r->be);
    be_kv_destroy(r->be, r->kv);
    model_destroy(r->m);
    be_close(r->be);
}

/* A sequence on its way through a case. */
typedef struct run {
    const golden_case *c;
    int pos, n_now;
    int32_t page[TOKENS_MAX];
    int n_page;
    float *logits; /* [TOKENS_MAX][n_vocab] */
} run;

/* Pages of different sequences lie mixed, and never in order. */
static inline void run_start(run *u, const rig *r, const golden_case *c, int slot, int n_slots,
                             float *logits)
{
    *u = (run){.c = c, .logits = logits};
    u->n_page = (TOKENS_MAX + r->page_tokens - 1) / r->page_tokens;
    ck_assert_int_le(u->n_page * n_slots, N_PAGES);
    for (int i = 0; i < u->n_page; i++) u->page[i] = (u->n_page - 1 - i) * n_slots + slot;
}

static inline int run_left(const run *u)
{
    return u->c->n_prompt + u->c->n_new - 1 - u->pos;
}

/* One step over all runs with n_now > 0, which stand sorted by adapter.  Logits of every row, or
 * of each sequence's last row only. */
static inline void step_runs(rig *r, run *runs, int n_runs, bool last_only)
{
    int32_t token[MAX_ROWS], pos[MAX_ROWS], want[MAX_ROWS];
    float *dst[MAX_ROWS];
    step_seq seq[CASES_MAX];
    step_seg seg[CASES_MAX];
    step s = {.token = token, .pos = pos, .seq = seq, .seg = seg, .logit_row = want};
    int seg_adapter = -2;

    for (int i = 0; i < n_runs; i++) {
        run *u = &runs[i];
        if (u->n_now == 0) continue;
        ck_assert_int_le(s.n_rows + u->n_now, MAX_ROWS);
        seq[s.n_seq++] = (step_seq){s.n_rows, u->n_now, u->pos, u->page, u->n_page, 0};
        if (u->c->adapter != seg_adapter) {
            seg_adapter = u->c->adapter;
            seg[s.n_seg++] =
                (step_seg){s.n_rows, 0, seg_adapter < 0 ? NULL : &r->adapter[seg_adapter].view};
        }
        seg[s.n_seg - 1].n_rows += u->n_now;
        for (int k = 0; k < u->n_now; k++, s.n_rows++) {
            token[s.n_rows] = u->c->token[u->pos + k];
            pos[s.n_rows] = u->pos + k;
            if (last_only && k + 1 < u->n_now) continue;
            dst[s.n_logit] = u->logits + (size_t)(u->pos + k) * (size_t)r->n_vocab;
            want[s.n_logit++] = s.n_rows;
        }
        u->pos += u->n_now;
    }

    const float *logits;
    err e = {0};
    err_code rc = model_forward(r->m, r->kv, &s, &logits, &e);
    ck_assert_msg(rc == ERR_NONE, "forward: %s", e.msg);
    for (int i = 0; i < s.n_logit; i++) {
        memcpy(dst[i], logits + (size_t)i * (size_t)r->n_vocab, 4 * (size_t)r->n_vocab);
    }
}

/* A case alone, in chunks of at most `chunk` rows. */
static inline void run_alone(rig *r, const golden_case *c, int chunk, bool last_only, float *logits)
{
    run u;
    run_start(&u, r, c, 0, 1, logits);
    while (run_left(&u) > 0) {
        u.n_now = run_left(&u) < chunk ? run_left(&u) : chunk;
        step_runs(r, &u, 1, last_only);
    }
}

#endif
