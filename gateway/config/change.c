/* change.c -- changes of the configuration: a candidate is made, compared and checked beside the
 * running one, then taken as a whole.
 *
 *   sources (files, environment, arguments) + set (admin API)  ->  wanted
 *   runs + the live options of wanted                          ->  next, checked  ->  runs
 *
 * `sources` is what was read at the last reload, `set` the options that an administrator has set
 * since the start; `trial_sources` and `trial` are their candidates, which replace them only when
 * commit() succeeds.  A reload reads the sources again and applies `set` on top; an option whose
 * class is gone is ignored with a warning.
 *
 * commit() first does everything that can fail: the copy for readers (live.h) is allocated, and the
 * owner prepares, for example reads certificates.  Then it publishes the copy and calls the owner's
 * follow(), which can't fail.
 *
 * An option that differs but is not live is reported as "needs a restart".  By the admin API it is
 * not kept either.
 */
#include "gateway/config/change.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/config/running.h"

enum { SET_MAX = 2 * CONFIG_OPTIONS_MAX };

/* An option as an administrator has set it. */
typedef struct {
    char name[CONFIG_NAME_MAX], value[CONFIG_TEXT_MAX];
} set_option;

typedef struct {
    set_option each[SET_MAX];
    int n;
} set_options;

struct change {
    live *l;
    change_owner owner;
    lock mu; /* over the disk; guards all below */
    config runs, sources, trial_sources, wanted, next;
    set_options set, trial;
    bool begun;
};

change *change_create(const config *c, live *l, const change_owner *owner)
{
    change *ch = calloc(1, sizeof(*ch));
    if (!ch) return NULL;
    ch->l = l;
    ch->owner = *owner;
    lock_init(&ch->mu, LOCK_CHANGE);
    ch->runs = ch->sources = *c;
    return ch;
}

static void write_file(const change *ch)
{
    lock_assert_held(&ch->mu);
    err e;
    if (running_write(&ch->runs, &e))
        log_warn("gateway", "lorad check --diff will not see this: %s", e.msg);
}

void change_begin(change *ch)
{
    lock_take(&ch->mu);
    ch->begun = true;
    write_file(ch);
    lock_release(&ch->mu);
}

void change_destroy(change *ch)
{
    if (!ch) return;
    if (ch->begun) running_remove(ch->runs.data.dir);
    lock_free(&ch->mu);
    free(ch);
}

/* ---- what an administrator has set -------------------------------------------------------- */

static set_option *find_set(set_options *s, const char *name)
{
    for (int i = 0; i < s->n; i++) {
        if (strcmp(s->each[i].name, name) == 0) return &s->each[i];
    }
    return NULL;
}

static err_code put_set(set_options *s, const char *name, const char *value, err *e)
{
    assert(s->n >= 0 && s->n <= SET_MAX);
    set_option *at = find_set(s, name);
    if (!value) {
        if (at) *at = s->each[--s->n];
        return ERR_NONE;
    }
    if (!at && s->n == SET_MAX) return err_set(e, ERR_LIMIT, "too many options are set");
    if (!at) at = &s->each[s->n++];
    snprintf(at->name, sizeof(at->name), "%s", name);
    snprintf(at->value, sizeof(at->value), "%s", value);
    return ERR_NONE;
}

/* ch->wanted: the sources with the set options on top.  An option that does not fit new sources,
 * for example of a class that is gone, is left out. */
static void lay_on_top(change *ch, const config *sources, const set_options *set)
{
    config_item item;
    err e;
    ch->wanted = *sources;
    for (int i = 0; i < set->n; i++) {
        const set_option *s = &set->each[i];
        if (config_item_find(sources, s->name, &item, &e) ||
            config_assign(&ch->wanted, s->name, s->value, CONFIG_ADMIN, &e))
            log_warn("gateway", "an option that was set by the admin API is ignored: %s", e.msg);
    }
}

/* ---- taking ------------------------------------------------------------------------------- */

static void add_line(change_report *r, const char *name, const char *before, const char *after,
                     change_verdict verdict)
{
    change_line *line = &r->line[r->n++];
    snprintf(line->name, sizeof(line->name), "%s", name);
    snprintf(line->before, sizeof(line->before), "%s", before);
    snprintf(line->after, sizeof(line->after), "%s", after);
    line->verdict = verdict;
}

static err_code open_report(change_report *r, int most, err *e)
{
    *r = (change_report){.line = calloc((size_t)most + 1, sizeof(*r->line))};
    return r->line ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for what has changed");
}

static void close_report(change_report *r)
{
    free(r->line);
    *r = (change_report){0};
}

/* ch->next: the running configuration with the live options of ch->wanted. */
static err_code make_next(change *ch, err *e)
{
    err_code rc = config_check(&ch->wanted, e);
    ch->next = ch->runs;
    config_take(&ch->next, &ch->wanted);
    if (!rc && (rc = config_check(&ch->next, e)))
        (void)err_context(e, "together with what a restart would change");
    return rc;
}

static err_code commit(change *ch, bool files, err *e)
{
    live_copy *fresh = live_prepare(&ch->next);
    if (!fresh) return err_set(e, ERR_NOMEM, "no memory for the changed configuration");
    err_code rc = ch->owner.prepare(ch->owner.self, &ch->next, files, e);
    if (rc) {
        live_drop(fresh);
        return rc;
    }
    live_publish(ch->l, fresh);
    ch->runs = ch->next;
    ch->owner.follow(ch->owner.self, &ch->runs);
    write_file(ch);
    return ERR_NONE;
}

static err_code starting(err *e)
{
    return err_set(e, ERR_CONFLICT, "the server is still starting");
}

/* ---- a reload ----------------------------------------------------------------------------- */

static err_code reload_locked(change *ch, change_report *out, err *e)
{
    lock_assert_held(&ch->mu);
    config_changes list;
    err_code rc = ch->owner.read(ch->owner.self, &ch->trial_sources, e);
    if (rc) return rc;
    lay_on_top(ch, &ch->trial_sources, &ch->set);
    rc = make_next(ch, e);
    if (!rc) rc = config_compare(&ch->runs, &ch->wanted, &list, e);
    if (rc) return rc;
    rc = open_report(out, list.n, e);
    for (int i = 0; !rc && i < list.n; i++) {
        const config_change *c = &list.each[i];
        add_line(out, c->name, c->value, c->wanted, c->live ? CHANGE_TAKEN : CHANGE_RESTART);
    }
    free(list.each);
    if (!rc && (rc = commit(ch, true, e))) close_report(out);
    if (!rc) ch->sources = ch->trial_sources;
    return rc;
}

err_code change_reload(change *ch, change_report *out, err *e)
{
    lock_take(&ch->mu);
    err_code rc = ch->begun ? reload_locked(ch, out, e) : starting(e);
    lock_release(&ch->mu);
    return rc;
}

/* ---- options by name ---------------------------------------------------------------------- */

/* Checks each option alone, then all together; *bad: the index of a wrong one. */
static err_code try_each(change *ch, const change_ask *ask, int n, int *bad, err *e)
{
    config_item item;
    ch->trial = ch->set;
    for (int i = 0; i < n; i++) {
        *bad = i;
        err_code rc = config_item_find(&ch->sources, ask[i].name, &item, e);
        if (!rc && ask[i].value && item.path)
            rc = err_set(e, ERR_INPUT,
                         "%s is a path: set it in the configuration file and reload, the admin API "
                         "cannot",
                         item.name);
        if (!rc && ask[i].value) {
            ch->wanted = ch->sources; /* to be read alone, with its limits */
            rc = config_assign(&ch->wanted, ask[i].name, ask[i].value, CONFIG_ADMIN, e);
        }
        if (!rc) rc = put_set(&ch->trial, ask[i].name, ask[i].value, e);
        if (rc) return rc;
    }
    *bad = -1;
    lay_on_top(ch, &ch->sources, &ch->trial);
    return make_next(ch, e);
}

static const config_change *find_change(const config_changes *list, const char *name)
{
    for (int i = 0; i < list->n; i++) {
        if (strcmp(list->each[i].name, name) == 0) return &list->each[i];
    }
    return NULL;
}

/* Reports the outcome of each option; one that needs a restart is not kept. */
static void judge(change *ch, const change_ask *ask, int n, const config_changes *list,
                  change_report *out)
{
    config_item item;
    err e;
    for (int i = 0; i < n; i++) {
        const config_change *c = find_change(list, ask[i].name);
        if (c) {
            add_line(out, c->name, c->value, c->wanted, c->live ? CHANGE_TAKEN : CHANGE_RESTART);
        } else if (!config_item_find(&ch->runs, ask[i].name, &item, &e)) {
            add_line(out, item.name, item.value, item.value, CHANGE_SAME);
        }
        if (c && !c->live) (void)put_set(&ch->trial, c->name, NULL, &e);
    }
}

static err_code set_locked(change *ch, const change_ask *ask, int n, change_report *out, int *bad,
                           err *e)
{
    lock_assert_held(&ch->mu);
    config_changes list;
    err_code rc = try_each(ch, ask, n, bad, e);
    if (!rc) rc = config_compare(&ch->runs, &ch->wanted, &list, e);
    if (rc) return rc;
    rc = open_report(out, n, e);
    if (!rc) judge(ch, ask, n, &list, out);
    free(list.each);
    if (!rc && (rc = commit(ch, false, e))) close_report(out);
    if (!rc) ch->set = ch->trial;
    return rc;
}

err_code change_set(change *ch, const change_ask *ask, int n, change_report *out, int *bad, err *e)
{
    *bad = -1;
    lock_take(&ch->mu);
    err_code rc = ch->begun ? set_locked(ch, ask, n, out, bad, e) : starting(e);
    lock_release(&ch->mu);
    return rc;
}

/* ---- asking ------------------------------------------------------------------------------- */

err_code change_look(change *ch, config_changes *out, err *e)
{
    lock_take(&ch->mu);
    err_code rc = ch->owner.read(ch->owner.self, &ch->trial_sources, e);
    if (!rc) {
        lay_on_top(ch, &ch->trial_sources, &ch->set);
        rc = config_compare(&ch->runs, &ch->wanted, out, e);
    }
    lock_release(&ch->mu);
    return rc;
}

bool change_names(const change_report *r, change_verdict verdict, char *text, size_t cap)
{
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < r->n && n < cap; i++) {
        if (r->line[i].verdict != verdict) continue;
        int wrote = snprintf(text + n, cap - n, "%s%s", n ? ", " : "", r->line[i].name);
        n += wrote > 0 ? (size_t)wrote : 0;
    }
    return n > 0;
}

static const char *value_of(const change_line *line, char out[2 * CONFIG_TEXT_MAX])
{
    char before[CONFIG_TEXT_MAX], after[CONFIG_TEXT_MAX];
    memcpy(before, line->before, sizeof(before));
    memcpy(after, line->after, sizeof(after));
    config_hide(before);
    config_hide(after);
    snprintf(out, 2 * CONFIG_TEXT_MAX, "%s -> %s", before, after);
    return out;
}

/* Options that need a restart were not changed: their names alone, in a list. */
static void add_detail(cJSON *tree, cJSON *left, const change_line *line)
{
    char value[2 * CONFIG_TEXT_MAX];
    if (line->verdict == CHANGE_TAKEN)
        (void)cJSON_AddStringToObject(tree, line->name, value_of(line, value));
    else if (line->verdict == CHANGE_RESTART)
        (void)cJSON_AddItemToArray(left, cJSON_CreateString(line->name));
}

static void drop_last(cJSON *tree, const change_line *line)
{
    cJSON *left = cJSON_GetObjectItemCaseSensitive(tree, "needs_restart");
    if (line->verdict == CHANGE_TAKEN)
        cJSON_DeleteItemFromObjectCaseSensitive(tree, line->name);
    else if (line->verdict == CHANGE_RESTART)
        cJSON_DeleteItemFromArray(left, cJSON_GetArraySize(left) - 1);
}

void change_detail(const change_report *r, char *text, size_t cap)
{
    cJSON *tree = cJSON_CreateObject(), *left = cJSON_AddArrayToObject(tree, "needs_restart");
    text[0] = 0;
    for (int i = 0; left && i < r->n; i++) {
        add_detail(tree, left, &r->line[i]);
        if (cJSON_PrintPreallocated(tree, text, (int)cap, false)) continue;
        drop_last(tree, &r->line[i]);
    }
    if (!left || !cJSON_PrintPreallocated(tree, text, (int)cap, false)) text[0] = 0;
    cJSON_Delete(tree);
}
