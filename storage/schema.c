/* schema.c -- the tables, as numbered steps that are never edited once released:
 * tests/storage/test_store.c knows the digest of each.
 *
 * user_version holds the number of the last step done.  A step runs in one transaction with the
 * change of user_version, so a crash leaves the old schema or the new one.
 */
#include <stdio.h>
#include <string.h>

#include "storage/store_sql.h"

enum { APPLICATION_ID = 0x6c6f7261 }; /* "lora" */

const char *const schema_steps[STORE_SCHEMA_VERSION] = {
    /* 1: tenants and keys */
    "CREATE TABLE tenants("
    " id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, disabled INTEGER NOT NULL,"
    " weight REAL NOT NULL, default_class TEXT NOT NULL, classes TEXT NOT NULL,"
    " models TEXT NOT NULL, rpm INTEGER NOT NULL, tpm INTEGER NOT NULL,"
    " max_concurrent INTEGER NOT NULL, max_queued INTEGER NOT NULL,"
    " tokens_per_day INTEGER NOT NULL, tokens_per_month INTEGER NOT NULL,"
    " max_adapters INTEGER NOT NULL, max_adapter_bytes INTEGER NOT NULL,"
    " generation INTEGER NOT NULL, created_us INTEGER NOT NULL, updated_us INTEGER NOT NULL"
    ") STRICT;"
    "CREATE TABLE api_keys("
    " id INTEGER PRIMARY KEY, tenant_id INTEGER REFERENCES tenants(id),"
    " public_id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, scopes INTEGER NOT NULL,"
    " rpm INTEGER NOT NULL, tpm INTEGER NOT NULL, max_concurrent INTEGER NOT NULL,"
    " expires_us INTEGER NOT NULL, created_us INTEGER NOT NULL, revoked_us INTEGER NOT NULL,"
    " last_used_us INTEGER NOT NULL"
    ") STRICT;"
    "CREATE INDEX api_keys_tenant ON api_keys(tenant_id);"
    "CREATE TABLE key_secrets("
    " id INTEGER PRIMARY KEY, key_id INTEGER NOT NULL REFERENCES api_keys(id),"
    " digest BLOB NOT NULL CHECK(length(digest) = 32), created_us INTEGER NOT NULL,"
    " not_after_us INTEGER NOT NULL"
    ") STRICT;"
    "CREATE INDEX key_secrets_key ON key_secrets(key_id);"
    /* The highest id ever given, where the row that bore it may be gone. */
    "CREATE TABLE high_water(one INTEGER PRIMARY KEY CHECK(one = 1), id INTEGER NOT NULL) STRICT;"
    "INSERT INTO high_water VALUES(1, 0);",

    /* 2: adapters */
    "CREATE TABLE adapters("
    " id INTEGER PRIMARY KEY, tenant_id INTEGER NOT NULL REFERENCES tenants(id),"
    " name TEXT NOT NULL, description TEXT NOT NULL, pinned INTEGER NOT NULL,"
    " last_version INTEGER NOT NULL, generation INTEGER NOT NULL, created_us INTEGER NOT NULL,"
    " UNIQUE(tenant_id, name)"
    ") STRICT;"
    "CREATE TABLE adapter_versions("
    " id INTEGER PRIMARY KEY,"
    " adapter_id INTEGER NOT NULL REFERENCES adapters(id) ON DELETE CASCADE,"
    " version INTEGER NOT NULL, digest BLOB NOT NULL CHECK(length(digest) = 32),"
    " file_bytes INTEGER NOT NULL, packed_bytes INTEGER NOT NULL, rank_max INTEGER NOT NULL,"
    " state INTEGER NOT NULL, error TEXT NOT NULL, info TEXT NOT NULL,"
    " created_us INTEGER NOT NULL, UNIQUE(adapter_id, version)"
    ") STRICT;"
    "CREATE TABLE adapter_aliases("
    " adapter_id INTEGER NOT NULL REFERENCES adapters(id) ON DELETE CASCADE,"
    " alias TEXT NOT NULL, version INTEGER NOT NULL, previous INTEGER NOT NULL,"
    " generation INTEGER NOT NULL, PRIMARY KEY(adapter_id, alias)"
    ") STRICT, WITHOUT ROWID;",

    /* 3: usage and audit */
    "CREATE TABLE usage("
    " request_id INTEGER PRIMARY KEY, tenant_id INTEGER NOT NULL, key_id INTEGER NOT NULL,"
    " adapter_id INTEGER NOT NULL, model TEXT NOT NULL, slo_class TEXT NOT NULL,"
    " endpoint TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,"
    " output_tokens INTEGER NOT NULL, status INTEGER NOT NULL, finish TEXT NOT NULL,"
    " ttft_ms INTEGER NOT NULL, duration_ms INTEGER NOT NULL, started_us INTEGER NOT NULL,"
    " ended_us INTEGER NOT NULL, recovered INTEGER NOT NULL"
    ") STRICT;"
    "CREATE INDEX usage_tenant ON usage(tenant_id, started_us);"
    "CREATE INDEX usage_started ON usage(started_us);"
    "CREATE TABLE usage_days("
    " tenant_id INTEGER NOT NULL, day INTEGER NOT NULL, n_requests INTEGER NOT NULL,"
    " prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,"
    " output_tokens INTEGER NOT NULL, PRIMARY KEY(tenant_id, day)"
    ") STRICT, WITHOUT ROWID;"
    "CREATE TABLE audit("
    " id INTEGER PRIMARY KEY, wall_us INTEGER NOT NULL, actor_key_id INTEGER NOT NULL,"
    " tenant_id INTEGER NOT NULL, action TEXT NOT NULL, object TEXT NOT NULL,"
    " detail TEXT NOT NULL"
    ") STRICT;"
    "CREATE INDEX audit_tenant ON audit(tenant_id, id);",

    /* 4: files known by their content, sharing, an object's events */
    "ALTER TABLE adapter_versions ADD COLUMN config_sha BLOB;"
    "ALTER TABLE adapter_versions ADD COLUMN weights_sha BLOB;"
    "CREATE INDEX adapter_versions_config ON adapter_versions(config_sha);"
    "CREATE INDEX adapter_versions_weights ON adapter_versions(weights_sha);"
    "CREATE TABLE adapter_shares(" /* tenant_id 0: all */
    " adapter_id INTEGER NOT NULL REFERENCES adapters(id) ON DELETE CASCADE,"
    " tenant_id INTEGER NOT NULL, PRIMARY KEY(adapter_id, tenant_id)"
    ") STRICT, WITHOUT ROWID;"
    "CREATE INDEX audit_object ON audit(tenant_id, object, id);",

    /* 5: from where keys may be used */
    "ALTER TABLE tenants ADD COLUMN networks TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE api_keys ADD COLUMN networks TEXT NOT NULL DEFAULT '';",

    /* 6: limits of an adapter */
    "ALTER TABLE adapters ADD COLUMN rpm INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE adapters ADD COLUMN tpm INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE adapters ADD COLUMN max_concurrent INTEGER NOT NULL DEFAULT 0;",

    /* 7: how long a request waited, what exactly answered it; old rows as sums by hour */
    "ALTER TABLE usage ADD COLUMN queue_ms INTEGER NOT NULL DEFAULT -1;"
    "ALTER TABLE usage ADD COLUMN adapter_digest BLOB;"
    "CREATE TABLE usage_hours("
    " hour INTEGER NOT NULL, tenant_id INTEGER NOT NULL, key_id INTEGER NOT NULL,"
    " adapter_id INTEGER NOT NULL, model TEXT NOT NULL, slo_class TEXT NOT NULL,"
    " n_requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,"
    " cached_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,"
    " PRIMARY KEY(hour, tenant_id, key_id, adapter_id, model, slo_class)"
    ") STRICT, WITHOUT ROWID;",

    /* 8: a vocabulary of its own (adapters/format/words.h); NULL: the base's */
    "ALTER TABLE adapter_versions ADD COLUMN words TEXT;",

    /* 9: a tenant's own targets within classes */
    "ALTER TABLE tenants ADD COLUMN targets TEXT NOT NULL DEFAULT '';",

    /* 10: why a promise was broken (engine/base/miss.h); '': it was not, or nobody looked */
    "ALTER TABLE usage ADD COLUMN missed TEXT NOT NULL DEFAULT '';",

    /* 11: what tenants had stored of their answers; previous, conversation '': none */
    "CREATE TABLE responses("
    " row INTEGER PRIMARY KEY, tenant_id INTEGER NOT NULL REFERENCES tenants(id), id TEXT NOT NULL,"
    " previous TEXT NOT NULL, conversation TEXT NOT NULL, running INTEGER NOT NULL,"
    " created_us INTEGER NOT NULL, expires_us INTEGER NOT NULL, bytes INTEGER NOT NULL,"
    " body BLOB NOT NULL, input BLOB NOT NULL, UNIQUE(tenant_id, id)"
    ") STRICT;"
    "CREATE INDEX responses_conversation ON responses(tenant_id, conversation, row);"
    "CREATE INDEX responses_expires ON responses(expires_us);",

    /* 12: what was seen, by spans of time (storage/watch/history.h) */
    "CREATE TABLE history("
    " width_s INTEGER NOT NULL, kind INTEGER NOT NULL, start_s INTEGER NOT NULL,"
    " name TEXT NOT NULL, part INTEGER NOT NULL, ended INTEGER NOT NULL,"
    " failed INTEGER NOT NULL, refused INTEGER NOT NULL, limited INTEGER NOT NULL,"
    " met INTEGER NOT NULL, missed INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,"
    " output_tokens INTEGER NOT NULL, ttft_p50_us INTEGER NOT NULL, ttft_p99_us INTEGER NOT NULL,"
    " tpot_p50_us INTEGER NOT NULL, tpot_p99_us INTEGER NOT NULL, causes TEXT NOT NULL,"
    " PRIMARY KEY(width_s, start_s, kind, name, part)"
    ") STRICT, WITHOUT ROWID;",

    /* 13: which fleet this node belongs to, and up to which change its rows are; no row: none */
    "CREATE TABLE fleet("
    " one INTEGER PRIMARY KEY CHECK(one = 1), cluster BLOB NOT NULL, instance BLOB NOT NULL,"
    " seq INTEGER NOT NULL"
    ") STRICT;",

    /* 14: files of tenants, and batches of requests over them (storage/batches/batches.h) */
    "CREATE TABLE files("
    " row INTEGER PRIMARY KEY, tenant_id INTEGER NOT NULL REFERENCES tenants(id),"
    " id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL,"
    " created_us INTEGER NOT NULL, expires_us INTEGER NOT NULL"
    ") STRICT;"
    "CREATE INDEX files_tenant ON files(tenant_id, row);"
    "CREATE INDEX files_expires ON files(expires_us);"
    "CREATE TABLE batches("
    " row INTEGER PRIMARY KEY, tenant_id INTEGER NOT NULL REFERENCES tenants(id),"
    " id TEXT NOT NULL UNIQUE, key_id INTEGER NOT NULL, endpoint TEXT NOT NULL,"
    " input_file TEXT NOT NULL, output_file TEXT NOT NULL, error_file TEXT NOT NULL,"
    " keep_us INTEGER NOT NULL, metadata TEXT NOT NULL, errors TEXT NOT NULL,"
    " status INTEGER NOT NULL, first_id INTEGER NOT NULL, last_id INTEGER NOT NULL,"
    " total INTEGER NOT NULL, completed INTEGER NOT NULL, failed INTEGER NOT NULL,"
    " created_us INTEGER NOT NULL, deadline_us INTEGER NOT NULL, begun_us INTEGER NOT NULL,"
    " finalizing_us INTEGER NOT NULL, cancelling_us INTEGER NOT NULL, ended_us INTEGER NOT NULL"
    ") STRICT;"
    "CREATE INDEX batches_tenant ON batches(tenant_id, row);"
    "CREATE INDEX batches_ended ON batches(ended_us);",

    /* 15: stacks of adapters that have a name (storage/stack_rows.h) */
    "CREATE TABLE stacks("
    " tenant_id INTEGER NOT NULL REFERENCES tenants(id), name TEXT NOT NULL,"
    " version INTEGER NOT NULL, parts TEXT NOT NULL, created_us INTEGER NOT NULL,"
    " PRIMARY KEY(tenant_id, name, version)"
    ") STRICT, WITHOUT ROWID;",

    /* 16: rows of usage that the fleet's database has not got yet (fleet/books.h) */
    "CREATE TABLE usage_unshipped("
    " request_id INTEGER PRIMARY KEY, started_us INTEGER NOT NULL"
    ") STRICT;"
    "INSERT INTO usage_unshipped SELECT request_id, started_us FROM usage"
    " WHERE EXISTS(SELECT 1 FROM fleet);",

    /* 17: the events of a response that was streamed from the background; x'': it was not */
    "ALTER TABLE responses ADD COLUMN events BLOB NOT NULL DEFAULT x'';",

    /* 18: what tenants keep for servers that adapters are fetched from (storage/seal/) */
    "CREATE TABLE source_secrets("
    " tenant_id INTEGER NOT NULL REFERENCES tenants(id), host TEXT NOT NULL, kind TEXT NOT NULL,"
    " sealed BLOB NOT NULL, created_us INTEGER NOT NULL, PRIMARY KEY(tenant_id, host)"
    ") STRICT, WITHOUT ROWID;",

    /* 19: from where a tenant's adapters come that nobody has uploaded; '': nowhere */
    "ALTER TABLE tenants ADD COLUMN source TEXT NOT NULL DEFAULT '';",

    /* 20: what each tenant has stored, counted with the rows; batches that have ended */
    "CREATE TABLE responses_held("
    " tenant_id INTEGER PRIMARY KEY, n INTEGER NOT NULL, bytes INTEGER NOT NULL"
    ") STRICT;"
    "INSERT INTO responses_held SELECT tenant_id, count(*), sum(bytes) FROM responses"
    " GROUP BY tenant_id;"
    "CREATE TRIGGER responses_put AFTER INSERT ON responses BEGIN"
    " INSERT INTO responses_held VALUES(new.tenant_id, 1, new.bytes)"
    " ON CONFLICT(tenant_id) DO UPDATE SET n = n + 1, bytes = bytes + new.bytes;"
    " END;"
    "CREATE TRIGGER responses_changed AFTER UPDATE OF bytes ON responses BEGIN"
    " UPDATE responses_held SET bytes = bytes + new.bytes - old.bytes"
    " WHERE tenant_id = new.tenant_id;"
    " END;"
    "CREATE TRIGGER responses_gone AFTER DELETE ON responses BEGIN"
    " UPDATE responses_held SET n = n - 1, bytes = bytes - old.bytes"
    " WHERE tenant_id = old.tenant_id;"
    " END;"
    "CREATE INDEX batches_over ON batches(tenant_id, row) WHERE status >= 4;",

    /* 21: costs, budgets in money, adapters' surcharges, in micros (storage/price.h) */
    "ALTER TABLE usage ADD COLUMN cost INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE usage_days ADD COLUMN cost INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE usage_hours ADD COLUMN cost INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE tenants ADD COLUMN cost_per_day INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE tenants ADD COLUMN cost_per_month INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE adapters ADD COLUMN surcharge_prompt INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE adapters ADD COLUMN surcharge_cached INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE adapters ADD COLUMN surcharge_output INTEGER NOT NULL DEFAULT 0;",
};

static err_code pragma_int(sqlite3 *db, const char *text, int64_t *out, err *e)
{
    sql q;
    sql_begin(&q, db, text);
    if (sql_row(&q)) *out = sql_col_int(&q, 0);
    return sql_end(&q, "read the database's header", e);
}

err_code schema_migrate(sqlite3 *db, int upto, err *e)
{
    int64_t app = 0, version = 0, n_tables = 0;
    if (pragma_int(db, "PRAGMA application_id", &app, e) != ERR_NONE ||
        pragma_int(db, "PRAGMA user_version", &version, e) != ERR_NONE ||
        pragma_int(db, "SELECT count(*) FROM sqlite_schema", &n_tables, e) != ERR_NONE)
        return e->code;
    if (app != APPLICATION_ID && (app != 0 || n_tables != 0 || version != 0))
        return err_set(e, ERR_CONFLICT, "lorad.db is not a database of lorad");
    if (version > upto || version < 0)
        return err_set(e, ERR_CONFLICT,
                       "lorad.db has schema %lld; this program knows %d: use a newer lorad",
                       (long long)version, upto);
    for (int v = (int)version; v < upto; v++) {
        char head[128];
        snprintf(head, sizeof head, "PRAGMA application_id=%d; PRAGMA user_version=%d; COMMIT",
                 APPLICATION_ID, v + 1);
        int rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
        if (rc == SQLITE_OK) rc = sqlite3_exec(db, schema_steps[v], NULL, NULL, NULL);
        if (rc == SQLITE_OK) rc = sqlite3_exec(db, head, NULL, NULL, NULL);
        if (rc != SQLITE_OK) {
            err_code code = sql_error(db, rc, "bring the schema up to date", e);
            if (!sqlite3_get_autocommit(db)) sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
            return code;
        }
    }
    return ERR_NONE;
}
