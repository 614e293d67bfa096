/* tokenizer_load.c -- reads tokenizer.json and its neighbours into a tokenizer.
 *
 * Order (read_all()): model flags, normaliser, pre-tokeniser, decoder; then the vocabulary, because
 * its entries need the decoder; byte tokens, the unknown token, added tokens (tokenizer_words.c);
 * the post-processor last, because it names ids.
 *
 * Strict: a field that would change ids or text and is not implemented is ERR_UNSUPPORTED with its
 * name. Nothing that matters is skipped.
 *
 * The class that AutoTokenizer would choose changes the rules, so read_class() finds it:
 * LlamaTokenizer takes only vocabulary, merges and post-processor from tokenizer.json and sets the
 * rest itself (be_llama()); for other classes a warning says that lorad follows tokenizer.json.
 *
 * A SentencePiece decoder is a sequence Replace, ByteFallback, Fuse, Strip, each at most once and
 * in this order (`stage`). A GGUF file has the same structure by way of document_tokenizer_read(),
 * with the vocabulary in gguf_words.
 *
 * Limit: 8 tokens before and 8 after a text. Threads: the loading thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/files/documents.h"
#include "engine/text/tokenizer_inside.h"

/* ------------------------------------------------------------------- loading -- */

typedef struct {
    tokenizer *t;
    const cJSON *root, *model;
    gguf_words words; /* of a GGUF, whose model has no vocabulary */
    tok_files files;
    int n_strings;  /* of the vocabulary */
    bool as_qwen;   /* transformers would take its Qwen2Tokenizer */
    bool has_bytes; /* ByteLevel was among the pre-tokenisers */
    bool fused;     /* Fuse was among the decoders */
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

/* ------------------------------------------------------------- pre-tokeniser -- */

static bool is_string(const cJSON *v, const char *s)
{
    return cJSON_IsString(v) && strcmp(v->valuestring, s) == 0;
}

/* A Replace of one string by another. */
static bool replaces(const cJSON *v, const char *from, const char *to)
{
    return is_string(json_get(json_get(v, "pattern"), "String"), from) &&
           is_string(json_get(v, "content"), to);
}

/* Whether the normaliser replaces all spaces by U+2581. */
static bool puts_blocks(const tokenizer *t)
{
    const normal_step *last = t->normal_form.n ? &t->normal_form.step[t->normal_form.n - 1] : NULL;
    return last && last->kind == NORMAL_REPLACE && last->from && strcmp(last->from, " ") == 0 &&
           strcmp(last->to, LOWER_BLOCK) == 0;
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

/* Reads Metaspace's prepend_scheme, as pre-tokeniser and as decoder. */
static err_code read_scheme(loader *l, const cJSON *v, prepend_kind *out)
{
    const cJSON *scheme = json_get(v, "prepend_scheme");
    if (!is_string(json_get(v, "replacement"), LOWER_BLOCK))
        return unsupported(l, "Metaspace replacement", "other than U+2581");
    const char *s = cJSON_IsString(scheme)                           ? scheme->valuestring
                    : cJSON_IsFalse(json_get(v, "add_prefix_space")) ? "never"
                                                                     : "always";
    *out = strcmp(s, "always") == 0  ? PREPEND_ALWAYS
           : strcmp(s, "first") == 0 ? PREPEND_FIRST
                                     : PREPEND_NEVER;
    return ERR_NONE;
}

static err_code read_metaspace(loader *l, const cJSON *v)
{
    const cJSON *split = json_get(v, "split");
    if (l->t->byte_level || l->t->metaspace)
        return unsupported(l, "pre_tokenizer", "Metaspace here");
    l->t->metaspace = true;
    l->t->metaspace_split = !cJSON_IsFalse(split);
    err_code rc = read_scheme(l, v, &l->t->prepend);
    if (!rc && l->t->prepend == PREPEND_FIRST && l->t->split.n > 0)
        return unsupported(l, "Metaspace prepend_scheme", "first behind another step");
    return rc;
}

static err_code read_one_pre(loader *l, const cJSON *v)
{
    const char *type = type_of(v);
    if (l->has_bytes) return unsupported(l, "pre_tokenizer behind ByteLevel", type);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(l, v);
    if (strcmp(type, "ByteLevel") == 0) {
        l->has_bytes = true;
        return tokenizer_read_byte_level(&l->t->split, v, l->e);
    }
    if (l->t->byte_level) return tokenizer_read_step(&l->t->split, v, l->e);
    if (l->t->metaspace) return unsupported(l, "pre_tokenizer behind Metaspace", type);
    /* Gemma's: a split at spaces, after the normaliser has left none */
    bool nothing = strcmp(type, "Split") == 0 && puts_blocks(l->t) &&
                   is_string(json_get(json_get(v, "pattern"), "String"), " ");
    return nothing ? ERR_NONE : tokenizer_read_step(&l->t->split, v, l->e);
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

/* ["[SEP]", 102] at the end of a list. */
static err_code read_pair(loader *l, const cJSON *v, int32_t *list, int *n)
{
    const cJSON *id = v && v->child ? v->child->next : NULL;
    if (!cJSON_IsNumber(id) || id->valuedouble < 0 || id->valuedouble >= l->t->n_vocab || *n == 8)
        return err_set(l->e, ERR_CORRUPT, "tokenizer.json: malformed post_processor");
    list[(*n)++] = (int32_t)id->valuedouble;
    return ERR_NONE;
}

static err_code read_post(loader *l, const cJSON *v)
{
    const char *type = type_of(v);
    if (!v || cJSON_IsNull(v) || strcmp(type, "ByteLevel") == 0) return ERR_NONE;
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(l, v);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        err_code rc = read_pair(l, json_get(v, "cls"), l->t->prefix, &l->t->n_prefix);
        return rc ? rc : read_pair(l, json_get(v, "sep"), l->t->suffix, &l->t->n_suffix);
    }
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

/* Stages of a SentencePiece decoder, in this order, each at most once. */
enum { NOTHING, BLOCKS, BYTES, FUSED, STRIPPED };

/* One step of a decoder of SentencePiece's kind. Steps must come in the order Replace,
 * ByteFallback, Fuse, Strip, each at most once (*stage: how far it is); Metaspace stands for the
 * first two. */
static err_code read_one_decoder(loader *l, const cJSON *v, int *stage)
{
    tokenizer *t = l->t;
    const char *type = type_of(v);
    static const char *const types[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
    int is = 0;
    while (is < 4 && strcmp(type, types[is]) != 0) is++;
    if (strcmp(type, "Metaspace") == 0 && *stage == NOTHING) {
        prepend_kind how;
        err_code rc = read_scheme(l, v, &how);
        t->decode_blocks = true;
        t->first = how == PREPEND_NEVER ? FIRST_KEPT : FIRST_BLOCKS;
        *stage = BYTES; /* only Fuse may follow */
        return rc;
    }
    if (is == 4 || *stage > is) return unsupported(l, "decoder", type[0] ? type : "null");
    *stage = is + 1;
    if (*stage == BLOCKS && !replaces(v, LOWER_BLOCK, " "))
        return unsupported(l, "decoder Replace", "other than U+2581 by a space");
    t->decode_blocks |= *stage == BLOCKS;
    t->decode_bytes |= *stage == BYTES;
    l->fused |= *stage == FUSED;
    if (*stage < STRIPPED) return ERR_NONE;
    const cJSON *start = json_get(v, "start"), *stop = json_get(v, "stop");
    bool first = is_string(json_get(v, "content"), " ") && cJSON_IsNumber(start) &&
                 start->valuedouble == 1 && cJSON_IsNumber(stop) && stop->valuedouble == 0;
    if (!first || !l->fused || t->first != FIRST_KEPT)
        return unsupported(l, "decoder Strip", "of anything but the text's first space");
    t->first = FIRST_SPACE;
    return ERR_NONE;
}

static err_code read_word_piece(loader *l, const cJSON *v)
{
    const char *prefix = cJSON_GetStringValue(json_get(v, "prefix"));
    if (!prefix) return unsupported(l, "decoder WordPiece", "without a prefix");
    l->t->first = FIRST_WORD;
    l->t->decode_clean = !cJSON_IsFalse(json_get(v, "cleanup"));
    l->t->decode_prefix = strdup(prefix);
    return l->t->decode_prefix ? ERR_NONE : err_set(l->e, ERR_NOMEM, "no memory for the decoder");
}

/* Without a decoder, tokens are joined with spaces: a WordPiece decoder whose prefix no token has.
 */
static err_code read_no_decoder(loader *l)
{
    l->t->first = FIRST_WORD;
    l->t->decode_prefix = strdup("\xFF");
    return l->t->decode_prefix ? ERR_NONE : err_set(l->e, ERR_NOMEM, "no memory for the decoder");
}

static err_code read_decoder(loader *l)
{
    const cJSON *v = json_get(l->root, "decoder"), *list = json_get(v, "decoders"), *each;
    bool sequence = strcmp(type_of(v), "Sequence") == 0;
    int stage = NOTHING;
    if (has_byte_level(v) != l->t->byte_level)
        return unsupported(
            l, "decoder",
            "that is ByteLevel where the pre_tokenizer is not, or the other way round");
    if (l->t->byte_level) {
        bool alone = !sequence || (list && list->child && !list->child->next);
        return alone ? ERR_NONE : unsupported(l, "decoder", "ByteLevel and others");
    }
    if (strcmp(type_of(v), "WordPiece") == 0) return read_word_piece(l, v);
    if (!v || cJSON_IsNull(v)) return read_no_decoder(l);
    if (!sequence) return read_one_decoder(l, v, &stage);
    cJSON_ArrayForEach(each, list)
    {
        err_code rc = read_one_decoder(l, each, &stage);
        if (rc) return rc;
    }
    return ERR_NONE;
}

static void find_bytes_ids(tokenizer *t)
{
    for (int b = 0; b < 256; b++) {
        char c = (char)b, name[8];
        snprintf(name, sizeof(name), "<0x%02X>", (unsigned)b);
        t->byte_id[b] = t->byte_level ? tokenizer_find_bytes(t, &c, 1, false)
                                      : tokenizer_find_bytes(t, name, 6, false);
    }
}

/* ---------------------------------------------------------- the files beside it -- */

static const char *string_of(const cJSON *v, const char *name)
{
    const char *s = cJSON_GetStringValue(json_get(v, name));
    return s ? s : "";
}

/* "LlamaTokenizerFast" is "LlamaTokenizer". */
static bool is_class(const char *s, const char *name)
{
    size_t n = strlen(name);
    return strncmp(s, name, n) == 0 && (!s[n] || strcmp(s + n, "Fast") == 0);
}

/* Transformers' LlamaTokenizer uses only vocabulary, merges and post-processor of tokenizer.json.
 */
static void be_llama(loader *l)
{
    tokenizer *t = l->t;
    const cJSON *config = l->files.config;
    bool prefix = !cJSON_IsFalse(json_get(config, "add_prefix_space"));
    t->fuse_unk = t->byte_fallback = t->metaspace = true;
    t->ignore_merges = t->metaspace_split = false;
    t->prepend = !prefix ? PREPEND_NEVER : flag(config, "legacy") ? PREPEND_ALWAYS : PREPEND_FIRST;
    t->decode_blocks = t->decode_bytes = true;
    t->first = prefix ? FIRST_SPACE : FIRST_KEPT;
    log_info("tokenizer", "tokenizer_class is LlamaTokenizer: spaces are as in transformers 5, "
                          "whatever tokenizer.json says of them");
}

/* Whether the steps are those of Qwen2Tokenizer: NFC, its Split pattern, plain ByteLevel. */
static bool is_qwen(const loader *l)
{
    static const char pattern[] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
        "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    const cJSON *list = json_get(json_get(l->root, "pre_tokenizer"), "pretokenizers");
    const cJSON *split = list ? list->child : NULL;
    return l->t->normal_form.n == 1 && l->t->normal_form.step[0].kind == NORMAL_FORM &&
           l->t->normal_form.step[0].form.composed && !l->t->normal_form.step[0].form.compatible &&
           l->t->split.n == 1 && !l->t->ignore_merges &&
           is_string(json_get(json_get(split, "pattern"), "Regex"), pattern);
}

/* Finds the class that AutoTokenizer would choose, because some classes change the rules. */
static err_code read_class(loader *l, const cJSON *model)
{
    const char *family = string_of(model, "model_type");
    const char *name = string_of(l->files.config, "tokenizer_class");
    if (!name[0]) name = string_of(model, "tokenizer_class");
    if (flag(l->files.config, "split_special_tokens"))
        return err_set(l->e, ERR_UNSUPPORTED,
                       "tokenizer_config.json: split_special_tokens is not supported");
    bool bytes = has_byte_level(json_get(l->root, "pre_tokenizer")) ||
                 has_byte_level(json_get(l->root, "decoder"));
    bool llama = strcmp(family, "llama") == 0, qwen2 = strcmp(family, "qwen2") == 0,
         qwen3 = strcmp(family, "qwen3") == 0;
    l->files.as_llama = (llama || qwen3) && !bytes && is_class(name, "LlamaTokenizer");
    l->as_qwen = qwen2 || (qwen3 && (!name[0] || is_class(name, "Qwen2Tokenizer")));
    bool plain = !name[0] || is_class(name, "TokenizersBackend") || l->files.as_llama ||
                 is_class(name, "PreTrainedTokenizer") || is_class(name, "LlamaTokenizer");
    if ((llama || qwen3) && !plain && !l->as_qwen)
        log_warn("tokenizer",
                 "tokenizer_class is %.60s: lorad follows tokenizer.json, where "
                 "transformers 5 may split texts by rules of that class",
                 name);
    return ERR_NONE;
}

/* ---------------------------------------------------------------------- together -- */

static err_code read_pipeline(loader *l)
{
    l->t->byte_level = has_byte_level(json_get(l->root, "pre_tokenizer"));
    err_code rc = tokenizer_read_model(l->t, l->model, l->e);
    if (rc) return rc;
    if (l->files.as_llama && l->t->model == MODEL_BPE) {
        be_llama(l);
        return ERR_NONE;
    }
    l->files.as_llama = false;
    rc = normaliser_read(&l->t->normal_form, json_get(l->root, "normalizer"), l->e);
    if (!rc) rc = read_pre_tokenizer(l);
    if (!rc) rc = read_decoder(l);
    if (!rc && l->as_qwen && !is_qwen(l))
        log_warn("tokenizer", "lorad follows tokenizer.json, where transformers 5 splits texts as "
                              "Qwen2Tokenizer does, whatever the file says");
    return rc;
}

static err_code find_unk(loader *l)
{
    tokenizer *t = l->t;
    if (t->model != MODEL_BPE) return ERR_NONE;
    const cJSON *unk = l->files.as_llama ? NULL : json_get(l->model, "unk_token");
    t->unk = cJSON_IsString(unk) ? tokenizer_vocabulary_id(t, unk->valuestring) : -1;
    for (int b = 0; t->byte_level && b < 256; b++) {
        if (t->byte_id[b] < 0 && t->unk < 0 && b >= ' ' && b < 0x7f)
            return err_set(l->e, ERR_CORRUPT, "tokenizer.json: no token for byte 0x%02x", b);
        if (t->byte_id[b] < 0 && t->byte_fallback)
            return unsupported(l, "byte_fallback", "with a byte-level vocabulary that lacks bytes");
    }
    return ERR_NONE;
}

static err_code read_words(loader *l)
{
    tok_words w = {0};
    err_code rc = tokenizer_read_words(&w, l->t, l->root, &l->files, l->n_strings, l->e);
    if (!rc) rc = tokenizer_take_words(l->t, &w, l->e);
    tokenizer_clear_words(&w);
    return rc;
}

static err_code read_all(loader *l)
{
    l->model = json_get(l->root, "model");
    err_code rc = read_pipeline(l);
    if (!rc) rc = tokenizer_read_vocabulary(l->t, l->model, &l->words, &l->n_strings, l->e);
    if (!rc) find_bytes_ids(l->t);
    if (!rc) rc = find_unk(l);
    if (!rc) rc = read_words(l);
    if (!rc) rc = read_post(l, json_get(l->root, "post_processor"));
    if (rc) return rc;
    l->t->bos = tokenizer_named(l->t, &l->files, "bos_token");
    l->t->eos = tokenizer_named(l->t, &l->files, "eos_token");
    return ERR_NONE;
}

/* Reads an optional file. */
static err_code load_beside(const char *dir, const char *name, cJSON **out, err *e)
{
    err why = {0};
    err_code rc = document_read(dir, name, out, &why);
    if (rc == ERR_NOT_FOUND) return ERR_NONE;
    if (rc && e) *e = why;
    return rc;
}

static err_code load_files(loader *l, const char *dir)
{
    cJSON *model = NULL;
    err_code rc = load_beside(dir, "tokenizer_config.json", &l->files.config, l->e);
    if (!rc) rc = load_beside(dir, "special_tokens_map.json", &l->files.special_map, l->e);
    if (!rc) rc = load_beside(dir, "added_tokens.json", &l->files.added, l->e);
    if (!rc) rc = load_beside(dir, "config.json", &model, l->e);
    if (!rc) rc = read_class(l, model);
    cJSON_Delete(model);
    return rc;
}

err_code tokenizer_load(tokenizer **out, const char *dir, err *e)
{
    *out = NULL;
    cJSON *root;
    gguf_words words;
    err_code rc = document_tokenizer_read(dir, &root, &words, e);
    if (rc) return rc;
    tokenizer *t = calloc(1, sizeof(*t));
    loader l = {.t = t, .root = root, .words = words, .e = e};
    if (!t) {
        rc = err_set(e, ERR_NOMEM, "no memory for the tokenizer");
    } else {
        t->unk = t->bos = t->eos = -1;
        rc = load_files(&l, dir);
        if (!rc) rc = read_all(&l);
    }
    cJSON_Delete(root);
    gguf_words_clear(&words);
    cJSON_Delete(l.files.config);
    cJSON_Delete(l.files.special_map);
    cJSON_Delete(l.files.added);
    if (rc)
        tokenizer_destroy(t);
    else
        *out = t;
    return rc;
}

static void free_set(added_set *set)
{
    for (int i = 0; set->list && i < set->n; i++) free(set->list[i].content);
    free(set->list);
}

void tokenizer_destroy(tokenizer *t)
{
    if (!t) return;
    if (t->base) {
        tokenizer_free_more(t);
        return;
    }
    for (int i = 0; t->entries && i < t->n_vocab; i++) {
        entry *en = &t->entries[i];
        if (en->text != en->bytes) free(en->text);
        free(en->bytes);
        free(en->content);
    }
    splitter_clear(&t->split);
    normaliser_clear(&t->normal_form);
    pieces_clear(&t->piece.set);
    free(t->piece.score);
    free(t->piece.continuing);
    free(t->decode_prefix);
    free_set(&t->raw);
    free_set(&t->normal);
    free(t->entries);
    free(t->by_bytes);
    free(t->merges);
    free(t);
}
