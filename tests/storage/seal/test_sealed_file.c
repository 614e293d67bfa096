/* test_sealed_file.c -- sealed files: what was written is read, what was changed is not. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

#include "storage/seal/sealed_file.h"
#include "tests/run_suite.h"

static const uint8_t KEY[SEAL_KEY_BYTES] = {7}, OTHER[SEAL_KEY_BYTES] = {8};
static char path[] = "/tmp/lorad-seal-XXXXXX";

static err_code open_it(sealed_file *f, seal_key key, const char *label)
{
    err e;
    return sealed_file_open(f, open(path, O_RDWR | O_CREAT | O_APPEND, 0600), key, label, &e);
}

static void write_it(sealed_file *f, const char *text, size_t len)
{
    err e;
    ck_assert_int_eq(sealed_file_append(f, text, len, &e), ERR_NONE);
}

static void is(const sealed_file *f, const char *want, size_t len)
{
    err e;
    char *got = malloc(len + 1);
    ck_assert_int_eq(f->n_bytes, (int64_t)len);
    for (size_t at = 0; at <= len; at += 1 + len / 7) {
        ck_assert_int_eq(sealed_file_read(f, got, len - at, (int64_t)at, &e), ERR_NONE);
        ck_assert_mem_eq(got, want + at, len - at);
    }
    ck_assert_int_eq(sealed_file_read(f, got, 1, (int64_t)len, &e), ERR_CORRUPT);
    free(got);
}

static int64_t size_of_it(void)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_size;
}

START_TEST(grows_and_is_read_anywhere)
{
    enum { LONG = 3 * SEALED_PIECE + 5 };
    static char text[LONG];
    sealed_file f;
    err e;
    for (int i = 0; i < LONG; i++) text[i] = (char)('a' + i % 23);
    for (int keyed = 0; keyed < 2; keyed++) {
        (void)unlink(path);
        ck_assert_int_eq(open_it(&f, keyed ? KEY : NULL, "1/a"), ERR_NONE);
        write_it(&f, text, 10);
        write_it(&f, text + 10, LONG - 10);
        is(&f, text, LONG);
        sealed_file_close(&f);
        ck_assert_int_eq(open_it(&f, KEY, "1/a"), ERR_NONE);
        is(&f, text, LONG);
        ck_assert_int_eq(sealed_file_cut(&f, 11, &e), keyed ? ERR_CORRUPT : ERR_NONE);
        ck_assert_int_eq(sealed_file_cut(&f, 10, &e), ERR_NONE);
        is(&f, text, 10);
        write_it(&f, text + 10, 3);
        is(&f, text, 13);
        sealed_file_close(&f);
    }
    ck_assert_int_eq(open_it(&f, NULL, "1/a"), ERR_DENIED);
    ck_assert_int_eq(open_it(&f, OTHER, "1/a"), ERR_DENIED);
    ck_assert_int_eq(open_it(&f, KEY, "2/a"), ERR_DENIED);
}
END_TEST

/* Cut anywhere: what is whole is read, the rest is torn, and it goes on from there. */
START_TEST(a_torn_end_is_known)
{
    sealed_file f;
    err e;
    (void)unlink(path);
    ck_assert_int_eq(open_it(&f, KEY, "1/a"), ERR_NONE);
    write_it(&f, "first", 5);
    int64_t first = size_of_it();
    write_it(&f, "second", 6);
    sealed_file_close(&f);
    for (int64_t n = size_of_it() - 1; n >= 0; n--) {
        ck_assert_int_eq(truncate(path, n), 0);
        ck_assert_int_eq(open_it(&f, KEY, "1/a"), ERR_NONE);
        is(&f, "first", n >= first ? 5 : 0);
        ck_assert_int_eq(f.torn, n != 0 && n != first && n != SEALED_MARK + SEAL_BYTES);
        sealed_file_close(&f);
    }
    for (int n = 1; n < 60; n++) { /* made again behind what was torn */
        (void)unlink(path);
        ck_assert_int_eq(open_it(&f, KEY, "1/a"), ERR_NONE);
        write_it(&f, "first", 5);
        sealed_file_close(&f);
        ck_assert_int_eq(truncate(path, n), 0);
        ck_assert_int_eq(open_it(&f, KEY, "1/a"), ERR_NONE);
        ck_assert_int_eq(sealed_file_cut(&f, 0, &e), ERR_NONE);
        write_it(&f, "again", 5);
        is(&f, "again", 5);
        sealed_file_close(&f);
    }
}
END_TEST

/* Each bit of a record, and two records that change places. */
START_TEST(what_was_changed_is_not_read)
{
    enum { HEAD = SEALED_MARK + SEAL_BYTES, RECORD = 4 + SEAL_BYTES + 4 };
    uint8_t raw[HEAD + 2 * RECORD], changed[sizeof(raw)];
    char got[8];
    sealed_file f;
    err e;
    (void)unlink(path);
    ck_assert_int_eq(open_it(&f, KEY, "1/a"), ERR_NONE);
    write_it(&f, "oneX", 4);
    write_it(&f, "twoX", 4);
    ck_assert_int_eq(pread(f.fd, raw, sizeof(raw), 0), sizeof(raw));
    sealed_file_close(&f);
    for (size_t bit = 0; bit <= 8 * (HEAD + RECORD); bit++) {
        memcpy(changed, raw, sizeof(raw));
        if (bit == 8 * (HEAD + RECORD)) {
            memcpy(changed + HEAD, raw + HEAD + RECORD, RECORD);
            memcpy(changed + HEAD + RECORD, raw + HEAD, RECORD);
        } else {
            changed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        int fd = open(path, O_WRONLY | O_TRUNC);
        ck_assert_int_eq(write(fd, changed, sizeof(changed)), sizeof(changed));
        (void)close(fd);
        if (open_it(&f, KEY, "1/a")) continue;
        /* A mark that is none makes it a plain file, whose row tells another length. */
        ck_assert(!f.sealed ? f.n_bytes == sizeof(raw) : sealed_file_read(&f, got, 4, 0, &e) != 0);
        sealed_file_close(&f);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("seal");
    TCase *c = tcase_create("seal");
    int fd = mkstemp(path);
    if (fd >= 0) (void)close(fd);
    tcase_add_test(c, grows_and_is_read_anywhere);
    tcase_add_test(c, a_torn_end_is_known);
    tcase_add_test(c, what_was_changed_is_not_read);
    suite_add_tcase(s, c);
    int failed = run_suite(s);
    (void)unlink(path);
    return failed;
}
