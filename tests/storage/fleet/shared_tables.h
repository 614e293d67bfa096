/* shared_tables.h -- all rows that nodes share, as one text, to compare two of them. */
#ifndef TESTS_STORAGE_FLEET_SHARED_TABLES_H
#define TESTS_STORAGE_FLEET_SHARED_TABLES_H

#include <stdio.h>
#include <stdlib.h>

#include <sqlite3.h>

/* Without the time of a key's last use, which is each node's own.  Malloced. */
static inline char *shared_tables(const char *dir)
{
    static const char *const query[] = {
        "SELECT * FROM tenants ORDER BY 1",
        "SELECT id, tenant_id, public_id, name, scopes, rpm, tpm, max_concurrent, expires_us,"
        " created_us, revoked_us, networks FROM api_keys ORDER BY 1",
        "SELECT id, key_id, hex(digest), created_us, not_after_us FROM key_secrets ORDER BY 1",
        "SELECT * FROM adapters ORDER BY 1",
        "SELECT id, adapter_id, version, hex(digest), state, words FROM adapter_versions"
        " ORDER BY 1",
        "SELECT * FROM adapter_aliases ORDER BY 1, 2",
        "SELECT * FROM adapter_shares ORDER BY 1, 2",
        "SELECT * FROM audit ORDER BY 1",
        "SELECT id FROM high_water"};
    char path[100], *text = NULL;
    size_t n = 0;
    sqlite3 *db;
    sqlite3_stmt *s;
    snprintf(path, sizeof path, "%s/lorad.db", dir);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK) abort();
    FILE *f = open_memstream(&text, &n);
    for (size_t i = 0; i < sizeof query / sizeof(*query); i++) {
        if (sqlite3_prepare_v2(db, query[i], -1, &s, NULL) != SQLITE_OK) abort();
        while (sqlite3_step(s) == SQLITE_ROW) {
            for (int k = 0; k < sqlite3_column_count(s); k++)
                fprintf(f, "%s|", (const char *)sqlite3_column_text(s, k));
            fputc('\n', f);
        }
        sqlite3_finalize(s);
    }
    fclose(f);
    sqlite3_close(db);
    return text;
}

#endif
