/* emu_inside.h -- what emu.cpp (threads, collectives) and emu_memory.cpp (the watch) share. */
#ifndef EMU_INSIDE_H
#define EMU_INSIDE_H

#include <array>
#include <map>

#include "tests/emu/emu.h"

enum { EMU_WARP = 32, EMU_THREADS_MAX = 1024, EMU_STACK = 128 << 10 };
enum { EMU_CLUSTER_MAX = 8, EMU_BARRIERS = 64 }; /* blocks of a cluster; mbarriers of a block */

typedef struct emu_fiber emu_fiber;
/* Of warps, by their number: each lane's clock. */
typedef std::map<int, std::array<uint32_t, EMU_WARP>> emu_clocks;
/* Whatever one of the two knows, `to` knows. */
void emu_learn(emu_clocks *to, const emu_clocks &from);

/* What the watch must know about the thread that runs. */
struct emu_fiber {
    emu_where where;
    int tid, warp, lane;
    uintptr_t stack_lo;       /* [stack_lo, stack_lo + EMU_STACK) */
    uint32_t clock[EMU_WARP]; /* of the warp's lanes, as far as this one has synchronised */
    emu_clocks others;        /* of other warps of the block, by atomics behind a fence */
    bool fenced;              /* has called __threadfence() */
    uint32_t async_serial;    /* writes of its own up to this one wgmma sees */
    uint32_t epoch;           /* grows at each barrier that it passes */
    int group;                /* the named barrier that it uses; 0: none since the last whole one */
    bool waited;              /* the launches before this one have ended */
    int block;                /* its rank in the cluster */
    int arrives, waits;       /* barrier.cluster that it has called */
    /* Of each block: what it did before this epoch is over; of each mbarrier of its own: phases
     * that it has waited for. */
    uint32_t known[EMU_CLUSTER_MAX], seen[EMU_BARRIERS];
};

extern __thread emu_fiber *emu_cur; /* NULL: host code runs */
emu_fiber *emu_fiber_of(int tid);   /* of the block */

/* The launch that runs. */
typedef struct emu_world {
    uint32_t epoch;        /* the last: grows at every block's start and every barrier */
    uint32_t whole_epoch;  /* that of the block's last __syncthreads(), or of its start */
    uint32_t launch_epoch; /* the launch's first */
    uint32_t block_epoch;  /* the block's first */
    uint32_t block_end;    /* from here on they are other blocks', which run beside it */
    uint32_t chain_epoch;  /* the first of launches that may run beside this one's begin */
    uintptr_t args_lo, args_hi;
    uint64_t accesses;
    emu_fiber *fiber; /* of the block */
    int n_thread;
} emu_world;
extern emu_world emu_w;

/* Has a barrier stood between what the block's thread `tid` did at `epoch` and what t does now?  Of
 * the whole block, or one by name where both call the same. */
static inline bool emu_barred(const emu_fiber *t, int tid, uint32_t epoch)
{
    if (epoch < emu_w.whole_epoch) return true;
    return epoch < t->epoch && emu_fiber_of(tid)->group == t->group;
}

/* Leaves the launch when a fiber runs; does not return then. */
void emu_fault(emu_fault_kind kind, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A shared array, its own watch; unwritten and poisoned until the block writes. */
void *emu_shared_array(size_t bytes);
void emu_shared_reset(void); /* all are gone */

typedef enum { EMU_READ, EMU_WRITE, EMU_ATOMIC, EMU_ISSUE } emu_access_kind;
/* One access of the running thread; `wide`: must be aligned to its size. */
void emu_access(const void *p, size_t bytes, emu_access_kind kind, bool wide);
/* Whether a launch that may still have run at this one's begin wrote there. */
void emu_check_still(const void *p, size_t bytes, const char *what);
void emu_memory_launch(void); /* a launch begins */

/* wgmma reads shared memory by a way of its own: what it reads must be there, fenced by who wrote
 * it and known to the thread that runs; and nobody may write there until it has read. */
uint32_t emu_write_serial(void); /* of the last write to shared memory */
void emu_async_begin(const void *p, size_t bytes);
void emu_async_done(const void *p, size_t bytes, uint32_t serial);

/* All 128 threads of the running one's warpgroup, with the same key; the last one works for all. */
void emu_group_meet(uint64_t key, void (*work)(void));
void emu_wgmma_reset(void); /* a block begins */
void emu_wgmma_end(void);   /* the running thread ends */

/* ---- clusters: emu_cluster.cpp has mbarriers, bulk copies and the cluster's barrier -------- */

void emu_memory_block(int block); /* whose shared memory is in reach */
void emu_memory_cluster(int n);   /* a cluster of n blocks begins */
/* The same place of block `block`'s dynamic shared memory. */
void *emu_peer(const void *p, size_t bytes, int block);

/* A bulk copy on its way to one block. */
typedef struct emu_bulk {
    char *to;
    const char *from, *then; /* then: what lay there when it was issued */
    size_t bytes;
    int block;
    uint32_t number, phase; /* phase: mbarrier << 24 | its phase, counted */
} emu_bulk;
/* Of that block: its first epoch, the one that runs, and from where on who sends knows nothing. */
typedef struct emu_bulk_epochs {
    uint32_t first, now, known;
} emu_bulk_epochs;
void emu_bulk_issue(const emu_bulk *b, const emu_bulk_epochs *e);
void emu_bulk_land(const emu_bulk *b); /* in the block that runs */
static inline bool emu_bulk_seen(const emu_fiber *t, uint32_t phase)
{
    return t->seen[phase >> 24] > (phase & 0xFFFFFF);
}

/* For what phases of mbarriers `from` has waited, `to` has: a named barrier stood between. */
void emu_tell_waits(emu_fiber *to, const emu_fiber *from);

void emu_cluster_begin(int n_block);      /* before its first block */
void emu_cluster_end(bool last);          /* the running thread ends, of its block the last */
emu_bulk_epochs emu_epochs_of(int block); /* first and now */
emu_fiber *emu_fiber_in(int block, int tid);
/* The running thread waits until emu_wake() of it; `what`: for messages. */
void emu_sleep(const char *what);
void emu_wake(emu_fiber *t);

/* How mma rounds: emu_mma_truncates(). */
int emu_mma_rounding(void);
double emu_half_value(uint16_t h, bool bf16);
/* Of what is neither 0 nor less than a product of two numbers of 16 or 32 bits can be. */
static inline int emu_exponent(double v)
{
    return static_cast<int>(__builtin_bit_cast(uint64_t, v) >> 52 & 0x7FF) - 1023;
}
static inline double emu_power(int exponent)
{
    return __builtin_bit_cast(double, static_cast<uint64_t>(exponent + 1023) << 52);
}
/* Rounded towards 0. */
static inline float emu_cut(double v)
{
    float f = static_cast<float>(v);
    if (__builtin_fabs(static_cast<double>(f)) <= __builtin_fabs(v)) return f;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, f) - 1);
}
/* c + x y over n products as sm_90's tensor cores are seen to add (arXiv 2511.10909): aligned to
 * the largest exponent, cut off 25 bits behind its point, added, and cut off to f32. */
float emu_add_aligned(float c, const double *x, const double *y, int n, bool bf16);

#endif
