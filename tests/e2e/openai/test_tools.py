"""Tools: forced calls by grammar, calls found in what a model writes, conversations with calls in them."""
import json
import pathlib
import shutil
import tempfile

import jsonschema
import openai

import contract
import openai_types
from harness import DEMO, Server, events, run

ASK = [{"role": "user", "content": "What is 7 plus 5?"}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a town", "strict": True,
    "parameters": {"type": "object", "properties": {
        "town": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "at": {"$ref": "#/$defs/Point"}},
        "required": ["town", "days"], "additionalProperties": False,
        "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}},
                            "required": ["x"], "additionalProperties": False}}}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"], "additionalProperties": False}}}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, ADD, NOW]
# The families' ways of writing a call; the demo's own template has the first.
LLAMA = """{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}
{{- '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}{{ '<|assistant|>\n' }}"""
MISTRAL = LLAMA.replace("{{ bos", "{# [TOOL_CALLS] #}{{ bos")


def body(**more):
    return {"model": "base", "messages": ASK, "temperature": 1, "max_tokens": 300, **more}


def whole(server, expect=200, **more):
    r = server.call("POST", "/v1/chat/completions", body(**more), key=server.tools_key)
    assert r.status == expect, r
    return r.json


def chat(server, expect=200, **more):
    r = whole(server, expect, **more)
    return r["choices"][0] if expect == 200 else r["error"]


def client(server, **more):
    return openai.OpenAI(base_url=server.url, api_key=server.tools_key, max_retries=0,
                         http_client=openai.DefaultHttpxClient(verify=server.tls()), **more)


def named(tool):
    return {"type": "function", "function": {"name": tool["function"]["name"]}}


def check(call):
    """What a forced call must be."""
    tool = next(t for t in TOOLS if t["function"]["name"] == call["function"]["name"])
    args = json.loads(call["function"]["arguments"])
    jsonschema.validate(args, tool["function"].get("parameters", {"maxProperties": 0}))
    assert call["type"] == "function" and len(call["id"]) >= 9
    return call["function"]["name"]


def a_named_function_is_called():
    for seed in range(3):
        for tool in TOOLS:
            c = chat(server, tools=TOOLS, tool_choice=named(tool), seed=seed)
            assert c["finish_reason"] == "stop" and c["message"]["content"] is None, c
            assert [check(call) for call in c["message"]["tool_calls"]] == [tool["function"]["name"]]


def required_calls_one_of_them():
    seen = set()
    for seed in range(12):
        c = chat(server, tools=TOOLS, tool_choice="required", seed=seed)
        assert c["finish_reason"] == "tool_calls" and len(c["message"]["tool_calls"]) == 1, c
        seen.add(check(c["message"]["tool_calls"][0]))
    assert len(seen) > 1, seen


def streams_the_same_call():
    """In pieces, too: a worker that wakes late sends what came meanwhile together, but not every time."""
    most = {}
    for choice in ["required", named(WEATHER)] * 20:
        if most.get(str(choice), 0) > 2:
            continue
        ask = dict(tools=TOOLS, tool_choice=choice, seed=4)
        whole = chat(server, **ask)
        r = server.call("POST", "/v1/chat/completions", body(stream=True, **ask), key=server.tools_key)
        deltas = [c for e in events(r.body) for c in e["choices"]]
        assert deltas[0]["delta"] == {"role": "assistant", "content": ""}, deltas[0]
        calls = [t for d in deltas for t in d["delta"].get("tool_calls", [])]
        assert [("id" in t, "name" in t["function"], "type" in t) for t in calls][0] == (True,) * 3
        assert all("id" not in t and "name" not in t["function"] for t in calls[1:])
        most[str(choice)] = len(calls)
        assert {t["index"] for t in calls} == {0}
        want = whole["message"]["tool_calls"][0]["function"]
        assert "".join(t["function"]["arguments"] for t in calls) == want["arguments"]
        assert calls[0]["function"]["name"] == want["name"]
        assert deltas[-1]["finish_reason"] == whole["finish_reason"], deltas[-1]
    assert len(most) == 2 and min(most.values()) > 2, most


def openai_python_streams_and_answers():
    with client(server).chat.completions.stream(model="base", messages=ASK, tools=[WEATHER, NOW], max_tokens=300,
                                                tool_choice="required", seed=2, temperature=1) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls" and check(final.message.tool_calls[0].to_dict())
    c = client(server).chat.completions
    first = c.create(model="base", messages=ASK, tools=TOOLS, tool_choice=named(ADD), max_tokens=100)
    call = first.choices[0].message.tool_calls[0]
    more = [*ASK, first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "12"},
            {"role": "user", "content": "Thanks."}]
    second = c.create(model="base", messages=more, tools=TOOLS, max_tokens=20, temperature=0)
    assert second.choices[0].finish_reason in ("stop", "length")
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def the_model_sees_tools_and_calls():
    def prompt(**more):
        c = whole(server, max_tokens=1, return_token_ids=True, **more)
        r = server.call("POST", "/detokenize", {"model": "base", "tokens": c["prompt_token_ids"]},
                        key=server.tools_key)
        return r.json["prompt"]
    plain = prompt()
    assert "get_weather" not in plain and prompt(tools=TOOLS, tool_choice="none") == plain
    seen = prompt(tools=TOOLS)
    assert json.dumps(WEATHER["function"]) in seen, seen
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":7,"b":5}'}}]
    seen = prompt(messages=[*ASK, {"role": "assistant", "tool_calls": calls},
                            {"role": "tool", "tool_call_id": "c1", "content": "12 <|end|>"}])
    assert '{"name": "add", "arguments": {"a": 7, "b": 5}}' in seen and "<tool_response>\n12" in seen
    assert prompt(tools=TOOLS, tool_choice=named(ADD)).endswith("<|assistant|>\n<tool_call>\n")


def written(text):
    """Makes the model write this."""
    return {"structured_outputs": {"choice": [text]}}


def finds_calls_in_what_is_written():
    def ask(text, **more):
        c = chat(server, tools=TOOLS, **written(text), **more)
        m = c["message"]
        calls = [(t["function"]["name"], json.loads(t["function"]["arguments"])) for t in m.get("tool_calls", [])]
        return m["content"], calls, c["finish_reason"]
    one = '<tool_call>\n{"name": "add", "arguments": {"a": 7, "b": [{}, "}"]}}\n</tool_call>'
    two = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    add, now = ("add", {"a": 7, "b": [{}, "}"]}), ("now", {})
    assert ask(one) == (None, [add], "tool_calls")
    assert ask("Let me see.\n" + one + "\n" + two) == ("Let me see.", [add, now], "tool_calls")
    assert ask(one + two, parallel_tool_calls=False) == (None, [add], "tool_calls")
    assert ask("No call. <tool_call> here") == ("No call. <tool_call> here", [], "stop")
    assert ask(one, tool_choice="none") == (one, [], "stop")
    cut = chat(server, tools=TOOLS, **written(one), max_tokens=24)
    assert cut["finish_reason"] == "length"
    r = server.call("POST", "/v1/chat/completions", body(tools=TOOLS, stream=True, **written("Hm. " + one + two)),
                    key=server.tools_key)
    got = {}
    text = ""
    for e in events(r.body):
        for c in e["choices"]:
            text += c["delta"].get("content") or ""
            for t in c["delta"].get("tool_calls", []):
                entry = got.setdefault(t["index"], ["", ""])
                entry[0] += t["function"].get("name", "")
                entry[1] += t["function"]["arguments"]
    assert text == "Hm." and [(n, json.loads(a)) for n, a in got.values()] == [add, now], (text, got)


def several_choices_each_with_its_call():
    r = server.call("POST", "/v1/chat/completions", body(tools=TOOLS, tool_choice="required", n=3, seed=1),
                    key=server.tools_key).json["choices"]
    ids = [c["message"]["tool_calls"][0]["id"] for c in r]
    assert len(set(ids)) == 3 and all(check(c["message"]["tool_calls"][0]) for c in r)


def refusals():
    def refused(param, **more):
        e = chat(server, expect=400, **more)
        assert e["param"] == param, e
    refused("tools", tools={})
    refused("tool_choice", tools=[], tool_choice="required")
    refused("tools[0].function.name", tools=[{"type": "function", "function": {"name": "no good"}}])
    refused("tool_choice", tools=TOOLS, tool_choice=named({"function": {"name": "other"}}))
    refused("tool_choice", tool_choice="required")
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "extends": {}}}}
    refused("tools", tools=[bad], tool_choice="required")
    deep = {"type": "object"}
    for _ in range(12):
        deep = {"type": "object", "properties": {"a": deep, "b": {"$ref": "#/nowhere"}}}
    refused("tools", tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}],
            tool_choice="required")
    refused("messages[0].tool_call_id", messages=[{"role": "tool", "content": "x"}])


def other_families():
    calls = {"llama": (LLAMA, '{"name": "add", "parameters": {"a": 1, "b": 2}}'),
             "mistral": (MISTRAL, '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}}]')}
    for name, (template, text) in calls.items():
        path = pathlib.Path(folder) / f"{name}.jinja"
        path.write_text(template)
        with Server(settings={"model.chat_template": str(path)}) as other:
            other.tools_key = other.tenant("tools")
            c = chat(other, tools=TOOLS, **written(text))
            assert c["finish_reason"] == "tool_calls", (name, c)
            assert json.loads(c["message"]["tool_calls"][0]["function"]["arguments"]) == {"a": 1, "b": 2}
            for seed in range(3):
                c = chat(other, tools=TOOLS, tool_choice="required", seed=seed)
                assert c["finish_reason"] == "tool_calls" and check(c["message"]["tool_calls"][0]), c
    path.write_text("{{ messages[0].content }}")
    with Server(settings={"model.chat_template": str(path)}) as other:
        other.tools_key = other.tenant("tools")
        for choice in ("required", named(TOOLS[0])):  # the schema alone makes a call of what is written
            c = chat(other, tools=TOOLS, tool_choice=choice, seed=1)
            assert check(c["message"]["tool_calls"][0]), c
        assert chat(other, tools=TOOLS, tool_choice="none")["message"]["content"] is not None


def a_template_without_tools():
    """It is told of them in the messages, and so are calls and results; two of a user in a row it refuses, as many do."""
    path = pathlib.Path(folder) / "bare.jinja"
    path.write_text("""{{ bos_token }}{% for m in messages %}{% if not loop.first and m.role == 'user' and messages[loop.index0 - 1].role == 'user' %}
{{- raise_exception('two of a user') }}{% endif %}{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('a role: ' + m.role) }}{% endif %}
{{- '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}{{ '<|assistant|>\n' }}""")
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 7, "b": 5}'}}
    talk = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call, {**call, "id": "c2"}]},
            {"role": "tool", "tool_call_id": "c1", "content": "12"}, {"role": "tool", "tool_call_id": "c2", "content": "13"},
            {"role": "user", "content": "Sure?"}]
    with Server(settings={"model.chat_template": str(path)}) as other:
        other.tools_key = other.tenant("tools")

        def seen(**more):
            ids = other.call("POST", "/tokenize", {"model": "base", "tools": TOOLS, **more}, key=other.tools_key).json["tokens"]
            return other.call("POST", "/detokenize", {"model": "base", "tokens": ids}, key=other.tools_key).json["prompt"]
        for system in ([], [{"role": "system", "content": "Be brief."}]):
            text = seen(messages=[*system, *talk])
            assert all(text.count(json.dumps(t["function"]["name"])) >= 1 for t in TOOLS) and "The weather in a town" in text, text
            assert text.index("get_weather") < text.index("What is 7 plus 5?") and ("Be brief.\n\nYou can call" in text) == bool(system), text
            assert text.count('{"name": "add", "parameters": {"a":7,"b":5}}') == 2, text
            assert "The function's result: 12\nThe function's result: 13\nSure?" in text, text
        c = chat(other, tools=TOOLS, **written('{"name": "add", "parameters": {"a": 1, "b": 2}}'))
        assert c["finish_reason"] == "tool_calls" and check(c["message"]["tool_calls"][0]), c
        c = chat(other, tools=TOOLS, **written("It is 12."), seed=1)
        assert c["message"].get("tool_calls") or c["message"]["content"] == "It is 12.", c
        assert "You can call" not in seen(messages=ASK, tool_choice="none")


folder = tempfile.mkdtemp(prefix="lorad-tools-")
server = Server(model=DEMO / "base")
try:
    contract.also.append(openai_types.hold)
    with server:
        server.tools_key = server.tenant("tools")
        run([a_named_function_is_called, required_calls_one_of_them, streams_the_same_call,
             openai_python_streams_and_answers, the_model_sees_tools_and_calls, finds_calls_in_what_is_written,
             several_choices_each_with_its_call, refusals, other_families, a_template_without_tools])
finally:
    shutil.rmtree(folder)
