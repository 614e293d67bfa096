/* replay.c -- plays recorded answers, which it reads as strictly as a server's.
 *
 * A line: {"at_us":..., "server":"name", "stats":...}, the answer as it came, with line ends as
 * spaces. So a recording of a server that is newer or broken shows what a live view would.
 * replay_open() reads a few lines ahead to know the servers' names, and begins again.
 */
#include "tui/top/replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"

err_code replay_record(FILE *f, int64_t at_us, const char *server, const char *stats, size_t len,
                       err *e)
{
    cJSON *name = cJSON_CreateString(server);
    char *quoted = name ? cJSON_PrintUnformatted(name) : NULL;
    cJSON_Delete(name);
    if (!quoted) return err_set(e, ERR_NOMEM, "out of memory");
    bool ok = fprintf(f, "{\"at_us\":%lld,\"server\":%s,\"stats\":", (long long)at_us, quoted) > 0;
    free(quoted);
    for (size_t i = 0; i < len && ok; i++) { /* line ends are blanks between JSON's tokens */
        int c = stats[i] == '\n' || stats[i] == '\r' ? ' ' : (unsigned char)stats[i];
        ok = putc_unlocked(c, f) != EOF;
    }
    ok = ok && fputs("}\n", f) >= 0 && fflush(f) == 0;
    return ok ? ERR_NONE
              : err_set(e, ERR_IO, "the recording cannot be written: %s", strerror(errno));
}

static int server_of(replay *r, const char *name)
{
    for (int i = 0; i < r->n_servers; i++) {
        if (strcmp(r->server[i], name) == 0) return i;
    }
    if (r->n_servers == REPLAY_SERVERS_MAX || strlen(name) > REPLAY_NAME_MAX) return -1;
    (void)strcpy(r->server[r->n_servers], name);
    return r->n_servers++;
}

err_code replay_next(replay *r, replay_item *out, err *e)
{
    *out = (replay_item){0};
    ssize_t n = getline(&r->line, &r->cap, r->file);
    if (n < 0) return err_set(e, ERR_NOT_FOUND, "the recording ends");
    r->number++;
    err why;
    if (json_parse(r->line, (size_t)n, &json_limits_trusted, &out->tree, &why)) {
        return err_set(e, ERR_CORRUPT, "line %zu of the recording: %.160s", r->number, why.msg);
    }
    const char *name = NULL;
    out->stats = json_get(out->tree, "stats");
    if (json_int(out->tree, "at_us", 0, INT64_C(1) << 52, &out->at_us, NULL, e) ||
        json_str(out->tree, "server", &name, NULL, e) || !name || !out->stats ||
        (out->server = server_of(r, name)) < 0) {
        cJSON_Delete(out->tree);
        *out = (replay_item){0};
        return err_set(e, ERR_CORRUPT, "line %zu is none of a recording", r->number);
    }
    return ERR_NONE;
}

void replay_rewind(replay *r)
{
    rewind(r->file);
    r->number = 0;
}

err_code replay_open(replay *r, const char *path, err *e)
{
    *r = (replay){.file = fopen(path, "re")};
    if (!r->file) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    /* One server's recording is the rule: the first lines name those that there are. */
    for (int i = 0; i < 2 * REPLAY_SERVERS_MAX; i++) {
        replay_item it;
        err_code rc = replay_next(r, &it, e);
        cJSON_Delete(it.tree);
        if (rc && i > 0) break; /* what is broken later is said when it is its turn */
        if (rc) {
            replay_close(r);
            return rc == ERR_NOT_FOUND ? err_set(e, ERR_CORRUPT, "%s is empty", path) : rc;
        }
    }
    replay_rewind(r);
    return ERR_NONE;
}

void replay_close(replay *r)
{
    if (r->file) (void)fclose(r->file);
    free(r->line);
    *r = (replay){0};
}
