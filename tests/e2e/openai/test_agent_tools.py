"""Mixed lists of tools, as coding agents send them: custom tools with their grammar, local_shell, apply_patch, namespaces; tools that
only a provider can execute are left out and named, or refused where nothing else is left."""
import functools
import json
import re
import shutil
import tempfile

import pydantic
from openai.types.responses import Response, ResponseStreamEvent

import dialects
import marked
import openai_types
from harness import Server, run
from marked import ADD

# The grammar of Codex's apply_patch, but for its update hunks' options.
PATCH = r'''start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
'''
WELL = re.compile(r"\*\*\* Begin Patch\n(\*\*\* Add File: .+\n(\+.*\n)+|\*\*\* Delete File: .+\n)+\*\*\* End Patch\n?")
ADDS = {"type": "function", **ADD["function"]}
LARK = {"type": "custom", "name": "patch", "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": PATCH}}
REGEX = {"type": "custom", "name": "number", "format": {"type": "grammar", "syntax": "regex", "definition": '[0-9]+ "x"\n'}}
TEXT = {"type": "custom", "name": "free"}
SHELL, EDIT = {"type": "local_shell"}, {"type": "apply_patch"}
SPACE = {"type": "namespace", "name": "crm", "description": "Customers", "tools": [{"type": "function", "name": "find", "parameters": {
    "type": "object", "properties": {"id": {"type": "integer", "maximum": 99}}, "required": ["id"], "additionalProperties": False}}]}
PROVIDED = [{"type": "web_search"}, {"type": "web_search_preview"}, {"type": "image_generation"}, {"type": "tool_search"},
            {"type": "mcp", "server_label": "x", "server_url": "https://x.invalid"}, {"type": "file_search", "vector_store_ids": []},
            {"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "computer_use_preview"}]
ANTHROPIC = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "code_execution_20250825", "name": "code_execution"},
             {"type": "web_fetch_20250910", "name": "web_fetch"}, {"type": "computer_20250124", "name": "computer"}]


def nested(tool):
    """As a chat has it."""
    return {"type": "custom", "custom": {k: v for k, v in tool.items() if k != "type"}}


def post(path, body, expect=200, headers=None):
    r = server.call("POST", path, {"model": "base", "temperature": 1, **body}, key=server.key, headers=headers)
    assert r.status == expect, r
    return r


def respond(expect=200, headers=None, **body):
    r = post("/v1/responses", {"input": "What is 7 plus 5?", "max_output_tokens": 400, **body}, expect, headers)
    if body.get("stream") or headers:
        return r
    return strict(Response, r.json) if expect == 200 else r.json["error"]


def chat(expect=200, **body):
    r = post("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is 7 plus 5?"}], "max_tokens": 400, **body}, expect)
    return r.json if expect == 200 else r.json["error"]


@functools.cache
def adapter(kind):
    return pydantic.TypeAdapter(kind)


def strict(kind, value):
    """As openai-python's type has it, with nothing that it does not know but `store`, which OpenAI's answers have."""
    made = adapter(kind).validate_python(value, strict=True)
    odd = {n for _, n in openai_types.extras(made, "", set())} - {"store"}
    assert not odd, (odd, value)
    return value


def streamed(**body):
    events = [json.loads(f.split("\ndata: ", 1)[1]) for f in respond(stream=True, **body).body.decode().split("\n\n") if f]
    return [strict(ResponseStreamEvent, e) for e in events]


def right(name, text):
    if name == "patch":
        return WELL.fullmatch(text)
    return re.fullmatch('[0-9]+ "x"\n', text) if name == "number" else True


def custom_tools_get_their_text():
    for tool in (LARK, REGEX, TEXT):
        for seed in range(4):
            more = {"tools": [ADDS, tool], "tool_choice": {"type": "custom", "name": tool["name"]}, "seed": seed}
            r = respond(**more)
            item = r["output"][0]
            assert (item["type"], item["name"]) == ("custom_tool_call", tool["name"]) and item["id"].startswith("ctc_"), item
            assert r["status"] == "incomplete" or right(tool["name"], item["input"]), item
            events = streamed(**more)
            got = "".join(e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta")
            done = [e["input"] for e in events if e["type"] == "response.custom_tool_call_input.done"]
            assert [got] == done == [item["input"]], (got, done, item)
            assert events[-1]["response"]["output"][0]["input"] == got
            c = chat(tools=[ADD, nested(tool)], tool_choice={"type": "custom", "custom": {"name": tool["name"]}}, seed=seed)["choices"][0]
            call = c["message"]["tool_calls"][0]
            assert call["type"] == "custom" and call["custom"]["name"] == tool["name"] and "function" not in call, call
            assert c["finish_reason"] == "length" or right(tool["name"], call["custom"]["input"]), call
            body = {"tools": [ADD, nested(tool)], "tool_choice": "required", "seed": seed, "stream": True}
            r = post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 300, **body})
            text = {}
            for frame in r.body.decode().split("\n\n")[:-2]:
                for x in json.loads(frame.removeprefix("data: "))["choices"]:
                    for t in x["delta"].get("tool_calls", []):
                        kind = "custom" if "custom" in t else "function"
                        text[kind] = text.get(kind, "") + t[kind].get("input" if kind == "custom" else "arguments", "")
            whole = post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 300, **body, "stream": False})
            call = whole.json["choices"][0]["message"]["tool_calls"][0]
            assert text == ({"custom": call["custom"]["input"]} if "custom" in call else {"function": call["function"]["arguments"]}), text


def the_shell_and_patches_have_their_items():
    kinds = {"local_shell": (SHELL, "local_shell_call", "lsh_"), "apply_patch": (EDIT, "apply_patch_call", "apc_")}
    for name, (tool, kind, prefix) in kinds.items():
        for seed in range(4):
            for most in (400, 30):
                choice = {"type": name} if name == "apply_patch" else {"type": "allowed_tools", "mode": "required", "tools": [{"type": name}]}
                more = {"tools": [tool, ADDS], "tool_choice": choice, "seed": seed, "max_output_tokens": most}
                r = respond(**more)
                items = [i for i in r["output"] if i["type"] == kind]
                if r["status"] == "completed":
                    assert len(items) == 1 and items[0]["id"].startswith(prefix) and items[0]["status"] == "completed", r
                for item in items:
                    if name == "local_shell":
                        assert item["action"]["type"] == "exec" and all(isinstance(x, str) for x in item["action"]["command"]), item
                    else:
                        assert item["operation"]["type"] in ("create_file", "update_file", "delete_file"), item
                events = streamed(**more)
                assert [e["item"]["type"] for e in events if e["type"].startswith("response.output_item")].count(kind) == 2 * len(items)
                assert [e["sequence_number"] for e in events] == list(range(len(events)))
                back = [*r["output"], *({"type": kind + "_output", "call_id": i["call_id"], "id": i["call_id"], "output": "ok",
                                         "status": "completed"} for i in items), {"role": "user", "content": "go on"}]
                assert respond(input=back, tools=[tool], max_output_tokens=5)["output"]
                assert respond(input=back[len(r["output"]):], previous_response_id=r["id"], max_output_tokens=5)["output"]


def namespaces_are_kept_apart():
    for seed in range(3):
        r = respond(tools=[SPACE], tool_choice="required", seed=seed)
        item = r["output"][0]
        assert (item["type"], item["name"], item["namespace"]) == ("function_call", "find", "crm"), item
        assert r["status"] == "incomplete" or json.loads(item["arguments"])["id"] <= 99
        back = [item, {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}]
        assert respond(input=back, tools=[SPACE], max_output_tokens=5)["output"]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "find", "namespace": "crm"}]}
    assert respond(tools=[SPACE, ADDS], tool_choice=choice)["output"][0]["name"] == "find"


def a_codex_list_is_served():
    tools = [ADDS, LARK, SHELL, SPACE, *PROVIDED]
    for stream in (False, True):
        for choice in ("auto", {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}, {"type": "local_shell"},
                                                                                  {"type": "web_search"}, {"type": "custom", "name": "patch"}]}):
            r = post("/v1/responses", {"input": "hi", "tools": tools, "tool_choice": choice, "stream": stream, "max_output_tokens": 30})
            ignored = r.headers["x-ignored-params"]
            assert all("tools." + t["type"] in ignored for t in PROVIDED), ignored
            o = r.json if not stream else json.loads(r.body.decode().split("\n\n")[-2].split("\ndata: ", 1)[1])["response"]
            assert o["tools"] == tools, o["tools"]
    for seed in range(6):
        body = {"input": "a", "tools": tools, "tool_choice": "required", "seed": seed, "max_output_tokens": 60}
        out = post("/v1/responses", body).json["output"]  # OpenAI's type of a response has not all of these tools
        assert out[0]["type"] in ("function_call", "custom_tool_call", "local_shell_call", "message"), out
    chats = [ADD, nested(TEXT), {"type": "web_search"}, {"type": "image_generation"}]
    r = post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": chats, "max_tokens": 5})
    assert "tools.web_search" in r.headers["x-ignored-params"], r.headers
    own = [{"name": "add", "input_schema": ADD["function"]["parameters"]}, *ANTHROPIC]
    for stream in (False, True):
        r = post("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "tools": own, "max_tokens": 5, "stream": stream})
        assert all("tools." + t["type"] in r.headers["x-ignored-params"] for t in ANTHROPIC), r.headers
    got = dialects.batch(server, server.key, "responses", [{"messages": dialects.APIS["responses"].user("a"), "tools": tools, "most": 5}])
    assert got[0].status == 200, got


def what_only_a_provider_executes_is_refused():
    for tool in PROVIDED:
        e = respond(400, tools=[tool])
        assert tool["type"] in e["message"] and e["param"] == "tools", e
        e = respond(400, tools=[ADDS, tool], tool_choice={"type": tool["type"]})
        assert tool["type"] in e["message"] and e["param"] == "tool_choice", e
        r = respond(400, tools=[ADDS, tool], headers={"x-lorad-strict-params": "true"})
        assert tool["type"] in r.json["error"]["message"], r
    assert "web_search" in chat(400, tools=[{"type": "web_search"}])["message"]
    for tool in ANTHROPIC:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}
        assert tool["type"] in post("/v1/messages", {**body, "tools": [tool]}, 400).json["error"]["message"]
        own = [{"name": "add", "input_schema": {"type": "object"}}, tool]
        assert post("/v1/messages", {**body, "tools": own, "tool_choice": {"type": "tool", "name": tool["name"]}}, 400)
        post("/v1/messages", {**body, "tools": own}, 400, {"x-lorad-strict-params": "true"})
    for bad in ({"type": "functoin", "name": "x"}, {"type": "custom"}, {"type": "custom", "name": "a b"}, {"name": "x"},
                {"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}},
                {"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "lark"}},
                {"type": "namespace", "name": "x"}, {"type": "namespace", "name": "x", "tools": [{"type": "web_search"}]}):
        respond(400, tools=[ADDS, bad])
    respond(400, tools=[{"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "lark", "definition": "start: ("}}],
            tool_choice="required")
    respond(400, tools=[EDIT, {"type": "function", "name": "apply_patch"}])


def custom_calls_of_earlier_turns():
    call = {"id": "c", "type": "custom", "custom": {"name": "free", "input": 'a "b"\n'}}
    for calls in ([call], [{**call, "custom": {"name": "free", "input": None}}], [{**call, "custom": {"name": "free"}}]):
        assert chat(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": calls},
                              {"role": "tool", "tool_call_id": "c", "content": "x"}], tools=[nested(TEXT)], max_tokens=3)
    items = [{"type": "custom_tool_call", "call_id": "c", "name": "free", "input": "x"},
             {"type": "custom_tool_call_output", "call_id": "c", "output": "y"}]
    assert respond(input=items, tools=[TEXT], max_output_tokens=3)
    for most in range(8, 40, 4):
        r = respond(tools=[LARK], tool_choice="required", max_output_tokens=most)
        outputs = [{"type": "custom_tool_call_output", "call_id": i["call_id"], "output": "cut"} for i in r["output"] if i["type"] != "message"]
        assert respond(input=[*r["output"], *outputs, {"role": "user", "content": "go on"}], tools=[LARK], max_output_tokens=3)


folder = tempfile.mkdtemp(prefix="lorad-tools-")
try:
    base, ids = marked.make(folder)
    with Server(model=base, settings=marked.settings(folder, "hermes")) as server:
        server.key = server.tenant("tools")
        run([custom_tools_get_their_text, the_shell_and_patches_have_their_items, namespaces_are_kept_apart, a_codex_list_is_served,
             what_only_a_provider_executes_is_refused, custom_calls_of_earlier_turns])
finally:
    shutil.rmtree(folder)
