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
#include "gateway/config/option_list.h"

enum { CONFIG_TEXT_MAX = 512, CONFIG_NAME_MAX = 64, CLASS_MAX = 8, CLASS_WORD_MAX = 16 };
enum { CONFIG_OPTIONS_MAX = 160, CONFIG_CLASS_OPTIONS = 8 };

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
    int64_t price_prompt, price_cached, price_output; /* storage/price.h; cached -1: as prompt */
    uint8_t from[CONFIG_CLASS_OPTIONS];               /* config_source of each key */
} config_class;

/* A section's struct has one field for each of its rows in option_list.h. */
#define CONFIG_TYPE_TEXT(name)  char name[CONFIG_TEXT_MAX];
#define CONFIG_TYPE_INT(name)   int64_t name;
#define CONFIG_TYPE_BYTES(name) int64_t name;
#define CONFIG_TYPE_TIME(name)  int64_t name;
#define CONFIG_TYPE_BOOL(name)  bool name;
#define CONFIG_FIELD(section, key, field, kind, flags, initial, low, high, help) \
    CONFIG_TYPE_##kind(field)

/* clang-format off */
typedef struct config_server { OPTIONS_SERVER(CONFIG_FIELD) } config_server;
typedef struct config_admin { OPTIONS_ADMIN(CONFIG_FIELD) } config_admin;
typedef struct config_metrics { OPTIONS_METRICS(CONFIG_FIELD) } config_metrics;
typedef struct config_data { OPTIONS_DATA(CONFIG_FIELD) } config_data;
typedef struct config_storage { OPTIONS_STORAGE(CONFIG_FIELD) } config_storage;
typedef struct config_store { OPTIONS_STORE(CONFIG_FIELD) } config_store;
typedef struct config_model { OPTIONS_MODEL(CONFIG_FIELD) } config_model;
typedef struct config_responses { OPTIONS_RESPONSES(CONFIG_FIELD) } config_responses;
typedef struct config_files { OPTIONS_FILES(CONFIG_FIELD) } config_files;
typedef struct config_batches { OPTIONS_BATCHES(CONFIG_FIELD) } config_batches;
typedef struct config_engine { OPTIONS_ENGINE(CONFIG_FIELD) } config_engine;
typedef struct config_grammar { OPTIONS_GRAMMAR(CONFIG_FIELD) } config_grammar;
typedef struct config_adapters { OPTIONS_ADAPTERS(CONFIG_FIELD) } config_adapters;
typedef struct config_sources { OPTIONS_SOURCES(CONFIG_FIELD) } config_sources;
typedef struct config_log { OPTIONS_LOG(CONFIG_FIELD) } config_log;
typedef struct config_traces { OPTIONS_TRACES(CONFIG_FIELD) } config_traces;
typedef struct config_webhooks { OPTIONS_WEBHOOKS(CONFIG_FIELD) } config_webhooks;
typedef struct config_debug { OPTIONS_DEBUG(CONFIG_FIELD) } config_debug;
/* clang-format on */

typedef struct config_classes {
    OPTIONS_CLASSES(CONFIG_FIELD)
    config_class each[CLASS_MAX]; /* the most urgent first */
    int n;
} config_classes;

/* All options.  A module gets the sections that it reads, not all of them. */
typedef struct config {
    config_server server;
    config_admin admin;
    config_metrics metrics;
    config_data data;
    config_storage storage;
    config_store store;
    config_model model;
    config_responses responses;
    config_files files;
    config_batches batches;
    config_engine engine;
    config_grammar grammar;
    config_adapters adapters;
    config_sources sources;
    config_classes classes;
    config_log log;
    config_traces traces;
    config_webhooks webhooks;
    config_debug debug;

    /* ---- no options ---- */
    uint8_t from[CONFIG_OPTIONS_MAX]; /* config_source of each */
    /* Of a server that runs: the most connections that it has descriptors for. */
    int64_t connection_room;
    int64_t queue_room; /* of a server that runs: the largest engine.max_queued that it can take */
} config;

/* Sets every option to its default, with the classes that apply unless a file has its own; the
 * first call for each config. */
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
double config_traces_sample(const config_traces *t);

/* What the two limits come to, their 0 resolved. */
int64_t config_max_connections(const config_server *s);

/* For one address: three quarters of what can be served at once (connections or streams,
 * whichever are fewer) unless the option is set. */
int64_t config_max_connections_per_ip(const config_server *s);

/* One option's row of the table, for man pages; false beyond the last.  Texts are static. */
typedef struct config_option_text {
    const char *section, *key, *initial, *help;
    bool live; /* a running server takes it */
} config_option_text;

/* Rows in the order of the file, counted from 0. */
bool config_describe(int i, config_option_text *out);

/* One option and its value; the keys of each class stand behind classes.default. */
typedef struct config_item {
    char name[CONFIG_NAME_MAX];    /* section.key */
    char value[CONFIG_TEXT_MAX];   /* as a file has it */
    char initial[CONFIG_TEXT_MAX]; /* likewise; "" where there is none */
    config_source from;
    bool live, path; /* path: of files or folders; not for the admin API to set */
} config_item;

/* False beyond the last. */
bool config_item_at(const config *c, int i, config_item *out);
/* By its name; ERR_INPUT, with a guess at what was meant. */
err_code config_item_find(const config *c, const char *name, config_item *out, err *e);

/* "default", "file", "environment", "command line", "admin API"; static. */
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

/* The whole file with every key explained, showing c's values.  Keys of [debug] are in it only if
 * they differ from their defaults. */
void config_print(const config *c, FILE *f);

#endif
