/* manual.h -- what lorad says about itself: help and man pages, from one table of commands.
 *
 * Threads: start-up only.
 */
#ifndef GATEWAY_MANUAL_H
#define GATEWAY_MANUAL_H

#include <stdio.h>

void manual_usage(FILE *f);

/* troff: lorad(1) or, with section 5, lorad.conf(5). */
void manual_page(FILE *f, int section);

#endif
