"""dialects.py -- one conversation in each API: chat completions, Responses, Messages, streamed or not, and as lines of a batch.

A case is a dict: messages (of the API, as its own `user`, `result` and `back` make them), tools (as a chat has them), choice (auto,
required, none, a name), schema (of the final answer), most (tokens) and whatever fields the API takes beside.  An answer is read into
one shape, whatever API it came from, so that a table of cases can be held against all of them.
"""
import json
import time

from harness import events, until


class Answer:
    def __init__(self, status, error=None, text="", thoughts="", calls=(), cut=False, sent=None, usage=None, id=None):
        self.status, self.error, self.text, self.thoughts = status, error, text, thoughts
        self.calls, self.cut, self.sent, self.usage, self.id = list(calls), cut, sent, usage, id  # calls: (id, name, arguments)

    def __repr__(self):
        return f"<{self.status} {self.error or ''} {self.text!r} {self.calls} cut={self.cut}>"

    @property
    def said(self):
        """What must be the same streamed and not."""
        return self.text, [(name, arguments) for _, name, arguments in self.calls], self.cut


class Chat:
    path = "/v1/chat/completions"
    keeps_seed = True

    def body(self, case):
        case = dict(case)
        tools, choice, schema = case.pop("tools", None), case.pop("choice", None), case.pop("schema", None)
        body = {"model": "base", "messages": case.pop("messages"), "max_tokens": case.pop("most", 200)}
        if tools is not None:
            body["tools"] = tools
        if choice:
            body["tool_choice"] = choice if choice in ("auto", "required", "none") else {"type": "function", "function": {"name": choice}}
        if schema is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return {**body, **case}

    def user(self, text):
        return [{"role": "user", "content": text}]

    def result(self, id, text):
        return [{"role": "tool", "tool_call_id": id, "content": text}]

    def back(self, answer):
        return [answer.sent]

    def call(self, id, name, arguments, content=None):
        """What an assistant said before: one call."""
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        return [{"role": "assistant", "content": content, "tool_calls": [call]}]

    def parse(self, o):
        choice = o["choices"][0]
        m = choice["message"]
        calls = [(t["id"], t["function"]["name"], t["function"]["arguments"]) for t in m.get("tool_calls") or []]
        return Answer(200, text=m["content"] or "", thoughts=m.get("reasoning_content") or "", calls=calls,
                      cut=choice["finish_reason"] == "length", sent=m, usage=o["usage"], id=o["id"])

    def parse_stream(self, data):
        text, thoughts, got, finish = "", "", {}, None
        for chunk in events(data):
            for c in chunk["choices"]:
                d = c["delta"]
                said = d.get("content") or d.get("tool_calls") or d.get("reasoning_content")
                assert finish is None, "a chunk behind the one with finish_reason"
                assert not (c["finish_reason"] and said), f"finish_reason beside content: {c}"
                finish = c["finish_reason"]
                text += d.get("content") or ""
                thoughts += d.get("reasoning_content") or ""
                for t in d.get("tool_calls", []):
                    entry = got.setdefault(t["index"], [None, "", ""])
                    entry[0] = t.get("id", entry[0])
                    entry[1] += t["function"].get("name", "")
                    entry[2] += t["function"].get("arguments", "")
        assert finish, "no finish_reason"
        calls = [tuple(got[i]) for i in sorted(got)]
        sent = {"role": "assistant", "content": text or None}
        if calls:
            sent["tool_calls"] = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
        return Answer(200, text=text, thoughts=thoughts, calls=calls, cut=finish == "length", sent=sent)


class Responses:
    path = "/v1/responses"
    keeps_seed = True

    def body(self, case):
        case = dict(case)
        tools, choice, schema = case.pop("tools", None), case.pop("choice", None), case.pop("schema", None)
        body = {"model": "base", "input": case.pop("messages"), "max_output_tokens": case.pop("most", 200)}
        if tools is not None:
            body["tools"] = [{"type": "function", **t["function"]} if "function" in t else t for t in tools]
        if choice:
            body["tool_choice"] = choice if choice in ("auto", "required", "none") else {"type": "function", "name": choice}
        if schema is not None:
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
        return {**body, **case}

    def user(self, text):
        return [{"role": "user", "content": text}]

    def result(self, id, text):
        return [{"type": "function_call_output", "call_id": id, "output": text}]

    def back(self, answer):
        return answer.sent

    def call(self, id, name, arguments, content=None):
        before = [{"role": "assistant", "content": content}] if content else []
        return [*before, {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}]

    def parse(self, o):
        text = "".join(p["text"] for i in o["output"] if i["type"] == "message" for p in i["content"])
        thoughts = "".join(p["text"] for i in o["output"] if i["type"] == "reasoning" for p in i["content"])
        calls = [(i["call_id"], i["name"], i["arguments"]) for i in o["output"] if i["type"] == "function_call"]
        return Answer(200, text=text, thoughts=thoughts, calls=calls, cut=o["status"] == "incomplete", sent=o["output"], usage=o["usage"],
                      id=o["id"])

    def parse_stream(self, data):
        all = [json.loads(f.split("\ndata: ", 1)[1]) for f in data.decode().split("\n\n") if f]
        assert [e["sequence_number"] for e in all] == list(range(len(all)))
        assert all[-1]["type"] in ("response.completed", "response.incomplete"), all[-1]
        pieces = {}
        for e in all:
            if e["type"].endswith(".delta"):
                pieces[e["item_id"]] = pieces.get(e["item_id"], "") + e["delta"]
        for item in all[-1]["response"]["output"]:
            whole = item["arguments"] if item["type"] == "function_call" else "".join(p["text"] for p in item["content"])
            assert pieces.get(item["id"], "") == whole, (item, pieces)
        return self.parse(all[-1]["response"])


class Messages:
    path = "/v1/messages"
    keeps_seed = True

    def body(self, case):
        case = dict(case)
        tools, choice, schema = case.pop("tools", None), case.pop("choice", None), case.pop("schema", None)
        body = {"model": "base", "messages": case.pop("messages"), "max_tokens": case.pop("most", 200)}
        if tools is not None:
            body["tools"] = [{"name": t["function"]["name"], "input_schema": t["function"].get("parameters", {"type": "object", "properties": {}})}
                             if t.get("type") == "function" else t for t in tools]
        if choice:
            words = {"auto": {"type": "auto"}, "required": {"type": "any"}, "none": {"type": "none"}}
            body["tool_choice"] = words.get(choice, {"type": "tool", "name": choice})
        if schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        return {**body, **case}

    def user(self, text):
        return [{"role": "user", "content": text}]

    def result(self, id, text):
        return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text}]}]

    def back(self, answer):
        return [{"role": "assistant", "content": answer.sent}]

    def call(self, id, name, arguments, content=None):
        try:
            arguments = json.loads(arguments)
        except (ValueError, TypeError):
            pass
        before = [{"type": "text", "text": content}] if content else []
        return [{"role": "assistant", "content": [*before, {"type": "tool_use", "id": id, "name": name, "input": arguments}]}]

    def parse(self, o):
        text = "".join(b["text"] for b in o["content"] if b["type"] == "text")
        thoughts = "".join(b["thinking"] for b in o["content"] if b["type"] == "thinking")
        calls = [(b["id"], b["name"], json.dumps(b["input"])) for b in o["content"] if b["type"] == "tool_use"]
        return Answer(200, text=text, thoughts=thoughts, calls=calls, cut=o["stop_reason"] == "max_tokens", sent=o["content"],
                      usage=o["usage"], id=o["id"])

    def parse_stream(self, data):
        blocks, open, reason = [], None, None
        for frame in data.decode().split("\n\n")[:-1]:
            e = json.loads(frame.split("\ndata: ", 1)[1])
            if e["type"] == "content_block_start":
                assert open is None and e["index"] == len(blocks), e
                open = {**e["content_block"], "json": ""}
            elif e["type"] == "content_block_delta":
                d = e["delta"]
                for member, to in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                    open[to] = open.get(to, "") + d.get(member, "")
            elif e["type"] == "content_block_stop":
                if open["type"] == "tool_use":
                    try:
                        open["input"] = json.loads(open["json"])
                    except ValueError:
                        open["input"] = {}
                keep = {"text": ("type", "text"), "thinking": ("type", "thinking", "signature"), "tool_use": ("type", "id", "name", "input")}
                blocks.append({k: open[k] for k in keep[open["type"]]})
                open = None
            elif e["type"] == "message_delta":
                reason = e["delta"]["stop_reason"]
        assert open is None and reason, data[-300:]
        return self.parse({"content": blocks, "stop_reason": reason, "usage": {}, "id": None})


APIS = {"chat": Chat(), "responses": Responses(), "messages": Messages()}


def ask(server, key, api, case, stream=False, headers=None):
    """The answer of one API to one case."""
    api = APIS[api] if isinstance(api, str) else api
    body = {**api.body(case), **({"stream": True} if stream else {})}
    r = server.call("POST", api.path, body, key=key, headers=headers)
    if r.status != 200:
        answer = Answer(r.status, error=r.json["error"])
    else:
        answer = api.parse_stream(r.body) if stream else api.parse(r.json)
    answer.headers = r.headers
    return answer


def batch(server, key, api, cases):
    """The answers to the cases as lines of one batch."""
    api = APIS[api] if isinstance(api, str) else api
    lines = [{"custom_id": str(i), "method": "POST", "url": api.path, "body": api.body(c)} for i, c in enumerate(cases)]
    data = "".join(json.dumps(x) + "\n" for x in lines).encode()
    form = (b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\nContent-Disposition: form-data; '
            b'name="file"; filename="in.jsonl"\r\n\r\n' + data + b"\r\n--x--\r\n")
    r = server.call("POST", "/v1/files", form, key=key, headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert r.status == 200, r
    r = server.call("POST", "/v1/batches", {"input_file_id": r.json["id"], "endpoint": api.path, "completion_window": "24h"}, key=key)
    assert r.status == 200, r
    id, ended = r.json["id"], ("failed", "completed", "expired", "cancelled")

    def over():
        time.sleep(0.1)
        b = server.call("GET", f"/v1/batches/{id}", key=key).json
        return b if b["status"] in ended else None
    b = until(over)
    got = {}
    for file in (b.get("output_file_id"), b.get("error_file_id")):
        text = server.call("GET", f"/v1/files/{file}/content", key=key).body.decode() if file else ""
        for x in text.splitlines():
            x = json.loads(x)
            got[x["custom_id"]] = x
    out = []
    for i in range(len(cases)):
        r = got[str(i)]["response"]
        out.append(api.parse(r["body"]) if r["status_code"] == 200 else Answer(r["status_code"], error=r["body"]["error"]))
    return out


def everywhere(server, key, make, batches=True):
    """(where, answer) of make(api) in each API, streamed, not, and of the first API as a batch."""
    for name, api in APIS.items():
        case = make(api)
        if case is None:
            continue
        for stream in (False, True):
            yield f"{name}{', streamed' * stream}", ask(server, key, api, case, stream)
    if batches:
        yield "batch", batch(server, key, "chat", [make(APIS["chat"])])[0]
