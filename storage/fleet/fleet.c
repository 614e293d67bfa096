/* fleet.c -- state machine replication: a node's SQLite mirror follows the fleet's journal in
 * PostgreSQL. This file joins a fleet and runs the writer's part.
 *
 * A write, within one SQLite transaction (fleet_begin() .. fleet_end()):
 *
 *   1. lock the journal (row lock), check that this node still owns its number
 *   2. apply all changes that the mirror has not seen
 *   3. record what the jobs change (SQLite session)
 *   4. append the changeset as number seq + 1, commit the journal, then commit SQLite
 *
 * The journal's commit decides. A crash after it is repaired by reading the journal: this node's
 * own change is in it. If the session breaks during that commit, settle_doubt() reconnects and
 * looks whether the change is there.
 *
 * Fencing: each claim of a node number raises its epoch. A node that sees another epoch stops
 * writing until it is restarted (`fenced`).
 *
 * While the journal does not answer (`away_us`), writes fail at once and reads continue from the
 * mirror. Threads: fleet_begin() .. fleet_end() on the store's writer; the rest as fleet.h says.
 * `mu` guards the shared state.
 */
#include "storage/fleet/fleet.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "storage/digest.h"
#include "storage/fleet/fleet_inside.h"

/* ---- the mirror -------------------------------------------------------------------------- */

err_code mirror_position(sqlite3 *db, bool *joined, int64_t *seq, err *e)
{
    sql q;
    sql_begin(&q, db, "SELECT seq FROM fleet");
    *joined = sql_row(&q);
    *seq = *joined ? sql_col_int(&q, 0) : 0;
    return sql_end(&q, "read the mirror's position", e);
}

err_code mirror_move(sqlite3 *db, int64_t seq, err *e)
{
    sql q;
    sql_begin(&q, db, "UPDATE fleet SET seq=?");
    sql_int(&q, seq);
    return sql_done(&q, "move the mirror's position", e);
}

static err_code mirror_identity(sqlite3 *db, fleet *f, bool *joined, err *e)
{
    sql q;
    sql_begin(&q, db, "SELECT cluster, instance FROM fleet");
    *joined = sql_row(&q) && sql_col_blob(&q, 0, f->cluster, CLUSTER_BYTES) &&
              sql_col_blob(&q, 1, f->me.instance, CLUSTER_BYTES);
    return sql_end(&q, "read the mirror's identity", e);
}

static err_code mirror_make(sqlite3 *db, const fleet *f, err *e)
{
    sql q;
    sql_begin(&q, db, "INSERT INTO fleet VALUES(1, ?, ?, 0)");
    sql_blob(&q, f->cluster, CLUSTER_BYTES);
    sql_blob(&q, f->me.instance, CLUSTER_BYTES);
    return sql_done(&q, "make the mirror", e);
}

err_code replay_one(void *self, int64_t seq, const void *bytes, int n, err *e)
{
    replay *r = self;
    if (seq <= r->seq) return ERR_NONE;
    if (seq != r->seq + 1)
        return err_set(e, ERR_CONFLICT, "the fleet's journal has no change %lld any more",
                       (long long)r->seq + 1);
    err_code rc = changes_apply(r->db, bytes, n, r->touched, e);
    if (!rc) r->seq = seq;
    return rc;
}

err_code replay_snapshot(sqlite3 *db, int64_t seq, const void *bytes, int n, touched_list *t,
                         err *e)
{
    assert(seq >= 0 && n >= 0);
    int rc = sqlite3_exec(db, "PRAGMA defer_foreign_keys=ON", NULL, NULL, NULL);
    err_code code = rc == SQLITE_OK ? changes_empty(db, t, e) : sql_error(db, rc, "join", e);
    if (code == ERR_NONE) code = changes_apply(db, bytes, n, t, e);
    return code == ERR_NONE ? mirror_move(db, seq, e) : code;
}

static err_code exec(sqlite3 *db, const char *text, err *e)
{
    int rc = sqlite3_exec(db, text, NULL, NULL, NULL);
    return rc == SQLITE_OK ? ERR_NONE : sql_error(db, rc, "write the mirror", e);
}

/* Commits, or undoes what a failure left. */
static err_code finish(sqlite3 *db, err_code code, err *e)
{
    if (code == ERR_NONE) code = exec(db, "COMMIT", e);
    if (code != ERR_NONE && !sqlite3_get_autocommit(db))
        (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    return code;
}

/* ---- who may do what ---------------------------------------------------------------------- */

err_code fleet_check(fleet *f, const journal_state *s, err *e)
{
    int64_t epoch = atomic_load(&f->epoch);
    if (memcmp(s->cluster, f->cluster, CLUSTER_BYTES) != 0)
        return err_set(e, ERR_CONFLICT,
                       "the data directory belongs to another fleet than storage.database");
    if (s->schema > STORE_SCHEMA_VERSION)
        return err_set(
            e, ERR_CONFLICT,
            "the fleet's database has schema %d; this program knows %d: use a newer lorad",
            s->schema, STORE_SCHEMA_VERSION);
    lock_take(&f->mu);
    bool was = f->fenced;
    f->fenced |= epoch != 0 && s->epoch != epoch;
    f->last_seq = s->last_seq;
    bool fenced = f->fenced;
    lock_release(&f->mu);
    if (fenced && !was)
        log_error("fleet",
                  "server.node = %d was taken by another server: this one does not write "
                  "any more until it is started again",
                  f->node);
    return ERR_NONE;
}

/* Claims the node number, in its own transaction. */
err_code fleet_claim(fleet *f, journal *j, err *e)
{
    journal_state s;
    int64_t epoch = 0;
    err_code rc = j->look(j, true, &s, e);
    if (!rc) rc = fleet_check(f, &s, e);
    if (!rc) rc = j->claim(j, &f->me, &epoch, e);
    if (!rc) rc = j->commit(j, e);
    j->undo(j);
    if (!rc) atomic_store(&f->epoch, epoch);
    return rc;
}

void fleet_away(fleet *f, bool away)
{
    lock_take(&f->mu);
    bool was = f->away_us != 0;
    if (away && !was) f->away_us = clock_now_us();
    if (!away) f->away_us = 0;
    lock_release(&f->mu);
    if (away && !was)
        log_warn("fleet",
                 "the fleet's database does not answer: reads continue, changes are refused");
    if (!away && was) log_info("fleet", "the fleet's database is back");
}

void fleet_touch(fleet *f, touched_list *fresh)
{
    uint64_t one = 1;
    err why;
    lock_take(&f->mu);
    err_code rc = touched_move(&f->touched, fresh, &why);
    lock_release(&f->mu);
    if (rc) { /* a cached row would stay stale for ever */
        log_error("fleet", "no memory to show what other nodes changed");
        abort();
    }
    (void)!write(f->wake_fd, &one, sizeof(one));
}

/* ---- a turn ------------------------------------------------------------------------------- */

err_code fleet_answers(fleet *f, err *e)
{
    lock_take(&f->mu);
    bool away = f->away_us != 0, fenced = f->fenced;
    lock_release(&f->mu);
    if (fenced)
        return err_set(e, ERR_IO,
                       "another server has taken this server's number: this one must not write");
    if (away || atomic_load(&f->epoch) == 0)
        return err_set(e, ERR_IO, "the fleet's database does not answer: try again");
    return ERR_NONE;
}

static err_code catch_up(fleet *f, journal *j, sqlite3 *db, const journal_state *s, err *e)
{
    bool joined;
    err_code rc = mirror_position(db, &joined, &f->seq, e);
    if (!rc && f->seq > s->last_seq)
        rc = err_set(e, ERR_CONFLICT,
                     "the fleet's journal ends at %lld, before this mirror's %lld: an older copy "
                     "was restored",
                     (long long)s->last_seq, (long long)f->seq);
    replay r = {db, f->seq, &f->fresh};
    while (!rc && r.seq < s->last_seq) {
        int64_t before = r.seq;
        rc = j->read(j, r.seq, READ_AT_ONCE, replay_one, &r, e);
        if (!rc && r.seq == before)
            rc = err_set(e, ERR_CONFLICT, "the fleet's journal has a gap at %lld",
                         (long long)before + 1);
    }
    if (!rc && r.seq != f->seq) rc = mirror_move(db, r.seq, e);
    f->seq = r.seq;
    return rc;
}

err_code fleet_begin(fleet *f, sqlite3 *db, err *e)
{
    journal_state s;
    journal *j = f->writer;
    assert(!f->recording);
    f->published = false;
    err_code rc = fleet_answers(f, e);
    if (rc) return rc;
    /* An outage may have ended the session, which only shows when it is used: then retry with a new
     * one. */
    int64_t begin_us = clock_now_us();
    for (int left = 2; left > 0 && clock_now_us() - begin_us < QUICK_US; left--) {
        rc = j->open(j, e);
        if (!rc) rc = j->look(j, true, &s, e);
        if (rc != ERR_IO) break;
    }
    if (rc == ERR_IO) fleet_away(f, true);
    if (!rc) rc = fleet_check(f, &s, e);
    if (!rc) rc = fleet_answers(f, e);
    if (!rc) rc = catch_up(f, j, db, &s, e);
    if (!rc) rc = recording_start(&f->recording, db, e);
    return rc;
}

typedef struct resolve {
    const changes *mine;
    bool there;
} resolve;

static err_code is_mine(void *self, int64_t seq, const void *bytes, int n, err *e)
{
    (void)seq, (void)e;
    resolve *r = self;
    r->there = n == r->mine->n && memcmp(bytes, r->mine->bytes, (size_t)n) == 0;
    return ERR_NONE;
}

/* The session was lost during its commit. Taking the lock again shows whether the change is there.
 */
static err_code settle_doubt(fleet *f, int64_t seq, const changes *mine, err *e)
{
    journal *j = f->writer;
    journal_state s;
    resolve r = {.mine = mine};
    if (j->open(j, NULL) == ERR_NONE && j->look(j, true, &s, NULL) == ERR_NONE)
        (void)j->read(j, seq - 1, 1, is_mine, &r, NULL);
    j->undo(j);
    if (r.there) return ERR_NONE;
    fleet_away(f, true);
    return e->code;
}

err_code fleet_commit(fleet *f, sqlite3 *db, err *e)
{
    assert(f->recording);
    changes c;
    journal *j = f->writer;
    err_code rc = recording_take(f->recording, &c, e);
    if (!rc && c.n > 0) {
        rc = j->append(j, f->seq + 1, c.bytes, c.n, e);
        if (rc == ERR_IO) fleet_away(f, true);
        if (!rc) rc = mirror_move(db, f->seq + 1, e);
        if (!rc && (rc = j->commit(j, e)) == ERR_IO) rc = settle_doubt(f, f->seq + 1, &c, e);
        if (!rc) f->published = true;
        if (!rc) f->seq++;
    }
    changes_clear(&c);
    return rc;
}

void fleet_end(fleet *f, bool ok)
{
    recording_end(f->recording);
    f->recording = NULL;
    f->writer->undo(f->writer);
    if (ok && f->fresh.n > 0) fleet_touch(f, &f->fresh);
    f->fresh.n = 0;
    if (!ok) return;
    lock_take(&f->mu);
    f->applied = f->seq;
    if (f->last_seq < f->seq) f->last_seq = f->seq;
    lock_release(&f->mu);
}

bool fleet_published(const fleet *f)
{
    return f->published;
}

/* ---- life ---------------------------------------------------------------------------------- */

static err_code make(fleet **out, store *st, const journal_source *from, int node, err *e)
{
    fleet *f = *out = calloc(1, sizeof(*f));
    if (!f) return err_set(e, ERR_NOMEM, "out of memory");
    f->st = st;
    f->node = node;
    lock_init(&f->mu, LOCK_FLEET);
    for (int i = 0; i < DESKS; i++) lock_init(&f->desk[i].mu, LOCK_FLEET_DESK);
    cond_init(&f->shown);
    f->me.dead_after_us = DEAD_AFTER_US;
    f->me.schema = STORE_SCHEMA_VERSION;
    if (gethostname(f->me.name, NODE_NAME_MAX) != 0) f->me.name[0] = 0;
    f->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->wake_fd < 0) return err_set(e, ERR_IO, "no descriptor for the fleet");
    err_code rc = from->make(from->self, node, &f->writer, e);
    if (!rc) rc = from->make(from->self, node, &f->reader, e);
    for (int i = 0; !rc && i < DESKS; i++) rc = from->make(from->self, node, &f->desk[i].j, e);
    return rc;
}

/* Fills a fresh directory with the newest snapshot. */
static err_code join(fleet *f, sqlite3 *db, const journal_state *s, err *e)
{
    bool any;
    int64_t seq = 0;
    void *image = NULL;
    int n = 0;
    err_code rc = changes_any(db, &any, e);
    if (!rc && any)
        return err_set(e, ERR_CONFLICT,
                       "the data directory has tenants or keys of its own; a server joins a fleet "
                       "with an empty one");
    memcpy(f->cluster, s->cluster, CLUSTER_BYTES);
    random_bytes(f->me.instance, CLUSTER_BYTES);
    if (!rc) rc = f->writer->get_snapshot(f->writer, &seq, &image, &n, e);
    if (!rc) rc = exec(db, "BEGIN IMMEDIATE", e);
    if (!rc) rc = mirror_make(db, f, e);
    if (!rc) rc = replay_snapshot(db, seq, image, n, &f->fresh, e);
    free(image);
    return finish(db, rc, e);
}

static err_code open_there(fleet *f, sqlite3 *db, bool joined, err *e)
{
    journal_state s;
    journal *j = f->writer;
    err_code rc = j->open(j, e);
    if (!rc) rc = j->look(j, false, &s, e);
    if (!rc && !joined) rc = join(f, db, &s, e);
    if (!rc) rc = fleet_check(f, &s, e);
    if (!rc) rc = fleet_claim(f, j, e);
    if (!rc && s.first_seq > 0) {
        int64_t position;
        rc = mirror_position(db, &joined, &position, e);
        if (!rc && position + 1 < s.first_seq)
            return ERR_NONE; /* too far behind: the follower
                                                                 * applies a snapshot */
    }
    if (!rc) rc = exec(db, "BEGIN IMMEDIATE", e);
    if (!rc) rc = finish(db, catch_up(f, j, db, &s, e), e);
    return rc;
}

err_code fleet_open(fleet **out, store *st, sqlite3 *db, const journal_source *from, int node,
                    err *e)
{
    bool joined = false;
    err_code rc = make(out, st, from, node, e);
    fleet *f = *out;
    if (!rc) rc = mirror_identity(db, f, &joined, e);
    if (!rc) rc = open_there(f, db, joined, e);
    if (rc == ERR_IO && joined) {
        fleet_away(f, true);
        rc = ERR_NONE;
    }
    if (!rc) {
        log_info("fleet", "node %d of a fleet, at change %lld", node, (long long)f->seq);
        f->applied = f->seq;
        f->fresh.n = 0; /* the caches are loaded later */
    }
    return rc;
}

static err_code give_all(fleet *f, sqlite3 *db, const changes *all, err *e)
{
    journal *j = f->writer;
    err_code rc = j->open(j, e);
    if (!rc) rc = j->create(j, f->cluster, STORE_SCHEMA_VERSION, e);
    if (!rc) rc = j->put_snapshot(j, 0, all->bytes, all->n, DEAD_AFTER_US, e);
    if (!rc) rc = exec(db, "BEGIN IMMEDIATE", e);
    if (!rc) rc = mirror_make(db, f, e);
    if (!rc) rc = books_found(db, j, e);
    /* Commit the journal first: a directory that claims to be in a fleet that does not exist could
     * not start. */
    if (!rc) rc = j->commit(j, e);
    j->undo(j);
    return finish(db, rc, e);
}

err_code fleet_found(store *st, sqlite3 *db, const journal_source *to, int node, err *e)
{
    fleet *f = NULL;
    bool joined = false;
    int64_t seq;
    changes all = {0};
    char path[4160];
    snprintf(path, sizeof path, "%s/lorad.db", store_dir(st));
    err_code rc = make(&f, st, to, node, e);
    if (!rc) rc = mirror_identity(db, f, &joined, e);
    if (!rc && joined) rc = err_set(e, ERR_CONFLICT, "this data directory is in a fleet already");
    if (!rc) rc = changes_of_all(path, &all, &seq, e);
    if (!rc) {
        random_bytes(f->cluster, CLUSTER_BYTES);
        random_bytes(f->me.instance, CLUSTER_BYTES);
        rc = give_all(f, db, &all, e);
    }
    changes_clear(&all);
    fleet_close(f);
    return rc;
}

void fleet_close(fleet *f)
{
    if (!f) return;
    fleet_stop(f);
    journal *j = f->reader;
    bool claimed = j != NULL && atomic_load(&f->epoch) != 0;
    bool drain;
    if (claimed && f->away_us == 0 && j->open(j, NULL) == ERR_NONE)
        (void)j->beat(j, atomic_load(&f->epoch), f->applied, true, &drain, NULL);
    if (f->writer) f->writer->close(f->writer);
    if (f->reader) f->reader->close(f->reader);
    for (int i = 0; i < DESKS; i++) {
        if (f->desk[i].j) f->desk[i].j->close(f->desk[i].j);
        lock_free(&f->desk[i].mu);
    }
    touched_clear(&f->fresh);
    touched_clear(&f->touched);
    if (f->wake_fd >= 0) close(f->wake_fd);
    cond_free(&f->shown);
    lock_free(&f->mu);
    free(f);
}

void fleet_stats(fleet *f, store_fleet_stats *out)
{
    lock_take(&f->mu);
    out->member = true;
    out->fenced = f->fenced;
    out->drain = f->drain;
    out->away_us = f->away_us != 0 ? clock_now_us() - f->away_us : 0;
    out->applied = f->applied;
    out->behind = f->last_seq > f->applied ? f->last_seq - f->applied : 0;
    lock_release(&f->mu);
}

int fleet_node(const fleet *f)
{
    return f->node;
}

int64_t fleet_epoch(const fleet *f)
{
    return atomic_load(&f->epoch);
}

void fleet_instance(const fleet *f, char out[2 * CLUSTER_BYTES + 1])
{
    for (int i = 0; i < CLUSTER_BYTES; i++)
        snprintf(out + (size_t)(2 * i), 3, "%02x", f->me.instance[i]);
}

int64_t fleet_next_turn(fleet *f)
{
    return atomic_fetch_add(&f->turn, 1) + 1;
}

err_code fleet_query(fleet *f, fleet_desk desk, const char *text, const char *const *values,
                     int n_values, journal_row each, void *self, err *e)
{
    assert((unsigned)desk < DESKS && n_values >= 0);
    /* Retry as in fleet_begin(), except for leases, whose queries are numbered. */
    int left = desk == DESK_LEASES ? 1 : 2;
    int64_t begin_us = clock_now_us();
    err_code rc;
    lock_take(&f->desk[desk].mu);
    journal *j = f->desk[desk].j;
    do {
        rc = fleet_answers(f, e);
        if (!rc) rc = j->open(j, e);
        if (!rc) rc = j->query(j, text, values, n_values, each, self, e);
    } while (rc == ERR_IO && --left > 0 && clock_now_us() - begin_us < QUICK_US);
    lock_release(&f->desk[desk].mu);
    return rc;
}

void fleet_on_adapter(fleet *f, err_code (*fn)(void *self, uint64_t adapter_id, err *e), void *self)
{
    lock_take(&f->mu);
    while (f->showing) cond_wait(&f->shown, &f->mu);
    f->on_adapter = fn;
    f->on_adapter_self = self;
    lock_release(&f->mu);
}
