/* loractl.h -- what the commands of loractl share.
 *
 * A command takes the `ctl`, asks a server, prints, and returns an exit status: 0, CTL_REFUSED (the
 * server said no, or something went wrong), CTL_USAGE, CTL_UNREACHABLE.
 *
 * Threads: one; a signal handler cancels the call that runs.
 */
#ifndef TUI_CTL_LORACTL_H
#define TUI_CTL_LORACTL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/err.h"
#include "tui/cli.h"
#include "tui/client.h"
#include "tui/contexts.h"
#include "tui/table.h"

enum { CTL_OK, CTL_REFUSED, CTL_USAGE, CTL_UNREACHABLE, CTL_INTERRUPTED = 130 };

typedef enum { TENANT_SIDE, ADMIN_SIDE, METRICS_SIDE, SIDES } ctl_side;

typedef struct ctl {
    cli cli;
    contexts contexts;
    context context;
    bool contexts_read, resolved;
    table_format format;
    bool yaml;             /* with TABLE_JSON: YAML is printed in place of JSON */
    int width;             /* columns of standard output; 0: it is no terminal */
    int room;              /* rows of a table that the screen has; 0: no bound */
    client *client[SIDES]; /* opened when first needed */
    int http_status;       /* of the last answer of ctl_run(); 0: there was none */
} ctl;

extern const cli_program loractl_program;

/* ---- asking ------------------------------------------------------------------------ */

/* The client for one side, with its key; false: said why, and *status is the exit status. */
bool ctl_open(ctl *c, ctl_side side, client **out, int *status);

/* Calls the path (printf-formatted) with an optional JSON body (taken over), prints what is wrong.
 * *tree is the answer (cJSON_Delete; NULL where it was empty); `tree` may be NULL. */
int ctl_call(ctl *c, ctl_side side, const char *method, cJSON *body, cJSON **tree, const char *fmt,
             ...) __attribute__((format(printf, 6, 7)));

/* GETs what only helps: prints nothing, and is NULL where it was refused; cJSON_Delete(). */
cJSON *ctl_ask(ctl *c, ctl_side side, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* GETs one object and prints it, as JSON or as a tree; the exit status. */
int ctl_show(ctl *c, ctl_side side, const char *path);

/* While somebody talks to us, Ctrl-C ends what runs, not the program.  ctl_was_interrupted() says
 * whether there was one since it was last asked. */
void ctl_keep_running(void);

/* True once for each Ctrl-C: asking clears it. */
bool ctl_was_interrupted(void);

/* Until the file has something to read (-1: no file) or the time is over (-1: no bound); false:
 * Ctrl-C came. */
bool ctl_wait(int fd, int64_t ms);

/* Calls turn(c, state) every `ms` until Ctrl-C.  A server that was there may be away for a while:
 * it is asked again.  An error of the first turn ends it.  The exit status. */
int ctl_repeat(ctl *c, int64_t ms, int (*turn)(ctl *c, void *state), void *state);

/* A member of a row as text, "" where it is none; as a number, `none` where it is none. */
const char *ctl_word(const cJSON *row, const char *name);

/* A member as a number. */
double ctl_real(const cJSON *row, const char *name, double none);

/* A file of the user's beside the contexts', whose folder is made; "" where there can be none. */
void ctl_state_path(ctl *c, const char *name, char *out, size_t cap);

/* Runs the command again and again, as --watch says; the exit status. */
int ctl_watch(ctl *c);

/* Runs a prepared request; *reply wants client_reply_clear().  Prints what is wrong. */
int ctl_run(ctl *c, ctl_side side, const client_request *rq, client_reply *reply);

/* client_call() that a signal ends; prints nothing. */
err_code ctl_transfer(client *cl, const client_request *rq, client_reply *reply, err *e);

/* GET of a list, page after page (?after= the answer's "next", else the last id); *rows
 * is an array of its "data". */
int ctl_list(ctl *c, ctl_side side, const char *path, const char *cursor_field, cJSON **rows);

/* ---- saying ------------------------------------------------------------------------ */

/* "loractl: ..." on standard error, made harmless; returns CTL_REFUSED. */
int ctl_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The same for a wrong command line; returns CTL_USAGE. */
int ctl_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Rows, one object, or a value whose fields are the server's business, in the format that was asked
 * for; of --fields these alone.  CTL_OK, or CTL_USAGE where there are no such fields. */
int ctl_print_rows(const ctl *c, const column *columns, const cJSON *rows);

/* The same for one object: a list of names and values, all columns that it has. */
int ctl_print_row(const ctl *c, const column *columns, const cJSON *row);

/* The same for an object without a table: one line for each value, named by its path. */
int ctl_print_tree(const ctl *c, const cJSON *tree);

/* To standard output, as JSON or, with -o yaml, as YAML. */
void ctl_print_json(const ctl *c, const cJSON *tree);

/* A sentence for people; with --json the object instead.  tree may be NULL. */
void ctl_done(const ctl *c, const cJSON *tree, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Asks before something that cannot be undone; --yes answers.  False: no,
 * or nobody is there to ask. */
bool ctl_confirm(const ctl *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* In loractl_hint.c: lines after a refusal that say the next step, if there is one to say: of any
 * answer; of a version of an adapter, or an adapter, that is not there; of an adapter that does not
 * fit (`config`: its adapter_config.json). */
void ctl_hint(ctl_side side, const client_reply *r);

/* After a 404: prints which versions `name` has, or adapters with similar names. */
void ctl_hint_version(ctl *c, const char *name);

/* After a 400 or 422: prints the base model that the adapter names and the one that the server
 * has. */
void ctl_hint_base(ctl *c, const char *config, size_t len);

/* In loractl_causes.c: "met", "missed", "causes" and "mostly" of /stats into rows with these names;
 * table: "classes" or "tenants". */
void ctl_add_causes(ctl *c, const char *table, cJSON *rows);

/* ---- values ------------------------------------------------------------------------- */

/* One path segment, percent-encoded into a buffer of 4 that take turns. */
const char *ctl_seg(const char *s);

/* "30d", "12h", "90s", plain seconds: seconds; -1: none of these. */
int64_t ctl_span(const char *s);
/* The same in milliseconds. */
int64_t ctl_span_ms(const char *s);

/* Seconds since 1970 from that many, "2026-12-31", "2026-12-31T12:00:00" (local), or "-7d"
 * (ago). */
bool ctl_time(const char *s, int64_t *out);

/* A whole number with k, M, G as thousands; -1: none. */
int64_t ctl_number(const char *s);

/* "a,b" as an array of texts. */
cJSON *ctl_words(const char *list);

/* name=value pairs into numbers of an object; false: said why. */
bool ctl_pairs(cJSON *into, const char *const *pairs, int n);

/* ---- commands, by file --------------------------------------------------------------- */

/* loractl_admin.c */
int ctl_tenant_list(void *c);

/* With --out also a key for inference and adapters; the file must not exist. */
int ctl_tenant_create(void *c);

/* Limits, classes, targets, and the causes of missed targets. */
int ctl_tenant_show(void *c);

/* PATCH with the settings that were given; all others stay. */
int ctl_tenant_set(void *c);

/* Refuses all keys of the tenant from now on; asks first. */
int ctl_tenant_suspend(void *c);

/* Lifts the suspension. */
int ctl_tenant_resume(void *c);

/* The tenant's name stays taken: its usage rows refer to it. Asks first. */
int ctl_tenant_delete(void *c);

/* All keys of a tenant or of everybody, never a secret. */
int ctl_key_list(void *c);

/* Prints the new key once, or writes it to --out. */
int ctl_key_create(void *c);
int ctl_key_set(void *c);

/* A new secret for the same key; the old one works for --grace. */
int ctl_key_rotate(void *c);

/* In force at once, also for requests that run. */
int ctl_key_revoke(void *c);
int ctl_limits_show(void *c);

/* NAME=NUMBER pairs; 0 lifts a limit. */
int ctl_limits_set(void *c);

/* loractl_server.c */
int ctl_usage_show(void *c);
int ctl_requests_list(void *c);

/* By the id of the list, or by x-request-id. */
int ctl_requests_cancel(void *c);

/* Exit status 0 if the server is ready, for scripts. */
int ctl_ping(void *c);
int ctl_stats(void *c);
int ctl_classes(void *c);
int ctl_audit(void *c); /* loractl_events.c */
int ctl_events(void *c);

/* The server accepts nothing more, finishes what runs, and ends. Asks first. */
int ctl_drain(void *c);
int ctl_node_list(void *c);
int ctl_node_drain(void *c);

/* A node that does not answer may write nothing until it starts again. */
int ctl_node_fence(void *c);

/* The path is on the server's disk. */
int ctl_backup(void *c);

/* loractl_config.c */
int ctl_config_show(void *c);

/* What a reload of the file would change, and what needs a restart. */
int ctl_config_diff(void *c);
int ctl_config_set(void *c);

/* Takes back what `config set` has set. */
int ctl_config_reset(void *c);
int ctl_reload(void *c);

/* The row with the most of a field, whose numbers are not negative; NULL: all have none of it. */
const cJSON *ctl_most_of(const cJSON *rows, const char *field);

/* loractl_advice.c: prints who or what causes a class's misses, and the command that helps.
 * `stats`: the answer of /stats, with the table of tenants; `class`: its row in it;
 * `cause`: a word of engine/base/miss.h, others print nothing. */
void ctl_say_cause(ctl *c, const cJSON *stats, const cJSON *class, const char *cause);

/* loractl_why.c */
int ctl_history(void *c);
int ctl_why(void *c);

/* loractl_adapter.c, loractl_push.c */
int ctl_adapter_list(void *c);
int ctl_adapter_show(void *c);
int ctl_adapter_versions(void *c);
int ctl_adapter_activate(void *c);
int ctl_adapter_rollback(void *c);
int ctl_adapter_alias(void *c);
int ctl_adapter_pin(void *c);
int ctl_adapter_unpin(void *c);
int ctl_adapter_warm(void *c);
int ctl_adapter_delete(void *c);
int ctl_adapter_share(void *c);
int ctl_adapter_events(void *c);
int ctl_adapter_register(void *c);

/* Uploads a folder in pieces, and continues an upload that was cut; or has the server fetch a
 * URL. */
int ctl_adapter_push(void *c);
extern const column ctl_version_columns[];

/* loractl_batch.c */
int ctl_batch_create(void *c);
int ctl_batch_list(void *c);
int ctl_batch_show(void *c);

/* Exit status 0 only if the batch is completed. */
int ctl_batch_wait(void *c);
int ctl_batch_results(void *c);
int ctl_batch_cancel(void *c);

/* loractl_chat.c */

/* A question, or a conversation on a terminal; see loractl_chat.c. */
int ctl_chat(void *c);
int ctl_complete(void *c);
int ctl_models(void *c);

/* loractl_context.c */
int ctl_context_list(void *c);

/* Of keys only whether they are set. */
int ctl_context_show(void *c);
int ctl_context_use(void *c);
int ctl_context_set(void *c);
int ctl_context_delete(void *c);

/* The key's tenant, scopes and what is left of its limits. */
int ctl_whoami(void *c);

/* loractl_main.c */
int ctl_version(void *c);

/* loractl_completion.c */
int ctl_completion(void *c);

#endif
