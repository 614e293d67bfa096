"""What agents and proxies look for: the sentences about prompts that are too long, fields that select an adapter, paths with slashes,
counted tokens, calls that are cut, and schemas and lengths at their bounds; in every API, streamed or not."""
import json
import re
import shutil
import tempfile

import jsonschema

import dialects
import marked
from harness import DEMO, Server, run
from marked import ADD, NOW, WEATHER

# Who reads which sentence (docs/reference/clients.md): what each looks for, in its own way.
OPENAI = [("LiteLLM", lambda e: "this model's maximum context length is" in e["message"].lower()),
          ("LangChain, OpenHands, opencode", lambda e: e["code"] == "context_length_exceeded"),
          ("llama-index, aider", lambda e: re.search(r"maximum context length is (\d+) tokens", e["message"])),
          ("Cline, Roo Code", lambda e: re.search(r"\bcontext\s*(length|window)\b|\bmaximum\s*context\b", e["message"], re.I)),
          ("Open WebUI's filters, vLLM's clients", lambda e: re.search(r"However, you(r \w+ resulted in| requested) (\d+) tokens", e["message"]))]
ANTHROPIC_LONG = [("Claude Code", lambda e: re.search(r"prompt is too long: (\d+) tokens > (\d+) maximum", e["message"])),
                  ("LiteLLM", lambda e: "prompt is too long" in e["message"] and e["type"] == "invalid_request_error")]
ANTHROPIC_SUM = [("Claude Code", lambda e: re.search(r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+)",
                                                     e["message"]))]
CONTEXT = 1024
LONG = "seven plus " * 1500


def holds(readers, error, where):
    for client, looks in readers:
        assert looks(error), f"{client} would not understand ({where}): {error}"


def a_prompt_that_is_too_long_is_told_in_known_words():
    for name, api in dialects.APIS.items():
        for stream in (False, True):
            a = dialects.ask(server, server.key, name, {"messages": api.user(LONG), "most": 10}, stream)
            assert a.status == 400, a
            holds(ANTHROPIC_LONG if name == "messages" else OPENAI, a.error, name)
            for most in (CONTEXT - 2, CONTEXT, 32000, 2**31 - 1):
                a = dialects.ask(server, server.key, name, {"messages": api.user("What is 7 plus 5?"), "most": most}, stream)
                assert a.status == 400, (most, a)
                holds(ANTHROPIC_SUM if name == "messages" else OPENAI, a.error, name)
                numbers = [int(x) for x in re.findall(r"\d+", a.error["message"])]
                assert most in numbers and CONTEXT in numbers, (most, a.error)
    for body in ({"prompt": LONG}, {"prompt": "a", "max_tokens": 32000}, {"prompt": [5] * (CONTEXT + 1)}):
        for stream in (False, True):
            r = server.call("POST", "/v1/completions", {"model": "base", "stream": stream, **body}, key=server.key)
            assert r.status == 400, r
            holds(OPENAI, r.json["error"], "completions")
    chat = dialects.APIS["chat"]
    for a in dialects.batch(server, server.key, "chat", [{"messages": chat.user(LONG)}, {"messages": chat.user("a"), "most": 32000}]):
        assert a.status == 400, a
        holds(OPENAI, a.error, "batch")


def the_numbers_are_right():
    """What is asked for less by these numbers fits: as Claude Code does."""
    api = dialects.APIS["messages"]
    a = dialects.ask(server, server.key, "messages", {"messages": api.user("What is 7 plus 5?"), "most": 32000})
    prompt, asked, context = (int(x) for x in re.search(r"(\d+) \+ (\d+) > (\d+)", a.error["message"]).groups())
    assert asked == 32000 and context == CONTEXT
    a = dialects.ask(server, server.key, "messages", {"messages": api.user("What is 7 plus 5?"), "most": context - prompt})
    assert a.status == 200 and a.usage["input_tokens"] + a.usage["cache_read_input_tokens"] == prompt, a


FIELDS = {"lora_path": "pirate", "lora_adapter": "pirate", "lora_name": "pirate", "lora_request": {"lora_name": "pirate", "lora_int_id": 1},
          "lora_id": "pirate", "loras": ["pirate"], "adapter": "pirate", "adapter_name": "pirate", "adapter_id": "pirate"}


def a_field_selects_the_adapter():
    for name, api in dialects.APIS.items():
        case = {"messages": api.user("What is 7 plus 5?"), "temperature": 0, "most": 30}
        plain, want = (dialects.ask(server, server.key, name, {**case, "model": model}).text for model in ("base", "pirate"))
        assert plain != want
        for field, value in FIELDS.items():
            for stream in (False, True):
                a = dialects.ask(server, server.key, name, {**case, field: value}, stream)
                assert a.text == want and field not in a.headers.get("x-ignored-params", ""), (name, field, a)
            a = dialects.ask(server, server.key, name, {**case, field: "nobody"})
            assert a.status == 404 and "nobody" in a.error["message"], (name, field, a)
            a = dialects.ask(server, server.key, name, {**case, field: 7})
            assert a.status == 400 and "'model'" in a.error["message"], (name, field, a)
            a = dialects.ask(server, server.key, name, {**case, field: value, "model": "formal"})
            assert a.status == 400 and "'model'" in a.error["message"], (name, field, a)
        for field in ("lora", "adapter_path", "merged_adapters"):
            if name == "chat":
                a = dialects.ask(server, server.key, name, {**case, field: "pirate"})
                assert a.status == 400 and "'model'" in a.error["message"], (name, field, a)
    for path, more in (("/v1/completions", {"prompt": "What is 7 plus 5?", "max_tokens": 20, "temperature": 0, "ignore_eos": True}), ("/tokenize", {"prompt": "a"}),
                       ("/v1/embeddings", {"input": "a"})):
        said = {}
        for what, extra in (("base", {}), ("field", {"lora_path": "pirate"}), ("model", {"model": "pirate"}), ("wrong", {"lora_path": "nobody"})):
            r = server.call("POST", path, {"model": "base", **more, **extra}, key=server.key)
            said[what] = r.status, str([r.json.get(x) and [y.get(z) for y in r.json[x] for z in ("text", "embedding")] for x in ("choices", "data")])
            if r.status == 404:
                assert "nobody" in r.json["error"]["message"]
        assert said["field"] == said["model"] and said["wrong"][0] == 404, (path, said)
        if path != "/tokenize":
            assert said["field"] != said["base"], (path, said)
    lines = [{"messages": dialects.APIS["chat"].user("What is 7 plus 5?"), "temperature": 0, "most": 30, **more}
             for more in ({"model": "pirate"}, {"lora_path": "pirate"}, {"lora_path": "nobody"})]
    got = dialects.batch(server, server.key, "chat", lines)
    assert got[0].text == got[1].text and got[2].status == 404, got


def slashes_mean_nothing():
    for path in ("/v1//models", "/v1/models/", "//v1/models", "/v1//models//base/"):
        assert server.call("GET", path, key=server.key).status == 200, path
    body = dialects.APIS["chat"].body({"messages": dialects.APIS["chat"].user("a"), "most": 1})
    for path in ("/v1//chat/completions", "/v1/chat/completions/", "//chat//completions"):
        assert server.call("POST", path, body, key=server.key).status == 200, path
    r = server.call("POST", "/v1/chat/completion", body, key=server.key)
    assert r.status == 404 and "POST /v1/chat/completions" in r.json["error"]["message"], r
    r = server.call("POST", "/v1/responses/compact", {"model": "base", "input": "a"}, key=server.key)
    assert r.status == 404 and "does not compact conversations" in r.json["error"]["message"], r


def input_tokens_are_those_of_the_response():
    for more in ({}, {"instructions": "Be brief."}, {"tools": [{"type": "function", **ADD["function"]}]}, {"text": {"format": {
            "type": "json_schema", "name": "x", "schema": {"type": "object"}}}}, {"model": "pirate"}):
        body = {"model": "base", "input": [{"role": "user", "content": "What is 7 plus 5?"}], **more}
        counted = server.call("POST", "/v1/responses/input_tokens", body, key=server.key)
        made = server.call("POST", "/v1/responses", {**body, "max_output_tokens": 1}, key=server.key)
        assert counted.json == {"object": "response.input_tokens", "input_tokens": made.json["usage"]["input_tokens"]}, (counted, made)
    first = server.call("POST", "/v1/responses", {"model": "base", "input": "a", "max_output_tokens": 1}, key=server.key).json
    more = {"model": "base", "input": "b", "previous_response_id": first["id"]}
    n = server.call("POST", "/v1/responses/input_tokens", more, key=server.key).json["input_tokens"]
    assert n == server.call("POST", "/v1/responses", {**more, "max_output_tokens": 1}, key=server.key).json["usage"]["input_tokens"]
    assert server.call("POST", "/v1/responses/input_tokens", {"model": "nobody", "input": "a"}, key=server.key).status == 404
    assert server.call("POST", "/v1/responses/input_tokens", {"input": 7}, key=server.key).status == 400


def a_forced_call_that_is_cut_shows_no_mark():
    for family in ("hermes", "mistral", "phi", "llama", "deepseek", "xml", "glm", "python", "channel"):
        with Server(model=base, settings=marked.settings(folder, family)) as other:
            other.key = other.tenant("own")
            for name, api in dialects.APIS.items():
                for choice in ("required", "get_weather"):
                    for most in (1, 2, 4, 6, 9, 13, 20):
                        case = {"messages": api.user("a"), "tools": [WEATHER, ADD], "choice": choice, "most": most, "seed": most}
                        got = [dialects.ask(other, other.key, name, case, stream) for stream in (False, True)]
                        assert got[0].said == got[1].said, (family, got)
                        for a in got:
                            assert a.status == 200 and not a.text and a.cut and len(a.calls) <= 1, (family, name, most, a)


def no_properties_are_no_members():
    for properties in ({}, {"type": "object"}):
        tool = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}, **properties}}}
        for name, api in dialects.APIS.items():
            for seed in range(4):
                a = dialects.ask(server, server.key, name, {"messages": api.user("a"), "tools": [tool], "choice": "required", "seed": seed})
                assert [json.loads(x) for _, _, x in a.calls] == [{}], (name, a)
    chat = dialects.APIS["chat"]
    a = dialects.ask(server, server.key, "chat", {"messages": chat.user("a"), "schema": {"type": "object", "properties": {}}})
    assert json.loads(a.text) == {}, a


def whole_numbers_have_exact_bounds():
    for low, high in ((2**63, None), (2**63 - 1, 2**63 + 1), (None, -2**63 - 1), (10**30, 10**30 + 9), (-10**25, -10**25 + 1), (2**64, 2**64),
                      (-2**63 - 2, 2**63 + 2)):
        schema = {"type": "integer", **({"minimum": low} if low is not None else {}), **({"maximum": high} if high is not None else {})}
        for name, api in dialects.APIS.items():
            for seed in range(4):
                a = dialects.ask(server, server.key, name, {"messages": api.user("a"), "schema": schema, "seed": seed, "most": 120,
                                                            "temperature": 1})
                assert a.status == 200, (schema, a)
                if not a.cut:
                    jsonschema.validate(json.loads(a.text), schema)


def a_completion_has_as_many_tokens_as_the_model_says():
    own = shutil.copytree(DEMO / "base", folder + "/own")
    path = own + "/generation_config.json"
    config = json.load(open(path))
    json.dump({**config, "max_new_tokens": 23}, open(path, "w"))
    with Server(model=own) as other:
        other.key = other.tenant("own")
        for stream in (False, True):
            body = {"model": "base", "prompt": "The", "ignore_eos": True, "stream": stream}
            got = other.complete(other.key, "/v1/completions", body)[-1]["usage"]["completion_tokens"]
            assert got == 23, got
            assert other.complete(other.key, "/v1/completions", {**body, "max_tokens": 5})[-1]["usage"]["completion_tokens"] == 5
    got = server.complete(server.key, "/v1/completions", {"model": "base", "prompt": "The", "ignore_eos": True, "stream": False})
    assert got[-1]["usage"]["completion_tokens"] == 16


folder = tempfile.mkdtemp(prefix="lorad-words-")
try:
    base, ids = marked.make(folder)
    with Server() as server:
        server.key = server.tenant("own")
        for adapter in ("pirate", "formal"):
            if (DEMO / "adapters" / adapter).exists():
                server.upload(server.key, adapter, DEMO / "adapters" / adapter)
        run([a_prompt_that_is_too_long_is_told_in_known_words, the_numbers_are_right, a_field_selects_the_adapter, slashes_mean_nothing,
             input_tokens_are_those_of_the_response, a_forced_call_that_is_cut_shows_no_mark, no_properties_are_no_members,
             whole_numbers_have_exact_bounds, a_completion_has_as_many_tokens_as_the_model_says])
finally:
    shutil.rmtree(folder)
