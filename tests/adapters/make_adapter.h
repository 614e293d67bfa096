/* make_adapter.h -- small adapters, safetensors files and tars, made in memory by the tests. */
#ifndef TESTS_ADAPTERS_MAKE_ADAPTER_H
#define TESTS_ADAPTERS_MAKE_ADAPTER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"

/* ---- bytes ---------------------------------------------------------------------------- */

typedef struct bytes {
    uint8_t *p;
    size_t n, cap;
} bytes;

static inline void bytes_add(bytes *b, const void *data, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2 + 1024;
        b->p = realloc(b->p, b->cap);
        if (b->p == NULL) abort();
    }
    if (n > 0) memcpy(b->p + b->n, data, n);
    b->n += n;
}

static inline void bytes_free(bytes *b)
{
    free(b->p);
    memset(b, 0, sizeof(*b));
}

/* ---- a base ------------------------------------------------------------------------------ */

/* 2 layers, 32 wide, 4 heads over 2, ffn 48: the smallest with all shapes different. */
static inline model_config tiny_base(void)
{
    model_config c = {.family = "llama",
                      .n_layer = 2,
                      .dim = 32,
                      .n_head = 4,
                      .n_kv_head = 2,
                      .head_dim = 8,
                      .ffn_dim = 48,
                      .n_vocab = 64,
                      .max_pos = 128,
                      .norm_eps = 1e-5f,
                      .rope = {.theta = 10000},
                      .type = DT_F32};
    return c;
}

/* ---- safetensors -------------------------------------------------------------------------- */

typedef struct st_maker {
    bytes header, data;
} st_maker;

/* cols 0: a vector. */
static inline void st_tensor_add(st_maker *m, const char *name, const char *type, int rows,
                                 int cols, float value)
{
    char entry[512], shape[32];
    bool wide = strcmp(type, "F64") == 0;
    size_t size = wide ? 8 : strcmp(type, "F32") == 0 || strcmp(type, "I32") == 0 ? 4 : 2;
    size_t count = (size_t)rows * (cols > 0 ? (size_t)cols : 1), len = count * size;
    snprintf(shape, sizeof shape, cols > 0 ? "%d,%d" : "%d", rows, cols);
    snprintf(entry, sizeof entry,
             "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],"
             "\"data_offsets\":[%zu,%zu]}",
             m->header.n > 0 ? "," : "", name, type, shape, m->data.n, m->data.n + len);
    bytes_add(&m->header, entry, strlen(entry));
    for (size_t i = 0; i < count; i++) {
        float v = value + 0.001f * (float)(i % 7);
        uint32_t bits;
        memcpy(&bits, &v, 4);
        uint16_t high = (uint16_t)(bits >> 16);      /* exact enough for BF16 */
        if (strcmp(type, "F16") == 0) high = 0x2e66; /* 0.1 */
        double exact = (double)v + 1e-9;             /* which F32 does not hold */
        bytes_add(&m->data,
                  wide        ? (void *)&exact
                  : size == 4 ? (void *)&bits
                              : (void *)&high,
                  size);
    }
}

static inline bytes st_finish(st_maker *m)
{
    bytes out = {0}, header = {0};
    bytes_add(&header, "{", 1);
    bytes_add(&header, m->header.p, m->header.n);
    bytes_add(&header, "}", 1);
    while (header.n % 8 != 0) bytes_add(&header, " ", 1);
    uint8_t len[8];
    for (int i = 0; i < 8; i++) len[i] = (uint8_t)((uint64_t)header.n >> 8 * i);
    bytes_add(&out, len, 8);
    bytes_add(&out, header.p, header.n);
    bytes_add(&out, m->data.p, m->data.n);
    bytes_free(&header);
    bytes_free(&m->header);
    bytes_free(&m->data);
    return out;
}

/* q_proj and v_proj of all layers, rank r. */
static inline bytes make_weights(const model_config *c, int r, const char *type, float value)
{
    st_maker m = {0};
    char name[160];
    const char *names[] = {"q_proj", "v_proj"};
    for (int layer = 0; layer < c->n_layer; layer++)
        for (int k = 0; k < 2; k++) {
            int d_out, d_in;
            model_proj_shape(c, k == 0 ? PROJ_Q : PROJ_V, &d_out, &d_in);
            snprintf(name, sizeof name,
                     "base_model.model.model.layers.%d.self_attn.%s.lora_A.weight", layer,
                     names[k]);
            st_tensor_add(&m, name, type, r, d_in, value);
            snprintf(name, sizeof name,
                     "base_model.model.model.layers.%d.self_attn.%s.lora_B.weight", layer,
                     names[k]);
            st_tensor_add(&m, name, type, d_out, r, value * 2);
        }
    return st_finish(&m);
}

static inline bytes make_config(int r)
{
    bytes b = {0};
    char text[512];
    snprintf(text, sizeof text,
             "{\"peft_type\":\"LORA\",\"task_type\":\"CAUSAL_LM\",\"r\":%d,\"lora_alpha\":16,"
             "\"target_modules\":[\"q_proj\",\"v_proj\"],\"bias\":\"none\"}",
             r);
    bytes_add(&b, text, strlen(text));
    return b;
}

/* ---- tar ------------------------------------------------------------------------------------- */

static inline void tar_checksum(uint8_t h[512])
{
    memset(h + 148, ' ', 8);
    unsigned sum = 0;
    for (int i = 0; i < 512; i++) sum += h[i];
    snprintf((char *)h + 148, 8, "%06o", sum);
    h[155] = ' ';
}

static inline void tar_header(uint8_t h[512], const char *name, char type, uint64_t size)
{
    memset(h, 0, 512);
    memcpy(h, name, strlen(name) > 100 ? 100 : strlen(name));
    memcpy(h + 100, "0000644", 8);
    memcpy(h + 108, "0001750", 8);
    memcpy(h + 116, "0001750", 8);
    char field[32];
    snprintf(field, sizeof field, "%011llo", (unsigned long long)size);
    memcpy(h + 124, field, 12);
    memcpy(h + 136, "14000000000", 12);
    h[156] = (uint8_t)type;
    memcpy(h + 257,
           "ustar\0"
           "00",
           8);
    tar_checksum(h);
}

static inline void tar_add(bytes *out, const char *name, char type, const void *data, size_t len)
{
    static const uint8_t zero[512];
    uint8_t h[512];
    tar_header(h, name, type, len);
    bytes_add(out, h, 512);
    bytes_add(out, data, len);
    bytes_add(out, zero, (512 - len % 512) % 512);
}

static inline void tar_end(bytes *out)
{
    static const uint8_t zero[1024];
    bytes_add(out, zero, sizeof zero);
}

static inline bytes make_tar(const char *folder, const bytes *config, const bytes *weights)
{
    bytes out = {0};
    char name[200];
    if (folder[0] != 0) {
        snprintf(name, sizeof name, "%s/", folder);
        tar_add(&out, name, '5', NULL, 0);
    }
    snprintf(name, sizeof name, "%s%sadapter_config.json", folder, folder[0] != 0 ? "/" : "");
    tar_add(&out, name, '0', config->p, config->n);
    snprintf(name, sizeof name, "%s%sadapter_model.safetensors", folder, folder[0] != 0 ? "/" : "");
    tar_add(&out, name, '0', weights->p, weights->n);
    tar_end(&out);
    return out;
}

#endif
