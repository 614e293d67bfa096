/* process.h -- what a process that holds secrets asks of the system.
 *
 * Threads: before others are started.
 */
#ifndef ENGINE_PROGRAM_PROCESS_H
#define ENGINE_PROGRAM_PROCESS_H

/* No core file, and nobody but root may read this process's memory or attach a debugger to
 * it: keys, prompts and the certificate's private key are in it.  Started under a debugger,
 * it can be looked at as before. */
void process_keep_secrets(void);

#endif
