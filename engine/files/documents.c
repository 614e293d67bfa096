/* documents.c -- a JSON file of a directory, or a GGUF's keys in its form.
 *
 *     path is a directory   DIR/config.json, ... : read, parsed, an object
 *     path is a .gguf       the same documents, made from its keys (gguf_make_...())
 *
 * So nothing behind this file knows which of the two a model is. A file has at most
 * json_limits_trusted.max_bytes; a missing one is ERR_NOT_FOUND, which callers take for "there
 * is none". Python writes Infinity, which JSON does not have: in config.json it becomes the
 * string "Inf".
 */
#include "engine/files/documents.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/files/documents_inside.h"

bool document_is_gguf(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

err_code document_path(char *out, size_t size, const char *dir, const char *name, err *e)
{
    int n = snprintf(out, size, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= size)
        return err_set(e, ERR_INPUT, "%.64s: the path is too long", name);
    return ERR_NONE;
}

char *document_file_text(const char *file)
{
    FILE *f = fopen(file, "rb");
    if (!f) return NULL;
    long size = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    char *text = size >= 0 && size < (8 << 20) ? malloc((size_t)size + 1) : NULL;
    rewind(f);
    if (text) {
        size_t n = fread(text, 1, (size_t)size, f);
        text[n] = 0;
    }
    (void)fclose(f);
    return text;
}

static err_code read_all(int fd, const char *name, size_t bytes, char **text, err *e)
{
    char *buf = malloc(bytes + 1);
    if (!buf) return err_set(e, ERR_NOMEM, "%s: no memory for %zu bytes", name, bytes);
    size_t got = 0;
    while (got < bytes) {
        ssize_t n = read(fd, buf + got, bytes - got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            int why = errno;
            free(buf);
            return err_set(e, ERR_IO, "%s: can't read: %s", name,
                           n < 0 ? strerror(why) : "it became shorter");
        }
        got += (size_t)n;
    }
    buf[bytes] = '\0';
    *text = buf;
    return ERR_NONE;
}

/* Python writes a number that JSON does not have: the word becomes a string of the same length. */
static void quote_infinity(char *text)
{
    static const char word[] = "Infinity", string[] = "\"Inf\"   ";
    bool quoted = false;
    for (char *at = text; *at; at++) {
        if (quoted && *at == '\\' && at[1]) {
            at++;
            continue;
        }
        quoted ^= *at == '"';
        if (!quoted && strncmp(at, word, strlen(word)) == 0) memcpy(at, string, strlen(word));
    }
}

static err_code refuse_missing(const char *dir, const char *name, err *e)
{
    if (access(dir, F_OK) != 0)
        return err_set(e, ERR_NOT_FOUND, "%.100s: %s", dir, strerror(errno));
    if (strcmp(name, "config.json") == 0)
        return err_set(e, ERR_NOT_FOUND,
                       "%.100s has no config.json: a model is a folder that transformers saved, or "
                       "a GGUF",
                       dir);
    return err_set(e, ERR_NOT_FOUND, "the model has no %s", name);
}

static err_code read_file(const char *dir, const char *name, cJSON **out, err *e)
{
    char path[DOCUMENT_PATH_MAX];
    err_code rc = document_path(path, sizeof(path), dir, name, e);
    if (rc) return rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT || errno == ENOTDIR) return refuse_missing(dir, name, e);
        return err_set(e, ERR_IO, "%s: can't open: %s", name, strerror(errno));
    }

    struct stat st;
    char *text = NULL;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        rc = err_set(e, ERR_IO, "%s is not a regular file", name);
    } else if ((uint64_t)st.st_size > json_limits_trusted.max_bytes) {
        rc = err_set(e, ERR_LIMIT, "%s: %lld bytes exceed %zu", name, (long long)st.st_size,
                     json_limits_trusted.max_bytes);
    } else {
        rc = read_all(fd, name, (size_t)st.st_size, &text, e);
    }
    (void)close(fd);
    if (rc) return rc;

    if (strcmp(name, "config.json") == 0) quote_infinity(text);
    rc = json_parse(text, (size_t)st.st_size, &json_limits_trusted, out, e);
    free(text);
    if (rc) {
        if (e) (void)err_context(e, "%s", name);
        return rc;
    }
    if (!cJSON_IsObject(*out)) {
        cJSON_Delete(*out);
        *out = NULL;
        return err_set(e, ERR_INPUT, "%s: must be an object", name);
    }
    return ERR_NONE;
}

typedef err_code gguf_maker(const gguf *g, cJSON *out, err *e);

/* `words`: of tokenizer.json, which has no other maker. */
static err_code make_of_gguf(const char *path, gguf_maker *make, gguf_words *words, cJSON **out,
                             err *e)
{
    gguf *g;
    err_code rc = gguf_open(&g, path, &gguf_limits_model, e);
    if (rc) return rc;
    *out = cJSON_CreateObject();
    if (!*out)
        rc = err_set(e, ERR_NOMEM, "no memory to read a GGUF");
    else
        rc = make ? make(g, *out, e) : gguf_make_tokenizer(g, *out, words, e);
    gguf_close(g);
    if (rc) {
        cJSON_Delete(*out);
        *out = NULL;
    }
    return rc;
}

static err_code read_gguf(const char *path, const char *name, cJSON **out, err *e)
{
    static const struct {
        const char *name;
        gguf_maker *make;
    } makers[] = {{"config.json", gguf_make_config},
                  {"generation_config.json", gguf_make_generation},
                  {"tokenizer_config.json", gguf_make_tokenizer_config}};
    size_t i = 0, n = sizeof(makers) / sizeof(makers[0]);
    while (i < n && strcmp(makers[i].name, name) != 0) i++;
    if (i == n) return err_set(e, ERR_NOT_FOUND, "the model has no %s", name);
    return make_of_gguf(path, makers[i].make, NULL, out, e);
}

err_code document_tokenizer_read(const char *path, cJSON **out, gguf_words *words, err *e)
{
    *words = (gguf_words){0};
    *out = NULL;
    if (!document_is_gguf(path)) return read_file(path, "tokenizer.json", out, e);
    err_code rc = make_of_gguf(path, NULL, words, out, e);
    if (rc) gguf_words_clear(words);
    return rc;
}

err_code document_read(const char *path, const char *name, cJSON **out, err *e)
{
    *out = NULL;
    return document_is_gguf(path) ? read_gguf(path, name, out, e) : read_file(path, name, out, e);
}
