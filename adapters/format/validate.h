/* validate.h -- does this adapter fit this base, to the last byte?
 *
 * Strict where the reference readers are lax: every tensor must be one that the config promises
 * (adapters/format/layout.h), of the right shape and one of F32/F16/BF16, all values finite; every
 * wrapped layer must have all of its own; nothing may be left over.
 *
 * Threads: any thread.  Reads with pread(), never through a mapping: a file that shrinks under a
 * mapping would kill the process.
 */
#ifndef ADAPTERS_FORMAT_VALIDATE_H
#define ADAPTERS_FORMAT_VALIDATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "adapters/format/layout.h"
#include "engine/backend.h"
#include "storage/digest.h"

/* Checks the two files in `dir_fd`.  `scan_values`: read every value and refuse NaN and infinities.
 * Zeroes *out first.  The sentence names the tensor and the limit. */
err_code validate_adapter(int dir_fd, const model_config *base, int rank_max, bool scan_values,
                          adapter_layout *out, err *e);
void adapter_layout_clear(adapter_layout *al);

/* The header of an open file of `bytes`; the caller closes *out. */
err_code adapter_read_header(int fd, uint64_t bytes, safetensors **out, err *e);

/* The digest that names an adapter's content: SHA-256 over a mark and, for config and weights in
 * this order, length and SHA-256. */
void adapter_digest_parts(const uint64_t bytes[2], const uint8_t sha[2][DIGEST_BYTES],
                          uint8_t out[DIGEST_BYTES]);

/* One line of JSON about the adapter for people: r, alpha, targets, ranks, dtype. */
void adapter_describe(const adapter_layout *al, char *out, size_t cap);

#endif
