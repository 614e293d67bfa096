/* err.c -- writes sentences of errors: bounded, printable, never empty. */
#include "engine/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void make_printable(char *s)
{
    for (; *s; s++) {
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
    }
}

static const char *text_of(err_code code)
{
    switch (code) {
#define ERR_CASE_(name, value, text) \
    case name: return text;
        ERR_LIST(ERR_CASE_)
#undef ERR_CASE_
    }
    return "unknown error";
}

err_code err_set(err *e, err_code code, const char *fmt, ...)
{
    if (!e) return code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
    va_end(ap);
    make_printable(e->msg);
    if (!e->msg[0]) snprintf(e->msg, sizeof(e->msg), "%s", text_of(code));
    e->code = code;
    return code;
}

err_code err_context(err *e, const char *fmt, ...)
{
    if (!e) return ERR_INTERNAL;
    char head[sizeof(e->msg)];
    char tail[sizeof(e->msg)];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof(head), fmt, ap);
    va_end(ap);
    memcpy(tail, e->msg, sizeof(tail));
    size_t n = strlen(head);
    if (n > sizeof(e->msg) / 2) n = sizeof(e->msg) / 2; /* the cause matters more */
    int room = (int)(sizeof(e->msg) - n - 3);
    snprintf(e->msg, sizeof(e->msg), "%.*s: %.*s", (int)n, head, room, tail);
    make_printable(e->msg);
    return e->code;
}
