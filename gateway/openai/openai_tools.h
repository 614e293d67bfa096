/* openai_tools.h -- tools, tool_choice and the messages that go with them.
 *
 * Threads: any thread; like openai.h.
 */
#ifndef GATEWAY_OPENAI_OPENAI_TOOLS_H
#define GATEWAY_OPENAI_OPENAI_TOOLS_H

#include "gateway/openai/openai.h"
#include "gateway/openai/tools/tool_reader.h"

/* An assistant's tool_calls of message `index`: arguments that are the text of a JSON object become
 * that object, others stay text (owned by *rq).  False: *p says why. */
bool openai_take_calls(openai_request *rq, const cJSON *calls, int index, chat_message *m,
                       openai_problem *p);

/* Arguments that stayed text become the nearest object, for a template that needs one.  False:
 * there are none. */
bool openai_mend_calls(const openai_request *rq);

/* Whether tools, calls or their results are among what the model is to see. */
bool openai_has_tools(const openai_request *rq);

/* For a chat template without tools: they become text of the messages, in the way of TOOLS_LLAMA.
 * False: no memory, *p says it. */
bool openai_tell_tools(openai_request *rq, openai_problem *p);

/* For a chat template that writes no calls: earlier ones and their results become such text. */
bool openai_tell_history(openai_request *rq, openai_problem *p);

/* What calls must look like becomes the request's form, as the model's style has it: the whole
 * answer where it must be one, else each call in it, as its template `ct` writes them.  A format
 * that the request asks for is then that of an answer without calls.  False: *p says why. */
bool openai_form_calls(openai_request *rq, tool_style style, const chat_template *ct,
                       openai_problem *p);

/* Calls in auto are as the model writes them: what asked for more is refused, or ignored by
 * name. */
bool openai_free_calls(openai_request *rq, openai_problem *p);

/* A form of calls in auto cannot be compiled: arguments that are not asked to be strict become any
 * object, where theirs is the schema that cannot, and that is noted as ignored.  ERR_UNSUPPORTED: a
 * strict one's; *e says why. */
err_code openai_loosen_calls(openai_request *rq, grammar_maker *m, err *e);

/* References inside a schema lead from its own root, which lies at #/$defs/f<fn> now.  Sets *failed
 * when memory is short. */
void openai_move_refs(cJSON *s, int fn, bool *failed);

/* Keeps `tree` (NULL: nothing) until the request is cleared.  False: no memory; the tree is still
 * the caller's. */
bool openai_own(openai_request *rq, cJSON *tree);

#endif
