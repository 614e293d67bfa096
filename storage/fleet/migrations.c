/* migrations.c -- leases (lease.h) and usage (books.h). */
#include "storage/fleet/migrations.h"

#include <stddef.h>

/* One call is one transaction.  Rows are locked in the order in which they are asked for, which is
 * that of kinds and ids at all nodes.  Each statement of the function sees what was committed
 * before it, so that the sums are those under the lock.  A question whose asker has given it up may
 * be read late, after the next one: it is too old by its turn then, and nothing of it is done.
 *
 * What a node drew of a period is forgotten when both its clock and this one say that it is over:
 * where one of them was ahead, another node could draw that again.
 *
 * An ask is 34 numbers: kind, id, day, month, and for each of requests, tokens, seats, the day's
 * and the month's tokens: limit (0: none), drawn, keep, need, extra, least. */
#define LEASE_FUNCTION                                                                             \
    "CREATE FUNCTION lorad_lease(me int, my_epoch bigint, turn bigint, ask bigint[])"              \
    " RETURNS TABLE(granted bigint[], remains bigint[], may_come bigint[]) LANGUAGE plpgsql AS "   \
    "$f$"                                                                                          \
    " DECLARE who bytea; a bigint[]; s lorad_limits; mine lorad_leases; at_ timestamptz;"          \
    "  utc timestamp; fresh boolean; lim bigint; low bigint; held bigint; used bigint;"            \
    "  give bigint; p bigint; base double precision;"                                              \
    " BEGIN"                                                                                       \
    "  UPDATE lorad_nodes AS n SET heartbeat = clock_timestamp(), lease_turn = turn"               \
    "   WHERE n.node = me AND n.epoch = my_epoch AND n.lease_turn < turn"                          \
    "   RETURNING n.instance INTO who;"                                                            \
    "  IF NOT FOUND THEN RETURN; END IF;"                                                          \
    "  FOR i IN 0 .. cardinality(ask) / 34 - 1 LOOP"                                               \
    "   a := ask[i * 34 + 1 : i * 34 + 34];"                                                       \
    "   INSERT INTO lorad_limits VALUES(a[1], a[2], ARRAY[NULL, NULL]::double precision[],"        \
    "    clock_timestamp()) ON CONFLICT DO NOTHING;"                                               \
    "   SELECT * INTO s FROM lorad_limits AS x WHERE x.kind = a[1] AND x.id = a[2] FOR UPDATE;"    \
    "   SELECT * INTO mine FROM lorad_leases AS x"                                                 \
    "    WHERE x.kind = a[1] AND x.id = a[2] AND x.instance = who;"                                \
    "   fresh := NOT FOUND OR mine.epoch <> my_epoch;"                                             \
    "   IF fresh THEN mine.granted := '{0,0,0}'; mine.drawn := '{0,0,0}'; END IF;"                 \
    "   at_ := greatest(s.at, clock_timestamp());"                                                 \
    "   granted := '{0,0,0,0,0}'; remains := granted; may_come := granted;"                        \
    "   FOR r IN 1 .. 5 LOOP"                                                                      \
    "    lim := a[6 * r - 1]; low := a[6 * r] + a[6 * r + 1];"                                     \
    "    CONTINUE WHEN lim <= 0;"                                                                  \
    "    IF r <= 3 THEN"                                                                           \
    "     SELECT coalesce(sum(greatest(x.granted[r] - CASE r WHEN 3 THEN 0 ELSE x.drawn[r] END,"   \
    "      0)), 0) INTO held FROM lorad_leases AS x"                                               \
    "      WHERE x.kind = a[1] AND x.id = a[2] AND x.instance <> who;"                             \
    "     used := held;"                                                                           \
    "    ELSE"                                                                                     \
    "     p := CASE r WHEN 4 THEN a[3] ELSE -a[4] END;"                                            \
    "     SELECT coalesce(sum(greatest(x.granted, x.shipped)), 0),"                                \
    "      coalesce(sum(greatest(x.drawn, x.shipped)), 0) INTO held, used FROM lorad_budgets AS x" \
    "      WHERE x.id = a[2] AND x.period = p AND x.instance <> who;"                              \
    "    END IF;"                                                                                  \
    "    IF r <= 2 THEN"                                                                           \
    "     base := coalesce(s.level[r], lim) + mine.granted[r] - low"                               \
    "      + extract(epoch FROM at_ - s.at)::double precision * lim / 60;"                         \
    "     base := greatest(least(base, lim - held - a[6 * r + 1]), -lim);"                         \
    "    ELSE"                                                                                     \
    "     base := lim - held - low;"                                                               \
    "    END IF;"                                                                                  \
    "    give := CASE WHEN floor(base) < a[6 * r + 4] THEN 0 ELSE greatest(0, least(a[6 * r + "    \
    "2], floor(base))) END;"                                                                       \
    "    give := give + greatest(0, least(a[6 * r + 3], floor((base - give) / 4)));"               \
    "    granted[r] := low + give; remains[r] := floor(base) - give;"                              \
    "    may_come[r] := remains[r] + held - used;"                                                 \
    "    IF r <= 2 THEN s.level[r] := base - give; END IF;"                                        \
    "    IF r <= 3 THEN"                                                                           \
    "     mine.granted[r] := granted[r]; mine.drawn[r] := a[6 * r];"                               \
    "    ELSE"                                                                                     \
    "     INSERT INTO lorad_budgets AS x(id, period, instance, granted, drawn)"                    \
    "      VALUES(a[2], p, who, granted[r], a[6 * r]) ON CONFLICT(id, period, instance)"           \
    "      DO UPDATE SET granted = excluded.granted, drawn = excluded.drawn;"                      \
    "    END IF;"                                                                                  \
    "   END LOOP;"                                                                                 \
    "   UPDATE lorad_limits AS x SET level = s.level, at = at_"                                    \
    "    WHERE x.kind = a[1] AND x.id = a[2];"                                                     \
    "   INSERT INTO lorad_leases VALUES(a[1], a[2], who, my_epoch, mine.granted, mine.drawn)"      \
    "    ON CONFLICT(kind, id, instance) DO UPDATE SET epoch = excluded.epoch,"                    \
    "    granted = excluded.granted, drawn = excluded.drawn;"                                      \
    "   IF fresh THEN"                                                                             \
    "    utc := clock_timestamp() AT TIME ZONE 'UTC';"                                             \
    "    DELETE FROM lorad_budgets AS x WHERE x.id = a[2] AND x.instance = who"                    \
    "     AND (x.period BETWEEN 0 AND"                                                             \
    "      least(a[3], floor(extract(epoch FROM utc) / 86400)::bigint) - 2"                        \
    "      OR x.period BETWEEN 2 - least(a[4],"                                                    \
    "      (12 * (extract(year FROM utc) - 1900) + extract(month FROM utc) - 1)::bigint) AND -1);" \
    "   END IF;"                                                                                   \
    "   RETURN NEXT;"                                                                              \
    "  END LOOP;"                                                                                  \
    " END $f$"

static const char *const leases[] = {
    "ALTER TABLE lorad_meta ADD COLUMN migration int NOT NULL DEFAULT 0",
    /* level: requests and tokens that nobody has; NULL: as much as the limit */
    "CREATE TABLE lorad_limits(kind bigint NOT NULL, id bigint NOT NULL,"
    " level double precision[] NOT NULL, at timestamptz NOT NULL, PRIMARY KEY(kind, id))",
    /* requests, tokens and seats of a node; granted and drawn count from the begin of its epoch */
    "CREATE TABLE lorad_leases(kind bigint NOT NULL, id bigint NOT NULL, instance bytea NOT NULL,"
    " epoch bigint NOT NULL, granted bigint[] NOT NULL, drawn bigint[] NOT NULL,"
    " PRIMARY KEY(kind, id, instance))",
    /* period: a day since 1970, or less than 0: a month */
    "CREATE TABLE lorad_budgets(id bigint NOT NULL, period bigint NOT NULL,"
    " instance bytea NOT NULL, granted bigint NOT NULL DEFAULT 0, drawn bigint NOT NULL DEFAULT 0,"
    " shipped bigint NOT NULL DEFAULT 0, PRIMARY KEY(id, period, instance))",
    "ALTER TABLE lorad_nodes ADD COLUMN lease_turn bigint NOT NULL DEFAULT 0", LEASE_FUNCTION,
    NULL};

/* Rows as in SQLite; digests in hexadecimal digits. */
static const char *const usage[] = {
    "CREATE TABLE lorad_usage("
    " request_id bigint PRIMARY KEY, tenant_id bigint NOT NULL, key_id bigint NOT NULL,"
    " adapter_id bigint NOT NULL, model text NOT NULL, slo_class text NOT NULL,"
    " endpoint text NOT NULL, prompt_tokens bigint NOT NULL, cached_tokens bigint NOT NULL,"
    " output_tokens bigint NOT NULL, status bigint NOT NULL, finish text NOT NULL,"
    " ttft_ms bigint NOT NULL, duration_ms bigint NOT NULL, started_us bigint NOT NULL,"
    " ended_us bigint NOT NULL, recovered bigint NOT NULL, queue_ms bigint NOT NULL,"
    " adapter_digest text, missed text NOT NULL)",
    "CREATE INDEX lorad_usage_tenant ON lorad_usage(tenant_id, started_us)",
    "CREATE INDEX lorad_usage_started ON lorad_usage(started_us)",
    "CREATE TABLE lorad_usage_hours("
    " hour bigint NOT NULL, tenant_id bigint NOT NULL, key_id bigint NOT NULL,"
    " adapter_id bigint NOT NULL, model text NOT NULL, slo_class text NOT NULL,"
    " n_requests bigint NOT NULL, prompt_tokens bigint NOT NULL, cached_tokens bigint NOT NULL,"
    " output_tokens bigint NOT NULL,"
    " PRIMARY KEY(hour, tenant_id, key_id, adapter_id, model, slo_class))",
    NULL};

static const char *const nodes[] = {
    "ALTER TABLE lorad_nodes ADD COLUMN drain boolean NOT NULL DEFAULT false", NULL};

/* Where other nodes reach this one, and by which word: nodes.h. */
static const char *const doors[] = {"ALTER TABLE lorad_nodes ADD COLUMN door text", NULL};

static const char *const *const steps[MIGRATIONS] = {leases, usage, nodes, doors};

const char *const *migration_steps(int i)
{
    return steps[i];
}
