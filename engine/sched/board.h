/* board.h -- what the scheduler shows of its queue to whoever asks, at no cost to a step.
 *
 * A reader asks and waits a little; the engine thread, at the end of an iteration in which somebody
 * has asked, copies its requests and its counters of fair sharing into memory that was allocated at
 * the start.  It never waits for a reader: while one copies, the board keeps its older picture.
 *
 * Ownership: the scheduler makes and frees it.
 * Threads:   board_wanted(), board_open(), board_close(): engine thread; board_read(): any other.
 */
#ifndef ENGINE_SCHED_BOARD_H
#define ENGINE_SCHED_BOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/miss.h"

typedef struct board board;

typedef struct board_row { /* one request in the scheduler */
    uint64_t id, tenant_id, adapter_id;
    int slo_class;
    bool running; /* has a seat and pages; else it waits */
    int n_prompt, n_computed, n_output, max_tokens, n_preempted, rank;
    int64_t arrived_us, admitted_us, first_token_us, last_token_us; /* monotonic; 0: not yet */
    int64_t ttft_deadline_us, tpot_target_us;
    miss_cause overdue; /* it waits, though its first token was due, by this; else MISS_NONE */
} board_row;

typedef struct board_share { /* one tenant's counter of fair sharing */
    uint64_t tenant_id;
    double served; /* tokens over weight */
    int active;    /* its requests in the scheduler */
} board_share;

typedef struct board_picture { /* a reader's copy; zeroed before the first use */
    board_row *row;
    board_share *share;
    int n_row, n_share;
    int64_t taken_us; /* monotonic; 0: there is none yet */
} board_picture;

/* When its next token is due, monotonic. */
int64_t board_due_us(const board_row *r);

/* NULL: out of memory. */
board *board_create(int cap_rows, int cap_shares);
void board_destroy(board *b);

/* Has somebody asked since the last picture? */
bool board_wanted(board *b);
/* Room for the caps given at the start, or false: a reader is copying, try after the next step. */
bool board_open(board *b, board_row **row, board_share **share);
void board_close(board *b, int n_row, int n_share, int64_t now_us);

/* Asks, waits at most timeout_us for a fresh picture, and copies the newest there is.  False:
 * out of memory, or none yet. */
bool board_read(board *b, int64_t timeout_us, board_picture *out);
void board_picture_clear(board_picture *p);

#endif
