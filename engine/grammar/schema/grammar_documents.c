/* grammar_documents.c -- the operator's schemas: read once, found by their addresses.
 *
 *      said       "https://acme.example/=schemas, ..."       ADDRESS=FOLDER
 *      file       schemas/order/v1.json
 *      addresses  https://acme.example/order/v1.json         where it lies
 *                 its "$id", where that is an absolute one   what it calls itself
 *
 * All files are read at the start, so a reference costs a binary search and no request can make
 * the server read a file or the network. Two files of one address end the start: which one was
 * meant cannot be known.
 *
 * Ownership: a tree is released with the first of its addresses. Threads: any, after reading;
 * grammars hold the set by a count, so a reload frees it with its last grammar.
 */
#include "engine/grammar/schema/grammar_documents.h"

#include <assert.h>
#include <dirent.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/json.h"
#include "engine/files/documents.h"

enum {
    FILES_MAX = 1000,
    VALUES_MAX = 500000, /* of all of them */
    FOLDERS_MAX = 8,     /* in one another */
    ADDRESS_MAX = 1000,
};

typedef struct {
    char *address; /* owned */
    cJSON *tree;
    bool own; /* the tree is released with this address */
} document;

struct grammar_documents {
    document *list; /* sorted by address, once it is complete */
    int n, cap, files;
    int64_t values;
    atomic_int refs;
};

static int by_address(const void *a, const void *b)
{
    return strcmp(((const document *)a)->address, ((const document *)b)->address);
}

const cJSON *grammar_documents_find(const grammar_documents *d, const char *address)
{
    if (!d || d->n == 0) return NULL;
    const document key = {.address = (char *)address};
    const document *found = bsearch(&key, d->list, (size_t)d->n, sizeof(key), by_address);
    return found ? found->tree : NULL;
}

int grammar_documents_count(const grammar_documents *d)
{
    return d ? d->files : 0;
}

grammar_documents *grammar_documents_hold(grammar_documents *d)
{
    if (d) atomic_fetch_add(&d->refs, 1);
    return d;
}

void grammar_documents_release(grammar_documents *d)
{
    int refs = d ? atomic_fetch_sub(&d->refs, 1) : 0;
    assert(!d || refs > 0);
    if (refs != 1) return;
    for (int i = 0; i < d->n; i++) {
        free(d->list[i].address);
        if (d->list[i].own) cJSON_Delete(d->list[i].tree);
    }
    free(d->list);
    free(d);
}

/* ------------------------------------------------------------------------- reading -- */

static int64_t count(const cJSON *v)
{
    int64_t n = 0;
    for (; v; v = v->next) n += 1 + (v->child ? count(v->child) : 0);
    return n;
}

/* Takes the tree where it is its own. */
static err_code add(grammar_documents *d, const char *address, cJSON *tree, bool own, err *e)
{
    char *copy = strdup(address);
    if (d->n == d->cap) {
        int cap = d->cap ? 2 * d->cap : 64;
        document *list = realloc(d->list, (size_t)cap * sizeof(*list));
        if (list) d->list = list;
        if (list) d->cap = cap;
    }
    if (!copy || d->n == d->cap) {
        free(copy);
        if (own) cJSON_Delete(tree);
        return err_set(e, ERR_NOMEM, "no memory");
    }
    d->list[d->n++] = (document){copy, tree, own};
    return ERR_NONE;
}

/* Its own name; NULL: none that is an address. */
static const char *absolute_id(const cJSON *tree, size_t *len)
{
    const char *id = cJSON_GetStringValue(json_get(tree, "$id"));
    if (!id || id[strcspn(id, ":/#")] != ':') return NULL;
    *len = strcspn(id, "#");
    return *len < ADDRESS_MAX ? id : NULL;
}

static err_code read_one(grammar_documents *d, const char *file, const char *address, err *e)
{
    cJSON *tree = NULL;
    if (++d->files > FILES_MAX)
        return err_set(e, ERR_LIMIT, "%.150s: more than %d files", address, FILES_MAX);
    char *text = document_file_text(file);
    if (!text) return err_set(e, ERR_IO, "%.150s: it can't be read, or is too large", address);
    err_code rc = json_parse(text, strlen(text), &json_limits_trusted, &tree, e);
    free(text);
    if (rc) return err_context(e, "%.150s", address);
    d->values += 1 + count(tree->child);
    bool schema = cJSON_IsObject(tree) || cJSON_IsBool(tree);
    if (!schema) rc = err_set(e, ERR_INPUT, "%.150s: it is no schema", address);
    if (d->values > VALUES_MAX)
        rc = err_set(e, ERR_LIMIT, "%.150s: more than %d values", address, VALUES_MAX);
    if (rc) {
        cJSON_Delete(tree);
        return rc;
    }
    rc = add(d, address, tree, true, e);
    char own[ADDRESS_MAX];
    size_t len = 0;
    const char *id = rc ? NULL : absolute_id(tree, &len);
    if (id) snprintf(own, sizeof(own), "%.*s", (int)len, id);
    return id && strcmp(own, address) != 0 ? add(d, own, tree, false, e) : rc;
}

static err_code read_folder(grammar_documents *d, const char *folder, const char *address, int deep,
                            err *e)
{
    err_code rc = ERR_NONE;
    DIR *dir = deep < FOLDERS_MAX ? opendir(folder) : NULL;
    if (!dir) return err_set(e, ERR_IO, "%.150s: its folder can't be read", address);
    for (struct dirent *each; !rc && (each = readdir(dir));) {
        char file[DOCUMENT_PATH_MAX], to[ADDRESS_MAX];
        struct stat st;
        if (each->d_name[0] == '.') continue;
        rc = document_path(file, sizeof(file), folder, each->d_name, e);
        bool there = !rc && stat(file, &st) == 0, inner = there && S_ISDIR(st.st_mode);
        int n = snprintf(to, sizeof(to), "%s%s%s", address, each->d_name, inner ? "/" : "");
        if (!rc && n >= ADDRESS_MAX) rc = err_set(e, ERR_INPUT, "%.150s: too long a name", to);
        if (!rc && (!there || (!inner && !S_ISREG(st.st_mode))))
            rc = err_set(e, ERR_IO, "%.150s is no regular file", to);
        if (!rc) rc = inner ? read_folder(d, file, to, deep + 1, e) : read_one(d, file, to, e);
    }
    (void)closedir(dir);
    return rc;
}

/* "ADDRESS=FOLDER" */
static err_code read_entry(grammar_documents *d, const char *entry, size_t len, const char *base,
                           err *e)
{
    char address[ADDRESS_MAX], folder[DOCUMENT_PATH_MAX];
    const char *to = memchr(entry, '=', len);
    size_t n = to ? (size_t)(to - entry) : 0;
    if (n == 0 || n >= sizeof(address) - 1 || entry[strcspn(entry, ":/=")] != ':')
        return err_set(e, ERR_INPUT, "'%.*s' is not ADDRESS=FOLDER", (int)(len < 100 ? len : 100),
                       entry);
    snprintf(address, sizeof(address), "%.*s", (int)n, entry);
    to++;
    bool relative = *to != '/' && *base;
    int m = snprintf(folder, sizeof(folder), "%s%s%.*s", relative ? base : "", relative ? "/" : "",
                     (int)(len - n - 1), to);
    if (m >= (int)sizeof(folder)) return err_set(e, ERR_INPUT, "%.150s: too long a path", address);
    return read_folder(d, folder, address, 0, e);
}

static err_code sort(grammar_documents *d, err *e)
{
    if (d->n > 0) qsort(d->list, (size_t)d->n, sizeof(*d->list), by_address);
    for (int i = 1; i < d->n; i++)
        if (by_address(&d->list[i - 1], &d->list[i]) == 0)
            return err_set(e, ERR_EXISTS, "%.150s: two files have this address",
                           d->list[i].address);
    return ERR_NONE;
}

err_code grammar_documents_read(grammar_documents **out, const char *said, const char *base, err *e)
{
    static const char blank[] = ", \t";
    *out = NULL;
    said += strspn(said, blank);
    if (!*said) return ERR_NONE;
    grammar_documents *d = calloc(1, sizeof(*d));
    if (!d) return err_set(e, ERR_NOMEM, "no memory");
    atomic_store(&d->refs, 1);
    err_code rc = ERR_NONE;
    while (!rc && *said) {
        size_t len = strcspn(said, ",");
        size_t used = len;
        while (used > 0 && (said[used - 1] == ' ' || said[used - 1] == '\t')) used--;
        rc = read_entry(d, said, used, base, e);
        said += len;
        said += strspn(said, blank);
    }
    if (!rc) rc = sort(d, e);
    if (rc)
        grammar_documents_release(d);
    else
        *out = d;
    return rc;
}
