/* config.c -- the tables of options, their values, and how they must fit together.
 *
 * A section [class.NAME] makes an SLO class; its keys are a table of their own.  config_read.c
 * reads them from files and elsewhere, config_print.c writes them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/config/classes.h"
#include "gateway/config/config_inside.h"
#include "gateway/fetch/bucket.h"
#include "gateway/fetch/source.h"
#include "gateway/http/networks.h"

enum { ROWS_LEAST = 16 }; /* of a step */

#define ROW(section, key, field, kind, flags, initial, lo, hi, help) \
    {#section, key, OPT_##kind | (flags), offsetof(config, section.field), initial, lo, hi, help},

const option config_options[] = {OPTIONS_ALL(ROW)};

const int config_n_options = (int)(sizeof(config_options) / sizeof(config_options[0]));

_Static_assert(sizeof(config_options) / sizeof(config_options[0]) <= CONFIG_OPTIONS_MAX,
               "each has a place in config.from");

#define OF_CLASS(field) offsetof(config_class, field)

const option config_class_options[CONFIG_CLASS_OPTIONS] = {
    {"class.NAME", "ttft", OPT_TIME | OPT_LIVE, OF_CLASS(ttft_us), NULL, 1, 86400 * CONFIG_SECOND,
     "An SLO class: one section for each, at most 8, the most urgent first. A file without\n"
     "such sections has the three of lorad --print-conf. NAME: [a-z][a-z0-9_-]{0,15}. This is\n"
     "its target for the first token. Set it to what users of the class accept."},
    {"class.NAME", "tpot", OPT_TIME | OPT_LIVE, OF_CLASS(tpot_us), NULL, 1, 86400 * CONFIG_SECOND,
     "Target for each further token, for example the time in which a person reads one."},
    {"class.NAME", "weight", OPT_MILLI | OPT_LIVE, OF_CLASS(weight_milli), "1", 1, 1000000,
     "Its share of the machine while other classes wait, too. Increase it for the class that\n"
     "matters more."},
    {"class.NAME", "overload", OPT_TEXT | OPT_LIVE, OF_CLASS(overload), "queue", 0, 0,
     "The policy for a request whose first token would miss the target. queue: it waits;\n"
     "reject: it gets 429 at once, with the time after which to retry, for clients that can\n"
     "use another server."},
    {"class.NAME", "tiers", OPT_TEXT | OPT_LIVE, OF_CLASS(tiers), "", 0, 0,
     "Further values of service_tier for this class, comma-separated; answers have the first\n"
     "one."},
    {"class.NAME", "price_prompt", OPT_INT | OPT_LIVE, OF_CLASS(price_prompt), "0", 0,
     CONFIG_PRICE_MAX,
     "Price of a request's prompt tokens, in micros (millionths of your currency) per\n"
     "1,000,000 tokens: 3.00 per million tokens is 3000000. Requests that have begun keep\n"
     "the price of their beginning. 0: no charge."},
    {"class.NAME", "price_cached", OPT_INT | OPT_LIVE, OF_CLASS(price_cached), "-1", -1,
     CONFIG_PRICE_MAX,
     "Price of prompt tokens that the prefix cache had, likewise. -1: as price_prompt."},
    {"class.NAME", "price_output", OPT_INT | OPT_LIVE, OF_CLASS(price_output), "0", 0,
     CONFIG_PRICE_MAX, "Price of completion tokens, likewise; reasoning is included."},
};

/* ------------------------------------------------------------------------ values -- */

static bool parse_number(const char *s, double *v, const char **unit)
{
    char *end;
    errno = 0;
    *v = strtod(s, &end);
    *unit = end;
    return end != s && !errno && *v >= 0;
}

static bool parse_bytes(const char *s, int64_t *out)
{
    static const struct {
        const char *name;
        double factor;
    } units[] = {
        {"", 1},     {"B", 1},    {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0},
        {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
    double v;
    const char *unit;
    if (!parse_number(s, &v, &unit)) return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].name) == 0 && v * units[i].factor < 9e18) {
            *out = (int64_t)(v * units[i].factor);
            return true;
        }
    }
    return false;
}

static bool parse_time(const char *s, int64_t *out)
{
    static const struct {
        const char *name;
        double us;
    } units[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"min", 6e7}, {"h", 3.6e9}, {"d", 8.64e10}};
    double v;
    const char *unit;
    if (!parse_number(s, &v, &unit)) return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].name) == 0 && v * units[i].us < 9e18) {
            *out = (int64_t)(v * units[i].us);
            return true;
        }
    }
    return false;
}

static bool parse_milli(const char *s, int64_t *out)
{
    double v;
    const char *unit;
    if (!parse_number(s, &v, &unit) || *unit || !(v < 9e12)) return false;
    *out = (int64_t)(v * 1000 + 0.5);
    return true;
}

static bool parse_bool(const char *s, bool *out)
{
    *out = strcmp(s, "yes") == 0 || strcmp(s, "true") == 0 || strcmp(s, "on") == 0;
    return *out || strcmp(s, "no") == 0 || strcmp(s, "false") == 0 || strcmp(s, "off") == 0;
}

static err_code set_number(const option *o, bool parsed, int64_t v, const char *text,
                           const char *form, int64_t *out, err *e)
{
    if (!parsed) {
        return err_set(e, ERR_INPUT, "%s.%s: '%.40s' is not %s", o->section, o->key, text, form);
    }
    if ((v < o->lo || v > o->hi) && option_kind_of(o) == OPT_MILLI) {
        return err_set(e, ERR_INPUT, "%s.%s: '%.40s' is outside %g to %g", o->section, o->key, text,
                       (double)o->lo / 1000, (double)o->hi / 1000);
    }
    if (v < o->lo || v > o->hi) {
        const char *unit = option_kind_of(o) == OPT_TIME    ? " microseconds"
                           : option_kind_of(o) == OPT_BYTES ? " bytes"
                                                            : "";
        return err_set(e, ERR_INPUT, "%s.%s: '%.40s' is outside %lld to %lld%s", o->section, o->key,
                       text, (long long)o->lo, (long long)o->hi, unit);
    }
    *out = v;
    return ERR_NONE;
}

/* No line of a file could say it. */
static bool has_control(const char *text)
{
    for (; *text; text++) {
        if (((unsigned char)*text < 0x20 && *text != '\t') || *text == 0x7f) return true;
    }
    return false;
}

err_code config_set_option(void *of, const option *o, const char *text, err *e)
{
    void *field = (char *)of + o->offset;
    int64_t v = 0;
    bool ok;
    char *end;
    switch (option_kind_of(o)) {
    case OPT_TEXT:
        if (strlen(text) >= CONFIG_TEXT_MAX) {
            return err_set(e, ERR_INPUT, "%s.%s is longer than %d bytes", o->section, o->key,
                           CONFIG_TEXT_MAX - 1);
        }
        if (has_control(text))
            return err_set(e, ERR_INPUT, "%s.%s holds a control character", o->section, o->key);
        memset(field, 0, CONFIG_TEXT_MAX);
        memcpy(field, text, strlen(text));
        return ERR_NONE;
    case OPT_INT:
        errno = 0;
        v = strtoll(text, &end, 10);
        ok = end != text && !*end && !errno;
        return set_number(o, ok, v, text, "an integer", field, e);
    case OPT_BYTES:
        ok = parse_bytes(text, &v);
        return set_number(o, ok, v, text, "a size such as 512MiB", field, e);
    case OPT_TIME:
        ok = parse_time(text, &v);
        return set_number(o, ok, v, text, "a time such as 30s or 500ms", field, e);
    case OPT_MILLI:
        ok = parse_milli(text, &v);
        return set_number(o, ok, v, text, "a number such as 4 or 0.5", field, e);
    case OPT_BOOL:
        if (parse_bool(text, field)) return ERR_NONE;
        return err_set(e, ERR_INPUT, "%s.%s: '%.40s' is neither yes nor no", o->section, o->key,
                       text);
    }
    return ERR_INTERNAL;
}

/* ------------------------------------------------------------------------- whole -- */

void config_defaults(config *c)
{
    memset(c, 0, sizeof(*c));
    for (int i = 0; i < config_n_options; i++) {
        err e;
        if (config_set_option(c, &config_options[i], config_options[i].initial, &e))
            abort(); /* a fault of the table */
    }
    classes_begin(&c->classes);
}

double config_traces_sample(const config_traces *t)
{
    char *end;
    double share = strtod(t->sample, &end);
    return t->sample[0] && !*end && share >= 0 && share <= 1 ? share : -1;
}

/* Options whose value is one of a few words. */
static err_code check_words(const config *c, err *e)
{
    const struct {
        const char *name, *value, *words;
    } rows[] = {
        {"model.pooling", c->model.pooling,
         "auto, last, cls, mean, max, weightedmean, mean_sqrt_len"},
        {"engine.logprobs_mode", c->engine.logprobs_mode,
         "raw_logprobs, processed_logprobs, adjusted_logprobs"},
        {"model.weights", c->model.weights, "auto, plain, bf16, q8, q4, fp8"},
        {"model.activations", c->model.activations, "mixed, int8, int16"},
        {"log.level", c->log.level, "debug, info, warn, error"},
        {"log.format", c->log.format, "text, logfmt, json"},
        {"engine.backend", c->engine.backend, "auto, cpu, cuda"},
        {"engine.kv_type", c->engine.kv_type, "auto, f32, bf16, f16, int8"},
        {"engine.preemption", c->engine.preemption, "auto, recompute, swap"},
        {"server.fleet_kv", c->server.fleet_kv, "auto, always, never"},
        {"server.fleet_role", c->server.fleet_role, "both, prefill, decode"},
        {"engine.speculate", c->engine.speculate, "auto, always, off"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *list = rows[i].words, *word;
        bool known = false;
        for (int n; !known && class_next_tier(&list, &word, &n);)
            known =
                strlen(rows[i].value) == (size_t)n && memcmp(word, rows[i].value, (size_t)n) == 0;
        if (!known)
            return err_set(e, ERR_INPUT, "%s: '%.40s' is none of %s", rows[i].name, rows[i].value,
                           rows[i].words);
    }
    return ERR_NONE;
}

/* A URL without a password: what stands here is printed by check and kept in files. */
static err_code check_database(const char *url, err *e)
{
    if (!url[0]) return ERR_NONE;
    if (strncmp(url, "postgres://", 11) != 0 && strncmp(url, "postgresql://", 13) != 0)
        return err_set(e, ERR_INPUT, "is postgres://user@host/database, or empty");
    const char *user = strstr(url, "://") + 3;
    const char *at = memchr(user, '@', strcspn(user, "/?"));
    bool secret = at && memchr(user, ':', (size_t)(at - user));
    if (secret || strstr(url, "password="))
        return err_set(e, ERR_INPUT, "holds a password: put it into storage.password_file");
    return ERR_NONE;
}

static err_code check_sources(const config_sources *s, err *e)
{
    if (source_check_hosts(s->hosts, e)) return err_context(e, "sources.hosts");
    if (networks_check_list(s->networks, e)) return err_context(e, "sources.networks");
    if (*s->hub && source_check_base(s->hub, e)) return err_context(e, "sources.hub");
    if (*s->s3_endpoint && source_check_base(s->s3_endpoint, e))
        return err_context(e, "sources.s3_endpoint");
    if (!*s->s3_region) return err_set(e, ERR_INPUT, "sources.s3_region is empty");
    return ERR_NONE;
}

static err_code check_store(const config *c, err *e)
{
    if (!*c->store.url) return ERR_NONE;
    if (!*c->storage.database)
        return err_set(e, ERR_INPUT, "store.url is for a fleet: storage.database is not set");
    if (bucket_check_url(c->store.url, e)) return err_context(e, "store.url");
    if (bucket_check_endpoint(c->store.endpoint, e)) return err_context(e, "store.endpoint");
    return *c->store.region ? ERR_NONE : err_set(e, ERR_INPUT, "store.region is empty");
}

err_code config_check(const config *c, err *e)
{
    if (!c->model.path[0]) return err_set(e, ERR_INPUT, "model.path is not set");
    if (!c->model.name[0]) return err_set(e, ERR_INPUT, "model.name is empty");
    if (!c->data.dir[0]) return err_set(e, ERR_INPUT, "data.dir is not set");
    if (c->engine.max_rows > 0 && c->engine.max_seqs > c->engine.max_rows) {
        return err_set(e, ERR_INPUT, "engine.max_seqs must not exceed engine.max_rows");
    }
    if (check_database(c->storage.database, e)) return err_context(e, "storage.database");
    if (*c->server.fleet_address && !*c->storage.database)
        return err_set(e, ERR_INPUT, "server.fleet_address: storage.database is not set");
    if (strcmp(c->server.fleet_role, "both") != 0 && !*c->server.fleet_address)
        return err_set(e, ERR_INPUT, "server.fleet_role: server.fleet_address is not set");
    if (*c->server.fleet_address && source_check_base(c->server.fleet_address, e))
        return err_context(e, "server.fleet_address");
    if (networks_check_list(c->server.trusted_proxies, e))
        return err_context(e, "server.trusted_proxies");
    if (networks_check_list(c->server.plain_networks, e))
        return err_context(e, "server.plain_networks");
    if (networks_check_list(c->metrics.inference_networks, e))
        return err_context(e, "metrics.inference_networks");
    if (check_sources(&c->sources, e) || check_store(c, e) || check_words(c, e)) return e->code;
    if (c->engine.tensor_parallel > 1 && strcmp(c->engine.backend, "cpu") == 0)
        return err_set(e, ERR_INPUT, "engine.tensor_parallel requires the CUDA backend");
    if (config_traces_sample(&c->traces) < 0) {
        return err_set(e, ERR_LIMIT, "traces.sample must be from 0 to 1, not '%.40s'",
                       c->traces.sample);
    }
    char *end;
    double fraction = strtod(c->engine.device_memory_fraction, &end);
    if (*end || !(fraction >= 0.05 && fraction <= 0.98)) {
        return err_set(e, ERR_LIMIT,
                       "engine.device_memory_fraction: '%.40s' is not within 0.05 and "
                       "0.98",
                       c->engine.device_memory_fraction);
    }
    if (c->engine.max_rows > 0 && c->engine.max_rows < ROWS_LEAST)
        return err_set(e, ERR_INPUT, "engine.max_rows: %lld is below %d",
                       (long long)c->engine.max_rows, ROWS_LEAST);
    if (c->batches.class[0] && class_of_name(&c->classes, c->batches.class) < 0)
        return err_set(e, ERR_INPUT, "batches.class: there is no class '%.40s'", c->batches.class);
    return classes_check(&c->classes, e);
}

enum { CONNECTIONS_PER_STREAM = 10 };

int64_t config_max_connections(const config_server *s)
{
    return s->max_connections ? s->max_connections : CONNECTIONS_PER_STREAM * s->max_streams;
}

int64_t config_max_connections_per_ip(const config_server *s)
{
    if (s->max_connections_per_ip) return s->max_connections_per_ip;
    int64_t total = config_max_connections(s), streams = s->max_streams;
    return (3 * (total < streams ? total : streams) + 3) / 4;
}
