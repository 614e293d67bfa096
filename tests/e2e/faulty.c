/* faulty.c -- linked into lorad_faulty, the server of test_restart.py, test_causes.py, test_move.py
 * and the bench case causes, and into nothing else: a device that fails when told, or is slow, and
 * a slow disk.
 *
 * The linker puts these in place of the engine's own (--wrap).  $LORAD_TEST_FAULT names a
 * file: once it is there, the number in it tells how many more steps go well before one fails,
 * and the file is removed.  While a file of that name with .stays behind it is there, the
 * device can't be opened again; while one with .process is there, only another process can use it;
 * while one with .trial is there, it fails where it is asked about the kernels "inside", when it is
 * opened or opened again.
 *
 * As CUDA's driver, it listens under a Unix name that has the process id, and does not open where
 * that is taken.
 *
 * $LORAD_TEST_SLOW names a file: as long as it is there, each read of a loader thread takes as many
 * milliseconds longer as it says.  $LORAD_TEST_PACE names one that does it to steps.
 *
 * $LORAD_TEST_PAGES names a file whose word says what becomes of pages that another node is given
 * (gateway/move/wire.h): "damage" the second of a text, "type" tells of pages of another size,
 * "die" ends the process at the second.
 */
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "engine/backend.h"
#include "gateway/move/wire.h"

err_code __real_be_sync(backend *be, err *e);
err_code __wrap_be_sync(backend *be, err *e);
err_code __real_be_open(backend **out, const backend_ops *ops, const backend_config *cfg, err *e);
err_code __wrap_be_open(backend **out, const backend_ops *ops, const backend_config *cfg, err *e);
err_code __real_be_reopen(backend *be, err *e);
err_code __wrap_be_reopen(backend *be, err *e);
err_code __real_be_prepare(backend *be, const weight *const *w, int n, err *e);
err_code __wrap_be_prepare(backend *be, const weight *const *w, int n, err *e);
be_remedy __real_be_remedy_of(backend *be);
be_remedy __wrap_be_remedy_of(backend *be);
const char *__wrap_be_suspect(const backend *be);
ssize_t __real_pread(int fd, void *p, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at);

void __real_move_digest(const sched_text *t, int index, int page_tokens, const void *page,
                        size_t bytes, uint8_t out[DIGEST_BYTES]);
void __wrap_move_digest(const sched_text *t, int index, int page_tokens, const void *page,
                        size_t bytes, uint8_t out[DIGEST_BYTES]);
void __real_move_write_pages(const char *build, size_t page_bytes, int page_tokens, int first,
                             move_pages *out);
void __wrap_move_write_pages(const char *build, size_t page_bytes, int page_tokens, int first,
                             move_pages *out);

static int steps_left = -1; /* engine thread */

static void look(void)
{
    const char *path = getenv("LORAD_TEST_FAULT");
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f) return;
    if (fscanf(f, "%d", &steps_left) == 1) (void)unlink(path);
    (void)fclose(f);
}

/* As many milliseconds as the file says that the environment's variable `name` names. */
static void wait_for(const char *name)
{
    const char *path = getenv(name);
    FILE *f = path ? fopen(path, "r") : NULL;
    int ms = 0;
    if (f && fscanf(f, "%d", &ms) == 1) {
        struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
        (void)nanosleep(&t, NULL);
    }
    if (f) (void)fclose(f);
}

static bool told(const char *suffix)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s.%s", getenv("LORAD_TEST_FAULT"), suffix);
    return access(path, F_OK) == 0;
}

static char without[BE_KERNELS_MAX]; /* the device was opened so */
static bool failed_at_trial;

err_code __wrap_be_sync(backend *be, err *e)
{
    err_code rc = __real_be_sync(be, e);
    wait_for("LORAD_TEST_PACE");
    if (steps_left < 0) look();
    if (steps_left < 0 || steps_left-- > 0) return rc;
    return err_set(e, ERR_DEVICE, "a fault was asked for");
}

err_code __wrap_be_prepare(backend *be, const weight *const *w, int n, err *e)
{
    failed_at_trial = !be_has_kernel(without, "inside") && told("trial");
    if (failed_at_trial) return err_set(e, ERR_DEVICE, "a fault of a trial was asked for");
    return __real_be_prepare(be, w, n, e);
}

ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at)
{
    char name[16] = "";
    (void)pthread_getname_np(pthread_self(), name, sizeof(name));
    if (strcmp(name, "loader") == 0) wait_for("LORAD_TEST_SLOW");
    return __real_pread(fd, p, n, at);
}

be_remedy __wrap_be_remedy_of(backend *be)
{
    return told("process") || failed_at_trial ? BE_HEALS_NEVER : __real_be_remedy_of(be);
}

const char *__wrap_be_suspect(const backend *be)
{
    (void)be;
    return failed_at_trial ? "inside" : NULL;
}

err_code __wrap_be_open(backend **out, const backend_ops *ops, const backend_config *cfg, err *e)
{
    static bool opened;
    struct sockaddr_un at = {.sun_family = AF_UNIX}; /* a name that is no file begins with 0 */
    int n = snprintf(at.sun_path + 1, sizeof(at.sun_path) - 1, "lorad-faulty-%ld", (long)getpid());
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    int fd = opened ? -1 : socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    /* Not by bind(), which is ours (kept.h). */
    if (!opened && (syscall(SYS_bind, fd, &at, len) || listen(fd, 8)))
        return err_set(e, ERR_UNSUPPORTED, "no device: its name is taken");
    opened = true;
    memcpy(without, cfg->without, sizeof(without));
    return __real_be_open(out, ops, cfg, e);
}

err_code __wrap_be_reopen(backend *be, err *e)
{
    if (told("stays")) return err_set(e, ERR_DEVICE, "the device stays broken");
    return __real_be_reopen(be, e);
}

static bool pages_are_to(const char *what)
{
    const char *path = getenv("LORAD_TEST_PAGES");
    FILE *f = path ? fopen(path, "r") : NULL;
    char word[16] = "";
    if (!f) return false;
    bool is = fscanf(f, "%15s", word) == 1 && strcmp(word, what) == 0;
    (void)fclose(f);
    return is;
}

void __wrap_move_digest(const sched_text *t, int index, int page_tokens, const void *page,
                        size_t bytes, uint8_t out[DIGEST_BYTES])
{
    __real_move_digest(t, index, page_tokens, page, bytes, out);
    if (index > 0 && pages_are_to("damage")) out[7] ^= 1;
    if (index > 0 && pages_are_to("die")) (void)raise(SIGKILL);
}

void __wrap_move_write_pages(const char *build, size_t page_bytes, int page_tokens, int first,
                             move_pages *out)
{
    __real_move_write_pages(build, page_bytes, page_tokens, first, out);
    if (pages_are_to("type")) out->page_bytes /= 2;
}
