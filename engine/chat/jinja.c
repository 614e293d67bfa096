/* jinja.c -- from a template's text to a rendered conversation: the doors of the jinja_ files.
 *
 *     jinja_read()     jinja_lex(), jinja_parse(): once, into the template's arena
 *     jinja_begin()    an arena for one conversation, and its globals
 *     jinja_set_...()  variables; one that the template never names is not stored
 *     jinja_render()   jinja_exec(), then characters to bytes and spans of strangers
 *
 * Errors stay in the run (r->rc): all later calls do nothing, and jinja_render() says the first
 * one. A character is a number of 32 bits with a bit for "a stranger wrote it", so filters and
 * slices carry it along without more code; give() makes spans of runs of such characters.
 */
#include "engine/chat/jinja.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/chat/jinja_inside.h"

enum { TEXT_MAX = 64 << 20, TREE_BYTES = 64 << 20 };

err_code jinja_read(jinja **out, const char *text, size_t len, err *e)
{
    *out = NULL;
    if (len > JINJA_TEXT_MAX)
        return err_set(e, ERR_LIMIT, "the chat template is larger than %d bytes", JINJA_TEXT_MAX);
    jinja *t = calloc(1, sizeof(*t));
    if (!t) return err_set(e, ERR_NOMEM, "no memory for the chat template");
    arena_init(&t->mem, TREE_BYTES);
    jtoken *tokens;
    err_code rc = jinja_lex(t, text, len, &tokens, e);
    if (!rc) rc = jinja_parse(t, tokens, e);
    if (rc)
        jinja_destroy(t);
    else
        *out = t;
    return rc;
}

void jinja_destroy(jinja *t)
{
    if (!t) return;
    arena_clear(&t->mem);
    free(t);
}

bool jinja_reads(const jinja *t, const char *name)
{
    for (int i = 0; i < t->n_vars; i++) {
        if (strcmp(t->vars[i], name) == 0) return true;
    }
    return false;
}

jinja_run *jinja_begin(const jinja *t, size_t memory, int64_t (*now)(void))
{
    jinja_run *r = calloc(1, sizeof(*r));
    if (!r) return NULL;
    r->t = t;
    r->now = now;
    arena_init(&r->mem, memory);
    r->globals = jinja_push_scope(r, NULL);
    r->scope = r->globals;
    return r;
}

void jinja_end(jinja_run *r)
{
    if (!r) return;
    free(r->text);
    free(r->spans);
    arena_clear(&r->mem);
    free(r);
}

static void set(jinja_run *r, const char *name, jv v)
{
    const char *known = jinja_interned(r->t, name); /* or the template does not ask for it */
    if (known && !r->rc) jinja_assign(r, r->globals, known, v);
}

void jinja_set_text(jinja_run *r, const char *name, const char *s, size_t len, bool foreign)
{
    jv v = r->rc ? jv_undefined : jv_utf8(&r->mem, s, len, foreign);
    if (v.kind == JV_UNDEFINED) (void)jinja_no_memory(r);
    set(r, name, v);
}

void jinja_set_bool(jinja_run *r, const char *name, bool v)
{
    set(r, name, jv_bool(v));
}

void jinja_set_json(jinja_run *r, const char *name, const cJSON *v, bool foreign)
{
    set(r, name, v ? jv_from_json(r, v, foreign) : jv_none);
}

void jinja_set_list(jinja_run *r, const char *name)
{
    jv list = jv_list(r, JV_LIST, 0);
    r->list = r->rc ? NULL : list.list;
    set(r, name, list);
}

void jinja_item(jinja_run *r)
{
    if (!r->rc) (void)jv_push(r, (jv){.kind = JV_LIST, .list = r->list}, jv_map(r, 4));
}

static void put(jinja_run *r, const char *key, jv v)
{
    jv name = jv_ascii(r, key);
    if (!r->rc) (void)jv_put(r, r->list->item[r->list->n - 1], name, v);
}

void jinja_item_text(jinja_run *r, const char *key, const char *s, size_t len, bool foreign)
{
    jv v = r->rc ? jv_undefined : jv_utf8(&r->mem, s, len, foreign);
    if (v.kind == JV_UNDEFINED) (void)jinja_no_memory(r);
    put(r, key, v);
}

void jinja_item_json(jinja_run *r, const char *key, const cJSON *v)
{
    put(r, key, jv_from_json(r, v, true));
}

/* Characters to bytes, and the spans that strangers wrote. */
static err_code give(jinja_run *r, const jbuf *b, jinja_text *out, err *e)
{
    size_t runs = 0, n = 0;
    for (uint32_t i = 0; i < b->n; i++)
        runs += (b->s[i] & JCHAR_FOREIGN) && (i == 0 || !(b->s[i - 1] & JCHAR_FOREIGN));
    if (b->n > TEXT_MAX / 4) return err_set(e, ERR_LIMIT, "the conversation is too large");
    r->text = malloc(4 * (size_t)b->n + 1);
    r->spans = calloc(runs + 1, sizeof(*r->spans));
    if (!r->text || !r->spans) return err_set(e, ERR_NOMEM, "out of memory");
    runs = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        bool foreign = b->s[i] & JCHAR_FOREIGN, before = i > 0 && (b->s[i - 1] & JCHAR_FOREIGN);
        if (foreign && !before) r->spans[runs++].from = n;
        n += utf8_encode(JCHAR_CODE(b->s[i]), r->text + n);
        if (foreign) r->spans[runs - 1].to = n;
    }
    r->text[n] = 0;
    *out = (jinja_text){r->text, n, r->spans, runs};
    return ERR_NONE;
}

err_code jinja_render(jinja_run *r, jinja_text *out, err *e)
{
    jbuf b = {0};
    r->out = &b;
    r->scope = jinja_push_scope(r, r->globals);
    if (!r->rc) jinja_exec(r, r->t->root);
    if (!r->rc) return give(r, &b, out, e);
    if (e) *e = r->why;
    return r->rc;
}
