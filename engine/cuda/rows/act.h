/* act.h -- activations that no product computes itself (those are cu_gate_mul()'s), for rows.cu and
 * experts.cu.  For .cu files only. */
#ifndef ENGINE_CUDA_ROWS_ACT_H
#define ENGINE_CUDA_ROWS_ACT_H

#include "engine/backend.h"
#include "engine/cuda/products/floats.h"

/* A value that is not a number stays one. */
CU_INLINE float act_above_0(float x)
{
    return x < 0 ? 0 : x;
}

/* ACT_RELU, ACT_RELU2 and ACT_GELU of one value.  The last takes the complement of the error
 * function: adding 1 to the function itself loses all digits of values far below 0. */
CU_INLINE float act_of_one(activation act, float x)
{
    float y = act_above_0(x);
    if (act == ACT_GELU) return cu_mul(cu_mul(0.5F, x), erfcf(cu_mul(-0.70710678F, x)));
    return act == ACT_RELU2 ? cu_mul(y, y) : y;
}

/* The numbers of xielu_weights, as be_xielu() uses them. */
typedef struct {
    float alpha_p, alpha_n, beta, eps;
} act_xielu;

CU_INLINE float act_softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

CU_INLINE act_xielu act_xielu_of(const xielu_weights *w)
{
    act_xielu c = {act_softplus(*w->alpha_p), cu_add(*w->beta, act_softplus(*w->alpha_n)), *w->beta,
                   *w->eps};
    return c;
}

CU_INLINE float act_by_xielu(const act_xielu *c, float x)
{
    float low = x < c->eps ? x : c->eps;
    float up = cu_mul(cu_mul(c->alpha_p, x), x);
    float down = cu_mul(c->alpha_n, cu_add(expm1f(low), -x));
    return cu_fma(c->beta, x, x > 0 ? up : down);
}

#endif
