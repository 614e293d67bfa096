/* fetch.h -- asks for lines of memory that are read soon. */
#ifndef ENGINE_CPU_FETCH_H
#define ENGINE_CPU_FETCH_H

#include <stddef.h>

/* To the second-level cache: the first would lose them to what passes meanwhile. */
static inline void cpu_fetch(const char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

#endif
