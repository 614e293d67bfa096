/* live.h -- the configuration that is in force, for many readers and a writer now and then.
 *
 * A reader pins it and sees one configuration, whole, until it lets go, however long that takes.
 * A change makes another one; the old one is freed when the last that read it is done.
 *
 * Ownership: live_pin() lends until live_release().  Threads: any.
 */
#ifndef GATEWAY_CONFIG_LIVE_H
#define GATEWAY_CONFIG_LIVE_H

#include "gateway/config/config.h"

typedef struct live live;

/* A copy of `c` is in force.  NULL: no memory. */
live *live_create(const config *c);
/* All pins must be back. */
void live_destroy(live *l);

/* The configuration in force; it does not change until live_release(). Never NULL; holds a lock
 * for a counter only. */
const config *live_pin(live *l);

/* Gives it back; the last one frees a replaced configuration. */
void live_release(live *l, const config *c);

/* A change in two steps, the second of which cannot fail.  NULL: no memory. */
typedef struct live_copy live_copy;

/* A copy of `c` that is not in force yet. */
live_copy *live_prepare(const config *c);

/* Puts it in force for all pins to come; takes it over. */
void live_publish(live *l, live_copy *fresh);

/* Frees a copy that is not wanted; NULL is allowed. */
void live_drop(live_copy *fresh);

#endif
