/* replay.c -- drives one harness where there is no libFuzzer: every input once, then
 * cheap variations of them.
 *
 *   fuzz.<noun> [--runs N] [--ms N] [--seed N] FILE|FOLDER...
 *
 * The variations hang on the seed and the inputs alone: bytes flipped, pieces dropped, doubled, or
 * taken from another input.  Nothing is learnt on the way: this finds what lies near the seeds, and
 * holds what was found.  --ms ends the variations early, on a slow machine.  The input at work when
 * the process dies is left in the file `fuzz-<program>.crash` (LORAD_FUZZ_CRASH names another).
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "tests/fuzz/fuzz.h"

enum { INPUT_MAX = 1 << 20, VARIED_MAX = 1 << 14, CHANGES_MAX = 4 };

typedef struct {
    uint8_t *bytes;
    size_t len;
} input;

static input *inputs;
static size_t n_inputs, cap_inputs;
static uint64_t state;

/* What the harness is looking at, for the file that tells of its death. */
static const uint8_t *at_work;
static size_t at_work_len;
static char crash_path[512];

static void leave_input(int sig)
{
    int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd >= 0) {
        (void)!write(fd, at_work, at_work_len);
        (void)close(fd);
    }
    (void)!write(2, "the input is in ", 16);
    (void)!write(2, crash_path, strlen(crash_path));
    (void)!write(2, "\n", 1);
    (void)signal(sig, SIG_DFL);
    (void)raise(sig);
}

static void run(const uint8_t *bytes, size_t len)
{
    at_work = bytes;
    at_work_len = len;
    (void)LLVMFuzzerTestOneInput(bytes, len);
}

static void read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = malloc(INPUT_MAX);
    if (!f || !bytes) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(2);
    }
    size_t len = fread(bytes, 1, INPUT_MAX, f);
    (void)fclose(f);
    if (n_inputs == cap_inputs) {
        cap_inputs = 2 * cap_inputs + 64;
        inputs = realloc(inputs, cap_inputs * sizeof(*inputs));
        if (!inputs) abort();
    }
    bytes = realloc(bytes, len + 1);
    inputs[n_inputs++] = (input){bytes, len};
}

static int no_dots(const struct dirent *de)
{
    return de->d_name[0] != '.';
}

/* A file, or all files of a folder in the order of their names; one that is not there holds
 * none. */
static void read_path(const char *path)
{
    struct stat sb;
    struct dirent **list;
    if (stat(path, &sb)) return;
    if (!S_ISDIR(sb.st_mode)) {
        read_file(path);
        return;
    }
    int n = scandir(path, &list, no_dots, alphasort);
    for (int i = 0; i < n; i++) {
        char name[4096];
        snprintf(name, sizeof(name), "%s/%s", path, list[i]->d_name);
        read_file(name);
        free(list[i]);
    }
    if (n >= 0) free(list);
}

static size_t draw(size_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (size_t)(state % below) : 0;
}

/* One change to buf[len], which has room for VARIED_MAX; its new length. */
static size_t change(uint8_t *buf, size_t len)
{
    static const char marks[] = "{}[]()\"\\,:|*+?^$.-0129eE\n\r\t %=#<>/u\x80\xC3\xFF";
    const input *other = &inputs[draw(n_inputs)];
    size_t at = draw(len + 1), n = 1 + draw(draw(8) ? 8 : 512), from;
    switch (draw(7)) {
    case 0:
        if (at < len) buf[at] ^= (uint8_t)(1u << draw(8));
        return len;
    case 1:
        if (at < len) buf[at] = (uint8_t)draw(256);
        return len;
    case 2:
        if (at < len) buf[at] = (uint8_t)marks[draw(sizeof(marks) - 1)];
        return len;
    case 3: /* a piece goes */
        if (n > len - at) n = len - at;
        memmove(buf + at, buf + at + n, len - at - n);
        return len - n;
    case 4: /* a piece twice */
        if (n > len - at) n = len - at;
        if (len + n > VARIED_MAX) return len;
        memmove(buf + at + n, buf + at, len - at);
        return len + n;
    case 5: /* a piece of another */
        from = draw(other->len + 1);
        if (n > other->len - from) n = other->len - from;
        if (len + n > VARIED_MAX) return len;
        memmove(buf + at + n, buf + at, len - at);
        memcpy(buf + at, other->bytes + from, n);
        return len + n;
    default: return draw(16) ? len : at; /* the end is missing */
    }
}

static uint64_t vary(uint64_t runs, int64_t end_us)
{
    static uint8_t buf[VARIED_MAX];
    uint64_t done = 0;
    for (; done < runs; done++) {
        if (done % 64 == 0 && clock_now_us() > end_us) break;
        const input *in = &inputs[draw(n_inputs)];
        size_t len = in->len < VARIED_MAX ? in->len : VARIED_MAX;
        memcpy(buf, in->bytes, len);
        for (size_t i = 1 + draw(CHANGES_MAX); i; i--) len = change(buf, len);
        uint8_t *own = malloc(len + 1); /* of its own, so that a sanitizer sees its end */
        if (!own) abort();
        own = realloc(own, len ? len : 1);
        memcpy(own, buf, len);
        run(own, len);
        free(own);
    }
    return done;
}

static void catch_deaths(const char *program)
{
    const char *base = strrchr(program, '/'), *named = getenv("LORAD_FUZZ_CRASH");
    snprintf(crash_path, sizeof(crash_path), "fuzz-%s.crash", base ? base + 1 : program);
    if (named) snprintf(crash_path, sizeof(crash_path), "%s", named);
    const int deaths[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM};
    for (size_t i = 0; i < sizeof(deaths) / sizeof(deaths[0]); i++) {
        struct sigaction sa = {.sa_handler = leave_input};
        (void)sigaction(deaths[i], &sa, NULL);
    }
}

int main(int argc, char **argv)
{
    uint64_t runs = 0;
    int64_t ms = INT64_C(1) << 40;
    state = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--runs") == 0 && i + 1 < argc)
            runs = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--ms") == 0 && i + 1 < argc)
            ms = strtoll(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            state = strtoull(argv[++i], NULL, 10) * 0x9E3779B97F4A7C15u + 1;
        else
            read_path(argv[i]);
    }
    catch_deaths(argv[0]);
    (void)LLVMFuzzerInitialize(&argc, &argv);
    for (size_t i = 0; i < n_inputs; i++) run(inputs[i].bytes, inputs[i].len);
    if (n_inputs == 0) {
        fprintf(stderr, "no inputs\n");
        return 2;
    }
    int64_t begin = clock_now_us();
    uint64_t done = vary(runs, begin + ms * 1000);
    printf("%zu inputs, %llu variations in %lld ms: no findings\n", n_inputs,
           (unsigned long long)done, (long long)((clock_now_us() - begin) / 1000));
    for (size_t i = 0; i < n_inputs; i++) free(inputs[i].bytes);
    free(inputs);
    return 0;
}
