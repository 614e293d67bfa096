/* gguf.h -- reads the header of a GGUF, version 2 or 3, and believes nothing it says.
 *
 * Counts and lengths are checked against the bytes that are there before anything is allocated or
 * copied; every tensor's bytes lie inside the file; a key or a tensor that stands twice is refused.
 * What the keys and tensors mean is their reader's business: adapters/format/gguf.h for an
 * adapter, engine/files/documents.h and engine/model/ for a base.
 *
 * Source: ggml's documentation of GGUF version 3.
 *
 * Ownership: gguf_open() maps the file and owns the mapping; gguf_open_header() borrows the bytes.
 *            Keys, values and tensors live until gguf_close().
 * Files:     as for safetensors: map only what the operator owns.
 * Threads:   any thread; an open file is read-only.
 */
#ifndef ENGINE_FILES_GGUF_H
#define ENGINE_FILES_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

enum { GGUF_DIMS_MAX = 4, GGUF_NAME_MAX = 127 };

/* Types of values. */
typedef enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_TEXT,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
} gguf_kind;

/* Types of tensors that are read; gguf_type_name() knows more. */
enum {
    GGML_F32 = 0,
    GGML_F16 = 1,
    GGML_Q4_0 = 2,
    GGML_Q4_1 = 3,
    GGML_Q5_0 = 6,
    GGML_Q5_1 = 7,
    GGML_Q8_0 = 8,
    GGML_Q2_K = 10,
    GGML_Q3_K = 11,
    GGML_Q4_K = 12,
    GGML_Q5_K = 13,
    GGML_Q6_K = 14,
    GGML_IQ4_NL = 20,
    GGML_IQ4_XS = 23,
    GGML_BF16 = 30,
    GGML_MXFP4 = 39,
};

typedef struct gguf_limits {
    size_t max_header_bytes;
    int max_tensors, max_keys;
    int max_dims; /* at most GGUF_DIMS_MAX */
} gguf_limits;

extern const gguf_limits gguf_limits_model;  /* 1 GiB, 100,000 tensors: the operator's files */
extern const gguf_limits gguf_limits_upload; /* 8 MiB, 20,000 tensors: strangers' files */

typedef struct gguf_value {
    const char *key; /* key_bytes, no NUL behind it, none in it */
    size_t key_bytes;
    gguf_kind kind;
    gguf_kind item;    /* of an array */
    uint64_t count;    /* of an array's items; else 1 */
    const uint8_t *at; /* the first byte of the value, or of the first item */
    const uint8_t *end;
} gguf_value;

typedef struct gguf_tensor {
    char name[GGUF_NAME_MAX + 1];
    int n_dims;
    uint64_t ne[GGUF_DIMS_MAX]; /* innermost first; 1 beyond n_dims */
    int type;
    uint64_t offset; /* from the start of the file */
    uint64_t bytes;
    const uint8_t *data; /* NULL after gguf_open_header() */
} gguf_tensor;

typedef struct gguf gguf;

/* Maps the file at `path`.  ERR_IO: it can't be read; ERR_CORRUPT: no well-formed GGUF;
 * ERR_UNSUPPORTED: another version, or a type that this reader does not know; ERR_LIMIT. */
err_code gguf_open(gguf **out, const char *path, const gguf_limits *lim, err *e);

/* The same for the first `len` bytes of a file of `file_bytes`: all of it, or at least
 * lim->max_header_bytes. */
err_code gguf_open_header(gguf **out, const void *prefix, size_t len, uint64_t file_bytes,
                          const gguf_limits *lim, err *e);

/* Unmaps the file, if gguf_open() mapped it. NULL is allowed. */
void gguf_close(gguf *g);

/* How many keys; see gguf_key_at(), 0 to n - 1. Borrowed until gguf_close(). */
int gguf_keys(const gguf *g);
const gguf_value *gguf_key_at(const gguf *g, int i);         /* as the file has them */
const gguf_value *gguf_find(const gguf *g, const char *key); /* NULL: there is none */

/* How many tensors; see gguf_tensor_at(). */
int gguf_tensors(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, int i); /* as the file has them */
const gguf_tensor *gguf_find_tensor(const gguf *g, const char *name);

/* The value of a key; false: it is NULL or of another kind (whole numbers: of another kind, or
 * negative). */
bool gguf_whole(const gguf_value *v, uint64_t *out);

/* A number of any kind, as a double. */
bool gguf_real(const gguf_value *v, double *out);

/* A boolean. */
bool gguf_flag(const gguf_value *v, bool *out);
bool gguf_text(const gguf_value *v, const char **s, size_t *len); /* len bytes, no NUL in them */

/* One item after the other of an array: *at is 0 before the first.  False: no more, or the
 * array has other items. */
bool gguf_next_text(const gguf_value *v, uint64_t *at, const char **s, size_t *len);

/* The i-th item of an array (0 is the first), of whole numbers or floats. False: there is none,
 * or the array has items of another kind. */
bool gguf_item_real(const gguf_value *v, uint64_t i, double *out);

/* Also negative items. */
bool gguf_item_whole(const gguf_value *v, uint64_t i, int64_t *out);

/* "Q4_K"; NULL: unknown. */
const char *gguf_type_name(int type);

#endif
