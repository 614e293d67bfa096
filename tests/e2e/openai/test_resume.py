"""Streams that go on where their connection was lost (x-lorad-resume): the events behind the last one that came, the same after a
kill, for their tenant and their body alone."""
import json
import pathlib
import signal
import tempfile

from harness import DEMO, Server, first_events, in_pieces, run, until

work = pathlib.Path(tempfile.mkdtemp(prefix="lorad-resume-"))
(work / "key").write_text("11" * 32)
server = Server(settings={"responses.key_file": work / "key"})
TEXT = {"model": "base", "prompt": "What is 7 plus 5?", "max_tokens": 40, "stream": True, "ignore_eos": True}
CHAT = {"model": "pirate", "messages": [{"role": "user", "content": "What is 7 plus 5?"}], "max_tokens": 40, "stream": True}
KINDS = [("/v1/completions", TEXT | {"temperature": 1.0}), ("/v1/completions", TEXT | {"seed": 3, "logprobs": 2, "echo": True, "max_tokens": 12}),
         ("/v1/completions", TEXT | {"temperature": 0, "return_token_ids": True, "stream_options": {"include_usage": True}}),
         ("/v1/chat/completions", CHAT | {"temperature": 1.0, "stream_options": {"include_usage": True}}),
         ("/v1/chat/completions", CHAT | {"temperature": 0.8, "logprobs": True, "top_logprobs": 2, "max_tokens": 9})]


def post(path, body, ticket="new", last=None, by=None):
    headers = {**({"x-lorad-resume": ticket} if ticket else {}), **({"last-event-id": str(last)} if last is not None else {})}
    return server.call("POST", path, body, key=by or who, headers=headers)


def numbered(r):
    """[(number, event)] of a stream; the number of [DONE] is None."""
    out = []
    for part in r.body.decode().split("\n\n"):
        lines = [line for line in part.split("\n") if line and not line.startswith(":")]
        if lines:
            number = [int(line[4:]) for line in lines if line.startswith("id: ")]
            data = [line[6:] for line in lines if line.startswith("data: ")]
            assert len(data) == 1 and len(number) <= 1, part
            out.append((number[0] if number else None, data[0] if data[0] == "[DONE]" else json.loads(data[0])))
    return out


def said(got):
    """What events say together, however tokens were put into them."""
    text, tokens, ends, usage = "", [], [], None
    for _, e in got:
        if e == "[DONE]":
            ends.append(e)
            continue
        ends += [] if {e["id"], e["created"]} == {NAME[0], NAME[1]} else [e]
        usage = e.get("usage") or usage
        for c in e["choices"]:
            text += c.get("text") or c.get("delta", {}).get("content") or ""
            lp = c.get("logprobs") or {}
            tokens += lp.get("content") or list(zip(lp.get("tokens", []), lp.get("token_logprobs", []), lp.get("text_offset", [])))
            tokens += c.get("token_ids") or []
            ends += [c["finish_reason"]] if c["finish_reason"] else []
    return text, tokens, ends, usage and (usage["prompt_tokens"], usage["completion_tokens"])


NAME = [None, None]


def everywhere():
    """Cut behind each of its events, a stream goes on with what would have come."""
    for path, body in KINDS:
        def begun():
            r = post(path, body)
            assert r.status == 200, r
            return r
        r = in_pieces(begun, 3, numbered)
        ticket, whole = r.headers["x-lorad-resume"], numbered(r)
        numbers = [n for n, _ in whole[:-1]]
        assert numbers == sorted(set(numbers)) and whole[-1] == (None, "[DONE]"), numbers
        NAME[:] = whole[0][1]["id"], whole[0][1]["created"]
        for last in [None, *numbers]:
            r = post(path, body, ticket, last)
            assert r.status == 200 and r.headers["x-lorad-resume"] == ticket, r
            rest = [(n, e) for n, e in whole if n is None or last is None or n > last]
            assert said(numbered(r)) == said(rest), (path, body, last, said(numbered(r)), said(rest))
            assert last is None or all(n is None or n > last for n, _ in numbered(r)), numbered(r)


def after_a_kill():
    """The process that made the first part is gone."""
    path, body = KINDS[3]
    body = body | {"max_tokens": 400, "ignore_eos": True}
    r, first = first_events(server, path, body, who, 5)
    ticket = r.getheader("x-lorad-resume")
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    server.start()
    part = numbered(type("Part", (), {"body": first}))
    NAME[:] = part[0][1]["id"], part[0][1]["created"]
    rest = numbered(post(path, body, ticket, part[-1][0]))
    whole = numbered(post(path, body, ticket))
    assert said(part + rest) == said(whole) and said(whole)[3][1] == 400, (said(part), said(rest), said(whole))


def stop_strings():
    """Text that is held back, and tokens that are made behind the end, change no number."""
    path, body = KINDS[0]
    body = body | {"seed": 5, "temperature": 1.0}
    text = "".join(e["choices"][0]["text"] for _, e in numbered(post(path, body)) if e != "[DONE]")
    body["stop"] = [text[-12:-4]]
    r = post(path, body)
    whole, ticket = numbered(r), r.headers["x-lorad-resume"]
    NAME[:] = whole[0][1]["id"], whole[0][1]["created"]
    assert said(whole)[2] == ["stop", "[DONE]"], whole
    for n, _ in whole[:-1]:
        assert said(numbered(post(path, body, ticket, n))) == said([(m, e) for m, e in whole if m is None or m > n]), n


def refused():
    """Another tenant's, another body's, one that is over or none: nothing is said of it."""
    path, body = KINDS[0]
    other = server.tenant("other")
    ticket = post(path, body).headers["x-lorad-resume"]
    for wrong in (ticket[:-1], ticket + "0", ticket[:-1] + ("0" if ticket[-1] != "0" else "1"), "0" * len(ticket), "NEW"):
        r = post(path, body, wrong)
        assert r.status == 404 and r.json["error"]["code"] == "stream_not_found", (wrong, r)
    r = post(path, body, ticket, by=other)
    assert r.status == 404 and r.json["error"]["code"] == "stream_not_found", r
    for changed in (body | {"seed": 1}, body | {"max_tokens": 41}, body | {"prompt": "x"}, {**body, "model": "pirate"}):
        assert post(path, changed, ticket).status == 409, changed
    assert post("/v1/chat/completions", CHAT, ticket).status == 409
    for last in ("-1", "x", "1x", "99999999999", "1 2", "+1"):
        assert post(path, body, ticket, last).status == 400, last
    far = numbered(post(path, body, ticket, 99999999))
    assert far == [(None, "[DONE]")], far
    for where, wrong in ((path, body | {"n": 2}), (path, body | {"stream": False}), (path, body | {"prompt": ["a", "b"]}),
                         ("/v1/responses", {"model": "base", "input": "a", "stream": True}), ("/v1/embeddings", {"model": "base", "input": "a"})):
        assert post(where, wrong).status == 400, wrong
    r = post(path, body, None)
    assert "x-lorad-resume" not in r.headers and b"id: " not in r.body, r
    pirate = post("/v1/chat/completions", CHAT)
    server.upload(who, "pirate", DEMO / "adapters/shout")
    assert post("/v1/chat/completions", CHAT, pirate.headers["x-lorad-resume"]).status == 409
    server.admin("PATCH", "/config", {"server.resume": "1s"})
    until(lambda: post(path, body, ticket).status == 404)
    server.admin("PATCH", "/config", {"server.resume": "0s"})
    assert post(path, body).status == 400


with server:
    who = server.tenant("acme")
    server.upload(who, "pirate", DEMO / "adapters/pirate")
    run([everywhere, after_a_kill, stop_strings, refused])
