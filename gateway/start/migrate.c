/* migrate.c -- lorad migrate: makes a fleet of an installation, or takes a node out of one.
 *
 * The server must not run: the data directory is taken.  Its rows stay where they are; PostgreSQL
 * gets a copy of them as the fleet's first snapshot.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/start/fleet_source.h"
#include "gateway/start/verbs.h"
#include "storage/store.h"

static err_code to_sqlite(const config *c, err *e)
{
    store *st;
    bool was = false;
    store_options o = {.node = (int)c->server.node, .without_fleet = true};
    err_code rc = store_open(&st, c->data.dir, &o, e);
    if (rc) return rc;
    rc = store_leave_fleet(st, &was, e);
    store_close(st);
    if (rc) return rc;
    printf("fleet        %s\n"
           "database     %s/lorad.db, as far as it had followed\n"
           "next         take storage.database out of the configuration\n",
           was ? "left; its other nodes go on" : "this directory was in none", c->data.dir);
    return ERR_NONE;
}

static err_code to_postgres(const config *c, err *e)
{
    store *st;
    journal_source to;
    store_options o = {.node = (int)c->server.node, .without_fleet = true};
    (void)fleet_source(c, &to);
    err_code rc = store_open(&st, c->data.dir, &o, e);
    if (rc) return rc;
    rc = store_found_fleet(st, &to, o.node, e);
    store_close(st);
    if (rc) return rc;
    printf("fleet        made in %s\n"
           "first node   %d, %s\n"
           "next         set storage.database to it here and start; other servers:\n"
           "             lorad init --dir DIR --model DIR --join %s --set server.node=N\n",
           c->storage.database, o.node, c->data.dir, c->storage.database);
    return ERR_NONE;
}

int verb_migrate(const arguments *a)
{
    err e;
    config c;
    if (!a->to) {
        fprintf(stderr, "lorad: migrate needs --to\n");
        return EXIT_USAGE;
    }
    if (arguments_config(a, &c, &e)) return arguments_fail(&e);
    if (strcmp(a->to, "sqlite") == 0) return to_sqlite(&c, &e) ? arguments_fail(&e) : EXIT_SUCCESS;
    char assignment[CONFIG_TEXT_MAX + 32];
    snprintf(assignment, sizeof(assignment), "storage.database=%s", a->to);
    if (config_set(&c, assignment, &e) || config_check(&c, &e) || to_postgres(&c, &e))
        return arguments_fail(&e);
    return EXIT_SUCCESS;
}
