/* lora.h -- what the engine needs to know about an adapter, and the door it knocks on.
 *
 * The engine never includes adapters/.  It declares here the view its kernels
 * read and the source that hands views out; adapters/residency/residency.c stands behind
 * the door in production and a few lines of fake stand behind it in tests.
 */
#ifndef ENGINE_LORA_H
#define ENGINE_LORA_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LORA_RANK_MAX = 256, LORA_DIGEST_BYTES = 32 };

/* The linear layers of one transformer block that an adapter may wrap.  The PEFT names (q_proj ...)
 * are in adapters/format/naming.c.  Of attention over latents (model_config.latent) PROJ_Q_A and
 * PROJ_Q make queries, one after the other, PROJ_K the latent, and PROJ_V keys and values of it.
 * PROJ_IN and PROJ_OUT are those of a mixer with a state (engine/mixer.h); of the delta rule
 * PROJ_IN makes queries, keys and values, PROJ_Z gates of the answer, PROJ_B how much a row writes
 * and PROJ_A how much it forgets; or PROJ_IN makes gates, too, and PROJ_B both of the others; or
 * PROJ_Q, PROJ_K, PROJ_V and PROJ_O stand for PROJ_IN and PROJ_OUT, and PROJ_Z_LOW and PROJ_A_LOW
 * may stand before PROJ_Z and PROJ_A (delta_rules).
 * PROJ_PLE_MODEL makes a layer's own input of the embeddings (a layer's rows of one matrix of all),
 * PROJ_PLE_GATE its gate and PROJ_PLE_OUT what it adds (Gemma 3n, "per-layer embeddings").
 * PROJ_LAUREL_LEFT and PROJ_LAUREL_RIGHT make a residual of low rank; PROJ_ALTUP_IN and
 * PROJ_ALTUP_OUT of layer i make stream i + 1 of the embeddings, and part of the answer of that
 * stream; PROJ_ALTUP_ROUTER, PROJ_ALTUP_PREDICT and PROJ_ALTUP_CORRECT make a layer's coefficients
 * of streams (Gemma 3n, "AltUp").
 * PROJ_ROUTER makes the scores of experts, PROJ_SHARED_SCORE that of the expert that all rows take;
 * both have F32 weights and F32 adapters (model_proj_type()). */
typedef enum {
    PROJ_Q_A,
    PROJ_Q,
    PROJ_K,
    PROJ_V,
    PROJ_O,
    PROJ_IN,
    PROJ_OUT,
    PROJ_Z,
    PROJ_B,
    PROJ_A,
    PROJ_Z_LOW,
    PROJ_A_LOW,
    PROJ_GATE,
    PROJ_UP,
    PROJ_DOWN,
    PROJ_PLE_MODEL,
    PROJ_PLE_GATE,
    PROJ_PLE_OUT,
    PROJ_LAUREL_LEFT,
    PROJ_LAUREL_RIGHT,
    PROJ_ALTUP_IN,
    PROJ_ALTUP_OUT,
    PROJ_ROUTER,
    PROJ_SHARED_SCORE,
    PROJ_ALTUP_ROUTER,
    PROJ_ALTUP_PREDICT,
    PROJ_ALTUP_CORRECT,
    PROJ_COUNT
} proj;

enum { LORA_HEAD = PROJ_COUNT }; /* linear_out.lora_proj of the output layer */

/* Where the rest of a matrix lies that did not fit into one piece of memory
 * (engine/memory/devmem.h): the rows of A from a_first on, a_each at a time, and the columns of B
 * from b_first on, b_each at a time.  b_first and b_each are multiples of the backend's
 * lora_cols. */
typedef struct lora_split {
    int32_t a_first, a_each, b_first, b_each;
    const void *const *a, *const *b;
} lora_split;

/* What an adapter does to one linear layer: y = gain * (W x + scale * B (A x)) + bias.  All
 * pointers are in the backend's memory, a and b in the layout that be_lora_pack() made; rank
 * differs from layer to layer.  All zero: this layer is not adapted. */
typedef struct lora_mat {
    const void *a; /* packed A [rank][d_in]; NULL: rank is 0 */
    const void *b; /* packed B [d_out][rank] */
    int32_t rank;
    float scale;       /* alpha / rank, alpha / sqrt(rank) for rsLoRA */
    const float *gain; /* [d_out], DoRA (Liu et al. 2024): magnitude / ||W + scale B A||; NULL: 1 */
    const float *bias; /* [d_out], stands in for the base's; NULL: the base's own */
    const lora_split *split; /* NULL: a and b are whole */
} lora_mat;

static inline int lora_mat_used(const lora_mat *m)
{
    return m->rank > 0 || m->bias != NULL;
}

typedef struct weight weight;             /* engine/backend.h */
typedef struct pooling_head pooling_head; /* engine/sample/pooling.h */

/* Rows of their own for some tokens, whatever the table says of them; also for tokens that the
 * table does not have.  n 0: none. */
typedef struct lora_rows {
    int n;
    const int32_t *id;       /* [n] ascending, host memory */
    const int32_t *id_there; /* the same in the backend's memory */
    const void *table;       /* of the input table: [n][dim] in the backend's memory, of `type` */
    int type;                /* dtype */
    const weight *w;         /* of the output layer: [n][dim] */
} lora_rows;

/* The output layer of an adapter: another matrix, LoRA on it, or both; rows are put over all
 * that. */
typedef struct lora_head {
    const weight *w; /* [n_vocab of the view][dim]; NULL: the base's */
    lora_mat mat;
    lora_rows rows;
} lora_head;

/* The input table: row t is gain * (table[t] + scale * B A_t). */
typedef struct lora_embed {
    /* [n_vocab][dim] in the backend's memory, of `table_type`; NULL: the base's. */
    const void *table;
    int table_type; /* dtype */
    int pack_type;  /* dtype that mat was packed beside (be_lora_pack_embed) */
    lora_mat mat;   /* a: [n_vocab][rank]; bias is not used */
    lora_rows rows; /* in place of the table's, before mat */
} lora_embed;

/* Place of a token among rows of their own; -1: it has none. */
static inline int lora_row_of(const lora_rows *r, int32_t token)
{
    int lo = 0, hi = r->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (r->id[mid] < token)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < r->n && r->id[lo] == token ? lo : -1;
}

enum { LORA_EXPERT_PROJS = 3 };

/* Norms of the residual stream that an adapter may bring: two in each layer, then the last one. */
enum { LORA_NORM_ATTN, LORA_NORM_MLP, LORA_NORMS };

/* Immutable while acquired.  Borrowed from the source, never freed by the engine. */
typedef struct lora_view {
    uint64_t adapter_id; /* unique over all time; never reused */
    uint64_t load_id; /* another one each time it is loaded; 0: the view may change at any time */
    /* Of the adapter's content: part of the prefix cache's key. */
    uint8_t digest[LORA_DIGEST_BYTES];
    int n_layer;
    int n_vocab;         /* where tokens were added to the base's or taken away; 0: the base's */
    int rank_max;        /* of all below */
    const lora_mat *mat; /* [n_layer][PROJ_COUNT] */
    /* [n_layer][n_expert][LORA_EXPERT_PROJS]: gate, up and down of each expert; NULL: the base's */
    const lora_mat *expert;
    int n_expert;
    const lora_head *head;   /* NULL: the base's */
    const lora_embed *embed; /* NULL: the base's */
    /* [n_layer * LORA_NORMS + 1] weights, f32 in the backend's memory;
     * NULL, also of one: the base's */
    const float *const *norm;
    const pooling_head *score_head; /* of classes, over a prompt's vector; NULL: the base's */
} lora_view;

/* The weights of a norm for rows of this view (NULL: the bare base): layer * LORA_NORMS + which,
 * or, behind them all, the norm before the output layer. */
static inline const float *lora_norm(const lora_view *view, int at, const float *base)
{
    return view && view->norm && view->norm[at] ? view->norm[at] : base;
}

static inline const float *lora_last_norm(const lora_view *view, const float *base)
{
    return view ? lora_norm(view, view->n_layer * LORA_NORMS, base) : base;
}

/* What an adapter does to a projection (PROJ_GATE to PROJ_DOWN) of an expert; NULL: nothing. */
static inline const lora_mat *lora_expert(const lora_view *view, int layer, int expert, int p)
{
    if (!view || !view->expert) return NULL;
    size_t at = (size_t)layer * (size_t)view->n_expert + (size_t)expert;
    const lora_mat *m = &view->expert[at * LORA_EXPERT_PROJS + (size_t)(p - PROJ_GATE)];
    return lora_mat_used(m) ? m : NULL;
}

/* Where views come from.  All but eta and spent are called on the engine thread;
 * none may block. */
typedef struct lora_source {
    void *self;
    /* ERR_NONE: *out is resident and stays so until release.
     * ERR_BUSY: on its way up the tiers, or no room yet; ask again on a later step.
     * Anything else: this request cannot be served, for the reason in *e. */
    err_code (*acquire)(void *self, uint64_t adapter_id, const lora_view **out, err *e);
    void (*release)(void *self, const lora_view *view); /* NULL: views are never given back */
    /* A request for this adapter waits in the queue and must have its first token by then
     * (clock_now_us(); 0: now): start loading, the nearest deadline first.  A hint.  May be
     * NULL. */
    void (*want)(void *self, uint64_t adapter_id, int64_t deadline_us);
    /* A sequence has its seat, with this view acquired: only this counts as a use, for a request
     * may acquire and release again while it waits for pages.  May be NULL. */
    void (*used)(void *self, const lora_view *view);
    /* A step begins that should take step_us, and slack_us longer without a stream missing its
     * target (INFINITY: nobody has one): what loads may disturb it.  May be NULL. */
    void (*step)(void *self, double step_us, double slack_us);
    /* From one adapter loaded to the next, all loaders at work, in microseconds (0: not known yet);
     * how many could be fetched into what is idle (at least 1).  May be NULL. */
    void (*outlook)(void *self, double *load_us, int *room);
    /* Chunks of the arena that the view takes.  May be NULL: none. */
    int (*chunks)(void *self, const lora_view *view);
    /* Microseconds after which the adapter would be there for a request with this deadline (as for
     * want), if it were asked for now and room is found: its own load and those before it.  0: it
     * is there, or nothing is known.  Any thread.  May be NULL. */
    int64_t (*eta)(void *self, uint64_t adapter_id, int64_t deadline_us);
    /* Sums over all loads, those under way until now: what they took, and of that waiting for the
     * disk.  Any thread.  May be NULL. */
    void (*spent)(void *self, int64_t *disk_us, int64_t *load_us);
    /* The device is about to go: nothing is acquired; what lies on it is forgotten, loaders
     * stay away from it, those at work are waited for (the one call that may block).
     * Requests are answered ERR_BUSY until resume(), after which adapters come back on
     * demand.  May be NULL, both or none. */
    void (*suspend)(void *self);
    void (*resume)(void *self);
} lora_source;

#ifdef __cplusplus
}
#endif

#endif
