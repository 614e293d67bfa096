/* tokenizer_steps.c -- the steps of tokenizer.json's pre-tokeniser that cut texts, strictly: what
 * is not known here is refused by name.
 */
#include <string.h>

#include "engine/text/tokenizer_inside.h"

static const char gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static err_code refuse(err *e, const char *what, const char *value)
{
    return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: %s '%.60s' is not supported", what, value);
}

static const char *text_of(const cJSON *v, const char *name)
{
    const char *s = cJSON_GetStringValue(json_get(v, name));
    return s ? s : "";
}

static err_code add(splitter *s, err_code rc, split_step step, err *e)
{
    if (rc || splitter_add(s, step)) return rc;
    split_regex_destroy(step.regex);
    return err_set(e, ERR_LIMIT, "tokenizer.json: the pre_tokenizer has more than %d steps",
                   SPLIT_STEPS_MAX);
}

/* The library reads these names in two forms. */
static err_code read_behavior(const cJSON *v, split_behavior *out, err *e)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = text_of(v, "behavior");
    for (int i = 0; i < 5; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (split_behavior)i;
        return ERR_NONE;
    }
    return refuse(e, "behavior", name);
}

static err_code read_split(splitter *s, const cJSON *v, err *e)
{
    const cJSON *pattern = json_get(v, "pattern");
    const char *regex = cJSON_GetStringValue(json_get(pattern, "Regex"));
    const char *literal = cJSON_GetStringValue(json_get(pattern, "String"));
    split_step step = {.invert = cJSON_IsTrue(json_get(v, "invert"))};
    err_code rc = read_behavior(v, &step.behavior, e);
    if (rc) return rc;
    if (regex && !literal)
        rc = split_regex_compile(&step.regex, regex, e);
    else if (literal && !regex)
        rc = split_regex_literal(&step.regex, literal, e);
    else
        rc = refuse(e, "Split", "without one pattern");
    return add(s, rc, step, e);
}

static err_code read_digits(splitter *s, const cJSON *v, err *e)
{
    bool each = cJSON_IsTrue(json_get(v, "individual_digits"));
    split_step step = {.behavior = each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    err_code rc = split_regex_ranges(&step.regex, unicode_digits, unicode_digits_n, e);
    return add(s, rc, step, e);
}

static err_code read_punctuation(splitter *s, const cJSON *v, err *e)
{
    split_step step = {.behavior = SPLIT_ISOLATED};
    err_code rc = json_get(v, "behavior") ? read_behavior(v, &step.behavior, e) : ERR_NONE;
    if (!rc) rc = split_regex_ranges(&step.regex, unicode_punctuation, unicode_punctuation_n, e);
    return add(s, rc, step, e);
}

static err_code read_whitespace(splitter *s, bool words, err *e)
{
    split_step step = {.behavior = SPLIT_REMOVED, .invert = words};
    err_code rc = words ? split_regex_words(&step.regex, unicode_words, unicode_words_n, e)
                        : split_regex_compile(&step.regex, "\\s", e);
    return add(s, rc, step, e);
}

/* Words without spaces, and each character of punctuation by itself. */
static err_code read_bert(splitter *s, err *e)
{
    split_step step = {.behavior = SPLIT_ISOLATED};
    err_code rc = read_whitespace(s, false, e);
    if (rc) return rc;
    rc = split_regex_ranges(&step.regex, unicode_punctuation, unicode_punctuation_n, e);
    return add(s, rc, step, e);
}

err_code tokenizer_read_step(splitter *s, const cJSON *v, err *e)
{
    const char *type = text_of(v, "type");
    if (strcmp(type, "BertPreTokenizer") == 0) return read_bert(s, e);
    if (strcmp(type, "Split") == 0) return read_split(s, v, e);
    if (strcmp(type, "Digits") == 0) return read_digits(s, v, e);
    if (strcmp(type, "Punctuation") == 0) return read_punctuation(s, v, e);
    if (strcmp(type, "Whitespace") == 0) return read_whitespace(s, true, e);
    if (strcmp(type, "WhitespaceSplit") == 0) return read_whitespace(s, false, e);
    return refuse(e, "pre_tokenizer", type);
}

err_code tokenizer_read_byte_level(splitter *s, const cJSON *v, err *e)
{
    split_step step = {.behavior = SPLIT_ISOLATED};
    err_code rc = ERR_NONE;
    if (cJSON_IsTrue(json_get(v, "add_prefix_space"))) rc = add(s, rc, step, e);
    if (rc || cJSON_IsFalse(json_get(v, "use_regex"))) return rc;
    rc = split_regex_compile(&step.regex, gpt2, e);
    return add(s, rc, step, e);
}
