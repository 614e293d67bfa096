"""Anthropic's Messages API: its SDK, blocks and events strictly as its types have them, tools, thinking, counting, errors.

It needs an environment of its own (build/venv-agents, requirements-agents.txt; made by tests/run.sh).  Where that could not be
installed, the test says so and is skipped.
"""
import os
import pathlib
import sys

VENV = pathlib.Path(os.environ.get("LORAD_VENVS", pathlib.Path(__file__).resolve().parents[3] / "build")) / "venv-agents"
if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
    if not (VENV / "bin/python").exists():
        print("skipped: Anthropic's SDK is not installed (sh tests/run.sh does it)")
        sys.exit(77)
    os.execv(VENV / "bin/python", [str(VENV / "bin/python"), *sys.argv])

import json
import shutil
import tempfile

import anthropic
import pydantic
from anthropic.types import Message, RawMessageStreamEvent

import openai_types
from harness import DEMO, Server, run

ASK = [{"role": "user", "content": "What is 7 plus 5?"}]
ADD = {"name": "add", "description": "Adds.", "input_schema": {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["a"],
    "additionalProperties": False}}
# The demo's words; thoughts are opened by the prompt where it is asked to think.
THINKS = """{{ bos_token }}{% for t in tools or [] %}<tool_call>{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
<think>
{% if enable_thinking is defined and not enable_thinking %}
</think>

{% endif %}{% endif %}"""


def written(text):
    return {"structured_outputs": {"choice": [text]}}


def strict(kind, value):
    made = pydantic.TypeAdapter(kind).validate_python(value, strict=True)
    odd = openai_types.extras(made, "", set())
    assert not odd, odd
    return made


def post(expect=200, path="/v1/messages", headers=None, key="own", **body):
    body = {"model": "base", "messages": ASK, "max_tokens": 24, "temperature": 0, **body}
    sent = {"anthropic-version": "2023-06-01", **({"x-api-key": own} if key == "own" else {"x-api-key": key} if key else {}),
            **(headers or {})}
    r = server.call("POST", path, body, headers=sent)
    assert r.status == expect, r
    if path == "/v1/messages" and expect == 200:
        strict(Message, r.json)
    return r.json


def frames(**body):
    body = {"model": "base", "messages": ASK, "max_tokens": 24, "temperature": 0, "stream": True, **body}
    r = server.call("POST", "/v1/messages", body, headers={"x-api-key": own})
    assert r.status == 200, r
    out = []
    for frame in r.body.decode().split("\n\n")[:-1]:
        event, data = frame.split("\n")
        out.append(json.loads(data.removeprefix("data: ")))
        assert event == "event: " + out[-1]["type"], frame
        strict(RawMessageStreamEvent, out[-1])
    return out


def short(events):
    names = [e["type"] for e in events]
    return [n for i, n in enumerate(names) if not n.endswith("block_delta") or names[i - 1] != n]


def text_of(m):
    return "".join(b["text"] for b in m["content"] if b["type"] == "text")


def client(**more):
    return anthropic.Anthropic(base_url=server.url.removesuffix("/v1"), api_key=own, max_retries=0,
                               http_client=anthropic.DefaultHttpxClient(verify=server.tls()), **more)


def answers():
    m = post(system="Be brief.")
    chat = server.call("POST", "/v1/chat/completions", {
        "model": "base", "temperature": 0, "max_tokens": 24, "reasoning_effort": "none",
        "messages": [{"role": "system", "content": "Be brief."}, *ASK]}, key=own).json
    assert text_of(m) == chat["choices"][0]["message"]["content"] and m["stop_reason"] == "end_turn"
    u, v = m["usage"], chat["usage"]
    assert u["input_tokens"] + u["cache_read_input_tokens"] == v["prompt_tokens"] and u["output_tokens"] == v["completion_tokens"]
    blocks = [{"role": "user", "content": [{"type": "text", "text": "What is ", "cache_control": {"type": "ephemeral"}},
                                           {"type": "text", "text": "7 plus 5?"}]}]
    assert text_of(post(messages=blocks, system=[{"type": "text", "text": "Be brief."}])) == text_of(m)
    cut = post(max_tokens=1)
    assert cut["stop_reason"] == "max_tokens" and cut["stop_sequence"] is None
    stopped = post(stop_sequences=["is", "x"], **written("This is it"))
    assert stopped["stop_reason"] == "stop_sequence" and stopped["stop_sequence"] == "is" and text_of(stopped) == "Th", stopped


def streams_in_order():
    events = frames()
    assert short(events) == ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
                             "message_stop"], short(events)
    assert "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == text_of(post())
    assert events[0]["message"]["content"] == [] and events[0]["message"]["usage"]["input_tokens"] > 0
    assert events[-2]["usage"]["output_tokens"] > 0


def calls_tools():
    m = post(tools=[ADD], tool_choice={"type": "any"}, max_tokens=200)
    assert m["stop_reason"] == "tool_use" and set(m["content"][0]["input"]) == {"a"}, m
    m = post(tools=[ADD], tool_choice={"type": "tool", "name": "add"}, max_tokens=200)
    assert m["stop_reason"] == "tool_use" and m["content"][0]["name"] == "add", m
    one = '<tool_call>\n{"name": "add", "arguments": {"a": 7}}\n</tool_call>'
    events = frames(tools=[ADD], max_tokens=200, **written("Well. " + one + one))
    starts = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert starts == ["text", "tool_use", "tool_use"], starts
    parts = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta" and e["index"] == 1]
    assert json.loads("".join(parts)) == {"a": 7} and events[-2]["delta"]["stop_reason"] == "tool_use"
    single = post(tools=[ADD], tool_choice={"type": "auto", "disable_parallel_tool_use": True}, max_tokens=200,
                  **written(one + one))
    assert [b["type"] for b in single["content"]] == ["tool_use"]


def a_loop_of_tools_with_the_sdk():
    c = client()
    messages = list(ASK)
    with c.messages.stream(model="base", max_tokens=200, messages=messages, tools=[ADD], tool_choice={"type": "any"}) as stream:
        first = stream.get_final_message()
    use = first.content[0]
    assert first.stop_reason == "tool_use" and use.name == "add"
    messages += [{"role": "assistant", "content": first.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "12"}]},
                                              {"type": "text", "text": "So?"}]}]
    second = c.messages.create(model="base", max_tokens=20, messages=messages, tools=[ADD], extra_body={"temperature": 0})
    assert second.stop_reason in ("end_turn", "max_tokens") and second.usage.input_tokens > first.usage.input_tokens
    counted = c.messages.count_tokens(model="base", messages=messages, tools=[ADD]).input_tokens
    assert counted == second.usage.input_tokens + second.usage.cache_read_input_tokens
    async_client = anthropic.AsyncAnthropic(base_url=c.base_url, api_key=own, max_retries=0,
                                            http_client=anthropic.DefaultAsyncHttpxClient(verify=server.tls()))

    async def ask():
        return await async_client.messages.create(model="base", max_tokens=20, messages=ASK, extra_body={"temperature": 0})
    import asyncio
    assert asyncio.run(ask()).content[0].text == text_of(post(max_tokens=20))


def thinks_where_it_is_asked_to():
    assert all(b["type"] == "text" for b in post()["content"])
    events = frames(thinking={"type": "enabled", "budget_tokens": 6}, max_tokens=60, **written("Yes."))
    kinds = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert kinds == ["thinking", "text"], kinds
    m = post(thinking={"type": "enabled", "budget_tokens": 6}, max_tokens=60, **written("Yes."))
    assert [b["type"] for b in m["content"]] == ["thinking", "text"] and text_of(m) == "Yes."
    less = [*ASK, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "So?"}]
    more = [*ASK, {"role": "assistant", "content": m["content"]}, {"role": "user", "content": "So?"}]
    count = [post(path="/v1/messages/count_tokens", messages=each)["input_tokens"] for each in (less, more)]
    assert m["content"][0]["thinking"] and count[1] > count[0], count


def keeps_a_form():
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["n"],
              "additionalProperties": False}
    m = post(output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=60)
    assert set(json.loads(text_of(m))) == {"n"}


def goes_on_with_its_own_words():
    m = post(messages=[*ASK, {"role": "assistant", "content": "It"}], **written(" is 12."))
    assert text_of(m) == " is 12."


def errors_have_its_shape():
    def error(status, kind, **body):
        e = post(expect=status, **body)
        assert e["type"] == "error" and e["error"]["type"] == kind and e["request_id"].startswith("req_"), e
        return e["error"]["message"]
    error(400, "invalid_request_error", max_tokens=None)
    error(400, "invalid_request_error", temperature=1.5)
    error(400, "invalid_request_error", messages=[])
    error(400, "invalid_request_error", messages=[{"role": "robot", "content": "x"}])
    assert "image" in error(400, "invalid_request_error", messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
    assert "web_search" in error(400, "invalid_request_error", tools=[{"type": "web_search_20250305", "name": "web_search"}])
    error(400, "invalid_request_error", thinking={"type": "enabled"})
    error(400, "invalid_request_error", mcp_servers=[])
    for stop in ("", " \n"):  # as Anthropic does
        assert "stop_sequences" in error(400, "invalid_request_error", stop_sequences=["x", stop])
    error(404, "not_found_error", model="none")
    error(401, "authentication_error", key=None)
    error(401, "authentication_error", key="lk_wrong")
    error(400, "invalid_request_error", path="/v1/messages/count_tokens", messages=[])
    r = server.call("GET", "/v1/messages", headers={"x-api-key": own})
    assert r.status == 405 and r.json["type"] == "error"
    try:
        client().messages.create(model="none", max_tokens=1, messages=ASK)
        raise AssertionError("it was taken")
    except anthropic.NotFoundError as e:
        assert e.body["error"]["type"] == "not_found_error"


folder = pathlib.Path(tempfile.mkdtemp(prefix="lorad-messages-"))
try:
    (folder / "thinks.jinja").write_text(THINKS)
    with Server(model=DEMO / "base", settings={"model.chat_template": str(folder / "thinks.jinja")}) as server:
        own = server.tenant("own")
        run([answers, streams_in_order, calls_tools, a_loop_of_tools_with_the_sdk, thinks_where_it_is_asked_to, keeps_a_form,
             goes_on_with_its_own_words, errors_have_its_shape])
finally:
    shutil.rmtree(folder)
