/* grammar_documents.h -- schemas that the operator has put on the machine: a $ref of a request may
 * lead to them by their addresses.  Nothing is fetched.
 *
 * Threads: immutable and counted; any thread.
 */
#ifndef ENGINE_GRAMMAR_SCHEMA_GRAMMAR_DOCUMENTS_H
#define ENGINE_GRAMMAR_SCHEMA_GRAMMAR_DOCUMENTS_H

#include <cjson/cJSON.h>

#include "engine/base/err.h"

typedef struct grammar_documents grammar_documents;

/* `said`: "ADDRESS=FOLDER, ..."; empty: *out is NULL.  A relative folder is one of `base`'s.  Each
 * file of a folder and of those in it, but for hidden ones, is a schema; its address is ADDRESS
 * with its path in the folder, and its own $id, if that is absolute.  An error names the file: it
 * is no schema, too large, or one of too many; or another has its address. */
err_code grammar_documents_read(grammar_documents **out, const char *said, const char *base,
                                err *e);

/* The schema of that address; NULL: there is none.  d may be NULL. */
const cJSON *grammar_documents_find(const grammar_documents *d, const char *address);
int grammar_documents_count(const grammar_documents *d);

grammar_documents *grammar_documents_hold(grammar_documents *d); /* one more to release */
void grammar_documents_release(grammar_documents *d);            /* NULL: nothing */

#endif
