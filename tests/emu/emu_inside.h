/* emu_inside.h -- what emu.cpp (threads, collectives) and emu_memory.cpp (the watch) share. */
#ifndef EMU_INSIDE_H
#define EMU_INSIDE_H

#include <array>
#include <map>

#include "tests/emu/emu.h"

enum { EMU_WARP = 32, EMU_THREADS_MAX = 1024, EMU_STACK = 128 << 10 };

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
};

extern __thread emu_fiber *emu_cur; /* NULL: host code runs */
emu_fiber *emu_fiber_of(int tid);   /* of the block */

/* The launch that runs. */
typedef struct emu_world {
    uint32_t epoch;        /* the last: grows at every block's start and every barrier */
    uint32_t whole_epoch;  /* that of the block's last __syncthreads(), or of its start */
    uint32_t launch_epoch; /* the launch's first */
    uint32_t block_epoch;  /* the block's first */
    uint32_t chain_epoch;  /* the first of launches that may run beside this one's begin */
    uintptr_t args_lo, args_hi;
    uint64_t accesses;
    emu_fiber *fiber; /* of the block */
    int n_thread;
} emu_world;
extern emu_world emu_w;

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
