/* tool_reader.h -- tool calls in what a model writes, piece by piece as it comes.
 *
 * The families' ways of writing them:
 *   TOOLS_HERMES   <tool_call> {"name": .., "arguments": {..}}
 *                  </tool_call>   (Hermes, Qwen2.5, Qwen3)
 *   TOOLS_XML      <tool_call> <function=NAME> <parameter=KEY> VALUE </parameter> ..
 *                  </function> </tool_call>   (Qwen3-Coder); also as TOOLS_HERMES
 *   TOOLS_GLM      <tool_call>NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> ..
 *                  </tool_call>   (GLM-4.5 and later); also as TOOLS_HERMES
 *   TOOLS_MISTRAL  [TOOL_CALLS] [{"name": .., "arguments": {..}}, ..]
 *   TOOLS_PHI      <|tool_call|>[{"name": .., "arguments": {..}}, ..]   (Phi-4-mini, Granite 3)
 *   TOOLS_NEMOTRON <TOOLCALL>[{"name": .., "arguments": {..}}, ..]</TOOLCALL>   (Nemotron Nano 2)
 *   TOOLS_COMMAND  <|START_ACTION|>[{"tool_call_id": .., "tool_name": .., "parameters": {..}}, ..]
 *                  <|END_ACTION|>   (Command R7B, Command A)
 *   TOOLS_DEEPSEEK <tool calls begin><tool call begin>function<tool sep>NAME, a fence of JSON,
 *                  <tool call end>; or NAME<tool sep>{..}   (V3, R1 and its distillates; V3.1)
 *   TOOLS_CHANNEL  to=functions.NAME .. <|message|>{..}<|call|>, in any channel   (GPT-OSS)
 *   TOOLS_PYTHON   [NAME(KEY=VALUE, ..), ..] where the whole answer begins so, or after
 *                  <|python_start|>, and the name is one of the request's tools   (Llama 3.2 and 4)
 *   TOOLS_LIQUID   <|tool_call_start|>[NAME(KEY=VALUE, ..), ..]<|tool_call_end|>   (LFM2 and
 *                  LFM2.5); or a list of objects, as TOOLS_PHI
 *   TOOLS_GEMMA    <|tool_call>call:NAME{KEY:VALUE,..}<tool_call|>, with <|"|> around strings and
 *                  nothing around keys   (Gemma 4)
 *   TOOLS_LLAMA    {"name": .., "parameters": {..}}; ..  where the whole answer begins so, or after
 *                  <|python_tag|>, and the name is one of the request's tools
 * A call is told as soon as its name is known and its arguments begin; they follow
 * as they are made, byte for byte.  What begins like a call and turns out to be none
 * is text, as it was written.
 *
 * Ownership: the owner's struct, freed by _clear.  Threads: owner thread.
 */
#ifndef GATEWAY_OPENAI_TOOLS_TOOL_READER_H
#define GATEWAY_OPENAI_TOOLS_TOOL_READER_H

#include <stdbool.h>
#include <stddef.h>

#include <cjson/cJSON.h>

#include "engine/chat/chat.h"
#include "engine/chat/held.h"

typedef enum {
    TOOLS_NONE,
    TOOLS_HERMES,
    TOOLS_XML,
    TOOLS_GLM,
    TOOLS_MISTRAL,
    TOOLS_PHI,
    TOOLS_NEMOTRON,
    TOOLS_COMMAND,
    TOOLS_DEEPSEEK,
    TOOLS_CHANNEL,
    TOOLS_PYTHON,
    TOOLS_LIQUID,
    TOOLS_GEMMA,
    TOOLS_LLAMA,
    TOOLS_STYLES
} tool_style;

enum { TOOL_CALLS_MAX = 128, TOOL_NAME_MAX = 64, TOOL_ID_MAX = 32 };

typedef struct tool_call {
    char id[TOOL_ID_MAX + 1];
    char name[TOOL_NAME_MAX + 1];
    size_t at, len; /* its arguments, in `args` */
    size_t given;   /* of these, written into a delta already: the writer's */
    bool told;      /* its name and id are still to be written: likewise */
    bool whole;
    bool text;   /* of a custom tool: {"input": text}, of which the text is what is said */
    int at_text; /* of `given`: 0 before the text, 1 in it, 2 behind it */
} tool_call;

typedef struct tool_reader {
    tool_style style;
    const cJSON *tools; /* the request's */
    const cJSON *texts; /* names of those that take a text; set behind init; NULL: none */
    int ways;           /* TOOLS_.. of tool_reader_init() */
    held_bytes raw;     /* what came and is not yet understood */
    held_bytes text, args;
    size_t text_given;
    tool_call *call; /* [TOOL_CALLS_MAX] */
    int n_calls;
    bool inside; /* the call n_calls - 1 has been told and its arguments go on */
    bool began;  /* something that is no space has come */
    bool plain;  /* TOOLS_APART: what came first is no call, so all is text */
    bool listed; /* between the brackets of a list */
    /* Inside a call whose arguments are named one by one: XML, GLM, Python, Gemma. */
    bool tagged;
    bool behind; /* a call has ended and nothing but spaces has come since */
    int depth;
    bool in_string, escaped, failed; /* failed: no memory */
} tool_reader;

/* By the marks in a chat template. */
tool_style tool_style_of(const chat_template *ct);
/* What begins a call: a token of its own in many models, which must not be left out of the text. */
const char *tool_style_marker(tool_style style);
/* The i-th of such tokens; NULL: there are no more. */
const char *tool_style_mark(tool_style style, int i);
/* Calls stand in a list behind the marker, as JSON. */
bool tool_style_lists(tool_style style);
/* The name stands outside of what is JSON. */
bool tool_style_names_outside(tool_style style);
/* Of such styles: what stands around a call's name and behind its arguments, in each way; the last
 * has no `begin`.  NULL: calls are told in other ways. */
typedef struct tool_frame {
    const char *begin, *behind, *end;
} tool_frame;

/* Static. */
const tool_frame *tool_style_frames(tool_style style, const chat_template *ct);
/* For answers that are either calls or structured output: the i-th text that can precede the first
 * call (NULL: no more), and the text that precedes the structured output. */
const char *tool_style_before(tool_style style, const chat_template *ct, int i);

/* Static; "" where nothing precedes it. */
const char *tool_style_answer(tool_style style, const chat_template *ct);
/* How arguments are written one by one, as the `members` of GRAMMAR_TAGS has it; NULL: they are one
 * object. */
const char *tool_style_members(tool_style style, const chat_template *ct);
/* What stands before a call's object when it is the model's only way out. */
const char *tool_style_opening(tool_style style);
/* How an object begins, up to its name, which is a call of Llama's where calls are held to their
 * form; the i-th, NULL: there are no more. */
const char *tool_style_head(int i);
/* The names of the members that hold the function's name and the arguments. */
const char *tool_style_name(tool_style style);

/* The member with the arguments. */
const char *tool_style_arguments(tool_style style);

/* How an answer is read; any of these together. */
enum {
    TOOLS_GUIDED = 1, /* Llama's calls begin with a head: the form allows no others */
    TOOLS_OPENED = 2, /* the prompt ends with tool_style_opening(): the text begins behind it */
    TOOLS_ONE = 4,    /* one call and no more */
    TOOLS_FORCED = 8, /* the answer is a call: what is cut before its arguments is no text */
    TOOLS_APART = 16, /* the answer is calls, or a text in which there are none */
};

/* A reader for one answer. `tools` (may be NULL) is borrowed as long as it reads. False: no
 * memory. */
bool tool_reader_init(tool_reader *r, tool_style style, const cJSON *tools, int ways);

/* Frees its texts and calls; not the struct. Also after a failed init. */
void tool_reader_clear(tool_reader *r);

/* The answer's next bytes. Each byte is looked at once or, where it could begin a call, again
 * with the next push; what cannot be a call is text at once. */
void tool_reader_push(tool_reader *r, const char *s, size_t len);
/* The end of the answer: what is held back is text. */
void tool_reader_finish(tool_reader *r);

/* Text since the last call; borrowed until the next push. */
const char *tool_reader_take_text(tool_reader *r, size_t *len);
/* Whether a delta would say something about a call. */
bool tool_reader_has_news(const tool_reader *r);

/* What is new of a call's arguments, or of a custom tool's text, and is from now on given.  False:
 * no memory. */
bool tool_reader_take_news(tool_reader *r, tool_call *c, held_bytes *out);

/* True once a reader of one call has it whole: nothing more is wanted. */
bool tool_reader_done(const tool_reader *r);

#endif
