/* mapping.h -- mapped files that can get shorter while they are read.
 *
 * Reading a page of a mapped file beyond its end, or one that the disk cannot read, raises SIGBUS.
 * The handler looks for the address among the mappings that are registered here.  It maps zeros
 * from that page to the mapping's end, notes the loss, and returns: the thread goes on with wrong
 * values, and whoever uses its result asks mapping_lost() first (be_sync() does).  Any other SIGBUS
 * ends the process as before.
 *
 * The loss is never undone: the process must be replaced (engine/sched/sched_restart.c).
 *
 * Threads: any; the table is made of atomics, for the handler reads it at any moment.
 */
#ifndef ENGINE_PROGRAM_MAPPING_H
#define ENGINE_PROGRAM_MAPPING_H

#include <stdbool.h>
#include <stddef.h>

/* Installs the handler; before other threads start. */
void mapping_watch(void);
/* A file's mapping, page-aligned, until mapping_remove().  Beyond MAPPINGS_MAX nothing is noted: a
 * SIGBUS there ends the process. */
enum { MAPPINGS_MAX = 4096 };
void mapping_add(const void *at, size_t bytes);

/* Before munmap(); an address that is not noted is passed over. */
void mapping_remove(const void *at);
/* A registered mapping has lost pages. */
bool mapping_lost(void);

#endif
