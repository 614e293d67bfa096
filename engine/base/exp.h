/* exp.h -- the exponential function over vectors, to 2 ulp, in whatever width the includer has.
 *
 * Include it where vf (floats), vi (int32_t, as many) and vf_set() are declared: engine/cpu/vec.h
 * and engine/sample/logits.c have vectors of their own.  The includer keeps x within [-87, 88].
 */
#ifndef ENGINE_BASE_EXP_H
#define ENGINE_BASE_EXP_H

/* 2^k times a polynomial on [-ln2/2, ln2/2], with the coefficients of
 * Cephes' expf(); exactly 1 at 0. */
static inline __attribute__((always_inline)) vf vf_exp_within(vf x)
{
    const vf magic = vf_set(12582912.0F); /* 1.5 * 2^23: rounds to an integer when added */
    vf t = x * vf_set(1.44269504088896341F) + magic;
    vi k = (vi)t - (vi)magic;
    vf kf = t - magic;
    vf r = x - kf * vf_set(0.693359375F);
    r = r - kf * vf_set(-2.12194440e-4F);
    vf p = vf_set(1.9875691500e-4F);
    p = p * r + vf_set(1.3981999507e-3F);
    p = p * r + vf_set(8.3334519073e-3F);
    p = p * r + vf_set(4.1665795894e-2F);
    p = p * r + vf_set(1.6666665459e-1F);
    p = p * r + vf_set(5.0000001201e-1F);
    vf y = p * (r * r) + r + vf_set(1.0F);
    return y * (vf)((k + 127) << 23);
}

#endif
