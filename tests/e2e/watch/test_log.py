"""The log: one line for each request in the form that log.format asks for, traces joined, nothing secret."""
import json
import re
import time

from harness import PATIENCE, Server, run

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "xylophone-in-the-prompt"


def parent(version="00", trace=TRACE, span=SPAN, flags="01"):
    return {"traceparent": f"{version}-{trace}-{span}-{flags}"}


def logfmt(line):
    out, at = {}, 0
    while at < len(line):
        m = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|[^ "]*)(?: |$)').match(line, at)
        assert m, (at, line)
        out[m[1]] = json.loads(m[2]) if m[2].startswith('"') else m[2]
        at = m.end()
    return out


def text(line):
    head, _, rest = line.partition(": request ")
    return {"level": head.split()[1], "msg": "request", **logfmt(rest)} if rest else {}


def line_of(server, reader, request_id):
    """The line is written just after the answer."""
    end = time.monotonic() + 60 * PATIENCE
    while True:
        for raw in server.log_path.read_text().splitlines():
            if request_id in raw:
                return reader(raw)
        assert time.monotonic() < end, request_id
        time.sleep(0.02)


def one_format(name, reader):
    def test():
        with Server(settings={"log.format": name}) as server:
            key = server.tenant("alice")
            body = {"model": "base", "prompt": SECRET, "max_tokens": 5, "ignore_eos": True,
                    "service_tier": "flex"}
            plain = server.call("POST", "/v1/completions", body, key=key)
            traced = server.call("POST", "/v1/completions", body, key=key, headers=parent())
            refused = server.call("GET", "/v1/models", key="lk_wrong", headers=parent(flags="00"))
            odd = server.call("GET", "/v1/" + "%22%5C%0Ax%3D\\\"", key=key)
            assert plain.status == traced.status == 200 and refused.status == 401, (plain, refused)

            line = line_of(server, reader, plain.headers["x-request-id"])
            usage = plain.json["usage"]
            assert line["msg"] == "request" and line["level"] == "info", line
            assert line["method"] == "POST" and line["path"] == "/v1/completions", line
            numbers = ("status", "ms", "bytes", "prompt_tokens", "output_tokens", "queue_ms", "ttft_ms", "tpot_ms")
            assert all(isinstance(line[n], (int, float) if name == "json" else str) for n in numbers), line
            assert int(line["status"]) == 200 and line["tenant"] == "alice", line
            assert line["model"] == "base" and line["class"] == "batch", line
            assert int(line["prompt_tokens"]) == usage["prompt_tokens"], line
            assert int(line["output_tokens"]) == usage["completion_tokens"] == 5, line
            assert line["finish"] == "length" and "trace_id" not in line, line
            assert 0 <= float(line["queue_ms"]) <= float(line["ttft_ms"]) <= float(line["ms"]), line
            assert float(line["tpot_ms"]) > 0, line
            assert "traceparent" not in plain.headers

            line = line_of(server, reader, traced.headers["x-request-id"])
            span = traced.headers["x-request-id"].removeprefix("req_")
            assert traced.headers["traceparent"] == f"00-{TRACE}-{span}-01", traced.headers
            assert line["trace_id"] == TRACE and line["parent_id"] == SPAN, line

            line = line_of(server, reader, refused.headers["x-request-id"])
            assert int(line["status"]) == 401 and line["trace_id"] == TRACE, line
            assert refused.headers["traceparent"].endswith("-00"), refused.headers

            assert odd.status in (400, 404), odd
            if "x-request-id" in odd.headers:
                line_of(server, reader, odd.headers["x-request-id"])
            log = server.log_path.read_text()
            assert log.count("/v1/completions") == 2 and SECRET not in log and key not in log
    test.__name__ = f"lines_as_{name}"
    return test


def what_is_no_trace_is_as_if_absent():
    with Server(settings={"log.format": "json"}) as server:
        key = server.tenant("alice")
        for wrong in (parent("ff"), parent(trace="0" * 32), parent(span="0" * 16),
                      parent(trace=TRACE.upper()), {"traceparent": "x" * 3000},
                      {"traceparent": parent()["traceparent"] + "-more"}):
            r = server.call("GET", "/v1/models", key=key, headers=wrong)
            assert r.status == 200 and "traceparent" not in r.headers, (wrong, r.headers)
            assert "trace_id" not in line_of(server, json.loads, r.headers["x-request-id"])
        with server.raw() as s:  # two of them
            one = "traceparent: " + parent()["traceparent"] + "\r\n"
            s.sendall(f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
                      f"{one}{one}\r\n".encode())
            head = s.recv(65536).decode()
        assert head.startswith("HTTP/1.1 200") and "traceparent" not in head.lower(), head


def who_watches_fills_no_log():
    with Server() as server:
        for path in ("/admin/v1/stats", "/admin/v1/classes", "/admin/v1/stats?limit=none"):
            server.call("GET", path, key=server.admin_key, port=server.admin_port)
        server.call("GET", "/readyz", port=server.metrics_port)
        assert server.stop() == 0
        log = server.log_path.read_text()
        assert "path=/admin/v1/classes" in log and "path=/admin/v1/stats status=400" in log, log
        assert "path=/admin/v1/stats status=200" not in log and "path=/readyz" not in log, log


run([one_format("json", json.loads), one_format("logfmt", logfmt), one_format("text", text),
     what_is_no_trace_is_as_if_absent, who_watches_fills_no_log])
