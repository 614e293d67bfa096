/* tool_frame.c -- calls whose name stands in marks in front of a JSON object of arguments.
 *
 *     <begin>function<sep>NAME, a fence of JSON; or <begin>NAME<sep>{..}   DeepSeek V3, R1; V3.1
 *     to=functions.NAME .. <|message|>{..}                               GPT-OSS, in any channel
 */
#include <string.h>

#include "gateway/openai/tools/tool_reader_inside.h"

enum { CHANNEL_HEAD_MAX = 192 }; /* bytes from the name to the message */

/* The arguments begin at the first byte that is no space, with a bracket. */
static tool_verdict look_at_value(const tool_reader *r, size_t at, tool_head *h)
{
    h->value = scan_spaces(r, at);
    if (h->value >= r->raw.len) return TOOL_MORE;
    h->valued = r->raw.s[h->value] == '{';
    return h->valued ? TOOL_CALL : TOOL_NO_CALL;
}

static tool_verdict look_at_deepseek(const tool_reader *r, size_t at, tool_head *h)
{
    static const char fence[] = "```json";
    *h = (tool_head){0};
    tool_verdict v = scan_stands(r, at, style_of(r)->marker);
    if (v != TOOL_CALL) return v;
    at += strlen(style_of(r)->marker);
    size_t i = scan_behind(r, at, TOOL_SEPARATOR);
    if (i == SCAN_NONE) return TOOL_MORE;
    if (!tool_take_name(r, at, i - strlen(TOOL_SEPARATOR), h)) return TOOL_NO_CALL;
    if (strcmp(h->name, "function") == 0) {
        size_t line = scan_behind(r, i, "\n");
        if (line == SCAN_NONE) return TOOL_MORE;
        if (!tool_take_name(r, i, line - 1, h)) return TOOL_NO_CALL;
        i = scan_spaces(r, line - 1);
        v = i < r->raw.len ? scan_stands(r, i, fence) : TOOL_MORE;
        if (v != TOOL_CALL) return v;
        i += sizeof(fence) - 1;
    }
    return look_at_value(r, i, h);
}

static tool_verdict look_at_channel(const tool_reader *r, size_t at, tool_head *h)
{
    *h = (tool_head){0};
    at += strlen(style_of(r)->marker);
    size_t behind = scan_behind(r, at, TOOL_MESSAGE), end = at;
    if (behind == SCAN_NONE) return r->raw.len - at > CHANNEL_HEAD_MAX ? TOOL_NO_CALL : TOOL_MORE;
    size_t head_end = behind - strlen(TOOL_MESSAGE);
    while (end < head_end && !strchr(" <\n", r->raw.s[end])) end++;
    if (head_end - at > CHANNEL_HEAD_MAX || !tool_take_name(r, at, end, h)) return TOOL_NO_CALL;
    return look_at_value(r, behind, h);
}

const tool_dialect tool_deepseek = {.look = look_at_deepseek, .framed = true};
const tool_dialect tool_channel = {.look = look_at_channel, .framed = true};
