/* openai_inside.h -- reading one body: what openai.c, openai_fields.c, openai_input.c
 * and openai_sampling.c share.
 *
 * Each openai_take_*() reads one field, or what belongs together, into the request.  A field that
 * is absent or null leaves what stands there.  False: *p says why the request is refused.
 *
 * Private to these files.  Threads: any thread.
 */
#ifndef GATEWAY_OPENAI_OPENAI_INSIDE_H
#define GATEWAY_OPENAI_OPENAI_INSIDE_H

#include "gateway/openai/openai.h"

typedef struct openai_parser {
    const cJSON *body;
    const openai_limits *lim;
    arena *mem;
    openai_request *rq;
    openai_problem *p;
} openai_parser;

/* ---- openai_fields.c: one field of a plain type ------------------------------------------- */

/* There, and not null. */
bool openai_is_set(const cJSON *v);

/* Both return false: a refusal is one line. */
bool openai_no_memory(openai_parser *ps, const char *param);
/* "'name' must be an array of lo to hi items"; lo 0: "of at most hi". */
bool openai_no_array(openai_parser *ps, const char *name, int lo, int hi, const char *items);

/* Notes a field that has no effect: named to the client once, however
 * often it stands there.  True. */
bool openai_ignore(openai_parser *ps, const char *name);
/* The same for a member of a field that is not known; false where the
 * client would rather be refused. */
bool openai_note_unread(openai_parser *ps, const char *where, const char *name);

/* Each reads the member `name` of the body: a whole number or a number within lo and hi, true or
 * false, a string of at most `max` bytes (borrowed from the body). Refused with 400
 * invalid_value and a sentence that has the bounds. */
bool openai_take_int(openai_parser *ps, const char *name, int64_t lo, int64_t hi, int *out);

/* Rounded to f32 after the bounds were checked. */
bool openai_take_num(openai_parser *ps, const char *name, double lo, double hi, float *out);
bool openai_take_bool(openai_parser *ps, const char *name, bool *out);
bool openai_take_str(openai_parser *ps, const char *name, size_t max, const char **out);
/* An array of lo to hi items; *out NULL: it is absent, or has none. */
bool openai_take_array(openai_parser *ps, const char *name, int lo, int hi, const char *items,
                       const cJSON **out);
/* `list` as token ids; `param` names it. */
bool openai_take_ids(openai_parser *ps, const cJSON *list, const char *param, openai_prompt *out);

/* ---- openai_input.c ------------------------------------------------------------------------ */

/* `prompt` of /v1/completions, or `messages` of a chat: fills rq->prompts and rq->n_prompts, or
 * rq->msgs. */
bool openai_take_prompt(openai_parser *ps);
bool openai_take_messages(openai_parser *ps);
/* What the chat template gets beside the messages, and how the answer begins. */
bool openai_take_variables(openai_parser *ps);

/* ---- openai_format.c ----------------------------------------------------------------------- */

/* Fills rq->format, rq->format_param; with a form, ignore_eos has no effect and is
 * named as ignored.  False: *p says why.  A schema that was given as text is
 * parsed: openai_request_clear(). */
bool openai_take_format(openai_request *rq, const cJSON *body, openai_problem *p);

/* ---- openai_tools.c ------------------------------------------------------------------------ */

/* Reads tools, tool_choice and parallel_tool_calls. */
bool openai_take_tools(openai_parser *ps);

/* ---- openai_beams.c ------------------------------------------------------------------------ */

/* n, best_of and the fields of beam search; and, once all is read, what cannot go with them. */
bool openai_take_choices(openai_parser *ps);

/* After all other fields: beam search refuses those that it cannot do (sampling, streams, stop
 * strings, tools), and sets the rest to neutral values. */
bool openai_check_beams(openai_parser *ps);

/* ---- openai_sampling.c --------------------------------------------------------------------- */

/* All rows of engine/sample/sampling_list.h, seed, biases, stop strings and ids, lists of
 * allowed and bad words; then the relations between them. */
bool openai_take_sampling(openai_parser *ps);

/* rq->logprobs, rq->rules.n_top and the mode. */
bool openai_take_logprobs(openai_parser *ps);
/* Of the prompt, in one piece: a stream has begun before they are known. */
bool openai_take_prompt_logprobs(openai_parser *ps);

#endif
