/* upload.h -- the folder that PEFT saved, as a tar or file by file, streamed in and published.
 *
 * The gateway passes the body in pieces as it reads them.  A strict parser (ustar, pax, GNU long
 * names) takes regular files and directories only; adapter_config.json and
 * adapter_model.safetensors are kept, other harmless files are counted and skipped, pickles and
 * everything that could reach outside the folder are refused by name.  Nothing a client names ever
 * becomes a path: files go to <dir>/adapters/tmp/<id>/ under fixed names; publish.h tells the rest.
 *
 * Ownership: upload_finish() and upload_abort() consume the upload.
 * Threads:   one upload belongs to one thread; many run at once.
 */
#ifndef ADAPTERS_STORE_UPLOAD_H
#define ADAPTERS_STORE_UPLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/store/publish.h"

typedef struct upload upload;

typedef publish_options upload_options;

/* ERR_INPUT bad name, ERR_LIMIT too large, ERR_NO_ROOM the disk is full. */
err_code upload_begin(upload **out, const upload_env *env, const upload_options *o, err *e);

/* The next piece, any size.  After a failure only upload_abort() is allowed. */
err_code upload_write(upload *u, const void *data, size_t len, err *e);

/* Instead of a tar: one file after the other, by the names that a folder has.  `bytes`: -1 where
 * nobody knows how many will come.  What is harmless is skipped, as in a tar.  Errors as above, and
 * ERR_INPUT for a file that comes twice; after one only upload_abort() is allowed. */
err_code upload_file_begin(upload *u, const char *name, int64_t bytes, err *e);
err_code upload_file_write(upload *u, const void *data, size_t len, err *e);
err_code upload_file_end(upload *u, err *e);

/* The same for the files of an open folder that count, each a regular file; links are not followed.
 * Bytes are taken as they are read, so what happens to the folder later changes nothing. */
err_code upload_copy(upload *u, int dir_fd, err *e);

/* The body is complete: validate, publish.  *existed (may be NULL): the name's newest version has
 * exactly this content already.  ERR_INPUT / ERR_CORRUPT / ERR_UNSUPPORTED say what is wrong with
 * the adapter.  Frees `u` in every case. */
err_code upload_finish(upload *u, adapter_version *out, bool *existed, err *e);

/* Drops everything; NULL is fine. */
void upload_abort(upload *u);

#endif
