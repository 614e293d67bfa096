/* artifact.h -- an adapter in a registry of the OCI distribution API (oci://).
 *
 * The manifest is asked for by tag or digest, then each layer that is wanted.  A layer is a file by
 * its title (org.opencontainers.image.title), or a manifest has one layer alone that is a plain
 * tar. An index of several manifests, and compressed layers, are refused by name.  All bytes are
 * held to the digests that name them; a tag names a manifest by the registry's word alone.
 *
 * Where the registry answers 401, what it asks for is done: HTTP's Basic scheme with the secret, or
 * a token from the server that it names.  That server gets the secret only if it is the registry's
 * own host and port; else it must stand in sources.hosts and is asked without.  The token goes to
 * the registry alone.
 *
 * Ownership: artifact_open() copies nothing: its arguments live as long.  Threads: one at a time.
 */
#ifndef GATEWAY_FETCH_ARTIFACT_H
#define GATEWAY_FETCH_ARTIFACT_H

#include "gateway/fetch/fetch.h"

enum { ARTIFACT_LAYERS_MAX = 64, ARTIFACT_TITLE_MAX = 256 };

typedef struct artifact artifact;

typedef struct artifact_layer {
    char title[ARTIFACT_TITLE_MAX]; /* "": it has none */
    char digest[72];                /* "sha256:..." */
    int64_t bytes;
    bool tar; /* a plain one */
} artifact_layer;

/* Fetches the manifest.  *out only with FETCH_OK. */
fetch_end artifact_open(artifact **out, const source *s, const source_rules *r,
                        const fetch_secret *secret, err *e);
void artifact_close(artifact *a); /* NULL is fine */

size_t artifact_layers(const artifact *a, const artifact_layer **out);

/* FETCH_SINK and ERR_CORRUPT where what came is not what its digest says; the sink has it then. */
fetch_end artifact_fetch(artifact *a, const artifact_layer *l, const fetch_sink *sink, err *e);

#endif
