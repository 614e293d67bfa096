"""Adapters that the server fetches: folders, tars and GGUFs over HTTPS, a hub's repository, S3 with signatures; what its
rules refuse; what another server may do to it."""
import hashlib
import pathlib
import sqlite3
import subprocess
import tempfile
import threading

import elsewhere
from elsewhere import certificate, tar_of
from harness import BUILD, DEMO, Server, free_port, run, until

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FILES = {name: (DEMO / "adapters/pirate" / name).read_bytes() for name in (CONFIG, WEIGHTS)}
SHA = hashlib.sha256(FILES[WEIGHTS]).hexdigest()
VERSIONS = "/v1/adapters/{}/versions"
work = pathlib.Path(tempfile.mkdtemp(prefix="lorad-sources-"))
seen = []  # (port, path, headers) of each request that came to the other servers
STORE, AWAY = free_port(), free_port()
gate = threading.Event()


class Store(elsewhere.Handler):
    def do_GET(self):
        port = self.server.server_port
        seen.append((port, self.path, dict(self.headers)))
        name = self.path.rsplit("/", 1)[-1]
        top = self.path.split("/")[1]
        if top == "kept" and self.headers.get("Authorization") != "Bearer kept-words-of-acme":
            self.answer(401)
        elif self.path == "/whole.tar":
            self.answer(200, tar_of(FILES))
        elif top == "needs-key" and self.headers.get("Authorization") != "Bearer sesame":
            self.answer(401, b"secret words of the store")
        elif top in ("plain", "kept", "needs-key", "me", "bucket") and name in FILES:
            self.answer(200, FILES[name])
        elif top == "moved":
            self.answer(302, Location=f"https://localhost:{AWAY}/plain/{name}")
        elif top == "moved-here":
            self.answer(307, Location=f"/needs-key/{name}")
        elif top == "inside":
            self.answer(302, Location=f"https://127.0.0.2:{AWAY}/plain/{name}")
        elif top == "to-http":
            self.answer(302, Location=f"http://localhost:{AWAY}/plain/{name}")
        elif top == "to-file":
            self.answer(302, Location="file:///etc/passwd")
        elif top == "round":
            self.answer(302, Location=self.path)
        elif top == "busy":
            self.answer(503, b"later")
        elif top == "short" and name in FILES:
            self.answer(200, FILES[name][:100], length=len(FILES[name]))
        elif top == "unsized" and name in FILES:
            self.answer(200, FILES[name], length=False)
        elif top == "slow":
            gate.wait(60)
            self.answer(404)
        elif top == "endless":
            self.answer(200, b" " * (33 << 20), length=False)
        elif top == "huge":
            self.answer(200, b"x", length=1 << 40)
        elif top == "evil" and name in FILES:
            self.answer(200, b"{}" if name == CONFIG else b"no tensors")
        else:
            self.answer(404)


cert, key = certificate(work)
HERE = f"https://localhost:{STORE}"
server = Server(settings={"sources.hosts": f"localhost:{STORE}, 127.0.0.2:{STORE}", "sources.networks": "127.0.0.1,::1",
                          "sources.hub": HERE, "sources.s3_endpoint": HERE, "sources.ca_file": cert,
                          "adapters.max_upload": "4MiB", "responses.key_file": work / "key"})
(work / "key").write_text("11" * 32)


def fetch(name, source, expect=201, **more):
    r = server.call("POST", VERSIONS.format(name), {"source": source, **more}, key=who)
    assert r.status == expect, (source, r)
    return r.json if r.status < 300 else r.json["error"]


def every_way():
    """All give the version that an upload gives; its text is served."""
    uploaded = server.call("POST", VERSIONS.format("uploaded"), tar_of(FILES), key=who,
                           headers={"Content-Type": "application/x-tar"}).json
    for i, source in enumerate((f"{HERE}/plain", f"{HERE}/whole.tar", "hf://me/mine@v1/deep", "s3://bucket/a/b", f"{HERE}/moved", f"{HERE}/unsized")):
        v = fetch(f"way-{i}", source, description="fetched")
        assert v["digest"] == uploaded["digest"], (source, v, uploaded)
    assert [p for _, p, _ in seen if p.startswith("/me/")][:2] == [f"/me/mine/resolve/v1/deep/{n}" for n in (CONFIG, WEIGHTS)]
    r = server.call("POST", "/v1/completions", {"model": "way-0", "prompt": "a", "max_tokens": 4}, key=who)
    assert r.status == 200, r
    fetch("way-0", f"{HERE}/plain", 200, sha256=SHA)  # the newest is the same
    r = server.call("POST", VERSIONS.format("way-0") + "?activate=false", {"source": f"{HERE}/plain", "sha256": SHA}, key=who,
                    headers={"If-None-Match": "*"})
    assert r.status == 412, r


def by_loractl():
    """The same from a shell; credentials come from a file that nobody else may read."""
    secret = work / "credentials.json"
    secret.write_text('{"bearer": "sesame"}')
    argv = [BUILD / "loractl", "--url", f"https://localhost:{server.port}", "--ca", server.dir / "tls/cert.pem"]
    argv += ["adapter", "push", f"{HERE}/needs-key", "--name", "shell", "--sha256", SHA, "--credentials", secret]
    for mode, code in ((0o644, 1), (0o600, 0)):
        secret.chmod(mode)
        p = subprocess.run(argv, env={"LORAD_KEY": who, "HOME": str(work)}, capture_output=True, text=True)
        assert p.returncode == code and ("shell@1" in p.stdout) == (code == 0), p


def credentials():
    """Given for one call; sent to the server they are for, never after a redirect to another, and the caller's own key never."""
    e = fetch("locked", f"{HERE}/needs-key", 422)
    assert e["code"] == "source_failed" and "401" in e["message"] and "secret words" not in e["message"], e
    fetch("locked", f"{HERE}/needs-key", credentials={"bearer": "sesame"})
    fetch("here", f"{HERE}/moved-here", credentials={"bearer": "sesame"})
    seen.clear()
    fetch("away", f"{HERE}/moved", credentials={"bearer": "sesame"})
    at_home = [h.get("Authorization") for port, _, h in seen if port == STORE]
    elsewhere = [h for port, _, h in seen if port == AWAY]
    assert set(at_home) == {"Bearer sesame"} and elsewhere and not any("Authorization" in h for h in elsewhere), seen
    assert not any(who in str(h) for _, _, h in seen)
    seen.clear()
    fetch("signed", "s3://bucket/c", credentials={"access_key_id": "AK", "secret_access_key": "hidden", "session_token": "t"})
    for _, path, h in seen[:2]:
        assert h["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=AK/"), h
        assert h["x-amz-security-token"] == "t" and h["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD", h
    for source, given in ((f"{HERE}/plain", {"access_key_id": "a", "secret_access_key": "b"}), ("s3://bucket/c", {"bearer": "b"}),
                          ("s3://bucket/c", {"access_key_id": "a"}), (f"{HERE}/plain", {"bearer": "a\r\nHost: b"}),
                          (f"{HERE}/plain", {"bearer": "a b"}), (f"{HERE}/plain", "sesame"), (f"{HERE}/plain", {"password": "x"}),
                          (f"{HERE}/plain", {"bearer": 7})):
        e = fetch("wrong", source, 400, credentials=given)
        assert "credentials" in e["param"] or e["param"] == "password", e
    assert "sesame" not in server.log_path.read_text() and "hidden" not in server.log_path.read_text()


def kept():
    """Credentials that the tenant keeps here for a host: used where a call brings none, for that host and tenant alone; never
    shown, not on the disk as they are."""
    place, bearer = f"localhost:{STORE}", "kept-words-of-acme"
    other = server.tenant("other")

    def put(host, body, expect=200, by=None):
        r = server.call("PUT", f"/v1/source_credentials/{host}", body, key=by or who)
        assert r.status == expect and bearer not in str(r), r
        return r.json

    fetch("kept", f"{HERE}/kept", 422)
    one = put(f"LOCALHOST:{STORE}", {"bearer": bearer})
    assert (one["host"], one["kind"]) == (place, "bearer") and set(one) == {"object", "host", "kind", "created"}, one
    fetch("kept", f"{HERE}/kept")
    fetch("kept", f"{HERE}/kept", 422, credentials={"bearer": "wrong"})
    assert fetch("kept", "s3://bucket/c", 409)["param"] == "credentials"
    seen.clear()
    fetch("kept-away", f"{HERE}/moved")
    assert {h.get("Authorization") for port, _, h in seen if port == AWAY} == {None}, seen
    assert {h.get("Authorization") for port, _, h in seen if port == STORE} == {f"Bearer {bearer}"}, seen
    r = server.call("GET", "/v1/source_credentials", key=who)
    assert r.json["data"] == [one] and bearer not in str(r.body), r
    assert server.call("GET", "/v1/source_credentials", key=other).json["data"] == []
    r = server.call("POST", VERSIONS.format("kept"), {"source": f"{HERE}/kept"}, key=other)
    assert r.status == 422, r
    assert server.call("DELETE", f"/v1/source_credentials/{place}", key=other).status == 404
    put(place, {"access_key_id": "AK", "secret_access_key": "hidden-by-acme"})
    seen.clear()
    fetch("kept-signed", "s3://bucket/c")
    assert all(h["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=AK/") for _, _, h in seen[:2]), seen
    for host, body in ((f"localhost:{AWAY}", {"bearer": "a"}), ("evil.example", {"bearer": "a"}), (f"a@localhost:{STORE}", {"bearer": "a"}), (place, {}),
                       (place, {"bearer": "a", "username": "b", "password": "c"}), (place, {"bearer": "a b"}), (place, {"token": "a"}), (place, [])):
        put(host, body, 400)
    on_disk = b"".join(f.read_bytes() for f in server.dir.glob("lorad.db*"))
    assert place.encode() in on_disk
    for word in (bearer.encode(), b"hidden-by-acme"):
        assert word not in on_disk, on_disk[on_disk.index(word) - 200:on_disk.index(word) + 50]
    audit = server.admin("GET", "/audit?limit=1000")["data"]
    assert {r["action"] for r in audit if r["object"] == place} == {"source_credentials.put"} and bearer not in str(audit), audit
    server.stop()
    (work / "key").write_text("22" * 32)
    server.start()
    assert fetch("kept", "s3://bucket/c", 409)["param"] == "credentials"
    put(place, {"bearer": bearer})
    fetch("kept-again", f"{HERE}/kept")
    assert server.call("DELETE", f"/v1/source_credentials/{place}", key=who).json["deleted"] is True
    fetch("kept-last", f"{HERE}/kept", 422)
    put(place, {"bearer": bearer}, by=other)
    server.admin("DELETE", "/tenants/other")
    db = sqlite3.connect(f"file:{server.dir}/lorad.db?mode=ro", uri=True)
    assert db.execute("SELECT count(*) FROM source_secrets").fetchone() == (0,)
    assert bearer not in server.log_path.read_text() and "hidden-by-acme" not in server.log_path.read_text()


def keeps_nothing():
    """Without the operator's key a server keeps no credentials, and says so."""
    with Server(settings={"sources.hosts": "localhost"}) as bare:
        r = bare.call("PUT", "/v1/source_credentials/localhost", {"bearer": "a"}, key=bare.tenant("acme"))
        assert r.status == 422 and r.json["error"]["code"] == "no_key", r


def refused():
    """By our rules, before or behind a redirect: nothing is asked of an address that may not be reached."""
    seen.clear()
    for source in ("", "ftp://a/b", f"http://localhost:{STORE}/plain", f"https://localhost:{AWAY}/plain", "https://127.0.0.1/plain",
                   f"https://me:pw@localhost:{STORE}/plain", f"{HERE}/plain/../x", f"{HERE}/plain?x", "oci://a/b", f"oci://localhost:{AWAY}/a", "/etc",
                   f"https://127.0.0.2:{STORE}/plain"):
        e = fetch("no", source, 400)
        assert e["param"] == "source", (source, e)
    assert not seen, seen
    for path in ("inside", "to-http", "to-file", "round"):
        e = fetch("no", f"{HERE}/{path}", 400)
        assert e["param"] == "source" and "redirect" in e["message"] or "address" in e["message"], (path, e)
    assert not [1 for port, _, _ in seen if port == AWAY], seen
    for body in ({"source": 7}, {"source": f"{HERE}/plain", "sha256": "x"}, {"source": f"{HERE}/plain", "files": []},
                 {"source": f"{HERE}/plain", "activate": "yes"}, {"source": None}):
        r = server.call("POST", VERSIONS.format("no"), body, key=who)
        assert r.status == 400, (body, r)
    assert server.call("GET", "/v1/adapters/no", key=who).status == 404


def a_tenant_has_its_share():
    """Four at once, two of one tenant: a slow source of one does not keep the others out."""
    other = server.tenant("bystander")
    slow = [threading.Thread(target=fetch, args=(f"slow{i}", f"{HERE}/slow", 422)) for i in range(2)]
    for t in slow:
        t.start()
    until(lambda: sum(path.startswith("/slow") for _, path, _ in seen) >= 2)
    e = fetch("more", f"{HERE}/plain", 429)
    assert "share" in e["message"], e
    for _ in range(3):
        r = server.call("POST", VERSIONS.format("theirs"), {"source": f"{HERE}/plain"}, key=other)
        assert r.status in (200, 201), r
    gate.set()
    for t in slow:
        t.join()
    fetch("more", f"{HERE}/plain", 201)


def the_other_side():
    """What another server may do: nothing is published, and the answer says what happened."""
    for path, status, says in (("nothing", 422, "404"), ("busy", 502, "503"), ("short", 502, "cannot be read"),
                               ("endless", 413, "at most"), ("huge", 413, "at most"), ("evil", 422, "")):
        e = fetch("bad", f"{HERE}/{path}", status)
        assert says in e["message"] and e["code"] in ("source_failed", "adapter_invalid", "limit_exceeded"), (path, e)
    e = fetch("bad", f"{HERE}/plain", 422, sha256="0" * 64)
    assert SHA in e["message"], e
    assert server.call("GET", "/v1/adapters/bad", key=who).status == 404
    left = list((server.dir / "adapters/tmp").glob("*"))
    assert not left, left


for each in (STORE, AWAY):
    elsewhere.serve(each, Store, cert, key)
with server:
    who = server.tenant("acme")
    run([every_way, by_loractl, credentials, kept, keeps_nothing, refused, a_tenant_has_its_share, the_other_side])
