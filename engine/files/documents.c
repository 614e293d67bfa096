/* documents.c -- a JSON file of a directory, or a GGUF's keys in its form. */
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

static err_code read_file(const char *dir, const char *name, cJSON **out, err *e)
{
    char path[DOCUMENT_PATH_MAX];
    err_code rc = document_path(path, sizeof(path), dir, name, e);
    if (rc) return rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT) return err_set(e, ERR_NOT_FOUND, "the model has no %s", name);
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

static err_code read_gguf(const char *path, const char *name, cJSON **out, err *e)
{
    static const struct {
        const char *name;
        err_code (*make)(const gguf *g, cJSON *out, err *e);
    } makers[] = {{"config.json", gguf_make_config},
                  {"generation_config.json", gguf_make_generation},
                  {"tokenizer.json", gguf_make_tokenizer},
                  {"tokenizer_config.json", gguf_make_tokenizer_config}};
    size_t i = 0, n = sizeof(makers) / sizeof(makers[0]);
    while (i < n && strcmp(makers[i].name, name) != 0) i++;
    if (i == n) return err_set(e, ERR_NOT_FOUND, "the model has no %s", name);
    gguf *g;
    err_code rc = gguf_open(&g, path, &gguf_limits_model, e);
    if (rc) return rc;
    *out = cJSON_CreateObject();
    rc = *out ? makers[i].make(g, *out, e) : err_set(e, ERR_NOMEM, "no memory to read a GGUF");
    gguf_close(g);
    if (rc) {
        cJSON_Delete(*out);
        *out = NULL;
    }
    return rc;
}

err_code document_read(const char *path, const char *name, cJSON **out, err *e)
{
    *out = NULL;
    return document_is_gguf(path) ? read_gguf(path, name, out, e) : read_file(path, name, out, e);
}
