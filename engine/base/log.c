/* log.c -- one line, one write(2), so that lines of threads never mix.
 *
 * A line is put together on the stack, at most 4,096 bytes, and cut there; the newline is always
 * in. What strangers send may stand in a message: control characters become \uXXXX, so nobody
 * can begin a line of his own or send a terminal commands.
 *
 *     text     2026-11-30T12:00:00.000Z info model: packed weights are kept
 *     logfmt   time=... level=info module=model msg="packed weights are kept"
 *     json     {"time":"...","level":"info","module":"model","msg":"packed weights are kept"}
 *
 * Threads: any; level and form are atomics.
 */
#include "engine/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"

enum { LINE_MAX_BYTES = 4096 };

static atomic_int min_level = LOG_INFO;
static atomic_int line_format = LOG_TEXT;

typedef struct {
    char text[LINE_MAX_BYTES];
    size_t len; /* always < sizeof(text) - 1: room for the newline */
} line;

void log_setup(log_level level, log_format format)
{
    atomic_store(&min_level, (int)level);
    atomic_store(&line_format, (int)format);
}

static const char *level_name(log_level level)
{
    static const char *const names[] = {"debug", "info", "warn", "error", "-"};
    return names[level];
}

static void put_raw(line *l, const char *s)
{
    size_t n = strlen(s);
    size_t room = sizeof(l->text) - 2 - l->len;
    if (n > room) n = room;
    memcpy(l->text + l->len, s, n);
    l->len += n;
}

static void put_escaped(line *l, const char *s, int quotes)
{
    for (; *s; s++) {
        char buf[8] = {*s, 0};
        if ((unsigned char)*s < 0x20 || *s == 0x7f) {
            snprintf(buf, sizeof(buf), "\\u%04x", (unsigned)(unsigned char)*s);
        } else if (quotes && (*s == '"' || *s == '\\')) {
            buf[0] = '\\';
            buf[1] = *s;
            buf[2] = 0;
        }
        put_raw(l, buf);
    }
}

static void put_field(line *l, const char *name, const char *value, bool json)
{
    put_raw(l, json ? ",\"" : " ");
    put_raw(l, name);
    put_raw(l, json ? "\":\"" : "=");
    bool plain = !json && value[0] && !strpbrk(value, " \"=\\\n\t");
    if (!json && !plain) put_raw(l, "\"");
    put_escaped(l, value, !plain);
    if (json || !plain) put_raw(l, "\"");
}

static void put_number(line *l, const char *name, const char *value)
{
    put_raw(l, ",\"");
    put_raw(l, name);
    put_raw(l, "\":");
    put_raw(l, value);
}

static void begin(line *l, log_level level, const char *module, const char *event)
{
    char when[32];
    clock_format_wall(clock_wall_us(), when);
    l->len = 0;
    switch ((log_format)atomic_load(&line_format)) {
    case LOG_JSON:
        put_raw(l, "{\"time\":\"");
        put_raw(l, when);
        put_raw(l, "\"");
        put_field(l, "level", level_name(level), true);
        put_field(l, "module", module, true);
        put_field(l, "msg", event, true);
        break;
    case LOG_LOGFMT:
        put_raw(l, "time=");
        put_raw(l, when);
        put_field(l, "level", level_name(level), false);
        put_field(l, "module", module, false);
        put_field(l, "msg", event, false);
        break;
    case LOG_TEXT:
        put_raw(l, when);
        put_raw(l, " ");
        put_raw(l, level_name(level));
        put_raw(l, " ");
        put_raw(l, module);
        put_raw(l, ": ");
        put_escaped(l, event, 0);
        break;
    }
}

static void end(line *l)
{
    if (atomic_load(&line_format) == LOG_JSON) put_raw(l, "}");
    l->text[l->len++] = '\n';
    ssize_t n = write(STDERR_FILENO, l->text, l->len);
    (void)n; /* nowhere left to complain */
}

void log_write(log_level level, const char *module, const char *fmt, ...)
{
    if ((int)level < atomic_load(&min_level)) return;
    char msg[LINE_MAX_BYTES / 2];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof(msg), fmt, ap);
    va_end(ap);
    line l;
    begin(&l, level, module, msg);
    end(&l);
}

void log_fields(log_level level, const char *module, const char *event, const log_field *fields,
                int n)
{
    if ((int)level < atomic_load(&min_level)) return;
    bool json = atomic_load(&line_format) == LOG_JSON;
    line l;
    begin(&l, level, module, event);
    for (int i = 0; i < n; i++) {
        const log_field *f = &fields[i];
        if (f->value && json && f->number)
            put_number(&l, f->name, f->value);
        else if (f->value)
            put_field(&l, f->name, f->value, json);
    }
    end(&l);
}
