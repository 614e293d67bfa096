/* retype.c -- one pass over the header to find what changes, one over the tensors to write them.
 *
 * Becomes F32: a tensor of F64, and of a pair A, B of two types what is not F32. A partner has
 * the same name with the other letter. All else is copied as it is, in the order of the file.
 *
 *     8 bytes little-endian: length of the header
 *     the header, filled with spaces to a multiple of 8
 *     the tensors, in pieces of 16,384 values
 *
 * retype_open() gives NULL where nothing changes. The size is known before a byte is written, a
 * little too high: HEADER_EACH bytes are counted for each tensor's line.
 */
#include "adapters/format/retype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "adapters/format/folder.h"
#include "adapters/format/validate.h"
#include "engine/model/safetensors.h"

enum { VALUES = 1 << 14, HEADER_EACH = 512 /* bytes of one tensor's line */ };

struct retype {
    int weights_fd;
    safetensors *st;
    bool *widened; /* [tensors of st]: it becomes F32 */
    uint64_t bytes;
};

/* B of an A, A of a B; NULL: the file does not contain it. */
static const st_tensor *partner_of(const safetensors *st, const st_tensor *t)
{
    static const char *const ends[] = {".lora_A", ".lora_B", ".lora_embedding_A",
                                       ".lora_embedding_B"};
    char name[1024];
    if (strlen(t->name) >= sizeof name) return NULL;
    for (size_t i = 0; i < sizeof ends / sizeof(*ends); i++) {
        const char *at = strstr(t->name, ends[i]);
        if (!at) continue;
        strcpy(name, t->name);
        name[at - t->name + (ptrdiff_t)strlen(ends[i]) - 1] = i % 2 ? 'A' : 'B';
        return safetensors_find(st, name);
    }
    return NULL;
}

static bool is_widened(const safetensors *st, const st_tensor *t)
{
    dtype type, other;
    if (t->dtype == ST_F64) return true;
    const st_tensor *partner = partner_of(st, t);
    if (!partner || partner->dtype == t->dtype || t->dtype == ST_F32) return false;
    return st_usable(t->dtype, &type) &&
           (partner->dtype == ST_F64 || st_usable(partner->dtype, &other));
}

err_code retype_open(retype **out, int weights_fd, uint64_t max_bytes, err *e)
{
    struct stat sb;
    safetensors *st = NULL;
    *out = NULL;
    if (fstat(weights_fd, &sb) != 0) return folder_disk_error(e, "read");
    err_code rc = adapter_read_header(weights_fd, (uint64_t)sb.st_size, &st, e);
    if (rc) return rc;
    retype *r = calloc(1, sizeof(*r));
    bool *widened = calloc((size_t)safetensors_count(st) + 1, sizeof(*widened)), any = false;
    if (!r || !widened) rc = err_set(e, ERR_NOMEM, "out of memory");
    uint64_t bytes = 0;
    for (int i = 0; i < safetensors_count(st) && !rc; i++) {
        const st_tensor *t = safetensors_at(st, i);
        widened[i] = is_widened(st, t);
        any |= widened[i];
        bytes += HEADER_EACH + (widened[i] ? t->count * sizeof(float) : t->bytes);
    }
    if (any && bytes > max_bytes)
        rc = err_set(e, ERR_LIMIT,
                     "with A and B in F32 the weights have %llu bytes; at most %llu are accepted",
                     (unsigned long long)bytes, (unsigned long long)max_bytes);
    if (rc || !any) {
        free(r);
        free(widened);
        safetensors_close(st);
        return rc;
    }
    *r = (retype){.weights_fd = weights_fd, .st = st, .widened = widened, .bytes = bytes};
    *out = r;
    return ERR_NONE;
}

uint64_t retype_bytes(const retype *r)
{
    return r->bytes;
}

void retype_close(retype *r)
{
    if (!r) return;
    safetensors_close(r->st);
    free(r->widened);
    free(r);
}

/* ---- writing -------------------------------------------------------------------------------- */

static void header_line(FILE *f, const st_tensor *t, bool widened, uint64_t *at)
{
    uint64_t bytes = widened ? t->count * sizeof(float) : t->bytes;
    fprintf(f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", *at ? "," : "", t->name,
            widened ? "F32" : st_dtype_name(t->dtype));
    for (int i = 0; i < t->ndim; i++)
        fprintf(f, "%s%llu", i ? "," : "", (unsigned long long)t->shape[i]);
    fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at,
            (unsigned long long)(*at + bytes));
    *at += bytes;
}

static err_code write_header(const retype *r, int fd, err *e)
{
    char *text = NULL;
    size_t len = 0;
    uint64_t at = 0;
    uint8_t le[8];
    FILE *f = open_memstream(&text, &len);
    if (!f) return err_set(e, ERR_NOMEM, "out of memory");
    fputc('{', f);
    for (int i = 0; i < safetensors_count(r->st); i++)
        header_line(f, safetensors_at(r->st, i), r->widened[i], &at);
    fputc('}', f);
    for (long end = ftell(f); end % 8 != 0; end++) fputc(' ', f);
    err_code rc = fclose(f) == 0 ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    for (int i = 0; i < 8; i++) le[i] = (uint8_t)((uint64_t)len >> 8 * i);
    if (!rc) rc = folder_put(fd, le, sizeof le, e);
    if (!rc) rc = folder_put(fd, text, len, e);
    free(text);
    return rc;
}

static void widen(const st_tensor *t, const void *raw, size_t n, float *out)
{
    const double *wide = raw;
    st_tensor part = {.dtype = t->dtype, .count = n, .data = raw};
    if (t->dtype != ST_F64) st_read_f32(&part, 0, n, out);
    for (size_t i = 0; t->dtype == ST_F64 && i < n; i++) out[i] = (float)wide[i];
}

static err_code write_tensor(const retype *r, const st_tensor *t, bool widened, int fd, err *e)
{
    static const size_t each = VALUES;
    double *raw = malloc(each * sizeof(*raw));
    float *out = malloc(each * sizeof(*out));
    size_t size = (size_t)(t->bytes / t->count), n;
    err_code rc = raw && out ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    for (uint64_t done = 0; done < t->count && !rc; done += n) {
        n = t->count - done < each ? (size_t)(t->count - done) : each;
        if (!folder_read_at(r->weights_fd, raw, n * size, t->offset + done * size))
            rc = err_set(e, ERR_IO, "tensor '%.140s' cannot be read", t->name);
        if (!rc && widened) widen(t, raw, n, out);
        if (!rc) rc = folder_put(fd, widened ? (void *)out : raw, n * (widened ? 4 : size), e);
    }
    free(raw);
    free(out);
    return rc;
}

static err_code copy_config(int from, int fd, err *e)
{
    struct stat sb;
    if (fstat(from, &sb) != 0 || sb.st_size > FOLDER_CONFIG_MAX)
        return err_set(e, ERR_LIMIT, "adapter_config.json has more than %d bytes",
                       FOLDER_CONFIG_MAX);
    char *text = malloc((size_t)sb.st_size + 1);
    err_code rc = text ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    if (!rc && !folder_read_at(from, text, (size_t)sb.st_size, 0))
        rc = err_set(e, ERR_IO, "adapter_config.json cannot be read");
    if (!rc) rc = folder_put(fd, text, (size_t)sb.st_size, e);
    free(text);
    return rc;
}

err_code retype_write(const retype *r, int config_from, int config_fd, int weights_fd, err *e)
{
    err_code rc = copy_config(config_from, config_fd, e);
    if (!rc) rc = write_header(r, weights_fd, e);
    for (int i = 0; i < safetensors_count(r->st) && !rc; i++)
        rc = write_tensor(r, safetensors_at(r->st, i), r->widened[i], weights_fd, e);
    return rc;
}
