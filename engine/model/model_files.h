/* model_files.h -- the files that hold a model's tensors, and which tensor is which part of it.
 *
 * A directory of safetensors (one, or several by model.safetensors.index.json), or a GGUF (one, or
 * the first of several).  Parts are named as Hugging Face names them, module and suffix; a GGUF's
 * own names are looked up in a table.  Private to engine/model/.
 *
 * Ownership: the mapped files are this one's; what it fills borrows from them.
 * Threads:   one.
 */
#ifndef ENGINE_MODEL_MODEL_FILES_H
#define ENGINE_MODEL_MODEL_FILES_H

#include "engine/model/model.h"
#include "engine/model/quant.h"
#include "engine/model/safetensors.h"
#include "engine/model/stored.h"

err_code model_files_open(model_files **out, const char *path, const model_config *c, err *e);
void model_files_close(model_files *f);
/* Another one where a file is another one, or was written to (engine/model/packed.h). */
uint64_t model_files_stamp(const model_files *f);

/* The tensor MODULE.SUFFIX into `out`, which is zeroed and does not move from here on: a matrix of
 * rows x cols, or a vector of rows (cols 0).  ERR_INPUT: it is missing, there twice, or of another
 * shape; ERR_UNSUPPORTED: of a type that is not read.  A GGUF may have self_attn.kv_b_proj in
 * two. */
err_code model_files_find(model_files *f, const char *module, const char *suffix, int rows,
                          int cols, stored *out, err *e);

/* The same of rows that MODULE shares with others, or of a folder has across.  ERR_UNSUPPORTED also
 * where it is quantised in a folder: such a matrix is not cut. */
err_code model_files_find_rows(model_files *f, const char *module, const char *suffix,
                               const stored_rows *at, int rows, int cols, stored *out, err *e);

/* Rows row0, row0 + step, ... of the slice-th of n_slice matrices of `whole` rows, all in one
 * tensor of three dimensions, whose whole name this is; `across`: of `whole` columns, which are the
 * rows.  Of a folder in MXFP4 it may lie in two, NAME_blocks and NAME_scales.  ERR_UNSUPPORTED also
 * where a folder has it quantised otherwise. */
err_code model_files_find_slice(model_files *f, const char *name, const stored_slice *at, int rows,
                                int cols, stored *out, err *e);
/* Columns first, first + apart, ... of the matrix NAME of `whole` columns, a vector for each row:
 * the biases of all experts of a layer. */
err_code model_files_find_columns(model_files *f, const char *name, int rows, int whole, int first,
                                  int apart, int cols, stored *out, err *e);
/* Whether all experts of a layer always lie in tensors of three dimensions here: a GGUF. */
bool model_files_stacks(const model_files *f);

/* Of a folder: the tensor of this name, or NULL; and the same taken, that is, not left over.
 * ERR_INPUT: it is missing, or in two files. */
const st_tensor *model_files_look(const model_files *f, const char *name);
/* The same of a module as model_files_find() has it. */
bool model_files_has(const model_files *f, const char *module, const char *suffix);
err_code model_files_take(model_files *f, const char *name, const st_tensor **out, err *e);

/* Of a folder: the names begin where others have "model.", as a body without an output layer is
 * saved. */
bool model_files_bare(const model_files *f);

/* The divisors of the rotation's frequencies, a GGUF's rope_freqs.weight: f32 [head_dim / 2] into
 * `out`; *found false: there are none. */
err_code model_files_rope(model_files *f, float *out, bool *found, err *e);

/* Weights [channels][1][taps] of a convolution, as [taps][channels]. */
err_code model_files_find_taps(model_files *f, const char *module, int channels, int taps,
                               stored *out, err *e);

/* Nothing may be left over.  A tied model may have its table, as it was found, a second time as the
 * head. */
err_code model_files_check_rest(const model_files *f, const stored *table, err *e);

#endif
