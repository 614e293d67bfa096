/* bridge.cpp -- the emulated run-time library's hands in the emulator: memory, and
 * launches in streams' turns. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/emu/cuda_rt/emu_rt.h"
#include "tests/emu/emu.h"

namespace
{

struct launch {
    const void *kernel;
    const char *name;
    dim3 grid, block;
    size_t shared;
    void (*body)(const void *);
    size_t bytes;
    alignas(16) char args[]; // what the kernel was called with
};

void run(void *arg)
{
    const launch *l = static_cast<const launch *>(arg);
    emu_launch_raw(l->kernel, l->name, l->grid, l->block, l->shared, l->body, l->args, l->bytes);
}

void submit(CUstream_st *stream, const void *kernel, const char *name, dim3 grid, dim3 block,
            size_t shared, void (*body)(const void *), const void *args, size_t bytes)
{
    launch *l = static_cast<launch *>(aligned_alloc(16, (sizeof(launch) + bytes + 15) / 16 * 16));
    if (!l) abort();
    *l = {kernel, name, grid, block, shared, body, bytes};
    memcpy(l->args, args, bytes);
    (void)emu_rt_submit(stream, name, run, free, l);
}

} // namespace

extern "C" {

void emu_bridge_open(void)
{
    emu_on_stream = submit;
}

void emu_bridge_rounding(int like)
{
    emu_mma_truncates(like);
}

void *emu_bridge_alloc(size_t bytes)
{
    return emu_alloc(bytes);
}

void emu_bridge_free(void *p)
{
    emu_free(p);
}

void emu_bridge_wrote(void *p, size_t bytes)
{
    emu_wrote(p, bytes);
}

void emu_bridge_read(const char *who, const void *p, size_t bytes)
{
    const void *bad = emu_first_unwritten(p, bytes);
    if (!bad) return;
    fprintf(stderr, "%s reads %zu bytes of %p, of which %p was never written\n", who, bytes, p,
            bad);
    abort();
}
}
