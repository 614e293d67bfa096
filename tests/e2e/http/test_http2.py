"""HTTP/2: clients that are not ours over it, streams side by side, and frames that no client would send."""
import asyncio
import itertools
import json
import random
import signal
import ssl
import subprocess

import hpack
import httpx2
from hyperframe.frame import (ContinuationFrame, DataFrame, HeadersFrame, PingFrame, PriorityFrame, RstStreamFrame, SettingsFrame,
                              WindowUpdateFrame)
from openai import AsyncOpenAI, OpenAI

import frames
from frames import PREFACE
from harness import DEMO, PATIENCE, Server, demo_adapters, events, run, tar_of, until

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, REFUSED_STREAM, CANCEL, CALM = 0, 1, 3, 7, 8, 11
FLOODS = "lorad_http2_floods_total"

# Few threads, so that they can be had; no address is short of connections.
server = Server(settings={"server.max_streams": 6, "server.max_connections": 300, "server.max_connections_per_ip": 200,
                          "engine.prefix_cache": "no"})


def Wire(to=None, bearer=None, **how):
    return frames.Wire(to or server, bearer or key, **how)


def chat(tokens=8, stream=False, **more):
    return {"model": "base", "messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens, "temperature": 0,
            "stream": stream, **more}


def text_of(stream):
    return "".join(e["choices"][0]["delta"].get("content") or "" for e in events(stream.rstrip(b"\n")))


def endless():
    return chat(900, True, ignore_eos=True)


def running():
    return server.metrics()["lorad_requests_running"]


def serves():
    """HTTP/1.1 and HTTP/2 both go on."""
    assert server.call("GET", "/v1/models", key=key).status == 200
    w = Wire()
    assert w.answer(w.ask())[0] == 200
    w.close()


def curl(*argv):
    r = subprocess.run(["curl", "-sS", "--cacert", server.ca, "-H", f"Authorization: Bearer {key}", "-w", "\n%{http_version} %{http_code}", *argv],
                       capture_output=True, text=True)
    assert r.returncode == 0, r
    body, _, end = r.stdout.rpartition("\n")
    return end, body


# ------------------------------------------------------------------------------------------------- clients --


def curl_speaks_it():
    url, body = server.url, json.dumps(chat())
    assert curl("--http2", url + "/models")[0] == "2 200"
    end, head = curl("--http2", "-I", url + "/models")
    assert end == "2 200" and "x-request-id: req_" in head and "connection:" not in head.lower(), head
    json_type = ("-H", "Content-Type: application/json")
    two = curl("--http2", *json_type, "-d", body, url + "/chat/completions")
    one = curl("--http1.1", *json_type, "-d", body, url + "/chat/completions")
    assert two[0] == "2 200" and one[0] == "1.1 200", (one, two)
    assert json.loads(one[1])["choices"] == json.loads(two[1])["choices"]
    streamed = body.replace('"stream": false', '"stream": true')
    two = curl("--http2", "-N", *json_type, "-d", streamed, url + "/chat/completions")
    one = curl("--http1.1", "-N", *json_type, "-d", streamed, url + "/chat/completions")
    assert two[0] == "2 200" and text_of(two[1].encode()) == text_of(one[1].encode()) != ""
    assert curl("--http2", url + "/nothing")[0] == "2 404"


def who_offers_no_h2_gets_http_1():
    assert server.call("GET", "/v1/models", key=key).status == 200  # without ALPN
    for alpn, chosen in ((("http/1.1",), "http/1.1"), (("h2", "http/1.1"), "h2"), (("http/1.1", "h2"), "h2"), (("spdy/3",), None)):
        w = Wire(alpn=alpn, preface=b"")
        assert w.protocol == chosen, (alpn, w.protocol)
        w.close()


def the_sdk_uses_one_connection_for_many_streams():
    async def ask_all():
        async with httpx2.AsyncClient(http2=True, verify=server.tls(), timeout=60 * PATIENCE) as h:
            # 24 at once for six threads: whoever has waited too long for one asks again.
            client = AsyncOpenAI(base_url=server.url, api_key=key, http_client=h, max_retries=1000)

            async def one(i):
                got = await client.chat.completions.create(**chat(stream=i % 2 == 0))
                if i % 2:
                    return got.choices[0].message.content
                return "".join([c.choices[0].delta.content or "" async for c in got if c.choices])
            first = await one(1)
            assert (await h.get(server.url + "/models", headers={"Authorization": f"Bearer {key}"})).http_version == "HTTP/2"
            assert set(await asyncio.gather(*map(one, range(24)))) == {first}
            m = server.metrics()
            assert m["lorad_http2_connections"] == 1 == m["lorad_connections"], m
    asyncio.run(ask_all())
    with httpx2.Client(http2=True, verify=server.tls()) as h, OpenAI(base_url=server.url, api_key=key, http_client=h, max_retries=0) as client:
        assert client.chat.completions.create(**chat()).choices[0].message.content


def adapters_are_uploaded():
    name, url = demo_adapters()[0], f"{server.url}/adapters"
    tar, header = tar_of(DEMO / "adapters" / demo_adapters()[0]), {"Authorization": f"Bearer {key}", "Content-Type": "application/x-tar"}
    with httpx2.Client(http2=True, verify=server.tls(), timeout=60 * PATIENCE) as h:
        r = h.post(f"{url}/{name}/versions", content=tar, headers=header)
        assert r.status_code == 201 and r.http_version == "HTTP/2", r.text
        pieces = (tar[i:i + 50000] for i in range(0, len(tar), 50000))  # without a length
        again = h.post(f"{url}/{name}/versions", content=pieces, headers=header)
        assert again.status_code in (200, 201) and again.json()["digest"] == r.json()["digest"], again.text
    one = server.ask(key, name, "hello").json
    w = Wire()
    status, _, body = w.answer(w.ask("POST", "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "hello"}],
                                                                      "temperature": 0, "max_tokens": 48}))
    assert status == 200 and json.loads(body)["choices"] == one["choices"]
    w.close()


def an_answer_that_comes_before_a_short_body_ends_no_stream():
    """Clients that have not begun to send it would lose the answer."""
    w = Wire()
    id = w.ask("POST", "/v1/chat/completions", end=False, more=(("content-type", "application/json"), ("content-length", "2"),
                                                                ("x-api-key", "two keys are ambiguous")))
    assert w.answer(id)[0] in (400, 401)
    assert w.answer(w.ask())[0] == 200 and id not in w.resets  # what had been sent before is here
    w.data(id, b"{}")
    assert w.answer(w.ask())[0] == 200 and id not in w.resets
    w.close()


def a_body_that_is_too_long_is_refused_while_it_comes():
    w = Wire()
    id = w.ask("POST", "/v1/chat/completions", end=False, more=(("content-type", "application/json"), ("content-length", "9000000")))
    status, fields, body = w.answer(id)
    assert status == 413 and json.loads(body)["error"]["code"] == "request_too_large" and fields["content-type"] == "application/json"
    for _ in range(5):  # 64 KiB more are taken, then the client may stop
        w.data(id, b" " * 16000, False)
    while id not in w.resets:
        assert w.step()
    assert w.resets[id] == NO_ERROR
    id = w.ask("POST", "/v1/chat/completions", end=False, more=(("content-type", "application/json"),))
    for _ in range(400):  # without a length, as long as the window lasts
        if len(w.bodies.get(id, b"")) or id in w.ends:
            break
        w.data(id, b" " * 16000, False)
        w.s.settimeout(0.002)
        try:
            w.step()
        except TimeoutError:
            pass
        w.s.settimeout(20 * PATIENCE)
    assert w.answer(id)[0] == 413
    assert w.answer(w.ask())[0] == 200
    w.close()


# ------------------------------------------------------------------------------------------------- streams --


def a_body_is_invited():
    w, body = Wire(), json.dumps(chat()).encode()
    id = w.ask("POST", "/v1/chat/completions", end=False, more=(("content-type", "application/json"), ("expect", "100-continue"),
                                                                ("content-length", str(len(body)))))
    while id not in w.interim:
        assert w.step()
    assert w.interim[id] == {":status": "100"} and id not in w.heads
    w.data(id, body)
    assert w.answer(id)[0] == 200
    w.close()


def who_asks_from_elsewhere_is_refused():
    w = Wire(bearer=server.key("acme", networks=["192.0.2.0/24"]))
    status, _, body = w.answer(w.ask())
    assert status == 403 and json.loads(body)["error"]["code"] == "network_not_allowed", body
    w.close()


def streams_run_side_by_side():
    w = Wire()
    ids = [w.ask("POST", "/v1/chat/completions", chat(12, True)) for _ in range(5)]
    order = []
    while not all(i in w.ends for i in ids):
        assert w.step()
        order += [i for i in ids if i in w.bodies and i not in order]
    assert len(order) == 5 and len({text_of(w.bodies[i]) for i in ids}) == 1 and text_of(w.bodies[ids[0]]), w.bodies
    w.close()


def a_reset_ends_the_request():
    w = Wire()
    id = w.ask("POST", "/v1/chat/completions", endless())
    while id not in w.bodies:
        assert w.step()
    other = w.ask("POST", "/v1/chat/completions", endless())
    until(lambda: running() == 2)
    w.send(RstStreamFrame(id, error_code=CANCEL))
    until(lambda: running() == 1)
    assert other not in w.ends
    w.close()  # and so does the end of the connection
    until(lambda: running() == 0 and server.metrics()["lorad_http2_connections"] == 0)


def nobody_waits_for_a_stream_that_is_not_read():
    w = Wire(settings={SettingsFrame.INITIAL_WINDOW_SIZE: 0})
    id = w.ask("POST", "/v1/chat/completions", chat(200, True, ignore_eos=True))
    while id not in w.heads:
        assert w.step()
    until(lambda: running() == 0)  # its answer is in the pair's buffer
    other = w.ask()
    w.send(WindowUpdateFrame(other, window_increment=10000))
    assert w.answer(other)[0] == 200 and id not in w.bodies
    w.send(WindowUpdateFrame(id, window_increment=1 << 20), WindowUpdateFrame(0, window_increment=1 << 20))
    assert events(w.answer(id)[2])[-1]["choices"][0]["finish_reason"] == "length"
    w.close()


def more_requests_than_threads_wait_or_are_refused():
    """6 threads and 64 places in the queue, all taken by bodies that do not come."""
    w = Wire()
    ids = [w.ask("POST", "/v1/chat/completions", end=False, more=(("content-type", "application/json"), ("content-length", "10"))) for _ in range(80)]
    status, fields, body = w.answer(ids[-1])
    assert status == 503 and fields["retry-after"] == "1", (status, fields)
    assert json.loads(body)["error"]["code"] == "too_many_streams"
    for i in ids:
        if i not in w.ends:
            w.send(RstStreamFrame(i, error_code=CANCEL))
    assert w.answer(w.ask())[0] == 200
    w.close()
    serves()


def streams_count_as_connections():
    with Server(settings={"server.max_streams": 8, "server.max_connections": 40, "server.max_connections_per_ip": 4}) as few:
        its = few.tenant("acme")
        w = Wire(few, bearer=its)
        held = [w.ask("POST", "/v1/chat/completions", end=False, more=(("content-length", "10"), ("content-type", "application/json")))
                for _ in range(4)]
        status, fields, body = w.answer(w.ask())
        assert status == 429 and json.loads(body)["error"]["code"] == "too_many_connections", (status, body)
        w.send(*(RstStreamFrame(i, error_code=CANCEL) for i in held))
        until(lambda: (lambda i: w.answer(i)[0] == 200)(w.ask()))
        w.close()
        until(lambda: few.metrics()["lorad_connections"] == 0)
        again = [Wire(few, bearer=its) for _ in range(4)]  # nothing has stayed counted
        assert all(x.answer(x.ask())[0] == 200 for x in again)
        over = Wire(few, alpn=("h2", "http/1.1"), preface=b"")
        assert over.protocol == "http/1.1"  # a refusal is written in it
        over.close()


def it_can_be_turned_off():
    server.admin("PATCH", "/config", {"server.http2": False})
    w = Wire(alpn=("h2", "http/1.1"), preface=b"")
    assert w.protocol == "http/1.1"
    w.close()
    server.admin("PATCH", "/config", {"server.http2": True})
    serves()


def a_draining_server_says_so():
    with Server(settings={"server.drain_timeout": "60s"}) as draining:
        its = draining.tenant("acme")
        w, idle = Wire(draining, bearer=its), Wire(draining, bearer=its)
        assert idle.answer(idle.ask())[0] == 200
        id = w.ask("POST", "/v1/chat/completions", chat(300, True, ignore_eos=True))
        while id not in w.bodies:
            assert w.step()
        draining.process.send_signal(signal.SIGTERM)
        assert idle.ended() == NO_ERROR
        while w.away is None:
            assert w.step()
        assert events(w.answer(id)[2])[-1]["choices"][0]["finish_reason"] == "length" and w.away == NO_ERROR == w.ended()
        assert draining.stop() == 0


# -------------------------------------------------------------------------------------------------- floods --


def flooded(send, code=CALM, before=lambda w: None, **how):
    """What send() gives is sent until the server ends the connection."""
    before_it = server.metrics()[FLOODS]
    w = Wire(**how)
    before(w)
    frames_of_it = iter(send(w))
    try:  # in pieces: all 100,000 take longer to make than the server waits for a head
        while some := list(itertools.islice(frames_of_it, 5000)):
            w.send(*some)
    except (ConnectionError, ssl.SSLError):
        w.ack = False  # nothing more can be written
    said = w.ended()
    assert said == code, (said, w.ends)
    w.close()
    assert server.metrics()[FLOODS] - before_it == (code == CALM)
    serves()


def streams_reset_at_once_are_bounded():
    def send(w):
        for _ in range(2000):
            yield w.head(w.fields("POST", "/v1/chat/completions", ("content-type", "application/json")), end=False)
            yield RstStreamFrame(w.last, error_code=CANCEL)
    flooded(send)
    until(lambda: running() == 0)


def continuations_are_bounded():
    def send(w):
        yield w.head(w.fields(), whole=False)
        for _ in range(100000):
            yield ContinuationFrame(w.last, b"")
    flooded(send)


def bombs_of_fields_are_bounded():
    def bomb(w):
        """A field of 4000 bytes that the table keeps, and then one byte for each copy."""
        big, e = hpack.Encoder(), hpack.Encoder()
        block = big.encode(w.fields()) + e.encode([("x-a", "b" * 4000)])
        yield HeadersFrame(1, block + b"\xbe" * 4000, flags=["END_HEADERS", "END_STREAM"])
    flooded(bomb, ack=False)


def heads_that_are_too_large_get_431():
    w = Wire()
    for fields in ([(f"x-{i}", "b" * 1000) for i in range(34)], [("x-a", "b" * 39000)], [(f"x-{i}", "b") for i in range(65)]):
        block, ids = w.encoder.encode(w.fields("GET", "/v1/models", *fields)), w.last + 2
        parts = [block[i:i + 16000] for i in range(0, len(block), 16000)]
        w.last = ids
        w.send(HeadersFrame(ids, parts[0], flags=["END_STREAM"] + ["END_HEADERS"] * (len(parts) == 1)),
               *(ContinuationFrame(ids, p, flags=["END_HEADERS"] * (p is parts[-1])) for p in parts[1:]))
        assert w.answer(ids)[0] == 431
    assert w.answer(w.ask("GET", "/" + "a" * 9000))[0] == 414
    assert w.answer(w.ask())[0] == 200
    w.close()


def frames_that_ask_for_nothing_are_bounded():
    flooded(lambda w: [PingFrame(0, b"12345678")] * 20000)
    flooded(lambda w: [SettingsFrame(0)] * 20000)
    flooded(lambda w: [PriorityFrame(1, depends_on=0, stream_weight=1)] * 20000)
    flooded(lambda w: [WindowUpdateFrame(0, window_increment=1)] * 20000)
    json_type = ("content-type", "application/json")
    flooded(lambda w: [w.head(w.fields("POST", "/v1/chat/completions", json_type), end=False)] + [DataFrame(1, b"")] * 20000)
    flooded(lambda w: [b"\x00\x00\x00\xee\x00\x00\x00\x00\x00" * 500000])  # a type that nobody knows


def too_many_streams_are_refused():
    w = Wire()
    more = (("content-type", "application/json"), ("content-length", "10"))
    w.send(*(w.head(w.fields("POST", "/v1/chat/completions", *more), end=False) for _ in range(130)))
    while w.away is None and list(w.ends.values()).count(REFUSED_STREAM) < 20:
        assert w.step()
    assert w.away in (None, PROTOCOL_ERROR)
    w.close()
    serves()


# --------------------------------------------------------------------------------------------- what is not it --


def malformed_requests_end_their_stream_alone():
    w = Wire()
    good, post = w.fields(), w.fields("POST", "/v1/chat/completions")
    for fields in (
            good + [("connection", "close")], good + [("transfer-encoding", "chunked")], good + [("keep-alive", "1")],
            good + [("upgrade", "websocket")], good + [("proxy-connection", "close")], good + [("te", "gzip")], good + [("X-Upper", "1")],
            good + [("", "1")], good + [("x y", "1")], good + [("x:y", "1")],
            good + [("x-a", "a\r\nx-b: c")], good + [("x-a", "a\0b")], good + [("x-a", "a\nb")],
            good[1:], good[:2] + good[3:], good + [(":path", "/x")], good + [(":status", "200")], [(":protocol", "x")] + good,
            [(":method", "GET"), ("x-a", "b")] + good[1:], good[:2] + [(":path", "")] + good[3:],
            good[:2] + [(":path", "/v1/models HTTP/1.1\r\nx: y")] + good[3:], [(":method", "GET /x HTTP/1.1\r\n\r\n")] + good[1:],
            post + [("content-length", "1"), ("content-length", "2")], post + [("content-length", "x")], post + [("content-length", "-1")]):
        w.send(w.head(fields, encoder=w.encoder))
        assert w.reset(w.last) in (PROTOCOL_ERROR, 2), (fields, w.ends)
    for said, sent in (("5", b"123456"), ("50", b"1234")):
        id = w.ask("POST", "/v1/chat/completions", sent, more=(("content-length", said), ("content-type", "application/json")))
        assert w.reset(id) == PROTOCOL_ERROR, (said, w.ends[id])
    assert w.answer(w.ask())[0] == 200  # after 27 of them
    w.close()


def what_http_1_refuses_is_refused():
    for fields, status in ((("host", "elsewhere"), 400), (("authorization", "Bearer x"), 400), (("expect", "a"), 417), (("content-encoding", "gzip"), 415)):
        w = Wire()
        got, head, body = w.answer(w.ask(more=(fields,)))
        assert got == status and json.loads(body)["error"]["message"] and "connection" not in head, (fields, got)
        assert w.answer(w.ask(more=(("host", f"LOCALHOST:{server.port}"),)))[0] == 200  # the same one twice
        for path, code in (("/v1/%00", 400), ("/v1/../models", 404)):
            assert w.answer(w.ask(path=path))[0] == code, path
        assert w.answer(w.ask("BREW"))[0] == 501 and w.answer(w.ask("TRACE"))[0] == 405
        w.close()
    w = Wire()
    w.send(w.head([(":method", "CONNECT"), (":authority", "localhost:1")]))
    assert w.answer(w.last)[0] == 501
    no_key = Wire(bearer="lk_none")
    assert no_key.answer(no_key.ask())[0] == 401
    w.close()
    no_key.close()


def broken_frames_end_the_connection():
    over = DataFrame(1, b"a" * 16384)
    for preface, what, code in (
            (b"GET / HTTP/1.1\r\n\r\n", [], None), (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", [], None), (b"\x16\x03\x01" * 40, [], None),
            (PREFACE, [b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"], 6), (PREFACE, [DataFrame(3, b"x")], PROTOCOL_ERROR),
            (PREFACE, [ContinuationFrame(1, b"")], PROTOCOL_ERROR), (PREFACE, [b"\x00\x00\x01\x06\x00\x00\x00\x00\x00x"], 6),
            (PREFACE, [HeadersFrame(1, b"\xff" * 50, flags=["END_HEADERS"])], 9),
            (PREFACE, [WindowUpdateFrame(0, window_increment=2**31 - 1)], FLOW_CONTROL_ERROR),
            (PREFACE, [HeadersFrame(2, hpack.Encoder().encode([(":method", "GET")]), flags=["END_HEADERS"])], PROTOCOL_ERROR)):
        w = Wire(preface=preface)
        try:
            w.send(*what)
        except (ConnectionError, ssl.SSLError):
            pass
        assert w.ended() == code, (preface, what, w.away)
        w.close()
    w = Wire()  # more than the window
    w.send(w.head(w.fields("POST", "/v1/chat/completions", ("content-length", "3000000"), ("content-type", "application/json")), end=False))
    try:
        for _ in range(170):
            w.send(over)
    except (ConnectionError, ssl.SSLError):
        pass
    while w.away is None and 1 not in w.ends:
        if not w.step():
            break
    assert w.away == FLOW_CONTROL_ERROR or w.ends.get(1) in (FLOW_CONTROL_ERROR, "whole"), (w.away, w.ends)
    w.close()
    until(lambda: server.metrics()["lorad_http2_connections"] == 0)
    serves()


def bytes_of_chance_do_no_harm():
    r = random.Random(7)
    for _ in range(150):
        w = Wire()
        id = w.head(w.fields("POST", "/v1/chat/completions", ("content-type", "application/json")), end=False)
        junk = [id] + [r.randbytes(r.randrange(40)).rjust(0) for _ in range(3)]
        for _ in range(r.randrange(12)):
            n = r.randrange(60)
            junk.append(n.to_bytes(3, "big") + bytes([r.randrange(10), r.randrange(256)]) + r.choice([0, 1, 1, 3, 5]).to_bytes(4, "big") + r.randbytes(n))
        r.shuffle(junk)
        try:
            w.send(*junk)
        except (ConnectionError, ssl.SSLError):
            pass
        w.close()
    until(lambda: server.metrics()["lorad_http2_connections"] == 0 and running() == 0)
    serves()


def nothing_has_stayed():
    until(lambda: server.metrics()["lorad_http2_connections"] == 0 == server.metrics()["lorad_connections"])
    once = server.metrics()["process_open_fds"]
    for _ in range(3):
        serves()
    until(lambda: server.metrics()["process_open_fds"] <= once)
    assert server.stop() == 0  # nor have the sanitizers found anything


with server:
    key = server.tenant("acme")
    run([curl_speaks_it, who_offers_no_h2_gets_http_1, the_sdk_uses_one_connection_for_many_streams, adapters_are_uploaded,
         an_answer_that_comes_before_a_short_body_ends_no_stream,
         a_body_that_is_too_long_is_refused_while_it_comes, a_body_is_invited, who_asks_from_elsewhere_is_refused,
         streams_run_side_by_side, a_reset_ends_the_request,
         nobody_waits_for_a_stream_that_is_not_read, more_requests_than_threads_wait_or_are_refused, streams_count_as_connections,
         it_can_be_turned_off, a_draining_server_says_so, streams_reset_at_once_are_bounded, continuations_are_bounded,
         bombs_of_fields_are_bounded, heads_that_are_too_large_get_431, frames_that_ask_for_nothing_are_bounded, too_many_streams_are_refused,
         malformed_requests_end_their_stream_alone, what_http_1_refuses_is_refused, broken_frames_end_the_connection,
         bytes_of_chance_do_no_harm, nothing_has_stayed])
