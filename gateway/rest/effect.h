/* effect.h -- what a new version does to a fixed prompt, measured once it is published.
 *
 * A thread of its own asks the base and the version for the log-probabilities of a few fixed tokens
 * and of the likeliest others in their places, as requests of the last class that no first token
 * waits for.  The largest difference is stored with the version, and shown as its logit_change; 0
 * is a warning: no answer will be another one for it.  Only versions that are in memory are
 * measured: one that finds no room within a minute stays without.
 *
 * Locks:   one, held over nothing that waits.
 * Threads: its own; effect_add() from any.
 */
#ifndef GATEWAY_REST_EFFECT_H
#define GATEWAY_REST_EFFECT_H

#include <stdint.h>

#include "engine/base/err.h"

struct server;
typedef struct effect_probe effect_probe;

/* `s` is borrowed: its scheduler, registry, residency and store must be there. */
err_code effect_start(effect_probe **out, struct server *s, err *e);
/* The engine must answer until then, or be told to cut.  NULL is fine. */
void effect_stop(effect_probe *p);

/* A version that was just published.  Where too many wait, the oldest stays without.  `p` NULL:
 * nothing is measured. */
void effect_add(effect_probe *p, uint64_t version_id);

#endif
