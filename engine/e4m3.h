/* e4m3.h -- FP8 with four bits of exponent and three of fraction, without an infinity (OCP 8-bit
 * floating point, E4M3): 448 is its largest number, 0x7F and 0xFF are none.
 *
 * Threads: any thread.
 */
#ifndef ENGINE_E4M3_H
#define ENGINE_E4M3_H

#include <stdint.h>

#define E4M3_MAX 448.0F

/* What the 256 codes are; static. */
const float *e4m3_floats(void);

/* The nearest one, ties to an even code; beyond 448 that, of what is no number 0x7F. */
uint8_t e4m3_from_f32(float f);

#endif
