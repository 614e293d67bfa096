/* settings.h -- what loratop remembers: $XDG_CONFIG_HOME/lorad/loratop.conf, "name = value" lines.
 *
 * A file that is missing or has lines that are not understood costs the setting, never the start.
 * Threads: one.
 */
#ifndef TUI_TOP_SETTINGS_H
#define TUI_TOP_SETTINGS_H

#include "tui/top/view.h"

void settings_load(view *v);
/* Silent where it cannot be written. */
void settings_save(const view *v);

#endif
