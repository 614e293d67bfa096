/* emu_inside.h -- what emu.cpp (threads, collectives) and emu_memory.cpp (the watch) share. */
#ifndef EMU_INSIDE_H
#define EMU_INSIDE_H

#include "tests/emu/emu.h"

enum { EMU_WARP = 32, EMU_THREADS_MAX = 1024, EMU_STACK = 128 << 10 };

typedef struct emu_fiber emu_fiber;

/* What the watch must know about the thread that runs. */
struct emu_fiber {
    emu_where where;
    int tid, warp, lane;
    uintptr_t stack_lo;       /* [stack_lo, stack_lo + EMU_STACK) */
    uint32_t clock[EMU_WARP]; /* of the warp's lanes, as far as this one has synchronised */
    bool fenced;              /* has called __threadfence() */
};

extern __thread emu_fiber *emu_cur; /* NULL: host code runs */

/* The launch that runs. */
typedef struct emu_world {
    uint32_t epoch;        /* grows at every block's start and every __syncthreads() */
    uint32_t launch_epoch; /* the launch's first */
    uint32_t block_epoch;  /* the block's first */
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
void emu_memory_launch(void); /* a launch begins */

#endif
