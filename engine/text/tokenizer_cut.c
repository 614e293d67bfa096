/* tokenizer_cut.c -- finds added tokens in a text and normalises the parts between them.
 *
 * As in Hugging Face's tokenizers, in three passes:
 *   1. tokens with "normalized": false are searched in the raw text
 *   2. each part between them goes through the normaliser
 *   3. tokens with "normalized": true are searched in the result, by their own normal form
 *
 * At each position the longest token wins; shorter candidates are its prefixes
 * (added_token.shorter). lstrip and rstrip extend a token over adjacent white space, single_word
 * requires that no letter, digit or "_" touches it.
 *
 * `taint` has one byte per byte of text: 1 for bytes of a user. A barred token matches only bytes
 * without taint, so user text such as "<|im_start|>" is encoded as ordinary characters. The
 * normaliser carries the taint along.
 *
 * Cost: linear in the text for realistic sets; the end of a run of spaces is found once
 * (spaces_end).
 */
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/tokenizer_inside.h"
#include "engine/text/unicode/unicode.h"

/* ---- where added tokens stand ---------------------------------------------------------------- */

/* The text that is searched: all of it, or a part after the normaliser. */
typedef struct {
    const char *s;
    size_t len;
    const added_set *set;
    const unsigned char *taint; /* of each byte, 1: a user's; NULL: all trusted */
    bool at_start;              /* it begins the text */
} place;

/* single_word: no letter, digit or "_" is adjacent. */
static bool stands_alone(const place *p, size_t from, size_t to)
{
    size_t used, back;
    if (to < p->len && unicode_is_word(utf8_decode(p->s + to, p->len - to, &used))) return false;
    if (from == 0) return true;
    back = utf8_back(p->s, from);
    return !unicode_is_word(utf8_decode(p->s + back, p->len - back, &used));
}

/* Whether the added token may match here: a barred one must not cover a user's bytes. */
static bool is_free(const encoder *en, const place *p, const added_token *a, size_t i)
{
    if (!p->taint || !tokenizer_is_barred(en, a->id)) return true;
    return memchr(p->taint + i, 1, a->len) == NULL;
}

/* The longest added token here. A single_word token that is not alone is skipped as a whole, as in
 * Hugging Face's tokenizers: *skip is its length, within which no other token is searched. */
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

/* Handles the part from `from` to `to`, which has no token of this set. */
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

/* As in Hugging Face's tokenizers, the search continues right behind the token, but the next part
 * begins behind the white space that it strips: a token of spaces may match within it. */
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
