/* emu_cluster.cpp -- blocks of a cluster that reach each other (emu.h): their barrier, mbarriers,
 * bulk copies.
 *
 * A bulk copy lands as late as it may: when a thread waits for the phase of the mbarrier that it is
 * told to, and that phase has all of its arrivals and bytes.  Whether a place may be copied to is
 * said by epochs: an arrival at an mbarrier tells that its block has done with all epochs before
 * its last __syncthreads(), and who waits for that phase knows it from there on.
 */
#include <algorithm>
#include <memory>
#include <string.h>
#include <vector>

#include "tests/emu/emu_inside.h"

namespace
{

struct flight {
    emu_bulk b;
    std::shared_ptr<std::vector<char>> then;
};

struct mbarrier {
    uint64_t *at; /* of its block */
    int count, pending;
    int64_t bytes; /* expected, less what has landed */
    uint32_t phase;
    /* who made it, and when */
    const emu_fiber *by;
    int arrives;
    uint32_t epoch;
    bool fenced;
    uint32_t told[EMU_CLUSTER_MAX], known[EMU_CLUSTER_MAX]; /* in this phase; in those before */
    std::vector<flight> flying;
    std::vector<emu_fiber *> waiting;
};

struct block {
    mbarrier barriers[EMU_BARRIERS];
    int n_barrier;
    bool ended;
    int reached,
        waits; /* how often who reached it had arrived at the cluster's barrier; who waited */
} blocks[EMU_CLUSTER_MAX];

struct cluster {
    int n_block, n_thread;
    int alive, missing; /* threads: that have not ended; and not arrived */
    int round;
    std::vector<emu_fiber *> waiting;
    uint32_t number; /* of bulk copies */
    bool used;       /* since it began */
} C;

void wake(std::vector<emu_fiber *> *who)
{
    std::vector<emu_fiber *> all;
    all.swap(*who);
    for (emu_fiber *t : all) emu_wake(t);
}

/* ---- mbarriers ------------------------------------------------------------------------------- */

mbarrier *find(const uint64_t *at, int of)
{
    block *b = &blocks[of];
    for (int i = 0; i < b->n_barrier; i++) {
        if (b->barriers[i].at == at) return &b->barriers[i];
    }
    emu_fault(EMU_UNINIT, "an mbarrier of block %d that nobody has initialised", of);
    return nullptr;
}

/* That of block `of` at this place; `far`: for other blocks or for bulk copies. */
mbarrier *barrier_of(uint64_t *barrier, int of, bool far)
{
    const emu_fiber *t = emu_cur;
    if (of < 0 || of >= C.n_block)
        emu_fault(EMU_CONFIG, "block %d of a cluster of %d", of, C.n_block);
    uint64_t *at = static_cast<uint64_t *>(emu_peer(barrier, sizeof(*barrier), of));
    mbarrier *m = find(at, of);
    bool synced = t->block == of && emu_barred(t, m->by->tid, m->epoch);
    if (m->by != t && t->waits <= m->arrives && !synced)
        emu_fault(EMU_RACE, "an mbarrier of block %d, which is not known to be initialised", of);
    if (far && !m->fenced)
        emu_fault(EMU_UNFENCED, "an mbarrier of block %d without a fence.mbarrier_init", of);
    return m;
}

void complete(mbarrier *m)
{
    m->phase++;
    m->pending = m->count;
    for (int b = 0; b < C.n_block; b++) m->known[b] = std::max(m->known[b], m->told[b]);
    wake(&m->waiting);
}

/* All arrivals have come, and all bytes are on their way. */
bool could_end(const mbarrier *m)
{
    int64_t bytes = 0;
    for (const flight &f : m->flying) bytes += static_cast<int64_t>(f.b.bytes);
    return m->pending == 0 && bytes == m->bytes;
}

void progress(mbarrier *m)
{
    if (!could_end(m)) return;
    if (m->flying.empty())
        complete(m);
    else
        wake(&m->waiting); /* who waits lets them land */
}

void land_all(mbarrier *m)
{
    for (flight &f : m->flying) {
        f.b.then = f.then->data();
        emu_bulk_land(&f.b);
        m->bytes -= static_cast<int64_t>(f.b.bytes);
    }
    m->flying.clear();
}

void arrive(mbarrier *m)
{
    const emu_fiber *t = emu_cur;
    if (m->pending == 0)
        emu_fault(EMU_RACE, "more than %d arrivals at an mbarrier before its phase has ended",
                  m->count);
    for (int b = 0; b < C.n_block; b++)
        m->told[b] = std::max(m->told[b], b == t->block ? emu_w.whole_epoch : t->known[b]);
    m->pending--;
    progress(m);
}

/* Block `of` is reached from another one. */
void reach(int of)
{
    block *b = &blocks[of];
    if (of == emu_cur->block) return;
    if (b->ended) emu_fault(EMU_ENDED, "block %d of the cluster is reached, and has ended", of);
    b->reached = std::max(b->reached, emu_cur->arrives + 1);
}

void meet()
{
    C.round++;
    C.missing = C.alive;
    wake(&C.waiting);
}

} // namespace

/* ---- what kernels call ----------------------------------------------------------------------- */

uint32_t emu_cluster_rank(void)
{
    return static_cast<uint32_t>(emu_cur->block);
}

void emu_cluster_arrive(void)
{
    C.used = true;
    if (emu_cur->arrives != emu_cur->waits)
        emu_fault(EMU_DIVERGED,
                  "arrives at the cluster's barrier, and has not waited for the last");
    emu_cur->arrives++;
    if (--C.missing == 0) meet();
}

void emu_cluster_wait(void)
{
    emu_fiber *t = emu_cur;
    if (t->waits == t->arrives)
        emu_fault(EMU_DIVERGED, "waits for the cluster's barrier, and has not arrived");
    while (C.round < t->arrives) {
        C.waiting.push_back(t);
        emu_sleep("the cluster's barrier");
    }
    t->waits++;
}

void emu_barrier_init(uint64_t *barrier, uint32_t count)
{
    const emu_fiber *t = emu_cur;
    block *b = &blocks[t->block];
    C.used = true;
    emu_access(barrier, sizeof(*barrier), EMU_WRITE, true);
    (void)emu_peer(barrier, sizeof(*barrier), t->block);
    if (b->n_barrier == EMU_BARRIERS || count == 0)
        emu_fault(EMU_CONFIG, "an mbarrier of %u arrivals, of %d mbarriers", count, b->n_barrier);
    mbarrier m = {};
    m.at = barrier;
    m.count = m.pending = static_cast<int>(count);
    m.by = t;
    m.arrives = t->arrives;
    m.epoch = t->epoch;
    b->barriers[b->n_barrier++] = m;
}

void emu_fence_barrier_init(void)
{
    block *b = &blocks[emu_cur->block];
    for (int i = 0; i < b->n_barrier; i++) b->barriers[i].fenced |= b->barriers[i].by == emu_cur;
}

void emu_barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    mbarrier *m = barrier_of(barrier, emu_cur->block, false);
    m->bytes += bytes;
    arrive(m);
}

void emu_barrier_arrive(uint64_t *barrier, uint32_t of)
{
    int to = static_cast<int>(of);
    mbarrier *m = barrier_of(barrier, to, to != emu_cur->block);
    reach(to);
    arrive(m);
}

void emu_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    emu_fiber *t = emu_cur;
    mbarrier *m = barrier_of(barrier, t->block, false);
    while ((m->phase & 1) == parity) {
        if (could_end(m)) {
            land_all(m);
            complete(m);
            break;
        }
        m->waiting.push_back(t);
        emu_sleep("the wait for an mbarrier");
    }
    t->seen[m - blocks[t->block].barriers] = m->phase;
    for (int b = 0; b < C.n_block; b++) t->known[b] = std::max(t->known[b], m->known[b]);
}

void emu_send(void *shared, const void *global, uint32_t bytes, uint64_t *barrier, uint16_t mask)
{
    const emu_fiber *t = emu_cur;
    if (reinterpret_cast<uintptr_t>(shared) % 16 || reinterpret_cast<uintptr_t>(global) % 16 ||
        bytes % 16 || bytes == 0)
        emu_fault(EMU_MISALIGNED, "a bulk copy of %u bytes from %p to %p", bytes, global, shared);
    if (mask == 0 || mask >> C.n_block)
        emu_fault(EMU_CONFIG, "a bulk copy to the blocks %x of a cluster of %d", mask, C.n_block);
    emu_access(global, bytes, EMU_READ, false);
    const char *from = static_cast<const char *>(global);
    auto then = std::make_shared<std::vector<char>>(from, from + bytes);
    C.number++;
    for (int b = 0; b < C.n_block; b++) {
        if (!(mask >> b & 1)) continue;
        mbarrier *m = barrier_of(barrier, b, true);
        char *to = static_cast<char *>(emu_peer(shared, bytes, b));
        uint32_t phase =
            static_cast<uint32_t>(m - blocks[b].barriers) << 24 | (m->phase & 0xFFFFFF);
        emu_bulk_epochs e = emu_epochs_of(b);
        e.known = b == t->block ? emu_w.whole_epoch : std::max(t->known[b], e.first);
        reach(b);
        m->flying.push_back({{to, from, nullptr, bytes, b, C.number, phase}, then});
        emu_bulk_issue(&m->flying.back().b, &e);
        progress(m);
    }
}

void emu_tell_waits(emu_fiber *to, const emu_fiber *from)
{
    if (!C.used) return;
    for (int i = 0; i < EMU_BARRIERS; i++) to->seen[i] = std::max(to->seen[i], from->seen[i]);
}

/* ---- the course of a cluster ----------------------------------------------------------------- */

void emu_cluster_begin(int n_block)
{
    if (C.used || n_block > 1) {
        int n = std::max(n_block, C.n_block), each = std::max(emu_w.n_thread, C.n_thread);
        for (int i = 0; i < n * each; i++) {
            emu_fiber *t = emu_fiber_in(i / each, i % each);
            t->arrives = t->waits = 0;
            memset(t->known, 0, sizeof(t->known));
            memset(t->seen, 0, sizeof(t->seen));
        }
        for (int b = 0; b < n; b++) {
            for (mbarrier &m : blocks[b].barriers) m = mbarrier();
            blocks[b].n_barrier = blocks[b].reached = blocks[b].waits = 0;
            blocks[b].ended = false;
        }
        C.waiting.clear();
    }
    C.used = n_block > 1;
    C.n_block = n_block;
    C.n_thread = emu_w.n_thread;
    C.round = 0;
    C.alive = C.missing = n_block * emu_w.n_thread;
}

void emu_cluster_end(bool last)
{
    const emu_fiber *t = emu_cur;
    block *b = &blocks[t->block];
    if (!C.used) return;
    C.alive--;
    if (t->arrives == C.round && --C.missing == 0 && C.alive > 0) meet();
    b->waits = std::max(b->waits, t->waits);
    if (!last) return;
    for (int i = 0; i < b->n_barrier; i++) {
        if (!b->barriers[i].flying.empty())
            emu_fault(EMU_IN_FLIGHT, "block %d ends with %zu bulk copies to it not waited for",
                      t->block, b->barriers[i].flying.size());
    }
    b->ended = true;
    if (b->reached > b->waits)
        emu_fault(EMU_ENDED,
                  "block %d ends, and others have reached it since the last barrier of the cluster",
                  t->block);
}
