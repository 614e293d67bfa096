"""Raw requests, each with the status that RFC 9110, 9112 and 6585 ask for, on all planes: every one is answered, in good
HTTP and with an error in OpenAI's form, and nothing behind a refused one is taken for the next."""
import concurrent.futures
import email.utils
import json
import re
import socket
import ssl
import time

from harness import PATIENCE, Server, run

server = Server(settings={"server.body_timeout": "2s"})
GET, POST = {}, {}  # by plane: a path that answers GET with 200, one that takes a JSON body
PLANES = ("inference", "admin", "metrics")


def req(line, *fields, host=True, body=b""):
    """Text with {get}, {post} and {key} for what differs between the planes."""
    return "\r\n".join([line, *(["Host: localhost"] if host else []), "Authorization: Bearer {key}", *fields]), body


def get(*fields, **more):
    return req("GET {get} HTTP/1.1", *fields, **more)


def post(*fields, body=b"", **more):
    return req("POST {post} HTTP/1.1", "Content-Type: application/json", *fields, body=body, **more)


def chunked(body, *fields):
    return post("Transfer-Encoding: chunked", *fields, body=body)


def targets():
    """The request line."""
    yield 200, get()
    yield 200, req("GET {get} HTTP/1.0")
    yield 200, req("GET {get} HTTP/1.0", host=False)
    yield 200, req("GET {get} HTTP/1.2")  # a minor version to come is the highest that is known
    yield 200, req("GET {get} HTTP/1.9")
    yield 200, req("GET {get}?a=b HTTP/1.1")
    yield 200, req("GET {get}?a=%20%41 HTTP/1.1")
    yield 200, req("HEAD {get} HTTP/1.1")
    yield 200, req("\r\nGET {get} HTTP/1.1")  # an empty line before it
    yield 200, req("\r\n\r\nGET {get} HTTP/1.1")
    yield 200, req("GET https://localhost{get} HTTP/1.1")
    yield 200, req("GET HTTPS://LOCALHOST{get} HTTP/1.1")
    yield 200, req("GET http://localhost:8443{get} HTTP/1.1")
    yield 200, req("GET https://[::1]:1{get}?x=1 HTTP/1.1")
    yield 200, req("GET https://elsewhere.example{get} HTTP/1.1")  # the target counts, Host does not
    yield "page", req("GET https://localhost HTTP/1.1")  # at / of the inference plane
    yield "page", req("GET https://localhost?x HTTP/1.1")
    yield 400, req("GET https:///{get} HTTP/1.1")
    yield 400, req("GET https://user@localhost{get} HTTP/1.1")
    yield 400, req("GET https://localhost:x{get} HTTP/1.1")
    yield 400, req("GET https://localhost:99999{get} HTTP/1.1")
    yield 400, req("GET https:/localhost{get} HTTP/1.1")
    yield 400, req("GET ftp://localhost{get} HTTP/1.1")
    yield 400, req("GET https://localhost{get} HTTP/1.1", host=False)
    yield 400, req("GET localhost HTTP/1.1")
    yield 400, req("GET localhost:443 HTTP/1.1")
    yield 400, req("GET * HTTP/1.1")
    yield 400, req("GET ?a HTTP/1.1")
    yield 200, req("OPTIONS * HTTP/1.1")
    yield 200, req("OPTIONS https://localhost HTTP/1.1")
    yield 200, req("OPTIONS {get} HTTP/1.1")
    yield 404, req("OPTIONS /nothing HTTP/1.1")
    yield 400, req("OPTIONS *a HTTP/1.1")
    for method in ("PUT", "PATCH", "TRACE"):
        yield 405, req(f"{method} {{get}} HTTP/1.1")
    yield 405, req("DELETE {get} HTTP/1.1")
    yield 404, req("DELETE /nothing HTTP/1.1")
    for method in ("BREW", "get", "Get", "GETS", "PROPFIND", "MKCOL", "LOCK", "REPORT", "M-SEARCH", "X" * 300, "!"):
        yield 501, req(f"{method} {{get}} HTTP/1.1")
    yield 501, req("CONNECT localhost:443 HTTP/1.1")
    yield 501, req("CONNECT {get} HTTP/1.1")
    for method in ("", "G(T", "G\x01T", "GE:T", "\"GET\"", "G\x7fT"):
        yield 400, req(f"{method} {{get}} HTTP/1.1")
    for line in ("GET", "GET {get}", "GET  HTTP/1.1", " GET {get} HTTP/1.1", "\tGET {get} HTTP/1.1", "GET  {get} HTTP/1.1",
                 "GET {get}  HTTP/1.1", "GET {get} HTTP/1.1 ", "GET\t{get}\tHTTP/1.1", "GET {get} x HTTP/1.1",
                 "GET {get}\x0bHTTP/1.1", "{get}", "HTTP/1.1 200 OK", "\n\nGET {get} HTTP/1.1", "\rGET {get} HTTP/1.1",
                 "\r\n\r\n\r\n\r\n\r\n\r\nGET {get} HTTP/1.1"):
        yield 400, req(line)
    for version in ("HTTP/1", "HTTP/1.", "HTTP/.1", "HTTP/1.1.1", "HTTP/11.1", "HTTP/1.10", "HTTP/a.b", "HTTP/-1.1",
                    "HTTP/1,1", "http/1.1", "Http/1.1", "HTTPS/1.1", "HTTP1.1", "HTTP", "ICY/1.1", "HTTP/1.1x", "1.1"):
        yield 400, req(f"GET {{get}} {version}")
    for version in ("HTTP/0.9", "HTTP/2.0", "HTTP/3.0", "HTTP/9.9", "HTTP/0.0"):
        yield 505, req(f"GET {{get}} {version}")
    yield 505, ("PRI * HTTP/2.0\r\n\r\nSM", b"")
    for odd in ("%", "%4", "%zz", "%4g", "%%20", "%00", "a%00b", "?a=%", "?a=%0", "?a=%00", "#top", "?a#b"):
        yield 400, req(f"GET {{get}}{odd} HTTP/1.1")
    for odd in ("\x01", "\x7f", "\x00", "\u00e4"):
        yield 400, req(f"GET {{get}}{odd} HTTP/1.1")
    for elsewhere in ("/nothing", "/%2e%2e/x", "//x", "/.", "/x/../y", "/%2f", "/%5c", "/%0a", "/{{get}}/x/y/z/w"):
        yield 404, req(f"GET {elsewhere} HTTP/1.1")
    yield 414, req("GET /" + "a" * 3000 + " HTTP/1.1")
    yield 414, req("GET /" + "a" * 9000 + " HTTP/1.1")
    yield 414, req("GET {get}?" + "a" * 9000 + " HTTP/1.1")
    yield 414, req("GET /" + "a" * 60000 + " HTTP/1.1")
    yield 200, req("GET {get}?" + "a" * 8000 + " HTTP/1.1")
    yield 501, ("A" * 9000, b"")


def fields():
    yield 200, get("X: a", "x: b", "Cookie: a", "Cookie: b")
    yield 200, get("!#$%&'*+-.^_`|~09az: all that a token may have")
    yield 200, get("X:", "Y: \t ", "Z:a")
    yield 200, get("X: \u00e4\u20ac")
    yield 200, get(*[f"X-{i}: 1" for i in range(60)])
    yield 200, get("X: " + "a" * 30000)
    yield 431, get(*[f"X-{i}: 1" for i in range(64)])
    yield 431, get(*[f"X-{i}: 1" for i in range(1000)])
    yield 431, get("X: " + "a" * 40000)
    yield 431, get("X" * 40000 + ": a")
    yield 431, get(*["X: " + "a" * 1000 for _ in range(40)])
    for line in (" X: a", "\tX: a", " ", "\t"):
        yield 400, req("GET {get} HTTP/1.1\r\n" + line)  # before the first field
    for line in ("X: a\r\n b", "X: a\r\n\tb", "X: a\r\n "):
        yield 400, get(line)
    for line in ("X", "X a", ": a", ":", "X : a", "X\t: a", "X Y: a", "X(: a", "X\x00: a", "X\x01: a", "X\u00e4: a", "X/: a",
                 "X[1]: a", "X{{}}: a", "\"X\": a", "X@: a", "X\\: a", "X\x7f: a", "X,Y: a", "X;Y: a"):
        yield 400, get(line)
    for value in ("a\x00b", "a\x01b", "a\x7fb", "a\rb", "a\x0bb", "a\x1bb"):
        yield 400, get("X: " + value)
    yield 400, ("GET {get} HTTP/1.1\nHost: localhost\n", b"")
    yield 400, ("GET {get} HTTP/1.1\r\nHost: localhost\nX: a", b"")
    yield 400, ("GET {get} HTTP/1.1\nHost: localhost\r\n", b"")
    yield 400, get(host=False)
    yield 400, get("Host: localhost")
    yield 400, get("host: other")
    for host in ("", " ", "a b", "a/b", "a?b", "a#b", "a@b", "a,b", "a\tb", "a..b", ".", ".a", "a:b", "a:-1", "a:65536",
                 "a:999999", "a:1:2", "[::1", "::1", "[]", "[x]", "[::1]x", "[127.0.0.1]", "http://a", "a\\b", "<a>", "a\"",
                 "%61", "a%00", "a\u00e4", "{{}}", "a" * 300):
        yield 400, get(f"Host: {host}", host=False)
    for host in ("a", "a:", "a:1", "a.b.", "A-b_c.d", "127.0.0.1:65535", "[::1]", "[2001:db8::1]:8443", "xn--mnchen-3ya.example"):
        yield 200, get(f"Host: {host}", host=False)
    for field in ("Authorization: Bearer x", "Content-Type: a\r\nContent-Type: b", "x-api-key: a\r\nx-api-key: b"):
        yield 400, get(field)
    yield 415, get("Content-Encoding: gzip")
    yield 200, get("Content-Encoding: identity")
    for expect in ("100-continued", "200-ok", "", "100-continue, x", "x=y"):
        yield 417, get(f"Expect: {expect}")
    yield 417, get("Expect: 100-continue", "Expect: nothing")
    yield 200, get("Expect: 100-Continue")
    yield 200, req("GET {get} HTTP/1.0", "Expect: anything")
    for upgrade in ("websocket", "h2c", "TLS/1.3"):
        yield 200, get("Connection: Upgrade", f"Upgrade: {upgrade}", "Sec-WebSocket-Key: x", "HTTP2-Settings: x")
    yield 200, get("Connection: close")
    yield 200, get("Connection: x, Close")
    yield 200, get("Connection: keep-alive")
    yield 200, get("Connection: what")
    yield 200, req("GET {get} HTTP/1.0", "Connection: keep-alive")
    yield 200, req("GET {get} HTTP/1.0", "Connection: close")
    yield 200, get("Content-Length: 0")
    yield 200, get("Content-Length: 3", body=b"abc")
    yield 200, get("Transfer-Encoding: chunked", body=b"0\r\n\r\n")


def bodies():
    """400 of the handler is for JSON that is none: the body has come through whole."""
    yield 400, post("Content-Length: 2", body=b"[]")
    yield 400, post("Content-Length: 02 ", body=b"[]")
    yield 400, post()
    yield 400, post("Expect: 100-continue", "Content-Length: 2", body=b"[]")
    yield 413, post("Content-Length: 5000000")
    yield 413, post("Content-Length: 999999999999999")
    for bad in ("+2", "-1", "0x2", "2a", "2,2", "2 2", "", "1e1", "9" * 30, "\u0662"):
        yield 400, post(f"Content-Length: {bad}", body=b"[]")
    yield 400, post("Content-Length: 2", "Content-Length: 2", body=b"[]")
    yield 400, post("Content-Length: 2", "Content-Length: 3", body=b"[]")
    yield 400, post("Content-Length: 2", "Transfer-Encoding: chunked", body=b"0\r\n\r\n")
    yield 400, post("Transfer-Encoding: chunked", "Content-Length: 5", body=b"0\r\n\r\n")
    yield 400, post("Transfer-Encoding: chunked", "Transfer-Encoding: chunked", body=b"0\r\n\r\n")
    for te in ("", "identity", "gzip", "xchunked", "chunked;a=b", "chunked,identity", "chunked, chunked", "\"chunked\"", "chunked,"):
        yield 400, post(f"Transfer-Encoding: {te}", body=b"0\r\n\r\n")
    yield 501, post("Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n")
    yield 501, post("Transfer-Encoding: x,chunked", body=b"0\r\n\r\n")
    yield 400, req("POST {post} HTTP/1.0", "Transfer-Encoding: chunked", body=b"0\r\n\r\n")
    for good in (b"2\r\n[]\r\n0\r\n\r\n", b"1\r\n[\r\n1\r\n]\r\n0\r\n\r\n", b"2;a=b\r\n[]\r\n0;c\r\n\r\n", b"002\r\n[]\r\n000\r\n\r\n",
                 b"2\r\n[]\r\n0\r\nX: y\r\nZ:\r\n\r\n", b"2 ; a = \"b c\"\r\n[]\r\n0\r\n\r\n"):
        yield 400, chunked(good)


def broken_bodies():
    """After each of these nobody knows where the next request begins."""
    for bad in (b"x\r\n", b"\r\n", b" 2\r\n", b"-2\r\n", b"+2\r\n", b"0x2\r\n", b"2\n[]\n", b"2\r[]", b"2 \r\n[]", b"2\r\n[]x", b"2\r\n[]\n",
                b"2\r\n[]2", b"1234567890123456\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"0000000000000002\r\n[]", b"2;\x01\r\n[]",
                b"2;a\nb\r\n[]", b"0\r\nX y: z\r\n\r\n", b"0\r\n X: z\r\n\r\n", b"0\r\nX\r\n\r\n", b"0\r\n\n",
                b"2;" + b"a" * 20000 + b"\r\n[]\r\n0\r\n\r\n", b"0\r\n" + b"X: a\r\n" * 2000 + b"\r\n", b"0\r\nX: " + b"a" * 9000,
                b"1;0123456789\r\n \r\n" * 2000):
        yield 400, chunked(bad)
    for huge in (b"500000\r\n", b"7FFFFFFF\r\n", b"80000000\r\n", b"FFFFFFFFFFFFFFF\r\n"):
        yield 413, chunked(huge)


def table(plane):
    for status, row in (*targets(), *fields()):
        yield status, row
    if plane != "metrics":  # where nothing takes a body
        for status, row in (*bodies(), *broken_bodies()):
            yield status, row


# ---------------------------------------------------------------------------------- one connection


def port_of(plane):
    return {"inference": server.port, "admin": server.admin_port, "metrics": server.metrics_port}[plane]


def key_of(plane):
    return server.admin_key if plane == "admin" else key


contexts = {}


def connect(plane):
    raw = socket.create_connection(("127.0.0.1", port_of(plane)), 30 * PATIENCE)
    if plane not in contexts:
        contexts[plane] = server.tls()
    return contexts[plane].wrap_socket(raw, server_hostname="localhost")


def talk(plane, data):
    """Everything that comes back until the server ends the connection."""
    out = b""
    with connect(plane) as s:
        try:
            s.sendall(data)
        except (ConnectionError, ssl.SSLError):
            pass  # refused before it has all
        while True:
            try:
                piece = s.recv(65536)
            except (ConnectionResetError, ssl.SSLEOFError):
                raise AssertionError(f"the connection was reset after {out[:200]!r}") from None
            if not piece:
                # Bytes that the server has not read would have the kernel reset the connection.
                assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0, f"reset behind {out[:200]!r}"
                return out
            out += piece


class Answer:
    def __init__(self, data, head_only):
        head, found, rest = data.partition(b"\r\n\r\n")
        assert found, f"no whole head: {data[:300]!r}"
        line, *fields = head.decode("ascii").split("\r\n")
        m = re.fullmatch(r"HTTP/1\.1 ([1-5]\d\d) [A-Za-z ]+", line)
        assert m, line
        self.status, self.fields = int(m[1]), {}
        for f in fields:
            name, value = re.fullmatch(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+): (.*\S)", f).groups()
            assert name.lower() not in self.fields, f
            self.fields[name.lower()] = value
        n = 0 if head_only else int(self.fields.get("content-length", 0))
        self.body, self.rest = rest[:n], rest[n:]
        assert len(self.body) == n, data[:400]


def read_answers(data, head_only):
    out = []
    while data:
        a = Answer(data, head_only and not [x for x in out if x.status != 100])
        out.append(a)
        data = a.rest
    return out


def hold(plane, a, status, method):
    """One answer: is it good HTTP, and in OpenAI's form?"""
    f = a.fields
    assert a.status == status, f"{a.status} instead of {status}: {a.body[:200]!r}"
    assert re.fullmatch(r"req_[0-9a-f]{16}", f["x-request-id"]), f
    assert abs(email.utils.parsedate_to_datetime(f["date"]).timestamp() - time.time()) < 300
    assert f["connection"] in ("close", "keep-alive") and "transfer-encoding" not in f, f
    assert ("allow" in f) == (status == 405 or method == "OPTIONS" and status == 200), f
    if status < 400:
        return
    assert f["content-type"] == "application/json", f
    if method != "HEAD":
        e = json.loads(a.body)["error"]
        assert set(e) == {"message", "type", "param", "code"} and e["message"] and e["code"], e


def check(plane, status, row, must_close):
    text, body = row
    if status == "page":
        status = 200 if plane == "inference" else 404
    for name, value in (("{get}", GET[plane]), ("{post}", POST[plane]), ("{key}", key_of(plane)), ("{{", "{"), ("}}", "}")):
        text = text.replace(name, value)
    follow = f"GET {GET[plane]} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key_of(plane)}\r\nConnection: close\r\n\r\n"
    method = text.lstrip("\r\n").split(" ")[0]
    answers = read_answers(talk(plane, text.encode() + b"\r\n\r\n" + body + follow.encode()), method == "HEAD")
    if answers[0].status == 100:
        assert "Expect: 100-continue" in text
        del answers[0]
    hold(plane, answers[0], status, method)
    closes = answers[0].fields["connection"] == "close"
    assert closes or not must_close, "the connection stays"
    if closes:
        assert len(answers) == 1, f"what follows was taken for a request: {answers[1].status} {answers[1].body[:200]!r}"
    else:
        assert len(answers) == 2, len(answers)
        hold(plane, answers[1], 200, "GET")


REFUSED = {414, 415, 417, 431, 501, 505}


def ask_all(plane, threads):
    rows = list(table(plane))
    broken = {row for _, row in broken_bodies()}
    refused_heads = {row for status, row in (*targets(), *fields()) if status == 400}
    wrong = []

    def one(status, row):
        try:
            check(plane, status, row, status in REFUSED or row in broken or row in refused_heads)
        except Exception as e:  # all of them are told
            wrong.append(f"{row[0][:120]!r} {row[1][:60]!r}: {type(e).__name__} {e}")

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(one, *r) for r in rows]:
            future.result()
    print(f"        {len(rows)} requests on the {plane} plane", flush=True)
    assert len(rows) >= 150 and not wrong, "\n".join([f"{len(wrong)} of {len(rows)}:", *wrong])


def on_the_inference_plane():
    ask_all("inference", 8)


def on_the_admin_plane():
    ask_all("admin", 8)


def on_the_metrics_plane():
    ask_all("metrics", 4)


# ------------------------------------------------------------------------- more than one request


def one_read_of_many_requests():
    """Pipelined, with bodies of both framings, in one piece and byte by byte: as many answers, in order."""
    body = json.dumps({"model": "base", "prompt": "The", "max_tokens": 1}).encode()
    head = f"Host: localhost\r\nAuthorization: Bearer {key}\r\n".encode()
    whole = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    cut = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    small = b"%x;a\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(body), body)
    found, lost = b"GET /v1/models HTTP/1.1\r\n", b"GET /v1/lost HTTP/1.1\r\n"
    many = (whole + head + b"\r\n" + body + found + head + b"\r\n" + cut + head + b"\r\n" + small + lost + head + b"\r\n") * 3
    last = found + head + b"Connection: close\r\n\r\n"
    want = [200, 200, 200, 404] * 3 + [200]
    assert [a.status for a in read_answers(talk("inference", many + last), False)] == want
    with connect("inference") as s:
        data = many + last
        for i in range(0, len(data), 7):
            s.sendall(data[i:i + 7])
        out = b""
        while piece := s.recv(65536):
            out += piece
    assert [a.status for a in read_answers(out, False)] == want


def large_bodies_go_through_whole():
    """Larger than any buffer on the way; the length is counted again by the tokenizer."""
    text = "a" * 300_000
    body = json.dumps({"model": "base", "prompt": text}).encode()
    head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[i:i + 70_001] for i in range(0, len(body), 70_001)))
    for framing, data in ((f"Content-Length: {len(body)}", body), ("Transfer-Encoding: chunked", pieces + b"0\r\n\r\n")):
        a, = read_answers(talk("inference", f"{head}{framing}\r\nConnection: close\r\n\r\n".encode() + data), False)
        assert a.status == 200 and json.loads(a.body)["count"] > 1000, (a.status, a.body[:200])


def a_stream_for_http_1_0_has_no_chunks():
    body = json.dumps({"model": "base", "prompt": "The", "max_tokens": 3, "stream": True})
    out = talk("inference", (f"POST /v1/completions HTTP/1.0\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
                             f"Connection: keep-alive\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode())
    head, _, rest = out.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in head and b"\r\nConnection: close" in head, head
    assert rest.startswith(b"data: {") and rest.endswith(b"data: [DONE]\n\n"), rest


# ---------------------------------------------------------------------------- without TLS, and too late


def plain(plane, data, pause=0):
    """What somebody gets who speaks HTTP without TLS; must end without a reset."""
    with socket.create_connection(("127.0.0.1", port_of(plane)), 30 * PATIENCE) as s:
        time.sleep(pause)
        s.sendall(data)
        out = b""
        while piece := s.recv(65536):
            out += piece
        return out


def plain_http_is_told_so():
    asked = [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\n\r\n" + b"x" * 100_000,
             b"DELETE /x HTTP/1.0\r\n\r\n", b"O", b"get / http/1.1\r\n\r\n", b"CONNECT localhost:443 HTTP/1.1\r\n\r\n"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        outs = [pool.submit(plain, plane, data) for plane in PLANES for data in asked]
        for out in outs:
            a = Answer(out.result(), False)
            assert not a.rest and a.fields["connection"] == "close"
            hold("inference", a, 400, "GET")
            assert json.loads(a.body)["error"]["code"] == "https_required", a.body
    for junk in (b"\x00\x01\x02", b"\x80\x2e\x01", b"\x16\x03"):  # no HTTP: TLS may end it as it likes
        with socket.create_connection(("127.0.0.1", server.port), 30) as s:
            s.sendall(junk)
    check("inference", 200, get(), False)


def late(data):
    with connect("inference") as s:
        s.sendall(data)
        out = b""
        while piece := s.recv(65536):
            out += piece
        return out


def half(data):
    """The client ends its side in the middle of a request, and waits."""
    with connect("inference") as s:
        s.sendall(data)
        socket.socket.shutdown(s, socket.SHUT_WR)  # of TCP; TLS is not told
        out = b""
        while piece := s.recv(65536):
            out += piece
        return out


def begin_late(pool):
    """Futures of answers that take their time, so that they are waited for beside everything else."""
    begin = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
    return [(status, pool.submit(way, data.encode())) for status, way, data in (
        (408, late, "G"), (408, late, begin), (408, late, begin + "Content-Length: 9\r\n\r\n[]"),
        (408, late, begin + "Transfer-Encoding: chunked\r\n\r\n9\r\n[]"),
        (400, half, "GET / HTTP/1.1\r\n"), (400, half, begin), (400, half, begin + "Content-Length: 9\r\n\r\n[]"),
        (None, half, ""),  # there was no request
        (400, lambda data: plain("inference", data, 3), "GET / HTTP/1.1\r\n\r\n"))]  # longer than the server looks at once


def who_is_late_is_told_so():
    for status, future in slow:
        answers = read_answers(future.result(), False)
        assert len(answers) == (status is not None), answers
        for a in answers:
            hold("inference", a, status, "POST")
            assert a.fields["connection"] == "close"


with server:
    key = server.tenant("alice")
    GET |= {"inference": "/v1/models", "admin": "/admin/v1/tenants", "metrics": "/healthz"}
    POST |= {"inference": "/v1/completions", "admin": "/admin/v1/tenants", "metrics": "/healthz"}
    slow = begin_late(concurrent.futures.ThreadPoolExecutor(9))
    run([on_the_inference_plane, on_the_admin_plane, on_the_metrics_plane, one_read_of_many_requests,
         large_bodies_go_through_whole, a_stream_for_http_1_0_has_no_chunks, plain_http_is_told_so, who_is_late_is_told_so])
