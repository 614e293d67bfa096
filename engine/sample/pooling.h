/* pooling.h -- the hidden states of a prompt become one vector, and that scores of classes.
 *
 * What a request has in place of sampling where its prompt is to be embedded or classified.  The
 * states come in order of position, in as many pieces as the prompt was computed in; sums are of
 * doubles, position after position.  So the vector is the same bits however it was cut, whatever
 * stood beside it.  A position that comes again, after a pre-emption, is not counted twice.
 *
 * Ownership: the caller's struct; pooling_clear() frees.
 * Threads:   one at a time: the worker before it submits, the engine, the worker after the end.
 */
#ifndef ENGINE_SAMPLE_POOLING_H
#define ENGINE_SAMPLE_POOLING_H

#include <stdbool.h>

/* Which states make the vector; what files call it: engine/model/pooled.c. */
typedef enum {
    POOL_LAST,      /* the last position's */
    POOL_FIRST,     /* the first one's */
    POOL_MEAN,      /* of all */
    POOL_MEAN_ROOT, /* their sum by the root of their number */
    POOL_MEAN_LATE, /* the i-th counts i times */
    POOL_MAX,       /* of all, each value by itself */
} pooling_kind;

enum { POOLING_LABELS_MAX = 1024 };

/* A linear layer over the vector: a score for each class.  Host memory. */
typedef struct pooling_head {
    int n_label, dim;
    const float *w;    /* [n_label][dim] */
    const float *bias; /* [n_label]; NULL: none */
} pooling_head;

typedef struct pooling {
    pooling_kind kind;
    int dim;
    bool classify; /* a head is to be put over the vector */
    float *vector; /* [dim], once it is complete */
    float *label;  /* [POOLING_LABELS_MAX] with classify, n_label of them filled */
    int n_label;
    double *sum; /* [dim]; NULL: of this kind only one position is read */
    int n_taken; /* positions from the first on that are in it */
} pooling;

/* False: no memory; pooling_clear() is due all the same. */
bool pooling_init(pooling *p, pooling_kind kind, int dim, bool classify);
void pooling_clear(pooling *p);

/* The first position of a prompt of so many that is still to be given; n_prompt: none is. */
int pooling_from(const pooling *p, int n_prompt);

/* The next n states, [n][dim], from pooling_from() on; one alone where `sum` is NULL.  False: one
 * holds what is not a number. */
bool pooling_take(pooling *p, const float *state, int n);

/* All were given: makes the vector. */
void pooling_end(pooling *p);

/* Scores into p->label; false: the head is of another width, or has too many classes. */
bool pooling_classify(pooling *p, const pooling_head *head);

/* To length 1; a vector of nothing but zeros stays. */
void pooling_normalise(float *v, int n);

/* Of two vectors of length 1 or any other; 0 where one has none. */
double pooling_cosine(const float *a, const float *b, int n);

#endif
