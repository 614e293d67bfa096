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
#include "gateway/adapter_parts.h"
#include "gateway/auth.h"
#include "gateway/engine_parts.h"
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
#include "gateway/process_parts.h"
#include "gateway/tenant_parts.h"
#include "storage/ledger.h"
#include "storage/meter_file.h"
#include "storage/targets.h"

typedef struct server server;

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
    request_beams beams;      /* of the first choice of a prompt that is searched for */
    int index;
    int n_taken;   /* tokens popped from the ring */
    int n_beyond;  /* of these, made behind the end that only its text has: nobody pays for them */
    int n_shown;   /* of these, sent to the client with their log-probabilities */
    int n_text;    /* tokens that count as text: without the one that stopped it */
    int n_thought; /* of these, thoughts and their marks */
    size_t offset; /* bytes of text before the tokens not yet shown */
    bool submitted, done, started, told_prompt;
    bool dropped;    /* the beam search found fewer answers: it is none */
    bool leaving;    /* it was asked to leave the engine, and is not moved yet */
    bool abroad;     /* another node computes its prompt, unless that node refused */
    bool returned;   /* that node has made its first token, and it goes on here */
    bool placed;     /* it was decided where its tokens are generated */
    int chosen;      /* with leaving: where it goes on (gateway/move/roster.h) */
    move_from from;  /* with returned: the node that has its pages */
    bool booked;     /* settled before the others, with so many tokens from the cache: */
    uint32_t cached; /* (its meter may be another request's) */
    int32_t stop_token;
    const char *finish; /* OpenAI's word; NULL while running */
} choice;

/* What the choices that are settled have used; `turn` is to be waited for (settler_await()). */
typedef struct completion_booked {
    int64_t tokens, cost;
    uint64_t turn;
} completion_booked;

enum { CASCADE_TRAIL_BYTES = 480 };

/* The step of a cascade that a completion is (completion_cascade.c); of 0: its model is none. */
typedef struct completion_step {
    int of;       /* steps of the cascade */
    double least; /* if bounded: the lowest mean log-probability of a good answer */
    bool bounded;
    bool complete; /* an answer that its limit of tokens has cut is not kept */
    bool held;     /* it has checks: nothing is sent before they have passed */
} completion_step;

/* ---- requested: what the client asked for, and by which API */
typedef struct completion_ask {
    const completion_door *door; /* NULL: OpenAI's own chat and text */
    void *door_state;
    bool drop_oldest;
    const completion_pooled *pooled; /* NULL: text is generated */
    pooled_model by;                 /* valid with `pooled` */
    bool classify;
    bool numbered;     /* its events have numbers */
    int resume_after;  /* events up to this number are not sent; -1: all are sent */
    bool traced;       /* its spans are wanted */
    const cJSON *body; /* as the door has translated it; NULL: not yet */
    int step;          /* of a cascade */
    char *trail;       /* what its steps came to, for the answer's header: CASCADE_TRAIL_BYTES */
} completion_ask;

/* ---- admitted: what is pinned or reserved for it (completion_admit.c) */
typedef struct completion_use {
    const adapter_version *adapter;               /* NULL: the bare base, or a stack */
    const stack *stack;                           /* several adapters together; NULL: none */
    const adapter_version *part[STACK_PARTS_MAX]; /* of the stack, in the order of rq.adapters */
    const adapter_version *counted;               /* adapter whose own limits apply; NULL: none */
    const vocabulary *vocab; /* the adapter's, or the base's; NULL: not known yet */
    tool_style tools;        /* format of tool calls; TOOLS_NONE: they are not parsed */
    thinking_style thinking; /* format of thoughts; THINKING_NONE: they are not parsed */
    thinking_start start;    /* whether the prompt ends within thoughts */
    completion_step cascade;
    grammar *form; /* structured output; NULL: text */
    bars *bars;    /* tokens and words that must not come; NULL: none */
    /* For usage: "base", "name@7", "one@3*0.5+two@1*-1". */
    char label[MODEL_LABEL_MAX + 1];
    int slo_class;
    char tier[CLASS_WORD_MAX + 1]; /* name of the class in answers */
    limits_ticket ticket;
    token_price price; /* as it was when its limits were reserved */
    int64_t limits_us; /* time that looking up its limits took */
    int64_t encode_us; /* processor time of other threads, for long texts */
} completion_use;

/* ---- running: its choices in the engine (completion_choice.c) */
typedef struct completion_run {
    choice *choices;
    int n_choices;
    int n_begun; /* choices submitted; the others follow when these end */
    bool closed; /* no more are submitted */
    completion_booked booked;
    bool refused; /* problem says why not all could be submitted */
    request_signal signal;
    bool starved; /* text was lost for want of memory: no answer may be made of the rest */
    bool asked_to_leave;
    bool past_seam;             /* the tokens that resume_after stands for have been taken */
    atomic_bool stop;           /* an operator cancels it */
    _Atomic int64_t writing_us; /* start of a write that waits for the client to read; 0: none */
    bool client_gone;
    int64_t stalled_us; /* time in which its worker had work, and did not run */
} completion_run;

/* ---- answered (completion_answer.c) */
typedef struct completion_reply {
    bool stream_open;
    jsonw out;
    char id[64];
    openai_usage used; /* what completion_log() has counted */
    int status;
} completion_reply;

typedef struct completion_times {
    int64_t started_wall_us, started_us, first_token_us;
    int64_t submitted_us, settled_us; /* for spans; 0: it was not submitted, not settled */
} completion_times;

typedef struct completion {
    exchange *x;
    server *srv;
    openai_request rq;
    openai_problem problem;
    completion_ask ask;
    completion_use use;
    completion_run run;
    completion_reply reply;
    completion_times times;
} completion;

/* What usage rows call the API, and whose they are: the adapter's that was asked for, invoked or
 * not; 0: the base's, or a stack's, whose parts the label names. */
const char *completion_endpoint(const completion *c);
/* When it began, for the books: on the day whose budget it was taken from. */
int64_t completion_booked_us(const completion *c);

/* The version that answers; 0: the base, or a stack. */
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
/* The same sentence for a model that is unknown and one that this key may not use.  False. */
bool completion_no_such_model(completion *c, const char *name, const char *param);
/* Pins the version that a name of the caller's means.  False: c->problem says why, of `param`. */
bool completion_pin(completion *c, const char *name, const char *param,
                    const adapter_version **out);
/* The base, or an adapter, answers alone: pinned, and named for usage.  False: c->problem. */
bool completion_use_model(completion *c, const char *name, const char *param);
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

/* ---- completion_cascade.c: models that are asked one after another ---- */

/* Pins the model of the step that it is.  False: c->problem. */
bool completion_take_step(completion *c, const cJSON *steps);
/* Whether the next step must answer; after all choices of this one have ended well. */
bool completion_fails_checks(const completion *c);
/* Adds this step to the trail: its model, and the mean log-probability where a bound checks it. */
void completion_note_step(completion *c);
/* Header and log: the steps so far.  Before the answer begins. */
void completion_tell_cascade(completion *c);

/* ---- completion_choice.c: choices and the engine ---- */

/* Meter slots, then all to the scheduler, of pooled ones as many as run at once.  False:
 * c->problem; some may have been submitted. */
bool completion_submit(completion *c);
/* Some have ended: as many of the others follow.  Those that the scheduler refuses wait for the
 * next time, if others run. */
void completion_submit_more(completion *c);

/* Asks the scheduler to end all choices that it has; they still end one by one. */
void completion_cancel(completion *c);
/* Takes what the engine has made for one choice.  True if there is news for the client. */
bool completion_take(completion *c, choice *ch, int most);
/* Frees what completion_submit() made for its beam search, after the end. */
void completion_beams_clear(choice *ch);
/* Output tokens of the choice that are billed. */
uint32_t completion_made(const choice *ch);
/* Sets Retry-After if the scheduler refused the choice. */
void completion_say_when(completion *c, const choice *ch);

/* ---- completion_place.c: choices that other nodes of the fleet work on ---- */

/* Has another node compute the prompt, if that pays by the nodes' roles; else, if another node will
 * generate its tokens, tells that node the adapter.  False: this engine must have it. */
bool completion_place_prompt(completion *c, choice *ch);
/* After news was sent to the client: goes on with choices whose first token another node has made,
 * and gives away those that other nodes should go on with. */
void completion_place_streams(completion *c);
/* The server drains, and others of its fleet take what runs: all that can be leaves the engine, and
 * completion_take() has it go on there. */
void completion_leave(completion *c);
/* Who had it has ended its part.  False: it has ended as a whole. */
bool completion_left(completion *c, choice *ch);

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

/* Also checks that the model can do what is asked, and the number of inputs. Takes ids, or
 * tokenizes. */
bool completion_pooled_prompts(completion *c);

/* Writes the answer of all inputs into c->reply; c->run.starved: no memory for it. */
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

/* Of its tokens; -INFINITY where it has none, or their log-probabilities were not computed. */
double completion_mean_logprob(const choice *ch);

/* What has been counted so far.  Before completion_settle(). */
void completion_usage(const completion *c, openai_usage *u);
/* The status line, once.  False: the client is gone. */
bool completion_open_stream(completion *c);
/* Appends the chunks of one choice that there is something to say about. */
void completion_add_news(completion *c, choice *ch);

/* Sends what c->reply holds to a client that is still there, and empties it. A write that fails
 * marks the client as gone. */
void completion_flush(completion *c);
/* The whole answer, or the end of a stream, before its usage is settled: an answer that there is no
 * memory for must not be paid.  False: c->problem. */
bool completion_compose(completion *c);

/* Sends what completion_compose() made; not for a starved completion. */
void completion_send(completion *c);

#endif
