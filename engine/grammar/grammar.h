/* grammar.h -- constrained decoding: which tokens may come next.
 *
 * A JSON schema, a regular expression, a list of choices or a context-free grammar is compiled into
 * one pushdown automaton over bytes. The tokens of the vocabulary are sorted once per automaton
 * state, on demand, into three groups: allowed for every stack, never allowed, and dependent on the
 * stack. Only the last group is tested for each generated token (XGrammar, Dong et al. 2024, arXiv
 * 2411.15100).
 *
 *   grammar_acquire()      compile or find in the cache      any thread
 *   grammar_run_create()   one answer, at the start state    gateway worker
 *   grammar_run_mask()     bitmap for the sampler            engine thread, never blocks
 *   grammar_run_accept()   advance by the sampled token      engine thread
 *
 * A mask that is expensive is computed by a helper thread; until then grammar_run_mask() returns
 * NULL and the other sequences of the batch go on.
 *
 * Ownership: grammars and runs are reference-counted; the cache belongs to the maker. Threads: the
 * maker and its grammars, any thread. A run belongs to one thread at a time: the gateway until it
 * submits, then the engine. grammar_run_prepare() lends it to the helper until grammar_run_still().
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

/* Starts the helper thread. `n_vocab`: number of logits of the model. `tok` must outlive the maker.
 */
err_code grammar_maker_create(grammar_maker **out, const tokenizer *tok, int n_vocab, err *e);
/* Replaces the documents that `$ref` can name, and empties the cache; takes ownership of `d`. NULL:
 * none. */
void grammar_maker_take_documents(grammar_maker *m, grammar_documents *d);
/* All runs and grammars must have been released. */
void grammar_maker_destroy(grammar_maker *m);

/* GRAMMAR_TAGS: free text in which forms may stand, between marks.  The json is an object:
 *     triggers  texts; one that has come is the beginning of a tag
 *     tags      [{"begin", "schema", "end"}]: each begins with a trigger
 *     heads     triggers that count only where the answer begins
 *     first     the tags of these; behind one of them, "," or ";" leads to another
 *     leads     texts behind which heads count as well
 *     marks     texts that tags have inside, of which special tokens may be made, too
 *     $defs     what schemas refer to, by "#/$defs/.."
 *     answer    {"kind", "json", "text"}, a grammar_spec: no text is free; the whole answer is of
 *               this form, or one tag or several.  ERR_INPUT where the form can begin as a tag does
 *     lead      with an answer: a text before it
 *     before    with an answer: texts one of which may stand before the first tag
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

/* The grammar of the answer inside the json of GRAMMAR_TAGS; `out` borrows from it. False: it has
 * none. */
bool grammar_answer_of(const grammar_spec *tags, grammar_spec *out);

/* Compiled, or found in the cache.  ERR_INPUT, ERR_UNSUPPORTED and ERR_LIMIT say what is wrong
 * where ("keyword 'not' at #/properties/x is not supported").  Time and memory are bounded. */
err_code grammar_acquire(grammar_maker *m, const grammar_spec *spec, grammar **out, err *e);

/* Gives back what grammar_acquire() gave; the last one frees it. NULL is fine. Any thread. */
void grammar_release(grammar *g);

/* One answer at the start of its grammar. `stop_id`: tokens that end it, allowed where it is
 * complete; copied. Holds a reference to the grammar. NULL: no memory. */
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
/* Copies the position of `from` into `to`. Both were created with the same arguments, and neither
 * is with the helper. If memory runs out, grammar_run_starved(to) is true. */
void grammar_run_copy(grammar_run *to, const grammar_run *from);

/* Scratch for one thread that computes masks; NULL: no memory. */
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
bool grammar_run_still(const grammar_run *r);   /* the helper is not at work on it */
bool grammar_run_over(const grammar_run *r);    /* complete, and nothing can follow */
bool grammar_run_starved(const grammar_run *r); /* it failed for want of memory */
bool grammar_run_failed(const grammar_run *r); /* too ambiguous to go on: the request fails alone */

#endif
