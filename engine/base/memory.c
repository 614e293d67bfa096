/* memory.c -- what the linker calls for malloc() and its kin (--wrap), and what cJSON is given. */
#include "engine/base/memory.h"

#include <stddef.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
char *__real_strdup(const char *s);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
char *__wrap_strdup(const char *s);

static _Thread_local uint64_t failures;

uint64_t memory_failures(void)
{
    return failures;
}

static void *note(void *p)
{
    failures += !p;
    return p;
}

void *__wrap_malloc(size_t bytes)
{
    return note(__real_malloc(bytes));
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return note(__real_calloc(n, bytes));
}

void *__wrap_realloc(void *p, size_t bytes)
{
    return note(__real_realloc(p, bytes));
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return note(__real_aligned_alloc(align, bytes));
}

char *__wrap_strdup(const char *s)
{
    return note(__real_strdup(s));
}

__attribute__((constructor)) static void tell_cjson(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){__wrap_malloc, free});
}
