/* mixers.h -- kernels of mixers with a state, one table per instruction set.  Private to
 * engine/cpu/. */
#ifndef ENGINE_CPU_MIXERS_H
#define ENGINE_CPU_MIXERS_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/mixer.h"

/* Rows of one sequence and the channels [from, to) of a layer. */
typedef struct conv_part {
    float *out;        /* [n_rows][channels] */
    const float *x;    /* [n_rows][3 * channels] */
    float *last;       /* the state, [n_taps - 1][channels] */
    const float *taps; /* [n_taps][channels] */
    const float *bias; /* [channels] or NULL */
    size_t channels;   /* of a row */
    size_t from, to;
    int n_rows, n_taps;
    bool fresh; /* the state counts as zero */
} conv_part;

/* Rows of one sequence and the heads of one group; each pointer is at the group's first value, and
 * rows are ..._apart floats apart. */
typedef struct delta_part {
    float *out;
    const float *in[3];     /* its query, its key, its values */
    const float *z, *b, *a; /* of its heads */
    size_t out_apart, in_apart[3], z_apart, b_apart, a_apart;
    const float *taps[3]; /* of in[], [n_taps] */
    size_t taps_apart[3];
    float *last[3];            /* the state: [n_taps - 1] inputs of each, `channels` apart, */
    float *state;              /* and [n_head][key][value] */
    const float *decay, *bias; /* [n_head]; bias [n_head][key] (rules->each) */
    const float *norm;         /* [value] */
    const delta_rules *rules;
    size_t channels;
    int n_head, key, value, n_rows, n_taps;
    bool fresh; /* the state counts as zero */
} delta_part;

/* Rows of one sequence and the channels [from, to) of a scan's convolution, in place. */
typedef struct silu_part {
    float *x;          /* [n_rows][stride] */
    float *last;       /* the state, [n_taps - 1][channels] */
    const float *taps; /* [n_taps][channels] */
    const float *bias; /* [channels] or NULL */
    float by;          /* multiplies what it reads */
    size_t channels, stride;
    size_t from, to;
    int n_rows, n_taps;
    bool fresh;
} silu_part;

/* Rows of one sequence and one head of a scan. */
typedef struct scan_part {
    float *out;               /* [n_rows][out_stride]: the head's cols */
    const float *x, *b, *c;   /* [n_rows][stride]: its cols, and the `rows` of its group */
    const float *dt, *forget; /* [n_rows] */
    float *state;             /* [rows][cols] */
    float skip;
    size_t stride, out_stride;
    int n_rows, rows, cols;
} scan_part;

/* One row of the channels [from, to) of a scan of channels. */
typedef struct channel_part {
    float *out;                 /* [channels] */
    const float *x, *dt, *gate; /* [channels] */
    const float *b, *c;         /* [rows], normed */
    const float *decay, *skip;  /* [channels][rows], [channels] */
    float *state;               /* [channels][rows] */
    size_t from, to;
    int rows;
} channel_part;

/* One group of one row: the gate, and the norm. */
typedef struct scan_gate_part {
    float *y;          /* [n], in place */
    const float *gate; /* [n] */
    const float *gain; /* [n] or NULL: no norm */
    float gate_by, eps;
    int n;
    bool norm_first;
} scan_gate_part;

typedef struct mixer_kernels {
    void (*conv)(const conv_part *p);
    void (*delta)(const delta_part *p);
    void (*silu_conv)(const silu_part *p);
    void (*scan)(const scan_part *p);
    void (*scan_gate)(const scan_gate_part *p);
    void (*scan_channels)(const channel_part *p);
} mixer_kernels;

extern const mixer_kernels mixers_portable, mixers_avx2, mixers_avx512;

#endif
