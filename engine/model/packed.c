/* packed.c -- a cache file with a model's packed weights: its key, its form, and reading it.
 *
 *   0       header: magic, version, key, sizes, notes, checksums
 *   4 KiB   table: size and fingerprint of each matrix
 *   2 MiB   the matrices, aligned for huge pages
 *
 * The key covers everything that the result depends on: stamps of the source files, configuration,
 * backend, instruction set, form of the weights. A file with another key is ignored and later
 * removed.
 *
 * Opening compares the header with the one that the plan would have, then the length of the file,
 * the table, and every matrix with its fingerprint, on all threads of the backend, before any of
 * it is used. Writing is in packed_write.c.
 *
 * Threads: open and close on the start-up thread.
 */
#include "engine/model/packed.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/round.h"
#include "engine/model/packed_inside.h"
#include "engine/program/mapping.h"

static const char magic[8] = "lordpack";

struct packed_file {
    packed_header head;
    char *map;
    int fd;     /* of a plan in_parts; else -1 */
    size_t *at; /* [n] */
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

uint64_t packed_lay_out(const packed_plan *plan, size_t *at)
{
    uint64_t end = PACKED_DATA_AT;
    for (size_t i = 0; i < plan->n; i++) {
        at[i] = end;
        end += round_up_size(plan->bytes[i], PACKED_ALIGN);
    }
    return end;
}

uint64_t packed_sum_of(const void *data, size_t n)
{
    fingerprint f;
    fingerprint_begin(&f);
    fingerprint_add(&f, data, n);
    return fingerprint_end(&f);
}

uint64_t packed_check_of(const packed_header *h)
{
    return packed_sum_of(h, offsetof(packed_header, check));
}

packed_header packed_header_of(const packed_plan *plan, uint64_t bytes)
{
    packed_header h = {
        .version = PACKED_VERSION, .n = (uint32_t)plan->n, .key = plan->key, .bytes = bytes};
    memcpy(h.magic, magic, sizeof(magic));
    return h;
}

/* `h` was read: is it the one that `want` would be, but for its notes? */
static bool header_fits(const packed_header *h, const packed_header *want)
{
    return memcmp(h, want, offsetof(packed_header, notes)) == 0 && h->check == packed_check_of(h);
}

bool packed_path_of(char *out, const char *dir, uint64_t key, const char *suffix)
{
    int n = snprintf(out, PACKED_PATH_BYTES, "%s/%016llx.%s", dir, (unsigned long long)key, suffix);
    return n > 0 && n < PACKED_PATH_BYTES;
}

bool packed_is_ours(const char *name)
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
    size_t from = (size_t)i * PACKED_PIECE,
           n = b->bytes - from < PACKED_PIECE ? b->bytes - from : PACKED_PIECE;
#ifdef MADV_POPULATE_READ
    if (madvise(b->map + from, n, MADV_POPULATE_READ) == 0) return;
    if (errno != EINVAL) {
        atomic_store(&b->failed, true); /* the disk cannot read it */
        return;
    }
#endif
    for (size_t k = 0; k < n; k += PACKED_ALIGN) (void)*(volatile char *)(b->map + from + k);
}

static bool bring(packed_file *f, backend *be)
{
    bringing b = {.map = f->map + PACKED_DATA_AT, .bytes = (size_t)f->head.bytes - PACKED_DATA_AT};
    (void)madvise(b.map, b.bytes, MADV_HUGEPAGE);
    be_parallel(be, bring_piece, &b, (int)((b.bytes + PACKED_PIECE - 1) / PACKED_PIECE));
    return !atomic_load(&b.failed);
}

/* Reads one matrix of an open file, drops it from memory, and compares it with its row. */
static bool matrix_intact(int fd, const packed_row *row, off_t at, char *piece)
{
    fingerprint f;
    fingerprint_begin(&f);
    for (uint64_t done = 0; done < row->bytes; done += PACKED_PIECE) {
        size_t n = row->bytes - done < PACKED_PIECE ? (size_t)(row->bytes - done) : PACKED_PIECE;
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
        char *piece = malloc(PACKED_PIECE);
        same = piece && matrix_intact(v->f->fd, row, (off_t)v->f->at[i], piece);
        free(piece);
    } else {
        same = packed_sum_of(v->f->map + v->f->at[i], (size_t)row->bytes) == row->sum;
    }
    if (!same) atomic_store(&v->bad, (size_t)i + 1);
}

/* Compares every matrix with its checksum, on all of be's threads. */
static bool verify(const packed_file *f, const packed_plan *plan, backend *be)
{
    verifying v = {.f = f, .row = (const packed_row *)(const void *)(f->map + PACKED_TABLE_AT)};
    bool same = packed_sum_of(v.row, plan->n * sizeof(*v.row)) == f->head.table;
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
    char path[PACKED_PATH_BYTES];
    packed_file *f = plan->n <= PACKED_ROWS_MAX ? calloc(1, sizeof(*f)) : NULL;
    if (f) f->fd = -1;
    if (!f || !(f->at = calloc(plan->n, sizeof(*f->at))) ||
        !packed_path_of(path, dir, plan->key, "weights")) {
        packed_close(f);
        return NULL;
    }
    packed_header want = packed_header_of(plan, packed_lay_out(plan, f->at));
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
        if (!packed_is_ours(de->d_name) || !strstr(de->d_name, ".weights")) continue;
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
    char *piece = malloc(PACKED_PIECE);
    bool ok = piece != NULL;
    uint64_t at = PACKED_DATA_AT;
    for (size_t i = 0; ok && i < h->n; i++) {
        ok = row[i].bytes <= h->bytes && matrix_intact(fd, &row[i], (off_t)at, piece);
        at += round_up_size(ok ? (size_t)row[i].bytes : 0, PACKED_ALIGN);
    }
    free(piece);
    return ok && at == h->bytes;
}

static bool file_intact(int fd)
{
    packed_header h;
    bool ok = pread(fd, &h, sizeof(h), 0) == (ssize_t)sizeof(h) && h.check == packed_check_of(&h) &&
              memcmp(h.magic, magic, sizeof(magic)) == 0 && h.version == PACKED_VERSION &&
              h.n <= PACKED_ROWS_MAX;
    size_t bytes = ok ? h.n * sizeof(packed_row) : 0;
    packed_row *row = ok ? malloc(bytes + 1) : NULL;
    ok = row && pread(fd, row, bytes, PACKED_TABLE_AT) == (ssize_t)bytes &&
         packed_sum_of(row, bytes) == h.table && matrices_intact(fd, &h, row);
    free(row);
    return ok;
}

packed_state packed_check(const char *dir)
{
    packed_state state = PACKED_NONE;
    DIR *d = opendir(dir);
    if (!d) return state;
    for (struct dirent *de; state != PACKED_DAMAGED && (de = readdir(d)) != NULL;) {
        if (!packed_is_ours(de->d_name) || !strstr(de->d_name, ".weights")) continue;
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
