"""A format beside tools: the answer is calls or the format, in every API, streamed or not, and in each family's way of writing calls."""
import json
import shutil
import tempfile

import jsonschema

import dialects
import marked
from harness import Server, run
from marked import ADD, NOW, TOOLS

FORM = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
NODE = {"$defs": {"n": {"type": "object", "properties": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["n"],
                        "additionalProperties": False}}, "$ref": "#/$defs/n"}


def wrong(answer, tools, schema, choice=None):
    """What is wrong with an answer to a request with tools and a format; None: nothing is."""
    if answer.status != 200:
        return answer
    if answer.calls:
        if answer.text:
            return f"text beside calls: {answer}"
        # Messages has no half a call: one that the end of the answer cut has {} as its input.
        said = answer.calls[:-1] if answer.cut and answer.calls[-1][2] == "{}" else answer.calls
        calls = [{"function": {"name": n, "arguments": a}} for _, n, a in said]
        return marked.wrong({"message": {"tool_calls": calls}, "finish_reason": "length" if answer.cut else "stop"}, tools)
    if choice in ("required", "now", "add"):
        return None if answer.cut and not answer.text else f"no call: {answer}"
    if answer.cut:
        return None
    try:
        jsonschema.validate(json.loads(answer.text), schema)
    except (ValueError, jsonschema.ValidationError) as e:
        return f"{answer}: {str(e)[:100]}"


def case(api, **more):
    return {"messages": api.user("What is 7 plus 5?"), "tools": TOOLS, "schema": FORM, "temperature": 1, "most": 250, **more}


def both_come_in_every_api():
    for name in dialects.APIS:
        seen = set()
        for seed in range(12):
            got = [dialects.ask(even, even.key, name, case(dialects.APIS[name], seed=seed), stream) for stream in (False, True)]
            assert got[0].said == got[1].said, got
            assert wrong(got[0], TOOLS, FORM) is None, wrong(got[0], TOOLS, FORM)
            seen.add(bool(got[0].calls))
        assert seen == {True, False}, (name, seen)
    chat = dialects.APIS["chat"]
    answers = dialects.batch(even, even.key, "chat", [case(chat, seed=seed) for seed in range(12)])
    assert {bool(a.calls) for a in answers} == {True, False}
    assert not [w for w in (wrong(a, TOOLS, FORM) for a in answers) if w], answers


def every_kind_of_format_comes_beside_tools():
    formats = [{"response_format": {"type": "json_object"}},
               {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": NODE}}},
               {"structured_outputs": {"json": FORM}}, {"structured_outputs": {"regex": "[0-9]{3}"}},
               {"structured_outputs": {"choice": ["yes", "no"]}}, {"guided_json": json.dumps(FORM)},
               {"structured_outputs": {"grammar": 'root ::= "a" root | "b"'}}]
    says = [{}, NODE, FORM, None, None, FORM, None]
    for form, schema in zip(formats, says):
        for opens in (True, False):
            more = {"logit_bias": marked.bias("<tool_call>", ids)} if opens else {"logit_bias": {str(ids["<tool_call>"]): -100}}
            a = dialects.ask(server, server.key, "chat", {**case(dialects.APIS["chat"], seed=3), "schema": None, **form, **more})
            assert a.status == 200 and bool(a.calls) == opens, (form, a)
            if schema is not None and not opens:
                assert wrong(a, TOOLS, schema) is None, wrong(a, TOOLS, schema)
            elif schema is None and not opens:
                assert a.text.isdigit() or a.text in ("yes", "no") or a.text.strip("a") == "b", a


def a_forced_call_comes_first():
    for choice in ("required", "now"):
        for where, a in dialects.everywhere(server, server.key, lambda api: case(api, choice=choice)):
            assert a.calls and wrong(a, TOOLS, FORM, choice) is None, (where, a)


def every_family_tells_them_apart():
    for family, opens in marked.OPENS.items():
        with Server(model=base, settings=marked.settings(folder, family)) as other:
            other.key = other.tenant("tools")
            calls, texts = 0, 0
            for seed in range(6):
                bias = marked.bias(opens, ids) if seed < 4 else {i: -100 for i in marked.bias(opens, ids)}
                c = case(dialects.APIS["chat"], seed=seed, temperature=1.2, logit_bias=bias)
                got = [dialects.ask(other, other.key, "chat", c, stream) for stream in (False, True)]
                assert got[0].said == got[1].said, (family, got)
                assert wrong(got[0], TOOLS, FORM) is None, (family, wrong(got[0], TOOLS, FORM))
                calls += len(got[0].calls)
                texts += not got[0].calls
            assert calls and texts, (family, calls, texts)


def what_cannot_be_told_apart_is_refused():
    def refused(server, text, **more):
        a = dialects.ask(server, server.key, "chat", case(dialects.APIS["chat"], **{"schema": None, **more}))
        assert a.status == 400 and text in a.error["message"], a
        return a.error
    refused(server, "can begin with '<tool_call>'", structured_outputs={"regex": ".*"})
    bad = refused(server, "extends", schema={"type": "object", "extends": {}})
    assert bad["param"] == "response_format.json_schema.schema", bad
    with Server(model=base, settings=marked.settings(folder, "llama")) as other:
        other.key = other.tenant("tools")
        e = refused(other, """can begin with '{"name": "get_weather"'""", response_format={"type": "json_object"})
        assert e["param"] == "response_format", e
        for name, api in dialects.APIS.items():
            a = dialects.ask(other, other.key, name, case(api, schema={"type": "object", "properties": {"name": {"type": "string"}}}))
            assert a.status == 400 and "can begin with" in a.error["message"], (name, a)


def a_stack_of_turns_goes_on():
    for name, api in dialects.APIS.items():
        messages = api.user("What is 7 plus 5?")
        for turn in range(6):
            a = dialects.ask(even, even.key, name, case(api, messages=messages, seed=turn))
            assert wrong(a, TOOLS, FORM) is None, wrong(a, TOOLS, FORM)
            messages = [*messages, *api.back(a)]
            for id, _, _ in a.calls:
                messages += api.result(id, "12")
            if not a.calls:
                messages += api.user("And then?")


def only_one_call_where_one_is_asked():
    for seed in range(8):
        a = dialects.ask(server, server.key, "chat", case(dialects.APIS["chat"], tools=[NOW, ADD], seed=seed, parallel_tool_calls=False,
                                                          logit_bias=marked.bias("<tool_call>", ids)))
        assert len(a.calls) == 1 and wrong(a, TOOLS, FORM) is None, a


folder = tempfile.mkdtemp(prefix="lorad-formats-")
try:
    base, ids = marked.make(folder)
    equal = marked.make_even(folder, ids)
    with Server(model=base, settings=marked.settings(folder, "hermes")) as server, \
            Server(model=equal, settings=marked.settings(folder, "hermes")) as even:
        server.key, even.key = server.tenant("tools"), even.tenant("tools")
        run([both_come_in_every_api, every_kind_of_format_comes_beside_tools, a_forced_call_comes_first, every_family_tells_them_apart,
             what_cannot_be_told_apart_is_refused, a_stack_of_turns_goes_on, only_one_call_where_one_is_asked])
finally:
    shutil.rmtree(folder)
