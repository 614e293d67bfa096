"""Traces: a collector of OpenTelemetry's gets spans by the conventions, of what is sampled; one that is away is in nobody's way."""
import http.server
import json
import threading
import time

from google.protobuf import json_format
from harness import DEMO, Server, free_port, run, until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PHASES = ["admit", "queue", "prompt", "decode", "settle", "send"]


class Collector(http.server.ThreadingHTTPServer):
    """Answers with `status`, and keeps what it got."""

    def __init__(self, port):
        self.got, self.heads, self.status = [], [], 200

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                me = self.server
                me.heads.append((self.path, dict(self.headers)))
                if me.status == 200:
                    me.got.append(body)
                self.send_response(me.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass
        super().__init__(("127.0.0.1", port), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def spans(self):
        """All so far, as OpenTelemetry's own types take them: {trace: {name: span}}."""
        out = {}
        for body in list(self.got):
            message = json.loads(body)
            for resource in message["resourceSpans"]:  # OTLP has ids in hex, protobuf's JSON in base64
                for scope in resource["scopeSpans"]:
                    for s in scope["spans"]:
                        for field in ("traceId", "spanId", "parentSpanId"):
                            assert field not in s or bytes.fromhex(s[field]) and len(s[field]) in (16, 32), s
            export = json_format.Parse(body.decode(), ExportTraceServiceRequest())
            assert len(export.resource_spans) == 1 and len(export.resource_spans[0].scope_spans) == 1
            resource = plain(export.resource_spans[0].resource.attributes)
            assert resource["service.name"] == "lorad" and resource["lorad.node"] == 7 and resource["host.name"], resource
            for s, raw in zip(export.resource_spans[0].scope_spans[0].spans, message["resourceSpans"][0]["scopeSpans"][0]["spans"]):
                assert s.start_time_unix_nano <= s.end_time_unix_nano, s
                out.setdefault(raw["traceId"], {})[s.name] = (s, raw)
        return out


def plain(attributes):
    out = {}
    for a in attributes:
        kind = a.value.WhichOneof("value")
        value = getattr(a.value, kind)
        out[a.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return out


port = free_port()
collector = Collector(port)
server = Server(settings={"traces.endpoint": f"http://127.0.0.1:{port}/v1/traces", "traces.sample": "0", "server.node": "7",
                          "class.standard.ttft": "1h", "class.standard.tpot": "1h"})  # no machine is too slow for that


def ask(key, model="base", flags="01", trace=TRACE, **more):
    headers = {"traceparent": f"00-{trace}-{SPAN}-{flags}"} if flags else {}
    return server.call("POST", "/v1/chat/completions", {"model": model, "max_tokens": 9, "temperature": 0, "ignore_eos": True,
                                                        "messages": [{"role": "user", "content": "Hello"}], **more},
                       key=key, headers=headers)


def a_request_is_one_span_with_its_phases():
    key = server.tenant("acme")
    server.upload(key, "pirate", DEMO / "adapters/pirate")
    begun = time.time_ns()
    r = ask(key, "pirate", stream=False)
    assert r.status == 200, r
    spans = until(lambda: collector.spans().get(TRACE))
    whole, raw = spans.pop("chat pirate")
    assert raw["spanId"] == r.headers["x-request-id"][4:] and raw["parentSpanId"] == SPAN and whole.kind == 2, raw
    assert begun <= whole.start_time_unix_nano + 1000 and whole.end_time_unix_nano <= time.time_ns(), whole
    said, usage = plain(whole.attributes), r.json["usage"]
    assert said.pop("gen_ai.server.time_to_first_token") > 0
    assert said == {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "lorad", "gen_ai.request.model": "pirate",
                    "gen_ai.response.model": "pirate@1", "gen_ai.request.max_tokens": 9,
                    "gen_ai.usage.input_tokens": usage["prompt_tokens"], "gen_ai.usage.output_tokens": 9,
                    "gen_ai.usage.cache_read.input_tokens": 0, "gen_ai.response.finish_reasons": ["length"],
                    "http.response.status_code": 200, "lorad.tenant": "acme", "lorad.class": "standard"}, said
    spans.pop("adapter_load", None)  # if it had to wait
    assert sorted(spans) == sorted(PHASES), spans
    end = whole.start_time_unix_nano
    for s, raw in sorted(spans.values(), key=lambda s: s[0].start_time_unix_nano):
        assert raw["parentSpanId"] == r.headers["x-request-id"][4:] and s.kind == 1, raw
        assert s.start_time_unix_nano >= end, s  # one after another, within the whole
        end = s.end_time_unix_nano
    assert end <= whole.end_time_unix_nano and len({raw["spanId"] for _, raw in spans.values()}) == len(spans)


def vectors_are_spans_too():
    key, trace = server.key("acme"), "9" * 32
    r = server.call("POST", "/v1/embeddings", {"model": "pirate", "input": ["Hello", "ahoy"]}, key=key,
                    headers={"traceparent": f"00-{trace}-{SPAN}-01"})
    assert r.status == 200, r
    spans = until(lambda: collector.spans().get(trace))
    said = plain(spans["embeddings pirate"][0].attributes)
    assert said["gen_ai.operation.name"] == "embeddings" and said["gen_ai.usage.output_tokens"] == 0, said
    assert said["gen_ai.usage.input_tokens"] == r.json["usage"]["prompt_tokens"] and "prompt" in spans, (said, list(spans))


def errors_and_the_callers_no():
    key = server.key("acme")
    n = len(collector.spans())
    assert ask(key, flags="00").status == 200 and ask(key, flags=None).status == 200
    assert ask(key, "nobody", trace="a" * 32).status == 404
    assert ask(key, trace="b" * 32, messages="wrong").status == 400
    got = until(lambda: len(s := collector.spans()) >= n + 2 and s)
    assert len(got) == n + 2, list(got)
    whole, _ = got["a" * 32]["chat nobody"]
    assert plain(whole.attributes)["error.type"] == "model_not_found" and list(got["a" * 32]) == ["chat nobody"], got["a" * 32]


def a_collector_that_is_away_is_in_nobodys_way():
    key = server.key("acme")
    collector.status = 503
    n, sent = len(collector.got), server.metrics()["lorad_traces_sent_total"]
    tried = len(collector.heads)
    assert ask(key, trace="c" * 32).status == 200
    until(lambda: len(collector.heads) > tried)  # it was refused
    for _ in range(40):
        assert ask(key, trace="d" * 32).status == 200
    assert len(collector.got) == n
    collector.status = 200
    until(lambda: "d" * 32 in collector.spans() and "c" * 32 in collector.spans())  # nothing was lost
    m = until(lambda: (m := server.metrics())["lorad_traces_sent_total"] == sent + 41 and m)
    assert m["lorad_traces_failures_total"] >= 1 and m["lorad_traces_dropped_total"] == 0, m
    collector.status = 400  # it will never take it
    assert ask(key, trace="e" * 32).status == 200
    until(lambda: server.metrics()["lorad_traces_dropped_total"] == 1)
    collector.status = 200
    assert ask(key, trace="f" * 32).status == 200
    assert server.stop() == 0  # and what is left is sent at the end
    assert "f" * 32 in collector.spans() and "e" * 32 not in collector.spans()


def sampled_by_itself_with_a_key():
    headers = server.dir / "headers"
    headers.write_text("x-api-key: s3cret\n")
    headers.chmod(0o644)
    server.settings.update({"traces.sample": "1", "traces.headers": str(headers)})
    try:
        server.start()
        raise AssertionError("it started")
    except RuntimeError as e:
        assert "traces.headers" in str(e) and "s3cret" not in str(e), e
    headers.chmod(0o600)
    server.start()
    key, n = server.key("acme"), len(collector.spans())
    r = server.call("POST", "/v1/completions", {"model": "base", "prompt": "The", "max_tokens": 2}, key=key)
    assert r.status == 200
    got = until(lambda: len(s := collector.spans()) > n and s)
    trace = next(t for t in got if t not in {TRACE, *(c * 32 for c in "abcdef9")})
    _, raw = got[trace]["text_completion base"]
    assert "parentSpanId" not in raw and raw["spanId"] == r.headers["x-request-id"][4:], raw
    assert collector.heads[-1][0] == "/v1/traces" and collector.heads[-1][1]["x-api-key"] == "s3cret", collector.heads[-1]
    until(lambda: f"trace_id={trace}" in server.log_path.read_text())


def wrong_settings_are_named():
    for name, value in (("traces.endpoint", "ftp://x/y"), ("traces.sample", "1.5"), ("traces.sample", ""), ("traces.headers", "/nowhere")):
        wrong = Server(settings={"traces.endpoint": "http://127.0.0.1:9/", name: value})
        try:
            with wrong:
                raise AssertionError(f"{name}={value} was taken")
        except RuntimeError as e:
            assert name in str(e), e


with server:
    run([a_request_is_one_span_with_its_phases, vectors_are_spans_too, errors_and_the_callers_no, a_collector_that_is_away_is_in_nobodys_way,
         sampled_by_itself_with_a_key, wrong_settings_are_named])
