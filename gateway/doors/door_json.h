/* door_json.h -- trees of JSON for the doors: small, and for want of memory incomplete.
 *
 * A call that finds no memory does nothing; who builds a tree looks at memory_failures() once, when
 * it is whole.  Threads: the tree's owner.
 */
#ifndef GATEWAY_DOORS_DOOR_JSON_H
#define GATEWAY_DOORS_DOOR_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "gateway/http/exchange.h"
#include "gateway/http/jsonw.h"
#include "gateway/openai/completion_door.h"

/* Takes `v` over; NULL is passed over, and so is any `o` that is NULL. */
void door_add(cJSON *o, const char *name, cJSON *v);
void door_append(cJSON *list, cJSON *v);
void door_set(cJSON *o, const char *name, cJSON *v);           /* in place of what is there */
void door_add_text(cJSON *o, const char *name, const char *s); /* NULL: null */
void door_add_number(cJSON *o, const char *name, double v);
void door_add_seconds(cJSON *o, const char *name, int64_t wall_us); /* since 1970 */
void door_add_bool(cJSON *o, const char *name, bool v);
/* A copy of the member, or null where there is none. */
void door_copy(cJSON *o, const char *name, const cJSON *from);
/* The same where it is there and not null. */
void door_copy_set(cJSON *o, const char *name, const cJSON *from, const char *as);

/* NULL where the member is absent, null or of another type. */
const char *door_text(const cJSON *o, const char *name);
bool door_is(const cJSON *o, const char *name, const char *text);

/* The tree as a member of what is written. */
void door_write(jsonw *w, const char *name, const cJSON *tree);

/* prefix and 24 random bytes in hex; `out` has room for 64 bytes. */
void door_make_id(const char *prefix, char *out);

/* What becomes of a member of a body. */
typedef enum { DOOR_TAKEN, DOOR_PASSED, DOOR_IGNORED, DOOR_REFUSED } door_fate;
typedef struct door_field {
    const char *name;
    door_fate fate;
} door_field;

/* Passes on what goes to the chat as it is, notes what has no effect (refuses it where the client
 * wants that), refuses what cannot be done.  False: *p says why. */
bool door_sort(exchange *x, const cJSON *body, const door_field *fields, size_t n, cJSON *chat,
               openai_problem *p);

/* The member `metadata`: at most 16 strings of 512 bytes, under names of 64.  False: *p says
 * why. */
bool door_check_metadata(const cJSON *body, openai_problem *p);

/* Answers with an error of OpenAI's shape. */
void door_send_problem(exchange *x, const openai_problem *p);

/* Answers how many tokens the chat has that the body is translated to; `object`: the answer's
 * member of that name, NULL: it has none.  `state` is the translator's. */
void door_count(exchange *x, const completion_door *door, void *state, const char *object);

#endif
