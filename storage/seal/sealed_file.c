/* sealed_file.c -- files encrypted at rest, as a sequence of sealed records with random access;
 * unencrypted files are read the same way.
 *
 *   8 bytes mark | sealed empty text (checks the key) | record 0 | record 1 | ...
 *   record: 4 bytes length (little-endian) | sealed text of at most SEALED_PIECE bytes
 *
 * Each record is sealed under a label with the file's name and its number ("file/NAME/3"), so
 * records cannot be exchanged within a file or between files without detection (seal.h).
 *
 * place[] has, for each record, its offset in the file and the plain-text position of its first
 * byte; a read finds the record by binary search and decrypts whole records. Opening reads only the
 * length fields.
 *
 * A crash during an append leaves an incomplete last record: `torn` is set, sealed_file_cut()
 * removes it. An append writes everything or truncates the file to its former end.
 *
 * Threads: one at a time; reads do not change the struct.
 */
#include "storage/seal/sealed_file.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage/disk.h"

enum {
    LENGTH = 4,
    HEAD = SEALED_MARK + SEAL_BYTES, /* the mark, a sealed nothing */
    AROUND = LENGTH + SEAL_BYTES,    /* of a record, beside what it says */
    HEAD_NUMBER = -1,
};
static const char mark[SEALED_MARK + 1] = "\0lorad\1\n";

static err_code io_error(const char *what, err *e)
{
    int why = errno;
    return err_set(e, disk_is_full(why) ? ERR_NO_ROOM : ERR_IO, "%s: %s", what, strerror(why));
}

static void label_of(const sealed_file *f, int number, char out[SEALED_LABEL_MAX + 32])
{
    snprintf(out, SEALED_LABEL_MAX + 32, "file/%s/%d", f->label, number);
}

/* *got: fewer only where the file ends. */
static err_code read_raw(int fd, void *out, size_t len, int64_t at, size_t *got, err *e)
{
    for (*got = 0; *got < len;) {
        ssize_t n = pread(fd, (char *)out + *got, len - *got, at + (int64_t)*got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_error("a file cannot be read", e);
        if (n == 0) break;
        *got += (size_t)n;
    }
    return ERR_NONE;
}

/* ----------------------------------------------------------------------------- opening -- */

static bool add_place(sealed_file *f, int64_t at, size_t len)
{
    assert(len > 0 && len <= SEALED_PIECE);
    if (f->n == f->cap) {
        int cap = f->cap ? 2 * f->cap : 64;
        void *more = realloc(f->place, (size_t)cap * sizeof(*f->place));
        if (!more) return false;
        f->place = more;
        f->cap = cap;
    }
    f->place[f->n++] = (struct sealed_place){at, f->n_bytes};
    f->n_bytes += (int64_t)len;
    f->end = at + AROUND + (int64_t)len;
    return true;
}

static size_t length_of(const uint8_t in[LENGTH])
{
    return in[0] | (size_t)in[1] << 8 | (size_t)in[2] << 16 | (size_t)in[3] << 24;
}

static err_code find_records(sealed_file *f, int64_t size, err *e)
{
    f->end = HEAD;
    while (f->end < size) {
        uint8_t head[LENGTH];
        size_t got;
        err_code rc = read_raw(f->fd, head, LENGTH, f->end, &got, e);
        if (rc) return rc;
        size_t len = length_of(head);
        f->torn =
            got < LENGTH || !len || len > SEALED_PIECE || f->end + AROUND + (int64_t)len > size;
        if (f->torn) return ERR_NONE;
        if (!add_place(f, f->end, len)) return err_set(e, ERR_NOMEM, "out of memory");
    }
    return ERR_NONE;
}

static err_code look(sealed_file *f, err *e)
{
    uint8_t head[HEAD], none[1];
    char label[SEALED_LABEL_MAX + 32];
    size_t got;
    int64_t size = lseek(f->fd, 0, SEEK_END);
    if (size < 0) return io_error("a file cannot be read", e);
    err_code rc = read_raw(f->fd, head, HEAD, 0, &got, e);
    if (rc) return rc;
    bool begins = got > 0 && memcmp(head, mark, got < SEALED_MARK ? got : SEALED_MARK) == 0;
    f->sealed = got ? begins : f->key != NULL;
    if (!f->sealed) {
        f->n_bytes = f->end = size;
        return ERR_NONE;
    }
    f->torn = got > 0 && got < HEAD; /* nothing stands in it yet */
    if (got < HEAD) return ERR_NONE;
    label_of(f, HEAD_NUMBER, label);
    if (f->key && seal_open(f->key, label, head + SEALED_MARK, 0, none))
        return find_records(f, size, e);
    return err_set(e, ERR_DENIED, "this file was sealed with a key that is not the server's");
}

err_code sealed_file_open(sealed_file *f, int fd, seal_key key, const char *label, err *e)
{
    assert(strlen(label) <= SEALED_LABEL_MAX); /* each file has its own */
    *f = (sealed_file){.fd = fd, .key = key};
    snprintf(f->label, sizeof(f->label), "%s", label);
    err_code rc = look(f, e);
    if (rc) sealed_file_close(f);
    return rc;
}

void sealed_file_close(sealed_file *f)
{
    if (f->fd > 0) (void)close(f->fd);
    free(f->place);
    *f = (sealed_file){0};
}

/* ----------------------------------------------------------------------------- reading -- */

/* The record that a byte is in. */
static int record_of(const sealed_file *f, int64_t at)
{
    assert(f->n > 0 && at >= 0 && at < f->n_bytes);
    int low = 0, high = f->n; /* the result is in [low, high) */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (f->place[middle].from <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* text [SEALED_PIECE]; *len: how much it is. */
static err_code read_record(const sealed_file *f, int i, uint8_t *text, size_t *len, err *e)
{
    uint8_t raw[SEALED_PIECE + SEAL_BYTES];
    char label[SEALED_LABEL_MAX + 32];
    size_t got;
    *len = (size_t)((i + 1 < f->n ? f->place[i + 1].from : f->n_bytes) - f->place[i].from);
    assert(i >= 0 && i < f->n && *len <= SEALED_PIECE);
    err_code rc = read_raw(f->fd, raw, *len + SEAL_BYTES, f->place[i].at + LENGTH, &got, e);
    if (rc) return rc;
    label_of(f, i, label);
    if (got == *len + SEAL_BYTES && seal_open(f->key, label, raw, *len, text)) return ERR_NONE;
    return err_set(e, ERR_CORRUPT, "a file is damaged: record %d cannot be opened", i);
}

err_code sealed_file_read(const sealed_file *f, void *out, size_t len, int64_t at, err *e)
{
    uint8_t text[SEALED_PIECE];
    size_t got = 0;
    char *to = out;
    if (at < 0 || at + (int64_t)len > f->n_bytes)
        return err_set(e, ERR_CORRUPT, "a file is damaged: it is shorter than it was");
    if (!f->sealed) {
        err_code rc = read_raw(f->fd, out, len, at, &got, e);
        if (rc || got == len) return rc;
        return err_set(e, ERR_CORRUPT, "a file is damaged: it is shorter than it was");
    }
    for (int i = len ? record_of(f, at) : 0; len > 0; i++) {
        err_code rc = read_record(f, i, text, &got, e);
        if (rc) return rc;
        size_t skip = (size_t)(at - f->place[i].from), n = got - skip < len ? got - skip : len;
        assert(skip < got && n > 0);
        memcpy(to, text + skip, n);
        to += n;
        at += (int64_t)n;
        len -= n;
    }
    return ERR_NONE;
}

typedef struct walk {
    const sealed_file *f;
    int64_t at;
} walk;

static ssize_t walk_read(void *arg, char *out, size_t cap)
{
    walk *w = arg;
    const sealed_file *f = w->f;
    err e;
    int64_t end = f->n_bytes;
    if (w->at >= end) return 0;
    if (f->sealed) { /* one record at a time: all records before a damaged one are delivered */
        int i = record_of(f, w->at);
        if (i + 1 < f->n) end = f->place[i + 1].from;
    }
    size_t n = end - w->at < (int64_t)cap ? (size_t)(end - w->at) : cap;
    err_code rc = sealed_file_read(f, out, n, w->at, &e);
    if (rc) return rc == ERR_CORRUPT ? 0 : -1;
    w->at += (int64_t)n;
    return (ssize_t)n;
}

static int walk_end(void *arg)
{
    free(arg);
    return 0;
}

FILE *sealed_file_stream(const sealed_file *f)
{
    walk *w = malloc(sizeof(*w));
    if (!w) return NULL;
    *w = (walk){f, 0};
    FILE *stream =
        fopencookie(w, "r", (cookie_io_functions_t){.read = walk_read, .close = walk_end});
    if (!stream) free(w);
    return stream;
}

/* ----------------------------------------------------------------------------- writing -- */

static err_code write_raw(const sealed_file *f, const void *data, size_t len, err *e)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = write(f->fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return io_error("cannot write the file", e);
        p += n;
        len -= (size_t)n;
    }
    return ERR_NONE;
}

static err_code write_head(sealed_file *f, err *e)
{
    uint8_t head[HEAD];
    char label[SEALED_LABEL_MAX + 32];
    label_of(f, HEAD_NUMBER, label);
    memcpy(head, mark, SEALED_MARK);
    if (!seal_close(f->key, label, head, 0, head + SEALED_MARK))
        return err_set(e, ERR_IO, "a file cannot be encrypted");
    err_code rc = write_raw(f, head, HEAD, e);
    if (!rc) f->end = HEAD;
    return rc;
}

static err_code write_record(sealed_file *f, const char *data, size_t len, err *e)
{
    assert(len > 0 && len <= SEALED_PIECE);
    uint8_t raw[AROUND + SEALED_PIECE];
    char label[SEALED_LABEL_MAX + 32];
    for (int i = 0; i < LENGTH; i++) raw[i] = (uint8_t)(len >> (8 * i));
    label_of(f, f->n, label);
    if (!seal_close(f->key, label, data, len, raw + LENGTH))
        return err_set(e, ERR_IO, "a file cannot be encrypted");
    err_code rc = write_raw(f, raw, AROUND + len, e);
    if (rc || add_place(f, f->end, len)) return rc;
    return err_set(e, ERR_NOMEM, "out of memory");
}

err_code sealed_file_append(sealed_file *f, const void *data, size_t len, err *e)
{
    const char *p = data;
    const sealed_file was = *f;
    err_code rc = ERR_NONE;
    if (!f->sealed) {
        rc = write_raw(f, data, len, e);
        if (!rc) f->end = f->n_bytes += (int64_t)len;
    } else if (f->end == 0) {
        rc = write_head(f, e);
    }
    for (size_t n; f->sealed && !rc && len > 0; p += n, len -= n) {
        n = len < SEALED_PIECE ? len : SEALED_PIECE;
        rc = write_record(f, p, n, e);
    }
    if (!rc) return rc;
    f->n = was.n; /* all of it or nothing */
    f->n_bytes = was.n_bytes;
    f->end = was.end;
    f->torn = ftruncate(f->fd, f->end) != 0;
    return rc;
}

err_code sealed_file_cut(sealed_file *f, int64_t n_bytes, err *e)
{
    int n = f->n;
    int64_t end = f->end, from = f->n_bytes;
    for (; n > 0 && f->place[n - 1].from >= n_bytes; n--) {
        end = f->place[n - 1].at;
        from = f->place[n - 1].from;
    }
    if (!f->sealed)
        end = n_bytes;
    else if (from != n_bytes)
        return err_set(e, ERR_CORRUPT, "a file cannot be cut within a record");
    if (ftruncate(f->fd, end) != 0) return io_error("a file cannot be cut", e);
    f->n = n;
    f->n_bytes = n_bytes;
    f->end = end;
    f->torn = false;
    if (end == 0) f->sealed = f->key != NULL; /* empty: sealed or not is decided again by the key */
    return ERR_NONE;
}

uint64_t sealed_file_cost(const sealed_file *f, size_t len)
{
    uint64_t records = (len + SEALED_PIECE - 1) / SEALED_PIECE;
    return f->sealed ? len + records * AROUND + (f->end ? 0 : HEAD) : len;
}
