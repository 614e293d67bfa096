/* isa.c -- instruction sets: those that this binary contains, and those that this processor runs.
 *
 * CMakeLists.txt defines LORAD_ISA_<SET> for each set whose kernels it compiles: by default the
 * portable one and the best of the build machine, with LORAD_ALL_ISAS all of them.  The table below
 * is the only place that names a set's kernels; a set without a row cannot be opened.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/cpu/attend.h"
#include "engine/cpu/cpu.h"
#include "engine/cpu/linear.h"
#include "engine/cpu/mixers.h"
#include "engine/cpu/rows.h"

static const char *const isa_names[ISA_COUNT] = {
    "portable", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx", "neon", "i8mm"};

static const cpu_kernels kernels[ISA_COUNT] = {
    [ISA_PORTABLE] = {&linear_portable, &quant_portable, NULL, &attend_portable, &rows_portable,
                      &mixers_portable},
#ifdef LORAD_ISA_AVX2
    [ISA_AVX2] = {&linear_avx2, &quant_avx2, NULL, &attend_avx2, &rows_avx2, &mixers_avx2},
#endif
#ifdef LORAD_ISA_AVXVNNI
    [ISA_AVXVNNI] = {&linear_avxvnni, &quant_avxvnni, NULL, &attend_avx2, &rows_avx2, &mixers_avx2},
#endif
#ifdef LORAD_ISA_AVX512
    [ISA_AVX512] = {&linear_avx512, &quant_avx512, NULL, &attend_avx512, &rows_avx512,
                    &mixers_avx512},
#endif
#ifdef LORAD_ISA_AVX512VNNI
    [ISA_AVX512VNNI] = {&linear_avx512vnni, &quant_avx512vnni, NULL, &attend_avx512, &rows_avx512,
                        &mixers_avx512},
#endif
#ifdef LORAD_ISA_AVX512BF16
    [ISA_AVX512BF16] = {&linear_avx512, &quant_avx512bf16, &tiles_avx512bf16, &attend_avx512bf16,
                        &rows_avx512, &mixers_avx512},
#endif
#ifdef LORAD_ISA_AMX
    [ISA_AMX] = {&linear_avx512, &quant_amx, &tiles_amx, &attend_avx512bf16, &rows_avx512,
                 &mixers_avx512},
#endif
#ifdef LORAD_ISA_NEON
    [ISA_NEON] = {&linear_portable, &quant_neon, NULL, &attend_portable, &rows_portable,
                  &mixers_portable},
#endif
#ifdef LORAD_ISA_I8MM
    [ISA_I8MM] = {&linear_portable, &quant_i8mm, &tiles_i8mm, &attend_portable, &rows_portable,
                  &mixers_portable},
#endif
};

const char *cpu_isa_name(cpu_isa isa)
{
    assert((unsigned)isa < ISA_COUNT);
    return isa_names[isa];
}

bool cpu_isa_built(cpu_isa isa)
{
    return kernels[isa].linear != NULL;
}

const cpu_kernels *cpu_kernels_of(cpu_isa isa)
{
    assert((unsigned)isa < ISA_COUNT && kernels[isa].linear);
    return &kernels[isa];
}

/* ---------------------------------------------------------------- this processor -- */

#if defined(__x86_64__)

#    include <cpuid.h>

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

/* Linux gives the 8 KB of tile state only to processes that ask. */
static bool tiles_granted(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static bool has_amx(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const unsigned all = 1U << 24 | 1U << 22 | 1U << 25; /* AMX-TILE, AMX-BF16, AMX-INT8 */
    return (d & all) == all && tiles_granted();
}

static bool has_avxvnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & (1U << 4);
}

bool cpu_isa_supported(cpu_isa isa)
{
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
               avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl"),
               vnni = avx512 && __builtin_cpu_supports("avx512vnni"),
               bf16 = vnni && __builtin_cpu_supports("avx512bf16");
    switch (isa) {
    case ISA_PORTABLE: return true;
    case ISA_AVX2: return avx2;
    case ISA_AVXVNNI: return avx2 && has_avxvnni();
    case ISA_AVX512: return avx512;
    case ISA_AVX512VNNI: return vnni;
    case ISA_AVX512BF16: return bf16;
    case ISA_AMX: return bf16 && has_amx();
    case ISA_NEON:
    case ISA_I8MM:
    case ISA_COUNT: break;
    }
    return false;
}

#elif defined(__aarch64__)

#    include <asm/hwcap.h>
#    include <sys/auxv.h>

bool cpu_isa_supported(cpu_isa isa)
{
    const unsigned long both = HWCAP2_I8MM | HWCAP2_BF16;
    const bool dot = getauxval(AT_HWCAP) & HWCAP_ASIMDDP,
               i8mm = dot && (getauxval(AT_HWCAP2) & both) == both;
    return isa == ISA_PORTABLE || (isa == ISA_NEON && dot) || (isa == ISA_I8MM && i8mm);
}

#else

bool cpu_isa_supported(cpu_isa isa)
{
    return isa == ISA_PORTABLE;
}

#endif

bool cpu_isa_runs(cpu_isa isa)
{
    return cpu_isa_built(isa) && cpu_isa_supported(isa);
}

/* ------------------------------------------------------------------- the choice -- */

cpu_isa cpu_isa_detect(void)
{
    cpu_isa best = (cpu_isa)(ISA_COUNT - 1);
    while (!cpu_isa_runs(best)) best--;
    return best;
}

void backend_cpu_isas(char *out, size_t size)
{
    size_t n = 0;
    if (size) *out = '\0';
    for (int i = ISA_PORTABLE; i < ISA_COUNT && n < size; i++) {
        if (!cpu_isa_built((cpu_isa)i)) continue;
        n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "", isa_names[i]);
    }
}

err_code cpu_isa_parse(const char *name, cpu_isa *out, err *e)
{
    cpu_isa best = cpu_isa_detect();
    if (!name || strcmp(name, "auto") == 0) {
        *out = best;
        return ERR_NONE;
    }
    for (int i = ISA_PORTABLE; i < ISA_COUNT; i++) {
        if (strcmp(name, isa_names[i]) != 0) continue;
        if (!cpu_isa_built((cpu_isa)i)) {
            char built[BACKEND_CPU_ISAS];
            backend_cpu_isas(built, sizeof(built));
            return err_set(e, ERR_UNSUPPORTED,
                           "engine.isa: this lorad was built without %s kernels; it has %s. "
                           "A build with -DLORAD_ALL_ISAS=ON has all of its architecture",
                           name, built);
        }
        if (!cpu_isa_supported((cpu_isa)i)) {
            return err_set(e, ERR_UNSUPPORTED,
                           "engine.isa: this processor does not support %s; the best set that it "
                           "supports and this lorad contains is %s",
                           name, isa_names[best]);
        }
        *out = (cpu_isa)i;
        return ERR_NONE;
    }
    return err_set(e, ERR_INPUT,
                   "engine.isa: unknown instruction set '%s': use auto, amx, avx512bf16, "
                   "avx512vnni, avx512, avxvnni, avx2, i8mm, neon or portable",
                   name);
}
