/* check.c -- lorad check: reads what serve would read, and describes it; lorad backup: copies
 * what serve wrote.
 *
 * check opens everything that can fail at a start without taking it: certificate and key, the
 * configuration of the model, every tensor's shape and type (model_survey_read(); no weights are
 * loaded), tokenizer, draft model, backend, object store, files with secrets. It stops at the first
 * error with the sentence that serve would print.
 *
 * --diff compares the file with what the running server has (its own record, running.h), --plan
 * prints how memory would be divided, --deep also reads all tensors for their digest. For
 * weights that are streamed, the disk is measured, since it decides the speed.
 */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/grammar/schema/grammar_documents.h"
#include "engine/model/model.h"
#include "engine/model/packed.h"
#include "engine/model/pooled.h"
#include "engine/text/tokenizer.h"
#include "gateway/config/running.h"
#include "gateway/descriptors.h"
#include "gateway/device.h"
#include "gateway/http/listener.h"
#include "gateway/offline_backup.h"
#include "gateway/start/base_model.h"
#include "gateway/start/draft_model.h"
#include "gateway/start/object_store.h"
#include "gateway/start/plan.h"
#include "gateway/start/secret_file.h"
#include "gateway/start/verbs.h"
#include "gateway/tenant_parts.h"
#include "gateway/watch/spans.h"
#include "gateway/watch/webhooks.h"

/* What products with codes lose, of two small real models (tests/bench/RESULTS.md, kl-real). */
static void print_loss(const config *c, const model_survey *w, bool on_cpu)
{
    static const char *const losses[] = {
        [ACTIVATIONS_MIXED] = "the most likely token changes at about 3 % of the positions",
        [ACTIVATIONS_INT8] = "the most likely token changes at 3 to 5 % of the positions",
        [ACTIVATIONS_INT16] = "answers are those of model.weights = plain, but for near ties",
    };
    if (on_cpu && w->by_codes > 0)
        printf("activations  %s: %s (small models; large ones lose less)\n", c->model.activations,
               losses[model_activations_form(c->model.activations)]);
}

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
    if (running_read(wanted->data.dir, &runs, &e) || config_compare(&runs, wanted, &list, &e))
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

static void print_integrity(const config *c, const model_survey *w)
{
    static const char *const states[] = {
        [PACKED_NONE] = "none kept in data.dir",
        [PACKED_INTACT] = "every matrix matches its checksum",
        [PACKED_DAMAGED] = "damaged: the next start packs the weights again",
    };
    char dir[CONFIG_TEXT_MAX + 16];
    snprintf(dir, sizeof(dir), "%s/packed", c->data.dir);
    printf("digest       sampled %016llx", (unsigned long long)w->sampled);
    if (w->full) printf(", full %016llx", (unsigned long long)w->full);
    printf("\npacked       %s\n", states[packed_check(dir)]);
}

/* The largest file of weights of the model at `base`: a GGUF, or a directory. */
static void weights_file(const char *base, char *out, size_t size)
{
    struct stat st;
    off_t most = -1;
    char path[PATH_MAX];
    snprintf(out, size, "%s", base);
    DIR *d = opendir(base);
    for (struct dirent *de; d && (de = readdir(d)) != NULL;) {
        int n = snprintf(path, sizeof(path), "%s/%s", base, de->d_name);
        bool fits = n > 0 && n < (int)sizeof(path) && (size_t)n < size;
        if (!fits || stat(path, &st) || !S_ISREG(st.st_mode) || st.st_size <= most) continue;
        most = st.st_size;
        memcpy(out, path, (size_t)n + 1);
    }
    if (d) (void)closedir(d);
}

/* Weights larger than memory: tokens per second as far as the disk decides. */
static void print_streamed(const config *c, const char *base, const model_survey *w)
{
    enum { READ_BYTES = 256 << 20 };
    const double gib = (double)(1 << 30);
    char dir[CONFIG_TEXT_MAX + 16], path[PATH_MAX];
    double rate = 0;
    err e;
    if (c->model.resident_bytes == 0) return;
    printf("resident     %.2f GiB of %.2f GiB of weights", (double)c->model.resident_bytes / gib,
           (double)w->memory_bytes / gib);
    if (w->token_bytes == 0) {
        printf(": all stay in memory\n");
        return;
    }
    snprintf(dir, sizeof(dir), "%s/packed", c->data.dir);
    bool kept = packed_path(dir, path, sizeof(path));
    if (!kept) weights_file(base, path, sizeof(path));
    if (resident_disk_rate(path, READ_BYTES, &rate, &e)) {
        printf("; %s\n", e.msg);
        return;
    }
    if (w->heads_bytes > 0)
        printf(", and %.2f GiB of latents' heads that stay", (double)w->heads_bytes / gib);
    printf("; a token reads %.3f GiB from the disk, which gives %.2f GB/s%s: at most %.2f tokens/s "
           "for one stream\n",
           w->token_bytes / gib, rate / 1e9, kept ? "" : " (the model's own file)",
           rate / w->token_bytes);
}

static int print_plan(config *c)
{
    err e;
    bool fits;
    if (plan_print(c, &fits, &e)) return arguments_fail(&e);
    return fits ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Secrets, and addresses that events and traces go to; nothing is sent. */
static err_code check_secrets(const config *c, err *e)
{
    uint8_t key[SEAL_KEY_BYTES];
    char secret[256] = "";
    err_code rc = ERR_NONE;
    if (c->responses.key_file[0] && seal_read_key(c->responses.key_file, key, e))
        rc = err_context(e, "responses.key_file");
    if (!rc && c->webhooks.url[0]) {
        rc = secret_file_read(c->data.dir, c->webhooks.secret_file, "webhooks.secret_file", secret,
                              sizeof(secret), e);
        if (!rc) rc = webhooks_check(c->webhooks.url, secret, e);
    }
    if (!rc && c->traces.endpoint[0]) {
        spans *traces = NULL;
        spans_config sc = {.endpoint = c->traces.endpoint,
                           .headers = c->traces.headers[0] ? c->traces.headers : NULL,
                           .sample = config_traces_sample(&c->traces)};
        rc = spans_create(&traces, &sc, e);
        spans_destroy(traces);
    }
    explicit_bzero(key, sizeof(key));
    explicit_bzero(secret, sizeof(secret));
    return rc;
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
    device_sizes(&c.engine);
    if (a->diff) return print_diff(a, &c);
    if (a->plan) return print_plan(&c);
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
    if (grammar_documents_read(&documents, c.grammar.documents, c.data.dir, &e)) {
        (void)err_context(&e, "grammar.documents");
        return arguments_fail(&e);
    }
    grammar_documents_release(documents);
    if (check_secrets(&c, &e)) return arguments_fail(&e);
    char base[PATH_MAX];
    if (base_model_find(&c, BASE_MODEL_PRESENT, base, &e)) return arguments_fail(&e);
    if (model_config_read(base, &mc, &e)) return arguments_fail(&e);
    if ((c.model.attention_sinks > 0 || c.model.attention_window > 0) &&
        model_config_stream(&mc, (int)c.model.attention_sinks, (int)c.model.attention_window,
                            (int)c.engine.max_context, &e))
        return arguments_fail(&e);
    if (tokenizer_load(&tok, base, &e)) return arguments_fail(&e);
    if (pooled_read(&pooled, base, c.model.pooling, &e)) return arguments_fail(&e);
    pooled_clear(&pooled);
    char device[512], draft[256], experts[192], states[96] = "";
    char room[64] = "what the model leaves";
    const double gib = (double)(1 << 30);
    weight_rules rules;
    if (device_describe(&c, device, sizeof(device), &rules, &e)) return arguments_fail(&e);
    bool on_cpu = strncmp(device, "cpu", 3) == 0;
    model_config_place(&mc, &rules);
    if (model_config_pages(&mc, (int)c.engine.page_tokens, &e) ||
        model_survey_read(base, &mc, model_weights_form(c.model.weights), &rules, a->deep,
                          on_cpu ? (size_t)c.model.resident_bytes : 0, &weights, &e))
        return arguments_fail(&e);
    if (c.engine.kv_memory == 0 && strncmp(device, "cuda", 4) != 0) device_arena(&c.engine, NULL);
    if (c.engine.kv_memory > 0) {
        snprintf(room, sizeof(room), "%lld MiB", (long long)(c.engine.kv_memory >> 20));
    }
    err_code rc = draft_model_describe(&c, &mc, tok, on_cpu, draft, sizeof(draft), &e);
    tokenizer_destroy(tok);
    if (rc) {
        (void)err_context(&e, "model.draft");
        return arguments_fail(&e);
    }
    if (object_store_probe(&c, &e)) {
        (void)err_context(&e, "%s at %s", c.store.url, c.store.endpoint);
        return arguments_fail(&e);
    }
    describe_experts(&mc, experts, sizeof(experts));
    size_t state = model_state_floats(&mc) * sizeof(float);
    if (state > 0)
        snprintf(states, sizeof(states), "%lld states of %zu bytes%s, %lld MiB of snapshots, ",
                 (long long)c.engine.max_seqs, state,
                 strcmp(c.engine.speculate, "off") == 0 ? "" : " and as many copies",
                 (long long)(c.engine.snapshot_bytes >> 20));
    printf("config       %s: fine\n"
           "certificate  %s: %s\n"
           "model        %s, %d layers of %d, %d heads (%d kv)%s, vocabulary %d\n"
           "weights      %s, %.2f GiB in the files, %s %.2f GiB in memory\n"
           "draft        %s\n"
           "backend      %s\n"
           "context      %d tokens at most\n"
           "memory       %s of KV pages and adapters, %s%lld MiB of adapters' copies\n"
           "storage      %s%s\n"
           "store        %s\n",
           a->file, cert, good, mc.family, mc.n_layer, mc.dim, mc.n_head, mc.n_kv_head, experts,
           mc.n_vocab, weights.format, (double)weights.file_bytes / gib, served_as(&weights),
           (double)weights.memory_bytes / gib, draft, device,
           mc.max_pos < c.engine.max_context ? mc.max_pos : (int)c.engine.max_context, room, states,
           (long long)(c.adapters.host_memory >> 20),
           c.storage.database[0] ? c.storage.database : "SQLite, a server by itself",
           c.storage.database[0] && !c.store.url[0]
               ? " (a fleet; adapters' files are each node's own)"
               : "",
           c.store.url[0] ? c.store.url : "none");
    print_loss(&c, &weights, on_cpu);
    print_streamed(&c, base, &weights);
    print_integrity(&c, &weights);
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
    if (arguments_config(a, &c, &e) || offline_backup(c.data.dir, a->dir, &done, &e))
        return arguments_fail(&e);
    printf("database     %s/lorad.db\n"
           "adapters     %d files, %lld bytes\n"
           "settled      %d requests that a crash had left open\n",
           a->dir, done.files, (long long)done.bytes, done.settled);
    return EXIT_SUCCESS;
}
