/* running.h -- data.dir/running.json: what a server's configuration is while it runs.
 *
 * Readable by its owner alone: it holds what the configuration's file does.
 *
 * Threads: any; one writer.
 */
#ifndef GATEWAY_CONFIG_RUNNING_H
#define GATEWAY_CONFIG_RUNNING_H

#include "gateway/config/config.h"

/* Writes it anew, in one step. */
err_code running_write(const config *c, err *e);
void running_remove(const char *data_dir);

/* Reads it into a configuration, with the sources of its options; ERR_NOT_FOUND: no server runs.
 * Options that this program does not know are passed over. */
err_code running_read(const char *data_dir, config *out, err *e);

#endif
