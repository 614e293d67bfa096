/* object_store.c -- the bucket with its keys, from their file or the environment. */
#include "gateway/start/object_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gateway/start/secret_file.h"
#include "storage/digest.h"

enum { FILE_MAX = 3000, PROBE_BYTES = 32 };

/* The next line of `*at`; false: it is too long, or has what no key has. */
static bool take_line(const char **at, char *out, size_t cap)
{
    size_t n = strcspn(*at, "\r\n");
    bool fine = n < cap;
    for (size_t i = 0; i < n && fine; i++) fine = (*at)[i] > ' ' && (*at)[i] < 0x7f;
    snprintf(out, cap, "%.*s", fine ? (int)n : 0, *at);
    *at += n;
    if (**at == '\r') ++*at;
    if (**at == '\n') ++*at;
    return fine;
}

static err_code keys_of(void *arg, bucket_keys *out, err *e)
{
    const config *c = arg;
    char text[FILE_MAX];
    const char *at = text;
    err_code rc = ERR_NONE;
    if (*c->store.credentials_file) {
        rc = secret_file_read(c->data.dir, c->store.credentials_file, "store.credentials_file",
                              text, sizeof(text), e);
    } else {
        const char *id = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY"),
                   *session = getenv("AWS_SESSION_TOKEN");
        snprintf(text, sizeof(text), "%s\n%s\n%s", id ? id : "", secret ? secret : "",
                 session ? session : "");
    }
    if (!rc) {
        bool fine = take_line(&at, out->id, sizeof(out->id)) &&
                    take_line(&at, out->secret, sizeof(out->secret)) &&
                    take_line(&at, out->session, sizeof(out->session));
        if (!fine || !*out->id || !*out->secret)
            rc = err_set(e, ERR_INPUT,
                         "store.credentials_file (or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) "
                         "needs an id of at most %zu bytes and a secret of at most %zu",
                         sizeof(out->id) - 1, sizeof(out->secret) - 1);
    }
    explicit_bzero(text, sizeof(text));
    return rc;
}

err_code object_store_open(bucket **out, const config *c, err *e)
{
    bucket_keys keys;
    *out = NULL;
    if (!*c->store.url) return ERR_NONE;
    const bucket_config bc = {.url = c->store.url,
                              .endpoint = c->store.endpoint,
                              .region = c->store.region,
                              .ca_file = c->store.ca_file,
                              .timeout_us = c->store.timeout_us,
                              .keys = keys_of,
                              .arg = (void *)(uintptr_t)c};
    err_code rc = keys_of(bc.arg, &keys, e);
    explicit_bzero(&keys, sizeof(keys));
    return rc ? rc : bucket_open(out, &bc, e);
}

typedef struct {
    char bytes[PROBE_BYTES + 1];
    size_t n;
} probe;

static err_code probe_begin(void *arg, err *e)
{
    probe *p = arg;
    (void)e;
    p->n = 0;
    return ERR_NONE;
}

static err_code probe_take(void *arg, const void *data, size_t len, err *e)
{
    probe *p = arg;
    if (len > sizeof(p->bytes) - p->n) return err_set(e, ERR_CORRUPT, "the probe came back longer");
    memcpy(p->bytes + p->n, data, len);
    p->n += len;
    return ERR_NONE;
}

static err_code put_and_get(const remote *r, const char *key, const char sent[PROBE_BYTES], err *e)
{
    probe back = {.n = 0};
    uint8_t sha[DIGEST_BYTES];
    uint64_t bytes;
    const remote_sink sink = {probe_begin, probe_take, &back};
    int fd = memfd_create("probe", MFD_CLOEXEC);
    digest_bytes(sent, PROBE_BYTES, sha);
    err_code rc = fd >= 0 && write(fd, sent, PROBE_BYTES) == PROBE_BYTES
                      ? r->put(r->self, key, fd, PROBE_BYTES, sha, e)
                      : err_set(e, ERR_IO, "no memory for a probe");
    if (fd >= 0) close(fd);
    if (!rc) rc = r->size(r->self, key, &bytes, e);
    if (!rc) rc = r->get(r->self, key, &sink, e);
    if (!rc && (back.n != PROBE_BYTES || memcmp(back.bytes, sent, PROBE_BYTES) != 0))
        rc = err_set(e, ERR_CORRUPT, "the probe came back as something else");
    return rc;
}

err_code object_store_probe(const config *c, err *e)
{
    bucket *b;
    char sent[PROBE_BYTES], key[64];
    uint64_t name;
    err ignored;
    err_code rc = object_store_open(&b, c, e);
    if (rc || !b) return rc;
    const remote r = bucket_remote(b);
    random_bytes(sent, sizeof(sent));
    random_bytes(&name, sizeof(name));
    snprintf(key, sizeof(key), "probe/%016llx", (unsigned long long)name);
    rc = put_and_get(&r, key, sent, e);
    err_code drop_rc = r.drop(r.self, key, rc ? &ignored : e);
    bucket_close(b);
    return rc ? rc : drop_rc;
}
