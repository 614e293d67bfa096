/* staging.h -- uploads that may be interrupted: files by pieces, then one commit.
 *
 * A client names the files of a folder with sizes and SHA-256 (the manifest), sends them in pieces
 * at offsets that the server confirms, and commits.  What an upload has lies under
 * <dir>/adapters/uploads/: <id>.json is the manifest, <id>/ holds the files.  Every confirmed byte
 * is synced, so an upload goes on after a crash where it stood.  Files that the tenant has in a
 * published version already are linked, not sent again; another tenant's files are never looked at,
 * so nobody learns from an upload what others have.
 *
 * Only adapter_config.json and adapter_model.safetensors are kept, of a tokenizer the added
 * tokens (folder.h).  A file has one writer at a time.  The checksum is verified when a file is
 * complete and, in every case, before it is published.  An upload without progress for the
 * configured time is removed.
 *
 * Locks:   one, not held over the disk but while an upload begins or ends.
 * Threads: any thread; a writer belongs to one.
 */
#ifndef ADAPTERS_STORE_STAGING_H
#define ADAPTERS_STORE_STAGING_H

#include <stdbool.h>
#include <stdint.h>

#include "adapters/store/publish.h"

typedef struct staging staging;
typedef struct staged_writer staged_writer;

enum { STAGING_ID_MAX = 17, STAGING_OPEN_MAX = 4096 };

typedef struct staging_config {
    int max_open;      /* uploads that one tenant may have open; 0: 8 */
    int64_t expiry_us; /* without progress; 0: a day */
} staging_config;

typedef struct staged_file {
    uint64_t bytes, offset; /* offset: what the server has, confirmed */
    uint8_t sha[DIGEST_BYTES];
    bool skipped; /* was there already: nothing to send */
    bool busy;    /* somebody writes it now */
} staged_file;

typedef struct staged_upload { /* a copy, for an answer */
    char id[STAGING_ID_MAX + 1];
    char name[ADAPTER_NAME_MAX + 1];
    char description[ADAPTER_DESCRIPTION_MAX];
    bool has_description, activate;
    staged_file file[PART_ALL]; /* without bytes: it has none of this name */
    int64_t idle_us, expires_in_us;
} staged_upload;

typedef struct staging_manifest {
    uint64_t tenant_id;
    const char *name;
    const char *description; /* NULL: keep */
    bool activate;
    uint64_t bytes[PART_ALL]; /* 0: none, of those from PART_COUNT on */
    uint8_t sha[PART_ALL][DIGEST_BYTES];
    storeroom_quota quota;
} staging_manifest;

/* Takes over what an earlier process left, removes what is broken.  `env` is copied; its registry
 * must outlive the staging. */
err_code staging_open(staging **out, const upload_env *env, const staging_config *cfg, err *e);
/* Other limits from now on; open uploads stay.  max_bytes: of a whole folder; 0: 2 GiB. */
void staging_limit(staging *sg, const staging_config *cfg, uint64_t max_bytes);
/* Everything stays on the disk.  No writer may be open.  NULL is fine. */
void staging_close(staging *sg);

/* Is this the form of an upload's id (and not of a version's number)? */
bool staging_is_id(const char *s);

/* Begins an upload; its whole room is taken on the disk.  (What it has not filled is lent before
 * others are refused, first by the tenant that holds most.  It is taken again when the next writer
 * comes; a writer at work asks for each piece then.)  The same manifest again while its upload is
 * open: that upload, *resumed true.
 *   ERR_LIMIT    files too large, the tenant's bytes, too many open uploads
 *   ERR_NO_ROOM  the disk has no room above the floor; nothing is left behind */
err_code staging_create(staging *sg, const staging_manifest *m, staged_upload *out, bool *resumed,
                        err *e);
/* ERR_NOT_FOUND also for another tenant's or another adapter's upload. */
err_code staging_get(staging *sg, uint64_t tenant_id, const char *name, const char *id,
                     staged_upload *out, err *e);
/* Gives up all of a tenant's that nobody writes or commits; how many. */
int staging_drop_all(staging *sg, uint64_t tenant_id);
/* Gives an upload up.  ERR_BUSY while somebody writes or commits. */
err_code staging_drop(staging *sg, uint64_t tenant_id, const char *name, const char *id, err *e);

/* Opens one file for writing at `offset`, which must be the confirmed one; -1: from the
 * start, what was there is dropped.  *at is the confirmed offset (also with
 * ERR_CONFLICT: another one was named).
 *   ERR_BUSY  another writer has the file, or the upload is being committed */
err_code staging_write_begin(staging *sg, uint64_t tenant_id, const char *name, const char *id,
                             folder_part part, int64_t offset, staged_writer **out, uint64_t *at,
                             err *e);
/* ERR_LIMIT beyond the size that the manifest tells; ERR_NO_ROOM.  After a failure only
 * staging_write_end(). */
err_code staging_write(staged_writer *w, const void *data, size_t len, err *e);
/* Syncs what was written and confirms it, also after a failure or a client that went away; *at is
 * the new offset.  Frees `w` in every case.  ERR_CORRUPT: the file is complete and its SHA-256 is
 * another one than the manifest's; it begins anew at 0. */
err_code staging_write_end(staged_writer *w, uint64_t *at, err *e);

/* Checks and publishes (publish.h); the upload is gone when it succeeds, and when the adapter
 * itself is refused (ERR_INPUT, ERR_UNSUPPORTED, ERR_CORRUPT with *bad_part == PART_ALL): the same
 * bytes would be refused again.
 *   ERR_CONFLICT  files are incomplete, or the registry refuses now
 *   ERR_CORRUPT   *bad_part's SHA-256 is another one than the manifest's; it begins anew at 0
 *   ERR_BUSY      a writer or another commit is at work
 * `o`: tenant, name, limits and generation; description and activate are the manifest's unless
 * `activate` is given. */
err_code staging_commit(staging *sg, const char *id, const publish_options *o, const bool *activate,
                        adapter_version *out, bool *existed, folder_part *bad_part, err *e);

/* Removes uploads without progress for the configured time.  Returns how many it removed. */
int staging_expire(staging *sg, int64_t now_us);

#endif
