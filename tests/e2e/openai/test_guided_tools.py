"""Calls in auto: once the model opens one, its name is one of those offered and its arguments keep their schema; forms in
free text (structural tags)."""
import json
import shutil
import tempfile

import jsonschema
import openai

import contract
import marked
import openai_types
from harness import Server, events, run
from marked import ADD, LOOSE, NOW, TOOLS, WEATHER

ASK = [{"role": "user", "content": "What is 7 plus 5?"}]


def body(opens, more):
    """At a temperature where nothing would be right by chance, and a bias for the mark that opens a call."""
    return {"model": "base", "messages": ASK, "temperature": 1.4, "max_tokens": 250, "tools": TOOLS,
            "logit_bias": marked.bias(opens, ids), **more}


def chat(server, opens="<tool_call>", expect=200, **more):
    r = server.call("POST", "/v1/chat/completions", body(opens, more), key=server.key)
    assert r.status == expect, r
    return r.json["choices"][0] if expect == 200 else r.json["error"]


def check_many(server, opens, n=20, tools=TOOLS, **more):
    """The calls of n answers."""
    calls, several = [], 0
    for seed in range(n):
        c = chat(server, opens, seed=seed, tools=tools, **more)
        assert marked.wrong(c, tools) is None, marked.wrong(c, tools)
        calls += marked.whole_calls(c)
        several += len(marked.whole_calls(c)) > 1
    return calls, several


def every_call_is_valid():
    for family in marked.OPENS:
        with Server(model=base, settings=marked.settings(folder, family)) as server:
            server.key = server.tenant("tools")
            calls, _ = check_many(server, marked.OPENS[family], n=8)
            names = {c["function"]["name"] for c in calls}
            assert len(calls) >= 4 and len(names) > 1, (family, calls)


def where_calls_are_not_held_to_a_form_it_is_said():
    many = [{"type": "function", "function": {"name": f"f{i}_{'x' * 50}", "strict": i == 7}} for i in range(128)]
    path = marked.pathlib.Path(folder) / "large.jinja"
    path.write_text("{# tools #}" + marked.PLAIN[marked.PLAIN.index("{% for m"):])
    with Server(model=base, settings=marked.settings(folder, "large")) as server:
        server.key = server.tenant("tools")
        ask = body("<tool_call>", {"tools": many, "max_tokens": 8, "messages": [{"role": "user", "content": "a"}]})
        r = server.call("POST", "/v1/chat/completions", ask, key=server.key)
        assert r.status == 200 and r.headers["x-ignored-params"] == "tools.function.strict", (r, r.headers)
        only = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": many[0]["function"]["name"]}]}
        r = server.call("POST", "/v1/chat/completions", {**ask, "tool_choice": only}, key=server.key)
        assert r.status == 200, r


def several_calls_unless_one_is_asked():
    calls, several = check_many(server, "<tool_call>", tools=[NOW, ADD])
    assert several > 0, calls
    _, several = check_many(server, "<tool_call>", tools=[NOW, ADD], parallel_tool_calls=False)
    assert several == 0


def streams_the_same():
    for seed in range(4):
        whole = chat(server, seed=seed, logprobs=True)
        r = server.call("POST", "/v1/chat/completions", body("<tool_call>", {"stream": True, "seed": seed}), key=server.key)
        got, text = {}, ""
        for e in events(r.body):
            for c in e["choices"]:
                text += c["delta"].get("content") or ""
                for t in c["delta"].get("tool_calls", []):
                    entry = got.setdefault(t["index"], ["", ""])
                    entry[0] += t["function"].get("name", "")
                    entry[1] += t["function"]["arguments"]
        want = [[t["function"]["name"], t["function"]["arguments"]] for t in whole["message"].get("tool_calls") or []]
        assert list(got.values()) == want and text == (whole["message"]["content"] or ""), (got, want, text)
        assert len(whole["logprobs"]["content"]) > 0


def choices_and_stop_strings_go_on():
    r = server.call("POST", "/v1/chat/completions", body("<tool_call>", {"n": 3, "seed": 1}), key=server.key).json["choices"]
    assert len(r) == 3 and all(marked.wrong(c, TOOLS) is None for c in r)
    plain = chat(server, logit_bias={}, temperature=0)
    text = plain["message"]["content"]
    assert plain["finish_reason"] == "stop" and len(text) > 2, plain
    cut = chat(server, logit_bias={}, temperature=0, stop=[text[1:3]])
    assert cut["message"]["content"] == text[:1], (cut, text)
    free = chat(server, logit_bias={}, temperature=0, tools=[{**NOW, "function": {**NOW["function"], "strict": False}}])
    assert free["finish_reason"] == "stop", free


def only_allowed_ones_are_called():
    for shape in ({"mode": "auto", "tools": [{"type": "function", "name": "add"}]},
                  {"allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]}}):
        calls, _ = check_many(server, "<tool_call>", n=8, tool_choice={"type": "allowed_tools", **shape})
        assert calls and {c["function"]["name"] for c in calls} == {"add"}, calls

    def seen(**more):
        r = server.call("POST", "/tokenize", {"model": "base", "messages": ASK, "tools": TOOLS, **more}, key=server.key)
        return r.json["tokens"]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}
    assert seen(tool_choice=allowed) == seen()
    for bad in ({"mode": "auto", "tools": [{"type": "function", "name": "other"}]}, {"mode": "auto", "tools": []},
                {"mode": "none", "tools": [{"type": "function", "name": "add"}]}, {"mode": "auto"}):
        assert chat(server, expect=400, tool_choice={"type": "allowed_tools", **bad})["param"] == "tool_choice"
    r = server.call("POST", "/v1/responses", {
        "model": "base", "input": "What is 7 plus 5?", "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [
            {"type": "function", "name": "now"}]}, "tools": [{"type": "function", **t["function"]} for t in TOOLS]}, key=server.key)
    assert r.status == 200 and [o["name"] for o in r.json["output"] if o["type"] == "function_call"] == ["now"], r


def strict_or_not():
    calls, _ = check_many(server, "<tool_call>", tools=[LOOSE], n=12)
    assert any(json.loads(c["function"]["arguments"]) != {"only": 1} for c in calls), calls
    odd = {"type": "object", "properties": {"a": {"extends": {"type": "string"}}}, "required": ["a"]}
    bad = {"type": "function", "function": {"name": "odd", "parameters": odd}}
    r = server.call("POST", "/v1/chat/completions", body("<tool_call>", {"tools": [bad, ADD], "seed": 2}), key=server.key)
    assert r.status == 200 and r.headers["x-ignored-params"] == "tools.function.parameters", (r, r.headers)
    bad["function"]["strict"] = True
    e = chat(server, expect=400, tools=[ADD, bad])
    assert e["param"] == "tools" and "extends" in e["message"], e


def openai_python_calls():
    c = openai.OpenAI(base_url=server.url, api_key=server.key, max_retries=0,
                      http_client=openai.DefaultHttpxClient(verify=server.tls())).chat.completions
    ask = dict(model="base", messages=ASK, tools=TOOLS, temperature=1.4, max_tokens=250, logit_bias={str(ids["<tool_call>"]): 14})
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "add"}}]}}
    found = 0
    for seed in range(6):
        r = c.create(**ask, seed=seed, tool_choice=choice).choices[0]
        found += len(marked.whole_calls(r.to_dict()))
        assert marked.wrong(r.to_dict(), [ADD]) is None
        with c.stream(**{**ask, "tools": [WEATHER, NOW]}, seed=seed) as stream:
            try:
                final = stream.get_final_completion().choices[0]
            except openai.LengthFinishReasonError:
                continue
        assert marked.wrong(final.to_dict(), [WEATHER, NOW]) is None
    assert found, "no call in six answers"


def forms_in_free_text():
    point = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["x"],
             "additionalProperties": False}
    tag = {"type": "structural_tag", "triggers": ["<tool_call>"], "structures": [
        {"begin": "<tool_call>p=", "schema": point, "end": "</tool_call>"},
        {"begin": "<tool_call>q=", "schema": {"enum": ["a", "b"]}, "end": ";"}]}
    newer = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [
        {"begin": s["begin"], "content": {"type": "json_schema", "json_schema": s["schema"]}, "end": s["end"]}
        for s in tag["structures"]]}}
    for form in ({"response_format": tag}, {"structured_outputs": {"structural_tag": json.dumps(tag)}}, {"response_format": newer}):
        found = 0
        for seed in range(5):
            c = chat(server, tools=None, seed=seed, logit_bias={str(ids["<tool_call>"]): 30}, **form)
            parts = c["message"]["content"].split("<tool_call>")[1:]
            for part in parts[:-1] if c["finish_reason"] == "length" else parts:
                found += 1
                if part.startswith("p="):
                    jsonschema.validate(json.loads(part[2:part.index("</tool_call>")]), point)
                else:
                    assert part.startswith(('q="a";', 'q="b";')), part
        assert found, form

    def refused(param, **form):
        e = chat(server, tools=None, expect=400, **form)
        assert e["param"] == param, e
    where = "response_format.structures"
    refused(where, response_format={**tag, "structures": [{"begin": "<other>", "schema": point, "end": ""}]})
    refused(where, response_format={**tag, "triggers": ["<tool_call>", "<more>"]})
    odd = [{"begin": "<tool_call>", "schema": {"type": "object", "extends": {}}, "end": ""}]
    refused("response_format", response_format={**tag, "structures": odd})
    refused("response_format.triggers", response_format={**tag, "triggers": [""]})
    refused("response_format.structures", response_format={"type": "structural_tag", "triggers": ["a"], "structures": []})
    refused("response_format.format", response_format={"type": "structural_tag", "format": {"type": "sequence", "elements": []}})
    refused("structured_outputs.structural_tag.triggers", structured_outputs={"structural_tag": "{}"})
    refused("structured_outputs.structural_tag", structured_outputs={"structural_tag": "{"})


folder = tempfile.mkdtemp(prefix="lorad-guided-")
try:
    base, ids = marked.make(folder)
    contract.also.append(openai_types.hold)
    with Server(model=base, settings=marked.settings(folder, "hermes")) as server:
        server.key = server.tenant("tools")
        run([every_call_is_valid, where_calls_are_not_held_to_a_form_it_is_said, several_calls_unless_one_is_asked, streams_the_same, choices_and_stop_strings_go_on,
             only_allowed_ones_are_called, strict_or_not, openai_python_calls, forms_in_free_text])
finally:
    shutil.rmtree(folder)
