/* config_inside.h -- the tables of options, for the config*.c files alone.
 *
 * Threads: the tables never change.
 */
#ifndef GATEWAY_CONFIG_CONFIG_INSIDE_H
#define GATEWAY_CONFIG_CONFIG_INSIDE_H

#include <stddef.h>

#include "gateway/config/config.h"

#define CONFIG_CLASS  "class." /* before a class's name in the name of its section */
#define CONFIG_SECOND INT64_C(1000000)
#define CONFIG_MIB    (INT64_C(1) << 20)
#define CONFIG_GIB    (INT64_C(1) << 30)

#define CONFIG_PRICE_MAX INT64_C(1000000000000) /* PRICE_MAX of storage/price.h */

enum { CONFIG_SECTION_MAX = sizeof(CONFIG_CLASS) + CLASS_WORD_MAX };

typedef enum { OPT_TEXT, OPT_INT, OPT_BYTES, OPT_TIME, OPT_MILLI, OPT_BOOL } option_kind;

/* Beside a kind.  LIVE: a running server takes it.  PATH: it names files or folders of the host, so
 * the admin API cannot set it. */
enum { OPT_LIVE = 64, OPT_PATH = 128 };

typedef struct option {
    const char *section, *key;
    int kind; /* an option_kind, with OPT_LIVE and OPT_PATH or without */
    size_t offset;
    const char *initial; /* NULL: there is no default, it must be given */
    int64_t lo, hi;      /* numbers; microseconds for times, thousandths for OPT_MILLI */
    const char *help;    /* lines separated by \n */
} option;

extern const option config_options[]; /* of a config */
extern const int config_n_options;
extern const option config_class_options[CONFIG_CLASS_OPTIONS]; /* of a config_class */

static inline option_kind option_kind_of(const option *o)
{
    return (option_kind)(o->kind & ~(OPT_LIVE | OPT_PATH));
}

/* Writes the option's value in the syntax of the configuration file. */
void config_value_text(const void *of, const option *o, char out[CONFIG_TEXT_MAX]);

/* Returns ERR_INPUT for an unknown option; the message suggests the most similar name. */
err_code config_unknown(const char *name, err *e);

/* Reads a value.  `of`: the config, or a class of it, as the option's table says.  ERR_INPUT names
 * the option, the text and the limit. */
err_code config_set_option(void *of, const option *o, const char *text, err *e);

#endif
