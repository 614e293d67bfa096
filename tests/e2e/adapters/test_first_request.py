"""Adapters that come by their first request: a tenant's template, one fetch for all who ask, what is not there is remembered for
a while, no name leads to another place, other tenants see nothing of it."""
import pathlib
import subprocess
import tempfile
import threading
import time

import elsewhere
from harness import BUILD, DEMO, Server, free_port, run, until

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FILES = {name: (DEMO / "adapters/pirate" / name).read_bytes() for name in (CONFIG, WEIGHTS)}
work = pathlib.Path(tempfile.mkdtemp(prefix="lorad-first-"))
seen, there = [], set()  # paths that were asked for, with the header; names that the source has
gate = threading.Event()  # open: answers are not held back
STORE = free_port()


class Store(elsewhere.Handler):
    def do_GET(self):
        seen.append((self.path, self.headers.get("Authorization")))
        _, top, name, file = self.path.split("/") if self.path.count("/") == 3 else (None, None, None, None)
        gate.wait(60)
        if name == "away" and name not in there:
            self.answer(503)
        elif name == "bad":
            self.answer(200, b"{}")
        elif name == "locked" and self.headers.get("Authorization") != "Bearer sesame":
            self.answer(401)
        elif top == "models" and name in there and file in FILES:
            self.answer(200, FILES[file])
        else:
            self.answer(404)


cert, key = elsewhere.certificate(work)
elsewhere.serve(STORE, Store, cert, key)
(work / "key").write_text("11" * 32)
HERE = f"https://localhost:{STORE}"
TEMPLATE = HERE + "/models/{name}"
server = Server(settings={"sources.hosts": f"localhost:{STORE}", "sources.networks": "127.0.0.1,::1", "sources.hub": HERE, "sources.s3_endpoint": HERE,
                          "sources.ca_file": cert, "sources.retry_after": "1s", "responses.key_file": work / "key"})


def ask(name, by=None, path="/v1/completions"):
    body = {"model": name, "max_tokens": 2, **({"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]})}
    return server.call("POST", path, body, key=by or who)


def asked(name):
    return [p for p, _ in seen if p.startswith(f"/models/{name}/")]


def template():
    """The operator's alone to set, and only to what a source may be; no name chooses a host, an owner or a bucket."""
    for wrong in ("hf://acme/x", HERE + "/x", "https://{name}/x", f"https://{{name}}.localhost:{STORE}/x", f"https://localhost:{{name}}/x", "hf://{name}/x",
                  "s3://{name}/x", "oci://{name}/x", "https://evil.example/{name}", "http://localhost/{name}", HERE + "/../{name}", HERE + "/{name}?x",
                  HERE + "/{names}", "{name}", "file:///{name}", HERE + "/" + "x" * 500 + "{name}", 7, ["x"]):
        r = server.call("PATCH", "/admin/v1/tenants/acme", {"adapter_source": wrong}, key=server.admin_key, port=server.admin_port)
        assert r.status == 400 and r.json["error"]["param"] == "adapter_source", (wrong, r)
    for good in ("hf://acme/{name}@main", "hf://acme/{name}@{name}/{name}", "s3://bucket/{name}", f"oci://localhost:{STORE}/team/{{name}}:v1", TEMPLATE):
        assert server.admin("PATCH", "/tenants/acme", {"adapter_source": good})["adapter_source"] == good
    argv = [BUILD / "loractl", "--admin-url", f"https://localhost:{server.admin_port}", "--ca", server.dir / "tls/cert.pem", "tenant", "set", "acme", "--source"]
    for text, said in (("", None), (TEMPLATE, TEMPLATE)):
        p = subprocess.run([*argv, text], env={"LORAD_KEY": server.admin_key, "LORAD_ADMIN_KEY": server.admin_key, "HOME": str(work)}, capture_output=True, text=True)
        assert p.returncode == 0, p
        assert server.admin("GET", "/tenants/acme")["adapter_source"] == said


def one_fetch():
    """Of 48 who ask at once all are answered, and the source is asked once; from then on it is an adapter like others."""
    there.add("fresh")
    got, threads = [], []
    gate.clear()
    for i in range(48):
        path = ("/v1/completions", "/v1/chat/completions")[i % 2]
        threads.append(threading.Thread(target=lambda p=path: got.append(ask("fresh", path=p))))
        threads[-1].start()
    until(lambda: asked("fresh"))
    gate.set()
    for t in threads:
        t.join()
    assert [r.status for r in got] == [200] * 48, [r for r in got if r.status != 200][:3]
    assert asked("fresh") == [f"/models/fresh/{n}" for n in (CONFIG, WEIGHTS, "tokenizer.json", "tokenizer_config.json", "added_tokens.json")], seen
    assert server.call("GET", "/v1/adapters/fresh", key=who).json["default_version"] == 1
    audit = server.admin("GET", "/audit?limit=1000")["data"]
    assert [r for r in audit if r["action"] == "adapter.publish" and r["object"] == "fresh"], audit
    n = len(seen)
    assert ask("fresh").status == ask("fresh@1").status == 200 and len(seen) == n


def not_there():
    """A name that the source has not is asked for once in a while; when it has come, it is found."""
    for _ in range(5):
        r = ask("later")
        assert r.status == 404 and r.json["error"]["code"] == "model_not_found", r
    assert asked("later") == [f"/models/later/{CONFIG}"]
    there.add("later")
    until(lambda: ask("later").status == 200)
    assert ask("bad").status == 404 and "bad" in server.log_path.read_text()
    assert server.call("GET", "/v1/adapters/bad", key=who).status == 404
    r = ask("away")
    assert r.status == 503 and r.json["error"]["code"] == "adapter_not_on_node" and int(r.headers["retry-after"]) >= 1, r
    there.add("away")
    until(lambda: ask("away").status == 200)


def names():
    """What is no plain name, or not the caller's to use, is asked for nowhere."""
    other = server.tenant("other")
    bound = server.tenant("bound", models=["base"], adapter_source=TEMPLATE)
    n = len(seen)
    for name in ("../x", "..", ".x", "a/b", "acme/new", "other/new", "X", "x@1", "x:y", "x@latest", "a%2fb", "a?b", "a#b", "a b", "a\nb", "{name}", "x" * 65, "\u00e9", ""):
        assert ask(name).status in (400, 404), name
    there.add("new")
    assert ask("new", by=other).status == ask("acme/new", by=other).status == ask("new", by=bound).status == 404
    assert len(seen) == n, seen[n:]
    assert server.call("GET", "/v1/models/new", key=who).status == 404 and len(seen) == n


def credentials():
    """Those that the tenant keeps for the host are used."""
    there.add("locked")
    assert ask("locked").status == 404
    r = server.call("PUT", f"/v1/source_credentials/localhost:{STORE}", {"bearer": "sesame"}, key=who)
    assert r.status == 200, r
    until(lambda: ask("locked").status == 200)
    server.call("DELETE", f"/v1/source_credentials/localhost:{STORE}", key=who)


def bounds():
    """Who waits longer than its class promises is told to come again; many names that are not there end the questions; another
    tenant still has its turn."""
    third = server.tenant("third", adapter_source=TEMPLATE)
    there.update(("slow", "third-s"))
    gate.clear()
    got = []
    first = threading.Thread(target=lambda: got.append(ask("slow")))
    first.start()
    until(lambda: asked("slow"))
    r = ask("slow")
    assert r.status == 503 and r.json["error"]["code"] == "adapter_not_on_node" and r.headers["retry-after"], r
    gate.set()
    first.join()
    assert got[0].status == 200 and len([p for p in asked("slow") if p.endswith(WEIGHTS)]) == 1, (got, seen)
    server.admin("PATCH", "/config", {"sources.retry_after": "1h"})
    n = len(seen)
    for i in range(100):
        assert ask(f"nothing-{i}").status == 404
    assert len(seen) - n <= 64, len(seen) - n
    assert ask("third-s", by=third).status == 200


gate.set()
with server:
    who = server.tenant("acme", adapter_source=TEMPLATE)
    run([one_fetch, not_there, names, credentials, bounds, template])
