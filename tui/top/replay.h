/* replay.h -- records servers' answers in a file, and replays them: one JSON object per line.
 *
 *     {"at_us":123,"server":"name","stats":{...}}     at_us: the recorder's clock
 *
 * Threads: one.
 */
#ifndef TUI_TOP_REPLAY_H
#define TUI_TOP_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "engine/base/err.h"

enum { REPLAY_NAME_MAX = 64, REPLAY_SERVERS_MAX = 64 };

/* Appends one answer (JSON that was understood).  ERR_IO. */
err_code replay_record(FILE *f, int64_t at_us, const char *server, const char *stats, size_t len,
                       err *e);

typedef struct replay {
    FILE *file;
    char *line;
    size_t cap, number; /* of the line */
    char server[REPLAY_SERVERS_MAX][REPLAY_NAME_MAX + 1];
    int n_servers;
} replay;

typedef struct replay_item {
    int64_t at_us;
    int server;
    cJSON *tree; /* the whole line; cJSON_Delete() */
    const cJSON *stats;
} replay_item;

/* Reads the names of the servers at once.  ERR_IO, ERR_CORRUPT. */
err_code replay_open(replay *r, const char *path, err *e);
void replay_close(replay *r);
/* ERR_NOT_FOUND: the end.  ERR_CORRUPT names the line. */
err_code replay_next(replay *r, replay_item *out, err *e);
void replay_rewind(replay *r);

#endif
