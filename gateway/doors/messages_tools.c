/* messages_tools.c -- the tools of the Messages API as a chat's.
 *
 * A tool with a schema of its own becomes a function.  So do the tools that Anthropic defines and
 * the client executes: a shell, an editor of files, a memory.  They come without a schema, because
 * the provider's models know it; here it is in tables, as Anthropic's documents and SDK define it.
 * Tools that only a provider can execute, and those that answer with pictures, go to the chat as
 * they are: it leaves them out, or says why not.
 */
#include <string.h>

#include "engine/base/json.h"
#include "gateway/doors/messages.h"

/* The forms of an input: the value of its member "command" ("-": none), then its other members; one
 * with a question mark may be missing. */
static const char *const shell_forms[] = {"- command", "- restart", NULL};
static const char *const old_editor_forms[] = {
    "view path view_range?",           "create path file_text", "str_replace path old_str new_str?",
    "insert path insert_line new_str", "undo_edit path",        NULL};
static const char *const editor_forms[] = {"view path view_range?", "create path file_text",
                                           "str_replace path old_str new_str?",
                                           "insert path insert_line new_str", NULL};
static const char *const new_editor_forms[] = {"view path view_range?", "create path file_text",
                                               "str_replace path old_str new_str?",
                                               "insert path insert_line insert_text", NULL};
static const char *const memory_forms[] = {"view path view_range?",
                                           "create path file_text",
                                           "str_replace path old_str new_str",
                                           "insert path insert_line insert_text",
                                           "delete path",
                                           "rename old_path new_path",
                                           NULL};

/* Members that are no text. */
static const char *const other_schemas[][2] = {
    {"insert_line", "{\"type\":\"integer\",\"minimum\":0}"},
    {"view_range",
     "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":2}"},
    {"restart", "{\"enum\":[true]}"},
};

static const char shell_says[] =
    "Runs a command in a shell that stays open; 'restart' starts it anew.";
static const char editor_says[] =
    "Views, creates and edits files; a replaced text must occur once.";
static const char memory_says[] = "Keeps notes in files below /memories, across conversations.";

typedef struct defined_tool {
    const char *type, *name, *says;
    const char *const *forms;
} defined_tool;

static const defined_tool defined_tools[] = {
    {"bash_20241022", "bash", shell_says, shell_forms},
    {"bash_20250124", "bash", shell_says, shell_forms},
    {"text_editor_20241022", "str_replace_editor", editor_says, old_editor_forms},
    {"text_editor_20250124", "str_replace_editor", editor_says, old_editor_forms},
    {"text_editor_20250429", "str_replace_based_edit_tool", editor_says, editor_forms},
    {"text_editor_20250728", "str_replace_based_edit_tool", editor_says, new_editor_forms},
    {"memory_20250818", "memory", memory_says, memory_forms},
};

static const defined_tool *tool_of_type(const char *type)
{
    for (size_t i = 0; i < sizeof(defined_tools) / sizeof(defined_tools[0]); i++) {
        if (strcmp(defined_tools[i].type, type) == 0) return &defined_tools[i];
    }
    return NULL;
}

static bool bad(openai_problem *p, const char *param, const char *what)
{
    return openai_refuse(p, 400, "invalid_value", param, "%s: %s", param, what);
}

/* ------------------------------------------------------------------------ schemas -- */

static cJSON *member_schema(const char *name)
{
    for (size_t i = 0; i < sizeof(other_schemas) / sizeof(other_schemas[0]); i++) {
        if (strcmp(other_schemas[i][0], name) == 0) return cJSON_Parse(other_schemas[i][1]);
    }
    return cJSON_Parse("{\"type\":\"string\"}");
}

/* Takes the first word of *at into `word`; false: there is none. */
static bool next_word(const char **at, char word[32])
{
    *at += strspn(*at, " ");
    size_t n = strcspn(*at, " ");
    if (n == 0 || n >= 32) return false;
    memcpy(word, *at, n);
    word[n] = '\0';
    *at += n;
    return true;
}

static cJSON *form_schema(const char *form)
{
    cJSON *schema = cJSON_CreateObject(), *properties = cJSON_CreateObject();
    cJSON *required = cJSON_CreateArray();
    char word[32];
    door_add_text(schema, "type", "object");
    door_add(schema, "properties", properties);
    door_add(schema, "required", required);
    door_add_bool(schema, "additionalProperties", false);
    if (next_word(&form, word) && strcmp(word, "-") != 0) {
        cJSON *command = cJSON_CreateObject(), *values = cJSON_CreateArray();
        door_append(values, cJSON_CreateString(word));
        door_add(command, "enum", values);
        door_add(properties, "command", command);
        door_append(required, cJSON_CreateString("command"));
    }
    while (next_word(&form, word)) {
        char *mark = strchr(word, '?');
        if (mark) *mark = '\0';
        door_add(properties, word, member_schema(word));
        if (!mark) door_append(required, cJSON_CreateString(word));
    }
    return schema;
}

static cJSON *schema_of_forms(const char *const *form)
{
    cJSON *schema = cJSON_CreateObject(), *any = cJSON_CreateArray();
    door_add_text(schema, "type", "object");
    door_add(schema, "anyOf", any);
    for (; *form; form++) door_append(any, form_schema(*form));
    return schema;
}

/* -------------------------------------------------------------------------- tools -- */

/* As in the table; a name is the type's own, as it is for Anthropic. */
static bool add_defined(cJSON *function, const cJSON *t, const defined_tool *d, openai_problem *p)
{
    const char *name = door_text(t, "name");
    if (!name || strcmp(name, d->name) != 0)
        return openai_refuse(p, 400, "invalid_value", "tools",
                             "tools: the name of a tool of type '%s' must be '%s'", d->type,
                             d->name);
    door_add_text(function, "name", d->name);
    door_add_text(function, "description", d->says);
    door_add(function, "parameters", schema_of_forms(d->forms));
    return true;
}

static bool add_tool(cJSON *list, const cJSON *t, openai_problem *p)
{
    const char *type = door_text(t, "type");
    const defined_tool *d = type ? tool_of_type(type) : NULL;
    cJSON *tool = cJSON_CreateObject(), *function = NULL;
    door_append(list, tool);
    if (type && !d && strcmp(type, "custom") != 0) {
        door_add_text(tool, "type", type); /* the chat leaves it out, or says why not */
        return true;
    }
    function = cJSON_CreateObject();
    door_add_text(tool, "type", "function");
    door_add(tool, "function", function);
    if (d) return add_defined(function, t, d, p);
    door_copy_set(function, "name", t, "name");
    door_copy_set(function, "description", t, "description");
    door_copy_set(function, "input_schema", t, "parameters");
    return true;
}

static bool take_tools(messages_run *r, const cJSON *body, openai_problem *p)
{
    const cJSON *tools = json_get(body, "tools"), *t;
    if (!tools || cJSON_IsNull(tools)) return true;
    if (!cJSON_IsArray(tools)) return bad(p, "tools", "must be an array");
    cJSON *list = cJSON_CreateArray();
    door_add(r->chat, "tools", list);
    cJSON_ArrayForEach(t, tools)
    {
        if (!add_tool(list, t, p)) return false;
    }
    return true;
}

static bool take_choice(messages_run *r, const cJSON *body, openai_problem *p)
{
    static const char *const words[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const cJSON *choice = json_get(body, "tool_choice");
    if (!choice || cJSON_IsNull(choice)) return true;
    if (cJSON_IsTrue(json_get(choice, "disable_parallel_tool_use")))
        door_add_bool(r->chat, "parallel_tool_calls", false);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (!door_is(choice, "type", words[i][0])) continue;
        door_add_text(r->chat, "tool_choice", words[i][1]);
        return true;
    }
    if (!door_is(choice, "type", "tool") || !door_text(choice, "name"))
        return bad(p, "tool_choice", "must have the type auto, any, none, or tool and a name");
    cJSON *c = cJSON_CreateObject(), *f = cJSON_CreateObject();
    door_add_text(c, "type", "function");
    door_copy_set(f, "name", choice, "name");
    door_add(c, "function", f);
    door_add(r->chat, "tool_choice", c);
    return true;
}

bool messages_take_tools(messages_run *r, const cJSON *body, openai_problem *p)
{
    return take_tools(r, body, p) && take_choice(r, body, p);
}
