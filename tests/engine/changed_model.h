/* changed_model.h -- a model of the fixtures with one text of its config.json replaced; its other
 * files are links. */
#ifndef TESTS_ENGINE_CHANGED_MODEL_H
#define TESTS_ENGINE_CHANGED_MODEL_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <check.h>

#include "tests/tmpdir.h"

/* `dir`: made here, for tmpdir_remove().  The text `from` is there once. */
static inline void changed_model(char dir[64], const char *model, const char *from, const char *to)
{
    char here[512], path[1024], link[1024], text[4096];
    tmpdir_make(dir);
    ck_assert_ptr_nonnull(getcwd(here, sizeof(here)));
    DIR *d = opendir(model);
    ck_assert_ptr_nonnull(d);
    for (const struct dirent *f; (f = readdir(d)) != NULL;) {
        if (f->d_name[0] == '.' || strcmp(f->d_name, "config.json") == 0) continue;
        snprintf(path, sizeof(path), "%s/%s/%s", here, model, f->d_name);
        snprintf(link, sizeof(link), "%s/%s", dir, f->d_name);
        ck_assert_int_eq(symlink(path, link), 0);
    }
    (void)closedir(d);
    snprintf(path, sizeof(path), "%s/config.json", model);
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    (void)fclose(f);
    text[n] = '\0';
    char *at = strstr(text, from);
    ck_assert_msg(at && !strstr(at + 1, from), "%s has not one '%s'", path, from);
    snprintf(link, sizeof(link), "%s/config.json", dir);
    f = fopen(link, "wb");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    ck_assert_int_eq(fclose(f), 0);
}

#endif
