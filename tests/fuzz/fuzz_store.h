/* fuzz_store.h -- a database in memory for harnesses of what lies beside one; gone at the end. */
#ifndef TESTS_FUZZ_FUZZ_STORE_H
#define TESTS_FUZZ_FUZZ_STORE_H

#include <stdio.h>
#include <stdlib.h>

#include "storage/store.h"
#include "tests/fuzz/fuzz.h"
#include "tests/tmpdir.h"

static store *fuzz_st;
static char fuzz_st_dir[80];

static inline void fuzz_store_leave(void)
{
    store_close(fuzz_st);
    tmpdir_remove(fuzz_st_dir);
}

/* The same at each call; its directory is fuzz_st_dir. */
static inline store *fuzz_store(void)
{
    err e = {.msg = ""};
    if (fuzz_st) return fuzz_st;
    snprintf(fuzz_st_dir, sizeof(fuzz_st_dir), "%.70s/data", fuzz_dir_path());
    if (store_open(&fuzz_st, fuzz_st_dir, &(store_options){.create = true}, &e))
        fuzz_fail(e.msg, __FILE__, __LINE__);
    (void)atexit(fuzz_store_leave);
    return fuzz_st;
}

#endif
