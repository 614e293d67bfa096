/* wal_check.c -- walks the frames of a write-ahead log as SQLite's recovery does. */
#include "storage/wal_check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER = 32, FRAME = 24, PAGE_MAX = 65536 };

typedef struct wal {
    int fd;
    int64_t n; /* whole frames in the file */
    uint32_t page_bytes;
    bool big_endian; /* of the words that are summed */
    uint32_t salt[2], sum[2];
    uint8_t frame[FRAME + PAGE_MAX];
} wal;

static uint32_t word(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t summed_word(const wal *w, const uint8_t *p)
{
    return w->big_endian ? word(p) : __builtin_bswap32(word(p));
}

static void add_sum(wal *w, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i + 8 <= n; i += 8) {
        w->sum[0] += summed_word(w, p + i) + w->sum[1];
        w->sum[1] += summed_word(w, p + i + 4) + w->sum[0];
    }
}

/* False: SQLite would not accept it. */
static bool read_header(wal *w, const uint8_t h[HEADER])
{
    w->big_endian = word(h) & 1;
    w->page_bytes = word(h + 8);
    w->salt[0] = word(h + 16);
    w->salt[1] = word(h + 20);
    w->sum[0] = w->sum[1] = 0;
    add_sum(w, h, 24);
    bool page = w->page_bytes >= 512 && w->page_bytes <= PAGE_MAX &&
                (w->page_bytes & (w->page_bytes - 1)) == 0;
    return (word(h) & ~1U) == 0x377f0682U && word(h + 4) == 3007000 && page &&
           w->sum[0] == word(h + 24) && w->sum[1] == word(h + 28);
}

static bool read_frame(wal *w, int64_t i)
{
    size_t bytes = FRAME + w->page_bytes;
    return pread(w->fd, w->frame, bytes, HEADER + i * (int64_t)bytes) == (ssize_t)bytes;
}

/* Of the log's generation, also where one of its salts was hit. */
static bool is_ours(const wal *w)
{
    return word(w->frame + 8) == w->salt[0] || word(w->frame + 12) == w->salt[1];
}

static bool has_both_salts(const wal *w)
{
    return word(w->frame + 8) == w->salt[0] && word(w->frame + 12) == w->salt[1];
}

static bool is_valid(wal *w)
{
    if (!has_both_salts(w) || word(w->frame) == 0) return false;
    add_sum(w, w->frame, 8);
    add_sum(w, w->frame + FRAME, w->page_bytes);
    return w->sum[0] == word(w->frame + 16) && w->sum[1] == word(w->frame + 20);
}

static bool walk(wal *w, wal_report *out)
{
    int64_t i = 0;
    while (i < w->n && read_frame(w, i) && is_valid(w)) i++;
    out->valid = i;
    bool damaged = i < w->n && has_both_salts(w);
    for (; i < w->n && read_frame(w, i); i++) {
        bool ours = is_ours(w);
        out->discarded += ours;
        damaged |= ours && word(w->frame + 4) != 0; /* a commit */
    }
    return damaged;
}

static bool check_open(wal *w, wal_report *out)
{
    struct stat st;
    uint8_t head[HEADER];
    if (fstat(w->fd, &st) != 0 || st.st_size <= HEADER) return false;
    if (pread(w->fd, head, HEADER, 0) != HEADER) return false;
    out->header = !read_header(w, head);
    if (out->header) return true;
    w->n = (st.st_size - HEADER) / (int64_t)(FRAME + w->page_bytes);
    return walk(w, out);
}

bool wal_check(const char *path, wal_report *out)
{
    *out = (wal_report){0};
    wal *w = malloc(sizeof(*w));
    if (!w) return false;
    w->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool damaged = w->fd >= 0 && check_open(w, out);
    if (w->fd >= 0) (void)close(w->fd);
    free(w);
    return damaged;
}
