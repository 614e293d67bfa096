/* jsonw.h -- JSON, written straight into one growing buffer.
 *
 * For answers that are sent once per token, where building a tree first would cost more than the
 * token.  Commas are put by the writer; strings are escaped and must be valid UTF-8 (the
 * detokeniser sees to that).  A failed allocation makes the writer sticky-failed: `failed` is set,
 * later calls do nothing, and the caller checks once.
 *
 * Ownership: the caller's struct; jsonw_clear() frees.  Threads: owner thread.
 */
#ifndef GATEWAY_HTTP_JSONW_H
#define GATEWAY_HTTP_JSONW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct jsonw {
    char *text; /* NUL-ended when not NULL */
    size_t len, cap;
    bool failed, fixed;
    bool comma; /* the next value or name needs one */
} jsonw;

/* An empty writer; takes no memory yet. */
void jsonw_init(jsonw *w);
/* In the caller's memory, for what must be said when there is no other; fails when it is full. */
void jsonw_init_fixed(jsonw *w, char *text, size_t cap);

/* Frees the text. Memory of the caller (jsonw_init_fixed()) stays. */
void jsonw_clear(jsonw *w);
/* Forgets the text, keeps the memory. */
void jsonw_reset(jsonw *w);
/* Takes the memory for `bytes` more at once: nothing of what is written is left behind by
 * growing. */
void jsonw_reserve(jsonw *w, size_t bytes);

/* Bytes as they are, outside JSON's grammar ("data: "). */
void jsonw_raw(jsonw *w, const char *s, size_t len);

/* Containers; `name` is NULL inside arrays and at the top. */
void jsonw_open(jsonw *w, const char *name, char bracket); /* '{' or '[' */
void jsonw_close(jsonw *w, char bracket);                  /* '}' or ']' */

void jsonw_str(jsonw *w, const char *name, const char *s); /* NULL: null */
void jsonw_strn(jsonw *w, const char *name, const char *s, size_t len);
void jsonw_int(jsonw *w, const char *name, int64_t v);
void jsonw_num(jsonw *w, const char *name, double v); /* not finite: null */
void jsonw_bool(jsonw *w, const char *name, bool v);

/* null. */
void jsonw_null(jsonw *w, const char *name);
/* A value that is JSON already; NULL: null. */
void jsonw_json(jsonw *w, const char *name, const char *text, size_t len);

#endif
