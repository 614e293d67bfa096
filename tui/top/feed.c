/* feed.c -- loratop's network thread: one per server, polls /admin/v1/stats and carries out
 * actions.
 *
 *   thread:  wait for the cursor --> GET stats?cursor=.. --> item to the main thread --> actions
 *            --> sleep
 *   main:    feed_take() --> topdata_apply() --> feed_set_cursor()
 *
 * The next poll is not sent before the main thread has applied the last answer and returned its
 * cursor, so no delta is lost or applied twice. If more rows are left (`more`), it follows at once.
 * Failures back off from 250 ms to 4 s. Every ten seconds the thread also asks for the history
 * (FEED_PAST).
 *
 * A byte written to the pipe `wake` interrupts the main thread's poll(). feed_close() cancels the
 * running request, so quitting does not wait for a dead server.
 *
 * Threads: `mu` guards queue, actions and cursor; the HTTP client belongs to the thread.
 */
#include "tui/top/feed.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"

enum {
    ITEMS_MAX = 16,
    ACTS_MAX = 256,
    FIRST_RETRY_MS = 250,
    LAST_RETRY_MS = 4000,
    CALL_MS = 10000,
    PAST_US = 10000000,
    FIRST_PAST_S = 1800, /* about as much as a wide screen shows */
};

struct feed {
    client *c;
    int wake;
    pthread_t thread;
    lock mu; /* guards all below */
    cond change;
    bool stop, more, took;
    int64_t interval_ms, past_from_s;
    char cursor[64];
    feed_item item[ITEMS_MAX];
    int n_item;
    view_action act[ACTS_MAX];
    int n_act;
};

/* Waits while the queue is full, so that no delta is lost. */
static void put(feed *f, feed_kind kind, const char *text, size_t len, bool ok)
{
    char *copy = malloc(len + 1);
    if (!copy) return;
    memcpy(copy, text, len);
    copy[len] = 0;
    lock_take(&f->mu);
    while (f->n_item == ITEMS_MAX && !f->stop) cond_wait(&f->change, &f->mu);
    if (f->n_item < ITEMS_MAX) {
        f->item[f->n_item++] = (feed_item){kind, copy, len, ok};
        copy = NULL;
    }
    lock_release(&f->mu);
    free(copy);
    if (write(f->wake, "x", 1) < 0) return; /* a full pipe wakes as well */
}

/* Sleeps until `end_us`, an action or the stop; true: go on. */
static bool sleep_until(feed *f, int64_t end_us)
{
    lock_take(&f->mu);
    while (!f->stop && f->n_act == 0 && cond_wait_until(&f->change, &f->mu, end_us)) continue;
    bool go = !f->stop;
    lock_release(&f->mu);
    return go;
}

static void do_one(feed *f, const view_action *a)
{
    client_request rq = {.method = a->method,
                         .path = a->path,
                         .timeout_ms = CALL_MS,
                         .body = a->body[0] ? a->body : NULL,
                         .body_len = strlen(a->body)};
    client_reply r;
    err e;
    char text[400], why[256];
    if (client_call(f->c, &rq, &r, &e)) {
        snprintf(text, sizeof(text), "%s: %s", a->what, e.msg);
        put(f, FEED_DONE, text, strlen(text), false);
    } else if (client_reply_ok(&r) && a->answer != ANSWER_TOLD) {
        put(f, a->answer == ANSWER_KEYS ? FEED_KEYS : FEED_ENDED, r.body ? r.body : "", r.len,
            true);
    } else if (client_reply_ok(&r)) {
        snprintf(text, sizeof(text), "%s: done", a->what);
        put(f, FEED_DONE, text, strlen(text), true);
    } else {
        client_reply_error(&r, why, sizeof(why));
        snprintf(text, sizeof(text), "%s: %s", a->what, why);
        put(f, FEED_DONE, text, strlen(text), false);
    }
    client_reply_clear(&r);
}

static void do_actions(feed *f)
{
    for (;;) {
        view_action a;
        lock_take(&f->mu);
        bool any = f->n_act > 0 && !f->stop;
        if (any) {
            a = f->act[0];
            memmove(f->act, f->act + 1, (size_t)--f->n_act * sizeof(f->act[0]));
        }
        lock_release(&f->mu);
        if (!any) return;
        do_one(f, &a);
    }
}

/* Waits for the cursor of the last answer. */
static bool cursor_of(feed *f, char out[64])
{
    lock_take(&f->mu);
    while (!f->took && !f->stop) cond_wait(&f->change, &f->mu);
    memcpy(out, f->cursor, 64);
    f->took = false;
    bool go = !f->stop;
    lock_release(&f->mu);
    return go;
}

/* Asks for the history; a server without one is fine. */
static void ask_past(feed *f)
{
    char path[96];
    client_reply r;
    err e;
    lock_take(&f->mu);
    snprintf(path, sizeof(path), "/admin/v1/history?by=class&step=10&start=%lld",
             (long long)f->past_from_s);
    lock_release(&f->mu);
    client_request rq = {.method = "GET", .path = path, .timeout_ms = CALL_MS};
    if (!client_call(f->c, &rq, &r, &e) && client_reply_ok(&r))
        put(f, FEED_PAST, r.body ? r.body : "", r.len, true);
    client_reply_clear(&r);
}

/* Asks for statistics by the cursor of the last answer that was taken, waits out the interval,
 * and meanwhile makes the calls that were asked for. A server that does not answer is asked
 * again after pauses that double, by the same cursor. */
static void *feed_thread(void *arg)
{
    feed *f = arg;
    int64_t retry_ms = FIRST_RETRY_MS, past_us = 0;
    char cursor[64];
    (void)pthread_setname_np(pthread_self(), "feed");
    while (cursor_of(f, cursor)) {
        char path[160];
        client_reply r;
        err e;
        snprintf(path, sizeof(path), "/admin/v1/stats%s%s", cursor[0] ? "?cursor=" : "", cursor);
        client_request rq = {.method = "GET", .path = path, .timeout_ms = CALL_MS};
        int64_t start = clock_now_us(), wait_ms;
        if (start >= past_us) ask_past(f);
        if (start >= past_us) past_us = start + PAST_US;
        err_code rc = client_call(f->c, &rq, &r, &e);
        if (!rc && client_reply_ok(&r)) {
            put(f, FEED_ANSWER, r.body ? r.body : "", r.len, true);
            retry_ms = FIRST_RETRY_MS;
            lock_take(&f->mu);
            wait_ms = f->interval_ms;
            lock_release(&f->mu);
        } else {
            char why[256];
            if (rc)
                snprintf(why, sizeof(why), "%s", e.msg);
            else
                client_reply_error(&r, why, sizeof(why));
            put(f, FEED_GONE, why, strlen(why), false);
            wait_ms = retry_ms;
            if ((retry_ms *= 2) > LAST_RETRY_MS) retry_ms = LAST_RETRY_MS;
            lock_take(&f->mu);
            f->took = true; /* the same cursor again */
            lock_release(&f->mu);
        }
        client_reply_clear(&r);
        for (;;) {
            do_actions(f);
            lock_take(&f->mu);
            if (rc == ERR_NONE && f->interval_ms < wait_ms) wait_ms = f->interval_ms;
            bool go = !f->stop, hurry = f->more;
            lock_release(&f->mu);
            int64_t end = start + wait_ms * 1000;
            if (!go || hurry || clock_now_us() >= end || !sleep_until(f, end)) break;
        }
    }
    return NULL;
}

err_code feed_open(feed **out, const client_options *o, int wake, int64_t interval_ms, err *e)
{
    feed *f = calloc(1, sizeof(*f));
    *out = NULL;
    if (!f) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = client_open(&f->c, o, e);
    if (rc) {
        free(f);
        return rc;
    }
    f->wake = wake;
    f->interval_ms = interval_ms;
    f->took = true;
    f->past_from_s = clock_wall_us() / 1000000 - FIRST_PAST_S;
    lock_init(&f->mu, LOCK_FEED);
    cond_init(&f->change);
    if (pthread_create(&f->thread, NULL, feed_thread, f) != 0) {
        client_close(f->c);
        cond_free(&f->change);
        lock_free(&f->mu);
        free(f);
        return err_set(e, ERR_LIMIT, "a thread could not be started");
    }
    *out = f;
    return ERR_NONE;
}

void feed_close(feed *f)
{
    if (!f) return;
    lock_take(&f->mu);
    f->stop = true;
    cond_broadcast(&f->change);
    lock_release(&f->mu);
    client_cancel(f->c);
    (void)pthread_join(f->thread, NULL);
    for (int i = 0; i < f->n_item; i++) free(f->item[i].text);
    client_close(f->c);
    cond_free(&f->change);
    lock_free(&f->mu);
    free(f);
}

void feed_set_interval(feed *f, int64_t interval_ms)
{
    lock_take(&f->mu);
    f->interval_ms = interval_ms;
    cond_broadcast(&f->change);
    lock_release(&f->mu);
}

void feed_set_cursor(feed *f, const char *cursor)
{
    lock_take(&f->mu);
    snprintf(f->cursor, sizeof(f->cursor), "%s", cursor);
    f->took = true;
    cond_broadcast(&f->change);
    lock_release(&f->mu);
}

void feed_set_past(feed *f, int64_t from_s)
{
    lock_take(&f->mu);
    f->past_from_s = from_s;
    lock_release(&f->mu);
}

bool feed_act(feed *f, const view_action *a)
{
    lock_take(&f->mu);
    bool ok = f->n_act < ACTS_MAX;
    if (ok) f->act[f->n_act++] = *a;
    cond_broadcast(&f->change);
    lock_release(&f->mu);
    return ok;
}

bool feed_take(feed *f, feed_item *out)
{
    lock_take(&f->mu);
    bool any = f->n_item > 0;
    if (any) {
        assert(f->n_item <= ITEMS_MAX);
        *out = f->item[0];
        memmove(f->item, f->item + 1, (size_t)--f->n_item * sizeof(f->item[0]));
        cond_broadcast(&f->change);
    }
    lock_release(&f->mu);
    return any;
}
