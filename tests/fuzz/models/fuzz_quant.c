/* fuzz_quant.c -- one matrix of a quantised Hugging Face folder.
 *
 *   SHAPE  QUANTIZATION_CONFIG  NUL  TENSORS  NUL  BYTES
 *
 * SHAPE is a byte that picks rows and columns.  QUANTIZATION_CONFIG is put into config.json as it
 * is.  TENSORS are lines "name DTYPE dim dim ...", "name =text" (U8) or "name INDEX group n" (I32),
 * of which the harness makes model.safetensors: the header itself is fuzz_safetensors.c's matter.
 * A name that does not begin with "model." belongs to the module.  BYTES fill the tensors, again
 * and again.
 *
 * What is found must have values, the same for a row alone as among all, and a backend that takes
 * its codes must be able to multiply by them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/model/model_files.h"
#include "engine/weight_source.h"
#include "tests/fuzz/fuzz.h"

#define MODULE "model.layers.0.self_attn.q_proj"

enum { DATA_MAX = 1 << 17, TENSORS_MAX = 24, INDEX_MAX = 256, NAME_ROOM = 160 };

static const struct {
    int rows, cols;
} shapes[] = {{64, 64}, {16, 16}, {32, 64}, {8, 8}, {24, 40}, {1, 64}, {2, 32}, {16, 24}};

/* ---- the folder ------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t bytes;
} types[] = {{"I32", 4}, {"F16", 2},     {"BF16", 2}, {"F32", 4}, {"I8", 1},
             {"U8", 1},  {"F8_E4M3", 1}, {"I64", 8},  {"F64", 8}, {"BOOL", 1}};

typedef struct {
    FILE *head; /* of model.safetensors, as JSON */
    uint8_t *data;
    size_t n_data;
    int n;
    const uint8_t *fill;
    size_t n_fill;
} folder;

static bool plain_word(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n < 100 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == n;
}

static void add_tensor(folder *f, const char *name, const char *type, const char *dims,
                       const char *text, size_t bytes)
{
    const char *module = strncmp(name, "model.", 6) == 0 ? "" : MODULE ".";
    if (bytes == 0 || bytes > DATA_MAX - f->n_data || f->n == TENSORS_MAX) return;
    fprintf(f->head, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
            f->n++ ? "," : "{", module, name, type, dims, f->n_data, f->n_data + bytes);
    for (size_t i = 0; i < bytes; i++)
        f->data[f->n_data + i] = text ? (uint8_t)text[i] : f->n_fill ? f->fill[i % f->n_fill] : 0;
    f->n_data += bytes;
}

/* An index of groups: `group` columns one behind another; 0: every fourth column. */
static void add_index(folder *f, const char *name, unsigned group, unsigned n)
{
    uint32_t word[INDEX_MAX];
    char dims[16];
    if (n == 0 || n > INDEX_MAX) return;
    for (unsigned i = 0; i < n; i++) word[i] = group ? i / group : i % 4;
    snprintf(dims, sizeof(dims), "%u", n);
    add_tensor(f, name, "I32", dims, (const char *)word, n * sizeof(*word));
}

static void add_line(folder *f, char *line)
{
    unsigned group, n_index;
    char *rest = strchr(line, ' '), *save, dims[NAME_ROOM] = "";
    if (!rest) return;
    *rest++ = 0;
    if (!plain_word(line)) return;
    if (*rest == '=') {
        snprintf(dims, sizeof(dims), "%zu", strlen(rest + 1));
        add_tensor(f, line, "U8", dims, rest + 1, strlen(rest + 1));
        return;
    }
    if (sscanf(rest, "INDEX %5u %5u", &group, &n_index) == 2) {
        add_index(f, line, group, n_index);
        return;
    }
    char *type = strtok_r(rest, " ", &save);
    size_t bytes = 0;
    for (size_t i = 0; type && i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(types[i].name, type) == 0) bytes = types[i].bytes;
    for (char *d; type && (d = strtok_r(NULL, " ", &save));) {
        unsigned long n = strtoul(d, NULL, 10);
        size_t at = strlen(dims);
        if (n == 0 || n > DATA_MAX || bytes > DATA_MAX || at > NAME_ROOM / 2) return;
        bytes *= n;
        snprintf(dims + at, sizeof(dims) - at, "%s%lu", at ? "," : "", n);
    }
    if (type) add_tensor(f, line, type, dims, NULL, bytes);
}

static void put_weights(char *lines, const uint8_t *fill, size_t n_fill)
{
    char *text = NULL, *save;
    size_t len = 0;
    folder f = {.data = malloc(DATA_MAX), .fill = fill, .n_fill = n_fill};
    f.head = open_memstream(&text, &len);
    if (!f.head || !f.data) abort();
    for (char *line = strtok_r(lines, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        add_line(&f, line);
    if (!f.n) fputs("{", f.head);
    fputs("}", f.head);
    (void)fclose(f.head);
    uint64_t n = len;
    uint8_t *file = malloc(sizeof(n) + len + f.n_data);
    if (!file) abort();
    memcpy(file, &n, sizeof(n));
    memcpy(file + sizeof(n), text, len);
    memcpy(file + sizeof(n) + len, f.data, f.n_data);
    fuzz_put("model.safetensors", file, sizeof(n) + len + f.n_data);
    free(file);
    free(text);
    free(f.data);
}

static void put_config(const char *quantization)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    if (!out) abort();
    fprintf(out, "{\"model_type\":\"llama\",\"quantization_config\":%s}", quantization);
    (void)fclose(out);
    fuzz_put("config.json", text, len);
    free(text);
}

/* ---- what is found ---------------------------------------------------------------------- */

static void multiply(const stored *s)
{
    static backend *be;
    err e = {.msg = ""};
    weight *w;
    weight_source src = s->src;
    const backend_config one = {.n_threads = 1, .isa = "auto"};
    src.type = DT_F32; /* as a loader sets it: what adapters beside it are kept in */
    if (!be && be_open(&be, &backend_cpu, &one, &e)) abort();
    if (be_weight_create(be, &w, &src, &e)) { /* a scale that is not finite */
        FUZZ_CHECK(e.msg[0]);
        return;
    }
    float *x = calloc((size_t)s->src.cols, sizeof(*x));
    float *y = calloc((size_t)s->src.rows, sizeof(*y));
    if (!x || !y) abort();
    for (int i = 0; i < s->src.cols; i++) x[i] = (float)(i % 5 - 2);
    const step st = {.n_rows = 1};
    be_linear(be, x, &(linear_out){.y = y, .w = w, .lora_proj = -1}, 1, &st, 0);
    FUZZ_CHECK(be_sync(be, &e) == ERR_NONE);
    be_weight_destroy(be, w);
    free(x);
    free(y);
}

static void check(const stored *s, int rows, int cols)
{
    FUZZ_CHECK(s->src.rows == rows && s->src.cols == cols);
    size_t n = (size_t)rows * (size_t)cols;
    float *all = malloc(n * sizeof(*all)), *one = malloc((size_t)cols * sizeof(*one));
    uint16_t *half = malloc(n * sizeof(*half));
    if (!all || !one || !half) abort();
    FUZZ_CHECK(stored_values(s, 0, rows, DT_F32, all));
    FUZZ_CHECK(stored_values(s, rows - 1, rows, DT_F32, one));
    FUZZ_CHECK(memcmp(all + n - (size_t)cols, one, (size_t)cols * sizeof(*one)) == 0);
    FUZZ_CHECK(stored_values(s, 0, rows, DT_BF16, half) && stored_bytes(s) > 0);
    free(all);
    free(one);
    free(half);
    if (s->src.read_row && weight_source_even(&s->src) && weight_source_usable(&s->src, false))
        multiply(s);
}

/* The same matrix as the lower half of a fused one, or every other row of it, or its columns; one
 * of two experts' matrices, every row or odd rows of it; every other bias of two experts; weights
 * of a convolution. */
static void find_parts(model_files *f, int rows, int cols)
{
    static const char experts[] = "model.layers.0.mlp.experts.gate_up_proj";
    stored s;
    err e;
    int upper = rows / 2, lower = rows - upper;
    const stored_rows half = {.whole = rows, .first = upper},
                      groups = {.whole = rows, .each = 1, .apart = 2},
                      across = {.whole = rows, .across = true};
    const stored_rows *ways[] = {&half, &groups, &across};
    const int n[] = {lower, upper, rows};
    for (int i = 0; i < 3; i++) {
        if (n[i] > 0 && !model_files_find_rows(f, MODULE, "weight", ways[i], n[i], cols, &s, &e))
            check(&s, n[i], cols);
        if (n[i] > 0) stored_clear(&s);
    }
    for (int every = 1; every <= 2; every++) {
        const stored_slice at = {
            .slice = 1, .n_slice = 2, .whole = rows * every, .row0 = every - 1, .step = every};
        if (!model_files_find_slice(f, experts, &at, rows, cols, &s, &e)) check(&s, rows, cols);
        stored_clear(&s);
    }
    if (!model_files_find_columns(f, "model.layers.0.mlp.experts.bias", 2, 2 * cols, 1, 2, cols, &s,
                                  &e))
        check(&s, 2, cols);
    stored_clear(&s);
    if (!model_files_find_taps(f, "model.layers.0.conv.conv", cols, 4, &s, &e)) check(&s, 4, cols);
    stored_clear(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *config, *rest, *lines, *unused;
    model_files *f;
    stored s;
    err e = {.msg = ""};
    if (size == 0) return 0;
    int shape = data[0] % (int)(sizeof(shapes) / sizeof(shapes[0]));
    int rows = shapes[shape].rows, cols = shapes[shape].cols;
    fuzz_split(data + 1, size - 1, 0, &config, &rest);
    size_t n_config = strlen(config) + 1, left = size - 1 > n_config ? size - 1 - n_config : 0;
    const uint8_t *table = data + size - left;
    fuzz_split(table, left, 0, &lines, &unused);
    size_t n_lines = strlen(lines) + 1;
    put_config(config);
    put_weights(lines, left > n_lines ? table + n_lines : NULL,
                left > n_lines ? left - n_lines : 0);
    free(config);
    free(rest);
    free(lines);
    free(unused);
    if (model_files_open(&f, fuzz_dir_path(), &fuzz_base, &e)) {
        FUZZ_CHECK(e.msg[0]);
        return 0;
    }
    err_code rc = model_files_find(f, MODULE, "weight", rows, cols, &s, &e);
    FUZZ_CHECK(rc == ERR_NONE || e.msg[0]);
    if (!rc) check(&s, rows, cols);
    stored_clear(&s);
    find_parts(f, rows, cols);
    model_files_close(f);
    return 0;
}
