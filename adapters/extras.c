/* extras.c -- vectors out of the file, through the host, into the backend's memory. */
#include "adapters/extras.h"

#include <stdlib.h>
#include <string.h>

#include "adapters/validate.h"

/* ---- sizes ------------------------------------------------------------------------------------ */

static uint64_t vector_bytes(const model_config *shape, size_t slot)
{
    int d_out, d_in;
    peft_slot_shape(shape, slot, &d_out, &d_in);
    return adapter_padded((uint64_t)d_out * sizeof(float));
}

static bool biased(const adapter_pair *pair)
{
    return pair->b_bias.present || pair->bias.present;
}

uint64_t extras_bytes(const adapter_layout *al, const model_config *base, const backend *be)
{
    uint64_t sum = 0;
    (void)be;
    for (size_t slot = 0; slot < peft_slots(base->n_layer); slot++) {
        if (al->pair[slot].magnitude.present) sum += vector_bytes(base, slot);
        if (biased(&al->pair[slot])) sum += vector_bytes(base, slot);
    }
    return sum;
}

/* ---- making -------------------------------------------------------------------------------------- */

typedef struct maker {
    const adapter_layout *al;
    const model_config *shape;
    const model *base;
    backend *be;
    const uint8_t *file;
    uint8_t *slab;
    uint64_t at;
    float *in, *out; /* host vectors of the longest d_out */
} maker;

static void *take(maker *mk, uint64_t bytes)
{
    void *p = mk->slab + mk->at;
    mk->at += adapter_padded(bytes);
    return p;
}

static void read_vector(const maker *mk, const adapter_tensor *t, float *out, int n)
{
    static const st_dtype types[] = {[DT_F32] = ST_F32, [DT_F16] = ST_F16, [DT_BF16] = ST_BF16};
    st_tensor view = {.dtype = types[t->type],
                      .count = (uint64_t)n,
                      .bytes = t->bytes,
                      .data = mk->file + t->offset};
    st_read_f32(&view, 0, (uint64_t)n, out);
}

/* A matrix of the file at an address that its type allows; *spare is the caller's to free. */
static const void *matrix(const maker *mk, const adapter_tensor *t, void **spare)
{
    const uint8_t *p = mk->file + t->offset;
    *spare = NULL;
    if ((uintptr_t)p % dtype_bytes(t->type) == 0) return p;
    *spare = malloc((size_t)t->bytes);
    if (*spare != NULL) memcpy(*spare, p, (size_t)t->bytes);
    return *spare;
}

static err_code make_gain(maker *mk, size_t slot, lora_mat *m, int n, err *e)
{
    const adapter_pair *pair = &mk->al->pair[slot];
    const peft_layer *pl = &mk->al->peft.layer[slot];
    void *spare_a, *spare_b;
    const weight *w =
        model_proj_weight(mk->base, (int)(slot / PROJ_COUNT), (proj)(slot % PROJ_COUNT));
    lora_pair lp = {.a = matrix(mk, &pair->a, &spare_a),
                    .b = matrix(mk, &pair->b, &spare_b),
                    .type = pair->a.type,
                    .rank = pl->rank,
                    .scale = pl->scale};
    err_code code =
        lp.a != NULL && lp.b != NULL ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    read_vector(mk, &pair->magnitude, mk->in, n);
    if (code == ERR_NONE) code = be_lora_gain(mk->be, w, &lp, mk->in, mk->out, e);
    free(spare_a);
    free(spare_b);
    void *to = take(mk, (uint64_t)n * sizeof(float));
    m->gain = to;
    return code != ERR_NONE ? code : be_upload(mk->be, to, mk->out, (size_t)n * sizeof(float));
}

/* The trained bias in place of the base's; scale * lora_B's bias on top. */
static err_code make_bias(maker *mk, size_t slot, lora_mat *m, int n, err *e)
{
    const adapter_pair *pair = &mk->al->pair[slot];
    const float *own = NULL;
    size_t bytes = (size_t)n * sizeof(float);
    err_code code = ERR_NONE;
    memset(mk->out, 0, bytes);
    if (pair->bias.present)
        read_vector(mk, &pair->bias, mk->out, n);
    else
        own = model_proj_bias(mk->base, (int)(slot / PROJ_COUNT), (proj)(slot % PROJ_COUNT));
    if (own != NULL) code = be_download(mk->be, mk->out, own, bytes);
    if (code != ERR_NONE) return err_set(e, code, "the base's bias cannot be read");
    if (pair->b_bias.present) {
        read_vector(mk, &pair->b_bias, mk->in, n);
        for (int i = 0; i < n; i++) mk->out[i] += mk->al->peft.layer[slot].scale * mk->in[i];
    }
    void *to = take(mk, bytes);
    m->bias = to;
    return be_upload(mk->be, to, mk->out, bytes);
}

static err_code make_slot(maker *mk, size_t slot, lora_mat *m, err *e)
{
    const adapter_pair *pair = &mk->al->pair[slot];
    int d_out, d_in;
    char name[128];
    err_code code = ERR_NONE;
    peft_slot_shape(mk->shape, slot, &d_out, &d_in);
    if (pair->magnitude.present) code = make_gain(mk, slot, m, d_out, e);
    if (code == ERR_NONE && biased(pair)) code = make_bias(mk, slot, m, d_out, e);
    if (code == ERR_NONE) return code;
    peft_slot_name(name, sizeof name, mk->shape->n_layer, slot);
    return err_context(e, "%s", name);
}

err_code extras_make(adapter_extras *out, const adapter_layout *al, const model_config *shape,
                     const model *base, backend *be, const uint8_t *file, lora_mat *mat, err *e)
{
    memset(out, 0, sizeof *out);
    uint64_t bytes = extras_bytes(al, shape, be);
    if (bytes == 0) return ERR_NONE;
    if (base == NULL)
        return err_set(e, ERR_UNSUPPORTED, "DoRA and biases need the base's weights at hand");
    maker mk = {.al = al, .shape = shape, .base = base, .be = be, .file = file};
    size_t longest = 0;
    for (size_t slot = 0; slot < peft_slots(shape->n_layer); slot++) {
        uint64_t n = vector_bytes(shape, slot);
        if (n > longest) longest = (size_t)n;
    }
    mk.in = malloc(longest);
    mk.out = malloc(longest);
    out->slab = mk.slab = be_alloc(be, (size_t)bytes);
    err_code code = mk.in != NULL && mk.out != NULL && mk.slab != NULL
                        ? ERR_NONE
                        : err_set(e, ERR_NOMEM, "no memory for an adapter");
    for (size_t slot = 0; slot < peft_head_slot(shape->n_layer) && code == ERR_NONE; slot++)
        code = make_slot(&mk, slot, &mat[slot], e);
    free(mk.in);
    free(mk.out);
    return code;
}

void extras_clear(adapter_extras *ex, backend *be)
{
    if (ex->slab != NULL) be_free(be, ex->slab);
    memset(ex, 0, sizeof *ex);
}
