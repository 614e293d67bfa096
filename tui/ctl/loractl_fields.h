/* loractl_fields.h -- --fields A,B: what of each row is shown, in every format.
 *
 * Threads: one.
 */
#ifndef TUI_CTL_LORACTL_FIELDS_H
#define TUI_CTL_LORACTL_FIELDS_H

#include "tui/ctl/loractl.h"

enum { FIELDS_MAX = 24, FIELD_MAX = 96 };

typedef struct fields {
    int n; /* 0: not asked for */
    char path[FIELDS_MAX][FIELD_MAX];
    column columns[FIELDS_MAX + 1]; /* point into `path` and the table's own columns */
} fields;

/* Takes --fields by the columns of a table (NULL: it has none) and by what the rows hold (an array
 * of objects).  False: said why, with the nearest name. */
bool fields_take(const ctl *c, const column *columns, const cJSON *rows, fields *out);

/* One object with these fields alone, each under its whole name; cJSON_Delete(). */
cJSON *fields_pick(const fields *f, const cJSON *row);

#endif
