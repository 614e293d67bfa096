/* meter_file.h -- the meters of running requests, in a file that outlives kill -9.
 *
 * <dir>/meters holds fixed slots, mapped shared.  A worker takes a slot before it submits a
 * request; the engine counts in the slot's meter; the worker settles the request into the ledger
 * and gives the slot back.  Slots still in use when the file is opened belong to requests that
 * a crash cut short: they are settled into the ledger then, with `recovered`, before anyone can
 * take a slot.  (The ledger's unique request id makes a crash between settle and release harmless.)
 *
 * Threads: acquire and release from any thread; open and close at start and end.
 */
#ifndef STORAGE_METER_FILE_H
#define STORAGE_METER_FILE_H

#include <stdint.h>

#include "engine/base/meter.h"
#include "storage/ledger.h"
#include "storage/store.h"

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
} meter_owner;

/* Opens or makes the file with `n_slots` slots, settling what a crash left (*n_recovered, may be
 * NULL).  `st` is borrowed until close. */
err_code meter_file_open(meter_file **out, store *st, int n_slots, int *n_recovered, err *e);
/* All slots must be back; those that are not stay in the file and are settled at the next open. */
void meter_file_close(meter_file *mf);

/* ERR_BUSY when all slots are taken. */
err_code meter_file_acquire(meter_file *mf, const meter_owner *owner, meter_slot **out, err *e);
/* The counters that the engine raises; zero at first. */
meter *meter_slot_meter(meter_slot *slot);
/* Only after the request is settled (or never reached the engine). */
void meter_file_release(meter_file *mf, meter_slot *slot);

/* Slots in use. */
int meter_file_in_use(meter_file *mf);

#endif
