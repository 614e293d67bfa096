/* packed.c -- a cache file with a model's packed weights, so that the next start maps instead of
 * packing.
 *
 *   0       header: magic, version, key, sizes, notes, checksums
 *   4 KiB   table: size and fingerprint of each matrix
 *   2 MiB   the matrices, aligned for huge pages
 *
 * The key covers everything that the result depends on: stamps of the source files, configuration,
 * backend, instruction set, form of the weights. A file with another key is ignored and later
 * removed.
 *
 * Writing happens in a background thread at the lowest priority after the start (packed_keep()):
 * space first, then the matrices in whole pieces (larger pages in the page cache), checksums and
 * header last, then rename; a crash leaves no valid file. Reading verifies every matrix against its
 * fingerprint on all threads before it is used.
 *
 * The file is only written if enough disk space remains (packed_floor_bytes). Threads: open and
 * close on the start-up thread; one writer thread, which packed_keep_end() stops.
 */
#include "engine/model/packed.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/durable.h"
#include "engine/base/log.h"
#include "engine/base/round.h"
#include "engine/program/mapping.h"

enum {
    VERSION = 2,
    ALIGN = 4096,
    TABLE_AT = ALIGN,
    DATA_AT = 2 << 20, /* the data may lie on huge pages, in the file as in memory */
    PIECE = 8 << 20,
    NICENESS = 19,
    PATH_BYTES = 4096,
};

static const char magic[8] = "lordpack";

typedef struct packed_header {
    char magic[8];
    uint32_t version, n;
    uint64_t key, bytes; /* of the whole file */
    uint64_t notes[PACKED_NOTES];
    uint64_t table; /* fingerprint of the table */
    uint64_t check; /* fingerprint of the fields above */
} packed_header;

/* One row of the table, one for each matrix. */
typedef struct packed_row {
    uint64_t bytes, sum; /* size and fingerprint of the matrix */
} packed_row;

enum { ROWS_MAX = (DATA_AT - TABLE_AT) / sizeof(packed_row) };

struct packed_file {
    packed_header head;
    char *map;
    int fd;     /* of a plan in_parts; else -1 */
    size_t *at; /* [n] */
};

struct packed_keeper {
    char dir[PATH_BYTES];
    uint64_t floor_bytes;
    packed_header head;
    packed_row *row;   /* [n] */
    size_t *at;        /* [n] */
    const void **data; /* [n] */
    pthread_t thread;
    atomic_bool stop, done;
    int fd; /* of packed_write() */
};

/* ----------------------------------------------------------------------------- key -- */

void packed_key_begin(packed_key *k)
{
    fingerprint_begin(&k->f);
}

void packed_key_add(packed_key *k, uint64_t word)
{
    const uint64_t whole[4] = {word};
    fingerprint_add(&k->f, whole, sizeof(whole));
}

uint64_t packed_key_end(const packed_key *k)
{
    return fingerprint_end(&k->f);
}

uint64_t packed_stamp(const struct stat *st)
{
    packed_key k;
    packed_key_begin(&k);
    packed_key_add(&k, (uint64_t)st->st_ino);
    packed_key_add(&k, (uint64_t)st->st_size);
    packed_key_add(&k, (uint64_t)st->st_mtim.tv_sec);
    packed_key_add(&k, (uint64_t)st->st_mtim.tv_nsec);
    packed_key_add(&k, (uint64_t)st->st_ctim.tv_sec);
    packed_key_add(&k, (uint64_t)st->st_ctim.tv_nsec);
    return packed_key_end(&k);
}

/* ------------------------------------------------------------------------- layout -- */

/* Where each matrix lies; the result is the length of the file.  The sizes are those of what is
 * in memory, or will be: their sum does not overflow. */
static uint64_t lay_out(const packed_plan *plan, size_t *at)
{
    uint64_t end = DATA_AT;
    for (size_t i = 0; i < plan->n; i++) {
        at[i] = end;
        end += round_up_size(plan->bytes[i], ALIGN);
    }
    return end;
}

static uint64_t sum_of(const void *data, size_t n)
{
    fingerprint f;
    fingerprint_begin(&f);
    fingerprint_add(&f, data, n);
    return fingerprint_end(&f);
}

static uint64_t check_of(const packed_header *h)
{
    return sum_of(h, offsetof(packed_header, check));
}

static packed_header header_of(const packed_plan *plan, uint64_t bytes)
{
    packed_header h = {
        .version = VERSION, .n = (uint32_t)plan->n, .key = plan->key, .bytes = bytes};
    memcpy(h.magic, magic, sizeof(magic));
    return h;
}

/* `h` was read: is it the one that `want` would be, but for its notes? */
static bool header_fits(const packed_header *h, const packed_header *want)
{
    return memcmp(h, want, offsetof(packed_header, notes)) == 0 && h->check == check_of(h);
}

static bool path_of(char *out, const char *dir, uint64_t key, const char *suffix)
{
    int n = snprintf(out, PATH_BYTES, "%s/%016llx.%s", dir, (unsigned long long)key, suffix);
    return n > 0 && n < PATH_BYTES;
}

/* Whether path_of() makes this name. */
static bool is_ours(const char *name)
{
    size_t hex = strspn(name, "0123456789abcdef");
    return hex == 16 && (strcmp(name + hex, ".weights") == 0 || strcmp(name + hex, ".tmp") == 0);
}

/* -------------------------------------------------------------------------- reading -- */

typedef struct {
    char *map;
    size_t bytes;
    atomic_bool failed;
} bringing;

/* Also where the kernel (before 5.14) cannot be asked: a byte of each page. */
static void bring_piece(void *arg, int i)
{
    bringing *b = arg;
    size_t from = (size_t)i * PIECE, n = b->bytes - from < PIECE ? b->bytes - from : PIECE;
#ifdef MADV_POPULATE_READ
    if (madvise(b->map + from, n, MADV_POPULATE_READ) == 0) return;
    if (errno != EINVAL) {
        atomic_store(&b->failed, true); /* the disk cannot read it */
        return;
    }
#endif
    for (size_t k = 0; k < n; k += ALIGN) (void)*(volatile char *)(b->map + from + k);
}

static bool bring(packed_file *f, backend *be)
{
    bringing b = {.map = f->map + DATA_AT, .bytes = (size_t)f->head.bytes - DATA_AT};
    (void)madvise(b.map, b.bytes, MADV_HUGEPAGE);
    be_parallel(be, bring_piece, &b, (int)((b.bytes + PIECE - 1) / PIECE));
    return !atomic_load(&b.failed);
}

/* Reads one matrix of an open file, drops it from memory, and compares it with its row. */
static bool matrix_intact(int fd, const packed_row *row, off_t at, char *piece)
{
    fingerprint f;
    fingerprint_begin(&f);
    for (uint64_t done = 0; done < row->bytes; done += PIECE) {
        size_t n = row->bytes - done < PIECE ? (size_t)(row->bytes - done) : PIECE;
        if (pread(fd, piece, n, at + (off_t)done) != (ssize_t)n) return false;
        (void)posix_fadvise(fd, at + (off_t)done, (off_t)n, POSIX_FADV_DONTNEED);
        fingerprint_add(&f, piece, n);
    }
    return fingerprint_end(&f) == row->sum;
}

typedef struct {
    const packed_file *f;
    const packed_row *row;
    atomic_size_t bad; /* number of a damaged matrix + 1; 0: none so far */
} verifying;

static void verify_matrix(void *arg, int i)
{
    verifying *v = arg;
    const packed_row *row = &v->row[i];
    bool same;
    if (v->f->fd >= 0) {
        char *piece = malloc(PIECE);
        same = piece && matrix_intact(v->f->fd, row, (off_t)v->f->at[i], piece);
        free(piece);
    } else {
        same = sum_of(v->f->map + v->f->at[i], (size_t)row->bytes) == row->sum;
    }
    if (!same) atomic_store(&v->bad, (size_t)i + 1);
}

/* Compares every matrix with its checksum, on all of be's threads. */
static bool verify(const packed_file *f, const packed_plan *plan, backend *be)
{
    verifying v = {.f = f, .row = (const packed_row *)(const void *)(f->map + TABLE_AT)};
    bool same = sum_of(v.row, plan->n * sizeof(*v.row)) == f->head.table;
    for (size_t i = 0; same && i < plan->n; i++) same = v.row[i].bytes == plan->bytes[i];
    if (same) be_parallel(be, verify_matrix, &v, (int)plan->n);
    size_t bad = atomic_load(&v.bad);
    if (bad > 0)
        log_warn("model", "packed weights: matrix %zu of %zu does not match its checksum", bad,
                 plan->n);
    return same && bad == 0;
}

/* Maps fd if its header is `want` and it is as long as that says. */
static bool map_checked(packed_file *f, int fd, const packed_header *want)
{
    struct stat st;
    if (pread(fd, &f->head, sizeof(f->head), 0) != (ssize_t)sizeof(f->head)) return false;
    if (!header_fits(&f->head, want)) return false;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != want->bytes)
        return false;
    void *map = mmap(NULL, (size_t)want->bytes, PROT_READ, MAP_SHARED, fd, 0);
    f->map = map == MAP_FAILED ? NULL : map;
    if (f->map) mapping_add(map, (size_t)want->bytes);
    return f->map != NULL;
}

packed_file *packed_open(const char *dir, const packed_plan *plan, backend *be)
{
    char path[PATH_BYTES];
    packed_file *f = plan->n <= ROWS_MAX ? calloc(1, sizeof(*f)) : NULL;
    if (f) f->fd = -1;
    if (!f || !(f->at = calloc(plan->n, sizeof(*f->at))) ||
        !path_of(path, dir, plan->key, "weights")) {
        packed_close(f);
        return NULL;
    }
    packed_header want = header_of(plan, lay_out(plan, f->at));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool there = fd >= 0, fits = there && map_checked(f, fd, &want);
    if (fits && plan->in_parts)
        f->fd = fd;
    else if (there)
        (void)close(fd);
    fits = fits && (plan->in_parts || bring(f, be)) && verify(f, plan, be);
    if (fits) return f;
    if (there)
        log_warn("model", "packed weights: %s is damaged; the weights are packed again", path);
    packed_close(f);
    return NULL;
}

const void *packed_at(const packed_file *f, size_t i)
{
    assert(i < f->head.n);
    return f->map + f->at[i];
}

char *packed_map(const packed_file *f, size_t *bytes, int *fd)
{
    *bytes = (size_t)f->head.bytes;
    *fd = f->fd;
    return f->map;
}

bool packed_path(const char *dir, char *out, size_t size)
{
    DIR *d = opendir(dir);
    bool found = false;
    if (!d) return false;
    for (struct dirent *de; !found && (de = readdir(d)) != NULL;) {
        if (!is_ours(de->d_name) || !strstr(de->d_name, ".weights")) continue;
        int n = snprintf(out, size, "%s/%s", dir, de->d_name);
        found = n > 0 && (size_t)n < size;
    }
    (void)closedir(d);
    return found;
}

const uint64_t *packed_notes(const packed_file *f)
{
    return f->head.notes;
}

static bool matrices_intact(int fd, const packed_header *h, const packed_row *row)
{
    char *piece = malloc(PIECE);
    bool ok = piece != NULL;
    uint64_t at = DATA_AT;
    for (size_t i = 0; ok && i < h->n; i++) {
        ok = row[i].bytes <= h->bytes && matrix_intact(fd, &row[i], (off_t)at, piece);
        at += round_up_size(ok ? (size_t)row[i].bytes : 0, ALIGN);
    }
    free(piece);
    return ok && at == h->bytes;
}

static bool file_intact(int fd)
{
    packed_header h;
    bool ok = pread(fd, &h, sizeof(h), 0) == (ssize_t)sizeof(h) && h.check == check_of(&h) &&
              memcmp(h.magic, magic, sizeof(magic)) == 0 && h.version == VERSION && h.n <= ROWS_MAX;
    size_t bytes = ok ? h.n * sizeof(packed_row) : 0;
    packed_row *row = ok ? malloc(bytes + 1) : NULL;
    ok = row && pread(fd, row, bytes, TABLE_AT) == (ssize_t)bytes &&
         sum_of(row, bytes) == h.table && matrices_intact(fd, &h, row);
    free(row);
    return ok;
}

packed_state packed_check(const char *dir)
{
    packed_state state = PACKED_NONE;
    DIR *d = opendir(dir);
    if (!d) return state;
    for (struct dirent *de; state != PACKED_DAMAGED && (de = readdir(d)) != NULL;) {
        if (!is_ours(de->d_name) || !strstr(de->d_name, ".weights")) continue;
        int fd = openat(dirfd(d), de->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        state = fd >= 0 && file_intact(fd) ? PACKED_INTACT : PACKED_DAMAGED;
        if (fd >= 0) (void)close(fd);
    }
    (void)closedir(d);
    return state;
}

void packed_close(packed_file *f)
{
    if (!f) return;
    if (f->map) {
        mapping_remove(f->map);
        (void)munmap(f->map, (size_t)f->head.bytes);
    }
    if (f->fd >= 0) (void)close(f->fd);
    free(f->at);
    free(f);
}

/* -------------------------------------------------------------------------- writing -- */

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
    char *piece = malloc(PIECE);
    bool ok = piece != NULL;
    size_t first = 0, end = (size_t)k->head.bytes;
    if (!ok) *error = ENOMEM;
    for (size_t at = DATA_AT; ok && at < end; at += PIECE) {
        size_t n = end - at < PIECE ? end - at : PIECE;
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
        for (size_t at = 0, n = (size_t)k->row[i].bytes; at < n; at += PIECE) {
            if (atomic_load(&k->stop)) return false;
            fingerprint_add(&f, (const char *)k->data[i] + at, n - at < PIECE ? n - at : PIECE);
        }
        k->row[i].sum = fingerprint_end(&f);
    }
    return true;
}

static bool take_room(const packed_keeper *k, int fd, int *error)
{
    off_t data = (off_t)k->head.bytes - DATA_AT;
    *error = 0;
    if (ftruncate(fd, (off_t)k->head.bytes) == 0 &&
        (fallocate(fd, 0, DATA_AT, data) == 0 || errno == EOPNOTSUPP))
        return true;
    *error = errno;
    return false;
}

/* The checksums of the matrices, and the header that covers them: the file is valid then. */
static bool write_header(packed_keeper *k, int fd, int *error)
{
    k->head.table = sum_of(k->row, k->head.n * sizeof(*k->row));
    k->head.check = check_of(&k->head);
    bool ok =
        write_range(k, fd, (const char *)k->row, k->head.n * sizeof(*k->row), TABLE_AT, error) &&
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
    char keep[32], path[PATH_BYTES];
    snprintf(keep, sizeof(keep), "%016llx.weights", (unsigned long long)k->head.key);
    DIR *d = opendir(k->dir);
    if (!d) return;
    for (struct dirent *de; (de = readdir(d)) != NULL;) {
        if (!is_ours(de->d_name) || strcmp(de->d_name, keep) == 0) continue;
        int n = snprintf(path, sizeof(path), "%s/%s", k->dir, de->d_name);
        if (n > 0 && n < (int)sizeof(path)) (void)unlink(path);
    }
    (void)closedir(d);
}

static bool has_room(const packed_keeper *k)
{
    struct statvfs v;
    if (statvfs(k->dir, &v) != 0) return false;
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize, need = k->head.bytes - DATA_AT;
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
    char to[PATH_BYTES], tmp[PATH_BYTES];
    int error = 0;
    if (!path_of(to, k->dir, k->head.key, "weights") || !path_of(tmp, k->dir, k->head.key, "tmp") ||
        !has_room(k))
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
                 (unsigned long long)(k->head.bytes - DATA_AT) >> 20);
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
    packed_keeper *k = plan->n <= ROWS_MAX ? calloc(1, sizeof(*k)) : NULL;
    if (!k) return NULL;
    int n = snprintf(k->dir, sizeof(k->dir), "%s", dir);
    k->floor_bytes = floor_bytes;
    k->fd = -1;
    k->row = calloc(plan->n, sizeof(*k->row));
    k->at = calloc(plan->n, sizeof(*k->at));
    k->data = calloc(plan->n, sizeof(*k->data));
    if (n <= 0 || n >= PATH_BYTES || !k->row || !k->at || !k->data) {
        keeper_free(k);
        return NULL;
    }
    for (size_t i = 0; i < plan->n; i++) k->row[i].bytes = plan->bytes[i];
    k->head = header_of(plan, lay_out(plan, k->at));
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
    char tmp[PATH_BYTES];
    int error = 0;
    packed_keeper *k = keeper_new(dir, floor_bytes, plan);
    *out = NULL;
    if (!k || !path_of(tmp, dir, plan->key, "tmp")) {
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
    k->row[i].sum = sum_of(data, n);
    for (size_t at = 0; at < n; at += PIECE) {
        size_t some = n - at < PIECE ? n - at : PIECE;
        off_t to = (off_t)(k->at[i] + at);
        if (!write_range(k, k->fd, (const char *)data + at, some, to, &error))
            return write_failed(e, error);
        (void)posix_fadvise(k->fd, to, (off_t)some, POSIX_FADV_DONTNEED);
    }
    return ERR_NONE;
}

err_code packed_write_end(packed_keeper *k, const uint64_t *notes, err *e)
{
    char to[PATH_BYTES], tmp[PATH_BYTES];
    int error = 0;
    bool named =
        path_of(to, k->dir, k->head.key, "weights") && path_of(tmp, k->dir, k->head.key, "tmp");
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
