/* words.c -- the tokens that an adapter adds or changes, from the tokenizer files beside it.
 *
 * Three sources, the first that exists: added_tokens of tokenizer.json, added_tokens_decoder of
 * tokenizer_config.json, added_tokens.json. From each only the tokens whose rows the adapter brings
 * are kept, with their flags, as one line of JSON: [[id, content, flags], ..], eos and invocation
 * tokens. That line is stored in the database and is part of the version's digest.
 *
 * find_member() scans for one member of the outermost object without parsing the rest, because a
 * tokenizer.json has a quarter of a million values; what it finds is then parsed strictly.
 *
 * The result is tried on the base's tokenizer (write_words()), so a contradiction is found on
 * upload and not on first use. Threads: the worker that receives the upload, or a loader
 * (words_parse()).
 */
#include "adapters/format/words.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "adapters/format/folder.h"
#include "adapters/format/validate.h"
#include "engine/base/json.h"

/* Of a list of added tokens, and of tokenizer_config.json, which may hold a chat template. */
static const json_limits limits = {.max_bytes = 16 << 20, .max_depth = 16, .max_values = 1 << 20};

/* ---- files ----------------------------------------------------------------------------------- */

/* *text NULL: there is no such file. */
static err_code read_file(int dir_fd, const char *name, char **text, size_t *len, err *e)
{
    struct stat sb;
    *text = NULL;
    *len = 0;
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return ERR_NONE;
    err_code rc = ERR_NONE;
    if (fd < 0 || fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode))
        rc = err_set(e, ERR_INPUT, "%s is not a regular file", name);
    else if (sb.st_size > WORDS_FILE_MAX)
        rc = err_set(e, ERR_LIMIT, "%s has %lld bytes; at most %d are read", name,
                     (long long)sb.st_size, WORDS_FILE_MAX);
    else if ((*text = malloc((size_t)sb.st_size + 1)) == NULL)
        rc = err_set(e, ERR_NOMEM, "out of memory");
    else if (!folder_read_at(fd, *text, (size_t)sb.st_size, 0))
        rc = err_set(e, ERR_IO, "%s cannot be read", name);
    if (fd >= 0) close(fd);
    if (!rc) {
        *len = (size_t)sb.st_size;
        (*text)[*len] = 0;
    } else {
        free(*text);
        *text = NULL;
    }
    return rc;
}

/* The value of a member of the outermost object, without reading the rest: a tokenizer has a
 * quarter of a million values, of which few are wanted.  What is found is read strictly
 * afterwards.  NULL: there is none. */
static const char *find_member(const char *s, size_t len, const char *name, size_t *n)
{
    size_t want = strlen(name);
    int depth = 0;
    const char *end = s + len, *value = NULL;
    for (const char *p = s; p < end; p++) {
        if (*p == '"') {
            const char *from = ++p;
            while (p < end && *p != '"') p += *p == '\\' ? 2 : 1;
            if (p >= end) return NULL;
            const char *colon = p + 1;
            while (colon < end && strchr(" \t\r\n", *colon) != NULL && *colon != 0) colon++;
            if (depth == 1 && !value && colon < end && *colon == ':' &&
                (size_t)(p - from) == want && memcmp(from, name, want) == 0) {
                value = colon + 1;
                p = colon;
            }
        } else if (*p == '{' || *p == '[') {
            depth++;
        } else if (*p == '}' || *p == ']') {
            depth--;
        }
        bool over = (*p == ',' && depth == 1) || depth <= 0;
        if (value && p >= value && over) {
            *n = (size_t)(p - value);
            return value;
        }
    }
    return NULL;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

typedef struct reader {
    const tokenizer *tok;
    int n_vocab, n_base;
    cJSON *list;  /* what is kept: [id, content, flags] */
    int n_behind; /* of them behind the base's rows */
    err *e;
} reader;

/* An added token goes into the list unless the base has the same; flags as letters. An id that
 * no row of the tables stands behind is an error, except where the adapter brings no rows at
 * all: many tokenizers name a [PAD] that was never trained. */
static err_code take(reader *r, const cJSON *id, const char *content, const cJSON *from)
{
    char flags[6] = "";
    size_t n = 0;
    double v = cJSON_IsNumber(id) ? id->valuedouble : -1;
    if (!(v >= 0 && v < (1 << 24)) || v != floor(v) || !content || content[0] == 0)
        return err_set(r->e, ERR_INPUT, "an added token is malformed");
    size_t known_len, len = strlen(content);
    const char *known = tokenizer_bytes(r->tok, (int32_t)v, &known_len);
    if (known && tokenizer_find(r->tok, content) == (int32_t)v) return ERR_NONE;
    if (v >= r->n_vocab && r->n_vocab <= r->n_base)
        return ERR_NONE; /* a [PAD] that never got a row */
    if (v >= r->n_vocab)
        return err_set(r->e, ERR_INPUT,
                       "added token '%.60s' has id %.0f, but the tables have %d rows", content, v,
                       r->n_vocab);
    if (len > WORDS_CONTENT_MAX)
        return err_set(r->e, ERR_LIMIT, "added token %.0f has %zu bytes; at most %d are served", v,
                       len, WORDS_CONTENT_MAX);
    static const struct {
        const char *name;
        char letter;
    } all[] = {{"special", 's'},
               {"lstrip", 'l'},
               {"rstrip", 'r'},
               {"single_word", 'w'},
               {"normalized", 'n'}};
    for (size_t i = 0; i < sizeof all / sizeof(*all); i++)
        if (cJSON_IsTrue(json_get(from, all[i].name))) flags[n++] = all[i].letter;
    cJSON *item = cJSON_CreateArray();
    if (!item || !cJSON_AddItemToArray(r->list, item))
        return err_set(r->e, ERR_NOMEM, "out of memory");
    cJSON_AddItemToArray(item, cJSON_CreateNumber(v));
    cJSON_AddItemToArray(item, cJSON_CreateString(content));
    cJSON_AddItemToArray(item, cJSON_CreateString(flags));
    if (v >= r->n_base) r->n_behind++;
    return ERR_NONE;
}

/* tokenizer.json: a list of objects. */
static err_code take_list(reader *r, const cJSON *list)
{
    const cJSON *v;
    err_code rc =
        cJSON_IsArray(list) ? ERR_NONE : err_set(r->e, ERR_INPUT, "added_tokens must be a list");
    cJSON_ArrayForEach(v, list)
    {
        if (!rc) rc = take(r, json_get(v, "id"), cJSON_GetStringValue(json_get(v, "content")), v);
    }
    return rc;
}

/* tokenizer_config.json: {"300": {"content" ...}}. */
static err_code take_decoder(reader *r, const cJSON *map)
{
    const cJSON *v;
    if (!cJSON_IsObject(map))
        return err_set(r->e, ERR_INPUT, "added_tokens_decoder must be an object");
    err_code rc = ERR_NONE;
    cJSON_ArrayForEach(v, map)
    {
        char *end;
        cJSON id = {.type = cJSON_Number, .valuedouble = strtod(v->string, &end)};
        if (rc) break;
        if (end == v->string || *end != 0)
            rc = err_set(r->e, ERR_INPUT, "added_tokens_decoder has a key that is not an id");
        else
            rc = take(r, &id, cJSON_GetStringValue(json_get(v, "content")), v);
    }
    return rc;
}

/* added_tokens.json: {"<call>": 300}. */
static err_code take_map(reader *r, const cJSON *map)
{
    const cJSON *v;
    err_code rc = cJSON_IsObject(map) ? ERR_NONE : err_set(r->e, ERR_INPUT, "it must be an object");
    cJSON_ArrayForEach(v, map)
    {
        if (!rc) rc = take(r, v, v->string, NULL);
    }
    return rc;
}

/* One file, or one member of it, by `how`; *found says whether there was one. */
static err_code take_file(reader *r, int dir_fd, const char *name, const char *member,
                          err_code (*how)(reader *r, const cJSON *v), bool *found)
{
    char *text;
    size_t len;
    cJSON *tree = NULL;
    err_code rc = read_file(dir_fd, name, &text, &len, r->e);
    if (rc || !text) return rc;
    const char *at = member != NULL ? find_member(text, len, member, &len) : text;
    *found = at != NULL;
    if (at) rc = json_parse(at, len, &limits, &tree, r->e);
    if (at && !rc) rc = how(r, tree);
    cJSON_Delete(tree);
    free(text);
    return rc == ERR_NONE ? rc : err_context(r->e, "%s", name);
}

static err_code take_all(reader *r, int dir_fd)
{
    bool found = false;
    err_code rc = take_file(r, dir_fd, "tokenizer.json", "added_tokens", take_list, &found);
    if (!rc && !found)
        rc = take_file(r, dir_fd, "tokenizer_config.json", "added_tokens_decoder", take_decoder,
                       &found);
    if (!rc && !found) rc = take_file(r, dir_fd, "added_tokens.json", NULL, take_map, &found);
    if (rc) return rc;
    if (r->n_vocab > r->n_base && r->n_behind == 0)
        return err_set(r->e, ERR_INPUT,
                       "the adapter adds %d tokens to the base's %d, but no tokenizer.json, "
                       "tokenizer_config.json or added_tokens.json in its folder says which: save "
                       "the tokenizer beside it",
                       r->n_vocab - r->n_base, r->n_base);
    return ERR_NONE;
}

/* ---- eos ------------------------------------------------------------------------------------- */

typedef struct eos_reader {
    reader r; /* first */
    char content[WORDS_CONTENT_MAX + 1];
} eos_reader;

static err_code take_eos(reader *r, const cJSON *v)
{
    if (cJSON_IsObject(v)) v = json_get(v, "content");
    const char *s = cJSON_GetStringValue(v);
    if (s && strlen(s) <= WORDS_CONTENT_MAX) strcpy(((eos_reader *)r)->content, s);
    return ERR_NONE;
}

/* Id of the tokenizer's eos_token; -1: none that is known here. */
static err_code find_eos(const reader *r, int dir_fd, int32_t *eos)
{
    eos_reader er = {.r = *r};
    bool found = false;
    const cJSON *v;
    *eos = -1;
    err_code rc = take_file(&er.r, dir_fd, "tokenizer_config.json", "eos_token", take_eos, &found);
    if (rc || er.content[0] == 0) return rc;
    *eos = tokenizer_find(r->tok, er.content);
    cJSON_ArrayForEach(v, r->list)
    {
        if (strcmp(cJSON_GetArrayItem(v, 1)->valuestring, er.content) == 0)
            *eos = (int32_t)cJSON_GetArrayItem(v, 0)->valuedouble;
    }
    if (*eos == tokenizer_eos(r->tok)) *eos = -1;
    return ERR_NONE;
}

/* ---- API ------------------------------------------------------------------------------------- */

static bool touches_tables(const adapter_layout *al)
{
    const size_t slots[] = {peft_head_slot(al->peft.n_layer), peft_embed_slot(al->peft.n_layer)};
    bool any = false;
    for (int i = 0; i < 2; i++) {
        const adapter_pair *p = &al->pair[slots[i]];
        any |= al->peft.layer[slots[i]].wrapped || p->table.present || p->rows.present ||
               p->more.present;
    }
    return any;
}

/* The line, of the list that it takes over, and whether it will do. */
static err_code write_words(const adapter_layout *al, int32_t eos, cJSON *list,
                            const tokenizer *tok, char **text, err *e)
{
    cJSON *all = cJSON_CreateObject(), *ids = NULL;
    words check = {0};
    tokenizer *with = NULL; /* as it will be served */
    cJSON_AddNumberToObject(all, "n_vocab", al->n_vocab);
    cJSON_AddNumberToObject(all, "eos", eos);
    if (!cJSON_AddItemToObject(all, "tokens", list)) cJSON_Delete(list);
    if (al->peft.n_invocation > 0) {
        ids = cJSON_CreateIntArray(al->peft.invocation, al->peft.n_invocation);
        if (!cJSON_AddItemToObject(all, "invocation", ids)) cJSON_Delete(ids);
    }
    *text = cJSON_PrintUnformatted(all);
    err_code rc = *text ? words_parse(*text, &check, e) : err_set(e, ERR_NOMEM, "no memory");
    if (!rc && tok) rc = tokenizer_extend(&with, tok, check.token, check.n_token, e);
    tokenizer_destroy(with);
    words_clear(&check);
    cJSON_Delete(all);
    return rc;
}

err_code words_read(int dir_fd, const adapter_layout *al, const model_config *base,
                    const tokenizer *tok, char **text, err *e)
{
    *text = NULL;
    bool resized = al->n_vocab != base->n_vocab, tables = resized || touches_tables(al);
    bool invoked = al->peft.n_invocation > 0;
    if (!tables && !invoked) return ERR_NONE;
    reader r = {.tok = tok,
                .n_vocab = al->n_vocab,
                .n_base = base->n_vocab,
                .list = cJSON_CreateArray(),
                .e = e};
    int32_t eos = -1;
    err_code rc = r.list != NULL ? ERR_NONE : err_set(e, ERR_NOMEM, "out of memory");
    if (!rc && tok && tables) rc = take_all(&r, dir_fd);
    if (!rc && tok && tables) rc = find_eos(&r, dir_fd, &eos);
    if (!rc && (invoked || resized || eos >= 0 || cJSON_GetArraySize(r.list) > 0)) {
        rc = write_words(al, eos, r.list, tok, text, e);
        r.list = NULL;
    }
    cJSON_Delete(r.list);
    if (rc) {
        free(*text);
        *text = NULL;
    }
    return rc;
}

/* "invocation", which most have not. */
static bool parse_invocation(const cJSON *list, words *out)
{
    const cJSON *v;
    if (!list) return true;
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (n < 1 || n > PEFT_INVOCATION_MAX) return false;
    out->invocation = calloc((size_t)n, sizeof(*out->invocation));
    cJSON_ArrayForEach(v, list)
    {
        bool is_id = cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble < out->n_vocab;
        if (!out->invocation || !is_id) return false;
        out->invocation[out->n_invocation++] = (int32_t)v->valuedouble;
    }
    return true;
}

err_code words_parse(const char *text, words *out, err *e)
{
    cJSON *tree = NULL, *v;
    memset(out, 0, sizeof(*out));
    out->eos = -1;
    if (json_parse(text, strlen(text), &limits, &tree, e) != ERR_NONE) return e->code;
    out->tree = tree;
    const cJSON *list = json_get(tree, "tokens");
    const cJSON *n = json_get(tree, "n_vocab"), *eos = json_get(tree, "eos");
    bool ok = cJSON_IsArray(list) && cJSON_IsNumber(n) && cJSON_IsNumber(eos) &&
              n->valuedouble > 0 && n->valuedouble < (1 << 24) && eos->valuedouble < n->valuedouble;
    if (ok) {
        out->n_vocab = (int)n->valuedouble;
        out->eos = (int32_t)eos->valuedouble;
        out->token = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(*out->token));
        if (!out->token) return err_set(e, ERR_NOMEM, "out of memory");
    }
    if (!ok)
        return err_set(e, ERR_CORRUPT, "the stored tokens and names of an adapter are damaged");
    cJSON_ArrayForEach(v, list)
    {
        const cJSON *id = cJSON_GetArrayItem(v, 0);
        const char *content = cJSON_GetStringValue(cJSON_GetArrayItem(v, 1));
        const char *flags = cJSON_GetStringValue(cJSON_GetArrayItem(v, 2));
        ok = cJSON_IsNumber(id) && content && flags && id->valuedouble >= 0 &&
             id->valuedouble < out->n_vocab;
        if (!ok) break;
        out->token[out->n_token++] = (tok_added){.id = (int32_t)id->valuedouble,
                                                 .content = content,
                                                 .special = strchr(flags, 's') != NULL,
                                                 .lstrip = strchr(flags, 'l') != NULL,
                                                 .rstrip = strchr(flags, 'r') != NULL,
                                                 .single_word = strchr(flags, 'w') != NULL,
                                                 .normalized = strchr(flags, 'n') != NULL};
    }
    ok = ok && parse_invocation(json_get(tree, "invocation"), out);
    return ok ? ERR_NONE
              : err_set(e, ERR_CORRUPT, "the stored tokens and names of an adapter are damaged");
}

void words_clear(words *w)
{
    cJSON_Delete(w->tree);
    free(w->token);
    free(w->invocation);
    memset(w, 0, sizeof(*w));
}

void adapter_digest(const uint64_t bytes[2], const uint8_t sha[2][DIGEST_BYTES], const char *text,
                    uint8_t out[DIGEST_BYTES])
{
    static const char mark[] = "lorad adapter with words 1";
    uint8_t parts[DIGEST_BYTES];
    adapter_digest_parts(bytes, sha, parts);
    if (!text) {
        memcpy(out, parts, DIGEST_BYTES);
        return;
    }
    digest_state d;
    digest_begin(&d);
    digest_add(&d, mark, sizeof mark);
    digest_add(&d, parts, DIGEST_BYTES);
    digest_add(&d, text, strlen(text));
    digest_end(&d, out);
}
