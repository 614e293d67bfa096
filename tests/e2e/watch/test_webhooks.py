"""Webhooks: a receiver over HTTP gets signed events in order, again after an error and after a restart, and what is given up is counted."""
import base64
import hashlib
import hmac
import http.server
import json
import signal
import subprocess
import threading
import time

from harness import DEMO, Server, demo_adapters, free_port, run, until

KEY = bytes(range(32))


class Receiver(http.server.ThreadingHTTPServer):
    """Answers with the statuses of `say` first, then with 200; keeps what it accepted, and every try."""

    def __init__(self, port):
        self.got, self.tries, self.say = [], [], []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                me, body = self.server, self.rfile.read(int(self.headers["Content-Length"]))
                event = me.verify(self.headers, body)
                status = me.say.pop(0) if me.say else 200
                me.tries.append((self.path, event["id"], status))
                if status == 200:
                    me.got.append(event)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass
        super().__init__(("127.0.0.1", port), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @staticmethod
    def verify(headers, body):
        """As Standard Webhooks has it; time, id and body are all signed."""
        at, name = headers["webhook-timestamp"], headers["webhook-id"]
        want = base64.b64encode(hmac.new(KEY, f"{name}.{at}.".encode() + body, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == "v1," + want, headers
        assert abs(int(at) - time.time()) < 300 and headers["content-type"] == "application/json", headers
        event = json.loads(body)
        assert event["id"] == name and set(event) == {"id", "type", "timestamp", "level", "node", "tenant", "object", "detail"}, event
        return event

    def close(self):
        self.shutdown()
        self.server_close()

    def of(self, kind):
        return [e for e in list(self.got) if e["type"] == kind]


port = free_port()
server = Server(settings={"webhooks.url": f"http://127.0.0.1:{port}/hooks", "server.node": 5, "classes.batch": "ttft:1us tpot:1h weight:1"})


def counted(name):
    return server.metrics()["lorad_webhooks_" + name]


def dropped(reason):
    return server.metrics()[f'lorad_webhooks_dropped_total{{reason="{reason}"}}']


def publish(name):
    server.upload(key, name, DEMO / "adapters" / adapter)


def what_happens_is_posted():
    publish("told")
    until(lambda: receiver.of("adapter.publish"))
    [event] = receiver.of("adapter.publish")
    assert event["tenant"] == "hooks" and event["object"].startswith("told") and event["node"] == 5 and event["level"] == "audit", event
    assert receiver.tries[0][0] == "/hooks"
    # A kind that is not wanted stays here, though it is an event: the tenant's creation.
    assert not receiver.of("tenant.create") and any(e["kind"] == "tenant.create" for e in server.stats("?tables=events")["events"])


def budgets_at_80_and_at_100_percent():
    server.admin("PATCH", "/limits/hooks", {"tokens_per_day": 100})
    ask = {"model": "base", "prompt": "The red lamp", "ignore_eos": True}
    assert server.call("POST", "/v1/completions", {**ask, "max_tokens": 80}, key=key).status == 200
    until(lambda: receiver.of("limit.near"))
    assert server.call("POST", "/v1/completions", {**ask, "max_tokens": 80}, key=key).status == 429
    until(lambda: receiver.of("limit.reached"))
    [near], [reached] = receiver.of("limit.near"), receiver.of("limit.reached")
    assert near["tenant"] == reached["tenant"] == "hooks" and "80 % of tokens_per_day" in near["detail"], near
    assert "tokens_per_day" in reached["detail"], reached
    server.admin("PATCH", "/limits/hooks", {"tokens_per_day": 0})


def a_short_disk():
    server.admin("PATCH", "/config", {"data.min_free": "2000GiB"})
    until(lambda: receiver.of("disk.low"))
    server.admin("PATCH", "/config", {"data.min_free": None})
    until(lambda: receiver.of("disk.enough"))


def an_error_is_tried_again_in_order():
    before, failures = len(receiver.got), counted("failures_total")
    receiver.say[:] = [500, 503]
    publish("first")
    publish("second")
    until(lambda: len(receiver.got) == before + 2)
    assert [e["object"].split("@")[0] for e in receiver.got[before:]] == ["first", "second"], receiver.got[before:]
    first = receiver.got[before]["id"]
    assert [t[1:] for t in receiver.tries if t[1] == first] == [(first, 500), (first, 503), (first, 200)], receiver.tries
    until(lambda: counted("failures_total") == failures + 2 and counted("waiting") == 0)


def what_is_rejected_is_given_up_and_counted():
    before = len(receiver.got)
    receiver.say[:] = [400]
    publish("rejected")
    publish("after")
    until(lambda: len(receiver.got) == before + 1)
    assert receiver.got[-1]["object"].startswith("after"), receiver.got[-1]
    assert dropped("rejected") == 1 and dropped("expired") == 0 and dropped("queue_full") == 0
    assert "is given up: the receiver answered 400" in server.log_path.read_text()


def restarts_lose_nothing():
    """Neither an orderly stop nor kill -9, once an event waits; its id stays the same."""
    global receiver
    for sig in (signal.SIGTERM, signal.SIGKILL):
        receiver.close()
        name = f"away-{int(sig)}"
        publish(name)
        until(lambda: counted("waiting") == 1 and (server.dir / "webhooks").read_text())
        [line] = (server.dir / "webhooks").read_text().splitlines()
        server.stop(sig)
        receiver = Receiver(port)
        server.start()
        until(lambda: any(e["object"].startswith(name) for e in receiver.got))
        assert [e["id"] for e in receiver.of("adapter.publish")] == [json.loads(line)["id"]], (line, receiver.got)
        until(lambda: (server.dir / "webhooks").read_text() == "" and counted("waiting") == 0)


def what_cannot_be_set_is_refused():
    server.stop()
    for file, text, says in (("short", "whsec_YWJj\n", "24 to 64"), ("coded", "whsec_!!!!" * 4, "24 to 64"), ("two", "a" * 30 + "\nb", "one line")):
        path = server.dir / file
        path.write_text(text)
        path.chmod(0o600)
        server.settings["webhooks.secret_file"] = str(path)
        try:
            server.start()
            raise SystemExit(f"{file} was taken")
        except RuntimeError as e:
            assert says in str(e) and "webhooks.secret_file" in str(e), e
        server.process = None
    server.settings.pop("webhooks.secret_file")
    server.start()


def a_class_that_misses_its_targets():
    for _ in range(4):
        ask = {"model": "base", "prompt": "The red lamp", "max_tokens": 1, "service_tier": "flex"}
        assert server.call("POST", "/v1/completions", ask, key=key).status == 200
    until(lambda: receiver.of("slo.broken"))
    [event] = receiver.of("slo.broken")
    assert event["object"] == "batch" and "missed (" in event["detail"], event


def a_certificate_that_ends():
    tls = server.dir / "tls"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", tls / "key.pem",
                    "-out", tls / "cert.pem", "-subj", "/CN=localhost", "-days", "2", "-addext", "subjectAltName=DNS:localhost"],
                   check=True, capture_output=True)
    assert not receiver.of("certificate.ends")
    server.process.send_signal(signal.SIGHUP)
    until(lambda: receiver.of("certificate.ends"))
    [event] = receiver.of("certificate.ends")
    assert "days are left: renew it" in event["detail"] and event["level"] == "warning", event


def begin():
    (server.dir / "webhooks.secret").write_text("whsec_" + base64.b64encode(KEY).decode() + "\n")
    (server.dir / "webhooks.secret").chmod(0o600)


receiver = Receiver(port)
wanted, server.settings = dict(server.settings), {k: v for k, v in server.settings.items() if not k.startswith("webhooks")}
with server:
    server.stop()  # lorad init has made the folder that the key lies in
    begin()
    server.settings = wanted
    server.start()
    key, adapter = server.tenant("hooks"), demo_adapters()[0]
    run([what_happens_is_posted, budgets_at_80_and_at_100_percent, a_short_disk, an_error_is_tried_again_in_order,
         what_is_rejected_is_given_up_and_counted, restarts_lose_nothing, what_cannot_be_set_is_refused,
         a_class_that_misses_its_targets, a_certificate_that_ends])
