/* journal.c -- appends, and reads what an earlier process has appended. */
#include "gateway/batches/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "storage/disk.h"
#include "storage/store.h"

static const char HEAD[] = "{\"id\":\"batch_req_";

int batch_journal_head(char out[BATCH_LINE_HEAD_BYTES], uint64_t request_id)
{
    return snprintf(out, BATCH_LINE_HEAD_BYTES, "%s%016llx\"", HEAD,
                    (unsigned long long)request_id);
}

static err_code io_error(const char *what, err *e)
{
    int why = errno;
    return err_set(e, disk_is_full(why) ? ERR_NO_ROOM : ERR_IO, "%s: %s", what, strerror(why));
}

/* -------------------------------------------------------------------------- recovery -- */

/* Which line of the input this answers; -1: it is no whole line of ours.  A crash of this process
 * leaves a beginning of a line; one of the machine may leave zeros. */
static int line_of(const char *text, size_t len, const batch_done *done)
{
    enum { AT = sizeof(HEAD) - 1, DIGITS = 16 };
    char hex[DIGITS + 1], *end;
    if (len < AT + DIGITS + 3 || memcmp(text, HEAD, AT) != 0) return -1;
    if (memcmp(text + len - 2, "}\n", 2) != 0 || memchr(text, 0, len)) return -1;
    memcpy(hex, text + AT, DIGITS);
    hex[DIGITS] = 0;
    uint64_t place = store_id_place(done->first_id, strtoull(hex, &end, 16));
    if (*end || text[AT + DIGITS] != '"' || place % BATCH_LINE_IDS != 0) return -1;
    place /= BATCH_LINE_IDS;
    return place < (uint64_t)done->n ? (int)place : -1;
}

/* What is torn was never synced: a sync of one line is one of all before it. */
static err_code recover(batch_journal *j, batch_file which, batch_done *done, err *e)
{
    char *text = NULL;
    size_t cap = 0;
    ssize_t n;
    int copy = dup(j->fd[which]);
    FILE *f = copy >= 0 ? fdopen(copy, "r") : NULL;
    if (!f) {
        if (copy >= 0) (void)close(copy);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    while ((n = getline(&text, &cap, f)) > 0) {
        int i = line_of(text, (size_t)n, done);
        if (i < 0 || done->line[i]) break;
        done->line[i] = 1;
        done->count[which]++;
        j->n_bytes[which] += n;
    }
    if (n > 0) log_warn("gateway", "a batch: the torn end of what it had written is cut off");
    bool failed = ferror(f) != 0;
    free(text);
    (void)fclose(f);
    if (failed) return err_set(e, ERR_IO, "what a batch has written cannot be read");
    if (ftruncate(j->fd[which], j->n_bytes[which]) == 0) return ERR_NONE;
    return io_error("cannot cut a torn line off", e);
}

static err_code sync_folder(const char *path, err *e)
{
    char folder[4096];
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') - path), path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    err_code rc = fd >= 0 && fsync(fd) == 0 ? ERR_NONE : io_error("cannot sync a folder", e);
    if (fd >= 0) (void)close(fd);
    return rc;
}

err_code batch_journal_open(batch_journal *j, const char *const path[BATCH_FILES], storeroom *room,
                            batch_done *done, err *e)
{
    err_code rc = ERR_NONE;
    *j = (batch_journal){.fd = {-1, -1}, .room = room};
    lock_init(&j->mu, LOCK_BATCH_JOURNAL);
    for (int k = 0; !rc && k < BATCH_FILES; k++) {
        j->fd[k] = open(path[k], O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
        rc = j->fd[k] < 0 ? io_error("cannot open a batch's file", e)
                          : recover(j, (batch_file)k, done, e);
    }
    if (!rc) rc = sync_folder(path[0], e);
    if (rc) batch_journal_close(j);
    return rc;
}

void batch_journal_close(batch_journal *j)
{
    for (int k = 0; k < BATCH_FILES; k++) {
        if (j->fd[k] > 0) (void)close(j->fd[k]);
    }
    if (j->fd[0] != 0) lock_free(&j->mu);
    *j = (batch_journal){0};
}

/* --------------------------------------------------------------------------- writing -- */

/* All of it or nothing: a part of a line would make the next one unreadable. */
static err_code append(batch_journal *j, batch_file which, const char *line, size_t len, err *e)
{
    size_t have = 0;
    while (have < len) {
        ssize_t n = write(j->fd[which], line + have, len - have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            err_code rc = io_error("cannot write what a batch has made", e);
            if (ftruncate(j->fd[which], j->n_bytes[which]) == 0) return rc;
            return err_set(e, ERR_IO, "a torn line of a batch cannot be cut off");
        }
        have += (size_t)n;
    }
    j->n_bytes[which] += (int64_t)len;
    return ERR_NONE;
}

err_code batch_journal_write(batch_journal *j, batch_file which, const char *line, size_t len,
                             bool sync, err *e)
{
    err_code rc = storeroom_check(j->room, len, e);
    if (rc) return rc;
    lock_take(&j->mu);
    rc = append(j, which, line, len, e);
    lock_release(&j->mu);
    if (!rc && sync && fdatasync(j->fd[which]) != 0)
        rc = err_set(e, ERR_IO, "cannot sync a batch's file: %s", strerror(errno));
    return rc;
}

err_code batch_journal_sync(batch_journal *j, err *e)
{
    for (int k = 0; k < BATCH_FILES; k++) {
        if (fdatasync(j->fd[k]) != 0) return io_error("cannot sync a batch's file", e);
    }
    return ERR_NONE;
}
