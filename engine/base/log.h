/* log.h -- lines for the operator, on standard error.
 *
 * One call is one line, written whole.  Formats: text (for people), logfmt and
 * json (for collectors).  No prompt, answer, key or client body is ever passed
 * to these functions.  Control characters are escaped.
 *
 * Threads: any thread; log_setup() at start-up and on reload only.
 */
#ifndef ENGINE_BASE_LOG_H
#define ENGINE_BASE_LOG_H

#include <stdbool.h>

typedef enum { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_NOTHING } log_level;
typedef enum { LOG_TEXT, LOG_LOGFMT, LOG_JSON } log_format;

/* Default: LOG_INFO, LOG_TEXT. */
void log_setup(log_level level, log_format format);

/* `module` is the room that speaks ("gateway"). */
void log_write(log_level level, const char *module, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A line of n fields; a NULL value leaves its field out.  `number`: the value is one, and JSON has
 * it without quotes. */
typedef struct log_field {
    const char *name, *value;
    bool number;
} log_field;

/* In text format the fields follow the event as name=value; quoting and escapes are those of the
 * format. */
void log_fields(log_level level, const char *module, const char *event, const log_field *fields,
                int n);

#define log_debug(module, ...) log_write(LOG_DEBUG, module, __VA_ARGS__)
#define log_info(module, ...)  log_write(LOG_INFO, module, __VA_ARGS__)
#define log_warn(module, ...)  log_write(LOG_WARN, module, __VA_ARGS__)
#define log_error(module, ...) log_write(LOG_ERROR, module, __VA_ARGS__)

#endif
