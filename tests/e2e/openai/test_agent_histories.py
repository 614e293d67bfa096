"""Imperfect histories: calls that were cut, empty fields, and whatever lorad itself returned are accepted again, in every API and by
every kind of chat template."""
import json
import pathlib
import shutil
import tempfile

import dialects
import marked
from harness import Server, run, until
from marked import ADD, NOW, PLAIN, TOOLS, WEATHER

# A template that writes arguments one by one, as Qwen3-Coder's and GLM's do: it needs an object.
MEMBERS = """{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}
{{- '<|' + m.role + '|>\n' + m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}
{%- for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}</tool_call>{% endfor %}{{ '<|end|>\n' }}{% endfor %}
{{- '<|assistant|>\n' }}"""
THINKS = """{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
<think>
{% endif %}"""
ARGUMENTS = ['{"value": "', '{"a": 1, "b": {"c', "", " ", None, "[1]", "ls -l", '"text"', "7", "{", '{"a":1,"a":2}', {"a": 1}, [1], True]


def answered(server, name, messages, where, **more):
    for stream in (False, True):
        a = dialects.ask(server, server.key, name, {"messages": messages, "most": 12, "seed": 1, "temperature": 0, **more}, stream)
        assert a.status == 200, (name, where, stream, a)
    return a


def arguments_of_any_kind_are_accepted():
    for which in (server, members):
        for name, api in dialects.APIS.items():
            for arguments in ARGUMENTS:
                messages = [*api.user("What is 7 plus 5?"), *api.call("call_123456789", "add", arguments), *api.result("call_123456789", "x"),
                            *api.user("go on")]
                answered(which, name, messages, arguments, tools=TOOLS)
    chat = dialects.APIS["chat"]
    lines = [{"messages": [*chat.user("a"), *chat.call("c", "add", arguments), *chat.result("c", "x")]} for arguments in ARGUMENTS]
    assert {a.status for a in dialects.batch(server, server.key, "chat", lines)} == {200}


def a_template_gets_the_text_or_the_nearest_object():
    chat = dialects.APIS["chat"]

    def seen(which, arguments):
        body = {"model": "base", "messages": [*chat.user("a"), *chat.call("c", "add", arguments), *chat.result("c", "x")]}
        ids = which.call("POST", "/tokenize", body, key=which.key).json["tokens"]
        return which.call("POST", "/detokenize", {"model": "base", "tokens": ids}, key=which.key).json["prompt"]
    assert "add a=1 b=x</tool_call>" in seen(members, '{"a": 1, "b": "x')
    assert "add a=2</tool_call>" in seen(members, '{"a": 1, "a": 2}')
    assert "add arguments=ls -l</tool_call>" in seen(members, "ls -l")
    assert "add</tool_call>" in seen(members, None)
    assert '"arguments": {"a": 1}' in seen(server, '{"a":1}') and '"arguments": {}' in seen(server, "")
    assert '"arguments": "{\\"a\\": 1, \\"b' in seen(server, '{"a": 1, "b')


def empty_fields_are_accepted():
    empty = [{"content": "b", "tool_calls": []}, {"content": None}, {"content": []}, {}, {"content": None, "tool_calls": []},
             {"content": None, "reasoning_content": "hm"}, {"content": None, "reasoning": "hm", "tool_calls": None}]
    for which in (server, members):
        for m in empty:
            messages = [{"role": "user", "content": "a"}, {"role": "assistant", **m}, {"role": "user", "content": "go on"}]
            answered(which, "chat", messages, m)
            if "tool_calls" not in m and "reasoning" not in str(m):
                answered(which, "responses", messages, m)
                answered(which, "messages", messages, m)
    items = [{"type": "message", "role": "assistant", "content": [], "status": "incomplete", "id": "msg_1"},
             {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
             {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}]
    for item in items:
        answered(server, "responses", [{"role": "user", "content": "a"}, item, {"role": "user", "content": "b"}], item)
    for content in ([], [{"type": "thinking", "thinking": "hm", "signature": ""}], [{"type": "text", "text": ""}], ""):
        for after in ([{"role": "user", "content": "b"}], []):
            answered(server, "messages", [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}, *after], content)
    use = {"type": "tool_use", "id": "c", "name": "add", "input": {}}
    answered(server, "messages", [{"role": "user", "content": "a"}, {"role": "assistant", "content": [use]}], use)
    answered(server, "messages", [{"role": "user", "content": "a"}, {"role": "assistant", "content": [use]},
                                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": []}]}], use)


def empty_tools_are_none():
    for name, api in dialects.APIS.items():
        for choice in (None, "auto", "none"):
            got = answered(server, name, api.user("What is 7 plus 5?"), choice, tools=[], choice=choice)
            assert got.text and not got.calls, got
        for choice in ("required", "add"):
            a = dialects.ask(server, server.key, name, {"messages": api.user("a"), "tools": [], "choice": choice})
            assert a.status == 400 and "tool_choice" in a.error["message"], (name, a)


def a_cut_answer_goes_on():
    """Calls cut at every length, sent back as they came; and in the Responses API by previous_response_id and in a conversation."""
    for name, api in dialects.APIS.items():
        for most in range(1, 26, 2):
            first = api.user("What is 7 plus 5?")
            for choice in ("required", "auto"):
                a = dialects.ask(server, server.key, name, {"messages": first, "tools": [WEATHER, ADD, NOW], "choice": choice, "most": most,
                                                            "seed": most, "temperature": 1})
                assert a.status == 200 and "<tool_call>" not in a.text, a
                messages = [*first, *api.back(a)]
                for id, _, _ in a.calls:
                    messages += api.result(id, "cut")
                answered(server, name, [*messages, *api.user("go on")], a, tools=TOOLS)
                answered(members, name, [*messages, *api.user("go on")], a, tools=TOOLS)
                if name == "responses":
                    next = [*(x for id, _, _ in a.calls for x in api.result(id, "cut")), *api.user("go on")]
                    answered(server, name, next, a, previous_response_id=a.id, tools=TOOLS)


def a_conversation_with_cut_calls_goes_on():
    id = server.call("POST", "/v1/conversations", {}, key=server.key).json["id"]
    api = dialects.APIS["responses"]
    for most in (14, 16, 18, 20):
        a = dialects.ask(server, server.key, api, {"messages": api.user("a"), "tools": [WEATHER], "choice": "required", "most": most,
                                                   "conversation": id})
        assert a.status == 200, a
        items = [x for c, _, _ in a.calls for x in api.result(c, "cut")] or api.user("go on")
        answered(server, "responses", items, a, conversation=id)


def thoughts_alone_go_on():
    for name, api in dialects.APIS.items():
        if name == "messages":
            more = {"thinking": {"type": "enabled", "budget_tokens": 100}}
        else:
            more = {}
        a = dialects.ask(thinks, thinks.key, name, {"messages": api.user("What is 7 plus 5?"), "most": 4, "temperature": 0, **more})
        assert a.status == 200 and a.thoughts and not a.text, (name, a)
        answered(thinks, name, [*api.user("a"), *api.back(a), *api.user("go on")], a)
        answered(thinks, name, [*api.user("a"), *api.back(a)], a)
        if name == "responses":
            answered(thinks, name, api.user("go on"), a, previous_response_id=a.id)


folder = tempfile.mkdtemp(prefix="lorad-histories-")
try:
    base, ids = marked.make(folder)
    (pathlib.Path(folder) / "members.jinja").write_text(MEMBERS)
    (pathlib.Path(folder) / "thinks.jinja").write_text(THINKS)
    with Server() as server, Server(settings=marked.settings(folder, "members")) as members, \
            Server(settings=marked.settings(folder, "thinks")) as thinks:
        for each in (server, members, thinks):
            each.key = each.tenant("own")
        run([arguments_of_any_kind_are_accepted, a_template_gets_the_text_or_the_nearest_object, empty_fields_are_accepted,
             empty_tools_are_none, a_cut_answer_goes_on, a_conversation_with_cut_calls_goes_on, thoughts_alone_go_on])
finally:
    shutil.rmtree(folder)
