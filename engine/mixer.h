/* mixer.h -- the ways in which a layer lets a row read the rows before it.
 *
 * Attention reads keys and values of all positions, which lie in pages.  The other mixers read a
 * state of constant size: the last inputs of a short convolution, and a matrix for each head.  It
 * belongs to one sequence, is F32, zero before position 0, and each row changes it.
 *
 * Plain data.
 */
#ifndef ENGINE_MIXER_H
#define ENGINE_MIXER_H

#include <stdbool.h>
#include <stddef.h>

enum { MIXER_TAPS_MAX = 16, MIXER_SIDE_MAX = 256 /* of a matrix */ };

typedef enum {
    MIXER_ATTENTION, /* over keys and values; of latents where the model has them */
    MIXER_CONV,      /* a gated short convolution (LFM2) */
    MIXER_DELTA,     /* the gated delta rule (Yang et al. 2024, "Gated Delta Networks") */
    MIXER_SCAN,      /* a selective scan behind a convolution (Mamba-2) */
    MIXER_CHANNELS,  /* the same of each channel by itself (Mamba) */
    MIXER_BOTH,      /* attention and a selective scan of the same input, added up (Falcon-H1) */
    MIXER_NONE,      /* the layer reads no other rows */
} mixer;

/* Whether a layer has keys and values; whether it keeps a state. */
static inline bool mixer_attends(int m)
{
    return m == MIXER_ATTENTION || m == MIXER_BOTH;
}

static inline bool mixer_keeps(int m)
{
    return m != MIXER_ATTENTION && m != MIXER_NONE;
}

/* Shape of the layers with a state, which is the same for all of a model.  taps 0: there are
 * none. */
typedef struct mixer_shape {
    int taps, channels; /* of the convolution: rows that it reads, and values of a row */
    /* A matrix of rows x cols for each head; heads 0: there is none.  heads / groups heads, one
     * behind the other, share what they write to and read from its rows. */
    int heads, rows, cols, groups;
} mixer_shape;

/* Floats of one layer's state: the convolution's last inputs, the oldest first
 * [taps - 1][channels], */
static inline size_t mixer_window_floats(const mixer_shape *s)
{
    return s->taps > 0 ? (size_t)(s->taps - 1) * (size_t)s->channels : 0;
}

/* and then [heads][rows][cols]. */
static inline size_t mixer_state_floats(const mixer_shape *s)
{
    return mixer_window_floats(s) + (size_t)s->heads * (size_t)s->rows * (size_t)s->cols;
}

/* Values of a row that a scan reads: the gate of all heads, what goes through the convolution (all
 * heads' x, then B and C of all groups), a step for each head; and of a row that it answers. */
static inline int scan_out(const mixer_shape *s)
{
    return s->heads * s->cols;
}

static inline int scan_in(const mixer_shape *s)
{
    return scan_out(s) + s->channels + s->heads;
}

/* What a selective scan reads beside its weights. */
typedef struct scan_rules {
    float dt_least, dt_most; /* steps are kept within these */
    bool normed;             /* what the heads answer is normed in groups, */
    bool norm_first;         /* before the gate multiplies it; else behind */
    float eps;               /* of the norm */
    float by[5];             /* multipliers of the gate, of x, B, C and the step */
} scan_rules;

/* Which projections make what the delta rule reads of a row. */
typedef enum {
    DELTA_JOINT, /* queries, keys and values by one, the rest by others */
    DELTA_FUSED, /* all by two, of which each makes it group by group */
    DELTA_APART, /* queries, keys and values by one each, the rest by others */
} delta_form;

typedef struct delta_rules {
    delta_form form;
    bool each;    /* each value of a key forgets by itself (Kimi); else all of a head alike */
    bool sigmoid; /* of gates; else silu */
    int low;      /* gates and what is forgotten are made of so many values each; 0: of the row */
    float most;   /* that a row writes: sigmoid(b) times this */
    float eps;    /* of the norm of a head's answer */
} delta_rules;

#endif
