/* classes.h -- the SLO classes of a configuration: which there are, and what requests say for them.
 *
 * The table is config.classes.each, the most urgent first.  It comes from the sections [class.NAME]
 * of the configuration alone: another class is a change in no other file.  Requests ask for a class
 * by its name or by one of its tiers, in service_tier; each of these words belongs to one class.
 *
 * Ownership: the caller's struct.  Threads: any; reading changes nothing.
 */
#ifndef GATEWAY_CONFIG_CLASSES_H
#define GATEWAY_CONFIG_CLASSES_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "gateway/config/config.h"

/* The three classes of a file that has no section [class.NAME]. */
void classes_begin(config_classes *c);
/* Is it the name of one of these?  Files of older versions have them as options of [classes]. */
bool classes_is_initial(const char *name);

/* No class at all. */
void classes_clear(config_classes *c);

/* One more, the least urgent, with nothing but its name.  NULL and ERR_INPUT: the name is no name
 * or taken, or there are CLASS_MAX. */
config_class *classes_add(config_classes *c, const char *name, err *e);

/* Each has its targets, each word belongs to one class, and the default is one of them. */
err_code classes_check(const config_classes *c, err *e);

/* The class with this name; -1: there is no such class. */
int class_of_name(const config_classes *c, const char *name);

/* The class that a request's service_tier selects: by a tier or its name; -1: no class. */
int class_of_tier(const config_classes *c, const char *text);

/* The next word of a list of tiers, from *list on; false: no more. */
bool class_next_tier(const char **list, const char **word, int *len);

/* The service_tier in answers of class `i`: its first tier, or its name if it has no tiers. */
void class_tier(const config_classes *c, int i, char out[CLASS_WORD_MAX + 1]);

#endif
