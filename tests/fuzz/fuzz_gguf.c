/* fuzz_gguf.c -- a GGUF adapter on its way in: what comes out is a PEFT
 * config and a safetensors file. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "adapters/format/gguf.h"
#include "adapters/format/peft.h"
#include "engine/model/safetensors.h"
#include "tests/fuzz/fuzz.h"

/* All that was written, malloced with a NUL behind it. */
static char *written(int fd, size_t *len)
{
    off_t n = lseek(fd, 0, SEEK_CUR);
    char *s = malloc((size_t)n + 1);
    if (!s || pread(fd, s, (size_t)n, 0) != n) abort();
    s[n] = 0;
    *len = (size_t)n;
    return s;
}

static void check(int config_fd, int weights_fd, size_t input)
{
    size_t n_config, n_weights;
    char *config = written(config_fd, &n_config), *weights = written(weights_fd, &n_weights);
    peft_config pc;
    safetensors *f;
    err e = {.msg = ""};
    err_code rc = peft_parse(config, n_config, &fuzz_base, LORA_RANK_MAX, NULL, &pc, &e);
    FUZZ_CHECK(rc == ERR_NONE || rc == ERR_INPUT || rc == ERR_UNSUPPORTED || rc == ERR_LIMIT);
    peft_clear(&pc);
    rc = safetensors_open_memory(&f, weights, n_weights, &st_limits_upload, &e);
    FUZZ_CHECK(rc == ERR_NONE || strstr(e.msg, "duplicate")); /* found out by who reads it next */
    FUZZ_CHECK(n_weights <= 64 * input + 65536);              /* no more than the file holds */
    safetensors_close(f);
    free(config);
    free(weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int in = -1, config, weights;
    err e = {.msg = ""};
    if (in < 0) {
        in = memfd_create("in", MFD_CLOEXEC);
        config = memfd_create("config", MFD_CLOEXEC);
        weights = memfd_create("weights", MFD_CLOEXEC);
        if (in < 0 || config < 0 || weights < 0) abort();
    }
    /* Written anew in place: to give the pages back and take them again
     * would take most of the time. */
    if (ftruncate(in, (off_t)size) || pwrite(in, data, size, 0) != (ssize_t)size) abort();
    if (lseek(config, 0, SEEK_SET) || lseek(weights, 0, SEEK_SET)) abort();
    err_code rc = gguf_convert(in, size, &fuzz_base, config, weights, &e);
    FUZZ_CHECK(rc != ERR_INTERNAL && rc != ERR_IO && (rc == ERR_NONE || e.msg[0]));
    if (rc == ERR_NONE) check(config, weights, size);
    return 0;
}
