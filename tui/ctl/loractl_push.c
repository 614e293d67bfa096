/* loractl_push.c -- adapter push DIR: a manifest first, then only the bytes that the server lacks.
 *
 * The manifest names each file's size and SHA-256.  The server answers with how much of each it
 * has: all of it (published before, by this tenant), a part (an upload that broke off), or nothing.
 * What is missing is appended; a broken connection is taken up again where the server says it
 * stands, also by a new loractl.  Then one commit validates and publishes.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "engine/base/hex.h"
#include "engine/base/json.h"
#include "engine/base/private_file.h"
#include "tui/ctl/loractl.h"
#include "tui/ctl/progress.h"

enum {
    FILES = 5,
    NEEDED = 2,
    TRIES = 6,
    CHUNK = 1 << 18,
    HEADER_MAX = 1 << 24,
    IDLE_MS = 60000,
    COMMIT_MS = 900000
};

/* The tokenizer's go along with an adapter that has rows for tokens of its own, where they are. */
static const char *const file_names[FILES] = {"adapter_config.json", "adapter_model.safetensors",
                                              "tokenizer.json", "tokenizer_config.json",
                                              "added_tokens.json"};

typedef struct {
    int fd;
    int64_t bytes;
    char sha256[65];
} local_file;

typedef struct {
    ctl *c;
    const char *dir;
    char name[256], id[64]; /* of the adapter, of the upload */
    local_file file[FILES];
    progress progress;
    int64_t sent; /* in this run */
} push;

/* --------------------------------------------------------------------- local files -- */

static int hash_file(push *p, local_file *f, const char *label)
{
    static unsigned char buf[CHUNK];
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1;
    int64_t done = 0;
    progress_begin(&p->progress, label, f->bytes, 0, cli_given(&p->c->cli, "quiet"));
    while (ok && done < f->bytes) {
        ssize_t got = pread(f->fd, buf, sizeof(buf), (off_t)done);
        ok = got > 0 && EVP_DigestUpdate(md, buf, (size_t)got) == 1;
        if (ok) progress_set(&p->progress, done += got);
    }
    ok = ok && EVP_DigestFinal_ex(md, digest, &n) == 1 && n == 32;
    progress_end(&p->progress);
    EVP_MD_CTX_free(md);
    if (ok) hex_write(digest, n, f->sha256);
    return ok ? CTL_OK : ctl_fail("%s/%s can't be read whole", p->dir, label);
}

/* Does a safetensors header name a table? */
static bool names_tables(int fd)
{
    unsigned char first[8];
    size_t len = 0;
    if (pread(fd, first, sizeof(first), 0) != (ssize_t)sizeof(first)) return false;
    for (int i = 7; i >= 0; i--) len = len << 8 | first[i];
    if (len > HEADER_MAX) return true; /* the server will say what it thinks of it */
    char *text = malloc(len + 1);
    ssize_t n = text ? pread(fd, text, len, sizeof(first)) : -1;
    bool found = n > 0 && (memmem(text, (size_t)n, "embed_tokens", 12) ||
                           memmem(text, (size_t)n, "lm_head", 7));
    free(text);
    return found;
}

static const char asked_for[] =
    "Give the folder that PEFT saved (adapter_config.json and adapter_model.safetensors), a .gguf, "
    "or a URL";

static bool holds(const char *dir, const char *name)
{
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/%s", dir, name);
    return n < (int)sizeof(path) && access(path, F_OK) == 0;
}

/* `error`: why the i-th file of the folder can't be opened; 0: it is not a regular file. */
static int refuse_folder(const push *p, int i, int error)
{
    struct stat st;
    const char *file = file_names[i];
    if (stat(p->dir, &st) != 0) return ctl_fail("%s: %s. %s", p->dir, strerror(errno), asked_for);
    if (!S_ISDIR(st.st_mode)) return ctl_fail("%s is not a folder. %s", p->dir, asked_for);
    if (error != ENOENT)
        return ctl_fail("%s/%s: %s", p->dir, file, error ? strerror(error) : "this is not a file");
    if (i == 1 && holds(p->dir, "adapter_model.bin"))
        return ctl_fail("%s has no %s; its adapter_model.bin is a pickle, which lorad never reads: "
                        "save again with safe_serialization=True",
                        p->dir, file);
    bool base = i == 0 && holds(p->dir, "config.json");
    return ctl_fail("%s has no %s%s. %s", p->dir, file,
                    base ? ", but config.json: it is a base model" : "", asked_for);
}

static int open_files(push *p)
{
    bool tables = false;
    for (int i = 0; i < FILES; i++) p->file[i].fd = -1;
    for (int i = 0; i < FILES; i++) {
        char path[4096];
        struct stat st;
        int n = snprintf(path, sizeof(path), "%s/%s", p->dir, file_names[i]);
        if (i >= NEEDED && (!tables || access(path, F_OK) != 0)) continue;
        int fd = n < (int)sizeof(path) ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
        p->file[i].fd = fd;
        if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
            return refuse_folder(p, i, fd < 0 ? errno : 0);
        }
        p->file[i].bytes = st.st_size;
        int status = hash_file(p, &p->file[i], file_names[i]);
        if (status) return status;
        if (i == NEEDED - 1) tables = names_tables(fd);
    }
    return CTL_OK;
}

/* --name, or the folder's own. */
static int find_name(push *p)
{
    const char *given = cli_value(&p->c->cli, "name");
    char full[4096] = "";
    if (!given && strstr(p->dir, "://")) return ctl_usage("give the adapter's name with --name");
    if (!given) {
        char *real = realpath(p->dir, NULL);
        if (!real) return ctl_fail("%s: %s. %s", p->dir, strerror(errno), asked_for);
        const char *slash = strrchr(real, '/');
        snprintf(full, sizeof(full), "%s", slash ? slash + 1 : real);
        free(real);
        given = full;
    }
    if (!*given || strlen(given) >= sizeof(p->name))
        return ctl_usage("give the adapter's name with --name");
    snprintf(p->name, sizeof(p->name), "%s", given);
    return CTL_OK;
}

/* ------------------------------------------------------------------------ transfer -- */

static cJSON *manifest(const push *p)
{
    cJSON *body = cJSON_CreateObject(), *files = cJSON_AddArrayToObject(body, "files");
    const char *description = cli_value(&p->c->cli, "description");
    for (int i = 0; i < FILES; i++) {
        if (p->file[i].fd < 0 || p->file[i].bytes == 0) continue;
        cJSON *f = cJSON_CreateObject();
        (void)cJSON_AddStringToObject(f, "path", file_names[i]);
        (void)cJSON_AddNumberToObject(f, "bytes", (double)p->file[i].bytes);
        (void)cJSON_AddStringToObject(f, "sha256", p->file[i].sha256);
        (void)cJSON_AddItemToArray(files, f);
    }
    if (description) (void)cJSON_AddStringToObject(body, "description", description);
    (void)cJSON_AddBoolToObject(body, "activate", !cli_given(&p->c->cli, "no-activate"));
    return body;
}

typedef struct {
    push *p;
    const local_file *f;
    int64_t first, at;
} transfer;

static size_t read_on(void *arg, char *to, size_t cap)
{
    transfer *t = arg;
    ssize_t got = pread(t->f->fd, to, cap, (off_t)t->at);
    if (got <= 0) return 0;
    t->at += got;
    return (size_t)got;
}

static bool read_again(void *arg)
{
    transfer *t = arg;
    t->at = t->first;
    return true;
}

static void show(void *arg, int64_t sent, int64_t received)
{
    transfer *t = arg;
    (void)received;
    progress_set(&t->p->progress, t->first + sent);
}

/* Is it worth another try?  A break, a server that is busy or restarts, an offset that has
 * moved. */
static bool passing(err_code rc, const client_reply *r)
{
    if (rc) return rc == ERR_IO || rc == ERR_TIMEOUT;
    return r->status == 409 || r->status == 408 || r->status == 429 || r->status == 502 ||
           r->status == 503 || r->status == 504;
}

static void pause_before_try(int try, const client_reply *r)
{
    int64_t ms = r->retry_after_ms >= 0 ? r->retry_after_ms : (int64_t)250 << try;
    if (ms > 30000) ms = 30000;
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

static int give_up(push *p, client *cl, err_code rc, const err *e, const client_reply *r)
{
    char why[512];
    progress_end(&p->progress);
    if (rc == ERR_CANCELLED) {
        (void)ctl_fail("stopped; the same command goes on where it was");
        return CTL_INTERRUPTED;
    }
    if (rc) {
        (void)ctl_fail("%s; the same command goes on where it was", e->msg);
        return client_unreachable(cl) ? CTL_UNREACHABLE : CTL_REFUSED;
    }
    client_reply_error(r, why, sizeof(why));
    return ctl_fail("%s", why);
}

/* Where the server stands with a file; -1: it did not say. */
static int64_t ask_offset(client *cl, const char *path)
{
    err e;
    client_reply r;
    client_request rq = {.method = "HEAD", .path = path};
    err_code rc = client_call(cl, &rq, &r, &e);
    int64_t at = !rc && client_reply_ok(&r) ? r.upload_offset : -1;
    client_reply_clear(&r);
    return at;
}

/* The rest of a file from `offset` on. After a break it asks how much the server has and goes on
 * from there; attempts count anew whenever something arrived, so a bad line takes long but gets
 * there. */
static int send_file(push *p, int i, int64_t offset)
{
    client *cl;
    int status, tries = 0;
    char path[1600], header[64];
    const local_file *f = &p->file[i];
    if (!ctl_open(p->c, TENANT_SIDE, &cl, &status)) return status;
    snprintf(path, sizeof(path), "/v1/adapters/%s/versions/%s/files/%s", ctl_seg(p->name),
             ctl_seg(p->id), file_names[i]);
    progress_begin(&p->progress, file_names[i], f->bytes, offset, cli_given(&p->c->cli, "quiet"));
    while (offset < f->bytes) {
        err e;
        client_reply r;
        transfer t = {.p = p, .f = f, .first = offset, .at = offset};
        snprintf(header, sizeof(header), "Upload-Offset: %lld", (long long)offset);
        client_request rq = {.method = "PATCH",
                             .path = path,
                             .headers = {header},
                             .type = "application/octet-stream",
                             .source = read_on,
                             .rewind = read_again,
                             .source_arg = &t,
                             .source_bytes = f->bytes - offset,
                             .on_progress = show,
                             .progress_arg = &t,
                             .timeout_ms = -1,
                             .idle_ms = IDLE_MS};
        err_code rc = ctl_transfer(cl, &rq, &r, &e);
        if (!rc && client_reply_ok(&r)) {
            p->sent += f->bytes - offset;
            client_reply_clear(&r);
            break;
        }
        if (!passing(rc, &r) || tries == TRIES) {
            status = give_up(p, cl, rc, &e, &r);
            client_reply_clear(&r);
            return status;
        }
        pause_before_try(tries++, &r);
        client_reply_clear(&r);
        int64_t now = ask_offset(cl, path);
        if (now > offset) {                  /* it did move: a bad line, not a dead one */
            if (rc) p->sent += now - offset; /* else it was another loractl */
            tries = 0;
        }
        if (now >= 0) offset = now;
    }
    progress_end(&p->progress);
    return CTL_OK;
}

static int send_missing(push *p, const cJSON *upload)
{
    const cJSON *file, *files = cJSON_IsObject(upload) ? json_get(upload, "files") : NULL;
    const cJSON *id = cJSON_IsObject(upload) ? json_get(upload, "id") : NULL;
    if (!cJSON_IsString(id) || !cJSON_IsArray(files) || strlen(id->valuestring) >= sizeof(p->id))
        return ctl_fail("the server's answer is not upload");
    snprintf(p->id, sizeof(p->id), "%s", id->valuestring);
    cJSON_ArrayForEach(file, files)
    {
        const cJSON *path = cJSON_IsObject(file) ? json_get(file, "path") : NULL;
        const cJSON *state = path ? json_get(file, "state") : NULL;
        int64_t offset = 0;
        int i = 0;
        if (!cJSON_IsString(path) || !cJSON_IsString(state)) continue;
        while (i < FILES && strcmp(path->valuestring, file_names[i]) != 0) i++;
        bool wanted = strcmp(state->valuestring, "missing") == 0 ||
                      strcmp(state->valuestring, "partial") == 0;
        if (i == FILES || !wanted) continue;
        if (json_int(file, "offset", 0, p->file[i].bytes, &offset, NULL, NULL))
            return ctl_fail("the server's answer is not upload");
        int status = send_file(p, i, offset);
        if (status) return status;
    }
    return CTL_OK;
}

/* The new version; who sent matrices that were never trained should hear so. */
static void show_version(const ctl *c, const cJSON *tree)
{
    const char *model = cJSON_GetStringValue(json_get(tree, "model"));
    const char *warning = cJSON_GetStringValue(json_get(tree, "warning"));
    (void)ctl_print_row(c, ctl_version_columns, tree);
    if (model && warning) fprintf(stderr, "warning: %s: %s\n", model, warning);
}

static int commit(push *p)
{
    char path[1400];
    client_reply reply;
    cJSON *tree = NULL;
    err e;
    snprintf(path, sizeof(path), "/v1/adapters/%s/versions/%s/commit", ctl_seg(p->name),
             ctl_seg(p->id));
    client_request rq = {.method = "POST", .path = path, .timeout_ms = COMMIT_MS};
    if (cli_given(&p->c->cli, "new")) rq.headers[0] = "If-None-Match: *";
    int status = ctl_run(p->c, TENANT_SIDE, &rq, &reply);
    bool existed = reply.status == 200;
    if (!status && client_reply_json(&reply, &tree, &e)) status = ctl_fail("%s", e.msg);
    client_reply_clear(&reply);
    if (!status) {
        show_version(p->c, tree);
        if (!cli_given(&p->c->cli, "quiet")) {
            int64_t total = 0;
            for (int i = 0; i < FILES; i++) total += p->file[i].bytes;
            fprintf(stderr, "%s; %lld of %lld bytes sent\n",
                    existed ? "unchanged: this is the newest version" : "published",
                    (long long)p->sent, (long long)total);
        }
    }
    cJSON_Delete(tree);
    return status;
}

/* For which base it was made is in its configuration. */
static void hint_base(const push *p)
{
    static char text[CHUNK];
    ssize_t n = p->file[0].fd > 0 ? pread(p->file[0].fd, text, sizeof(text), 0) : 0;
    if (n > 0 && n < CHUNK) ctl_hint_base(p->c, text, (size_t)n);
}

/* ---------------------------------------------------------------------- one GGUF -- */

/* llama.cpp's file goes in one piece, as the only member of a tar. */
typedef struct {
    push *p;
    const local_file *f;
    char head[512];
    int64_t at, total; /* of the tar */
} tar_source;

static void tar_head(tar_source *t)
{
    char *h = t->head;
    unsigned sum = 0;
    memset(h, 0, sizeof(t->head));
    snprintf(h, 100, "adapter.gguf");
    snprintf(h + 100, 8, "%07o", 0644);
    snprintf(h + 108, 8, "%07o", 0);
    snprintf(h + 116, 8, "%07o", 0);
    snprintf(h + 124, 12, "%011llo", (unsigned long long)t->f->bytes);
    snprintf(h + 136, 12, "%011o", 0);
    h[156] = '0';
    memcpy(h + 257, "ustar\00000", 8);
    memset(h + 148, ' ', 8);
    for (size_t i = 0; i < sizeof(t->head); i++) sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
}

static size_t read_tar(void *arg, char *to, size_t cap)
{
    tar_source *t = arg;
    int64_t head = (int64_t)sizeof(t->head), end = head + t->f->bytes;
    ssize_t got;
    if (t->at < head) {
        got = head - t->at < (int64_t)cap ? (ssize_t)(head - t->at) : (ssize_t)cap;
        memcpy(to, t->head + t->at, (size_t)got);
    } else if (t->at < end) {
        if (end - t->at < (int64_t)cap) cap = (size_t)(end - t->at);
        got = pread(t->f->fd, to, cap, (off_t)(t->at - head));
    } else { /* padding, and two empty blocks */
        got = t->total - t->at < (int64_t)cap ? (ssize_t)(t->total - t->at) : (ssize_t)cap;
        memset(to, 0, (size_t)got);
    }
    if (got <= 0) return 0;
    t->at += got;
    return (size_t)got;
}

static bool rewind_tar(void *arg)
{
    ((tar_source *)arg)->at = 0;
    return true;
}

static void show_tar(void *arg, int64_t sent, int64_t received)
{
    (void)received;
    progress_set(&((tar_source *)arg)->p->progress, sent);
}

static bool is_gguf(const char *path)
{
    struct stat st;
    size_t n = strlen(path);
    return n > 5 && strcasecmp(path + n - 5, ".gguf") == 0 && stat(path, &st) == 0 &&
           S_ISREG(st.st_mode);
}

/* A GGUF goes in one body, as a tar that is made while it is sent: unlike files of a folder it
 * cannot be resumed. */
static int push_gguf(push *p)
{
    struct stat st;
    char path[4096];
    client_reply reply;
    cJSON *tree = NULL;
    err e;
    size_t n = strlen(p->name);
    const char *description = cli_value(&p->c->cli, "description");
    if (!cli_value(&p->c->cli, "name") && n > 5) p->name[n - 5] = 0; /* the file's, without .gguf */
    local_file *f = &p->file[0];
    f->fd = open(p->dir, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &st) != 0) return ctl_fail("%s: %s", p->dir, strerror(errno));
    f->bytes = st.st_size;
    if (f->bytes >= INT64_C(1) << 33) return ctl_fail("%s is too large for a tar", p->dir);
    tar_source t = {.p = p, .f = f, .total = 512 + (f->bytes + 511) / 512 * 512 + 1024};
    tar_head(&t);
    snprintf(path, sizeof(path), "/v1/adapters/%s/versions?activate=%s%s%s", ctl_seg(p->name),
             cli_given(&p->c->cli, "no-activate") ? "false" : "true",
             description ? "&description=" : "", description ? ctl_seg(description) : "");
    client_request rq = {.method = "POST",
                         .path = path,
                         .type = "application/x-tar",
                         .source = read_tar,
                         .rewind = rewind_tar,
                         .source_arg = &t,
                         .source_bytes = t.total,
                         .on_progress = show_tar,
                         .progress_arg = &t,
                         .timeout_ms = -1,
                         .idle_ms = COMMIT_MS};
    if (cli_given(&p->c->cli, "new")) rq.headers[0] = "If-None-Match: *";
    progress_begin(&p->progress, p->name, t.total, 0, cli_given(&p->c->cli, "quiet"));
    int status = ctl_run(p->c, TENANT_SIDE, &rq, &reply);
    progress_end(&p->progress);
    if (!status && client_reply_json(&reply, &tree, &e)) status = ctl_fail("%s", e.msg);
    client_reply_clear(&reply);
    if (!status) show_version(p->c, tree);
    cJSON_Delete(tree);
    return status;
}

/* ------------------------------------------------------ what the server fetches -- */

/* The object in the file of --credentials; it has secrets, so nobody else may read it. */
static int take_credentials(const push *p, cJSON *body)
{
    const char *path = cli_value(&p->c->cli, "credentials");
    char text[8192];
    err e;
    if (!path) return CTL_OK;
    if (private_file_check(path, "the file of credentials", &e)) return ctl_fail("%s", e.msg);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (fd >= 0) (void)close(fd);
    if (n < 0) return ctl_fail("%s: %s", path, strerror(errno));
    text[n] = 0;
    cJSON *tree = cJSON_Parse(text);
    if (!cJSON_IsObject(tree)) {
        cJSON_Delete(tree);
        return ctl_fail("%s is no JSON object", path);
    }
    (void)cJSON_AddItemToObject(body, "credentials", tree);
    return CTL_OK;
}

static int push_source(push *p)
{
    char path[1400];
    client_reply reply;
    cJSON *tree = NULL, *body = cJSON_CreateObject();
    const char *description = cli_value(&p->c->cli, "description");
    const char *sha = cli_value(&p->c->cli, "sha256");
    err e;
    (void)cJSON_AddStringToObject(body, "source", p->dir);
    if (sha) (void)cJSON_AddStringToObject(body, "sha256", sha);
    if (description) (void)cJSON_AddStringToObject(body, "description", description);
    (void)cJSON_AddBoolToObject(body, "activate", !cli_given(&p->c->cli, "no-activate"));
    int status = take_credentials(p, body);
    char *text = status ? NULL : cJSON_PrintUnformatted(body);
    cJSON_Delete(body);
    if (!text) return status ? status : ctl_fail("out of memory");
    snprintf(path, sizeof(path), "/v1/adapters/%s/versions", ctl_seg(p->name));
    client_request rq = {
        .method = "POST", .path = path, .body = text, .body_len = strlen(text), .timeout_ms = -1};
    if (cli_given(&p->c->cli, "new")) rq.headers[0] = "If-None-Match: *";
    status = ctl_run(p->c, TENANT_SIDE, &rq, &reply);
    cJSON_free(text);
    if (!status && client_reply_json(&reply, &tree, &e)) status = ctl_fail("%s", e.msg);
    client_reply_clear(&reply);
    if (!status) show_version(p->c, tree);
    cJSON_Delete(tree);
    return status;
}

int ctl_adapter_push(void *arg)
{
    ctl *c = arg;
    cJSON *upload = NULL;
    push p = {.c = c, .dir = c->cli.arg[0]};
    int status = find_name(&p);
    if (!status && strstr(p.dir, "://")) return push_source(&p);
    if (!status && is_gguf(p.dir)) {
        status = push_gguf(&p);
        if (p.file[0].fd > 0) (void)close(p.file[0].fd);
        return status;
    }
    if (!status) status = open_files(&p);
    if (!status) {
        status = ctl_call(c, TENANT_SIDE, "POST", manifest(&p), &upload, "/v1/adapters/%s/versions",
                          ctl_seg(p.name));
    }
    if (!status) status = send_missing(&p, upload);
    if (!status) status = commit(&p);
    if (status == CTL_REFUSED) hint_base(&p);
    cJSON_Delete(upload);
    for (int i = 0; i < FILES; i++) {
        if (p.file[i].fd > 0) (void)close(p.file[i].fd);
    }
    return status;
}
