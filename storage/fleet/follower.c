/* follower.c -- the thread that applies other nodes' changes to this node's mirror and caches.
 *
 *   NOTIFY or 250 ms --> look at the journal --> read changes --> writer thread applies them
 *                                            --> refresh the cached tenants, keys and adapters
 *
 * The poll is a safety net: a notification can be lost with its session. The database is written by
 * the store's writer only, as a job of this node's own (apply_batch()); the writer may have applied
 * some of the changes in a turn of its own, so sequence numbers that the mirror has are skipped.
 *
 * Caches are refreshed afterwards, here: each takes its own lock of changes, so a local change that
 * is between its write and its publication is waited for. What fails is kept and retried in the
 * next round.
 *
 * A node whose position is older than the first kept change takes a snapshot instead. When the
 * newest snapshot is SNAPSHOT_EVERY changes old, the first node that gets the lock writes one, and
 * old changes are deleted. Once per second the thread sends a heartbeat.
 *
 * Threads: its own, with its own PostgreSQL session; `mu` of the fleet guards what it shares.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "storage/fleet/fleet_inside.h"

enum {
    LOOK_US = 250000, /* interval of polls for changes */
    HURRY_US = 20000, /* least time between polls that fleet_catch_up() starts */
    AWAY_LOOK_US = 500000,
    BEAT_US = 1000000,
    APPLY_PATIENCE_US = 5000000,
    SNAPSHOT_EVERY = 10000 /* changes */
};

/* ---- apply ---------------------------------------------------------------------------------- */

typedef struct batch { /* changes that were read, and then a job of the writer */
    int64_t seq[READ_AT_ONCE];
    void *bytes[READ_AT_ONCE];
    int length[READ_AT_ONCE], n;
    bool whole; /* bytes[0] is a snapshot */
    touched_list touched;
    int64_t applied;
} batch;

static err_code keep(void *self, int64_t seq, const void *bytes, int n, err *e)
{
    batch *b = self;
    if (b->n == READ_AT_ONCE) return ERR_NONE;
    assert(n >= 0);
    void *copy = malloc((size_t)n + 1);
    if (!copy) return err_set(e, ERR_NOMEM, "out of memory");
    memcpy(copy, bytes, (size_t)n);
    b->bytes[b->n] = copy;
    b->length[b->n] = n;
    b->seq[b->n++] = seq;
    return ERR_NONE;
}

/* On the writer's thread.  The writer may have applied some of them in a turn of its own. */
static err_code apply_batch(sqlite3 *db, void *arg, err *e)
{
    batch *b = arg;
    bool joined;
    replay r = {.db = db, .touched = &b->touched};
    err_code rc = mirror_position(db, &joined, &r.seq, e);
    b->touched.n = 0; /* left by an attempt that was rolled back */
    if (!rc && b->whole && r.seq < b->seq[0]) {
        rc = replay_snapshot(db, b->seq[0], b->bytes[0], b->length[0], &b->touched, e);
        b->applied = b->seq[0];
        return rc;
    }
    for (int i = 0; !rc && !b->whole && i < b->n; i++)
        rc = replay_one(&r, b->seq[i], b->bytes[i], b->length[i], e);
    b->applied = r.seq;
    return rc ? rc : mirror_move(db, r.seq, e);
}

/* Applies and frees what was read; *applied: the mirror's position. */
static err_code apply(fleet *f, batch *b, int64_t *applied, err *e)
{
    err_code rc = store_write_within(f->st, apply_batch, b, APPLY_PATIENCE_US, e);
    for (int i = 0; i < b->n; i++) free(b->bytes[i]);
    if (!rc) {
        *applied = b->applied;
        fleet_touch(f, &b->touched);
        lock_take(&f->mu);
        if (b->applied > f->applied) f->applied = b->applied;
        lock_release(&f->mu);
    } else if (rc == ERR_IO) {
        rc = err_set(e, ERR_BUSY, "this node's copy of the fleet's data cannot be written");
    }
    touched_clear(&b->touched);
    return rc;
}

static err_code apply_snapshot(fleet *f, int64_t *applied, err *e)
{
    batch b = {.whole = true, .n = 1};
    err_code rc = f->reader->get_snapshot(f->reader, &b.seq[0], &b.bytes[0], &b.length[0], e);
    return rc ? rc : apply(f, &b, applied, e);
}

static err_code position(fleet *f, int64_t *at, err *e)
{
    bool joined;
    sqlite3 *db = store_read_begin(f->st);
    err_code rc = mirror_position(db, &joined, at, e);
    store_read_end(f->st, db);
    return rc;
}

/* at: the mirror's position before the look, which the journal (written first) therefore has; the
 * writer may be further by now. */
static err_code apply_news(fleet *f, const journal_state *s, int64_t at, err *e)
{
    err_code rc = ERR_NONE;
    if (at > s->last_seq)
        rc = err_set(e, ERR_CONFLICT,
                     "the fleet's journal is older than this mirror: an older "
                     "copy was restored");
    while (!rc && at < s->last_seq) {
        batch b = {0};
        int64_t before = at;
        if (at + 1 < s->first_seq) {
            rc = apply_snapshot(f, &at, e);
        } else {
            rc = f->reader->read(f->reader, at, READ_AT_ONCE, keep, &b, e);
            if (!rc)
                rc = apply(f, &b, &at, e);
            else
                for (int i = 0; i < b.n; i++) free(b.bytes[i]);
        }
        if (!rc && at == before) rc = err_set(e, ERR_CONFLICT, "the fleet's journal has a gap");
    }
    return rc;
}

/* ---- show ----------------------------------------------------------------------------------- */

static err_code show_adapter(fleet *f, uint64_t id, err *e)
{
    err_code rc = ERR_NONE;
    lock_take(&f->mu);
    err_code (*fn)(void *self, uint64_t adapter_id, err *e) = f->on_adapter;
    void *self = f->on_adapter_self;
    f->showing = true;
    lock_release(&f->mu);
    if (fn) rc = fn(self, id, e);
    lock_take(&f->mu);
    f->showing = false;
    cond_broadcast(&f->shown);
    lock_release(&f->mu);
    return rc;
}

static err_code show(fleet *f, const touched *t, err *e)
{
    if (t->kind == TOUCHED_TENANT) return tenant_cache_refresh(f->st, t->id, e);
    if (t->kind == TOUCHED_KEY) return key_cache_refresh(f->st, t->id, e);
    return show_adapter(f, t->id, e);
}

static bool same_as_one_before(const touched_list *t, size_t i)
{
    for (size_t k = i > 64 ? i - 64 : 0; k < i; k++)
        if (t->item[k].kind == t->item[i].kind && t->item[k].id == t->item[i].id) return true;
    return false;
}

static void show_touched(fleet *f)
{
    err why;
    lock_take(&f->mu);
    touched_list t = f->touched;
    f->touched = (touched_list){0};
    lock_release(&f->mu);
    for (size_t i = 0; i < t.n; i++) {
        if (same_as_one_before(&t, i) || show(f, &t.item[i], &why) == ERR_NONE) continue;
        log_warn("fleet", "a change by another node is not visible here yet: %s", why.msg);
        touched_list again = {.item = &t.item[i], .n = 1};
        lock_take(&f->mu);
        if (touched_move(&f->touched, &again, &why)) abort(); /* it would stay stale for ever */
        lock_release(&f->mu);
    }
    touched_clear(&t);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Writes a snapshot under the journal's lock; the other nodes that see it due find it done. */
static err_code snapshot(fleet *f, err *e)
{
    char path[4160];
    changes all;
    int64_t seq;
    journal_state s;
    journal *j = f->reader;
    snprintf(path, sizeof path, "%s/lorad.db", store_dir(f->st));
    err_code rc = changes_of_all(path, &all, &seq, e);
    if (!rc) rc = j->look(j, true, &s, e);
    if (!rc && s.epoch == atomic_load(&f->epoch) && seq - s.snapshot_seq >= SNAPSHOT_EVERY) {
        rc = j->put_snapshot(j, seq, all.bytes, all.n, DEAD_AFTER_US, e);
        if (!rc) rc = j->commit(j, e);
        if (!rc) log_info("fleet", "a snapshot of change %lld is kept", (long long)seq);
    }
    j->undo(j);
    changes_clear(&all);
    return rc;
}

static err_code beat(fleet *f, err *e)
{
    int64_t now_us = clock_now_us();
    if (now_us - f->beat_us < BEAT_US) return ERR_NONE;
    f->beat_us = now_us;
    lock_take(&f->mu);
    int64_t applied = f->applied;
    lock_release(&f->mu);
    bool drain;
    err_code rc = f->reader->beat(f->reader, atomic_load(&f->epoch), applied, false, &drain, e);
    lock_take(&f->mu);
    f->drain |= drain;
    lock_release(&f->mu);
    return rc;
}

static err_code follow_once(fleet *f, err *e)
{
    int64_t at;
    journal_state s;
    journal *j = f->reader;
    err_code rc = j->open(j, e);
    if (!rc && atomic_load(&f->epoch) == 0) rc = fleet_claim(f, j, e);
    if (!rc) rc = position(f, &at, e);
    if (!rc) rc = j->look(j, false, &s, e);
    if (!rc) rc = fleet_check(f, &s, e);
    if (!rc) fleet_away(f, false);
    if (!rc) rc = apply_news(f, &s, at, e);
    if (!rc) rc = beat(f, e);
    if (!rc && s.last_seq - s.snapshot_seq >= SNAPSHOT_EVERY) rc = snapshot(f, e);
    return rc;
}

static void tell(fleet *f, err_code rc, const err *why)
{
    if (rc == ERR_IO) fleet_away(f, true);
    if (rc && rc != ERR_IO && strcmp(f->told, why->msg) != 0) log_error("fleet", "%s", why->msg);
    snprintf(f->told, sizeof f->told, "%s", rc != ERR_NONE ? why->msg : "");
}

static bool stopping(fleet *f)
{
    lock_take(&f->mu);
    bool stop = f->stop;
    lock_release(&f->mu);
    return stop;
}

static void round_begins(fleet *f)
{
    uint64_t n;
    (void)!read(f->wake_fd, &n, sizeof n);
    lock_take(&f->mu);
    f->begun++;
    lock_release(&f->mu);
}

static void round_ends(fleet *f)
{
    lock_take(&f->mu);
    assert(f->done <= f->begun);
    f->done = f->begun;
    cond_broadcast(&f->shown);
    lock_release(&f->mu);
}

void fleet_catch_up(fleet *f, int64_t patience_us)
{
    uint64_t one = 1;
    int64_t now_us = clock_now_us(), end_us = now_us + patience_us;
    lock_take(&f->mu);
    int64_t wanted = f->begun + 1; /* one that begins after this moment */
    bool hurry = f->away_us == 0 && now_us - f->hurried_us >= HURRY_US;
    if (hurry) f->hurried_us = now_us;
    if (hurry) (void)!write(f->wake_fd, &one, sizeof(one));
    while (f->away_us == 0 && !f->stop && f->done < wanted &&
           cond_wait_until(&f->shown, &f->mu, end_us)) {
    }
    lock_release(&f->mu);
}

static void *follower_main(void *arg)
{
    fleet *f = arg;
    err why;
    while (!stopping(f)) {
        round_begins(f);
        show_touched(f); /* the writer's own turns may have applied some: no need to wait for the
                          * network */
        err_code rc = follow_once(f, &why);
        tell(f, rc, &why);
        show_touched(f);
        round_ends(f);
        f->reader->wait(f->reader, f->wake_fd, rc ? AWAY_LOOK_US : LOOK_US);
    }
    return NULL;
}

err_code fleet_follow(fleet *f, err *e)
{
    if (pthread_create(&f->thread, NULL, follower_main, f) != 0)
        return err_set(e, ERR_NOMEM, "cannot start the fleet's thread");
    f->runs = true;
    return books_start(&f->books, f->st, f, e);
}

void fleet_stop(fleet *f)
{
    uint64_t one = 1;
    if (!f || !f->runs) return;
    books_stop(f->books);
    f->books = NULL;
    lock_take(&f->mu);
    f->stop = true;
    lock_release(&f->mu);
    (void)!write(f->wake_fd, &one, sizeof(one));
    pthread_join(f->thread, NULL);
    f->runs = false;
}
