/* safetensors.h -- reads a .safetensors file and believes nothing it says.
 *
 * Strict: everything that a file declares is checked against the bytes that are really there,
 * before a tensor is handed out: header length, JSON, names, dtypes, products of shapes without
 * overflow, offsets that start at 0, leave no hole, never overlap and end at the end of the file.
 * Stricter than the reference reader where that is lax: no duplicate names, no unknown fields,
 * no empty tensors, no control characters or escapes in names.  The header is parsed as a stream
 * into a table; memory use is bounded by the limits, never by what the file declares.
 *
 * It knows nothing of models or PEFT, and does not look at the values (NaN is the caller's
 * business).
 *
 * Ownership: safetensors_open() maps the file and owns the mapping; safetensors_open_memory()
 *            borrows the caller's bytes.  Tensors and names live until safetensors_close().
 * Files:     a mapped file that shrinks while it is read ends the step, and the process must be
 *            replaced (engine/program/mapping.h).  So map only what the operator owns; what
 *            strangers send is read into memory, or read in pieces after
 *            safetensors_open_header().
 * Threads:   any thread; an open file is read-only and may be shared.
 */
#ifndef ENGINE_MODEL_SAFETENSORS_H
#define ENGINE_MODEL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/backend.h"
#include "engine/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ST_DIMS_MAX = 8 };

/* X(name, bits): all dtypes of the format. Only F32, F16 and BF16 can be used (st_usable()). */
/* clang-format off */
#define ST_DTYPE_LIST(X)                                                                   \
    X(BOOL, 8) X(F4, 4) X(F6_E2M3, 6) X(F6_E3M2, 6) X(U8, 8) X(I8, 8) X(F8_E5M2, 8)        \
    X(F8_E4M3, 8) X(F8_E8M0, 8) X(F8_E4M3FNUZ, 8) X(F8_E5M2FNUZ, 8) X(I16, 16) X(U16, 16)  \
    X(F16, 16) X(BF16, 16) X(I32, 32) X(U32, 32) X(F32, 32) X(C64, 64) X(F64, 64)          \
    X(I64, 64) X(U64, 64)
/* clang-format on */

#define ST_ENUM_(name, bits) ST_##name,
typedef enum { ST_DTYPE_LIST(ST_ENUM_) ST_DTYPE_COUNT } st_dtype;
#undef ST_ENUM_

typedef struct st_limits {
    size_t max_header_bytes;
    size_t max_metadata_bytes; /* of __metadata__, quotes and commas included */
    int max_tensors;
    int max_dims; /* at most ST_DIMS_MAX */
    int max_name; /* bytes of a tensor's name */
} st_limits;

extern const st_limits st_limits_model;  /* 100 MB header, 262,144 tensors: the operator's files */
extern const st_limits st_limits_upload; /* 4 MiB header, 16,384 tensors: strangers' files */

typedef struct st_tensor {
    const char *name; /* [A-Za-z0-9_.-]+, NUL-terminated */
    st_dtype dtype;
    int ndim;                    /* 0: a scalar */
    uint64_t shape[ST_DIMS_MAX]; /* each at least 1 */
    uint64_t count;              /* product of shape */
    uint64_t bytes;
    uint64_t offset;  /* from the start of the file */
    const void *data; /* NULL after safetensors_open_header(); may be unaligned, see below */
    /* `data` is a multiple of the element's size: it may be read through a typed pointer.  Else
     * only through memcpy or st_read_f32(). */
    bool aligned;
} st_tensor;

typedef struct safetensors safetensors;

/* Maps the file at `path`.  ERR_IO when it can't be read, ERR_CORRUPT when it breaks the format,
 * ERR_LIMIT when it is larger than `lim` allows. */
err_code safetensors_open(safetensors **out, const char *path, const st_limits *lim, err *e);

/* The whole file in memory; `bytes` are borrowed until safetensors_close(). */
err_code safetensors_open_memory(safetensors **out, const void *bytes, size_t len,
                                 const st_limits *lim, err *e);

/* Only the first `len` bytes of a file of `file_bytes`, with the whole header among them (see
 * safetensors_header_bytes()); `prefix` is borrowed for the call only.  The tensors say where
 * their bytes lie; data is NULL. */
err_code safetensors_open_header(safetensors **out, const void *prefix, size_t len,
                                 uint64_t file_bytes, const st_limits *lim, err *e);

/* From the first 8 bytes: how long the prefix for safetensors_open_header() must be. */
err_code safetensors_header_bytes(const uint8_t first[8], uint64_t file_bytes, const st_limits *lim,
                                  size_t *out, err *e);

/* Ends the mapping, if the file made one, and all tensors with it. NULL is fine. */
void safetensors_close(safetensors *f);

/* Number of tensors. */
int safetensors_count(const safetensors *f);
/* In the order of their offsets; i in [0, count). */
const st_tensor *safetensors_at(const safetensors *f, int i);
/* NULL: there is none of this name. */
const st_tensor *safetensors_find(const safetensors *f, const char *name);

/* The name in a file's header ("BF16"); static. */
const char *st_dtype_name(st_dtype t);
/* True for F32, F16, BF16, and sets *out. */
bool st_usable(st_dtype t, dtype *out);

/* Elements [first, first + n) of a usable tensor as f32, aligned or not. */
void st_read_f32(const st_tensor *t, uint64_t first, size_t n, float *out);

#ifdef __cplusplus
}
#endif

#endif
