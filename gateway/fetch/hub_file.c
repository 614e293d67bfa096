/* hub_file.c -- downloads one file of the hub: hashes the bytes that are there, fetches the
 * rest, verifies the digest.
 *
 * The name of the unfinished file contains the start of its digest. So a new commit with another
 * content never continues the old bytes. Hashing what exists is necessary, since the digest is
 * over the whole file.
 *
 *     path exists with its size and digest  -> done
 *     path.<digest>.part                    -> hash it, ask for "bytes=N-", append, hash
 *     the server sends the whole file       -> truncate and begin again
 *     digest differs                        -> delete, ERR_CORRUPT: the next start begins anew
 *
 * Digests are SHA-256 for files in LFS and git's SHA-1 over "blob SIZE\0" and the content for
 * small ones; the hub lists one of them. An interrupted transfer is continued after a pause;
 * HUB_ATTEMPTS attempts in a row without a byte end it.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "engine/base/log.h"
#include "gateway/fetch/hub.h"
#include "gateway/fetch/hub_inside.h"
#include "storage/disk.h"

enum { PIECE = 1 << 20, SHA256_DIGITS = 64 };

typedef struct {
    hub *h;
    const hub_file *f;
    int fd;
    int64_t from; /* where the answer that comes begins */
    EVP_MD_CTX *sum;
} download;

static bool part_path(const hub_file *f, const char *path, char out[PATH_MAX])
{
    return snprintf(out, PATH_MAX, "%s.%.16s.part", path, f->digest) < PATH_MAX;
}

int64_t hub_bytes_there(const hub_file *f, const char *path)
{
    char part[PATH_MAX];
    struct stat st;
    if (stat(path, &st) == 0) return st.st_size < f->bytes ? st.st_size : f->bytes;
    if (!part_path(f, path, part) || stat(part, &st) != 0 || st.st_size > f->bytes) return 0;
    return st.st_size;
}

/* ------------------------------------------------------------------------ the digest -- */

static err_code begin_sum(download *d, err *e)
{
    char head[32];
    bool blob = strlen(d->f->digest) != SHA256_DIGITS;
    int n = snprintf(head, sizeof(head), "blob %" PRId64, d->f->bytes) + 1; /* with its NUL */
    d->h->have = 0;
    if (EVP_DigestInit_ex(d->sum, blob ? EVP_sha1() : EVP_sha256(), NULL) == 1 &&
        (!blob || EVP_DigestUpdate(d->sum, head, (size_t)n) == 1))
        return ERR_NONE;
    return err_set(e, ERR_INTERNAL, "libcrypto computes no digest");
}

static bool sum_matches(download *d, char hex[HUB_DIGEST_MAX])
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (EVP_DigestFinal_ex(d->sum, sum, &n) != 1) abort(); /* it has begun, and fits */
    for (unsigned i = 0; i < n && 2 * i + 2 < HUB_DIGEST_MAX; i++)
        snprintf(hex + (size_t)2 * i, 3, "%02x", sum[i]);
    return strcmp(hex, d->f->digest) == 0;
}

/* Hashes what the file has, up to the size that it is to have. */
static err_code sum_present(download *d, err *e)
{
    char *piece = malloc(PIECE);
    ssize_t n = 0;
    err_code rc = piece ? begin_sum(d, e) : err_set(e, ERR_NOMEM, "out of memory");
    while (!rc && (n = pread(d->fd, piece, PIECE, d->h->have)) > 0) {
        (void)EVP_DigestUpdate(d->sum, piece, (size_t)n);
        d->h->have += n;
        rc = d->h->terms.still(d->h->terms.arg, e);
    }
    if (!rc && n < 0) rc = disk_error("reading", e);
    free(piece);
    return rc;
}

/* ---------------------------------------------------------------------- the transfer -- */

static err_code not_its_size(const download *d, err *e)
{
    return err_set(e, ERR_CORRUPT, "it does not have the %" PRId64 " bytes that the hub lists",
                   d->f->bytes);
}

/* The server may send the whole file although the rest of it was asked for. */
static err_code begin(void *arg, int64_t bytes, err *e)
{
    download *d = arg;
    if (bytes >= 0 && bytes != d->f->bytes) return not_its_size(d, e);
    if (d->from == d->h->have) return ERR_NONE;
    if (ftruncate(d->fd, 0) != 0) return disk_error("writing", e);
    return begin_sum(d, e);
}

static err_code take(void *arg, const void *data, size_t len, err *e)
{
    download *d = arg;
    if ((int64_t)len > d->f->bytes - d->h->have) return not_its_size(d, e);
    for (size_t at = 0; at < len;) {
        ssize_t n = pwrite(d->fd, (const char *)data + at, len - at, d->h->have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return disk_error("writing", e);
        (void)EVP_DigestUpdate(d->sum, (const char *)data + at, (size_t)n);
        d->h->have += n;
        at += (size_t)n;
    }
    assert(d->h->have <= d->f->bytes);
    return ERR_NONE;
}

static bool url_of(const hub *h, const hub_file *f, char out[SOURCE_URL_MAX])
{
    return snprintf(out, SOURCE_URL_MAX, "%s/%s/%s/resolve/%s/%s", h->rules.hub, h->name.owner,
                    h->name.repo, h->commit, f->path) < SOURCE_URL_MAX;
}

/* Until all bytes are there, or five attempts in a row brought none. */
static err_code transfer(download *d, err *e)
{
    const fetch_sink sink = {begin, take, d};
    char url[SOURCE_URL_MAX];
    int in_vain = 0;
    if (!url_of(d->h, d->f, url)) return err_set(e, ERR_INPUT, "the address is too long");
    while (d->h->have < d->f->bytes) {
        int64_t before = d->h->have;
        long status = 0;
        d->from = before;
        fetch_end end = hub_ask(d->h, url, &d->from, &status, &sink, e);
        if (!end && d->h->have < d->f->bytes) return not_its_size(d, e);
        if (!end) break;
        if (end != FETCH_AWAY) return hub_failed(end, status, "such file", e);
        in_vain = d->h->have > before ? 1 : in_vain + 1;
        if (in_vain == HUB_ATTEMPTS) return e->code;
        log_warn("gateway", "%s: %s; continues at byte %" PRId64 " of %" PRId64, d->f->path, e->msg,
                 d->h->have, d->f->bytes);
        if (hub_pause(d->h, in_vain, e)) return e->code;
    }
    return ERR_NONE;
}

/* ------------------------------------------------------------------------- one file -- */

static err_code complete(download *d, const char *part, const char *path, err *e)
{
    char hex[HUB_DIGEST_MAX];
    if (!sum_matches(d, hex)) {
        (void)unlink(part);
        return err_set(e, ERR_CORRUPT, "its digest is %s, the hub lists %s", hex, d->f->digest);
    }
    if (fsync(d->fd) != 0 || rename(part, path) != 0) return disk_error("writing", e);
    return ERR_NONE;
}

static err_code fetch_part(download *d, const char *part, const char *path, err *e)
{
    struct stat st;
    if (fstat(d->fd, &st) != 0) return disk_error("reading", e);
    if (st.st_size > d->f->bytes && ftruncate(d->fd, 0) != 0) return disk_error("writing", e);
    err_code rc = sum_present(d, e);
    if (!rc) rc = transfer(d, e);
    return rc ? rc : complete(d, part, path, e);
}

/* *is: `path` is the file already.  One that is not is removed. */
static err_code look_there(download *d, const char *path, bool *is, err *e)
{
    char hex[HUB_DIGEST_MAX];
    struct stat st;
    err_code rc = ERR_NONE;
    *is = false;
    d->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (d->fd < 0) return ERR_NONE;
    bool fits = fstat(d->fd, &st) == 0 && st.st_size == d->f->bytes;
    if (fits) rc = sum_present(d, e);
    *is = fits && !rc && sum_matches(d, hex);
    (void)close(d->fd);
    if (!rc && !*is) (void)unlink(path);
    return rc;
}

static err_code fetch_new(download *d, const char *path, err *e)
{
    char part[PATH_MAX];
    if (!part_path(d->f, path, part))
        return err_set(e, ERR_INPUT, "its path is longer than %d bytes", PATH_MAX - 1);
    d->fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (d->fd < 0) return disk_error("writing", e);
    err_code rc = fetch_part(d, part, path, e);
    (void)close(d->fd);
    return rc;
}

err_code hub_fetch(hub *h, const hub_file *f, const char *path, err *e)
{
    download d = {.h = h, .f = f, .sum = EVP_MD_CTX_new()};
    bool there = false;
    if (!d.sum) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = look_there(&d, path, &there, e);
    if (!rc && !there) rc = fetch_new(&d, path, e);
    EVP_MD_CTX_free(d.sum);
    return rc ? err_context(e, "%.120s", f->path) : ERR_NONE;
}
