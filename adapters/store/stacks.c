/* stacks.c -- combinations of adapters ("stacks"): a list, most recently used first, under one
 * mutex.
 *
 * A stack is identified by its versions, sorted by id, and its scales.  stacks_acquire() returns
 * the known one or adds it.  Its own id has the highest bit set, which no version's has, so the
 * engine treats it like an adapter.
 *
 * While somebody holds it, its versions are pinned in the registry, once: the first holder brings
 * the pins, the last one takes them away.  Unheld stacks stay for reuse, at most STACKS_KEPT; the
 * least recently used one is dropped.  A dropped id is reported to residency, which frees its
 * memory.
 *
 * Pins are taken and released outside the mutex, because the registry may write to the disk.  So
 * stacks_acquire_id() looks the stack up again after pinning.
 */
#include "adapters/store/stacks.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/lock.h"
#include "storage/digest.h"

#define STACK_MARK (1ULL << 63) /* versions have smaller ids */

typedef struct node {
    stack pub; /* first; its parts' versions are NULL while nobody holds it */
    uint64_t version[STACK_PARTS_MAX];
    char name[STACK_PARTS_MAX][ADAPTER_NAME_MAX + 16]; /* "one@3" */
    int holds;
    struct node *next;
} node;

struct stacks {
    registry *reg;
    lock mu; /* guards all below */
    node *list;
    uint64_t last;
    void (*gone)(void *self, uint64_t id); /* written before use by many threads */
    void *gone_self;
};

stacks *stacks_create(registry *reg)
{
    stacks *s = calloc(1, sizeof(*s));
    if (!s) return NULL;
    s->reg = reg;
    lock_init(&s->mu, LOCK_STACKS);
    return s;
}

void stacks_destroy(stacks *s)
{
    if (!s) return;
    for (node *n = s->list, *next; n; n = next) {
        next = n->next;
        assert(n->holds == 0);
        free(n);
    }
    lock_free(&s->mu);
    free(s);
}

void stacks_on_gone(stacks *s, void (*fn)(void *self, uint64_t id), void *self)
{
    s->gone = fn;
    s->gone_self = self;
}

/* Frees a node that is in no list any more and reports its id; NULL: nothing. */
static void forget(const stacks *s, node *n)
{
    if (n && s->gone) s->gone(s->gone_self, n->pub.id);
    free(n);
}

bool stacks_is(uint64_t id)
{
    return (id & STACK_MARK) != 0;
}

/* ---- pins ----------------------------------------------------------------------------------- */

typedef struct pins {
    const adapter_version *v[STACK_PARTS_MAX];
    int n;
} pins;

static void unpin(const stacks *s, pins *p)
{
    while (p->n > 0) registry_release(s->reg, p->v[--p->n]);
}

static err_code pin(const stacks *s, const uint64_t *version, int n, pins *p, err *e)
{
    p->n = 0;
    for (int i = 0; i < n; i++) {
        err_code rc = registry_acquire_id(s->reg, version[i], &p->v[i], e);
        if (rc) {
            unpin(s, p);
            return rc;
        }
        p->n++;
    }
    return ERR_NONE;
}

/* The first holder's pins become the stack's; those of others stay with them. */
static void hold_locked(const stacks *s, node *n, pins *p)
{
    lock_assert_held(&s->mu);
    if (n->holds++ > 0) return;
    for (int i = 0; i < n->pub.n; i++) n->pub.part[i].v = p->v[i];
    p->n = 0;
}

/* ---- the list ------------------------------------------------------------------------------- */

static node *to_front(stacks *s, node **at)
{
    node *n = *at;
    *at = n->next;
    n->next = s->list;
    s->list = n;
    return n;
}

static node *by_id_locked(stacks *s, uint64_t id)
{
    lock_assert_held(&s->mu);
    for (node **at = &s->list; *at; at = &(*at)->next) {
        if ((*at)->pub.id == id) return to_front(s, at);
    }
    return NULL;
}

static bool same_parts(const node *a, const node *b)
{
    bool same = a->pub.n == b->pub.n;
    for (int i = 0; same && i < a->pub.n; i++) {
        same = a->version[i] == b->version[i] && a->pub.part[i].scale == b->pub.part[i].scale;
    }
    return same;
}

static node *by_parts_locked(stacks *s, const node *like)
{
    lock_assert_held(&s->mu);
    for (node **at = &s->list; *at; at = &(*at)->next) {
        if (same_parts(*at, like)) return to_front(s, at);
    }
    return NULL;
}

/* Removes the least recently used unheld one, if there are too many; the caller frees it. */
static node *spare_locked(stacks *s)
{
    lock_assert_held(&s->mu);
    node **last = NULL, *out = NULL;
    int idle = 0;
    for (node **at = &s->list; *at; at = &(*at)->next) {
        if ((*at)->holds > 0) continue;
        idle++;
        last = at;
    }
    if (idle <= STACKS_KEPT) return NULL;
    out = *last;
    *last = out->next;
    return out;
}

/* ---- making one ----------------------------------------------------------------------------- */

/* The digest of the parts' digests and the bits of their scales. */
static void digest_of(stack *st)
{
    static const char mark[] = "lorad stack 1";
    digest_state d;
    digest_begin(&d);
    digest_add(&d, mark, sizeof mark);
    for (int i = 0; i < st->n; i++) {
        uint32_t bits;
        memcpy(&bits, &st->part[i].scale, sizeof bits);
        const uint8_t le[] = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint8_t)(bits >> 16),
                              (uint8_t)(bits >> 24)};
        digest_add(&d, st->part[i].v->digest, DIGEST_BYTES);
        digest_add(&d, le, sizeof le);
    }
    digest_end(&d, st->digest);
}

/* Inserts a part, sorted by version. */
static err_code add_part(node *n, const stack_part *p, err *e)
{
    int at = n->pub.n;
    for (; at > 0 && n->version[at - 1] >= p->v->id; at--) {
        if (n->version[at - 1] == p->v->id)
            return err_set(e, ERR_INPUT, "'%s' stands in the stack twice", p->v->name);
        n->version[at] = n->version[at - 1];
        n->pub.part[at] = n->pub.part[at - 1];
    }
    n->version[at] = p->v->id;
    n->pub.part[at] = *p;
    n->pub.n++;
    n->pub.rank += p->v->rank_max;
    return ERR_NONE;
}

static err_code make(const stack_part *part, int n, int rank_max, node **out, err *e)
{
    if (n < 1 || n > STACK_PARTS_MAX)
        return err_set(e, ERR_LIMIT, "a stack has 1 to %d adapters", STACK_PARTS_MAX);
    node *made = calloc(1, sizeof(*made));
    if (!made) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = ERR_NONE;
    for (int i = 0; i < n && !rc; i++) rc = add_part(made, &part[i], e);
    if (!rc && made->pub.rank > rank_max)
        rc = err_set(e, ERR_LIMIT, "the ranks of the stack's adapters add up to %d; allowed are %d",
                     made->pub.rank, rank_max);
    if (rc) {
        free(made);
        return rc;
    }
    digest_of(&made->pub);
    for (int i = 0; i < n; i++) {
        const adapter_version *v = made->pub.part[i].v;
        snprintf(made->name[i], sizeof made->name[i], "%s@%d", v->name, v->version);
    }
    *out = made;
    return ERR_NONE;
}

/* ---- API ------------------------------------------------------------------------------------- */

err_code stacks_acquire(stacks *s, const stack_part *part, int n, int rank_max, const stack **out,
                        err *e)
{
    node *made = NULL, *spare = NULL;
    pins p;
    err_code rc = make(part, n, rank_max, &made, e);
    if (!rc) rc = pin(s, made->version, n, &p, e);
    if (rc) {
        free(made);
        return rc;
    }
    lock_take(&s->mu);
    node *known = by_parts_locked(s, made);
    if (!known) {
        known = made;
        made = NULL;
        known->pub.id = STACK_MARK | ++s->last;
        known->next = s->list;
        s->list = known;
    }
    hold_locked(s, known, &p);
    spare = spare_locked(s);
    lock_release(&s->mu);
    unpin(s, &p);
    free(made);
    forget(s, spare);
    *out = &known->pub;
    return ERR_NONE;
}

err_code stacks_acquire_id(stacks *s, uint64_t id, const stack **out, err *e)
{
    uint64_t version[STACK_PARTS_MAX] = {0};
    pins p;
    lock_take(&s->mu);
    node *n = by_id_locked(s, id);
    int parts = n ? n->pub.n : 0;
    if (n) memcpy(version, n->version, sizeof version);
    lock_release(&s->mu);
    if (!n) return err_set(e, ERR_NOT_FOUND, "the stack is not known any more");
    err_code rc = pin(s, version, parts, &p, e);
    if (rc) return rc;
    lock_take(&s->mu);
    n = by_id_locked(s, id); /* it may be gone since */
    if (n) hold_locked(s, n, &p);
    lock_release(&s->mu);
    unpin(s, &p);
    if (!n) return err_set(e, ERR_NOT_FOUND, "the stack is not known any more");
    *out = &n->pub;
    return ERR_NONE;
}

void stacks_release(stacks *s, const stack *st)
{
    if (!st) return;
    pins p = {.n = 0};
    node *n = (node *)(uintptr_t)st;
    lock_take(&s->mu);
    assert(n->holds > 0);
    if (--n->holds == 0) {
        for (int i = 0; i < st->n; i++) {
            p.v[p.n++] = st->part[i].v;
            n->pub.part[i].v = NULL;
        }
    }
    lock_release(&s->mu);
    unpin(s, &p);
}

/* Removes an unheld one that contains the version; the caller frees it. */
static node *take_with_locked(stacks *s, uint64_t version_id)
{
    lock_assert_held(&s->mu);
    for (node **at = &s->list; *at; at = &(*at)->next) {
        node *n = *at;
        bool has = false;
        for (int i = 0; i < n->pub.n; i++) has |= n->version[i] == version_id;
        if (!has || n->holds > 0) continue;
        *at = n->next;
        return n;
    }
    return NULL;
}

void stacks_part_gone(stacks *s, uint64_t version_id)
{
    node *n;
    do {
        lock_take(&s->mu);
        n = take_with_locked(s, version_id);
        lock_release(&s->mu);
        forget(s, n);
    } while (n);
}

bool stacks_label(stacks *s, uint64_t id, char *out, size_t cap)
{
    size_t at = 0;
    lock_take(&s->mu);
    const node *n = by_id_locked(s, id);
    for (int i = 0; n && i < n->pub.n && at < cap; i++) {
        int wrote = snprintf(out + at, cap - at, "%s%s*%.9g", i ? "+" : "", n->name[i],
                             (double)n->pub.part[i].scale);
        at += wrote > 0 ? (size_t)wrote : 0;
    }
    lock_release(&s->mu);
    return n && at < cap;
}
