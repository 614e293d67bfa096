/* fuzz.c -- the harnesses' common ground. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/log.h"

const model_config fuzz_base = {.family = "llama",
                                .n_layer = 2,
                                .dim = 16,
                                .n_head = 4,
                                .n_kv_head = 2,
                                .head_dim = 4,
                                .ffn_dim = 24,
                                .n_vocab = 64,
                                .max_pos = 128,
                                .norm_eps = 1e-5f,
                                .rope = {.theta = 10000, .dim = 4},
                                .type = DT_F32,
                                .embed_type = DT_F32,
                                .head_type = DT_F32,
                                .added_max = 16,
                                .bos_id = 1,
                                .n_eos = 1,
                                .eos_id = {2}};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    log_setup(LOG_NOTHING, LOG_TEXT);
    return 0;
}

void fuzz_fail(const char *claim, const char *file, int line)
{
    fprintf(stderr, "%s:%d: this should hold: %s\n", file, line, claim);
    abort();
}

char *fuzz_text(const uint8_t *data, size_t size)
{
    char *s = malloc(size + 1);
    if (!s) abort();
    if (size) memcpy(s, data, size);
    s[size] = 0;
    return s;
}

void fuzz_split(const uint8_t *data, size_t size, char mark, char **head, char **tail)
{
    const uint8_t *at = size ? memchr(data, mark, size) : NULL;
    size_t n = at ? (size_t)(at - data) : size, skip = at ? n + 1 : n;
    *head = fuzz_text(data, n);
    *tail = fuzz_text(data + skip, size - skip);
}

uint32_t fuzz_hash(const uint8_t *data, size_t size)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < size; i++) h = (h ^ data[i]) * 16777619u;
    return h;
}

/* ------------------------------------------------------------------------- files -- */

static char dir_path[64];
static int dir_fd = -1;
static pid_t owner;

/* A driver that forks its workers leaves the folder to the parent. */
static void remove_dir(void)
{
    if (getpid() != owner) return;
    DIR *d = opendir(dir_path);
    for (struct dirent *de; d && (de = readdir(d));) (void)unlinkat(dir_fd, de->d_name, 0);
    if (d) (void)closedir(d);
    (void)rmdir(dir_path);
}

int fuzz_dir(void)
{
    if (dir_fd >= 0) return dir_fd;
    const char *root = getenv("TMPDIR");
    if (!root) root = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(dir_path, sizeof(dir_path), "%.40s/fuzz-XXXXXX", root);
    if (!mkdtemp(dir_path) || (dir_fd = open(dir_path, O_DIRECTORY | O_CLOEXEC)) < 0) abort();
    owner = getpid();
    (void)atexit(remove_dir);
    return dir_fd;
}

const char *fuzz_dir_path(void)
{
    (void)fuzz_dir();
    return dir_path;
}

void fuzz_put(const char *name, const void *bytes, size_t len)
{
    if (!bytes) {
        (void)unlinkat(fuzz_dir(), name, 0);
        return;
    }
    int fd = openat(fuzz_dir(), name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes, len) != (ssize_t)len || close(fd)) abort();
}
