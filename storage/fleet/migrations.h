/* migrations.h -- the tables of a fleet's PostgreSQL beside its log, as numbered steps that are
 * never edited once released.  Their numbers have nothing to do with SQLite's.
 *
 * Private to storage/fleet.
 */
#ifndef STORAGE_FLEET_MIGRATIONS_H
#define STORAGE_FLEET_MIGRATIONS_H

enum { MIGRATIONS = 6 };

/* How many steps that database has had; a fleet from before them has no such column. */
#define MIGRATIONS_DONE \
    "SELECT coalesce((to_jsonb(m)->>'migration')::bigint, 0) FROM lorad_meta AS m"

/* The statements of step i, ended by NULL. */
const char *const *migration_steps(int i);

#endif
