/* config.h -- every option of lorad, from one table.
 *
 * Precedence: defaults, then the file, then LORAD_SECTION_KEY in the environment, then --set.  The
 * same table prints the documented file (lorad --print-conf), checks ranges and units, and suggests
 * a name for a misspelt one.
 *
 * Some options are live: a running server takes a new value of them (change.h).
 *
 * Ownership: the caller's struct; plain data.  Threads: filled at start-up; a reload fills a new
 * one.
 */
#ifndef GATEWAY_CONFIG_CONFIG_H
#define GATEWAY_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/base/err.h"

enum { CONFIG_TEXT_MAX = 512, CONFIG_NAME_MAX = 64, CLASS_MAX = 8, CLASS_WORD_MAX = 16 };
enum { CONFIG_OPTIONS_MAX = 128, CONFIG_CLASS_OPTIONS = 5 };

/* Who said it: the later beats the earlier. */
typedef enum {
    CONFIG_DEFAULT,
    CONFIG_FILE,
    CONFIG_ENVIRONMENT,
    CONFIG_COMMAND_LINE,
    CONFIG_ADMIN, /* PATCH /admin/v1/config */
} config_source;

/* One SLO class, a section [class.NAME]; gateway/config/classes.h looks them up. */
typedef struct config_class {
    char name[CLASS_WORD_MAX + 1];
    char tiers[CONFIG_TEXT_MAX];    /* what requests may say for it beside its name, with commas */
    char overload[CONFIG_TEXT_MAX]; /* "queue" or "reject" */
    int64_t ttft_us, tpot_us;       /* targets */
    int64_t weight_milli;
    uint8_t from[CONFIG_CLASS_OPTIONS]; /* config_source of each key */
} config_class;

typedef struct config {
    char server_listen[CONFIG_TEXT_MAX];
    int64_t server_threads, server_max_connections, server_max_connections_per_ip;
    char server_plain_listen[CONFIG_TEXT_MAX], server_plain_networks[CONFIG_TEXT_MAX];
    char server_trusted_proxies[CONFIG_TEXT_MAX], server_cors_origins[CONFIG_TEXT_MAX];
    int64_t server_node;
    char server_tls_cert[CONFIG_TEXT_MAX], server_tls_key[CONFIG_TEXT_MAX];
    int64_t server_max_body, server_body_timeout_us, server_request_timeout_us;
    int64_t server_resume_us;
    int64_t server_drain_timeout_us, server_max_choices;
    char admin_listen[CONFIG_TEXT_MAX], admin_client_ca[CONFIG_TEXT_MAX];
    char metrics_listen[CONFIG_TEXT_MAX], metrics_inference_networks[CONFIG_TEXT_MAX];
    int64_t metrics_max_tenants, metrics_max_adapters, data_usage_days, data_spool, data_min_free;
    bool metrics_vllm_names;

    char data_dir[CONFIG_TEXT_MAX];
    char server_fleet_address[CONFIG_TEXT_MAX], server_fleet_kv[CONFIG_TEXT_MAX];
    char storage_database[CONFIG_TEXT_MAX], storage_password_file[CONFIG_TEXT_MAX];
    bool storage_limits_open;
    char store_url[CONFIG_TEXT_MAX], store_endpoint[CONFIG_TEXT_MAX], store_region[CONFIG_TEXT_MAX];
    char store_credentials_file[CONFIG_TEXT_MAX], store_ca_file[CONFIG_TEXT_MAX];
    int64_t store_cache_bytes, store_timeout_us;
    char model_path[CONFIG_TEXT_MAX], model_name[CONFIG_TEXT_MAX];
    char grammar_documents[CONFIG_TEXT_MAX];
    char model_chat_template[CONFIG_TEXT_MAX], model_draft[CONFIG_TEXT_MAX];
    char model_weights[CONFIG_TEXT_MAX], model_pooling[CONFIG_TEXT_MAX];
    bool model_packed_cache, model_reasoning;

    bool responses_store;
    int64_t responses_background;
    int64_t responses_keep_us, responses_tenant_bytes;
    char responses_key_file[CONFIG_TEXT_MAX];

    int64_t files_tenant_bytes, files_tenant_files, files_max_bytes, files_keep_us;
    char batches_class[CONFIG_TEXT_MAX];
    int64_t batches_in_flight, batches_tenant_batches, batches_max_lines, batches_window_us;

    char engine_backend[CONFIG_TEXT_MAX], engine_device_memory_fraction[CONFIG_TEXT_MAX];
    int64_t engine_device, engine_tensor_parallel;
    int64_t engine_threads;
    char engine_isa[CONFIG_TEXT_MAX], engine_kv_type[CONFIG_TEXT_MAX];
    char engine_cuda_without[CONFIG_TEXT_MAX];
    int64_t engine_cuda_patience_us;
    int64_t model_attention_sinks, model_attention_window;
    int64_t engine_max_rows, engine_max_seqs, engine_max_queued, engine_max_context;
    int64_t engine_kv_memory;
    bool engine_prefix_cache, engine_cuda_graphs, engine_overlap;
    int64_t engine_swap_bytes, engine_speculate_tokens;
    char engine_preemption[CONFIG_TEXT_MAX], engine_speculate[CONFIG_TEXT_MAX];
    char engine_logprobs_mode[CONFIG_TEXT_MAX];

    int64_t adapters_device_memory, adapters_host_memory, adapters_loaders, adapters_max_upload;
    bool adapters_host_int8;
    int64_t adapters_max_added_tokens;
    int64_t adapters_copy_share;
    int64_t adapters_tenant_bytes;
    int64_t adapters_max_open_uploads, adapters_upload_expiry_us;
    int64_t adapters_keep_versions;
    bool adapters_probe;
    char adapters_roots[CONFIG_TEXT_MAX];

    char sources_hosts[CONFIG_TEXT_MAX], sources_networks[CONFIG_TEXT_MAX];
    char sources_hub[CONFIG_TEXT_MAX], sources_s3_endpoint[CONFIG_TEXT_MAX];
    char sources_s3_region[CONFIG_TEXT_MAX], sources_ca_file[CONFIG_TEXT_MAX];
    int64_t sources_timeout_us;
    int64_t sources_retry_after_us;

    char classes_default[CONFIG_TEXT_MAX];
    config_class classes[CLASS_MAX]; /* the most urgent first */
    int n_classes;

    char log_level[CONFIG_TEXT_MAX], log_format[CONFIG_TEXT_MAX];
    char traces_endpoint[CONFIG_TEXT_MAX], traces_headers[CONFIG_TEXT_MAX];
    char traces_sample[CONFIG_TEXT_MAX];

    /* ---- no options ---- */
    uint8_t from[CONFIG_OPTIONS_MAX]; /* config_source of each */
    int64_t queue_room; /* of a server that runs: the largest engine.max_queued that it can take */
} config;

void config_defaults(config *c);

/* Reads an INI-like file.  Errors name the line, the key and the limit.  With a section
 * [class.NAME] in it, the classes are those of the file, and no others. */
err_code config_read_file(config *c, const char *path, err *e);

/* LORAD_SERVER_LISTEN and the like; LORAD_CLASS_GOLD_TTFT where there is a class gold. */
err_code config_read_env(config *c, err *e);

/* "section.key=value"; class.NAME.key of a class that there is not adds it, the least urgent. */
err_code config_set(config *c, const char *assignment, err *e);

/* The same of "section.key" and its value, from whomever. */
err_code config_assign(config *c, const char *name, const char *text, config_source from, err *e);

/* Relations between options, after all sources have been read. */
err_code config_check(const config *c, err *e);

/* Of traces.sample; below 0: it is no share. */
double config_traces_sample(const config *c);

/* What the two limits come to, their 0 resolved. */
int64_t config_max_connections(const config *c);
int64_t config_max_connections_per_ip(const config *c);

/* One option's row of the table, for man pages; false beyond the last.  Texts are static. */
typedef struct config_option_text {
    const char *section, *key, *initial, *help;
    bool live; /* a running server takes it */
} config_option_text;
bool config_describe(int i, config_option_text *out);

/* One option and its value; the keys of each class stand behind classes.default. */
typedef struct config_item {
    char name[CONFIG_NAME_MAX];    /* section.key */
    char value[CONFIG_TEXT_MAX];   /* as a file has it */
    char initial[CONFIG_TEXT_MAX]; /* likewise; "" where there is none */
    config_source from;
    bool live;
} config_item;

/* False beyond the last. */
bool config_item_at(const config *c, int i, config_item *out);
/* By its name; ERR_INPUT, with a guess at what was meant. */
err_code config_item_find(const config *c, const char *name, config_item *out, err *e);
const char *config_source_name(config_source from);
/* What others may see of a value: a URL's password and its query become ***. */
void config_hide(char value[CONFIG_TEXT_MAX]);

/* What differs between what runs and what is wanted. */
typedef struct config_change {
    char name[CONFIG_NAME_MAX];                           /* of a class as a whole: class.NAME */
    char value[CONFIG_TEXT_MAX], wanted[CONFIG_TEXT_MAX]; /* of a class as a whole: empty */
    config_source from, wanted_from;
    bool live; /* it can be taken without a restart */
} config_change;

typedef struct config_changes {
    config_change *each; /* free() */
    int n;
} config_changes;

/* Classes count as live where both have the same ones in the same order.  ERR_NOMEM. */
err_code config_compare(const config *runs, const config *wanted, config_changes *out, err *e);
/* What is live of it into what runs. */
void config_take(config *runs, const config *wanted);

/* The whole file with every key explained, showing c's values. */
void config_print(const config *c, FILE *f);

#endif
