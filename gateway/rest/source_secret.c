/* source_secret.c -- credentials for sources: read, kept, listed without their words, deleted.
 *
 *   PUT    /v1/source_credentials/{host}   one kind of credentials; replaces what was there
 *   GET    /v1/source_credentials          hosts and kinds
 *   DELETE /v1/source_credentials/{host}
 */
#include "gateway/rest/source_secret.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "engine/base/json.h"
#include "gateway/auth.h"
#include "gateway/handlers.h"
#include "gateway/http/api_fields.h"
#include "gateway/process_parts.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/rest/api_audit.h"
#include "gateway/rest/source_files.h"
#include "gateway/tenant_parts.h"
#include "storage/seal/source_secrets.h"

enum { WORDS = 6 };

static const char *const words[WORDS] = {"bearer",        "username",          "password",
                                         "access_key_id", "secret_access_key", "session_token"};

/* -------------------------------------------------------------------------- its words -- */

static bool is_s3(const fetch_secret *s)
{
    return s->s3.id || s->s3.secret || s->s3.session;
}

static const char *kind_of(const fetch_secret *s)
{
    return is_s3(s) ? "s3" : s->bearer ? "bearer" : "basic";
}

/* Whether exactly one kind of credentials is given, with all of its fields. */
static bool is_whole(const fetch_secret *s)
{
    bool basic = s->username || s->password;
    if ((s->bearer != NULL) + basic + is_s3(s) != 1) return false;
    if (is_s3(s)) return s->s3.id && s->s3.secret;
    return s->bearer || (s->username && *s->username && !strchr(s->username, ':') && s->password);
}

static err_code no_words(const cJSON *c, err *e)
{
    const cJSON *item;
    if (!cJSON_IsObject(c)) return err_set(e, ERR_INPUT, "must be an object");
    cJSON_ArrayForEach(item, c)
    {
        int i = 0;
        while (i < WORDS && strcmp(words[i], item->string) != 0) i++;
        if (i == WORDS) return err_set(e, ERR_INPUT, "has no field '%.40s'", item->string);
    }
    return ERR_NONE;
}

err_code source_secret_read(const cJSON *c, fetch_secret *out, err *e)
{
    fetch_secret *s = out;
    const char **const all[WORDS] = {&s->bearer, &s->username,  &s->password,
                                     &s->s3.id,  &s->s3.secret, &s->s3.session};
    *s = (fetch_secret){.bearer = NULL};
    if (!c || cJSON_IsNull(c)) return ERR_NONE;
    err_code rc = no_words(c, e);
    for (int i = 0; i < WORDS && !rc; i++) {
        rc = json_str(c, words[i], all[i], NULL, e);
        for (const char *at = *all[i]; !rc && at && *at; at++)
            if (*at <= ' ' || *at >= 0x7f)
                rc = err_set(e, ERR_INPUT, "%s must be printable ASCII without spaces", words[i]);
    }
    if (rc || is_whole(s)) return rc;
    return err_set(e, ERR_INPUT,
                   "are either bearer, or username and password, or access_key_id and "
                   "secret_access_key");
}

err_code source_secret_fits(const source *where, const fetch_secret *s, err *e)
{
    bool none = !s->bearer && !s->username && !is_s3(s);
    if (none || where->s3 == is_s3(s)) return ERR_NONE;
    return err_set(e, ERR_INPUT,
                   where->s3 ? "s3:// requires access_key_id and secret_access_key"
                             : "this source requires bearer, or username and password");
}

/* ------------------------------------------------------------------------ what is kept -- */

/* "host", or "host:port" where it is not 443; in small letters. */
static void place_of(const char *host, int port, char out[SOURCE_SECRET_HOST_MAX])
{
    snprintf(out, SOURCE_SECRET_HOST_MAX, port == 443 ? "%.255s" : "%.255s:%d", host, port);
    for (char *p = out; *p; p++) *p = (char)tolower((unsigned char)*p);
}

void source_secret_forget(cJSON *tree)
{
    cJSON *item;
    cJSON_ArrayForEach(item, tree)
    {
        if (item->valuestring) OPENSSL_cleanse(item->valuestring, strlen(item->valuestring));
    }
    cJSON_Delete(tree);
}

err_code source_secret_kept(tenant_parts *parts, uint64_t tenant_id, const source *where,
                            fetch_secret *out, cJSON **tree, err *e)
{
    char place[SOURCE_SECRET_HOST_MAX], text[SOURCE_SECRET_TEXT_MAX];
    *out = (fetch_secret){.bearer = NULL};
    *tree = NULL;
    place_of(where->host, where->port, place);
    err_code rc =
        source_secrets_get(parts->store, tenants_seal_key(parts), tenant_id, place, text, e);
    if (rc) return rc == ERR_NOT_FOUND ? ERR_NONE : rc;
    rc = json_parse(text, strlen(text), &json_limits_request, tree, e);
    OPENSSL_cleanse(text, sizeof(text));
    if (!rc) rc = source_secret_read(*tree, out, e);
    if (!rc && source_secret_fits(where, out, e))
        rc = err_set(e, ERR_CONFLICT, "the credentials kept for '%.100s' are of another kind",
                     place);
    if (!rc) return ERR_NONE;
    source_secret_forget(*tree);
    *tree = NULL;
    return rc;
}

/* ------------------------------------------------------------------------- the handlers -- */

static bool refuse(exchange *x, const char *param, const err *e)
{
    exchange_error(x, 400, "invalid_request_error", "invalid_value", param, "'%s': %s", param,
                   e->msg);
    return false;
}

/* The host as it is kept; it must be one that is fetched from.  False: answered. */
static bool take_place(exchange *x, char out[SOURCE_SECRET_HOST_MAX])
{
    const source_rules rules = source_rules_of(&x->conf->sources);
    char url[SOURCE_SECRET_HOST_MAX + 16], host[SOURCE_HOST_MAX];
    int port;
    err e;
    if (strlen(x->param[0]) >= SOURCE_SECRET_HOST_MAX || source_check_hosts(x->param[0], &e) ||
        strpbrk(x->param[0], ", \t")) {
        err_set(&e, ERR_INPUT, "must be a host or host:port");
        return refuse(x, "host", &e);
    }
    snprintf(url, sizeof(url), "https://%s", x->param[0]);
    if (source_host_of(url, host, &port, &e)) return refuse(x, "host", &e);
    if (!source_host_listed(&rules, host, port)) {
        err_set(&e, ERR_DENIED, "the server does not fetch adapters from it (sources.hosts)");
        return refuse(x, "host", &e);
    }
    place_of(host, port, out);
    return true;
}

static void write_row(jsonw *w, const source_secret_row *row)
{
    jsonw_open(w, NULL, '{');
    jsonw_str(w, "object", "source_credentials");
    jsonw_str(w, "host", row->host);
    jsonw_str(w, "kind", row->kind);
    api_write_time(w, "created", row->created_wall_us);
    jsonw_close(w, '}');
}

static void keep(exchange *x, source_secret_row *row, const fetch_secret *secret, const cJSON *body)
{
    server *s = x->app;
    err e;
    char *text = cJSON_PrintUnformatted(body);
    snprintf(row->kind, sizeof(row->kind), "%s", kind_of(secret));
    err_code rc =
        text ? source_secrets_put(store_of(s), tenants_seal_key(tenants_of(s)), row, text, &e)
             : err_set(&e, ERR_NOMEM, "out of memory");
    if (text) OPENSSL_cleanse(text, strlen(text));
    cJSON_free(text);
    if (rc) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    char detail[64];
    snprintf(detail, sizeof(detail), "{\"kind\":\"%s\"}", row->kind);
    api_audit(x, row->tenant_id, "source_credentials.put", row->host, detail);
    jsonw w;
    jsonw_init(&w);
    write_row(&w, row);
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}

void source_credentials_put(exchange *x)
{
    const cJSON *body;
    source_secret_row row = {.tenant_id = x->caller->tenant.id};
    fetch_secret secret;
    err e;
    if (!adapter_need_tenant(x) || !exchange_read_json(x, &body) || !take_place(x, row.host))
        return;
    if (source_secret_read(body, &secret, &e)) {
        err_context(&e, "credentials");
        exchange_reply_err(x, &e, NULL);
    } else if (!tenants_seal_key(tenants_of(x->app))) {
        exchange_error(x, 422, "invalid_request_error", "no_key", NULL,
                       "this server keeps no credentials: its operator has given it no key "
                       "(responses.key_file)");
    } else {
        keep(x, &row, &secret, body);
    }
}

void source_credentials_list(exchange *x)
{
    source_secret_row *list;
    size_t n;
    err e;
    if (!adapter_need_tenant(x)) return;
    if (source_secrets_list(store_of(x->app), x->caller->tenant.id, &list, &n, &e)) {
        exchange_reply_err(x, &e, NULL);
        return;
    }
    jsonw w;
    api_list_begin(&w);
    for (size_t i = 0; i < n; i++) write_row(&w, &list[i]);
    api_list_end(x, &w, false);
    free(list);
}

void source_credentials_delete(exchange *x)
{
    err e;
    if (!adapter_need_tenant(x)) return;
    if (source_secrets_drop(store_of(x->app), x->caller->tenant.id, x->param[0], &e)) {
        exchange_reply_err(x, &e, "host");
        return;
    }
    api_audit(x, x->caller->tenant.id, "source_credentials.delete", x->param[0], NULL);
    jsonw w;
    jsonw_init(&w);
    jsonw_open(&w, NULL, '{');
    jsonw_str(&w, "object", "source_credentials");
    jsonw_str(&w, "host", x->param[0]);
    jsonw_bool(&w, "deleted", true);
    jsonw_close(&w, '}');
    exchange_reply_json(x, 200, &w);
    jsonw_clear(&w);
}
