/* tokenizer_load.c -- tokenizer.json, read strictly: what would change ids and is not known here is
 * refused by name, never skipped.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/tokenizer_inside.h"
#include "engine/unicode.h"

/* ------------------------------------------------------------------- tables -- */

static uint32_t hash_bytes(const char *s, size_t len)
{
    uint64_t h = 14695981039346656037ULL; /* FNV-1a */
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)s[i]) * 1099511628211ULL;
    return (uint32_t)(h ^ (h >> 32));
}

static uint32_t hash_pair(int32_t a, int32_t b)
{
    uint64_t h = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) * 0x9E3779B97F4A7C15ULL;
    return (uint32_t)(h >> 32);
}

int32_t tokenizer_find_bytes(const tokenizer *t, const char *s, size_t len)
{
    uint32_t i = hash_bytes(s, len) & t->bytes_mask;
    for (; t->by_bytes[i] >= 0; i = (i + 1) & t->bytes_mask) {
        const entry *e = &t->entries[t->by_bytes[i]];
        if (e->len == len && memcmp(e->bytes, s, len) == 0) return t->by_bytes[i];
    }
    return -1;
}

const merge *tokenizer_find_merge(const tokenizer *t, int32_t a, int32_t b)
{
    uint32_t i = hash_pair(a, b) & t->merges_mask;
    for (; t->merges[i].rank >= 0; i = (i + 1) & t->merges_mask) {
        if (t->merges[i].left == a && t->merges[i].right == b) return &t->merges[i];
    }
    return NULL;
}

static uint32_t table_size(size_t n)
{
    uint32_t size = 16;
    while (size < 2 * n) size *= 2;
    return size;
}

/* ------------------------------------------------------------------- loading -- */

typedef struct {
    tokenizer *t;
    const cJSON *root, *model;
    err *e;
} loader;

static err_code unsupported(loader *l, const char *what, const char *value)
{
    return err_set(l->e, ERR_UNSUPPORTED, "tokenizer.json: %s '%.60s' is not supported", what,
                   value ? value : "?");
}

static const char *type_of(const cJSON *v)
{
    const cJSON *type = cJSON_IsObject(v) ? json_get(v, "type") : NULL;
    return cJSON_IsString(type) ? type->valuestring : "";
}

static bool flag(const cJSON *obj, const char *name)
{
    return cJSON_IsTrue(json_get(obj, name));
}

/* GPT-2's alphabet: the code point that stands for each byte. */
static void byte_alphabet(uint32_t of_byte[256])
{
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool plain = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
        of_byte[b] = plain ? b : next++;
    }
}

/* A vocabulary string to the bytes it stands for; false if it is not of the byte alphabet. */
static bool undo_alphabet(const char *s, char *out, size_t *len)
{
    static const int unmapped = -1;
    int byte_of[512];
    uint32_t of_byte[256];
    byte_alphabet(of_byte);
    for (int i = 0; i < 512; i++) byte_of[i] = unmapped;
    for (int b = 0; b < 256; b++) byte_of[of_byte[b]] = b;
    size_t n = strlen(s), used, m = 0;
    for (size_t i = 0; i < n; i += used) {
        uint32_t c = utf8_decode(s + i, n - i, &used);
        if (c >= 512 || byte_of[c] < 0) return false;
        out[m++] = (char)byte_of[c];
    }
    *len = m;
    return true;
}

/* "<0x0A>" -> 10, else -1. */
static int byte_token(const char *s)
{
    unsigned v;
    char end;
    if (strlen(s) != 6 || sscanf(s, "<0x%2X%c", &v, &end) != 2 || end != '>') return -1;
    return (int)v;
}

/* SentencePiece's "▁" becomes a space in texts. */
static size_t undo_blocks(const char *s, char *out)
{
    size_t n = strlen(s), m = 0;
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && memcmp(s + i, LOWER_BLOCK, 3) == 0) {
            out[m++] = ' ';
            i += 3;
        } else {
            out[m++] = s[i++];
        }
    }
    return m;
}

static err_code set_entry(loader *l, int32_t id, const char *content, bool added)
{
    tokenizer *t = l->t;
    entry *en = &t->entries[id];
    size_t n = strlen(content), len = n;
    char *bytes = malloc(n + 1);
    if (!bytes) return err_set(l->e, ERR_NOMEM, "no memory for the vocabulary");
    if (added || !t->byte_level || !undo_alphabet(content, bytes, &len)) {
        memcpy(bytes, content, n);
        len = n;
    }
    bytes[len] = 0;
    if (en->text != en->bytes) free(en->text);
    free(en->bytes);
    *en = (entry){.bytes = bytes,
                  .text = bytes,
                  .len = (uint32_t)len,
                  .text_len = (uint32_t)len,
                  .added = added};
    return ERR_NONE;
}

static err_code read_vocab(loader *l)
{
    tokenizer *t = l->t;
    const cJSON *vocab = json_get(l->model, "vocab"), *added = json_get(l->root, "added_tokens"),
                *v;
    if (!cJSON_IsObject(vocab)) return err_set(l->e, ERR_CORRUPT, "tokenizer.json: no vocabulary");
    double max = -1;
    cJSON_ArrayForEach(v, vocab)
    {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < (1 << 24))) {
            return err_set(l->e, ERR_CORRUPT, "tokenizer.json: a token id is not a small integer");
        }
        if (v->valuedouble > max) max = v->valuedouble;
    }
    cJSON_ArrayForEach(v, added)
    {
        const cJSON *id = json_get(v, "id");
        if (!cJSON_IsNumber(id) || !(id->valuedouble >= 0 && id->valuedouble < (1 << 24)) ||
            !cJSON_IsString(json_get(v, "content"))) {
            return err_set(l->e, ERR_CORRUPT, "tokenizer.json: an added token is malformed");
        }
        if (id->valuedouble > max) max = id->valuedouble;
    }
    t->n_vocab = t->n_base = (int)max + 1;
    t->entries = calloc((size_t)t->n_vocab, sizeof(*t->entries));
    if (!t->entries) return err_set(l->e, ERR_NOMEM, "no memory for the vocabulary");
    cJSON_ArrayForEach(v, vocab)
    {
        err_code rc = set_entry(l, (int32_t)v->valuedouble, v->string, false);
        if (rc) return rc;
    }
    uint32_t size = table_size((size_t)t->n_vocab);
    t->by_bytes = malloc(size * sizeof(*t->by_bytes));
    if (!t->by_bytes) return err_set(l->e, ERR_NOMEM, "no memory for the vocabulary");
    t->bytes_mask = size - 1;
    for (uint32_t i = 0; i < size; i++) t->by_bytes[i] = -1;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const entry *en = &t->entries[id];
        if (!en->bytes || tokenizer_find_bytes(t, en->bytes, en->len) >= 0) continue;
        uint32_t i = hash_bytes(en->bytes, en->len) & t->bytes_mask;
        while (t->by_bytes[i] >= 0) i = (i + 1) & t->bytes_mask;
        t->by_bytes[i] = id;
    }
    return ERR_NONE;
}

static err_code read_added(loader *l)
{
    tokenizer *t = l->t;
    const cJSON *added = json_get(l->root, "added_tokens"), *v;
    t->added = calloc((size_t)cJSON_GetArraySize(added) + 1, sizeof(*t->added));
    if (!t->added) return err_set(l->e, ERR_NOMEM, "no memory for added tokens");
    cJSON_ArrayForEach(v, added)
    {
        const char *content = json_get(v, "content")->valuestring;
        if (!content[0]) continue;
        added_token *a = &t->added[t->n_added];
        *a = (added_token){.content = strdup(content),
                           .len = strlen(content),
                           .id = (int32_t)json_get(v, "id")->valuedouble,
                           .special = flag(v, "special"),
                           .lstrip = flag(v, "lstrip"),
                           .rstrip = flag(v, "rstrip"),
                           .single_word = flag(v, "single_word")};
        if (!a->content) return err_set(l->e, ERR_NOMEM, "no memory for added tokens");
        t->n_added++;
        err_code rc = set_entry(l, a->id, content, true);
        if (rc) return rc;
        t->entries[a->id].special = a->special;
    }
    tokenizer_index_added(t);
    return ERR_NONE;
}

static int32_t vocab_id(loader *l, const char *s)
{
    const cJSON *v = json_get(json_get(l->model, "vocab"), s);
    return cJSON_IsNumber(v) ? (int32_t)v->valuedouble : -1;
}

/* "a b", or ["a", "b"]. */
static bool merge_parts(const cJSON *v, char **a, char **b)
{
    *a = *b = NULL;
    if (cJSON_IsArray(v) && cJSON_GetArraySize(v) == 2 && cJSON_IsString(v->child) &&
        cJSON_IsString(v->child->next)) {
        *a = strdup(v->child->valuestring);
        *b = strdup(v->child->next->valuestring);
    } else if (cJSON_IsString(v)) {
        const char *space = strchr(v->valuestring, ' ');
        if (!space) return false;
        *a = strndup(v->valuestring, (size_t)(space - v->valuestring));
        *b = strdup(space + 1);
    }
    return *a && *b;
}

/* The vocabulary as a JSON object is searched linearly by cJSON; ids are looked up by bytes instead,
 * which is exact because distinct strings of the alphabet are distinct bytes. */
static int32_t id_of_string(loader *l, const char *s, char *scratch)
{
    tokenizer *t = l->t;
    size_t len = strlen(s);
    if (t->byte_level && undo_alphabet(s, scratch, &len))
        return tokenizer_find_bytes(t, scratch, len);
    return tokenizer_find_bytes(t, s, strlen(s));
}

static err_code add_merge(loader *l, const cJSON *v, int32_t rank)
{
    tokenizer *t = l->t;
    char *a, *b;
    err_code rc = ERR_NONE;
    if (!merge_parts(v, &a, &b)) {
        rc = err_set(l->e, ERR_CORRUPT, "tokenizer.json: merge %d is malformed", rank);
    } else {
        size_t n = strlen(a) + strlen(b) + 1;
        char *joined = malloc(2 * n), *scratch = joined ? joined + n : NULL;
        if (!joined) {
            rc = err_set(l->e, ERR_NOMEM, "no memory for merges");
        } else {
            (void)snprintf(joined, n, "%s%s", a, b);
            merge m = {id_of_string(l, a, scratch), id_of_string(l, b, scratch), rank,
                       id_of_string(l, joined, scratch)};
            if (m.left < 0 || m.right < 0 || m.result < 0) {
                rc = err_set(l->e, ERR_CORRUPT,
                             "tokenizer.json: merge %d is not made of vocabulary tokens", rank);
            } else if (!tokenizer_find_merge(t, m.left, m.right)) {
                uint32_t i = hash_pair(m.left, m.right) & t->merges_mask;
                while (t->merges[i].rank >= 0) i = (i + 1) & t->merges_mask;
                t->merges[i] = m;
            }
            free(joined);
        }
    }
    free(a);
    free(b);
    return rc;
}

static err_code read_merges(loader *l)
{
    tokenizer *t = l->t;
    const cJSON *merges = json_get(l->model, "merges"), *v;
    if (!cJSON_IsArray(merges)) return err_set(l->e, ERR_CORRUPT, "tokenizer.json: no merges");
    uint32_t size = table_size((size_t)cJSON_GetArraySize(merges));
    t->merges = malloc(size * sizeof(*t->merges));
    if (!t->merges) return err_set(l->e, ERR_NOMEM, "no memory for merges");
    for (uint32_t i = 0; i < size; i++) t->merges[i].rank = -1;
    t->merges_mask = size - 1;
    int32_t rank = 0;
    cJSON_ArrayForEach(v, merges)
    {
        err_code rc = add_merge(l, v, rank++);
        if (rc) return rc;
    }
    return ERR_NONE;
}

/* ------------------------------------------------ normaliser, pre-tokeniser -- */

static err_code read_one_normalizer(loader *l, const cJSON *v)
{
    tokenizer *t = l->t;
    const char *type = type_of(v);
    if (strcmp(type, "NFC") == 0) {
        t->nfc = true;
        return ERR_NONE;
    }
    if (strcmp(type, "Prepend") == 0) {
        const cJSON *p = json_get(v, "prepend");
        if (!cJSON_IsString(p) || strcmp(p->valuestring, LOWER_BLOCK) != 0) {
            return unsupported(l, "Prepend", "other than U+2581");
        }
        t->prepend = PREPEND_ALWAYS;
        return ERR_NONE;
    }
    if (strcmp(type, "Replace") == 0) {
        const cJSON *pat = json_get(json_get(v, "pattern"), "String"), *c = json_get(v, "content");
        if (!cJSON_IsString(pat) || !cJSON_IsString(c) || strcmp(pat->valuestring, " ") != 0 ||
            strcmp(c->valuestring, LOWER_BLOCK) != 0) {
            return unsupported(l, "Replace", "other than space by U+2581");
        }
        return ERR_NONE; /* the rule of every SentencePiece model */
    }
    return unsupported(l, "normalizer", type);
}

static err_code read_normalizer(loader *l)
{
    const cJSON *v = json_get(l->root, "normalizer"), *each;
    if (!v || cJSON_IsNull(v)) return ERR_NONE;
    if (strcmp(type_of(v), "Sequence") != 0) return read_one_normalizer(l, v);
    cJSON_ArrayForEach(each, json_get(v, "normalizers"))
    {
        err_code rc = read_one_normalizer(l, each);
        if (rc) return rc;
    }
    return ERR_NONE;
}

static err_code read_metaspace(loader *l, const cJSON *v)
{
    tokenizer *t = l->t;
    const cJSON *scheme = json_get(v, "prepend_scheme"), *rep = json_get(v, "replacement");
    if (!cJSON_IsString(rep) || strcmp(rep->valuestring, LOWER_BLOCK) != 0) {
        return unsupported(l, "Metaspace replacement", "other than U+2581");
    }
    const char *s = cJSON_IsString(scheme)        ? scheme->valuestring
                    : flag(v, "add_prefix_space") ? "always"
                                                  : "never";
    t->prepend = strcmp(s, "always") == 0  ? PREPEND_ALWAYS
                 : strcmp(s, "first") == 0 ? PREPEND_FIRST
                                           : PREPEND_NEVER;
    const cJSON *split = json_get(v, "split");
    t->metaspace = true;
    t->metaspace_split = !split || cJSON_IsTrue(split);
    return ERR_NONE;
}

/* Gemma's: a split at spaces, after the normalizer has left none. */
static bool splits_nothing(const loader *l, const cJSON *pattern)
{
    const cJSON *at = json_get(pattern, "String");
    return cJSON_IsString(at) && strcmp(at->valuestring, " ") == 0 &&
           strcmp(type_of(json_get(l->root, "normalizer")), "Replace") == 0;
}

/* Each piece of the first would be split again. */
static err_code second_split(loader *l)
{
    return unsupported(l, "pre_tokenizer", "a second split");
}

static err_code read_one_pre(loader *l, const cJSON *v)
{
    tokenizer *t = l->t;
    const char *type = type_of(v);
    if (strcmp(type, "ByteLevel") == 0) {
        const cJSON *use = json_get(v, "use_regex");
        bool splits = !use || cJSON_IsTrue(use);
        if (splits && t->split != SPLIT_NONE) return second_split(l);
        if (splits) t->split = SPLIT_GPT2;
        t->add_prefix_space = flag(v, "add_prefix_space");
        return ERR_NONE;
    }
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(l, v);
    if (strcmp(type, "Split") == 0 && splits_nothing(l, json_get(v, "pattern"))) return ERR_NONE;
    if (strcmp(type, "Split") == 0) {
        const cJSON *re = json_get(json_get(v, "pattern"), "Regex"), *how = json_get(v, "behavior");
        bool isolated = cJSON_IsString(how) && strcmp(how->valuestring, "Isolated") == 0;
        if (!cJSON_IsString(re) || !isolated || flag(v, "invert")) {
            return unsupported(l, "Split", "of this kind");
        }
        if (t->split != SPLIT_NONE) return second_split(l);
        t->split = split_from_regex(re->valuestring);
        if (t->split == SPLIT_NONE) return unsupported(l, "Split pattern", re->valuestring);
        return ERR_NONE;
    }
    return unsupported(l, "pre_tokenizer", type);
}

static err_code read_pre_tokenizer(loader *l)
{
    const cJSON *v = json_get(l->root, "pre_tokenizer"), *each;
    if (!v || cJSON_IsNull(v)) return ERR_NONE;
    if (strcmp(type_of(v), "Sequence") != 0) return read_one_pre(l, v);
    cJSON_ArrayForEach(each, json_get(v, "pretokenizers"))
    {
        err_code rc = read_one_pre(l, each);
        if (rc) return rc;
    }
    return ERR_NONE;
}

static bool has_byte_level(const cJSON *v)
{
    if (!cJSON_IsObject(v)) return false;
    if (strcmp(type_of(v), "ByteLevel") == 0) return true;
    static const char *const lists[] = {"pretokenizers", "decoders"};
    for (int i = 0; i < 2; i++) {
        const cJSON *each;
        cJSON_ArrayForEach(each, json_get(v, lists[i]))
        {
            if (has_byte_level(each)) return true;
        }
    }
    return false;
}

/* ------------------------------------------- post-processor, decoder, config -- */

static err_code read_template(loader *l, const cJSON *v)
{
    tokenizer *t = l->t;
    const cJSON *each, *specials = json_get(v, "special_tokens");
    bool after = false;
    cJSON_ArrayForEach(each, json_get(v, "single"))
    {
        const cJSON *special = json_get(each, "SpecialToken");
        if (!special) {
            after = true;
            continue;
        }
        const cJSON *name = json_get(special, "id");
        const cJSON *ids =
            cJSON_IsString(name) ? json_get(json_get(specials, name->valuestring), "ids") : NULL;
        const cJSON *id;
        cJSON_ArrayForEach(id, ids)
        {
            int *n = after ? &t->n_suffix : &t->n_prefix;
            int32_t *list = after ? t->suffix : t->prefix;
            if (!cJSON_IsNumber(id) || id->valuedouble < 0 || id->valuedouble >= t->n_vocab ||
                *n == 8) {
                return err_set(l->e, ERR_CORRUPT, "tokenizer.json: malformed post_processor");
            }
            list[(*n)++] = (int32_t)id->valuedouble;
        }
    }
    return ERR_NONE;
}

static err_code read_post(loader *l, const cJSON *v)
{
    const char *type = type_of(v);
    if (!v || cJSON_IsNull(v) || strcmp(type, "ByteLevel") == 0) return ERR_NONE;
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(l, v);
    if (strcmp(type, "Sequence") == 0) {
        const cJSON *each;
        cJSON_ArrayForEach(each, json_get(v, "processors"))
        {
            err_code rc = read_post(l, each);
            if (rc) return rc;
        }
        return ERR_NONE;
    }
    return unsupported(l, "post_processor", type);
}

static err_code read_decoder(loader *l)
{
    const cJSON *v = json_get(l->root, "decoder"), *each;
    const char *type = type_of(v);
    if (!v || cJSON_IsNull(v) || strcmp(type, "ByteLevel") == 0) return ERR_NONE;
    if (strcmp(type, "Metaspace") == 0) {
        l->t->strip_first_space = l->t->prepend != PREPEND_NEVER;
        return ERR_NONE;
    }
    if (strcmp(type, "Sequence") != 0) return unsupported(l, "decoder", type);
    cJSON_ArrayForEach(each, json_get(v, "decoders"))
    {
        type = type_of(each);
        if (strcmp(type, "Strip") == 0)
            l->t->strip_first_space = true;
        else if (strcmp(type, "Metaspace") == 0)
            l->t->strip_first_space = l->t->prepend != PREPEND_NEVER;
        else if (strcmp(type, "Replace") != 0 && strcmp(type, "ByteFallback") != 0 &&
                 strcmp(type, "Fuse") != 0 && strcmp(type, "ByteLevel") != 0) {
            return unsupported(l, "decoder", type);
        }
    }
    return ERR_NONE;
}

static err_code read_model_flags(loader *l)
{
    tokenizer *t = l->t;
    const cJSON *m = l->model;
    if (!cJSON_IsObject(m) || (type_of(m)[0] && strcmp(type_of(m), "BPE") != 0)) {
        return unsupported(l, "model type", type_of(m));
    }
    static const char *const must_be_empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const cJSON *v = json_get(m, must_be_empty[i]);
        if (cJSON_IsString(v) && v->valuestring[0])
            return unsupported(l, must_be_empty[i], v->valuestring);
    }
    const cJSON *dropout = json_get(m, "dropout");
    if (cJSON_IsNumber(dropout) && dropout->valuedouble > 0)
        return unsupported(l, "dropout", "> 0");
    t->byte_fallback = flag(m, "byte_fallback");
    t->fuse_unk = flag(m, "fuse_unk");
    t->ignore_merges = flag(m, "ignore_merges");
    t->byte_level = has_byte_level(json_get(l->root, "pre_tokenizer")) ||
                    has_byte_level(json_get(l->root, "decoder"));
    return ERR_NONE;
}

static void find_bytes_ids(tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char c = (char)b, name[8];
        (void)snprintf(name, sizeof(name), "<0x%02X>", (unsigned)b);
        t->byte_id[b] =
            t->byte_level ? tokenizer_find_bytes(t, &c, 1) : tokenizer_find_bytes(t, name, 6);
    }
}

/* SentencePiece models: in texts "▁" is a space and <0xXX> a byte. */
static err_code make_texts(loader *l)
{
    tokenizer *t = l->t;
    for (int i = 0; i < t->n_vocab; i++) {
        entry *en = &t->entries[i];
        if (!en->bytes || en->added) continue;
        en->text = malloc(en->len + 1);
        if (!en->text) return err_set(l->e, ERR_NOMEM, "no memory for the vocabulary");
        int byte = t->byte_fallback ? byte_token(en->bytes) : -1;
        if (byte >= 0) en->text[0] = (char)byte;
        en->text_len = byte >= 0 ? 1 : (uint32_t)undo_blocks(en->bytes, en->text);
        en->text[en->text_len] = 0;
    }
    return ERR_NONE;
}

static err_code load_json(const char *dir, const char *name, cJSON **out, err *e)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    *out = NULL;
    if (!f) return err_set(e, ERR_NOT_FOUND, "the model's directory has no %s", name);
    err_code rc = ERR_NONE;
    char *text = NULL;
    long size = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    if (size < 0 || (size_t)size > json_limits_trusted.max_bytes) {
        rc = err_set(e, ERR_LIMIT, "%s is larger than %zu bytes", name,
                     json_limits_trusted.max_bytes);
    } else {
        rewind(f);
        text = malloc((size_t)size + 1);
        if (!text || fread(text, 1, (size_t)size, f) != (size_t)size) {
            rc = err_set(e, ERR_IO, "%s could not be read", name);
        }
    }
    (void)fclose(f);
    if (!rc) {
        rc = json_parse(text, (size_t)size, &json_limits_trusted, out, e);
        if (rc) (void)err_context(e, "%s", name);
    }
    free(text);
    return rc;
}

/* A special token of tokenizer_config.json: a string, or an object with its content. */
static int32_t config_token(const tokenizer *t, const cJSON *cfg, const char *name)
{
    const cJSON *v = json_get(cfg, name);
    if (cJSON_IsObject(v)) v = json_get(v, "content");
    return cJSON_IsString(v) ? tokenizer_find(t, v->valuestring) : -1;
}

/* What the configuration names as bos or eos is found in texts as a special token, listed as an added
 * one or not. */
static err_code make_special(tokenizer *t, int32_t id, err *e)
{
    if (id < 0 || t->entries[id].added) return ERR_NONE;
    added_token *list = realloc(t->added, ((size_t)t->n_added + 1) * sizeof(*list));
    if (list) t->added = list;
    char *content = list ? strndup(t->entries[id].bytes, t->entries[id].len) : NULL;
    if (!content) return err_set(e, ERR_NOMEM, "no memory for added tokens");
    list[t->n_added++] =
        (added_token){.content = content, .len = strlen(content), .id = id, .special = true};
    tokenizer_index_added(t);
    t->entries[id].added = t->entries[id].special = true;
    return ERR_NONE;
}

static err_code read_all(loader *l)
{
    tokenizer *t = l->t;
    l->model = json_get(l->root, "model");
    err_code rc = read_model_flags(l);
    if (!rc) rc = read_vocab(l);
    if (!rc) rc = read_merges(l);
    if (!rc) find_bytes_ids(t);
    if (!rc) rc = read_added(l);
    if (!rc) rc = read_normalizer(l);
    if (!rc) rc = read_pre_tokenizer(l);
    if (!rc) rc = read_post(l, json_get(l->root, "post_processor"));
    if (!rc) rc = read_decoder(l);
    if (!rc && !t->byte_level) rc = make_texts(l);
    if (rc) return rc;
    const cJSON *unk = json_get(l->model, "unk_token");
    t->unk = cJSON_IsString(unk) ? vocab_id(l, unk->valuestring) : -1;
    if (t->byte_level) {
        for (int b = 0; b < 256; b++) {
            if (t->byte_id[b] < 0 && t->unk < 0 && b >= ' ' && b < 0x7f) {
                return err_set(l->e, ERR_CORRUPT, "tokenizer.json: no token for byte 0x%02x", b);
            }
        }
    }
    return ERR_NONE;
}

err_code tokenizer_load(tokenizer **out, const char *dir, err *e)
{
    *out = NULL;
    cJSON *root, *cfg;
    err ignored;
    err_code rc = load_json(dir, "tokenizer.json", &root, e);
    if (rc) return rc;
    tokenizer *t = calloc(1, sizeof(*t));
    if (!t) {
        rc = err_set(e, ERR_NOMEM, "no memory for the tokenizer");
    } else {
        t->unk = t->bos = t->eos = -1;
        loader l = {.t = t, .root = root, .e = e};
        rc = read_all(&l);
    }
    cJSON_Delete(root);
    if (rc) {
        tokenizer_destroy(t);
        return rc;
    }
    if (load_json(dir, "tokenizer_config.json", &cfg, &ignored) == ERR_NONE) {
        t->bos = config_token(t, cfg, "bos_token");
        t->eos = config_token(t, cfg, "eos_token");
        cJSON_Delete(cfg);
        rc = make_special(t, t->bos, e);
        if (!rc) rc = make_special(t, t->eos, e);
        if (rc) {
            tokenizer_destroy(t);
            return rc;
        }
    }
    *out = t;
    return ERR_NONE;
}

void tokenizer_destroy(tokenizer *t)
{
    if (!t) return;
    if (t->base) {
        tokenizer_free_more(t);
        return;
    }
    for (int i = 0; t->entries && i < t->n_vocab; i++) {
        if (t->entries[i].text != t->entries[i].bytes) free(t->entries[i].text);
        free(t->entries[i].bytes);
    }
    for (int i = 0; i < t->n_added; i++) free(t->added[i].content);
    free(t->entries);
    free(t->by_bytes);
    free(t->merges);
    free(t->added);
    free(t);
}
