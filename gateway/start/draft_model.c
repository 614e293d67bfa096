/* draft_model.c -- what model.draft names reads as the base reads: one vocabulary for both. */
#include "gateway/start/draft_model.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/sched/sched.h"

static bool is_wanted(const config *c)
{
    return c->model.draft[0] && strcmp(c->engine.speculate, "off") != 0;
}

static err_code refuse(const char *name, err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "the backend '%s' runs no draft model; the CPU does", name);
}

static err_code check_vocabulary(const config *c, const tokenizer *tok, err *e)
{
    tokenizer *own;
    err_code rc = tokenizer_load(&own, c->model.draft, e);
    if (rc) return rc;
    rc = tokenizer_check_same(tok, own, e);
    tokenizer_destroy(own);
    return rc ? err_context(e, "its tokenizer is not the base model's") : ERR_NONE;
}

err_code draft_model_load(model **out, const config *c, backend *be, const tokenizer *tok, err *e)
{
    model_options options = {.max_context = (int)c->engine.max_context,
                             .activations = ACTIVATIONS_INT8}; /* its words are verified */
    *out = NULL;
    if (!is_wanted(c)) return ERR_NONE;
    if (be_can_sample(be)) return refuse(be_caps(be)->name, e);
    err_code rc = check_vocabulary(c, tok, e);
    if (!rc)
        rc = model_load_with(out, c->model.draft, be, (int)c->engine.max_rows,
                             (int)c->engine.max_seqs + SCHED_SCORE_ROWS, &options, e);
    if (!rc)
        log_info("gateway", "a draft model guesses: %s, %zu MiB of weights", c->model.draft,
                 model_weight_bytes(*out) >> 20);
    return rc;
}

/* Of keys and values of one position.  `type`: as engine.kv_type, which is the base's; the draft
 * model's stay as its weights. */
static double bytes_each(const model_config *c, const char *type)
{
    return (double)model_kv_bytes(c, model_kv_type(c, type));
}

static double positions(const config *c, const model_config *base, const model_config *draft)
{
    double each = (double)c->engine.max_context;
    if (base->max_pos < each) each = base->max_pos;
    if (draft->max_pos < each) each = draft->max_pos;
    double all = each * (double)c->engine.max_seqs;
    double fit = (double)c->engine.kv_memory / bytes_each(base, c->engine.kv_type);
    return c->engine.kv_memory > 0 && fit < all ? fit : all;
}

err_code draft_model_describe(const config *c, const model_config *base, const tokenizer *tok,
                              bool on_cpu, char *out, size_t size, err *e)
{
    model_config mc;
    snprintf(out, size, "none");
    if (!is_wanted(c)) return ERR_NONE;
    if (!on_cpu) return refuse("cuda", e);
    err_code rc = model_config_read(c->model.draft, &mc, e);
    if (!rc) rc = check_vocabulary(c, tok, e);
    if (rc) return rc;
    mc.absorbs = mc.latent.rank > 0; /* as the CPU does, which alone has draft models */
    rc = model_config_pages(&mc, (int)c->engine.page_tokens, e);
    if (rc) return rc;
    double bytes = positions(c, base, &mc) * bytes_each(&mc, "auto");
    snprintf(out, size, "%s, %d layers of %d, about %.0f MiB of KV pages at most", mc.family,
             mc.n_layer, mc.dim, bytes / (1 << 20));
    return ERR_NONE;
}
