/* normal.c -- the normaliser of tokenizer.json: a list of steps, each from one text to a new one.
 *
 *   NORMAL_FORM      NFC, NFD, NFKC, NFKD      run by run, from one stable character to the next
 *   NORMAL_STRIP     white space at either end
 *   NORMAL_PREPEND   a string before a text that is not empty
 *   NORMAL_REPLACE   a string, or matches of a pattern (split_search.c)
 *   NORMAL_CHARSMAP  SentencePiece's precompiled map, by grapheme (charsmap.c)
 *   others           one character at a time, to at most three (change())
 *
 * A step writes into a growing buffer and carries along the taint of each byte (whether it comes
 * from a user, tokenizer_cut.c): output that depends on any tainted byte is tainted.
 *
 * `beheaded` records that the beginning of the text was removed, which decides whether Metaspace
 * prepends its space. A text that a normal form cannot change is copied (may_change()).
 *
 * Threads: the normaliser is immutable; buffers belong to the call. Source: Hugging Face
 * tokenizers.
 */
#include "engine/text/normal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

/* ---- a text that is being written ----------------------------------------------------------- */

typedef struct {
    tok_normal out;
    size_t cap;
    bool tainted; /* carries the taint of each byte */
    bool failed;
} writer;

static bool make_room(writer *w, size_t n)
{
    if (w->out.len + n + 1 <= w->cap) return !w->failed;
    size_t cap = 2 * w->cap + n + 16;
    char *s = realloc(w->out.s, cap);
    if (s) w->out.s = s;
    unsigned char *taint = w->tainted ? realloc(w->out.taint, cap) : NULL;
    if (taint) w->out.taint = taint;
    w->failed |= !s || (w->tainted && !taint);
    if (!w->failed) w->cap = cap;
    return !w->failed;
}

static void put(writer *w, const char *s, size_t n, bool foreign)
{
    if (!make_room(w, n)) return;
    memcpy(w->out.s + w->out.len, s, n);
    if (w->tainted) memset(w->out.taint + w->out.len, foreign, n);
    w->out.len += n;
}

static void put_character(writer *w, uint32_t c, bool foreign)
{
    char bytes[UTF8_MAX];
    put(w, bytes, utf8_encode(c, bytes), foreign);
}

static bool is_foreign(const tok_normal *in, size_t from, size_t to)
{
    return in->taint && memchr(in->taint + from, 1, to - from) != NULL;
}

/* Copies bytes unchanged. */
static void copy(writer *w, const tok_normal *in, size_t from, size_t to)
{
    if (to <= from || !make_room(w, to - from)) return;
    w->out.beheaded |= w->out.len == 0 && from > 0;
    memcpy(w->out.s + w->out.len, in->s + from, to - from);
    if (w->tainted) memcpy(w->out.taint + w->out.len, in->taint + from, to - from);
    w->out.len += to - from;
}

/* ---- normal forms --------------------------------------------------------------------------- */

/* Below U+0300 every text is its own NFC, and ASCII is its own in each form. */
static bool may_change(unicode_form f, const tok_normal *in)
{
    unsigned char least = f.composed && !f.compatible ? 0xCC : 0x80;
    for (size_t i = 0; i < in->len; i++) {
        if ((unsigned char)in->s[i] >= least) return true;
    }
    return false;
}

/* Normalises run by run: a run ends where no later character can change it. One tainted character
 * taints its whole run. */
static void bring_into_form(writer *w, unicode_form f, const tok_normal *in)
{
    uint32_t *c = malloc((in->len + 1) * sizeof(*c)), *run = NULL;
    size_t *at = malloc((in->len + 1) * sizeof(*at)), n = 0, room = 0;
    w->failed |= !c || !at;
    for (size_t i = 0, used; !w->failed && i < in->len; i += used) {
        at[n] = i;
        c[n++] = utf8_decode(in->s + i, in->len - i, &used);
    }
    if (!w->failed) at[n] = in->len;
    for (size_t i = 0, j; !w->failed && i < n; i = j) {
        for (j = i + 1; j < n && !unicode_form_begins(f, c[j]);) j++;
        if (j - i > room) {
            free(run);
            room = 2 * (j - i);
            run = malloc((UNICODE_FORM_MOST * room + 4) * sizeof(*run));
            w->failed |= !run;
            if (!run) break;
        }
        size_t m = unicode_normal_form(f, c + i, j - i, run);
        bool foreign = is_foreign(in, at[i], at[j]);
        for (size_t k = 0; k < m; k++) put_character(w, run[k], foreign);
    }
    free(c);
    free(run);
    free(at);
}

/* ---- character by character ----------------------------------------------------------------- */

static bool in_any(uint32_t c, const unicode_range *t, int n)
{
    return unicode_in_ranges(t, n, c);
}

/* Nmt removes these control characters. */
static bool is_noise(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F ||
           c == 0x9F;
}

/* Nmt turns these into a space. */
static bool is_blank(uint32_t c)
{
    return c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

/* Maps one character to at most three; returns how many. */
static size_t change(normal_kind kind, uint32_t c, uint32_t out[3])
{
    out[0] = c;
    switch (kind) {
    case NORMAL_LOWER: return unicode_to_lower(c, out);
    case NORMAL_ACCENTS: return !in_any(c, unicode_accents, unicode_accents_n);
    case NORMAL_BERT_ACCENTS: return !in_any(c, unicode_bert_accents, unicode_bert_accents_n);
    case NORMAL_NMT:
        if (is_blank(c)) out[0] = ' ';
        return !is_noise(c);
    case NORMAL_BERT_CLEAN:
        if (unicode_is_space(c)) out[0] = ' ';
        return !in_any(c, unicode_bert_gone, unicode_bert_gone_n);
    case NORMAL_BERT_CHINESE:
        if (!in_any(c, unicode_bert_chinese, unicode_bert_chinese_n)) return 1;
        out[0] = out[2] = ' ';
        out[1] = c;
        return 3;
    default: return 1;
    }
}

static void change_each(writer *w, normal_kind kind, const tok_normal *in)
{
    uint32_t to[3];
    for (size_t i = 0, used; i < in->len && !w->failed; i += used) {
        size_t n = change(kind, utf8_decode(in->s + i, in->len - i, &used), to);
        bool foreign = is_foreign(in, i, i + used);
        w->out.beheaded |= n > 0 && w->out.len == 0 && i > 0;
        for (size_t k = 0; k < n; k++) put_character(w, to[k], foreign);
    }
}

/* ---- strings -------------------------------------------------------------------------------- */

static void strip(writer *w, const normal_step *s, const tok_normal *in)
{
    size_t from = 0, to = in->len, used;
    while (s->left && from < to) {
        if (!unicode_is_space(utf8_decode(in->s + from, to - from, &used))) break;
        from += used;
    }
    while (s->right && to > from) {
        size_t back = from + utf8_back(in->s + from, to - from);
        if (!unicode_is_space(utf8_decode(in->s + back, to - back, &used))) break;
        to = back;
    }
    copy(w, in, from, to);
}

static void replace_string(writer *w, const normal_step *s, const tok_normal *in)
{
    size_t len = strlen(s->from), to = strlen(s->to), from = 0;
    for (;;) {
        const char *at = memmem(in->s + from, in->len - from, s->from, len);
        size_t i = at ? (size_t)(at - in->s) : in->len;
        copy(w, in, from, i);
        if (!at || w->failed) return;
        put(w, s->to, to, is_foreign(in, i, i + len));
        from = i + len;
    }
}

static void replace_matches(writer *w, const normal_step *s, const tok_normal *in)
{
    uint32_t *c = malloc((in->len + 1) * sizeof(*c));
    size_t *at = malloc((in->len + 1) * sizeof(*at)), n = 0, from = 0, start, end;
    split_search search = {0};
    w->failed |= !c || !at;
    for (size_t i = 0, used; !w->failed && i < in->len; i += used) {
        at[n] = i;
        c[n++] = unicode_with_kind(utf8_decode(in->s + i, in->len - i, &used));
    }
    if (!w->failed) {
        at[n] = in->len;
        split_search_text(&search, s->regex, c, n);
        split_search_piece(&search, 0, n);
    }
    while (!w->failed && split_search_next(&search, from, &start, &end)) {
        copy(w, in, at[from], at[start]);
        put(w, s->to, strlen(s->to), is_foreign(in, at[start], at[end]));
        from = end;
    }
    if (!w->failed) copy(w, in, at[from], in->len);
    w->failed |= search.no_memory;
    split_search_clear(&search);
    free(c);
    free(at);
}

/* Maps a whole grapheme if the map has it, otherwise each of its characters. */
static void map_grapheme(writer *w, const charsmap *m, const tok_normal *in, size_t from, size_t to)
{
    const char *whole =
        CHARSMAP_WHOLE(to - from) ? charsmap_find(m, in->s + from, to - from) : NULL;
    if (whole) {
        put(w, whole, strlen(whole), is_foreign(in, from, to));
        return;
    }
    for (size_t i = from, used; i < to; i += used) {
        (void)utf8_decode(in->s + i, to - i, &used);
        const char *text = charsmap_find(m, in->s + i, used);
        if (text)
            put(w, text, strlen(text), is_foreign(in, i, i + used));
        else
            copy(w, in, i, i + used);
    }
}

static void map(writer *w, const charsmap *m, const tok_normal *in)
{
    for (size_t i = 0, n; i < in->len && !w->failed; i += n) {
        n = charsmap_grapheme(in->s + i, in->len - i);
        map_grapheme(w, m, in, i, i + n);
    }
}

/* ---- all together --------------------------------------------------------------------------- */

static void take_step(writer *w, const normal_step *s, const tok_normal *in)
{
    switch (s->kind) {
    case NORMAL_FORM:
        if (may_change(s->form, in))
            bring_into_form(w, s->form, in);
        else
            copy(w, in, 0, in->len);
        break;
    case NORMAL_STRIP: strip(w, s, in); break;
    case NORMAL_PREPEND:
        if (in->len > 0) put(w, s->to, strlen(s->to), false);
        copy(w, in, 0, in->len);
        break;
    case NORMAL_REPLACE:
        if (s->regex)
            replace_matches(w, s, in);
        else
            replace_string(w, s, in);
        break;
    case NORMAL_CHARSMAP:
        map(w, s->map, in);
        w->out.beheaded = false; /* as SentencePiece counts */
        break;
    default: change_each(w, s->kind, in); break;
    }
}

void tok_normal_clear(tok_normal *t)
{
    free(t->s);
    free(t->taint);
    *t = (tok_normal){0};
}

bool normaliser_run(const normaliser *n, const char *s, size_t len, const unsigned char *taint,
                    tok_normal *out)
{
    writer w = {.tainted = taint != NULL};
    tok_normal in = {.s = (char *)s, .len = len, .taint = (unsigned char *)taint};
    copy(&w, &in, 0, len);
    for (int i = 0; i < n->n && make_room(&w, 0); i++) {
        in = w.out;
        w = (writer){.tainted = taint != NULL};
        take_step(&w, &n->step[i], &in);
        w.out.beheaded |= in.beheaded;
        tok_normal_clear(&in);
    }
    *out = w.out;
    if (make_room(&w, 0)) {
        *out = w.out;
        out->s[out->len] = 0;
        return true;
    }
    *out = w.out;
    tok_normal_clear(out);
    return false;
}
