/* emulated.c -- linked into lorad_emulated, the server of test_emulated.py, and into nothing else:
 * lorad on the emulated run-time library (tests/emu/cuda_rt) in place of CUDA's, with two devices
 * plugged in before main().
 */
#include "tests/emu/cuda_rt/emu_rt.h"

__attribute__((constructor)) static void plug_in(void)
{
    emu_rt_device(2, (size_t)192 << 20);
}
