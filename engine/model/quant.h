/* quant.h -- "quantization_config" of config.json: how a folder's matrices are stored.
 *
 * Only what the tensors do not tell themselves is kept: which modules were left out, and mostly
 * bits and groups, show in their names, types and shapes.  A method, a layout or a transformation
 * that is not read here is refused by its name.  Private to engine/model/.
 *
 * Threads: any thread; no state.
 */
#ifndef ENGINE_MODEL_QUANT_H
#define ENGINE_MODEL_QUANT_H

#include "engine/base/err.h"
#include "engine/base/json.h"
#include "engine/model/model.h"
#include "engine/model/stored.h"

typedef enum {
    QUANT_NONE,
    QUANT_GPTQ,
    QUANT_AWQ,
    QUANT_FP8,
    QUANT_COMPRESSED, /* compressed-tensors: packed integers, int8 or FP8 */
    QUANT_BITS,       /* bitsandbytes: NF4 */
    QUANT_MXFP4,      /* experts alone */
} quant_method;

typedef struct quant {
    quant_method method;
    int bits;     /* GPTQ, AWQ */
    int group;    /* the same; -1: a whole row */
    int zero_off; /* GPTQ: 1 where zero points are stored less one */
    int block[2]; /* FP8: rows and columns that share a scale, where there are blocks */
} quant;

/* Of a configuration without the member: QUANT_NONE.  ERR_INPUT, ERR_UNSUPPORTED. */
err_code quant_read(const cJSON *config, quant *out, err *e);

/* Where a folder's tensors are looked up. */
typedef struct model_files model_files;

/* Fills `s` (name, rows and cols are set) with the matrix of `module`, if the file has it in the
 * form of `q`: *found.  Else it is a plain one. */
err_code quant_find(model_files *f, const quant *q, const char *module, stored *s, bool *found,
                    err *e);

/* The same of one matrix among a layer's experts, whose tensor's name `s` has; src is of its whole
 * rows, of which `rows` are taken.  MXFP4 alone. */
err_code quant_find_slice(model_files *f, const stored_slice *at, int rows, stored *s, bool *found,
                          err *e);

#endif
