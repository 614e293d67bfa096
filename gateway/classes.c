/* classes.c -- the rows of classes.h, looked up. */
#include "gateway/classes.h"

#include <string.h>

typedef struct {
    const char *name, *tier, *other;
} class_row;

#define ROW(name, tier, other, initial, help) {#name, tier, other},
static const class_row rows[SERVER_CLASSES] = {CLASS_ROWS(ROW)};
#undef ROW

const char *class_name(int i)
{
    return rows[i].name;
}

const char *class_tier(int i)
{
    return rows[i].tier;
}

int class_of_name(const char *name)
{
    for (int i = 0; i < SERVER_CLASSES; i++) {
        if (strcmp(name, rows[i].name) == 0) return i;
    }
    return -1;
}

int class_of_tier(const char *text)
{
    for (int i = 0; i < SERVER_CLASSES; i++) {
        if (strcmp(text, rows[i].tier) == 0) return i;
    }
    for (int i = 0; i < SERVER_CLASSES; i++) {
        if (rows[i].other[0] && strcmp(text, rows[i].other) == 0) return i;
    }
    return class_of_name(text);
}
