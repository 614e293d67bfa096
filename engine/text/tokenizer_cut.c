/* tokenizer_cut.c -- where added tokens stand in a text, and what the normaliser makes of the rest.
 *
 * As Hugging Face does it: tokens that are not normalised are found in the text as it came;
 * each part between them is normalised; in that, tokens that are normalised are found, by the
 * normal form of their own text.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/tokenizer_inside.h"
#include "engine/text/unicode/unicode.h"

/* ---- where added tokens stand ---------------------------------------------------------------- */

/* What is searched: the whole text, or a part of it behind the normaliser. */
typedef struct {
    const char *s;
    size_t len;
    const added_set *set;
    const unsigned char *taint; /* of each byte; NULL: nothing in it is a stranger's */
    bool at_start;              /* it begins the text */
} place;

/* A token that must stand alone does not touch letters, digits or "_". */
static bool stands_alone(const place *p, size_t from, size_t to)
{
    size_t used, back;
    if (to < p->len && unicode_is_word(utf8_decode(p->s + to, p->len - to, &used))) return false;
    if (from == 0) return true;
    back = utf8_back(p->s, from);
    return !unicode_is_word(utf8_decode(p->s + back, p->len - back, &used));
}

/* Whether the added token may begin here: a barred one touches nothing of a stranger's. */
static bool is_free(const encoder *en, const place *p, const added_token *a, size_t i)
{
    if (!p->taint || !tokenizer_is_barred(en, a->id)) return true;
    return memchr(p->taint + i, 1, a->len) == NULL;
}

/* The longest one here.  One that must stand alone and does not is passed over whole, as tokenizers
 * does: *skip are its bytes, in which no other is looked for. */
static const added_token *added_at(const encoder *en, const place *p, size_t i, size_t *skip)
{
    for (int k = tokenizer_added_at(p->set, p->s + i, p->len - i); k >= 0;
         k = p->set->list[k].shorter) {
        const added_token *a = &p->set->list[k];
        if ((a->special && !en->special) || !is_free(en, p, a, i)) continue;
        if (!a->single_word || stands_alone(p, i, i + a->len)) return a;
        *skip = a->len;
        return NULL;
    }
    return NULL;
}

static size_t trim_right(const char *s, size_t from, size_t end)
{
    while (end > from) {
        size_t used, back = from + utf8_back(s + from, end - from);
        if (!unicode_is_space(utf8_decode(s + back, end - back, &used))) break;
        end = back;
    }
    return end;
}

static size_t skip_left(const char *s, size_t len, size_t i)
{
    size_t used;
    while (i < len && unicode_is_space(utf8_decode(s + i, len - i, &used))) i += used;
    return i;
}

static void cut(encoder *en, const place *p);

/* The part from `from` to `to` has no token of the place's set. */
static void take_part(encoder *en, const place *p, size_t from, size_t to)
{
    const tokenizer *t = en->t;
    bool at_start = p->at_start && from == 0;
    if (from >= to || en->failed) return;
    if (p->set == &t->normal) {
        tokenizer_encode_part(en, p->s + from, to - from, at_start);
        return;
    }
    place inner = {.s = p->s + from,
                   .len = to - from,
                   .set = &t->normal,
                   .taint = p->taint ? p->taint + from : NULL,
                   .at_start = at_start};
    if (t->normal_form.n == 0) {
        cut(en, &inner);
        return;
    }
    tok_normal n;
    if (!normaliser_run(&t->normal_form, inner.s, inner.len, inner.taint, &n)) {
        en->failed = true;
        return;
    }
    inner.s = n.s;
    inner.len = n.len;
    inner.taint = n.taint;
    inner.at_start &= !n.beheaded;
    cut(en, &inner);
    tok_normal_clear(&n);
}

/* As tokenizers does, the search goes on behind the token, but the next part only behind the spaces
 * that it strips: a token of spaces may be found among them (where they end is looked for once). */
static void cut(encoder *en, const place *p)
{
    size_t start = 0, spaces_end = 0;
    for (size_t i = 0; i < p->len && p->set->n > 0;) {
        size_t skip = 1;
        const added_token *a = added_at(en, p, i, &skip);
        if (!a) {
            i += skip;
            continue;
        }
        take_part(en, p, start, a->lstrip ? trim_right(p->s, start, i) : i);
        tokenizer_emit(en, a->id);
        i += a->len;
        if (a->rstrip && i > spaces_end) spaces_end = skip_left(p->s, p->len, i);
        start = a->rstrip && i <= spaces_end ? spaces_end : i;
    }
    take_part(en, p, start, p->len);
}

/* One byte for each of the text. */
static unsigned char *make_taint(const tok_guard *g, size_t len)
{
    unsigned char *taint = calloc(len + 1, 1);
    for (size_t i = 0; taint && i < g->n_foreign; i++) {
        size_t from = g->foreign[i].from, to = g->foreign[i].to < len ? g->foreign[i].to : len;
        if (from < to) memset(taint + from, 1, to - from);
    }
    return taint;
}

void tokenizer_cut(encoder *en, const char *s, size_t len)
{
    place p = {.s = s, .len = len, .set = &en->t->raw, .at_start = true};
    unsigned char *taint = NULL;
    if (en->guard && en->guard->n_foreign > 0) {
        taint = make_taint(en->guard, len);
        if (!taint) {
            en->failed = true;
            return;
        }
    }
    p.taint = taint;
    cut(en, &p);
    free(taint);
}
