"""loractl, the real binary, against a real server: every command, its errors, and what scripts rely on."""
import csv
import fcntl
import http.server
import io
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import termios
import threading
import time

from harness import BUILD, DEMO, PATIENCE, ROOT, Server, demo_adapters, free_port, run, until

LORACTL = BUILD / "loractl"
ADAPTER = DEMO / "adapters" / "pirate"
server = None
home = pathlib.Path(tempfile.mkdtemp(prefix="loractl-e2e-"))


def environment(**more):
    base = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8",
            "LORAD_CLIENT_CONFIG": str(home / "contexts.conf"), "LORAD_CA": server.ca,
            "LORAD_URL": f"https://localhost:{server.port}",
            "LORAD_ADMIN_URL": f"https://localhost:{server.admin_port}",
            "LORAD_ADMIN_KEY": server.admin_key, "TZ": "XYZ-9"}
    base.update({k: str(v) for k, v in more.items()})
    return {k: v for k, v in base.items() if v != ""}


def ctl(*args, expect=0, stdin="", key="", env=None, timeout=120 * PATIENCE):
    p = subprocess.run([LORACTL, *map(str, args)], input=stdin, text=True, capture_output=True,
                       env=environment(LORAD_KEY=key, **(env or {})), timeout=timeout)
    if p.returncode != expect:
        raise AssertionError(f"{args}: {p.returncode} instead of {expect}\n{p.stdout}\n{p.stderr}")
    assert "\x1b" not in p.stdout + p.stderr, "escape codes, though there is no terminal"
    for secret in filter(None, [key, server.admin_key]):
        assert secret not in p.stdout + p.stderr, "a key was printed"
    ctl.errors = p.stderr
    return p.stdout


def parsed(*args, **kw):
    return json.loads(ctl(*args, "--json", **kw))


def on_terminal(*args, columns=80, key="", keys=(), env=None, expect=0):
    """Runs it on a pseudo-terminal; `keys`: (text to wait for, what to type then)."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(LORACTL, ["loractl", *map(str, args)],
                  environment(**{"LORAD_KEY": key, "TERM": "xterm", **(env or {})}))
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    seen, at, waiting = b"", 0, list(keys)
    while True:
        if waiting and waiting[0][0].encode() in seen[at:]:
            at = seen.index(waiting[0][0].encode(), at) + len(waiting[0][0])
            os.write(fd, waiting.pop(0)[1].encode())
        if not select.select([fd], [], [], 60 * PATIENCE)[0]:
            raise AssertionError(f"silence after {seen!r}")
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(fd)
    assert code == expect, (code, seen)
    return seen.decode()


class Proxy:
    """Passes TCP on to the server; cuts each of the first connections after so many bytes to it."""

    def __init__(self, cuts, stall=False):
        self.cuts, self.stall, self.port, self.n = list(cuts), stall, free_port(), 0
        self.stalled, self.released = threading.Event(), threading.Event()
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                a, _ = self.listener.accept()
            except OSError:
                return
            self.n += 1
            b = socket.create_connection(("127.0.0.1", server.port))
            budget = self.cuts.pop(0) if self.cuts else None
            threading.Thread(target=self.pump, args=(a, b, budget), daemon=True).start()
            threading.Thread(target=self.pump, args=(b, a, None), daemon=True).start()

    def pump(self, a, b, budget):
        try:
            while True:
                data = a.recv(min(16384, budget) if budget is not None else 16384)
                if not data:
                    break
                b.sendall(data)
                if budget is not None:
                    budget -= len(data)
                    if budget <= 0:
                        if self.stall:
                            self.stalled.set()
                            self.released.wait(600)
                        break
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.released.set()
        self.listener.close()


# ---------------------------------------------------------------------------------------

def test_wrong_usage():
    for args in ([], ["frobnicate"], ["tenant"], ["tenant", "creat", "x"], ["tenant", "create"],
                 ["tenant", "list", "extra"], ["tenant", "list", "--frob"], ["tenant", "list", "-o"],
                 ["tenant", "list", "-o", "xml"], ["tenant", "list", "--json=1"],
                 ["limits", "set", "acme", "tokens"], ["limits", "set", "acme", "tokens_per_day=-1"],
                 ["limits", "set", "acme", "tokens_per_day=lots"], ["key", "create"],
                 ["key", "create", "--tenant", "a", "--expires", "soon"], ["completion", "tcsh"],
                 ["usage", "--start", "yesterday"], ["key", "rotate", "1", "--grace", "x"],
                 ["adapter", "activate", "a", "first"], ["adapter", "alias", "a", "b"],
                 ["adapter", "show", "a@0"], ["chat", "base", "--seed", "x", "hi"],
                 ["tenant", "create", "x", "--weight", "0"], ["stats", "--timeout", "never"],
                 ["context", "set", "a b"]):
        assert ctl(*args, expect=2) == "", args
        assert ctl.errors, args
    assert "did you mean 'tenant create'" in (ctl("tenant", "creat", "x", expect=2) or ctl.errors)
    assert "did you mean '--json'" in (ctl("stats", "--jsno", expect=2) or ctl.errors)
    assert "usage: loractl adapter push DIR|FILE.gguf" in ctl("adapter", "push", "--help")
    assert "adapter push" in ctl("--help") and "adapter push" in ctl("help")
    tenants, operators = ctl("--help").split("For operators:\n")  # a heading for each audience
    assert "For tenants:\n" in tenants and "\n  chat " in tenants and "\n  tenant create " in operators and "tenant create" not in tenants
    assert ctl("version").startswith("loractl ") and ctl("--version") == ctl("version")


def test_contexts():
    env = {"LORAD_URL": "", "LORAD_ADMIN_URL": "", "LORAD_ADMIN_KEY": "", "LORAD_CA": ""}
    key = server.tenant("context")
    ctl("context", "set", "home", "--url", f"https://localhost:{server.port}", "--ca", server.ca,
        "--key", stdin=key + "\n", env=env)
    ctl("context", "set", "ops", "--admin-url", f"https://localhost:{server.admin_port}", "--ca",
        server.ca, "--admin-key", stdin=server.admin_key + "\n", env=env)
    path = home / "contexts.conf"
    assert path.stat().st_mode & 0o777 == 0o600
    rows = json.loads(ctl("context", "list", "--json", env=env))
    assert [(r["name"], r["current"]) for r in rows] == [("home", True), ("ops", False)], rows
    assert rows[0]["key"] == "set" and rows[1]["admin_key"] == "set"
    for shown in ("list", "show"):
        for form in ("table", "wide", "csv", "json"):
            text = ctl("context", shown, "-o", form, env=env)
            assert key not in text and server.admin_key not in text
    assert "base" in ctl("models", env=env)
    assert parsed("whoami", env=env)["tenant"] == "context"
    assert "admin_url" in (ctl("tenant", "list", expect=1, env=env) or ctl.errors)  # no guess
    assert ctl("tenant", "list", "-c", "ops", "-o", "name", env=env).split()
    assert ctl("tenant", "list", "-o", "name", env={**env, "LORAD_CONTEXT": "ops"}).split()
    ctl("context", "use", "ops", env=env)
    assert ctl("tenant", "list", "-o", "name", env=env).split()
    assert ctl("models", "--context=home", env=env)
    ctl("models", "-c", "nowhere", expect=1, env=env)
    path.chmod(0o644)
    ctl("tenant", "list", expect=1, env=env)
    assert "chmod 600" in ctl.errors
    path.chmod(0o600)
    ctl("context", "delete", "ops", expect=1, env=env)  # nobody to ask
    ctl("context", "delete", "ops", "--yes", env=env)
    assert "ops" not in ctl("context", "list", env=env)
    path.unlink()


def test_tenants_and_limits():
    made = parsed("tenant", "create", "acme", "--weight", "2", "--class", "batch", "--limit",
                  "requests_per_minute=100", "--limit", "tokens-per-day=2k")
    assert made["weight"] == 2 and made["default_class"] == "batch"
    assert made["limits"]["requests_per_minute"] == 100 and made["limits"]["tokens_per_day"] == 2000
    ctl("tenant", "create", "acme", expect=1)
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "quick.key")
        ctl("tenant", "create", "quick", "--out", out)
        assert out.stat().st_mode & 0o777 == 0o600
        assert server.ask(out.read_text().strip(), "base", "hi", max_tokens=1).status == 200
        ctl("tenant", "create", "slow", "--out", out, expect=2)  # no key is overwritten, and no tenant made
        ctl("tenant", "show", "slow", expect=1)
        ctl("tenant", "delete", "quick", "--yes")
    assert "acme" in ctl("tenant", "list") and "acme" in ctl("tenant", "list", "-o", "name").split()
    rows = list(csv.DictReader(io.StringIO(ctl("tenant", "list", "-o", "csv"))))
    mine = next(r for r in rows if r["name"] == "acme")
    assert mine["limits.tokens_per_day"] == "2000" and mine["state"] == "active", mine
    assert "batch" in ctl("tenant", "show", "acme")
    assert parsed("tenant", "set", "acme", "--classes", "batch,standard")["classes"] == ["batch",
                                                                                      "standard"]
    assert parsed("tenant", "set", "acme", "--target", "batch=2s,40ms", "--target", "standard=,1.5s")["targets"] == {
        "batch": {"ttft_ms": 2000, "tpot_ms": 40}, "standard": {"ttft_ms": None, "tpot_ms": 1500}}
    assert "batch=(ttft_ms=2000,tpot_ms=40),standard=(tpot_ms=1500)" in ctl("tenant", "show", "acme", "-o", "csv")
    assert parsed("tenant", "set", "acme", "--target", "batch=none", "--target", "standard=300ms")["targets"] == {
        "standard": {"ttft_ms": 300, "tpot_ms": None}}
    for wrong in ("batch", "=1s", "batch=", "batch=,", "batch=3", "batch=1s,2s,3s", "batch=1min"):
        ctl("tenant", "set", "acme", "--target", wrong, expect=2)
    ctl("tenant", "set", "acme", "--target", "none-such=1s", expect=1)
    assert parsed("tenant", "set", "acme", "--networks", "10.0.0.0/8,::ffff:127.0.0.1,::1")["networks"] == [
        "10.0.0.0/8", "127.0.0.1/32", "::1/128"]
    ctl("tenant", "set", "acme", "--networks", "10.0.0.1/8", expect=1)
    assert "is 10.0.0.0/8 meant?" in ctl.errors
    assert parsed("tenant", "set", "acme", "--networks", "none")["networks"] == []
    key = server.key("acme")
    ctl("tenant", "suspend", "acme", expect=1)
    assert "--yes" in ctl.errors
    ctl("tenant", "suspend", "acme", "--yes")
    ctl("models", key=key, expect=1)
    assert parsed("tenant", "resume", "acme")["state"] == "active"
    ctl("models", key=key)
    ctl("limits", "set", "acme", "max_concurrent=7", "tokens_per_day=none")
    shown = parsed("limits", "show", "acme")
    assert shown["limits"]["max_concurrent"] == 7 and shown["limits"]["tokens_per_day"] == 0
    assert "max_concurrent" in ctl("limits", "show", "acme") and "acme" in ctl("limits", "show")
    server.upload(key, "limited", DEMO / "adapters" / demo_adapters()[0])
    assert parsed("limits", "set", "acme/limited", "tokens-per-minute=1M")["limits"]["tokens_per_minute"] == 1000000
    assert "1000000" in ctl("limits", "show", "acme/limited", "-o", "csv"), ctl("limits", "show", "acme/limited", "-o", "csv")
    ctl("limits", "set", "acme/limited", "tokens_per_day=3", expect=1)
    ctl("limits", "set", "acme", "wishes=3", expect=1)
    assert "wishes" in ctl.errors
    ctl("tenant", "show", "no-such", expect=1)
    assert "no-such" in ctl.errors
    assert parsed("tenant", "delete", "acme", "-y")["state"] == "disabled"


def test_keys():
    server.admin("POST", "/tenants", {"name": "keys"})
    made = parsed("key", "create", "-t", "keys", "-n", "laptop", "--expires", "30d",
                  "--requests-per-minute", "60")
    assert made["key"].startswith("lk_") and made["scopes"] == ["inference"]
    assert abs(made["expires_at"] - time.time() - 30 * 86400) < 600 and made["requests_per_minute"] == 60
    ctl("models", key=made["key"])
    bound = parsed("key", "set", made["public_id"], "--networks", "192.0.2.0/24", "--max-concurrent", "4")
    assert bound["networks"] == ["192.0.2.0/24"] and bound["max_concurrent"] == 4 and bound["name"] == "laptop"
    ctl("models", key=made["key"], expect=1)
    assert "may not be used from your address" in ctl.errors, ctl.errors
    assert parsed("key", "set", made["id"], "--networks", "none", "--max-concurrent", "none")["networks"] == []
    ctl("models", key=made["key"])
    assert made["key"] not in ctl("key", "list", "-o", "wide")
    assert "laptop" in ctl("key", "list", "--tenant", "keys")
    bare = ctl("key", "create", "-t", "keys", "-o", "name").strip()
    assert re.fullmatch(r"lk_\S+", bare), bare
    assert "shown this once" in (ctl("key", "create", "-t", "keys") and ctl.errors)
    out = home / "made.key"
    assert "lk_" not in ctl("key", "create", "-t", "keys", "--scopes", "inference,adapters.read", "--out", out)
    assert out.stat().st_mode & 0o777 == 0o600
    ctl("models", env={"LORAD_KEY_FILE": out})
    ctl("key", "create", "-t", "keys", "--out", out, expect=2)  # it would overwrite
    fresh = parsed("key", "rotate", made["id"], "--grace", "1h")["key"]
    ctl("models", key=fresh)
    ctl("models", key=made["key"])
    ctl("key", "revoke", made["public_id"], "--yes")
    ctl("models", key=fresh, expect=1)
    ctl("key", "revoke", "999999", "--yes", expect=1)
    ctl("key", "revoke", "nonsense", "--yes", expect=1)
    short = server.admin("POST", "/keys", {"tenant": "keys", "scopes": ["inference"],
                                           "expires_at": int(time.time()) - 5})["key"]
    ctl("models", key=short, expect=1)
    assert "expired" in ctl.errors, ctl.errors


class Liar(http.server.BaseHTTPRequestHandler):
    """A server that is not ours: answers everything with what the test has laid ready."""
    status, body = 200, b"{}"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("x-request-id", "req_\x9b31m")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = answer

    def log_message(self, *args):
        pass


class Endless(Liar):
    """An answer that begins and has no end; `left`: its client went."""
    left = threading.Event()

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b'data: {"choices":[{"delta":{"content":"It goes on"}}]}\n\n')
        try:
            while self.connection.recv(4096):
                pass
        except OSError:
            pass
        self.left.set()

    do_POST = answer


def lie(handler=Liar):
    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(server.ca, pathlib.Path(server.ca).with_name("key.pem"))
    s.socket = tls.wrap_socket(s.socket, server_side=True)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    return s, {"LORAD_ADMIN_URL": f"https://localhost:{s.server_address[1]}",
               "LORAD_URL": f"https://localhost:{s.server_address[1]}"}


def test_servers_that_lie():
    s, env = lie()
    for body in (b"", b"[]", b"null", b"{", b'{"data":{}}', b'{"data":[1,[2],null]}', b"\xff\xfe",
                 b'{"data":[{"name":{"a":{"b":[]}},"id":7,"limits":3}],"has_more":true}',
                 b'{"object":"adapter.upload","id":"u1","files":[{"path":3}]}', b"[" * 100000):
        Liar.status, Liar.body = 200, body
        for args in (["tenant", "list"], ["key", "list", "-o", "csv"], ["tenant", "show", "x"],
                     ["limits", "show", "x"], ["usage"], ["stats"], ["requests", "list"],
                     ["adapter", "list"], ["adapter", "push", ADAPTER], ["whoami"], ["models"],
                     ["chat", "base", "hi"], ["key", "create", "-t", "a"]):
            p = subprocess.run([LORACTL, *args], capture_output=True, timeout=60,
                               env=environment(LORAD_KEY="lk_x", **env))
            assert p.returncode in (0, 1), (args, body[:80], p)  # never a signal
            assert b"Sanitizer" not in p.stderr, p.stderr.decode()
    Liar.status, Liar.body = 403, json.dumps({"error": {"message": "no\x1b[2J\u202e way"}}).encode()
    ctl("tenant", "list", env=env, expect=1)
    assert "no?[2J? way" in ctl.errors and "\x9b" not in ctl.errors, ctl.errors
    Liar.status, Liar.body = 302, b""
    ctl("tenant", "list", env=env, expect=1)
    s.shutdown()


def test_hostile_names():
    evil = "\x1b[31mred\x07\r\n\x7f\u009b2J\u202etxt.exe, \"x\""
    s, env = lie()
    Liar.status = 200
    Liar.body = json.dumps({"object": "list", "has_more": False, "data": [
        {"id": "1", "public_id": "p", "tenant": evil, "name": evil, "scopes": [evil]}]}).encode()
    for form in ("table", "wide", "csv"):
        text = ctl("key", "list", "-t", "hostile", "-o", form, env=env)
        for bad in "\x1b\x07\x7f\u009b\u202e":
            assert bad not in text, (form, bad)
        assert "[31mred??" in text, text
        assert len(text.splitlines()) == 2, text
    text = ctl("key", "list", "-t", "hostile", "--json", env=env)
    assert json.loads(text)[0]["name"] == evil
    for bad in "\x1b\x07\x7f\u009b\u202e":
        assert bad not in text
    assert ctl("key", "list", "-t", "hostile", env={**env, "LANG": "C"}).isascii()
    s.shutdown()
    key = server.tenant("poet")
    server.upload(key, "verse", ADAPTER)
    server.call("PATCH", "/v1/adapters/verse", {"description": "\u202e" + "\u6f22\u5b57 " * 50}, key=key)
    shown = on_terminal("adapter", "list", columns=100, key=key, env={"NO_COLOR": 1})
    for bad in "\x1b\x07\u202e\u009b":
        assert bad not in shown
    import unicodedata
    for line in shown.splitlines():
        width = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)
        assert width <= 100, (width, line)
    assert "\u2026" in shown  # it was cut


def test_adapters():
    key = server.tenant("eng")
    text = ctl("adapter", "push", ADAPTER, key=key)
    assert "pirate@1" in text and "published" in ctl.errors, (text, ctl.errors)
    ctl("adapter", "push", ADAPTER, key=key)
    assert "unchanged" in ctl.errors and " 0 of " in ctl.errors, ctl.errors
    ctl("adapter", "push", ADAPTER, "--new", key=key, expect=1)
    v2 = parsed("adapter", "push", DEMO / "adapters" / "shout", "-n", "pirate", "--no-activate", key=key)
    assert v2["version"] == 2
    other = ctl("adapter", "push", ADAPTER, "--name", "again", "--description", "the same", key=key)
    assert "again@1" in other and " 0 of " in ctl.errors, ctl.errors  # the bytes were there
    assert parsed("adapter", "show", "pirate", key=key)["default_version"] == 1
    assert parsed("adapter", "show", "pirate@2", key=key)["model"] == "pirate@2"
    assert ctl("adapter", "versions", "pirate", "-o", "name", key=key).split() == ["pirate@1", "pirate@2"] \
        or ctl("adapter", "versions", "pirate", "-o", "name", key=key).split() == ["pirate@2", "pirate@1"]
    assert parsed("adapter", "activate", "pirate", "2", key=key)["default_version"] == 2
    assert parsed("adapter", "rollback", "pirate", key=key)["default_version"] == 1
    assert parsed("adapter", "alias", "pirate", "canary", "2", key=key)["aliases"]["canary"] == 2
    assert "canary=2" in ctl("adapter", "list", "-o", "wide", key=key)
    assert "canary" not in parsed("adapter", "alias", "pirate", "canary", "--delete", key=key)["aliases"]
    assert parsed("adapter", "pin", "pirate", key=key)["pinned"] is True
    assert parsed("adapter", "unpin", "pirate", key=key)["pinned"] is False
    ctl("adapter", "warm", "pirate", key=key)
    assert "eng" in ctl("adapter", "list", "--all")
    assert "pirate" in ctl("models", key=key)
    assert parsed("adapter", "warm", "pirate", "--wait", "30s", key=key)["residency"] != "disk"
    server.tenant("guest")
    guest = server.key("guest")
    ctl("adapter", "share", "pirate", "guest", key=key)
    assert "guest" in ctl("adapter", "list", "-o", "wide", key=key)
    assert server.ask(guest, "eng/pirate", "What is 7 plus 5?").status == 200
    assert parsed("adapter", "share", "pirate", "none", key=key)["sharing"] == "none"
    assert server.ask(guest, "eng/pirate", "What is 7 plus 5?").status == 404
    ctl("adapter", "share", "pirate", "nobody-here", key=key, expect=1)
    assert "adapter.publish" in ctl("adapter", "events", "pirate", key=key)
    ctl("adapter", "delete", "pirate@2", key=key, expect=1)
    ctl("adapter", "delete", "pirate@2", "--yes", key=key)
    ctl("adapter", "delete", "pirate", "again", "--yes", "--drain", key=key)
    assert ctl("adapter", "list", "-o", "name", key=key) == ""
    ctl("adapter", "show", "pirate", key=key, expect=1)
    empty = home / "empty"
    empty.mkdir()
    for wrong, says in ((home / "nowhere", "nowhere: No such file or directory. Give the folder that PEFT saved"), (ADAPTER / "adapter_config.json", "adapter_config.json is not a folder. Give"),
                        (empty, "empty has no adapter_config.json. Give"), (DEMO / "base", "base has no adapter_config.json, but config.json: it is a base model. Give")):
        for name in ([], ["--name", "x"]):
            ctl("adapter", "push", wrong, *name, key=key, expect=1)
            assert says in ctl.errors and "a .gguf, or a URL" in ctl.errors, ctl.errors
    folder = home / "pickled"
    folder.mkdir()
    shutil.copy(ADAPTER / "adapter_config.json", folder)
    (folder / "adapter_model.bin").write_bytes(b"\x80\x04.")
    ctl("adapter", "push", folder, key=key, expect=1)
    assert "safe_serialization" in ctl.errors
    (folder / "adapter_model.safetensors").write_bytes(b"nonsense")
    ctl("adapter", "push", folder, key=key, expect=1)
    assert "adapter" not in ctl("adapter", "list", "-o", "csv", key=key).split("\n", 1)[1]
    ctl("adapter", "push", ADAPTER, key=server.key("eng", ["inference"]), expect=1)  # scope


def test_push_of_a_gguf():
    key = server.tenant("llama")
    ctl("adapter", "push", home / "none.gguf", key=key, expect=1)
    bad = home / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(1021))  # no multiple of a tar's block
    ctl("adapter", "push", bad, key=key, expect=1)
    assert "GGUF" in ctl.errors or "gguf" in ctl.errors, ctl.errors
    fixtures = ROOT / "tests/fixtures"
    model = home / "model"  # the fixture has no tokenizer; nothing is asked of it here
    shutil.copytree(fixtures / "models/llama-f32", model)
    shutil.copy(DEMO / "base/tokenizer.json", model)
    with Server(model=model) as other:
        env = {"LORAD_URL": f"https://localhost:{other.port}", "LORAD_CA": other.ca}
        theirs = other.tenant("llama")
        shutil.copy(fixtures / "peft/llama-f32/gguf/adapter.gguf", home / "mine.gguf")
        made = parsed("adapter", "push", home / "mine.gguf", "--description", "from llama.cpp",
                      key=theirs, env=env)
        assert made["model"] == "mine@1" and made["state"] == "ready", made
        ctl("adapter", "push", home / "mine.gguf", "-n", "mine", "--new", key=theirs, env=env, expect=1)
        shown = parsed("adapter", "show", "mine", key=theirs, env=env)
        assert shown["description"] == "from llama.cpp", shown


def test_pages_and_registration():
    server.tenant("bulk")
    key = server.key("bulk")
    root = pathlib.Path(server.settings["adapters.roots"])
    for i in range(3):
        shutil.copytree(ADAPTER, root / f"bulk-{i}")
    (root / "broken").mkdir()
    (root / "broken" / "adapter_config.json").write_text("{}")
    ctl("adapter", "register", root, expect=2)
    text = ctl("adapter", "register", root, "--tenant", "bulk", expect=1)
    assert "3 registered" in text and "1 refused" in text and "broken" in text, text
    shutil.rmtree(root / "broken")
    assert "3 unchanged" in ctl("adapter", "register", root, "-t", "bulk")
    assert len(parsed("adapter", "list", key=key)) == 3
    s, env = lie()  # pages: what the server calls the next one is asked for
    Liar.status, Liar.body = 200, json.dumps({"data": [{"name": "x"}], "has_more": True, "next": "x"}).encode()
    assert len(parsed("adapter", "list", env=env, key="lk_x")) == 2  # and a circle is not run for ever
    s.shutdown()


def test_push_over_a_bad_line():
    key = server.tenant("far")
    size = (ADAPTER / "adapter_model.safetensors").stat().st_size
    assert size > 60000, size
    proxy = Proxy([size // 3, size // 3, size // 4])
    text = ctl("adapter", "push", ADAPTER, key=key, env={"LORAD_URL": f"https://localhost:{proxy.port}"})
    assert "pirate@1" in text and proxy.n >= 3, (text, proxy.n)
    proxy.close()
    assert server.ask(key, "pirate", "What is 7 plus 5?").json["choices"][0]["message"]["content"]


def test_push_goes_on_after_a_kill():
    key = server.tenant("killed")
    size = (ADAPTER / "adapter_model.safetensors").stat().st_size
    proxy = Proxy([size // 2], stall=True)
    p = subprocess.Popen([LORACTL, "adapter", "push", ADAPTER], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL,
                         env=environment(LORAD_KEY=key, LORAD_URL=f"https://localhost:{proxy.port}"))
    assert proxy.stalled.wait(60 * PATIENCE)

    p.send_signal(signal.SIGKILL)
    p.wait()
    proxy.close()
    ctl("adapter", "push", ADAPTER, key=key)
    sent, total = map(int, re.search(r"(\d+) of (\d+) bytes sent", ctl.errors).groups())
    assert 0 < sent < size < total and "published" in ctl.errors, ctl.errors


def test_progress_only_on_a_terminal():
    key = server.tenant("bar")
    shown = on_terminal("adapter", "push", ADAPTER, key=key, columns=90)
    assert "%" in shown and "\r" in shown and "MiB" in shown or "KiB" in shown, shown
    quiet = on_terminal("adapter", "push", ADAPTER, "-n", "quiet", "-q", key=key, columns=90)
    assert "%" not in quiet, quiet
    ctl("adapter", "push", ADAPTER, "-n", "plain", key=key)
    assert "%" not in ctl.errors and "\r" not in ctl.errors


def test_chat_and_complete():
    key = server.tenant("talk")
    say = ["--temperature", "0", "--max-tokens", "24"]
    q = "What is 7 plus 5?"
    want = server.ask(key, "base", q, max_tokens=24).json["choices"][0]["message"]["content"]
    streamed = ctl("chat", "base", q, *say, key=key)
    assert streamed.rstrip("\n") == want.rstrip("\n"), (streamed, want)
    assert ctl("chat", "base", *q.split(), *say, "--no-stream", key=key) == streamed
    assert ctl("chat", "base", *say, key=key, stdin=q) == streamed
    whole = parsed("chat", "base", q, *say, key=key)
    assert whole["choices"][0]["message"]["content"] == want
    done = ctl("complete", "base", "7 plus 5 is", *say, "--stop", ".", key=key)
    assert done.strip() and "." not in done
    assert ctl("complete", "base", "-", *say, "--stop", ".", key=key, stdin="7 plus 5 is") == done
    ctl("chat", "nobody", "hi", key=key, expect=1)
    assert "nobody" in ctl.errors
    ctl("chat", "base", "hi", "--max-tokens", "99999", key=key, expect=1)
    ctl("chat", "base", "hi", "--class", "royal", key=key, expect=1)


def test_batches():
    key = server.tenant("nightly")

    def line(i, body=None):
        return {"custom_id": f"n{i}", "method": "POST", "url": "/v1/completions",
                "body": body or {"model": "base", "prompt": f"The {i}", "max_tokens": 3, "ignore_eos": True}}
    path, out = home / "night \"1\".jsonl", home / "answers.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in [*map(line, range(5)), line(5, {"model": "none", "prompt": "x"})]))
    name = ctl("batch", "create", path, "-o", "name", key=key).strip()
    done = parsed("batch", "wait", name, key=key)
    assert done["status"] == "completed" and done["request_counts"] == {"total": 6, "completed": 5, "failed": 1}, done
    assert parsed("batch", "show", name, key=key) == done and done["endpoint"] == "/v1/completions"
    assert [b["id"] for b in parsed("batch", "list", key=key)] == [name]
    answers = [json.loads(x) for x in ctl("batch", "results", name, key=key).splitlines()]
    assert sorted(x["custom_id"] for x in answers) == [f"n{i}" for i in range(5)]
    ctl("batch", "results", name, "--errors", "--out", out, key=key)
    assert json.loads(out.read_text())["response"]["body"]["error"]["code"] == "model_not_found"
    ctl("batch", "results", name, "--out", out, key=key, expect=1)  # it is there, and stays
    assert "exists" in ctl.errors and out.read_text()
    path.write_text("no request\n")
    ctl("batch", "create", path, key=key, expect=1)
    assert "--endpoint" in ctl.errors
    ctl("batch", "create", path, "--endpoint", "/v1/completions", "--follow", key=key, expect=1)
    assert "the batch is failed: " in ctl.errors
    path.write_text(json.dumps(line(0)) + "\n")
    assert "completed" in ctl("batch", "create", path, "--follow", key=key)
    long = {"model": "base", "prompt": "x", "max_tokens": 400, "min_tokens": 400, "ignore_eos": True}
    path.write_text("".join(json.dumps(line(i, long)) + "\n" for i in range(400)))
    name = parsed("batch", "create", path, key=key)["id"]
    ctl("batch", "results", name, key=key, expect=1)
    assert "has not ended" in ctl.errors
    assert parsed("batch", "cancel", name, key=key)["status"] in ("cancelling", "cancelled")
    ctl("batch", "wait", name, key=key, expect=1)
    assert "the batch is cancelled" in ctl.errors
    ctl("batch", "show", "batch_none", key=key, expect=1)


def test_chat_interactive():
    key = server.tenant("talker")
    shown = on_terminal("chat", "base", "--temperature", "0", "-m", "24", key=key,
                        keys=[("> ", "What is 7 plus 5?\n"), ("\n> ", "/nonsense\n"),
                              ("/exit", "/model nobody\n"), ("> ", "hello\n"), ("nobody", "/reset\n"),
                              ("forgotten", "/exit\n")], expect=1)
    assert "12" in shown and "nobody" in shown, shown
    shown = on_terminal("chat", "base", "-m", "24", key=key, keys=[("> ", "\x04")])
    assert "\x1b" not in shown
    # What was typed can be changed, and comes back, also in the next talk.
    with tempfile.TemporaryDirectory() as home:
        env = {"LORAD_CLIENT_CONFIG": f"{home}/lorad/contexts.conf", "HOME": home}
        kept = pathlib.Path(home, "lorad/chat_history")
        on_terminal("chat", "base", key=key, env=env, keys=[("> ", "/resex\x7ft\n"), ("forgotten", "/exit\n")])
        assert kept.stat().st_mode & 0o777 == 0o600 and "/reset" in kept.read_text(), kept.read_text()
        on_terminal("chat", "base", key=key, env=env, keys=[("> ", "\x1b[A\x1b[A\n"), ("forgotten", "/exit\n")])
    # Ctrl-C ends the answer, not the talk.
    s, env = lie(Endless)
    on_terminal("chat", "base", key=key, env=env, keys=[("> ", "Tell me all\n"), ("goes on", "\x03"), ("\n> ", "\x03"),
                                                        ("\n> ", "\x03"), ("\n> ", "/exit\n")])
    assert Endless.left.wait(60 * PATIENCE)
    s.shutdown()
    usage = parsed("usage", "--by", "model", key=key)
    assert usage["data"], usage


def test_requests():
    key = server.tenant("busy")
    body = {"model": "base", "prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "n": 8}
    got = []
    threads = [threading.Thread(target=lambda: got.append(
        server.call("POST", "/v1/completions", body, key=key, timeout=300))) for _ in range(3)]
    for t in threads:
        t.start()
    rows = until(lambda: (lambda r: r if len(r) == 24 else None)(parsed("requests", "list", "-t", "busy")))
    assert {r["model"] for r in rows} == {"base"}
    assert "waiting" in ctl("requests", "list") and "busy" in ctl("requests", "list", "-o", "wide")
    ids = ctl("requests", "list", "--state", "waiting", "-o", "name").split()
    assert ids
    ctl("requests", "cancel", ids[0], expect=1)  # nobody to ask
    ctl("requests", "cancel", *{r["request_id"] for r in rows}, "--yes")
    for t in threads:
        t.join()
    assert [r.status for r in got] == [403] * 3, got
    assert until(lambda: parsed("requests", "list") == [])
    ended = parsed("requests", "list", "--ended", "-t", "busy")
    assert len(ended) == 24 and {r["state"] for r in ended} == {"ended"}, ended
    head = ctl("requests", "list", "--ended").split("\n")[0]
    assert all(word in head for word in ("TOOK", "QUEUE", "ADAPTER", "PROMPT", "DECODE", "MISSED")), head
    assert parsed("requests", "list", "--slow", "1d", "-t", "busy") == []
    for wrong in (["--slow", "x"], ["--slow", "5s", "--state", "decode"], ["--ended", "--state", "waiting"]):
        ctl("requests", "list", *wrong, expect=2)
    ctl("requests", "cancel", "12345", "--yes", expect=1)


def test_server_side():
    key = server.tenant("counted")
    server.ask(key, "base", "What is 7 plus 5?", max_tokens=5)
    assert "engine." in ctl("stats") and parsed("stats")["engine"]
    assert [r["name"] for r in parsed("classes")] == ["interactive", "standard", "batch"]
    assert "50.0ms" in ctl("classes") or " 50ms" in ctl("classes"), ctl("classes")
    assert "100ms" in ctl("classes") and "priority,fast" in ctl("classes")
    assert re.search(r"server\.now_us +\d{16}\n", ctl("stats")), "no power of ten"
    head, *acts = ctl("audit").splitlines()
    by = head.index("BY")
    made = next(a for a in acts if "tenant.create" in a)
    assert made[by:].split()[0] == "admin", (head, made)
    ctl("limits", "set", "counted", "tokens_per_dya=5", expect=1)
    assert "unknown field 'tokens_per_dya'" in ctl.errors and "tokens_per_day" in ctl.errors, ctl.errors
    mine = parsed("usage", "--by", "model", key=key)
    assert mine["data"][0]["results"][0]["num_model_requests"] == 1, mine
    rows = list(csv.DictReader(io.StringIO(ctl("usage", "-t", "counted", "--by", "model,class", "--bucket",
                                               "1h", "--start", "-2h", "-o", "csv"))))
    assert rows and rows[0]["num_model_requests"] == "1" and rows[0]["model"] == "base", rows
    assert "base" in ctl("usage", "--all", "--by", "model,tenant", "-o", "wide")
    # What it is asked by stands in front, by name.
    head, *lines = ctl("usage", "--all", "--by", "tenant,key").splitlines()
    assert head.split()[:3] == ["TENANT", "KEY", "FROM"], head
    assert any(line.split()[:2] == ["counted", "test"] for line in lines), lines
    server.upload(key, "billed", DEMO / "adapters" / demo_adapters()[0])
    server.ask(key, "billed", "What is 7 plus 5?", max_tokens=2)
    assert "billed@1" in ctl("usage", "--by", "adapter", key=key)
    ctl("usage", "--by", "colour", key=key, expect=1)
    backup = home / "copy.db"
    ctl("backup", backup)
    assert backup.stat().st_size > 0 and backup.stat().st_mode & 0o777 == 0o600
    ctl("backup", "relative.db", expect=1)
    assert "reloaded" in ctl("reload")


def test_cannot_connect():
    key = server.tenant("lost")
    ctl("models", key=key, env={"LORAD_URL": f"https://localhost:{free_port()}"}, expect=3)
    other = home / "other.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                    "-nodes", "-keyout", home / "other.key", "-out", other, "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    ctl("models", key=key, env={"LORAD_CA": other}, expect=3)
    assert "not trusted" in ctl.errors
    ctl("models", key=key, env={"LORAD_CA": ""}, expect=3)  # the system does not know it
    ctl("models", key=key, env={"LORAD_CA": home / "none.pem"}, expect=3)
    ctl("models", key=key, env={"LORAD_URL": f"http://localhost:{server.port}"}, expect=1)
    ctl("models", key="lk_wrong", expect=1)
    ctl("models", expect=1)  # no key at all
    assert "no key" in ctl.errors
    ctl("adapter", "push", ADAPTER, key=key, env={"LORAD_URL": f"https://localhost:{free_port()}"}, expect=3)
    silent = socket.create_server(("127.0.0.1", 0))
    ctl("models", "--timeout", "1s", key=key, expect=3,
        env={"LORAD_URL": f"https://localhost:{silent.getsockname()[1]}"})
    silent.close()


def test_tables_fit():
    for columns in (40, 80, 200):
        shown = on_terminal("tenant", "list", columns=columns, env={"NO_COLOR": 1})
        assert "NAME" in shown and "\x1b" not in shown
        if columns >= 80:
            assert all(len(line.rstrip("\r")) <= columns for line in shown.split("\n")), shown
    p = subprocess.Popen([LORACTL, "audit"], stdout=subprocess.PIPE, env=environment())
    p.stdout.close()  # as `| head -0` does
    assert p.wait() in (0, 1)


def complete_bash(*words):
    script = (f"source <({LORACTL} completion bash); COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); "
              "_loractl; printf '%s\\n' \"${COMPREPLY[@]}\"")
    p = subprocess.run(["bash", "-c", script, "bash", "loractl", *words], capture_output=True, text=True)
    assert p.returncode == 0 and not p.stderr, p
    return p.stdout.split()


def test_completion():
    assert complete_bash("ten") == ["tenant"]
    assert "create" in complete_bash("tenant", "") and "push" not in complete_bash("tenant", "")
    assert complete_bash("adapter", "pu") == ["push"]
    assert "--no-activate" in complete_bash("adapter", "push", "--no")
    assert complete_bash("stats", "--js") == ["--json"]
    assert "csv" in complete_bash("tenant", "list", "-o", "")
    assert complete_bash("completion", "f") == ["fish"]
    for shell in ("bash", "zsh", "fish"):
        text = ctl("completion", shell)
        path = home / f"completion.{shell}"
        path.write_text(text)
        assert "push" in text
        if shell == "bash" or shutil.which(shell):
            subprocess.run([shell, "-n", path], check=True)


def test_man_page():
    text = subprocess.run([LORACTL, "--print-man"], capture_output=True, text=True, check=True).stdout
    for piece in (".TH LORACTL 1", "adapter push", "no\\-activate", "EXIT STATUS", "LORAD_ADMIN_KEY"):
        assert piece in text, piece
    if shutil.which("groff"):
        p = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=text, text=True,
                           capture_output=True)
        assert p.returncode == 0 and not p.stderr, p.stderr


def test_drain():
    ctl("drain", expect=1)
    assert server.process.poll() is None
    assert "draining" in ctl("drain", "--yes")
    assert server.process.wait(60) == 0


if __name__ == "__main__":
    try:
        roots = home / "roots"
        roots.mkdir()
        with Server(settings={"engine.max_seqs": 1, "adapters.roots": roots}) as server:
            run([test_wrong_usage, test_contexts, test_tenants_and_limits, test_keys,
                 test_servers_that_lie, test_hostile_names, test_adapters,
                 test_push_of_a_gguf, test_pages_and_registration, test_push_over_a_bad_line,
                 test_push_goes_on_after_a_kill, test_progress_only_on_a_terminal,
                 test_chat_and_complete, test_batches, test_chat_interactive, test_requests, test_server_side,
                 test_cannot_connect, test_tables_fit, test_completion, test_man_page, test_drain])
    finally:
        shutil.rmtree(home, ignore_errors=True)
