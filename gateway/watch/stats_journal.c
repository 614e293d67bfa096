/* stats_journal.c -- rows of several tables with the order of their changes, so that a client can
 * ask "what changed since N".
 *
 *   list by change:   oldest <-> .. <-> newest      each node has a number; a change moves it to
 *   the end
 *   hash table        (table, id) -> node           list per table
 *
 * journal_put() compares the new row with the stored one; only a difference counts as a change. A
 * deleted row stays as a mark without data, so that clients learn of it. Marks are limited: when
 * too many exist, a quarter of the oldest is forgotten, `floor` rises to their number, and a client
 * with an older cursor gets a full answer (reset).
 *
 * journal_begin() and journal_end() bracket the writing of a whole table: rows not put in between
 * are deleted.
 *
 * Cost: O(1) per row, O(changes) per read. Threads: stats.mu is held.
 */
#include "gateway/watch/stats_journal.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"

enum { FIRST_BUCKETS = 1024, TABLES_MAX = 8 };

typedef struct node {
    struct node *chained;           /* hash */
    struct node *older, *newer;     /* by change */
    struct node *next_in, *prev_in; /* its table */
    uint64_t id, number;
    uint32_t seen; /* round of journal_begin() */
    int table;
    bool gone; /* a mark: holds no row */
    _Alignas(max_align_t) unsigned char row[];
} node;

struct journal {
    node **bucket;
    size_t n_bucket, n_node;
    node *oldest, *newest;
    node *first[TABLES_MAX];
    size_t bytes[TABLES_MAX];
    uint32_t round[TABLES_MAX];
    size_t n_marks;
    uint64_t number, floor; /* floor: the number of the newest mark that was forgotten */
};

journal *journal_create(const size_t *row_bytes, int n_tables)
{
    assert(n_tables > 0 && n_tables <= TABLES_MAX);
    journal *j = calloc(1, sizeof(*j));
    if (!j) return NULL;
    j->n_bucket = FIRST_BUCKETS;
    j->bucket = calloc(j->n_bucket, sizeof(node *));
    if (!j->bucket || n_tables > TABLES_MAX) {
        journal_destroy(j);
        return NULL;
    }
    memcpy(j->bytes, row_bytes, (size_t)n_tables * sizeof(*row_bytes));
    return j;
}

void journal_destroy(journal *j)
{
    if (!j) return;
    for (node *n = j->oldest; n;) {
        node *newer = n->newer;
        free(n);
        n = newer;
    }
    free((void *)j->bucket);
    free(j);
}

static size_t bucket_of(const journal *j, int table, uint64_t id)
{
    return hash_id(id ^ (uint64_t)table << 60) & (j->n_bucket - 1);
}

static node *find(const journal *j, int table, uint64_t id)
{
    node *n = j->bucket[bucket_of(j, table, id)];
    while (n && (n->id != id || n->table != table)) n = n->chained;
    return n;
}

/* ---- lists ------------------------------------------------------------------------- */

static void unlink_change(journal *j, node *n)
{
    *(n->older ? &n->older->newer : &j->oldest) = n->newer;
    *(n->newer ? &n->newer->older : &j->newest) = n->older;
}

static void append_change(journal *j, node *n)
{
    n->older = j->newest;
    n->newer = NULL;
    *(j->newest ? &j->newest->newer : &j->oldest) = n;
    j->newest = n;
    n->number = ++j->number;
}

static void enter_table(journal *j, node *n)
{
    n->prev_in = NULL;
    n->next_in = j->first[n->table];
    if (n->next_in) n->next_in->prev_in = n;
    j->first[n->table] = n;
}

static void leave_table(journal *j, node *n)
{
    *(n->prev_in ? &n->prev_in->next_in : &j->first[n->table]) = n->next_in;
    if (n->next_in) n->next_in->prev_in = n->prev_in;
}

static void grow(journal *j)
{
    size_t n = j->n_bucket * 2, old_n = j->n_bucket;
    node **old = j->bucket, **more = calloc(n, sizeof(node *));
    if (!more) return; /* longer chains do as well */
    j->bucket = more;
    j->n_bucket = n;
    for (size_t i = 0; i < old_n; i++) {
        for (node *each = old[i]; each;) {
            node *next = each->chained, **at = &more[bucket_of(j, each->table, each->id)];
            each->chained = *at;
            *at = each;
            each = next;
        }
    }
    free((void *)old);
}

static void remove_node(journal *j, node *n)
{
    assert(j->n_node > 0);
    node **at = &j->bucket[bucket_of(j, n->table, n->id)];
    while (*at != n) at = &(*at)->chained;
    *at = n->chained;
    unlink_change(j, n);
    j->n_node--;
    free(n);
}

/* ---- changes ----------------------------------------------------------------------- */

bool journal_put(journal *j, int table, uint64_t id, const void *row)
{
    assert(table >= 0 && table < TABLES_MAX && j->bytes[table] > 0);
    node *n = find(j, table, id);
    if (n && !n->gone) {
        n->seen = j->round[table];
        if (memcmp(n->row, row, j->bytes[table]) == 0) return true;
        unlink_change(j, n);
    } else if (n) { /* it is back */
        unlink_change(j, n);
        n->gone = false;
        assert(j->n_marks > 0);
        j->n_marks--;
        enter_table(j, n);
    } else {
        n = calloc(1, sizeof(*n) + j->bytes[table]);
        if (!n) return false;
        n->table = table;
        n->id = id;
        if (++j->n_node > j->n_bucket) grow(j);
        node **at = &j->bucket[bucket_of(j, table, id)];
        n->chained = *at;
        *at = n;
        enter_table(j, n);
    }
    n->seen = j->round[table];
    memcpy(n->row, row, j->bytes[table]);
    append_change(j, n);
    return true;
}

/* The oldest marks are looked for from the oldest change: rows that never change stand before them,
 * so a quarter goes at once. */
static void forget_marks(journal *j)
{
    for (node *n = j->oldest; n && j->n_marks > JOURNAL_MARKS_MAX / 4 * 3;) {
        node *newer = n->newer;
        if (n->gone) {
            j->floor = n->number;
            assert(j->n_marks > 0);
            j->n_marks--;
            remove_node(j, n);
        }
        n = newer;
    }
}

static void drop(journal *j, node *n)
{
    assert(!n->gone);
    leave_table(j, n);
    n->gone = true;
    unlink_change(j, n);
    append_change(j, n);
    if (++j->n_marks > JOURNAL_MARKS_MAX) forget_marks(j);
}

void journal_forget(journal *j, int table, uint64_t id)
{
    assert(table >= 0 && table < TABLES_MAX);
    node *n = find(j, table, id);
    if (!n) return;
    assert(!n->gone || j->n_marks > 0);
    if (n->gone)
        j->n_marks--;
    else
        leave_table(j, n);
    remove_node(j, n);
}

void journal_begin(journal *j, int table)
{
    assert(table >= 0 && table < TABLES_MAX && j->bytes[table] > 0);
    j->round[table]++;
}

void journal_end(journal *j, int table)
{
    assert(table >= 0 && table < TABLES_MAX && j->bytes[table] > 0);
    for (node *n = j->first[table]; n;) {
        node *next = n->next_in;
        if (n->seen != j->round[table]) drop(j, n);
        n = next;
    }
}

/* ---- reading ----------------------------------------------------------------------- */

const void *journal_row(const journal *j, int table, uint64_t id)
{
    const node *n = find(j, table, id);
    return n && !n->gone ? n->row : NULL;
}

uint64_t journal_read(const journal *j, uint64_t since, size_t limit, bool *more, bool *reset,
                      void (*fn)(void *arg, int table, uint64_t id, const void *row), void *arg)
{
    assert(j->floor <= j->number);
    *more = false;
    *reset = since != 0 && (since < j->floor || since > j->number);
    if (*reset) since = 0;
    const node *n = j->newest;
    if (since == 0) {
        n = j->oldest;
    } else {
        while (n && n->number > since) n = n->older;
        n = n ? n->newer : j->oldest;
    }
    uint64_t last = since;
    size_t count = 0;
    for (; n; n = n->newer) {
        if (since == 0 && n->gone) continue;
        if (count++ == limit) {
            *more = true;
            return last;
        }
        fn(arg, n->table, n->id, n->gone ? NULL : n->row);
        last = n->number;
    }
    return j->number;
}
