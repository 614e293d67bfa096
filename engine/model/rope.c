/* rope.c -- rotary position embeddings: reads the variants from config.json, and fills the tables
 * of cosines and sines.
 *
 *   angle(pos, i) = pos x frequency(i),   frequency(i) = theta^(-2i/d), scaled:
 *     linear, dynamic   divided by a factor (dynamic only acts beyond the trained length)
 *     llama3            long waves divided, short kept, blended in between
 *     yarn              the same with borders by turns over the trained length (Peng et al. 2023),
 *                       and a factor on the values
 *     longrope          a factor per frequency, short or long by the served context
 *     proportional, partial   only some of the frequencies rotate
 *
 * The configuration comes in several generations (rope_scaling, rope_parameters, per kind of layer,
 * a theta per layer); each is read strictly and an unknown type is refused by name.
 *
 * Tables are made in pieces of ROPE_CHUNK positions as the context grows (rope_fill()). Angles are
 * rounded to f32 where the reference implementation does that, in f64 otherwise (`exact`), so
 * logits agree with transformers. Source: Su et al. 2021. Threads: start-up and engine thread.
 */
#include "engine/model/rope.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/model_inside.h"

enum { ROPE_CHUNK = 1024, POS_MAX = 1 << 22 }; /* positions filled at a time; most of any model */

/* ------------------------------------------------------------------------ config -- */

static err_code required_real(const cJSON *r, const char *name, double lo, double hi, float *out,
                              err *e)
{
    if (!config_is_set(r, name)) return err_set(e, ERR_INPUT, "\"%s\" is missing", name);
    return config_real(r, name, lo, hi, out, e);
}

/* original_max_position_embeddings: the model's own comes first where it has one (Phi-3), then the
 * scaling's; transformers falls back to max_position_embeddings. */
static err_code read_original(const cJSON *j, const cJSON *r, const model_family *f,
                              const model_config *c, rope_config *out, err *e)
{
    static const char field[] = "original_max_position_embeddings";
    out->original_pos = f->original_pos ? f->original_pos : c->max_pos;
    bool own = f->original_pos || config_is_set(j, field);
    return config_dimension(own ? j : r, field, POS_MAX, &out->original_pos, e);
}

static err_code read_llama3(const cJSON *r, rope_config *out, err *e)
{
    err_code rc = required_real(r, "factor", 1.0, 1e6, &out->factor, e);
    if (!rc) rc = required_real(r, "low_freq_factor", 1e-6, 1e6, &out->low_freq, e);
    if (!rc) rc = required_real(r, "high_freq_factor", 1e-6, 1e6, &out->high_freq, e);
    if (!rc && !config_is_set(r, "original_max_position_embeddings"))
        return err_set(e, ERR_INPUT, "\"original_max_position_embeddings\" is missing");
    if (!rc && out->high_freq <= out->low_freq)
        return err_set(e, ERR_INPUT, "\"high_freq_factor\" must be above \"low_freq_factor\"");
    return rc;
}

static double mscale(double factor, double by)
{
    return factor <= 1 ? 1.0 : 0.1 * by * log(factor) + 1.0;
}

static err_code read_yarn(const cJSON *r, rope_config *out, err *e)
{
    float scale = 0, all = 0;
    bool truncate = true;
    out->beta_fast = 32;
    out->beta_slow = 1;
    err_code rc = required_real(r, "factor", 1.0, 1e6, &out->factor, e);
    if (!rc) rc = config_real(r, "beta_fast", 1e-3, 1e6, &out->beta_fast, e);
    if (!rc) rc = config_real(r, "beta_slow", 1e-3, 1e6, &out->beta_slow, e);
    if (!rc) rc = config_real(r, "mscale", 0, 1e3, &scale, e);
    if (!rc) rc = config_real(r, "mscale_all_dim", 0, 1e3, &all, e);
    if (!rc) rc = config_flag(r, "truncate", &truncate, e);
    if (rc) return rc;
    double factor = (double)out->factor;
    bool both = scale > 0 && all > 0;
    out->attention_factor =
        (float)(both ? mscale(factor, (double)scale) / mscale(factor, (double)all)
                     : mscale(factor, 1));
    out->mscale_all = all > 0 ? (float)mscale(factor, (double)all) : 1;
    out->truncate = truncate;
    if (out->theta <= 1) return err_set(e, ERR_INPUT, "\"rope_theta\" must be above 1");
    return config_real(r, "attention_factor", 1e-3, 1e3, &out->attention_factor, e);
}

static err_code read_factors(const cJSON *r, const char *name, int n, float *out, err *e)
{
    const cJSON *list = json_get(r, name), *item;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != n)
        return err_set(e, ERR_INPUT, "\"%s\" must hold %d numbers", name, n);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsNumber(item) || !(item->valuedouble > 1e-6 && item->valuedouble < 1e9))
            return err_set(e, ERR_INPUT, "\"%s\" must hold %d numbers above 0", name, n);
        *out++ = (float)item->valuedouble;
    }
    return ERR_NONE;
}

static err_code read_longrope(const cJSON *r, const model_family *f, const model_config *c,
                              rope_config *out, err *e)
{
    int n = out->dim / 2;
    out->factor = (float)((double)c->max_pos / out->original_pos);
    if (n > MODEL_ROPE_MAX)
        return err_set(e, ERR_UNSUPPORTED, "longrope of more than %d frequencies is not supported",
                       MODEL_ROPE_MAX);
    err_code rc = read_factors(r, "short_factor", n, out->short_factor, e);
    if (!rc) rc = read_factors(r, "long_factor", n, out->long_factor, e);
    if (!rc) rc = config_real(r, "factor", 1e-3, 1e6, &out->factor, e);
    if (rc) return rc;
    double by = (double)out->factor, original = out->original_pos;
    if (original < 2)
        return err_set(e, ERR_INPUT, "\"original_max_position_embeddings\" must be above 1");
    const char *mscale = c->max_pos > out->original_pos ? "long_mscale" : "short_mscale";
    if (f->reads & READS_MSCALES)
        return required_real(r, mscale, 1e-3, 1e3, &out->attention_factor, e);
    out->attention_factor = by <= 1 ? 1.0F : (float)sqrt(1 + log(by) / log(original));
    return config_real(r, "attention_factor", 1e-3, 1e3, &out->attention_factor, e);
}

static err_code read_plain(const cJSON *r, err *e)
{
    if (config_is_set(r, "factor")) return config_refuse(e, r, "factor");
    const cJSON *item;
    cJSON_ArrayForEach(item, r)
    {
        if (cJSON_IsObject(item)) return config_refuse(e, r, item->string);
    }
    return ERR_NONE;
}

static err_code read_partial(const cJSON *r, const model_family *f, const model_config *c,
                             float *partial, rope_config *out, err *e)
{
    err_code rc = config_real(r, "partial_rotary_factor", 0.0, 1.0, partial, e);
    if (!rc && *partial != 1 && !f->partial) rc = config_refuse(e, r, "partial_rotary_factor");
    if (rc) return rc;
    out->dim = c->latent.rank ? c->latent.rope : (int)((double)c->head_dim * (double)*partial);
    return ERR_NONE;
}

/* Whole heads, of which some frequencies alone turn anything. */
static err_code read_proportional(const cJSON *r, const model_family *f, rope_config *out, err *e)
{
    float partial = 1;
    if (!(f->reads & READS_GEMMA4)) return config_refuse(e, r, "rope_type");
    err_code rc = config_real(r, "partial_rotary_factor", 0.0, 1.0, &partial, e);
    if (!rc) rc = config_real(r, "factor", 1e-3, 1e6, &out->factor, e);
    out->some = (int)((double)partial * out->dim / 2);
    return rc;
}

/* Once all places that may name the factor have been read. */
static err_code check_partial(const rope_config *r, const model_config *c, err *e)
{
    if (r->dim >= 2 && r->dim % 2 == 0) return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED,
                   "\"partial_rotary_factor\": %d of the %d values of a head would be rotated; the "
                   "number must be even and at least 2",
                   r->dim, c->head_dim);
}

/* A wider theta at all positions (Hunyuan). */
static err_code read_alpha(const cJSON *r, const model_config *c, rope_config *out, err *e)
{
    float alpha = 1;
    double d = (double)c->head_dim;
    err_code rc = config_real(r, "alpha", 1e-3, 1e9, &alpha, e);
    if (d > 2) out->theta = (float)((double)out->theta * pow((double)alpha, d / (d - 2)));
    return rc;
}

/* Dynamic scaling begins behind max_position_embeddings, where nothing is served: a plain one. */
static err_code read_type(const cJSON *j, const cJSON *r, const char *type, const model_family *f,
                          const model_config *c, rope_config *out, err *e)
{
    static const struct {
        const char *name;
        int kind;
    } kinds[] = {{"default", ROPE_PLAIN}, {"dynamic", ROPE_PLAIN},
                 {"linear", ROPE_LINEAR}, {"llama3", ROPE_LLAMA3},
                 {"yarn", ROPE_YARN},     {"longrope", ROPE_LONG},
                 {"su", ROPE_LONG},       {"proportional", ROPE_PROPORTIONAL}};
    float unused = 0;
    bool known = false;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        bool is = strcmp(type, kinds[i].name) == 0;
        known |= is;
        if (is) out->kind = kinds[i].kind;
    }
    if (strcmp(type, "mrope") == 0 && f->reads & READS_MROPE) return ERR_NONE;
    if (!known)
        return err_set(e, ERR_UNSUPPORTED,
                       "rope type \"%.64s\" is not supported (default, dynamic, linear, llama3, "
                       "yarn, longrope are)",
                       type);
    if (out->kind == ROPE_YARN && f->yarn_means_longrope) out->kind = ROPE_LONG;
    err_code rc = read_original(j, r, f, c, out, e);
    if (rc) return rc;
    switch (out->kind) {
    case ROPE_PLAIN:
        if (strcmp(type, "dynamic") != 0) return read_plain(r, e);
        if (f->reads & READS_ALPHA && config_is_set(r, "alpha")) return read_alpha(r, c, out, e);
        return required_real(r, "factor", 1.0, 1e6, &unused, e);
    case ROPE_LINEAR: return required_real(r, "factor", 1.0, 1e6, &out->factor, e);
    case ROPE_LLAMA3: return read_llama3(r, out, e);
    case ROPE_YARN: return read_yarn(r, out, e);
    case ROPE_LONG: return read_longrope(r, f, c, out, e);
    case ROPE_PROPORTIONAL: return read_proportional(r, f, out, e);
    }
    return ERR_NONE;
}

/* One object of rope_scaling (old files) or rope_parameters. */
static err_code read_scaling(const cJSON *j, const cJSON *r, const model_family *f,
                             const model_config *c, float *partial, rope_config *out, err *e)
{
    const char *type = NULL;
    err_code rc = json_str(r, config_is_set(r, "rope_type") ? "rope_type" : "type", &type, NULL, e);
    if (!rc) rc = config_real(r, "rope_theta", 1.0, 1e12, &out->theta, e);
    bool each = f->reads & READS_GEMMA4; /* heads of two widths, and parts by the type alone */
    if (!rc && !each) rc = read_partial(r, f, c, partial, out, e);
    if (!rc && !(f->reads & READS_TEMPER) && config_is_set(r, "llama_4_scaling_beta"))
        rc = config_refuse(e, r, "llama_4_scaling_beta");
    if (!rc && !(f->reads & READS_MROPE) && config_is_set(r, "mrope_section"))
        rc = config_refuse(e, r, "mrope_section");
    if (!rc) rc = read_type(j, r, type ? type : "default", f, c, out, e);
    bool part = each && config_is_set(r, "partial_rotary_factor");
    if (!rc && part && out->kind != ROPE_PROPORTIONAL && out->kind != ROPE_PLAIN)
        rc = config_refuse(e, r, "partial_rotary_factor");
    return rc;
}

/* rope_parameters that name full_attention and sliding_attention. */
static err_code read_kinds(const cJSON *j, const cJSON *r, const model_family *f, model_config *c,
                           float *partial, err *e)
{
    const cJSON *item;
    err_code rc = ERR_NONE;
    cJSON_ArrayForEach(item, r)
    {
        bool full = strcmp(item->string, "full_attention") == 0;
        if (rc || cJSON_IsNull(item)) continue;
        if ((!full && strcmp(item->string, "sliding_attention") != 0) || !cJSON_IsObject(item))
            return config_refuse(e, r, item->string);
        rc = read_scaling(j, item, f, c, partial, full ? &c->rope : &c->local_rope, e);
    }
    return rc;
}

static err_code read_objects(const cJSON *j, const model_family *f, model_config *c, float partial,
                             err *e)
{
    static const char *const where[] = {"rope_scaling", "rope_parameters"};
    for (int i = 0; i < 2; i++) {
        if (!config_is_set(j, where[i])) continue;
        const cJSON *r = json_get(j, where[i]);
        if (!cJSON_IsObject(r)) return err_set(e, ERR_INPUT, "\"%s\" must be an object", where[i]);
        err_code rc = f->rope_per_kind && i == 1 ? read_kinds(j, r, f, c, &partial, e)
                                                 : read_scaling(j, r, f, c, &partial, &c->rope, e);
        if (rc) return e ? err_context(e, "\"%s\"", where[i]) : rc;
    }
    return ERR_NONE;
}

/* layer_rope_theta has a theta for each layer, or 0 where no position turns it.  All layers with a
 * window have one theta, and all others have one. */
static err_code read_thetas(const cJSON *j, model_config *c, err *e)
{
    static const char field[] = "layer_rope_theta";
    const cJSON *list = json_get(j, field), *item;
    double theta[2] = {0};
    int i = 0;
    if (!config_is_set(j, field)) return ERR_NONE;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != c->n_layer)
        return err_set(e, ERR_INPUT, "\"%s\" must have a number for each of the %d layers", field,
                       c->n_layer);
    cJSON_ArrayForEach(item, list)
    {
        double v = cJSON_IsNumber(item) ? item->valuedouble : -1, *of;
        if (v != 0 && !(v >= 1 && v <= 1e12))
            return err_set(e, ERR_INPUT, "\"%s\" must hold zeros and numbers from 1 to 1e12",
                           field);
        if (v == 0) c->layer[i] |= LAYER_NO_ROPE;
        of = &theta[c->layer[i++] & LAYER_WINDOW ? 1 : 0];
        if (v != 0 && *of != 0 && *of != v)
            return err_set(e, ERR_UNSUPPORTED,
                           "\"%s\": layers of one kind must have one theta; %g and %g differ",
                           field, *of, v);
        if (v != 0) *of = v;
    }
    if (theta[0] != 0) c->rope.theta = (float)theta[0];
    if (theta[1] != 0) c->local_rope.theta = (float)theta[1];
    return ERR_NONE;
}

/* rotary_dim, where partial_rotary_factor is not given. */
static err_code read_rotary_dim(const cJSON *j, const model_family *f, const model_config *c,
                                float *partial, err *e)
{
    int dim = f->rope_dim;
    bool set = config_is_set(j, "rotary_dim");
    if (dim && !set && json_get(j, "rotary_dim")) return config_refuse(e, j, "rotary_dim");
    if (!dim && !set) return ERR_NONE;
    err_code rc = config_dimension(j, "rotary_dim", c->head_dim, &dim, e);
    if (!rc && dim > c->head_dim)
        return err_set(
            e, ERR_INPUT,
            "\"rotary_dim\" is missing, and %d, its value then, exceeds the %d of a head", dim,
            c->head_dim);
    if (!rc) *partial = (float)dim / (float)c->head_dim;
    return rc;
}

err_code rope_config_read(const cJSON *j, const model_family *f, model_config *c, err *e)
{
    float partial = f->partial > 0 ? f->partial : 1.0F;
    c->rope = (rope_config){.back = f->rope_back,
                            .theta = f->theta,
                            .factor = 1,
                            .attention_factor = 1,
                            .mscale_all = 1};
    err_code rc = config_real(j, "rope_theta", 1.0, 1e12, &c->rope.theta, e);
    if (!rc && f->reads & READS_ROTARY_DIM) rc = read_rotary_dim(j, f, c, &partial, e);
    if (!rc) rc = read_partial(j, f, c, &partial, &c->rope, e);
    if (rc) return rc;
    c->local_rope = c->rope;
    if (c->full_head_dim) c->rope.dim = c->full_head_dim;
    if (f->reads & READS_GEMMA4) {
        c->rope.kind = ROPE_PROPORTIONAL;
        c->rope.some = c->rope.dim / 8;
    }
    if (f->local_theta > 0) c->local_rope.theta = f->local_theta;
    rc = config_real(j, "rope_local_base_freq", 1.0, 1e12, &c->local_rope.theta, e);
    if (!rc && f->rope_required && !config_is_set(j, "rope_scaling") &&
        !config_is_set(j, "rope_parameters"))
        rc = err_set(e, ERR_INPUT, "\"rope_scaling\" or \"rope_parameters\" is missing");
    if (!rc) rc = read_objects(j, f, c, partial, e);
    if (!f->rope_per_kind) c->local_rope = c->rope;
    if (!rc && f->reads & READS_THETAS) rc = read_thetas(j, c, e);
    if (!rc) rc = check_partial(&c->rope, c, e);
    return rc ? rc : check_partial(&c->local_rope, c, e);
}

bool rope_config_same(const rope_config *a, const rope_config *b)
{
    bool same = a->kind == b->kind && a->dim == b->dim && a->back == b->back &&
                a->some == b->some && a->theta == b->theta && a->factor == b->factor &&
                a->original_pos == b->original_pos && a->low_freq == b->low_freq &&
                a->high_freq == b->high_freq && a->beta_fast == b->beta_fast &&
                a->beta_slow == b->beta_slow && a->truncate == b->truncate &&
                a->attention_factor == b->attention_factor && a->mscale_all == b->mscale_all;
    for (int i = 0; i < MODEL_ROPE_MAX && same; i++)
        same = a->short_factor[i] == b->short_factor[i] && a->long_factor[i] == b->long_factor[i];
    return same;
}

/* ------------------------------------------------------------------------ tables -- */

/* Long waves are stretched, short ones kept, those between blended. */
static float llama3(const rope_config *r, float f)
{
    float original = (float)r->original_pos, wavelen = 6.2831853071795864769F / f;
    if (wavelen > original / r->low_freq) return f / r->factor;
    if (wavelen < original / r->high_freq) return f;
    float smooth = (original / wavelen - r->low_freq) / (r->high_freq - r->low_freq);
    return (1.0F - smooth) * f / r->factor + smooth * f;
}

/* Index of the frequency that makes this many turns over the trained length. */
static double yarn_border(const rope_config *r, double turns)
{
    const double two_pi = 6.2831853071795864769;
    return r->dim * log(r->original_pos / (turns * two_pi)) / (2 * log((double)r->theta));
}

/* Blends from kept to stretched between two borders (Peng et al. 2023). */
static float yarn(const rope_config *r, int i, float power)
{
    double low = yarn_border(r, (double)r->beta_fast), high = yarn_border(r, (double)r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low < 0 ? 0 : low;
    high = high > r->dim - 1 ? r->dim - 1 : high;
    if (low == high) high += 0.001;
    float ramp = ((float)i - (float)low) / (float)(high - low);
    float keep = 1.0F - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
    return 1.0F / (r->factor * power) * (1.0F - keep) + 1.0F / power * keep;
}

static float frequency(const rope_config *r, int i, int max_pos)
{
    float power = (float)pow((double)r->theta, (double)((float)(2 * i) / (float)r->dim));
    switch (r->kind) {
    case ROPE_PLAIN: break;
    case ROPE_LINEAR: return 1.0F / power / r->factor;
    case ROPE_PROPORTIONAL: return i < r->some ? 1.0F / power / r->factor : 0;
    case ROPE_LLAMA3: return llama3(r, 1.0F / power);
    case ROPE_YARN: return yarn(r, i, power);
    case ROPE_LONG:
        return 1.0F / ((max_pos > r->original_pos ? r->long_factor : r->short_factor)[i] * power);
    }
    return 1.0F / power;
}

err_code rope_create(rope_tables *t, backend *be, const rope_config *r, int max_pos, bool pairs,
                     const float *divisors, err *e)
{
    int half = r->dim / 2;
    t->bytes = (size_t)max_pos * (size_t)half * sizeof(float);
    t->factor = r->attention_factor;
    t->back = r->back;
    t->inv_freq = malloc((size_t)half * sizeof(float));
    t->chunk = malloc(ROPE_CHUNK * (size_t)half * sizeof(float));
    t->cos = be_map(be, t->bytes);
    t->sin = be_map(be, t->bytes);
    if (!t->inv_freq || !t->chunk || !t->cos || !t->sin)
        return err_set(e, ERR_NOMEM, "no memory for the rope tables of %d positions", max_pos);
    for (int i = 0; i < half; i++)
        t->inv_freq[i] = frequency(r, i, max_pos) / (divisors ? divisors[i] : 1.0F);
    t->table = (rope_table){
        .cos = t->cos, .sin = t->sin, .max_pos = max_pos, .rope_dim = r->dim, .pairs = pairs};
    return ERR_NONE;
}

void rope_clear(rope_tables *t, backend *be)
{
    be_unmap(be, t->cos, t->bytes);
    be_unmap(be, t->sin, t->bytes);
    free(t->chunk);
    free(t->inv_freq);
    *t = (rope_tables){.ready = 0};
}

/* One function's values for positions [from, to), uploaded. */
static err_code upload(rope_tables *t, backend *be, float *table, double (*fn)(double), int from,
                       int to, err *e)
{
    size_t half = (size_t)t->table.rope_dim / 2;
    float *v = t->chunk;
    for (int pos = from; pos < to; pos++) {
        for (size_t i = 0; i < half; i++) {
            double angle = (double)pos * (double)t->inv_freq[i];
            if (!t->exact) angle = (double)(float)angle; /* rounded as the reference does */
            *v++ = (float)fn(t->back ? -angle : angle) * t->factor;
        }
    }
    err_code rc = be_upload(be, table + (size_t)from * half, t->chunk,
                            (size_t)(to - from) * half * sizeof(float));
    return rc ? err_set(e, rc, "the rope tables can't be copied to the device") : ERR_NONE;
}

err_code rope_fill(rope_tables *t, backend *be, int n, err *e)
{
    err_code rc = ERR_NONE;
    while (!rc && t->ready < n && t->table.rope_dim > 0) {
        int from = t->ready, to = from + ROPE_CHUNK;
        if (to > t->table.max_pos) to = t->table.max_pos;
        rc = upload(t, be, t->cos, cos, from, to, e);
        if (!rc) rc = upload(t, be, t->sin, sin, from, to, e);
        if (!rc) t->ready = to;
    }
    return rc;
}
