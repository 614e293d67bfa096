/* source.c -- parses and checks adapters' addresses.  All parsing of hosts is by libcurl, so the
 * host that was checked is the host that is connected to.
 *
 * source_parse() translates hf://, s3:// and oci:// into an https:// address first, by the
 * configured hub or endpoint.  Then the same checks apply to all: scheme, no user, a path of plain
 * segments, and a host that `sources.hosts` lists.  '?', '#', '\' and '%' are refused in the text,
 * so no part can be encoded in a second way.
 *
 * The list of networks in `inner` is checked later, for each connection's address (fetch.c).
 */
#include "gateway/fetch/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <curl/curl.h>

enum { HTTPS_PORT = 443, SEGMENT_MAX = 255 };

#define HUB "hf://"

/* Not of the public Internet: IANA's registries of special-purpose addresses, multicast, and
 * networks whose addresses contain an IPv4 address (NAT64, 6to4, Teredo). */
static const char inner[] =
    "0.0.0.0/8,10.0.0.0/8,100.64.0.0/10,127.0.0.0/8,169.254.0.0/16,172.16.0.0/12,192.0.0.0/24,"
    "192.0.2.0/24,192.88.99.0/24,192.168.0.0/16,198.18.0.0/15,198.51.100.0/24,203.0.113.0/24,"
    "224.0.0.0/4,240.0.0.0/4,"
    "::/96,64:ff9b::/96,64:ff9b:1::/48,100::/64,2001::/23,2001:db8::/32,2002::/16,fc00::/7,"
    "fe80::/10,fec0::/10,ff00::/8";

bool source_may_reach(const source_rules *r, const network_address *a)
{
    if (!a->bits) return false;
    return !networks_hold(inner, a) || (*r->networks && networks_hold(r->networks, a));
}

err_code source_host_of(const char *url, char host[SOURCE_HOST_MAX], int *port, err *e)
{
    CURLU *u = curl_url();
    char *scheme = NULL, *name = NULL, *number = NULL, *user = NULL;
    err_code rc = ERR_NONE;
    if (!u) return err_set(e, ERR_NOMEM, "out of memory");
    if (curl_url_set(u, CURLUPART_URL, url, CURLU_NON_SUPPORT_SCHEME) ||
        curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) ||
        curl_url_get(u, CURLUPART_HOST, &name, 0)) {
        rc = err_set(e, ERR_INPUT, "the address cannot be read");
    } else if (strcmp(scheme, "https") != 0) {
        rc = err_set(e, ERR_INPUT, "the address must begin with https://");
    } else if (!curl_url_get(u, CURLUPART_USER, &user, 0)) {
        rc = err_set(e, ERR_INPUT, "the address must name no user");
    } else if (strlen(name) >= SOURCE_HOST_MAX) {
        rc = err_set(e, ERR_INPUT, "the host's name is longer than %d", SOURCE_HOST_MAX - 1);
    } else {
        snprintf(host, SOURCE_HOST_MAX, "%s", name);
        *port = curl_url_get(u, CURLUPART_PORT, &number, 0) ? HTTPS_PORT : atoi(number);
    }
    curl_free(scheme);
    curl_free(name);
    curl_free(number);
    curl_free(user);
    curl_url_cleanup(u);
    return rc;
}

/* ------------------------------------------------------------------------- allowed hosts -- */

/* The next word of a list; its length, 0: none is left. */
static size_t next_word(const char **list)
{
    *list += strspn(*list, ", \t");
    return strcspn(*list, ", \t");
}

static bool is_host(const char *word, size_t len)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]";
    return strspn(word, allowed) >= len;
}

err_code source_check_hosts(const char *hosts, err *e)
{
    for (size_t n; (n = next_word(&hosts)) > 0; hosts += n) {
        if (n >= SOURCE_HOST_MAX || !is_host(hosts, n))
            return err_set(e, ERR_INPUT, "'%.*s' is neither a host nor a host:port",
                           (int)(n < 80 ? n : 80), hosts);
    }
    return ERR_NONE;
}

bool source_host_listed(const source_rules *r, const char *host, int port)
{
    const char *hosts = r->hosts;
    char with_port[SOURCE_HOST_MAX + 8];
    int len = snprintf(with_port, sizeof(with_port), "%s:%d", host, port);
    size_t bare = strlen(host);
    for (size_t n; (n = next_word(&hosts)) > 0; hosts += n) {
        if (n == (size_t)len && strncasecmp(hosts, with_port, n) == 0) return true;
        if (port == HTTPS_PORT && n == bare && strncasecmp(hosts, host, n) == 0) return true;
    }
    return false;
}

/* ------------------------------------------------------------------------------- parsing -- */

static bool starts(const char *s, const char *with)
{
    return strncasecmp(s, with, strlen(with)) == 0;
}

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), m = strlen(with);
    return n > m && strcasecmp(s + n - m, with) == 0;
}

/* Every segment is plain: letters, digits and what needs no escape; neither "." nor "..". */
static err_code check_path(const char *path, bool empty_allowed, err *e)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+=@:,!$'()*";
    if (!*path && empty_allowed) return ERR_NONE;
    for (;; path++) {
        size_t n = strcspn(path, "/");
        if (n == 0) return err_set(e, ERR_INPUT, "the path has an empty part");
        if (n > SEGMENT_MAX)
            return err_set(e, ERR_INPUT, "a part of the path is longer than %d", SEGMENT_MAX);
        if ((n == 1 && path[0] == '.') || (n == 2 && path[0] == '.' && path[1] == '.'))
            return err_set(e, ERR_INPUT, "the path must not have '.' or '..' as a part");
        if (strspn(path, plain) < n)
            return err_set(e, ERR_INPUT,
                           "the path may have letters, digits and -._~+=@:,!$'()* only");
        path += n;
        if (!*path) return ERR_NONE;
    }
}

static void drop_slashes(char *s)
{
    for (size_t n = strlen(s); n > 0 && s[n - 1] == '/'; n--) s[n - 1] = 0;
}

/* The path of an address: after the host. */
static const char *path_of(const char *url)
{
    const char *host = strstr(url, "://");
    const char *slash = host ? strchr(host + 3, '/') : NULL;
    return slash ? slash + 1 : "";
}

err_code source_check_base(const char *url, err *e)
{
    char host[SOURCE_HOST_MAX];
    int port;
    if (!starts(url, "https://")) return err_set(e, ERR_INPUT, "it must begin with https://");
    if (source_host_of(url, host, &port, e)) return e ? e->code : ERR_INPUT;
    return check_path(path_of(url), true, e);
}

err_code source_hub_split(source_hub *out, const char *text, err *e)
{
    const char *rest = text + strlen(HUB);
    size_t n = strcspn(rest, "/");
    *out = (source_hub){.revision = "main"};
    if (n == 0 || n >= sizeof(out->owner) || rest[n] != '/')
        return err_set(e, ERR_INPUT, "hf:// needs owner/repository");
    memcpy(out->owner, rest, n);
    rest += n + 1;
    n = strcspn(rest, "@/");
    if (n == 0 || n >= sizeof(out->repo))
        return err_set(e, ERR_INPUT, "hf:// needs owner/repository");
    memcpy(out->repo, rest, n);
    rest += n;
    if (*rest == '@') {
        n = strcspn(++rest, "/");
        if (n == 0 || n >= sizeof(out->revision))
            return err_set(e, ERR_INPUT, "a revision has 1 to %zu characters",
                           sizeof(out->revision) - 1);
        snprintf(out->revision, sizeof(out->revision), "%.*s", (int)n, rest);
        rest += n;
    }
    out->path = *rest == '/' ? rest + 1 : rest;
    return ERR_NONE;
}

static err_code of_hub(source *out, const char *text, const source_rules *r, err *e)
{
    source_hub h;
    if (!*r->hub) return err_set(e, ERR_DENIED, "the server names no hub for hf:// (sources.hub)");
    if (source_hub_split(&h, text, e)) return ERR_INPUT;
    int len = snprintf(out->url, sizeof(out->url), "%s/%s/%s/resolve/%s%s%s", r->hub, h.owner,
                       h.repo, h.revision, *h.path ? "/" : "", h.path);
    return len < (int)sizeof(out->url) ? ERR_NONE
                                       : err_set(e, ERR_INPUT, "the address is too long");
}

static err_code of_bucket(source *out, const char *rest, const source_rules *r, err *e)
{
    if (!*r->s3_endpoint)
        return err_set(e, ERR_DENIED,
                       "the server names no endpoint for s3:// (sources.s3_endpoint)");
    if (!*rest || *rest == '/') return err_set(e, ERR_INPUT, "s3:// needs a bucket");
    out->s3 = true;
    int len = snprintf(out->url, sizeof(out->url), "%s/%s", r->s3_endpoint, rest);
    return len < (int)sizeof(out->url) ? ERR_NONE
                                       : err_set(e, ERR_INPUT, "the address is too long");
}

#define LOWER "abcdefghijklmnopqrstuvwxyz0123456789._-"

/* A tag, or "sha256:" with 64 digits. */
static bool is_reference(const char *s, bool digest)
{
    static const char tag[] = LOWER "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    size_t n = strlen(s);
    if (digest)
        return n == 71 && strncmp(s, "sha256:", 7) == 0 && strspn(s + 7, "0123456789abcdef") == 64;
    return n > 0 && n < SOURCE_REFERENCE_MAX && strspn(s, tag) == n && *s != '.' && *s != '-';
}

/* oci://host/repo[:tag | @sha256:...] */
static err_code of_registry(source *out, const char *rest, err *e)
{
    const char *repo = strchr(rest, '/');
    if (!repo || repo == rest || !repo[1])
        return err_set(e, ERR_INPUT, "oci:// needs a registry and a repository");
    size_t n = strcspn(++repo, ":@");
    const char *reference = repo[n] ? repo + n + 1 : "latest";
    if (n == 0 || strspn(repo, LOWER "/") < n)
        return err_set(e, ERR_INPUT, "a repository may have a-z, 0-9 and ._-/ only");
    if (!is_reference(reference, repo[n] == '@'))
        return err_set(e, ERR_INPUT, "behind oci://host/repository comes :tag or @sha256:digest");
    int len = snprintf(out->url, sizeof(out->url), "https://%.*s/v2/%.*s", (int)(repo - 1 - rest),
                       rest, (int)n, repo);
    if (len >= (int)sizeof(out->url)) return err_set(e, ERR_INPUT, "the address is too long");
    snprintf(out->reference, sizeof(out->reference), "%s", reference);
    return ERR_NONE;
}

/* The form of an adapter, by the ending of its path. */
static source_form form_of(const source *s)
{
    if (*s->reference) return SOURCE_ARTIFACT;
    if (ends(s->url, ".tar")) return SOURCE_TAR;
    return ends(s->url, ".gguf") ? SOURCE_GGUF : SOURCE_FOLDER;
}

err_code source_parse(source *out, const char *text, const source_rules *r, err *e)
{
    err_code rc = ERR_NONE;
    *out = (source){.form = SOURCE_FOLDER};
    if (strlen(text) >= SOURCE_URL_MAX / 2)
        return err_set(e, ERR_INPUT, "the address is longer than %d", SOURCE_URL_MAX / 2 - 1);
    if (strpbrk(text, "?#\\%"))
        return err_set(e, ERR_INPUT, "the address must have no query, fragment, '\\' or '%%'");
    if (starts(text, HUB))
        rc = of_hub(out, text, r, e);
    else if (starts(text, "s3://"))
        rc = of_bucket(out, text + 5, r, e);
    else if (starts(text, "oci://"))
        rc = of_registry(out, text + 6, e);
    else if (starts(text, "https://"))
        snprintf(out->url, sizeof(out->url), "%s", text);
    else
        rc = err_set(e, ERR_INPUT, "an adapter is taken from https://, hf://, s3:// or oci://");
    if (rc) return rc;
    if (!*out->reference) drop_slashes(out->url);
    rc = source_host_of(out->url, out->host, &out->port, e);
    if (!rc) rc = check_path(path_of(out->url), false, e);
    if (rc) return rc;
    if (!source_host_listed(r, out->host, out->port))
        return err_set(e, ERR_DENIED,
                       "the server does not fetch adapters from '%s' (sources.hosts)", out->host);
    out->form = form_of(out);
    return ERR_NONE;
}

bool source_file_url(const source *s, const char *file, char out[SOURCE_URL_MAX])
{
    return snprintf(out, SOURCE_URL_MAX, "%s/%s", s->url, file) < SOURCE_URL_MAX;
}

#define HOLE "{name}"

bool source_of_template(const char *text, const char *name, char out[SOURCE_URL_MAX])
{
    size_t n = 0;
    out[0] = 0;
    for (const char *hole; *text && n < SOURCE_URL_MAX; text = hole) {
        hole = strstr(text, HOLE);
        int plain = hole ? (int)(hole - text) : (int)strlen(text);
        n += (size_t)snprintf(out + n, SOURCE_URL_MAX - n, "%.*s%s", plain, text, hole ? name : "");
        hole = hole ? hole + strlen(HOLE) : text + plain;
    }
    return n < SOURCE_URL_MAX;
}

err_code source_check_template(const char *text, const source_rules *r, err *e)
{
    char filled[SOURCE_URL_MAX] = "";
    source s;
    const char *first = strstr(text, "://"), *hole = strstr(text, HOLE);
    const char *end = first ? strchr(first + 3, '/') : NULL;
    if (!hole || !end || hole < end)
        return err_set(e, ERR_INPUT, "it needs " HOLE " behind its host, owner or bucket");
    if (!source_of_template(text, "name", filled))
        return err_set(e, ERR_INPUT, "the address is too long");
    return source_parse(&s, filled, r, e);
}
