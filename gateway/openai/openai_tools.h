/* openai_tools.h -- tools, tool_choice and the messages that go with them.
 *
 * Threads: any thread; like openai.h.
 */
#ifndef GATEWAY_OPENAI_OPENAI_TOOLS_H
#define GATEWAY_OPENAI_OPENAI_TOOLS_H

#include "gateway/openai/openai.h"
#include "gateway/openai/tool_reader.h"

/* Reads tools, tool_choice and parallel_tool_calls into *rq; false: *p says why. */
bool openai_take_tools(openai_request *rq, const cJSON *body, openai_problem *p);

/* An assistant's tool_calls of message `index`: their arguments, JSON in a text, become objects
 * (owned by *rq).  False: *p says why. */
bool openai_take_calls(openai_request *rq, const cJSON *calls, int index, chat_message *m,
                       openai_problem *p);

/* What calls must look like becomes the request's form, as the model's style has it: the whole
 * answer where it must be one, else each call in it, as its template `ct` writes them.  False: *p
 * says why. */
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

#endif
