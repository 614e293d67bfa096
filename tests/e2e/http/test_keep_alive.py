"""A stream that waits: no status while a refusal may still come, then 200 and comments, so that no proxy cuts it."""
import contextlib
import json
import time

from harness import Server, run

LONG = {"model": "base", "prompt": "The", "temperature": 1, "ignore_eos": True, "n": 8}


@contextlib.contextmanager
def engine_is_busy():
    """One place in the batch, and who has it won't leave it; who comes later waits, longer than the fastest machine
    needs for all of them (1.5 s each on two cores) and a comment takes to be due."""
    held = []
    for _ in range(40):
        c = server.connect()
        c.request("POST", "/v1/completions", json.dumps({**LONG, "max_tokens": room}), {
            "Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        held.append(c)
    while server.metrics()["lorad_requests_running"] == 0:
        time.sleep(0.05)
    try:
        yield
    finally:
        for c in held:
            c.close()


def a_waiting_stream_is_kept_alive():
    body = json.dumps({"model": "base", "prompt": "The", "max_tokens": 3, "stream": True, "temperature": 0})
    with engine_is_busy():
        s = server.raw(timeout=120)
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: "
                  f"application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        asked, got = time.monotonic(), b""
        while b": ping\n\n" not in got:
            piece = s.recv(65536)
            assert piece, got
            if not got:
                assert time.monotonic() - asked > 5, "the status line came before it was known what it should say"
            got += piece
        assert got.startswith(b"HTTP/1.1 200 ") and b"data: " not in got, got
    while not got.endswith(b"0\r\n\r\n"):
        piece = s.recv(65536)
        assert piece, got
        got += piece
    assert b"data: [DONE]\n\n" in got and got.count(b"data: {") > 0, got
    s.close()


server = Server(settings={"engine.max_seqs": "1", "server.request_timeout": "600s"})
with server:
    key = server.tenant("patient")
    room = server.call("GET", "/v1/models/base", key=key).json["max_model_len"] - 50
    run([a_waiting_stream_is_kept_alive])
