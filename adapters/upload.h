/* upload.h -- the folder that PEFT saved, as a tar, streamed in and published.
 *
 * The gateway passes the body in pieces as it reads them.  A strict parser (ustar, pax, GNU long
 * names) takes regular files and directories only; adapter_config.json and
 * adapter_model.safetensors are kept, other harmless files are counted and skipped, pickles and
 * everything that could reach outside the folder are refused by name.  Nothing a client names
 * ever becomes a path: files go to <dir>/adapters/tmp/<id>/ under fixed names, are synced,
 * validated against the base, digested, renamed to <dir>/adapters/<digest>/, and then get their row.
 *
 * Ownership: upload_finish() and upload_abort() consume the upload.
 * Threads:   one upload belongs to one thread; many run at once.
 */
#ifndef ADAPTERS_UPLOAD_H
#define ADAPTERS_UPLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/registry.h"
#include "engine/backend.h"
#include "engine/model.h"

typedef struct upload upload;

/* What every upload of a server shares. */
typedef struct upload_env {
    registry *reg;
    const model_config *base;  /* what adapters must fit */
    const backend *be;         /* for the packed size; NULL: the file's size stands for it */
    uint64_t max_bytes;        /* of the whole tar; 0: 2 GiB */
    uint64_t max_packed_bytes; /* residency's budget: a larger adapter could never run; 0: none */
    int rank_max;              /* 0: LORA_RANK_MAX */
} upload_env;

typedef struct upload_options {
    uint64_t tenant_id;
    const char *name;                /* of the adapter; checked */
    const char *description;         /* NULL: keep */
    bool activate;                   /* point `default` at the new version */
    int64_t max_adapters, max_bytes; /* the tenant's limits; 0: none */
    int64_t content_bytes; /* Content-Length; -1: unknown.  Refuses early, promises nothing */
} upload_options;

/* ERR_INPUT bad name, ERR_LIMIT too large, ERR_IO no room on the disk. */
err_code upload_begin(upload **out, const upload_env *env, const upload_options *o, err *e);

/* The next piece, any size.  After a failure only upload_abort() is allowed. */
err_code upload_write(upload *u, const void *data, size_t len, err *e);

/* The body is complete: validate, publish.  *existed (may be NULL): the name's newest version has
 * exactly this content already.  ERR_INPUT / ERR_CORRUPT / ERR_UNSUPPORTED say what is wrong with
 * the adapter.  Frees `u` in every case. */
err_code upload_finish(upload *u, adapter_version *out, bool *existed, err *e);

/* Drops everything; NULL is fine. */
void upload_abort(upload *u);

/* Removes what a crash left under adapters/tmp; call once at the start. */
void upload_sweep(const char *data_dir);

#endif
