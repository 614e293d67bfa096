/* fuzz_manifest.c -- what an upload's folder says of it after a crash: the
 * manifest that a start reads. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/store/staging.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_store.h"

#define ID "u0123456789abcdef"

static registry *reg;
static int uploads = -1;

static void leave(void)
{
    registry_destroy(reg);
}

static void start(void)
{
    char path[128];
    err e = {.msg = ""};
    if (registry_create(&reg, fuzz_store(), &(registry_config){0}, &e))
        fuzz_fail(e.msg, __FILE__, __LINE__);
    (void)atexit(leave);
    snprintf(path, sizeof(path), "%s/adapters/uploads", fuzz_st_dir);
    (void)mkdir(path, 0700);
    uploads = open(path, O_DIRECTORY | O_CLOEXEC);
    if (uploads < 0) fuzz_fail(path, __FILE__, __LINE__);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (uploads < 0) start();
    const upload_env env = {.reg = reg, .base = &fuzz_base};
    const staging_config cfg = {0};
    staging *sg;
    err e;
    (void)mkdirat(uploads, ID, 0700); /* a broken one was removed */
    int fd = openat(uploads, ID ".json", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd)) abort();
    FUZZ_CHECK(staging_open(&sg, &env, &cfg, &e) == ERR_NONE);
    bool kept = faccessat(uploads, ID ".json", F_OK, 0) == 0;
    FUZZ_CHECK(staging_expire(sg, INT64_MAX / 2) == (kept ? 1 : 0)); /* as many as are open */
    staging_close(sg);
    return 0;
}
