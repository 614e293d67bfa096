/* hub.c -- the hub's list of a repository's files.
 *
 * One call, GET /api/models/OWNER/REPO/revision/REV?blobs=true, says the commit and for each
 * file its size and digest: SHA-256 of a large one, git's blob id (SHA-1) of a small one. Files
 * are then fetched by that commit, so a push meanwhile does not mix two revisions; a file
 * without a digest is left out of the list, and missed where it is needed.
 *
 * A hub that is away, or answers with a 5xx, is asked again after 0.5 s, 1 s, and so on. Its
 * host is sources.hub, checked as sources.hosts is for tenants (source.h).
 */
#include "gateway/fetch/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/crypto.h>

#include "engine/base/hex.h"
#include "engine/base/json.h"
#include "gateway/fetch/document.h"
#include "gateway/fetch/hub_inside.h"

enum { LIST_MAX = 16 << 20, PAUSE_MS = 500, SLICE_MS = 100 };

static const json_limits list_limits = {LIST_MAX, 64, 1 << 20, false};

/* sources.hosts for the operator: the hub's own host. */
static err_code own_rules(const source_rules *r, char host[SOURCE_HOST_MAX + 8], source_rules *out,
                          err *e)
{
    char name[SOURCE_HOST_MAX];
    int port;
    if (!*r->hub)
        return err_set(e, ERR_DENIED, "hf:// needs sources.hub, the https:// address of a hub");
    if (source_host_of(r->hub, name, &port, e)) return err_context(e, "sources.hub");
    snprintf(host, SOURCE_HOST_MAX + 8, "%s:%d", name, port);
    *out = *r;
    out->hosts = host;
    return ERR_NONE;
}

err_code hub_check(const char *text, const source_rules *r, err *e)
{
    char host[SOURCE_HOST_MAX + 8];
    source_rules own;
    source where;
    err_code rc = own_rules(r, host, &own, e);
    return rc ? rc : source_parse(&where, text, &own, e);
}

/* -------------------------------------------------------------------------- one call -- */

fetch_end hub_ask(hub *h, const char *url, int64_t *from, long *status, const fetch_sink *sink,
                  err *e)
{
    char authorization[FETCH_HEADER_MAX];
    const fetch_secret secret = {.bearer = h->terms.token};
    const fetch_call call = {.url = url,
                             .authorization = authorization,
                             .from = from,
                             .status = status,
                             .still = h->terms.still,
                             .still_arg = h->terms.arg};
    fetch_end end = FETCH_ANSWER;
    if (fetch_authorization(&secret, authorization))
        end = fetch_ask(&h->where, &call, &h->rules, sink, e);
    else
        err_set(e, ERR_INPUT, "the token is too long");
    OPENSSL_cleanse(authorization, sizeof(authorization));
    return end;
}

err_code hub_pause(const hub *h, int n, err *e)
{
    const struct timespec slice = {0, SLICE_MS * 1000000L};
    err_code rc = ERR_NONE;
    for (int ms = 0; !rc && ms < PAUSE_MS << (n - 1); ms += SLICE_MS) {
        (void)nanosleep(&slice, NULL);
        rc = h->terms.still(h->terms.arg, e);
    }
    return rc;
}

err_code hub_failed(fetch_end end, long status, const char *what, err *e)
{
    if (end == FETCH_SINK || end == FETCH_REFUSED) return e->code;
    if (status == 404) return err_set(e, ERR_NOT_FOUND, "the hub has no %s", what);
    if (status == 401)
        return err_set(e, ERR_DENIED,
                       "the hub answered 401: there is no %s, or it needs a token "
                       "(sources.hub_token_file)",
                       what);
    if (status == 403)
        return err_set(e, ERR_DENIED,
                       "the hub answered 403: the token's owner has no access; perhaps the model's "
                       "terms have to be accepted first");
    return e->code;
}

/* -------------------------------------------------------------------------- the list -- */

static bool is_hex(const char *s, size_t n)
{
    return s && strlen(s) == n && strspn(s, HEX_DIGITS) == n;
}

/* False: one that cannot be checked is left out, and missed where it is needed. */
static bool read_file(hub_file *out, const cJSON *item)
{
    const char *path = cJSON_GetStringValue(json_get(item, "rfilename"));
    const cJSON *large = json_get(item, "lfs");
    bool is_large = cJSON_IsObject(large);
    const char *digest =
        cJSON_GetStringValue(is_large ? json_get(large, "sha256") : json_get(item, "blobId"));
    const cJSON *size = json_get(is_large ? large : item, "size");
    if (!path || strlen(path) >= HUB_PATH_MAX || !is_hex(digest, is_large ? 64 : 40) || !size ||
        !json_whole(size, &out->bytes) || out->bytes < 0)
        return false;
    snprintf(out->path, sizeof(out->path), "%s", path);
    snprintf(out->digest, sizeof(out->digest), "%s", digest);
    return true;
}

static err_code read_list(hub *h, const fetch_document *d, err *e)
{
    cJSON *tree = NULL;
    const cJSON *item;
    if (!d->bytes || json_parse(d->bytes, d->n, &list_limits, &tree, e))
        return err_set(e, ERR_INPUT, "the hub's list of files is not JSON");
    const char *commit = cJSON_GetStringValue(json_get(tree, "sha"));
    const cJSON *list = json_get(tree, "siblings");
    err_code rc = ERR_NONE;
    if (!cJSON_IsArray(list) || (!is_hex(commit, 40) && !is_hex(commit, 64))) {
        rc = err_set(e, ERR_INPUT, "the hub's list of files has no \"sha\" or no \"siblings\"");
    } else {
        h->file = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(*h->file));
        if (!h->file) rc = err_set(e, ERR_NOMEM, "out of memory");
        snprintf(h->commit, sizeof(h->commit), "%s", commit);
    }
    for (item = rc ? NULL : list->child; item; item = item->next)
        h->n_file += read_file(&h->file[h->n_file], item);
    cJSON_Delete(tree);
    return rc;
}

static err_code fetch_list(hub *h, err *e)
{
    fetch_document d = {.most = LIST_MAX};
    const fetch_sink sink = fetch_document_sink(&d);
    char url[SOURCE_URL_MAX], what[SOURCE_URL_MAX / 2];
    long status = 0;
    fetch_end end = FETCH_AWAY;
    snprintf(what, sizeof(what), "%.80s/%.80s with revision '%.60s'", h->name.owner, h->name.repo,
             h->name.revision);
    if (snprintf(url, sizeof(url), "%s/api/models/%s/%s/revision/%s?blobs=true", h->rules.hub,
                 h->name.owner, h->name.repo, h->name.revision) >= (int)sizeof(url))
        return err_set(e, ERR_INPUT, "the address is too long");
    for (int n = 0; n < HUB_ATTEMPTS && end == FETCH_AWAY; n++) {
        fetch_document_drop(&d);
        if (n > 0 && hub_pause(h, n, e)) return e->code;
        end = hub_ask(h, url, NULL, &status, &sink, e);
    }
    err_code rc = end ? hub_failed(end, status, what, e) : read_list(h, &d, e);
    fetch_document_drop(&d);
    return rc;
}

err_code hub_open(hub **out, const char *text, const hub_terms *t, err *e)
{
    hub *h = calloc(1, sizeof(*h));
    if (!h) return err_set(e, ERR_NOMEM, "out of memory");
    h->terms = *t;
    snprintf(h->text, sizeof(h->text), "%s", text);
    err_code rc = own_rules(t->rules, h->host, &h->rules, e);
    if (!rc) rc = source_parse(&h->where, h->text, &h->rules, e);
    if (!rc) rc = source_hub_split(&h->name, h->text, e);
    if (!rc) rc = fetch_list(h, e);
    if (rc)
        hub_close(h);
    else
        *out = h;
    return rc;
}

void hub_close(hub *h)
{
    if (h) free(h->file);
    free(h);
}

const hub_file *hub_find(const hub *h, const char *path)
{
    for (size_t i = 0; i < h->n_file; i++)
        if (strcmp(h->file[i].path, path) == 0) return &h->file[i];
    return NULL;
}
