/* chat_builtin.c -- prompts of the known families of models, for models that bring no template.
 *
 * Each is a template in the Jinja subset of jinja.c, put together from the macros below: pieces
 * that several families share (turns in order, a system message in front, Hermes' way of tools).
 */
#include "engine/chat/chat_builtin.h"

#include <stddef.h>

#define TURNS                                                                                    \
    "{%- for m in messages %}"                                                                   \
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"                                     \
    "{{ raise_exception('this chat template needs user and assistant messages in turn, with a '" \
    " 'system message only at the start') }}{%- endif %}"

#define SYSTEM_APART                                                            \
    "{%- if messages and messages[0].role == 'system' %}"                       \
    "{%- set system = messages[0].content %}{%- set messages = messages[1:] %}" \
    "{%- else %}{%- set system = none %}{%- endif %}"

#define OPEN_CHATML "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"

/* What Hermes, Qwen2.5 and Qwen3 were taught about tools. */
#define HERMES_TOOLS                                                                              \
    "{{- '\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user "         \
    "query.\\n\\n'"                                                                               \
    " 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}"  \
    "{%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}"                           \
    "{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and '" \
    " 'arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\"name\": '"           \
    " '<function-name>, \"arguments\": <args-json-object>}\\n</tool_call>' }}"
#define HERMES_CALLS                                                                   \
    "{%- for call in m.tool_calls or [] %}"                                            \
    "{%- if not loop.first or m.content %}{{- '\\n' }}{%- endif %}"                    \
    "{{- '<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' +" \
    " call.function.arguments | tojson + '}\\n</tool_call>' }}{%- endfor %}"
#define HERMES_ANSWER                                                                           \
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}"                          \
    "{{- '<|im_start|>user' }}{%- endif %}"                                                     \
    "{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"                        \
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- " \
    "endif %}"

#define CHATML_SYSTEM(otherwise)                                                           \
    SYSTEM_APART                                                                           \
    "{%- if system is none %}{%- set system = " otherwise " %}{%- endif %}"                \
    "{%- if tools or system is not none %}{{- '<|im_start|>system\\n' + (system or '') }}" \
    "{%- if tools %}" HERMES_TOOLS "{%- endif %}{{- '<|im_end|>\\n' }}{%- endif %}"

#define CHATML(otherwise)                                                        \
    CHATML_SYSTEM(otherwise)                                                     \
    "{%- for m in messages %}{%- if m.role == 'tool' %}" HERMES_ANSWER           \
    "{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}" HERMES_CALLS \
    "{{- '<|im_end|>\\n' }}{%- endif %}{%- endfor %}" OPEN_CHATML

static const char chatml[] = CHATML("none");
static const char qwen[] = CHATML("'You are a helpful assistant.'");

/* Thoughts are cut from replies, but those after the last question keep them. */
static const char qwen3[] = CHATML_SYSTEM(
    "none") "{%- set ns = namespace(question=-1) %}"
            "{%- for m in messages %}{%- if m.role == 'user' and not "
            "(m.content.startswith('<tool_response>')"
            " and m.content.endswith('</tool_response>')) %}{%- set ns.question = loop.index0 "
            "%}{%- endif %}"
            "{%- endfor %}"
            "{%- if ns.question < 0 %}{%- set ns.question = messages | length %}{%- endif %}"
            "{%- for m in messages %}{%- if m.role == 'tool' %}" HERMES_ANSWER
            "{%- elif m.role == 'assistant' %}"
            "{%- set content = m.content %}{%- set thought = m.reasoning_content or '' %}"
            "{%- if not thought and '</think>' in content %}"
            "{%- set thought = "
            "content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
            "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
            "{{- '<|im_start|>assistant\\n' }}"
            "{%- if loop.index0 > ns.question and (loop.last or thought) %}"
            "{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') "
            "}}"
            "{%- else %}{{- content }}{%- endif %}" HERMES_CALLS "{{- '<|im_end|>\\n' }}"
            "{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- "
            "endif %}"
            "{%- endfor %}" OPEN_CHATML "{%- if add_generation_prompt and enable_thinking is "
            "defined and enable_thinking is false %}"
            "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}";

static const char role_tags[] =
    "{{- bos_token | default('') }}{%- for m in messages %}"
    "{{- '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}";
static const char zephyr[] = "{%- for m in messages %}{{- '<|' + m.role + '|>\\n' + m.content + "
                             "eos_token + '\\n' }}{%- endfor %}"
                             "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}";

#define LLAMA3_OPEN                   \
    "{%- if add_generation_prompt %}" \
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"

static const char llama3[] = "{{- bos_token | default('') }}{%- for m in messages %}"
                             "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + "
                             "m.content | trim + '<|eot_id|>' }}"
                             "{%- endfor %}" LLAMA3_OPEN;

/* With the date, and tools in the first user's message, as 3.1 to 3.3 have them. */
static const char llama31[] = SYSTEM_APART
    "{{- bos_token | default('') + '<|start_header_id|>system<|end_header_id|>\\n\\n' }}"
    "{%- if tools %}{{- 'Environment: ipython\\n' }}{%- endif %}"
    "{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' +"
    " (date_string if date_string is defined else strftime_now('%d %b %Y')) + '\\n\\n' +"
    " (system or '') | trim + '<|eot_id|>' }}"
    "{%- for m in messages %}"
    "{%- if tools and loop.first and m.role == 'user' %}"
    "{{- '<|start_header_id|>user<|end_header_id|>\\n\\n'"
    " 'Given the following functions, please respond with a JSON for a function call with its "
    "proper '"
    " 'arguments that best answers the given prompt.\\n\\nRespond in the format {\"name\": "
    "function '"
    " 'name, \"parameters\": dictionary of argument name and its value}. Do not use "
    "variables.\\n\\n' }}"
    "{%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n\\n' }}{%- endfor %}"
    "{{- m.content | trim + '<|eot_id|>' }}"
    "{%- elif m.tool_calls %}{%- if m.tool_calls | length != 1 %}"
    "{{- raise_exception('this chat template has room for one tool call in a message') }}{%- endif "
    "%}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{\"name\": \"' +"
    " m.tool_calls[0].function.name + '\", \"parameters\": ' +"
    " m.tool_calls[0].function.arguments | tojson + '}<|eot_id|>' }}"
    "{%- else %}{{- '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) +"
    " '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{%- endif %}"
    "{%- endfor %}" LLAMA3_OPEN;

static const char llama2[] = SYSTEM_APART TURNS
    "{%- set text = m.content %}"
    "{%- if loop.first and system is not none %}"
    "{%- set text = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + text %}{%- endif %}"
    "{%- if m.role == 'user' %}{{- bos_token + '[INST] ' + text.strip() + ' [/INST]' }}"
    "{%- else %}{{- ' ' + text.strip() + ' ' + eos_token }}{%- endif %}{%- endfor %}";

static const char mistral1[] =
    SYSTEM_APART "{{- bos_token }}" TURNS "{%- if m.role == 'user' %}"
                 "{{- ' [INST] ' + (system + '\\n\\n' if loop.first and system is not none else "
                 "'') + m.content + "
                 "' [/INST]' }}"
                 "{%- else %}{{- ' ' + m.content + eos_token }}{%- endif %}{%- endfor %}";

/* From version 3 on the markers are tokens, and there are tools. */
static const char mistral3[] = SYSTEM_APART
    "{%- set ns = namespace(last=-1) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}"
    "{%- endfor %}{{- bos_token }}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' %}"
    "{%- if tools and loop.index0 == ns.last %}"
    "{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{- '[INST] ' + (system + '\\n\\n' if loop.index0 == ns.last and system is not none else '') +"
    " m.content + '[/INST]' }}"
    "{%- elif m.tool_calls %}{{- '[TOOL_CALLS] [' }}"
    "{%- for call in m.tool_calls %}"
    "{{- '{\"name\": \"' + call.function.name + '\", \"arguments\": ' +"
    " call.function.arguments | tojson + ', \"id\": \"' + (call.id or '')[-9:] + '\"}' }}"
    "{{- ', ' if not loop.last else ']' + eos_token }}{%- endfor %}"
    "{%- elif m.role == 'tool' %}"
    "{{- '[TOOL_RESULTS] {\"content\": ' + m.content | tojson + ', \"call_id\": \"' +"
    " (m.tool_call_id or '')[-9:] + '\"}[/TOOL_RESULTS]' }}"
    "{%- elif m.role == 'assistant' %}{{- ' ' + m.content | trim + eos_token }}"
    "{%- else %}{{- raise_exception('this chat template has a system message only at the start') }}"
    "{%- endif %}{%- endfor %}";

static const char gemma[] = SYSTEM_APART
    "{{- bos_token }}" TURNS
    "{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' +"
    " (system + '\\n\\n' if loop.first and system is not none else '') + m.content | trim +"
    " '<end_of_turn>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}";

const chat_builtin chat_builtins[] = {
    {"chatml", chatml, {"<|im_start|>", "<|im_end|>"}},
    {"qwen", qwen, {"<|im_start|>", "<|im_end|>"}},
    {"qwen3", qwen3, {"<|im_start|>", "<|im_end|>"}},
    {"role-tags", role_tags, {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"}},
    {"zephyr", zephyr, {NULL}},
    {"llama-3", llama3, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
    {"llama-3.1", llama31, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
    {"llama-2", llama2, {NULL}},
    {"mistral", mistral3, {"[INST]", "[/INST]"}},
    {"mistral", mistral1, {NULL}},
    {"gemma", gemma, {"<start_of_turn>", "<end_of_turn>"}},
    {NULL, NULL, {NULL}},
};
