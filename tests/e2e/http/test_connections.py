"""Too many connections, and bodies that drip: refused cheaply, while the others are served."""
import json
import pathlib
import re
import socket
import ssl
import subprocess
import time

from harness import PATIENCE, Server, run, until

# 8 workers, of which 6 may hold connections; no client more than 4.
server = Server(settings={"server.max_streams": 8, "server.max_connections": 6,
                          "server.max_connections_per_ip": 4, "server.body_timeout": "2s", "engine.prefix_cache": "no"})


class Client:
    """A kept-alive connection from an address of this machine (all of 127/8 is loopback)."""

    def __init__(self, source="127.0.0.1"):
        self.c = server.connect(timeout=20)
        self.c.source_address = (source, 0)
        self.c.connect()

    def models(self):
        self.c.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        r = self.c.getresponse()
        return r, r.read()

    def close(self):
        self.c.close()


def wait_connections(n):
    end = time.monotonic() + 20 * PATIENCE
    while server.metrics()["lorad_connections"] != n:
        assert time.monotonic() < end, server.metrics()["lorad_connections"]
        time.sleep(0.02)


def refused(client, status, kind):
    r, body = client.models()
    assert r.status == status, (r.status, body)
    assert r.getheader("Retry-After") == "1" and r.getheader("Connection") == "close", r.headers
    e = json.loads(body)["error"]
    assert e["code"] == "too_many_connections" and e["type"] == kind, body
    client.close()


def one_address_has_its_share():
    before = server.metrics()
    mine = [Client() for _ in range(4)]
    assert all(c.models()[0].status == 200 for c in mine)
    refused(Client(), 429, "rate_limit_error")
    refused(Client(), 429, "rate_limit_error")
    other = Client("127.0.0.2")  # somebody else is served
    assert other.models()[0].status == 200
    assert all(c.models()[0].status == 200 for c in mine)
    wait_connections(5)
    for c in (other, *mine):
        c.close()
    wait_connections(0)
    again = Client()
    assert again.models()[0].status == 200
    again.close()
    name = 'lorad_connections_refused_total{limit="max_connections_per_ip"}'
    assert server.metrics()[name] == before[name] + 2


def all_together_have_theirs():
    name = 'lorad_connections_refused_total{limit="max_connections"}'
    before = server.metrics()[name]
    held = [Client(f"127.0.0.{i // 2 + 1}") for i in range(6)]
    assert all(c.models()[0].status == 200 for c in held)
    refused(Client("127.0.0.9"), 503, "overloaded_error")
    # Those over the limit that say nothing are cut; the workers that refuse are not used up.
    silent = [Client(f"127.0.1.{i}") for i in range(1, 5)]
    refused(Client("127.0.0.9"), 503, "overloaded_error")
    for c in silent:
        c.c.sock.settimeout(20 * PATIENCE)
        try:
            assert c.c.sock.recv(1) == b""
        except ConnectionError:
            pass
        c.close()
    assert all(c.models()[0].status == 200 for c in held)
    held.pop().close()
    wait_connections(5)
    fresh = Client("127.0.0.9")
    assert fresh.models()[0].status == 200
    for c in (fresh, *held):
        c.close()
    wait_connections(0)
    assert server.metrics()[name] == before + 6


def silent_sockets_of_one_address_stop_nobody():
    hoard = [socket.create_connection(("127.0.0.1", server.port), 20 * PATIENCE, ("127.0.0.3", 0)) for _ in range(600)]
    for _ in range(5):
        other = Client("127.0.0.2")
        assert other.models()[0].status == 200
        other.close()
    for s in hoard:
        s.close()
    wait_connections(0)


def failed_handshakes_are_given_back():
    for hello in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b""):
        for _ in range(10):
            s = socket.create_connection(("127.0.0.1", server.port), 20 * PATIENCE)
            s.sendall(hello)
            s.close()
    wait_connections(0)
    c = Client()
    assert c.models()[0].status == 200
    c.close()


def switches():
    """How often the workers of all listeners have waited, so far."""
    n = 0
    for f in pathlib.Path(f"/proc/{server.process.pid}/task").glob("*/status"):
        text = f.read_text()
        if "civetweb-worker" in text.split("\n", 1)[0]:
            n += int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.M)[1])
    return n


def handshake(sock, cut):
    """The client's side by hand, its first message in pieces with pauses; the bytes that come back."""
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = server.tls().wrap_bio(into, out, server_hostname="localhost")
    while True:
        try:
            tls.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        data = out.read()
        for i in range(0, len(data), cut):
            sock.sendall(data[i:i + cut])
            time.sleep(0.3)
        if done:
            return tls, into, out
        into.write(sock.recv(65536))


def slow_handshakes_wake_nobody_and_end():
    wait_connections(0)  # the last test's: one that is still counted takes a place of the address
    slow = [socket.create_connection(("127.0.0.1", server.port), 30 * PATIENCE) for _ in range(4)]
    for i, s in enumerate(slow[1:]):  # the first says nothing at all
        s.sendall(b"\x16\x03\x01\x02\x00"[:i + 2])
    wait_connections(4)
    start, before = time.monotonic(), switches()
    time.sleep(3)
    woken = (switches() - before) / (time.monotonic() - start)
    assert woken < 10, f"four handshakes that wait wake workers {woken} times a second"
    hopeful = socket.create_connection(("127.0.0.1", server.port), 30 * PATIENCE, ("127.0.0.2", 0))
    tls, into, out = handshake(hopeful, 150)  # slow, and served
    tls.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    hopeful.sendall(out.read())
    answer = b""
    while piece := hopeful.recv(65536):
        into.write(piece)
        try:
            while text := tls.read(65536):
                answer += text
        except (ssl.SSLWantReadError, ssl.SSLEOFError):
            pass
    assert answer.startswith(b"HTTP/1.1 401 "), answer
    hopeful.close()
    for s in slow:  # more bytes buy no more time
        s.settimeout(1)
        ended = False
        while not ended:
            assert time.monotonic() - start < 60 * PATIENCE
            try:
                s.sendall(b"\x01")
                ended = s.recv(100) == b""
            except TimeoutError:
                pass
            except OSError:
                ended = True
        s.close()
    wait_connections(0)


def drip(head, pieces):
    """Sends a byte now and then until the server has had enough; its answer and what was sent."""
    s = server.raw(timeout=30)
    s.sendall(head)
    s.settimeout(0.5)
    start, answer, i = time.monotonic(), b"", 0
    while time.monotonic() - start < 30 * PATIENCE:
        try:
            if i < len(pieces):
                s.sendall(pieces[i])
                i += 1
            piece = s.recv(65536)
            if not piece:
                break
            answer += piece
        except TimeoutError:
            pass
        except OSError:  # it has closed while we were sending
            break
    s.close()
    return answer, i


def a_dripping_body_is_cut():
    head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
            + key.encode() + b"\r\nContent-Type: application/json\r\n")
    whole = json.dumps({"model": "base", "prompt": "The", "max_tokens": 1}).encode()
    for framing, pieces in [
            (b"Content-Length: %d" % len(whole), [whole[i:i + 1] for i in range(len(whole))]),
            (b"Transfer-Encoding: chunked", [b"1\r\n%c\r\n" % b for b in whole])]:
        answer, sent = drip(head + framing + b"\r\n\r\n", pieces)
        assert answer.startswith(b"HTTP/1.1 408 "), (framing, answer)
        assert b'"code":"request_timeout"' in answer and answer.count(b"HTTP/1.1 ") == 1, answer
        assert sent < len(pieces)
        r = server.call("POST", "/v1/completions", whole, key=key,
                        headers={"Content-Type": "application/json"})
        assert r.status == 200, r
    wait_connections(0)


def send_whole(head, n, chunk=b"%s"):
    """Sends all of a body before it reads, as urllib and most libraries do; the answer up to the server's end."""
    s = server.raw(timeout=60)
    s.sendall(head)
    piece = chunk % bytes(1 << 20)
    for _ in range(n):
        s.sendall(piece)
    answer = b""
    while piece := s.recv(65536):
        answer += piece
    s.close()
    return answer


def a_body_beyond_the_limit_is_told_to_whoever_sends_on():
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n" % key.encode()
    for answer in (send_whole(head + b"Content-Length: %d\r\n\r\n" % (96 << 20), 96),
                   send_whole(head + b"Transfer-Encoding: chunked\r\n\r\n", 48, b"100000\r\n%s\r\n")):
        assert answer.startswith(b"HTTP/1.1 413 ") and b'"code":"request_too_large"' in answer, answer[:300]
    with open(server.dir / "large", "wb") as f:
        f.truncate(256 << 20)
    for more in ([], ["-H", "Expect:"], ["-H", "Transfer-Encoding: chunked", "-H", "Expect:"]):
        p = subprocess.run(["curl", "-s", "--http1.1", "--cacert", server.ca, "-H", f"Authorization: Bearer {key}", "-H",
                            "Content-Type: application/json", *more, "-w", "%{http_code}", "-T", server.dir / "large", "-X", "POST",
                            f"https://localhost:{server.port}/v1/completions"], capture_output=True, text=True, timeout=60 * PATIENCE)
        assert p.returncode == 0 and p.stdout.endswith("413") and "request_too_large" in p.stdout, (more, p)
    wait_connections(0)


def kernel_holds(s):
    """Bytes of answers in the kernel that were not sent to this client's socket."""
    port = s.getsockname()[1]
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, _, queues, *_ = line.split()
        if here.endswith(f":{server.port:04X}") and there.endswith(f":{port:04X}"):
            return int(queues.split(":")[0], 16)
    return 0


def process_holds():
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{server.process.pid}/status").read_text())[1]) << 10


def unread(n, **more):
    """Sockets of streams with 8 choices of 400 tokens, of which nobody reads a byte, when all of them are made."""
    body = json.dumps({"model": "base", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 400, "n": 8, "ignore_eos": True,
                       "stream": True, "seed": 1, **more}).encode()
    held = [server.raw(timeout=60) for _ in range(n)]
    for s in held:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"
                  b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (key.encode(), len(body), body))
    until(lambda: server.metrics()["lorad_requests_running"] > 0)
    until(lambda: (m := server.metrics())["lorad_requests_running"] == 0 == m["lorad_requests_waiting"])
    return held


def an_unread_stream_is_small_in_the_server():
    """4 bytes for each of its tokens and choices, 180 where it has log-probabilities; its text is made when it can be sent."""
    for more, bound in (({"logprobs": True, "top_logprobs": 20}, (1 << 20) + 8 * 400 * 180), ({}, 1 << 20)):
        for s in unread(4, **more):  # the first ones find how much memory such requests need in all
            s.close()
        wait_connections(0)
        for _ in range(3):  # what else the process needs meanwhile only adds
            before, held = process_holds(), unread(4, **more)
            kernel, process = max(map(kernel_holds, held)), (process_holds() - before) / len(held)
            for s in held:
                s.close()
            wait_connections(0)
            if kernel + process < bound:
                break
        assert 64 << 10 < kernel <= 512 << 10 and kernel + process < bound, (more, kernel, process)


with server:
    key = server.tenant("alice")
    run([one_address_has_its_share, all_together_have_theirs, silent_sockets_of_one_address_stop_nobody, failed_handshakes_are_given_back,
         slow_handshakes_wake_nobody_and_end, a_dripping_body_is_cut, a_body_beyond_the_limit_is_told_to_whoever_sends_on,
         an_unread_stream_is_small_in_the_server])
