/* gguf.c -- one pass over the header into two tables.
 *
 *     "GGUF", u32 version, u64 n_tensors, u64 n_kv
 *     n_kv      times: string key, u32 type, value
 *     n_tensors times: string name, u32 n_dims, u64 ne[n_dims] (innermost first), u32 type,
 *                      u64 offset
 *     padding to general.alignment, then the data at the offsets
 *
 * A string is u64 length and bytes; all is little-endian.
 */
#include "engine/files/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/program/mapping.h"

const gguf_limits gguf_limits_model = {.max_header_bytes = (size_t)1 << 30,
                                       .max_tensors = 100000,
                                       .max_keys = 4096,
                                       .max_dims = GGUF_DIMS_MAX};
const gguf_limits gguf_limits_upload = {
    .max_header_bytes = 8 << 20, .max_tensors = 20000, .max_keys = 4096, .max_dims = 2};

struct gguf {
    const uint8_t *p; /* the header */
    size_t n, at;
    uint64_t file_bytes, alignment;
    const gguf_limits *lim;
    gguf_value *key;
    int n_keys, *keys_by_name;
    gguf_tensor *tensor;
    int n_tensors, *tensors_by_name;
    void *map; /* NULL: not ours */
};

static const struct {
    const char *name;
    int block, bytes;
} types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 40},      [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
};

enum { TYPES = sizeof(types) / sizeof(types[0]) };

const char *gguf_type_name(int type)
{
    return type >= 0 && type < TYPES ? types[type].name : NULL;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static err_code cut_short(const gguf *g, err *e)
{
    if (g->n < g->file_bytes)
        return err_set(e, ERR_LIMIT, "GGUF: the header has more than %zu bytes",
                       g->lim->max_header_bytes);
    return err_set(e, ERR_CORRUPT, "GGUF: the file ends within its header");
}

static uint64_t little(const uint8_t *p, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static err_code number(gguf *g, size_t bytes, uint64_t *out, err *e)
{
    if (g->n - g->at < bytes) return cut_short(g, e);
    *out = little(g->p + g->at, bytes);
    g->at += bytes;
    return ERR_NONE;
}

static err_code text(gguf *g, const char **s, size_t *len, err *e)
{
    uint64_t n = 0;
    err_code rc = number(g, 8, &n, e);
    if (rc) return rc;
    if (n > g->n - g->at) return cut_short(g, e);
    *s = (const char *)g->p + g->at;
    *len = (size_t)n;
    g->at += (size_t)n;
    return ERR_NONE;
}

/* Bytes of a value that is neither text nor array; 0: there is no such kind. */
static size_t kind_bytes(uint64_t kind)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return kind < sizeof(bytes) ? bytes[kind] : 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static err_code skip_items(gguf *g, gguf_value *v, err *e)
{
    uint64_t item = 0;
    err_code rc = number(g, 4, &item, e);
    if (!rc) rc = number(g, 8, &v->count, e);
    if (rc) return rc;
    size_t each = kind_bytes(item), len;
    if (each == 0 && item != GGUF_TEXT)
        return err_set(e, ERR_CORRUPT, "GGUF: an array of type %llu", (unsigned long long)item);
    v->item = (gguf_kind)item;
    v->at = g->p + g->at;
    if (v->count > (g->n - g->at) / (each > 0 ? each : 8)) return cut_short(g, e);
    if (each > 0) g->at += (size_t)v->count * each;
    const char *s;
    for (uint64_t i = 0; each == 0 && i < v->count && !rc; i++) rc = text(g, &s, &len, e);
    return rc;
}

static err_code read_key(gguf *g, gguf_value *v, err *e)
{
    uint64_t kind = 0;
    err_code rc = text(g, &v->key, &v->key_bytes, e);
    if (!rc) rc = number(g, 4, &kind, e);
    if (rc) return rc;
    if (v->key_bytes == 0 || memchr(v->key, 0, v->key_bytes))
        return err_set(e, ERR_CORRUPT, "GGUF: a key is empty, or has a NUL in it");
    v->kind = (gguf_kind)kind;
    v->count = 1;
    v->at = g->p + g->at;
    if (kind == GGUF_TEXT) {
        const char *s;
        size_t len;
        rc = text(g, &s, &len, e);
    } else if (kind == GGUF_ARRAY) {
        rc = skip_items(g, v, e);
    } else {
        size_t bytes = kind_bytes(kind);
        if (bytes == 0)
            return err_set(e, ERR_CORRUPT, "GGUF: '%.*s' has the unknown type %llu",
                           v->key_bytes < 64 ? (int)v->key_bytes : 64, v->key,
                           (unsigned long long)kind);
        if (g->n - g->at < bytes) return cut_short(g, e);
        g->at += bytes;
    }
    v->end = g->p + g->at;
    return rc;
}

static int order_texts(const char *a, size_t na, const char *b, size_t nb)
{
    int c = memcmp(a, b, na < nb ? na : nb);
    return c ? c : (na > nb) - (na < nb);
}

static int order_keys(const void *a, const void *b, void *arg)
{
    const gguf_value *v = arg, *x = &v[*(const int *)a], *y = &v[*(const int *)b];
    return order_texts(x->key, x->key_bytes, y->key, y->key_bytes);
}

static int order_tensors(const void *a, const void *b, void *arg)
{
    const gguf_tensor *t = arg;
    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

/* *out: 0 .. n - 1 in an order; where two are equal, *twice is one of them, else -1. */
static err_code sort(int **out, int n, int (*order)(const void *, const void *, void *), void *arg,
                     int *twice, err *e)
{
    int *index = *out = malloc(((size_t)n + 1) * sizeof(*index));
    if (!index) return err_set(e, ERR_NOMEM, "no memory to read a GGUF");
    *twice = -1;
    for (int i = 0; i < n; i++) index[i] = i;
    if (n > 0) qsort_r(index, (size_t)n, sizeof(*index), order, arg);
    for (int i = 1; i < n; i++) {
        if (order(&index[i - 1], &index[i], arg) == 0) *twice = index[i];
    }
    return ERR_NONE;
}

static err_code read_keys(gguf *g, uint64_t n, err *e)
{
    if (n > (uint64_t)g->lim->max_keys)
        return err_set(e, ERR_LIMIT, "GGUF: %llu keys; at most %d are read", (unsigned long long)n,
                       g->lim->max_keys);
    g->key = calloc((size_t)n + 1, sizeof(*g->key));
    if (!g->key) return err_set(e, ERR_NOMEM, "no memory to read a GGUF");
    err_code rc = ERR_NONE;
    for (g->n_keys = 0; g->n_keys < (int)n && !rc; g->n_keys++)
        rc = read_key(g, &g->key[g->n_keys], e);
    if (rc) return rc;
    int twice;
    rc = sort(&g->keys_by_name, g->n_keys, order_keys, g->key, &twice, e);
    if (rc || twice < 0) return rc;
    const gguf_value *v = &g->key[twice];
    return err_set(e, ERR_CORRUPT, "GGUF: the key '%.*s' is there twice",
                   v->key_bytes < 64 ? (int)v->key_bytes : 64, v->key);
}

static err_code read_alignment(gguf *g, err *e)
{
    const gguf_value *v = gguf_find(g, "general.alignment");
    uint64_t a = 32;
    g->alignment = a;
    if (!v) return ERR_NONE;
    if (v->kind != GGUF_U32 || !gguf_whole(v, &a) || a < 8 || a > 65536 || (a & (a - 1)) != 0)
        return err_set(e, ERR_CORRUPT,
                       "GGUF: general.alignment must be a power of two up to 65536");
    g->alignment = a;
    return ERR_NONE;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Rows are whole blocks; their bytes, without overflow, are at most the file's. */
static err_code measure(const gguf *g, gguf_tensor *t, err *e)
{
    int bytes = types[t->type].bytes, block = types[t->type].block;
    uint64_t total, most = g->file_bytes;
    if (t->ne[0] % (uint64_t)block != 0)
        return err_set(e, ERR_CORRUPT,
                       "GGUF: tensor '%s': rows must have a multiple of %d values, not %llu",
                       t->name, block, (unsigned long long)t->ne[0]);
    total = t->ne[0] / (uint64_t)block;
    bool large = total == 0 || __builtin_mul_overflow(total, (uint64_t)bytes, &total);
    for (int i = 1; i < t->n_dims && !large; i++)
        large = t->ne[i] == 0 || __builtin_mul_overflow(total, t->ne[i], &total);
    if (large || total > most)
        return err_set(e, ERR_CORRUPT, "GGUF: tensor '%s' is larger than the file", t->name);
    t->bytes = total;
    return ERR_NONE;
}

static err_code read_tensor(gguf *g, gguf_tensor *t, err *e)
{
    const char *name;
    size_t len;
    uint64_t dims = 0, type = 0;
    err_code rc = text(g, &name, &len, e);
    if (rc) return rc;
    if (len == 0 || len > GGUF_NAME_MAX || memchr(name, 0, len))
        return err_set(e, ERR_CORRUPT, "GGUF: a tensor's name has %zu bytes, or a NUL in it", len);
    memcpy(t->name, name, len);
    rc = number(g, 4, &dims, e);
    if (rc) return rc;
    if (dims < 1 || dims > (uint64_t)g->lim->max_dims)
        return err_set(e, ERR_INPUT, "GGUF: tensor '%s' has %llu dimensions; 1 to %d are supported",
                       t->name, (unsigned long long)dims, g->lim->max_dims);
    t->n_dims = (int)dims;
    for (int i = 0; i < GGUF_DIMS_MAX; i++) t->ne[i] = 1;
    for (int i = 0; i < t->n_dims && !rc; i++) rc = number(g, 8, &t->ne[i], e);
    if (!rc) rc = number(g, 4, &type, e);
    if (!rc) rc = number(g, 8, &t->offset, e);
    if (rc) return rc;
    t->type = type < TYPES ? (int)type : -1;
    if (!gguf_type_name(t->type))
        return err_set(e, ERR_UNSUPPORTED, "GGUF: tensor '%s' has the unknown type %llu", t->name,
                       (unsigned long long)type);
    return measure(g, t, e);
}

static err_code check_places(gguf *g, err *e)
{
    uint64_t sum = 0, data0 = (g->at + g->alignment - 1) / g->alignment * g->alignment;
    for (int i = 0; i < g->n_tensors; i++) {
        gguf_tensor *t = &g->tensor[i];
        if (data0 > g->file_bytes || t->offset > g->file_bytes - data0 ||
            t->bytes > g->file_bytes - data0 - t->offset)
            return err_set(e, ERR_CORRUPT, "GGUF: tensor '%s' extends beyond the end of the file",
                           t->name);
        if (t->offset % g->alignment != 0)
            return err_set(e, ERR_CORRUPT, "GGUF: tensor '%s' is not aligned", t->name);
        sum += t->bytes; /* each is at most the file, and there are few */
        t->offset += data0;
        if (g->map) t->data = g->p + t->offset;
    }
    if (sum > g->file_bytes - (g->n_tensors > 0 ? data0 : 0))
        return err_set(e, ERR_CORRUPT, "GGUF: tensors overlap");
    return ERR_NONE;
}

static err_code read_tensors(gguf *g, uint64_t n, err *e)
{
    g->tensor = calloc((size_t)n + 1, sizeof(*g->tensor));
    if (!g->tensor) return err_set(e, ERR_NOMEM, "no memory to read a GGUF");
    err_code rc = ERR_NONE;
    for (g->n_tensors = 0; g->n_tensors < (int)n && !rc; g->n_tensors++)
        rc = read_tensor(g, &g->tensor[g->n_tensors], e);
    if (!rc) rc = check_places(g, e);
    if (rc) return rc;
    int twice;
    rc = sort(&g->tensors_by_name, g->n_tensors, order_tensors, g->tensor, &twice, e);
    if (rc || twice < 0) return rc;
    return err_set(e, ERR_CORRUPT, "GGUF: duplicate tensor '%s'", g->tensor[twice].name);
}

static err_code read_header(gguf *g, err *e)
{
    uint64_t version = 0, n_tensors = 0, n_keys = 0;
    if (g->n < 4 || memcmp(g->p, "GGUF", 4) != 0)
        return err_set(e, ERR_CORRUPT, "the file is not a GGUF: it must begin with \"GGUF\"");
    g->at = 4;
    err_code rc = number(g, 4, &version, e);
    if (!rc) rc = number(g, 8, &n_tensors, e);
    if (!rc) rc = number(g, 8, &n_keys, e);
    if (rc) return rc;
    if (version != 2 && version != 3)
        return err_set(e, ERR_UNSUPPORTED, "GGUF: version %llu is not supported; 2 and 3 are",
                       (unsigned long long)version);
    if (n_tensors > (uint64_t)g->lim->max_tensors)
        return err_set(e, ERR_LIMIT, "GGUF: the file has %llu tensors; at most %d are supported",
                       (unsigned long long)n_tensors, g->lim->max_tensors);
    rc = read_keys(g, n_keys, e);
    if (!rc) rc = read_alignment(g, e);
    return rc ? rc : read_tensors(g, n_tensors, e);
}

/* ---- open ------------------------------------------------------------------------------------ */

static err_code open_bytes(gguf **out, void *map, const void *bytes, size_t len,
                           uint64_t file_bytes, const gguf_limits *lim, err *e)
{
    *out = NULL;
    gguf *g = calloc(1, sizeof(*g));
    if (!g) return err_set(e, ERR_NOMEM, "no memory to read a GGUF");
    *g = (gguf){.p = bytes, .n = len, .file_bytes = file_bytes, .lim = lim, .map = map};
    if (g->n > lim->max_header_bytes) g->n = lim->max_header_bytes;
    err_code rc = read_header(g, e);
    if (rc) {
        g->map = NULL;
        gguf_close(g);
        return rc;
    }
    *out = g;
    return ERR_NONE;
}

err_code gguf_open_header(gguf **out, const void *prefix, size_t len, uint64_t file_bytes,
                          const gguf_limits *lim, err *e)
{
    return open_bytes(out, NULL, prefix, len, file_bytes, lim, e);
}

err_code gguf_open(gguf **out, const char *path, const gguf_limits *lim, err *e)
{
    *out = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_set(e, ERR_IO, "can't open the file: %s", strerror(errno));
    struct stat st;
    err_code rc = ERR_NONE;
    void *map = MAP_FAILED;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < 4)
        rc = err_set(e, ERR_IO, "no regular file with something in it");
    if (!rc) map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (!rc && map == MAP_FAILED)
        rc = err_set(e, ERR_IO, "can't map the file: %s", strerror(errno));
    (void)close(fd);
    if (rc) return rc;
    rc = open_bytes(out, map, map, (size_t)st.st_size, (uint64_t)st.st_size, lim, e);
    if (rc)
        (void)munmap(map, (size_t)st.st_size);
    else
        mapping_add(map, (size_t)st.st_size);
    return rc;
}

void gguf_close(gguf *g)
{
    if (!g) return;
    if (g->map) {
        mapping_remove(g->map);
        (void)munmap(g->map, (size_t)g->file_bytes);
    }
    free(g->key);
    free(g->keys_by_name);
    free(g->tensor);
    free(g->tensors_by_name);
    free(g);
}

/* ---- access ---------------------------------------------------------------------------------- */

int gguf_keys(const gguf *g)
{
    return g->n_keys;
}

const gguf_value *gguf_key_at(const gguf *g, int i)
{
    return &g->key[i];
}

const gguf_value *gguf_find(const gguf *g, const char *key)
{
    int lo = 0, hi = g->n_keys;
    size_t len = strlen(key);
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const gguf_value *v = &g->key[g->keys_by_name[mid]];
        int c = order_texts(key, len, v->key, v->key_bytes);
        if (c == 0) return v;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

int gguf_tensors(const gguf *g)
{
    return g->n_tensors;
}

const gguf_tensor *gguf_tensor_at(const gguf *g, int i)
{
    return &g->tensor[i];
}

const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name)
{
    int lo = 0, hi = g->n_tensors;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const gguf_tensor *t = &g->tensor[g->tensors_by_name[mid]];
        int c = strcmp(name, t->name);
        if (c == 0) return t;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

/* A number of `kind` at `p` as both: false: it is none. */
static bool read_number(gguf_kind kind, const uint8_t *p, double *real, int64_t *whole, bool *fits)
{
    size_t bytes = kind_bytes(kind);
    if (bytes == 0 || kind == GGUF_BOOL) return false;
    uint64_t u = little(p, bytes);
    bool sign = kind == GGUF_I8 || kind == GGUF_I16 || kind == GGUF_I32 || kind == GGUF_I64;
    *fits = true;
    if (kind == GGUF_F32 || kind == GGUF_F64) {
        uint32_t u32 = (uint32_t)u;
        float f;
        memcpy(&f, &u32, sizeof(f));
        if (kind == GGUF_F32)
            *real = (double)f;
        else
            memcpy(real, &u, sizeof(*real));
        *fits = false; /* no whole number */
        return true;
    }
    if (sign && bytes < 8 && u >> (8 * bytes - 1)) u |= ~(uint64_t)0 << 8 * bytes;
    if (!sign && u > INT64_MAX) *fits = false;
    memcpy(whole, &u, sizeof(u));
    *real = sign ? (double)*whole : (double)u;
    return true;
}

bool gguf_whole(const gguf_value *v, uint64_t *out)
{
    double real;
    int64_t whole;
    bool fits;
    if (!v || !read_number(v->kind, v->at, &real, &whole, &fits) || !fits || whole < 0)
        return false;
    *out = (uint64_t)whole;
    return true;
}

bool gguf_real(const gguf_value *v, double *out)
{
    int64_t whole;
    bool fits;
    return v && read_number(v->kind, v->at, out, &whole, &fits);
}

bool gguf_flag(const gguf_value *v, bool *out)
{
    if (!v || v->kind != GGUF_BOOL || v->at[0] > 1) return false;
    *out = v->at[0] == 1;
    return true;
}

bool gguf_text(const gguf_value *v, const char **s, size_t *len)
{
    if (!v || v->kind != GGUF_TEXT) return false;
    *len = (size_t)little(v->at, 8);
    *s = (const char *)v->at + 8;
    return memchr(*s, 0, *len) == NULL;
}

bool gguf_next_text(const gguf_value *v, uint64_t *at, const char **s, size_t *len)
{
    if (!v || v->kind != GGUF_ARRAY || v->item != GGUF_TEXT) return false;
    const uint8_t *p = v->at + *at;
    if (p == v->end) return false;
    *len = (size_t)little(p, 8);
    *s = (const char *)p + 8;
    *at += 8 + *len;
    return memchr(*s, 0, *len) == NULL;
}

bool gguf_item_real(const gguf_value *v, uint64_t i, double *out)
{
    int64_t whole;
    bool fits;
    return v && v->kind == GGUF_ARRAY && i < v->count &&
           read_number(v->item, v->at + i * kind_bytes(v->item), out, &whole, &fits);
}

bool gguf_item_whole(const gguf_value *v, uint64_t i, int64_t *out)
{
    double real;
    bool fits;
    return v && v->kind == GGUF_ARRAY && i < v->count &&
           read_number(v->item, v->at + i * kind_bytes(v->item), &real, out, &fits) && fits;
}
