/* chat.c -- conversations rendered by code, one style per family of templates.
 *
 * A conversation becomes runs: a special marker (one id), or ordinary text.  Neighbouring pieces of
 * ordinary text (a role's name, a newline, the content) form one run and are tokenised together, so
 * that merges across them are as in the rendered string; text never becomes a marker.
 */
#include "engine/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"

typedef enum { STYLE_CHATML, STYLE_ROLE_TAGS, STYLE_LLAMA3, STYLE_LLAMA2, STYLE_MISTRAL } style;

struct chat_template {
    style style;
    const char *name;
    const char *default_system; /* rendered when the conversation has no system message */
    int32_t bos;                /* -1: none is rendered */
    int32_t stop[4];
    int n_stop;
};

static const struct {
    const char *name;
    style style;
} names[] = {{"chatml", STYLE_CHATML},  {"qwen", STYLE_CHATML},    {"role-tags", STYLE_ROLE_TAGS},
             {"llama-3", STYLE_LLAMA3}, {"llama-2", STYLE_LLAMA2}, {"mistral", STYLE_MISTRAL}};

const char *chat_template_names(void)
{
    return "chatml, qwen, role-tags, llama-3, llama-2, mistral";
}

const char *chat_template_name(const chat_template *ct)
{
    return ct->name;
}

/* ----------------------------------------------------------------- recognition -- */

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

/* The model's own template, malloced; NULL: it has none. */
static char *template_text(const char *dir)
{
    char *text = read_file(dir, "chat_template.jinja");
    if (text) return text;
    text = read_file(dir, "tokenizer_config.json");
    if (!text) return NULL;
    cJSON *cfg;
    char *out = NULL;
    if (json_parse(text, strlen(text), &json_limits_trusted, &cfg, NULL) == ERR_NONE) {
        const cJSON *v = json_get(cfg, "chat_template"), *each;
        if (cJSON_IsString(v)) out = strdup(v->valuestring);
        cJSON_ArrayForEach(each, v)
        {
            const cJSON *name = json_get(each, "name"), *t = json_get(each, "template");
            if (!out && cJSON_IsString(name) && cJSON_IsString(t) &&
                strcmp(name->valuestring, "default") == 0) {
                out = strdup(t->valuestring);
            }
        }
        cJSON_Delete(cfg);
    }
    free(text);
    return out;
}

static bool has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

/* What the template contains tells its family; NULL: none of ours. */
static const char *recognise(const char *t)
{
    if (has(t, "<|im_start|>")) {
        if (has(t, "enable_thinking")) return NULL; /* inserts think blocks: not rendered here */
        return has(t, "You are Qwen") || has(t, "You are a helpful assistant") ? "qwen" : "chatml";
    }
    if (has(t, "<|start_header_id|>") && has(t, "<|eot_id|>")) {
        return has(t, "Cutting Knowledge Date") ? NULL : "llama-3"; /* renders today's date */
    }
    if (has(t, "[INST]") && has(t, "<<SYS>>")) return "llama-2";
    if (has(t, "[INST]") && !has(t, "[AVAILABLE_TOOLS]")) return "mistral";
    if (has(t, "'<|' + message['role'] + '|>") && has(t, "<|end|>")) return "role-tags";
    return NULL;
}

static void add_stop(chat_template *ct, const tokenizer *tok, const char *content)
{
    int32_t id = tokenizer_find(tok, content);
    if (id >= 0 && ct->n_stop < 4) ct->stop[ct->n_stop++] = id;
}

/* Every marker that the style renders must be a token of the model. */
static err_code check_markers(const chat_template *ct, const tokenizer *tok, err *e)
{
    static const char *const need[][4] = {
        [STYLE_CHATML] = {"<|im_start|>", "<|im_end|>"},
        [STYLE_ROLE_TAGS] = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"},
        [STYLE_LLAMA3] = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
        [STYLE_LLAMA2] = {NULL},
        [STYLE_MISTRAL] = {NULL},
    };
    for (int i = 0; i < 4 && need[ct->style][i]; i++) {
        if (tokenizer_find(tok, need[ct->style][i]) < 0) {
            return err_set(e, ERR_UNSUPPORTED,
                           "the chat template '%s' needs the token %s, which "
                           "the model does not have",
                           ct->name, need[ct->style][i]);
        }
    }
    return ERR_NONE;
}

static err_code fill(chat_template *ct, const char *name, const char *text, const tokenizer *tok,
                     err *e)
{
    bool known = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i].name, name) != 0) continue;
        ct->name = names[i].name;
        ct->style = names[i].style;
        known = true;
    }
    if (!known) {
        return err_set(e, ERR_INPUT, "unknown chat template '%.40s'; known: %s", name,
                       chat_template_names());
    }
    ct->bos = -1;
    if (ct->style != STYLE_CHATML || has(text, "bos_token")) ct->bos = tokenizer_bos(tok);
    if (strcmp(name, "qwen") == 0) {
        ct->default_system =
            has(text, "You are Qwen")
                ? "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
                : "You are a helpful assistant.";
    }
    add_stop(ct, tok, "<|im_end|>");
    add_stop(ct, tok, "<|eot_id|>");
    add_stop(ct, tok, "<|end|>");
    if (tokenizer_eos(tok) >= 0 && ct->n_stop < 4) ct->stop[ct->n_stop++] = tokenizer_eos(tok);
    return check_markers(ct, tok, e);
}

err_code chat_template_load(chat_template **out, const char *dir, const char *name,
                            const tokenizer *tok, err *e)
{
    *out = NULL;
    bool automatic = !name || strcmp(name, "auto") == 0;
    char *text = template_text(dir);
    if (automatic && !text) {
        return err_set(e, ERR_NOT_FOUND,
                       "the model has no chat template; set model.chat_template to "
                       "one of %s, or use /v1/completions",
                       chat_template_names());
    }
    if (automatic) name = recognise(text);
    chat_template *ct = calloc(1, sizeof(*ct));
    err_code rc = ERR_NONE;
    if (!ct)
        rc = err_set(e, ERR_NOMEM, "no memory for the chat template");
    else if (!name) {
        rc = err_set(e, ERR_UNSUPPORTED,
                     "the model's chat template is not one that lorad renders; set "
                     "model.chat_template to one of %s, or use /v1/completions",
                     chat_template_names());
    } else {
        rc = fill(ct, name, text ? text : "", tok, e);
    }
    free(text);
    if (rc)
        free(ct);
    else
        *out = ct;
    return rc;
}

void chat_template_destroy(chat_template *ct)
{
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
    const tokenizer *tok;
    int32_t *ids;
    size_t n, cap;
    char *run; /* ordinary text since the last marker */
    size_t len, room;
    bool failed;
} writer;

static void put_id(writer *w, int32_t id)
{
    if (w->n < w->cap) w->ids[w->n] = id;
    w->n++;
}

static void flush(writer *w)
{
    if (w->len == 0 || w->failed) return;
    size_t left = w->n < w->cap ? w->cap - w->n : 0;
    int64_t n = tokenizer_encode(w->tok, w->run, w->len, 0, left ? w->ids + w->n : NULL, left);
    if (n < 0)
        w->failed = true;
    else
        w->n += (size_t)n;
    w->len = 0;
}

static void put_text(writer *w, const char *s, size_t len)
{
    if (w->failed) return;
    if (w->room - w->len < len) {
        size_t room = 2 * (w->len + len) + 256;
        char *p = realloc(w->run, room);
        if (!p) {
            w->failed = true;
            return;
        }
        w->run = p;
        w->room = room;
    }
    memcpy(w->run + w->len, s, len);
    w->len += len;
}

static void put(writer *w, const char *s)
{
    put_text(w, s, strlen(s));
}

static void mark(writer *w, const char *content)
{
    flush(w);
    put_id(w, tokenizer_find(w->tok, content));
}

static const char *role_of(const chat_message *m)
{
    return strcmp(m->role, "developer") == 0 ? "system" : m->role;
}

static void trimmed(const chat_message *m, const char **s, size_t *len)
{
    *s = m->text;
    *len = m->len;
    while (*len && strchr(" \t\r\n", (*s)[0])) {
        (*s)++;
        (*len)--;
    }
    while (*len && strchr(" \t\r\n", (*s)[*len - 1])) (*len)--;
}

static void render_chatml(writer *w, const chat_template *ct, const chat_message *m, size_t n,
                          bool open)
{
    if (ct->default_system && (n == 0 || strcmp(role_of(&m[0]), "system") != 0)) {
        mark(w, "<|im_start|>");
        put(w, "system\n");
        put(w, ct->default_system);
        mark(w, "<|im_end|>");
        put(w, "\n");
    }
    for (size_t i = 0; i < n; i++) {
        mark(w, "<|im_start|>");
        put(w, role_of(&m[i]));
        put(w, "\n");
        put_text(w, m[i].text, m[i].len);
        mark(w, "<|im_end|>");
        put(w, "\n");
    }
    if (open) {
        mark(w, "<|im_start|>");
        put(w, "assistant\n");
    }
}

static void render_role_tags(writer *w, const chat_message *m, size_t n, bool open)
{
    for (size_t i = 0; i < n; i++) {
        char tag[32];
        (void)snprintf(tag, sizeof(tag), "<|%s|>", role_of(&m[i]));
        mark(w, tag);
        put(w, "\n");
        put_text(w, m[i].text, m[i].len);
        mark(w, "<|end|>");
        put(w, "\n");
    }
    if (open) {
        mark(w, "<|assistant|>");
        put(w, "\n");
    }
}

static void render_llama3(writer *w, const chat_message *m, size_t n, bool open)
{
    for (size_t i = 0; i < n; i++) {
        const char *s;
        size_t len;
        trimmed(&m[i], &s, &len);
        mark(w, "<|start_header_id|>");
        put(w, role_of(&m[i]));
        mark(w, "<|end_header_id|>");
        put(w, "\n\n");
        put_text(w, s, len);
        mark(w, "<|eot_id|>");
    }
    if (open) {
        mark(w, "<|start_header_id|>");
        put(w, "assistant");
        mark(w, "<|end_header_id|>");
        put(w, "\n\n");
    }
}

/* Llama-2 and Mistral: [INST] ... [/INST] are ordinary text (or tokens of the model, where it has
 * them); roles must alternate, a system message may only come first. */
static void inst(writer *w, const char *marker)
{
    if (tokenizer_find(w->tok, marker) >= 0)
        mark(w, marker);
    else
        put(w, marker);
}

static bool render_inst(writer *w, const chat_template *ct, const chat_message *m, size_t n, err *e)
{
    size_t first = n > 0 && strcmp(role_of(&m[0]), "system") == 0 ? 1 : 0;
    bool llama = ct->style == STYLE_LLAMA2;
    for (size_t i = first; i < n; i++) {
        bool user = (i - first) % 2 == 0;
        if (strcmp(role_of(&m[i]), user ? "user" : "assistant") != 0) {
            (void)err_set(e, ERR_INPUT,
                          "this model's chat template needs user and assistant messages in "
                          "turn, with a system message only at the start");
            return false;
        }
        const char *s;
        size_t len;
        trimmed(&m[i], &s, &len);
        if (user) {
            if (llama && i > first) {
                flush(w);
                if (ct->bos >= 0) put_id(w, ct->bos);
            }
            inst(w, "[INST]");
            put(w, " ");
            if (i == first && first == 1) {
                put(w, llama ? "<<SYS>>\n" : "");
                put_text(w, m[0].text, m[0].len);
                put(w, llama ? "\n<</SYS>>\n\n" : "\n\n");
            }
            put_text(w, s, len);
            put(w, " ");
            inst(w, "[/INST]");
        } else {
            put(w, " ");
            put_text(w, s, len);
            if (llama) put(w, " ");
            flush(w);
            if (tokenizer_eos(w->tok) >= 0) put_id(w, tokenizer_eos(w->tok));
        }
    }
    return true;
}

int64_t chat_encode(const chat_template *ct, const tokenizer *tok, const chat_message *msgs,
                    size_t n_msgs, bool add_generation_prompt, int32_t *ids, size_t cap, err *e)
{
    writer w = {.tok = tok, .ids = ids, .cap = cap};
    bool ok = true;
    if (ct->bos >= 0) put_id(&w, ct->bos);
    switch (ct->style) {
    case STYLE_CHATML: render_chatml(&w, ct, msgs, n_msgs, add_generation_prompt); break;
    case STYLE_ROLE_TAGS: render_role_tags(&w, msgs, n_msgs, add_generation_prompt); break;
    case STYLE_LLAMA3: render_llama3(&w, msgs, n_msgs, add_generation_prompt); break;
    case STYLE_LLAMA2:
    case STYLE_MISTRAL: ok = render_inst(&w, ct, msgs, n_msgs, e); break;
    }
    flush(&w);
    free(w.run);
    if (!ok) return ERR_INPUT;
    if (w.failed) return err_set(e, ERR_NOMEM, "no memory for the conversation");
    return (int64_t)w.n;
}
