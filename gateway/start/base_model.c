/* base_model.c -- which files of a hub's repository are the model, and their download.
 *
 * Steps for model.path = hf://owner/repository[/folder]:
 *
 *     1  list the files of the commit         hub_open()
 *     2  choose documents and the index       add_documents()
 *     3  download these (small)               download(j, 0)
 *     4  choose the weights: model.safetensors, or the shards that the index names   add_weights()
 *     5  room on the disk, evicting older models of the cache                        make_room()
 *     6  download the rest, rename the folder                                        finish
 *
 * A GGUF is one file, or several named -00001-of-0000N; there are no documents then. Files that
 * the server does not read (PyTorch pickles, other precisions) are never fetched.
 *
 * Downloads continue: hub_fetch() asks for the bytes behind those that are on the disk, and
 * verifies the digest at the end. The folder has its final name only when all digests are right,
 * so a killed server never starts with half a model. SIGTERM is looked for about once a second,
 * because serve has blocked it.
 *
 * A shard's name comes from a stranger's index: it must be plain, without a slash.
 */
#include "gateway/start/base_model.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "gateway/fetch/hub.h"
#include "gateway/notify.h"
#include "gateway/start/model_cache.h"
#include "gateway/start/secret_file.h"

enum {
    FILES_MAX = 1100,
    TOKEN_MAX = 1024,
    REPORT_US = 5000000,
    START_US = 900000000,
    SMALL = 1 << 20
};

static const char HUB[] = "hf://", WEIGHTS[] = "model.safetensors";
static const char INDEX[] = "model.safetensors.index.json";
static const double MIB = 1 << 20;

typedef struct {
    model_place place;
    source_hub name;
    source_rules rules;
    hub *h;
    char token[TOKEN_MAX], prefix[HUB_PATH_MAX]; /* prefix: "", or the folder with its '/' */
    const hub_file *file[FILES_MAX];             /* of the model, by the order of download */
    const char *local[FILES_MAX];                /* their names in the folder */
    int n;
    int64_t bytes, done;             /* of file[]; of those that have ended */
    int64_t report_us, report_bytes; /* the last line of progress */
} job;

bool base_model_is_named(const char *path)
{
    return strncasecmp(path, HUB, strlen(HUB)) == 0;
}

static source_rules rules_of(const config_sources *s)
{
    return (source_rules){.hosts = "",
                          .networks = s->networks,
                          .hub = s->hub,
                          .s3_endpoint = "",
                          .s3_region = "",
                          .ca_file = s->ca_file,
                          .timeout_us = s->timeout_us};
}

/* ---------------------------------------------------------------------- which files -- */

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);
    return n > m && strcasecmp(s + n - m, with) == 0;
}

static err_code add(job *j, const hub_file *f, err *e)
{
    if (j->n == FILES_MAX)
        return err_set(e, ERR_LIMIT, "the model has more than %d files", FILES_MAX);
    j->file[j->n] = f;
    j->local[j->n++] = f->path + strlen(j->prefix);
    j->bytes += f->bytes;
    return ERR_NONE;
}

/* The file `name` of the model's folder; NULL: there is none. */
static const hub_file *find(const job *j, const char *name)
{
    char path[2 * HUB_PATH_MAX];
    snprintf(path, sizeof(path), "%s%s", j->prefix, name);
    return hub_find(j->h, path);
}

static err_code need(job *j, const char *name, err *e)
{
    const hub_file *f = find(j, name);
    return f ? add(j, f, e) : err_set(e, ERR_NOT_FOUND, "the hub has no file %.80s", name);
}

/* "1_Pooling/config.json" and its like, of sentence-transformers. */
static bool is_module(const char *name)
{
    const char *slash = strchr(name, '/');
    return isdigit((unsigned char)name[0]) && name[1] == '_' && slash &&
           strcmp(slash, "/config.json") == 0;
}

/* All but the weights. */
static err_code add_documents(job *j, err *e)
{
    static const char *const names[] = {"generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "added_tokens.json",
                                        "special_tokens_map.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "sentence_bert_config.json",
                                        "modules.json"};
    size_t n = strlen(j->prefix);
    err_code rc = need(j, "config.json", e);
    for (size_t i = 0; !rc && i < sizeof(names) / sizeof(*names); i++) {
        const hub_file *f = find(j, names[i]);
        if (f) rc = add(j, f, e);
    }
    for (size_t i = 0; !rc && i < j->h->n_file; i++) {
        const hub_file *f = &j->h->file[i];
        if (strncmp(f->path, j->prefix, n) == 0 && is_module(f->path + n)) rc = add(j, f, e);
    }
    if (!rc && !find(j, WEIGHTS)) rc = need(j, INDEX, e);
    return rc;
}

static bool is_added(const job *j, const hub_file *f)
{
    for (int i = 0; i < j->n; i++)
        if (j->file[i] == f) return true;
    return false;
}

/* A shard's name must be a plain one, in the same folder. */
static err_code add_shards(job *j, const cJSON *index, err *e)
{
    const cJSON *map = json_get(index, "weight_map"), *item;
    err_code rc = cJSON_IsObject(map)
                      ? ERR_NONE
                      : err_set(e, ERR_INPUT, "%s: \"weight_map\" is missing", INDEX);
    for (item = rc ? NULL : map->child; item && !rc; item = item->next) {
        const char *name = cJSON_GetStringValue(item);
        if (!name || strchr(name, '/') || !ends(name, ".safetensors"))
            return err_set(e, ERR_INPUT, "%s: '%.80s' is not in a plain .safetensors file", INDEX,
                           item->string);
        const hub_file *f = find(j, name);
        if (!f || !is_added(j, f)) rc = need(j, name, e);
    }
    return rc;
}

static err_code read_index(const job *j, cJSON **out, err *e)
{
    char path[PATH_MAX + sizeof(INDEX)];
    snprintf(path, sizeof(path), "%s/%s", j->place.part, INDEX);
    FILE *f = fopen(path, "re");
    size_t most = json_limits_trusted.max_bytes, n = 0;
    char *text = f ? malloc(most) : NULL;
    if (text) n = fread(text, 1, most, f);
    if (f) (void)fclose(f);
    err_code rc = text ? json_parse(text, n, &json_limits_trusted, out, e)
                       : err_set(e, ERR_IO, "it cannot be read");
    free(text);
    return rc ? err_context(e, "%s", INDEX) : ERR_NONE;
}

/* The index is on the disk by now. */
static err_code add_weights(job *j, err *e)
{
    cJSON *index = NULL;
    const hub_file *one = find(j, WEIGHTS);
    if (one) return add(j, one, e);
    err_code rc = read_index(j, &index, e);
    if (!rc) rc = add_shards(j, index, e);
    cJSON_Delete(index);
    return rc;
}

/* The file that is named, and of several parts those after it. */
static err_code add_ggufs(job *j, err *e)
{
    const char *name = j->name.path + strlen(j->prefix);
    char part[2 * HUB_PATH_MAX];
    unsigned count = 1;
    int stem = (int)strlen(name) - (int)strlen("-00001-of-00001.gguf");
    bool split = stem > 0 && sscanf(name + stem, "-00001-of-%5u.gguf", &count) == 1;
    err_code rc = need(j, name, e);
    for (unsigned i = 2; split && i <= count && !rc; i++) {
        snprintf(part, sizeof(part), "%.*s-%05u-of-%05u.gguf", stem, name, i, count);
        rc = need(j, part, e);
    }
    return rc;
}

/* A repository with nothing but GGUFs: which ones? */
static err_code suggest_ggufs(const job *j, err *e)
{
    const char *some = NULL;
    for (size_t i = 0; i < j->h->n_file && !some; i++)
        if (ends(j->h->file[i].path, ".gguf")) some = j->h->file[i].path;
    if (!some || find(j, "config.json")) return ERR_NONE;
    return err_set(e, ERR_NOT_FOUND,
                   "the hub has no file config.json; name a GGUF of it, for example /%.80s", some);
}

/* ------------------------------------------------------------------------- download -- */

static bool stop_wanted(void)
{
    sigset_t pending; /* serve blocks them */
    return sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1);
}

/* terms.still: about once a second. */
static err_code still(void *arg, err *e)
{
    job *j = arg;
    if (stop_wanted()) return err_set(e, ERR_STOPPING, "stopped; the next start continues");
    int64_t now = clock_now_us(), have = j->done + (j->h ? j->h->have : 0);
    if (j->report_us == 0) j->report_us = now, j->report_bytes = have;
    if (now - j->report_us < REPORT_US) return ERR_NONE;
    double speed = (double)(have - j->report_bytes) / (double)(now - j->report_us);
    log_info("gateway", "downloading %s: %.1f of %.1f MiB, %.1f MB/s", j->place.text,
             (double)have / MIB, (double)j->bytes / MIB, speed > 0 ? speed : 0);
    notify_send("STATUS=downloading %s: %.1f of %.1f MiB\nEXTEND_TIMEOUT_USEC=%lld", j->place.text,
                (double)have / MIB, (double)j->bytes / MIB, (long long)START_US);
    j->report_us = now;
    j->report_bytes = have;
    return ERR_NONE;
}

static err_code local_path(const job *j, int i, char path[PATH_MAX], err *e)
{
    int n = snprintf(path, PATH_MAX, "%s/%s", j->place.part, j->local[i]);
    char *slash = n < PATH_MAX ? strchr(path + strlen(j->place.part) + 1, '/') : NULL;
    if (n >= PATH_MAX) return err_set(e, ERR_INPUT, "the path of data.dir is too long");
    if (!slash) return ERR_NONE;
    *slash = 0;
    bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
    *slash = '/';
    return made ? ERR_NONE : err_set(e, ERR_IO, "%s: %s", j->local[i], strerror(errno));
}

/* file[first] and those after it. */
static err_code download(job *j, int first, err *e)
{
    char path[PATH_MAX];
    for (int i = first; i < j->n; i++) {
        const hub_file *f = j->file[i];
        if (local_path(j, i, path, e) || hub_fetch(j->h, f, path, e)) return e->code;
        j->done += f->bytes;
        j->h->have = 0;
        log_write(f->bytes < SMALL ? LOG_DEBUG : LOG_INFO, "gateway",
                  "downloaded %s: %s, %.1f MiB, digest %.12s verified", j->place.text, f->path,
                  (double)f->bytes / MIB, f->digest);
    }
    return ERR_NONE;
}

static err_code make_room(const job *j, const config *c, err *e)
{
    char path[PATH_MAX];
    int64_t missing = 0;
    for (int i = 0; i < j->n; i++) {
        snprintf(path, sizeof(path), "%s/%s", j->place.part, j->local[i]);
        missing += j->file[i]->bytes - hub_bytes_there(j->file[i], path);
    }
    return model_cache_make_room(&j->place, c, j->bytes, missing, e);
}

/* Documents first: the index among them names the shards. */
static err_code fetch(job *j, const config *c, base_model_mode mode, err *e)
{
    bool gguf = ends(j->name.path, ".gguf");
    err_code rc = gguf ? add_ggufs(j, e) : suggest_ggufs(j, e);
    if (!rc && !gguf) rc = add_documents(j, e);
    int n_document = gguf ? 0 : j->n;
    if (!rc) rc = model_cache_begin(&j->place, e);
    if (!rc && !gguf) rc = download(j, 0, e);
    if (!rc && !gguf) rc = add_weights(j, e);
    if (!rc) rc = make_room(j, c, e);
    if (rc || mode == BASE_MODEL_PROBE) return rc;
    log_info("gateway", "downloading %s: commit %.12s, %d files, %.1f MiB", j->place.text,
             j->h->commit, j->n, (double)j->bytes / MIB);
    rc = download(j, n_document, e);
    if (!rc) rc = model_cache_finish(&j->place, j->h->commit, j->file, j->local, (size_t)j->n, e);
    return rc;
}

static err_code read_token(job *j, const config *c, err *e)
{
    if (!*c->sources.hub_token_file) return ERR_NONE;
    err_code rc = secret_file_read(c->data.dir, c->sources.hub_token_file, "sources.hub_token_file",
                                   j->token, sizeof(j->token), e);
    j->token[strcspn(j->token, "\r\n")] = 0;
    for (const char *s = j->token; !rc && *s; s++)
        if (*s <= ' ' || *s >= 0x7f)
            rc = err_set(e, ERR_INPUT,
                         "sources.hub_token_file must have one line of printable characters");
    return rc;
}

static err_code open_and_fetch(job *j, const config *c, base_model_mode mode, err *e)
{
    if (read_token(j, c, e)) return e->code;
    const hub_terms terms = {&j->rules, *j->token ? j->token : NULL, still, j};
    err_code rc = hub_open(&j->h, j->place.text, &terms, e);
    return rc ? rc : fetch(j, c, mode, e);
}

/* What model.path names in the folder: itself, or the GGUF. */
static void name_found(const job *j, const char *dir, char path[PATH_MAX])
{
    bool gguf = ends(j->name.path, ".gguf");
    snprintf(path, PATH_MAX, "%s%s%s", dir, gguf ? "/" : "",
             gguf ? j->name.path + strlen(j->prefix) : "");
}

static void set_prefix(job *j)
{
    const char *path = j->name.path, *slash = strrchr(path, '/');
    size_t n = strlen(path);
    if (ends(path, ".gguf"))
        snprintf(j->prefix, sizeof(j->prefix), "%.*s", slash ? (int)(slash + 1 - path) : 0, path);
    else
        snprintf(j->prefix, sizeof(j->prefix), "%s%s", path, n && path[n - 1] != '/' ? "/" : "");
}

static err_code find_named(job *j, const config *c, base_model_mode mode, char path[PATH_MAX],
                           err *e)
{
    j->rules = rules_of(&c->sources);
    err_code rc = hub_check(c->model.path, &j->rules, e);
    if (!rc) rc = model_place_of(&j->place, c, c->model.path, e);
    if (!rc) rc = source_hub_split(&j->name, c->model.path, e);
    if (rc) return rc;
    if (strlen(j->name.path) + 2 > HUB_PATH_MAX)
        return err_set(e, ERR_INPUT, "its path is longer than %d", HUB_PATH_MAX - 2);
    set_prefix(j);
    bool has = model_cache_has(&j->place);
    if (!has && mode == BASE_MODEL_PRESENT)
        return err_set(e, ERR_NOT_FOUND,
                       "it is not in data.dir/models yet: lorad serve downloads "
                       "it at its start");
    if (!has) rc = open_and_fetch(j, c, mode, e);
    if (rc) return rc;
    if (mode == BASE_MODEL_DOWNLOAD) {
        model_cache_touch(&j->place);
        log_info("gateway", "model.path: %s is in %s", c->model.path, j->place.dir);
    }
    name_found(j, has || mode != BASE_MODEL_PROBE ? j->place.dir : j->place.part, path);
    return ERR_NONE;
}

err_code base_model_find(const config *c, base_model_mode mode, char path[PATH_MAX], err *e)
{
    if (!base_model_is_named(c->model.path)) {
        snprintf(path, PATH_MAX, "%s", c->model.path);
        return ERR_NONE;
    }
    job *j = calloc(1, sizeof(*j));
    if (!j) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = find_named(j, c, mode, path, e);
    hub_close(j->h);
    explicit_bzero(j->token, sizeof(j->token));
    free(j);
    return rc ? err_context(e, "model.path: %.80s", c->model.path) : ERR_NONE;
}
