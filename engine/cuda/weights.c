/* weights.c -- matrices on the device: where they are stored, and in which form.
 *
 * Plain matrices are padded so that rows begin on 16 bytes.  Quantised ones keep their codes
 * (codes_takes()), packed as products/gemm_codes.cu reads them.  Matrices are allocated one after
 * another, because be_linear() makes one product of those that are adjacent (linear.c).
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/pool.h"
#include "engine/cuda/cuda.h"

/* `src` NULL: what the memory holds is somebody else's to write. */
static err_code weight_place(backend *be, weight **out, const void *src, size_t bytes, dtype type,
                             int rows, int cols, bool low, err *e)
{
    cuda_state *cu = cuda_of(be);
    cuda_weight *w = calloc(1, sizeof(*w));
    if (!w) return err_set(e, ERR_NOMEM, "no memory for a matrix");
    w->head = (weight){.rows = rows, .cols = cols, .type = type, .bytes = bytes};
    w->p = cuda_take(cu, bytes, low);
    if (!w->p) {
        free(w);
        return err_set(e, ERR_NOMEM,
                       "not enough device memory for a matrix of %zu bytes: %zu of %zu are in use "
                       "(device-memory-fraction)",
                       bytes, cu->mem.used, cu->mem.bytes);
    }
    err_code rc = src ? cuda_upload(be, w->p, src, bytes) : ERR_NONE;
    if (rc) {
        cuda_weight_destroy(be, &w->head);
        return err_set(e, rc, "a matrix of %zu bytes can't be copied to the device", bytes);
    }
    *out = &w->head;
    return ERR_NONE;
}

/* Rows as products read them, in memory that the caller frees. */
static char *pad_rows(const void *src, dtype type, int rows, int cols)
{
    size_t size = dtype_bytes(type), row = (size_t)cols * size;
    size_t wide = (size_t)cuda_k(type, cols) * size;
    char *padded = calloc((size_t)rows, wide);
    for (int i = 0; padded && i < rows; i++)
        memcpy(padded + (size_t)i * wide, (const char *)src + (size_t)i * row, row);
    return padded;
}

static err_code weight_make(backend *be, weight **out, const void *src, dtype type, int rows,
                            int cols, bool low, err *e)
{
    size_t size = dtype_bytes(type), row = (size_t)cols * size;
    size_t wide = (size_t)cuda_k(type, cols) * size;
    if (wide == row || !src)
        return weight_place(be, out, src, (size_t)rows * wide, type, rows, cols, low, e);
    char *padded = pad_rows(src, type, rows, cols);
    if (!padded) return err_set(e, ERR_NOMEM, "no memory for a matrix");
    err_code rc = weight_place(be, out, padded, (size_t)rows * wide, type, rows, cols, low, e);
    free(padded);
    return rc;
}

static void on_pool(void *threads, void (*fn)(void *arg, int i), void *arg, int n)
{
    pool_each(threads, fn, arg, n);
}

/* Values as products by codes would have them, for scales that codes are not kept with. */
static err_code plain_of_codes(backend *be, weight **out, const weight_source *src, err *e)
{
    size_t cols = (size_t)src->cols;
    uint16_t *values = malloc((size_t)src->rows * cols * sizeof(*values));
    void *room = malloc(weight_row_bytes(src));
    err_code rc = values && room ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for a matrix");
    for (int i = 0; !rc && i < src->rows; i++) {
        weight_row row = weight_row_place(src, room);
        src->read_row(src, i, &row);
        for (int k = 0; k < src->cols; k++)
            values[(size_t)i * cols + (size_t)k] = bf16_from_f32(weight_row_value(src, &row, k));
    }
    log_info("engine", "a quantised matrix of %d x %d becomes plain: its scales fit no kernel",
             src->rows, src->cols);
    if (!rc) rc = weight_make(be, out, values, DT_BF16, src->rows, src->cols, true, e);
    free(room);
    free(values);
    return rc;
}

static err_code codes_create(backend *be, weight **out, const weight_source *src, err *e)
{
    cuda_state *cu = cuda_of(be);
    assert(src->type == DT_BF16 && codes_takes(src));
    size_t bytes = codes_bytes(src);
    gemm_codes codes;
    bool fits = false;
    void *packed = malloc(bytes);
    err_code rc = packed ? codes_pack(src, on_pool, cu->pool, packed, &codes, &fits) : ERR_NOMEM;
    if (rc) {
        rc = err_set(e, rc, "%s",
                     rc == ERR_NOMEM
                         ? "no memory to pack a matrix"
                         : "a quantised matrix has values or scales that are not numbers");
    } else if (!fits) {
        rc = plain_of_codes(be, out, src, e);
    } else {
        rc = weight_place(be, out, packed, bytes, DT_BF16, src->rows, src->cols, true, e);
        if (!rc) ((cuda_weight *)*out)->codes = codes;
    }
    free(packed);
    return rc;
}

err_code cuda_codes_read(backend *be, const cuda_weight *w, int row0, int n, float *out, err *e)
{
    int panels = (n + GEMM_PANEL - 1) / GEMM_PANEL, cols = w->head.cols;
    size_t each = w->codes.panel_bytes;
    char *raw = malloc((size_t)panels * each);
    if (!raw) return err_set(e, ERR_NOMEM, "no memory to read a matrix");
    assert(row0 % GEMM_PANEL == 0);
    err_code rc = cuda_download(be, raw, (char *)w->p + (size_t)(row0 / GEMM_PANEL) * each,
                                (size_t)panels * each);
    for (int i = 0; !rc && i < n; i++)
        codes_row(&w->codes, raw + (size_t)(i / GEMM_PANEL) * each, i % GEMM_PANEL, cols,
                  out + (size_t)i * (size_t)cols);
    free(raw);
    return rc ? err_set(e, rc, "the base's weight cannot be read") : ERR_NONE;
}

err_code cuda_weight_create(backend *be, weight **out, const weight_source *src, err *e)
{
    if (weight_source_quantised(src)) return codes_create(be, out, src, e);
    return weight_make(be, out, src->data, src->type, src->rows, src->cols, true, e);
}

err_code cuda_lora_weight_reserve(backend *be, weight **out, int rows, int cols, err *e)
{
    return weight_make(be, out, NULL, cuda_of(be)->head_type, rows, cols, false, e);
}

err_code cuda_lora_weight_fill(backend *be, weight *w, const void *src, dtype type, err *e)
{
    void *as = NULL, *padded = NULL;
    err_code rc = ERR_NONE;
    if (type != w->type)
        rc = cuda_convert(&as, w->type, src, type, (size_t)w->rows * (size_t)w->cols, e);
    if (rc) return rc;
    const void *values = as ? as : src;
    if (w->bytes != (size_t)w->rows * (size_t)w->cols * dtype_bytes(w->type))
        values = padded = pad_rows(values, w->type, w->rows, w->cols);
    if (!values)
        rc = err_set(e, ERR_NOMEM, "no memory for a matrix");
    else if (cuda_upload(be, ((cuda_weight *)w)->p, values, w->bytes))
        rc =
            err_set(e, ERR_DEVICE, "a matrix of %zu bytes can't be copied to the device", w->bytes);
    free(padded);
    free(as);
    return rc;
}

/* An adapter's own output layer, or rows of it, in the type of the base's. */
err_code cuda_lora_weight_create(backend *be, weight **out, const void *src, dtype type, int rows,
                                 int cols, err *e)
{
    err_code rc = cuda_lora_weight_reserve(be, out, rows, cols, e);
    if (!rc && (rc = cuda_lora_weight_fill(be, *out, src, type, e))) {
        cuda_weight_destroy(be, *out);
        *out = NULL;
    }
    return rc;
}

void cuda_weight_destroy(backend *be, weight *w)
{
    cuda_give(cuda_of(be), ((cuda_weight *)w)->p);
    free(w);
}

err_code cuda_table_create(backend *be, const void **out, const void *host, dtype type, int n_vocab,
                           int dim, const weight *same, err *e)
{
    cuda_state *cu = cuda_of(be);
    size_t bytes = (size_t)n_vocab * (size_t)dim * dtype_bytes(type);
    cu->n_vocab = n_vocab;
    cu->dim = dim;
    if (same && !cuda_by_codes(same) && same->type == type && same->rows == n_vocab &&
        same->cols == dim && cuda_k(type, dim) == dim) {
        *out = ((const cuda_weight *)same)->p;
        cu->shared_table = *out;
        return ERR_NONE;
    }
    void *p = cuda_take(cu, bytes, false);
    if (!p) return err_set(e, ERR_NOMEM, "not enough device memory for %zu bytes", bytes);
    err_code rc = host ? cuda_upload(be, p, host, bytes) : ERR_NONE;
    if (rc) {
        cuda_give(cu, p);
        return err_set(e, rc, "the input table can't be copied to the device");
    }
    *out = p;
    return ERR_NONE;
}

void cuda_table_destroy(backend *be, const void *table)
{
    cuda_state *cu = cuda_of(be);
    if (table != cu->shared_table) cuda_give(cu, (void *)(uintptr_t)table);
}
