/* source.h -- where an adapter lies elsewhere: https://, hf://, s3:// and oci:// as addresses.
 *
 *   https://host[:port]/folder            a folder; ...tar: its tar; ...gguf: that file
 *   hf://owner/repo[@revision][/folder]   a repository of the hub that sources.hub names
 *   s3://bucket/prefix                    objects at sources.s3_endpoint, addressed by path
 *   oci://host[:port]/repo[:tag]          an artifact in a registry (fetch/artifact.h; tag: latest)
 *   oci://host[:port]/repo@sha256:...     that artifact alone
 *
 * The text is a tenant's.  What is not wholly understood is refused: other schemes, users and
 * passwords, queries, fragments, segments "." and "..", a host that sources.hosts does not list.
 * The address that a name leads to is checked when it is connected to (fetch.h).
 *
 * Ownership: plain values.  Threads: any.
 */
#ifndef GATEWAY_FETCH_SOURCE_H
#define GATEWAY_FETCH_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "gateway/http/networks.h"

enum { SOURCE_URL_MAX = 1024, SOURCE_HOST_MAX = 256, SOURCE_REFERENCE_MAX = 129 };

/* The operator's rules ([sources] of the configuration); borrowed. */
typedef struct source_rules {
    const char *hosts;    /* "name, name:port ..."; empty: nothing is fetched */
    const char *networks; /* blocks of this host's own networks that may be reached, too */
    const char *hub, *s3_endpoint, *s3_region;
    const char *ca_file; /* empty: the system's */
    int64_t timeout_us;  /* for a whole file */
} source_rules;

typedef enum { SOURCE_FOLDER, SOURCE_TAR, SOURCE_GGUF, SOURCE_ARTIFACT } source_form;

typedef struct source {
    char url[SOURCE_URL_MAX];             /* of the folder, without '/' at its end; of the file */
    char reference[SOURCE_REFERENCE_MAX]; /* of an artifact in the repository: tag or digest */
    char host[SOURCE_HOST_MAX];
    int port;
    source_form form;
    bool s3;
} source;

/* hf://owner/repo[@revision][/path]. */
typedef struct source_hub {
    char owner[128], repo[128], revision[128]; /* revision: "main" if the text has none */
    const char *path;                          /* "": the whole repository; borrows from the text */
} source_hub;

/* ERR_INPUT: a part is missing or too long.  source_parse() checks their characters. */
err_code source_hub_split(source_hub *out, const char *text, err *e);

/* ERR_INPUT: what is wrong with the text; ERR_DENIED: the rules do not allow its host. */
err_code source_parse(source *out, const char *text, const source_rules *r, err *e);

/* A template of sources: "{name}" once or more, behind the first part of the path (so that no name
 * chooses a host, an owner or a bucket).  Checked with a name in it.  Errors as source_parse(). */
err_code source_check_template(const char *text, const source_rules *r, err *e);
/* With a name in its places; false: too long. */
bool source_of_template(const char *text, const char *name, char out[SOURCE_URL_MAX]);

/* The address of a folder's file; false: too long. */
bool source_file_url(const source *s, const char *file, char out[SOURCE_URL_MAX]);

/* Takes an https:// address apart, a redirect's too.  ERR_INPUT: another scheme, or a user. */
err_code source_host_of(const char *url, char host[SOURCE_HOST_MAX], int *port, err *e);

/* Does sources.hosts list it? */
bool source_host_listed(const source_rules *r, const char *host, int port);

/* May a connection go to this address?  Public ones; others only if rules.networks holds them. */
bool source_may_reach(const source_rules *r, const network_address *a);

/* A list of hosts is well-formed; an address of a hub or an endpoint is https:// without a path
 * that could be mistaken.  For the configuration. */
err_code source_check_hosts(const char *hosts, err *e);
err_code source_check_base(const char *url, err *e);

#endif
