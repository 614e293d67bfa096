/* stand_ins.h -- instruction sets that few machines have, as tests run them: AVX-VNNI's kernels are
 * those of cpu/vnni_avx2.c, AMX's of cpu/tiles_avx512bf16.c.  For tests that link these.
 */
#ifndef TESTS_ENGINE_STAND_INS_H
#define TESTS_ENGINE_STAND_INS_H

#include "engine/cpu/cpu.h"

static inline bool stand_in_runs(int isa)
{
    return cpu_isa_runs(isa == ISA_AVXVNNI ? ISA_AVX512VNNI
                        : isa == ISA_AMX   ? ISA_AVX512BF16
                                           : (cpu_isa)isa);
}

/* be_open() of such a set: of the one that all machines have, which then becomes it. */
static inline err_code stand_in_open(backend **be, int isa, int threads, err *e)
{
    backend_config cfg = {.n_threads = threads, .isa = cpu_isa_name(ISA_PORTABLE)};
    err_code code = be_open(be, &backend_cpu, &cfg, e);
    if (code == ERR_NONE) cpu_of(*be)->isa = (cpu_isa)isa;
    return code;
}

#endif
