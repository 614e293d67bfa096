/* adapter_source.c -- the files of a source, one after the other into an upload. */
#include "gateway/rest/adapter_source.h"

#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>

#include "engine/base/json.h"
#include "gateway/auth.h"
#include "gateway/fetch/artifact.h"
#include "gateway/fetch/fetch.h"
#include "gateway/http/api_fields.h"
#include "gateway/rest/adapter_fields.h"
#include "gateway/server.h"
#include "storage/digest.h"

enum { FETCHES_MAX = 4 };

typedef struct {
    exchange *x;
    upload *u;
    const char *file; /* its name in the tar; NULL: the bytes are a tar */
    EVP_MD_CTX *sha;  /* NULL: this file's is not asked */
    bool key_gone;    /* the caller's key has been revoked meanwhile */
} transfer;

/* ---------------------------------------------------------------------------- one file -- */

static err_code begin_file(void *arg, int64_t bytes, err *e)
{
    transfer *t = arg;
    return t->file ? upload_file_begin(t->u, t->file, bytes, e) : ERR_NONE;
}

static err_code take_piece(void *arg, const void *data, size_t len, err *e)
{
    transfer *t = arg;
    if (auth_still(t->x, false, e)) {
        t->key_gone = true;
        return e->code;
    }
    if (t->sha && !EVP_DigestUpdate(t->sha, data, len))
        return err_set(e, ERR_NOMEM, "out of memory");
    return t->file ? upload_file_write(t->u, data, len, e) : upload_write(t->u, data, len, e);
}

/* -------------------------------------------------------------------------- the source -- */

typedef struct {
    source where;
    source_rules rules;
    fetch_secret secret;
    const char *sha256; /* NULL: not asked */
    EVP_MD_CTX *sha;
} plan;

/* Before a file comes, and behind it. */
static void next_file(const plan *p, transfer *t, const char *file, bool hashed)
{
    t->file = file;
    t->sha = hashed && p->sha256 ? p->sha : NULL;
}

static fetch_end end_file(const transfer *t, fetch_end end, err *e)
{
    return !end && t->file && upload_file_end(t->u, e) ? FETCH_SINK : end;
}

static fetch_end fetch_one(const plan *p, transfer *t, const char *file, bool hashed, err *e)
{
    const fetch_sink sink = {begin_file, take_piece, t};
    char url[SOURCE_URL_MAX];
    next_file(p, t, p->where.form == SOURCE_TAR ? NULL : file, hashed);
    if (p->where.form != SOURCE_FOLDER)
        snprintf(url, sizeof(url), "%s", p->where.url);
    else if (!source_file_url(&p->where, file, url)) {
        err_set(e, ERR_INPUT, "the address is too long");
        return FETCH_ANSWER;
    }
    fetch_end end = fetch_file(&p->where, url, &p->rules, &p->secret, &sink, e);
    end = end_file(t, end, e);
    if (end && end != FETCH_SINK && p->where.form == SOURCE_FOLDER) err_context(e, "%s", file);
    return end;
}

static fetch_end fetch_layer(const plan *p, transfer *t, artifact *a, const artifact_layer *l,
                             const char *file, bool hashed, err *e)
{
    const fetch_sink sink = {begin_file, take_piece, t};
    next_file(p, t, file, hashed);
    return end_file(t, artifact_fetch(a, l, &sink, e), e);
}

static const artifact_layer *layer_named(const artifact_layer *l, size_t n, const char *title)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(l[i].title, title) == 0) return &l[i];
    return NULL;
}

/* Layers that bear the names of a folder's files; or one alone, a GGUF or a tar. */
static fetch_end fetch_layers(const plan *p, transfer *t, artifact *a, err *e)
{
    const artifact_layer *l, *of;
    size_t n = artifact_layers(a, &l);
    fetch_end end = FETCH_OK;
    if (layer_named(l, n, folder_part_names[PART_CONFIG])) {
        for (int part = 0; part < PART_ALL && !end; part++)
            if ((of = layer_named(l, n, folder_part_names[part])) != NULL)
                end = fetch_layer(p, t, a, of, of->title, part == PART_WEIGHTS, e);
        return end;
    }
    if (n == 1 && folder_is_gguf(l->title))
        return fetch_layer(p, t, a, l, folder_gguf_name, true, e);
    if (n == 1 && l->tar) return fetch_layer(p, t, a, l, NULL, true, e);
    err_set(e, ERR_INPUT,
            "the artifact has neither layers with the titles of PEFT's files, nor one layer alone "
            "that is a GGUF or a plain tar");
    return FETCH_ANSWER;
}

static fetch_end fetch_artifact(const plan *p, transfer *t, err *e)
{
    artifact *a;
    fetch_end end = artifact_open(&a, &p->where, &p->rules, &p->secret, e);
    if (end) return end;
    end = fetch_layers(p, t, a, e);
    artifact_close(a);
    return end;
}

/* Config and weights must be there; of a tokenizer there is what there is. */
static fetch_end fetch_all(const plan *p, transfer *t, err *e)
{
    if (p->where.form == SOURCE_ARTIFACT) return fetch_artifact(p, t, e);
    if (p->where.form == SOURCE_TAR) return fetch_one(p, t, "", true, e);
    if (p->where.form == SOURCE_GGUF) return fetch_one(p, t, folder_gguf_name, true, e);
    for (int part = 0; part < PART_ALL; part++) {
        fetch_end end = fetch_one(p, t, folder_part_names[part], part == PART_WEIGHTS, e);
        if (end == FETCH_MISSING && part >= PART_COUNT) continue;
        if (end) return end;
    }
    return FETCH_OK;
}

static bool sha_matches(const plan *p, err *e)
{
    unsigned char sha[DIGEST_BYTES];
    char hex[DIGEST_HEX];
    unsigned len = sizeof(sha);
    if (!p->sha256) return true;
    if (!EVP_DigestFinal_ex(p->sha, sha, &len)) return !err_set(e, ERR_NOMEM, "out of memory");
    digest_hex(sha, hex);
    if (strcmp(hex, p->sha256) == 0) return true;
    err_set(e, ERR_CORRUPT, "what came has another SHA-256 than 'sha256' says: %s", hex);
    return false;
}

/* ---------------------------------------------------------------------------- the body -- */

static bool refuse_field(exchange *x, const char *param, const err *e)
{
    exchange_error(x, 400, "invalid_request_error", "invalid_value", param, "'%s': %s", param,
                   e->msg);
    return false;
}

/* One kind of secret, whole, and the source's kind. */
static bool secret_fits(const source *where, const fetch_secret *s, err *e)
{
    bool pair = s->s3.id && s->s3.secret, s3 = s->s3.id || s->s3.secret || s->s3.session;
    bool user = s->username && *s->username && !strchr(s->username, ':') && s->password;
    bool some = s->username || s->password;
    if (where->s3 ? pair && !s->bearer && !some : !s3 && (some ? user && !s->bearer : !!s->bearer))
        return true;
    return !err_set(e, ERR_INPUT,
                    where->s3 ? "s3:// takes access_key_id and secret_access_key"
                              : "this source takes bearer, or username and password");
}

/* False: answered. */
static bool take_credentials(exchange *x, const cJSON *body, plan *p)
{
    static const char *const known[] = {
        "bearer",        "username", "password", "access_key_id", "secret_access_key",
        "session_token", NULL};
    const cJSON *c = json_get(body, "credentials");
    err e;
    p->secret = (fetch_secret){.s3.region = p->rules.s3_region};
    if (!c || cJSON_IsNull(c)) return true;
    if (!cJSON_IsObject(c)) {
        err_set(&e, ERR_INPUT, "must be an object");
        return refuse_field(x, "credentials", &e);
    }
    if (!api_only_fields(x, c, known)) return false;
    fetch_secret *s = &p->secret;
    const char **const all[] = {&s->bearer, &s->username,  &s->password,
                                &s->s3.id,  &s->s3.secret, &s->s3.session};
    for (int i = 0; known[i]; i++) {
        if (json_str(c, known[i], all[i], NULL, &e)) return refuse_field(x, "credentials", &e);
        for (const char *at = *all[i]; at && *at; at++) {
            if (*at > ' ' && *at < 0x7f) continue;
            err_set(&e, ERR_INPUT, "%s must be printable ASCII without spaces", known[i]);
            return refuse_field(x, "credentials", &e);
        }
    }
    if (secret_fits(&p->where, s, &e)) return true;
    return refuse_field(x, "credentials", &e);
}

/* False: answered. */
static bool take_body(exchange *x, const cJSON *body, publish_options *o, plan *p)
{
    static const char *const known[] = {"source",      "sha256",   "credentials",
                                        "description", "activate", NULL};
    const char *text = NULL;
    uint8_t sha[DIGEST_BYTES];
    err e;
    if (!api_only_fields(x, body, known)) return false;
    if (json_str(body, "source", &text, NULL, &e) ||
        json_str(body, "sha256", &p->sha256, NULL, &e) ||
        json_str(body, "description", &o->description, NULL, &e) ||
        json_bool(body, "activate", &o->activate, NULL, &e)) {
        exchange_reply_err(x, &e, NULL);
        return false;
    }
    if (p->sha256 && !digest_from_hex(p->sha256, sha)) {
        err_set(&e, ERR_INPUT, "must be 64 lower-case hexadecimal digits");
        return refuse_field(x, "sha256", &e);
    }
    if (!adapter_activate(x, &o->activate)) return false;
    if (source_parse(&p->where, text ? text : "", &p->rules, &e))
        return refuse_field(x, "source", &e);
    return take_credentials(x, body, p);
}

/* Whose fault is it, and does it help to come again? */
static void refuse_fetch(exchange *x, fetch_end end, const transfer *t, const err *e)
{
    if (end == FETCH_SINK) {
        adapter_refuse(x, e, t->key_gone ? NULL : "source");
    } else if (end == FETCH_REFUSED) {
        exchange_error(x, 400, "invalid_request_error", "invalid_value", "source", "'source': %s",
                       e->msg);
    } else {
        bool away = end == FETCH_AWAY;
        exchange_error(x, away ? 502 : 422, away ? "server_error" : "invalid_request_error",
                       "source_failed", "source", "'source': %s", e->msg);
    }
}

static void run(exchange *x, const plan *p, const publish_options *o)
{
    const upload_env env = server_upload(x);
    transfer t = {.x = x};
    adapter_version v;
    bool existed = false;
    uint64_t before = adapter_default_id(x, x->param[0]);
    err e;
    if (upload_begin(&t.u, &env, o, &e)) {
        if (e.code == ERR_INPUT)
            refuse_field(x, "name", &e);
        else
            adapter_refuse(x, &e, "name");
        return;
    }
    fetch_end end = fetch_all(p, &t, &e);
    if (!end && (!sha_matches(p, &e) || auth_still(x, true, &e))) end = FETCH_SINK;
    if (end) {
        upload_abort(t.u);
        refuse_fetch(x, end, &t, &e);
    } else if (upload_finish(t.u, &v, &existed, &e)) {
        adapter_refuse(x, &e, "source");
    } else {
        adapter_reply_published(x, &v, existed, before);
    }
}

void adapter_from_source(exchange *x, const cJSON *body, const publish_options *asked)
{
    const config *c = x->conf;
    publish_options o = *asked;
    plan p = {.rules = {.hosts = c->sources_hosts,
                        .networks = c->sources_networks,
                        .hub = c->sources_hub,
                        .s3_endpoint = c->sources_s3_endpoint,
                        .s3_region = c->sources_s3_region,
                        .ca_file = c->sources_ca_file,
                        .timeout_us = c->sources_timeout_us}};
    o.content_bytes = -1;
    if (!take_body(x, body, &o, &p)) return;
    if (atomic_fetch_add(&x->server->fetching, 1) >= FETCHES_MAX) {
        exchange_add_header(x, "retry-after", "5");
        exchange_error(x, 503, "server_error", "busy", NULL,
                       "%d adapters are being fetched already", FETCHES_MAX);
    } else {
        p.sha = EVP_MD_CTX_new();
        if (p.sha && EVP_DigestInit_ex(p.sha, EVP_sha256(), NULL))
            run(x, &p, &o);
        else
            exchange_error(x, 500, "server_error", "internal_error", NULL, "out of memory");
        EVP_MD_CTX_free(p.sha);
    }
    atomic_fetch_sub(&x->server->fetching, 1);
}
