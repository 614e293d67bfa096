/* grammar.h -- answers that always parse: which tokens may come next.
 *
 * A JSON schema, a regular expression, a list of choices or a context-free grammar becomes one
 * pushdown automaton over bytes.  For each of its states the tokens of the vocabulary are sorted
 * once, lazily, into those that may follow whatever is below on the stack, those that never may,
 * and the few that depend on what is below; only these are tried again for each token made (the
 * split is XGrammar's, Dong et al. 2024).  A row whose mask is not at hand is computed by a
 * helper thread, while all others go on.
 *
 * Ownership: grammars and runs are counted; the cache of compiled grammars belongs to the maker.
 * Threads:   the maker and its grammars: any thread.  A run belongs to one
 *            thread at a time (the gateway
 *            until it submits, then the engine); the helper is given it by
 *            grammar_run_prepare() and
 *            has it until grammar_run_mask() says so.
 */
#ifndef ENGINE_GRAMMAR_GRAMMAR_H
#define ENGINE_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/err.h"
#include "engine/grammar/schema/grammar_documents.h"
#include "engine/text/tokenizer.h"

enum { GRAMMAR_TEXT_MAX = 256 << 10 }; /* bytes of a schema, an expression, ... */

typedef struct grammar_maker grammar_maker; /* one per vocabulary */
typedef struct grammar grammar;
typedef struct grammar_run grammar_run;
typedef struct g_walk grammar_walk; /* scratch of one thread, some 340 KB */

/* Starts the helper thread.  `n_vocab`: ids that the model's logits have.  `tok` must outlive
 * it. */
err_code grammar_maker_create(grammar_maker **out, const tokenizer *tok, int n_vocab, err *e);
/* Schemas may refer to these, in place of all before; takes them.  NULL: none. */
void grammar_maker_take_documents(grammar_maker *m, grammar_documents *d);
/* All runs and grammars must be back. */
void grammar_maker_destroy(grammar_maker *m);

/* GRAMMAR_TAGS: free text in which forms may stand, between marks.  The json is an object:
 *     triggers  texts; one that has come is the beginning of a tag
 *     tags      [{"begin", "schema", "end"}]: each begins with a trigger
 *     heads     triggers that count only where the answer begins
 *     first     the tags of these; behind one of them, "," or ";" leads to another
 *     leads     texts behind which heads count as well
 *     $defs     what schemas refer to, by "#/$defs/.."
 * Tokens that the text does not show (special ones) may come in free text, and are nothing in it;
 * those of which a tag's text is made count as that. */
typedef enum {
    GRAMMAR_SCHEMA,
    GRAMMAR_REGEX,
    GRAMMAR_CHOICE,
    GRAMMAR_TAGS,
    GRAMMAR_CFG, /* context-free: GBNF, or a part of Lark's language */
} grammar_kind;

typedef struct grammar_spec {
    grammar_kind kind;
    const cJSON *json; /* the schema (NULL: any object), strings to choose from, or tags */
    const char *text;  /* GRAMMAR_REGEX: the whole answer matches; GRAMMAR_CFG: the grammar */
} grammar_spec;

/* Compiled, or found in the cache.  ERR_INPUT, ERR_UNSUPPORTED and ERR_LIMIT say what is wrong
 * where ("keyword 'not' at #/properties/x is not supported").  Time and memory are bounded. */
err_code grammar_acquire(grammar_maker *m, const grammar_spec *spec, grammar **out, err *e);
void grammar_release(grammar *g);

/* Where one answer stands.  `stop_id`: tokens that end it, allowed where it is complete; copied.
 * Keeps the grammar.  NULL: no memory. */
grammar_run *grammar_run_create(grammar *g, const int32_t *stop_id, int n_stop_id);

/* Thoughts before the form: anything up to `close`.  Texts are copied, at most 32 tokens each. */
typedef struct grammar_lead {
    const tokenizer *tok; /* must outlive the run */
    int n_vocab;
    const char *open;  /* begins them, where the model wants any; "": they have begun */
    const char *close; /* ends them */
    const char *gap;   /* is written behind that */
    const char *then;  /* is written before the form, with thoughts or without; "": nothing */
    bool once;         /* where there is a budget, `gap` is written however thoughts end */
    int budget;        /* tokens, after which `close` is written; -1: no end */
} grammar_lead;

/* The same behind thoughts.  g NULL: what follows them is free; the budget is kept. */
grammar_run *grammar_run_create_led(grammar *g, const grammar_lead *lead, const int32_t *stop_id,
                                    int n_stop_id);
void grammar_run_release(grammar_run *r); /* the helper may still hold it */

grammar_walk *grammar_walk_create(void);
void grammar_walk_destroy(grammar_walk *w);

/* Bits of the tokens that may come next, [(n_vocab + 31) / 32]; NULL: not ready yet, ask again.  At
 * least one is set unless grammar_run_failed().  Never waits and never takes long. */
const uint32_t *grammar_run_mask(grammar_run *r, grammar_walk *w);

/* Takes one of the tokens that were allowed, and gives the helper the next mask if it is not cheap.
 * Allocates nothing but the small masks of states that no answer has come to before. */
void grammar_run_accept(grammar_run *r, grammar_walk *w, int32_t token);

/* Guesses at the next tokens, n of them, with the chance of each. */
typedef struct grammar_guess {
    int32_t *token; /* [most] */
    double *chance; /* [most] */
    int n, most;
    double sure;  /* chance of a token where the grammar leaves one text */
    int32_t only; /* set by grammar_run_expect(): the first token of such a text; -1: none */
} grammar_guess;

/* What may come behind `last`: as `g` says, up to what the grammar does not allow; and where the
 * grammar leaves one text (or one but for spaces), that.  How the model would cut such a text into
 * tokens is not known, so what `g` says of it stands, if that is as likely.  Then on from there. */
void grammar_run_expect(const grammar_run *r, grammar_walk *w, int32_t last, grammar_guess *g);

/* To be called once before the first mask is asked. */
void grammar_run_prepare(grammar_run *r);
bool grammar_run_ready(const grammar_run *r);   /* grammar_run_mask() would not say NULL */
bool grammar_run_over(const grammar_run *r);    /* complete, and nothing can follow */
bool grammar_run_starved(const grammar_run *r); /* it failed for want of memory */
bool grammar_run_failed(const grammar_run *r); /* too ambiguous to go on: the request fails alone */

#endif
