/* fleet_inside.h -- what fleet.c and follower.c share: the node's state.  Private to them. */
#ifndef STORAGE_FLEET_FLEET_INSIDE_H
#define STORAGE_FLEET_FLEET_INSIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/base/lock.h"
#include "storage/fleet/books.h"
#include "storage/fleet/changes.h"
#include "storage/fleet/fleet.h"

enum { DEAD_AFTER_US = 10000000, QUICK_US = 500000, READ_AT_ONCE = 256 };

struct desk {
    lock mu; /* over each question and its answer */
    journal *j;
};

struct fleet {
    store *st;
    int node;
    journal *writer, *reader; /* the writer thread's session, the follower's */
    journal_claim me;
    uint8_t cluster[CLUSTER_BYTES];
    _Atomic int64_t epoch; /* 0: the number is not taken yet */
    _Atomic int64_t turn;
    books *books;
    struct desk desk[DESKS];

    /* the writer's turn */
    recording *recording;
    int64_t seq; /* position that the transaction brings the mirror to */
    bool published;
    touched_list fresh; /* of changes that this turn applied */

    /* the follower's */
    pthread_t thread;
    bool runs;
    int wake_fd;
    int64_t beat_us; /* time of the last heartbeat */
    char told[248];  /* the last problem that was logged */

    lock mu; /* guards all below */
    touched_list touched;
    bool stop, fenced, drain;
    int64_t away_us; /* since when (clock_now_us()); 0: it answers */
    int64_t applied, last_seq;
    int64_t begun, done; /* rounds of the follower */
    int64_t hurried_us;  /* when somebody last asked for one */
    bool showing;        /* on_adapter is being called */
    cond shown;
    err_code (*on_adapter)(void *self, uint64_t adapter_id, err *e);
    void *on_adapter_self;
};

/* The mirror's position: 0 with joined false where the directory is in no fleet. */
err_code mirror_position(sqlite3 *db, bool *joined, int64_t *seq, err *e);
err_code mirror_move(sqlite3 *db, int64_t seq, err *e);

/* Applies changes that follow one another to `seq`. */
typedef struct replay {
    sqlite3 *db;
    int64_t seq;
    touched_list *touched;
} replay;
err_code replay_one(void *self, int64_t seq, const void *bytes, int n, err *e);
/* Puts a snapshot in the place of all shared rows. */
err_code replay_snapshot(sqlite3 *db, int64_t seq, const void *bytes, int n, touched_list *t,
                         err *e);

/* May this node follow, and write?  ERR_CONFLICT says why it may not follow. */
err_code fleet_check(fleet *f, const journal_state *s, err *e);
err_code fleet_claim(fleet *f, journal *j, err *e);
void fleet_away(fleet *f, bool away);
/* Hands rows to the follower, which shows them, and wakes it. */
void fleet_touch(fleet *f, touched_list *fresh);

#endif
