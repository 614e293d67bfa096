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
    emu_job job;
    alignas(16) char args[]; // what the kernel was called with
};

void run(void *arg)
{
    emu_launch_raw(&static_cast<const launch *>(arg)->job);
}

void submit(const emu_job *job)
{
    size_t bytes = sizeof(launch) + job->args_bytes;
    launch *l = static_cast<launch *>(aligned_alloc(16, (bytes + 15) / 16 * 16));
    if (!l) abort();
    l->job = *job;
    memcpy(l->args, job->args, job->args_bytes);
    l->job.args = l->args;
    (void)emu_rt_submit(job->stream, job->name, job->early, run, free, l);
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

void emu_bridge_apart(cudaStream_t stream)
{
    emu_apart(stream);
}

void emu_bridge_device(int device)
{
    emu_device(device);
}

static_assert(int(EMU_RT_DEVICES) <= int(EMU_DEVICES), "the emulator has a place for each");

void emu_bridge_peer(int from, int to)
{
    emu_allow_peer(from, to);
}

void *emu_bridge_alloc(size_t bytes)
{
    return emu_alloc_bare(bytes);
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
