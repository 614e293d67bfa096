/* sse.c -- cuts server-sent events out of the lines of a stream. */
#include "tui/sse.h"

#include <stdlib.h>
#include <string.h>

static err_code append(char **buf, size_t *len, size_t *cap, const char *s, size_t n, err *e)
{
    if (*len + n > SSE_EVENT_MAX_BYTES) {
        return err_set(e, ERR_LIMIT, "the server sent an event of more than %d bytes",
                       SSE_EVENT_MAX_BYTES);
    }
    if (*len + n + 1 > *cap) {
        size_t want = 2 * (*len + n) + 256;
        char *bigger = realloc(*buf, want);
        if (!bigger) return err_set(e, ERR_NOMEM, "out of memory");
        *buf = bigger;
        *cap = want;
    }
    if (n) memcpy(*buf + *len, s, n);
    *len += n;
    (*buf)[*len] = 0;
    return ERR_NONE;
}

static err_code end_event(sse_parser *p, err *e)
{
    if (!p->has_data) return ERR_NONE;
    bool on = p->on_event(p->arg, p->data, p->data_len);
    p->data_len = 0;
    p->has_data = false;
    return on ? ERR_NONE : err_set(e, ERR_CANCELLED, "stopped");
}

static err_code end_line(sse_parser *p, err *e)
{
    size_t n = p->line_len;
    p->line_len = 0;
    if (n && p->line[n - 1] == '\r') n--;
    if (n == 0) return end_event(p, e);
    if (n < 5 || memcmp(p->line, "data:", 5) != 0) return ERR_NONE;
    size_t skip = n > 5 && p->line[5] == ' ' ? 6 : 5;
    err_code rc = ERR_NONE;
    if (p->has_data) rc = append(&p->data, &p->data_len, &p->data_cap, "\n", 1, e);
    p->has_data = true;
    return rc ? rc : append(&p->data, &p->data_len, &p->data_cap, p->line + skip, n - skip, e);
}

err_code sse_feed(sse_parser *p, const char *bytes, size_t len, err *e)
{
    while (len) {
        const char *lf = memchr(bytes, '\n', len);
        size_t n = lf ? (size_t)(lf - bytes) : len;
        err_code rc = append(&p->line, &p->line_len, &p->line_cap, bytes, n, e);
        if (!rc && lf) rc = end_line(p, e);
        if (rc) return rc;
        n += lf != NULL;
        bytes += n;
        len -= n;
    }
    return ERR_NONE;
}

void sse_clear(sse_parser *p)
{
    free(p->line);
    free(p->data);
    p->line = p->data = NULL;
    p->line_len = p->line_cap = p->data_len = p->data_cap = 0;
    p->has_data = false;
}
