#include "engine/model/e4m3.h"

#include <math.h>
#include <pthread.h>

static float values[256];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static float value_of(int code)
{
    int exp = code >> 3 & 15, man = code & 7;
    float v = exp ? ldexpf((float)(8 + man), exp - 10) : ldexpf((float)man, -9);
    if ((code & 127) == 127) v = NAN;
    return code & 128 ? -v : v;
}

static void make(void)
{
    for (int i = 0; i < 256; i++) values[i] = value_of(i);
}

const float *e4m3_floats(void)
{
    (void)pthread_once(&made, make);
    return values;
}

uint8_t e4m3_from_f32(float f)
{
    if (isnan(f)) return 0x7F;
    uint8_t sign = signbit(f) ? 0x80 : 0;
    float size = fminf(fabsf(f), E4M3_MAX);
    int exp = 0;
    (void)frexpf(size, &exp); /* size < 2^exp */
    int up = size > 0 && exp > -5 ? exp + 5 : 0;
    int last = (int)rintf(ldexpf(size, 9 - up)); /* 8 to 16, where up is not 0 */
    return (uint8_t)(sign | (last + 8 * up));
}
