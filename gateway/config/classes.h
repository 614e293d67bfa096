/* classes.h -- the SLO classes of a configuration: which there are, and what requests say for them.
 *
 * The table is config.classes, the most urgent first.  It comes from the sections [class.NAME] of
 * the configuration alone: another class is a change in no other file.  Requests ask for a class by
 * its name or by one of its tiers, in service_tier; each of these words belongs to one class.
 *
 * Ownership: the caller's config.  Threads: any; reading changes nothing.
 */
#ifndef GATEWAY_CONFIG_CLASSES_H
#define GATEWAY_CONFIG_CLASSES_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "gateway/config/config.h"

/* The three classes of a file that has no section [class.NAME]. */
void classes_begin(config *c);
/* Is it the name of one of these?  Files of older versions have them as options of [classes]. */
bool classes_is_initial(const char *name);

/* No class at all. */
void classes_clear(config *c);

/* One more, the least urgent, with nothing but its name.  NULL and ERR_INPUT: the name is no name
 * or taken, or there are CLASS_MAX. */
config_class *classes_add(config *c, const char *name, err *e);

/* Each has its targets, each word belongs to one class, and the default is one of them. */
err_code classes_check(const config *c, err *e);

/* By its own name; -1: there is none. */
int class_of_name(const config *c, const char *name);

/* By what service_tier may say: a tier or its name; -1: none of them. */
int class_of_tier(const config *c, const char *text);

/* The next word of a list of tiers, from *list on; false: no more. */
bool class_next_tier(const char **list, const char **word, int *len);

/* What answers of class `i` say as service_tier: the first of its tiers, else its name. */
void class_tier(const config *c, int i, char out[CLASS_WORD_MAX + 1]);

#endif
