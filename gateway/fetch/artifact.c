/* artifact.c -- an OCI artifact over HTTPS: manifest, then layers.
 *
 *   GET /v2/<repo>/manifests/<tag or digest>   -> layers: title, size, digest
 *       401 with Bearer realm="..."            -> GET
 *       realm?service=...&scope=repository:<repo>:pull
 *                                              -> token, then once more
 *   GET /v2/<repo>/blobs/<digest>              -> checked while it passes to the sink
 *
 * ask() repeats a request once, with the token that the 401 leads to; so an expired token is
 * replaced during a long transfer of layers.  The requested scope is built here and not taken from
 * the challenge: only to read this repository.
 *
 * The secret is sent to the registry's own host and port.  Another token server must be in
 * `sources.hosts` and is asked without credentials.
 *
 * artifact_fetch() puts a sink between: it counts the bytes, stops at the manifest's size, and
 * compares SHA-256 at the end.
 */
#include "gateway/fetch/artifact.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>
#include <openssl/crypto.h>

#include "engine/base/json.h"
#include "gateway/fetch/document.h"
#include "storage/digest.h"

enum { MANIFEST_MAX = 4 << 20, TOKEN_ANSWER_MAX = 64 << 10, WORD_MAX = 1024 };

#define ACCEPT_MANIFESTS                                     \
    "application/vnd.oci.image.manifest.v1+json, "           \
    "application/vnd.docker.distribution.manifest.v2+json, " \
    "application/vnd.oci.image.index.v1+json"

struct artifact {
    const source *where;
    const source_rules *rules;
    const fetch_secret *secret;
    char authorization[FETCH_HEADER_MAX];
    artifact_layer layer[ARTIFACT_LAYERS_MAX];
    size_t n;
};

static fetch_end nonsense(err *e, const char *what)
{
    err_set(e, ERR_INPUT, "the registry's %s", what);
    return FETCH_ANSWER;
}

/* -------------------------------------------------------------------------- the token -- */

/* The value of name="value" in a challenge; false: missing. */
static bool word_of(const char *challenge, const char *name, char out[WORD_MAX])
{
    size_t len = strlen(name);
    const char *at = strchr(challenge, ' ');
    while (at && *at) {
        at += strspn(at, " ,");
        size_t n = strcspn(at, "=\"");
        if (at[n] != '=' || at[n + 1] != '"') return false;
        const char *value = at + n + 2, *end = strchr(value, '"');
        if (!end) return false;
        if (n == len && strncasecmp(at, name, len) == 0)
            return snprintf(out, WORD_MAX, "%.*s", (int)(end - value), value) < WORD_MAX;
        at = end + 1;
    }
    return false;
}

/* The realm's address with service and scope; the scope is built here: to read this repository. */
static bool token_url(const artifact *a, const char *challenge, char out[SIGV4_PATH_MAX])
{
    char realm[WORD_MAX], value[WORD_MAX], query[WORD_MAX + 16];
    CURLU *u = curl_url();
    char *whole = NULL;
    bool ok = u && word_of(challenge, "realm", realm) &&
              !curl_url_set(u, CURLUPART_URL, realm, 0) &&
              !curl_url_set(u, CURLUPART_FRAGMENT, NULL, 0);
    if (ok && word_of(challenge, "service", value)) {
        snprintf(query, sizeof(query), "service=%s", value);
        ok = !curl_url_set(u, CURLUPART_QUERY, query, CURLU_APPENDQUERY | CURLU_URLENCODE);
    }
    const char *repo = strstr(a->where->url, "/v2/");
    ok =
        ok && repo &&
        snprintf(query, sizeof(query), "scope=repository:%s:pull", repo + 4) < (int)sizeof(query) &&
        !curl_url_set(u, CURLUPART_QUERY, query, CURLU_APPENDQUERY | CURLU_URLENCODE) &&
        !curl_url_get(u, CURLUPART_URL, &whole, 0) && strlen(whole) < SIGV4_PATH_MAX;
    if (ok) snprintf(out, SIGV4_PATH_MAX, "%s", whole);
    curl_free(whole);
    curl_url_cleanup(u);
    return ok;
}

/* Printable, without spaces: it becomes a header. */
static bool is_token(const char *s)
{
    if (!s || !*s) return false;
    for (; *s; s++)
        if (*s <= ' ' || *s >= 0x7f) return false;
    return true;
}

static fetch_end read_token(artifact *a, const fetch_document *d, err *e)
{
    cJSON *tree = NULL;
    err ignored;
    const char *token = NULL;
    if (d->bytes && !json_parse(d->bytes, d->n, &json_limits_request, &tree, &ignored)) {
        token = cJSON_GetStringValue(json_get(tree, "token"));
        if (!token) token = cJSON_GetStringValue(json_get(tree, "access_token"));
    }
    bool ok = is_token(token) && snprintf(a->authorization, sizeof(a->authorization), "Bearer %s",
                                          token) < (int)sizeof(a->authorization);
    cJSON_Delete(tree);
    return ok ? FETCH_OK : nonsense(e, "token server gave no token that can be read");
}

static fetch_end fetch_token(artifact *a, const char *challenge, err *e)
{
    source at = {.form = SOURCE_FOLDER};
    fetch_document d = {.most = TOKEN_ANSWER_MAX};
    const fetch_sink sink = fetch_document_sink(&d);
    char url[SIGV4_PATH_MAX], own[FETCH_HEADER_MAX] = "";
    err ignored;
    if (!token_url(a, challenge, url) || source_host_of(url, at.host, &at.port, &ignored))
        return nonsense(e, "401 names no token server at https://");
    bool home = at.port == a->where->port && strcasecmp(at.host, a->where->host) == 0;
    if (!home && !source_host_listed(a->rules, at.host, at.port)) {
        err_set(e, ERR_DENIED, "its token server '%s' is not in sources.hosts", at.host);
        return FETCH_REFUSED;
    }
    if (home && !fetch_authorization(a->secret, own))
        return nonsense(e, "credentials are too long");
    const fetch_call call = {.url = url, .authorization = own};
    fetch_end end = fetch_ask(&at, &call, a->rules, &sink, e);
    OPENSSL_cleanse(own, sizeof(own));
    if (!end) end = read_token(a, &d, e);
    fetch_document_drop(&d);
    return end;
}

static fetch_end answer_challenge(artifact *a, const char *challenge, err *e)
{
    if (strncasecmp(challenge, "Basic", 5) != 0) return fetch_token(a, challenge, e);
    return fetch_authorization(a->secret, a->authorization) && *a->authorization
               ? FETCH_OK
               : nonsense(e, "401 asks for a user name and a password");
}

/* An expired token is replaced once. */
static fetch_end ask(artifact *a, const char *url, const char *accept, const fetch_sink *sink,
                     err *e)
{
    char challenge[FETCH_CHALLENGE_MAX];
    const fetch_call call = {
        .url = url, .accept = accept, .authorization = a->authorization, .challenge = challenge};
    fetch_end end = fetch_ask(a->where, &call, a->rules, sink, e);
    if (end != FETCH_ANSWER || !*challenge) return end;
    end = answer_challenge(a, challenge, e);
    return end ? end : fetch_ask(a->where, &call, a->rules, sink, e);
}

/* ----------------------------------------------------------------------- the manifest -- */

static bool digest_is(const char *digest, const uint8_t sha[DIGEST_BYTES])
{
    char hex[DIGEST_HEX];
    digest_hex(sha, hex);
    return strcmp(digest + 7, hex) == 0;
}

static bool is_digest(const char *s)
{
    uint8_t sha[DIGEST_BYTES];
    return s && strncmp(s, "sha256:", 7) == 0 && digest_from_hex(s + 7, sha);
}

static fetch_end read_layer(artifact *a, const cJSON *item, err *e)
{
    artifact_layer *l = &a->layer[a->n];
    const char *type = cJSON_GetStringValue(json_get(item, "mediaType"));
    const char *digest = cJSON_GetStringValue(json_get(item, "digest"));
    const char *title = cJSON_GetStringValue(
        json_get(json_get(item, "annotations"), "org.opencontainers.image.title"));
    const cJSON *size = json_get(item, "size");
    if (!cJSON_IsObject(item) || !type || !is_digest(digest) || !size ||
        !json_whole(size, &l->bytes) || l->bytes < 0)
        return nonsense(e, "manifest has a layer without media type, size and SHA-256");
    if (title && strlen(title) >= ARTIFACT_TITLE_MAX)
        return nonsense(e, "manifest has a title that is too long");
    size_t n = strlen(type);
    snprintf(l->title, sizeof(l->title), "%s", title ? title : "");
    memcpy(l->digest, digest, sizeof(l->digest));
    l->tar = n > 4 && strcmp(type + n - 4, ".tar") == 0;
    for (size_t i = 0; *l->title && i < a->n; i++)
        if (strcmp(a->layer[i].title, l->title) == 0)
            return nonsense(e, "manifest has two layers of one title");
    a->n++;
    return FETCH_OK;
}

static fetch_end read_manifest(artifact *a, const fetch_document *d, err *e)
{
    cJSON *tree = NULL;
    const cJSON *item;
    fetch_end end = FETCH_OK;
    uint8_t sha[DIGEST_BYTES];
    digest_bytes(d->n > 0 ? d->bytes : "", d->n, sha);
    if (is_digest(a->where->reference) && !digest_is(a->where->reference, sha))
        return nonsense(e, "manifest is not the one that the digest names");
    if (!d->bytes || json_parse(d->bytes, d->n, &json_limits_request, &tree, e))
        return nonsense(e, "manifest is no JSON");
    const cJSON *layers = json_get(tree, "layers");
    if (json_get(tree, "manifests"))
        end = nonsense(e, "answer is an index of several manifests: name one by its digest");
    else if (!cJSON_IsArray(layers) || cJSON_GetArraySize(layers) > ARTIFACT_LAYERS_MAX)
        end = nonsense(e, "manifest has no layers, or more than 64");
    for (item = end ? NULL : layers->child; item && !end; item = item->next)
        end = read_layer(a, item, e);
    cJSON_Delete(tree);
    return end;
}

static bool url_of(const artifact *a, const char *kind, const char *what, char out[SIGV4_PATH_MAX])
{
    return snprintf(out, SIGV4_PATH_MAX, "%s/%s/%s", a->where->url, kind, what) < SIGV4_PATH_MAX;
}

fetch_end artifact_open(artifact **out, const source *s, const source_rules *r,
                        const fetch_secret *secret, err *e)
{
    artifact *a = calloc(1, sizeof(*a));
    fetch_document d = {.most = MANIFEST_MAX};
    const fetch_sink sink = fetch_document_sink(&d);
    char url[SIGV4_PATH_MAX];
    if (!a) {
        err_set(e, ERR_NOMEM, "out of memory");
        return FETCH_AWAY;
    }
    *a = (artifact){.where = s, .rules = r, .secret = secret};
    fetch_end end = FETCH_OK;
    if (!url_of(a, "manifests", s->reference, url) ||
        (secret->bearer && !fetch_authorization(secret, a->authorization)))
        end = nonsense(e, "address or credentials are too long");
    if (!end) end = ask(a, url, ACCEPT_MANIFESTS, &sink, e);
    if (!end) end = read_manifest(a, &d, e);
    fetch_document_drop(&d);
    if (!end)
        *out = a;
    else
        artifact_close(a);
    return end;
}

void artifact_close(artifact *a)
{
    if (a) OPENSSL_cleanse(a->authorization, sizeof(a->authorization));
    free(a);
}

size_t artifact_layers(const artifact *a, const artifact_layer **out)
{
    *out = a->layer;
    return a->n;
}

/* ------------------------------------------------------------------------- the layers -- */

typedef struct {
    const fetch_sink *to;
    const artifact_layer *l;
    digest_state sha;
    int64_t n;
} watched;

static err_code not_its_size(const artifact_layer *l, err *e)
{
    return err_set(e, ERR_CORRUPT, "a layer does not have the %lld bytes that the manifest names",
                   (long long)l->bytes);
}

static err_code begin_layer(void *arg, int64_t bytes, err *e)
{
    watched *w = arg;
    if (bytes >= 0 && bytes != w->l->bytes) return not_its_size(w->l, e);
    return w->to->begin(w->to->arg, w->l->bytes, e);
}

static err_code take_layer(void *arg, const void *data, size_t len, err *e)
{
    watched *w = arg;
    w->n += (int64_t)len;
    if (w->n > w->l->bytes) return not_its_size(w->l, e);
    digest_add(&w->sha, data, len);
    return w->to->take(w->to->arg, data, len, e);
}

fetch_end artifact_fetch(artifact *a, const artifact_layer *l, const fetch_sink *sink, err *e)
{
    watched w = {.to = sink, .l = l};
    const fetch_sink between = {begin_layer, take_layer, &w};
    uint8_t sha[DIGEST_BYTES];
    char url[SIGV4_PATH_MAX];
    if (!url_of(a, "blobs", l->digest, url)) return nonsense(e, "address is too long");
    digest_begin(&w.sha);
    fetch_end end = ask(a, url, NULL, &between, e);
    if (end) return end;
    digest_end(&w.sha, sha);
    if (w.n != l->bytes)
        not_its_size(l, e);
    else if (digest_is(l->digest, sha))
        return FETCH_OK;
    else
        err_set(e, ERR_CORRUPT, "a layer is not what its digest says");
    return FETCH_SINK;
}
