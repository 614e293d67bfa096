/* tool_styles.c -- the table of styles: one row for each family's way of writing calls.
 *
 * tool_style_of() knows a template by what stands in it. The order of the signs matters: a text
 * of a later row stands in templates of earlier ones, too ("<tool_call>" in Qwen3-Coder's,
 * "tools" in nearly all).
 */
#include "gateway/openai/tools/tool_reader_inside.h"

#define DS_BEGIN TOOL_BARS("tool" TOOL_BLANK "call" TOOL_BLANK "begin")
#define DS_END   TOOL_BARS("tool" TOOL_BLANK "call" TOOL_BLANK "end")
#define DS_LIST  TOOL_BARS("tool" TOOL_BLANK "calls" TOOL_BLANK "begin")

/* clang-format off */
const tool_style_row tool_style_rows[TOOLS_STYLES] = {
    [TOOLS_NONE] = {&tool_object, "", NULL, "", "name", "arguments", {0}, NULL, 0, false},
    [TOOLS_HERMES] = {&tool_object, "<tool_call>", NULL, "<tool_call>\n", "name", "arguments",
                      {"</tool_call>"}, NULL, 0, false},
    [TOOLS_XML] = {&tool_xml, "<tool_call>", NULL, "<tool_call>\n", "name", "arguments",
                   {"</tool_call>"}, NULL, 0, false},
    [TOOLS_GLM] = {&tool_glm, "<tool_call>", NULL, "<tool_call>\n", "name", "arguments",
                   {"</tool_call>"}, NULL, 0, false},
    [TOOLS_MISTRAL] = {&tool_object, "[TOOL_CALLS]", NULL, "[TOOL_CALLS] [", "name", "arguments",
                       {0}, NULL, 0, true},
    [TOOLS_PHI] = {&tool_object, "<|tool_call|>", NULL, "<|tool_call|>[", "name", "arguments",
                   {"<|/tool_call|>"}, NULL, 0, true},
    [TOOLS_NEMOTRON] = {&tool_object, "<TOOLCALL>", NULL, "<TOOLCALL>[", "name", "arguments",
                        {"</TOOLCALL>"}, NULL, 0, true},
    [TOOLS_COMMAND] = {&tool_object, "<|START_ACTION|>", NULL, "<|START_ACTION|>[", "tool_name",
                       "parameters", {"<|END_ACTION|>"}, NULL, 0, true},
    [TOOLS_DEEPSEEK] = {&tool_deepseek, DS_BEGIN, TOOL_SEPARATOR, "", "name", "parameters",
                        {"```", DS_END, TOOL_BARS("tool" TOOL_BLANK "calls" TOOL_BLANK "end")},
                        DS_LIST, 0, false},
    [TOOLS_CHANNEL] = {&tool_channel, "to=functions.", TOOL_MESSAGE, "", "name", "parameters",
                       {"<|call|>"}, NULL, 0, false},
    [TOOLS_PYTHON] = {&tool_python, "<|python_start|>", NULL, "", "name", "parameters",
                      {"<|python_end|>"}, NULL, '[', true},
    [TOOLS_LIQUID] = {&tool_liquid, "<|tool_call_start|>", NULL, "", "name", "parameters",
                      {"<|tool_call_end|>"}, NULL, 0, true},
    [TOOLS_GEMMA] = {&tool_gemma, "<|tool_call>", TOOL_QUOTE, "", "name", "parameters",
                     {"<tool_call|>"}, NULL, 0, false},
    [TOOLS_LLAMA] = {&tool_object, "<|python_tag|>", NULL, "", "name", "parameters",
                     {0}, NULL, '{', false},
};
/* clang-format on */

tool_style tool_style_of(const chat_template *ct)
{
    /* The first that is there. */
    static const struct {
        const char *text;
        tool_style style;
    } signs[] = {{DS_BEGIN, TOOLS_DEEPSEEK},         {"<|START_ACTION|>", TOOLS_COMMAND},
                 {"to=functions.", TOOLS_CHANNEL},   {"<|call|>", TOOLS_CHANNEL},
                 {"<|tool_call|>", TOOLS_PHI},       {"<|tool_list_start|>", TOOLS_LIQUID},
                 {"List of tools: [", TOOLS_LIQUID}, {"<|tool_call_start|>", TOOLS_LIQUID},
                 {"<|tool_call>", TOOLS_GEMMA},      {"<TOOLCALL>", TOOLS_NEMOTRON},
                 {"<arg_key>", TOOLS_GLM},           {"<function=", TOOLS_XML},
                 {"<tool_call>", TOOLS_HERMES},      {"[TOOL_CALLS]", TOOLS_MISTRAL},
                 {"[func_name1(", TOOLS_PYTHON},     {"tools", TOOLS_LLAMA}};
    for (size_t i = 0; ct && i < sizeof(signs) / sizeof(signs[0]); i++)
        if (chat_template_says(ct, signs[i].text)) return signs[i].style;
    return TOOLS_NONE;
}

const char *tool_style_marker(tool_style style)
{
    return tool_style_rows[style].marker;
}

const char *tool_style_mark(tool_style style, int i)
{
    return i == 0 ? tool_style_rows[style].marker : i == 1 ? tool_style_rows[style].mark : NULL;
}

static bool is_python(tool_style style)
{
    return style == TOOLS_PYTHON || style == TOOLS_LIQUID;
}

bool tool_style_lists(tool_style style)
{
    return tool_style_rows[style].lists && !is_python(style);
}

bool tool_style_names_outside(tool_style style)
{
    return tool_style_rows[style].dialect->framed || is_python(style) || style == TOOLS_GEMMA;
}

static bool is_tight(const chat_template *ct)
{
    return chat_template_says(ct, "</arg_key><arg_value>");
}

const tool_frame *tool_style_frames(tool_style style, const chat_template *ct)
{
    static const tool_frame fenced[] = {
        {DS_BEGIN "function" TOOL_SEPARATOR, "\n```json\n", "\n```" DS_END}, {0}};
    static const tool_frame bare[] = {{DS_BEGIN, TOOL_SEPARATOR, DS_END}, {0}};
    static const char to[] = "to=functions.";
    static const tool_frame channel[] = {
        {to, " <|constrain|>json<|message|>", ""},
        {to, "<|channel|>commentary json<|message|>", ""},
        {to, "<|channel|>commentary <|constrain|>json<|message|>", ""},
        {0}};
    static const tool_frame xml[] = {
        {"<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"}, {0}};
    static const tool_frame glm[] = {{"<tool_call>", "\n", "</tool_call>"}, {0}},
                            tight[] = {{"<tool_call>", "", "</tool_call>"}, {0}};
    static const tool_frame gemma[] = {{"<|tool_call>call:", "{", "}<tool_call|>"}, {0}};
    switch (style) {
    case TOOLS_GEMMA: return gemma;
    case TOOLS_DEEPSEEK: return chat_template_says(ct, "```json") ? fenced : bare;
    case TOOLS_CHANNEL: return channel;
    case TOOLS_XML: return xml;
    case TOOLS_GLM: return is_tight(ct) ? tight : glm;
    default: return NULL;
    }
}

static bool has_channels(tool_style style, const chat_template *ct)
{
    return style == TOOLS_CHANNEL && chat_template_says(ct, "<|channel|>");
}

const char *tool_style_before(tool_style style, const chat_template *ct, int i)
{
    static const char *const channels[] = {"<|channel|>commentary", " ", NULL};
    if (style == TOOLS_DEEPSEEK) return i == 0 ? DS_LIST : NULL;
    return has_channels(style, ct) ? channels[i] : NULL;
}

const char *tool_style_answer(tool_style style, const chat_template *ct)
{
    return has_channels(style, ct) ? "<|channel|>final<|message|>" : "";
}

const char *tool_style_members(tool_style style, const chat_template *ct)
{
    if (is_python(style)) return "python";
    if (style == TOOLS_GEMMA) return "gemma";
    if (style == TOOLS_GLM) return is_tight(ct) ? "glm-tight" : "glm";
    return style == TOOLS_XML ? "xml" : NULL;
}

const char *tool_style_opening(tool_style style)
{
    return tool_style_rows[style].opening;
}

const char *tool_style_name(tool_style style)
{
    return tool_style_rows[style].name;
}

const char *tool_style_arguments(tool_style style)
{
    return tool_style_rows[style].arguments;
}
