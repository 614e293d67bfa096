/* source_files.c -- the files of a source, one after the other into an upload.
 *
 *     a tar        its bytes, as if they were sent
 *     a GGUF       one file
 *     a folder     adapter_config.json, the weights, then what there is of a tokenizer
 *     an artifact  layers by their titles; or one layer alone, a GGUF or a tar
 *
 * Nothing is stored in between: a piece that arrives is hashed, where a SHA-256 of the weights
 * (or of the one file) was given, and goes into the upload, which checks it as an upload by a
 * client. Each piece asks watch->still() first, so a revoked key ends a fetch within one piece.
 */
#include "gateway/rest/source_files.h"

#include <stdio.h>
#include <string.h>

#include "gateway/fetch/artifact.h"
#include "gateway/process_parts.h"
#include "storage/digest.h"

typedef struct {
    const source_watch *watch;
    upload *u;
    const char *file; /* its name in the tar; NULL: the bytes are a tar */
    digest_state sha;
    bool hashed; /* this file's SHA-256 is asked */
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
    err_code rc = t->watch->still(t->watch->arg, e);
    if (rc) return rc;
    if (t->hashed) digest_add(&t->sha, data, len);
    return t->file ? upload_file_write(t->u, data, len, e) : upload_write(t->u, data, len, e);
}

/* -------------------------------------------------------------------------- the source -- */

/* Before a file comes, and behind it. */
static void next_file(const source_plan *p, transfer *t, const char *file, bool hashed)
{
    t->file = file;
    t->hashed = hashed && p->sha256;
}

static fetch_end end_file(const transfer *t, fetch_end end, err *e)
{
    return !end && t->file && upload_file_end(t->u, e) ? FETCH_SINK : end;
}

static fetch_end fetch_one(const source_plan *p, transfer *t, const char *file, bool hashed, err *e)
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
    fetch_end end = fetch_file(&p->where, url, &p->rules, p->secret, &sink, e);
    end = end_file(t, end, e);
    if (end && end != FETCH_SINK && p->where.form == SOURCE_FOLDER) err_context(e, "%s", file);
    return end;
}

static fetch_end fetch_layer(const source_plan *p, transfer *t, artifact *a,
                             const artifact_layer *l, const char *file, bool hashed, err *e)
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

/* Fetches the layers whose titles are names of PEFT's files, or a single layer: a GGUF or a tar. */
static fetch_end fetch_layers(const source_plan *p, transfer *t, artifact *a, err *e)
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

static fetch_end fetch_artifact(const source_plan *p, transfer *t, err *e)
{
    artifact *a;
    fetch_end end = artifact_open(&a, &p->where, &p->rules, p->secret, e);
    if (end) return end;
    end = fetch_layers(p, t, a, e);
    artifact_close(a);
    return end;
}

/* Config and weights must be there; of a tokenizer there is what there is. */
static fetch_end fetch_all(const source_plan *p, transfer *t, err *e)
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

static bool sha_matches(const source_plan *p, transfer *t, err *e)
{
    uint8_t sha[DIGEST_BYTES];
    char hex[DIGEST_HEX];
    if (!p->sha256) return true;
    digest_end(&t->sha, sha);
    digest_hex(sha, hex);
    if (strcmp(hex, p->sha256) == 0) return true;
    err_set(e, ERR_CORRUPT, "what came has another SHA-256 than 'sha256' says: %s", hex);
    return false;
}

fetch_end source_fetch(const source_plan *p, upload *u, const source_watch *watch, err *e)
{
    transfer t = {.watch = watch, .u = u};
    digest_begin(&t.sha);
    fetch_end end = fetch_all(p, &t, e);
    return end || sha_matches(p, &t, e) ? end : FETCH_SINK;
}

source_rules source_rules_of(const config_sources *s)
{
    return (source_rules){.hosts = s->hosts,
                          .networks = s->networks,
                          .hub = s->hub,
                          .s3_endpoint = s->s3_endpoint,
                          .s3_region = s->s3_region,
                          .ca_file = s->ca_file,
                          .timeout_us = s->timeout_us};
}
