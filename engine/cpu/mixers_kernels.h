/* mixers_kernels.h -- the kernels of mixers.h; included once by each mixers_<isa>.c with KERNELS
 * defined.
 *
 * A vector holds neighbouring channels, which do not know each other, so a channel's sum has one
 * order: oldest row first, whatever rows a call brings.
 */
#include "engine/cpu/delta_kernels.h"
#include "engine/cpu/mixers.h"
#include "engine/cpu/scan_kernels.h"
#include "engine/cpu/vec.h"
#include "engine/mixer.h"

/* n channels from `at` on, at most VEC. */
static inline __attribute__((always_inline)) void conv_vector(const conv_part *p, size_t at, int n)
{
    vf last[MIXER_TAPS_MAX], tap[MIXER_TAPS_MAX];
    int before = p->n_taps - 1;
    vf bias = p->bias ? vf_load_n(p->bias + at, n) : vf_set(0);
    for (int i = 0; i <= before; i++) tap[i] = vf_load_n(p->taps + (size_t)i * p->channels + at, n);
    for (int i = 0; i < before; i++)
        last[i] = p->fresh ? vf_set(0) : vf_load_n(p->last + (size_t)i * p->channels + at, n);
    for (int row = 0; row < p->n_rows; row++) {
        const float *x = p->x + (size_t)row * 3 * p->channels + at;
        vf in = vf_load_n(x, n) * vf_load_n(x + 2 * p->channels, n), sum = bias;
        for (int i = 0; i < before; i++) sum += last[i] * tap[i];
        sum += in * tap[before];
        vf_store_n(p->out + (size_t)row * p->channels + at, vf_load_n(x + p->channels, n) * sum, n);
        for (int i = 0; i + 1 < before; i++) last[i] = last[i + 1];
        last[before - 1] = in;
    }
    for (int i = 0; i < before; i++) vf_store_n(p->last + (size_t)i * p->channels + at, last[i], n);
}

static void conv(const conv_part *p)
{
    size_t at = p->from;
    for (; at + VEC <= p->to; at += VEC) conv_vector(p, at, VEC);
    if (at < p->to) conv_vector(p, at, (int)(p->to - at));
}

const mixer_kernels KERNELS = {.conv = conv,
                               .delta = delta,
                               .silu_conv = silu_conv,
                               .scan = scan,
                               .scan_gate = scan_gate,
                               .scan_channels = scan_channels};
