/* multipart.c -- a machine of five states; a boundary is found across pieces by what has matched.
 *
 * The mark begins with CR and has no other, so where a match breaks off nothing of it can be the
 * beginning of another: what has matched is data, and the byte is looked at anew.
 */
#include "gateway/http/multipart.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/base/utf8.h"

enum { BEFORE, AFTER_MARK, HEAD, DATA, OVER };

static err_code broken(err *e, const char *what)
{
    return err_set(e, ERR_INPUT, "the body is not multipart/form-data: %s", what);
}

/* -------------------------------------------------------------------- parameters -- */

/* A parameter's value, unquoted, into `out` (NULL: passed over); what stands behind it.  NULL: it
 * does not end, or has no room. */
static const char *read_value(const char *p, char *out, size_t cap)
{
    size_t n = 0;
    bool quoted = *p == '"';
    for (p += quoted; *p && (quoted ? *p != '"' : !strchr("; \t", *p)); p++) {
        if (quoted && *p == '\\' && p[1]) p++;
        if (out && n + 1 >= cap) return NULL;
        if (out) out[n++] = *p;
    }
    if (quoted && *p != '"') return NULL;
    if (out) out[n] = 0;
    p += quoted;
    return p + strspn(p, " \t");
}

typedef enum { ABSENT, FOUND, BAD } found;

/* Finds the parameter `name` of a header line ("name=value" after a semicolon). */
static found find_parameter(const char *line, const char *name, char *out, size_t cap)
{
    const char *p = line + strcspn(line, ";");
    while (p && *p == ';') {
        p += 1 + strspn(p + 1, " \t");
        size_t n = strcspn(p, "=;");
        bool same = n == strlen(name) && strncasecmp(p, name, n) == 0;
        p += n;
        bool valued = *p == '=';
        if (valued) p = read_value(p + 1, same ? out : NULL, cap);
        if (same) return p && valued ? FOUND : BAD;
    }
    return p && !*p ? ABSENT : BAD;
}

static bool is_text(const char *s)
{
    for (size_t i = 0, used, n = strlen(s); i < n; i += used) {
        if (utf8_decode(s + i, n - i, &used) == 0xFFFD) return false;
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f) return false;
    }
    return true;
}

err_code multipart_begin(multipart *m, const char *content_type, const multipart_sink *sink, err *e)
{
    char boundary[MULTIPART_BOUNDARY_MAX + 1];
    static const char kind[] = "multipart/form-data";
    *m = (multipart){.sink = *sink, .matched = 2}; /* as if the body began with CR LF */
    if (!content_type || strncasecmp(content_type, kind, sizeof(kind) - 1) != 0)
        return err_set(e, ERR_INPUT, "Content-Type must be multipart/form-data");
    if (find_parameter(content_type, "boundary", boundary, sizeof(boundary)) != FOUND ||
        !boundary[0] || !is_text(boundary))
        return err_set(e, ERR_INPUT, "Content-Type must name a boundary of 1 to %d bytes",
                       MULTIPART_BOUNDARY_MAX);
    m->n_mark = (size_t)snprintf(m->mark, sizeof(m->mark), "\r\n--%s", boundary);
    assert(m->n_mark < sizeof(m->mark));
    return ERR_NONE;
}

/* --------------------------------------------------------------------------- heads -- */

/* The head is whole: tells the sink what the part is. */
static err_code begin_part(multipart *m, err *e)
{
    char name[MULTIPART_NAME_MAX + 1], file[MULTIPART_NAME_MAX + 1];
    static const char field[] = "content-disposition:";
    const char *line = m->head;
    char *end;
    m->head[m->n_head] = 0;
    if (strlen(m->head) != m->n_head) return broken(e, "a part's head has a NUL byte");
    while (*line && strncasecmp(line, field, sizeof(field) - 1) != 0) {
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    end = strstr(line, "\r\n");
    if (end) *end = 0;
    if (find_parameter(line, "name", name, sizeof(name)) != FOUND || !is_text(name))
        return broken(e, "a part has no name of up to 255 bytes in its Content-Disposition");
    found is = find_parameter(line, "filename", file, sizeof(file));
    if (is == BAD || (is == FOUND && !is_text(file)))
        return broken(e, "a file's name must be a text of up to 255 bytes");
    if (find_parameter(line, "filename*", NULL, 0) != ABSENT)
        return broken(e, "a file has a name by 'filename*', which RFC 7578 does not allow");
    if (++m->n_parts > MULTIPART_PARTS_MAX) return broken(e, "it has more than 64 parts");
    m->state = DATA;
    m->matched = 0;
    return m->sink.begin(m->sink.arg, name, is == FOUND ? file : NULL, e);
}

static err_code take_head(multipart *m, char c, err *e)
{
    assert(m->n_head <= MULTIPART_HEAD_MAX);
    if (m->n_head == MULTIPART_HEAD_MAX)
        return broken(e, "a part's head is longer than 4096 bytes");
    m->head[m->n_head++] = c;
    bool bare = m->n_head == 2 && memcmp(m->head, "\r\n", 2) == 0;
    bool whole = m->n_head >= 4 && memcmp(m->head + m->n_head - 4, "\r\n\r\n", 4) == 0;
    return bare || whole ? begin_part(m, e) : ERR_NONE;
}

/* Behind a mark: "--" ends the body, CR LF begins a part; blanks before that are allowed. */
static err_code take_after(multipart *m, char c, err *e)
{
    assert(m->n_head < 2);
    if (m->n_head == 0 && (c == ' ' || c == '\t')) return ERR_NONE;
    m->head[m->n_head++] = c;
    if (m->n_head < 2) return ERR_NONE;
    m->n_head = 0;
    if (memcmp(m->head, "--", 2) == 0)
        m->state = OVER;
    else if (memcmp(m->head, "\r\n", 2) == 0)
        m->state = HEAD;
    else
        return broken(e, "a boundary's line goes on");
    return ERR_NONE;
}

/* --------------------------------------------------------------------------- bytes -- */

static err_code give(multipart *m, const void *data, size_t len, err *e)
{
    return len == 0 || m->state != DATA ? ERR_NONE : m->sink.data(m->sink.arg, data, len, e);
}

/* Where the mark stands, or begins with what is left of the piece; len: nowhere. */
static size_t find_mark(const multipart *m, const char *s, size_t len)
{
    assert(m->n_mark > 4); /* CR LF and two hyphens, and a byte at least */
    const char *cr = memchr(s, '\r', len);
    while (cr) {
        size_t left = len - (size_t)(cr - s);
        if (memcmp(cr, m->mark, left < m->n_mark ? left : m->n_mark) == 0) break;
        cr = memchr(cr + 1, '\r', left - 1);
    }
    return cr ? (size_t)(cr - s) : len;
}

/* Data up to a mark; how much of it was looked at goes into *used. */
static err_code take_data(multipart *m, const char *s, size_t len, size_t *used, err *e)
{
    assert(len > 0 && m->matched < m->n_mark);
    err_code rc = ERR_NONE;
    size_t i = 0;
    if (m->matched == 0) {
        *used = find_mark(m, s, len);
        m->matched = *used < len;
        rc = give(m, s, *used, e);
        *used += m->matched;
        return rc;
    }
    while (i < len && m->matched < m->n_mark && s[i] == m->mark[m->matched]) i++, m->matched++;
    *used = i;
    if (m->matched == m->n_mark) {
        if (m->state == DATA) rc = m->sink.end(m->sink.arg, e);
        m->state = AFTER_MARK;
        m->n_head = 0;
    } else if (i < len) {
        size_t was = m->matched;
        m->matched = 0;
        rc = give(m, m->mark, was, e);
    }
    return rc;
}

err_code multipart_feed(multipart *m, const void *data, size_t len, err *e)
{
    const char *s = data;
    err_code rc = ERR_NONE;
    while (!rc && len > 0 && m->state != OVER) {
        size_t used = 1;
        if (m->state == AFTER_MARK)
            rc = take_after(m, *s, e);
        else if (m->state == HEAD)
            rc = take_head(m, *s, e);
        else
            rc = take_data(m, s, len, &used, e);
        s += used;
        len -= used;
    }
    return rc;
}

err_code multipart_finish(const multipart *m, err *e)
{
    return m->state == OVER ? ERR_NONE : broken(e, "its last boundary is missing");
}
