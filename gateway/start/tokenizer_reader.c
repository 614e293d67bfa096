/* tokenizer_reader.c -- one thread, one tokenizer. */
#include "gateway/start/tokenizer_reader.h"

static void *read_it(void *arg)
{
    tokenizer_reader *r = arg;
    r->rc = tokenizer_load(&r->tok, r->path, &r->e);
    return NULL;
}

void tokenizer_reader_begin(tokenizer_reader *r, const char *path)
{
    *r = (tokenizer_reader){.path = path};
    r->apart = pthread_create(&r->thread, NULL, read_it, r) == 0;
}

err_code tokenizer_reader_end(tokenizer_reader *r, tokenizer **out, err *e)
{
    if (r->apart)
        (void)pthread_join(r->thread, NULL);
    else
        (void)read_it(r);
    *out = r->tok;
    if (r->rc && e) *e = r->e;
    return r->rc;
}
