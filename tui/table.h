/* table.h -- rows of JSON objects as a table for people, or as csv, json or names for scripts.
 *
 * A column says where in a row its value stands and how people like it.  A table fits the terminal:
 * texts are cut, widest first.  Whatever the rows hold is made harmless (tui/text.h); in json too,
 * where it is escaped.
 *
 * Threads: one.
 */
#ifndef TUI_TABLE_H
#define TUI_TABLE_H

#include <stdbool.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "engine/base/err.h"

typedef enum { TABLE_PEOPLE, TABLE_WIDE, TABLE_JSON, TABLE_CSV, TABLE_NAME } table_format;

typedef enum {
    CELL_TEXT,
    CELL_INT,
    CELL_NUM,
    CELL_BYTES,  /* people: "1.2 MiB" */
    CELL_TIME,   /* seconds since 1970; people: UTC */
    CELL_MS,     /* milliseconds; people: "1.2s" */
    CELL_BOOL,   /* people: yes, or nothing */
    CELL_LIST,   /* of texts, or an object of numbers ("default=3") or of such; commas */
    CELL_LIMIT,  /* a number; people: - for 0 */
    CELL_MICROS, /* millionths; people: "1.250000" */
} cell_kind;

typedef struct column {
    const char *head; /* NULL ends the list */
    const char *path; /* "limits.tokens_per_day"; the head of csv */
    cell_kind kind;
    bool wide; /* only with -o wide (and csv) */
} column;

/* False: no such format. */
bool table_format_of(const char *name, table_format *out);

/* Columns of the terminal behind f: its window, $COLUMNS, or 0 where f is no terminal. */
int table_width_of(FILE *f);

/* rows: an array of objects.  Not for TABLE_JSON.  `width` 0: no bound.  TABLE_NAME
 * prints the first column alone. */
void table_print(FILE *f, const column *columns, const cJSON *rows, table_format format, int width);

/* One object as lines "head  value"; without `all`, empty ones ("-") are left out. */
void table_print_one(FILE *f, const column *columns, const cJSON *row, int width, bool all);

/* Any value as lines "path.to.it  value", for answers whose fields are the server's business;
 * without `all`, null ones are left out. */
void table_print_tree(FILE *f, const cJSON *tree, int width, bool all);

/* The value, with everything a terminal could obey escaped, and a line break: on several lines
 * where f is a terminal, on one where it is not. */
/* Prints one character of JSON's text, escaped where a terminal could obey it; returns how many
 * bytes it has. */
int table_put_escaped(FILE *f, const char *p);
void table_print_json(FILE *f, const cJSON *value);

/* What stands at "limits.tokens_per_day" or "classes.0.name" of a row; NULL: nothing. */
const cJSON *table_at(const cJSON *row, const char *path);

/* Is f a terminal that likes colours?  Not with NO_COLOR, nor with TERM=dumb or none. */
bool table_coloured(FILE *f);

#endif
