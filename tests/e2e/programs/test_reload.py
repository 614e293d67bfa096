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

from harness import BUILD, PATIENCE, Server, run

# One slow thread: a stream of eight choices outlasts a reload by far.
server = Server(settings={"engine.threads": 1, "engine.isa": "portable"})


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
    reload("certificate and log settings reloaded")
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
    reload("certificate and log settings reloaded")
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
    reload("it needs a restart: engine.max_queued, class.standard, class.batch, class.new")
    conf.write_text(text.replace("ttft = 60s\n", "ttft = 9s\n"))
    reload("it needs a restart: class.batch.ttft")
    conf.write_text(text.replace("[class.batch]", "[class.Batch]"))
    reload("reload refused, the old config stays")
    conf.write_text(text)
    reload("certificate and log settings reloaded")


def an_expired_certificate_is_told():
    with tempfile.TemporaryDirectory() as d:
        _, key_text = make_pair(d)
        subprocess.run("openssl req -new -key k.pem -subj /CN=localhost -out r.pem && "
                       "openssl x509 -req -in r.pem -signkey k.pem -days -1 -out c.pem", shell=True, cwd=d, check=True,
                       capture_output=True)
        old = (Path(d) / "c.pem").read_text()
    good = [(server.dir / "tls" / name).read_text() for name in ("cert.pem", "key.pem")]
    check = [BUILD / "lorad", "check", "-c", server.dir / "lorad.conf"]
    told = subprocess.run(check, capture_output=True, text=True)
    assert told.returncode == 0 and re.search(r"certificate .*: good until \d{4}-.* 1 days from now: renew it", told.stdout), told
    install(old, key_text)
    reload("the certificate: expired on ")
    told = subprocess.run(check, capture_output=True, text=True)
    assert told.returncode == 1 and "cert.pem expired on " in told.stderr, told
    ctl = subprocess.run([BUILD / "loractl", "stats"], capture_output=True, text=True, env={
        **os.environ, "LORAD_ADMIN_URL": f"https://localhost:{server.admin_port}", "LORAD_ADMIN_KEY": server.admin_key,
        "LORAD_CA": str(server.dir / "tls/cert.pem"), "HOME": str(server.dir)})
    assert ctl.returncode != 0 and "its certificate has expired" in ctl.stderr, ctl
    install(*good)
    reload("certificate and log settings reloaded")


with server:
    key = server.tenant("alice")
    run([a_stream_outlives_the_reload, a_wrong_key_keeps_the_old_certificate,
         the_admin_api_reloads_too, what_is_not_taken_is_named, an_expired_certificate_is_told])
