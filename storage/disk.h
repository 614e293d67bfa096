/* disk.h -- how much room the data directory's file system has, how much of it is kept free, and
 * what is done with folders.
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

#include "engine/base/err.h"

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

/* Uploads are refused: less than the floor is free.  *out is filled as by disk_look(); false and
 * unchanged where the file system does not tell. */
bool disk_is_low(const char *dir, uint64_t floor_bytes, disk_room *out);

/* What one tenant may take where nobody said how much: the larger of 1 GiB and a 64th of the file
 * system, but never more than a quarter of it. */
uint64_t disk_share_bytes(const char *dir);

/* Was this errno the file system's (or a quota's, or RLIMIT_FSIZE's) "no room"? */
bool disk_is_full(int error);

/* "WHAT: ..." of errno: ERR_NO_ROOM where disk_is_full(), else ERR_IO. */
err_code disk_error(const char *what, err *e);

/* Removes a folder with all that is in it; symbolic links are not followed.  False: errno says
 * why, and part of it can be left. */
bool disk_remove_folder(const char *path);

#endif
