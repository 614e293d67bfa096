/* meter_file.h -- the meters of running requests, and the usage of ended ones that is not in the
 * books yet, in a file that outlives kill -9.
 *
 * <dir>/meters holds fixed slots, mapped shared; its blocks are there from the start, so it never
 * meets a full disk.  A slot is free, used (a worker took it for a request, the engine counts in
 * its meter) or ended (it holds the whole usage row, which waits for the ledger).  Ended slots are
 * the spool: storage/settler.h writes them into the database and frees them.  Slots that are not
 * free when the file is opened belong to a process that is gone: ended ones are settled as they
 * are, used ones with what the engine had counted, `recovered`, before anyone can take a slot;
 * where the database refuses, they stay as ended ones.  (The ledger's unique request id makes a
 * crash between settling and freeing harmless.)
 *
 * Threads: open, recover and close at start and end; the rest from any thread,
 * each slot by its owner alone.
 */
#ifndef STORAGE_METER_FILE_H
#define STORAGE_METER_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/meter.h"
#include "storage/ledger.h"
#include "storage/store.h"

enum { METER_SLOT_BYTES = 576 };

typedef struct meter_file meter_file;
typedef struct meter_slot meter_slot;

/* What recovery must know; the same fields as in usage_row. */
typedef struct meter_owner {
    uint64_t request_id, tenant_id, key_id, adapter_id;
    int64_t started_wall_us;
    int choice; /* 0 for the first choice of a request; others don't pay the prompt again */
    char model[MODEL_LABEL_MAX + 1];
    char slo_class[32];
    char endpoint[32];
    token_price price; /* the row's cost follows from it; all 0 in slots of older versions */
} meter_owner;

/* Opens or makes the file: `n_running` slots for requests that run and `n_spool` for rows that
 * wait.  *n_settled (may be NULL): rows of a process before that are in the ledger now; what
 * the ledger did not take is kept, whatever the sizes are.  `st` is borrowed until close.
 * ERR_IO: no room for the file. */
err_code meter_file_open(meter_file **out, store *st, int n_running, int n_spool, int *n_settled,
                         err *e);
/* Slots that are not free stay in the file and are settled at the next open. */
void meter_file_close(meter_file *mf);

/* Settles what a file holds without opening it for requests; ERR_NONE also when there is none.  A
 * failure of the ledger is one of this call, and the file stays as it was. */
err_code meter_file_recover(store *st, int *n_settled, err *e);

/* A slot for a request.  ERR_BUSY: n_running are taken; ERR_IO: the spool is full. */
err_code meter_file_acquire(meter_file *mf, const meter_owner *owner, meter_slot **out, err *e);
/* The counters that the engine raises; zero at first. */
meter *meter_slot_meter(meter_slot *slot);
/* The request has ended: `row` stands in the slot when this returns, whatever happens to the
 * process.  Takes no memory and cannot fail. */
void meter_file_end(meter_file *mf, meter_slot *slot, const usage_row *row);
/* The row of an ended slot. */
void meter_slot_row(const meter_slot *slot, usage_row *out);
/* Frees a slot: its row is in the ledger, or it was taken for nothing. */
void meter_file_release(meter_file *mf, meter_slot *slot);

/* The first ended slot from number *i on, and *i behind it; NULL: no other.  At the start,
 * before there is a settler. */
meter_slot *meter_file_next_ended(meter_file *mf, int *i);
/* Numbers of slots, for lists of them. */
int meter_file_n_slots(const meter_file *mf);

/* The slot's number, from 0. */
int meter_file_index(const meter_file *mf, const meter_slot *slot);

/* The slot with a number below meter_file_n_slots(); it lies in the mapped file. */
meter_slot *meter_file_slot(meter_file *mf, int i);

typedef struct meter_file_stats {
    int n_running; /* slots that requests hold */
    int n_ended, n_spool;
    bool full; /* nobody gets a slot until rows are written: those that run need what is left */
} meter_file_stats;

/* Counts as of now; any thread. */
void meter_file_stats_get(meter_file *mf, meter_file_stats *out);

#endif
