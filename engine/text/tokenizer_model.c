/* tokenizer_model.c -- the "model" of tokenizer.json: BPE, Unigram, WordPiece or WordLevel.
 *
 * tokenizer_read_model() reads the type and the flags first, because the other steps depend on
 * them; tokenizer_read_vocabulary() then fills the entries:
 *
 *   BPE        {"token": id} and merges ["a b", ..], rank = position; both halves and the result
 *              must be in the vocabulary
 *   Unigram    [["piece", score], ..], id = position; an unknown character costs PENALTY less than
 *              the worst piece
 *   WordPiece  {"token": id}, unk_token, the prefix of continuing pieces ("##")
 *   WordLevel  {"token": id}, unk_token
 *
 * A byte-level vocabulary is stored decoded: the alphabet of GPT-2, one printable character per
 * byte, is turned back into bytes once, here. A GGUF file has its words and merges in gguf_words;
 * where a string occurs twice, merges mean the id that a lookup finds (`same`).
 *
 * Strict: dropout, a subword prefix or suffix of BPE and other types are rejected by name. Ids must
 * be below 2^24.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_inside.h"

enum { PENALTY = 10 /* of an unknown character, below the worst piece */ };

typedef struct {
    tokenizer *t;
    const cJSON *model;
    const gguf_words *words; /* n > 0: instead of the model's vocabulary and merges */
    int *n;                  /* strings of the vocabulary */
    err *e;
} loader;

static err_code unsupported(loader *l, const char *what, const char *value)
{
    return err_set(l->e, ERR_UNSUPPORTED, "tokenizer.json: %s '%.60s' is not supported", what,
                   value);
}

/* ---- BPE ------------------------------------------------------------------------------------ */

static err_code set_entry(loader *l, int32_t id, const char *string)
{
    tokenizer *t = l->t;
    entry *en = &t->entries[id];
    size_t n = strlen(string), len = n;
    char *bytes = malloc(n + 1);
    if (!bytes) return err_set(l->e, ERR_NOMEM, "no memory for the vocabulary");
    bool plain = t->byte_level && !tokenizer_undo_alphabet(string, bytes, &len);
    if (plain || !t->byte_level) {
        memcpy(bytes, string, n);
        len = n;
    }
    bytes[len] = 0;
    if (en->text != en->bytes) free(en->text);
    free(en->bytes);
    *en = (entry){.bytes = bytes,
                  .text = bytes,
                  .len = (uint32_t)len,
                  .text_len = (uint32_t)len,
                  .plain = plain,
                  .byte = -1};
    return t->byte_level ? ERR_NONE : tokenizer_make_text(t, en, string, l->e);
}

static err_code allocate(loader *l, int n)
{
    tokenizer *t = l->t;
    t->entries = calloc((size_t)n + 1, sizeof(*t->entries));
    if (!t->entries) return err_set(l->e, ERR_NOMEM, "no memory for the vocabulary");
    t->n_vocab = t->n_base = n;
    for (int i = 0; i < n; i++) t->entries[i].byte = -1;
    return ERR_NONE;
}

static err_code read_vocab(loader *l)
{
    tokenizer *t = l->t;
    const cJSON *vocab = json_get(l->model, "vocab"), *v;
    if (!cJSON_IsObject(vocab)) return err_set(l->e, ERR_CORRUPT, "tokenizer.json: no vocabulary");
    double max = -1;
    cJSON_ArrayForEach(v, vocab)
    {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < (1 << 24))) {
            return err_set(l->e, ERR_CORRUPT, "tokenizer.json: a token id is not a small integer");
        }
        if (v->valuedouble > max) max = v->valuedouble;
        ++*l->n;
    }
    err_code rc = allocate(l, (int)max + 1);
    cJSON_ArrayForEach(v, vocab)
    {
        if (!rc) rc = set_entry(l, (int32_t)v->valuedouble, v->string);
    }
    return rc ? rc : tokenizer_hash_entries(t, NULL, l->e);
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

static err_code add_merge(loader *l, const cJSON *v, int32_t rank)
{
    tokenizer *t = l->t;
    char *a, *b;
    err_code rc = ERR_NONE;
    if (!merge_parts(v, &a, &b)) {
        rc = err_set(l->e, ERR_CORRUPT, "tokenizer.json: merge %d is malformed", rank);
    } else {
        size_t n = strlen(a) + strlen(b) + 1;
        char *joined = malloc(n);
        if (!joined) {
            rc = err_set(l->e, ERR_NOMEM, "no memory for merges");
        } else {
            snprintf(joined, n, "%s%s", a, b);
            merge m = {tokenizer_vocabulary_id(t, a), tokenizer_vocabulary_id(t, b), rank,
                       tokenizer_vocabulary_id(t, joined)};
            if (m.left < 0 || m.right < 0 || m.result < 0)
                rc = err_set(l->e, ERR_CORRUPT,
                             "tokenizer.json: merge %d is not made of vocabulary tokens", rank);
            else
                tokenizer_put_merge(t, m);
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
    err_code made = tokenizer_make_merges(t, (size_t)cJSON_GetArraySize(merges), l->e);
    if (made) return made;
    int32_t rank = 0;
    cJSON_ArrayForEach(v, merges)
    {
        err_code rc = add_merge(l, v, rank++);
        if (rc) return rc;
    }
    return ERR_NONE;
}

/* Reads a GGUF's words, and its merges by ids. Of a duplicate string, merges mean the id that a
 * lookup finds. */
static err_code read_gguf_words(loader *l)
{
    tokenizer *t = l->t;
    const gguf_words *w = l->words;
    int n = w->n;
    while (n > 0 && !gguf_word_used(&w->word[n - 1])) n--;
    err_code rc = allocate(l, n);
    int32_t *same = rc ? NULL : calloc((size_t)n + 1, sizeof(*same));
    if (!same) return err_set(l->e, ERR_NOMEM, "no memory for the vocabulary");
    for (int32_t id = 0; id < n && !rc; id++) {
        if (!gguf_word_used(&w->word[id])) continue;
        rc = set_entry(l, id, w->word[id].s);
        ++*l->n;
    }
    if (!rc) rc = tokenizer_hash_entries(t, same, l->e);
    if (!rc) rc = tokenizer_make_merges(t, (size_t)w->n_merges, l->e);
    for (int32_t i = 0; i < w->n_merges && !rc; i++) {
        const gguf_merge *m = &w->merge[i];
        tokenizer_put_merge(t, (merge){same[m->left], same[m->right], i, same[m->whole]});
    }
    free(same);
    return rc;
}

/* ---- Unigram -------------------------------------------------------------------------------- */

/* [["the", -3.5], ..]: a piece's place is its id. */
static err_code read_scored(loader *l, const cJSON *v, int32_t id)
{
    const cJSON *s = cJSON_IsArray(v) ? v->child : NULL, *score = s ? s->next : NULL;
    if (!cJSON_IsString(s) || !cJSON_IsNumber(score) || !isfinite(score->valuedouble))
        return err_set(l->e, ERR_CORRUPT, "tokenizer.json: piece %d is malformed", (int)id);
    l->t->piece.score[id] = score->valuedouble;
    return set_entry(l, id, s->valuestring);
}

static err_code read_unigram(loader *l)
{
    tokenizer *t = l->t;
    const cJSON *vocab = json_get(l->model, "vocab"), *v, *unk = json_get(l->model, "unk_id");
    int n = cJSON_IsArray(vocab) ? cJSON_GetArraySize(vocab) : 0, id = 0;
    if (n < 1 || n >= 1 << 24) return err_set(l->e, ERR_CORRUPT, "tokenizer.json: no vocabulary");
    if (!cJSON_IsNumber(unk) || !(unk->valuedouble >= 0 && unk->valuedouble < n))
        return unsupported(l, "Unigram", "without an unk_id of its vocabulary");
    t->unk = (int32_t)unk->valuedouble;
    err_code rc = allocate(l, n);
    t->piece.score = rc ? NULL : calloc((size_t)n, sizeof(*t->piece.score));
    if (!t->piece.score) return err_set(l->e, ERR_NOMEM, "no memory for the vocabulary");
    double least = INFINITY;
    cJSON_ArrayForEach(v, vocab)
    {
        rc = read_scored(l, v, id);
        if (rc) return rc;
        if (t->piece.score[id] < least) least = t->piece.score[id];
        id++;
    }
    t->piece.unk_score = least - PENALTY;
    *l->n = n;
    rc = tokenizer_hash_entries(t, NULL, l->e);
    return rc ? rc : tokenizer_index_pieces(t, l->e);
}

/* ---- WordPiece ------------------------------------------------------------------------------ */

/* Reads a vocabulary with the unknown token that unknown words become. */
static err_code read_words(loader *l, const char *type)
{
    tokenizer *t = l->t;
    const char *unk = cJSON_GetStringValue(json_get(l->model, "unk_token"));
    err_code rc = read_vocab(l);
    if (rc) return rc;
    t->unk = unk ? tokenizer_vocabulary_id(t, unk) : -1;
    return t->unk >= 0 ? ERR_NONE : unsupported(l, type, "without an unk_token of its vocabulary");
}

static err_code read_word_piece(loader *l)
{
    tokenizer *t = l->t;
    const char *inside = cJSON_GetStringValue(json_get(l->model, "continuing_subword_prefix"));
    const cJSON *most = json_get(l->model, "max_input_chars_per_word");
    err_code rc = read_words(l, "WordPiece");
    if (rc) return rc;
    t->piece.continuing = strdup(inside ? inside : "##");
    t->piece.max_characters =
        cJSON_IsNumber(most) && most->valuedouble >= 0 && most->valuedouble < 1e6
            ? (int)most->valuedouble
            : 100;
    if (!t->piece.continuing) return err_set(l->e, ERR_NOMEM, "no memory for the vocabulary");
    return tokenizer_index_pieces(t, l->e);
}

/* ---- all of them ---------------------------------------------------------------------------- */

static bool flag(const cJSON *obj, const char *name)
{
    return cJSON_IsTrue(json_get(obj, name));
}

static err_code read_bpe_flags(loader *l)
{
    static const char *const must_be_empty[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const cJSON *v = json_get(l->model, must_be_empty[i]);
        if (cJSON_IsString(v) && v->valuestring[0])
            return unsupported(l, must_be_empty[i], v->valuestring);
    }
    const cJSON *dropout = json_get(l->model, "dropout");
    if (cJSON_IsNumber(dropout) && dropout->valuedouble > 0)
        return unsupported(l, "dropout", "> 0");
    l->t->fuse_unk = flag(l->model, "fuse_unk");
    l->t->ignore_merges = flag(l->model, "ignore_merges");
    return ERR_NONE;
}

/* Old files name no type: a list of pieces is Unigram, anything else BPE. */
static const char *type_of_model(const cJSON *m)
{
    const char *type = cJSON_GetStringValue(json_get(m, "type"));
    if (type && type[0]) return type;
    return cJSON_IsArray(json_get(m, "vocab")) ? "Unigram" : "BPE";
}

err_code tokenizer_read_model(tokenizer *t, const cJSON *model, err *e)
{
    loader l = {.t = t, .model = model, .e = e};
    if (!cJSON_IsObject(model)) return unsupported(&l, "model type", "");
    const char *type = type_of_model(model);
    static const char *const types[] = {[MODEL_BPE] = "BPE",
                                        [MODEL_UNIGRAM] = "Unigram",
                                        [MODEL_WORD_PIECE] = "WordPiece",
                                        [MODEL_WORD_LEVEL] = "WordLevel"};
    t->byte_fallback = flag(model, "byte_fallback");
    t->model = MODEL_BPE;
    while (strcmp(type, types[t->model]) != 0)
        if (t->model++ == MODEL_WORD_LEVEL) return unsupported(&l, "model type", type);
    if (t->model == MODEL_BPE) return read_bpe_flags(&l);
    return t->byte_level ? unsupported(&l, "ByteLevel with the model type", type) : ERR_NONE;
}

err_code tokenizer_read_vocabulary(tokenizer *t, const cJSON *model, const gguf_words *words,
                                   int *n, err *e)
{
    loader l = {.t = t, .model = model, .words = words, .n = n, .e = e};
    if (words->n > 0) return read_gguf_words(&l);
    if (t->model == MODEL_UNIGRAM) return read_unigram(&l);
    if (t->model == MODEL_WORD_PIECE) return read_word_piece(&l);
    if (t->model == MODEL_WORD_LEVEL) return read_words(&l, "WordLevel");
    err_code rc = read_vocab(&l);
    return rc ? rc : read_merges(&l);
}
