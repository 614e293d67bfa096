/* change.h -- changes of a running server's configuration: a reload, or options one by one.
 *
 * A reload reads the sources again (file, environment, command line).  What an administrator has
 * set by name lies on top of them, through all reloads, until it is taken back or the server stops.
 * Of what differs, a running server takes the live options and names the others: they need a
 * restart.  A change is checked as a whole with all that runs, and is taken whole or not at all.
 *
 * The file data.dir/running.json says what is in force, for `lorad check --diff`.
 *
 * Ownership: change_create() borrows `live` and the owner.
 * Threads:   any; one change at a time, over the disk.
 */
#ifndef GATEWAY_CONFIG_CHANGE_H
#define GATEWAY_CONFIG_CHANGE_H

#include "gateway/config/live.h"

typedef struct change change;

/* Whoever has the sources, and what follows the configuration. */
typedef struct change_owner {
    void *self;
    /* The configuration as its sources have it now, checked. */
    err_code (*read)(void *self, config *out, err *e);
    /* What may still refuse: `files`: certificates are to be read again.  Then nothing has
     * changed. */
    err_code (*prepare)(void *self, const config *wanted, bool files, err *e);
    /* From now on that is in force. */
    void (*follow)(void *self, const config *now);
} change_owner;

/* `c` is in force, by `live`.  NULL: no memory. */
change *change_create(const config *c, live *l, const change_owner *owner);
/* The data directory is ours, and there is somebody who follows: the file is written, and changes
 * are taken.  Before that they are refused with ERR_BUSY. */
void change_begin(change *ch);
/* Removes the file. */
void change_destroy(change *ch);

typedef enum { CHANGE_TAKEN, CHANGE_SAME, CHANGE_RESTART } change_verdict;

typedef struct change_line {
    char name[CONFIG_NAME_MAX];
    char before[CONFIG_TEXT_MAX], after[CONFIG_TEXT_MAX]; /* after: what was wanted */
    change_verdict verdict;
} change_line;

typedef struct change_report {
    change_line *line; /* free() */
    int n;
} change_report;

/* Reads the sources again, certificates too.  On an error everything stays as it was. */
err_code change_reload(change *ch, change_report *out, err *e);

typedef struct change_ask {
    const char *name, *value; /* value NULL: as the sources have it */
} change_ask;

/* Sets options by name, on top of the sources; all or none.  ERR_INPUT: *bad is the option's place
 * in `ask`, or -1 where they do not fit together. */
err_code change_set(change *ch, const change_ask *ask, int n, change_report *out, int *bad, err *e);

/* What a reload would change now, and what it would not. */
err_code change_look(change *ch, config_changes *out, err *e);

/* What was taken and what was not, as JSON for the audit, without secrets; what does not fit is
 * left out. */
void change_detail(const change_report *r, char *text, size_t cap);

/* "a.b, c.d", the names with that verdict, cut at cap; false: none. */
bool change_names(const change_report *r, change_verdict verdict, char *text, size_t cap);

#endif
