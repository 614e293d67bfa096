/* nodes.c -- reads and changes rows of lorad_nodes.
 *
 * A node's row is changed here in three ways: by itself, with its epoch in the condition, so that a
 * node which was fenced meanwhile changes nothing; by an operator who drains it, if it runs; by
 * an operator who fences it, if its heartbeat is older than a lease is valid. Fencing raises the
 * epoch and deletes the node's leases in one statement: whatever it still writes is refused.
 *
 * "Is there a row?" and the change are one statement that says how many rows it changed.
 */
#include "storage/fleet/nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storage/fleet/fleet.h"
#include "storage/fleet/lease.h"

typedef struct members {
    fleet_member *item;
    size_t n;
} members;

static err_code take_member(void *self, const char *const *column, int n, err *e)
{
    members *m = self;
    if (n != 9) return err_set(e, ERR_INTERNAL, "a server's row has %d columns, not 9", n);
    fleet_member *more = realloc(m->item, (m->n + 1) * sizeof(*more));
    if (!more) return err_set(e, ERR_NOMEM, "out of memory");
    m->item = more;
    fleet_member *one = &m->item[m->n++];
    *one = (fleet_member){.node = atoi(column[0]),
                          .epoch = strtoll(column[2], NULL, 10),
                          .silent_us = strtoll(column[3], NULL, 10),
                          .applied = strtoll(column[4], NULL, 10),
                          .behind = strtoll(column[5], NULL, 10),
                          .drains = column[6][0] == 't'};
    snprintf(one->name, sizeof one->name, "%s", column[1]);
    snprintf(one->door, sizeof one->door, "%s", column[7]);
    snprintf(one->facts, sizeof one->facts, "%s", column[8]);
    return ERR_NONE;
}

static err_code the_fleet(store *st, fleet **out, err *e)
{
    *out = store_fleet(st);
    return *out ? ERR_NONE : err_set(e, ERR_CONFLICT, "this server is in no fleet");
}

err_code nodes_list(store *st, fleet_member **out, size_t *n, err *e)
{
    fleet *f;
    members m = {0};
    *out = NULL;
    *n = 0;
    err_code rc = the_fleet(st, &f, e);
    if (!rc)
        rc = fleet_query(
            f, DESK_BOOKS,
            "SELECT node, name, epoch, CASE WHEN heartbeat = '-infinity' THEN -1 ELSE greatest(0,"
            " extract(epoch FROM clock_timestamp() - heartbeat) * 1000000)::bigint END,"
            " applied, greatest(0, last_seq - applied), drain, door, facts FROM lorad_nodes, "
            "lorad_meta"
            " ORDER BY node",
            NULL, 0, take_member, &m, e);
    if (rc) {
        free(m.item);
        return rc;
    }
    *out = m.item;
    *n = m.n;
    return ERR_NONE;
}

static err_code take_count(void *self, const char *const *column, int n, err *e)
{
    (void)n, (void)e;
    *(int *)self = atoi(column[0]);
    return ERR_NONE;
}

/* Both say how many rows they have changed. */
static err_code change(store *st, const char *text, int node, int *changed, err *e)
{
    fleet *f;
    char number[12], valid[24];
    *changed = 0;
    snprintf(number, sizeof number, "%d", node);
    snprintf(valid, sizeof valid, "%d", LEASE_VALID_US);
    err_code rc = the_fleet(st, &f, e);
    return rc ? rc
              : fleet_query(f, DESK_BOOKS, text, (const char *const[]){number, valid}, 2,
                            take_count, changed, e);
}

err_code nodes_tell_door(store *st, const char *door, int64_t *told, err *e)
{
    fleet *f = store_fleet(st);
    int64_t epoch = f ? fleet_epoch(f) : 0;
    char node[12], at[24];
    if (epoch == *told) return ERR_NONE;
    snprintf(node, sizeof node, "%d", fleet_node(f));
    snprintf(at, sizeof at, "%lld", (long long)epoch);
    err_code rc = fleet_query(f, DESK_BOOKS,
                              "UPDATE lorad_nodes SET door = $3::text WHERE node = $1::int"
                              " AND epoch = $2::bigint",
                              (const char *const[]){node, at, door}, 3, NULL, NULL, e);
    if (!rc) *told = epoch;
    return rc;
}

err_code nodes_tell_facts(store *st, const char *facts, err *e)
{
    fleet *f;
    char node[12], at[24];
    err_code rc = the_fleet(st, &f, e);
    if (rc) return rc;
    snprintf(node, sizeof node, "%d", fleet_node(f));
    snprintf(at, sizeof at, "%lld", (long long)fleet_epoch(f));
    return fleet_query(f, DESK_BOOKS,
                       "UPDATE lorad_nodes SET facts = $3::text WHERE node = $1::int"
                       " AND epoch = $2::bigint",
                       (const char *const[]){node, at, facts}, 3, NULL, NULL, e);
}

int nodes_self(store *st)
{
    fleet *f = store_fleet(st);
    return f ? fleet_node(f) : -1;
}

err_code nodes_drain(store *st, int node, err *e)
{
    int n;
    err_code rc = change(st,
                         "WITH d AS (UPDATE lorad_nodes SET drain = true WHERE node = $1::int AND"
                         " heartbeat > '-infinity' AND $2::bigint > 0 RETURNING 1)"
                         " SELECT count(*) FROM d",
                         node, &n, e);
    return !rc && n == 0 ? err_set(e, ERR_NOT_FOUND, "no server with number %d runs", node) : rc;
}

err_code nodes_fence(store *st, int node, err *e)
{
    int n;
    err_code rc =
        change(st,
               "WITH f AS (UPDATE lorad_nodes SET epoch = epoch + 1, heartbeat = '-infinity'"
               " WHERE node = $1::int AND heartbeat < clock_timestamp() -"
               " $2::bigint * interval '1 microsecond' RETURNING instance),"
               " l AS (DELETE FROM lorad_leases WHERE instance IN (SELECT instance FROM f))"
               " SELECT count(*) FROM f",
               node, &n, e);
    if (rc || n > 0) return rc;
    return err_set(e, ERR_CONFLICT,
                   "there is no server %d, or it was heard of within the last %d s: end it first",
                   node, LEASE_VALID_US / 1000000);
}
