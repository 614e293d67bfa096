/* price.c -- products that cannot overflow: whole millions of tokens and the rest apart.
 *
 * With at most 2^40 tokens and 10^12 micros per million, the three rests sum to at most 3 * 10^18
 * and the three wholes to at most 3.3 * 10^18, below 2^63.
 */
#include "storage/price.h"

#include <assert.h>

enum { PER_TOKENS = 1000000 };

static int64_t within(int64_t v, int64_t most)
{
    return v < 0 ? 0 : v > most ? most : v;
}

void price_add(token_price *p, const token_price *more)
{
    p->prompt = within(within(p->prompt, PRICE_MAX) + within(more->prompt, PRICE_MAX), PRICE_MAX);
    p->cached = within(within(p->cached, PRICE_MAX) + within(more->cached, PRICE_MAX), PRICE_MAX);
    p->output = within(within(p->output, PRICE_MAX) + within(more->output, PRICE_MAX), PRICE_MAX);
}

static void add(int64_t tokens, int64_t price, int64_t *micros, int64_t *rest)
{
    tokens = within(tokens, PRICE_TOKENS_MAX);
    price = within(price, PRICE_MAX);
    *micros += tokens / PER_TOKENS * price;
    *rest += tokens % PER_TOKENS * price;
}

int64_t price_cost(const token_price *p, int64_t prompt, int64_t cached, int64_t output)
{
    int64_t micros = 0, rest = PER_TOKENS / 2; /* half up */
    prompt = within(prompt, PRICE_TOKENS_MAX);
    cached = within(cached, prompt);
    add(prompt - cached, p->prompt, &micros, &rest);
    add(cached, p->cached, &micros, &rest);
    add(output, p->output, &micros, &rest);
    assert(micros >= 0 && rest >= 0); /* they cannot overflow */
    return micros + rest / PER_TOKENS;
}

int64_t price_cost_most(const token_price *p, int64_t prompt, int64_t output)
{
    return price_cost(p, prompt, p->cached > p->prompt ? prompt : 0, output);
}
