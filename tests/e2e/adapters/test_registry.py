"""Adapters out of a registry of the OCI distribution API (oci://): tags and digests, tokens, layers; what a registry may do to
the server. The registry is one of ours, and holds each call to the protocol."""
import base64
import hashlib
import json
import pathlib
import tempfile
import urllib.parse

import elsewhere
from harness import DEMO, Server, free_port, run

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FILES = {name: (DEMO / "adapters/pirate" / name).read_bytes() for name in (CONFIG, WEIGHTS)}
TAR = elsewhere.tar_of(FILES)
MANIFEST, INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
LAYER, PLAIN_TAR = "application/vnd.peft.layer", "application/vnd.oci.image.layer.v1.tar"
OWN, OTHER, SECRET = free_port(), free_port(), "Basic " + base64.b64encode(b"robot:pass:word").decode()
work = pathlib.Path(tempfile.mkdtemp(prefix="lorad-registry-"))
blobs, manifests, seen = {}, {}, []  # by digest; by (repository, reference); (port, path, Authorization) of each call
tokens = {"serial": 0}


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(data, title=None, kind=LAYER, **more):
    blobs[digest(data)] = data
    notes = {"annotations": {"org.opencontainers.image.title": title}} if title else {}
    return {"mediaType": kind, "digest": digest(data), "size": len(data), **notes, **more}


def put(repository, layers, tag="v1", **more):
    body = json.dumps({"schemaVersion": 2, "mediaType": MANIFEST, "config": layer(b"{}"), "layers": layers, **more}).encode()
    manifests[repository, tag] = manifests[repository, digest(body)] = body
    return digest(body)


def whole(**more):
    return [layer(FILES[WEIGHTS], WEIGHTS), layer(b"# hello", "README.md"), layer(FILES[CONFIG], CONFIG)]


class Registry(elsewhere.Handler):
    def challenge(self, repository):
        """What this repository wants, where the call has not got it; None: nothing."""
        port, given = self.server.server_port, self.headers.get("Authorization")
        realm = {"elsewhere": f"https://localhost:{OTHER}/token", "unlisted": f"https://127.0.0.1:{OTHER}/token", "plain": f"http://localhost:{OWN}/token",
                 "inner": "https://169.254.169.254/token", "file": "file:///etc/passwd", "user": f"https://a:b@localhost:{OWN}/token"}
        if repository == "basic":
            return None if given == SECRET else 'Basic realm="here"'
        if repository == "words":
            return "Bearer realm"
        if repository in ("private", "wrong-token", "long-token", *realm):
            want = f"Bearer {repository}-{tokens['serial']}"
            where = realm.get(repository, f"https://localhost:{port}/token?account=a")
            return None if given == want else f'Bearer realm="{where}",service="the registry",scope="repository:other:push"'
        return None

    def token(self):
        ask = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        repository = ask["scope"][0].split(":")[1]
        assert ask["scope"] == [f"repository:{repository}:pull"] and ask["service"] == ["the registry"], ask
        given = self.headers.get("Authorization")
        if repository == "private" and (given != SECRET or ask["account"] != ["a"]):
            return self.answer(401)
        tokens["serial"] += 1
        token = {"wrong-token": "a\r\nHost: b", "long-token": "x" * 40000}.get(repository, f"{repository}-{tokens['serial']}")
        return self.answer(200, json.dumps({"access_token" if repository == "elsewhere" else "token": token}).encode())

    def do_GET(self):
        port = self.server.server_port
        seen.append((port, self.path, self.headers.get("Authorization")))
        if self.path.startswith("/token"):
            return self.token()
        if self.path.startswith("/store/"):  # where blobs lie in truth
            return self.answer(200, blobs[self.path[7:]])
        head, kind, reference = self.path.rsplit("/", 2)
        repository = head.removeprefix("/v2/")
        wants = self.challenge(repository)
        if wants:
            return self.answer(401, b"secret words", WWW_Authenticate=wants)
        if kind == "manifests":
            assert MANIFEST in self.headers["Accept"], self.headers
            body = manifests.get((repository, reference))
            return self.answer(200, body, Content_Type=MANIFEST) if body is not None else self.answer(404)
        if repository == "moved":
            return self.answer(307, Location=f"https://localhost:{OTHER}/store/{reference}")
        if repository == "inside":
            return self.answer(307, Location=f"https://127.0.0.2:{OTHER}/store/{reference}")
        if repository == "stale" and not tokens.get("stale"):
            tokens["stale"] = True
            return self.answer(401, WWW_Authenticate=f'Bearer realm="https://localhost:{OWN}/token",service="the registry"')
        data = blobs[reference]
        return self.answer(200, data[::-1] if repository == "swapped" else data[:50] if repository == "short" else data)


cert, key = elsewhere.certificate(work)
server = Server(settings={"sources.hosts": f"localhost:{OWN}, localhost:{OTHER}", "sources.networks": "127.0.0.1,::1", "sources.ca_file": cert,
                          "adapters.max_upload": "4MiB"})
OCI = f"oci://localhost:{OWN}"


def fetch(name, source, expect=201, **more):
    r = server.call("POST", f"/v1/adapters/{name}/versions", {"source": source, **more}, key=who)
    assert r.status == expect, (source, r)
    return r.json if r.status < 300 else r.json["error"]


def every_way():
    """Files as layers, a tar as a layer, by tag, by digest, by none: all give the version that an upload gives."""
    uploaded = server.upload(who, "uploaded", DEMO / "adapters/pirate").json
    one = put("team/a.b", whole())
    put("tar", [layer(TAR, kind=PLAIN_TAR)])
    put("tar", [layer(TAR, "pirate.tar", kind=PLAIN_TAR)], tag="latest")
    put("moved", whole())
    put("stale", whole())
    for i, source in enumerate(("team/a.b:v1", f"team/a.b@{one}", "tar:v1", "tar", "moved:v1", "stale:v1")):
        v = fetch(f"way-{i}", f"{OCI}/{source}")
        assert v["digest"] == uploaded["digest"], (source, v)
    paths = [p for _, p, _ in seen]
    assert paths[0] == "/v2/team/a.b/manifests/v1" and not [p for p in paths if digest(b"# hello") in p], paths
    fetch("sum", f"{OCI}/tar", sha256=hashlib.sha256(TAR).hexdigest())
    fetch("sum", f"{OCI}/team/a.b:v1", 422, sha256=hashlib.sha256(TAR).hexdigest())
    r = server.call("POST", "/v1/completions", {"model": "way-1", "prompt": "a", "max_tokens": 4}, key=who)
    assert r.status == 200, r


def credentials():
    """They go to the registry's own host and port alone; a token of another server comes without, and goes to the registry."""
    for repository in ("private", "basic", "elsewhere"):
        put(repository, whole())
    pair = {"username": "robot", "password": "pass:word"}
    for repository in ("private", "basic"):
        e = fetch("locked", f"{OCI}/{repository}:v1", 422)
        assert "401" in e["message"] and "secret" not in e["message"], e
        fetch(f"open-{repository}", f"{OCI}/{repository}:v1", credentials=pair)
    seen.clear()
    fetch("open-elsewhere", f"{OCI}/elsewhere:v1", credentials=pair)
    away = [given for port, _, given in seen if port == OTHER]
    assert away == [None] and SECRET not in [given for _, _, given in seen], seen
    seen.clear()
    fetch("moved-locked", f"{OCI}/moved:v1", credentials={"bearer": "sesame"})
    assert {g for port, _, g in seen if port == OWN} == {"Bearer sesame"} and {g for port, _, g in seen if port == OTHER} == {None}, seen
    for given in ({"username": "robot"}, {"password": "x"}, {"username": "a:b", "password": "x"}, {"username": "a", "password": "b", "bearer": "c"},
                  {"access_key_id": "a", "secret_access_key": "b"}, {"username": "a\n", "password": "b"}, {}):
        assert fetch("wrong", f"{OCI}/basic:v1", 400, credentials=given)["param"] == "credentials", given
    log = server.log_path.read_text()
    assert "pass:word" not in log and "sesame" not in log and SECRET not in log


def refused():
    """Where a registry would lead the server to other places, or gives a token that is none."""
    for repository, status in (("unlisted", 400), ("inner", 400), ("plain", 422), ("file", 422), ("user", 422), ("words", 422),
                               ("wrong-token", 422), ("long-token", 422), ("inside", 400)):
        put(repository, whole())
        seen.clear()
        e = fetch("no", f"{OCI}/{repository}:v1", status, credentials=None if repository == "inside" else {"username": "robot", "password": "pass:word"})
        assert e["param"] == "source" and "secret words" not in e["message"], (repository, e)
        assert not [1 for port, _, _ in seen if port == OTHER], seen
    assert server.call("GET", "/v1/adapters/no", key=who).status == 404


def the_registry():
    """What it may say that is not so: nothing is published, and the answer says what happened."""
    good = put("good", whole())
    big = {**layer(FILES[WEIGHTS], WEIGHTS), "size": 1 << 40}
    put("huge", [big, layer(FILES[CONFIG], CONFIG)])
    put("swapped", whole())
    put("short", whole())
    put("twice", whole() + whole())
    put("index", [], manifests=[])
    put("gzip", [layer(TAR, "pirate", kind=PLAIN_TAR + "+gzip")])
    put("nothing", [])
    put("two-tars", [layer(TAR, kind=PLAIN_TAR)] * 2)
    put("many", whole() + [layer(b"x", f"x{i}") for i in range(70)])
    put("sizes", [{**layer(FILES[WEIGHTS], WEIGHTS), "size": "7"}, layer(FILES[CONFIG], CONFIG)])
    put("digests", [{**layer(FILES[WEIGHTS], WEIGHTS), "digest": "sha256:../../x"}, layer(FILES[CONFIG], CONFIG)])
    put("half", [layer(FILES[CONFIG], CONFIG)])
    manifests["words", "v2"] = manifests["array", "v1"] = b"[]"
    manifests["text", "v1"] = b"hello"
    manifests["empty", "v1"] = b""
    manifests["endless", "v1"] = b" " * (5 << 20)
    manifests["good", "sha256:" + 64 * "0"] = manifests["good", good]
    for path, status, says in (("none:v1", 422, "404"), ("good:v2", 422, "404"), ("good@sha256:" + 64 * "0", 422, "digest"), ("huge:v1", 422, "bytes"),
                               ("swapped:v1", 422, "digest"), ("short:v1", 422, "bytes"), ("twice:v1", 422, "one title"), ("index:v1", 422, "index"),
                               ("gzip:v1", 422, "plain tar"), ("nothing:v1", 422, "neither"), ("two-tars:v1", 422, "neither"), ("many:v1", 422, "more than 64"),
                               ("sizes:v1", 422, "SHA-256"), ("digests:v1", 422, "SHA-256"), ("half:v1", 422, WEIGHTS), ("array:v1", 422, "layers"),
                               ("text:v1", 422, "JSON"), ("empty:v1", 422, "JSON"), ("endless:v1", 413, "longer")):
        e = fetch("bad", f"{OCI}/{path}", status)
        assert says in e["message"], (path, e)
    assert server.call("GET", "/v1/adapters/bad", key=who).status == 404
    assert not list((server.dir / "adapters/tmp").glob("*"))


for each in (OWN, OTHER):
    elsewhere.serve(each, Registry, cert, key)
with server:
    who = server.tenant("acme")
    run([every_way, credentials, refused, the_registry])
