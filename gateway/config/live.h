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

const config *live_pin(live *l);
void live_release(live *l, const config *c);

/* A change in two steps, the second of which cannot fail.  NULL: no memory. */
typedef struct live_copy live_copy;
live_copy *live_prepare(const config *c);
void live_publish(live *l, live_copy *fresh);
void live_drop(live_copy *fresh);

#endif
