/* publish.h -- from a folder that has arrived to a version that is served.
 *
 * The last steps of every way in, in the order that a crash allows (DESIGN 6): the files are
 * validated against the base and synced (the disk writes while they are looked at), the folder is
 * synced, renamed to the digest of its content, its parent synced, then the row is written.  A
 * crash before the row leaves a folder that nobody knows and that the next start removes.
 *
 * Threads: any thread; many publish at once.
 */
#ifndef ADAPTERS_STORE_PUBLISH_H
#define ADAPTERS_STORE_PUBLISH_H

#include <stdbool.h>
#include <stdint.h>

#include "adapters/format/folder.h"
#include "adapters/store/depot.h"
#include "adapters/store/registry.h"
#include "adapters/store/storeroom.h"
#include "engine/backend.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"

/* What every upload of a server shares. */
typedef struct upload_env {
    registry *reg;
    storeroom *room;           /* NULL: neither floor nor quotas */
    depot *depot;              /* NULL: files lie here alone */
    const model_config *base;  /* what adapters must fit */
    const tokenizer *tok;      /* the base's; NULL: adapters bring no tokens */
    const backend *be;         /* for the packed size; NULL: the file's size stands for it */
    uint64_t max_bytes;        /* of the whole folder; 0: 2 GiB */
    uint64_t max_packed_bytes; /* residency's budget: a larger adapter could never run; 0: none */
    int rank_max;              /* 0: LORA_RANK_MAX */
    /* Told of a version that was just published and of its weights' file, which the system still
     * has in memory; NULL: nobody is. */
    void (*fill)(void *filler, uint64_t version_id, int fd, uint64_t bytes);
    void *filler;
} upload_env;

typedef struct publish_options {
    uint64_t tenant_id;
    const char *name;        /* of the adapter; checked */
    const char *description; /* NULL: keep */
    bool activate;           /* point `default` at the new version */
    int64_t max_adapters;    /* the tenant's limit; 0: none */
    storeroom_quota quota;
    bool if_generation;    /* ERR_STALE unless the adapter's generation is this one */
    uint64_t generation;   /* 0: the name must be new */
    int64_t content_bytes; /* for upload_begin(): Content-Length, -1: unknown; refuses early */
} publish_options;

/* ERR_INPUT unless name and description are well-formed. */
err_code publish_check_names(const char *name, const char *description, err *e);

/* A fresh empty folder <dir>/adapters/tmp/<id>; its path into `path`, its
 * descriptor is the caller's. */
err_code publish_tmp(registry *reg, char path[FOLDER_PATH_MAX], int *dir_fd, err *e);

/* Publishes the folder at `path` (from publish_tmp(), our files in it, with these
 * sizes and SHA-256; `fd`: by part, those that still must be synced, -1: they were).  The caller
 * removes what is left at `path` afterwards, whatever the result.
 *   ERR_INPUT, ERR_CORRUPT, ERR_UNSUPPORTED  what is wrong with the adapter
 *   ERR_LIMIT, ERR_STALE, ERR_CONFLICT, ERR_NO_ROOM, ERR_IO  why it cannot be published now
 * With a depot the object store has the files before the row is written.
 * *existed (may be NULL): the name's newest version has exactly this content already. */
err_code publish_folder(const upload_env *env, const publish_options *o, const char *path,
                        int dir_fd, const int fd[PART_COUNT], const uint64_t bytes[PART_COUNT],
                        const uint8_t sha[PART_COUNT][DIGEST_BYTES], adapter_version *out,
                        bool *existed, err *e);

/* The first step alone: does the folder fit the base?  Fills in what is told of it: nv's
 * rank_max, file_bytes, packed_bytes, and one line of JSON in `info`; *text are its words (the
 * caller's to free), NULL for none. */
err_code publish_check(const upload_env *env, int dir_fd, const uint64_t bytes[PART_COUNT],
                       registry_new_version *nv, char *info, size_t cap, char **text, err *e);

/* Gives the folder at `path` its final name, unless the same content is there already.  The files'
 * lock is held. */
err_code publish_place(registry *reg, const char *path, int dir_fd,
                       const uint8_t sha[PART_COUNT][DIGEST_BYTES],
                       const uint8_t whole[DIGEST_BYTES], err *e);

/* Removes what a crash left under adapters/tmp; call once at the start. */
void publish_sweep(const char *data_dir);

#endif
