/* gguf.c -- header, names, then matrix after matrix.
 *
 *     "GGUF", u32 version, u64 n_tensors, u64 n_kv
 *     n_kv      times: string key, u32 type, value
 *     n_tensors times: string name, u32 n_dims, u64 ne[n_dims] (innermost
 *     first), u32 type, u64 offset
 *     padding to general.alignment, then the data at the offsets
 *
 * A string is u64 length and bytes; all is little-endian.
 */
#include "adapters/format/gguf.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "adapters/format/folder.h"
#include "adapters/format/naming.h"
#include "adapters/format/peft.h"

enum {
    HEADER_MAX = 8 << 20,
    TENSORS_MAX = 20000,
    KEYS_MAX = 4096,
    NAME_MAX_BYTES = 128,
    CHUNK = 1 << 18,
};

typedef struct matrix {
    tensor_name to; /* role A or B */
    int type;       /* ggml's */
    uint64_t rows, cols, offset, bytes;
} matrix;

typedef struct gguf {
    int fd;
    uint64_t file_bytes;
    const uint8_t *p; /* the header */
    size_t n, at;
    uint64_t n_tensors, n_kv, data0, alignment;
    char arch[32], general_type[32], adapter_type[32];
    float alpha;
    matrix *m; /* [n_tensors] */
} gguf;

/* ---- bytes ----------------------------------------------------------------------------------- */

static err_code cut_short(const gguf *g, err *e)
{
    if (g->n < g->file_bytes)
        return err_set(e, ERR_LIMIT, "GGUF: the header has more than %d bytes", HEADER_MAX);
    return err_set(e, ERR_CORRUPT, "GGUF: the file ends within its header");
}

static err_code number(gguf *g, int bytes, uint64_t *out, err *e)
{
    if (g->n - g->at < (size_t)bytes) return cut_short(g, e);
    *out = 0;
    for (int i = 0; i < bytes; i++) *out |= (uint64_t)g->p[g->at + (size_t)i] << 8 * i;
    g->at += (size_t)bytes;
    return ERR_NONE;
}

/* A string of at most cap - 1 bytes; a longer one is skipped and comes out empty. */
static err_code string(gguf *g, char *out, size_t cap, err *e)
{
    uint64_t len = 0;
    err_code rc = number(g, 8, &len, e);
    if (rc) return rc;
    if (len > g->n - g->at) return cut_short(g, e);
    out[0] = 0;
    if (len < cap) {
        memcpy(out, g->p + g->at, (size_t)len);
        out[len] = 0;
        if (strlen(out) != len) out[0] = 0;
    }
    g->at += (size_t)len;
    return ERR_NONE;
}

enum { TYPE_FLOAT = 6, TYPE_STRING = 8, TYPE_ARRAY = 9, TYPE_U32 = 4 };

static int scalar_bytes(uint64_t type)
{
    static const int bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes / sizeof(*bytes) ? bytes[type] : 0;
}

static err_code skip_array(gguf *g, err *e)
{
    uint64_t type = 0, count = 0;
    char ignored[1];
    err_code rc = number(g, 4, &type, e);
    if (!rc) rc = number(g, 8, &count, e);
    if (rc) return rc;
    int each = scalar_bytes(type);
    if (each == 0 && type != TYPE_STRING)
        return err_set(e, ERR_CORRUPT, "GGUF: an array of type %llu", (unsigned long long)type);
    uint64_t room = (g->n - g->at) / (uint64_t)(each > 0 ? each : 8);
    if (count > room) return cut_short(g, e);
    if (each > 0) g->at += (size_t)count * (size_t)each;
    for (uint64_t i = 0; each == 0 && i < count && !rc; i++)
        rc = string(g, ignored, sizeof ignored, e);
    return rc;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static err_code read_key(gguf *g, err *e)
{
    char key[NAME_MAX_BYTES], ignored[1];
    uint64_t type = 0, value = 0;
    err_code rc = string(g, key, sizeof key, e);
    if (!rc) rc = number(g, 4, &type, e);
    if (rc) return rc;
    const struct {
        const char *key;
        char *out;
    } strings[] = {{"general.architecture", g->arch},
                   {"general.type", g->general_type},
                   {"adapter.type", g->adapter_type}};
    for (size_t i = 0; i < sizeof strings / sizeof(*strings); i++) {
        if (strcmp(key, strings[i].key) != 0) continue;
        if (type != TYPE_STRING || strings[i].out[0] != 0)
            return err_set(e, ERR_CORRUPT, "GGUF: %s is no string, or there twice", key);
        return string(g, strings[i].out, sizeof g->arch, e);
    }
    if (type == TYPE_STRING) return string(g, ignored, sizeof ignored, e);
    if (strstr(key, "invocation_tokens") != NULL)
        return err_set(e, ERR_UNSUPPORTED, "GGUF: activated LoRA (aLoRA) is not supported");
    if (type == TYPE_ARRAY) return skip_array(g, e);
    if (scalar_bytes(type) == 0)
        return err_set(e, ERR_CORRUPT, "GGUF: '%.64s' has the unknown type %llu", key,
                       (unsigned long long)type);
    rc = number(g, scalar_bytes(type), &value, e);
    if (rc) return rc;
    if (strcmp(key, "adapter.lora.alpha") == 0) {
        uint32_t bits = (uint32_t)value;
        memcpy(&g->alpha, &bits, sizeof g->alpha);
        if (type != TYPE_FLOAT || !(g->alpha >= 0 && g->alpha <= 1e6F))
            return err_set(e, ERR_INPUT, "GGUF: adapter.lora.alpha must be a number from 0 to 1e6");
    } else if (strcmp(key, "general.alignment") == 0) {
        if (type != TYPE_U32 || value < 8 || value > 65536 || (value & (value - 1)) != 0)
            return err_set(e, ERR_CORRUPT, "GGUF: general.alignment is no power of two to 65536");
        g->alignment = value;
    } else if (strncmp(key, "adapter.", 8) == 0) {
        return err_set(e, ERR_UNSUPPORTED, "GGUF: '%.64s' is not known to this server", key);
    }
    return ERR_NONE;
}

static err_code check_keys(const gguf *g, const model_config *base, err *e)
{
    const char *arch = strcmp(base->family, "mistral") == 0 ? "llama" : base->family;
    if (strcmp(g->general_type, "adapter") != 0)
        return err_set(e, ERR_INPUT, "GGUF: general.type is '%s', not adapter", g->general_type);
    if (strcmp(g->adapter_type, "lora") != 0)
        return err_set(e, ERR_UNSUPPORTED, "GGUF: adapter.type is '%s': only lora is supported",
                       g->adapter_type);
    if (strcmp(g->arch, arch) != 0)
        return err_set(e, ERR_INPUT, "GGUF: the adapter is for a '%s', the base is a '%s'", g->arch,
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
    *to = (tensor_name){.layer = -1, .module = MODULE_HEAD};
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

static err_code read_tensor(gguf *g, const model_config *base, matrix *m, err *e)
{
    char name[NAME_MAX_BYTES];
    uint64_t dims = 0, type = 0;
    err_code rc = string(g, name, sizeof name, e);
    if (!rc) rc = number(g, 4, &dims, e);
    if (rc) return rc;
    if (dims != 2)
        return err_set(e, ERR_INPUT, "GGUF: tensor '%s' has %llu dimensions; 2 are expected", name,
                       (unsigned long long)dims);
    rc = number(g, 8, &m->cols, e);
    if (!rc) rc = number(g, 8, &m->rows, e);
    if (!rc) rc = number(g, 4, &type, e);
    if (!rc) rc = number(g, 8, &m->offset, e);
    if (rc) return rc;
    if (!parse_name(name, base->n_layer, &m->to))
        return err_set(e, ERR_INPUT, "GGUF: tensor '%s' belongs to no layer of this base model",
                       name);
    m->type = type <= 30 ? (int)type : -1;
    if (type_bytes(m->type) == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "GGUF: tensor '%s' has type %llu; allowed are F32, F16 and BF16", name,
                       (unsigned long long)type);
    uint64_t most = g->file_bytes / (uint64_t)type_bytes(m->type);
    if (m->rows == 0 || m->cols == 0 || m->rows > most || m->cols > most / m->rows)
        return err_set(e, ERR_CORRUPT, "GGUF: tensor '%s' is larger than the file", name);
    m->bytes = m->rows * m->cols * (uint64_t)type_bytes(m->type);
    /* llama.cpp looks tokens up in token_embd's A: a row for each of them. */
    uint64_t rank = m->to.role == ROLE_A ? rank_of(m) : m->cols;
    if (rank > LORA_RANK_MAX)
        return err_set(e, ERR_LIMIT, "GGUF: tensor '%s' has rank %llu; at most %d is supported",
                       name, (unsigned long long)rank, LORA_RANK_MAX);
    return ERR_NONE;
}

static err_code check_places(gguf *g, err *e)
{
    uint64_t sum = 0;
    g->data0 = (g->at + g->alignment - 1) / g->alignment * g->alignment;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const matrix *m = &g->m[i];
        if (g->data0 > g->file_bytes || m->offset > g->file_bytes - g->data0 ||
            m->bytes > g->file_bytes - g->data0 - m->offset)
            return err_set(e, ERR_CORRUPT, "GGUF: tensor %llu lies beyond the end of the file",
                           (unsigned long long)i);
        if (m->offset % g->alignment != 0)
            return err_set(e, ERR_CORRUPT, "GGUF: tensor %llu is not aligned",
                           (unsigned long long)i);
        sum += m->bytes; /* each is at most the file, and there are few */
    }
    if (sum > g->file_bytes - (g->n_tensors > 0 ? g->data0 : 0))
        return err_set(e, ERR_CORRUPT, "GGUF: tensors overlap");
    return ERR_NONE;
}

static err_code read_header(gguf *g, const model_config *base, err *e)
{
    uint64_t version = 0;
    if (g->n < 4 || memcmp(g->p, "GGUF", 4) != 0)
        return err_set(e, ERR_CORRUPT, "the file does not begin as a GGUF does");
    g->at = 4;
    err_code rc = number(g, 4, &version, e);
    if (!rc) rc = number(g, 8, &g->n_tensors, e);
    if (!rc) rc = number(g, 8, &g->n_kv, e);
    if (rc) return rc;
    if (version != 2 && version != 3)
        return err_set(e, ERR_UNSUPPORTED, "GGUF: version %llu; 2 and 3 are read",
                       (unsigned long long)version);
    if (g->n_tensors == 0 || g->n_tensors > TENSORS_MAX)
        return err_set(e, ERR_LIMIT, "GGUF: %llu tensors; 1 to %d are read",
                       (unsigned long long)g->n_tensors, TENSORS_MAX);
    if (g->n_kv > KEYS_MAX)
        return err_set(e, ERR_LIMIT, "GGUF: %llu keys; at most %d are read",
                       (unsigned long long)g->n_kv, KEYS_MAX);
    for (uint64_t i = 0; i < g->n_kv && !rc; i++) rc = read_key(g, e);
    if (!rc) rc = check_keys(g, base, e);
    if (rc) return rc;
    g->m = calloc((size_t)g->n_tensors, sizeof(*g->m));
    if (!g->m) return err_set(e, ERR_NOMEM, "out of memory");
    for (uint64_t i = 0; i < g->n_tensors && !rc; i++) rc = read_tensor(g, base, &g->m[i], e);
    return rc != ERR_NONE ? rc : check_places(g, e);
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

static err_code put(int fd, const void *data, size_t n, err *e)
{
    const char *p = data;
    while (n > 0) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return folder_disk_error(e, "store");
        p += done;
        n -= (size_t)done;
    }
    return ERR_NONE;
}

static void path_of(const matrix *m, char *out, size_t cap)
{
    static const naming usual = {.root = -1};
    module_path(out, cap, &usual, m->to.layer, m->to.module);
}

/* Each module by its whole name, with its rank: the scale is alpha / rank, which is also PEFT's.
 * Without alpha llama.cpp scales by 1. */
static err_code write_config(const gguf *g, int fd, err *e)
{
    text t = {0}, alphas = {0}, ranks = {0};
    char path[128];
    add(&t,
        "{\"peft_type\":\"LORA\",\"task_type\":\"CAUSAL_LM\",\"bias\":\"none\",\"r\":1,"
        "\"lora_alpha\":%.9g,\"target_modules\":[",
        g->alpha > 0 ? (double)g->alpha : 1.0);
    bool first = true;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
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
    err_code rc = put(fd, t.p, t.n, e);
    if (!rc && ranks.n > 0) rc = put(fd, ranks.p, ranks.n, e);
    if (!rc) rc = put(fd, "},\"alpha_pattern\":{", 19, e);
    if (!rc && alphas.n > 0) rc = put(fd, alphas.p, alphas.n, e);
    if (!rc) rc = put(fd, "}}", 2, e);
    if (t.failed || ranks.failed || alphas.failed) rc = err_set(e, ERR_NOMEM, "out of memory");
    free(t.p);
    free(ranks.p);
    free(alphas.p);
    return rc;
}

static err_code write_header(const gguf *g, int fd, err *e)
{
    text t = {0};
    char path[128];
    uint64_t at = 0;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
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
    err_code rc = put(fd, len, sizeof len, e);
    if (!rc) rc = put(fd, t.p, t.n, e);
    free(t.p);
    return rc;
}

/* The converter for Llama turns the two halves of each head's rows into pairs: row (head, half, i)
 * went to (head, i, half).  Zero heads: rows stay. */
static int heads_turned(const model_config *base, const matrix *m)
{
    bool llama = strcmp(base->family, "llama") == 0 || strcmp(base->family, "mistral") == 0;
    if (!llama || m->to.role != ROLE_B) return 0;
    int heads = m->to.module == PROJ_Q   ? base->n_head
                : m->to.module == PROJ_K ? base->n_kv_head
                                         : 0;
    return heads > 0 && m->rows == (uint64_t)heads * (uint64_t)base->head_dim ? heads : 0;
}

static err_code copy_turned(const gguf *g, const matrix *m, const model_config *base, int heads,
                            int fd, err *e)
{
    size_t row = (size_t)m->bytes / (size_t)m->rows, dim = (size_t)base->head_dim;
    char *in = malloc((size_t)m->bytes), *out = malloc((size_t)m->bytes);
    err_code rc = in != NULL && out != NULL ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    if (!rc && !folder_read_at(g->fd, in, (size_t)m->bytes, g->data0 + m->offset))
        rc = err_set(e, ERR_IO, "the GGUF cannot be read");
    for (size_t h = 0; rc == ERR_NONE && h < (size_t)heads; h++)
        for (size_t i = 0; i < dim; i++) {
            size_t half = i / (dim / 2), k = i % (dim / 2);
            memcpy(out + (h * dim + i) * row, in + (h * dim + 2 * k + half) * row, row);
        }
    if (!rc) rc = put(fd, out, (size_t)m->bytes, e);
    free(in);
    free(out);
    return rc;
}

/* [token][rank] to [rank][token]. */
static err_code copy_transposed(const gguf *g, const matrix *m, int fd, err *e)
{
    size_t size = (size_t)type_bytes(m->type), rows = (size_t)m->rows, cols = (size_t)m->cols;
    char *in = malloc((size_t)m->bytes), *out = malloc((size_t)m->bytes);
    err_code rc = in != NULL && out != NULL ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    if (!rc && !folder_read_at(g->fd, in, (size_t)m->bytes, g->data0 + m->offset))
        rc = err_set(e, ERR_IO, "the GGUF cannot be read");
    for (size_t r = 0; rc == ERR_NONE && r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            memcpy(out + (c * rows + r) * size, in + (r * cols + c) * size, size);
    if (!rc) rc = put(fd, out, (size_t)m->bytes, e);
    free(in);
    free(out);
    return rc;
}

static err_code copy_plain(const gguf *g, const matrix *m, char *chunk, int fd, err *e)
{
    err_code rc = ERR_NONE;
    for (uint64_t done = 0, n; done < m->bytes && !rc; done += n) {
        n = m->bytes - done < CHUNK ? m->bytes - done : CHUNK;
        rc = folder_read_at(g->fd, chunk, (size_t)n, g->data0 + m->offset + done)
                 ? put(fd, chunk, (size_t)n, e)
                 : err_set(e, ERR_IO, "the GGUF cannot be read");
    }
    return rc;
}

static err_code write_weights(const gguf *g, const model_config *base, int fd, err *e)
{
    char *chunk = malloc(CHUNK);
    if (!chunk) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = write_header(g, fd, e);
    for (uint64_t i = 0; i < g->n_tensors && !rc; i++) {
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
    gguf g = {.fd = fd, .file_bytes = bytes, .alignment = 32};
    g.n = bytes < HEADER_MAX ? (size_t)bytes : HEADER_MAX;
    uint8_t *header = malloc(g.n + 1);
    if (!header) return err_set(e, ERR_NOMEM, "out of memory");
    g.p = header;
    err_code rc = folder_read_at(fd, header, g.n, 0)
                      ? read_header(&g, base, e)
                      : err_set(e, ERR_IO, "the GGUF cannot be read");
    if (!rc) rc = write_config(&g, config_fd, e);
    if (!rc) rc = write_weights(&g, base, weights_fd, e);
    free(header);
    free(g.m);
    return rc;
}
