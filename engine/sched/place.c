/* place.c -- two sums of microseconds for each node, and the smallest wins.
 *
 *   prompt  time to the first token there, plus the prompt's device time for each stream that runs
 *           there, plus the transfer back
 *   stream  transfer, plus for each token: a step there over the share of time that prompts leave
 *           to streams, plus the row's own time for each prompt that it delays
 */
#include "engine/sched/place.h"

#include <math.h>
#include <string.h>

static const double pays = 1.3; /* staying must cost so many times more: predictions err */
static const double late = 1.1; /* of the first token's time here, what it may take elsewhere */
static const double most_prompts = 0.9; /* share of prompts that a step's time is stretched by */
static const double least_share = 0.1;  /* of the device that prompts get beside streams */
static const double even_share = 0.5;   /* the same, if the streams have no target */

static const char *const names[ROLES] = {"both", "prefill", "decode"};

const char *node_role_name(node_role r)
{
    return names[r];
}

node_role node_role_of(const char *word)
{
    for (int r = 0; r < ROLES; r++) {
        if (strcmp(names[r], word) == 0) return (node_role)r;
    }
    return ROLES;
}

void place_see_queue(place_node *k, const promise_outlook *o, int n_begun)
{
    k->prompt_us = (double)o->prompt_tokens * o->row_us;
    for (int c = 0; c < o->n_class; c++) k->prompt_us += o->begun_us[c];
    k->n_prompts = o->n_waiting + n_begun;
}

static bool is_known(const place_node *k)
{
    return k->cost.n >= COST_LEARNING;
}

/* A node that has computed too little to have a cost model is taken to be as fast as `self`. */
static place_node guess_of(const place_node *self, const place_node *k)
{
    place_node out = *k;
    if (!is_known(k)) out.cost = self->cost;
    return out;
}

/* Device time of the prompt, apart from what each step costs anyway. */
static double prompt_us(const place_ask *a, const place_node *k, int n_cached)
{
    const cost_work none = {0};
    cost_work w = cost_with_chunk(&none, a->n_prompt - n_cached, n_cached, a->rank);
    return cost_predict(&k->cost, &w) - cost_predict(&k->cost, &none);
}

/* Share of the device that prompts get beside the running streams. */
static double share_of(const place_ask *a, const place_node *k)
{
    if (k->streams.decode < 1) return 1;
    if (a->tpot_us <= 0) return even_share;
    return fmax(least_share, 1 - cost_predict(&k->cost, &k->streams) / a->tpot_us);
}

static double transfer_us(const place_ask *a, const place_node *to)
{
    return to->setup_us + (a->n_prompt * a->token_bytes + a->state_bytes) * to->byte_us;
}

/* Time to the first token. */
static double first_us(const place_ask *a, const place_node *k, int n_cached)
{
    return (k->prompt_us + prompt_us(a, k, n_cached)) / share_of(a, k);
}

static cost_work with_stream(const place_ask *a, const place_node *k)
{
    cost_work w = k->streams;
    w.decode += 1;
    w.attended += a->n_prompt + a->n_output / 2.0;
    w.ranks += a->rank;
    return w;
}

/* Time of one token of the stream. */
static double token_us(const place_ask *a, const place_node *k)
{
    cost_work w = with_stream(a, k);
    return cost_predict(&k->cost, &w) / (1 - fmin(most_prompts, k->prompts));
}

/* With a pause of move_us before its second token, the stream keeps its target at k, or the pace
 * that it would have here. */
static bool keeps_pace(const place_ask *a, const place_node *self, const place_node *k,
                       double move_us)
{
    int left = a->n_output > 1 ? a->n_output - 1 : 1;
    double pace = fmax(a->tpot_us, token_us(a, self));
    return a->tpot_us <= 0 || move_us / left + token_us(a, k) <= pace;
}

/* As token_us(), plus the time by which the stream's row delays prompts. */
static double token_cost_us(const place_ask *a, const place_node *k)
{
    cost_work w = with_stream(a, k);
    double row = cost_predict(&k->cost, &w) - cost_predict(&k->cost, &k->streams);
    return token_us(a, k) + row * k->prompts * fmax(1, k->n_prompts);
}

/* What it costs to have the work done at `k` instead of at `self`; good: no target is missed. */
typedef struct offer {
    double us;
    bool good;
} offer;

static offer prompt_at(const place_ask *a, const place_node *self, const place_node *k)
{
    double first = self->setup_us + first_us(a, k, 0), back = transfer_us(a, self);
    double soon = first_us(a, self, a->n_cached);
    return (offer){first + k->streams.decode * prompt_us(a, k, 0) + back,
                   first <= late * soon && keeps_pace(a, self, self, back)};
}

static offer stream_at(const place_ask *a, const place_node *self, const place_node *k)
{
    double move = transfer_us(a, k);
    return (offer){move + (a->n_output - 1) * token_cost_us(a, k), keeps_pace(a, self, k, move)};
}

/* The peer with another role than ours that does it for least, if it has room for so many tokens
 * and that is less than `here_us`, by the margin `pays`. */
static int cheapest(const place_ask *a, const place_node *self, const place_node *peer, int n,
                    double tokens, double here_us,
                    offer (*at)(const place_ask *, const place_node *, const place_node *))
{
    int best = PLACE_HERE;
    double least = INFINITY;
    for (int i = 0; i < n; i++) {
        const place_node k = guess_of(self, &peer[i]);
        if (k.role == self->role || k.free_seats <= 0 || k.free_tokens < tokens) continue;
        const offer o = at(a, self, &k);
        if ((!o.good && !a->always) || o.us >= least) continue;
        least = o.us;
        best = i;
    }
    return a->always || pays * least < here_us ? best : PLACE_HERE;
}

int place_prompt(const place_ask *a, const place_node *self, const place_node *peer, int n)
{
    if (self->role != ROLE_DECODE || (!is_known(self) && !a->always)) return PLACE_HERE;
    double soon = first_us(a, self, a->n_cached);
    double here = soon + self->streams.decode * prompt_us(a, self, a->n_cached);
    return cheapest(a, self, peer, n, a->n_prompt + 1, here, prompt_at);
}

int place_stream(const place_ask *a, const place_node *self, const place_node *peer, int n)
{
    int left = a->n_output - 1;
    if (self->role != ROLE_PREFILL || left < 1) return PLACE_HERE;
    if (!is_known(self) && !a->always) return PLACE_HERE;
    double here = left * token_cost_us(a, self);
    return cheapest(a, self, peer, n, a->n_prompt + a->n_output, here, stream_at);
}

void place_add_prompt(const place_ask *a, place_node *to)
{
    to->prompt_us += prompt_us(a, to, 0);
    to->n_prompts++;
}

void place_add_stream(const place_ask *a, place_node *to)
{
    to->streams = with_stream(a, to);
    to->free_seats--;
    to->free_tokens -= a->n_prompt + a->n_output;
}
