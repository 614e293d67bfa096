/* openai.h -- the body of /v1/completions and /v1/chat/completions, understood.
 *
 * Turns a parsed JSON body into one checked struct.  Every field of OpenAI's API (and the common
 * extensions of vLLM) is honoured, or refused by name, or ignored and listed in `ignored`, which
 * the gateway sends back as x-ignored-params.  Nothing here knows tenants, adapters or sockets.
 *
 * Ownership: everything lives in the caller's arena or borrows from the cJSON tree, which must
 * outlive the struct.  Threads: any thread.
 */
#ifndef GATEWAY_OPENAI_OPENAI_H
#define GATEWAY_OPENAI_OPENAI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "engine/base/arena.h"
#include "engine/chat/chat.h"
#include "engine/grammar/grammar.h"
#include "engine/sample/beam.h"
#include "engine/sample/sampler.h"

typedef enum {
    TOOL_CHOICE_NONE,
    TOOL_CHOICE_AUTO,
    TOOL_CHOICE_REQUIRED,
    TOOL_CHOICE_NAMED
} tool_choice;

enum {
    OPENAI_STOP_MAX = 16, /* OpenAI's 4, vLLM's no end */
    OPENAI_STOP_BYTES_MAX = 256,
    OPENAI_STOP_ID_MAX = 64,
    OPENAI_BIAS_MAX = 300,
    OPENAI_PROMPT_MAX = 128,
    OPENAI_INPUT_MAX = 2048, /* of /v1/embeddings and its like: OpenAI's */
    OPENAI_MESSAGE_MAX = 2048,
    OPENAI_IGNORED_MAX = 32,
    OPENAI_SALT_MAX = 1024,
    OPENAI_KWARGS_MAX = 32,
    OPENAI_TOOLS_MAX = 128,
    OPENAI_DOCUMENTS_MAX = 256,
    OPENAI_BAD_MAX = 256,
    OPENAI_BAD_WORD_BYTES_MAX = 256,
    OPENAI_ADAPTERS_MAX = 4, /* STACK_PARTS_MAX */
    OPENAI_ADAPTER_SCALE_MAX = 100,
    OPENAI_TEXT_MAX_TOKENS = 16, /* /v1/completions: max_tokens where nothing gives it */
};

/* Why a request is refused; becomes OpenAI's error object. */
typedef struct openai_problem {
    int status;
    const char *type, *code; /* static */
    char param[96];          /* JSON path; empty: null */
    char msg[248];
} openai_problem;

/* What the parser needs to know of the server. */
typedef struct openai_limits {
    int n_vocab;
    const char *base;           /* name of the base model, beside which a field may select */
    int max_context;            /* tokens of prompt and output */
    int max_new_tokens;         /* of an answer, by generation_config.json; 0: not given */
    int max_choices;            /* n x prompts */
    int max_beams;              /* at most BEAMS_MAX; 0: there is no beam search */
    sampling_defaults defaults; /* where the request is silent */
    /* the chat template has such a variable; reads_switch: enable_thinking, thinking */
    bool reads_effort, reads_documents, reads_switch;
    bool thinks; /* it has marks around thoughts, and answers carry these apart */
    /* The body is that of /tokenize: return_token_strs is known, no model is the base. */
    bool tokenize;
    bool strict;            /* a field that has no effect is an error */
    logprobs_mode logprobs; /* where the request is silent */
    bool no_raw;            /* the device has no LOGPROBS_RAW */
} openai_limits;

/* One of several adapters that are to work together. */
typedef struct openai_adapter {
    const char *name; /* as `model` has it */
    float scale;      /* not 0 */
} openai_adapter;

/* A beam search instead of draws. */
typedef struct openai_beams {
    int width; /* beams; 0: answers are drawn */
    float length_penalty;
    beam_ending ending;
} openai_beams;

/* One prompt of /v1/completions: text, or token ids. */
typedef struct openai_prompt {
    const char *text; /* NULL: ids */
    size_t len;
    const char *pair; /* text that stands behind it, with marks of its own; NULL: none */
    size_t pair_len;
    const int32_t *ids;
    int n_ids;
} openai_prompt;

typedef struct openai_request {
    bool chat;
    const char *model;
    openai_adapter adapters[OPENAI_ADAPTERS_MAX];
    int n_adapters; /* 0: the model alone */
    /* chat */
    chat_message *msgs;
    int n_msgs;
    bool add_generation_prompt;
    bool continue_final;          /* the answer goes on with the last message */
    const cJSON *template_kwargs; /* variables of the chat template; NULL: none */
    const cJSON *documents;       /* likewise */
    const char *effort;           /* likewise: reasoning_effort */
    int thinking;                 /* likewise: 1, -1: on, off; 0: as it is */
    int thinking_budget;          /* tokens of thoughts; -1: no end */
    bool hide_thoughts;           /* include_reasoning: false */
    const cJSON *tools;           /* for the model to see; NULL: none */
    const cJSON *callable;        /* those of them that it may call */
    const cJSON *texts;           /* names of those that take a text (custom tools); NULL: none */
    bool guided;                  /* calls in auto are held to their form */
    tool_choice tool_choice;
    const cJSON *tool_named; /* the function that must be called */
    bool one_call;
    /* text */
    openai_prompt *prompts;
    int n_prompts; /* 1 for chat */
    bool echo;
    bool add_special_tokens;
    bool plain_special; /* parse_special: false; a special token's text is text like any other */

    int n;      /* choices made per prompt */
    int n_best; /* of them, those that are returned; fewer: those with the best mean logprob */
    openai_beams beams;
    int max_tokens; /* -1: as many as fit */
    sampling rules; /* without the model's stop ids, and with seed only if seed_given */
    bool seed_given;
    const int32_t *allowed; /* [n_allowed]: nothing but these may come; NULL: anything */
    int n_allowed;
    const char **bad; /* [n_bad]: words that must not come */
    int n_bad;
    const char *stop[OPENAI_STOP_MAX];
    size_t stop_len[OPENAI_STOP_MAX];
    int n_stop;
    bool include_stop; /* the stop string stays in the text */
    bool keep_special; /* skip_special_tokens: false */
    bool logprobs;
    /* prompt_logprobs: log-probabilities of the prompt with so many alternatives; -1: not asked */
    int prompt_top;
    bool return_token_ids, return_token_strs;
    bool ids_for_tokens; /* return_tokens_as_token_ids: log-probabilities name tokens so */
    int truncate_prompt; /* keep the last so many prompt tokens; -1: all */

    bool stream, include_usage, continuous_usage;
    const char *service_tier; /* NULL: auto */
    const char *cache_salt;   /* NULL: none */
    int priority;             /* vLLM's: lower is sooner; 0 where service_tier says it */

    const char *format_param; /* the field that says what form the answer has; NULL: none */
    grammar_spec format;
    cJSON *format_tree; /* owned: a schema that came as text, or was made of tools */
    cJSON *owned;       /* what messages were turned into */

    const char *ignored[OPENAI_IGNORED_MAX]; /* names of fields that had no effect */
    int n_ignored;
} openai_request;

/* raw_logprobs, processed_logprobs, adjusted_logprobs; false: another word. */
bool openai_logprobs_mode(const char *word, logprobs_mode *out);

/* The ids of a parsed request against the vocabulary of its model, which may be
 * smaller than openai_limits'. */
bool openai_check_ids(const openai_request *rq, int n_vocab, openai_problem *p);

/* A body of json_parse(); *out borrows from it.  False: *p says why. */
bool openai_parse(openai_request *out, bool chat, const cJSON *body, const openai_limits *lim,
                  arena *a, openai_problem *p);

/* The member `name` of a body: a text, token ids, or up to OPENAI_INPUT_MAX of either, into
 * out->prompts; ids are below n_vocab. */
bool openai_parse_inputs(openai_request *out, const cJSON *body, const char *name, int n_vocab,
                         arena *a, openai_problem *p);

/* Frees what is not in the arena; a zeroed struct is fine. */
void openai_request_clear(openai_request *rq);

/* A field by which other servers let a request select an adapter (SGLang's lora_path, LoRAX' and
 * TGI's adapter_id, ...). */
bool openai_selects_adapter(const char *field);
/* Where *model is the base and the body has such a field, *model becomes the adapter's name.
 * False: the field is no name, or names another adapter than 'model'; *p says how to select. */
bool openai_select_adapter(const cJSON *body, const char *base, const char **model,
                           openai_problem *p);

/* Fills *p; returns false, so that a refusal is one line. */
bool openai_refuse(openai_problem *p, int status, const char *code, const char *param,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#endif
