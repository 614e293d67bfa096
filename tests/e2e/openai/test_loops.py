"""The tool loops of two programs as they send them: Codex by the Responses API, Claude Code by the Messages API.

The bodies are written by hand after the programs' public sources: their fields, their order, their tools' shapes; two fields are
ours, which make the demo model say what the loop needs.  Each event's type, order and place is held, strictly as the SDKs'
types have it.  Needs build/venv-agents, as test_messages.py.
"""
import os
import pathlib
import sys

VENV = pathlib.Path(__file__).resolve().parents[3] / "build/venv-agents"
if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
    if not (VENV / "bin/python").exists():
        print("skipped: Anthropic's SDK is not installed (sh tests/run.sh does it)")
        sys.exit(77)
    os.execv(VENV / "bin/python", [str(VENV / "bin/python"), *sys.argv])

import json
import tempfile

import pydantic
from anthropic.types import RawMessageStreamEvent
from openai.types.responses import ResponseStreamEvent

from harness import Server, run

CODEX_EVENT, CLAUDE_EVENT = pydantic.TypeAdapter(ResponseStreamEvent), pydantic.TypeAdapter(RawMessageStreamEvent)
THINKS = """{{ bos_token }}{% for t in tools or [] %}<tool_call>{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
<think>
{% if enable_thinking is defined and not enable_thinking %}
</think>

{% endif %}{% endif %}"""
CALL = 'I read it.\n<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
ANSWER = "It is 12."
THINK = 12  # tokens of thoughts that the demo model is given


def says(text):
    return {"structured_outputs": {"choice": [text]}}


def sse(path, body, headers):
    r = server.call("POST", path, body, headers=headers)
    assert r.status == 200 and r.headers["content-type"].startswith("text/event-stream"), (r, r.headers)
    out = []
    for frame in r.body.decode().split("\n\n")[:-1]:
        event, data = frame.split("\n")
        out.append(json.loads(data.removeprefix("data: ")))
        assert event == "event: " + out[-1]["type"], frame
    return out, r


def runs(events):
    """The types in their order, a run of deltas as one."""
    names = [e["type"].removeprefix("response.") for e in events]
    return [n for i, n in enumerate(names) if not n.endswith("delta") or names[i - 1] != n]


# ---- Codex: codex-rs, wire_api = "responses" ---------------------------------------------------

CODEX_TOOLS = [
    {"type": "function", "name": "exec_command", "description": "Runs a command in a PTY.", "strict": False, "parameters": {
        "type": "object", "properties": {
            "cmd": {"type": "string", "description": "Shell command to execute."},
            "workdir": {"type": "string"}, "yield_time_ms": {"type": "number"}, "max_output_tokens": {"type": "number"}},
        "required": ["cmd"], "additionalProperties": False}},
    {"type": "function", "name": "update_plan", "description": "Updates the task plan.", "strict": False, "parameters": {
        "type": "object", "properties": {"explanation": {"type": "string"}, "plan": {"type": "array", "items": {
            "type": "object", "properties": {"step": {"type": "string"}, "status": {"type": "string"}},
            "required": ["step", "status"], "additionalProperties": False}}},
        "required": ["plan"], "additionalProperties": False}}]
FREEFORM = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {
    "type": "grammar", "syntax": "lark", "definition": 'start: "x"'}}
CONTEXT = "<environment_context>\n  <cwd>/home/me/sum</cwd>\n  <shell>bash</shell>\n</environment_context>"


def user(text, role="user"):
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def codex_body(history, text, **more):
    return {"model": "base", "instructions": "You are a coding agent running in the Codex CLI.", "input": history,
            "tools": CODEX_TOOLS, "tool_choice": "auto", "parallel_tool_calls": False,
            "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "019a-5c1e",
            "text": {"verbosity": "medium"}, "thinking_budget": THINK, **says(text), **more}


def codex_turn(history, text):
    headers = {"authorization": f"Bearer {own}", "originator": "codex_cli_rs", "session_id": "019a-5c1e", "conversation_id": "019a-5c1e",
               "accept": "text/event-stream", "user-agent": "codex_cli_rs/0.98.0 (Debian 13; x86_64) xterm"}
    events, r = sse("/v1/responses", codex_body(history, text), headers)
    for n, e in enumerate(events):
        CODEX_EVENT.validate_python(e, strict=True)
        assert e["sequence_number"] == n, e
    done = events[-1]["response"]
    items = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert items == done["output"] and [e["output_index"] for e in events if e["type"] == "response.output_item.added"] == list(range(len(items)))
    assert done["status"] == "completed" and done["store"] is False, done
    return events, items, done


THOUGHT = ["output_item.added", "reasoning_text.delta", "reasoning_text.done", "output_item.done"]
MESSAGE = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"]


def codex_runs_its_loop():
    history = [user("<permissions instructions>Ask first.</permissions instructions>", "developer"), user(CONTEXT), user("What does sum.txt say?")]
    arguments = '{"cmd": "cat sum.txt", "workdir": "/home/me/sum"}'
    events, items, done = codex_turn(history, CALL % ("exec_command", arguments))
    kinds = [i["type"] for i in items]
    assert kinds == ["reasoning", "message", "function_call"], kinds
    names = runs(events)
    assert names[:2] == ["created", "in_progress"] and names[-1] == "completed", names
    tail = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed"]
    assert names[-5:] == tail and [n for n in names if n in MESSAGE[2:4]] == MESSAGE[2:4], names
    assert all(a in names for a in THOUGHT), names
    call = items[2]
    assert call["name"] == "exec_command" and json.loads(call["arguments"])["cmd"] == "cat sum.txt" and call["call_id"], call
    # What comes back is what it keeps: no ids, since nothing is stored.
    back = [{"type": "reasoning", "summary": [], "content": items[0].get("content"), "encrypted_content": None},
            {"type": "message", "role": "assistant", "content": items[1]["content"]},
            {"type": "function_call", "name": call["name"], "arguments": call["arguments"], "call_id": call["call_id"]},
            {"type": "function_call_output", "call_id": call["call_id"], "output": "Exit code: 0\nWall time: 0.1 seconds\nOutput:\n12\n"}]
    events, items, last = codex_turn(history + back, ANSWER)
    assert [i["type"] for i in items] == ["reasoning", "message"] and items[1]["content"][0]["text"] == "It is 12.", items
    assert last["usage"]["input_tokens_details"]["cached_tokens"] > 0 and last["usage"]["output_tokens_details"]["reasoning_tokens"] > 0, last["usage"]
    r = server.call("GET", "/v1/responses/" + done["id"], key=own)
    assert r.status == 404, r


def codex_is_served_its_mixed_tools():
    """Its custom tool is one of ours, and what only a provider has is left out and named; alone it is refused."""
    search = {"type": "web_search", "external_web_access": False}
    r = server.call("POST", "/v1/responses", codex_body([user("a")], "b", tools=[*CODEX_TOOLS, FREEFORM, search]), key=own)
    assert r.status == 200 and "tools.web_search" in r.headers["x-ignored-params"], r
    assert "tools.custom" not in r.headers["x-ignored-params"], r.headers
    r = server.call("POST", "/v1/responses", codex_body([user("a")], "b", tools=[search]), key=own)
    e = r.json["error"]
    assert r.status == 400 and e["param"] == "tools" and search["type"] in e["message"], e


# ---- Claude Code ------------------------------------------------------------------------------

BETAS = "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,prompt-caching-scope-2026-01-05"
READ = {"name": "Read", "description": "Reads a file.", "input_schema": {
    "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {
        "file_path": {"description": "The absolute path", "type": "string"}, "limit": {"type": "integer", "exclusiveMinimum": 0}},
    "required": ["file_path"], "additionalProperties": False}}
BASH = {"name": "Bash", "description": "Runs a command.", "input_schema": {
    "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {
        "command": {"type": "string"}, "timeout": {"type": "number"}}, "required": ["command"], "additionalProperties": False},
        "cache_control": {"type": "ephemeral", "ttl": "1h"}}


def system(count):
    return [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={count};"},
            {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be brief. " * 8, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]


def claude_body(messages, count, **more):
    return {"model": "base", "messages": messages, "system": system(count), "tools": [READ, BASH],
            "metadata": {"user_id": "user_0f_account__session_1c"}, "max_tokens": 128, "stream": True,
            "thinking": {"type": "enabled", "budget_tokens": THINK}, **more}


def claude_headers():
    return {"x-api-key": own, "anthropic-version": "2023-06-01", "anthropic-beta": BETAS, "x-app": "cli",
            "user-agent": "claude-cli/2.1.37 (external, cli)", "x-stainless-lang": "js", "anthropic-dangerous-direct-browser-access": "true"}


def claude_turn(messages, count, text):
    events, r = sse("/v1/messages?beta=true", {**claude_body(messages, count), **says(text)}, claude_headers())
    blocks = []
    for e in events:
        CLAUDE_EVENT.validate_python(e, strict=True)
        if e["type"] == "content_block_start":
            assert e["index"] == len(blocks), e
            blocks.append({**e["content_block"]})
        elif e["type"] == "content_block_delta":
            assert e["index"] == len(blocks) - 1, e
            d = e["delta"]
            for kind, name in (("thinking_delta", "thinking"), ("text_delta", "text"), ("signature_delta", "signature"),
                               ("input_json_delta", "partial_json")):
                if d["type"] == kind:
                    blocks[-1][name] = blocks[-1].get(name, "") + d[name]
    names = runs([e for e in events if e["type"] != "ping"])
    assert names == ["message_start", *["content_block_start", "content_block_delta", "content_block_stop"] * len(blocks),
                     "message_delta", "message_stop"], names
    for b in blocks:
        if "partial_json" in b:
            b["input"] = json.loads(b.pop("partial_json"))
    return blocks, events[-2]["delta"]["stop_reason"], events


def claude_code_runs_its_loop():
    ask = [{"role": "user", "content": [
        {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"},
        {"type": "text", "text": "What does sum.txt say?", "cache_control": {"type": "ephemeral"}}]}]
    blocks, why, _ = claude_turn(ask, "fa690", CALL % ("Read", '{"file_path": "/home/me/sum.txt"}'))
    assert [b["type"] for b in blocks] == ["thinking", "text", "tool_use"] and why == "tool_use", (blocks, why)
    assert blocks[2]["name"] == "Read" and blocks[2]["input"] == {"file_path": "/home/me/sum.txt"}, blocks
    more = [*ask, {"role": "assistant", "content": blocks}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": blocks[2]["id"], "content": [{"type": "text", "text": "     1\u2192 12"}],
         "cache_control": {"type": "ephemeral"}}]}]
    counted = server.call("POST", "/v1/messages/count_tokens?beta=true", {
        k: v for k, v in claude_body(more, "0b1c2").items() if k in ("model", "messages", "system", "tools", "thinking")},
        headers=claude_headers())
    assert counted.status == 200, counted
    blocks, why, events = claude_turn(more, "0b1c2", ANSWER)
    assert [b["type"] for b in blocks] == ["thinking", "text"] and blocks[1]["text"] == "It is 12." and why == "end_turn", blocks
    usage = events[0]["message"]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted.json["input_tokens"], (usage, counted.json)
    assert usage["cache_read_input_tokens"] > usage["input_tokens"], usage
    # The line that changes with each request stands nowhere, so that the rest of the prompt is the same.
    counts = [server.call("POST", "/v1/messages/count_tokens", {"model": "base", "messages": ask, "system": s}, key=own).json["input_tokens"]
              for s in (system("fa690"), system("a longer one"), system("")[1:])]
    assert counts[0] == counts[1] == counts[2], counts


def a_failed_tool_and_a_refusal():
    bad = [{"role": "user", "content": "a"}, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "false"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": "Exit code 1"},
                                     {"type": "text", "text": "Go on."}]}]
    assert claude_turn(bad, "1", ANSWER)[1] == "end_turn"
    body = {**claude_body(bad, "1"), "tools": [{"type": "web_search_20250305", "name": "web_search"}]}
    r = server.call("POST", "/v1/messages?beta=true", body, headers=claude_headers())
    assert r.status == 400 and r.json["type"] == "error" and "web_search_20250305" in r.json["error"]["message"], r


with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
    template.write(THINKS)
    template.flush()
    with Server(settings={"model.chat_template": template.name}) as server:
        own = server.tenant("loops")
        run([codex_runs_its_loop, codex_is_served_its_mixed_tools, claude_code_runs_its_loop, a_failed_tool_and_a_refusal])
