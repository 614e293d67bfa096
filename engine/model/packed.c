/* packed.c -- keeps packed weights in a file and maps it; packed.h says what is in it. */
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

#include "engine/base/log.h"
#include "engine/base/round.h"

enum {
    VERSION = 1,
    ALIGN = 4096,
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
    uint64_t check; /* fingerprint of what stands before */
} packed_header;

struct packed_file {
    packed_header head;
    char *map;
    size_t *at; /* [n] */
};

struct packed_keeper {
    char dir[PATH_BYTES];
    uint64_t floor_bytes;
    packed_header head;
    size_t *bytes, *at; /* [n] */
    const void **data;  /* [n] */
    pthread_t thread;
    atomic_bool stop, done;
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

static uint64_t check_of(const packed_header *h)
{
    fingerprint f;
    fingerprint_begin(&f);
    fingerprint_add(&f, h, offsetof(packed_header, check));
    return fingerprint_end(&f);
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
    return f->map != NULL;
}

packed_file *packed_open(const char *dir, const packed_plan *plan, backend *be)
{
    char path[PATH_BYTES];
    packed_file *f = calloc(1, sizeof(*f));
    if (!f || !(f->at = calloc(plan->n, sizeof(*f->at))) ||
        !path_of(path, dir, plan->key, "weights")) {
        packed_close(f);
        return NULL;
    }
    packed_header want = header_of(plan, lay_out(plan, f->at));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool there = fd >= 0, fits = there && map_checked(f, fd, &want) && bring(f, be);
    if (there) (void)close(fd);
    if (fits) return f;
    if (there) log_warn("model", "the file of packed weights is damaged: it is made anew");
    packed_close(f);
    return NULL;
}

const void *packed_at(const packed_file *f, size_t i)
{
    assert(i < f->head.n);
    return f->map + f->at[i];
}

const uint64_t *packed_notes(const packed_file *f)
{
    return f->head.notes;
}

void packed_close(packed_file *f)
{
    if (!f) return;
    if (f->map) (void)munmap(f->map, (size_t)f->head.bytes);
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
        size_t from = k->at[i] > at ? k->at[i] : at, end = k->at[i] + k->bytes[i];
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

/* The room first, then the matrices, then the header. */
static bool write_all(const packed_keeper *k, int fd, int *error)
{
    off_t data = (off_t)k->head.bytes - DATA_AT;
    *error = 0;
    if (ftruncate(fd, (off_t)k->head.bytes) != 0 ||
        (fallocate(fd, 0, DATA_AT, data) != 0 && errno != EOPNOTSUPP)) {
        *error = errno;
        return false;
    }
    bool ok = write_matrices(k, fd, error) &&
              write_range(k, fd, (const char *)&k->head, sizeof(k->head), 0, error);
    if (ok && fsync(fd) != 0) {
        *error = errno;
        return false;
    }
    return ok;
}

static bool sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0) (void)close(fd);
    return ok;
}

/* A name that path_of() makes? */
static bool is_ours(const char *name)
{
    size_t hex = strspn(name, "0123456789abcdef");
    return hex == 16 && (strcmp(name + hex, ".weights") == 0 || strcmp(name + hex, ".tmp") == 0);
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

static void keep_file(const packed_keeper *k)
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
    if (ok && sync_dir(k->dir)) {
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
    free(k->bytes);
    free(k->at);
    free(k->data);
    free(k);
}

packed_keeper *packed_keep(const char *dir, uint64_t floor_bytes, const packed_plan *plan,
                           const void *const *data, const uint64_t notes[PACKED_NOTES])
{
    packed_keeper *k = calloc(1, sizeof(*k));
    if (!k) return NULL;
    int n = snprintf(k->dir, sizeof(k->dir), "%s", dir);
    k->floor_bytes = floor_bytes;
    k->bytes = calloc(plan->n, sizeof(*k->bytes));
    k->at = calloc(plan->n, sizeof(*k->at));
    k->data = calloc(plan->n, sizeof(*k->data));
    if (n > 0 && n < PATH_BYTES && k->bytes && k->at && k->data) {
        memcpy(k->bytes, plan->bytes, plan->n * sizeof(*k->bytes));
        memcpy(k->data, data, plan->n * sizeof(*k->data));
        k->head = header_of(plan, lay_out(plan, k->at));
        memcpy(k->head.notes, notes, sizeof(k->head.notes));
        k->head.check = check_of(&k->head);
        if (pthread_create(&k->thread, NULL, keep_main, k) == 0) return k;
    }
    keeper_free(k);
    return NULL;
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
