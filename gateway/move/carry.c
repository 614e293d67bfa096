/* carry.c -- fetches the KV pages of a moved request, and its recurrent state, from the node that
 * had it, if that is faster than computing them.
 *
 *   look()   which pages are missing here, and how long computing them would take
 *            (sched_pages_look())
 *   is_dearer()   setup + bytes x time per byte, learned from earlier transfers, against that
 *   run()    POST move_ask; response: move_pages header, then (SHA-256, page) records; of a model
 *            with states, one with the state at the end of the last page
 *
 * Records are collected up to COPY_BYTES, verified, and copied into the engine (sched_pages_load())
 * before more is read, so TCP holds the other node back and memory stays bounded. A page's digest
 * also covers its tokens, adapter and isolation domain (move_digest()), so a page cannot be
 * attributed to another text. A state is collected whole and loaded behind its pages
 * (sched_state_load()). Without it, they are of no use.
 *
 * Anything that goes wrong keeps the pages before it; the rest is computed. At most AT_ONCE
 * transfers run; a transfer may take as long as the computation would, within LEAST_US and MOST_US.
 * Estimates shrink a little with each decision against a transfer (`hope`), so that it is tried
 * again.
 *
 * Threads: the worker that continues the request; `mu` guards the counters and estimates.
 */
#include "gateway/move/carry.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/lock.h"
#include "engine/base/log.h"
#include "gateway/engine_parts.h"
#include "gateway/move/node_door.h"
#include "gateway/move/roster.h"
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"

enum {
    AT_ONCE = 4,
    COPY_BYTES = 4 << 20,
    LEAST_US = 1000000, /* a transfer may take as long as the computation, within these bounds; */
    MOST_US = 15000000, /* all together: the node that waits for us gives up after 20 s (mover.c) */
};

/* Weight of the newest transfer in the means; factor per omitted transfer, so that it is tried
 * again. */
static const double newest = 0.2, hope = 0.95;
static const double half_life_us = 60e6; /* of a measured speed that others are told */

struct carry {
    server *srv;
    roster *roster; /* NULL: the database is asked for addresses */
    lock mu;        /* guards all below */
    cond freed;
    int n_busy;
    double setup_us, byte_us; /* until its first byte; of each further one; 0: not known */
    int64_t learnt_us;        /* when that was measured */
};

/* One transfer. */
typedef struct transfer {
    const carry_want *w;
    server *srv;
    CURL *curl;
    struct curl_slist *headers;
    move_ask ask;
    move_pages head;
    size_t n_head; /* bytes of it that have come */
    int first, next, end;
    size_t page_bytes, n_record; /* bytes of the record that is under way */
    int n_page, most;            /* whole ones in `page`, and room there */
    uint8_t (*digest)[DIGEST_BYTES];
    unsigned char *page;
    size_t state_bytes;   /* 0: the model has none */
    unsigned char *state; /* its record */
    bool has_state;       /* it was loaded */
    int64_t until_us;
    moved_kv why; /* MOVED_KV_TAKEN: nothing was wrong yet */
    bool unknown; /* that node does not know us: it has started anew since we heard of it */
    err *e;
} transfer;

carry *carry_create(server *s)
{
    carry *c = calloc(1, sizeof(*c));
    if (!c) return NULL;
    c->srv = s;
    lock_init(&c->mu, LOCK_CARRY);
    cond_init(&c->freed);
    return c;
}

void carry_ask(carry *c, roster *r)
{
    c->roster = r;
}

void carry_speed(carry *c, double *setup_us, double *byte_us)
{
    lock_take(&c->mu);
    double left = exp2(-(double)(clock_now_us() - c->learnt_us) / half_life_us);
    *setup_us = c->setup_us * left;
    *byte_us = c->byte_us * left;
    lock_release(&c->mu);
}

void carry_destroy(carry *c)
{
    if (!c) return;
    cond_free(&c->freed);
    lock_free(&c->mu);
    free(c);
}

int carry_pages_at_once(const sched *sc)
{
    size_t page = sched_page_bytes(sc);
    return page < COPY_BYTES ? (int)(COPY_BYTES / page) : 1;
}

/* ------------------------------------------------------------------ what comes -- */

/* Records the first error. Returns 0, which makes curl stop. */
static size_t stop(transfer *t, moved_kv why)
{
    if (t->why == MOVED_KV_TAKEN) t->why = why;
    return 0;
}

/* Verifies the complete pages and loads them into the engine. */
static bool put_pages(transfer *t)
{
    assert(t->n_page >= 0 && t->n_page <= t->most && t->next + t->n_page <= t->end);
    sched *sc = sched_of(t->srv);
    const sched_text *text = &t->w->text;
    uint8_t is[DIGEST_BYTES];
    int n_done = 0;
    for (int i = 0; i < t->n_page; i++) {
        const unsigned char *page = t->page + (size_t)i * t->page_bytes;
        move_digest(text, t->next + i, sched_page_tokens(sc), page, t->page_bytes, is);
        if (digest_same(is, t->digest[i], sizeof(is))) continue;
        (void)err_set(t->e, ERR_CORRUPT, "page %d of %d came damaged", t->next + i, t->end);
        (void)stop(t, MOVED_KV_DAMAGED);
        t->n_page = i; /* those before it are good */
    }
    err_code rc = t->n_page == 0 ? ERR_NONE
                                 : sched_pages_load(sc, text, t->next, t->n_page, t->page,
                                                    t->until_us, &n_done, t->e);
    assert(n_done >= 0 && n_done <= t->n_page);
    bool all = !rc && n_done == t->n_page;
    if (!rc && !all)
        (void)err_set(t->e, ERR_LIMIT, "only %d of %d pages fit", t->next + n_done, t->end);
    if (!all) (void)stop(t, MOVED_KV_FULL);
    t->next += n_done;
    t->n_page = 0;
    return t->why == MOVED_KV_TAKEN;
}

/* Verifies the complete state and loads it into the engine. */
static bool put_state(transfer *t)
{
    assert(t->next == t->end && !t->has_state);
    sched *sc = sched_of(t->srv);
    const sched_text *text = &t->w->text;
    const unsigned char *state = t->state + DIGEST_BYTES;
    uint8_t is[DIGEST_BYTES];
    move_state_digest(text, t->end, sched_page_tokens(sc), state, t->state_bytes, is);
    bool good = digest_same(is, t->state, sizeof(is));
    if (!good)
        (void)err_set(t->e, ERR_CORRUPT, "the state behind %d pages came damaged", t->end);
    else if (!sched_state_load(sc, text, t->end, state, t->until_us, &t->has_state, t->e) &&
             !t->has_state)
        (void)err_set(t->e, ERR_LIMIT, "the pages before the state are not here any more");
    if (!t->has_state) (void)stop(t, good ? MOVED_KV_FULL : MOVED_KV_DAMAGED);
    return t->has_state;
}

/* All pages are here: a state comes, or nothing. */
static bool has_pages(const transfer *t)
{
    return t->next + t->n_page >= t->end;
}

/* The pages that came are of use: the state is there, or the model has none. */
static bool is_useful(const transfer *t)
{
    return t->has_state || t->state_bytes == 0;
}

static bool is_over(const transfer *t)
{
    return has_pages(t) && is_useful(t);
}

static size_t record_bytes(const transfer *t)
{
    return DIGEST_BYTES + (has_pages(t) ? t->state_bytes : t->page_bytes);
}

/* Where the next bytes of a record go, and how many are missing. */
static size_t place(transfer *t, unsigned char **to)
{
    assert(t->n_record < record_bytes(t));
    if (has_pages(t)) {
        *to = t->state + t->n_record;
        return record_bytes(t) - t->n_record;
    }
    assert(t->n_page < t->most);
    bool digest = t->n_record < DIGEST_BYTES;
    size_t at = digest ? t->n_record : t->n_record - DIGEST_BYTES;
    *to = digest ? &t->digest[t->n_page][at] : t->page + (size_t)t->n_page * t->page_bytes + at;
    return (digest ? DIGEST_BYTES : t->page_bytes) - at;
}

static bool take_record(transfer *t)
{
    t->n_record = 0;
    if (has_pages(t)) return put_state(t);
    t->n_page++;
    return (t->n_page < t->most && !has_pages(t)) || put_pages(t);
}

static bool take_head(transfer *t)
{
    move_pages ours;
    move_write_pages(engine_of(t->srv)->fingerprint, t->page_bytes,
                     sched_page_tokens(sched_of(t->srv)), t->first, &ours);
    if (t->state_bytes > 0) move_add_state(t->state_bytes, t->end, &ours);
    bool good = !move_check_pages(&t->head, &ours, t->e);
    if (!good) (void)stop(t, MOVED_KV_REFUSED);
    if (good && t->state_bytes > 0) t->end = (int)t->head.state_pages;
    return good;
}

/* Bytes of an answer as they come: a head, then records of a digest and a page, each straight
 * into its place; whole batches of pages go to the engine while the rest is on its way. Less
 * than size * n ends the transfer. */
static size_t receive(char *data, size_t size, size_t n, void *arg)
{
    transfer *t = arg;
    long status = 0;
    size_t left = size * n;
    (void)curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) return size * n;
    while (left > 0) {
        bool in_head = t->n_head < sizeof(t->head);
        unsigned char *to = (unsigned char *)&t->head + t->n_head;
        if (!in_head && is_over(t)) {
            (void)err_set(t->e, ERR_CORRUPT, "more comes than was asked for");
            return stop(t, MOVED_KV_REFUSED);
        }
        size_t want = in_head ? sizeof(t->head) - t->n_head : place(t, &to);
        if (want > left) want = left;
        memcpy(to, data, want);
        data += want;
        left -= want;
        if (in_head) {
            t->n_head += want;
            if (t->n_head == sizeof(t->head) && !take_head(t)) return 0;
            continue;
        }
        t->n_record += want;
        if (t->n_record == record_bytes(t) && !take_record(t)) return 0;
    }
    return size * n;
}

/* ------------------------------------------------------------------- a transfer -- */

/* The door of that node, `fresh` from the database; false: *e says why. */
static bool find_door(const carry *c, int64_t node, bool fresh, node_door *out, err *e)
{
    fleet_member *list;
    size_t n;
    bool found = false;
    if (!fresh && c->roster && roster_door(c->roster, node, out)) return true;
    if (nodes_list(store_of(c->srv), &list, &n, e)) return false;
    for (size_t i = 0; i < n && !found; i++)
        found = list[i].node == node && node_door_read(list[i].door, out);
    free(list);
    if (!found) (void)err_set(e, ERR_NOT_FOUND, "server %lld has no address", (long long)node);
    return found;
}

static bool set_up(transfer *t, const node_door *d)
{
    int64_t left_ms = (t->until_us - clock_now_us()) / 1000;
    CURL *c = t->curl = curl_easy_init();
    move_write_ask(engine_of(t->srv)->fingerprint, t->w->pass, t->first, &t->ask);
    t->digest = malloc((size_t)t->most * sizeof(*t->digest));
    t->page = malloc((size_t)t->most * t->page_bytes);
    t->state = malloc(DIGEST_BYTES + t->state_bytes);
    bool ok = c && t->digest && t->page && t->state &&
              node_door_post(c, d, MOVE_PAGES_PATH, &t->ask, sizeof(t->ask), &t->headers) &&
              !curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, left_ms > 1 ? (long)left_ms : 1L) &&
              !curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, receive) &&
              !curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    if (!ok) (void)err_set(t->e, ERR_NOMEM, "out of memory");
    return ok;
}

/* The result of a transfer that curl ended with rc. */
static moved_kv judge(transfer *t, CURLcode rc)
{
    long status = 0;
    (void)curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (t->why != MOVED_KV_TAKEN) return t->why;
    if (!rc && status != 200) {
        t->unknown = status == 401;
        (void)err_set(t->e, ERR_NOT_FOUND, "server %lld answers %ld", (long long)t->w->node,
                      status);
        return MOVED_KV_REFUSED;
    }
    bool whole = !rc && t->n_head == sizeof(t->head) && t->n_record == 0;
    if (whole && t->n_page > 0 && !put_pages(t)) return t->why;
    if (whole && t->next > t->first && is_useful(t)) return MOVED_KV_TAKEN;
    (void)err_set(t->e, ERR_IO, "%s after %d of %d pages",
                  rc ? curl_easy_strerror(rc) : "the transfer ended", t->next - t->first,
                  t->end - t->first);
    return MOVED_KV_LOST;
}

/* Updates the estimates with a finished transfer. */
static void learn(carry *c, const transfer *t)
{
    assert(t->next > t->first);
    curl_off_t setup = 0, all = 0;
    double bytes = (double)(t->next - t->first) * (double)t->page_bytes + (double)t->state_bytes;
    (void)curl_easy_getinfo(t->curl, CURLINFO_STARTTRANSFER_TIME_T, &setup);
    (void)curl_easy_getinfo(t->curl, CURLINFO_TOTAL_TIME_T, &all);
    lock_take(&c->mu);
    bool none = c->byte_us == 0;
    double byte_us = (double)(all - setup) / bytes;
    c->setup_us += (none ? 1 : newest) * ((double)setup - c->setup_us);
    c->byte_us += (none ? 1 : newest) * (byte_us - c->byte_us);
    c->learnt_us = clock_now_us();
    lock_release(&c->mu);
}

static moved_kv transfer_pages(carry *c, transfer *t, bool fresh)
{
    node_door d;
    moved_kv why = MOVED_KV_LOST;
    if (find_door(c, t->w->node, fresh, &d, t->e) && set_up(t, &d))
        why = judge(t, curl_easy_perform(t->curl));
    if (why == MOVED_KV_TAKEN) learn(c, t);
    curl_easy_cleanup(t->curl);
    curl_slist_free_all(t->headers);
    free(t->digest);
    free(t->page);
    free(t->state);
    return why;
}

static moved_kv run(carry *c, const carry_want *w, int first, int64_t until_us, int *n_tokens,
                    err *e)
{
    const sched *sc = sched_of(c->srv);
    moved_kv why = MOVED_KV_LOST;
    bool again = true;
    for (int i = 0; i < 2 && again; i++) {
        transfer t = {.w = w,
                      .srv = c->srv,
                      .first = first,
                      .next = first,
                      .end = sched_text_pages(sc, &w->text),
                      .page_bytes = sched_page_bytes(sc),
                      .state_bytes = sched_state_bytes(sc),
                      .most = carry_pages_at_once(sc),
                      .until_us = until_us,
                      .why = MOVED_KV_TAKEN,
                      .e = e};
        why = transfer_pages(c, &t, i > 0);
        *n_tokens = is_useful(&t) ? (t.next - first) * sched_page_tokens(sc) : 0;
        again = t.unknown;
    }
    return why;
}

/* --------------------------------------------------------------- whether at all -- */

/* mu is held.  Computing `bytes` of pages and a state takes `us`; 0: nobody knows. */
static bool is_dearer(carry *c, double bytes, double us)
{
    lock_assert_held(&c->mu);
    double takes_us = c->setup_us + bytes * c->byte_us;
    if (us <= 0 || takes_us <= us) return false;
    c->setup_us *= hope;
    c->byte_us *= hope;
    return true;
}

/* MOVED_KV_TAKEN: pages from *have on are wanted, which to compute takes *us. */
static moved_kv look(carry *c, const carry_want *w, int64_t until_us, int *have, double *us, err *e)
{
    sched *sc = sched_of(c->srv);
    int all = sched_text_pages(sc, &w->text);
    bool never = strcmp(w->mode, "never") == 0, always = strcmp(w->mode, "always") == 0;
    if (never) (void)err_set(e, ERR_UNSUPPORTED, "server.fleet_kv is 'never'");
    if (never) return MOVED_KV_OFF;
    err_code rc = sched_pages_look(sc, &w->text, w->rank, until_us, have, us, e);
    if (rc) return rc == ERR_UNSUPPORTED ? MOVED_KV_OFF : MOVED_KV_FULL;
    if (all - *have < sched_pages_least(sc)) return MOVED_KV_HERE;
    double bytes =
        (double)(all - *have) * (double)sched_page_bytes(sc) + (double)sched_state_bytes(sc);
    lock_take(&c->mu);
    bool dearer = !always && is_dearer(c, bytes, *us);
    lock_release(&c->mu);
    if (!dearer) return MOVED_KV_TAKEN;
    (void)err_set(e, ERR_LIMIT, "computing them should take %.0f ms", *us / 1000);
    return MOVED_KV_CHEAPER;
}

/* False: it is too late. */
static bool wait_in_line(carry *c, int64_t until_us, bool *waited)
{
    lock_take(&c->mu);
    *waited = c->n_busy >= AT_ONCE;
    while (c->n_busy >= AT_ONCE && cond_wait_until(&c->freed, &c->mu, until_us)) continue;
    bool mine = c->n_busy < AT_ONCE;
    c->n_busy += mine;
    lock_release(&c->mu);
    return mine;
}

static void leave_line(carry *c)
{
    lock_take(&c->mu);
    assert(c->n_busy > 0);
    c->n_busy--;
    cond_signal(&c->freed);
    lock_release(&c->mu);
}

/* For what takes `us` to compute; 0: nobody knows. */
static int64_t time_for(double us)
{
    return us <= 0 || us > MOST_US ? MOST_US : us < LEAST_US ? LEAST_US : (int64_t)us;
}

static moved_kv bring(carry *c, const carry_want *w, int *n_tokens, err *e)
{
    int have = 0;
    double us = 0;
    bool waited = false;
    *n_tokens = 0;
    int64_t last_us = clock_now_us() + MOST_US;
    moved_kv why = look(c, w, last_us, &have, &us, e);
    if (why != MOVED_KV_TAKEN) return why;
    if (!wait_in_line(c, last_us, &waited)) {
        (void)err_set(e, ERR_TIMEOUT, "%d transfers were under way for too long", AT_ONCE);
        return MOVED_KV_LOST;
    }
    /* Another choice may have brought the prompt. */
    if (waited) why = look(c, w, last_us, &have, &us, e);
    bool always = strcmp(w->mode, "always") == 0;
    int64_t until_us = clock_now_us() + time_for(always ? 0 : us);
    if (until_us > last_us) until_us = last_us;
    if (why == MOVED_KV_TAKEN) why = run(c, w, have, until_us, n_tokens, e);
    leave_line(c);
    return why;
}

moved_kv carry_bring(carry *c, const carry_want *w, int *n_tokens)
{
    err e;
    server_counters *count = &process_of(c->srv)->count;
    moved_kv why = bring(c, w, n_tokens, &e);
    atomic_fetch_add(&count->moved_kv[why], 1);
    atomic_fetch_add(&count->moved_kv_tokens, (uint64_t)*n_tokens);
    if (why >= MOVED_KV_REFUSED)
        log_warn("gateway",
                 "request %llu of server %lld: KV of %d tokens came, the rest is computed here: %s",
                 (unsigned long long)w->request, (long long)w->node, *n_tokens, e.msg);
    return why;
}
