/* round.h -- numbers up to the next multiple of another, both positive. */
#ifndef ENGINE_BASE_ROUND_H
#define ENGINE_BASE_ROUND_H

#include <stddef.h>

static inline int round_up(int n, int to)
{
    return (n + to - 1) / to * to;
}

static inline size_t round_up_size(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

#endif
