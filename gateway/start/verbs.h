/* verbs.h -- what lorad can be told to do.  Each gives the exit status.
 *
 * Threads: the main thread.
 */
#ifndef GATEWAY_START_VERBS_H
#define GATEWAY_START_VERBS_H

#include "gateway/start/arguments.h"

/* init.c: a data directory with a certificate, a configuration and an operator's key */
int verb_init(const arguments *a);
/* init.c: the way back in.  Another operator's key, while no server runs; and the certificate of
 * init for another 397 days. */
int verb_key(const arguments *a);
int verb_cert(const arguments *a);
/* check.c: reads all that serve would, and says what it would be */
int verb_check(const arguments *a);
/* check.c: a copy of the data of a server that does not run */
int verb_backup(const arguments *a);
/* migrate.c: SQLite alone to a fleet's PostgreSQL, and back */
int verb_migrate(const arguments *a);
/* serve.c: returns when the server has stopped; --dev: dev.h */
int verb_serve(const arguments *a);

#endif
