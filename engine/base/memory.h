/* memory.h -- did this thread ever get no memory?
 *
 * What lacks memory often looks like something else from above: a name that is not found, a schema
 * that is too large, a template that fails.  So every malloc() of ours is counted where it fails
 * (the linker puts memory.c before it, see CMakeLists.txt; cJSON calls it too), and who answers for
 * a piece of work compares.  SQLite and OpenSSL are not seen here: they say it themselves.
 *
 * Threads: any thread, each sees its own count.
 */
#ifndef ENGINE_BASE_MEMORY_H
#define ENGINE_BASE_MEMORY_H

#include <stdint.h>

/* How many allocations have failed on this thread. */
uint64_t memory_failures(void);

#endif
