/* settler.h -- the thread that writes ended slots of the meter file into the
 * ledger, for as long as it takes.
 *
 * A request ends with its row in its slot (meter_file.h), where kill -9 does not reach it.  The
 * settler takes all ended slots in the order of their ends, settles them in one transaction, and
 * frees them; what the database refuses stays and is tried again, after 100 ms first, then up to a
 * second, and once more at the stop.  An answer waits for the database only as long as a healthy
 * commit takes, and not at all while it is known to be behind: then the spool alone has the row.
 * Nothing here needs memory after the start.
 *
 * Ownership: borrows the store and the meter file, which outlive it.
 * Threads:   end, await and stats from any thread; start and stop at start and end.
 */
#ifndef STORAGE_SETTLER_H
#define STORAGE_SETTLER_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/meter_file.h"
#include "storage/store.h"

typedef struct settler settler;

/* Begins with the slots that the file held when it was opened. */
err_code settler_start(settler **out, store *st, meter_file *mf, err *e);
/* Tries what waits once more; what cannot be written stays in the file.  NULL is fine. */
void settler_stop(settler *s);

/* The request of this slot has ended with this row: the slot is the settler's.  Returns its
 * turn. */
uint64_t settler_end(settler *s, meter_slot *slot, const usage_row *row);
/* Until all turns up to this one are in the database, at most some 100 ms.
 * False: it stands in the spool. */
bool settler_await(settler *s, uint64_t turn);

typedef enum {
    SPOOL_OK,
    SPOOL_BEHIND, /* the database takes no rows, or too slowly: nobody waits for it */
    SPOOL_FULL    /* and there is room only for those that run */
} spool_state;

const char *spool_state_name(spool_state state); /* "ok", "behind", "full" */

typedef struct settler_stats {
    spool_state state;
    int n_spool, n_waiting; /* rows that fit; that wait */
    int64_t oldest_us;      /* how long the oldest of them has waited; 0: none */
    uint64_t n_failures;    /* transactions of rows that failed */
    char reason[160];       /* why the last of them failed; "": not behind */
} settler_stats;

void settler_stats_get(settler *s, settler_stats *out);

#endif
