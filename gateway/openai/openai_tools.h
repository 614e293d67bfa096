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

/* Where the answer must be a call: the schema of its object, as the model's style has it, becomes
 * the request's form.  False: *p says why. */
bool openai_force_call(openai_request *rq, tool_style style, openai_problem *p);

#endif
