/* api_fields.h -- what handlers share of JSON and queries: known fields, ids, times, lists.
 *
 * Threads: workers.
 */
#ifndef GATEWAY_HTTP_API_FIELDS_H
#define GATEWAY_HTTP_API_FIELDS_H

#include "gateway/http/exchange.h"

/* Every member of `body` must be one of `known` (NULL-ended); false: answered with 400. */
bool api_only_fields(exchange *x, const cJSON *body, const char *const *known);

/* Decimal id; 0 if it is not one. */
uint64_t api_parse_id(const char *s);

/* As a text: JavaScript would round 64-bit numbers. null for 0. */
void api_write_id(jsonw *w, const char *name, uint64_t id);

/* Query values; absent: *out stays.  False: it is something else, answered with 400.
 * A whole number from lo to hi; `true` or `false`; one of `words` (NULL-ended), *out its index. */
bool api_query_number(exchange *x, const char *name, uint64_t lo, uint64_t hi, uint64_t *out);

/* `true` or `false`. */
bool api_query_flag(exchange *x, const char *name, bool *out);

/* One of the words. */
bool api_query_word(exchange *x, const char *name, const char *const *words, int *out);

/* Reads a query value in seconds since 1970 into *out_us. False: answered with 400. */
bool api_query_time(exchange *x, const char *name, int64_t *out_us);

/* Seconds since 1970 from microseconds; null for 0. */
void api_write_time(jsonw *w, const char *name, int64_t wall_us);

/* Starts {"object":"list","data":[ and ends it. */
void api_list_begin(jsonw *w);

/* Ends the list with "has_more", sends it with status 200 and clears the writer. */
void api_list_end(exchange *x, jsonw *w, bool has_more);

#endif
