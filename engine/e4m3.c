#include "engine/e4m3.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

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
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    uint8_t sign = (uint8_t)(u >> 24 & 0x80U);
    u &= 0x7FFFFFFFU;
    if (u > 0x7F800000U) return 0x7F;
    if (u >= 0x43E00000U) return sign | 0x7E; /* 448 and more */
    if (u < 0x3C800000U) {                    /* below 2^-6: multiples of 2^-9 */
        float a;
        memcpy(&a, &u, sizeof(a));
        a += 0x1p14F; /* whose last place is 2^-9: the addition rounds */
        memcpy(&u, &a, sizeof(u));
        return (uint8_t)(sign | (u - 0x46800000U));
    }
    u += 0x7FFFFU + (u >> 20 & 1U);
    return (uint8_t)(sign | ((u >> 20) - (120U << 3)));
}
