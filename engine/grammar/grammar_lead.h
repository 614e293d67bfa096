/* grammar_lead.h -- what comes before a form: a model's thoughts, free text up to a mark.
 *
 * Says which tokens may come while it rules: anything between the marks (but for what would end the
 * answer before its form), then, token by token, what is written without asking the model: the mark
 * when the budget is spent, the text between it and the form.
 *
 * Private to engine/grammar/.  Ownership: its run's.  Threads: the run's.
 */
#ifndef ENGINE_GRAMMAR_GRAMMAR_LEAD_H
#define ENGINE_GRAMMAR_GRAMMAR_LEAD_H

#include "engine/grammar/grammar.h"

typedef struct g_lead g_lead;

/* `form`: one follows; else anything does, without end.  `loose`: the form is free text with tags,
 * which may come without thoughts, and they without it.  NULL: no memory. */
g_lead *lead_create(const grammar_lead *spec, bool form, bool loose, const int32_t *stop_id,
                    int n_stop_id);
void lead_destroy(g_lead *l);
/* Of the same spec. */
void lead_copy(g_lead *to, const g_lead *from);

/* It says what may come; false: the form does, from here on. */
bool lead_rules(const g_lead *l);
/* What may come is also what the form may begin with. */
bool lead_asks_form(const g_lead *l);
/* `form`: its mask where lead_asks_form(). */
const uint32_t *lead_mask(g_lead *l, const uint32_t *form);
/* Takes a token that was allowed, under the same `form`.  True: it is the form's first. */
bool lead_accept(g_lead *l, int32_t token, const uint32_t *form);
/* The bytes of the token just taken that stand behind the mark, where a loose form follows. */
const char *lead_rest(const g_lead *l, size_t *len);

#endif
