/* journal.c -- appends, and reads what an earlier process has appended. */
#include "gateway/batches/journal.h"

#include <assert.h>
#include <errno.h>
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
    int64_t whole = 0;
    ssize_t n;
    sealed_file *file = &j->file[which];
    FILE *f = sealed_file_stream(file);
    if (!f) return err_set(e, ERR_NOMEM, "out of memory");
    while ((n = getline(&text, &cap, f)) > 0) {
        int i = line_of(text, (size_t)n, done);
        if (i < 0 || done->line[i]) break;
        assert(i < done->n);
        done->line[i] = 1;
        done->count[which]++;
        whole += n;
    }
    bool failed = ferror(f) != 0;
    free(text);
    (void)fclose(f);
    if (failed) return err_set(e, ERR_IO, "what a batch has written cannot be read");
    if (whole < file->n_bytes || file->torn)
        log_warn("gateway", "a batch: the torn end of what it had written is cut off");
    assert(whole >= 0 && whole <= file->n_bytes);
    return sealed_file_cut(file, whole, e);
}

err_code batch_journal_open(batch_journal *j, sealed_file file[BATCH_FILES], storeroom *room,
                            batch_done *done, err *e)
{
    err_code rc = ERR_NONE;
    *j = (batch_journal){.open = true, .room = room};
    lock_init(&j->mu, LOCK_BATCH_JOURNAL);
    for (int k = 0; k < BATCH_FILES; k++) {
        j->file[k] = file[k];
        file[k] = (sealed_file){0};
    }
    for (int k = 0; !rc && k < BATCH_FILES; k++) rc = recover(j, (batch_file)k, done, e);
    if (rc) batch_journal_close(j);
    return rc;
}

void batch_journal_close(batch_journal *j)
{
    for (int k = 0; k < BATCH_FILES; k++) sealed_file_close(&j->file[k]);
    if (j->open) lock_free(&j->mu);
    *j = (batch_journal){0};
}

/* --------------------------------------------------------------------------- writing -- */

err_code batch_journal_write(batch_journal *j, batch_file which, const char *line, size_t len,
                             bool sync, err *e)
{
    assert((unsigned)which < BATCH_FILES && len > 2 && memcmp(line + len - 2, "}\n", 2) == 0);
    sealed_file *f = &j->file[which];
    err_code rc = storeroom_check(j->room, len, e);
    if (rc) return rc;
    lock_take(&j->mu);
    rc = f->torn ? err_set(e, ERR_IO, "the file ends in a torn line, which must be cut off first")
                 : sealed_file_append(f, line, len, e); /* all of it or nothing */
    if (rc && f->torn) e->code = rc = ERR_IO;
    lock_release(&j->mu);
    if (!rc && sync && fdatasync(f->fd) != 0)
        rc = err_set(e, ERR_IO, "cannot sync a batch's file: %s", strerror(errno));
    return rc;
}

err_code batch_journal_sync(batch_journal *j, err *e)
{
    for (int k = 0; k < BATCH_FILES; k++) {
        if (fdatasync(j->file[k].fd) != 0) return io_error("cannot sync a batch's file", e);
    }
    return ERR_NONE;
}
