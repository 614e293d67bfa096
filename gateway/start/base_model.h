/* base_model.h -- a base model by name: model.path = hf://owner/repo[@revision][/path].
 *
 * /path names a folder of the repository, or a GGUF in it; without one it is the repository's top.
 * Of a folder these files are downloaded: config.json, generation_config.json, the tokenizer's, the
 * chat template's, those of pooling, and model.safetensors or the shards that
 * model.safetensors.index.json lists.  Of a GGUF in parts (NAME-00001-of-00003.gguf) all parts.
 *
 * A model that is complete in data.dir/models (model_cache.h) is used without the network, whatever
 * its branch points to now.  Else serve downloads it before it loads: the log and the service
 * manager get the progress, SIGTERM and SIGINT stop it, and the next start continues.
 *
 * Threads: the main thread.
 */
#ifndef GATEWAY_START_BASE_MODEL_H
#define GATEWAY_START_BASE_MODEL_H

#include <limits.h>

#include "gateway/config/config.h"

typedef enum {
    BASE_MODEL_DOWNLOAD, /* serve: downloads what is missing */
    BASE_MODEL_PROBE,    /* init: asks the hub; downloads all but the weights */
    BASE_MODEL_PRESENT,  /* check: only what is complete; changes nothing */
} base_model_mode;

/* Does model.path, or --model, name a model of the hub? */
bool base_model_is_named(const char *path);

/* Where c->model.path is on the disk; a path of the disk is copied.  With BASE_MODEL_PROBE a folder
 * without its weights, or of a GGUF an empty one.
 *   ERR_NOT_FOUND  no such repository, revision or file; BASE_MODEL_PRESENT: not downloaded yet
 *   ERR_DENIED     it needs a token, or a rule of [sources] refuses it
 *   ERR_CORRUPT    a file has another digest than the hub lists
 *   ERR_NO_ROOM    the disk is full, or data.min_free would be used
 *   ERR_LIMIT      larger than model.cache_bytes
 *   ERR_STOPPING   a signal stopped the download
 * Each begins with "model.path: hf://...". */
err_code base_model_find(const config *c, base_model_mode mode, char path[PATH_MAX], err *e);

#endif
