/* fuzz_family.c -- "config.json NUL generation_config.json" of any family: what is taken has a
 * shape that the rest of the engine may rely on, and a list of tensors. */
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"
#include "engine/weight_source.h"
#include "tests/fuzz/fuzz.h"

static void check_state(const model_config *c)
{
    const mixer_shape *s = &c->state;
    bool keeps = false, delta = false, scans = false;
    for (int i = 0; i < c->n_layer; i++) {
        keeps |= mixer_keeps(c->mixer[i]);
        delta |= c->mixer[i] == MIXER_DELTA;
        scans |= c->mixer[i] == MIXER_SCAN || c->mixer[i] == MIXER_BOTH;
    }
    FUZZ_CHECK(model_attention_layers(c) <= c->n_layer);
    FUZZ_CHECK((model_state_floats(c) > 0) == keeps);
    if (!keeps) return;
    FUZZ_CHECK(s->taps >= 2 && s->taps <= MIXER_TAPS_MAX && s->channels > 0);
    if (!delta && !scans) return;
    FUZZ_CHECK(s->heads > 0 && s->groups > 0 && s->heads % s->groups == 0);
    FUZZ_CHECK(s->rows > 0 && s->cols > 0 && s->cols <= INT32_MAX / s->heads);
    int shared = 2 * s->groups * s->rows;
    FUZZ_CHECK(s->channels == shared + s->heads * s->cols && scan_in(s) > 0);
    if (delta) FUZZ_CHECK(s->rows <= MIXER_SIDE_MAX && s->cols <= MIXER_SIDE_MAX);
}

static void check_heads(const model_config *c)
{
    FUZZ_CHECK(c->n_layer >= 1 && c->n_layer <= MODEL_LAYERS_MAX && c->dim > 0 && c->n_vocab > 0);
    FUZZ_CHECK(c->max_pos > 0 && c->head_dim > 0 && c->n_head > 0 && c->n_kv_head > 0);
    int wide = c->full_head_dim ? c->full_head_dim : c->head_dim;
    FUZZ_CHECK(c->n_head % c->n_kv_head == 0 && c->rope.dim <= wide && c->rope.dim % 2 == 0);
    FUZZ_CHECK(!c->full_head_dim || c->n_head % c->full_kv_head == 0);
    /* Gemma 3n's table may have fewer rows. */
    FUZZ_CHECK(c->ple_dim == 0 ||
               (c->ple_vocab > 0 && (c->streams.n || c->ple_vocab >= c->n_vocab)));
    if (c->rope.kind == ROPE_LONG) FUZZ_CHECK(c->rope.dim / 2 <= MODEL_ROPE_MAX);
    FUZZ_CHECK(c->n_eos >= 0 && c->n_eos <= MODEL_EOS_MAX);
    FUZZ_CHECK(c->n_gen_barred >= 0 && c->n_gen_barred <= MODEL_BARRED_MAX);
}

static void check_experts(const model_config *c)
{
    const expert_route *r = &c->experts.route;
    for (int i = 0; i < c->n_layer; i++)
        if (c->layer[i] & LAYER_EXPERTS) FUZZ_CHECK(r->n > 0 && c->experts.ffn_dim > 0);
    if (r->n == 0) return;
    FUZZ_CHECK(r->top_k >= 1 && r->top_k <= r->n);
    FUZZ_CHECK(r->n_group <= 1 || (r->n % r->n_group == 0 && r->top_group <= r->n_group));
}

/* Each linear layer has a size and a name; the products of the sizes are widened by their users. */
static void check_projections(const model_config *c)
{
    char name[64];
    int d_out, d_in;
    for (int i = 0; i < c->n_layer; i++) {
        for (int p = 0; p < PROJ_COUNT; p++) {
            if (!model_has_proj(c, i, (proj)p)) continue;
            model_layer_shape(c, i, (proj)p, &d_out, &d_in);
            FUZZ_CHECK(d_out > 0 && d_in > 0);
            model_proj_name(c, i, (proj)p, name, sizeof(name));
            FUZZ_CHECK(name[0] && strlen(name) < sizeof(name) - 1);
            (void)model_fused_name(c, i, (proj)p);
        }
    }
}

/* Every tensor that there should be is listed, and then the first is missing. */
static void list_tensors(const char *dir, const model_config *c)
{
    static const char one[] = "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    const weight_rules rules = {.takes = weight_source_usable, .host_rows = true};
    uint8_t file[8 + sizeof(one) - 1 + 4] = {sizeof(one) - 1};
    model_survey survey;
    err e = {.msg = ""};
    int64_t each = c->experts.route.n + 20; /* long lists within the limit are slow */
    if (c->n_layer * each > 2000 && c->n_layer * each < 1 << 18) return;
    memcpy(file + 8, one, sizeof(one) - 1);
    fuzz_put("model.safetensors", file, sizeof(file));
    FUZZ_CHECK(model_survey_read(dir, c, WEIGHTS_AUTO, &rules, false, 0, &survey, &e) && e.msg[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static model_config c;
    char *config, *generation;
    err e = {.msg = ""};
    fuzz_split(data, size, 0, &config, &generation);
    fuzz_put("config.json", config, strlen(config));
    fuzz_put("generation_config.json", *generation ? generation : NULL, strlen(generation));
    free(config);
    free(generation);
    err_code rc = model_config_read(fuzz_dir_path(), &c, &e);
    FUZZ_CHECK(rc == ERR_NONE || e.msg[0]);
    FUZZ_CHECK(rc != ERR_INTERNAL);
    if (rc) return 0;
    check_heads(&c);
    check_state(&c);
    check_experts(&c);
    check_projections(&c);
    list_tensors(fuzz_dir_path(), &c);
    (void)model_config_stream(&c, 4, 64, 1024, &e);
    return 0;
}
