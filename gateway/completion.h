/* completion.h -- POST /v1/chat/completions and POST /v1/completions, from body to last byte.
 *
 * Runs on a civetweb worker: parse, resolve the model to one pinned adapter version, tokenise,
 * reserve limits, lend one request per choice to the scheduler, then turn tokens into text as they
 * come, streamed or gathered.  A client that goes away cancels all its choices.  The usage row is
 * durable before the last byte is sent, on every way out.
 *
 * Threads: inference workers.
 */
#ifndef GATEWAY_COMPLETION_H
#define GATEWAY_COMPLETION_H

struct exchange;

void completion_handle_chat(struct exchange *x);
void completion_handle_text(struct exchange *x);

#endif
