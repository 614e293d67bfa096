/* normal_load.c -- tokenizer.json's normaliser, strictly: what is not known here is refused by
 * name. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/normal.h"

static err_code refuse(err *e, const char *what, const char *value)
{
    return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: %s '%.60s' is not supported", what, value);
}

static const char *text_of(const cJSON *v, const char *name)
{
    return cJSON_GetStringValue(json_get(v, name));
}

static bool flag(const cJSON *v, const char *name)
{
    return cJSON_IsTrue(json_get(v, name));
}

static void clear_step(normal_step *s)
{
    free(s->from);
    free(s->to);
    split_regex_destroy(s->regex);
    charsmap_destroy(s->map);
}

void normaliser_clear(normaliser *n)
{
    for (int i = 0; i < n->n; i++) clear_step(&n->step[i]);
    n->n = 0;
}

/* Takes the step over. */
static err_code add(normaliser *n, normal_step s, err *e)
{
    if (n->n < NORMAL_STEPS_MAX) {
        n->step[n->n++] = s;
        return ERR_NONE;
    }
    clear_step(&s);
    return err_set(e, ERR_LIMIT, "tokenizer.json: the normalizer has more than %d steps",
                   NORMAL_STEPS_MAX);
}

static err_code copy_text(char **out, const char *s, err *e)
{
    if (!s || strlen(s) > NORMAL_TEXT_MAX)
        return err_set(e, ERR_CORRUPT,
                       "tokenizer.json: a normalizer's text is missing or longer "
                       "than %d bytes",
                       NORMAL_TEXT_MAX);
    *out = strdup(s);
    return *out ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for the normalizer");
}

static err_code read_replace(normaliser *n, const cJSON *v, err *e)
{
    const cJSON *pattern = json_get(v, "pattern");
    const char *regex = text_of(pattern, "Regex"), *string = text_of(pattern, "String");
    normal_step s = {.kind = NORMAL_REPLACE};
    err_code rc = copy_text(&s.to, text_of(v, "content"), e);
    if (!rc && regex && !string)
        rc = split_regex_compile(&s.regex, regex, e);
    else if (!rc && string && string[0] && !regex)
        rc = copy_text(&s.from, string, e);
    else if (!rc)
        rc = refuse(e, "Replace", "without one pattern");
    if (!rc) return add(n, s, e);
    clear_step(&s);
    return rc;
}

static err_code read_bert(normaliser *n, const cJSON *v, err *e)
{
    const cJSON *strip = json_get(v, "strip_accents");
    bool lower = flag(v, "lowercase"), accents = cJSON_IsBool(strip) ? cJSON_IsTrue(strip) : lower;
    err_code rc = ERR_NONE;
    if (flag(v, "clean_text")) rc = add(n, (normal_step){.kind = NORMAL_BERT_CLEAN}, e);
    if (!rc && flag(v, "handle_chinese_chars"))
        rc = add(n, (normal_step){.kind = NORMAL_BERT_CHINESE}, e);
    if (!rc && accents) rc = add(n, (normal_step){.kind = NORMAL_FORM}, e);
    if (!rc && accents) rc = add(n, (normal_step){.kind = NORMAL_BERT_ACCENTS}, e);
    if (!rc && lower) rc = add(n, (normal_step){.kind = NORMAL_LOWER}, e);
    return rc;
}

static err_code read_charsmap(normaliser *n, const cJSON *v, err *e)
{
    const char *text = text_of(v, "precompiled_charsmap");
    normal_step s = {.kind = NORMAL_CHARSMAP};
    err_code rc = text ? charsmap_read(&s.map, text, e)
                       : refuse(e, "Precompiled", "without a precompiled_charsmap");
    return rc ? rc : add(n, s, e);
}

static err_code read_prepend(normaliser *n, const cJSON *v, err *e)
{
    normal_step s = {.kind = NORMAL_PREPEND};
    err_code rc = copy_text(&s.to, text_of(v, "prepend"), e);
    return rc ? rc : add(n, s, e);
}

/* One normalizer of tokenizer.json becomes one step or some; unknown ones are refused by name. */
static err_code read_one(normaliser *n, const cJSON *v, err *e)
{
    static const struct {
        const char *type;
        normal_step step;
    } simple[] = {
        {"NFC", {.kind = NORMAL_FORM, .form = {.composed = true}}},
        {"NFD", {.kind = NORMAL_FORM}},
        {"NFKC", {.kind = NORMAL_FORM, .form = {.composed = true, .compatible = true}}},
        {"NFKD", {.kind = NORMAL_FORM, .form = {.compatible = true}}},
        {"Lowercase", {.kind = NORMAL_LOWER}},
        {"StripAccents", {.kind = NORMAL_ACCENTS}},
        {"Nmt", {.kind = NORMAL_NMT}},
    };
    const char *type = text_of(v, "type");
    if (!type) type = "?";
    for (size_t i = 0; i < sizeof(simple) / sizeof(*simple); i++)
        if (strcmp(simple[i].type, type) == 0) return add(n, simple[i].step, e);
    if (strcmp(type, "Strip") == 0)
        return add(n,
                   (normal_step){.kind = NORMAL_STRIP,
                                 .left = flag(v, "strip_left"),
                                 .right = flag(v, "strip_right")},
                   e);
    if (strcmp(type, "Prepend") == 0) return read_prepend(n, v, e);
    if (strcmp(type, "Replace") == 0) return read_replace(n, v, e);
    if (strcmp(type, "BertNormalizer") == 0) return read_bert(n, v, e);
    if (strcmp(type, "Precompiled") == 0) return read_charsmap(n, v, e);
    return refuse(e, "normalizer", type);
}

/* Sequences in sequences are read as deep as JSON may nest. */
err_code normaliser_read(normaliser *n, const cJSON *v, err *e)
{
    const cJSON *each;
    const char *type = text_of(v, "type");
    if (!v || cJSON_IsNull(v)) return ERR_NONE;
    if (!type || strcmp(type, "Sequence") != 0) return read_one(n, v, e);
    cJSON_ArrayForEach(each, json_get(v, "normalizers"))
    {
        err_code rc = normaliser_read(n, each, e);
        if (rc) return rc;
    }
    return ERR_NONE;
}
