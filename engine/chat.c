/* chat.c -- conversations rendered by code, one style per family of templates.
 *
 * A conversation is written out as the model's template would, the template's part and the
 * messages' texts told apart (tok_guard), and encoded in one piece: spaces, merges and a marker's
 * own trimming are as for the rendered string, while no message can become one of the markers.
 * What the template says is read by chat_shape.c.
 */
#include "engine/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/json.h"
#include "engine/chat_inside.h"
#include "engine/unicode.h"

struct chat_template {
    chat_shape shape;
    const char *bos, *eos; /* the model's, as text; "": none */
    int32_t stop[4];
    int n_stop;
    int32_t *barred; /* added tokens that the template may write, special or not */
    size_t n_barred;
    int64_t (*now)(void);
};

static int64_t wall_clock(void)
{
    return (int64_t)time(NULL);
}

const char *chat_template_names(void)
{
    return "chatml, qwen, qwen3, role-tags, zephyr, llama-3, llama-3.1, llama-2, mistral";
}

const char *chat_template_name(const chat_template *ct)
{
    return ct->shape.name;
}

void chat_template_set_clock(chat_template *ct, int64_t (*now)(void))
{
    ct->now = now;
}

/* --------------------------------------------------------------------- loading -- */

static char *read_file(const char *dir, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    long size = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    char *text = size >= 0 && size < (8 << 20) ? malloc((size_t)size + 1) : NULL;
    rewind(f);
    if (text) {
        size_t n = fread(text, 1, (size_t)size, f);
        text[n] = 0;
    }
    (void)fclose(f);
    return text;
}

/* chat_template of a JSON file: a string, or a list of named ones. */
static char *template_in_json(const char *dir, const char *name)
{
    char *text = read_file(dir, name), *out = NULL;
    cJSON *cfg;
    if (!text) return NULL;
    if (json_parse(text, strlen(text), &json_limits_trusted, &cfg, NULL) == ERR_NONE) {
        const cJSON *v = json_get(cfg, "chat_template"), *each;
        if (cJSON_IsString(v)) out = strdup(v->valuestring);
        cJSON_ArrayForEach(each, v)
        {
            const cJSON *which = json_get(each, "name"), *t = json_get(each, "template");
            if (!out && cJSON_IsString(which) && cJSON_IsString(t) &&
                strcmp(which->valuestring, "default") == 0) {
                out = strdup(t->valuestring);
            }
        }
        cJSON_Delete(cfg);
    }
    free(text);
    return out;
}

/* The model's own template, malloced; NULL: it has none. */
static char *template_text(const char *dir)
{
    char *text = read_file(dir, "chat_template.jinja");
    if (!text) text = template_in_json(dir, "tokenizer_config.json");
    if (!text) text = template_in_json(dir, "chat_template.json");
    return text;
}

/* An added token's content. */
static const char *token_text(const tokenizer *tok, int32_t id)
{
    size_t len;
    return tokenizer_is_added(tok, id) ? tokenizer_bytes(tok, id, &len) : "";
}

static void add_stop(chat_template *ct, const tokenizer *tok, int32_t id)
{
    for (int i = 0; i < ct->n_stop; i++) {
        if (ct->stop[i] == id) return;
    }
    if (tokenizer_is_added(tok, id) && ct->n_stop < 4) ct->stop[ct->n_stop++] = id;
}

/* The markers that each style writes. */
static const char *const markers[][6] = {
    [STYLE_CHATML] = {"<|im_start|>", "<|im_end|>"},
    [STYLE_QWEN3] = {"<|im_start|>", "<|im_end|>", "<think>", "</think>"},
    [STYLE_ROLE_TAGS] = {"<|system|>", "<|user|>", "<|assistant|>"},
    [STYLE_LLAMA3] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
    [STYLE_LLAMA2] = {"[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"},
    [STYLE_MISTRAL] = {"[INST]", "[/INST]"},
};

/* Markers without which a style is not the model's (Zephyr's are ordinary text). */
static err_code check_markers(const chat_template *ct, const tokenizer *tok, err *e)
{
    static const int needed[] = {
        [STYLE_CHATML] = 2, [STYLE_QWEN3] = 2,  [STYLE_ROLE_TAGS] = 3,
        [STYLE_LLAMA3] = 3, [STYLE_LLAMA2] = 0, [STYLE_MISTRAL] = 0,
    };
    const chat_shape *s = &ct->shape;
    bool tags = s->style == STYLE_ROLE_TAGS;
    int n = tags && !s->end ? 0 : needed[s->style];
    for (int i = 0; i < n + (tags && s->end); i++) {
        const char *m = i < n ? markers[s->style][i] : s->end;
        if (tokenizer_is_added(tok, tokenizer_find(tok, m))) continue;
        return err_set(e, ERR_UNSUPPORTED,
                       "the chat template '%s' needs the token %s, which the model does not have",
                       s->name, m);
    }
    return ERR_NONE;
}

static bool is_marker(const chat_template *ct, const char *text, const char *token)
{
    for (int i = 0; i < 6; i++) {
        const char *m = markers[ct->shape.style][i];
        if (m && strcmp(m, token) == 0) return true;
    }
    if (strcmp(token, ct->bos) == 0 || strcmp(token, ct->eos) == 0) return true;
    if (ct->shape.end && strcmp(token, ct->shape.end) == 0) return true;
    if (token[strspn(token, " \t\r\n")] == 0) return false; /* spaces mark nothing */
    return strstr(text, token) != NULL;
}

/* Whatever the template contains as a token of its own, a message's text must not become. */
static err_code find_barred(chat_template *ct, const char *text, const tokenizer *tok, err *e)
{
    size_t n = 0;
    for (int32_t id = 0; id < tokenizer_vocab(tok); id++) n += tokenizer_is_added(tok, id);
    ct->barred = calloc(n + 1, sizeof(*ct->barred));
    if (!ct->barred) return err_set(e, ERR_NOMEM, "no memory for the chat template");
    for (int32_t id = 0; id < tokenizer_vocab(tok); id++) {
        if (!tokenizer_is_added(tok, id) || tokenizer_is_special(tok, id)) continue;
        if (is_marker(ct, text, token_text(tok, id))) ct->barred[ct->n_barred++] = id;
    }
    return ERR_NONE;
}

/* A style asked for by name: as the model's own template says, if it is of that name; else as the
 * family's models usually have it. */
static bool named_shape(chat_shape *s, const char *name, const char *text, const tokenizer *tok)
{
    if (text[0] && chat_shape_read(s, text) && strcmp(s->name, name) == 0) return true;
    if (!chat_shape_named(s, name)) return false;
    if (strstr(text, "bos_token")) s->bos = true;
    if (strcmp(name, "qwen") == 0 && strstr(text, "You are Qwen, created by Alibaba Cloud.")) {
        s->default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
    }
    if (s->style == STYLE_MISTRAL && tokenizer_is_added(tok, tokenizer_find(tok, "[INST]"))) {
        s->user[0] = s->with_system[0] = "[INST] "; /* from version 3 on */
        s->user[1] = s->with_system[2] = "[/INST]";
        s->system = SYSTEM_IN_LAST;
        s->trim_reply = true;
    }
    return true;
}

static err_code fill(chat_template *ct, const char *name, const char *text, const tokenizer *tok,
                     err *e)
{
    bool automatic = !name || strcmp(name, "auto") == 0;
    if (automatic && !chat_shape_read(&ct->shape, text)) {
        return err_set(e, ERR_UNSUPPORTED,
                       "the model's chat template is not one that lorad renders; set "
                       "model.chat_template to one of %s, or use /v1/completions",
                       chat_template_names());
    }
    if (!automatic && !named_shape(&ct->shape, name, text, tok)) {
        return err_set(e, ERR_INPUT, "unknown chat template '%.40s'; known: %s", name,
                       chat_template_names());
    }
    ct->now = wall_clock;
    ct->bos = token_text(tok, tokenizer_bos(tok));
    ct->eos = token_text(tok, tokenizer_eos(tok));
    static const char *const ends[] = {"<|im_end|>", "<|eot_id|>", "<|end|>"};
    for (int i = 0; i < 3; i++) add_stop(ct, tok, tokenizer_find(tok, ends[i]));
    add_stop(ct, tok, tokenizer_eos(tok));
    err_code rc = check_markers(ct, tok, e);
    return rc ? rc : find_barred(ct, text, tok, e);
}

err_code chat_template_load(chat_template **out, const char *dir, const char *name,
                            const tokenizer *tok, err *e)
{
    *out = NULL;
    char *text = template_text(dir);
    if (!text && (!name || strcmp(name, "auto") == 0)) {
        return err_set(e, ERR_NOT_FOUND,
                       "the model has no chat template; set model.chat_template to "
                       "one of %s, or use /v1/completions",
                       chat_template_names());
    }
    chat_template *ct = calloc(1, sizeof(*ct));
    err_code rc = ct ? fill(ct, name, text ? text : "", tok, e)
                     : err_set(e, ERR_NOMEM, "no memory for the chat template");
    free(text);
    if (rc)
        chat_template_destroy(ct);
    else
        *out = ct;
    return rc;
}

void chat_template_destroy(chat_template *ct)
{
    if (!ct) return;
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

typedef struct {
    const chat_template *ct;
    char *text;
    size_t len, room;
    tok_span *foreign;
    size_t n_foreign, foreign_room;
    bool failed;
} writer;

typedef struct {
    const char *s;
    size_t len;
} piece;

static void append(writer *w, const char *s, size_t len)
{
    if (w->failed || len == 0) return;
    if (w->room - w->len < len) {
        size_t room = 2 * (w->len + len) + 256;
        char *p = realloc(w->text, room);
        if (!p) {
            w->failed = true;
            return;
        }
        w->text = p;
        w->room = room;
    }
    memcpy(w->text + w->len, s, len);
    w->len += len;
}

/* The template's own words. */
static void put(writer *w, const char *s)
{
    append(w, s, strlen(s));
}

/* A message's text. */
static void put_foreign(writer *w, piece p)
{
    if (p.len == 0 || w->failed) return;
    if (w->n_foreign == w->foreign_room) {
        size_t room = 2 * w->foreign_room + 16;
        tok_span *f = realloc(w->foreign, room * sizeof(*f));
        if (!f) {
            w->failed = true;
            return;
        }
        w->foreign = f;
        w->foreign_room = room;
    }
    w->foreign[w->n_foreign++] = (tok_span){w->len, w->len + p.len};
    append(w, p.s, p.len);
}

static const char *role_of(const chat_message *m)
{
    return strcmp(m->role, "developer") == 0 ? "system" : m->role;
}

static bool is_role(const chat_message *m, const char *role)
{
    return strcmp(role_of(m), role) == 0;
}

static piece whole(const chat_message *m)
{
    return (piece){m->text, m->len};
}

/* What Python's str.strip() takes away. */
static bool is_strip_space(uint32_t c)
{
    return unicode_is_space(c) || (c >= 0x1C && c <= 0x1F);
}

static piece trimmed_right(piece p)
{
    while (p.len > 0) {
        size_t back = p.len, used;
        do back--;
        while (back > 0 && ((unsigned char)p.s[back] & 0xC0) == 0x80);
        if (!is_strip_space(utf8_decode(p.s + back, p.len - back, &used))) break;
        p.len = back;
    }
    return p;
}

static piece trimmed(piece p)
{
    size_t used;
    while (p.len > 0 && is_strip_space(utf8_decode(p.s, p.len, &used))) {
        p.s += used;
        p.len -= used;
    }
    return trimmed_right(p);
}

static piece trimmed_if(bool trim, const chat_message *m)
{
    return trim ? trimmed(whole(m)) : whole(m);
}

static void chatml_message(writer *w, const char *role, piece text)
{
    put(w, "<|im_start|>");
    put(w, role);
    put(w, "\n");
    put_foreign(w, text);
    put(w, "<|im_end|>\n");
}

static void render_chatml(writer *w, const chat_message *m, size_t n)
{
    const char *d = w->ct->shape.default_system;
    if (d && (n == 0 || !is_role(&m[0], "system"))) {
        put(w, "<|im_start|>system\n");
        put(w, d);
        put(w, "<|im_end|>\n");
    }
    for (size_t i = 0; i < n; i++) chatml_message(w, role_of(&m[i]), whole(&m[i]));
}

/* ------------------------------------------------------------------------ Qwen3 -- */

static bool begins_with(piece p, const char *s)
{
    return p.len >= strlen(s) && memcmp(p.s, s, strlen(s)) == 0;
}

static bool finishes_with(piece p, const char *s)
{
    return p.len >= strlen(s) && memcmp(p.s + p.len - strlen(s), s, strlen(s)) == 0;
}

static piece without_newlines(piece p, bool left, bool right)
{
    while (left && p.len > 0 && p.s[0] == '\n') {
        p.s++;
        p.len--;
    }
    while (right && p.len > 0 && p.s[p.len - 1] == '\n') p.len--;
    return p;
}

/* What follows the last `mark`, all of it if there is none. */
static piece after_last(piece p, const char *mark)
{
    const char *at;
    while ((at = memmem(p.s, p.len, mark, strlen(mark))) != NULL) {
        size_t gone = (size_t)(at - p.s) + strlen(mark);
        p.s += gone;
        p.len -= gone;
    }
    return p;
}

/* A reply's thoughts are cut from it; they return, between the markers, only after the last question,
 * where the template always puts them into the last message. */
static void qwen3_reply(writer *w, const chat_message *m, bool after_question, bool last)
{
    piece text = whole(m), thought = {text.s, 0};
    const char *end = memmem(text.s, text.len, "</think>", 8);
    if (end) {
        thought.len = (size_t)(end - text.s);
        thought = without_newlines(thought, false, true);
        thought = without_newlines(after_last(thought, "<think>"), true, false);
        text = without_newlines(after_last(text, "</think>"), true, false);
    }
    put(w, "<|im_start|>assistant\n");
    if (after_question && (last || thought.len > 0)) {
        put(w, "<think>\n");
        put_foreign(w, without_newlines(thought, true, true));
        put(w, "\n</think>\n\n");
        text = without_newlines(text, true, false);
    }
    put_foreign(w, text);
    put(w, "<|im_end|>\n");
}

static void render_qwen3(writer *w, const chat_message *m, size_t n)
{
    size_t question = n; /* the last one that is no tool's answer */
    for (size_t i = 0; i < n; i++) {
        piece p = whole(&m[i]);
        bool tool = begins_with(p, "<tool_response>") && finishes_with(p, "</tool_response>");
        if (is_role(&m[i], "user") && !tool) question = i;
    }
    for (size_t i = 0; i < n; i++) {
        if (is_role(&m[i], "assistant"))
            qwen3_reply(w, &m[i], question < i, i + 1 == n);
        else
            chatml_message(w, role_of(&m[i]), whole(&m[i]));
    }
}

/* ------------------------------------------------------------- role tags, Llama -- */

static void render_role_tags(writer *w, const chat_message *m, size_t n)
{
    const char *end = w->ct->shape.end;
    for (size_t i = 0; i < n; i++) {
        put(w, "<|");
        put(w, role_of(&m[i]));
        put(w, "|>\n");
        put_foreign(w, whole(&m[i]));
        put(w, end ? end : w->ct->eos);
        put(w, "\n");
    }
}

static void llama3_header(writer *w, const char *role)
{
    put(w, "<|start_header_id|>");
    put(w, role);
    put(w, "<|end_header_id|>\n\n");
}

static void put_today(writer *w)
{
    static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t now = (time_t)w->ct->now();
    struct tm tm;
    char text[48];
    if (!localtime_r(&now, &tm)) {
        w->failed = true;
        return;
    }
    (void)snprintf(text, sizeof(text), "%02d %s %d", tm.tm_mday, months[tm.tm_mon],
                   tm.tm_year + 1900);
    put(w, text);
}

static void render_llama3(writer *w, const chat_message *m, size_t n)
{
    const chat_shape *s = &w->ct->shape;
    size_t first = 0;
    if (s->dated) {
        llama3_header(w, "system");
        put(w, "Cutting Knowledge Date: ");
        put(w, s->knowledge);
        put(w, "\nToday Date: ");
        if (s->date)
            put(w, s->date);
        else
            put_today(w);
        put(w, "\n\n");
        if (n > 0 && is_role(&m[0], "system"))
            put_foreign(w, trimmed(whole(&m[first++])));
        else if (s->default_system)
            put(w, s->default_system);
        put(w, "<|eot_id|>");
    }
    for (size_t i = first; i < n; i++) {
        llama3_header(w, role_of(&m[i]));
        put_foreign(w, trimmed(whole(&m[i])));
        put(w, "<|eot_id|>");
    }
}

/* Llama-2 and Mistral: roles must alternate, a system message may only come first. */
static bool in_turn(const chat_message *m, size_t n, size_t *first, err *e)
{
    *first = n > 0 && is_role(&m[0], "system") ? 1 : 0;
    for (size_t i = *first; i < n; i++) {
        if (is_role(&m[i], (i - *first) % 2 == 0 ? "user" : "assistant")) continue;
        (void)err_set(e, ERR_INPUT,
                      "this model's chat template needs user and assistant messages in "
                      "turn, with a system message only at the start");
        return false;
    }
    return true;
}

static bool render_llama2(writer *w, const chat_message *m, size_t n, err *e)
{
    size_t first;
    if (!in_turn(m, n, &first, e)) return false;
    for (size_t i = first; i < n; i++) {
        if (is_role(&m[i], "user")) {
            bool with_system = first == 1 && i == 1;
            put(w, w->ct->bos);
            put(w, "[INST] ");
            if (with_system) {
                put(w, "<<SYS>>\n");
                put_foreign(w, whole(&m[0]));
                put(w, "\n<</SYS>>\n\n");
            }
            /* the template trims the two together */
            piece right = trimmed_right(whole(&m[i]));
            if (with_system && right.len == 0) w->len -= 2;
            put_foreign(w, with_system ? right : trimmed(whole(&m[i])));
            put(w, " [/INST]");
        } else {
            put(w, " ");
            put_foreign(w, trimmed(whole(&m[i])));
            put(w, " ");
            put(w, w->ct->eos);
        }
    }
    return true;
}

static bool render_mistral(writer *w, const chat_message *m, size_t n, err *e)
{
    const chat_shape *s = &w->ct->shape;
    size_t first;
    if (!in_turn(m, n, &first, e)) return false;
    if (first == 1 && s->system == SYSTEM_REFUSED) {
        (void)err_set(e, ERR_INPUT, "this model's chat template has no place for a system message");
        return false;
    }
    size_t at = s->system == SYSTEM_IN_LAST ? n - 1 : 1;
    for (size_t i = first; i < n; i++) {
        if (is_role(&m[i], "assistant")) {
            put(w, s->reply[0]);
            put_foreign(w, trimmed_if(s->trim_reply, &m[i]));
            put(w, w->ct->eos);
            put(w, s->reply[1]);
        } else if (first == 1 && i == at) {
            put(w, s->with_system[0]);
            put_foreign(w, trimmed_if(s->trim_system, &m[0]));
            put(w, s->with_system[1]);
            put_foreign(w, whole(&m[i]));
            put(w, s->with_system[2]);
        } else {
            put(w, s->user[0]);
            put_foreign(w, trimmed_if(s->trim_user, &m[i]));
            put(w, s->user[1]);
        }
    }
    return true;
}

static bool render(writer *w, const chat_message *m, size_t n, err *e)
{
    const chat_shape *s = &w->ct->shape;
    if (s->bos && s->style != STYLE_LLAMA2) put(w, w->ct->bos);
    switch (s->style) {
    case STYLE_CHATML: render_chatml(w, m, n); return true;
    case STYLE_QWEN3: render_qwen3(w, m, n); return true;
    case STYLE_ROLE_TAGS: render_role_tags(w, m, n); return true;
    case STYLE_LLAMA3: render_llama3(w, m, n); return true;
    case STYLE_LLAMA2: return render_llama2(w, m, n, e);
    case STYLE_MISTRAL: return render_mistral(w, m, n, e);
    }
    return false;
}

int64_t chat_encode(const chat_template *ct, const tokenizer *tok, const chat_message *msgs,
                    size_t n_msgs, bool add_generation_prompt, int32_t *ids, size_t cap, err *e)
{
    writer w = {.ct = ct};
    int64_t n = ERR_INPUT;
    if (render(&w, msgs, n_msgs, e)) {
        if (add_generation_prompt) put(&w, ct->shape.opening);
        tok_guard guard = {w.foreign, w.n_foreign, ct->barred, ct->n_barred};
        n = w.failed ? -1
                     : tokenizer_encode_guarded(tok, w.text ? w.text : "", w.len, &guard, ids, cap);
        if (n < 0) n = err_set(e, ERR_NOMEM, "no memory for the conversation");
    }
    free(w.text);
    free(w.foreign);
    return n;
}
