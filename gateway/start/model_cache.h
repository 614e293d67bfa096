/* model_cache.h -- base models that were downloaded: data.dir/models, a folder for each name.
 *
 *   models/OWNER--REPO-KEY/        complete: its files, and .lorad.json, which lists them
 *   models/OWNER--REPO-KEY.part/   a download that has not ended
 *
 * KEY is a digest of the hub and the name with its revision, so each revision has its own folder.
 * The folder's rename makes it complete.  The least recently used folders go first when
 * model.cache_bytes or data.min_free needs it; the time of .lorad.json is that of the last start.
 * Folders without .lorad.json are left alone.
 *
 * Threads: the main thread, while the data directory is this process's.
 */
#ifndef GATEWAY_START_MODEL_CACHE_H
#define GATEWAY_START_MODEL_CACHE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "gateway/config/config.h"
#include "gateway/fetch/hub.h"

typedef struct model_place {
    char dir[PATH_MAX], part[PATH_MAX];
    const char *text; /* "hf://..."; borrowed */
} model_place;

/* `text` has passed hub_check(). */
err_code model_place_of(model_place *p, const config *c, const char *text, err *e);

/* Whether all files of a complete folder are there with their sizes. */
bool model_cache_has(const model_place *p);
/* It is used now: the last to go. */
void model_cache_touch(const model_place *p);

/* Makes the unfinished folder if it is not there; a complete one that lacks files becomes it. */
err_code model_cache_begin(const model_place *p, err *e);
/* The unfinished folder becomes the complete one, with these files; local: their names in it. */
err_code model_cache_finish(const model_place *p, const char *commit, const hub_file *const *files,
                            const char *const *local, size_t n, err *e);

/* Removes other models until `whole` bytes of this one fit into model.cache_bytes, and `missing`
 * bytes onto the disk above data.min_free.  ERR_LIMIT, ERR_NO_ROOM: they don't fit even then. */
err_code model_cache_make_room(const model_place *p, const config *c, int64_t whole,
                               int64_t missing, err *e);

#endif
