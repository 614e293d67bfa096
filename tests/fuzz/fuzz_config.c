/* fuzz_config.c -- the config file: what is taken can be printed and read again as the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/config/config.h"
#include "tests/fuzz/fuzz.h"

static err_code read_back(config *c, const void *bytes, size_t len, err *e)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/lorad.conf", fuzz_dir_path());
    fuzz_put("lorad.conf", bytes, len);
    return config_read_file(c, path, e);
}

/* Whoever said it. */
static void forget_sources(config *c)
{
    memset(c->from, 0, sizeof(c->from));
    for (int i = 0; i < CLASS_MAX; i++)
        memset(c->classes.each[i].from, 0, sizeof(c->classes.each[i].from));
}

static void check_printed(config *c)
{
    static config again;
    char *text = NULL;
    size_t len = 0;
    err e;
    FILE *f = open_memstream(&text, &len);
    if (!f) abort();
    config_print(c, f);
    (void)fclose(f);
    config_defaults(&again);
    FUZZ_CHECK(read_back(&again, text, len, &e) == ERR_NONE);
    forget_sources(&again);
    forget_sources(c);
    FUZZ_CHECK(memcmp(&again, c, sizeof(again)) == 0);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static config c, initial;
    err e = {.msg = ""};
    if (!initial.data.dir[0]) config_defaults(&initial);
    c = initial;
    err_code rc = read_back(&c, data, size, &e);
    if (rc) {
        FUZZ_CHECK(e.msg[0]);
    } else {
        if (!config_check(&c, &e)) FUZZ_CHECK(config_max_connections(&c.server) > 0);
        if (fuzz_hash(data, size) % 16 == 0) check_printed(&c);
    }
    char *text = fuzz_text(data, size < 600 ? size : 600);
    c = initial;
    (void)config_set(&c, text, &e);
    free(text);
    return 0;
}
