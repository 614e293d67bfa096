/* fuzz_base.c -- a GGUF as the base: its keys become documents, its tensors values. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/model/model_files.h"
#include "engine/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"

static void read_values(const char *path, const model_config *c)
{
    static const proj some[] = {PROJ_Q, PROJ_DOWN, PROJ_V};
    static const char *const modules[] = {"model.layers.0.self_attn.q_proj",
                                          "model.layers.0.mlp.down_proj",
                                          "model.layers.0.self_attn.kv_b_proj"};
    model_files *f;
    if (model_files_open(&f, path, c, NULL)) return;
    for (int i = 0; i < 3; i++) {
        stored s;
        int rows, cols;
        model_proj_shape(c, some[i], &rows, &cols);
        float *row = malloc((size_t)cols * sizeof(*row));
        if (row && !model_files_find(f, modules[i], "weight", rows, cols, &s, NULL)) {
            FUZZ_CHECK(stored_values(&s, rows - 1, rows, DT_F32, row));
            FUZZ_CHECK(stored_values(&s, 0, 1, DT_F32, row));
            stored_clear(&s);
        }
        free(row);
    }
    model_files_close(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[256];
    model_config c;
    model_survey survey;
    tokenizer *t;
    err e = {.msg = ""};
    fuzz_put("x.gguf", data, size);
    snprintf(path, sizeof(path), "%s/x.gguf", fuzz_dir_path());
    if (tokenizer_load(&t, path, &e) == ERR_NONE)
        tokenizer_destroy(t);
    else
        FUZZ_CHECK(e.msg[0]);
    e.msg[0] = 0;
    if (model_config_read(path, &c, &e)) {
        FUZZ_CHECK(e.msg[0]);
        return 0;
    }
    const weight_rules rules = {.takes = weight_source_usable, .host_rows = true};
    err_code rc = model_survey_read(path, &c, WEIGHTS_AUTO, &rules, true, 0, &survey, &e);
    FUZZ_CHECK(rc != ERR_INTERNAL && (rc == ERR_NONE || e.msg[0]));
    read_values(path, &c);
    return 0;
}
