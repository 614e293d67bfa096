/* validate.c -- config, header, every tensor, every value, in this order. */
#include "adapters/validate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/safetensors.h"

enum { CONFIG_MAX = 1 << 20, CHUNK = 1 << 18 };

static const char CONFIG_NAME[] = "adapter_config.json";
static const char WEIGHTS_NAME[] = "adapter_model.safetensors";

static err_code open_regular(int dir_fd, const char *name, int *fd, uint64_t *bytes, err *e)
{
    struct stat sb;
    *fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (*fd < 0)
        return err_set(e, errno == ENOENT ? ERR_INPUT : ERR_IO, "%s is missing or unreadable",
                       name);
    if (fstat(*fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        close(*fd);
        return err_set(e, ERR_IO, "%s is not a regular file", name);
    }
    *bytes = (uint64_t)sb.st_size;
    return ERR_NONE;
}

static bool read_all(int fd, void *out, size_t len, uint64_t offset)
{
    uint8_t *p = out;
    while (len > 0) {
        ssize_t n = pread(fd, p, len, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        len -= (size_t)n;
        offset += (uint64_t)n;
    }
    return true;
}

/* ---- config -------------------------------------------------------------------------- */

static err_code read_config(int dir_fd, const model_config *base, int rank_max, adapter_layout *al,
                            err *e)
{
    int fd;
    uint64_t bytes;
    err_code code = open_regular(dir_fd, CONFIG_NAME, &fd, &bytes, e);
    if (code != ERR_NONE) return code;
    char *text = NULL;
    if (bytes > CONFIG_MAX)
        code = err_set(e, ERR_LIMIT, "%s has %llu bytes; at most %d are read", CONFIG_NAME,
                       (unsigned long long)bytes, CONFIG_MAX);
    else if ((text = malloc((size_t)bytes + 1)) == NULL)
        code = err_set(e, ERR_NOMEM, "out of memory");
    else if (!read_all(fd, text, (size_t)bytes, 0))
        code = err_set(e, ERR_IO, "%s cannot be read", CONFIG_NAME);
    else
        code = peft_parse(text, (size_t)bytes, base, rank_max, &al->peft, e);
    al->file_bytes = bytes;
    free(text);
    close(fd);
    return code;
}

/* ---- tensors -------------------------------------------------------------------------- */

/* Why a tensor's name is not one of ours, for those that PEFT is known to write. */
static err_code refuse_name(const char *name, err *e)
{
    static const struct {
        const char *part, *feature;
    } others[] = {
        {"lora_magnitude_vector", "DoRA"},
        {"lora_embedding_", "LoRA on embeddings"},
        {"embed_tokens", "a trained embedding"},
        {"lm_head", "a trained output layer"},
        {"modules_to_save", "whole trained modules"},
        {".bias", "a trained bias"},
        {"lora_A.bias", "a bias in lora_A"},
        {".experts.", "LoRA on experts"},
        {"token_adapter", "trained embeddings of single tokens"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(name, others[i].part) != NULL)
            return err_set(e, ERR_UNSUPPORTED, "tensor '%.140s': %s is not supported", name,
                           others[i].feature);
    return err_set(e, ERR_INPUT,
                   "tensor '%.140s' belongs to no layer of this base model; names look like "
                   "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
                   name);
}

static err_code place_tensor(adapter_layout *al, const model_config *base, const st_tensor *t,
                             err *e)
{
    int layer;
    proj p;
    bool is_b;
    if (!peft_tensor_name(t->name, &layer, &p, &is_b)) return refuse_name(t->name, e);
    if (layer >= base->n_layer)
        return err_set(e, ERR_INPUT, "tensor '%.140s': the base has only %d layers", t->name,
                       base->n_layer);
    const peft_layer *pl = peft_at(&al->peft, layer, p);
    if (!pl->wrapped)
        return err_set(e, ERR_INPUT, "tensor '%.140s' is not covered by target_modules", t->name);
    dtype type;
    if (!st_usable(t->dtype, &type))
        return err_set(e, ERR_UNSUPPORTED, "tensor '%.140s' is %s; allowed are F32, F16 and BF16",
                       t->name, st_dtype_name(t->dtype));
    int d_out, d_in;
    model_proj_shape(base, p, &d_out, &d_in);
    int rows = is_b ? d_out : pl->rank, cols = is_b ? pl->rank : d_in;
    if (t->ndim != 2)
        return err_set(e, ERR_INPUT, "tensor '%.140s' has %d dimensions; 2 are expected", t->name,
                       t->ndim);
    if (t->shape[0] != (uint64_t)rows || t->shape[1] != (uint64_t)cols)
        return err_set(e, ERR_INPUT, "tensor '%.140s' is %llu x %llu; expected is %d x %d", t->name,
                       (unsigned long long)t->shape[0], (unsigned long long)t->shape[1], rows,
                       cols);
    adapter_pair *pair = &al->pair[(size_t)layer * PROJ_COUNT + p];
    adapter_tensor *to = is_b ? &pair->b : &pair->a;
    if (to->present)
        return err_set(e, ERR_INPUT, "tensor '%.140s' is there twice, with and without '.default'",
                       t->name);
    *to = (adapter_tensor){.offset = t->offset, .bytes = t->bytes, .type = type, .present = true};
    return ERR_NONE;
}

static err_code check_covered(const adapter_layout *al, err *e)
{
    for (int layer = 0; layer < al->peft.n_layer; layer++)
        for (int p = 0; p < PROJ_COUNT; p++) {
            const adapter_pair *pair = &al->pair[(size_t)layer * PROJ_COUNT + (size_t)p];
            if (!peft_at(&al->peft, layer, (proj)p)->wrapped) continue;
            if (!pair->a.present || !pair->b.present)
                return err_set(e, ERR_INPUT,
                               "target_modules covers model.layers.%d.%s, but its lora_%c.weight "
                               "is not in the file",
                               layer, peft_proj_name((proj)p), pair->a.present ? 'B' : 'A');
            if (pair->a.type != pair->b.type)
                return err_set(e, ERR_UNSUPPORTED,
                               "lora_A and lora_B of model.layers.%d.%s differ in type", layer,
                               peft_proj_name((proj)p));
        }
    return ERR_NONE;
}

static void name_type(adapter_layout *al)
{
    static const char *const names[] = {[DT_F32] = "F32", [DT_F16] = "F16", [DT_BF16] = "BF16"};
    const char *all = NULL;
    for (size_t i = 0; i < (size_t)al->peft.n_layer * PROJ_COUNT; i++) {
        if (!al->pair[i].a.present) continue;
        const char *one = names[al->pair[i].a.type];
        if (all != NULL && all != one) one = "mixed";
        all = one;
    }
    snprintf(al->dtype_name, sizeof al->dtype_name, "%s", all != NULL ? all : "");
}

/* ---- values ------------------------------------------------------------------------------ */

/* Index of the first value that is NaN, infinite, or 2^64 and above; or -1. */
static int64_t first_bad(const uint8_t *p, size_t n, dtype type)
{
    for (size_t i = 0; i < n; i++) {
        bool bad;
        if (type == DT_F32) {
            uint32_t v;
            memcpy(&v, p + 4 * i, 4);
            bad = (v >> 23 & 0xff) >= 127 + 64;
        } else {
            uint16_t v;
            memcpy(&v, p + 2 * i, 2);
            bad = type == DT_F16 ? (v & 0x7c00) == 0x7c00 : (v >> 7 & 0xff) >= 127 + 64;
        }
        if (bad) return (int64_t)i;
    }
    return -1;
}

static err_code scan_tensor(int fd, const adapter_tensor *t, uint8_t *chunk, const char *which,
                            int layer, proj p, err *e)
{
    for (uint64_t done = 0; done < t->bytes;) {
        size_t n = t->bytes - done < CHUNK ? (size_t)(t->bytes - done) : CHUNK;
        if (!read_all(fd, chunk, n, t->offset + done))
            return err_set(e, ERR_IO, "%s cannot be read", WEIGHTS_NAME);
        int64_t bad = first_bad(chunk, n / dtype_bytes(t->type), t->type);
        if (bad >= 0)
            return err_set(e, ERR_INPUT,
                           "model.layers.%d.%s.%s.weight: value %llu is not finite or beyond 2^64",
                           layer, peft_proj_name(p), which,
                           (unsigned long long)(done / dtype_bytes(t->type) + (uint64_t)bad));
        done += n;
    }
    return ERR_NONE;
}

static err_code scan_all(int fd, const adapter_layout *al, err *e)
{
    uint8_t *chunk = malloc(CHUNK);
    if (chunk == NULL) return err_set(e, ERR_NOMEM, "out of memory");
    err_code code = ERR_NONE;
    for (int layer = 0; layer < al->peft.n_layer; layer++)
        for (int p = 0; p < PROJ_COUNT && code == ERR_NONE; p++) {
            const adapter_pair *pair = &al->pair[(size_t)layer * PROJ_COUNT + (size_t)p];
            if (!pair->a.present) continue;
            code = scan_tensor(fd, &pair->a, chunk, "lora_A", layer, (proj)p, e);
            if (code == ERR_NONE)
                code = scan_tensor(fd, &pair->b, chunk, "lora_B", layer, (proj)p, e);
        }
    free(chunk);
    return code;
}

/* ---- API ------------------------------------------------------------------------------------ */

static err_code read_header(int fd, uint64_t bytes, safetensors **out, err *e)
{
    uint8_t first[8];
    size_t len = 0;
    if (bytes < sizeof first || !read_all(fd, first, sizeof first, 0))
        return err_set(e, ERR_CORRUPT, "the file is too short");
    err_code code = safetensors_header_bytes(first, bytes, &st_limits_upload, &len, e);
    if (code != ERR_NONE) return code;
    void *prefix = malloc(len);
    if (prefix == NULL) return err_set(e, ERR_NOMEM, "out of memory");
    if (read_all(fd, prefix, len, 0))
        code = safetensors_open_header(out, prefix, len, bytes, &st_limits_upload, e);
    else
        code = err_set(e, ERR_IO, "the file cannot be read");
    free(prefix);
    return code;
}

static err_code read_weights(int dir_fd, const model_config *base, bool scan_values,
                             adapter_layout *al, err *e)
{
    int fd;
    uint64_t bytes;
    safetensors *st = NULL;
    err_code code = open_regular(dir_fd, WEIGHTS_NAME, &fd, &bytes, e);
    if (code != ERR_NONE) return code;
    al->file_bytes += bytes;
    code = read_header(fd, bytes, &st, e);
    if (code != ERR_NONE) err_context(e, "%s", WEIGHTS_NAME);
    for (int i = 0; code == ERR_NONE && i < safetensors_count(st); i++)
        code = place_tensor(al, base, safetensors_at(st, i), e);
    if (code == ERR_NONE) code = check_covered(al, e);
    if (code == ERR_NONE && scan_values) code = scan_all(fd, al, e);
    if (st != NULL) safetensors_close(st);
    close(fd);
    return code;
}

err_code validate_adapter(int dir_fd, const model_config *base, int rank_max, bool scan_values,
                          adapter_layout *out, err *e)
{
    memset(out, 0, sizeof *out);
    err own;
    if (e == NULL) e = &own;
    err_code code = read_config(dir_fd, base, rank_max, out, e);
    if (code == ERR_NONE) {
        out->pair = calloc((size_t)base->n_layer * PROJ_COUNT, sizeof *out->pair);
        if (out->pair == NULL) code = err_set(e, ERR_NOMEM, "out of memory");
    }
    if (code == ERR_NONE) code = read_weights(dir_fd, base, scan_values, out, e);
    if (code != ERR_NONE) {
        adapter_layout_clear(out);
        return code;
    }
    name_type(out);
    return ERR_NONE;
}

void adapter_layout_clear(adapter_layout *al)
{
    peft_clear(&al->peft);
    free(al->pair);
    memset(al, 0, sizeof *al);
}

uint64_t adapter_packed_bytes(const adapter_layout *al, const model_config *base, const backend *be)
{
    uint64_t sum = 0;
    for (int layer = 0; layer < al->peft.n_layer; layer++)
        for (int p = 0; p < PROJ_COUNT; p++) {
            const peft_layer *pl = peft_at(&al->peft, layer, (proj)p);
            if (!pl->wrapped) continue;
            int d_out, d_in;
            model_proj_shape(base, (proj)p, &d_out, &d_in);
            size_t a = be_lora_a_bytes(be, base->type, pl->rank, d_in);
            size_t b = be_lora_b_bytes(be, base->type, pl->rank, d_out);
            sum += (a + 255) / 256 * 256 + (b + 255) / 256 * 256;
        }
    return sum;
}

void adapter_digest_parts(const uint64_t bytes[2], const uint8_t sha[2][DIGEST_BYTES],
                          uint8_t out[DIGEST_BYTES])
{
    static const char mark[] = "lorad adapter 1";
    digest_state *d = digest_begin();
    digest_add(d, mark, sizeof mark);
    for (int p = 0; p < 2; p++) {
        uint8_t len[8];
        for (int i = 0; i < 8; i++) len[i] = (uint8_t)(bytes[p] >> 8 * i);
        digest_add(d, len, sizeof len);
        digest_add(d, sha[p], DIGEST_BYTES);
    }
    digest_end(d, out);
}

void adapter_digest(const void *config, size_t n_config, const void *weights, size_t n_weights,
                    uint8_t out[DIGEST_BYTES])
{
    uint8_t sha[2][DIGEST_BYTES];
    const uint64_t bytes[2] = {n_config, n_weights};
    digest_bytes(config, n_config, sha[0]);
    digest_bytes(weights, n_weights, sha[1]);
    adapter_digest_parts(bytes, (const uint8_t(*)[DIGEST_BYTES])sha, out);
}

/* JSON string contents: quotes and backslashes escaped, control bytes dropped. */
static void quote(const char *in, char *out, size_t cap)
{
    size_t n = 0;
    for (; *in != 0 && n + 3 < cap; in++) {
        if ((unsigned char)*in < 0x20 || (unsigned char)*in >= 0x7f) continue;
        if (*in == '"' || *in == '\\') out[n++] = '\\';
        out[n++] = *in;
    }
    out[n] = 0;
}

void adapter_describe(const adapter_layout *al, char *out, size_t cap)
{
    const peft_config *pc = &al->peft;
    char base_name[340], targets[256] = "";
    int rank_min = LORA_RANK_MAX;
    quote(pc->base_name, base_name, sizeof base_name);
    for (int p = 0; p < PROJ_COUNT; p++) {
        bool any = false;
        for (int layer = 0; layer < pc->n_layer; layer++) {
            const peft_layer *pl = peft_at(pc, layer, (proj)p);
            any |= pl->wrapped;
            if (pl->wrapped && pl->rank < rank_min) rank_min = pl->rank;
        }
        size_t at = strlen(targets);
        if (any)
            snprintf(targets + at, sizeof targets - at, "%s\"%s\"", at > 0 ? "," : "",
                     strchr(peft_proj_name((proj)p), '.') + 1);
    }
    snprintf(out, cap,
             "{\"r\":%d,\"lora_alpha\":%g,\"use_rslora\":%s,\"rank_min\":%d,\"rank_max\":%d,"
             "\"layers\":%d,\"target_modules\":[%s],\"dtype\":\"%s\",\"base_model\":\"%s\"}",
             pc->rank, pc->alpha, pc->rslora ? "true" : "false", rank_min, pc->rank_max,
             pc->n_wrapped, targets, al->dtype_name, base_name);
}
