/* gguf_words.c -- a GGUF's vocabulary, tokenizer.json around it, and tokenizer_config.json.
 *
 * Two models of words: "gpt2" (byte-level BPE; tokenizer.ggml.pre names how texts are split) and
 * "llama" (SentencePiece with scores).  The pipeline that each becomes is that of the
 * tokenizer.json which Hugging Face has for the same model.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/files/documents_inside.h"

/* How texts are split, by the name that llama.cpp gave it. */
#define SPLIT_OF_LLAMA3(digits)                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}" digits \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define UPPER "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define LOWER "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define SPLIT_OF_TEKKEN                                                                       \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "*" LOWER "+|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER \
    "+" LOWER "*|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*|\\\\s*[\\\\r\\\\n]+"      \
    "|\\\\s+(?!\\\\S)|\\\\s+"
#define TWO_STEPS(first, bytes_regex)                      \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" first     \
    ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false," \
    "\"use_regex\":" bytes_regex "}]}"
#define A_SPLIT(regex)                                           \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"}," \
    "\"behavior\":\"Isolated\",\"invert\":false}"
#define SPLIT_AND_BYTES(regex) TWO_STEPS(A_SPLIT(regex), "false")
#define ANY_CASE               "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPLIT_OF_O200K                                              \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "*" LOWER "+" ANY_CASE   \
    "?|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER "+" LOWER "*" ANY_CASE \
    "?|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*"     \
    "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define SPLIT_OF_QWEN35                                                                            \
    ANY_CASE "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}"                         \
             "| "                                                                                  \
             "?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)" \
             "|\\\\s+"
#define EACH_DIGIT "{\"type\":\"Digits\",\"individual_digits\":true}"
#define DEEPSEEK3_AND_BYTES                                                                        \
    TWO_STEPS(                                                                                     \
        A_SPLIT("\\\\p{N}{1,3}") "," A_SPLIT(                                                      \
            "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+") "," A_SPLIT("[!\\\"#$%&'()*+,\\\\-./"    \
                                                                      ":;<=>?@\\\\[\\\\\\\\\\\\]^" \
                                                                      "_`{|}~][A-Za-z]+"           \
                                                                      "|[^\\\\r\\\\n\\\\p{L}"      \
                                                                      "\\\\p{P}\\\\p{S}]?[\\\\p{"  \
                                                                      "L}\\\\p{M}]+"               \
                                                                      "| "                         \
                                                                      "?[\\\\p{P}\\\\p{S}]+["      \
                                                                      "\\\\r\\\\n]*|\\\\s*["       \
                                                                      "\\\\r\\\\n]+|\\\\s+(?!"     \
                                                                      "\\\\S)|\\\\s+"),            \
        "false")
#define DEEPSEEK_CODER_AND_BYTES                                                                 \
    TWO_STEPS(A_SPLIT("[\\\\r\\\\n]") "," A_SPLIT("\\\\s?\\\\p{L}+") "," A_SPLIT(                \
                  "\\\\s?\\\\p{P}"                                                               \
                  "+") "," A_SPLIT("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+") "," EACH_DIGIT, \
              "false")
/* Letters that have a case, as DeepSeek-V2's tokenizer.json lists them. */
#define CASED_LETTERS                                                                        \
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"          \
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"     \
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"         \
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"         \
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"   \
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"    \
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"          \
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"     \
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"    \
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"          \
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f" \
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"   \
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
#define MARKS "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
#define EAST  "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
#define DEEPSEEK_LLM_STEPS                                                             \
    A_SPLIT("[\\\\r\\\\n]")                                                            \
    "," A_SPLIT("\\\\s?[" CASED_LETTERS "]+") "," A_SPLIT("\\\\s?" MARKS) "," A_SPLIT( \
        "\\\\s+$") "," A_SPLIT(EAST) "," EACH_DIGIT
#define DEEPSEEK_LLM_AND_BYTES TWO_STEPS(DEEPSEEK_LLM_STEPS, "false")
#define NO_HAN                 "&&[^\\\\p{Han}]]"
#define UPPER_NO_HAN           "[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}" NO_HAN
#define LOWER_NO_HAN           "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}" NO_HAN
#define SPLIT_OF_KIMI                                                                         \
    "[\\\\p{Han}]+|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER_NO_HAN "*" LOWER_NO_HAN "+" ANY_CASE \
    "?|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?" UPPER_NO_HAN "+" LOWER_NO_HAN "*" ANY_CASE             \
    "?|\\\\p{N}{1,3}| "                                                                       \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define DIGITS_AND_BYTES TWO_STEPS(EACH_DIGIT, "true")

static const struct {
    const char *name, *pre_tokenizer;
    bool nfc, ignore_merges, add_bos;
} splits[] = {
    {"gpt-2", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}", false,
     false, false},
    {"llama-bpe", SPLIT_AND_BYTES(SPLIT_OF_LLAMA3("{1,3}")), false, true, true},
    {"llama3", SPLIT_AND_BYTES(SPLIT_OF_LLAMA3("{1,3}")), false, true, true},
    {"llama-v3", SPLIT_AND_BYTES(SPLIT_OF_LLAMA3("{1,3}")), false, true, true},
    {"qwen2", SPLIT_AND_BYTES(SPLIT_OF_LLAMA3("")), true, false, false},
    {"deepseek-r1-qwen", SPLIT_AND_BYTES(SPLIT_OF_LLAMA3("")), true, false, false},
    {"smollm", DIGITS_AND_BYTES, false, false, false},
    {"starcoder", DIGITS_AND_BYTES, false, false, false},
    {"refact", DIGITS_AND_BYTES, false, false, false},
    {"tekken", SPLIT_AND_BYTES(SPLIT_OF_TEKKEN), false, true, true},
    {"gpt-4o", SPLIT_AND_BYTES(SPLIT_OF_O200K), false, true, false},
    {"llama4", SPLIT_AND_BYTES(SPLIT_OF_O200K), false, true, false},
    {"qwen35", SPLIT_AND_BYTES(SPLIT_OF_QWEN35), true, false, false},
    {"dbrx", SPLIT_AND_BYTES(SPLIT_OF_LLAMA3("{1,3}")), false, false, false},
    {"smaug-bpe", SPLIT_AND_BYTES(SPLIT_OF_LLAMA3("{1,3}")), false, false, false},
    {"glm4", SPLIT_AND_BYTES(SPLIT_OF_LLAMA3("{1,3}")), false, false, false},
    {"deepseek-v3", DEEPSEEK3_AND_BYTES, false, false, false},
    {"deepseek-coder", DEEPSEEK_CODER_AND_BYTES, false, false, false},
    {"deepseek-llm", DEEPSEEK_LLM_AND_BYTES, false, false, false},
    {"kimi-k2", SPLIT_AND_BYTES(SPLIT_OF_KIMI), false, false, false},
    {"command-r", DIGITS_AND_BYTES, true, false, false},
    {"olmo",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
     "\"use_regex\":true}]}",
     true, false, false},
};

enum { SPLITS = sizeof(splits) / sizeof(splits[0]) };

/* SentencePiece's: "▁" in front and for spaces, bytes where there is no word. */
static const char blocks_in_front[] =
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]}";
static const char blocks_alone[] =
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
    "\"content\":\"\xE2\x96\x81\"}]}";
static const char blocks_decoded[] =
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
    "\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}%s]}";
static const char first_stripped[] =
    ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}";

typedef struct making {
    const gguf *g;
    gguf_words *words;
    err *e;
} making;

void gguf_words_clear(gguf_words *w)
{
    free(w->word);
    free(w->merge);
    free(w->texts);
    *w = (gguf_words){0};
}

static err_code no_memory(err *e)
{
    return err_set(e, ERR_NOMEM, "no memory to read a GGUF");
}

/* ---- words ----------------------------------------------------------------------------------- */

static bool is_utf8(const char *s, size_t n)
{
    uint32_t c;
    for (size_t i = 0; i < n;) {
        int used = utf8_read(s + i, n - i, &c);
        if (used <= 0) return false;
        i += (size_t)used;
    }
    return true;
}

static err_code read_word(const making *m, int i, const char *s, size_t len, char **at)
{
    gguf_word *w = &m->words->word[i];
    if (len > WORD_BYTES_MAX || !is_utf8(s, len))
        return err_set(m->e, ERR_CORRUPT, "GGUF: token %d is not UTF-8, or has more than %d bytes",
                       i, WORD_BYTES_MAX);
    memcpy(*at, s, len);
    (*at)[len] = 0;
    *w = (gguf_word){.s = *at, .len = (uint32_t)len, .type = WORD_NORMAL};
    *at += len + 1;
    return ERR_NONE;
}

/* Types and scores, where the file has them. */
static err_code read_kinds(const making *m)
{
    gguf_word *word = m->words->word;
    int n = m->words->n;
    const gguf_value *types = gguf_find(m->g, "tokenizer.ggml.token_type"),
                     *scores = gguf_find(m->g, "tokenizer.ggml.scores");
    if ((types && types->count != (uint64_t)n) || (scores && scores->count != (uint64_t)n))
        return err_set(m->e, ERR_CORRUPT, "GGUF: types or scores are not as many as tokens");
    for (int i = 0; i < n; i++) {
        int64_t type = WORD_NORMAL;
        double score = 0;
        if (types && (!gguf_item_whole(types, (uint64_t)i, &type) || type < 0 || type > WORD_BYTE))
            return err_set(m->e, ERR_CORRUPT, "GGUF: token %d has an unknown type", i);
        if (scores && (!gguf_item_real(scores, (uint64_t)i, &score) || !isfinite(score)))
            return err_set(m->e, ERR_CORRUPT, "GGUF: token %d has no score", i);
        word[i].type = (int)type;
        word[i].score = (float)score;
    }
    return ERR_NONE;
}

static err_code read_words(const making *m)
{
    gguf_words *w = m->words;
    const gguf_value *v = gguf_find(m->g, "tokenizer.ggml.tokens");
    if (!v || v->kind != GGUF_ARRAY || v->item != GGUF_TEXT || v->count == 0 ||
        v->count > WORDS_MAX)
        return err_set(m->e, ERR_INPUT, "GGUF: tokenizer.ggml.tokens are not 1 to %d texts",
                       WORDS_MAX);
    w->n = (int)v->count;
    w->word = calloc((size_t)w->n, sizeof(*w->word));
    w->texts = malloc((size_t)(v->end - v->at) + (size_t)w->n);
    if (!w->word || !w->texts) return no_memory(m->e);
    char *to = w->texts;
    const char *s;
    size_t len;
    uint64_t at = 0;
    err_code rc = ERR_NONE;
    for (int i = 0; i < w->n && !rc; i++)
        rc = gguf_next_text(v, &at, &s, &len)
                 ? read_word(m, i, s, len, &to)
                 : err_set(m->e, ERR_CORRUPT, "GGUF: token %d has a NUL in it", i);
    return rc ? rc : read_kinds(m);
}

/* The word that a key like "bos" names, of n; -1: none. */
static int named(const gguf *g, const char *name, uint64_t n)
{
    char key[64];
    uint64_t id;
    snprintf(key, sizeof(key), "tokenizer.ggml.%s_token_id", name);
    return gguf_whole(gguf_find(g, key), &id) && id < n ? (int)id : -1;
}

/* ---- tokenizer.json -------------------------------------------------------------------------- */

static err_code put_parsed(const making *m, cJSON *to, const char *name, const char *text)
{
    cJSON *v = cJSON_Parse(text);
    if (v && cJSON_AddItemToObject(to, name, v)) return ERR_NONE;
    cJSON_Delete(v);
    return no_memory(m->e);
}

static err_code put_added(const making *m, cJSON *root)
{
    cJSON *list = cJSON_AddArrayToObject(root, "added_tokens");
    bool ok = list != NULL;
    for (int i = 0; i < m->words->n && ok; i++) {
        const gguf_word *w = &m->words->word[i];
        bool special = w->type == WORD_CONTROL || w->type == WORD_UNKNOWN;
        if ((!special && w->type != WORD_USER) || w->len == 0) continue;
        cJSON *v = cJSON_CreateObject();
        ok = v && cJSON_AddItemToArray(list, v) && cJSON_AddNumberToObject(v, "id", i) &&
             cJSON_AddStringToObject(v, "content", w->s) &&
             cJSON_AddBoolToObject(v, "special", special) &&
             cJSON_AddBoolToObject(v, "normalized", false);
    }
    return ok ? ERR_NONE : no_memory(m->e);
}

/* What stands around each text: bos, eos. */
static err_code put_template(const making *m, cJSON *root, bool add_bos)
{
    bool add[2] = {add_bos, false};
    (void)gguf_flag(gguf_find(m->g, "tokenizer.ggml.add_bos_token"), &add[0]);
    (void)gguf_flag(gguf_find(m->g, "tokenizer.ggml.add_eos_token"), &add[1]);
    const uint64_t n = (uint64_t)m->words->n;
    const int id[2] = {add[0] ? named(m->g, "bos", n) : -1, add[1] ? named(m->g, "eos", n) : -1};
    if (id[0] < 0 && id[1] < 0) return ERR_NONE;
    cJSON *t = cJSON_AddObjectToObject(root, "post_processor"), *single, *specials;
    bool ok = t && cJSON_AddStringToObject(t, "type", "TemplateProcessing") &&
              (single = cJSON_AddArrayToObject(t, "single")) != NULL &&
              (specials = cJSON_AddObjectToObject(t, "special_tokens")) != NULL;
    for (int i = 0; i < 3 && ok; i++) {
        int which = i == 2 ? 1 : 0;
        if (i != 1 && id[which] < 0) continue;
        cJSON *v = cJSON_CreateObject();
        ok = v && cJSON_AddItemToArray(single, v);
        cJSON *of = ok ? cJSON_AddObjectToObject(v, i == 1 ? "Sequence" : "SpecialToken") : NULL;
        const char *name = i == 1 ? "A" : m->words->word[id[which]].s;
        ok = of && cJSON_AddStringToObject(of, "id", name);
        if (!ok || i == 1) continue;
        const double number = id[which];
        cJSON *special = cJSON_AddObjectToObject(specials, name);
        ok = special && cJSON_AddItemToObject(special, "ids", cJSON_CreateDoubleArray(&number, 1));
    }
    return ok ? ERR_NONE : no_memory(m->e);
}

static err_code make_byte_level(const making *m, cJSON *root, cJSON *model)
{
    const char *s = "";
    size_t len = 0, i = 0;
    (void)gguf_text(gguf_find(m->g, "tokenizer.ggml.pre"), &s, &len);
    while (i < SPLITS && (strlen(splits[i].name) != len || memcmp(splits[i].name, s, len) != 0))
        i++;
    if (i == SPLITS)
        return err_set(
            m->e, ERR_UNSUPPORTED,
            "GGUF: tokenizer.ggml.pre '%.*s' is not supported (gpt-2, llama-bpe, qwen2, "
            "qwen35, smollm, starcoder, refact, tekken, gpt-4o, llama4, dbrx, smaug-bpe, "
            "glm4, deepseek-v3, deepseek-coder, command-r, olmo are)",
            len < 40 ? (int)len : 40, s);
    err_code rc = put_parsed(m, root, "pre_tokenizer", splits[i].pre_tokenizer);
    if (!rc) rc = put_parsed(m, root, "decoder", "{\"type\":\"ByteLevel\"}");
    if (!rc && splits[i].nfc) rc = put_parsed(m, root, "normalizer", "{\"type\":\"NFC\"}");
    if (!rc && !cJSON_AddBoolToObject(model, "ignore_merges", splits[i].ignore_merges))
        rc = no_memory(m->e);
    if (!rc) rc = gguf_read_merges(gguf_find(m->g, "tokenizer.ggml.merges"), m->words, m->e);
    return rc ? rc : put_template(m, root, splits[i].add_bos);
}

static err_code make_sentence_piece(const making *m, cJSON *root, cJSON *model)
{
    const gguf_word *word = m->words->word;
    char decoder[sizeof(blocks_decoded) + sizeof(first_stripped)];
    bool front = true, squeeze = false;
    int n = m->words->n, unk = named(m->g, "unknown", (uint64_t)n);
    (void)gguf_flag(gguf_find(m->g, "tokenizer.ggml.add_space_prefix"), &front);
    (void)gguf_flag(gguf_find(m->g, "tokenizer.ggml.remove_extra_whitespaces"), &squeeze);
    if (squeeze || gguf_find(m->g, "tokenizer.ggml.precompiled_charsmap"))
        return err_set(m->e, ERR_UNSUPPORTED,
                       "GGUF: tokenizer.ggml.remove_extra_whitespaces and precompiled_charsmap "
                       "are not supported");
    for (int i = 0; i < n && unk < 0; i++)
        if (word[i].type == WORD_UNKNOWN) unk = i;
    snprintf(decoder, sizeof(decoder), blocks_decoded, front ? first_stripped : "");
    err_code rc = put_parsed(m, root, "normalizer", front ? blocks_in_front : blocks_alone);
    if (!rc) rc = put_parsed(m, root, "decoder", decoder);
    if (!rc && (!cJSON_AddTrueToObject(model, "byte_fallback") ||
                !cJSON_AddTrueToObject(model, "fuse_unk") ||
                (unk >= 0 && !cJSON_AddStringToObject(model, "unk_token", word[unk].s))))
        rc = no_memory(m->e);
    if (!rc) rc = gguf_make_merges(m->words, m->e);
    return rc ? rc : put_template(m, root, true);
}

err_code gguf_make_tokenizer(const gguf *g, cJSON *out, gguf_words *words, err *e)
{
    const making m = {.g = g, .words = words, .e = e};
    const char *kind = "";
    size_t len = 0;
    (void)gguf_text(gguf_find(g, "tokenizer.ggml.model"), &kind, &len);
    bool bytes = len == 4 && memcmp(kind, "gpt2", 4) == 0,
         pieces = len == 5 && memcmp(kind, "llama", 5) == 0;
    if (!bytes && !pieces)
        return err_set(e, ERR_UNSUPPORTED,
                       "GGUF: tokenizer.ggml.model '%.*s' is not supported (gpt2, llama are)",
                       len < 40 ? (int)len : 40, kind);
    cJSON *model = cJSON_AddObjectToObject(out, "model");
    bool ok = model && cJSON_AddStringToObject(model, "type", "BPE");
    err_code rc = ok ? read_words(&m) : no_memory(e);
    if (!rc) rc = put_added(&m, out);
    if (rc) return rc;
    return bytes ? make_byte_level(&m, out, model) : make_sentence_piece(&m, out, model);
}

/* ---- tokenizer_config.json ------------------------------------------------------------------- */

static cJSON *text_of(const gguf_value *v)
{
    const char *s;
    size_t len;
    if (!gguf_text(v, &s, &len)) return NULL;
    char *copy = strndup(s, len);
    cJSON *text = copy ? cJSON_CreateString(copy) : NULL;
    free(copy);
    return text;
}

/* Adds the default template ("tokenizer.chat_template") and the named ones
 * ("tokenizer.chat_template.NAME"). */
static err_code put_templates(const gguf *g, cJSON *out, err *e)
{
    static const char prefix[] = "tokenizer.chat_template";
    cJSON *list = cJSON_AddArrayToObject(out, "chat_template");
    bool ok = list != NULL, any = false;
    for (int i = 0; i < gguf_keys(g) && ok; i++) {
        const gguf_value *v = gguf_key_at(g, i);
        char name[64] = "default";
        size_t n = sizeof(prefix) - 1;
        if (v->key_bytes < n || memcmp(v->key, prefix, n) != 0 || v->kind != GGUF_TEXT) continue;
        if (v->key_bytes > n) {
            if (v->key[n] != '.' || v->key_bytes - n > sizeof(name)) continue;
            snprintf(name, sizeof(name), "%.*s", (int)(v->key_bytes - n - 1), v->key + n + 1);
        }
        cJSON *each = cJSON_CreateObject(), *text = text_of(v);
        ok = each && text && cJSON_AddItemToArray(list, each) &&
             cJSON_AddStringToObject(each, "name", name) &&
             cJSON_AddItemToObject(each, "template", text);
        any = true;
    }
    if (ok && !any) cJSON_DeleteItemFromObject(out, "chat_template");
    return ok ? ERR_NONE : no_memory(e);
}

/* The token that a key names, without reading all of them; the vocabulary's own reader checks
 * each. */
static err_code put_name(const gguf *g, const char *name, const char *field, cJSON *out, err *e)
{
    const gguf_value *v = gguf_find(g, "tokenizer.ggml.tokens"),
                     *types = gguf_find(g, "tokenizer.ggml.token_type");
    int id = v ? named(g, name, v->count) : -1;
    char text[WORD_BYTES_MAX + 1];
    const char *s = "";
    size_t len = 0;
    uint64_t at = 0;
    int64_t type = WORD_NORMAL;
    if (id < 0) return ERR_NONE;
    for (int i = 0; i <= id; i++)
        if (!gguf_next_text(v, &at, &s, &len)) return ERR_NONE;
    if (types) (void)gguf_item_whole(types, (uint64_t)id, &type);
    if (type == WORD_UNUSED || len == 0 || len > WORD_BYTES_MAX || !is_utf8(s, len))
        return ERR_NONE;
    memcpy(text, s, len);
    text[len] = 0;
    return cJSON_AddStringToObject(out, field, text) ? ERR_NONE : no_memory(e);
}

err_code gguf_make_tokenizer_config(const gguf *g, cJSON *out, err *e)
{
    static const char *const names[] = {"bos", "eos", "padding"}, *const fields[] = {"bos_token",
                                                                                     "eos_token",
                                                                                     "pad_token"};
    err_code rc = ERR_NONE;
    for (int i = 0; i < 3 && !rc; i++) rc = put_name(g, names[i], fields[i], out, e);
    return rc ? rc : put_templates(g, out, e);
}
