/* gguf.c -- converts a LoRA adapter in GGUF (llama.cpp's convert_lora_to_gguf.py) to PEFT's two
 * files, so that one path validates and loads both.
 *
 *   keys      adapter.lora.alpha, general.architecture, aLoRA's invocation tokens
 *   names     blk.3.attn_q.weight.lora_a -> layers.3.self_attn.q_proj.lora_A
 *   order     ggml lists dimensions in reverse; Llama's q and k rows are permuted back
 *             (heads_turned(): ggml has each head's halves interleaved); token_embd's A is
 *             transposed
 *
 * The configuration names every module with its rank. The scale is alpha / rank, as in PEFT;
 * without alpha llama.cpp scales by 1.
 *
 * Types F32, F16 and BF16 only. Unknown adapter keys are refused by name, because they could change
 * the result. Untrusted input: every offset is checked by engine/files/gguf.c. Threads: the worker
 * that receives the upload.
 */
#include "adapters/format/gguf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters/format/folder.h"
#include "adapters/format/naming.h"
#include "adapters/format/peft.h"
#include "engine/files/gguf.h"

enum { CHUNK = 1 << 18 };

typedef struct matrix {
    tensor_name to; /* role A or B */
    int type;       /* ggml's */
    uint64_t rows, cols, offset, bytes;
} matrix;

typedef struct adapter {
    int fd;
    int n_tensors;
    float alpha;
    int32_t invocation[PEFT_INVOCATION_MAX];
    int n_invocation;
    matrix *m; /* [n_tensors] */
} adapter;

/* ---- keys ------------------------------------------------------------------------------------ */

static bool text_is(const char *s, size_t len, const char *is)
{
    return strlen(is) == len && memcmp(s, is, len) == 0;
}

/* Invocation tokens of an activated LoRA. */
static err_code read_invocation(adapter *g, const gguf_value *v, err *e)
{
    int64_t id;
    g->n_invocation = 0;
    if (v->count < 1 || v->count > PEFT_INVOCATION_MAX)
        return err_set(e, ERR_LIMIT,
                       "GGUF: adapter.alora.invocation_tokens must have 1 to %d tokens",
                       PEFT_INVOCATION_MAX);
    for (uint64_t i = 0; i < v->count; i++) {
        if (!gguf_item_whole(v, i, &id) || id < 0 || id > INT32_MAX)
            return err_set(e, ERR_INPUT, "GGUF: adapter.alora.invocation_tokens must hold tokens");
        g->invocation[g->n_invocation++] = (int32_t)id;
    }
    return ERR_NONE;
}

/* Reads a key of the adapter: its scale, or one that would change the result and is therefore
 * refused. */
static err_code read_key(adapter *g, const gguf_value *v, err *e)
{
    static const char prefix[] = "adapter.", alpha_key[] = "adapter.lora.alpha";
    static const char invoked_key[] = "adapter.alora.invocation_tokens";
    double alpha = -1;
    if (v->kind == GGUF_TEXT) return ERR_NONE;
    if (text_is(v->key, v->key_bytes, invoked_key)) return read_invocation(g, v, e);
    if (v->key_bytes < sizeof prefix - 1 || memcmp(v->key, prefix, sizeof prefix - 1) != 0)
        return ERR_NONE;
    if (!text_is(v->key, v->key_bytes, alpha_key))
        return err_set(e, ERR_UNSUPPORTED, "GGUF: '%.*s' is not known to this server",
                       v->key_bytes < 64 ? (int)v->key_bytes : 64, v->key);
    if (v->kind != GGUF_F32 || !gguf_real(v, &alpha) || !(alpha >= 0 && alpha <= 1e6))
        return err_set(e, ERR_INPUT, "GGUF: adapter.lora.alpha must be a number from 0 to 1e6");
    g->alpha = (float)alpha;
    return ERR_NONE;
}

/* A text's first 31 bytes; empty where the key has none. */
static void text_of(const gguf *in, const char *key, char out[32])
{
    const char *s = "";
    size_t len = 0;
    (void)gguf_text(gguf_find(in, key), &s, &len);
    snprintf(out, 32, "%.*s", len < 31 ? (int)len : 31, s);
}

static err_code check_kind(const gguf *in, const model_config *base, err *e)
{
    const char *arch = strcmp(base->family, "mistral") == 0 ? "llama" : base->family;
    char type[32], kind[32], own[32];
    text_of(in, "general.type", type);
    text_of(in, "adapter.type", kind);
    text_of(in, "general.architecture", own);
    if (strcmp(type, "adapter") != 0)
        return err_set(e, ERR_INPUT, "GGUF: general.type must be adapter, not '%s'", type);
    if (strcmp(kind, "lora") != 0)
        return err_set(e, ERR_UNSUPPORTED, "GGUF: adapter.type is '%s': only lora is supported",
                       kind);
    if (strcmp(own, arch) != 0)
        return err_set(e, ERR_INPUT, "GGUF: the adapter is for a '%s', the base is a '%s'", own,
                       arch);
    return ERR_NONE;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static bool take(const char **at, const char *prefix)
{
    size_t n = strlen(prefix);
    if (strncmp(*at, prefix, n) != 0) return false;
    *at += n;
    return true;
}

/* "blk.3.attn_q.weight.lora_a", "output.weight.lora_b", "token_embd.weight.lora_a". */
static bool parse_name(const char *name, int n_layer, tensor_name *to)
{
    static const struct {
        const char *name;
        int module;
    } modules[] = {{"attn_q.", PROJ_Q},      {"attn_k.", PROJ_K},      {"attn_v.", PROJ_V},
                   {"attn_output.", PROJ_O}, {"ffn_gate.", PROJ_GATE}, {"ffn_up.", PROJ_UP},
                   {"ffn_down.", PROJ_DOWN}};
    *to = (tensor_name){.layer = -1, .expert = -1, .module = MODULE_HEAD};
    if (take(&name, "blk.")) {
        size_t digits = strspn(name, "0123456789"), i = 0, n = sizeof modules / sizeof(*modules);
        if (digits == 0 || digits > 6 || (digits > 1 && name[0] == '0') || name[digits] != '.')
            return false;
        to->layer = atoi(name);
        name += digits + 1;
        while (i < n && !take(&name, modules[i].name)) i++;
        if (i == n || to->layer >= n_layer) return false;
        to->module = modules[i].module;
    } else if (take(&name, "token_embd.")) {
        to->module = MODULE_EMBED;
    } else if (!take(&name, "output.")) {
        return false;
    }
    to->role = strcmp(name, "weight.lora_a") == 0 ? ROLE_A : ROLE_B;
    return to->role == ROLE_A || strcmp(name, "weight.lora_b") == 0;
}

/* A of token_embd lies as [token][rank] in a GGUF, as [rank][token] where PEFT saves it. */
static bool is_turned(const matrix *m)
{
    return m->to.module == MODULE_EMBED && m->to.role == ROLE_A;
}

/* Of A, as PEFT has it. */
static uint64_t rank_of(const matrix *m)
{
    return is_turned(m) ? m->cols : m->rows;
}

static int type_bytes(int type)
{
    return type == 0 ? 4 : type == 1 || type == 30 ? 2 : 0; /* F32, F16, BF16 */
}

static err_code read_tensor(const gguf_tensor *t, const model_config *base, matrix *m, err *e)
{
    *m = (matrix){.type = t->type, .offset = t->offset, .bytes = t->bytes};
    m->cols = t->ne[0];
    m->rows = t->ne[1];
    if (t->n_dims != 2)
        return err_set(e, ERR_INPUT, "GGUF: tensor '%s' has %d dimensions; it must have 2", t->name,
                       t->n_dims);
    if (!parse_name(t->name, base->n_layer, &m->to))
        return err_set(e, ERR_INPUT, "GGUF: tensor '%s' belongs to no layer of this base model",
                       t->name);
    if (type_bytes(m->type) == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "GGUF: tensor '%s' has type %d; allowed are F32, F16 and BF16", t->name,
                       t->type);
    /* llama.cpp looks tokens up in token_embd's A: a row for each of them. */
    uint64_t rank = m->to.role == ROLE_A ? rank_of(m) : m->cols;
    if (rank > LORA_RANK_MAX)
        return err_set(e, ERR_LIMIT, "GGUF: tensor '%s' has rank %llu; at most %d is supported",
                       t->name, (unsigned long long)rank, LORA_RANK_MAX);
    return ERR_NONE;
}

static err_code read_header(adapter *g, const gguf *in, const model_config *base, err *e)
{
    err_code rc = ERR_NONE;
    g->n_tensors = gguf_tensors(in);
    if (g->n_tensors == 0) return err_set(e, ERR_LIMIT, "GGUF: 0 tensors");
    for (int i = 0; i < gguf_keys(in) && !rc; i++) rc = read_key(g, gguf_key_at(in, i), e);
    if (!rc) rc = check_kind(in, base, e);
    if (rc) return rc;
    g->m = calloc((size_t)g->n_tensors, sizeof(*g->m));
    if (!g->m) return err_set(e, ERR_NOMEM, "out of memory");
    for (int i = 0; i < g->n_tensors && !rc; i++)
        rc = read_tensor(gguf_tensor_at(in, i), base, &g->m[i], e);
    return rc;
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct text {
    char *p;
    size_t n, cap;
    bool failed;
} text;

__attribute__((format(printf, 2, 3))) static void add(text *t, const char *fmt, ...)
{
    char piece[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(piece, sizeof piece, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof piece) t->failed = true;
    if (t->failed) return;
    if (t->n + (size_t)n + 1 > t->cap) {
        size_t cap = (t->n + (size_t)n + 1) * 2 + 4096;
        char *p = realloc(t->p, cap);
        if (!p) {
            t->failed = true;
            return;
        }
        t->p = p;
        t->cap = cap;
    }
    memcpy(t->p + t->n, piece, (size_t)n + 1);
    t->n += (size_t)n;
}

static void path_of(const matrix *m, char *out, size_t cap)
{
    static const naming usual = {.root = -1};
    module_path(out, cap, &usual, m->to.layer, m->to.module);
}

/* Each module by its whole name, with its rank: the scale is alpha / rank, which is also PEFT's.
 * Without alpha llama.cpp scales by 1. */
static err_code write_config(const adapter *g, int fd, err *e)
{
    text t = {0}, alphas = {0}, ranks = {0};
    char path[128];
    add(&t,
        "{\"peft_type\":\"LORA\",\"task_type\":\"CAUSAL_LM\",\"bias\":\"none\",\"r\":1,"
        "\"lora_alpha\":%.9g,\"target_modules\":[",
        g->alpha > 0 ? (double)g->alpha : 1.0);
    bool first = true;
    for (int i = 0; i < g->n_tensors; i++) {
        const matrix *m = &g->m[i];
        if (m->to.role != ROLE_A) continue;
        path_of(m, path, sizeof path);
        const char *comma = first ? "" : ",";
        add(&t, "%s\"%s\"", comma, path);
        add(&ranks, "%s\"%s\":%llu", comma, path, (unsigned long long)rank_of(m));
        if (g->alpha == 0)
            add(&alphas, "%s\"%s\":%llu", comma, path, (unsigned long long)rank_of(m));
        first = false;
    }
    add(&t, "],\"rank_pattern\":{");
    err_code rc = folder_put(fd, t.p, t.n, e);
    if (!rc && ranks.n > 0) rc = folder_put(fd, ranks.p, ranks.n, e);
    if (!rc) rc = folder_put(fd, "},\"alpha_pattern\":{", 19, e);
    if (!rc && alphas.n > 0) rc = folder_put(fd, alphas.p, alphas.n, e);
    text rest = {0};
    add(&rest, "}");
    for (int i = 0; i < g->n_invocation; i++)
        add(&rest, "%s%d", i ? "," : ",\"alora_invocation_tokens\":[", (int)g->invocation[i]);
    add(&rest, g->n_invocation > 0 ? "]}" : "}");
    if (!rc && !rest.failed) rc = folder_put(fd, rest.p, rest.n, e);
    if (rest.failed || t.failed || ranks.failed || alphas.failed)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    free(t.p);
    free(ranks.p);
    free(alphas.p);
    free(rest.p);
    return rc;
}

/* The header of a safetensors file with PEFT's names for the GGUF's tensors, in their order;
 * turned ones have their shape exchanged. */
static err_code write_header(const adapter *g, int fd, err *e)
{
    text t = {0};
    char path[128];
    uint64_t at = 0;
    for (int i = 0; i < g->n_tensors; i++) {
        const matrix *m = &g->m[i];
        bool embed = m->to.module == MODULE_EMBED;
        path_of(m, path, sizeof path);
        add(&t,
            "%s\"base_model.model.%s.lora_%s%c%s\":{\"dtype\":\"%s\",\"shape\":[%llu,%llu],"
            "\"data_offsets\":[%llu,%llu]}",
            i == 0 ? "{" : ",", path, embed ? "embedding_" : "", m->to.role == ROLE_A ? 'A' : 'B',
            embed ? "" : ".weight",
            m->type == 0   ? "F32"
            : m->type == 1 ? "F16"
                           : "BF16",
            (unsigned long long)(is_turned(m) ? m->cols : m->rows),
            (unsigned long long)(is_turned(m) ? m->rows : m->cols), (unsigned long long)at,
            (unsigned long long)(at + m->bytes));
        at += m->bytes;
    }
    add(&t, "}");
    while (!t.failed && t.n % 8 != 0) add(&t, " ");
    if (t.failed) {
        free(t.p);
        return err_set(e, ERR_NOMEM, "out of memory");
    }
    uint8_t len[8];
    for (int i = 0; i < 8; i++) len[i] = (uint8_t)((uint64_t)t.n >> 8 * i);
    err_code rc = folder_put(fd, len, sizeof len, e);
    if (!rc) rc = folder_put(fd, t.p, t.n, e);
    free(t.p);
    return rc;
}

/* The converter for Llama turns the two halves of each head's rows into pairs: row (head, half, i)
 * went to (head, i, half).  Zero heads: rows stay. */
static int heads_turned(const model_config *base, const matrix *m)
{
    bool llama = strcmp(base->family, "llama") == 0 || strcmp(base->family, "mistral") == 0 ||
                 strcmp(base->family, "mixtral") == 0;
    if (!llama || m->to.role != ROLE_B) return 0;
    int heads = m->to.module == PROJ_Q   ? base->n_head
                : m->to.module == PROJ_K ? base->n_kv_head
                                         : 0;
    return heads > 0 && m->rows == (uint64_t)heads * (uint64_t)base->head_dim ? heads : 0;
}

static err_code copy_turned(const adapter *g, const matrix *m, const model_config *base, int heads,
                            int fd, err *e)
{
    size_t row = (size_t)m->bytes / (size_t)m->rows, dim = (size_t)base->head_dim;
    char *in = malloc((size_t)m->bytes), *out = malloc((size_t)m->bytes);
    err_code rc = in != NULL && out != NULL ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    if (!rc && !folder_read_at(g->fd, in, (size_t)m->bytes, m->offset))
        rc = err_set(e, ERR_IO, "the GGUF cannot be read");
    for (size_t h = 0; rc == ERR_NONE && h < (size_t)heads; h++)
        for (size_t i = 0; i < dim; i++) {
            size_t half = i / (dim / 2), k = i % (dim / 2);
            memcpy(out + (h * dim + i) * row, in + (h * dim + 2 * k + half) * row, row);
        }
    if (!rc) rc = folder_put(fd, out, (size_t)m->bytes, e);
    free(in);
    free(out);
    return rc;
}

/* [token][rank] to [rank][token]. */
static err_code copy_transposed(const adapter *g, const matrix *m, int fd, err *e)
{
    size_t size = (size_t)type_bytes(m->type), rows = (size_t)m->rows, cols = (size_t)m->cols;
    char *in = malloc((size_t)m->bytes), *out = malloc((size_t)m->bytes);
    err_code rc = in != NULL && out != NULL ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    if (!rc && !folder_read_at(g->fd, in, (size_t)m->bytes, m->offset))
        rc = err_set(e, ERR_IO, "the GGUF cannot be read");
    for (size_t r = 0; rc == ERR_NONE && r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            memcpy(out + (c * rows + r) * size, in + (r * cols + c) * size, size);
    if (!rc) rc = folder_put(fd, out, (size_t)m->bytes, e);
    free(in);
    free(out);
    return rc;
}

static err_code copy_plain(const adapter *g, const matrix *m, char *chunk, int fd, err *e)
{
    err_code rc = ERR_NONE;
    for (uint64_t done = 0, n; done < m->bytes && !rc; done += n) {
        n = m->bytes - done < CHUNK ? m->bytes - done : CHUNK;
        rc = folder_read_at(g->fd, chunk, (size_t)n, m->offset + done)
                 ? folder_put(fd, chunk, (size_t)n, e)
                 : err_set(e, ERR_IO, "the GGUF cannot be read");
    }
    return rc;
}

static err_code write_weights(const adapter *g, const model_config *base, int fd, err *e)
{
    char *chunk = malloc(CHUNK);
    if (!chunk) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = write_header(g, fd, e);
    for (int i = 0; i < g->n_tensors && !rc; i++) {
        int heads = heads_turned(base, &g->m[i]);
        if (is_turned(&g->m[i]))
            rc = copy_transposed(g, &g->m[i], fd, e);
        else
            rc = heads > 0 ? copy_turned(g, &g->m[i], base, heads, fd, e)
                           : copy_plain(g, &g->m[i], chunk, fd, e);
    }
    free(chunk);
    return rc;
}

err_code gguf_convert(int fd, uint64_t bytes, const model_config *base, int config_fd,
                      int weights_fd, err *e)
{
    adapter g = {.fd = fd};
    size_t most = gguf_limits_upload.max_header_bytes;
    size_t n = bytes < most ? (size_t)bytes : most;
    uint8_t *header = malloc(n + 1);
    gguf *in = NULL;
    if (!header) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = folder_read_at(fd, header, n, 0)
                      ? gguf_open_header(&in, header, n, bytes, &gguf_limits_upload, e)
                      : err_set(e, ERR_IO, "the GGUF cannot be read");
    if (!rc) rc = read_header(&g, in, base, e);
    if (!rc) rc = write_config(&g, config_fd, e);
    if (!rc) rc = write_weights(&g, base, weights_fd, e);
    gguf_close(in);
    free(header);
    free(g.m);
    return rc;
}
