/* json.h -- JSON from strangers: a strict scan first, then cJSON.
 *
 * cJSON alone accepts broken UTF-8, NUL escapes, duplicate keys, infinities and
 * trailing bytes, and can use 40 bytes of memory for each byte of input.  So the
 * text meets a validating scan with limits before cJSON sees it (RFC 8259; the
 * traps were measured, see docs/design/http.md).
 *
 * Threads: any thread.
 */
#ifndef ENGINE_BASE_JSON_H
#define ENGINE_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/err.h"

typedef struct json_limits {
    size_t max_bytes;
    int max_depth;  /* nesting of arrays and objects */
    int max_values; /* scalars + containers, the guard against amplification */
    bool last_wins; /* of members with one name the last one is kept; false: ERR_INPUT */
} json_limits;

extern const json_limits json_limits_request; /* 4 MiB, depth 64, 65,536 values */
extern const json_limits
    json_limits_trusted; /* files of the operator: 64 MiB, depth 64, 8 M values */

/* Strict RFC 8259: UTF-8 valid, no \u0000, no lone surrogates, no duplicate keys
 * in any object (but see last_wins), numbers finite, nothing after the value.  On success *out is
 * the caller's (cJSON_Delete).  ERR_INPUT names what is wrong and at which byte;
 * ERR_LIMIT names the limit.
 *
 * A double loses digits of whole numbers beyond 2^53, and whether 1 or 1.0 was written.  So a
 * number keeps its own text as `valuestring`, unless it is a whole number of at most 15 digits;
 * copies of the tree keep it, too.  json_print(), json_same() and json_order() go by it;
 * cJSON's own calls do not. */
err_code json_parse(const char *text, size_t len, const json_limits *lim, cJSON **out, err *e);

/* The tree as text, numbers as they were written; the caller frees.  NULL: no memory. */
char *json_print(const cJSON *v);

/* The same value?  1 and 1.0 are; members may stand in another order. */
bool json_same(const cJSON *a, const cJSON *b);

/* Two numbers: below, at or above 0 as a is to b. */
int json_order(const cJSON *a, const cJSON *b);

/* A number that is whole and of at most 64 bits, exactly. */
bool json_whole(const cJSON *v, int64_t *out);

/* Checks the text as json_parse() does, and makes nothing of it. */
err_code json_check(const char *text, size_t len, const json_limits *lim, err *e);

/* Case-sensitive members; NULL when absent (a JSON null is returned as such). */
const cJSON *json_get(const cJSON *obj, const char *name);

/* Typed members.  Absent or null: ERR_NONE, *out untouched, returns with *found false
 * (found may be NULL).  Wrong type or outside [lo, hi]: ERR_INPUT that names `name`,
 * the value's type and the limit.  Integers must be whole and below 2^53. */
err_code json_int(const cJSON *obj, const char *name, int64_t lo, int64_t hi, int64_t *out,
                  bool *found, err *e);

/* A number; not finite ones, which JSON does not have. */
err_code json_num(const cJSON *obj, const char *name, double lo, double hi, double *out,
                  bool *found, err *e);

/* true or false; 0 and 1 are of the wrong type. */
err_code json_bool(const cJSON *obj, const char *name, bool *out, bool *found, err *e);
/* *out borrows from obj. */
err_code json_str(const cJSON *obj, const char *name, const char **out, bool *found, err *e);

#endif
