/* wal_lock.h -- which other process holds the write lock of a SQLite database in WAL mode.
 *
 * SQLite locks bytes of the file DATABASE-shm with fcntl(); byte 120 is the writer's
 * (https://sqlite.org/walformat.html, "WAL locks").  F_GETLK names the process that is in the way
 * and, unlike /proc/locks, is available to a service that cannot see other processes.
 *
 * Closing any descriptor of that file would drop the locks that SQLite has in this process, so the
 * descriptor stays open until SQLite has closed the database.
 *
 * Threads: one at a time.
 */
#ifndef STORAGE_WAL_LOCK_H
#define STORAGE_WAL_LOCK_H

/* The process id, or 0: no other process holds it, or it cannot be known (a process of another PID
 * namespace).  *fd is -1 at first; the caller closes it after sqlite3_close(). */
int wal_lock_holder(const char *database, int *fd);

#endif
