/* feed.h -- one server's answers, fetched in a thread of their own.
 *
 * Asks for what changed since the last answer, once an interval; when the server is gone it tries
 * again by itself, at first soon, then every few seconds.  Actions are carried out between two
 * answers.  What came waits in a short queue; a byte in `wake` says that there is something.
 *
 * Ownership: feed_open() to feed_close().  Threads: the one that opened it.
 */
#ifndef TUI_TOP_FEED_H
#define TUI_TOP_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "tui/client.h"
#include "tui/top/view.h"

typedef enum { FEED_ANSWER, FEED_GONE, FEED_DONE, FEED_KEYS, FEED_PAST, FEED_ENDED } feed_kind;

typedef struct feed_item {
    feed_kind kind;
    char *text; /* malloced: an answer, why it is gone, or what became of an action */
    size_t len;
    bool ok; /* FEED_DONE: the server did it */
} feed_item;

typedef struct feed feed;

/* `wake` is written to (one byte) when an item comes. */
err_code feed_open(feed **out, const client_options *o, int wake, int64_t interval_ms, err *e);
void feed_close(feed *f);

void feed_set_interval(feed *f, int64_t interval_ms);
/* Where to go on: the cursor of the last answer that was understood ("": from the beginning). */
void feed_set_cursor(feed *f, const char *cursor);
/* From when on what the server has kept is wanted next, in its seconds; every ten it is asked. */
void feed_set_past(feed *f, int64_t from_s);
/* False: too many wait. */
bool feed_act(feed *f, const view_action *a);

/* False: nothing is there.  The text is the caller's. */
bool feed_take(feed *f, feed_item *out);

#endif
