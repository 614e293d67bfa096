/* tokenizer_words.c -- added tokens: those of tokenizer.json, and those that only the files beside
 * it name.
 *
 * Transformers' AutoTokenizer loads tokenizer.json and then adds what differs or is missing, in
 * this order:
 *   1. added_tokens_decoder of tokenizer_config.json; without it added_tokens.json, and then
 *      special_tokens_map.json has priority over the names of the configuration
 *   2. bos_token, eos_token and the other five standard names
 *   3. other names that end in _token: objects first, then strings
 *   4. extra_special_tokens, or additional_special_tokens
 *
 * A token's id is that of the vocabulary if it has the string, else the next free one: ids in the
 * files only define an order. A file whose id differs from the resulting one contradicts itself and
 * is rejected.
 *
 * A maker collects them in a list with a hash index by content (put() adds or updates).
 * tokenizer_take_words() then enters them into the two sets that encoding searches: tokens found in
 * the raw text, and tokens found after the normaliser.
 *
 * Threads: runs while a tokenizer is loaded, on the loading thread.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/text/tokenizer_inside.h"

typedef struct {
    tok_words *out;
    const tokenizer *t;
    const tok_files *files;
    const cJSON *map; /* special_tokens_map.json, where it counts */
    int n_vocab;
    int32_t next;  /* the id that a token gets which is nowhere yet */
    int32_t *slot; /* places in out->list by the hash of their contents; -1: empty */
    uint32_t mask;
    err *e;
} maker;

/* ---- one token ------------------------------------------------------------------------------ */

static bool flag(const cJSON *v, const char *name)
{
    return cJSON_IsTrue(json_get(v, name));
}

/* Reads a token: a string (special), or an object with flags; `special` is the default of that
 * flag. */
static bool read_token(const cJSON *v, bool special, tok_added *out)
{
    *out = (tok_added){.content = cJSON_GetStringValue(v), .special = true};
    if (!cJSON_IsObject(v)) return out->content && out->content[0];
    const cJSON *is = json_get(v, "special"), *normalized = json_get(v, "normalized");
    out->content = cJSON_GetStringValue(json_get(v, "content"));
    out->special = is ? cJSON_IsTrue(is) : special;
    out->lstrip = flag(v, "lstrip");
    out->rstrip = flag(v, "rstrip");
    out->single_word = flag(v, "single_word");
    out->normalized = normalized ? cJSON_IsTrue(normalized) : !out->special;
    return out->content && out->content[0];
}

static bool same_flags(const tok_added *a, const tok_added *b)
{
    return a->special == b->special && a->lstrip == b->lstrip && a->rstrip == b->rstrip &&
           a->single_word == b->single_word && a->normalized == b->normalized;
}

/* The slot of a content in the hash index, or the free one for it. */
static int32_t *slot_of(const maker *m, const char *content)
{
    uint32_t i = (uint32_t)hash_text(0, content, strlen(content)) & m->mask;
    while (m->slot[i] >= 0 && strcmp(m->out->list[m->slot[i]].content, content) != 0)
        i = (i + 1) & m->mask;
    return &m->slot[i];
}

static tok_added *find(const maker *m, const char *content)
{
    int32_t at = m->slot ? *slot_of(m, content) : -1;
    return at < 0 ? NULL : &m->out->list[at];
}

/* Room for one token more, in the list and in its index. */
static bool make_room(maker *m)
{
    tok_words *w = m->out;
    if (w->n < w->cap) return true;
    int cap = w->cap ? 2 * w->cap : 64;
    tok_added *more = realloc(w->list, (size_t)cap * sizeof(*more));
    if (more) w->list = more;
    int32_t *slot = malloc(2 * (size_t)cap * sizeof(*slot));
    if (!more || !slot) {
        free(slot);
        return false;
    }
    free(m->slot);
    m->slot = slot;
    m->mask = 2 * (uint32_t)cap - 1;
    w->cap = cap;
    for (int i = 0; i < 2 * cap; i++) slot[i] = -1;
    for (int i = 0; i < w->n; i++) *slot_of(m, w->list[i].content) = i;
    return true;
}

/* Adds a token, or updates the flags of the one with this content. `listed`: the id in `file`; -1:
 * none. */
static err_code put(maker *m, const tok_added *a, int32_t listed, const char *file)
{
    tok_words *w = m->out;
    tok_added *at = find(m, a->content);
    int32_t id = at ? at->id : tokenizer_vocabulary_id(m->t, a->content);
    if (id < 0) id = m->next++;
    if (listed >= 0 && listed != id)
        return err_set(m->e, ERR_INPUT,
                       "%s: the added token '%.60s' is listed with id %d, but as Hugging Face's "
                       "tokenizers count it is %d",
                       file, a->content, (int)listed, (int)id);
    const char *content = at ? at->content : make_room(m) ? strdup(a->content) : NULL;
    if (!content) return err_set(m->e, ERR_NOMEM, "no memory for added tokens");
    int32_t place = at ? (int32_t)(at - w->list) : w->n++;
    w->list[place] = *a;
    w->list[place].content = content;
    w->list[place].id = id;
    *slot_of(m, content) = place;
    return ERR_NONE;
}

/* Before a group of tokens is added: the first free id. */
static void begin_round(maker *m)
{
    int32_t most = -1;
    for (int i = 0; i < m->out->n; i++)
        if (m->out->list[i].id > most) most = m->out->list[i].id;
    m->next = most >= m->n_vocab ? most + 1 : m->n_vocab;
}

static err_code malformed(maker *m, const char *file, const char *what)
{
    return err_set(m->e, ERR_INPUT, "%s: %.60s is no added token", file, what);
}

/* ---- lists with ids ------------------------------------------------------------------------- */

typedef struct {
    tok_added a; /* .id is the listed one */
    const char *file;
} listed;

static int by_id(const void *x, const void *y)
{
    int32_t a = ((const listed *)x)->a.id, b = ((const listed *)y)->a.id;
    return (a > b) - (a < b);
}

static bool read_id(const cJSON *v, int32_t *id)
{
    double d = cJSON_IsNumber(v) ? v->valuedouble : -1;
    if (!(d >= 0 && d < (1 << 24)) || d != floor(d)) return false;
    *id = (int32_t)d;
    return true;
}

static bool read_key(const char *s, int32_t *id)
{
    char *end;
    long v = s[0] >= '0' && s[0] <= '9' ? strtol(s, &end, 10) : -1;
    if (v < 0 || v >= (1 << 24) || *end) return false;
    *id = (int32_t)v;
    return true;
}

/* Reads added_tokens of tokenizer.json, where each has all flags. */
static err_code read_list(maker *m, const cJSON *list, listed *out, int *n)
{
    static const char file[] = "tokenizer.json";
    const cJSON *v;
    cJSON_ArrayForEach(v, list)
    {
        listed *l = &out[*n];
        const char *content = cJSON_GetStringValue(json_get(v, "content"));
        if (content && !content[0]) continue;
        if (!read_token(v, false, &l->a) || !read_id(json_get(v, "id"), &l->a.id))
            return malformed(m, file, content ? content : "an item of added_tokens");
        l->a.normalized = flag(v, "normalized");
        l->file = file;
        ++*n;
    }
    return ERR_NONE;
}

static err_code read_decoder(maker *m, const cJSON *map, listed *out, int *n)
{
    static const char file[] = "tokenizer_config.json";
    const cJSON *v;
    cJSON_ArrayForEach(v, map)
    {
        listed *l = &out[*n];
        if (!cJSON_IsObject(v) || !read_token(v, false, &l->a) || !read_key(v->string, &l->a.id))
            return malformed(m, file, v->string);
        l->file = file;
        ++*n;
    }
    return ERR_NONE;
}

/* The token of this name; NULL: none. */
static const cJSON *named(const maker *m, const char *name)
{
    const cJSON *v = json_get(m->map, name);
    if (!v) v = json_get(m->files->config, name);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

enum { N_NAMES = sizeof(names) / sizeof(*names) };

/* LlamaTokenizer's default for a name that no file has. */
static const char *default_name(const maker *m, int i)
{
    static const char *const llama[] = {"<s>", "</s>", "<unk>"};
    bool said = json_get(m->map, names[i]) || json_get(m->files->config, names[i]);
    return m->files->as_llama && i < 3 && !said ? llama[i] : NULL;
}

static const cJSON *extras(const maker *m)
{
    const cJSON *v = json_get(m->files->config, "extra_special_tokens");
    if (!v || !v->child) v = json_get(m->files->config, "additional_special_tokens");
    if (!v) v = json_get(m->map, "additional_special_tokens");
    return v;
}

static bool is_name(const maker *m, const char *content)
{
    tok_added a;
    for (int i = 0; i < N_NAMES; i++) {
        const cJSON *v = named(m, names[i]);
        const char *s = default_name(m, i);
        if (v && read_token(v, true, &a)) s = a.content;
        if (s && strcmp(s, content) == 0) return true;
    }
    return false;
}

static bool is_extra(const maker *m, const char *content)
{
    const cJSON *v;
    tok_added a;
    cJSON_ArrayForEach(v, extras(m))
    {
        if (read_token(v, true, &a) && strcmp(a.content, content) == 0) return true;
    }
    return false;
}

/* Reads added_tokens.json: {"<call>": 300}. An id that tokenizer.json lists means that token. */
static err_code read_added(maker *m, const cJSON *map, listed *out, int *n)
{
    static const char file[] = "added_tokens.json";
    const cJSON *v;
    int own = *n;
    cJSON_ArrayForEach(v, map)
    {
        int32_t id, k = 0;
        if (!read_id(v, &id)) return malformed(m, file, v->string);
        while (k < own && out[k].a.id != id) k++;
        if (k < own && strcmp(out[k].a.content, v->string) != 0)
            return err_set(m->e, ERR_INPUT,
                           "added_tokens.json: '%.60s' has the id %d, which is '%.60s' in "
                           "tokenizer.json",
                           v->string, (int)id, out[k].a.content);
        if (k < own || !v->string[0]) continue;
        bool special = is_name(m, v->string) || is_extra(m, v->string);
        out[(*n)++] = (listed){
            .a = {.id = id, .content = v->string, .special = special, .normalized = !special},
            .file = file};
    }
    return ERR_NONE;
}

/* ---- all together ---------------------------------------------------------------------------- */

/* Adds a named or listed token unless it is there. */
static err_code put_named(maker *m, const cJSON *v, bool has_name, const char *what)
{
    tok_added a;
    if (!v || cJSON_IsNull(v)) return ERR_NONE;
    if (!read_token(v, true, &a)) return malformed(m, "tokenizer_config.json", what);
    if (has_name) a.special = true;
    if (cJSON_IsObject(v) && !json_get(v, "normalized")) a.normalized = false;
    return find(m, a.content) ? ERR_NONE : put(m, &a, -1, "");
}

static bool is_standard(const char *name)
{
    for (int i = 0; i < N_NAMES; i++) {
        if (strcmp(names[i], name) == 0) return true;
    }
    return false;
}

/* "image_token" and its like; `objects`: those that are written with flags. */
static err_code put_others(maker *m, const cJSON *map, bool objects)
{
    static const char end[] = "_token";
    const cJSON *v;
    err_code rc = ERR_NONE;
    cJSON_ArrayForEach(v, map)
    {
        size_t len = v->string ? strlen(v->string) : 0;
        bool fits = len >= sizeof(end) - 1 && strcmp(v->string + len - sizeof(end) + 1, end) == 0;
        if (!fits || is_standard(v->string) || rc) continue;
        if (objects ? cJSON_IsObject(v) : cJSON_IsString(v) && v->valuestring[0])
            rc = put_named(m, v, true, v->string);
    }
    return rc;
}

static err_code put_all_named(maker *m)
{
    const cJSON *v, *extra = extras(m), *config = m->files->config;
    err_code rc = ERR_NONE;
    for (int i = 0; i < N_NAMES && !rc; i++) {
        const char *name = default_name(m, i);
        tok_added a = {.content = name, .special = true};
        rc = name && !find(m, name) ? put(m, &a, -1, "")
                                    : put_named(m, named(m, names[i]), true, names[i]);
    }
    if (!rc) rc = put_others(m, config, true);
    if (!rc) rc = put_others(m, m->map, true);
    if (!rc) rc = put_others(m, m->map, false);
    if (!rc) rc = put_others(m, config, false);
    if (extra && !cJSON_IsNull(extra) && !cJSON_IsArray(extra) && !cJSON_IsObject(extra))
        return malformed(m, "tokenizer_config.json", extra->string);
    cJSON_ArrayForEach(v, extra)
    {
        if (!rc) rc = put_named(m, v, cJSON_IsObject(extra), extra->string);
    }
    return rc;
}

/* Adds the listed tokens in the order of their ids; those that tokenizer.json has with the same
 * flags change nothing. */
static err_code put_listed(maker *m, listed *list, int n)
{
    qsort(list, (size_t)n, sizeof(*list), by_id);
    err_code rc = ERR_NONE;
    for (int i = 0; i < n && !rc; i++) {
        listed *l = &list[i];
        const tok_added *own = find(m, l->a.content);
        if (!own || !same_flags(own, &l->a)) l->a.special |= is_name(m, l->a.content);
        rc = put(m, &l->a, l->a.id, l->file);
    }
    return rc;
}

err_code tokenizer_read_words(tok_words *out, const tokenizer *t, const cJSON *root,
                              const tok_files *files, int n, err *e)
{
    const cJSON *own = json_get(root, "added_tokens");
    const cJSON *decoder = json_get(files->config, "added_tokens_decoder");
    maker m = {.out = out, .t = t, .files = files, .n_vocab = n, .e = e};
    if (decoder && !cJSON_IsObject(decoder))
        return malformed(&m, "tokenizer_config.json", "added_tokens_decoder");
    if (!decoder) m.map = files->special_map;
    size_t cap = (size_t)cJSON_GetArraySize(own) + (size_t)cJSON_GetArraySize(decoder) +
                 (size_t)cJSON_GetArraySize(files->added) + 1;
    listed *list = calloc(cap, sizeof(*list));
    if (!list) return err_set(e, ERR_NOMEM, "no memory for added tokens");
    int n_own = 0, n_all = 0;
    err_code rc = read_list(&m, own, list, &n_own);
    begin_round(&m);
    for (int i = 0; i < n_own && !rc && !files->as_llama; i++)
        rc = put(&m, &list[i].a, list[i].a.id, list[i].file);
    begin_round(&m);
    n_all = decoder ? 0 : n_own;
    if (!rc && decoder) rc = read_decoder(&m, decoder, list, &n_all);
    if (!rc && !decoder) rc = read_added(&m, files->added, list, &n_all);
    if (!rc) rc = put_listed(&m, list, n_all);
    if (!rc) rc = put_all_named(&m);
    free(m.slot);
    free(list);
    return rc;
}

void tokenizer_clear_words(tok_words *w)
{
    for (int i = 0; i < w->n; i++) free((char *)w->list[i].content);
    free(w->list);
    *w = (tok_words){0};
}

int32_t tokenizer_named(const tokenizer *t, const tok_files *files, const char *name)
{
    maker m = {.files = files};
    tok_added a;
    if (!json_get(files->config, "added_tokens_decoder")) m.map = files->special_map;
    for (int i = 0; i < N_NAMES; i++) {
        const char *s = strcmp(names[i], name) == 0 ? default_name(&m, i) : NULL;
        if (s) return tokenizer_find(t, s);
    }
    const cJSON *v = named(&m, name);
    return v && read_token(v, true, &a) ? tokenizer_find(t, a.content) : -1;
}

/* ---- into the tokenizer ---------------------------------------------------------------------- */

err_code tokenizer_looked_for(const tokenizer *t, const tok_added *a, added_token *out, err *e)
{
    tok_normal n = {0};
    *out = (added_token){.id = a->id,
                         .special = a->special,
                         .lstrip = a->lstrip,
                         .rstrip = a->rstrip,
                         .single_word = a->single_word};
    if (!a->normalized)
        n.s = strdup(a->content);
    else if (!normaliser_run(&t->normal_form, a->content, strlen(a->content), NULL, &n))
        n.s = NULL;
    if (!n.s) return err_set(e, ERR_NOMEM, "no memory for added tokens");
    out->content = n.s;
    out->len = strlen(n.s);
    return ERR_NONE;
}

err_code tokenizer_make_added(const tokenizer *t, entry *en, const tok_added *a,
                              const char *pattern, err *e)
{
    bool same = strcmp(pattern, a->content) == 0;
    if (!same && t->first >= FIRST_BLOCKS)
        return err_set(e, ERR_UNSUPPORTED,
                       "the added token '%.60s' is normalized, and the decoder is Metaspace or "
                       "WordPiece: this is not supported",
                       a->content);
    if (en->text != en->bytes) free(en->text);
    en->text = NULL;
    en->content = strdup(a->content);
    if (!en->content) return err_set(e, ERR_NOMEM, "no memory for added tokens");
    en->added = true;
    en->special = a->special;
    en->hidden = a->special && same; /* see tokenizer_hide() */
    en->barred = a->barred;
    return tokenizer_make_text(t, en, pattern, e);
}

void tokenizer_hide(const tokenizer *t, const char *pattern, entry *en)
{
    const added_set *sets[] = {&t->raw, &t->normal};
    for (int s = 0; s < 2 && !en->hidden; s++) {
        for (int i = 0; i < sets[s]->n && !en->hidden; i++) {
            const added_token *a = &sets[s]->list[i];
            en->hidden = a->special && strcmp(a->name, pattern) == 0;
        }
    }
}

static err_code take(tokenizer *t, const tok_added *a, err *e)
{
    added_token seek;
    err_code rc = tokenizer_looked_for(t, a, &seek, e);
    if (rc) return rc;
    added_set *set = a->normalized ? &t->normal : &t->raw;
    set->list[set->n] = seek;
    rc = tokenizer_make_added(t, &t->entries[a->id], a, seek.content, e);
    set->list[set->n++].name = t->entries[a->id].content;
    return rc;
}

err_code tokenizer_take_words(tokenizer *t, const tok_words *w, err *e)
{
    int32_t n_vocab = t->n_vocab;
    for (int i = 0; i < w->n; i++)
        if (w->list[i].id >= n_vocab) n_vocab = w->list[i].id + 1;
    t->raw.list = calloc((size_t)w->n + 1, sizeof(*t->raw.list));
    t->normal.list = calloc((size_t)w->n + 1, sizeof(*t->normal.list));
    if (n_vocab > t->n_vocab) {
        entry *more = realloc(t->entries, (size_t)n_vocab * sizeof(*more));
        if (more) t->entries = more;
        for (int32_t id = t->n_vocab; more && id < n_vocab; id++) more[id] = (entry){.byte = -1};
        if (more) t->n_vocab = t->n_base = n_vocab;
    }
    if (n_vocab > t->n_vocab || !t->raw.list || !t->normal.list)
        return err_set(e, ERR_NOMEM, "no memory for added tokens");
    err_code rc = ERR_NONE;
    for (int i = 0; i < w->n && !rc; i++) rc = take(t, &w->list[i], e);
    for (int32_t id = 0; t->model == MODEL_UNIGRAM && id < t->n_vocab; id++) {
        entry *en = &t->entries[id]; /* a duplicate piece */
        if (en->bytes && tokenizer_find_bytes(t, en->bytes, en->len, false) != id)
            tokenizer_hide(t, en->bytes, en);
    }
    for (int i = 0; i < t->normal.n && !rc; i++)
        tokenizer_hide(t, t->normal.list[i].content, &t->entries[t->normal.list[i].id]);
    if (!rc) rc = tokenizer_index_added(&t->raw, e);
    if (!rc) rc = tokenizer_index_added(&t->normal, e);
    return rc;
}
