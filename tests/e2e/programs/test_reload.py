"""A new certificate while streams run: new connections see it, old ones go on; a bad one changes nothing."""
import hashlib
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import tempfile
import time
from pathlib import Path

from harness import BUILD, PATIENCE, Server, run, until

# One slow thread: a stream of eight choices outlasts a reload by far.
server = Server(settings={"engine.threads": 1, "engine.isa": "portable", "traces.endpoint": "http://user:secret@127.0.0.1:9/v1/traces?k=secret"})


def make_pair(directory, kind=("ec", "-pkeyopt", "ec_paramgen_curve:P-256")):
    """(certificate, key) for localhost, as PEM text."""
    cert, key_file = Path(directory) / "c.pem", Path(directory) / "k.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-keyout", key_file,
                    "-out", cert, "-subj", "/CN=localhost", "-days", "2", "-addext",
                    "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    return cert.read_text(), key_file.read_text()


def digest(pem):
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def shown(port=None):
    """Digest of the certificate that openssl s_client is shown."""
    r = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{port or server.port}",
                        "-servername", "localhost"], input="", capture_output=True, text=True,
                       timeout=20 * PATIENCE)
    assert r.returncode == 0, r.stderr
    end = "-----END CERTIFICATE-----"
    return digest(r.stdout[r.stdout.index("-----BEGIN CERTIFICATE"):r.stdout.index(end)] + end + "\n")


def reload(says):
    """SIGHUP, then waits for the log's word about it."""
    before = server.log_path.read_text().count(says)
    server.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 20 * PATIENCE
    while server.log_path.read_text().count(says) == before:
        assert time.monotonic() < end, f"the log never says '{says}'"
        time.sleep(0.02)


def install(cert, key_text):
    (server.dir / "tls/cert.pem").write_text(cert)
    (server.dir / "tls/key.pem").write_text(key_text)


def a_stream_outlives_the_reload():
    with tempfile.TemporaryDirectory() as d:
        new = make_pair(d)
    assert shown() != digest(new[0])
    c = server.connect()
    idle = server.connect()
    idle.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
    assert len(idle.getresponse().read()) > 0
    c.request("POST", "/v1/completions", json.dumps(
        {"model": "base", "prompt": "The", "max_tokens": 900, "n": 8, "ignore_eos": True,
         "stream": True, "temperature": 1}),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200 and r.readline().startswith(b"data: ")
    install(*new)
    reload("reloaded: the certificate")
    for port in (server.port, server.admin_port, server.metrics_port):
        assert shown(port) == digest(new[0]), port
    # a connection from before, kept alive, is still good
    idle.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
    assert idle.getresponse().status == 200
    running = server.metrics()["lorad_requests_running"]
    assert running == 8, f"the stream ended before the reload: {running}"
    rest = r.read()
    assert rest.endswith(b"data: [DONE]\n\n") and rest.count(b"\ndata: ") > 8
    c.close()
    idle.close()


def a_wrong_key_keeps_the_old_certificate():
    old = [(server.dir / "tls" / name).read_text() for name in ("cert.pem", "key.pem")]
    with tempfile.TemporaryDirectory() as d:
        new = make_pair(d)
        rsa = make_pair(d, ("rsa:2048",))
    for cert, key_text in [(new[0], old[1]), (old[0], new[1]), (old[0], rsa[1]), (rsa[0], old[1])]:
        install(cert, key_text)
        reload("the private key (server.tls_key) is not the certificate's")
        assert shown() == digest(old[0])
    install(new[0], "garbage")
    reload("the private key (server.tls_key) can't be used")
    assert shown() == digest(old[0])
    install(*old)
    assert server.call("GET", "/v1/models", key=key).status == 200
    install(*rsa)  # another kind of key is fine when the certificate is its own
    reload("reloaded: the certificate")
    assert shown() == digest(rsa[0])


def the_admin_api_reloads_too():
    with tempfile.TemporaryDirectory() as d:
        new = make_pair(d)
    trusted = server.tls()  # of the certificate that is still in use
    install(*new)
    c = http.client.HTTPSConnection("localhost", server.admin_port, context=trusted)
    c.request("POST", "/admin/v1/reload", headers={"Authorization": f"Bearer {server.admin_key}"})
    assert c.getresponse().status in (200, 202)
    c.close()
    end = time.monotonic() + 20 * PATIENCE
    while shown() != digest(new[0]):
        assert time.monotonic() < end, "the new certificate never came"
        time.sleep(0.05)


def what_is_not_taken_is_named():
    conf = server.dir / "lorad.conf"
    text = conf.read_text()
    changed = text.replace("ttft = 60s\n", "ttft = 9s\n").replace("[class.standard]\n", "[class.new]\nttft = 1s\ntpot = 1s\n[class.standard]\n")
    conf.write_text(changed + "\n[engine]\nmax_queued = 777\n[log]\nlevel = warn\n")
    reload("it needs a restart: class.batch.ttft, class.standard, class.batch, class.new")
    conf.write_text(text.replace("ttft = 60s\n", "ttft = 9s\n") + "\n[engine]\nmax_queued = 77777777\n")
    reload("reload refused, the old config stays")
    conf.write_text(text + "\n[engine]\nmax_queued = 2000\n")
    reload("it needs a restart: engine.max_queued")
    conf.write_text(text.replace("[class.batch]", "[class.Batch]"))
    reload("reload refused, the old config stays")
    conf.write_text(text)
    reload("reloaded: the certificate")


def config(expect=(200,), **changes):
    return server.admin("PATCH", "/config", {k.replace("__", "."): v for k, v in changes.items()}, expect)


def value(option):
    return next(o for o in server.admin("GET", "/config")["data"] if o["option"] == option)


def complete(**more):
    return server.call("POST", "/v1/completions", {"model": "base", "prompt": "The", "max_tokens": 2, **more}, key=key)


def options_are_changed_by_name():
    assert value("class.batch.ttft") == {"option": "class.batch.ttft", "value": "60s", "default": "", "source": "file", "live": True}
    done = config(class__batch__ttft="7s", class__batch__weight=0.5, server__max_choices=1, engine__max_rows=600, log__format="text")
    assert done == {"taken": ["class.batch.ttft", "class.batch.weight", "server.max_choices"], "unchanged": ["log.format"],
                    "needs_restart": ["engine.max_rows"]}, done
    assert value("class.batch.ttft")["value"] == "7s" and value("class.batch.ttft")["source"] == "admin API"
    assert value("engine.max_rows")["value"] == "512"
    assert value("traces.endpoint")["value"] == "http://user:***@127.0.0.1:9/v1/traces?***"
    batch = next(c for c in server.admin("GET", "/classes")["data"] if c["name"] == "batch")
    assert batch["ttft_ms"] == 7000 and batch["weight"] == 0.5, batch
    assert server.metrics()['lorad_slo_target_seconds{class="batch",target="ttft"}'] == 7
    assert complete(n=2).json["error"]["param"] == "n" and complete().status == 200
    audited = server.admin("GET", "/audit")["data"][0]
    assert audited["action"] == "server.config" and "60s -> 7s" in audited["detail"], audited
    # a reload leaves them, and what was never taken is not in the way
    reload("reloaded: the certificate; no option has changed")
    assert value("class.batch.ttft")["value"] == "7s"
    assert config(server__max_choices=None, class__batch__ttft=None, class__batch__weight=None)["taken"][0] == "server.max_choices"
    assert complete(n=2).status == 200 and value("class.batch.ttft")["source"] == "file"


def a_class_that_rejects_does_so_at_once():
    """The engine has it, too: no first token comes within a microsecond."""
    assert complete(service_tier="flex").status == 200
    config(class__batch__ttft="1us", class__batch__overload="reject")
    refused = complete(service_tier="flex")
    assert refused.status == 429 and "class 'batch' is overloaded" in refused.json["error"]["message"], refused
    config(class__batch__ttft=None, class__batch__overload=None)
    assert complete(service_tier="flex").status == 200


def what_is_wrong_changes_nothing():
    def refused(param, says, **changes):
        e = config((400,), **changes)["error"]
        assert e["param"] == param and says in e["message"], e
    refused("class.batch.ttft", "is not a time", log__level="debug", class__batch__ttft=9)
    refused("log.lvel", "did you mean 'log.level'", log__level="debug", log__lvel="debug")
    refused(None, "log.level: 'loud' is none of debug, info, warn, error", log__level="loud")
    refused("server.tls_cert", "", server__tls_cert=["a"])
    refused("class.new.ttft", "unknown option", class__new__ttft="1s")
    for path in ("server.tls_cert", "adapters.roots", "grammar.documents", "model.path", "responses.key_file"):
        refused(path, f"{path} is a path", **{path.replace(".", "__"): "/"})
    for body in ([None, None], [], [{"log.level": "debug"}]):
        r = server.call("PATCH", "/admin/v1/config", body, key=server.admin_key, port=server.admin_port)
        assert r.status == 400, (body, r)
    assert value("log.level")["value"] == "info" and shown()
    looks = server.admin("POST", "/keys", {"name": "looks", "scopes": ["admin.read"]})["key"]
    for method, status in (("GET", 200), ("PATCH", 403)):
        r = server.call(method, "/admin/v1/config", {"log.level": "debug"} if status == 403 else None, key=looks, port=server.admin_port)
        assert r.status == status, r


def connections_are_bound_anew():
    first = server.connect()
    first.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
    assert len(first.getresponse().read()) > 0
    config(server__max_connections_per_ip=1)
    second = server.connect()
    second.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
    assert second.getresponse().status == 429
    config(server__max_connections_per_ip=None)
    first.close()
    second.close()
    assert server.call("GET", "/v1/models", key=key).status == 200


def the_difference_is_told():
    conf = server.dir / "lorad.conf"
    text = conf.read_text()
    config(log__format="logfmt")
    conf.write_text(text.replace("ttft = 60s\n", "ttft = 9s\n") + "\n[engine]\nmax_rows = 600\n")
    told = subprocess.run([BUILD / "lorad", "check", "--diff", "-c", conf], capture_output=True, text=True)
    for line in (r"class.batch.ttft +60s -> 9s  \(a reload takes it\)", r"engine.max_rows +512 -> 600  \(needs a restart\)",
                 r"log.format +logfmt -> text  \(stays: set by the admin API", r"server.listen .*\(stays: set on the server's command line"):
        assert re.search(line, told.stdout), (line, told)
    pending = server.admin("GET", "/config?pending=true")["data"]
    assert [(p["option"], p["wanted"], p["live"]) for p in pending] == [("engine.max_rows", "600", False), ("class.batch.ttft", "9s", True)], pending
    done = server.admin("POST", "/reload")
    assert done == {"taken": ["class.batch.ttft"], "unchanged": [], "needs_restart": ["engine.max_rows"]}, done
    conf.write_text(text)
    config(log__format=None)
    assert server.admin("POST", "/reload")["taken"] == ["class.batch.ttft"]
    conf.write_text("[nonsense]\n")
    r = server.call("POST", "/admin/v1/reload", key=server.admin_key, port=server.admin_port)
    assert r.status == 400 and "unknown section [nonsense]" in r.json["error"]["message"], r
    conf.write_text(text)


def loractl(*args):
    return subprocess.run([BUILD / "loractl", *args], capture_output=True, text=True, env={
        **os.environ, "LORAD_ADMIN_URL": f"https://localhost:{server.admin_port}", "LORAD_ADMIN_KEY": server.admin_key,
        "LORAD_CA": str(server.dir / "tls/cert.pem"), "HOME": str(server.dir)})


def loractl_shows_and_sets():
    done = loractl("config", "set", "class.batch.weight=0.25", "engine.max_rows=600")
    assert done.returncode == 0 and "taken: class.batch.weight\n" in done.stdout and "needs a restart: engine.max_rows\n" in done.stdout, done
    shown = loractl("config", "show", "class.batch.", "-o", "csv")
    assert "class.batch.weight,0.25,\"admin API\"" in shown.stdout and "log.level" not in shown.stdout, shown
    changed = loractl("config", "show", "--changed").stdout
    assert "class.batch.weight" in changed and "upload_expiry" not in changed and "log.level" not in changed, changed
    assert "class.batch.weight" in loractl("completion", "names", "options").stdout
    wrong = loractl("config", "set", "class.batch.weight=0", "log.level=debug")
    assert wrong.returncode == 1 and "outside 0.001 to 1000" in wrong.stderr and value("log.level")["value"] == "info", wrong
    assert "taken: class.batch.weight\n" in loractl("config", "reset", "class.batch.weight").stdout
    conf = server.dir / "lorad.conf"
    text = conf.read_text()
    conf.write_text(text + "\n[server]\nmax_choices = 3\n")
    assert re.search(r"server.max_choices +8 +3 +file +yes", loractl("config", "diff").stdout), loractl("config", "diff")
    assert "taken: server.max_choices\n" in loractl("reload").stdout
    conf.write_text(text)
    assert loractl("reload", "--json").stdout.strip() == '{"taken":["server.max_choices"],"unchanged":[],"needs_restart":[]}'


def an_expired_certificate_is_told():
    with tempfile.TemporaryDirectory() as d:
        _, key_text = make_pair(d)
        subprocess.run("openssl req -new -key k.pem -subj /CN=localhost -out r.pem && "
                       "openssl x509 -req -in r.pem -signkey k.pem -days -1 -out c.pem", shell=True, cwd=d, check=True,
                       capture_output=True)
        old = (Path(d) / "c.pem").read_text()
    good = [(server.dir / "tls" / name).read_text() for name in ("cert.pem", "key.pem")]
    check = [BUILD / "lorad", "check", "-c", server.dir / "lorad.conf"]
    until(lambda: "The certificate ends in 1 days" in loractl("why").stdout)
    server_events = server.admin("GET", "/stats")["events"]
    told = subprocess.run(check, capture_output=True, text=True)
    assert told.returncode == 0 and re.search(r"certificate .*: good until \d{4}-.* 1 days from now: renew it", told.stdout), told
    install(old, key_text)
    reload("the certificate: expired on ")
    told = subprocess.run(check, capture_output=True, text=True)
    assert told.returncode == 1 and "cert.pem expired on " in told.stderr, told
    told = [e["detail"] for e in server_events if e["kind"] == "certificate.ends"]
    assert len(told) >= 1 and "days are left: renew it" in told[0], told
    ctl = loractl("stats")
    assert ctl.returncode != 0 and "its certificate has expired" in ctl.stderr, ctl
    install(*good)
    reload("reloaded: the certificate")


with server:
    key = server.tenant("alice")
    run([a_stream_outlives_the_reload, a_wrong_key_keeps_the_old_certificate,
         the_admin_api_reloads_too, what_is_not_taken_is_named, options_are_changed_by_name,
         a_class_that_rejects_does_so_at_once, what_is_wrong_changes_nothing, connections_are_bound_anew,
         the_difference_is_told, loractl_shows_and_sets, an_expired_certificate_is_told])
stopped = subprocess.run([BUILD / "lorad", "check", "--diff", "-c", server.dir / "lorad.conf"], capture_output=True, text=True)
assert stopped.returncode == 1, stopped
