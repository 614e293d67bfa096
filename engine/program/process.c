/* process.c -- forbids core files and debuggers, so that secrets stay in memory. */
#include "engine/program/process.h"

#include <sys/prctl.h>
#include <sys/resource.h>

void process_keep_secrets(void)
{
    const struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &none);
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}
