/* model_cache.c -- the folders of data.dir/models: which model is complete, and which one is
 * removed for another.
 *
 *     models/OWNER--REPO-KEY.part    a download in progress; survives restarts
 *     models/OWNER--REPO-KEY         complete: .lorad.json has size and digest of each file
 *
 * KEY is the start of a digest over hub, repository, revision and path, so that two hubs or two
 * revisions never share a folder. A folder is complete if every file of its record exists with
 * its size (digests were verified while downloading); one that lacks files is renamed back to
 * .part and continued.
 *
 * Room: model.cache_bytes bounds all models together, data.min_free the disk. Models are removed
 * in the order of their last use, which is the modification time of the record; the one that is
 * asked for is never removed. What is missing after that is reported with both numbers.
 */
#include "gateway/start/model_cache.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/durable.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "storage/digest.h"
#include "storage/disk.h"

enum { RECORD_MAX = 1 << 20, KEY_DIGITS = 16, OPEN_FILES = 16 };

static const char RECORD[] = ".lorad.json";

static const double MIB = 1 << 20;

static bool join(char out[PATH_MAX], const char *dir, const char *name)
{
    return snprintf(out, PATH_MAX, "%s/%s", dir, name) < PATH_MAX;
}

/* "models/OWNER--REPO-KEY"; the hub counts too, for another hub may have another model. */
err_code model_place_of(model_place *p, const config *c, const char *text, err *e)
{
    source_hub name;
    uint8_t sum[DIGEST_BYTES];
    char all[2 * CONFIG_TEXT_MAX + 512], hex[DIGEST_HEX];
    if (source_hub_split(&name, text, e)) return e->code;
    int n = snprintf(all, sizeof(all), "%s/%s/%s@%s/%s", c->sources.hub, name.owner, name.repo,
                     name.revision, name.path);
    assert(n > 0 && (size_t)n < sizeof(all));
    digest_bytes(all, (size_t)n, sum);
    digest_hex(sum, hex);
    p->text = text;
    n = snprintf(p->dir, sizeof(p->dir), "%s/models/%.60s--%.80s-%.*s", c->data.dir, name.owner,
                 name.repo, KEY_DIGITS, hex);
    if (n + (int)sizeof(".part") > (int)sizeof(p->dir))
        return err_set(e, ERR_INPUT, "the path of data.dir is too long");
    snprintf(p->part, sizeof(p->part), "%s.part", p->dir);
    return ERR_NONE;
}

/* ------------------------------------------------------------------------- the record -- */

static cJSON *read_record(const char *dir)
{
    char path[PATH_MAX];
    cJSON *tree = NULL;
    err ignored;
    FILE *f = join(path, dir, RECORD) ? fopen(path, "re") : NULL;
    char *text = f ? malloc(RECORD_MAX) : NULL;
    size_t n = text ? fread(text, 1, RECORD_MAX, f) : 0;
    if (n > 0 && json_parse(text, n, &json_limits_trusted, &tree, &ignored)) tree = NULL;
    if (f) (void)fclose(f);
    free(text);
    return tree;
}

static err_code write_record(const char *dir, const cJSON *tree, err *e)
{
    char path[PATH_MAX];
    char *text = json_print(tree);
    if (!text || !join(path, dir, RECORD)) {
        free(text);
        return err_set(e, ERR_NOMEM, "no memory for the list of the model's files");
    }
    FILE *f = fopen(path, "we");
    bool ok = f && fputs(text, f) >= 0 && fflush(f) == 0 && fsync(fileno(f)) == 0;
    err_code rc = ok ? ERR_NONE : disk_error("writing .lorad.json", e);
    if (f) (void)fclose(f);
    free(text);
    return rc;
}

static bool file_fits(const char *dir, const cJSON *item)
{
    char path[PATH_MAX];
    struct stat st;
    int64_t bytes;
    const char *name = cJSON_GetStringValue(json_get(item, "name"));
    const cJSON *size = json_get(item, "bytes");
    return name && size && json_whole(size, &bytes) && join(path, dir, name) &&
           stat(path, &st) == 0 && st.st_size == bytes;
}

bool model_cache_has(const model_place *p)
{
    cJSON *tree = read_record(p->dir);
    const cJSON *files = json_get(tree, "files"), *item;
    bool all = cJSON_IsArray(files) && files->child;
    for (item = all ? files->child : NULL; item && all; item = item->next)
        all = file_fits(p->dir, item);
    cJSON_Delete(tree);
    return all;
}

void model_cache_touch(const model_place *p)
{
    char path[PATH_MAX];
    if (join(path, p->dir, RECORD)) (void)utimensat(AT_FDCWD, path, NULL, 0);
}

/* A complete folder that lacks files continues as an unfinished one. */
static void reopen(const model_place *p)
{
    if (access(p->dir, F_OK) != 0) return;
    (void)disk_remove_folder(p->part);
    if (rename(p->dir, p->part) == 0)
        log_warn("gateway", "%s: %s lacks files, which are downloaded again", p->text, p->dir);
}

static err_code make_dir(const char *path, err *e)
{
    return mkdir(path, 0700) == 0 || errno == EEXIST ? ERR_NONE : disk_error("data.dir/models", e);
}

err_code model_cache_begin(const model_place *p, err *e)
{
    char models[PATH_MAX];
    snprintf(models, sizeof(models), "%s", p->dir);
    *strrchr(models, '/') = 0;
    reopen(p);
    if (make_dir(models, e) || make_dir(p->part, e)) return e->code;
    cJSON *tree = cJSON_CreateObject();
    (void)cJSON_AddStringToObject(tree, "source", p->text);
    err_code rc = write_record(p->part, tree, e);
    cJSON_Delete(tree);
    return rc;
}

err_code model_cache_finish(const model_place *p, const char *commit, const hub_file *const *files,
                            const char *const *local, size_t n, err *e)
{
    cJSON *tree = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(tree, "files");
    (void)cJSON_AddStringToObject(tree, "source", p->text);
    (void)cJSON_AddStringToObject(tree, "commit", commit);
    for (size_t i = 0; i < n; i++) {
        cJSON *one = cJSON_CreateObject();
        (void)cJSON_AddStringToObject(one, "name", local[i]);
        (void)cJSON_AddNumberToObject(one, "bytes", (double)files[i]->bytes);
        (void)cJSON_AddStringToObject(one, "digest", files[i]->digest);
        if (!cJSON_AddItemToArray(list, one)) cJSON_Delete(one);
    }
    err_code rc = write_record(p->part, tree, e);
    cJSON_Delete(tree);
    (void)durable_sync(p->part);
    if (!rc && rename(p->part, p->dir) != 0) rc = disk_error("data.dir/models", e);
    return rc;
}

/* ------------------------------------------------------------------------------- room -- */

typedef struct {
    char path[PATH_MAX];
    int64_t bytes, used_us;
} entry;

static int64_t walked; /* bytes that add_cb() has seen */

static int add_cb(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)path, (void)at;
    if (kind == FTW_F) walked += st->st_size;
    return 0;
}

static int by_use(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return (x->used_us > y->used_us) - (x->used_us < y->used_us);
}

/* False: not one of ours, or the folder that is asked for. */
static bool read_entry(const model_place *p, const char *models, const char *name, entry *out)
{
    char record[PATH_MAX];
    struct stat st;
    if (name[0] == '.' || !join(out->path, models, name) || strcmp(out->path, p->dir) == 0 ||
        strcmp(out->path, p->part) == 0 || !join(record, out->path, RECORD) ||
        stat(record, &st) != 0)
        return false;
    out->used_us = st.st_mtim.tv_sec * INT64_C(1000000) + st.st_mtim.tv_nsec / 1000;
    walked = 0;
    (void)nftw(out->path, add_cb, OPEN_FILES, FTW_PHYS);
    out->bytes = walked;
    return true;
}

/* The other models, the least recently used first. */
static size_t list_others(const model_place *p, const char *models, entry **out)
{
    DIR *d = opendir(models);
    size_t n = 0, room = 0;
    *out = NULL;
    for (const struct dirent *each; d && (each = readdir(d));) {
        if (n == room) {
            entry *more = realloc(*out, (room + 16) * sizeof(**out));
            if (!more) break;
            *out = more;
            room += 16;
        }
        n += read_entry(p, models, each->d_name, &(*out)[n]);
    }
    if (d) (void)closedir(d);
    if (n > 1) qsort(*out, n, sizeof(**out), by_use);
    return n;
}

static bool disk_has(const char *dir, const config_data *c, int64_t bytes, int64_t *spare)
{
    disk_room room;
    *spare = INT64_MAX;
    if (!disk_look(dir, &room)) return true;
    uint64_t floor = disk_floor_bytes(dir, (uint64_t)c->min_free);
    *spare = room.free_bytes > floor ? (int64_t)(room.free_bytes - floor) : 0;
    return *spare >= bytes;
}

err_code model_cache_make_room(const model_place *p, const config *c, int64_t whole,
                               int64_t missing, err *e)
{
    char models[PATH_MAX];
    entry *list;
    int64_t others = 0, spare = 0, most = c->model.cache_bytes;
    if (most > 0 && whole > most)
        return err_set(e, ERR_LIMIT, "it has %.1f MiB; model.cache_bytes allows %.1f",
                       (double)whole / MIB, (double)most / MIB);
    snprintf(models, sizeof(models), "%s", p->dir);
    *strrchr(models, '/') = 0;
    size_t n = list_others(p, models, &list);
    for (size_t i = 0; i < n; i++) others += list[i].bytes;
    for (size_t i = 0; i < n; i++) {
        bool over = most > 0 && others > most - whole;
        if (!over && disk_has(models, &c->data, missing, &spare)) break;
        others -= list[i].bytes;
        if (disk_remove_folder(list[i].path))
            log_info("gateway", "%s was removed: the least recently used model", list[i].path);
        else
            log_warn("gateway", "%s stays: %s", list[i].path, strerror(errno));
    }
    free(list);
    if (disk_has(models, &c->data, missing, &spare)) return ERR_NONE;
    return err_set(e, ERR_NO_ROOM,
                   "the disk is too full: %.1f MiB are to be downloaded, %.1f are free above "
                   "data.min_free",
                   (double)missing / MIB, (double)spare / MIB);
}
