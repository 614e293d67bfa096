/* running.c -- one object for each option, in the order of the file.
 *
 * Written beside the old one and renamed, so a reader sees one of the two. It has the process's
 * id: a server that was killed leaves its file, which counts as none when no such process lives.
 * Options that this program does not know are passed over, so that an older `lorad check --diff`
 * can read a newer server's file.
 */
#include "gateway/config/running.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "gateway/config/classes.h"

enum { FILE_MAX = 1 << 20 };

static void path_of(const char *dir, const char *suffix, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/running.json%s", dir, suffix);
}

static char *text_of(const config *c)
{
    config_item item;
    cJSON *tree = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(tree, "options");
    for (int i = 0; config_item_at(c, i, &item); i++) {
        cJSON *row = cJSON_CreateObject();
        (void)cJSON_AddStringToObject(row, "option", item.name);
        (void)cJSON_AddStringToObject(row, "value", item.value);
        (void)cJSON_AddNumberToObject(row, "source", item.from);
        (void)cJSON_AddItemToArray(list, row);
    }
    (void)cJSON_AddNumberToObject(tree, "queue_room", (double)c->queue_room);
    (void)cJSON_AddNumberToObject(tree, "connection_room", (double)c->connection_room);
    (void)cJSON_AddNumberToObject(tree, "pid", (double)getpid());
    char *text = tree && list ? json_print(tree) : NULL;
    cJSON_Delete(tree);
    return text;
}

static bool write_all(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        text += n;
        len -= (size_t)n;
    }
    return true;
}

err_code running_write(const config *c, err *e)
{
    char path[PATH_MAX], fresh[PATH_MAX];
    path_of(c->data.dir, "", path);
    path_of(c->data.dir, ".new", fresh);
    char *text = text_of(c);
    if (!text) return err_set(e, ERR_NOMEM, "no memory for %s", path);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool good = fd >= 0 && write_all(fd, text, strlen(text));
    if (fd >= 0) good = close(fd) == 0 && good;
    good = good && rename(fresh, path) == 0;
    free(text);
    return good ? ERR_NONE : err_set(e, ERR_IO, "%s can't be written: %s", path, strerror(errno));
}

void running_remove(const char *data_dir)
{
    char path[PATH_MAX];
    path_of(data_dir, "", path);
    (void)unlink(path);
}

static err_code nobody(const char *path, err *e)
{
    return err_set(e, ERR_NOT_FOUND, "no server runs with this data directory (%s)", path);
}

static err_code read_text(const char *path, char **out, size_t *len, err *e)
{
    *len = 0;
    FILE *f = fopen(path, "re");
    if (!f && errno == ENOENT) return nobody(path, e);
    if (!f) return err_set(e, ERR_IO, "%s can't be read: %s", path, strerror(errno));
    *out = malloc(FILE_MAX);
    if (*out) *len = fread(*out, 1, FILE_MAX, f);
    (void)fclose(f);
    return *out ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for %s", path);
}

/* An option of an older or a newer program may mean nothing here. */
static void take_row(config *c, const cJSON *row)
{
    const char *name = NULL, *value = NULL;
    int64_t from = CONFIG_DEFAULT;
    err e;
    if (json_str(row, "option", &name, NULL, &e) || json_str(row, "value", &value, NULL, &e) ||
        json_int(row, "source", CONFIG_DEFAULT, CONFIG_ADMIN, &from, NULL, &e) || !name || !value)
        return;
    (void)config_assign(c, name, value, (config_source)from, &e);
}

err_code running_read(const char *data_dir, config *out, err *e)
{
    char path[PATH_MAX], *text = NULL;
    size_t len;
    cJSON *tree = NULL;
    const cJSON *row;
    path_of(data_dir, "", path);
    err_code rc = read_text(path, &text, &len, e);
    if (rc) return rc;
    rc = json_parse(text, len, &json_limits_trusted, &tree, e);
    free(text);
    if (rc) return err_context(e, "%s", path);
    config_defaults(out);
    classes_clear(&out->classes);
    cJSON_ArrayForEach(row, json_get(tree, "options")) take_row(out, row);
    int64_t pid = 0;
    rc = json_int(tree, "queue_room", 0, INT64_C(1) << 32, &out->queue_room, NULL, e);
    if (!rc)
        rc = json_int(tree, "connection_room", 0, INT64_C(1) << 32, &out->connection_room, NULL, e);
    if (!rc) rc = json_int(tree, "pid", 1, INT32_MAX, &pid, NULL, e);
    cJSON_Delete(tree);
    if (rc) return err_context(e, "%s", path);
    bool lives = pid > 0 && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
    return lives ? ERR_NONE : nobody(path, e); /* it was killed, and left the file */
}
