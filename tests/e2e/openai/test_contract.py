"""conf/openapi.json: it is what its script makes, names every route, and every kind of answer keeps to it and
to openai-python's types."""
import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import contract
import openai_types
from harness import DEMO, ROOT, Server, demo_adapters, events, run

MESSAGES = [{"role": "user", "content": "What is 7 plus 5?"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}}}


def the_document_is_as_its_script_makes_it():
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        subprocess.run([sys.executable, ROOT / "tests/tools/make_openapi.py", f.name], check=True)
        assert pathlib.Path(f.name).read_bytes() == contract.DOCUMENT.read_bytes()


def every_route_is_in_it():
    source = (ROOT / "gateway/route.c").read_text()
    table = source[source.index("routes_inference[]"):source.index("routes_metrics[]")]
    for method, path in re.findall(r'\{"([A-Z]+)", "([^"]+)"', table):
        if path.startswith("/fleet/") or path in ("/", "/page.css", "/page.js", "/openapi.json"):  # servers among themselves; the page
            continue
        path = path.replace("{*}", "x").replace("{}", "x")
        assert contract.operation(method, path), (method, path)


def ask(path, body, expect=200):
    r = server.call("POST", path, {"model": "base", "max_tokens": 12, **body}, key=key)  # checks it
    assert r.status == expect, r
    return r


def every_kind_of_answer_keeps_to_it():
    chat, text = "/v1/chat/completions", "/v1/completions"
    for stream in (False, True):
        for more in ({}, {"n": 2}, {"logprobs": True, "top_logprobs": 3}, {"return_token_ids": True},
                     {"service_tier": "flex"}, {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
                     {"stop": ["1"]}, {"ignore_eos": True}, {"stop_token_ids": [1, 2, 3, 40]},
                     {"structured_outputs": {"choice": ["a"]}}, {"temperature": 1.9, "logit_bias": {"40": -100}}):
            ask(chat, {"messages": MESSAGES, "stream": stream, **more})
        for more in ({}, {"prompt": ["a", "b"], "n": 2}, {"logprobs": 2, "echo": True}, {"prompt": [1, 2, 3]},
                     {"max_tokens": 0, "echo": True, "logprobs": 1}, {"return_token_ids": True, "seed": 3}):
            ask(text, {"prompt": "The", "stream": stream, **more})
    ask(chat, {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True,
                                                                       "continuous_usage_stats": True}})
    for method, path, body in (("GET", "/v1/models", None), ("GET", f"/v1/models/{adapter}", None), ("GET", "/models", None),
                               ("GET", "/v1/key", None), ("POST", "/tokenize", {"prompt": "a b"}), ("GET", "/v1/usage", None),
                               ("POST", "/v1/detokenize", {"tokens": [40]}), ("GET", "/v1/adapters", None),
                               ("GET", f"/v1/adapters/{adapter}", None), ("GET", f"/v1/adapters/{adapter}/versions/1", None)):
        assert server.call(method, path, body, key=key).status == 200, path


def every_kind_of_error_keeps_to_it():
    for path, body, status in (("/v1/chat/completions", {}, 400), ("/v1/completions", {"prompt": 3}, 400),
                               ("/v1/completions", {"model": "nobody", "prompt": "x"}, 404), ("/v1/nowhere", {}, 404)):
        ask(path, body, status)
    assert server.call("POST", "/v1/completions", b"{", key=key, headers={"Content-Type": "application/json"}).status == 400
    assert server.call("GET", "/v1/models").status == 401
    assert server.call("PUT", "/v1/models", key=key).status == 405
    other = server.key("contract", scopes=["adapters.read"])
    assert server.call("POST", "/v1/completions", {"model": "base", "prompt": "x"}, key=other).status == 403


def taken_as_it_came_and_not_changed(hold, cases):
    for name, value, change in cases:
        hold(name, value, "as it came")
        wrong = copy.deepcopy(value)
        change(wrong)
        try:
            hold(name, wrong, "changed")
        except AssertionError:
            continue
        raise AssertionError(f"a changed {name} is taken: {json.dumps(wrong)}")


def another_answer_does_not():
    good = ask("/v1/chat/completions", {"messages": MESSAGES}).json
    chunk = events(ask("/v1/chat/completions", {"messages": MESSAGES, "stream": True}).body)[0]
    taken_as_it_came_and_not_changed(contract.hold, (
        ("ChatCompletion", good, lambda v: v.update(extra=1)),
        ("ChatCompletion", good, lambda v: v.pop("usage")),
        ("ChatCompletion", good, lambda v: v["choices"][0].update(finish_reason="because")),
        ("ChatCompletion", good, lambda v: v["choices"][0]["message"].update(content=3)),
        ("ChatCompletionChunk", chunk, lambda v: v["choices"][0].pop("finish_reason")),
        ("ChatCompletionChunk", chunk, lambda v: v["choices"][0]["delta"].update(tool_calls=[{"id": "x"}]))))


def openais_types_are_strict():
    """Each of these is taken by openai-python's client, and by no strict reader of its types."""
    good = ask("/v1/chat/completions", {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1}).json
    chunk = events(ask("/v1/chat/completions", {"messages": MESSAGES, "stream": True}).body)[0]
    text = ask("/v1/completions", {"prompt": "The", "logprobs": 1}).json
    piece = events(ask("/v1/completions", {"prompt": "The", "stream": True}).body)[0]
    models = server.call("GET", "/v1/models", key=key).json
    taken_as_it_came_and_not_changed(openai_types.hold, (
        ("ChatCompletion", good, lambda v: v.update(created=1.5)),
        ("ChatCompletion", good, lambda v: v.update(extra=1)),
        ("ChatCompletion", good, lambda v: v.pop("model")),
        ("ChatCompletion", good, lambda v: v.update(object="chat")),
        ("ChatCompletion", good, lambda v: v["choices"][0].update(index="0")),
        ("ChatCompletion", good, lambda v: v["choices"][0]["message"].update(role="model")),
        ("ChatCompletion", good, lambda v: v["choices"][0]["message"].update(stop_reason=None)),
        ("ChatCompletion", good, lambda v: v["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0].pop("logprob")),
        ("ChatCompletion", good, lambda v: v["usage"].update(total_tokens="3")),
        ("ChatCompletionChunk", chunk, lambda v: v["choices"][0].pop("delta")),
        ("ChatCompletionChunk", chunk, lambda v: v.update(service_tier="express")),
        ("Completion", text, lambda v: v["choices"][0].update(finish_reason=None)),
        ("Completion", text, lambda v: v["choices"][0]["logprobs"].update(text_offset=["0"])),
        ("CompletionChunk", piece, lambda v: v["choices"][0].update(finish_reason="end")),
        ("Models", models, lambda v: v["data"][0].update(owned_by=None)),
        ("Models", models, lambda v: v["data"][0].update(size=1))))


assert contract.jsonschema, "jsonschema is not installed"
assert openai_types.openai, "openai is not installed"
contract.also.append(openai_types.hold)
server = Server()
with server:
    key, adapter = server.tenant("contract"), demo_adapters()[0]
    server.upload(key, adapter, DEMO / "adapters" / adapter)
    run([the_document_is_as_its_script_makes_it, every_route_is_in_it, every_kind_of_answer_keeps_to_it,
         every_kind_of_error_keeps_to_it, another_answer_does_not, openais_types_are_strict])
