/* fleet_source.h -- the fleet's journal that the configuration names.
 *
 * Ownership: the source borrows the configuration.  Threads: the main thread.
 */
#ifndef GATEWAY_START_FLEET_SOURCE_H
#define GATEWAY_START_FLEET_SOURCE_H

#include "gateway/config/config.h"
#include "storage/fleet/journal.h"

/* False: storage.database is empty, this server is by itself. */
bool fleet_source(const config *c, journal_source *out);

#endif
