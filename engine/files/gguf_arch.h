/* gguf_arch.h -- llama.cpp's architectures that are read, as data; private to engine/files/.
 *
 * A row of gguf_archs says what a file of the architecture leaves to be known; gguf_numbers and
 * gguf_biases say which field of config.json a key or a tensor means.  gguf_config.c makes a
 * config.json of them.
 *
 * Source: llama.cpp's converter, for the keys that it writes.
 * Threads: constants.
 */
#ifndef ENGINE_FILES_GGUF_ARCH_H
#define ENGINE_FILES_GGUF_ARCH_H

#include <stdbool.h>
#include <stddef.h>

/* An architecture of llama.cpp, and the properties that its files do not contain. */
typedef struct gguf_arch {
    const char *name, *family; /* family NULL: the same name */
    const char *refused;       /* why its files are refused; NULL: they are read */
    bool layer_norm;           /* the key of epsilon is that of a norm with a mean */
    bool no_eps;               /* it is not read: the family's is fixed */
    bool window;               /* attention.sliding_window is the family's */
    bool null_window;          /* no key means no window; the family's default is not used */
    bool partial;              /* a part of each head turns: rope.dimension_count */
    bool original;             /* rope.scaling.original_context_length is the family's */
    /* Layers of the one model whose scores are scaled by its width over its heads, not by a head's
     * length; 0: the family scales no scores of its own. */
    int wide_layers;
    double swa_theta;    /* default of rope.freq_base_swa; 0: none */
    bool mixed;          /* all models of it have experts */
    bool latent;         /* attention over latents, and a family that the router's scores tell */
    bool routed;         /* its router has groups, a scale and a norm by keys */
    bool sigmoid;        /* of scores, where no key tells it */
    bool normed;         /* chosen weights sum to one, whatever keys tell */
    bool whole_ramp;     /* YaRN's borders are not rounded, whatever llama.cpp does */
    bool chunked;        /* attention.sliding_window is not told, or CHUNK */
    bool heads_differ;   /* attention.head_count_kv is 0 in layers without attention */
    bool no_heads;       /* no layer has attention */
    const char *wrapper; /* its model_type; NULL: it needs none */
    bool mlp;            /* a layer may be an MLP alone, and the list is layers_block_type */
    bool kinds;          /* layers that see everything have heads and a rotation of their own */
    bool streams;        /* Gemma 3n's fields that tensors tell */
    /* Words in layer_types for a layer with and one without attention; NULL: no layer_types. */
    const char *full, *other;
    /* Fields of feed_forward_length and of expert_feed_forward_length; NULL: the usual ones. */
    const char *ffn, *expert_ffn;
} gguf_arch;

extern const gguf_arch gguf_archs[];
extern const size_t gguf_n_arch;

/* Numbers that some architectures (their names, with blanks between them) have: key to field. */
typedef struct gguf_number {
    const char *archs, *key, *field; /* field NULL: the key is read elsewhere, or means nothing */
} gguf_number;
extern const gguf_number gguf_numbers[];
extern const size_t gguf_n_number;

/* Fields that say whether any layer has a tensor. */
typedef struct gguf_bias {
    const char *archs, *tensor, *field;
} gguf_bias;
extern const gguf_bias gguf_biases[];
extern const size_t gguf_n_bias;

#endif
