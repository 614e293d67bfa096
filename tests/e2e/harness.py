"""harness.py -- a real lorad in a fresh data directory, for the end-to-end tests.

Every test program starts its own server on free ports, talks to it over TLS with the certificate
that `lorad init` made, and stops it.  Nothing is mocked.
"""
import http.client
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time

import contract

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LORAD_BUILD", ROOT / "build/release"))
DEMO = ROOT / "conf/demo"
PATIENCE = float(os.environ.get("LORAD_PATIENCE", "20"))  # times the limits of what hangs; nothing that works waits for it


def until(condition, seconds=60):
    """What condition() says, once that is something."""
    end = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < end:
        got = condition()
        if got:
            return got
        time.sleep(0.02)
    raise AssertionError("it did not come")


def in_pieces(ask, least, pieces=lambda got: got):
    """What ask() gives, once pieces() of it are that many: a worker that wakes late sends what came meanwhile in one event."""
    return until(lambda: (lambda got: got if len(pieces(got)) >= least else None)(ask()))


def first_events(server, path, body, key, least):
    """(response, the bytes of its first events) of a stream with a ticket; asked again where it ended before."""
    def opened():
        c = server.connect()
        c.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "x-lorad-resume": "new"})
        r, first = c.getresponse(), b""
        assert r.status == 200, r.read()
        while first.count(b"\n\n") < least:
            line = r.readline()
            if not line:
                return None
            first += line
        return r, first
    return until(opened)


held = []  # sockets of free_port()


def free_port():
    """A port that is this process's until it ends. Its socket stays bound: the system gives the number to nobody else,
    and what sets one of these options, as servers do, may still listen there."""
    held.append(socket.socket())
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held[-1].setsockopt(socket.SOL_SOCKET, option, 1)
    held[-1].bind(("127.0.0.1", 0))
    return held[-1].getsockname()[1]


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.body[:300]!r}>"


class Server:
    """with Server() as s: s.call("GET", "/v1/models", key=...)"""

    def __init__(self, model=DEMO / "base", settings=None, directory=None, program="lorad"):
        self.dir = pathlib.Path(directory or tempfile.mkdtemp(prefix="lorad-e2e-"))
        self.own_dir = directory is None
        self.port, self.admin_port, self.metrics_port = free_port(), free_port(), free_port()
        # What runs where: tests/gpu/run.sh has these tests on a device, CMakeLists.txt some over other weights.
        backend, weights = os.environ.get("LORAD_BACKEND"), os.environ.get("LORAD_WEIGHTS")
        # How full the disk of whoever runs these tests is must not matter (data.min_free).
        # Nothing runs but what a test asks for (debug.probe).
        self.model, self.settings = model, {
            "data.min_free": "1MiB", "debug.probe": "no", "debug.device_root": "/nonexistent",  # no GPU that goes unused
            **({"engine.backend": backend} if backend else {}), **({"model.weights": weights} if weights else {}),
            **({"engine.device_memory_fraction": "0.1"} if backend == "cuda" else {}), **(settings or {})}
        self.process, self.program, self.env = None, program, {}
        self.log_path = self.dir.with_suffix(".log")
        self.admin_key = None

    # -- life ------------------------------------------------------------------

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.stop()
        if exc[0] and self.log_path.exists():
            sys.stderr.write("---- end of the server's log\n")
            sys.stderr.write("".join(self.log_path.read_text().splitlines(True)[-40:]))
        if self.own_dir:
            shutil.rmtree(self.dir, ignore_errors=True)
            self.log_path.unlink(missing_ok=True)

    def start(self):
        if not (self.dir / "lorad.conf").exists():
            out = subprocess.run(
                [BUILD / "lorad", "init", "--dir", self.dir, "--model", self.model],
                check=True, capture_output=True, text=True).stdout
            self.admin_key = next(w for w in out.split() if w.startswith("lk_"))
            (self.dir / "admin.key").write_text(self.admin_key)
        self.admin_key = (self.dir / "admin.key").read_text()
        settings = {"server.listen": f"127.0.0.1:{self.port}",
                    "admin.listen": f"127.0.0.1:{self.admin_port}",
                    "metrics.listen": f"127.0.0.1:{self.metrics_port}", **self.settings}
        argv = [BUILD / self.program, "serve", "-c", self.dir / "lorad.conf"]
        for name, value in settings.items():
            argv += ["--set", f"{name}={value}"]
        self.log = open(self.log_path, "ab")
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, env={**os.environ, **self.env})
        self.wait_ready()

    def wait_ready(self, seconds=120):
        end = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"lorad ended with {self.process.returncode}:\n"
                                   + self.log_path.read_text()[-4000:])
            try:
                if self.call("GET", "/readyz", port=self.metrics_port).status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError("lorad did not become ready")

    def stop(self, sig=signal.SIGTERM, seconds=60):
        """Returns the exit status."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(sig)
        code = self.process.wait(seconds * PATIENCE)
        self.process = None
        self.log.close()
        return code

    # -- HTTP ---------------------------------------------------------------------

    @property
    def url(self):
        return f"https://localhost:{self.port}/v1"

    @property
    def ca(self):
        return str(self.dir / "tls" / "cert.pem")

    def tls(self):
        return ssl.create_default_context(cafile=self.ca)

    def connect(self, port=None, timeout=60):
        return http.client.HTTPSConnection("localhost", port or self.port, timeout=timeout * PATIENCE,
                                           context=self.tls())

    def raw(self, port=None, timeout=10):
        """A TLS socket, to say what no HTTP library would say."""
        s = socket.create_connection(("127.0.0.1", port or self.port), timeout * PATIENCE)
        return self.tls().wrap_socket(s, server_hostname="localhost")

    def call(self, method, path, body=None, key=None, headers=None, port=None, timeout=60):
        h = dict(headers or {})
        if key:
            h["Authorization"] = f"Bearer {key}"
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            h.setdefault("Content-Type", "application/json")
        c = self.connect(port, timeout)
        try:
            c.request(method, path, body, h)
            r = c.getresponse()
            reply = Reply(r.status, dict((k.lower(), v) for k, v in r.getheaders()), r.read())
        finally:
            c.close()
        if port in (None, self.port, self.admin_port):
            contract.check(method, path, reply.status, reply.headers, reply.body, port == self.admin_port)
        return reply

    def admin(self, method, path, body=None, expect=(200, 201)):
        r = self.call(method, "/admin/v1" + path, body, key=self.admin_key, port=self.admin_port)
        if r.status not in expect:
            raise AssertionError(f"{method} {path}: {r}")
        return r.json if r.body else None

    # -- what nearly every test needs ------------------------------------------------

    def tenant(self, name, **settings):
        """A tenant and one key with all of a tenant's scopes; returns the key."""
        self.admin("POST", "/tenants", {"name": name, **settings})
        return self.key(name)

    def key(self, tenant, scopes=("inference", "adapters.read", "adapters.write"), **more):
        made = self.admin("POST", "/keys", {"tenant": tenant, "name": "test",
                                            "scopes": list(scopes), **more})
        return made["key"]

    def upload(self, key, name, folder, expect=(200, 201)):
        r = self.call("POST", f"/v1/adapters/{name}/versions", tar_of(folder), key=key,
                      headers={"Content-Type": "application/x-tar"})
        if expect and r.status not in expect:
            raise AssertionError(f"upload of {name}: {r}")
        return r

    def ask(self, key, model, question, **more):
        body = {"model": model, "messages": [{"role": "user", "content": question}],
                "temperature": 0, "max_tokens": 48, **more}
        return self.call("POST", "/v1/chat/completions", body, key=key)

    def complete(self, key, path, body):
        """What a stream or a whole answer says: its events with the usage, or its one object."""
        if body["stream"]:
            body = {**body, "stream_options": {"include_usage": True}}
        r = self.call("POST", path, body, key=key)
        assert r.status == 200, (path, body, r)
        return events(r.body) if body["stream"] else [r.json]

    def booked(self):
        """Waits until the ledger has all that was answered: an answer waits 100 ms for its row, not longer."""
        until(lambda: self.metrics()["lorad_spool_used"] == 0)

    def stats(self, query=""):
        """GET /stats as it is now: the server takes a picture at most ten times a second, so what it says first may be old."""
        old = self.admin("GET", "/stats" + query)["server"]["at_us"]
        while True:
            picture = self.admin("GET", "/stats" + query)
            if picture["server"]["at_us"] != old:
                return picture
            time.sleep(0.02)

    def metrics(self):
        """{'name{labels}': value} of the Prometheus text."""
        text = self.call("GET", "/metrics", port=self.metrics_port).body.decode()
        out = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                out[name] = float(value)
        return out


def tar_of(folder, names=None):
    """The folder that PEFT saved, as a tar in memory."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as t:
        for p in sorted(pathlib.Path(folder).iterdir()):
            if p.is_file() and (names is None or p.name in names):
                t.add(p, p.name)
    return data.getvalue()


def demo_adapters():
    return sorted(p.name for p in (DEMO / "adapters").iterdir() if p.is_dir())


def answered(server, ask, refused):
    """ask()'s reply, once it is 200. Until then the server may say that it restarts, which refused() is told; a connection that was
    open when the process replaced itself is asked for again."""
    end = time.monotonic() + 60 * PATIENCE
    while True:
        try:
            reply = ask()
        except (OSError, http.client.HTTPException) as e:
            assert not isinstance(e, ConnectionRefusedError), "nobody is refused"
            assert server.process.poll() is None, "the server ended"
            assert time.monotonic() < end, e
            continue
        if reply.status == 200:
            return reply
        assert reply.status == 503 and reply.json["error"]["code"] == "engine_restarting" and time.monotonic() < end, reply
        refused(reply)


def events(reply_body):
    """The JSON of each SSE frame; the last one must be [DONE]."""
    frames = [f for f in reply_body.decode().split("\n\n") if f and not f.startswith(":")]
    assert frames[-1] == "data: [DONE]", frames[-1]
    return [json.loads(f.removeprefix("data: ")) for f in frames[:-1]]


def run(tests):
    """Runs test functions in order; prints a line for each; the exit status says whether all passed."""
    failed = 0
    for t in tests:
        start = time.monotonic()
        try:
            t()
            print(f"ok      {t.__name__} ({time.monotonic() - start:.1f} s)", flush=True)
        except Exception:  # a test's failure is reported, the others still run
            import traceback
            failed += 1
            print(f"FAILED  {t.__name__}", flush=True)
            traceback.print_exc()
    print(f"{len(tests) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
