/* jinja.h -- a chat template's own language, as far as chat templates use it.
 *
 * Jinja as transformers sets it up for apply_chat_template (trim_blocks, lstrip_blocks, the
 * loop controls, raise_exception, strftime_now, a plain tojson, nothing mutable): a template
 * is read into a tree once, then rendered for each conversation.  What it prints is Jinja's
 * text to the byte; what is not supported (inheritance, imports, do, calls with * or **) is
 * an error when it is read.
 *
 * Each character knows whether the template or a stranger wrote it, through every filter and slice:
 * the rendered text comes with the spans that strangers wrote, so that no message forges a marker.
 *
 * A template comes with a model that the operator chose, messages from anybody: sizes, depth, steps
 * and memory are bounded, nothing is executed but what stands here.
 *
 * Threads: a template is immutable once read; a run belongs to one thread.
 */
#ifndef ENGINE_CHAT_JINJA_H
#define ENGINE_CHAT_JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/err.h"
#include "engine/text/tokenizer.h"

enum { JINJA_TEXT_MAX = 512 << 10 }; /* bytes of a template */

typedef struct jinja jinja;
typedef struct jinja_run jinja_run;
typedef struct jv jv; /* a value: jinja_inside.h */

/* ERR_UNSUPPORTED or ERR_INPUT with the line and what is wrong there; ERR_LIMIT, ERR_NOMEM. */
err_code jinja_read(jinja **out, const char *text, size_t len, err *e);

/* With no run of it left. NULL is fine. */
void jinja_destroy(jinja *t);

/* Whether it looks at a variable of that name. */
bool jinja_reads(const jinja *t, const char *name);

/* One rendering.  `memory`: most bytes it may take.  `now`: the clock of
 * strftime_now, seconds since
 * 1970.  NULL: no memory. */
jinja_run *jinja_begin(const jinja *t, size_t memory, int64_t (*now)(void));

/* Frees the run and the text that it rendered. NULL is fine. */
void jinja_end(jinja_run *r);

/* Variables for the template.  Their texts are copied; `foreign`: a stranger wrote them. */
void jinja_set_text(jinja_run *r, const char *name, const char *s, size_t len, bool foreign);
void jinja_set_bool(jinja_run *r, const char *name, bool v);
/* NULL: none. */
void jinja_set_json(jinja_run *r, const char *name, const cJSON *v, bool foreign);
/* A list of maps, filled by the functions below: `messages`. */
void jinja_set_list(jinja_run *r, const char *name);
void jinja_item(jinja_run *r); /* the list that was set last has one more map */
void jinja_item_text(jinja_run *r, const char *key, const char *s, size_t len, bool foreign);

/* A member of the latest map; all texts in it count as a stranger's. */
void jinja_item_json(jinja_run *r, const char *key, const cJSON *v);

/* The rendered text; all of it belongs to the run. */
typedef struct jinja_text {
    const char *text;
    size_t len;
    tok_span *foreign;
    size_t n_foreign;
} jinja_text;

/* ERR_INPUT: the template raised an exception (its words), or did what Python would not let it;
 * ERR_LIMIT: too many steps, too much memory or text. */
err_code jinja_render(jinja_run *r, jinja_text *out, err *e);

#endif
