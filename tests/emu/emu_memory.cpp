/* emu_memory.cpp -- watches every load and store of kernels; see emu.h.
 *
 * Each two bytes of device memory have a cell: who wrote last, who has read since, and when.
 * "When" is the block's epoch, which a __syncthreads() ends, and inside of an epoch the lane's
 * clock, which a __syncwarp() makes known to the others of its mask (vector clocks of a warp).  Two
 * accesses of the same epoch are ordered when the later thread knows the earlier one's clock.
 *
 * The hooks at the end have the names that -fsanitize=thread calls.  No program with these is
 * linked with that library.
 */
#include <algorithm>
#include <map>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unordered_map>
#include <vector>

#include "tests/emu/emu_inside.h"

extern "C" char __executable_start, _end; // the linker's: the program from code to zeroed data

namespace
{

enum { MANY = 0xFFFF, BULK = 0xFFFE, REDZONE = 256, RECENT = 256 };
enum { WRITTEN = 1, BY_ATOMIC = 2, IN_FLIGHT = 4 };

struct cell {
    uint32_t w_epoch, w_clock, w_serial;
    uint32_t r_epoch, r_clock, r_mask; /* lanes of r_warp */
    uint32_t r_blocks;                 /* the launch in which several blocks read it */
    uint16_t w_tid,
        r_warp; /* MANY: several warps read; BULK: a bulk copy wrote, w_clock says which */
};

struct region {
    uintptr_t lo;
    size_t bytes, room;
    cell *cells;
    uint8_t *flags; /* of each cell; apart, as the host's writes leave the rest alone */
    void *base;
    bool shared;
    int device; /* whose memory it is */
};

struct region_list : std::vector<region> {
    ~region_list();
};
/* A block's shared memory; of those that run together in a cluster, `mine` is the running one's. */
struct block_memory {
    region_list shared; /* the first n_shared are the block's */
    size_t n_shared;
    uint32_t serial;             /* of writes, from the block's begin */
    std::set<uint32_t> acquired; /* blocks that are ordered before this one, by atomics */
    /* What threads of the block have made known by atomics on an address. */
    std::unordered_map<uintptr_t, emu_clocks> released;
} blocks[EMU_CLUSTER_MAX], *mine = blocks;
std::map<uintptr_t, region> global;
region *recent[RECENT];               /* global ones, by the page that was hit */
int device;                           /* that allocates, and whose kernels run */
bool peers[EMU_DEVICES][EMU_DEVICES]; /* [i][k]: device i may reach k's memory */

std::vector<uint32_t> block_starts;                         /* epochs, of the launch's blocks */
std::unordered_map<uintptr_t, std::set<uint32_t>> released; /* by atomics on an address */

region make(size_t bytes, bool is_shared)
{
    region r;
    r.base = aligned_alloc(256, (bytes + 255) / 256 * 256 + 2 * REDZONE);
    r.cells = static_cast<cell *>(calloc(bytes / 2 + 1, sizeof(cell)));
    r.flags = static_cast<uint8_t *>(calloc(bytes / 2 + 1, 1));
    if (!r.base || !r.cells || !r.flags) abort();
    r.lo = reinterpret_cast<uintptr_t>(r.base) + REDZONE;
    r.bytes = r.room = bytes;
    r.shared = is_shared;
    r.device = device;
    return r;
}

void drop(region *r)
{
    free(r->base);
    free(r->cells);
    free(r->flags);
}

region_list::~region_list()
{
    for (region &r : *this) drop(&r);
}

region *find_global(uintptr_t p)
{
    region **near = &recent[(p >> 12) % RECENT];
    if (*near && p - (*near)->lo < (*near)->bytes) return *near;
    auto it = global.upper_bound(p);
    if (it == global.begin()) return nullptr;
    region *r = &(--it)->second;
    if (p - r->lo >= r->bytes) return nullptr;
    return *near = r;
}

region *find(uintptr_t p)
{
    for (size_t i = 0; i < mine->n_shared; i++) {
        region *r = &mine->shared[i];
        if (p - r->lo < r->bytes) return r;
    }
    return find_global(p);
}

/* Has t learnt, by barriers of its warp or atomics, of what thread `tid` had done at `clock`? */
bool knows(const emu_fiber *t, int tid, uint32_t clock)
{
    if (tid / EMU_WARP == t->warp) return t->clock[tid % EMU_WARP] >= clock;
    auto other = t->others.find(tid / EMU_WARP);
    return other != t->others.end() && other->second[static_cast<size_t>(tid % EMU_WARP)] >= clock;
}

bool of_this(uint32_t epoch)
{
    return epoch >= emu_w.block_epoch && epoch < emu_w.block_end;
}

/* Is it an epoch of another block of this launch? */
bool of_another(uint32_t epoch)
{
    return epoch >= emu_w.launch_epoch && !of_this(epoch);
}

/* Was it another block of this launch that acted at `epoch`, with no atomics in between? */
bool other_block(uint32_t epoch)
{
    if (!of_another(epoch)) return false;
    if (mine->acquired.empty()) return true;
    auto it = std::upper_bound(block_starts.begin(), block_starts.end(), epoch);
    return mine->acquired.count(*--it) == 0;
}

const char *place(char *buf, size_t size, const region *r, uintptr_t p)
{
    snprintf(buf, size, "byte %zu of a %s array of %zu", static_cast<size_t>(p) - r->lo,
             r->shared ? "shared" : "global", r->bytes);
    return buf;
}

void race(const region *r, uintptr_t p, const char *what, const char *with, int tid)
{
    char at[100];
    emu_fault(EMU_RACE, "%s %s, which thread %d %s with no barrier since", what,
              place(at, sizeof(at), r, p), tid, with);
}

void check_writer(const emu_fiber *t, const region *r, const cell *c, uintptr_t p, const char *what)
{
    if (of_this(c->w_epoch) && c->w_tid == BULK) {
        if (c->w_epoch >= emu_w.whole_epoch && !emu_bulk_seen(t, c->w_clock))
            race(r, p, what, "(or any) has not waited for since a bulk copy wrote it,", t->tid);
    } else if (of_this(c->w_epoch)) {
        if (c->w_tid != t->tid && !emu_barred(t, c->w_tid, c->w_epoch) &&
            !knows(t, c->w_tid, c->w_clock))
            race(r, p, what, r->flags[c - r->cells] & BY_ATOMIC ? "changed atomically" : "wrote",
                 c->w_tid);
    } else if (!r->shared && other_block(c->w_epoch)) {
        race(r, p, what, "of another block wrote", c->w_tid);
    }
}

void check_readers(const emu_fiber *t, const region *r, const cell *c, uintptr_t p,
                   const char *what)
{
    int any = c->r_warp == MANY ? t->tid : c->r_warp * EMU_WARP;
    if (of_this(c->r_epoch) && !emu_barred(t, any, c->r_epoch)) {
        if (c->r_warp == MANY) race(r, p, what, "(and others) read", c->r_mask ? 0 : -1);
        uint32_t others = c->r_mask;
        if (c->r_warp == t->warp) others &= ~(1U << t->lane);
        for (; others; others &= others - 1) {
            int tid = c->r_warp * EMU_WARP + __builtin_ctz(others);
            if (!knows(t, tid, c->r_clock)) race(r, p, what, "read", tid);
        }
    } else if (!r->shared && other_block(c->r_epoch)) {
        race(r, p, what, "of another block read", c->r_warp == MANY ? -1 : c->r_warp * EMU_WARP);
    }
    if (!r->shared && c->r_blocks == emu_w.launch_epoch && c->r_blocks && mine->acquired.empty())
        race(r, p, what, "of another block read", -1);
}

void note_reader(const emu_fiber *t, const region *r, cell *c)
{
    uint32_t bit = 1U << t->lane, clock = t->clock[t->lane];
    if (c->r_epoch != t->epoch) {
        if (!r->shared && of_another(c->r_epoch)) c->r_blocks = emu_w.launch_epoch;
        c->r_epoch = t->epoch;
        c->r_warp = static_cast<uint16_t>(t->warp);
        c->r_mask = bit;
        c->r_clock = clock;
    } else if (c->r_warp != t->warp) {
        c->r_warp = MANY;
    } else if ((c->r_mask & ~bit) == 0 || c->r_clock < clock) {
        /* readers before that this lane knows of need not be kept apart: they are earlier */
        uint32_t keep = 0;
        for (uint32_t m = c->r_mask & ~bit; m; m &= m - 1) {
            int lane = __builtin_ctz(m);
            if (t->clock[lane] < c->r_clock) keep |= 1U << lane;
        }
        c->r_mask = keep | bit;
        c->r_clock = clock;
    } else {
        c->r_mask |= bit;
    }
}

void note_writer(const emu_fiber *t, cell *c)
{
    c->w_epoch = t->epoch;
    c->w_clock = t->clock[t->lane];
    c->w_tid = static_cast<uint16_t>(t->tid);
    c->w_serial = mine->serial;
}

void check_written(const region *r, const cell *c, uint32_t flags, uintptr_t p)
{
    char at[100];
    bool now = !r->shared || c->w_epoch >= emu_w.block_epoch;
    if (now && (flags & (WRITTEN | IN_FLIGHT)) == WRITTEN) return;
    if (now && flags & IN_FLIGHT && c->w_tid == BULK)
        emu_fault(EMU_UNINIT, "reads %s, where a bulk copy is in flight: no wait",
                  place(at, sizeof(at), r, p));
    if (now && flags & IN_FLIGHT)
        emu_fault(EMU_UNINIT, "reads %s, where a cp.async of thread %d is in flight: no wait",
                  place(at, sizeof(at), r, p), c->w_tid);
    emu_fault(EMU_UNINIT, "reads %s, which nobody has written", place(at, sizeof(at), r, p));
}

/* An atomic orders this block, and this thread of it, after those that fenced and changed the same
 * word. */
void atomic_order(emu_fiber *t, uintptr_t p)
{
    emu_clocks &here = mine->released[p];
    emu_learn(&t->others, here);
    if (t->fenced) {
        emu_clocks own;
        std::copy(t->clock, t->clock + EMU_WARP, own[t->warp].begin());
        emu_learn(&here, own);
        emu_learn(&here, t->others);
    }
    std::set<uint32_t> &rel = released[p];
    mine->acquired.insert(rel.begin(), rel.end());
    if (!t->fenced) return;
    rel.insert(mine->acquired.begin(), mine->acquired.end());
    rel.insert(emu_w.block_epoch);
}

bool constant(uintptr_t p, size_t bytes)
{
    if (p >= emu_w.args_lo && p + bytes <= emu_w.args_hi) return true;
    return p >= reinterpret_cast<uintptr_t>(&__executable_start) &&
           p + bytes <= reinterpret_cast<uintptr_t>(&_end);
}

void check_still(const region *r, uintptr_t p, size_t bytes, const char *what)
{
    char at[100];
    const cell *c = r->cells + (p - r->lo) / 2, *end = r->cells + (p - r->lo + bytes + 1) / 2;
    for (; c < end; c++) {
        if (c->w_epoch >= emu_w.chain_epoch)
            emu_fault(EMU_EARLY, "%s %s, which a launch wrote that it may have begun beside", what,
                      place(at, sizeof(at), r, p));
    }
}

/* Two bytes of an access. */
void touch(const emu_fiber *t, const region *r, cell *c, uint8_t *flags, uintptr_t p,
           emu_access_kind kind, bool races)
{
    if (kind == EMU_READ) {
        if (r->shared || (*flags & (WRITTEN | IN_FLIGHT)) != WRITTEN)
            check_written(r, c, *flags, p);
        if (!races) return;
        if (c->w_epoch >= emu_w.launch_epoch) check_writer(t, r, c, p, "reads");
        note_reader(t, r, c);
        return;
    }
    if (kind == EMU_ATOMIC) check_written(r, c, *flags, p);
    bool both = kind == EMU_ATOMIC && *flags & BY_ATOMIC;
    if (races && !both) check_writer(t, r, c, p, "writes");
    if (races) check_readers(t, r, c, p, "writes");
    note_writer(t, c);
    *flags = kind == EMU_ISSUE ? IN_FLIGHT : kind == EMU_ATOMIC ? WRITTEN | BY_ATOMIC : WRITTEN;
}

/* A cell as four words, to compare and copy. */
struct words {
    uint64_t w[4];
    explicit words(const cell *c)
    {
        static_assert(sizeof(w) == sizeof(*c), "without holes");
        memcpy(w, c, sizeof(w));
    }
    bool operator==(const words &o) const
    {
        return ((w[0] ^ o.w[0]) | (w[1] ^ o.w[1]) | (w[2] ^ o.w[2]) | (w[3] ^ o.w[3])) == 0;
    }
};

void access_array(uintptr_t p, size_t bytes, emu_access_kind kind, bool wide)
{
    emu_fiber *t = emu_cur;
    emu_w.accesses++;
    const region *r = find(p);
    if (!r) {
        if (kind == EMU_READ && constant(p, bytes)) return;
        for (const block_memory &b : blocks) {
            for (size_t i = 0; i < b.n_shared; i++) {
                if (p - b.shared[i].lo < b.shared[i].bytes)
                    emu_fault(EMU_BOUNDS, "reaches plainly into the shared memory of block %d",
                              static_cast<int>(&b - blocks));
            }
        }
        emu_fault(EMU_BOUNDS, "%s %zu bytes at %p, which is in no array of the device",
                  kind == EMU_READ ? "reads" : "writes", bytes, reinterpret_cast<void *>(p));
    }
    if (!r->shared && r->device != device && !peers[device][r->device])
        emu_fault(EMU_BOUNDS, "device %d reaches into the memory of device %d, which it may not",
                  device, r->device);
    if (p + bytes > r->lo + r->bytes)
        emu_fault(EMU_BOUNDS, "%s %zu bytes at byte %zu of an array of %zu",
                  kind == EMU_READ ? "reads" : "writes", bytes, static_cast<size_t>(p) - r->lo,
                  r->bytes);
    if (wide && p & (bytes - 1)) /* a power of two */
        emu_fault(EMU_MISALIGNED, "an access of %zu bytes at byte %zu of an array", bytes,
                  static_cast<size_t>(p) - r->lo);
    if (!t->waited && !r->shared) {
        if (kind != EMU_READ)
            emu_fault(EMU_EARLY, "writes before the launches before it have ended");
        check_still(r, p, bytes, "reads too early");
    }
    if (kind == EMU_ATOMIC && !r->shared) atomic_order(t, p);
    if (kind != EMU_READ) mine->serial++;
    size_t at = (p - r->lo) / 2, n = (p - r->lo + bytes + 1) / 2 - at;
    cell *c = r->cells + at;
    uint8_t *flags = r->flags + at;
    /* Most are as the first one was, and become what it becomes. */
    const words was(c);
    const uint8_t was_flags = *flags;
    touch(t, r, c, flags, p, kind, bytes > 1);
    const words is(c);
    const uint8_t is_flags = *flags;
    for (size_t i = 1; i < n; i++) {
        if (flags[i] == was_flags && words(&c[i]) == was) {
            memcpy(&c[i], is.w, sizeof(is.w));
            flags[i] = is_flags;
        } else {
            touch(t, r, &c[i], &flags[i], p + 2 * i, kind, true);
        }
    }
    if (kind == EMU_ISSUE) memset(reinterpret_cast<void *>(p), 0xFF, bytes);
}

inline void access(uintptr_t p, size_t bytes, emu_access_kind kind, bool wide)
{
    if (p - emu_cur->stack_lo >= EMU_STACK) access_array(p, bytes, kind, wide);
}

} // namespace

void emu_learn(emu_clocks *to, const emu_clocks &from)
{
    for (const auto &[warp, clock] : from) {
        auto &known = (*to)[warp];
        for (size_t i = 0; i < EMU_WARP; i++) known[i] = std::max(known[i], clock[i]);
    }
}

void emu_access(const void *p, size_t bytes, emu_access_kind kind, bool wide)
{
    access(reinterpret_cast<uintptr_t>(p), bytes, kind, wide);
}

uint32_t emu_write_serial(void)
{
    return mine->serial;
}

void emu_fence_async(void)
{
    emu_cur->async_serial = mine->serial;
}

void emu_async_begin(const void *p, size_t bytes)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    access(at, bytes, EMU_READ, true);
    const region *r = find(at);
    for (size_t i = (at - r->lo) / 2; i < (at - r->lo + bytes) / 2; i++) {
        const cell *c = &r->cells[i];
        if (c->w_tid != BULK && c->w_serial > emu_fiber_of(c->w_tid)->async_serial)
            emu_fault(EMU_UNFENCED,
                      "wgmma of shared memory that thread %d wrote, without a "
                      "fence.proxy.async since",
                      c->w_tid);
    }
}

void emu_async_done(const void *p, size_t bytes, uint32_t since)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    const region *r = find(at);
    for (size_t i = (at - r->lo) / 2; i < (at - r->lo + bytes) / 2; i++) {
        cell *c = &r->cells[i];
        if (c->w_serial > since)
            race(r, at, "wgmma is not known to have read", "has written already", c->w_tid);
        note_reader(emu_cur, r, c);
    }
}

void emu_check_still(const void *p, size_t bytes, const char *what)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    const region *r = find(at);
    if (r && !r->shared && at + bytes <= r->lo + r->bytes) check_still(r, at, bytes, what);
}

void emu_memory_launch(void)
{
    block_starts.clear();
    released.clear();
}

void *emu_shared_array(size_t bytes)
{
    if (mine->n_shared == mine->shared.size()) mine->shared.push_back(make(bytes, true));
    region *r = &mine->shared[mine->n_shared++];
    if (r->room < bytes) {
        drop(r);
        *r = make(bytes, true);
    }
    r->bytes = bytes;
    memset(reinterpret_cast<void *>(r->lo), 0xFF, bytes);
    return reinterpret_cast<void *>(r->lo);
}

void emu_shared_reset(void)
{
    mine->n_shared = 0;
    mine->serial = 0;
    mine->acquired.clear();
    mine->released.clear();
    block_starts.push_back(emu_w.epoch + 1);
}

/* ---- blocks of a cluster ------------------------------------------------------------------ */

void emu_memory_block(int block)
{
    mine = &blocks[block];
}

void emu_memory_cluster(int n)
{
    for (int i = n; i < EMU_CLUSTER_MAX; i++) blocks[i].n_shared = 0;
}

void *emu_peer(const void *p, size_t bytes, int block)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    const region *r = mine->n_shared ? &mine->shared[0] : nullptr;
    if (!r || at - r->lo >= r->bytes || at - r->lo + bytes > r->bytes)
        emu_fault(EMU_BOUNDS, "%zu bytes at %p, not in the block's dynamic shared memory", bytes,
                  p);
    return reinterpret_cast<void *>(blocks[block].shared[0].lo + (at - r->lo));
}

void emu_bulk_issue(const emu_bulk *b, const emu_bulk_epochs *e)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(b->to);
    const region *r = &blocks[b->block].shared[0];
    char said[100];
    for (size_t i = (at - r->lo) / 2; i < (at - r->lo + b->bytes) / 2; i++) {
        cell *c = &r->cells[i];
        bool now = c->w_epoch >= e->first;
        if (now && r->flags[i] & IN_FLIGHT)
            emu_fault(EMU_RACE,
                      "a bulk copy goes to %s of block %d, where another one is in flight",
                      place(said, sizeof(said), r, r->lo + 2 * i), b->block);
        if (c->r_epoch >= e->known || (now && c->w_epoch >= e->known))
            emu_fault(
                EMU_RACE,
                "a bulk copy goes to %s of block %d, which has not said that it is done there",
                place(said, sizeof(said), r, r->lo + 2 * i), b->block);
        c->w_epoch = e->now;
        c->w_tid = BULK;
        c->w_clock = b->phase;
        c->w_serial = b->number;
        r->flags[i] = IN_FLIGHT;
    }
    memset(b->to, 0xFF, b->bytes);
}

void emu_bulk_land(const emu_bulk *b)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(b->to);
    const region *r = &mine->shared[0];
    for (size_t i = (at - r->lo) / 2; i < (at - r->lo + b->bytes) / 2; i++) {
        cell *c = &r->cells[i];
        if (r->flags[i] != IN_FLIGHT || c->w_tid != BULK || c->w_serial != b->number)
            race(r, r->lo + 2 * i, "a bulk copy writes", "wrote meanwhile,", c->w_tid);
        c->w_epoch = emu_cur->epoch;
        r->flags[i] = WRITTEN;
    }
    if (memcmp(b->then, b->from, b->bytes) != 0)
        emu_fault(EMU_RACE, "%p changes while a bulk copy of it is in flight", b->from);
    memcpy(b->to, b->from, b->bytes);
    mine->serial++;
}

void emu_device(int now)
{
    device = now;
}

void emu_allow_peer(int from, int to)
{
    if (from < 0)
        memset(peers, 0, sizeof(peers));
    else
        peers[from][to] = true;
}

void *emu_alloc_bare(size_t bytes)
{
    region r = make(bytes ? bytes : 1, false);
    global[r.lo] = r;
    return reinterpret_cast<void *>(r.lo);
}

void *emu_alloc(size_t bytes)
{
    return memset(emu_alloc_bare(bytes), 0xFF, bytes);
}

void emu_free(void *p)
{
    if (!p) return;
    auto it = global.find(reinterpret_cast<uintptr_t>(p));
    if (it == global.end()) abort();
    drop(&it->second);
    memset(recent, 0, sizeof(recent));
    global.erase(it);
}

void emu_wrote(const void *p, size_t bytes)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    if (bytes == 0) return;
    region *r = find_global(at);
    if (!r || at + bytes > r->lo + r->bytes) abort();
    size_t i = (at - r->lo) / 2;
    memset(r->flags + i, WRITTEN, (at - r->lo + bytes + 1) / 2 - i);
}

const void *emu_first_unwritten(const void *p, size_t bytes)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    if (bytes == 0) return nullptr;
    const region *r = find_global(at);
    if (!r || at + bytes > r->lo + r->bytes) return p;
    for (size_t i = (at - r->lo) / 2; i < (at - r->lo + bytes + 1) / 2; i++) {
        if (!(r->flags[i] & WRITTEN)) return reinterpret_cast<const void *>(r->lo + i * 2);
    }
    return nullptr;
}

int emu_is_device(const void *p, size_t bytes)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    const region *r = find_global(at);
    return r && at + bytes <= r->lo + r->bytes;
}

/* ---- what the compiler calls ---------------------------------------------------------- */

extern "C" {
void __tsan_init(void);
void __tsan_func_entry(void *);
void __tsan_func_exit(void);
void __tsan_read_range(void *p, size_t n);
void __tsan_write_range(void *p, size_t n);
void __tsan_vptr_update(void **, void *);
void __tsan_vptr_read(void **);

void __tsan_init(void)
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void)
{
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **)
{
}

#define HOOK(name, n, kind, wide)                                           \
    void name(void *p);                                                     \
    void name(void *p)                                                      \
    {                                                                       \
        if (emu_cur) access(reinterpret_cast<uintptr_t>(p), n, kind, wide); \
    }
HOOK(__tsan_read1, 1, EMU_READ, true)
HOOK(__tsan_read2, 2, EMU_READ, true)
HOOK(__tsan_read4, 4, EMU_READ, true)
HOOK(__tsan_read8, 8, EMU_READ, true)
HOOK(__tsan_read16, 16, EMU_READ, true)
HOOK(__tsan_write1, 1, EMU_WRITE, true)
HOOK(__tsan_write2, 2, EMU_WRITE, true)
HOOK(__tsan_write4, 4, EMU_WRITE, true)
HOOK(__tsan_write8, 8, EMU_WRITE, true)
HOOK(__tsan_write16, 16, EMU_WRITE, true)
HOOK(__tsan_unaligned_read2, 2, EMU_READ, false)
HOOK(__tsan_unaligned_read4, 4, EMU_READ, false)
HOOK(__tsan_unaligned_read8, 8, EMU_READ, false)
HOOK(__tsan_unaligned_read16, 16, EMU_READ, false)
HOOK(__tsan_unaligned_write2, 2, EMU_WRITE, false)
HOOK(__tsan_unaligned_write4, 4, EMU_WRITE, false)
HOOK(__tsan_unaligned_write8, 8, EMU_WRITE, false)
HOOK(__tsan_unaligned_write16, 16, EMU_WRITE, false)

void __tsan_read_range(void *p, size_t n)
{
    if (emu_cur && n) access(reinterpret_cast<uintptr_t>(p), n, EMU_READ, false);
}
void __tsan_write_range(void *p, size_t n)
{
    if (emu_cur && n) access(reinterpret_cast<uintptr_t>(p), n, EMU_WRITE, false);
}
}
