/* check.c -- lorad check and lorad backup: a look at what serve would read, and a copy of what
 * it wrote. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "gateway/descriptors.h"
#include "gateway/device.h"
#include "gateway/http/listener.h"
#include "gateway/offline_backup.h"
#include "gateway/start/verbs.h"

int verb_check(const arguments *a)
{
    err e;
    config c;
    model_config mc;
    tokenizer *tok;
    char cert[PATH_MAX], key[PATH_MAX], ca[PATH_MAX];
    if (arguments_config(a, &c, &e)) return arguments_fail(&e);
    tls_files files = arguments_tls(&c, cert, key, ca);
    if (descriptors_claim(&c, &e)) return arguments_fail(&e);
    int64_t expires_us = 0;
    char good[128];
    if (listener_check_files(&files, &expires_us, &e)) return arguments_fail(&e);
    if (tls_expiry_text(expires_us, good, sizeof(good)) == LOG_ERROR) {
        (void)err_set(&e, ERR_INPUT, "the certificate %s %s", cert, good);
        return arguments_fail(&e);
    }
    if (model_config_read(c.model_path, &mc, &e)) return arguments_fail(&e);
    if (tokenizer_load(&tok, c.model_path, &e)) return arguments_fail(&e);
    tokenizer_destroy(tok);
    char device[512];
    char room[64] = "what the model leaves";
    if (device_describe(&c, device, sizeof(device), &e)) return arguments_fail(&e);
    if (c.engine_kv_memory == 0 && strncmp(device, "cuda", 4) != 0) device_arena(&c, NULL);
    if (c.engine_kv_memory > 0) {
        snprintf(room, sizeof(room), "%lld MiB", (long long)(c.engine_kv_memory >> 20));
    }
    printf("config       %s: fine\n"
           "certificate  %s: %s\n"
           "model        %s, %d layers of %d, %d heads (%d kv), vocabulary %d\n"
           "backend      %s\n"
           "context      %d tokens at most\n"
           "memory       %s of KV pages and adapters, %lld MiB of adapters' copies\n",
           a->file, cert, good, mc.family, mc.n_layer, mc.dim, mc.n_head, mc.n_kv_head, mc.n_vocab,
           device, mc.max_pos < c.engine_max_context ? mc.max_pos : (int)c.engine_max_context, room,
           (long long)(c.adapters_host_memory >> 20));
    return EXIT_SUCCESS;
}

int verb_backup(const arguments *a)
{
    err e;
    config c;
    offline_backup_stats done;
    if (!a->dir) {
        fprintf(stderr, "lorad: backup needs --dir\n");
        return EXIT_USAGE;
    }
    if (arguments_config(a, &c, &e) || offline_backup(c.data_dir, a->dir, &done, &e))
        return arguments_fail(&e);
    printf("database     %s/lorad.db\n"
           "adapters     %d files, %lld bytes\n"
           "settled      %d requests that a crash had left open\n",
           a->dir, done.files, (long long)done.bytes, done.settled);
    return EXIT_SUCCESS;
}
