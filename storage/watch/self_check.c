/* self_check.c -- the thread, and one check.
 *
 * A check is PRAGMA quick_check on a read-only connection of its own, at the lowest priority: it
 * reads every page, which takes minutes for a large database, and SQLite's progress handler ends
 * it when the server stops. What cannot be checked (no memory, a busy file) says nothing about
 * damage: it is logged, and the state stays as it was.
 */
#include "storage/watch/self_check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "storage/store_sql.h"

enum { NICENESS = 19, LOOK_EVERY = 10000 /* SQLite's operations between looks at `stop` */ };

struct self_check {
    char path[4096];
    int64_t every_us;
    pthread_t thread;
    atomic_bool stop, damaged;
    _Atomic int64_t checked_wall_us;
    lock mu;
    cond wake;
};

static int see_stop(void *self)
{
    const self_check *c = self;
    return atomic_load(&c->stop);
}

/* The first thing that is wrong; "": nothing. */
static err_code find_damage(sqlite3 *db, char out[256], err *e)
{
    sql q;
    out[0] = 0;
    sql_begin(&q, db, "PRAGMA quick_check(1)");
    if (sql_row(&q)) sql_col_text(&q, 0, out, 256);
    if (strcmp(out, "ok") == 0) out[0] = 0;
    err_code rc = sql_end(&q, "check the database", e);
    if (rc == ERR_CORRUPT) snprintf(out, 256, "%s", e->msg);
    return rc == ERR_CORRUPT ? ERR_NONE : rc;
}

static void check_once(self_check *c)
{
    char what[256];
    sqlite3 *db = NULL;
    err e;
    int rc = sqlite3_open_v2(c->path, &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL);
    err_code code = rc == SQLITE_OK ? ERR_NONE : sql_error(db, rc, "check the database", &e);
    if (!code) {
        sqlite3_progress_handler(db, LOOK_EVERY, see_stop, c);
        code = find_damage(db, what, &e);
    }
    sqlite3_close(db);
    if (atomic_load(&c->stop)) return;
    if (code) {
        log_warn("storage", "%s", e.msg); /* not known: the next check may say */
        return;
    }
    if (what[0])
        log_error("storage", "the database is damaged: %s; restore a backup (docs/howto/backup.md)",
                  what);
    atomic_store(&c->damaged, what[0] != 0);
    atomic_store(&c->checked_wall_us, clock_wall_us());
}

static void *check_main(void *self)
{
    self_check *c = self;
    (void)pthread_setname_np(pthread_self(), "self-check");
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS);
    while (!atomic_load(&c->stop)) {
        check_once(c);
        int64_t until_us = clock_now_us() + c->every_us;
        lock_take(&c->mu);
        while (!atomic_load(&c->stop) && clock_now_us() < until_us)
            (void)cond_wait_until(&c->wake, &c->mu, until_us);
        lock_release(&c->mu);
    }
    return NULL;
}

err_code self_check_start(self_check **out, store *st, int64_t every_us, err *e)
{
    self_check *c = calloc(1, sizeof(*c));
    *out = NULL;
    if (!c) return err_set(e, ERR_NOMEM, "out of memory");
    snprintf(c->path, sizeof(c->path), "%s/lorad.db", store_dir(st));
    c->every_us = every_us;
    lock_init(&c->mu, LOCK_SELF_CHECK);
    cond_init(&c->wake);
    if (pthread_create(&c->thread, NULL, check_main, c) == 0) {
        *out = c;
        return ERR_NONE;
    }
    cond_free(&c->wake);
    lock_free(&c->mu);
    free(c);
    return err_set(e, ERR_NOMEM, "cannot start the thread that checks the database");
}

void self_check_stop(self_check *c)
{
    if (!c) return;
    lock_take(&c->mu);
    atomic_store(&c->stop, true);
    cond_broadcast(&c->wake);
    lock_release(&c->mu);
    (void)pthread_join(c->thread, NULL);
    cond_free(&c->wake);
    lock_free(&c->mu);
    free(c);
}

void self_check_get(const self_check *c, self_check_state *out)
{
    *out = (self_check_state){0};
    if (!c) return;
    out->damaged = atomic_load(&c->damaged);
    out->checked_wall_us = atomic_load(&c->checked_wall_us);
}
