/* test_tls_warm.c -- memory that runs out in the middle of a handshake, and comes back.
 *
 * A process for each place: what OpenSSL does once, it does once in a process.  So the certificate,
 * too, is made in one of its own.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>
#include <openssl/crypto.h>

#include "gateway/net/devcert.h"
#include "gateway/net/tls_warm.h"
#include "tests/run_suite.h"

enum { PLACES = 40 }; /* of the first handshake */

static char dir[] = "/tmp/lorad-tls-warm-XXXXXX", cert[64], key[64];
static tls_files files = {.cert = cert, .key = key};
static atomic_long calls, first_failing = -1; /* -1: none */

static bool fails(void)
{
    long now = atomic_fetch_add(&calls, 1), from = atomic_load(&first_failing);
    return from >= 0 && now >= from;
}

static void *take(size_t n, const char *file, int line)
{
    (void)file;
    (void)line;
    return fails() ? NULL : malloc(n);
}

static void *take_more(void *p, size_t n, const char *file, int line)
{
    (void)file;
    (void)line;
    return fails() ? NULL : realloc(p, n);
}

static void give(void *p, const char *file, int line)
{
    (void)file;
    (void)line;
    free(p);
}

static bool shakes(void)
{
    err e;
    return tls_warm_up(&files, &e) == ERR_NONE;
}

/* fn's outcome in a process of its own: 0 to 255, -1 where it has none. */
static int alone(int (*fn)(long), long arg)
{
    int status;
    pid_t child = fork();
    if (child == 0) _exit(fn(arg));
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
    return WEXITSTATUS(status);
}

static int make_certificate(long unused)
{
    (void)unused;
    err e;
    return devcert_write(cert, key, &e) != ERR_NONE;
}

static long *counted; /* shared with the processes */

static int count(long unused)
{
    (void)unused;
    bool ok = shakes();
    *counted = atomic_load(&calls);
    return !ok;
}

/* 0: after a warm start, a handshake without memory fails, and the next one with memory
 * succeeds. */
static int starve(long from)
{
    if (!shakes()) return 1;
    atomic_store(&calls, 0);
    atomic_store(&first_failing, from);
    bool without = shakes();
    atomic_store(&first_failing, -1);
    if (from == 0 && without) return 2;
    return shakes() ? 0 : 3;
}

START_TEST(a_handshake_without_memory_spoils_none_that_comes_later)
{
    ck_assert_int_eq(alone(count, 0), 0);
    ck_assert_int_gt(*counted, PLACES);
    for (long i = 0; i < PLACES; i++) {
        long from = *counted * i / PLACES;
        int rc = alone(starve, from);
        ck_assert_msg(rc == 0, "allocation %ld of %ld: %d", from, *counted, rc);
    }
}
END_TEST

/* 0: a start without any memory for it is refused, with words. */
static int refuse(long unused)
{
    (void)unused;
    err e = {0};
    atomic_store(&first_failing, 0);
    return !tls_warm_up(&files, &e) || !e.msg[0];
}

START_TEST(a_start_without_memory_for_it_is_refused)
{
    ck_assert_int_eq(alone(refuse, 0), 0);
}
END_TEST

START_TEST(files_that_do_not_do_are_named)
{
    err e;
    tls_files none = {.cert = "/nonexistent/cert.pem", .key = key};
    ck_assert_int_eq(tls_warm_up(&none, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "certificate"));
}
END_TEST

int main(void)
{
    counted =
        mmap(NULL, sizeof(*counted), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counted == MAP_FAILED) return 2;
    if (CRYPTO_set_mem_functions(take, take_more, give) != 1 || !mkdtemp(dir)) return 2;
    snprintf(cert, sizeof(cert), "%s/cert.pem", dir);
    snprintf(key, sizeof(key), "%s/key.pem", dir);
    if (alone(make_certificate, 0) != 0) return 2;
    Suite *s = suite_create("gateway/tls_warm");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 0); /* ctest has one */
    tcase_add_test(t, a_handshake_without_memory_spoils_none_that_comes_later);
    tcase_add_test(t, a_start_without_memory_for_it_is_refused);
    tcase_add_test(t, files_that_do_not_do_are_named);
    suite_add_tcase(s, t);
    int rc = run_suite(s);
    (void)unlink(cert);
    (void)unlink(key);
    (void)rmdir(dir);
    return rc;
}
