/* memory.c -- one arena taken at the start, and the way into it.
 *
 * Blocks are kept in a list by address; there are some hundreds of them, taken and given back at
 * start-up and by loaders, never in a step.  Matrices fill the arena from its beginning,
 * everything else from its end, so that matrices which are loaded one after another lie side by
 * side and can be multiplied as one.
 *
 * Uploads: whoever has bytes fills one of a few pinned pieces and enqueues its copy on the
 * upload stream.  The engine's stream waits for all that was enqueued before each step
 * (cuda_await_uploads), on the device; so neither loaders nor the engine wait for each
 * other, and a chunk that changes hands is safe: the copies of the old owner come before
 * the steps of the new one.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/lock.h"
#include "engine/base/round.h"
#include "engine/cuda/cuda.h"

struct cuda_block {
    cuda_block *prev, *next;
    size_t at, bytes;
    bool used;
};

static size_t padded(size_t bytes)
{
    size_t p = round_up_size(bytes, CUDA_ALIGN);
    return p ? p : CUDA_ALIGN;
}

/* ---- blocks ---------------------------------------------------------------------------- */

/* Cuts `b` in two at `at`; false: no memory for the second half's entry. */
static bool cut(cuda_block *b, size_t at)
{
    assert(at > b->at && at < b->at + b->bytes && at % CUDA_ALIGN == 0);
    cuda_block *rest = calloc(1, sizeof(*rest));
    if (!rest) return false;
    *rest = (cuda_block){.prev = b, .next = b->next, .at = at, .bytes = b->at + b->bytes - at};
    if (b->next) b->next->prev = rest;
    b->next = rest;
    b->bytes = at - b->at;
    return true;
}

void *cuda_take(cuda_state *cu, size_t bytes, bool low)
{
    cuda_memory *m = &cu->mem;
    size_t need = padded(bytes);
    if (need < bytes) return NULL;
    lock_take(&m->mu);
    cuda_block *got = NULL;
    for (cuda_block *b = m->first; b; b = b->next) {
        if (b->used || b->bytes < need) continue;
        got = b;
        if (low) break;
    }
    void *p = NULL;
    if (got && got->bytes > need) {
        if (!cut(got, low ? got->at + need : got->at + got->bytes - need))
            got = NULL;
        else if (!low)
            got = got->next;
    }
    if (got) {
        got->used = true;
        m->used += need;
        p = m->base + got->at;
    }
    lock_release(&m->mu);
    return p;
}

static void join_next(cuda_block *b)
{
    cuda_block *n = b->next;
    assert(n->prev == b && n->at == b->at + b->bytes);
    b->bytes += n->bytes;
    b->next = n->next;
    if (n->next) n->next->prev = b;
    free(n);
}

void cuda_give(cuda_state *cu, void *p)
{
    cuda_memory *m = &cu->mem;
    if (!p) return;
    lock_take(&m->mu);
    cuda_block *b = m->first;
    while (b && m->base + b->at != (char *)p) b = b->next;
    if (b && b->used) {
        b->used = false;
        m->used -= b->bytes;
        if (b->next && !b->next->used) join_next(b);
        if (b->prev && !b->prev->used) join_next(b->prev);
    }
    lock_release(&m->mu);
}

size_t cuda_room(cuda_state *cu)
{
    size_t most = 0;
    lock_take(&cu->mem.mu);
    for (const cuda_block *b = cu->mem.first; b; b = b->next) {
        if (!b->used && b->bytes > most) most = b->bytes;
    }
    lock_release(&cu->mem.mu);
    return most;
}

/* ---- life -------------------------------------------------------------------------------- */

void cuda_memory_init(cuda_memory *m)
{
    memset(m, 0, sizeof(*m));
    lock_init(&m->mu, LOCK_CUDA_BLOCKS);
    lock_init(&m->stage_mu, LOCK_CUDA_STAGES);
    cond_init(&m->stage_free);
}

err_code cuda_memory_open(cuda_state *cu, size_t bytes, err *e)
{
    cuda_memory *m = &cu->mem;
    m->bytes = bytes / CUDA_ALIGN * CUDA_ALIGN;
    m->first = calloc(1, sizeof(*m->first));
    if (!m->first) return err_set(e, ERR_NOMEM, "no memory for the arena");
    m->first->bytes = m->bytes;
    err_code rc = CU_TRY(cu, cudaMalloc((void **)&m->base, m->bytes), e);
    if (!rc) rc = CU_TRY(cu, cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking), e);
    if (!rc) rc = CU_TRY(cu, cudaEventCreateWithFlags(&m->uploaded, cudaEventDisableTiming), e);
    for (int i = 0; !rc && i < CUDA_STAGES; i++) {
        cuda_stage *st = &m->stage[i];
        rc = CU_TRY(cu, cudaHostAlloc((void **)&st->pinned, CUDA_STAGE_BYTES, cudaHostAllocDefault),
                    e);
        if (!rc) rc = CU_TRY(cu, cudaEventCreateWithFlags(&st->done, cudaEventDisableTiming), e);
        m->n_stage = i + 1;
    }
    return rc;
}

/* What a lost device refuses to give back, its reset takes. */
void cuda_memory_close(cuda_state *cu)
{
    cuda_memory *m = &cu->mem;
    for (int i = 0; i < m->n_stage; i++) {
        if (m->stage[i].done) (void)cudaEventDestroy(m->stage[i].done);
        if (m->stage[i].pinned) (void)cudaFreeHost(m->stage[i].pinned);
    }
    if (m->uploaded) (void)cudaEventDestroy(m->uploaded);
    if (m->stream) (void)cudaStreamDestroy(m->stream);
    if (m->base) (void)cudaFree(m->base);
    for (cuda_block *b = m->first, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    lock_free(&m->mu);
    lock_free(&m->stage_mu);
    cond_free(&m->stage_free);
    memset(m, 0, sizeof(*m));
}

/* ---- uploads ------------------------------------------------------------------------------- */

/* Gives a stage back whose bytes were not sent. */
static void drop_stage(cuda_state *cu, cuda_stage *st)
{
    lock_take(&cu->mem.stage_mu);
    assert(st->busy);
    st->busy = false;
    cond_signal(&cu->mem.stage_free);
    lock_release(&cu->mem.stage_mu);
}

err_code cuda_stage_begin(cuda_state *cu, cuda_stage **out, err *e)
{
    cuda_memory *m = &cu->mem;
    *out = NULL;
    err_code rc = CU_TRY(cu, cudaSetDevice(cu->device), e); /* loaders are threads of their own */
    if (rc) return rc;
    lock_take(&m->stage_mu);
    cuda_stage *st = NULL;
    while (!st) {
        for (int i = 0; !st && i < m->n_stage; i++) { /* the one that was sent longest ago first */
            cuda_stage *at = &m->stage[(m->turn + i) % m->n_stage];
            if (!at->busy) st = at;
        }
        if (!st) cond_wait(&m->stage_free, &m->stage_mu);
    }
    m->turn = (int)(st - m->stage + 1) % m->n_stage;
    st->busy = true;
    lock_release(&m->stage_mu);
    rc = CU_TRY(cu, wait_event(cu->wait, st->done), e);
    if (rc) {
        drop_stage(cu, st);
        return rc;
    }
    *out = st;
    return ERR_NONE;
}

/* With stage_mu: the event stands behind the copy, and the count behind both. */
static err_code enqueued(cuda_state *cu, err *e)
{
    lock_assert_held(&cu->mem.stage_mu);
    err_code rc = CU_TRY(cu, cudaEventRecord(cu->mem.uploaded, cu->mem.stream), e);
    if (!rc) atomic_fetch_add(&cu->mem.uploads, 1);
    return rc;
}

err_code cuda_stage_send(cuda_state *cu, cuda_stage *st, void *dst, size_t bytes, err *e)
{
    cuda_memory *m = &cu->mem;
    assert(bytes <= CUDA_STAGE_BYTES && st->busy);
    lock_take(&m->stage_mu);
    err_code rc =
        CU_TRY(cu, cudaMemcpyAsync(dst, st->pinned, bytes, cudaMemcpyHostToDevice, m->stream), e);
    if (!rc) rc = CU_TRY(cu, cudaEventRecord(st->done, m->stream), e);
    if (!rc) rc = enqueued(cu, e);
    st->busy = false;
    cond_signal(&m->stage_free);
    lock_release(&m->stage_mu);
    return rc;
}

void cuda_await_uploads(backend *be)
{
    cuda_state *cu = cuda_of(be);
    unsigned long long now = atomic_load(&cu->mem.uploads);
    if (now == cu->mem.seen) return;
    lock_take(&cu->mem.stage_mu);
    bool ok = CU(be, cudaStreamWaitEvent(cu->stream, cu->mem.uploaded, 0));
    lock_release(&cu->mem.stage_mu);
    if (ok) cu->mem.seen = now;
}

/* ---- the ops --------------------------------------------------------------------------------- */

err_code cuda_clear(cuda_state *cu, void *p, size_t bytes, err *e)
{
    cuda_memory *m = &cu->mem;
    err_code rc = CU_TRY(cu, cudaSetDevice(cu->device), e);
    if (rc) return rc;
    lock_take(&m->stage_mu);
    rc = CU_TRY(cu, cudaMemsetAsync(p, 0, bytes, m->stream), e);
    if (!rc) rc = enqueued(cu, e);
    lock_release(&m->stage_mu);
    return rc;
}

void *cuda_alloc(backend *be, size_t bytes)
{
    cuda_state *cu = cuda_of(be);
    err e;
    void *p = cuda_take(cu, bytes, false);
    if (p && cuda_clear(cu, p, padded(bytes), &e)) {
        cuda_give(cu, p);
        return NULL;
    }
    return p;
}

void cuda_free(backend *be, void *p)
{
    cuda_give(cuda_of(be), p);
}

void cuda_unmap(backend *be, void *p, size_t bytes)
{
    (void)bytes;
    cuda_give(cuda_of(be), p);
}

err_code cuda_upload(backend *be, void *dst, const void *src, size_t bytes)
{
    cuda_state *cu = cuda_of(be);
    err e;
    for (size_t at = 0; at < bytes;) {
        cuda_stage *st;
        size_t n = bytes - at < CUDA_STAGE_BYTES ? bytes - at : CUDA_STAGE_BYTES;
        err_code rc = cuda_stage_begin(cu, &st, &e);
        if (rc) return rc;
        memcpy(st->pinned, (const char *)src + at, n);
        rc = cuda_stage_send(cu, st, (char *)dst + at, n, &e);
        if (rc) return rc;
        at += n;
    }
    return ERR_NONE;
}

/* Of what was uploaded (weights, biases): results of steps are read otherwise. */
err_code cuda_download(backend *be, void *dst, const void *src, size_t bytes)
{
    cuda_state *cu = cuda_of(be);
    cuda_memory *m = &cu->mem;
    err e;
    for (size_t at = 0; at < bytes;) {
        cuda_stage *st;
        size_t n = bytes - at < CUDA_STAGE_BYTES ? bytes - at : CUDA_STAGE_BYTES;
        err_code rc = cuda_stage_begin(cu, &st, &e);
        if (rc) return rc;
        lock_take(&m->stage_mu);
        rc = CU_TRY(cu,
                    cudaMemcpyAsync(st->pinned, (const char *)src + at, n, cudaMemcpyDeviceToHost,
                                    m->stream),
                    &e);
        if (!rc) rc = CU_TRY(cu, cudaEventRecord(st->done, m->stream), &e);
        lock_release(&m->stage_mu);
        if (!rc) rc = CU_TRY(cu, wait_event(cu->wait, st->done), &e);
        if (!rc) memcpy((char *)dst + at, st->pinned, n);
        drop_stage(cu, st);
        if (rc) return rc;
        at += n;
    }
    return ERR_NONE;
}
