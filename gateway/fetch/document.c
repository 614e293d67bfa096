/* document.c -- see document.h. */
#include "gateway/fetch/document.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

static err_code too_long(const fetch_document *d, err *e)
{
    return err_set(e, ERR_LIMIT, "the other server's answer is longer than %zu bytes", d->most);
}

static err_code begin(void *arg, int64_t bytes, err *e)
{
    const fetch_document *d = arg;
    return bytes <= (int64_t)d->most ? ERR_NONE : too_long(d, e);
}

static err_code take(void *arg, const void *data, size_t len, err *e)
{
    fetch_document *d = arg;
    if (len > d->most - d->n) return too_long(d, e);
    char *more = realloc(d->bytes, d->n + len + 1);
    if (!more) return err_set(e, ERR_NOMEM, "out of memory");
    memcpy(more + d->n, data, len);
    d->bytes = more;
    d->n += len;
    return ERR_NONE;
}

fetch_sink fetch_document_sink(fetch_document *d)
{
    return (fetch_sink){begin, take, d};
}

void fetch_document_drop(fetch_document *d)
{
    if (d->bytes) OPENSSL_cleanse(d->bytes, d->n);
    free(d->bytes);
    *d = (fetch_document){.most = d->most};
}
