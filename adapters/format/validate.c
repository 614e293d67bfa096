/* validate.c -- checks an adapter before it is accepted: configuration, header, every tensor, every
 * value.
 *
 *   1. header of the safetensors file (bounds, overlaps: engine/model/safetensors.c)
 *   2. naming style, then adapter_config.json against the base model (peft.c)
 *   3. each tensor into the layout, then what is missing (layout.c)
 *   4. on upload only: all values. NaN, infinity or |v| >= 2^64 is an error. A pair whose A or B is
 *      all zero has no effect, which is reported
 *   5. tables equal to the base's are recognised by fingerprint and dropped; a table that occurs
 *      twice must be equal
 *
 * any_bad() tests eight bytes at a time: adding a constant to the magnitude bits carries into the
 * sign bit exactly for bad exponents.
 *
 * Files are opened with O_NOFOLLOW and must be regular. adapter_digest_parts() is the version's
 * identity: SHA-256 over the sizes and hashes of both files. Threads: any; the cost is one pass
 * over the weights.
 */
#include "adapters/format/validate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/format/folder.h"
#include "engine/base/fingerprint.h"
#include "engine/model/safetensors.h"

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

/* ---- config -------------------------------------------------------------------------- */

/* The whole file; the caller frees *text. */
static err_code read_config(int dir_fd, char **text, uint64_t *bytes, err *e)
{
    int fd;
    *text = NULL;
    err_code rc = open_regular(dir_fd, CONFIG_NAME, &fd, bytes, e);
    if (rc) return rc;
    if (*bytes > CONFIG_MAX)
        rc = err_set(e, ERR_LIMIT, "%s has %llu bytes; at most %d are read", CONFIG_NAME,
                     (unsigned long long)*bytes, CONFIG_MAX);
    else if ((*text = malloc((size_t)*bytes + 1)) == NULL)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    else if (!folder_read_at(fd, *text, (size_t)*bytes, 0))
        rc = err_set(e, ERR_IO, "%s cannot be read", CONFIG_NAME);
    close(fd);
    return rc;
}

/* ---- values ------------------------------------------------------------------------------ */

/* Is a value NaN, infinite, or 2^64 and above?  By its bits. */
static bool is_bad(uint32_t v, dtype type)
{
    return type == DT_F32   ? (v >> 23 & 0xff) >= 127 + 64
           : type == DT_F16 ? (v & 0x7c00) == 0x7c00
                            : (v >> 7 & 0xff) >= 127 + 64;
}

static uint32_t bits_at(const uint8_t *p, size_t i, dtype type)
{
    uint32_t v = 0;
    memcpy(&v, p + i * (type == DT_F32 ? 4 : 2), type == DT_F32 ? 4 : 2);
    return v;
}

/* Are any of n values?  Eight bytes at once: what `add` carries to a value's highest bit is bad. */
static bool any_bad(const uint8_t *p, size_t n, dtype type)
{
    const uint64_t halves = 0x0001000100010001ULL, words = 0x0000000100000001ULL;
    uint64_t mask = 0x7FFF * halves, add = (0x8000 - ((127 + 64) << 7)) * halves, any = 0, v = 0;
    if (type == DT_F16) {
        mask = 0x7C00 * halves;
        add = 0x0400 * halves;
    } else if (type == DT_F32) {
        mask = 0x7FFFFFFF * words;
        add = (0x80000000 - ((127U + 64) << 23)) * words;
    }
    size_t bytes = n * (type == DT_F32 ? 4 : 2), i = 0;
    for (; i + sizeof(v) <= bytes; i += sizeof(v)) {
        memcpy(&v, p + i, sizeof(v));
        any |= (v & mask) + add;
    }
    v = 0;
    memcpy(&v, p + i, bytes - i);
    any |= (v & mask) + add;
    return any & (type == DT_F32 ? 0x80000000 * words : 0x8000 * halves);
}

/* Index of the first such value; or -1. */
static int64_t first_bad(const uint8_t *p, size_t n, dtype type)
{
    bool any = any_bad(p, n, type);
    for (size_t i = 0; any && i < n; i++)
        if (is_bad(bits_at(p, i, type), type)) return (int64_t)i;
    return -1;
}

static bool all_zero(const uint8_t *p, size_t n)
{
    return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

/* *zero: all values are zero. */
static err_code scan_tensor(int fd, const adapter_tensor *t, uint8_t *chunk, const char *which,
                            const model_config *base, const peft_config *pc, size_t slot,
                            bool *zero, err *e)
{
    char name[128];
    uint64_t end = t->bytes;
    *zero = true;
    if (t->n_col > 0) end = adapter_tensor_span(t);
    if (t->woven > 0) { /* of a parameter of all experts: the whole of it with the first one's */
        size_t at = slot - peft_expert_slots(pc->n_layer);
        if (at / LORA_EXPERT_PROJS % (size_t)pc->n_expert != 0) return ERR_NONE;
        end += (uint64_t)(t->woven - 1) * dtype_bytes(t->type);
    }
    for (uint64_t done = 0; done < end;) {
        size_t n = end - done < CHUNK ? (size_t)(end - done) : CHUNK;
        if (!folder_read_at(fd, chunk, n, t->offset + done))
            return err_set(e, ERR_IO, "%s cannot be read", WEIGHTS_NAME);
        int64_t bad = first_bad(chunk, n / dtype_bytes(t->type), t->type);
        if (bad >= 0) {
            peft_slot_name(name, sizeof name, base, pc, slot);
            return err_set(e, ERR_INPUT, "%s.%s: value %llu is not finite or beyond 2^64", name,
                           which,
                           (unsigned long long)(done / dtype_bytes(t->type) + (uint64_t)bad));
        }
        *zero = *zero && all_zero(chunk, n);
        done += n;
    }
    return ERR_NONE;
}

/* A pair whose A or B is all zero (PEFT's initial state) has no effect. Anything else may change
 * answers. */
static err_code scan_all(int fd, const model_config *base, adapter_layout *al, err *e)
{
    static const char *const which[ADAPTER_PARTS] = {"lora_A.weight",
                                                     "lora_B.weight",
                                                     "lora_magnitude_vector",
                                                     "lora_B.bias",
                                                     "bias",
                                                     "weight",
                                                     "token_adapter.trainable_tokens_delta",
                                                     "weight"};
    uint8_t *chunk = malloc(CHUNK);
    if (!chunk) return err_set(e, ERR_NOMEM, "out of memory");
    err_code rc = ERR_NONE;
    al->idle = true;
    for (size_t slot = 0; slot < peft_slots(&al->peft) && !rc; slot++) {
        bool zero, none = false, other = false;
        for (int part = 0; part < ADAPTER_PARTS && !rc; part++) {
            const adapter_tensor *t = adapter_part(&al->pair[slot], part);
            if (!t->present) continue;
            rc = scan_tensor(fd, t, chunk, which[part], base, &al->peft, slot, &zero, e);
            if (part < 2)
                none |= zero;
            else
                other = true;
        }
        al->idle = al->idle && !other && (none || !al->peft.layer[slot].wrapped);
    }
    free(chunk);
    return rc;
}

/* Needs a look at every byte of the tables, also when values are not scanned. */
static err_code recognise_tables(int fd, const model_config *base, adapter_layout *al, err *e)
{
    const size_t slots[] = {peft_head_slot(base->n_layer), peft_embed_slot(base->n_layer)};
    uint8_t *chunk = NULL;
    err_code rc = ERR_NONE;
    for (int i = 0; i < 2 && !rc; i++) {
        const adapter_tensor *t = &al->pair[slots[i]].table;
        if (!t->present || base->head_print == 0) continue;
        if (!chunk && (chunk = malloc(CHUNK)) == NULL)
            return err_set(e, ERR_NOMEM, "out of memory");
        fingerprint f;
        fingerprint_begin(&f);
        uint64_t rows = (uint64_t)(al->n_vocab < base->n_vocab ? al->n_vocab : base->n_vocab);
        uint64_t end = rows * (uint64_t)base->dim * dtype_bytes(t->type);
        for (uint64_t done = 0, n; done < end && !rc; done += n) {
            n = end - done < CHUNK ? end - done : CHUNK;
            if (!folder_read_at(fd, chunk, (size_t)n, t->offset + done))
                rc = err_set(e, ERR_IO, "%s cannot be read", WEIGHTS_NAME);
            else
                fingerprint_add(&f, chunk, (size_t)n);
        }
        if (!rc) layout_forget_table(al, base, slots[i], fingerprint_end(&f));
    }
    free(chunk);
    return rc;
}

/* A table that the file holds twice is the same twice. */
static err_code compare_twins(int fd, const adapter_layout *al, err *e)
{
    const size_t slots[] = {peft_head_slot(al->peft.n_layer), peft_embed_slot(al->peft.n_layer)};
    uint8_t *chunk = NULL;
    err_code rc = ERR_NONE;
    for (int i = 0; i < 2 && !rc; i++) {
        const adapter_tensor *a = &al->pair[slots[i]].table, *b = &al->pair[slots[i]].twin;
        if (!b->present) continue;
        if (!chunk && (chunk = malloc(2 * (size_t)CHUNK)) == NULL)
            return err_set(e, ERR_NOMEM, "out of memory");
        for (uint64_t done = 0, n; done < a->bytes && !rc; done += n) {
            n = a->bytes - done < CHUNK ? a->bytes - done : CHUNK;
            if (!folder_read_at(fd, chunk, (size_t)n, a->offset + done) ||
                !folder_read_at(fd, chunk + CHUNK, (size_t)n, b->offset + done))
                rc = err_set(e, ERR_IO, "%s cannot be read", WEIGHTS_NAME);
            else if (memcmp(chunk, chunk + CHUNK, (size_t)n) != 0)
                rc =
                    err_set(e, ERR_INPUT, "the weight of %s is there twice, and not the same twice",
                            i == 0 ? "lm_head" : "embed_tokens");
        }
    }
    free(chunk);
    return rc;
}

/* ---- API ------------------------------------------------------------------------------------ */

err_code adapter_read_header(int fd, uint64_t bytes, safetensors **out, err *e)
{
    uint8_t first[8];
    size_t len = 0;
    if (bytes < sizeof first || !folder_read_at(fd, first, sizeof first, 0))
        return err_set(e, ERR_CORRUPT, "%s: the file is too short", WEIGHTS_NAME);
    err_code rc = safetensors_header_bytes(first, bytes, &st_limits_upload, &len, e);
    if (rc) return err_context(e, "%s", WEIGHTS_NAME);
    void *prefix = malloc(len);
    if (!prefix) return err_set(e, ERR_NOMEM, "out of memory");
    if (folder_read_at(fd, prefix, len, 0))
        rc = safetensors_open_header(out, prefix, len, bytes, &st_limits_upload, e);
    else
        rc = err_set(e, ERR_IO, "the file cannot be read");
    free(prefix);
    return rc ? err_context(e, "%s", WEIGHTS_NAME) : rc;
}

/* An activated adapter leaves the tables alone, which all rows read. */
static err_code check_activated(const adapter_layout *al, const model_config *base, err *e)
{
    bool any = al->n_vocab != base->n_vocab;
    for (int i = 0; i < 2; i++) {
        size_t slot = i ? peft_head_slot(base->n_layer) : peft_embed_slot(base->n_layer);
        const adapter_pair *p = &al->pair[slot];
        any |= p->table.present || p->rows.present || p->more.present;
    }
    if (al->peft.n_invocation == 0 || !any) return ERR_NONE;
    return err_set(e, ERR_UNSUPPORTED,
                   "alora_invocation_tokens together with trained tables or added tokens is not "
                   "supported");
}

/* The header comes before the config: how the tensors are named tells how its author's model named
 * its modules. */
static err_code read_both(const char *config, size_t config_bytes, int fd, uint64_t bytes,
                          const model_config *base, int rank_max, bool scan_values,
                          adapter_layout *al, err *e)
{
    safetensors *st = NULL;
    naming names = {.root = -1};
    err_code rc = adapter_read_header(fd, bytes, &st, e);
    if (rc) return rc;
    model_config own = *base; /* with the adapter's vocabulary */
    own.n_vocab = 0;
    for (int i = 0; rc == ERR_NONE && i < safetensors_count(st); i++) {
        rc = naming_learn(&names, safetensors_at(st, i)->name, e);
        if (!rc) rc = layout_vocab(safetensors_at(st, i), base, &own.n_vocab, e);
    }
    if (own.n_vocab == 0) own.n_vocab = base->n_vocab;
    own.added_max = base->n_vocab + base->added_max - own.n_vocab;
    if (!rc) rc = peft_parse(config, config_bytes, &own, rank_max, &names, &al->peft, e);
    if (!rc) {
        al->n_vocab = own.n_vocab = al->peft.n_vocab;
        al->pair = calloc(peft_slots(&al->peft), sizeof(*al->pair));
        if (!al->pair) rc = err_set(e, ERR_NOMEM, "out of memory");
    }
    for (int i = 0; rc == ERR_NONE && i < safetensors_count(st); i++)
        rc = layout_place(al, &own, safetensors_at(st, i), e);
    if (!rc) rc = layout_check(al, &own, base->n_vocab, e);
    if (!rc && scan_values) rc = compare_twins(fd, al, e);
    if (!rc) rc = recognise_tables(fd, base, al, e);
    if (!rc) rc = check_activated(al, base, e);
    if (!rc && scan_values) rc = scan_all(fd, base, al, e);
    safetensors_close(st);
    return rc;
}

err_code validate_adapter(int dir_fd, const model_config *base, int rank_max, bool scan_values,
                          adapter_layout *out, err *e)
{
    memset(out, 0, sizeof(*out));
    err own;
    if (!e) e = &own;
    int fd = -1;
    uint64_t bytes = 0, config_bytes = 0;
    char *config = NULL;
    err_code rc = read_config(dir_fd, &config, &config_bytes, e);
    if (!rc) rc = peft_check_type(config, (size_t)config_bytes, e);
    if (!rc) rc = open_regular(dir_fd, WEIGHTS_NAME, &fd, &bytes, e);
    out->file_bytes = bytes + config_bytes;
    if (!rc)
        rc =
            read_both(config, (size_t)config_bytes, fd, bytes, base, rank_max, scan_values, out, e);
    if (fd >= 0) close(fd);
    free(config);
    if (rc) adapter_layout_clear(out);
    return rc;
}

void adapter_layout_clear(adapter_layout *al)
{
    peft_clear(&al->peft);
    free(al->pair);
    memset(al, 0, sizeof(*al));
}

void adapter_digest_parts(const uint64_t bytes[2], const uint8_t sha[2][DIGEST_BYTES],
                          uint8_t out[DIGEST_BYTES])
{
    static const char mark[] = "lorad adapter 1";
    digest_state d;
    digest_begin(&d);
    digest_add(&d, mark, sizeof mark);
    for (int p = 0; p < 2; p++) {
        uint8_t len[8];
        for (int i = 0; i < 8; i++) len[i] = (uint8_t)(bytes[p] >> 8 * i);
        digest_add(&d, len, sizeof len);
        digest_add(&d, sha[p], DIGEST_BYTES);
    }
    digest_end(&d, out);
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
    char base_name[340], targets[256] = "", labels[24] = "";
    int rank_min = LORA_RANK_MAX;
    quote(pc->base_name, base_name, sizeof base_name);
    if (al->n_label > 0) snprintf(labels, sizeof labels, "\"labels\":%d,", al->n_label);
    for (int module = 0; module <= MODULE_EMBED; module++) {
        bool any = false;
        size_t slot = (size_t)module, end = peft_head_slot(pc->n_layer);
        bool expert = module >= MODULE_EXPERT_GATE && module <= MODULE_EXPERT_DOWN;
        size_t each = expert ? LORA_EXPERT_PROJS : PROJ_COUNT;
        if (module >= PROJ_COUNT && module < MODULE_EXPERT_GATE) continue; /* kept as their parts */
        if (expert) {
            slot = peft_expert_slots(pc->n_layer) + (size_t)(module - MODULE_EXPERT_GATE);
            end = peft_slots(pc);
        } else if (module >= MODULE_IN_LAYER) {
            slot =
                module == MODULE_HEAD ? peft_head_slot(pc->n_layer) : peft_embed_slot(pc->n_layer);
            end = slot + 1;
        }
        for (; slot < end; slot += each) {
            any |= pc->layer[slot].wrapped;
            if (pc->layer[slot].wrapped && pc->layer[slot].rank < rank_min)
                rank_min = pc->layer[slot].rank;
        }
        size_t at = strlen(targets);
        int shown = module < PROJ_COUNT ? pc->module[module] : module;
        const char *dot = expert ? NULL : strchr(module_name(shown), '.');
        if (any)
            snprintf(targets + at, sizeof targets - at, "%s\"%s\"", at > 0 ? "," : "",
                     dot != NULL ? dot + 1 : module_name(shown));
    }
    snprintf(
        out, cap,
        "{%s\"r\":%d,\"lora_alpha\":%g,\"use_rslora\":%s,\"use_dora\":%s,\"rank_min\":%d,\"rank_"
        "max\":%d,"
        "\"layers\":%d,\"target_modules\":[%s],\"dtype\":\"%s\",\"effect\":\"%s\",\"base_model\":"
        "\"%s\"}",
        labels, pc->rank, pc->alpha, pc->rslora ? "true" : "false", pc->dora ? "true" : "false",
        rank_min, pc->rank_max, pc->n_wrapped, targets, al->dtype_name, al->idle ? "none" : "some",
        base_name);
}
