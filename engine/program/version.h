/* version.h -- what a program was built from and how; LORAD_VERSION is its version.
 *
 * cmake/version.cmake makes the texts at each build.  Programs alone link them: a test need not be
 * linked anew for each commit.
 */
#ifndef ENGINE_PROGRAM_VERSION_H
#define ENGINE_PROGRAM_VERSION_H

extern const char version_commit[]; /* hex digits, "-modified" behind; "unknown" without git */
extern const char version_build[];  /* "Release, GNU 12.2.0", and sanitizers, if any */

#endif
