"""OpenAI's Responses API: items, events in their order and strictly as openai-python's types have them, tools, forms, thoughts;
what is stored, whose it is, that it is gone when it is deleted."""
import json
import os
import pathlib
import shutil
import signal
import tempfile
import urllib.parse

import openai
import pydantic
from openai.types.responses import Response, ResponseStreamEvent

import openai_types
from harness import DEMO, Server, run, until

ADD = {"type": "function", "name": "add", "description": "Adds.", "strict": True, "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["a"],
    "additionalProperties": False}}
OTHER = {**ADD, "name": "other"}
# The demo's words, with thoughts that the prompt opens where it is asked to think.
THINKS = """{{ bos_token }}{% for t in tools or [] %}<tool_call>{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
<think>
{% if enable_thinking is not defined or not enable_thinking %}
</think>

{% endif %}{% endif %}"""
EXTRA = {("Response", "store")}  # OpenAI's answers have it, its types do not


def client(s, key):
    return openai.OpenAI(base_url=s.url, api_key=key, max_retries=0, http_client=openai.DefaultHttpxClient(verify=s.tls()))


def strict(kind, value):
    """The value as openai-python's type, with nothing that it does not know."""
    made = pydantic.TypeAdapter(kind).validate_python(value, strict=True)
    name = "Response" if kind is Response else "Event"
    odd = openai_types.extras(made, name, set())
    assert not {(p.rpartition(".")[2] if p.endswith("Response") else p, n) for p, n in odd} - EXTRA - {
        ("Event.response", "store")}, odd
    return made


def ask(expect=200, on=None, key=None, **body):
    body = {"model": "base", "input": "What is 7 plus 5?", "temperature": 0, "max_output_tokens": 24, **body}
    r = (on or server).call("POST", "/v1/responses", body, key=key or own)
    assert r.status == expect, r
    if expect == 200:
        strict(Response, r.json)
    return r.json if expect == 200 else r.json["error"]


def text_of(r):
    return "".join(p["text"] for i in r["output"] if i["type"] == "message" for p in i["content"])


def frames(**body):
    """Events, each held to its type; numbers without a gap."""
    body = {"model": "base", "input": "What is 7 plus 5?", "temperature": 0, "max_output_tokens": 24, "stream": True, **body}
    r = server.call("POST", "/v1/responses", body, key=own)
    assert r.status == 200 and r.headers["content-type"].startswith("text/event-stream"), r
    out = []
    for frame in r.body.decode().split("\n\n")[:-1]:
        event, data = frame.split("\n")
        out.append(json.loads(data.removeprefix("data: ")))
        assert event == "event: " + out[-1]["type"], frame
        strict(ResponseStreamEvent, out[-1])
    assert [e["sequence_number"] for e in out] == list(range(len(out)))
    return out


def short(events):
    """Types, runs of one kind of delta as one."""
    names = [e["type"].removeprefix("response.") for e in events]
    return [n for i, n in enumerate(names) if not n.endswith("delta") or names[i - 1] != n]


def prompt_of(**body):
    """What the model read: counted, so compared by its number of tokens."""
    return ask(max_output_tokens=1, **body)["usage"]["input_tokens"]


def written(text):
    return {"structured_outputs": {"choice": [text]}}


def answers_and_is_a_response():
    r = ask(instructions="Be brief.", metadata={"a": "b"}, user="u")
    assert r["status"] == "completed" and text_of(r) and r["instructions"] == "Be brief." and r["metadata"] == {"a": "b"}
    chat = server.call("POST", "/v1/chat/completions", {
        "model": "base", "temperature": 0, "max_tokens": 24, "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 7 plus 5?"}]}, key=own).json
    assert text_of(r) == chat["choices"][0]["message"]["content"]
    u, v = r["usage"], chat["usage"]
    assert (u["input_tokens"], u["output_tokens"]) == (v["prompt_tokens"], v["completion_tokens"])
    cut = ask(max_output_tokens=2, ignore_eos=True)
    assert cut["status"] == "incomplete" and cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert cut["output"][0]["status"] == "incomplete"


def streams_in_order():
    events = frames()
    assert short(events) == ["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
                             "output_text.done", "content_part.done", "output_item.done", "completed"], short(events)
    said = "".join(e["delta"] for e in events if e["type"].endswith("text.delta"))
    assert said == events[-4]["text"] == text_of(events[-1]["response"]) == text_of(ask())
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []
    assert short(frames(max_output_tokens=2, ignore_eos=True))[-1] == "incomplete"


def calls_functions():
    events = frames(tools=[ADD], tool_choice="required", max_output_tokens=200)
    assert short(events) == ["created", "in_progress", "output_item.added", "function_call_arguments.delta",
                             "function_call_arguments.done", "output_item.done", "completed"], short(events)
    call = events[-1]["response"]["output"][0]
    assert call["name"] == "add" and set(json.loads(call["arguments"])) == {"a"} and call["status"] == "completed"
    two = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    events = frames(tools=[ADD], max_output_tokens=200, **written("Well. " + two + two))
    kinds = [e["item"]["type"] for e in events if e["type"] == "response.output_item.done"]
    assert kinds == ["message", "function_call", "function_call"], kinds
    assert [e["output_index"] for e in events if e["type"] == "response.output_item.added"] == [0, 1, 2]
    ids = {i["call_id"] for i in events[-1]["response"]["output"][1:]}
    assert len(ids) == 2
    r = ask(tools=[ADD, OTHER], tool_choice={"type": "allowed_tools", "mode": "required", "tools": [
        {"type": "function", "name": "other"}]}, max_output_tokens=200)
    assert r["output"][0]["name"] == "other"
    r = ask(tools=[ADD, OTHER], tool_choice={"type": "function", "name": "add"}, max_output_tokens=200)
    assert r["output"][0]["name"] == "add"


def goes_on_with_calls():
    first = ask(tools=[ADD], tool_choice="required", max_output_tokens=200)
    call = first["output"][0]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
    stored = ask(previous_response_id=first["id"], input=[output], tools=[ADD])
    whole = ask(input=[{"role": "user", "content": "What is 7 plus 5?"}, call, output], tools=[ADD])
    assert stored["usage"]["input_tokens"] == whole["usage"]["input_tokens"] and text_of(stored) == text_of(whole)


def keeps_a_form():
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["n"],
              "additionalProperties": False}
    r = ask(text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}, max_output_tokens=60)
    assert set(json.loads(text_of(r))) == {"n"} and r["text"]["format"]["name"] == "n"

    class Number(pydantic.BaseModel):
        n: int
    parsed = client(server, own).responses.parse(model="base", input="7?", text_format=Number, max_output_tokens=300)
    assert parsed.status == "incomplete" or isinstance(parsed.output_parsed.n, int)


def thoughts_are_items():
    events = frames(reasoning={"effort": "high"}, thinking_budget=6, max_output_tokens=60, **written("Yes."))
    assert short(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed"], short(events)
    r = events[-1]["response"]
    assert [i["type"] for i in r["output"]] == ["reasoning", "message"] and text_of(r) == "Yes."
    assert r["usage"]["output_tokens_details"]["reasoning_tokens"] >= 6
    thoughts = r["output"][0]["content"][0]["text"]
    said = [*r["output"], {"role": "user", "content": "So?"}]
    more = prompt_of(input=[{"role": "user", "content": "What is 7 plus 5?"}, *said])
    less = prompt_of(input=[{"role": "user", "content": "What is 7 plus 5?"}, *said[1:]])
    assert thoughts and more > less


def goes_on_from_what_is_stored():
    first = ask()
    second = ask(input="And 2 more?", previous_response_id=first["id"], instructions="Shout.")
    third = ask(input="Now?", previous_response_id=second["id"])
    both = [{"role": "user", "content": "What is 7 plus 5?"}, *first["output"], {"role": "user", "content": "And 2 more?"}]
    assert second["usage"]["input_tokens"] == prompt_of(input=both, instructions="Shout.", store=False)
    both += [*second["output"], {"role": "user", "content": "Now?"}]
    assert third["usage"]["input_tokens"] == prompt_of(input=both, store=False)
    c = client(server, own)
    assert c.responses.retrieve(third["id"]).output_text == text_of(third)
    items = c.responses.input_items.list(second["id"]).data
    assert [i.content[0].text for i in items] == ["And 2 more?"]
    unkept = ask(store=False)
    assert server.call("GET", "/v1/responses/" + unkept["id"], key=own).status == 404


def conversations_gather():
    c = client(server, own)
    talk = c.conversations.create(items=[{"type": "message", "role": "user", "content": "My name is Ann."}], metadata={"k": "v"})
    assert c.conversations.retrieve(talk.id).metadata == {"k": "v"}
    first = ask(conversation=talk.id)
    assert first["conversation"] == {"id": talk.id}
    second = ask(conversation={"id": talk.id}, input="And?")
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] > prompt_of(store=False)
    kinds = [i.role for i in c.conversations.items.list(talk.id, order="asc").data]
    assert kinds == ["user", "user", "assistant", "user", "assistant"], kinds
    page = c.conversations.items.list(talk.id, order="asc", limit=2)
    assert len(page.data) == 2 and page.has_more and len(list(page)) == 5
    c.conversations.delete(talk.id)
    assert server.call("GET", "/v1/responses/" + first["id"], key=own).status == 404
    assert ask(expect=404, conversation=talk.id)["param"] == "conversation"


def items_are_meant_by_their_ids():
    c = client(server, own)
    first = ask(input=[{"role": "user", "content": "My name is Ann."}])
    asked = c.responses.input_items.list(first["id"]).data[0].id
    ids = [{"type": "item_reference", "id": i} for i in (asked, first["output"][0]["id"])]
    question = {"role": "user", "content": "And?"}
    told = [{"role": "user", "content": "My name is Ann."}, *first["output"], question]
    by_id = ask(input=[*ids, question])
    assert by_id["usage"]["input_tokens"] == prompt_of(input=told, store=False)
    kept = c.responses.input_items.list(by_id["id"], order="asc").data
    assert [i.type for i in kept] == ["message"] * 3 and kept[0].id == asked
    talk = c.conversations.create(items=[{"type": "message", "role": "user", "content": "My name is Ann."}])
    said = c.conversations.items.list(talk.id).data[0].id
    assert prompt_of(input=[{"type": "item_reference", "id": said}]) == prompt_of(input="My name is Ann.")
    for wrong, key in ((asked, stranger), (asked[:-1] + "f", own), ("msg_" + "0" * 52, own), ("x", own), ("msg_", own)):
        e = ask(expect=404, key=key, input=[{"type": "item_reference", "id": wrong}])
        assert e["code"] == "item_not_found" and e["param"] == "input", e


def in_the_background(status, **body):
    """A response that was put there, once its status is that."""
    r = ask(background=True, **body)
    assert r["status"] == "queued" and r["background"] and not r["output"], r
    return until(lambda: next((x for x in [fetched(r["id"])] if x["status"] == status), None))


def fetched(name):
    r = server.call("GET", "/v1/responses/" + name, key=own)
    assert r.status == 200, r
    return strict(Response, r.json) and r.json


def goes_on_in_the_background():
    plain = ask()
    r = in_the_background("completed")
    assert text_of(r) == text_of(plain) and r["background"] and r["usage"] == plain["usage"], (r, plain)
    assert ask(input="So?", previous_response_id=r["id"])["status"] == "completed"
    failed = in_the_background("failed", model="none")
    assert failed["error"]["code"] == "invalid_prompt" and "none" in failed["error"]["message"], failed
    c = client(server, own)
    long = c.responses.create(model="base", input="x", background=True, max_output_tokens=400, extra_body={"ignore_eos": True, "min_tokens": 400})
    assert ask(expect=400, input="So?", previous_response_id=long.id)["param"] == "previous_response_id"
    assert c.responses.cancel(long.id).status == "cancelled"
    assert c.responses.retrieve(long.id).status == "cancelled"
    assert server.call("POST", f"/v1/responses/{plain['id']}/cancel", key=own).status == 400
    gone = ask(background=True, max_output_tokens=400, ignore_eos=True, min_tokens=400)
    for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", "")):
        assert server.call(method, f"/v1/responses/{gone['id']}{path}", key=stranger).status == 404
    assert server.call("DELETE", "/v1/responses/" + gone["id"], key=own).status == 200
    assert server.call("GET", "/v1/responses/" + gone["id"], key=own).status == 404
    ask(input="x")  # nobody stores it anew meanwhile
    assert server.call("GET", "/v1/responses/" + gone["id"], key=own).status == 404


def numbered(events, first=0):
    """As dictionaries; their numbers are in order."""
    out = [e.model_dump(mode="json", exclude_unset=True) for e in events]
    assert [e["sequence_number"] for e in out] == list(range(first, first + len(out))), out
    return out


def streams_from_the_background():
    c = client(server, own)
    body = {"model": "base", "input": "What is 7 plus 5?", "max_output_tokens": 40, "temperature": 0}
    seen = numbered(c.responses.create(**body, background=True, stream=True))
    types = [e["type"] for e in seen]
    assert types[:3] == ["response.created", "response.queued", "response.in_progress"], types
    assert types[-1] in ("response.completed", "response.incomplete") and "response.output_text.delta" in types, types
    name = seen[0]["response"]["id"]
    assert seen[-1]["response"] == {k: v for k, v in fetched(name).items() if k in seen[-1]["response"]}
    assert numbered(c.responses.retrieve(name, stream=True)) == seen
    for after in (0, 4, len(seen) - 2):
        assert numbered(c.responses.retrieve(name, stream=True, starting_after=after), after + 1) == seen[after + 1:]
    assert not list(c.responses.retrieve(name, stream=True, starting_after=len(seen) - 1))
    for path in ("?stream=true", "?stream=true&starting_after=2", ""):
        assert server.call("GET", f"/v1/responses/{name}{path}", key=stranger).status == 404
    for path, param in (("?stream=true&starting_after=-1", "starting_after"), ("?stream=maybe", "stream")):
        r = server.call("GET", f"/v1/responses/{name}{path}", key=own)
        assert r.status == 400 and r.json["error"]["param"] == param, r
    plain = in_the_background("completed")
    r = server.call("GET", f"/v1/responses/{plain['id']}?stream=true", key=own)
    assert r.status == 400 and r.json["error"]["param"] == "stream", r
    # Its client leaves and comes back while it is made, then somebody ends it.
    long = {**body, "max_output_tokens": 400, "extra_body": {"ignore_eos": True, "min_tokens": 400}}
    with c.responses.create(**long, background=True, stream=True) as stream:
        first = [next(iter(stream)) for _ in range(6)]
    again = c.responses.retrieve(first[0].response.id, stream=True, starting_after=first[-1].sequence_number)
    more = [next(iter(again)) for _ in range(5)]
    assert numbered(first + more)
    status = c.responses.cancel(first[0].response.id).status  # unless it was quicker
    rest = numbered(again, 11)
    assert rest[-1]["response"]["status"] == status, rest[-1]
    assert rest[-1]["type"] == {"cancelled": "response.failed"}.get(status, "response." + status), rest[-1]
    failed = numbered(c.responses.create(**{**body, "model": "none"}, background=True, stream=True))
    assert [e["type"] for e in failed] == ["response.created", "response.queued", "response.failed"], failed
    assert failed[-1]["response"]["error"]["code"] == "invalid_prompt", failed


def another_tenants_is_not_there():
    mine = ask()
    talk = server.call("POST", "/v1/conversations", {}, key=own).json
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        there = server.call(method, f"/v1/responses/{mine['id']}{path}", key=stranger)
        nowhere = server.call(method, f"/v1/responses/resp_none{path}", key=stranger)
        assert there.status == nowhere.status == 404, (there, nowhere)
        assert there.body.replace(mine["id"].encode(), b"X") == nowhere.body.replace(b"resp_none", b"X")
    odd = urllib.parse.quote("resp_" + "\U0001d54b" * 30)  # a sentence is not cut within a character
    assert "\U0001d54b" in server.call("GET", "/v1/responses/" + odd, key=own).json["error"]["message"]
    assert ask(expect=404, key=stranger, previous_response_id=mine["id"])["code"] == "previous_response_not_found"
    assert ask(expect=404, key=stranger, conversation=talk["id"])["code"] == "conversation_not_found"
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/items")):
        assert server.call(method, f"/v1/conversations/{talk['id']}{path}", key=stranger).status == 404
    assert server.call("GET", "/v1/responses/" + mine["id"], key=own).status == 200


def found_in(s, word):
    return [str(p) for p in pathlib.Path(s.dir).rglob("*") if p.is_file() and word.encode() in p.read_bytes()]


def deleted_is_gone():
    word = "xylophone-quetzal"
    many = {f"k{i}": f"{word} " * 28 for i in range(16)}  # more than a page of the database
    one = ask(input=f"Say {word}", instructions=word, metadata=many)
    assert found_in(server, word)
    r = server.call("DELETE", "/v1/responses/" + one["id"], key=own)
    assert r.json == {"id": one["id"], "object": "response", "deleted": True}
    assert not found_in(server, word)
    assert server.call("GET", "/v1/responses/" + one["id"], key=own).status == 404
    assert ask(expect=404, previous_response_id=one["id"])["param"] == "previous_response_id"
    talk = server.call("POST", "/v1/conversations", {"items": [{"role": "user", "content": "Say " + word}]}, key=own).json
    ask(input=f"Once more: {word}", conversation=talk["id"])
    assert found_in(server, word)
    assert server.call("DELETE", "/v1/conversations/" + talk["id"], key=own).json["deleted"]
    assert not found_in(server, word)


def too_much_is_cut_or_refused():
    long = [{"role": "user", "content": "word " * 300}, {"role": "assistant", "content": "word " * 300},
            {"role": "user", "content": "What is 7 plus 5?"}]
    long = long[:2] * 8 + long[2:]
    assert ask(expect=400, input=long)["code"] == "context_length_exceeded"
    r = ask(input=long, truncation="auto")
    assert text_of(r) and r["truncation"] == "auto"


def refuses_by_name():
    def refused(param, **body):
        e = ask(expect=400, **body)
        assert e["param"] == param, e
        return e["message"]
    assert "web_search" in refused("tools", tools=[{"type": "web_search"}])
    assert "input_image" in refused("input", input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])
    refused("input", input=[{"type": "item_reference"}])
    refused("background", background=True, store=False)
    refused("background", background=1)
    refused("input", input=[{"role": "wizard", "content": "x"}])
    refused("input", input=None)
    refused("prompt", prompt={"id": "x"})
    refused("include", include=["file_search_call.results"])
    refused("truncation", truncation="some")
    refused("top_logprobs", top_logprobs=3)
    refused("max_output_tokens", max_output_tokens=0)
    refused("tool_choice", tools=[ADD], tool_choice={"type": "web_search"})
    refused("tool_choice", tools=[ADD], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": []})
    refused("conversation", conversation="conv_x", previous_response_id="resp_x")
    refused("metadata", metadata={"a": 1})
    r = server.call("POST", "/v1/responses", {"model": "base", "input": "x", "max_output_tokens": 1, "reasoning": {"summary": "auto"},
                                              "include": ["reasoning.encrypted_content"], "tempratur": 1}, key=own)
    assert set(r.headers["x-ignored-params"].split(",")) == {"reasoning.summary", "include.reasoning.encrypted_content",
                                                             "tempratur"}, r.headers
    r = server.call("POST", "/v1/responses", {"model": "base", "input": "x", "tempratur": 1}, key=own,
                    headers={"x-lorad-strict-params": "true"})
    assert r.status == 400 and r.json["error"]["param"] == "tempratur"
    assert server.call("POST", "/v1/responses", {"model": "none", "input": "x"}, key=own).json["error"]["code"] == "model_not_found"



def stored_is_sealed():
    key = folder / "key"
    key.write_text(os.urandom(32).hex() + "\n")
    settings = {"responses.key_file": str(key), "responses.tenant_bytes": "64KiB", "responses.background": "1",
                "model.chat_template": str(template)}
    where = folder / "sealed"
    where.mkdir()
    with Server(settings=settings, directory=where) as sealed:
        mine = sealed.tenant("own")
        word = "xylophone-quetzal"
        one = ask(on=sealed, key=mine, input="Say " + word)
        assert sealed.call("GET", "/v1/responses/" + one["id"], key=mine).json["id"] == one["id"]
        assert not found_in(sealed, word)
        many = {f"k{i}": "x" * 512 for i in range(16)}
        for _ in range(6):
            ask(on=sealed, key=mine, metadata=many)
        e = ask(expect=429, on=sealed, key=mine, metadata=many)
        assert e["code"] == "storage_quota_exceeded", e
        ask(on=sealed, key=mine, metadata=many, store=False)
        other = sealed.tenant("other")
        streamed = numbered(client(sealed, other).responses.create(model="base", input=word, background=True, stream=True))
        lost = [ask(on=sealed, key=other, background=True, max_output_tokens=400, ignore_eos=True)["id"] for _ in range(10)]
        with client(sealed, other).responses.create(model="base", input=word, background=True, stream=True) as stream:
            cut = [next(iter(stream)) for _ in range(2)]  # the others go first
        sealed.stop(signal.SIGKILL)
        sealed.start()
        again = client(sealed, other).responses.retrieve(streamed[0]["response"]["id"], stream=True, starting_after=1)
        assert numbered(again, 2) == streamed[2:]
        last = numbered(client(sealed, other).responses.retrieve(cut[0].response.id, stream=True, starting_after=1), 2)
        assert [e["type"] for e in last] == ["response.failed"] and last[0]["response"]["error"]["code"] == "server_error", last
        assert not found_in(sealed, word) and not found_in(sealed, "output_text.delta")
        ends = [sealed.call("GET", "/v1/responses/" + name, key=other).json for name in lost]
        assert ends[-1]["status"] == "failed", ends[-1]
        assert all(r["status"] in ("completed", "incomplete") or r["error"]["code"] == "server_error" for r in ends), ends
        key.write_text(os.urandom(32).hex())
        sealed.stop()
        sealed.start()
        r = sealed.call("GET", "/v1/responses/" + one["id"], key=mine)
        assert r.status == 403 and word.encode() not in r.body, r
        assert sealed.call("DELETE", "/v1/responses/" + one["id"], key=mine).status == 200


folder = pathlib.Path(tempfile.mkdtemp(prefix="lorad-responses-"))
try:
    template = folder / "thinks.jinja"
    template.write_text(THINKS)
    with Server(model=DEMO / "base", settings={"model.chat_template": str(template)}) as server:
        own, stranger = server.tenant("own"), server.tenant("stranger")
        run([answers_and_is_a_response, streams_in_order, calls_functions, goes_on_with_calls, keeps_a_form, thoughts_are_items,
             goes_on_from_what_is_stored, conversations_gather, items_are_meant_by_their_ids, goes_on_in_the_background, streams_from_the_background, another_tenants_is_not_there, deleted_is_gone,
             too_much_is_cut_or_refused, refuses_by_name, stored_is_sealed])
finally:
    shutil.rmtree(folder)
