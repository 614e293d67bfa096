/* stats_journal.h -- rows of several tables, and in which order they last changed.
 *
 * Every change gives its row a new, higher number; so "what is new since number N" is the end of
 * one list, whatever the size of the tables.  A row that goes leaves a mark of itself; when there
 * are too many marks the oldest are forgotten, and readers who are older than those start over.
 *
 * Ownership: copies rows in.  Threads: the caller's; one at a time.
 */
#ifndef GATEWAY_WATCH_STATS_JOURNAL_H
#define GATEWAY_WATCH_STATS_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JOURNAL_MARKS_MAX = 8192 };

typedef struct journal journal;

/* row_bytes[n_tables]: of a row of each.  NULL: out of memory. */
journal *journal_create(const size_t *row_bytes, int n_tables);
void journal_destroy(journal *j);

/* Copies the row in; its padding must be zero (memset), for equal bytes are no change.  False: out
 * of memory (the row keeps its old content). */
bool journal_put(journal *j, int table, uint64_t id, const void *row);
/* Drops without a mark: for tables whose readers forget by themselves. */
void journal_forget(journal *j, int table, uint64_t id);

/* A whole table anew: journal_begin(), a journal_put() for each row, and journal_end() drops
 * the rows that were not put. */
void journal_begin(journal *j, int table);
void journal_end(journal *j, int table);

/* NULL: no such row.  Valid until the next change. */
const void *journal_row(const journal *j, int table, uint64_t id);

/* Calls fn, in order of change, for at most `limit` rows that changed after `since`; row NULL: it
 * went.  since 0 reads all rows and no marks.  Returns the number to go on from.  *more: there are
 * others.  *reset: `since` is too old, and this was a read from 0. */
uint64_t journal_read(const journal *j, uint64_t since, size_t limit, bool *more, bool *reset,
                      void (*fn)(void *arg, int table, uint64_t id, const void *row), void *arg);

#endif
