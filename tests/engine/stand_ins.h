/* stand_ins.h -- instruction sets that few machines have, as tests run them: AVX-VNNI's kernels are
 * those of cpu/vnni_avx2.c, AMX's of cpu/tiles_avx512bf16.c.  For tests that link these.
 */
#ifndef TESTS_ENGINE_STAND_INS_H
#define TESTS_ENGINE_STAND_INS_H

#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu.h"

/* Whether kernels of the set run here.  A build with LORAD_ALL_ISAS=OFF has no stand-ins.
 * LORAD_ONLY_ISA in the environment: of all sets this one alone (tests/aarch64/run.sh). */
static inline bool stand_in_runs(int isa)
{
    const char *only = getenv("LORAD_ONLY_ISA");
    if (only && strcmp(only, cpu_isa_name((cpu_isa)isa)) != 0) return false;
#ifdef LORAD_STAND_INS
    if (isa == ISA_AVXVNNI) return cpu_isa_supported(ISA_AVX512VNNI);
    if (isa == ISA_AMX) return cpu_isa_supported(ISA_AVX512BF16);
#endif
    return cpu_isa_runs((cpu_isa)isa);
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
