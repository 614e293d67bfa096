/* libpq.c -- loads libpq.so.5 once and keeps it. */
#include "storage/fleet/libpq.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static libpq table;
static const char *missing; /* what is not there; NULL: nothing */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
    void *lib = dlopen("libpq.so.5", RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        missing = "libpq.so.5 (Debian: libpq5)";
        return;
    }
#define LOAD(type, name, args)                          \
    void *at_##name = dlsym(lib, #name);                \
    if (!at_##name) missing = #name "() of libpq.so.5"; \
    memcpy((void *)&table.name, (const void *)&at_##name, sizeof(at_##name));
    LIBPQ_LIST(LOAD)
#undef LOAD
}

err_code libpq_load(const libpq **out, err *e)
{
    (void)pthread_once(&once, load);
    *out = &table;
    if (!missing) return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED, "storage.database needs %s on this machine", missing);
}
