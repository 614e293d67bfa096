/* migrations.c -- leases (lease.h) and usage (books.h). */
#include "storage/fleet/migrations.h"

#include <stddef.h>

#include "engine/base/embed.h"

EMBED(lease_function, "storage/fleet/lease.sql")

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
    "ALTER TABLE lorad_nodes ADD COLUMN lease_turn bigint NOT NULL DEFAULT 0",
    /* Members of lease_ask, by the names that lease.c sends. */
    "CREATE TYPE lorad_ask_limit AS (cap bigint, drawn bigint, keep bigint, need bigint,"
    " extra bigint, useful bigint)",
    "CREATE TYPE lorad_ask AS (kind bigint, id bigint, day bigint, month bigint,"
    " limits lorad_ask_limit[])",
    lease_function, NULL};

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

/* Micros (storage/price.h); NULL from nodes that do not know of costs. */
static const char *const costs[] = {
    "ALTER TABLE lorad_usage ADD COLUMN cost bigint DEFAULT 0",
    "ALTER TABLE lorad_usage_hours ADD COLUMN cost bigint DEFAULT 0", NULL};

/* A node's role and load, in the gateway's words: nodes.h. */
static const char *const facts[] = {"ALTER TABLE lorad_nodes ADD COLUMN facts text", NULL};

static const char *const *const steps[MIGRATIONS] = {leases, usage, nodes, doors, costs, facts};

const char *const *migration_steps(int i)
{
    return steps[i];
}
