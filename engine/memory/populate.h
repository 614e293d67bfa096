/* populate.h -- touches large areas before they are used, so that nobody who uses
 * them waits for the system.
 *
 * be_map() gives address space; memory comes with the first touch.  For the host's memory that is a
 * page fault: 2 MiB cleared, 4 ms in a virtual machine where a decode step of a small model takes
 * half a one, and every stream waits.  A thread of low priority takes the faults instead, a stretch
 * ahead of what is in use; what was never asked for stays the system's.
 *
 * Threads: populate_reach() any, without a lock; the others the owner's.
 */
#ifndef ENGINE_MEMORY_POPULATE_H
#define ENGINE_MEMORY_POPULATE_H

#include <stddef.h>

#include "engine/backend.h"

enum { POPULATE_AHEAD = 32 << 20 /* bytes, beyond those in use */ };

typedef struct populate populate;

/* For [mem, mem + bytes) of be_map(), from its beginning on.  NULL: this backend's memory is there
 * from the start, or no thread could be had; everything else works all the same. */
populate *populate_start(backend *be, void *mem, size_t bytes);
/* Before the area is unmapped.  NULL is allowed here and below. */
void populate_stop(populate *p);

/* The first `bytes` are in use, or will be at once; less than before is no news. */
void populate_reach(populate *p, size_t bytes);

#endif
