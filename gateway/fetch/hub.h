/* hub.h -- the files of a model in a repository of the hub (hf://).
 *
 * hub_open() asks GET HUB/api/models/OWNER/REPO/revision/REVISION?blobs=true, which names the
 * commit and, for each file, its size and a digest: SHA-256 of large files, of others the SHA-1 of
 * the git blob ("blob SIZE", NUL, content).  Files then come from
 * HUB/OWNER/REPO/resolve/COMMIT/FILE, so all belong to one commit, and each must match its digest.
 *
 * A file is written to PATH.DIGEST.part.  If a connection ends early, the download continues behind
 * the bytes that are there, in this process or a later one; it gives up after five attempts in a
 * row that bring nothing.  PATH appears when the digest matches.
 *
 * The operator names the model, so sources.hub is asked whether or not sources.hosts lists it (that
 * list is for tenants).  Its other rules apply, to redirects too: https:// only, public addresses
 * or those of sources.networks.
 *
 * Ownership: copies the text; terms are borrowed.  Threads: one at a time.
 */
#ifndef GATEWAY_FETCH_HUB_H
#define GATEWAY_FETCH_HUB_H

#include "gateway/fetch/fetch.h"

enum { HUB_PATH_MAX = 256, HUB_DIGEST_MAX = 65, HUB_COMMIT_MAX = 65 };

typedef struct hub_terms {
    const source_rules *rules;
    const char *token; /* the operator's; NULL: none.  Sent to the hub's own host only */
    err_code (*still)(void *arg, err *e); /* asked about once a second; a failure ends the call */
    void *arg;
} hub_terms;

typedef struct hub_file {
    char path[HUB_PATH_MAX];     /* in the repository */
    char digest[HUB_DIGEST_MAX]; /* hexadecimal: 64 digits of SHA-256, 40 of the blob's SHA-1 */
    int64_t bytes;
} hub_file;

typedef struct hub {
    char commit[HUB_COMMIT_MAX];
    hub_file *file; /* those with a path, a size and a digest that fit, as the hub lists them */
    size_t n_file;
    int64_t have; /* bytes on the disk of the file that hub_fetch() downloads */

    /* ---- private to hub.c and hub_file.c ---- */
    char text[SOURCE_URL_MAX], host[SOURCE_HOST_MAX + 8];
    source_hub name;
    source where;
    source_rules rules;
    hub_terms terms;
} hub;

/* Checks the text alone: ERR_INPUT, or ERR_DENIED without sources.hub. */
err_code hub_check(const char *text, const source_rules *r, err *e);

/* Lists the files of "hf://owner/repo[@revision][/path]".  ERR_NOT_FOUND: there is no such
 * repository or revision; ERR_DENIED: it needs a token, or a rule refuses it; ERR_IO: no answer. */
err_code hub_open(hub **out, const char *text, const hub_terms *t, err *e);
void hub_close(hub *h); /* NULL is fine */

/* NULL: there is none. */
const hub_file *hub_find(const hub *h, const char *path);

/* Downloads `f` to `path`, or keeps what is there if its digest matches.  The folder must exist.
 *   ERR_CORRUPT  another size or digest than the hub lists; the bytes are removed
 *   ERR_NO_ROOM  the disk is full; the bytes stay, for the next attempt */
err_code hub_fetch(hub *h, const hub_file *f, const char *path, err *e);

/* Bytes of `f` that are at `path` already, or in its .part file. */
int64_t hub_bytes_there(const hub_file *f, const char *path);

#endif
