/* openai_format.h -- the fields that say what form an answer must have.
 *
 * Threads: any thread.
 */
#ifndef GATEWAY_OPENAI_OPENAI_FORMAT_H
#define GATEWAY_OPENAI_OPENAI_FORMAT_H

#include "gateway/openai/openai.h"

/* Fills rq->format, rq->format_param; with a form, ignore_eos has no effect and is
 * named as ignored.  False: *p says why.  A schema that was given as text is
 * parsed: openai_request_clear(). */
bool openai_take_format(openai_request *rq, const cJSON *body, openai_problem *p);

#endif
