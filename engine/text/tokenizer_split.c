/* tokenizer_split.c -- the steps, one after the other, over one text with marks where pieces
 * begin.
 *
 * A step only ever adds marks: pieces become smaller from step to step.
 *
 * Nothing is copied between steps: a step goes through the pieces that the marks of earlier ones
 * make, searches each by its expression, and marks the spans that are found and those between
 * them, joined as the step's behaviour says. Characters of removed spans stay in the text with
 * the mark SPLIT_GONE. Only put_spaces(), of Metaspace, makes a new text.
 *
 * Each character is a number with the kinds of Unicode that expressions ask for, so a search
 * looks nothing up.
 */
#include "engine/text/tokenizer_split.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

bool splitter_add(splitter *s, split_step step)
{
    if (s->n == SPLIT_STEPS_MAX) return false;
    s->steps[s->n++] = step;
    return true;
}

void splitter_clear(splitter *s)
{
    for (int i = 0; i < s->n; i++) split_regex_destroy(s->steps[i].regex);
    s->n = 0;
}

size_t split_text_piece(const split_text *t, size_t from)
{
    size_t end = from + 1;
    while (end < t->n && !(t->marks[end] & SPLIT_BEGINS)) end++;
    return end;
}

void split_text_clear(split_text *t)
{
    free(t->c);
    free(t->marks);
    *t = (split_text){0};
}

/* Whether a span belongs to the piece of the one before it. */
static bool joins(split_behavior b, bool found, bool before)
{
    switch (b) {
    case SPLIT_CONTIGUOUS: return found == before;
    case SPLIT_WITH_PREVIOUS: return found && !before;
    case SPLIT_WITH_NEXT: return !found && before;
    case SPLIT_ISOLATED:
    case SPLIT_REMOVED: break;
    }
    return false;
}

/* The spans of one piece, in order: `before` is whether the one before was found. */
typedef struct {
    const split_step *step;
    split_text *t;
    size_t begin;
    bool before;
} spans;

static void take_span(spans *p, size_t from, size_t to, bool found)
{
    found = found != p->step->invert;
    if (from == to) return;
    bool one = from > p->begin && joins(p->step->behavior, found, p->before);
    bool gone = found && p->step->behavior == SPLIT_REMOVED;
    if (!one) p->t->marks[from] = SPLIT_BEGINS | (gone ? SPLIT_GONE : 0);
    p->before = found;
}

static void cut_piece(split_search *s, const split_step *step, split_text *t, size_t from,
                      size_t to)
{
    spans p = {.step = step, .t = t, .begin = from};
    size_t start, end;
    split_search_piece(s, from, to);
    while (split_search_next(s, from, &start, &end)) {
        take_span(&p, from, start, false);
        take_span(&p, start, end, true);
        from = end;
    }
    take_span(&p, from, to, false);
}

/* Marks only appear where this step has been: behind that, pieces are still the old ones. */
static bool cut(const split_step *step, split_search *s, split_text *t)
{
    split_search_text(s, step->regex, t->c, t->n);
    for (size_t i = 0, end; i < t->n && !s->no_memory; i = end) {
        end = split_text_piece(t, i);
        if (!(t->marks[i] & SPLIT_GONE)) cut_piece(s, step, t, i, end);
    }
    return !s->no_memory;
}

static bool put_spaces(split_text *t)
{
    split_text more = {.c = malloc((2 * t->n + 1) * sizeof(*more.c)),
                       .marks = calloc(2 * t->n + 1, 1)};
    bool ok = more.c && more.marks;
    uint32_t space = unicode_with_kind(' ');
    for (size_t i = 0; ok && i < t->n; i++) {
        more.marks[more.n] = t->marks[i];
        if ((t->marks[i] & SPLIT_BEGINS) && t->c[i] != space) more.c[more.n++] = space;
        more.c[more.n++] = t->c[i];
    }
    if (!ok) {
        split_text_clear(&more);
        return false;
    }
    split_text_clear(t);
    *t = more;
    return true;
}

static bool decode(split_text *out, const char *text, size_t len)
{
    out->c = malloc((len + 1) * sizeof(*out->c));
    out->marks = calloc(len + 1, 1);
    if (!out->c || !out->marks) return false;
    for (size_t i = 0, used; i < len; i += used)
        out->c[out->n++] = unicode_with_kind(utf8_decode(text + i, len - i, &used));
    out->marks[0] = SPLIT_BEGINS;
    return true;
}

bool splitter_run(const splitter *s, const char *text, size_t len, split_text *out)
{
    split_search search = {0};
    *out = (split_text){0};
    bool ok = decode(out, text, len);
    for (int i = 0; i < s->n && ok; i++)
        ok = s->steps[i].regex ? cut(&s->steps[i], &search, out) : put_spaces(out);
    out->steps = search.steps;
    split_search_clear(&search);
    return ok;
}
