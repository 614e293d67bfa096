/* chat.c -- a conversation through its template, then through the tokenizer.
 *
 * The template's part and the strangers' texts are told apart by engine/chat/jinja.h, and encoded
 * in one piece (tok_guard): spaces, merges and a marker's own trimming are as for the rendered
 * string, while no message can become one of the markers.
 */
#include "engine/chat/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/chat/chat_builtin.h"
#include "engine/chat/jinja.h"
#include "engine/files/documents.h"
#include "engine/text/unicode/unicode.h"

enum {
    MEMORY_BASE = 64 << 20, /* of a rendering */
    MEMORY_BY_BYTE = 48,    /* and for each byte of the messages */
};

struct chat_template {
    jinja *plain, *with_tools; /* with_tools: NULL where plain serves both */
    char *text, *text_with_tools;
    const char *bos, *eos; /* the model's, as text; "": none */
    int32_t stop[CHAT_STOP_MAX];
    int n_stop;
    bool *marker; /* [vocab] added tokens that the template writes, special or not */
    int32_t *barred;
    size_t n_barred;
    int64_t (*now)(void);
};

static const char builtin_names[] =
    "chatml, qwen, qwen3, role-tags, zephyr, llama-3, llama-3.1, llama-2, mistral, gemma";

static int64_t wall_clock(void)
{
    return (int64_t)time(NULL);
}

void chat_template_set_clock(chat_template *ct, int64_t (*now)(void))
{
    ct->now = now;
}

bool chat_reserved(const char *name)
{
    static const char *const names[] = {
        "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i], name) == 0) return true;
    }
    return false;
}

bool chat_template_says(const chat_template *ct, const char *part)
{
    return strstr(ct->text, part) || (ct->text_with_tools && strstr(ct->text_with_tools, part));
}

bool chat_template_reads(const chat_template *ct, const char *name)
{
    return jinja_reads(ct->plain, name) || (ct->with_tools && jinja_reads(ct->with_tools, name));
}

/* --------------------------------------------------------------------- loading -- */

static char *read_file(const char *dir, const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return document_file_text(path);
}

typedef struct {
    char *plain, *with_tools; /* malloced; NULL: none */
} texts;

/* chat_template of a JSON file: a string, or a list of named ones. */
static void texts_in_json(const char *dir, const char *name, texts *t)
{
    cJSON *cfg;
    if (document_read(dir, name, &cfg, NULL) == ERR_NONE) {
        const cJSON *v = json_get(cfg, "chat_template"), *each;
        if (cJSON_IsString(v)) t->plain = strdup(v->valuestring);
        if (!cJSON_IsArray(v)) v = NULL;
        cJSON_ArrayForEach(each, v)
        {
            const cJSON *which = json_get(each, "name"), *is = json_get(each, "template");
            if (!cJSON_IsString(which) || !cJSON_IsString(is)) continue;
            if (!t->plain && strcmp(which->valuestring, "default") == 0)
                t->plain = strdup(is->valuestring);
            if (!t->with_tools && strcmp(which->valuestring, "tool_use") == 0)
                t->with_tools = strdup(is->valuestring);
        }
        cJSON_Delete(cfg);
    }
}

/* The model's own template. */
static void own_texts(const char *dir, texts *t)
{
    t->plain = read_file(dir, "chat_template.jinja");
    if (!t->plain) texts_in_json(dir, "tokenizer_config.json", t);
    if (!t->plain) texts_in_json(dir, "chat_template.json", t);
}

static bool is_token(const tokenizer *tok, const char *text)
{
    return tokenizer_is_added(tok, tokenizer_find(tok, text));
}

/* The token that is missing for it, NULL: none. */
static const char *missing(const chat_builtin *b, const tokenizer *tok)
{
    for (int i = 0; i < 4; i++) {
        if (b->needs[i] && !is_token(tok, b->needs[i])) return b->needs[i];
    }
    return NULL;
}

static err_code builtin_texts(const char *name, const tokenizer *tok, texts *t, err *e)
{
    const char *lacks = NULL;
    for (const chat_builtin *b = chat_builtins; b->name; b++) {
        if (strcmp(b->name, name) != 0) continue;
        lacks = missing(b, tok);
        if (lacks) continue;
        t->plain = strdup(b->text);
        return t->plain ? ERR_NONE : err_set(e, ERR_NOMEM, "no memory for the chat template");
    }
    if (lacks) {
        return err_set(e, ERR_UNSUPPORTED,
                       "the chat template '%s' needs the token %s, which the model does not have",
                       name, lacks);
    }
    return err_set(e, ERR_INPUT,
                   "unknown chat template '%.40s'; known: auto, a path with a '/', %s", name,
                   builtin_names);
}

static err_code find_texts(const char *dir, const char *name, const tokenizer *tok, texts *t,
                           err *e)
{
    if (name && strchr(name, '/')) {
        t->plain = document_file_text(name);
        if (!t->plain)
            return err_set(e, ERR_NOT_FOUND, "the file of the chat template cannot be read");
        return ERR_NONE;
    }
    if (name && strcmp(name, "auto") != 0) return builtin_texts(name, tok, t, e);
    own_texts(dir, t);
    if (t->plain) return ERR_NONE;
    return err_set(e, ERR_NOT_FOUND,
                   "the model has no chat template; set model.chat_template to one of %s, or to a "
                   "file, or use /v1/completions",
                   builtin_names);
}

/* An added token's content. */
static const char *token_text(const tokenizer *tok, int32_t id)
{
    const char *s = tokenizer_content(tok, id);
    return s ? s : "";
}

static void add_stop(chat_template *ct, const tokenizer *tok, int32_t id)
{
    for (int i = 0; i < ct->n_stop; i++) {
        if (ct->stop[i] == id) return;
    }
    if (tokenizer_is_added(tok, id) && ct->n_stop < CHAT_STOP_MAX) ct->stop[ct->n_stop++] = id;
}

/* Tokens that the template puts together from pieces ('<|' + role + '|>'),
 * seen in short conversations. */
static void try_out(chat_template *ct, const tokenizer *tok)
{
    static const chat_message all[] = {{.role = "system", .text = "x", .len = 1},
                                       {.role = "user", .text = "x", .len = 1},
                                       {.role = "assistant", .text = "x", .len = 1},
                                       {.role = "user", .text = "x", .len = 1}};
    static const struct {
        int from, n;
    } probes[] = {{1, 1}, {1, 3}, {0, 4}};
    for (size_t i = 0; i < sizeof(probes) / sizeof(probes[0]); i++) {
        chat_ask ask = {.msgs = all + probes[i].from,
                        .n_msgs = (size_t)probes[i].n,
                        .add_generation_prompt = true};
        int32_t *ids;
        int64_t n = chat_encode(ct, tok, &ask, &ids, NULL);
        for (int64_t k = 0; k < n; k++) {
            if (tokenizer_is_added(tok, ids[k])) ct->marker[ids[k]] = true;
        }
        if (n > 0) free(ids);
    }
}

/* Whatever the template writes as a token of its own, a message's text must not become. */
static err_code find_markers(chat_template *ct, const tokenizer *tok, err *e)
{
    int32_t vocab = tokenizer_vocab(tok);
    size_t n = 0;
    for (int32_t id = 0; id < vocab; id++) n += tokenizer_is_added(tok, id);
    ct->marker = calloc((size_t)vocab + 1, sizeof(*ct->marker));
    ct->barred = calloc(n + 1, sizeof(*ct->barred));
    if (!ct->barred || !ct->marker) return err_set(e, ERR_NOMEM, "no memory for the chat template");
    try_out(ct, tok);
    for (int32_t id = 0; id < vocab; id++) {
        const char *s = token_text(tok, id);
        if (s[strspn(s, " \t\r\n")] == 0 || tokenizer_is_special(tok, id))
            continue; /* spaces mark nothing */
        bool written = ct->marker[id] || chat_template_says(ct, s) || strcmp(s, ct->bos) == 0 ||
                       strcmp(s, ct->eos) == 0;
        if (written) ct->barred[ct->n_barred++] = id;
    }
    return ERR_NONE;
}

static err_code fill(chat_template *ct, const tokenizer *tok, err *e)
{
    static const char *const ends[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
                                       "<end_of_turn>"};
    err why;
    err_code rc = jinja_read(&ct->plain, ct->text, strlen(ct->text), &why);
    if (!rc && ct->text_with_tools)
        rc = jinja_read(&ct->with_tools, ct->text_with_tools, strlen(ct->text_with_tools), &why);
    if (rc) {
        return err_set(e, ERR_UNSUPPORTED,
                       "%.120s; set model.chat_template to a built-in one or a file, or use "
                       "/v1/completions",
                       why.msg);
    }
    ct->now = wall_clock;
    ct->bos = token_text(tok, tokenizer_bos(tok));
    ct->eos = token_text(tok, tokenizer_eos(tok));
    bool channels = chat_template_says(ct, "<|channel|>"); /* <|end|> ends a message of several */
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        if (!channels || strcmp(ends[i], "<|end|>") != 0)
            add_stop(ct, tok, tokenizer_find(tok, ends[i]));
    }
    add_stop(ct, tok, tokenizer_eos(tok));
    return find_markers(ct, tok, e);
}

err_code chat_template_load(chat_template **out, const char *dir, const char *name,
                            const tokenizer *tok, err *e)
{
    texts t = {0};
    *out = NULL;
    err_code rc = find_texts(dir, name, tok, &t, e);
    chat_template *ct = rc ? NULL : calloc(1, sizeof(*ct));
    if (!rc && !ct) rc = err_set(e, ERR_NOMEM, "no memory for the chat template");
    if (ct) {
        ct->text = t.plain;
        ct->text_with_tools = t.with_tools;
        rc = fill(ct, tok, e);
    } else {
        free(t.plain);
        free(t.with_tools);
    }
    if (rc)
        chat_template_destroy(ct);
    else
        *out = ct;
    return rc;
}

void chat_template_destroy(chat_template *ct)
{
    if (!ct) return;
    jinja_destroy(ct->plain);
    jinja_destroy(ct->with_tools);
    free(ct->text);
    free(ct->text_with_tools);
    free(ct->marker);
    free(ct->barred);
    free(ct);
}

int chat_stop_ids(const chat_template *ct, int32_t *ids, int cap)
{
    int n = ct->n_stop < cap ? ct->n_stop : cap;
    memcpy(ids, ct->stop, (size_t)n * sizeof(*ids));
    return n;
}

/* -------------------------------------------------------------------- rendering -- */

/* What marks the place where an answer goes on: as transformers does it, so that
 * templates do the same with it. */
static const char final_mark[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* The last message's text with the mark behind it; malloced. */
static char *marked_text(const chat_ask *ask)
{
    const chat_message *m = &ask->msgs[ask->n_msgs - 1];
    char *text = malloc(m->len + sizeof(final_mark));
    if (!text) return NULL;
    memcpy(text, m->text, m->len);
    memcpy(text + m->len, final_mark, sizeof(final_mark));
    return text;
}

/* `text`: instead of its own. */
static void set_message(jinja_run *r, const chat_template *ct, const chat_message *m,
                        const char *text, size_t len)
{
    bool developer = strcmp(m->role, "developer") == 0 && !chat_template_says(ct, "developer");
    const char *role = developer ? "system" : m->role;
    jinja_item(r);
    jinja_item_text(r, "role", role, strlen(role), false);
    jinja_item_text(r, "content", text, len, true);
    if (m->name) jinja_item_text(r, "name", m->name, strlen(m->name), true);
    if (m->reasoning) {
        jinja_item_text(r, "reasoning_content", m->reasoning, strlen(m->reasoning), true);
        jinja_item_text(r, "thinking", m->reasoning, strlen(m->reasoning), true);
    }
    if (m->tool_calls) jinja_item_json(r, "tool_calls", m->tool_calls);
    if (m->tool_call_id)
        jinja_item_text(r, "tool_call_id", m->tool_call_id, strlen(m->tool_call_id), true);
}

/* Qwen's and GLM's word for it, DeepSeek's and Granite's; a request's own variable goes before. */
static void set_thinking(jinja_run *r, const chat_ask *ask)
{
    static const char *const names[] = {"enable_thinking", "thinking"};
    for (size_t i = 0; ask->thinking && i < sizeof(names) / sizeof(names[0]); i++) {
        if (!ask->kwargs || !json_get(ask->kwargs, names[i]))
            jinja_set_bool(r, names[i], ask->thinking > 0);
    }
}

/* `last`: the text of the last message, NULL for its own. */
static jinja_run *begin(const chat_template *ct, const chat_ask *ask, const char *last)
{
    size_t bytes = 0;
    for (size_t i = 0; i < ask->n_msgs; i++) bytes += ask->msgs[i].len;
    const cJSON *v, *part;
    cJSON_ArrayForEach(v, ask->documents)
    {
        cJSON_ArrayForEach(part, v) bytes += strlen(cJSON_GetStringValue(part));
    }
    bool tool_use = ask->tools && ct->with_tools;
    jinja_run *r = jinja_begin(tool_use ? ct->with_tools : ct->plain,
                               MEMORY_BASE + MEMORY_BY_BYTE * bytes, ct->now);
    if (!r) return NULL;
    cJSON_ArrayForEach(v, ask->kwargs)
    {
        if (!chat_reserved(v->string)) jinja_set_json(r, v->string, v, true);
    }
    jinja_set_list(r, "messages");
    for (size_t i = 0; i < ask->n_msgs; i++) {
        const chat_message *m = &ask->msgs[i];
        if (last && i + 1 == ask->n_msgs)
            set_message(r, ct, m, last, strlen(last));
        else
            set_message(r, ct, m, m->text, m->len);
    }
    jinja_set_json(r, "tools", ask->tools, true);
    jinja_set_json(r, "documents", ask->documents, true);
    set_thinking(r, ask);
    if (ask->effort) jinja_set_text(r, "reasoning_effort", ask->effort, strlen(ask->effort), true);
    jinja_set_bool(r, "add_generation_prompt", ask->add_generation_prompt);
    if (ct->bos[0]) jinja_set_text(r, "bos_token", ct->bos, strlen(ct->bos), false);
    if (ct->eos[0]) jinja_set_text(r, "eos_token", ct->eos, strlen(ct->eos), false);
    return r;
}

/* The text with the answer's opening behind it. */
static int64_t encode(const chat_template *ct, const tokenizer *tok, const jinja_text *t,
                      const char *opening, int32_t **ids)
{
    tok_guard guard = {t->foreign, t->n_foreign, ct->barred, ct->n_barred};
    size_t more = opening ? strlen(opening) : 0, cap = t->len + more + 16; /* a token has a byte */
    char *whole = more ? malloc(t->len + more + 1) : NULL;
    if (whole) {
        memcpy(whole, t->text, t->len);
        memcpy(whole + t->len, opening, more + 1);
    }
    int64_t n = whole || !more ? 0 : -1;
    for (bool fits = n < 0; !fits; fits = n < 0 || n <= (int64_t)cap) {
        if (n > (int64_t)cap) cap = (size_t)n; /* normal forms may be longer */
        int32_t *room = realloc(*ids, cap * sizeof(**ids));
        if (room) *ids = room;
        n = room ? tokenizer_encode_guarded(tok, whole ? whole : t->text, t->len + more, &guard,
                                            *ids, cap)
                 : -1;
    }
    free(whole);
    if (n < 0) {
        free(*ids);
        *ids = NULL;
    }
    return n;
}

/* Without white space at its end. */
static size_t stripped(const char *s, size_t len)
{
    while (len > 0) {
        size_t used, at = utf8_back(s, len);
        uint32_t c = utf8_decode(s + at, len - at, &used);
        if (!unicode_is_space(c) && !(c >= 0x1C && c <= 0x1F)) break;
        len = at;
    }
    return len;
}

/* Whether the template wrote all of the message. */
static bool is_written(const jinja_text *t, const chat_message *m)
{
    size_t len = stripped(m->text, m->len), at = 0, used;
    while (at < len) {
        uint32_t c = utf8_decode(m->text + at, len - at, &used);
        if (!unicode_is_space(c) && !(c >= 0x1C && c <= 0x1F)) break;
        at += used;
    }
    return at == len || memmem(t->text, t->len, m->text + at, len - at);
}

/* Cuts the text where the last message's ends. */
static err_code cut_at_mark(jinja_text *t, const chat_message *last, err *e)
{
    size_t n = sizeof(final_mark) - 1, bare = n - 1, at = t->len; /* templates trim its space */
    while (at > 0 && (t->len - at < bare || memcmp(t->text + at, final_mark, bare) != 0)) at--;
    bool found = t->len - at >= bare && memcmp(t->text + at, final_mark, bare) == 0;
    if (!found || !is_written(t, last)) {
        return err_set(e, ERR_INPUT,
                       "'continue_final_message': the chat template leaves out a part of the last "
                       "message");
    }
    bool whole = t->len - at >= n && t->text[at + bare] == ' ';
    t->len = whole ? at : stripped(t->text, at);
    while (t->n_foreign && t->foreign[t->n_foreign - 1].from >= t->len) t->n_foreign--;
    tok_span *end = t->n_foreign ? &t->foreign[t->n_foreign - 1] : NULL;
    if (end && end->to > t->len) end->to = t->len;
    return ERR_NONE;
}

int64_t chat_encode(const chat_template *ct, const tokenizer *tok, const chat_ask *ask,
                    int32_t **ids, err *e)
{
    *ids = NULL;
    bool goes_on = ask->continue_final && ask->n_msgs > 0;
    char *last = goes_on ? marked_text(ask) : NULL;
    jinja_run *r = goes_on && !last ? NULL : begin(ct, ask, last);
    free(last);
    if (!r) return err_set(e, ERR_NOMEM, "no memory for the conversation");
    jinja_text t;
    int64_t n = jinja_render(r, &t, e);
    if (n == ERR_NONE && goes_on) n = cut_at_mark(&t, &ask->msgs[ask->n_msgs - 1], e);
    if (n == ERR_NONE) {
        n = encode(ct, tok, &t, ask->opening, ids);
        if (n < 0) n = err_set(e, ERR_NOMEM, "no memory for the conversation");
    }
    jinja_end(r);
    return n;
}
