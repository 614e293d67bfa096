/* fuzz_experts.c -- a GGUF whose layers have experts, loaded and run: what its tensors hold decides
 * which experts a row takes, and must never lead out of a buffer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/model/model.h"
#include "tests/fuzz/fuzz.h"

enum { ROWS = 5, PAGES = 2, POSITIONS_MAX = 4096 };

static backend *be;

static void open_once(void)
{
    err e;
    const backend_config one = {.n_threads = 1, .isa = "auto"};
    if (!be && be_open(&be, &backend_cpu, &one, &e)) abort();
}

/* A prompt, and one token behind it. */
static void forward(model *m)
{
    const model_config *c = model_get_config(m);
    const int32_t page[PAGES] = {1, 0}, pos[ROWS] = {0, 1, 2, 3, 4}, last[] = {ROWS - 2};
    int32_t token[ROWS];
    attn_shape shape = model_attn_shape(m);
    size_t floats = model_state_floats(c);
    const float *logits;
    kv_pool *kv;
    err e;
    if (be_kv_create(be, &kv, &shape, PAGES, &e)) abort();
    float *state = floats ? be_alloc(be, floats * sizeof(*state)) : NULL;
    for (int i = 0; i < ROWS; i++) token[i] = (int32_t)((unsigned)i * 7 % (unsigned)c->n_vocab);
    for (int row = 0; row < ROWS; row += ROWS - 1) {
        int n = row ? 1 : ROWS - 1;
        const int32_t want = row ? 0 : last[0];
        const step_seq seq = {0, n, row, page, PAGES, 0};
        const step_seg seg = {0, n, NULL};
        const step s = {.n_rows = n,
                        .token = token + row,
                        .pos = pos + row,
                        .n_seq = 1,
                        .seq = &seq,
                        .n_seg = 1,
                        .seg = &seg,
                        .n_logit = 1,
                        .logit_row = &want,
                        .state = state,
                        .state_stride = floats};
        FUZZ_CHECK(model_forward(m, kv, &s, &logits, &e) == ERR_NONE && logits);
    }
    if (state) be_free(be, state);
    be_kv_destroy(be, kv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static model_config c;
    char path[256];
    model *m;
    err e = {.msg = ""};
    open_once();
    fuzz_put("x.gguf", data, size);
    snprintf(path, sizeof(path), "%s/x.gguf", fuzz_dir_path());
    if (model_config_read(path, &c, &e)) {
        FUZZ_CHECK(e.msg[0]);
        return 0;
    }
    /* Tables of positions are as large as the file says. */
    if (c.max_pos > POSITIONS_MAX || c.n_layer * (c.experts.route.n + 20) > 2000) return 0;
    if (model_load(&m, path, be, ROWS, ROWS, &e)) {
        FUZZ_CHECK(e.msg[0]);
        return 0;
    }
    if (!c.headless && !c.scored) forward(m);
    model_destroy(m);
    return 0;
}
