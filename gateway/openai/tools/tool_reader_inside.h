/* tool_reader_inside.h -- what the readers of the dialects share.  Private to this folder.
 *
 *     tool_styles.c   the table of styles; which of them a chat template uses
 *     tool_reader.c   the loop over an answer: text, markers, lists, ids, custom tools
 *     tool_scan.c     scanners over the bytes that are not understood yet; a call's parts
 *     tool_object.c   {"name": .., "arguments": {..}}
 *     tool_tags.c     <function=NAME><parameter=KEY>VALUE</parameter>, NAME<arg_key>..
 *     tool_named.c    NAME(KEY=VALUE, ..), call:NAME{KEY:VALUE, ..}
 *     tool_frame.c    a name in marks, then an object: DeepSeek's, and channels
 *
 * A call's beginning is short, so it is looked at again from its first byte each time more of it
 * has come.  Arguments can be long, so each byte of them is scanned once.
 *
 * Positions are indices into r->raw.  Threads: the reader's own.
 */
#ifndef GATEWAY_OPENAI_TOOLS_TOOL_READER_INSIDE_H
#define GATEWAY_OPENAI_TOOLS_TOOL_READER_INSIDE_H

#include <stdint.h>
#include <string.h>

#include "gateway/openai/tools/tool_reader.h"

typedef enum { TOOL_MORE, TOOL_NO_CALL, TOOL_CALL } tool_verdict; /* MORE: too little has come */

/* The beginning of a call. */
typedef struct tool_head {
    char name[TOOL_NAME_MAX + 1];
    bool named, valued;
    size_t value; /* valued: where the arguments begin */
    size_t end;   /* not valued: behind the whole object, which has no arguments */
} tool_head;

/* How one family of formats is read. */
typedef struct tool_dialect {
    /* The call at `at`, as far as it has come. */
    tool_verdict (*look)(const tool_reader *r, size_t at, tool_head *h);
    /* Inside a call whose arguments are named one by one: takes a whole argument, or the end.
     * True: there may be more to take.  NULL: the arguments are one JSON object. */
    bool (*read)(tool_reader *r);
    const char *begins; /* bytes with which a call can begin behind its marker; NULL: any */
    bool framed;        /* a call begins with its marker, and nothing is around its object */
} tool_dialect;

extern const tool_dialect tool_object, tool_xml, tool_glm, tool_python, tool_liquid, tool_gemma,
    tool_deepseek, tool_channel;

typedef struct tool_style_row {
    const tool_dialect *dialect;
    const char *marker;           /* what begins a call */
    const char *mark;             /* another token of its own; NULL: none */
    const char *opening;          /* what is before a call's object when a call is forced */
    const char *name, *arguments; /* members of the object */
    const char *closes[3];        /* what can follow a call and is no text */
    const char *list;             /* what can precede the first call and is no text; NULL: none */
    char bare;                    /* a call without a marker begins an answer with it; 0: none */
    bool lists;                   /* calls are in brackets behind the marker */
} tool_style_row;

extern const tool_style_row tool_style_rows[TOOLS_STYLES];

static inline const tool_style_row *style_of(const tool_reader *r)
{
    return &tool_style_rows[r->style];
}

#define TOOL_BARS(words) "<\xEF\xBD\x9C" words "\xEF\xBD\x9C>" /* DeepSeek's marks */
#define TOOL_BLANK       "\xE2\x96\x81"                        /* a blank in them */
#define TOOL_SEPARATOR   TOOL_BARS("tool" TOOL_BLANK "sep")
#define TOOL_MESSAGE     "<|message|>" /* of channels */
#define TOOL_QUOTE       "<|\"|>"      /* around Gemma 4's strings */

/* ---- scanners ------------------------------------------------------------------------ */

#define SCAN_NONE SIZE_MAX /* what is looked for has not come */

/* How a value is delimited. */
typedef struct scan_form {
    const char *opens, *closes; /* brackets */
    const char *ends;           /* outside of all brackets: behind the value */
    size_t (*string)(const tool_reader *r, size_t at); /* scan_string() or the like */
} scan_form;

static inline bool scan_is_in(char c, const char *list)
{
    return c && strchr(list, c);
}

/* The first position from `at` on that is no white space; raw.len: there is none yet. */
size_t scan_spaces(const tool_reader *r, size_t at);
/* The position behind the last byte of [from, end) that is no white space. */
size_t scan_trimmed(const tool_reader *r, size_t from, size_t end);
/* Whether `mark` is at `at`; TOOL_MORE: as far as it has come. */
tool_verdict scan_stands(const tool_reader *r, size_t at, const char *mark);
/* Where `mark` begins (*whole) or could still begin. */
size_t scan_mark(const tool_reader *r, const char *mark, bool *whole);
/* Behind the first `mark` from `at` on; SCAN_NONE. */
size_t scan_behind(const tool_reader *r, size_t at, const char *mark);
/* Behind the string that begins at `at` with its quote; SCAN_NONE: it has no end yet. */
size_t scan_quoted(const tool_reader *r, size_t at);
/* The same of JSON's strings; `at` where none begins there. */
size_t scan_string(const tool_reader *r, size_t at);
/* Where the value at `at` ends; SCAN_NONE: it has no end yet. */
size_t scan_value(const tool_reader *r, size_t at, const scan_form *form);

/* Whether s[0 .. len) is one value of JSON, within the limits of a request. */
bool scan_is_json(const char *s, size_t len);

/* ---- parts of a call ------------------------------------------------------------------ */

/* tool_object.c: how an object begins up to its name; TOOL_CALL: as calls are held to. */
tool_verdict tool_object_begins(const tool_reader *r, size_t at);
/* Takes raw[at .. end) over as the name, without the spaces around it.  False: it is none. */
bool tool_take_name(const tool_reader *r, size_t at, size_t end, tool_head *h);
/* The name at `at` ends before one of `ends`, of which `behind` bytes belong to no argument. */
tool_verdict tool_name_look(const tool_reader *r, size_t at, const char *ends, size_t behind,
                            tool_head *h);

/* Whether the request has a tool of that name. */
bool tool_is_known(const tool_reader *r, const char *name);

/* Appends bytes to b; without memory r->failed is set, and later calls do nothing. */
void tool_add(tool_reader *r, held_bytes *b, const char *s, size_t len);
/* s[0 .. len) as a string of JSON. */
void tool_add_string(tool_reader *r, held_bytes *b, const char *s, size_t len);

/* The first n bytes of r->raw are understood. */
void tool_drop(tool_reader *r, size_t n);
/* One argument of the call that is open: its value is JSON, or a text. */
void tool_put_argument(tool_reader *r, const char *key, size_t key_len, const char *value,
                       size_t len, bool json);
/* The call that is open ends; `n` bytes belong to its end. */
void tool_end_call(tool_reader *r, size_t n);
/* The same of one whose arguments were put one by one. */
bool tool_end_arguments(tool_reader *r, size_t n);

#endif
