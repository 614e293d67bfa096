/* disk.h -- how much room the data directory's file system has, and how much of it is kept free.
 *
 * The floor is what uploads and adapters never touch, so that the database, the meters and the log
 * have room whatever tenants send.
 *
 * Threads: any thread; nothing is kept.
 */
#ifndef STORAGE_DISK_H
#define STORAGE_DISK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct disk_room {
    uint64_t free_bytes;  /* for a process without privileges */
    uint64_t total_bytes; /* of the file system */
    bool inodes_short;    /* few more files can be made */
} disk_room;

/* False: the file system does not tell. */
bool disk_look(const char *dir, disk_room *out);

/* The floor: `asked`, or where that is 0 the larger of 1 GiB and a twentieth of the file
 * system, but never more than an eighth of it (below 8 GiB that is less than 1 GiB).  0 where
 * the file system does not tell. */
uint64_t disk_floor_bytes(const char *dir, uint64_t asked);

/* What one tenant may take where nobody said how much: the larger of 1 GiB and a 64th of the file
 * system, but never more than a quarter of it. */
uint64_t disk_share_bytes(const char *dir);

/* Was this errno the file system's (or a quota's, or RLIMIT_FSIZE's) "no room"? */
bool disk_is_full(int error);

#endif
