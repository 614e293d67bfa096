/* pooled.h -- what a model's folder says of the vectors and classes that its prompts become.
 *
 * sentence-transformers keeps it in modules.json and 1_Pooling/config.json, transformers' heads of
 * classes in config.json.  What is set there and not computed here is a `problem`, which the
 * requests that ask for vectors are told; text is made all the same.
 *
 * Ownership: the caller's struct; pooled_clear() frees.  Threads: read-only once read.
 */
#ifndef ENGINE_MODEL_POOLED_H
#define ENGINE_MODEL_POOLED_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "engine/sample/pooling.h"

typedef struct pooled_config {
    pooling_kind kind;
    bool normalise;    /* the vectors have length 1 */
    int max_tokens;    /* of a prompt; 0: as many as the context has */
    char problem[200]; /* why no vectors are made; "": they are */
    int n_label;
    char **label; /* [n_label] of the base's classes; owned */
    /* What scores become.  Usual: of one class alone a sigmoid, of several softmax. */
    enum { POOLED_USUAL, POOLED_SIGMOID, POOLED_SOFTMAX, POOLED_PLAIN } scores;
} pooled_config;

/* `word`: model.pooling: "last", "cls", "mean", ...; "auto": as the files of the model at `path`
 * say, or the last state, as of a model that was made to go on with a text.  ERR_INPUT: a file says
 * nonsense; ERR_UNSUPPORTED: something of scores that is not computed. */
err_code pooled_read(pooled_config *out, const char *path, const char *word, err *e);
void pooled_clear(pooled_config *pc);

/* What the class k of n is called; room: for a name that is made. */
const char *pooled_label(const pooled_config *pc, int k, int n, char room[24]);

/* Scores of n classes become what is answered, in place. */
void pooled_scores(const pooled_config *pc, float *score, int n);

#endif
