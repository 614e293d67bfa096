/* tmpdir.h -- a directory of its own for a test, gone afterwards. */
#ifndef TESTS_TMPDIR_H
#define TESTS_TMPDIR_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline int tmpdir_drop_cb(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb, (void)type, (void)ftw;
    return remove(path);
}

static inline void tmpdir_remove(const char *path)
{
    nftw(path, tmpdir_drop_cb, 16, FTW_DEPTH | FTW_PHYS);
}

/* `out` needs 64 bytes. */
static inline void tmpdir_make(char out[64])
{
    snprintf(out, 64, "/tmp/lorad-test-XXXXXX");
    if (mkdtemp(out) == NULL) abort();
}

#endif
