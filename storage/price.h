/* price.h -- what tokens cost, in integers.
 *
 * Amounts are micros: millionths of the operator's currency, which lorad does not know.  Prices are
 * micros per 1,000,000 tokens, so a price of 3.00 per million tokens is 3,000,000.  The cost of a
 * request is computed once, from its own tokens and the prices at its beginning, and rounded to
 * whole micros, half up.
 *
 * At PRICE_MAX one token costs one unit of the currency.  Sums of costs are int64_t: they overflow
 * after 9.2 * 10^12 tokens at that price.
 *
 * Ownership: plain data.  Threads: any.
 */
#ifndef STORAGE_PRICE_H
#define STORAGE_PRICE_H

#include <stdint.h>

#define PRICE_MAX        INT64_C(1000000000000) /* micros per 1,000,000 tokens */
#define PRICE_TOKENS_MAX (INT64_C(1) << 40)     /* of one request; more count as so many */

typedef struct token_price { /* micros per 1,000,000 tokens, each 0 to PRICE_MAX */
    int64_t prompt;          /* prompt tokens that the prefix cache did not have */
    int64_t cached;          /* prompt tokens from the prefix cache */
    int64_t output;
} token_price;

/* Adds `more` to each direction; sums above PRICE_MAX become PRICE_MAX. */
void price_add(token_price *p, const token_price *more);

/* Micros.  `prompt` includes `cached`; negative counts are 0. */
int64_t price_cost(const token_price *p, int64_t prompt, int64_t cached, int64_t output);

/* The most that so many tokens can cost, whatever the prefix cache has. */
int64_t price_cost_most(const token_price *p, int64_t prompt, int64_t output);

#endif
