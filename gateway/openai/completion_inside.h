/* completion_inside.h -- one HTTP request for text: what the completion_*.c files share, in the
 * order of its life.  Private to them.
 *
 * Ownership: a completion lives on its worker's stack (completion.c makes and frees it).
 * Threads: that worker; the engine writes into each choice's request alone.
 */
#ifndef GATEWAY_OPENAI_COMPLETION_INSIDE_H
#define GATEWAY_OPENAI_COMPLETION_INSIDE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "adapters/store/stacks.h"
#include "engine/chat/thinking.h"
#include "engine/sched/request.h"
#include "gateway/auth.h"
#include "gateway/http/exchange.h"
#include "gateway/inflight.h"
#include "gateway/limits.h"
#include "gateway/move/mover.h"
#include "gateway/openai/completion_door.h"
#include "gateway/openai/completion_text.h"
#include "gateway/openai/openai.h"
#include "gateway/openai/openai_reply.h"
#include "gateway/openai/openai_tools.h"
#include "gateway/openai/vocabulary.h"
#include "gateway/server.h"
#include "storage/targets.h"

/* One choice: a request in the engine and the text made of its tokens. */
typedef struct choice {
    request rq;
    meter_slot *slot; /* with rq.meter, until it is settled */
    inflight_entry live;
    uint64_t usage_id;
    completion_text text;
    thinking_reader thoughts; /* with c->thinking: the text in two */
    tool_reader tools;        /* with c->tools: what the text says */
    openai_prompt prompt;     /* ids, always */
    pooling pool;             /* with c->pooled: what it becomes */
    int index;
    int n_taken;   /* tokens popped from the ring */
    int n_beyond;  /* of these, made behind the end that only its text has: nobody pays for them */
    int n_shown;   /* of these, sent to the client with their log-probabilities */
    int n_text;    /* tokens that count as text: without the one that stopped it */
    int n_thought; /* of these, thoughts and their marks */
    size_t offset; /* bytes of text before the tokens not yet shown */
    bool submitted, done, started, told_prompt;
    bool leaving;    /* it was asked to leave the engine, and is not moved yet */
    bool booked;     /* settled before the others, with so many tokens from the cache: */
    uint32_t cached; /* (its meter may be another request's) */
    int32_t stop_token;
    const char *finish; /* OpenAI's word; NULL while running */
} choice;

typedef struct completion {
    exchange *x;
    server *srv;
    const completion_door *door; /* NULL: OpenAI's own chat and text */
    void *door_state;
    bool drop_oldest;
    const completion_pooled *pooled; /* NULL: text is made */
    pooled_model by;                 /* with it */
    bool classify;
    openai_request rq;
    openai_problem problem;
    const adapter_version *adapter;               /* NULL: the bare base, or a stack */
    const stack *stack;                           /* several adapters together; NULL: none */
    const adapter_version *part[STACK_PARTS_MAX]; /* of it, in the order of rq.adapters */
    const adapter_version *counted;               /* whose own limits hold; NULL: nobody's */
    const vocabulary *vocab; /* the adapter's, or the base's; NULL: not known yet */
    tool_style tools;        /* how calls are written; TOOLS_NONE: they are not looked for */
    thinking_style thinking; /* how thoughts are; THINKING_NONE: likewise */
    thinking_start start;    /* of its prompt */
    grammar *form;           /* what the answer must be; NULL: text */
    bars *bars;              /* what it must not have; NULL: nothing is barred */
    /* For usage: "base", "name@7", "one@3*0.5+two@1*-1". */
    char label[MODEL_LABEL_MAX + 1];
    int slo_class;
    char tier[CLASS_WORD_MAX + 1]; /* what answers call the class */
    choice *choices;
    int n_choices;
    int n_begun;           /* of them; fewer than all: the others follow as these end */
    bool closed;           /* no more are begun */
    int64_t booked_tokens; /* of those that are booked, and */
    uint64_t turn;         /* what is to be waited for */
    bool refused;          /* c->problem says why not all could be */
    request_signal signal;
    limits_ticket ticket;
    bool stream_open, client_gone;
    bool starved; /* text was lost for want of memory: no answer may be made of the rest */
    bool asked_to_leave;
    bool numbered;    /* its events bear numbers, and */
    int resume_after; /* those up to that one are not sent (-1: all are); text is cut there: */
    bool past_seam;   /* so many tokens have been taken */
    atomic_bool stop; /* an operator wants it ended */
    jsonw out;
    char id[64];
    int64_t started_wall_us, started_us, first_token_us;
    int64_t limits_us;                /* in which its limits were looked up */
    int64_t stalled_us;               /* in which its worker had work, and did not run */
    bool traced;                      /* its spans are wanted */
    int64_t submitted_us, settled_us; /* for them; 0: it did not come to that */
    openai_usage used;                /* what completion_log() has counted */
    int status;
} completion;

/* What usage rows call the API, and whose they are: the adapter's that was asked for, invoked or
 * not; 0: the base's, or a stack's, whose parts the label names. */
const char *completion_endpoint(const completion *c);
/* When it began, for the books: on the day whose budget it was taken from. */
int64_t completion_booked_us(const completion *c);
uint64_t completion_adapter_id(const completion *c);

/* c->problem from an error; param may be NULL.  Always false. */
bool completion_refuse(completion *c, const err *e, const char *param);
/* The same where memory is short: 503, to be tried again. */
bool completion_no_memory(completion *c);
/* And where usage can be kept for those that run alone. */
bool completion_no_spool(completion *c);

/* ---- completion_admit.c: everything that may refuse before there is work ---- */

/* Body, model (pinned), ids, class, limits (reserved), form, room for the choices.
 * False: c->problem says why (status 0: answered already); what was taken stays in c
 * for its end to give back. */
bool completion_admit(completion *c, bool chat);
/* Pins the version that a name of the caller's means.  False: c->problem says why, of `param`. */
bool completion_pin(completion *c, const char *name, const char *param,
                    const adapter_version **out);
/* "owner/name@7" where it is another tenant's, else "name@7". */
void completion_label(const completion *c, const char *name, const adapter_version *v, char *out,
                      size_t cap);
/* Tokens that one prompt may produce. */
int completion_output_room(const completion *c, const openai_prompt *p);

/* ---- completion_stack.c: several adapters at once ---- */

/* The stack that the body asks for, pinned.  False: c->problem. */
bool completion_resolve_stack(completion *c);
/* The same where `model`, which names no adapter, names a stack; false: c->problem says why, as it
 * did before where it names nothing. */
bool completion_resolve_named(completion *c);

/* ---- completion_choice.c: choices and the engine ---- */

/* Meter slots, then all to the scheduler, of pooled ones as many as run at once.  False:
 * c->problem; some may have been submitted. */
bool completion_submit(completion *c);
/* Some have ended: as many of the others follow.  Those that the scheduler refuses wait for the
 * next time, if others run. */
void completion_submit_more(completion *c);
void completion_cancel(completion *c);
/* The server drains, and others of its fleet take what runs: all that can be leaves the engine, and
 * completion_take() has it go on there. */
void completion_leave(completion *c);
/* Takes what the engine has made for one choice.  True if there is news for the client. */
bool completion_take(completion *c, choice *ch);
/* Tokens that are paid for. */
uint32_t completion_made(const choice *ch);
/* Retry-After, for a choice that the scheduler refused. */
void completion_say_when(completion *c, const choice *ch);

/* ---- completion_answer.c, streams that go on ---- */

/* What the client's x-lorad-resume asks for, once model and body are known.  False: c->problem. */
bool completion_resume(completion *c);
/* Tokens of the answer so far, the same whenever it is made. */
int completion_tokens(const choice *ch);
/* Is this where the client's text ends?  What it has is to be taken alone. */
bool completion_at_seam(const completion *c, const choice *ch);
/* Begins an event with its number, where events have some; false: the client has it. */
bool completion_number(completion *c, int n);

/* ---- completion_pooled.c: prompts that become vectors ---- */

/* The body; and once the model is known its prompts, in ids.  False: c->problem. */
bool completion_pooled_read(completion *c, const cJSON *body);
bool completion_pooled_prompts(completion *c);
void completion_pooled_compose(completion *c);

/* ---- completion_settle.c: the ledger, the limits, the log ---- */

/* What the log line says: of all choices the tokens, of the first one the times.  Before
 * completion_settle(). */
void completion_log(completion *c);
/* Charges the limits, and hands the rows to the settler (storage/settler.h): they outlive kill -9
 * before the last byte goes out, and are durable by then where the database is healthy.  Needs no
 * memory.  The counts go with the slots: completion_usage() has no answer any more. */
void completion_settle(completion *c);
/* One of many pooled prompts is done, and others need its place: its row alone. */
void completion_settle_one(completion *c, choice *ch);
/* Its spans, once its answer is written (gateway/watch/spans.h). */
void completion_trace(const completion *c);

/* ---- completion_answer.c: what the client reads ---- */

/* What has been counted so far.  Before completion_settle(). */
void completion_usage(const completion *c, openai_usage *u);
/* The status line, once.  False: the client is gone. */
bool completion_open_stream(completion *c);
/* Appends the chunks of one choice that there is something to say about. */
void completion_add_news(completion *c, choice *ch);
void completion_flush(completion *c);
/* The whole answer, or the end of a stream, before its usage is settled: an answer that there is no
 * memory for must not be paid.  False: c->problem. */
bool completion_compose(completion *c);
void completion_send(completion *c);

#endif
