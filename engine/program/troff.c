/* troff.c -- text as troff wants it: no character of it is taken for a request or an escape. */
#include "engine/program/troff.h"

#include <stdbool.h>

void troff_put(const char *s, FILE *f)
{
    bool start = true;
    for (; *s; s++) {
        if (start && (*s == '.' || *s == '\'')) (void)fputs("\\&", f);
        if (*s == '\\')
            (void)fputs("\\e", f);
        else if (*s == '-')
            (void)fputs("\\-", f);
        else
            (void)fputc(*s, f);
        start = *s == '\n';
    }
}
