/* safetensors.c -- reads the safetensors format: header of tensor names, types, shapes and offsets;
 * data behind it, mapped.
 *
 *   8 bytes header length | JSON {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [a, b]},
 *   ..} | data
 *
 * The JSON grammar of a header is fixed, so the scanner knows only that: no recursion, no tree, no
 * memory beyond the table. Names are slices of the header while it is parsed and are copied once at
 * the end.
 *
 * Checks (the file is untrusted): header length against the file, limits (st_limits_model,
 * st_limits_upload), known fields once each, shape x type = bytes without overflow. Then the table
 * is sorted: by name, duplicates are neighbours; by offset, holes and overlaps are
 * (check_layout()). Data must cover the file exactly.
 *
 * No field is trusted after parsing that was not checked; st_tensor.data points into the mapping.
 * Source: the format description of huggingface/safetensors. Threads: immutable once open.
 */
#include "engine/model/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hex.h"
#include "engine/base/utf8.h"
#include "engine/program/mapping.h"

const st_limits st_limits_model = {
    .max_header_bytes = 100000000,
    .max_metadata_bytes = 16 << 20,
    .max_tensors = 262144,
    .max_dims = ST_DIMS_MAX,
    .max_name = 512,
};

const st_limits st_limits_upload = {
    .max_header_bytes = 4 << 20,
    .max_metadata_bytes = 64 << 10,
    .max_tensors = 16384,
    .max_dims = 4,
    .max_name = 256,
};

struct safetensors {
    st_tensor *tensor; /* [n], ascending offset */
    int *by_name;      /* [n], indexes into tensor in the order of names */
    char *names;       /* all names, NUL-terminated */
    int n;
    void *map; /* NULL: not ours */
    size_t map_bytes;
};

enum { PREFIX_BYTES = 8, NAME_SHOWN = 80, METADATA_KEYS_MAX = 4096 };

#define ST_NAME_(name, bits) #name,
static const char *const dtype_names[] = {ST_DTYPE_LIST(ST_NAME_)};
#undef ST_NAME_
#define ST_BITS_(name, bits) bits,
static const uint8_t dtype_bits[] = {ST_DTYPE_LIST(ST_BITS_)};
#undef ST_BITS_

/* ------------------------------------------------------------------------- scanner -- */

typedef struct slice {
    const char *at;
    size_t len;
} slice;

typedef struct scan {
    const char *start, *at, *end;
    const st_limits *lim;
    err *e;
} scan;

static err_code bad(scan *s, const char *what)
{
    return err_set(s->e, ERR_CORRUPT, "safetensors header: %s at byte %zu", what,
                   (size_t)(s->at - s->start));
}

static void skip_space(scan *s)
{
    while (s->at < s->end &&
           (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t')) {
        s->at++;
    }
}

/* Skips space; if the next byte is `c`, takes it. */
static bool take(scan *s, char c)
{
    skip_space(s);
    if (s->at >= s->end || *s->at != c) return false;
    s->at++;
    return true;
}

/* A string with no escapes, whose bytes `allowed` accepts (the closing quote ends it). */
static err_code plain_string(scan *s, slice *out, bool (*allowed)(unsigned char c))
{
    if (!take(s, '"')) return bad(s, "expected a string");
    const char *from = s->at;
    while (s->at < s->end && *s->at != '"') {
        if (!allowed((unsigned char)*s->at)) {
            return bad(s, "character that no tensor name, field or dtype may hold");
        }
        s->at++;
    }
    if (s->at == s->end) return bad(s, "string without end");
    *out = (slice){from, (size_t)(s->at - from)};
    s->at++;
    return ERR_NONE;
}

static bool name_char(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

/* One escape, s->at on the backslash. */
static err_code escape(scan *s)
{
    if (s->end - s->at < 2) return bad(s, "string without end");
    char c = s->at[1];
    if (c != 'u') {
        if (c == '\0' || !strchr("\"\\/bfnrt", c)) return bad(s, "unknown escape");
        s->at += 2;
        return ERR_NONE;
    }
    int u = hex_value(s->at + 2, s->end, 4);
    if (u <= 0) return bad(s, "bad \\u escape");
    if (u >= 0xDC00 && u <= 0xDFFF) return bad(s, "lone surrogate");
    s->at += 6;
    if (u < 0xD800 || u > 0xDFFF) return ERR_NONE;
    bool pair = s->end - s->at >= 2 && s->at[0] == '\\' && s->at[1] == 'u';
    int low = pair ? hex_value(s->at + 2, s->end, 4) : -1;
    if (low < 0xDC00 || low > 0xDFFF) return bad(s, "lone surrogate");
    s->at += 6;
    return ERR_NONE;
}

/* Any JSON string; the slice is raw (escapes not resolved). */
static err_code free_string(scan *s, slice *out)
{
    if (!take(s, '"')) return bad(s, "expected a string");
    const char *from = s->at;
    while (s->at < s->end && *s->at != '"') {
        if ((unsigned char)*s->at < 0x20) return bad(s, "control character in a string");
        if (*s->at == '\\') {
            err_code rc = escape(s);
            if (rc) return rc;
            continue;
        }
        uint32_t code;
        int n = utf8_read(s->at, (size_t)(s->end - s->at), &code);
        if (n <= 0) return bad(s, "invalid UTF-8");
        s->at += n;
    }
    if (s->at == s->end) return bad(s, "string without end");
    *out = (slice){from, (size_t)(s->at - from)};
    s->at++;
    return ERR_NONE;
}

/* A non-negative integer below 2^64 with no sign, fraction, exponent or leading zero. */
static err_code integer(scan *s, uint64_t *out)
{
    skip_space(s);
    const char *from = s->at;
    uint64_t v = 0;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') {
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s->at - '0'), &v)) {
            return bad(s, "number of 2^64 or more");
        }
        s->at++;
    }
    size_t digits = (size_t)(s->at - from);
    if (digits == 0 || (digits > 1 && *from == '0')) {
        return bad(s, from < s->end && *from == '-' ? "expected a whole number, not a negative one"
                                                    : "expected a whole number");
    }
    if (s->at < s->end && strchr(".eE", *s->at) && *s->at != '\0') {
        return bad(s, "number that is not an integer");
    }
    *out = v;
    return ERR_NONE;
}

static bool slice_is(slice a, const char *text)
{
    return a.len == strlen(text) && memcmp(a.at, text, a.len) == 0;
}

/* ------------------------------------------------------------------------- grammar -- */

static int slice_order(const void *a, const void *b)
{
    const slice *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int c = memcmp(x->at, y->at, n);
    return c ? c : (x->len > y->len) - (x->len < y->len);
}

static err_code metadata_entries(scan *s, slice *key)
{
    const char *from = s->at;
    size_t n = 0;
    if (!take(s, '{')) return bad(s, "__metadata__ must be an object");
    if (!take(s, '}')) {
        do {
            slice value;
            if (n == METADATA_KEYS_MAX) return bad(s, "too many keys in __metadata__");
            err_code rc = free_string(s, &key[n++]);
            if (rc) return rc;
            if (!take(s, ':')) return bad(s, "expected ':'");
            rc = free_string(s, &value);
            if (rc) return rc;
            if ((size_t)(s->at - from) > s->lim->max_metadata_bytes) {
                return err_set(s->e, ERR_LIMIT, "safetensors __metadata__ exceeds %zu bytes",
                               s->lim->max_metadata_bytes);
            }
        } while (take(s, ','));
        if (!take(s, '}')) return bad(s, "expected ',' or '}'");
    }
    qsort(key, n, sizeof(*key), slice_order);
    for (size_t i = 1; i < n; i++) {
        if (slice_order(&key[i - 1], &key[i]) == 0) {
            return bad(s, "duplicate key in __metadata__");
        }
    }
    return ERR_NONE;
}

static err_code metadata(scan *s)
{
    slice *key = malloc(METADATA_KEYS_MAX * sizeof(*key));
    if (!key) return err_set(s->e, ERR_NOMEM, "no memory to read a safetensors header");
    err_code rc = metadata_entries(s, key);
    free(key);
    return rc;
}

/* Like printf's %.*s argument: a name cut to what fits in a message. */
static int shown(slice name)
{
    return name.len < NAME_SHOWN ? (int)name.len : NAME_SHOWN;
}

static err_code dtype_field(scan *s, slice name, st_tensor *t)
{
    slice v;
    err_code rc = plain_string(s, &v, name_char);
    if (rc) return rc;
    for (int i = 0; i < ST_DTYPE_COUNT; i++) {
        if (slice_is(v, dtype_names[i])) {
            t->dtype = (st_dtype)i;
            return ERR_NONE;
        }
    }
    return err_set(s->e, ERR_CORRUPT, "tensor '%.*s': unknown dtype '%.*s'", shown(name), name.at,
                   v.len < 16 ? (int)v.len : 16, v.at);
}

static err_code shape_field(scan *s, slice name, st_tensor *t)
{
    if (!take(s, '[')) return bad(s, "shape must be an array");
    t->ndim = 0;
    if (take(s, ']')) return ERR_NONE;
    do {
        if (t->ndim == s->lim->max_dims) {
            return err_set(s->e, ERR_LIMIT, "tensor '%.*s' has more than %d dimensions",
                           shown(name), name.at, s->lim->max_dims);
        }
        err_code rc = integer(s, &t->shape[t->ndim++]);
        if (rc) return rc;
    } while (take(s, ','));
    return take(s, ']') ? ERR_NONE : bad(s, "expected ',' or ']'");
}

static err_code offsets_field(scan *s, uint64_t range[2])
{
    if (!take(s, '[')) return bad(s, "data_offsets must be an array");
    err_code rc = integer(s, &range[0]);
    if (rc) return rc;
    if (!take(s, ',')) return bad(s, "data_offsets must have two numbers");
    rc = integer(s, &range[1]);
    if (rc) return rc;
    return take(s, ']') ? ERR_NONE : bad(s, "data_offsets must have two numbers");
}

/* The object of one tensor.  On return t->offset is relative to the data. */
static err_code tensor_entry(scan *s, slice name, st_tensor *t)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    uint64_t range[2] = {0, 0};
    int seen = 0;

    if (!take(s, '{')) return bad(s, "a tensor's entry must be an object");
    do {
        slice field;
        err_code rc = plain_string(s, &field, name_char);
        if (rc) return rc;
        int which = slice_is(field, "dtype")          ? DTYPE
                    : slice_is(field, "shape")        ? SHAPE
                    : slice_is(field, "data_offsets") ? OFFSETS
                                                      : 0;
        if (!which) return bad(s, "unknown field in a tensor's entry");
        if (seen & which) return bad(s, "duplicate field in a tensor's entry");
        seen |= which;
        if (!take(s, ':')) return bad(s, "expected ':'");
        rc = which == DTYPE   ? dtype_field(s, name, t)
             : which == SHAPE ? shape_field(s, name, t)
                              : offsets_field(s, range);
        if (rc) return rc;
    } while (take(s, ','));
    if (!take(s, '}')) return bad(s, "expected ',' or '}'");
    if (seen != (DTYPE | SHAPE | OFFSETS)) {
        return err_set(s->e, ERR_CORRUPT, "tensor '%.*s': dtype, shape or data_offsets is missing",
                       shown(name), name.at);
    }
    if (range[0] > range[1]) {
        return err_set(s->e, ERR_CORRUPT, "tensor '%.*s': its end is before its start", shown(name),
                       name.at);
    }
    t->offset = range[0];
    t->bytes = range[1] - range[0];
    return ERR_NONE;
}

/* Does the shape need exactly the bytes that the offsets give? */
static err_code check_size(scan *s, slice name, st_tensor *t)
{
    uint64_t n = 1, bits;
    bool over = false;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0) {
            return err_set(s->e, ERR_CORRUPT, "tensor '%.*s' is empty (a dimension is 0)",
                           shown(name), name.at);
        }
        over |= __builtin_mul_overflow(n, t->shape[i], &n);
    }
    over |= __builtin_mul_overflow(n, (uint64_t)dtype_bits[t->dtype], &bits);
    if (over) {
        return err_set(s->e, ERR_CORRUPT, "tensor '%.*s': the product of its shape overflows",
                       shown(name), name.at);
    }
    if (bits % 8 != 0 || bits / 8 != t->bytes) {
        return err_set(
            s->e, ERR_CORRUPT, "tensor '%.*s': its shape needs %llu bytes, its offsets give %llu",
            shown(name), name.at, (unsigned long long)(bits / 8), (unsigned long long)t->bytes);
    }
    t->count = n;
    return ERR_NONE;
}

typedef struct table {
    st_tensor *tensor;
    slice *name; /* parallel to tensor, until the names are copied */
    int n, cap;
    bool has_metadata;
} table;

static err_code table_grow(scan *s, table *t)
{
    if (t->n == s->lim->max_tensors) {
        return err_set(s->e, ERR_LIMIT, "more than %d tensors in one file", s->lim->max_tensors);
    }
    if (t->n < t->cap) return ERR_NONE;
    int cap = t->cap ? t->cap * 2 : 256;
    st_tensor *grown = realloc(t->tensor, (size_t)cap * sizeof(*grown));
    if (grown) t->tensor = grown;
    slice *names = grown ? realloc(t->name, (size_t)cap * sizeof(*names)) : NULL;
    if (!names) return err_set(s->e, ERR_NOMEM, "no memory to read a safetensors header");
    t->name = names;
    t->cap = cap;
    return ERR_NONE;
}

static err_code header_member(scan *s, table *t)
{
    slice name;
    err_code rc = plain_string(s, &name, name_char);
    if (rc) return rc;
    if (name.len == 0) return bad(s, "empty tensor name");
    if (name.len > (size_t)s->lim->max_name) {
        return err_set(s->e, ERR_LIMIT, "a tensor's name is longer than %d bytes",
                       s->lim->max_name);
    }
    if (!take(s, ':')) return bad(s, "expected ':'");
    if (slice_is(name, "__metadata__")) {
        if (t->has_metadata) return bad(s, "duplicate __metadata__");
        t->has_metadata = true;
        return metadata(s);
    }
    rc = table_grow(s, t);
    if (rc) return rc;
    st_tensor *entry = &t->tensor[t->n];
    memset(entry, 0, sizeof(*entry));
    rc = tensor_entry(s, name, entry);
    if (!rc) rc = check_size(s, name, entry);
    if (rc) return rc;
    t->name[t->n++] = name;
    return ERR_NONE;
}

static err_code header_object(scan *s, table *t)
{
    if (s->at == s->end || *s->at != '{') return bad(s, "must begin with '{'");
    s->at++;
    if (!take(s, '}')) {
        do {
            err_code rc = header_member(s, t);
            if (rc) return rc;
        } while (take(s, ','));
        if (!take(s, '}')) return bad(s, "expected ',' or '}'");
    }
    while (s->at < s->end && *s->at == ' ') s->at++;
    return s->at == s->end ? ERR_NONE : bad(s, "something stands behind the object");
}

/* -------------------------------------------------------------------------- sorting -- */

static int offset_order(const void *a, const void *b)
{
    const st_tensor *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static int name_order(const void *a, const void *b, void *arg)
{
    const st_tensor *t = arg;
    return strcmp(t[*(const int *)a].name, t[*(const int *)b].name);
}

/* Gives f the table's tensors, with names of their own. */
static err_code copy_names(safetensors *f, table *t, err *e)
{
    size_t total = 1;
    for (int i = 0; i < t->n; i++) total += t->name[i].len + 1;
    f->names = malloc(total);
    f->by_name = malloc(((size_t)t->n + 1) * sizeof(*f->by_name));
    if (!f->names || !f->by_name) {
        return err_set(e, ERR_NOMEM, "no memory to read a safetensors header");
    }
    char *at = f->names;
    for (int i = 0; i < t->n; i++) {
        memcpy(at, t->name[i].at, t->name[i].len);
        at[t->name[i].len] = '\0';
        t->tensor[i].name = at;
        at += t->name[i].len + 1;
    }
    f->tensor = t->tensor;
    f->n = t->n;
    t->tensor = NULL;
    return ERR_NONE;
}

static err_code index_names(safetensors *f, err *e)
{
    for (int i = 0; i < f->n; i++) f->by_name[i] = i;
    if (f->n) qsort_r(f->by_name, (size_t)f->n, sizeof(*f->by_name), name_order, f->tensor);
    for (int i = 1; i < f->n; i++) {
        const char *name = f->tensor[f->by_name[i]].name;
        if (strcmp(f->tensor[f->by_name[i - 1]].name, name) == 0) {
            return err_set(e, ERR_CORRUPT, "duplicate tensor '%.*s'", NAME_SHOWN, name);
        }
    }
    return ERR_NONE;
}

/* Checks that the tensors cover the data without holes or overlaps, from 0 to data_bytes. */
static err_code check_layout(const safetensors *f, uint64_t data_bytes, err *e)
{
    uint64_t end = 0;
    for (int i = 0; i < f->n; i++) {
        const st_tensor *t = &f->tensor[i];
        if (t->offset != end) {
            return err_set(e, ERR_CORRUPT, "tensor '%.*s': %s", NAME_SHOWN, t->name,
                           t->offset < end ? "its bytes overlap another tensor's"
                                           : "unused bytes are before it");
        }
        if (t->bytes > data_bytes - end) {
            return err_set(e, ERR_CORRUPT,
                           "tensor '%.*s' ends beyond the end of the file (file cut short?)",
                           NAME_SHOWN, t->name);
        }
        end += t->bytes;
    }
    if (end != data_bytes) {
        return err_set(e, ERR_CORRUPT, "%llu unused bytes after the last tensor",
                       (unsigned long long)(data_bytes - end));
    }
    return ERR_NONE;
}

/* ----------------------------------------------------------------------------- open -- */

err_code safetensors_header_bytes(const uint8_t first[8], uint64_t file_bytes, const st_limits *lim,
                                  size_t *out, err *e)
{
    uint64_t n = 0;
    for (int i = PREFIX_BYTES - 1; i >= 0; i--) n = n << 8 | first[i];
    if (file_bytes < PREFIX_BYTES || n > file_bytes - PREFIX_BYTES) {
        return err_set(e, ERR_CORRUPT,
                       "safetensors: the header of %llu bytes is longer than the file (%llu)",
                       (unsigned long long)n, (unsigned long long)file_bytes);
    }
    if (n == 0) return err_set(e, ERR_CORRUPT, "safetensors: the header is empty");
    if (n > lim->max_header_bytes) {
        return err_set(e, ERR_LIMIT, "safetensors: header of %llu bytes exceeds %zu",
                       (unsigned long long)n, lim->max_header_bytes);
    }
    *out = PREFIX_BYTES + (size_t)n;
    return ERR_NONE;
}

/* Fills f from the `len` first bytes of a file of file_bytes; data pointers if len covers all. */
static err_code fill(safetensors *f, const uint8_t *bytes, size_t len, uint64_t file_bytes,
                     const st_limits *lim, err *e)
{
    assert(lim->max_dims <= ST_DIMS_MAX);
    if (len < PREFIX_BYTES || file_bytes < len) {
        return err_set(e, ERR_CORRUPT, "safetensors: a file of %zu bytes is too short", len);
    }
    size_t head;
    err_code rc = safetensors_header_bytes(bytes, file_bytes, lim, &head, e);
    if (rc) return rc;
    if (head > len) {
        return err_set(e, ERR_CORRUPT, "safetensors: the header is not complete");
    }

    const char *text = (const char *)bytes;
    scan s = {text, text + PREFIX_BYTES, text + head, lim, e};
    table t = {0};
    rc = header_object(&s, &t);
    if (!rc) rc = copy_names(f, &t, e);
    free(t.tensor);
    free(t.name);
    if (rc) return rc;

    if (f->n) qsort(f->tensor, (size_t)f->n, sizeof(*f->tensor), offset_order);
    rc = index_names(f, e);
    if (!rc) rc = check_layout(f, file_bytes - head, e);
    if (rc) return rc;

    for (int i = 0; i < f->n; i++) {
        st_tensor *x = &f->tensor[i];
        size_t unit = dtype_bits[x->dtype] < 8 ? 1 : dtype_bits[x->dtype] / 8;
        x->offset += head;
        x->data = len == file_bytes ? bytes + x->offset : NULL;
        x->aligned = (x->data ? (uintptr_t)x->data : x->offset) % unit == 0;
    }
    return ERR_NONE;
}

static err_code open_bytes(safetensors **out, const void *bytes, size_t len, uint64_t file_bytes,
                           const st_limits *lim, err *e)
{
    *out = NULL;
    safetensors *f = calloc(1, sizeof(*f));
    if (!f) return err_set(e, ERR_NOMEM, "no memory to read a safetensors header");
    err_code rc = fill(f, bytes, len, file_bytes, lim, e);
    if (rc) {
        safetensors_close(f);
        return rc;
    }
    *out = f;
    return ERR_NONE;
}

err_code safetensors_open_memory(safetensors **out, const void *bytes, size_t len,
                                 const st_limits *lim, err *e)
{
    return open_bytes(out, bytes, len, len, lim, e);
}

err_code safetensors_open_header(safetensors **out, const void *prefix, size_t len,
                                 uint64_t file_bytes, const st_limits *lim, err *e)
{
    err_code rc = open_bytes(out, prefix, len, file_bytes, lim, e);
    if (rc) return rc;
    for (int i = 0; i < (*out)->n; i++) {
        st_tensor *t = &(*out)->tensor[i];
        t->data = NULL;
        t->aligned = t->offset % (dtype_bits[t->dtype] < 8 ? 1 : dtype_bits[t->dtype] / 8) == 0;
    }
    return ERR_NONE;
}

static err_code map_file(const char *path, void **map, size_t *len, err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_set(e, ERR_IO, "can't open the file: %s", strerror(errno));

    struct stat st;
    err_code rc = ERR_NONE;
    if (fstat(fd, &st) != 0) {
        rc = err_set(e, ERR_IO, "can't examine the file: %s", strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = err_set(e, ERR_IO, "not a regular file");
    } else if (st.st_size < PREFIX_BYTES) {
        rc = err_set(e, ERR_CORRUPT, "safetensors: a file of %lld bytes is too short",
                     (long long)st.st_size);
    } else {
        *len = (size_t)st.st_size;
        *map = mmap(NULL, *len, PROT_READ, MAP_PRIVATE, fd, 0);
        if (*map == MAP_FAILED) {
            rc = err_set(e, ERR_IO, "can't map the file: %s", strerror(errno));
        }
    }
    (void)close(fd);
    return rc;
}

err_code safetensors_open(safetensors **out, const char *path, const st_limits *lim, err *e)
{
    void *map = NULL;
    size_t len = 0;
    *out = NULL;
    err_code rc = map_file(path, &map, &len, e);
    if (rc) return rc;
    rc = safetensors_open_memory(out, map, len, lim, e);
    if (rc) {
        (void)munmap(map, len);
        return rc;
    }
    (*out)->map = map;
    (*out)->map_bytes = len;
    mapping_add(map, len);
    return ERR_NONE;
}

void safetensors_close(safetensors *f)
{
    if (!f) return;
    if (f->map) {
        mapping_remove(f->map);
        (void)munmap(f->map, f->map_bytes);
    }
    free(f->tensor);
    free(f->by_name);
    free(f->names);
    free(f);
}

/* --------------------------------------------------------------------------- access -- */

int safetensors_count(const safetensors *f)
{
    return f->n;
}

const st_tensor *safetensors_at(const safetensors *f, int i)
{
    assert(i >= 0 && i < f->n);
    return &f->tensor[i];
}

const st_tensor *safetensors_find(const safetensors *f, const char *name)
{
    int lo = 0, hi = f->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        const st_tensor *t = &f->tensor[f->by_name[mid]];
        int c = strcmp(name, t->name);
        if (c == 0) return t;
        if (c < 0) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return NULL;
}

const char *st_dtype_name(st_dtype t)
{
    assert(t >= 0 && t < ST_DTYPE_COUNT);
    return dtype_names[t];
}

bool st_usable(st_dtype t, dtype *out)
{
    switch (t) {
    case ST_F32: *out = DT_F32; return true;
    case ST_F16: *out = DT_F16; return true;
    case ST_BF16: *out = DT_BF16; return true;
    default: return false;
    }
}

static float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000U) << 16, exp = (h >> 10) & 0x1FU, frac = h & 0x3FFU;
    uint32_t bits;
    if (exp == 0x1F) {
        bits = sign | 0x7F800000U | frac << 13;
    } else if (exp != 0) {
        bits = sign | (exp + 112) << 23 | frac << 13;
    } else {
        float v = (float)frac * 0x1p-24F; /* zero and subnormals, exact */
        return sign ? -v : v;
    }
    float v;
    memcpy(&v, &bits, sizeof(v));
    return v;
}

void st_read_f32(const st_tensor *t, uint64_t first, size_t n, float *out)
{
    dtype type;
    bool usable = st_usable(t->dtype, &type);
    assert(usable && t->data && first <= t->count && n <= t->count - first);
    const uint8_t *src = (const uint8_t *)t->data + first * dtype_bytes(type);
    if (type == DT_F32) {
        memcpy(out, src, n * sizeof(*out));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, src + 2 * i, sizeof(h));
        if (type == DT_BF16) {
            uint32_t bits = (uint32_t)h << 16;
            memcpy(&out[i], &bits, sizeof(bits));
        } else {
            out[i] = f16_to_f32(h);
        }
    }
}
