/* test_contexts.c -- the file of servers and keys: what it says, who may read it, what
 * the environment does to it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <check.h>

#include "tests/run_suite.h"
#include "tests/tmpdir.h"
#include "tui/contexts.h"

static char dir[64], path[128];

static void set_up(void)
{
    extern char **environ;
    for (char **v = environ; *v;) {
        char name[64];
        size_t n = strcspn(*v, "=");
        if (strncmp(*v, "LORAD_", 6) != 0 || n >= sizeof(name)) {
            v++;
            continue;
        }
        memcpy(name, *v, n);
        name[n] = 0;
        (void)unsetenv(name);
        v = environ;
    }
    tmpdir_make(dir);
    snprintf(path, sizeof(path), "%s/deep/er/contexts.conf", dir);
    (void)setenv("LORAD_CLIENT_CONFIG", path, 1);
}

static void tear_down(void)
{
    tmpdir_remove(dir);
}

static void put(const char *name, const char *text, mode_t mode)
{
    FILE *f = fopen(name, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_int_eq(chmod(name, mode), 0);
}

/* A file of this text; what loading it says. */
static err_code load(contexts *c, const char *text, mode_t mode, err *e)
{
    snprintf(path, sizeof(path), "%s/contexts.conf", dir);
    (void)setenv("LORAD_CLIENT_CONFIG", path, 1);
    put(path, text, mode);
    return contexts_load(c, e);
}

START_TEST(nothing_there)
{
    contexts c;
    context x;
    err e;
    ck_assert_int_eq(contexts_load(&c, &e), ERR_NONE);
    ck_assert(!c.exists && c.n == 0);
    ck_assert_int_eq(context_resolve(&c, NULL, &x, &e), ERR_NONE);
    ck_assert_str_eq(x.url, "https://localhost:8443");
    ck_assert_str_eq(x.admin_url, "https://localhost:8444");
    ck_assert_int_eq(context_resolve(&c, "nowhere", &x, &e), ERR_NOT_FOUND);
    contexts_clear(&c);
}
END_TEST

START_TEST(written_and_read)
{
    contexts c;
    context *x, r;
    err e;
    struct stat st;
    ck_assert_int_eq(contexts_load(&c, &e), ERR_NONE);
    ck_assert_int_eq(contexts_add(&c, "home", &x, &e), ERR_NONE);
    ck_assert_int_eq(context_set(x, "url", "https://a:1", &e), ERR_NONE);
    ck_assert_int_eq(context_set(x, "key", "lk_secret", &e), ERR_NONE);
    ck_assert_int_eq(contexts_add(&c, "b.2", &x, &e), ERR_NONE);
    ck_assert_int_eq(context_set(x, "admin_url", "https://b:2", &e), ERR_NONE);
    strcpy(c.current, "b.2");
    ck_assert_int_eq(contexts_save(&c, &e), ERR_NONE);
    contexts_clear(&c);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);

    ck_assert_int_eq(contexts_load(&c, &e), ERR_NONE);
    ck_assert_int_eq(c.n, 2);
    ck_assert_int_eq(context_resolve(&c, NULL, &r, &e), ERR_NONE);
    ck_assert_str_eq(r.admin_url, "https://b:2");
    ck_assert_str_eq(r.url, ""); /* no guess beside what was said */
    ck_assert_int_eq(context_resolve(&c, "home", &r, &e), ERR_NONE);
    ck_assert_str_eq(r.key, "lk_secret");
    ck_assert(contexts_remove(&c, "b.2"));
    ck_assert_str_eq(c.current, "");
    ck_assert(!contexts_remove(&c, "b.2"));
    contexts_clear(&c);
}
END_TEST

START_TEST(readable_by_others)
{
    static const mode_t modes[] = {0644, 0640, 0604, 0660};
    contexts c;
    err e;
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        ck_assert_int_eq(load(&c, "[a]\nkey = lk_x\n", modes[i], &e), ERR_DENIED);
        ck_assert_ptr_nonnull(strstr(e.msg, "chmod 600"));
        contexts_clear(&c);
    }
    ck_assert_int_eq(load(&c, "[a]\nkey = lk_x\n", 0400, &e), ERR_NONE);
    contexts_clear(&c);
}
END_TEST

static const struct {
    const char *text, *says;
} broken[] = {
    {"[a]\n[a]\n", "line 2: there are two contexts"},
    {"[a\n", "line 1: a section's line"},
    {"[a b]\n", "not a name for a context"},
    {"[]\n", "not a name for a context"},
    {"url = https://x\n", "before the first [context]"},
    {"[a]\nurls = https://x\n", "line 2: there is no setting 'urls'"},
    {"[a]\nurl https://x\n", "this is not name = value"},
    {"[a]\nkey = lk_\x1b[31m\n", "control characters"},
};

START_TEST(broken_files)
{
    contexts c;
    err e;
    ck_assert_int_eq(load(&c, broken[_i].text, 0600, &e), ERR_INPUT);
    ck_assert_msg(strstr(e.msg, broken[_i].says) != NULL, "%s", e.msg);
    contexts_clear(&c);
}
END_TEST

START_TEST(too_many)
{
    contexts c;
    context *x;
    err e;
    char name[16];
    ck_assert_int_eq(contexts_load(&c, &e), ERR_NONE);
    for (int i = 0; i < CONTEXTS_MAX; i++) {
        snprintf(name, sizeof(name), "c%d", i);
        ck_assert_int_eq(contexts_add(&c, name, &x, &e), ERR_NONE);
    }
    ck_assert_int_eq(contexts_add(&c, "one-more", &x, &e), ERR_LIMIT);
    ck_assert_int_eq(contexts_add(&c, "c7", &x, &e), ERR_NONE);
    contexts_clear(&c);
}
END_TEST

START_TEST(environment)
{
    contexts c;
    context x;
    err e;
    char key_path[128];
    static const char file[] = "# mine\ncurrent = a\n[a]\nurl = https://a:1/\nkey = lk_a\n\n"
                               "[b]\nurl=https://b:1\nkey_file = /nonexistent/key\n";
    ck_assert_int_eq(load(&c, file, 0600, &e), ERR_NONE);
    (void)setenv("LORAD_ADMIN_URL", "https://c:9", 1);
    ck_assert_int_eq(context_resolve(&c, NULL, &x, &e), ERR_NONE);
    ck_assert_str_eq(x.url, "https://a:1/");
    ck_assert_str_eq(x.admin_url, "https://c:9");
    ck_assert_str_eq(x.key, "lk_a");

    (void)setenv("LORAD_CONTEXT", "b", 1);
    ck_assert_int_eq(context_resolve(&c, NULL, &x, &e), ERR_NOT_FOUND); /* its key file */
    (void)setenv("LORAD_KEY", "lk_env", 1);
    ck_assert_int_eq(context_resolve(&c, NULL, &x, &e), ERR_NONE);
    ck_assert_str_eq(x.key, "lk_env");
    ck_assert_int_eq(context_resolve(&c, "a", &x, &e),
                     ERR_NONE); /* the argument beats the variable */
    ck_assert_str_eq(x.url, "https://a:1/");
    ck_assert_str_eq(x.key, "lk_env");

    (void)unsetenv("LORAD_KEY");
    snprintf(key_path, sizeof(key_path), "%s/key", dir);
    put(key_path, "  lk_from_file \nsecond line\n", 0600);
    (void)setenv("LORAD_KEY_FILE", key_path, 1);
    ck_assert_int_eq(context_resolve(&c, "a", &x, &e), ERR_NONE);
    ck_assert_str_eq(x.key, "lk_from_file");
    ck_assert_int_eq(chmod(key_path, 0644), 0);
    ck_assert_int_eq(context_resolve(&c, "a", &x, &e), ERR_DENIED);
    put(key_path, "\n", 0600);
    ck_assert_int_eq(context_resolve(&c, "a", &x, &e), ERR_INPUT);
    (void)setenv("LORAD_URL", "https://x\ny", 1);
    ck_assert_int_eq(context_resolve(&c, "a", &x, &e), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(e.msg, "LORAD_URL"));
    contexts_clear(&c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("contexts");
    TCase *tc = tcase_create("all");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, nothing_there);
    tcase_add_test(tc, written_and_read);
    tcase_add_test(tc, readable_by_others);
    tcase_add_loop_test(tc, broken_files, 0, (int)(sizeof(broken) / sizeof(broken[0])));
    tcase_add_test(tc, too_many);
    tcase_add_test(tc, environment);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
