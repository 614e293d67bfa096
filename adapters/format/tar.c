/* tar.c -- a streaming tar reader for uploads: a state machine over 512-byte blocks, fed with
 * pieces of any size.
 *
 *   HEADER --file--> FILE --data--> PADDING --> HEADER        two zero blocks --> END
 *      \--pax, GNU long name--> EXTRA --> HEADER (applies to the next entry)
 *
 * Only regular files at the root, or in one common leading folder, are accepted. Names are cleaned
 * once ("./" goes); "..", absolute names, control bytes, backslashes, links, devices, sparse files
 * and duplicate names are refused. Entries that macOS adds (._name, .DS_Store) are skipped.
 *
 * Formats: ustar, GNU, pax. Numbers are octal or base-256; a checksum by old writers with signed
 * bytes is accepted. Sizes, entries and the stream are limited (tar_limits).
 *
 * The reader keeps no file data: it goes to the sink as it arrives. Threads: one reader per upload.
 */
#include "adapters/format/tar.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, NAME_BYTES = 1024, EXTRA_MAX = 65536 };

typedef enum { AT_HEADER, AT_FILE, AT_EXTRA, AT_PADDING, AT_END } place;

struct tar_reader {
    tar_limits limits;
    tar_sink sink;
    place at;
    bool failed;
    uint64_t n_bytes; /* of the stream so far */
    int n_entries;

    uint8_t block[BLOCK]; /* the header being filled */
    size_t filled;

    uint64_t left, padding; /* of the entry's data; of its last block */
    bool skip;              /* the data goes nowhere */

    uint8_t *extra; /* data of a pax or long-name header, [EXTRA_MAX + 1] */
    size_t n_extra;
    char extra_type;

    char long_name[NAME_BYTES]; /* for the next entry; empty: none */
    bool has_size;
    uint64_t pax_size;

    char folder[NAME_BYTES]; /* leading folder; valid if has_folder or at_root */
    bool has_folder, at_root;
    char **seen; /* names so far, [max_files] */
    int n_seen;
};

tar_reader *tar_create(const tar_limits *limits, const tar_sink *sink)
{
    tar_reader *t = calloc(1, sizeof(*t));
    if (!t) return NULL;
    t->limits = *limits;
    t->sink = *sink;
    t->extra = malloc(EXTRA_MAX + 1);
    t->seen = calloc((size_t)limits->max_files + 1, sizeof(*t->seen));
    if (!t->extra || !t->seen) {
        tar_destroy(t);
        return NULL;
    }
    return t;
}

void tar_destroy(tar_reader *t)
{
    if (!t) return;
    for (int i = 0; i < t->n_seen; i++) free(t->seen[i]);
    free(t->seen);
    free(t->extra);
    free(t);
}

/* ---- numbers ----------------------------------------------------------------------------- */

/* Octal digits, spaces before, NUL or space behind; or base-256 with the first bit set. */
static bool read_number(const uint8_t *p, size_t len, uint64_t *out)
{
    uint64_t v = 0;
    if (p[0] & 0x80) {
        if (p[0] & 0x40) return false; /* negative */
        for (size_t i = 0; i < len; i++) {
            if (v >> 55) return false;
            v = v << 8 | (i == 0 ? p[i] & 0x3f : p[i]);
        }
        *out = v;
        return true;
    }
    size_t i = 0;
    while (i < len && p[i] == ' ') i++;
    size_t digits = 0;
    for (; i < len && p[i] >= '0' && p[i] <= '7'; i++, digits++)
        v = v << 3 | (uint64_t)(p[i] - '0');
    for (; i < len; i++)
        if (p[i] != 0 && p[i] != ' ') return false;
    *out = v;
    return digits > 0;
}

static bool checksum_fits(const uint8_t block[BLOCK])
{
    uint64_t want;
    if (!read_number(block + 148, 8, &want)) return false;
    uint64_t sum = 0;
    int64_t signed_sum = 0; /* some old writers */
    for (int i = 0; i < BLOCK; i++) {
        uint8_t b = i >= 148 && i < 156 ? ' ' : block[i];
        sum += b;
        signed_sum += (int8_t)b;
    }
    return want == sum || (int64_t)want == signed_sum;
}

/* ---- names -------------------------------------------------------------------------------- */

static err_code check_bytes(const char *name, err *e)
{
    if (name[0] == 0) return err_set(e, ERR_INPUT, "the tar holds an entry without a name");
    if (name[0] == '/')
        return err_set(e, ERR_INPUT, "the tar holds the absolute name '%.100s'", name);
    for (const char *p = name; *p != 0; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f || *p == '\\')
            return err_set(e, ERR_INPUT,
                           "the tar holds the name '%.100s' with a control character "
                           "or backslash",
                           name);
    return ERR_NONE;
}

/* Splits into at most folder and file; "." parts go.  *n_parts counts what is left. */
static err_code clean_name(const char *name, char part[2][NAME_BYTES], int *n_parts, err *e)
{
    err_code rc = check_bytes(name, e);
    if (rc) return rc;
    *n_parts = 0;
    for (const char *p = name; *p != 0;) {
        size_t n = strcspn(p, "/");
        bool dots = (n == 2 && p[0] == '.' && p[1] == '.');
        if (dots) return err_set(e, ERR_INPUT, "the tar holds the name '%.100s' with '..'", name);
        if (n > 0 && !(n == 1 && p[0] == '.')) {
            if (*n_parts == 2)
                return err_set(e, ERR_INPUT,
                               "the tar holds '%.100s': pack the adapter's folder alone, without "
                               "folders in it",
                               name);
            memcpy(part[*n_parts], p, n);
            part[*n_parts][n] = 0;
            ++*n_parts;
        }
        p += n;
        while (*p == '/') p++;
    }
    return ERR_NONE;
}

/* All entries lie in one folder, or all at the root. */
static err_code check_folder(tar_reader *t, const char *folder, err *e)
{
    if ((!folder && t->has_folder) ||
        (folder && (t->at_root || (t->has_folder && strcmp(t->folder, folder) != 0))))
        return err_set(e, ERR_INPUT, "the tar holds more than one folder: pack one adapter alone");
    if (!folder) {
        t->at_root = true;
    } else {
        t->has_folder = true;
        snprintf(t->folder, sizeof t->folder, "%s", folder);
    }
    return ERR_NONE;
}

static err_code note_seen(tar_reader *t, const char *name, err *e)
{
    for (int i = 0; i < t->n_seen; i++)
        if (strcmp(t->seen[i], name) == 0)
            return err_set(e, ERR_INPUT, "the tar holds '%.100s' twice", name);
    t->seen[t->n_seen] = strdup(name);
    if (!t->seen[t->n_seen]) return err_set(e, ERR_NOMEM, "out of memory");
    t->n_seen++;
    return ERR_NONE;
}

/* ---- pax ------------------------------------------------------------------------------------ */

static err_code bad_pax(err *e)
{
    return err_set(e, ERR_INPUT, "the tar holds a broken pax header");
}

static err_code take_pax_value(tar_reader *t, const char *key, size_t key_len, const char *value,
                               size_t len, err *e)
{
    bool is_path = key_len == 4 && memcmp(key, "path", 4) == 0;
    bool is_size = key_len == 4 && memcmp(key, "size", 4) == 0;
    if (key_len >= 10 && memcmp(key, "GNU.sparse", 10) == 0)
        return err_set(e, ERR_INPUT, "the tar holds a sparse file, which is not accepted");
    if ((is_path || is_size) && t->extra_type == 'g')
        return err_set(e, ERR_INPUT, "the tar has a global pax header for names or sizes");
    if (memchr(value, 0, len) != NULL && (is_path || is_size)) return bad_pax(e);
    if (is_path) {
        if (len == 0 || len >= sizeof t->long_name)
            return err_set(e, ERR_INPUT, "the tar holds a name of %zu bytes", len);
        memcpy(t->long_name, value, len);
        t->long_name[len] = 0;
    }
    if (is_size) {
        uint64_t v = 0;
        if (len == 0 || len > 18) return bad_pax(e);
        for (size_t i = 0; i < len; i++) {
            if (value[i] < '0' || value[i] > '9') return bad_pax(e);
            v = v * 10 + (uint64_t)(value[i] - '0');
        }
        t->pax_size = v;
        t->has_size = true;
    }
    return ERR_NONE; /* times, owners and the like */
}

/* Records "LEN key=value\n", where LEN counts the whole record. */
static err_code read_pax(tar_reader *t, err *e)
{
    const char *p = (const char *)t->extra, *end = p + t->n_extra;
    while (p < end) {
        size_t len = 0;
        const char *q = p;
        for (; q < end && *q >= '0' && *q <= '9' && len <= EXTRA_MAX; q++)
            len = len * 10 + (size_t)(*q - '0');
        if (q == p || q >= end || *q != ' ' || len > (size_t)(end - p) ||
            len < (size_t)(q - p) + 3 || p[len - 1] != '\n')
            return bad_pax(e);
        const char *key = q + 1, *stop = p + len - 1;
        const char *eq = memchr(key, '=', (size_t)(stop - key));
        if (!eq || eq == key) return bad_pax(e);
        err_code rc =
            take_pax_value(t, key, (size_t)(eq - key), eq + 1, (size_t)(stop - eq - 1), e);
        if (rc) return rc;
        p += len;
    }
    return ERR_NONE;
}

static err_code finish_extra(tar_reader *t, err *e)
{
    if (t->extra_type != 'L') return read_pax(t, e);
    size_t len = strnlen((const char *)t->extra, t->n_extra);
    if (len == 0 || len >= sizeof t->long_name)
        return err_set(e, ERR_INPUT, "the tar holds a name of %zu bytes", len);
    memcpy(t->long_name, t->extra, len);
    t->long_name[len] = 0;
    return ERR_NONE;
}

/* ---- headers --------------------------------------------------------------------------------- */

static void raw_name(const uint8_t *b, bool gnu, char out[NAME_BYTES])
{
    size_t n = strnlen((const char *)b, 100);
    size_t n_prefix = gnu ? 0 : strnlen((const char *)b + 345, 155);
    size_t at = 0;
    if (n_prefix > 0) {
        memcpy(out, b + 345, n_prefix);
        at = n_prefix;
        out[at++] = '/';
    }
    memcpy(out + at, b, n);
    out[at + n] = 0;
}

static err_code refuse_type(char type, const char *name, err *e)
{
    const char *what = "an entry of an unknown kind";
    switch (type) {
    case '1': what = "a hard link"; break;
    case '2': what = "a symbolic link"; break;
    case '3':
    case '4': what = "a device"; break;
    case '6': what = "a named pipe"; break;
    case 'K': what = "a link with a long name"; break;
    case 'S': what = "a sparse file"; break;
    case 'M': what = "a piece of a multi-volume archive"; break;
    }
    return err_set(e, ERR_INPUT, "the tar holds %s ('%.80s'); only files and folders are accepted",
                   what, name);
}

static void expect_data(tar_reader *t, uint64_t bytes, place then)
{
    t->left = bytes;
    t->padding = (BLOCK - bytes % BLOCK) % BLOCK;
    t->at = bytes > 0 ? then : AT_HEADER;
}

static err_code begin_extra(tar_reader *t, char type, uint64_t bytes, err *e)
{
    if (bytes == 0 || bytes > EXTRA_MAX)
        return err_set(e, ERR_INPUT, "the tar holds an extended header of %llu bytes",
                       (unsigned long long)bytes);
    t->extra_type = type;
    t->n_extra = 0;
    expect_data(t, bytes, AT_EXTRA);
    return ERR_NONE;
}

static err_code begin_file(tar_reader *t, const char *name, uint64_t bytes, err *e)
{
    char part[2][NAME_BYTES];
    int n = 0;
    err_code rc = clean_name(name, part, &n, e);
    if (rc) return rc;
    if (n == 0 || name[strlen(name) - 1] == '/')
        return err_set(e, ERR_INPUT, "the tar holds a file named '%.100s'", name);
    const char *file = part[n - 1];
    t->skip = strncmp(file, "._", 2) == 0 || strcmp(file, ".DS_Store") == 0;
    rc = check_folder(t, n == 2 ? part[0] : NULL, e);
    if (!rc) rc = note_seen(t, file, e);
    if (!rc && !t->skip) rc = t->sink.begin(t->sink.self, file, bytes, e);
    if (rc) return rc;
    expect_data(t, bytes, AT_FILE);
    return bytes == 0 && !t->skip ? t->sink.end(t->sink.self, e) : ERR_NONE;
}

static err_code begin_folder(tar_reader *t, const char *name, uint64_t bytes, err *e)
{
    char part[2][NAME_BYTES];
    int n = 0;
    err_code rc = clean_name(name, part, &n, e);
    if (rc) return rc;
    if (bytes != 0)
        return err_set(e, ERR_INPUT,
                       "the tar has a folder entry with data; folders must have size 0");
    if (n == 2)
        return err_set(e, ERR_INPUT, "the tar holds the folder '%.100s' inside the adapter's",
                       name);
    return n == 1 ? check_folder(t, part[0], e) : ERR_NONE;
}

static err_code refuse_format(const uint8_t *b, err *e)
{
    if (b[0] == 0x1f && b[1] == 0x8b)
        return err_set(e, ERR_INPUT, "the upload is compressed: send a plain tar");
    if (memcmp(b, "PK", 2) == 0)
        return err_set(e, ERR_INPUT, "the upload is a zip: send a plain tar of the folder");
    return err_set(e, ERR_INPUT, "the upload is not a tar (ustar, pax or GNU)");
}

/* One block of 512 bytes between entries (POSIX.1-1988 ustar, or GNU's): a file, a folder, an
 * extended header for the next one, or the end. Links, devices and sparse files are refused by
 * name. */
static err_code take_header(tar_reader *t, err *e)
{
    const uint8_t *b = t->block;
    bool zero = true;
    for (int i = 0; i < BLOCK && zero; i++) zero = b[i] == 0;
    if (zero) {
        if (t->long_name[0] != 0 || t->has_size)
            return err_set(e, ERR_INPUT, "the tar ends after an extended header");
        t->at = AT_END;
        return ERR_NONE;
    }
    bool gnu = memcmp(b + 257, "ustar  ", 8) == 0;
    if (!gnu && memcmp(b + 257,
                       "ustar\0"
                       "00",
                       8) != 0)
        return refuse_format(b, e);
    if (!checksum_fits(b)) return err_set(e, ERR_INPUT, "a header of the tar is damaged");
    uint64_t bytes;
    if (!read_number(b + 124, 12, &bytes))
        return err_set(e, ERR_INPUT, "the tar has a size that is not a number");
    if (++t->n_entries > t->limits.max_files)
        return err_set(e, ERR_LIMIT, "the tar holds more than %d entries", t->limits.max_files);
    char type = (char)b[156];
    if (type == 'x' || type == 'g' || type == 'L') return begin_extra(t, type, bytes, e);

    char name[NAME_BYTES];
    raw_name(b, gnu, name);
    if (t->long_name[0] != 0) memcpy(name, t->long_name, sizeof name);
    if (t->has_size) bytes = t->pax_size;
    t->long_name[0] = 0;
    t->has_size = false;
    if (bytes > t->limits.max_bytes)
        return err_set(e, ERR_LIMIT, "'%.80s' has %llu bytes; an upload has at most %llu", name,
                       (unsigned long long)bytes, (unsigned long long)t->limits.max_bytes);
    if (type == '0' || type == 0) {
        /* Before POSIX, a folder was a file whose name ends in a slash. */
        return begin_file(t, name, bytes, e);
    }
    if (type == '5') return begin_folder(t, name, bytes, e);
    return refuse_type(type, name, e);
}

/* ---- stream ---------------------------------------------------------------------------------- */

static err_code finish_data(tar_reader *t, err *e)
{
    err_code rc = ERR_NONE;
    if (t->at == AT_FILE && !t->skip) rc = t->sink.end(t->sink.self, e);
    if (t->at == AT_EXTRA) rc = finish_extra(t, e);
    t->at = t->padding > 0 ? AT_PADDING : AT_HEADER;
    return rc;
}

/* Takes what the present state wants from the piece; *used says how much. */
static err_code step(tar_reader *t, const uint8_t *p, size_t len, size_t *used, err *e)
{
    size_t n = len;
    err_code rc = ERR_NONE;
    switch (t->at) {
    case AT_HEADER:
        if (n > BLOCK - t->filled) n = BLOCK - t->filled;
        memcpy(t->block + t->filled, p, n);
        t->filled += n;
        if (t->filled == BLOCK) {
            t->filled = 0;
            rc = take_header(t, e);
        }
        break;
    case AT_FILE:
    case AT_EXTRA:
        if (n > t->left) n = (size_t)t->left;
        if (t->at == AT_EXTRA) {
            memcpy(t->extra + t->n_extra, p, n);
            t->n_extra += n;
        } else if (!t->skip) {
            rc = t->sink.data(t->sink.self, p, n, e);
        }
        t->left -= n;
        if (!rc && t->left == 0) rc = finish_data(t, e);
        break;
    case AT_PADDING:
        if (n > t->padding) n = (size_t)t->padding;
        t->padding -= n;
        if (t->padding == 0) t->at = AT_HEADER;
        break;
    case AT_END:
        for (size_t i = 0; i < n && !rc; i++)
            if (p[i] != 0) rc = err_set(e, ERR_INPUT, "there is data after the end of the tar");
        break;
    }
    *used = n;
    return rc;
}

err_code tar_write(tar_reader *t, const void *data, size_t len, err *e)
{
    const uint8_t *p = data;
    err_code rc = ERR_NONE;
    if (t->failed) return err_set(e, ERR_INPUT, "the upload has failed already");
    t->n_bytes += len;
    if (t->n_bytes > t->limits.max_bytes)
        rc = err_set(e, ERR_LIMIT, "the upload has more than %llu bytes",
                     (unsigned long long)t->limits.max_bytes);
    while (len > 0 && !rc) {
        size_t used = 0;
        rc = step(t, p, len, &used, e);
        p += used;
        len -= used;
    }
    t->failed = rc;
    return rc;
}

err_code tar_finish(tar_reader *t, err *e)
{
    if (t->failed) return err_set(e, ERR_INPUT, "the upload has failed already");
    if (t->n_bytes == 0) return err_set(e, ERR_INPUT, "the upload is empty");
    if (t->at == AT_HEADER && t->filled > 0 && t->n_entries == 0) return refuse_format(t->block, e);
    if (t->at != AT_END) return err_set(e, ERR_INPUT, "the tar ends early");
    return ERR_NONE;
}
