/* place.h -- which node of a fleet computes a request's prompt, and which generates its tokens.
 *
 * Disaggregated prefill and decode (DistServe, Splitwise): prompts that share steps with streams
 * delay them, and the other way round.  Nodes with the role `prefill` compute prompts, nodes with
 * the role `decode` generate tokens, and the KV pages of a prompt move between them.
 *
 * Each decision compares the time that all requests together spend: the request's own, by the
 * chosen node's cost model, plus the time by which its work delays the others there, plus the
 * transfer.  A move must be cheaper than staying.  It must not delay the first token of a prompt,
 * and must leave the stream within its TPOT target.  So a node of either role does
 * everything itself if the others are loaded, full, or not known yet.
 *
 * Pure: no clock, no threads, no state.  The server (gateway/move/roster.c) and the simulator
 * (tests/sim/split.c) call the same functions.
 */
#ifndef ENGINE_SCHED_PLACE_H
#define ENGINE_SCHED_PLACE_H

#include <stdbool.h>

#include "engine/sched/cost.h"
#include "engine/sched/promise.h"

typedef enum { ROLE_BOTH, ROLE_PREFILL, ROLE_DECODE, ROLES } node_role;

/* "both", "prefill", "decode". */
const char *node_role_name(node_role r);
/* ROLES: the word is none of them. */
node_role node_role_of(const char *word);

/* What is known about one node. */
typedef struct place_node {
    node_role role;
    cost_model cost;          /* read are n, theta, pace, spared */
    cost_work streams;        /* of a step with its running streams alone; prefill is 0 */
    double prompt_us;         /* device time of the prompts that wait or are being computed */
    double prompts;           /* share of its steps' time that prompts took lately, 0 to 1 */
    int n_prompts;            /* requests in prompt_us */
    int free_seats;           /* streams that it can start at once */
    double free_tokens;       /* positions that its free and evictable KV pages can hold */
    double setup_us, byte_us; /* measured: a transfer of pages to it, and each byte; 0: unknown */
} place_node;

typedef struct place_ask {
    int n_prompt;
    int n_cached;       /* prompt tokens that the asking node's prefix cache has */
    int n_output;       /* expected tokens of the answer */
    double rank;        /* of its adapter; 0: none */
    double token_bytes; /* KV of one position */
    double state_bytes; /* of its recurrent state; 0: the model has none */
    double tpot_us;     /* target for each token; 0: none */
    bool always;        /* whenever a node with the other role has room, whatever it costs */
} place_ask;

enum { PLACE_HERE = -1 };

/* Index of the node among peers [n] that computes the prompt, or PLACE_HERE.  Only a node with the
 * role decode gives prompts away, to nodes that have another role. */
int place_prompt(const place_ask *a, const place_node *self, const place_node *peer, int n);
/* The same for the tokens after the first one, whose prompt `self` has computed.  Only a node with
 * the role prefill gives streams away, to nodes that have another role. */
int place_stream(const place_ask *a, const place_node *self, const place_node *peer, int n);

/* Sets prompt_us and n_prompts: what waits by the outlook, and what it has begun, in n_begun
 * requests. */
void place_see_queue(place_node *k, const promise_outlook *o, int n_begun);
/* Counts what was sent to a node since it last described itself. */
void place_add_prompt(const place_ask *a, place_node *to);
void place_add_stream(const place_ask *a, place_node *to);

#endif
