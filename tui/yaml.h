/* yaml.h -- prints a tree of JSON as block YAML 1.2, for people and for tools that read YAML.
 *
 * Threads: any.
 */
#ifndef TUI_YAML_H
#define TUI_YAML_H

#include <stdio.h>

#include <cjson/cJSON.h>

/* Texts that YAML could read as something else, and all with other than plain characters, are
 * written in double quotes with JSON's escapes, which YAML shares. */
void yaml_print(FILE *f, const cJSON *value);

#endif
