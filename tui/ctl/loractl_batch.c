/* loractl_batch.c -- loractl's commands for batches: upload of requests, progress, answers.
 *
 * `create` uploads the file as multipart/form-data without reading it into memory: read_form()
 * returns the head, the file and the tail one after the other, and rewind_form() lets libcurl
 * send it again. The endpoint is the "url" of the first line unless it is given.
 *
 * `wait` and --follow poll once in LOOK_MS; the exit status is 0 only for a completed batch, so
 * that a shell can use it. `results` streams the answer file into a new file or to standard
 * output.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "tui/ctl/loractl.h"
#include "tui/ctl/progress.h"

enum {
    LOOK_MS = 1000,   /* between looks at a batch that is waited for */
    IDLE_MS = 120000, /* silence of the server over a file */
};

static const column columns[] = {
    {"ID", "id", CELL_TEXT, false},
    {"STATUS", "status", CELL_TEXT, false},
    {"LINES", "request_counts.total", CELL_INT, false},
    {"ANSWERED", "request_counts.completed", CELL_INT, false},
    {"FAILED", "request_counts.failed", CELL_INT, false},
    {"CREATED", "created_at", CELL_TIME, false},
    {"ENDPOINT", "endpoint", CELL_TEXT, true},
    {"INPUT", "input_file_id", CELL_TEXT, true},
    {"ANSWERS", "output_file_id", CELL_TEXT, true},
    {"ERRORS", "error_file_id", CELL_TEXT, true},
    {"UNTIL", "expires_at", CELL_TIME, true},
    {NULL, NULL, CELL_TEXT, false},
};

static const char *text_at(const cJSON *tree, const char *path)
{
    return cJSON_GetStringValue(table_at(tree, path));
}

/* ------------------------------------------------------------------------- creating -- */

/* A form of two parts around the file. */
typedef struct {
    FILE *f;
    char head[1024], tail[64];
    int64_t n_head, bytes, n_tail, at;
    progress progress;
} form;

static const char boundary[] = "----loractl-7f1d0c52b6a94e38";

static size_t read_form(void *arg, char *to, size_t cap)
{
    form *m = arg;
    int64_t behind = m->n_head + m->bytes, end = behind + m->n_tail;
    int64_t left = m->at < m->n_head ? m->n_head - m->at
                   : m->at < behind  ? behind - m->at
                                     : end - m->at;
    size_t n = left < (int64_t)cap ? (size_t)left : cap;
    if (m->at < m->n_head)
        memcpy(to, m->head + m->at, n);
    else if (m->at < behind)
        n = fread(to, 1, n, m->f);
    else
        memcpy(to, m->tail + (m->at - behind), n);
    m->at += (int64_t)n;
    return n;
}

static bool rewind_form(void *arg)
{
    form *m = arg;
    m->at = 0;
    return fseek(m->f, 0, SEEK_SET) == 0;
}

static void show_form(void *arg, int64_t sent, int64_t received)
{
    (void)received;
    progress_set(&((form *)arg)->progress, sent);
}

/* Sends the file; *id (free()) is what the server calls it. */
static int upload(ctl *c, FILE *f, const char *path, char **id)
{
    struct stat st;
    client_reply reply;
    cJSON *tree = NULL;
    err e;
    char type[128];
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    form m = {.f = f};
    if (fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode)) return ctl_fail("%s is no file", path);
    for (const char *s = name; *s; s++) {
        if (*s == '"' || *s == '\\' || (unsigned char)*s < 0x20) name = "batch.jsonl";
    }
    m.bytes = st.st_size;
    m.n_head =
        snprintf(m.head, sizeof(m.head),
                 "--%s\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
                 "--%s\r\nContent-Disposition: form-data; name=\"file\"; filename=\"%.255s\"\r\n"
                 "Content-Type: application/jsonl\r\n\r\n",
                 boundary, boundary, name);
    m.n_tail = snprintf(m.tail, sizeof(m.tail), "\r\n--%s--\r\n", boundary);
    snprintf(type, sizeof(type), "multipart/form-data; boundary=%s", boundary);
    client_request rq = {.method = "POST",
                         .path = "/v1/files",
                         .type = type,
                         .source = read_form,
                         .rewind = rewind_form,
                         .source_arg = &m,
                         .source_bytes = m.n_head + m.bytes + m.n_tail,
                         .on_progress = show_form,
                         .progress_arg = &m,
                         .timeout_ms = -1,
                         .idle_ms = IDLE_MS};
    progress_begin(&m.progress, name, rq.source_bytes, 0, cli_given(&c->cli, "quiet"));
    int status = ctl_run(c, TENANT_SIDE, &rq, &reply);
    progress_end(&m.progress);
    if (!status && client_reply_json(&reply, &tree, &e)) status = ctl_fail("%s", e.msg);
    const char *own = status ? NULL : text_at(tree, "id");
    if (!status && !own) status = ctl_fail("the server's answer names no file");
    *id = own ? strdup(own) : NULL;
    cJSON_Delete(tree);
    client_reply_clear(&reply);
    return status;
}

/* The URL of the first line: of all, for a batch has one. */
static bool first_url(FILE *f, char *out, size_t cap)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n = getline(&line, &room, f);
    cJSON *tree = NULL;
    bool ok = n > 0 && !json_parse(line, (size_t)n, &json_limits_trusted, &tree, NULL);
    const char *url = ok ? text_at(tree, "url") : NULL;
    if (url) snprintf(out, cap, "%s", url);
    cJSON_Delete(tree);
    free(line);
    rewind(f);
    return url != NULL;
}

static int wait_for(ctl *c, const char *id, cJSON **tree);

int ctl_batch_create(void *p)
{
    ctl *c = p;
    const char *path = c->cli.arg[0], *endpoint = cli_value(&c->cli, "endpoint");
    char url[256], *file = NULL;
    cJSON *tree = NULL;
    FILE *f = fopen(path, "rbe");
    if (!f) return ctl_fail("%s: %s", path, strerror(errno));
    int status = 0;
    if (!endpoint && !first_url(f, url, sizeof(url)))
        status = ctl_fail(
            "the first line of %s is not a request with a \"url\"; or give --endpoint", path);
    if (!status) status = upload(c, f, path, &file);
    (void)fclose(f);
    if (!status) {
        cJSON *body = cJSON_CreateObject();
        (void)cJSON_AddStringToObject(body, "input_file_id", file);
        (void)cJSON_AddStringToObject(body, "endpoint", endpoint ? endpoint : url);
        (void)cJSON_AddStringToObject(body, "completion_window", "24h");
        status = ctl_call(c, TENANT_SIDE, "POST", body, &tree, "/v1/batches");
    }
    free(file);
    const char *id = status ? NULL : text_at(tree, "id");
    if (id && cli_given(&c->cli, "follow")) {
        char own[128];
        snprintf(own, sizeof(own), "%s", id);
        cJSON_Delete(tree);
        tree = NULL;
        status = wait_for(c, own, &tree);
    }
    if (tree) {
        int shown = ctl_print_row(c, columns, tree);
        if (!status) status = shown;
    }
    cJSON_Delete(tree);
    return status;
}

/* ------------------------------------------------------------------------- watching -- */

int ctl_batch_list(void *p)
{
    ctl *c = p;
    cJSON *rows;
    int status = ctl_list(c, TENANT_SIDE, "/v1/batches?limit=100", "id", &rows);
    if (!status) status = ctl_print_rows(c, columns, rows);
    cJSON_Delete(rows);
    return status;
}

static int get(ctl *c, const char *id, cJSON **tree)
{
    return ctl_call(c, TENANT_SIDE, "GET", NULL, tree, "/v1/batches/%s", ctl_seg(id));
}

static int show(ctl *c, int status, cJSON *tree)
{
    if (!status) status = ctl_print_row(c, columns, tree);
    cJSON_Delete(tree);
    return status;
}

int ctl_batch_show(void *p)
{
    ctl *c = p;
    cJSON *tree;
    int status = get(c, c->cli.arg[0], &tree);
    return show(c, status, tree);
}

int ctl_batch_cancel(void *p)
{
    ctl *c = p;
    cJSON *tree;
    int status = ctl_call(c, TENANT_SIDE, "POST", NULL, &tree, "/v1/batches/%s/cancel",
                          ctl_seg(c->cli.arg[0]));
    return show(c, status, tree);
}

static bool has_ended(const cJSON *tree)
{
    static const char *const ends[] = {"completed", "failed", "expired", "cancelled"};
    const char *status = text_at(tree, "status");
    for (size_t i = 0; status && i < sizeof(ends) / sizeof(ends[0]); i++)
        if (strcmp(status, ends[i]) == 0) return true;
    return !status;
}

/* One line where somebody looks on. */
static void say_progress(const ctl *c, const cJSON *tree)
{
    const cJSON *total = table_at(tree, "request_counts.total");
    const cJSON *done = table_at(tree, "request_counts.completed");
    const cJSON *failed = table_at(tree, "request_counts.failed");
    if (cli_given(&c->cli, "quiet") || !isatty(STDERR_FILENO)) return;
    if (!cJSON_IsNumber(total) || !cJSON_IsNumber(done) || !cJSON_IsNumber(failed)) return;
    fprintf(stderr, "\r\033[K%.0f of %.0f lines answered, %.0f failed", done->valuedouble,
            total->valuedouble, failed->valuedouble);
    (void)fflush(stderr);
}

/* Until it has ended; *tree: as it is then.  Completed is 0, all else CTL_REFUSED. */
static int wait_for(ctl *c, const char *id, cJSON **tree)
{
    int status;
    while ((status = get(c, id, tree)) == 0 && !has_ended(*tree)) {
        say_progress(c, *tree);
        cJSON_Delete(*tree);
        *tree = NULL;
        if (!ctl_wait(-1, LOOK_MS)) return CTL_INTERRUPTED;
    }
    if (!cli_given(&c->cli, "quiet") && isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
    if (status) return status;
    const char *end = text_at(*tree, "status"), *why = text_at(*tree, "errors.data.0.message");
    if (end && strcmp(end, "completed") == 0) return 0;
    return ctl_fail("the batch is %s%s%s", end ? end : "lost", why ? ": " : "", why ? why : "");
}

int ctl_batch_wait(void *p)
{
    ctl *c = p;
    cJSON *tree = NULL;
    int status = wait_for(c, c->cli.arg[0], &tree);
    int shown = tree ? ctl_print_row(c, columns, tree) : 0;
    cJSON_Delete(tree);
    return status ? status : shown;
}

/* -------------------------------------------------------------------------- results -- */

static bool write_on(void *arg, const char *bytes, size_t len)
{
    return fwrite(bytes, 1, len, arg) == len;
}

static int fetch(ctl *c, const char *file, const char *out)
{
    client_reply reply;
    char path[512];
    FILE *f = out ? fopen(out, "wbxe") : stdout;
    if (!f) return ctl_fail("%s: %s", out, strerror(errno));
    snprintf(path, sizeof(path), "/v1/files/%s/content", ctl_seg(file));
    client_request rq = {.method = "GET",
                         .path = path,
                         .on_data = write_on,
                         .on_arg = f,
                         .timeout_ms = -1,
                         .idle_ms = IDLE_MS};
    int status = ctl_run(c, TENANT_SIDE, &rq, &reply);
    client_reply_clear(&reply);
    bool whole = (out ? fclose(f) : fflush(f)) == 0;
    if (!status && !whole) status = ctl_fail("%s: %s", out ? out : "output", strerror(errno));
    if (status && out) (void)unlink(out);
    return status;
}

int ctl_batch_results(void *p)
{
    ctl *c = p;
    cJSON *tree;
    bool errors = cli_given(&c->cli, "errors");
    int status = get(c, c->cli.arg[0], &tree);
    const char *file = status ? NULL : text_at(tree, errors ? "error_file_id" : "output_file_id");
    if (!status && !file && !has_ended(tree))
        status = ctl_fail("the batch has not ended: 'loractl batch wait' waits for it");
    else if (!status && !file)
        status =
            ctl_fail(errors ? "no line has failed" : "no line was answered; --errors says why");
    if (!status) status = fetch(c, file, cli_value(&c->cli, "out"));
    cJSON_Delete(tree);
    return status;
}
