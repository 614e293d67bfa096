/* emu.cpp -- blocks, threads as fibers, barriers and collectives; see emu.h.
 *
 * A fiber runs until it must wait.  A barrier or collective releases its threads when the last one
 * arrives, who does the work for all; when nobody can run and not all have ended, they have
 * diverged, and the message says who waits where.
 */
#include "tests/emu/emu.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#include "engine/base/halves.h"
#include "tests/emu/emu_inside.h"

#if !defined(__x86_64__)
#    include <ucontext.h>
#endif

__thread emu_fiber *emu_cur;
emu_world emu_w;

namespace
{

enum { BARRIERS = 16 };
enum wait_kind { RUNNING, AT_BARRIER, AT_WARP, AT_GROUP, ASLEEP, ENDED };
enum warp_op { OP_SYNC, OP_SHFL, OP_BALLOT, OP_MMA, OP_LDMATRIX };
const char *const op_name[] = {"__syncwarp", "shuffle", "vote", "mma", "ldmatrix"};

struct copy {
    char *to;
    const char *from;
    int bytes, valid;
    char then
        [16]; /* what lay there when it was issued: a device reads it some time until the wait */
};

struct thread : emu_fiber {
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
    wait_kind wait;
    /* at a barrier */
    const char *file;
    int line, pred, count, id;
    /* in a collective */
    warp_op op;
    unsigned mask;
    int variant; /* must be equal for all */
    uint32_t in[12], out[8];
    int arg, width;
    const void *row;
    uint64_t key;       /* of a warpgroup's meeting */
    const char *asleep; /* in what */
    /* cp.async: groups in order, the last one open */
    std::vector<copy> copies;
    std::vector<size_t> group_end;
};

/* What belongs to one block of a cluster.  The running one's stands in `S` and `emu_w`. */
struct block_state {
    int n_ended, n_at_barrier[BARRIERS];
    unsigned n_pause;
    void *dynamic;
    size_t static_bytes;
    std::unordered_map<const void *, void *> statics;
    uint32_t epoch, whole_epoch, block_epoch, block_end;
};

struct state {
    std::mutex lock;
    std::vector<thread> all; /* EMU_THREADS_MAX of each block of a cluster */
    thread *threads;         /* the running block's */
    int block, cluster;      /* its rank; how many run together */
    block_state blocks[EMU_CLUSTER_MAX];
    std::vector<thread *> ready; /* that can run: a queue, or a bag when order is random */
    size_t ready_at;
    int n_ended, n_at_barrier[BARRIERS];
    unsigned n_pause; /* of the block */
    uint64_t seed, rng;
    int rounding; /* of mma */
    void (*body)(const void *);
    const void *args;
    const char *kernel;
    void *dynamic;
    size_t dynamic_bytes, static_bytes;
    std::unordered_map<const void *, void *> statics;
    std::unordered_map<const void *, size_t> allowed;
    std::unordered_map<const void *, uint32_t> chain; /* of each stream: emu_world's chain_epoch */
    bool early;                                       /* the launch may begin so */
    bool catching, leaving;
    emu_fault_kind fault;
    char msg[1024];
    emu_counts counts;
#if defined(__x86_64__)
    void *host_sp;
#else
    ucontext_t host;
#endif
} S;

/* ---- switching -------------------------------------------------------------------- */

#if defined(__x86_64__)
extern "C" void emu_switch(void **save, void *load);
asm(".text\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size emu_switch,.-emu_switch\n");
#endif

thread *self()
{
    return static_cast<thread *>(emu_cur);
}

uint32_t draw()
{
    S.rng = S.rng * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<uint32_t>(S.rng >> 33);
}

void make_ready(thread *t)
{
    t->wait = RUNNING;
    S.ready.push_back(t);
}

thread *next_ready()
{
    if (S.ready_at == S.ready.size()) return nullptr;
    if (S.seed) {
        size_t i = S.ready_at + draw() % (S.ready.size() - S.ready_at);
        std::swap(S.ready[i], S.ready[S.ready_at]);
    }
    thread *t = S.ready[S.ready_at++];
    if (S.ready_at == S.ready.size()) {
        S.ready.clear();
        S.ready_at = 0;
    }
    return t;
}

/* What the running block has, and what stands there, change places. */
void exchange(block_state *b)
{
    std::swap(b->n_ended, S.n_ended);
    std::swap(b->n_at_barrier, S.n_at_barrier);
    std::swap(b->n_pause, S.n_pause);
    std::swap(b->dynamic, S.dynamic);
    std::swap(b->static_bytes, S.static_bytes);
    std::swap(b->statics, S.statics);
    std::swap(b->epoch, emu_w.epoch);
    std::swap(b->whole_epoch, emu_w.whole_epoch);
    std::swap(b->block_epoch, emu_w.block_epoch);
    std::swap(b->block_end, emu_w.block_end);
}

/* Block `block` of the cluster is the running one. */
void enter(int block)
{
    if (block == S.block) return;
    exchange(&S.blocks[S.block]);
    exchange(&S.blocks[block]);
    S.block = block;
    S.threads = &S.all[static_cast<size_t>(block) * EMU_THREADS_MAX];
    emu_w.fiber = S.threads;
    emu_memory_block(block);
}

/* From the running thread, which can be given up, or from the host, to another thread; NULL: to the
 * host. */
void switch_to(thread *t)
{
    thread *from = self();
    if (from == t) return;
    S.counts.switches += t != nullptr;
    if (t) enter(t->block);
    emu_cur = t;
#if defined(__x86_64__)
    emu_switch(from ? &from->sp : &S.host_sp, t ? t->sp : S.host_sp);
#else
    swapcontext(from ? &from->context : &S.host, t ? &t->context : &S.host);
#endif
}

/* Lets others run, until this one is ready again. */
void give_way()
{
    switch_to(S.leaving ? nullptr : next_ready());
}

void thread_main()
{
    S.body(S.args);
    thread *t = self();
    if (!t->copies.empty())
        emu_fault(EMU_IN_FLIGHT, "thread %d ends with %zu cp.async not waited for", t->tid,
                  t->copies.size());
    emu_wgmma_end();
    if (!t->waited)
        emu_fault(EMU_EARLY, "thread %d ends, and has not waited for the launches before", t->tid);
    t->wait = ENDED;
    S.n_ended++;
    emu_cluster_end(S.n_ended == emu_w.n_thread);
    give_way();
    abort();
}

void thread_prepare(thread *t)
{
#if defined(__x86_64__)
    /* not all at the same place of their pages, which caches keep few of */
    uintptr_t above = 64 + static_cast<uintptr_t>(t->tid % 16) * 256;
    void **top = reinterpret_cast<void **>(t->stack_lo + EMU_STACK - above);
    *--top = nullptr; /* where thread_main would return to; keeps the stack aligned */
    *--top = reinterpret_cast<void *>(&thread_main);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    t->sp = top;
#else
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = reinterpret_cast<void *>(t->stack_lo);
    t->context.uc_stack.ss_size = EMU_STACK;
    t->context.uc_link = nullptr;
    makecontext(&t->context, thread_main, 0);
#endif
}

/* ---- barriers ----------------------------------------------------------------------- */

/* Of the whole block, id 0, or of as many as call one by name. */
void barrier(int id, int needed, const char *file, int line, int pred)
{
    thread *t = self();
    t->file = file;
    t->line = line;
    t->pred = pred;
    t->id = id;
    if (id > 0 && t->group > 0 && t->group != id)
        emu_fault(EMU_DIVERGED, "thread %d, of the barrier %d, calls %d", t->tid, t->group, id);
    t->wait = AT_BARRIER;
    if (++S.n_at_barrier[id] < needed) {
        give_way();
        return;
    }
    t->wait = RUNNING;
    S.n_at_barrier[id] = 0;
    emu_w.epoch++;
    if (id == 0) emu_w.whole_epoch = emu_w.epoch;
    int count = 0;
    auto here = [&](const thread *o) { return o == t || (o->wait == AT_BARRIER && o->id == id); };
    for (int i = 0; i < emu_w.n_thread; i++) {
        thread *o = &S.threads[static_cast<size_t>(i)];
        if (!here(o)) continue;
        if (o->line != line || (o->file != file && strcmp(o->file, file) != 0))
            emu_fault(EMU_DIVERGED,
                      "threads %d and %d meet at two different barriers, lines %d and %d of %s",
                      t->tid, o->tid, line, o->line, file);
        count += o->pred != 0;
        if (id > 0) emu_tell_waits(t, o);
    }
    for (int i = 0; i < emu_w.n_thread; i++) {
        thread *o = &S.threads[static_cast<size_t>(i)];
        if (!here(o)) continue;
        o->count = count;
        o->epoch = emu_w.epoch;
        o->group = id;
        if (id > 0) emu_tell_waits(o, t);
        if (o != t) make_ready(o);
    }
    if (S.seed) { /* the last to come must not always be the first to go on */
        make_ready(t);
        give_way();
    }
}

/* Who is stuck, in words. */
void diverged()
{
    char who[600] = "";
    size_t n = 0;
    for (int i = 0; i < emu_w.n_thread && n + 100 < sizeof(who); i++) {
        const thread *t = &S.threads[static_cast<size_t>(i)];
        const thread *p = i ? t - 1 : nullptr;
        if (p && p->wait == t->wait && (t->wait != AT_BARRIER || p->line == t->line) &&
            (t->wait != AT_WARP || (p->op == t->op && p->mask == t->mask)) &&
            (t->wait != ASLEEP || p->asleep == t->asleep))
            continue;
        if (t->wait == ENDED)
            n += static_cast<size_t>(snprintf(who + n, sizeof(who) - n, "; %d.. ended", i));
        else if (t->wait == AT_BARRIER)
            n += static_cast<size_t>(
                snprintf(who + n, sizeof(who) - n, "; %d.. at the barrier of line %d", i, t->line));
        else if (t->wait == AT_GROUP)
            n += static_cast<size_t>(snprintf(who + n, sizeof(who) - n, "; %d.. in a wgmma", i));
        else if (t->wait == ASLEEP)
            n += static_cast<size_t>(
                snprintf(who + n, sizeof(who) - n, "; %d.. in %s", i, t->asleep));
        else
            n += static_cast<size_t>(snprintf(who + n, sizeof(who) - n,
                                              "; %d.. in a %s of lanes %08x", i, op_name[t->op],
                                              t->mask));
    }
    emu_fault(EMU_DIVERGED, "threads wait for each other%s", who);
}

/* ---- collectives of a warp ---------------------------------------------------------- */

bool lane_exists(const thread *t, int lane)
{
    return t->warp * EMU_WARP + lane < emu_w.n_thread;
}

thread *lane_of(const thread *t, int lane)
{
    return &S.threads[static_cast<size_t>(t->warp * EMU_WARP + lane)];
}

float half_value(uint16_t h, bool bf16)
{
    return bf16 ? bf16_to_f32(h) : f16_to_f32(h);
}

float half_of(const uint32_t *regs, int i, bool bf16)
{
    return half_value(static_cast<uint16_t>(regs[i / 2] >> (i % 2 * 16)), bf16);
}

/* c + x y over 8 products as tensor cores are seen to add (Fasi, Higham, Mikaitis, Pranesh 2021):
 * all terms are aligned to the largest one, cut off one bit behind its f32 fraction, added, and the
 * sum is cut off to f32. */
float add_truncated(float c, const double *x, const double *y)
{
    enum { TERMS = 9, BITS = 24 };
    double term[TERMS] = {static_cast<double>(c)}, sum = 0;
    int top = -4000;
    for (int k = 1; k < TERMS; k++) term[k] = x[k - 1] * y[k - 1];
    for (double v : term) {
        sum += v;
        if (v != 0) top = std::max(top, emu_exponent(v));
    }
    if (!__builtin_isfinite(sum) || top == -4000) return static_cast<float>(sum);
    double scale = emu_power(BITS - top);
    int64_t cut = 0;
    for (double v : term) cut += static_cast<int64_t>(v * scale);
    return emu_cut(static_cast<double>(cut) * emu_power(top - BITS));
}

enum { MMA_M = 16, MMA_N = 8, MMA_K = 16 };

/* PTX ISA, "Matrix fragments for mma.m16n8k16" (and k8, whose registers are the first half): with
 * g = lane / 4 and q = lane % 4, A's register i holds row g + 8 (i % 2), columns 2q + 8 (i / 2)
 * and the next; B's register i holds rows 2q + 8i and the next of column g; C's element i row g +
 * 8 (i / 2), column 2q + i % 2. */
template <bool BF16>
void mma_operands(const thread *any, int k_n, double a[][MMA_K], double b[][MMA_K])
{
    for (int l = 0; l < EMU_WARP; l++) {
        const thread *t = lane_of(any, l);
        int g = l / 4, q = l % 4;
        for (int i = 0; i < k_n / 4; i++) {
            for (int j = 0; j < 2; j++)
                a[g + i % 2 * 8][q * 2 + i / 2 * 8 + j] =
                    static_cast<double>(half_of(t->in, i * 2 + j, BF16));
        }
        for (int i = 0; i < k_n / 8; i++) {
            for (int j = 0; j < 2; j++)
                b[g][q * 2 + i * 8 + j] = static_cast<double>(half_of(t->in + 4, i * 2 + j, BF16));
        }
    }
}

/* The sums of a row of A with each column of B. */
void mma_row(double out[MMA_N], const double *a, const double b[][MMA_N], int k_n)
{
    for (int first = 0; first < 4; first++) {
        double sum[MMA_N] = {};
        for (int k = first; k < k_n; k += 4) {
            for (int n = 0; n < MMA_N; n++) sum[n] += a[k] * b[k][n];
        }
        for (int n = 0; n < MMA_N; n++) out[n] = first ? out[n] + sum[n] : sum[n];
    }
}

void do_mma(thread *any)
{
    int k_n = any->variant & 31;
    bool bf16 = any->variant & 32;
    static double a[MMA_M][MMA_K], b[MMA_N][MMA_K], turned[MMA_K][MMA_N], sum[MMA_M][MMA_N];
    (bf16 ? mma_operands<true> : mma_operands<false>)(any, k_n, a, b);
    if (!S.rounding) {
        for (int k = 0; k < k_n; k++) {
            for (int n = 0; n < MMA_N; n++) turned[k][n] = b[n][k];
        }
        for (int m = 0; m < MMA_M; m++) mma_row(sum[m], a[m], turned, k_n);
    }
    for (int l = 0; l < EMU_WARP; l++) {
        thread *t = lane_of(any, l);
        for (int i = 0; i < 4; i++) {
            int m = l / 4 + i / 2 * 8, n = l % 4 * 2 + i % 2;
            float c;
            memcpy(&c, &t->in[6 + i], 4);
            if (!S.rounding)
                c = static_cast<float>(static_cast<double>(c) + sum[m][n]);
            else if (S.rounding == 2)
                c = emu_add_aligned(c, a[m], b[n], k_n, bf16);
            for (int k = 0; S.rounding == 1 && k < k_n; k += 8)
                c = add_truncated(c, a[m] + k, b[n] + k);
            memcpy(&t->out[i], &c, 4);
        }
    }
}

/* Lane l gets of matrix m the elements (l / 4, 2 (l % 4)) and the next;
 * transposed, (2 (l % 4), l / 4). */
void do_ldmatrix(thread *any)
{
    int n = any->variant & 7;
    bool trans = any->variant & 8;
    for (int l = 0; l < EMU_WARP; l++) {
        thread *t = lane_of(any, l);
        for (int m = 0; m < n; m++) {
            uint16_t h[2];
            for (int j = 0; j < 2; j++) {
                int row = trans ? l % 4 * 2 + j : l / 4, col = trans ? l / 4 : l % 4 * 2 + j;
                const thread *from = lane_of(any, m * 8 + row);
                memcpy(&h[j], static_cast<const char *>(from->row) + col * 2, 2);
            }
            t->out[m] = static_cast<uint32_t>(h[1]) << 16 | h[0];
        }
    }
}

void do_shfl(thread *any)
{
    for (int l = 0; l < EMU_WARP; l++) {
        if (!(any->mask >> l & 1)) continue;
        thread *t = lane_of(any, l);
        int w = t->width, base = l / w * w, in = l - base, from = in;
        switch (t->variant) {
        case EMU_SHFL_IDX: from = t->arg & (w - 1); break;
        case EMU_SHFL_UP: from = in - t->arg < 0 ? in : in - t->arg; break;
        case EMU_SHFL_DOWN: from = in + t->arg >= w ? in : in + t->arg; break;
        default: from = in ^ t->arg; break;
        }
        if (from >= w) from = in;
        if (!(any->mask >> (base + from) & 1))
            emu_fault(EMU_DIVERGED, "lane %d shuffles from lane %d, which is not in the mask %08x",
                      l, base + from, any->mask);
        t->out[0] = lane_of(any, base + from)->in[0];
    }
}

void do_ballot(thread *any)
{
    uint32_t votes = 0;
    for (int l = 0; l < EMU_WARP; l++) {
        if (any->mask >> l & 1 && lane_of(any, l)->in[0]) votes |= 1U << l;
    }
    for (int l = 0; l < EMU_WARP; l++) {
        if (any->mask >> l & 1) lane_of(any, l)->out[0] = votes;
    }
}

/* What each lane knew, all know now. */
void do_sync(thread *any)
{
    uint32_t known[EMU_WARP] = {0};
    emu_clocks others;
    for (int l = 0; l < EMU_WARP; l++) {
        if (!(any->mask >> l & 1)) continue;
        if (!lane_of(any, l)->others.empty()) emu_learn(&others, lane_of(any, l)->others);
        for (int i = 0; i < EMU_WARP; i++) {
            uint32_t c = lane_of(any, l)->clock[i];
            if (c > known[i]) known[i] = c;
        }
    }
    for (int l = 0; l < EMU_WARP; l++) {
        if (!(any->mask >> l & 1)) continue;
        thread *t = lane_of(any, l);
        memcpy(t->clock, known, sizeof(known));
        if (!others.empty()) t->others = others;
        t->clock[l]++;
    }
}

/* Waits for the lanes of the mask; the last one works for all. */
void collective(warp_op op, unsigned mask, int variant)
{
    thread *t = self();
    if (!t) abort();
    t->op = op;
    t->mask = mask;
    t->variant = variant;
    t->wait = AT_WARP;
    if (!(mask >> t->lane & 1))
        emu_fault(EMU_DIVERGED, "lane %d calls a %s with the mask %08x, which leaves it out",
                  t->lane, op_name[op], mask);
    for (int i = 1; i <= EMU_WARP; i++) { /* who comes next is most likely missing */
        int l = (t->lane + i) % EMU_WARP;
        if (!(mask >> l & 1)) continue;
        bool exists = lane_exists(t, l);
        const thread *o = exists ? lane_of(t, l) : t;
        if (!exists || o->wait == ENDED)
            emu_fault(EMU_DIVERGED, "lane %d of warp %d is in the mask %08x of a %s, but %s", l,
                      t->warp, mask, op_name[op], exists ? "has ended" : "does not exist");
        if (o->wait != AT_WARP || o->op != op || o->mask != mask || o->variant != variant) {
            give_way();
            return;
        }
    }
    switch (op) {
    case OP_SYNC: do_sync(t); break;
    case OP_SHFL: do_shfl(t); break;
    case OP_BALLOT: do_ballot(t); break;
    case OP_MMA: do_mma(t); break;
    case OP_LDMATRIX: do_ldmatrix(t); break;
    }
    t->wait = RUNNING;
    for (int l = 0; l < EMU_WARP; l++) {
        if (mask >> l & 1 && l != t->lane) make_ready(lane_of(t, l));
    }
    if (S.seed) {
        make_ready(t);
        give_way();
    }
}

/* ---- blocks ------------------------------------------------------------------------- */

/* For clusters of n blocks. */
void make_threads(int n)
{
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), each = EMU_STACK + page;
    for (int b = static_cast<int>(S.all.size()) / EMU_THREADS_MAX; b < n; b++) {
        S.all.resize(static_cast<size_t>(b + 1) * EMU_THREADS_MAX);
        char *stacks =
            static_cast<char *>(mmap(nullptr, each * EMU_THREADS_MAX, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (stacks == MAP_FAILED) abort();
        for (size_t i = 0; i < EMU_THREADS_MAX; i++) {
            thread *t = &S.all[static_cast<size_t>(b) * EMU_THREADS_MAX + i];
            mprotect(stacks + i * each, page, PROT_NONE);
            t->stack_lo = reinterpret_cast<uintptr_t>(stacks + i * each + page);
            t->tid = static_cast<int>(i);
            t->warp = t->tid / EMU_WARP;
            t->lane = t->tid % EMU_WARP;
            t->block = b;
        }
    }
    S.threads = &S.all[static_cast<size_t>(S.block) * EMU_THREADS_MAX];
}

void begin_block(uint3 block)
{
    emu_shared_reset();
    S.statics.clear();
    S.static_bytes = 0;
    emu_w.block_epoch = emu_w.whole_epoch = ++emu_w.epoch;
    emu_w.block_end = UINT32_MAX;
    S.dynamic = S.dynamic_bytes ? emu_shared_array(S.dynamic_bytes) : nullptr;
    S.n_ended = 0;
    S.n_pause = 0;
    memset(S.n_at_barrier, 0, sizeof(S.n_at_barrier));
    for (int i = 0; i < emu_w.n_thread; i++) {
        thread *t = &S.threads[static_cast<size_t>(i)];
        t->where.block_idx = block;
        memset(t->clock, 0, sizeof(t->clock));
        t->clock[t->lane] = 1;
        t->others.clear();
        t->fenced = false;
        t->async_serial = 0;
        t->epoch = emu_w.epoch;
        t->group = 0;
        t->waited = !S.early;
        t->copies.clear();
        t->group_end.clear();
        thread_prepare(t);
        make_ready(t);
    }
    S.counts.blocks++;
    S.counts.threads += static_cast<uint64_t>(emu_w.n_thread);
}

void run_block(uint3 block)
{
    S.ready.clear();
    S.ready_at = 0;
    begin_block(block);
    emu_cluster_begin(1);
    emu_wgmma_reset();
    switch_to(next_ready()); /* comes back when nobody is */
    if (!S.leaving && S.n_ended < emu_w.n_thread) diverged();
}

/* The blocks from this one on, side by side; each has epochs of its own. */
void run_cluster(uint3 first)
{
    enum { EPOCHS = 1 << 13 };
    uint32_t begin = emu_w.epoch, end = begin;
    S.ready.clear();
    S.ready_at = 0;
    emu_memory_cluster(S.cluster);
    for (int b = 0; b < S.cluster; b++) {
        enter(b);
        emu_w.epoch = begin + static_cast<uint32_t>(b) * EPOCHS;
        begin_block({first.x + static_cast<unsigned>(b), first.y, first.z});
        emu_w.block_end = emu_w.block_epoch + EPOCHS;
    }
    emu_cluster_begin(S.cluster);
    emu_wgmma_reset();
    switch_to(next_ready());
    for (int b = S.cluster - 1; b >= 0; b--) {
        enter(b);
        if (emu_w.epoch >= emu_w.block_end) abort(); /* more barriers than a block has epochs */
        end = std::max(end, emu_w.epoch);
        if (!S.leaving && S.n_ended < emu_w.n_thread) diverged();
    }
    emu_w.epoch = end;
}

} // namespace

/* ---- faults and settings ---------------------------------------------------------------- */

void emu_fault(emu_fault_kind kind, const char *fmt, ...)
{
    char text[800];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (S.fault == EMU_OK) {
        const emu_where *w = emu_cur ? &emu_cur->where : nullptr;
        S.fault = kind;
        if (w)
            snprintf(S.msg, sizeof(S.msg), "%s, block (%u, %u, %u), thread (%u, %u, %u): %s",
                     S.kernel, w->block_idx.x, w->block_idx.y, w->block_idx.z, w->thread_idx.x,
                     w->thread_idx.y, w->thread_idx.z, text);
        else
            snprintf(S.msg, sizeof(S.msg), "%s: %s", S.kernel, text);
        if (!S.catching) {
            fprintf(stderr, "emu: %s\n", S.msg);
            abort();
        }
    }
    S.leaving = true;
    if (emu_cur) {
        switch_to(nullptr); /* never to be resumed */
        abort();
    }
}

void emu_catch_faults(void)
{
    S.catching = true;
}

emu_fault_kind emu_take_fault(char *msg, size_t size)
{
    emu_fault_kind k = S.fault;
    if (msg && size) snprintf(msg, size, "%s", k ? S.msg : "");
    S.fault = EMU_OK;
    return k;
}

emu_fault_kind emu_peek_fault(void)
{
    return S.fault;
}

void emu_mma_truncates(int on)
{
    S.rounding = on;
}

int emu_mma_rounding(void)
{
    return S.rounding;
}

double emu_half_value(uint16_t h, bool bf16)
{
    return static_cast<double>(half_value(h, bf16));
}

emu_fiber *emu_fiber_of(int tid)
{
    return &S.threads[static_cast<size_t>(tid)];
}

emu_fiber *emu_fiber_in(int block, int tid)
{
    return &S.all[static_cast<size_t>(block) * EMU_THREADS_MAX + static_cast<size_t>(tid)];
}

emu_bulk_epochs emu_epochs_of(int block)
{
    const block_state *b = &S.blocks[block];
    if (block == S.block) return {emu_w.block_epoch, emu_w.epoch, 0};
    return {b->block_epoch, b->epoch, 0};
}

void emu_sleep(const char *what)
{
    thread *t = self();
    t->asleep = what;
    t->wait = ASLEEP;
    give_way();
}

void emu_wake(emu_fiber *t)
{
    if (static_cast<thread *>(t)->wait == ASLEEP) make_ready(static_cast<thread *>(t));
}

void emu_seed(uint64_t seed)
{
    S.seed = seed;
    S.rng = seed;
}

emu_counts emu_count(void)
{
    S.counts.accesses = emu_w.accesses;
    return S.counts;
}

/* ---- warpgroups ------------------------------------------------------------------------- */

void emu_group_meet(uint64_t key, void (*work)(void))
{
    enum { GROUP = 4 * EMU_WARP };
    thread *t = self();
    int first = t->tid / GROUP * GROUP;
    if (S.cluster > 1) emu_fault(EMU_CONFIG, "a wgmma in a cluster, which is not emulated");
    if (first + GROUP > emu_w.n_thread)
        emu_fault(EMU_DIVERGED, "a wgmma of a warpgroup that is not whole");
    t->key = key;
    t->wait = AT_GROUP;
    for (int i = 0; i < GROUP; i++) {
        const thread *o = &S.threads[static_cast<size_t>(first + i)];
        if (o->wait == ENDED)
            emu_fault(EMU_DIVERGED, "thread %d has ended, of a warpgroup with a wgmma", o->tid);
        if (o->wait != AT_GROUP || o->key != key) {
            give_way();
            return;
        }
    }
    work();
    t->wait = RUNNING;
    for (int i = 0; i < GROUP; i++) {
        if (first + i != t->tid) make_ready(&S.threads[static_cast<size_t>(first + i)]);
    }
    if (S.seed) {
        make_ready(t);
        give_way();
    }
}

/* ---- launches ----------------------------------------------------------------------- */

void emu_allow_shared(const void *kernel, size_t bytes)
{
    S.allowed[kernel] = bytes;
}

void emu_apart(struct CUstream_st *stream)
{
    S.chain[stream] = 0;
}

emu_stream_fn emu_on_stream;

void emu_launch_raw(const emu_job *job)
{
    std::lock_guard<std::mutex> hold(S.lock);
    const dim3 grid = job->grid, block = job->block;
    size_t shared = job->shared;
    if (S.fault != EMU_OK) return;
    S.leaving = false;
    S.kernel = job->name;
    uint64_t n = static_cast<uint64_t>(block.x) * block.y * block.z;
    if (n == 0 || n > EMU_THREADS_MAX || block.z > 64)
        return emu_fault(EMU_CONFIG, "a block of %u x %u x %u threads", block.x, block.y, block.z);
    if (!grid.x || !grid.y || !grid.z || grid.x > 0x7FFFFFFFU || grid.y > 65535 || grid.z > 65535)
        return emu_fault(EMU_CONFIG, "a grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
    if (job->cluster > EMU_CLUSTER_MAX || grid.x % job->cluster)
        return emu_fault(EMU_CONFIG, "clusters of %u in a row of %u blocks", job->cluster, grid.x);
    auto allowed = S.allowed.find(job->kernel);
    size_t limit = allowed == S.allowed.end() ? 48 << 10 : allowed->second;
    if (shared > limit || shared > 227 << 10)
        return emu_fault(EMU_CONFIG, "%zu bytes of shared memory, %zu were allowed", shared, limit);
    S.cluster = static_cast<int>(job->cluster);
    enter(0);
    make_threads(S.cluster);
    emu_memory_launch();
    S.counts.launches++;
    S.body = job->body;
    S.args = job->args;
    S.dynamic_bytes = shared;
    emu_w.args_lo = reinterpret_cast<uintptr_t>(job->args);
    emu_w.args_hi = emu_w.args_lo + job->args_bytes;
    emu_w.n_thread = static_cast<int>(n);
    emu_w.launch_epoch = emu_w.epoch + 1;
    uint32_t &chain = S.chain[job->stream];
    S.early = job->early && chain != 0;
    if (!S.early) chain = emu_w.launch_epoch;
    emu_w.chain_epoch = chain;
    emu_w.fiber = &S.threads[0];
    for (unsigned i = 0; i < n * job->cluster; i++) {
        unsigned t = i % static_cast<unsigned>(n);
        emu_fiber_in(static_cast<int>(i / n), static_cast<int>(t))->where = {
            {t % block.x, t / block.x % block.y, t / block.x / block.y}, {}, block, grid};
    }
    uint64_t row = grid.x / job->cluster, plane = row * grid.y, all = plane * grid.z, step = 1,
             at = 0;
    if (S.seed) { /* in another order, each once */
        at = draw() % all;
        for (step = draw() % all + 1; std::gcd(step, all) != 1;) step++;
    }
    for (uint64_t i = 0; i < all && !S.leaving; i++, at = (at + step) % all) {
        uint3 first = {static_cast<unsigned>(at % row) * job->cluster,
                       static_cast<unsigned>(at % plane / row), static_cast<unsigned>(at / plane)};
        if (job->cluster > 1)
            run_cluster(first);
        else
            run_block(first);
    }
}

/* ---- what kernels call ------------------------------------------------------------------ */

uint3 emu_thread_idx(void)
{
    return emu_cur->where.thread_idx;
}

uint3 emu_block_idx(void)
{
    return emu_cur->where.block_idx;
}

dim3 emu_block_dim(void)
{
    return emu_cur->where.block_dim;
}

dim3 emu_grid_dim(void)
{
    return emu_cur->where.grid_dim;
}

/* 4, 8 or 16 bytes. */
static void move(void *to, const void *from, int bytes)
{
    if (bytes == 16)
        memcpy(to, from, 16);
    else if (bytes == 8)
        memcpy(to, from, 8);
    else
        memcpy(to, from, 4);
}

void emu_load(void *to, const void *from, int bytes)
{
    emu_access(from, static_cast<size_t>(bytes), EMU_READ, true);
    move(to, from, bytes);
}

void emu_load_still(void *to, const void *from, int bytes)
{
    emu_check_still(from, static_cast<size_t>(bytes), "reads, as if nobody wrote it meanwhile,");
    emu_load(to, from, bytes);
}

void emu_fetch_ahead(const void *p, uint32_t bytes)
{
    if (reinterpret_cast<uintptr_t>(p) % 16 || bytes % 16)
        emu_fault(EMU_MISALIGNED, "fetches %u bytes at %p ahead", bytes, p);
    if (!emu_is_device(p, bytes))
        emu_fault(EMU_BOUNDS, "fetches %u bytes at %p ahead, no array's", bytes, p);
}

void emu_grid_wait(void)
{
    emu_cur->waited = true;
}

void emu_store(void *to, const void *from, int bytes)
{
    emu_access(to, static_cast<size_t>(bytes), EMU_WRITE, true);
    move(to, from, bytes);
}

void emu_syncthreads(const char *file, int line)
{
    barrier(0, emu_w.n_thread, file, line, 0);
}

void emu_barrier_of(int id, int n_thread, const char *file, int line)
{
    if (id < 1 || id >= BARRIERS || n_thread % EMU_WARP || n_thread > emu_w.n_thread)
        emu_fault(EMU_CONFIG, "a barrier %d of %d threads", id, n_thread);
    barrier(id, n_thread, file, line, 0);
}

void emu_pause(void)
{
    enum { MOST = 1 << 20 };
    thread *t = self();
    if (++S.n_pause > MOST) emu_fault(EMU_DIVERGED, "thread %d looks for what never comes", t->tid);
    make_ready(t);
    give_way();
}

int emu_syncthreads_count(int pred, const char *file, int line)
{
    barrier(0, emu_w.n_thread, file, line, pred);
    return self()->count;
}

void emu_syncwarp(unsigned mask)
{
    collective(OP_SYNC, mask, 0);
}

void emu_threadfence(void)
{
    emu_cur->fenced = true;
}

uint32_t emu_shfl(emu_shfl_kind kind, unsigned mask, uint32_t v, int arg, int width)
{
    thread *t = self();
    t->in[0] = v;
    t->arg = arg;
    t->width = width;
    collective(OP_SHFL, mask, kind);
    return t->out[0];
}

unsigned emu_ballot(unsigned mask, int pred)
{
    thread *t = self();
    t->in[0] = pred != 0;
    collective(OP_BALLOT, mask, 0);
    return t->out[0];
}

void emu_mma(float *d, const uint32_t *a, const uint32_t *b, int k, int bf16)
{
    thread *t = self();
    move(t->in, a, k);
    move(t->in + 4, b, k / 2);
    memcpy(t->in + 6, d, 16);
    collective(OP_MMA, 0xFFFFFFFFU, k | (bf16 ? 32 : 0));
    memcpy(d, t->out, 16);
}

void emu_ldmatrix(uint32_t *r, const void *row, int n, int trans)
{
    thread *t = self();
    t->row = row;
    if (t->lane < n * 8) emu_access(row, 16, EMU_READ, true);
    collective(OP_LDMATRIX, 0xFFFFFFFFU, n | (trans ? 8 : 0));
    memcpy(r, t->out, static_cast<size_t>(n) * 4);
}

void emu_cp_async(void *shared, const void *global, int bytes, int valid_bytes)
{
    thread *t = self();
    emu_access(shared, static_cast<size_t>(bytes), EMU_ISSUE, true);
    if (reinterpret_cast<uintptr_t>(global) % static_cast<unsigned>(bytes))
        emu_fault(EMU_MISALIGNED, "cp.async of %d bytes from %p", bytes, global);
    if (!t->waited && valid_bytes)
        emu_check_still(global, static_cast<size_t>(valid_bytes), "copies too early");
    copy c = {
        static_cast<char *>(shared), static_cast<const char *>(global), bytes, valid_bytes, {}};
    if (valid_bytes && emu_is_device(global, static_cast<size_t>(valid_bytes)))
        memcpy(c.then, global, static_cast<size_t>(valid_bytes));
    t->copies.push_back(c);
}

void emu_cp_async_commit(void)
{
    thread *t = self();
    t->group_end.push_back(t->copies.size());
}

void emu_cp_async_wait(int groups_left)
{
    thread *t = self();
    size_t n = t->copies.size(), groups = t->group_end.size();
    size_t left = groups_left < 0 ? 0 : static_cast<size_t>(groups_left);
    if (groups_left >= 0) n = groups > left ? t->group_end[groups - left - 1] : 0;
    for (size_t i = 0; i < n; i++) {
        const copy *c = &t->copies[i];
        size_t valid = static_cast<size_t>(c->valid), all = static_cast<size_t>(c->bytes);
        if (valid) emu_access(c->from, valid, EMU_READ, false);
        if (memcmp(c->then, c->from, valid) != 0)
            emu_fault(EMU_RACE, "%p changes while a cp.async of it is in flight",
                      static_cast<const void *>(c->from));
        emu_access(c->to, all, EMU_WRITE, true);
        memcpy(c->to, c->from, valid);
        memset(c->to + valid, 0, all - valid);
    }
    t->copies.erase(t->copies.begin(), t->copies.begin() + static_cast<long>(n));
    size_t done = groups > left ? groups - left : 0;
    t->group_end.erase(t->group_end.begin(), t->group_end.begin() + static_cast<long>(done));
    for (size_t &end : t->group_end) end -= n;
}

template <class T>
static T combine(T old, T v, emu_atomic_op op)
{
    switch (op) {
    case EMU_ADD: return old + v;
    case EMU_MAX: return old > v ? old : v;
    case EMU_MIN: return old < v ? old : v;
    default: return v;
    }
}

int32_t emu_atomic_i32(int32_t *p, int32_t v, emu_atomic_op op)
{
    emu_access(p, 4, EMU_ATOMIC, true);
    int32_t old = *p;
    *p = op == EMU_OR ? old | v : op == EMU_AND ? old & v : combine(old, v, op);
    return old;
}

uint32_t emu_atomic_u32(uint32_t *p, uint32_t v, emu_atomic_op op)
{
    emu_access(p, 4, EMU_ATOMIC, true);
    uint32_t old = *p;
    *p = op == EMU_OR ? old | v : op == EMU_AND ? old & v : combine(old, v, op);
    return old;
}

float emu_atomic_f32(float *p, float v, emu_atomic_op op)
{
    emu_access(p, 4, EMU_ATOMIC, true);
    float old = *p;
    *p = combine(old, v, op);
    return old;
}

uint32_t emu_atomic_cas(uint32_t *p, uint32_t expected, uint32_t v)
{
    emu_access(p, 4, EMU_ATOMIC, true);
    uint32_t old = *p;
    if (old == expected) *p = v;
    return old;
}

void *emu_dynamic_shared(void)
{
    if (!S.dynamic) emu_fault(EMU_BOUNDS, "no dynamic shared memory was given to this launch");
    return S.dynamic;
}

void *emu_static_shared(const void *key, size_t bytes)
{
    void *&p = S.statics[key];
    if (!p) {
        p = emu_shared_array(bytes);
        S.static_bytes += bytes;
        if (S.static_bytes > 48 << 10)
            emu_fault(EMU_CONFIG, "%zu bytes of static shared memory", S.static_bytes);
    }
    return p;
}
