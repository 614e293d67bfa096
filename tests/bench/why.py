"""Does `loractl why` explain an incident?  why.py [INCIDENT ...]

Twelve incidents, each on a real server of its own with the demo model: the fault is brought about, and `loractl why` is asked
again and again until one answer has the cause, the culprit and the next command; that must be within 15 s.  Eight are those of
an operator's trial (a flood, limits, too little memory for adapters, a short disk, a certificate that ends, a database that
another process holds, a client that does not read, a target that no machine reaches), four more a busy machine, a device that
fails, a disk that reads slowly, and prompts too long for their target.

The last, `healthy`, is LORAD_HEALTHY seconds (1,800) of load that the server can bear, in which `why` must report nothing and no
event may be a warning.  One line of JSON for each on standard error, then one of all.

Others may use the machine, too: targets are far above what it takes undisturbed and far below what the fault makes of it."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import BUILD, DEMO, Server, demo_adapters, until  # noqa: E402
from small_disk import SmallDisk  # noqa: E402

BOUND_S, HEALTHY_S = 15, int(os.environ.get("LORAD_HEALTHY", 1800))
FAR = "ttft:1h tpot:1h weight:1"


class Stage:
    """A server, tenants, and threads that ask until the incident is over."""

    def __init__(self, settings=None, program="lorad", directory=None, tenants=("acme",), **limits):
        self.server = Server(program=program, directory=directory, settings={
            "log.level": "warn", "engine.max_seqs": 4, "classes.interactive": FAR, "classes.standard": FAR, "classes.batch": FAR,
            **(settings or {})} if settings != {} else {})
        self.fault, self.slow = self.server.dir.with_suffix(".fault"), self.server.dir.with_suffix(".slow")
        self.server.env = {"LORAD_TEST_FAULT": str(self.fault), "LORAD_TEST_SLOW": str(self.slow)}
        self.tenants, self.limits, self.keys = tenants, limits, {}
        self.over, self.threads = threading.Event(), []

    def __enter__(self):
        self.server.__enter__()
        for name in self.tenants:
            self.keys[name] = self.server.tenant(name, **({"limits": self.limits[name]} if name in self.limits else {}))
        self.key_file = self.server.dir.with_suffix(".adminkey")
        self.key_file.write_text(self.server.admin_key)
        self.key_file.chmod(0o600)
        return self

    def __exit__(self, *exc):
        self.over.set()
        for t in self.threads:
            t.join()
        for path in (self.slow, self.fault, self.key_file):
            path.unlink(missing_ok=True)
        self.server.__exit__(*exc)

    def ask(self, tenant, model="base", tokens=16, prompt=3, tier="default"):
        """Whatever comes of it.  No prompt comes twice, so the prefix cache has none."""
        body = {"model": model, "max_tokens": tokens, "ignore_eos": True, "service_tier": tier,
                "prompt": [random.randrange(300, 900) for _ in range(prompt)]}
        try:
            return self.server.call("POST", "/v1/completions", body, key=self.keys[tenant]).status
        except OSError:
            return 0

    def keep(self, how_many, *ask, pause=0.0, **more):
        """So many closed loops."""
        def loop():
            while not self.over.is_set():
                self.ask(*ask, **more)
                self.over.wait(pause)
        for _ in range(how_many):
            self.threads.append(threading.Thread(target=loop))
            self.threads[-1].start()

    def adapters(self, tenant):
        for name in demo_adapters():
            self.server.upload(self.keys[tenant], name, DEMO / "adapters" / name)

    def why(self, *args):
        done = subprocess.run([BUILD / "loractl", "--admin-url", f"https://127.0.0.1:{self.server.admin_port}", "--ca", self.server.ca,
                               "--admin-key-file", self.key_file, "why", *args], capture_output=True, text=True)
        return done.stdout + done.stderr


def flood():
    with Stage({"classes.standard": "ttft:300ms tpot:1h weight:1"}, tenants=("acme", "globex")) as s:
        s.keep(24, "globex", tokens=900, tier="flex")
        s.keep(4, "acme", pause=0.1)
        yield s, (), "standard misses its targets now.*queue", "culprit: globex has 4 of 4 slots and", "next: loractl limits set globex max_concurrent="


def limits():
    with Stage(tenants=("acme", "initech"), initech={"requests_per_minute": 5}) as s:
        s.keep(1, "acme", pause=0.1)
        s.keep(2, "initech", pause=0.05)
        yield s, (), "Limits refuse .* requests each second", "most of them of initech", "next: loractl why initech"
        yield s, ("initech",), "Limits refused", "by requests_per_minute of the tenant, which is 5", "next: loractl limits set initech requests_per_minute="


def thrash():
    """Seven adapters take turns in room for a few; slots are free."""
    with Stage({"engine.kv_memory": "3MiB", "engine.max_seqs": 16, "adapters.host_memory": 0,
                "classes.standard": "ttft:100ms tpot:1h weight:1"}) as s:
        s.adapters("acme")
        for name in demo_adapters():
            s.keep(2, "acme", model=name, tokens=60)
        yield s, (), "standard misses its targets now.*adapter_load", "culprit: .* adapters are loaded and .* evicted each second", "next: loractl adapter pin acme/"


def disk():
    """The file system fills up to the floor."""
    with SmallDisk(64) as d, Stage({"data.min_free": "8MiB", "data.spool": "1MiB"}, directory=d.path / "data") as s, \
            d.full(4 << 20) if d.mounted else contextlib.nullcontext():
        if not d.mounted:
            s.server.admin("PATCH", "/config", {"data.min_free": "1048576GiB"})
        s.keep(1, "acme", pause=0.1)
        yield s, (), "The disk is low: uploads are refused", "are free, data.min_free keeps", "next: free space on the disk of data.dir"


def certificate():
    """One that ends in three days takes the place of the present one."""
    with Stage() as s:
        tls = s.server.dir / "tls"
        subprocess.run(["openssl", "req", "-x509", "-key", tls / "key.pem", "-out", tls / "cert.pem", "-subj", "/CN=localhost", "-days", "3",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
        s.server.process.send_signal(signal.SIGHUP)
        yield s, (), "The certificate ends in [23] days", "certificate", "next: lorad cert, then loractl reload"


def locked():
    """Another process begins a transaction and does not end it."""
    with Stage() as s:
        hold = subprocess.Popen([sys.executable, "-c", "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
                                 "db.execute('BEGIN EXCLUSIVE'); print('held', flush=True); sys.stdin.read()", s.server.dir / "lorad.db"],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert hold.stdout.readline() == b"held\n"
            s.keep(2, "acme", pause=0.05)
            yield s, (), "Usage can't be written to the database", rf"culprit: process {hold.pid} \(python", f"next: ps -fp {hold.pid}"
        finally:
            hold.communicate()


def unread():
    """A client sends a request whose answer is large and reads no byte of it."""
    with Stage() as s:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(("127.0.0.1", s.server.port))
        with s.server.tls().wrap_socket(plain, server_hostname="localhost") as c:
            body = json.dumps({"model": "base", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "n": 8, "stream": True, "logprobs": 5}).encode()
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + s.keys["acme"].encode() +
                      b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            yield s, (), "waits? for a client that does not read", "culprit: a client of acme", "next: loractl requests"


def target():
    with Stage({"classes.interactive": "ttft:1h tpot:20us weight:4"}) as s:
        s.keep(1, "acme", tier="priority", pause=0.1)
        yield s, (), "interactive misses its targets now.*machine", "culprit: the target. One request alone takes", "next: raise tpot of classes.interactive above"


def machine():
    """The server's process is stopped again and again, as by a busy machine."""
    with Stage({"classes.interactive": "ttft:400ms tpot:400ms weight:4"}) as s:
        def stop():
            while not s.over.is_set():
                s.server.process.send_signal(signal.SIGSTOP)
                time.sleep(1.2)
                s.server.process.send_signal(signal.SIGCONT)
                s.over.wait(0.4)
        s.keep(3, "acme", tokens=4, prompt=200, tier="priority")
        s.threads.append(threading.Thread(target=stop))
        s.threads[-1].start()
        yield s, (), "interactive misses its targets now.*machine", "culprit: another program", r"next: look for busy processes .*\(top\)"


def device():
    """It fails every other second, and comes back."""
    with Stage({"classes.standard": "ttft:500ms tpot:1h weight:1"}, program="lorad_faulty") as s:
        def fail():
            stays, part = pathlib.Path(f"{s.fault}.stays"), s.fault.with_suffix(".part")
            while not s.over.is_set():
                stays.touch()
                part.write_text("3\n")
                os.replace(part, s.fault)
                time.sleep(1)
                stays.unlink()
                s.over.wait(1)
        s.keep(4, "acme")
        s.threads.append(threading.Thread(target=fail))
        s.threads[-1].start()
        yield s, (), "standard misses its targets now.*restart", r"culprit: the device .* failed \d+ times", "next: loractl events --level error"


def slow_disk():
    with Stage({"classes.standard": "ttft:300ms tpot:1h weight:1", "adapters.host_memory": 0}, program="lorad_faulty") as s:
        s.adapters("acme")
        s.slow.write_text("100")

        def ask():
            """One after the other: several at once would wait for each other's loading."""
            while not s.over.is_set():
                for name in demo_adapters():
                    s.server.admin("POST", f"/tenants/acme/adapters/{name}/evict", expect=(200, 202, 204, 409))
                    s.ask("acme", model=name, tokens=1)
        s.threads.append(threading.Thread(target=ask))
        s.threads[-1].start()
        yield s, (), "standard misses its targets now.*storage", "culprit: the disk of data.dir. .* acme/", "next: iostat"


def long_prompts():
    with Stage({"classes.standard": "ttft:10ms tpot:1h weight:1"}, tenants=("acme", "abuser")) as s:
        s.keep(1, "acme", tier="flex", pause=0.1)
        s.keep(1, "abuser", tokens=1, prompt=1000)
        yield s, (), "standard misses its targets now.*prompt", "culprit: prompts of abuser take longer", "next: loractl tenant set abuser --target standard="


INCIDENTS = {f.__name__: f for f in (flood, limits, thrash, disk, certificate, locked, unread, target, machine, device, slow_disk, long_prompts)}


def play(name):
    """Each answer that an incident must give, and how long it took."""
    seen, said = [], ""
    for stage, args, *parts in INCIDENTS[name]():
        begun, took = time.monotonic(), None
        while took is None and time.monotonic() - begun < 2 * BOUND_S:
            said = stage.why(*args)
            if all(re.search(p, said) for p in parts):
                took = round(time.monotonic() - begun, 1)
            time.sleep(0.2)
        seen.append(took)
        if took is None:
            break
    slowest = None if None in seen else max(seen)
    return {"incident": name, "s": slowest, "said": said, "ok": slowest is not None and slowest <= BOUND_S}


def healthy():
    """Adapters of three tenants, with the targets that a new server has."""
    reports = []
    with Stage({}, tenants=("acme", "globex", "initech"),
               initech={"requests_per_minute": 6000}) as s:
        s.adapters("acme")
        for i, name in enumerate(demo_adapters()[:3]):
            s.keep(1, "acme", model=name, tokens=20 + i, pause=0.3)
        s.keep(1, "globex", tier="priority", pause=0.2)
        s.keep(1, "initech", tier="flex", tokens=60, pause=0.5)
        begun = time.monotonic()
        while time.monotonic() - begun < HEALTHY_S:
            said = s.why()
            if said != "Nothing is wrong: all classes meet their targets.\n":
                reports.append([round(time.monotonic() - begun), said])
            time.sleep(2)
        events = [e["kind"] for e in s.server.stats("?tables=events")["events"] if e["level"] in ("warning", "error")]
        ended = s.server.stats()["totals"]["finished"]
    return {"incident": "healthy", "s": HEALTHY_S, "requests": ended, "reports": reports, "events": events, "ok": not reports and not events}


def main(*only):
    done = []
    for name in only or (*INCIDENTS, "healthy"):
        done.append(healthy() if name == "healthy" else play(name))
        print(json.dumps(done[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"incidents": done, "bound_s": BOUND_S, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
