/* check.c -- lorad check and lorad backup: a look at what serve would read, and a copy of what
 * it wrote. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/schema/grammar_documents.h"
#include "engine/model/model.h"
#include "engine/model/pooled.h"
#include "engine/text/tokenizer.h"
#include "gateway/config/running.h"
#include "gateway/descriptors.h"
#include "gateway/device.h"
#include "gateway/http/listener.h"
#include "gateway/offline_backup.h"
#include "gateway/start/draft_model.h"
#include "gateway/start/object_store.h"
#include "gateway/start/verbs.h"

/* How the matrices stand in memory. */
static const char *served_as(const model_survey *w)
{
    if (w->dequantised && w->by_codes) return "by their codes, some as plain values,";
    return w->dequantised ? "as plain values" : w->by_codes ? "by their codes" : "then";
}

/* Why a reload would not make it so; "": it would. */
static const char *why_not(const config_change *c)
{
    if (c->from == CONFIG_ADMIN) return "stays: set by the admin API, until the server stops";
    if (c->from == CONFIG_ENVIRONMENT) return "stays: set in the server's environment";
    if (c->from == CONFIG_COMMAND_LINE) return "stays: set on the server's command line";
    return c->live ? "" : "needs a restart";
}

static void print_change(const config_change *c)
{
    const char *why = why_not(c);
    printf("%-32s %s -> %s  (%s)\n", c->name, *c->value ? c->value : "-",
           *c->wanted ? c->wanted : "-", *why ? why : "a reload takes it");
}

/* What the file would change in the server that runs. */
static int print_diff(const arguments *a, const config *wanted)
{
    static config runs; /* large */
    config_changes list;
    err e;
    if (running_read(wanted->data_dir, &runs, &e) || config_compare(&runs, wanted, &list, &e))
        return arguments_fail(&e);
    for (int i = 0; i < list.n; i++) print_change(&list.each[i]);
    if (list.n == 0) printf("no difference: the server runs what %s says\n", a->file);
    free(list.each);
    return EXIT_SUCCESS;
}

/* ", 60 experts of 1408 (2 layers have none), 4 for each token, one of 5632 for all"; or "". */
static void describe_experts(const model_config *c, char *out, size_t size)
{
    const experts_config *x = &c->experts;
    char dense[64] = "", shared[64] = "";
    int n = 0;
    out[0] = 0;
    for (int i = 0; i < c->n_layer; i++) n += c->layer[i] & LAYER_EXPERTS ? 0 : 1;
    if (x->route.n == 0) return;
    if (n > 0) snprintf(dense, sizeof(dense), " (%d layers have none)", n);
    if (x->shared_dim > 0) snprintf(shared, sizeof(shared), ", one of %d for all", x->shared_dim);
    snprintf(out, size, ", %d experts of %d%s, %d for each token%s", x->route.n, x->ffn_dim, dense,
             x->route.top_k, shared);
}

int verb_check(const arguments *a)
{
    err e;
    config c;
    model_config mc;
    pooled_config pooled;
    model_survey weights;
    tokenizer *tok;
    char cert[PATH_MAX], key[PATH_MAX], ca[PATH_MAX];
    if (arguments_config(a, &c, &e)) return arguments_fail(&e);
    device_sizes(&c);
    if (a->diff) return print_diff(a, &c);
    tls_files files = arguments_tls(&c, cert, key, ca);
    if (descriptors_claim(&c, &e)) return arguments_fail(&e);
    int64_t expires_us = 0;
    char good[128];
    if (listener_check_files(&files, &expires_us, &e)) return arguments_fail(&e);
    if (tls_expiry_text(expires_us, good, sizeof(good)) == LOG_ERROR) {
        (void)err_set(&e, ERR_INPUT, "the certificate %s %s", cert, good);
        return arguments_fail(&e);
    }
    grammar_documents *documents;
    if (grammar_documents_read(&documents, c.grammar_documents, c.data_dir, &e)) {
        (void)err_context(&e, "grammar.documents");
        return arguments_fail(&e);
    }
    grammar_documents_release(documents);
    if (model_config_read(c.model_path, &mc, &e)) return arguments_fail(&e);
    if ((c.model_attention_sinks > 0 || c.model_attention_window > 0) &&
        model_config_stream(&mc, (int)c.model_attention_sinks, (int)c.model_attention_window,
                            (int)c.engine_max_context, &e))
        return arguments_fail(&e);
    if (tokenizer_load(&tok, c.model_path, &e)) return arguments_fail(&e);
    if (pooled_read(&pooled, c.model_path, c.model_pooling, &e)) return arguments_fail(&e);
    pooled_clear(&pooled);
    char device[512], draft[256], experts[192];
    char room[64] = "what the model leaves";
    const double gib = (double)(1 << 30);
    weight_rules rules;
    if (device_describe(&c, device, sizeof(device), &rules, &e)) return arguments_fail(&e);
    bool on_cpu = strncmp(device, "cpu", 3) == 0;
    if (model_survey_read(c.model_path, &mc, model_weights_form(c.model_weights), &rules, &weights,
                          &e))
        return arguments_fail(&e);
    if (c.engine_kv_memory == 0 && strncmp(device, "cuda", 4) != 0) device_arena(&c, NULL);
    if (c.engine_kv_memory > 0) {
        snprintf(room, sizeof(room), "%lld MiB", (long long)(c.engine_kv_memory >> 20));
    }
    err_code rc = draft_model_describe(&c, &mc, tok, on_cpu, draft, sizeof(draft), &e);
    tokenizer_destroy(tok);
    if (rc) {
        (void)err_context(&e, "model.draft");
        return arguments_fail(&e);
    }
    if (object_store_probe(&c, &e)) {
        (void)err_context(&e, "%s at %s", c.store_url, c.store_endpoint);
        return arguments_fail(&e);
    }
    describe_experts(&mc, experts, sizeof(experts));
    printf("config       %s: fine\n"
           "certificate  %s: %s\n"
           "model        %s, %d layers of %d, %d heads (%d kv)%s, vocabulary %d\n"
           "weights      %s, %.2f GiB in the files, %s %.2f GiB in memory\n"
           "draft        %s\n"
           "backend      %s\n"
           "context      %d tokens at most\n"
           "memory       %s of KV pages and adapters, %lld MiB of adapters' copies\n"
           "storage      %s%s\n"
           "store        %s\n",
           a->file, cert, good, mc.family, mc.n_layer, mc.dim, mc.n_head, mc.n_kv_head, experts,
           mc.n_vocab, weights.format, (double)weights.file_bytes / gib, served_as(&weights),
           (double)weights.memory_bytes / gib, draft, device,
           mc.max_pos < c.engine_max_context ? mc.max_pos : (int)c.engine_max_context, room,
           (long long)(c.adapters_host_memory >> 20),
           c.storage_database[0] ? c.storage_database : "SQLite, a server by itself",
           c.storage_database[0] && !c.store_url[0]
               ? " (a fleet; adapters' files are each node's own)"
               : "",
           c.store_url[0] ? c.store_url : "none");
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
