/* packed_write.c -- writing a cache file of packed weights.
 *
 *     room   the whole length at once, so that a full disk is known before the first byte
 *     data   the matrices in whole pieces (larger pages in the page cache), each with its sum
 *     table  sizes and fingerprints, then the header that covers them
 *     sync, rename, sync of the directory: only now is there a file, so a crash leaves no valid one
 *
 * packed_keep() does this in a thread of the lowest priority while the model already serves;
 * packed_write_begin(), packed_write() and packed_write_end() do it as the weights are packed, one
 * matrix after the other, for a model that is larger than memory. Either removes files of other
 * keys first, and writes only if the file leaves floor_bytes free on the disk (data.min_free).
 *
 * Threads: those of the keeper that the caller ends; packed_keep_end() stops the writer within one
 * piece.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/durable.h"
#include "engine/base/log.h"
#include "engine/model/packed_inside.h"

enum { NICENESS = 19 };

struct packed_keeper {
    char dir[PACKED_PATH_BYTES];
    uint64_t floor_bytes;
    packed_header head;
    packed_row *row;   /* [n] */
    size_t *at;        /* [n] */
    const void **data; /* [n] */
    pthread_t thread;
    atomic_bool stop, done;
    int fd; /* of packed_write() */
};

/* False also when it shall stop; *error is 0 then. */
static bool write_range(const packed_keeper *k, int fd, const char *data, size_t n, off_t at,
                        int *error)
{
    for (size_t done = 0; done < n;) {
        *error = 0;
        if (atomic_load(&k->stop)) return false;
        ssize_t got = pwrite(fd, data + done, n - done, at + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        *error = errno;
        if (got <= 0) return false;
        /* What is on its way to the disk is bounded: others write there, too. */
        (void)sync_file_range(fd, at + (off_t)done, got,
                              SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                  SYNC_FILE_RANGE_WAIT_AFTER);
        done += (size_t)got;
    }
    return true;
}

/* What of the matrices lies in the n bytes of the file from `at` on.  *first: the number of the
 * first one that does, then of the first one behind. */
static void stage(const packed_keeper *k, char *to, size_t at, size_t n, size_t *first)
{
    memset(to, 0, n);
    for (size_t i = *first; i < k->head.n && k->at[i] < at + n; i++) {
        size_t from = k->at[i] > at ? k->at[i] : at, end = k->at[i] + (size_t)k->row[i].bytes;
        size_t some = (end < at + n ? end : at + n) - from;
        memcpy(to + (from - at), (const char *)k->data[i] + (from - k->at[i]), some);
        if (end <= at + n) *first = i + 1;
    }
}

/* By whole pieces of the file: what is written at once the system can keep in one large page, and
 * map as one (ext4 and XFS of today).  Of smaller ones decoding reads a twentieth slower. */
static bool write_matrices(const packed_keeper *k, int fd, int *error)
{
    char *piece = malloc(PACKED_PIECE);
    bool ok = piece != NULL;
    size_t first = 0, end = (size_t)k->head.bytes;
    if (!ok) *error = ENOMEM;
    for (size_t at = PACKED_DATA_AT; ok && at < end; at += PACKED_PIECE) {
        size_t n = end - at < PACKED_PIECE ? end - at : PACKED_PIECE;
        stage(k, piece, at, n, &first);
        ok = write_range(k, fd, piece, n, (off_t)at, error);
    }
    free(piece);
    return ok;
}

/* The checksums of the matrices in memory. */
static bool sum_matrices(packed_keeper *k)
{
    for (size_t i = 0; i < k->head.n; i++) {
        fingerprint f;
        fingerprint_begin(&f);
        for (size_t at = 0, n = (size_t)k->row[i].bytes; at < n; at += PACKED_PIECE) {
            if (atomic_load(&k->stop)) return false;
            fingerprint_add(&f, (const char *)k->data[i] + at,
                            n - at < PACKED_PIECE ? n - at : PACKED_PIECE);
        }
        k->row[i].sum = fingerprint_end(&f);
    }
    return true;
}

static bool take_room(const packed_keeper *k, int fd, int *error)
{
    off_t data = (off_t)k->head.bytes - PACKED_DATA_AT;
    *error = 0;
    if (ftruncate(fd, (off_t)k->head.bytes) == 0 &&
        (fallocate(fd, 0, PACKED_DATA_AT, data) == 0 || errno == EOPNOTSUPP))
        return true;
    *error = errno;
    return false;
}

/* The checksums of the matrices, and the header that covers them: the file is valid then. */
static bool write_header(packed_keeper *k, int fd, int *error)
{
    k->head.table = packed_sum_of(k->row, k->head.n * sizeof(*k->row));
    k->head.check = packed_check_of(&k->head);
    bool ok = write_range(k, fd, (const char *)k->row, k->head.n * sizeof(*k->row), PACKED_TABLE_AT,
                          error) &&
              write_range(k, fd, (const char *)&k->head, sizeof(k->head), 0, error);
    if (ok && fsync(fd) != 0) {
        *error = errno;
        return false;
    }
    return ok;
}

static bool write_all(packed_keeper *k, int fd, int *error)
{
    return take_room(k, fd, error) && sum_matrices(k) && write_matrices(k, fd, error) &&
           write_header(k, fd, error);
}

/* What is not the plan's is of no more use. */
static void remove_others(const packed_keeper *k)
{
    char keep[32], path[PACKED_PATH_BYTES];
    snprintf(keep, sizeof(keep), "%016llx.weights", (unsigned long long)k->head.key);
    DIR *d = opendir(k->dir);
    if (!d) return;
    for (struct dirent *de; (de = readdir(d)) != NULL;) {
        if (!packed_is_ours(de->d_name) || strcmp(de->d_name, keep) == 0) continue;
        int n = snprintf(path, sizeof(path), "%s/%s", k->dir, de->d_name);
        if (n > 0 && n < (int)sizeof(path)) (void)unlink(path);
    }
    (void)closedir(d);
}

static bool has_room(const packed_keeper *k)
{
    struct statvfs v;
    if (statvfs(k->dir, &v) != 0) return false;
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize, need = k->head.bytes - PACKED_DATA_AT;
    if (room >= need && room - need >= k->floor_bytes) return true;
    log_info("model",
             "packed weights are not kept for the next start: they take %llu MiB, and of %llu MiB "
             "that are free on the disk %llu must stay (data.min_free)",
             (unsigned long long)need >> 20, (unsigned long long)room >> 20,
             (unsigned long long)k->floor_bytes >> 20);
    return false;
}

static void keep_file(packed_keeper *k)
{
    char to[PACKED_PATH_BYTES], tmp[PACKED_PATH_BYTES];
    int error = 0;
    if (!packed_path_of(to, k->dir, k->head.key, "weights") ||
        !packed_path_of(tmp, k->dir, k->head.key, "tmp") || !has_room(k))
        return;
    int fd = open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && write_all(k, fd, &error);
    if (fd < 0) error = errno;
    if (fd >= 0) (void)close(fd);
    if (ok && rename(tmp, to) != 0) {
        error = errno;
        ok = false;
    }
    if (ok && durable_sync(k->dir)) {
        log_info("model", "packed weights are kept for the next start: %llu MiB",
                 (unsigned long long)(k->head.bytes - PACKED_DATA_AT) >> 20);
        return;
    }
    (void)unlink(tmp);
    if (error)
        log_warn("model", "packed weights cannot be kept for the next start: %s", strerror(error));
}

static void *keep_main(void *arg)
{
    packed_keeper *k = arg;
    (void)pthread_setname_np(pthread_self(), "packed");
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS);
    if (mkdir(k->dir, 0700) == 0 || errno == EEXIST) {
        remove_others(k);
        keep_file(k);
    } else {
        log_warn("model", "packed weights cannot be kept for the next start: %s", strerror(errno));
    }
    atomic_store(&k->done, true);
    return NULL;
}

static void keeper_free(packed_keeper *k)
{
    if (!k) return;
    free(k->row);
    free(k->at);
    free(k->data);
    free(k);
}

static packed_keeper *keeper_new(const char *dir, uint64_t floor_bytes, const packed_plan *plan)
{
    packed_keeper *k = plan->n <= PACKED_ROWS_MAX ? calloc(1, sizeof(*k)) : NULL;
    if (!k) return NULL;
    int n = snprintf(k->dir, sizeof(k->dir), "%s", dir);
    k->floor_bytes = floor_bytes;
    k->fd = -1;
    k->row = calloc(plan->n, sizeof(*k->row));
    k->at = calloc(plan->n, sizeof(*k->at));
    k->data = calloc(plan->n, sizeof(*k->data));
    if (n <= 0 || n >= PACKED_PATH_BYTES || !k->row || !k->at || !k->data) {
        keeper_free(k);
        return NULL;
    }
    for (size_t i = 0; i < plan->n; i++) k->row[i].bytes = plan->bytes[i];
    k->head = packed_header_of(plan, packed_lay_out(plan, k->at));
    return k;
}

packed_keeper *packed_keep(const char *dir, uint64_t floor_bytes, const packed_plan *plan,
                           const void *const *data, const uint64_t notes[PACKED_NOTES])
{
    packed_keeper *k = keeper_new(dir, floor_bytes, plan);
    if (!k) return NULL;
    memcpy(k->data, data, plan->n * sizeof(*k->data));
    memcpy(k->head.notes, notes, sizeof(k->head.notes));
    if (pthread_create(&k->thread, NULL, keep_main, k) == 0) return k;
    keeper_free(k);
    return NULL;
}

static err_code write_failed(err *e, int error)
{
    return err_set(e, ERR_IO, "packed weights cannot be written to data.dir: %s", strerror(error));
}

err_code packed_write_begin(packed_keeper **out, const char *dir, uint64_t floor_bytes,
                            const packed_plan *plan, err *e)
{
    char tmp[PACKED_PATH_BYTES];
    int error = 0;
    packed_keeper *k = keeper_new(dir, floor_bytes, plan);
    *out = NULL;
    if (!k || !packed_path_of(tmp, dir, plan->key, "tmp")) {
        keeper_free(k);
        return err_set(e, ERR_NOMEM, "no memory to write packed weights");
    }
    if (mkdir(dir, 0700) == 0 || errno == EEXIST) remove_others(k);
    if (!has_room(k)) {
        keeper_free(k);
        return err_set(e, ERR_IO, "data.dir has no room for packed weights (data.min_free)");
    }
    k->fd = open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (k->fd < 0) error = errno;
    if (k->fd >= 0 && take_room(k, k->fd, &error)) {
        *out = k;
        return ERR_NONE;
    }
    (void)packed_write_end(k, NULL, NULL);
    return write_failed(e, error);
}

err_code packed_write(packed_keeper *k, size_t i, const void *data, err *e)
{
    assert(i < k->head.n);
    size_t n = (size_t)k->row[i].bytes;
    int error = 0;
    k->row[i].sum = packed_sum_of(data, n);
    for (size_t at = 0; at < n; at += PACKED_PIECE) {
        size_t some = n - at < PACKED_PIECE ? n - at : PACKED_PIECE;
        off_t to = (off_t)(k->at[i] + at);
        if (!write_range(k, k->fd, (const char *)data + at, some, to, &error))
            return write_failed(e, error);
        (void)posix_fadvise(k->fd, to, (off_t)some, POSIX_FADV_DONTNEED);
    }
    return ERR_NONE;
}

err_code packed_write_end(packed_keeper *k, const uint64_t *notes, err *e)
{
    char to[PACKED_PATH_BYTES], tmp[PACKED_PATH_BYTES];
    int error = 0;
    bool named = packed_path_of(to, k->dir, k->head.key, "weights") &&
                 packed_path_of(tmp, k->dir, k->head.key, "tmp");
    if (notes) memcpy(k->head.notes, notes, sizeof(k->head.notes));
    bool ok = named && notes && write_header(k, k->fd, &error);
    if (k->fd >= 0) (void)close(k->fd);
    if (ok && rename(tmp, to) != 0) {
        error = errno;
        ok = false;
    }
    ok = ok && durable_sync(k->dir);
    if (!ok && named) (void)unlink(tmp);
    keeper_free(k);
    return ok || !notes ? ERR_NONE : write_failed(e, error);
}

bool packed_keep_done(const packed_keeper *k)
{
    return atomic_load(&k->done);
}

void packed_keep_end(packed_keeper *k)
{
    if (!k) return;
    atomic_store(&k->stop, true);
    (void)pthread_join(k->thread, NULL);
    keeper_free(k);
}
