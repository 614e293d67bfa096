"""From breach to cause: breach.py MODEL_DIR [INCIDENT ...]

One server, a steady stream of interactive requests, and incidents one after the other, each begun when no class is broken.
Of each: how long until `loractl why` and loratop's verdict both name its cause, and when it began by the history, read
after it is over and, where LORAD_LATER says so many seconds (1800), once more that long after the last.  One line of JSON for
each, then one of all.

A cause is named where it is the first, the one of most misses.  Others may use the machine, too: `machine` is passed over,
but in its own incident.  The class's own targets are far above what the machine takes undisturbed; the tenant whose
adapters are cold has a target between what the same requests took warm and cold just before, and on a slow disk three times
what they took warm; a long prompt takes about a second, of which its tenant's target has 400 ms; an abuser's answer takes half a
second, whatever the machine."""
import concurrent.futures
import itertools
import json
import math
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import BUILD, Server, until  # noqa: E402

LASTS_S, CALM_S = 25, 120  # at most: an incident; until all classes keep their promises again
rng = random.Random(1)


class Stage:
    def __init__(self, model):
        self.model = pathlib.Path(model).resolve()
        self.names = sorted(p.name for p in (self.model / "adapters").iterdir() if p.is_dir())[:8]
        self.server = Server(model=self.model, program="lorad_faulty", settings={
            "log.level": "warn", "adapters.roots": self.model, "adapters.host_memory": 0, "engine.max_seqs": 4,
            "classes.interactive": "ttft:1s tpot:400ms weight:4", "classes.standard": "ttft:1s tpot:400ms weight:2",
            "classes.batch": "ttft:1h tpot:1h weight:1"})
        self.fault, self.slow = self.server.dir.with_suffix(".fault"), self.server.dir.with_suffix(".slow")
        os.environ["LORAD_TEST_FAULT"], os.environ["LORAD_TEST_SLOW"] = str(self.fault), str(self.slow)
        self.over, self.pool, self.keys, self.played = threading.Event(), concurrent.futures.ThreadPoolExecutor(48), {}, []

    def __enter__(self):
        self.server.__enter__()
        for name in ("acme", "cold", "abuser"):
            self.keys[name] = self.server.tenant(name)
        self.server.admin("POST", "/adapters/register", {"path": str(self.model / "adapters"), "tenant": "cold"})
        for n in (8, 64, 400):
            self.ask("acme", n=4, n_prompt=n, tier="flex")
        self.admin_key = self.server.dir.with_suffix(".adminkey")
        self.admin_key.write_text(self.server.admin_key)
        self.admin_key.chmod(0o600)
        self.steady = threading.Thread(target=self.keep_asking)
        self.steady.start()
        return self

    def __exit__(self, *exc):
        self.over.set()
        self.steady.join()
        self.pool.shutdown()
        self.slow.unlink(missing_ok=True)
        self.server.__exit__(*exc)

    def ask(self, tenant, model="base", n=4, n_prompt=16, tier="priority"):
        """Whatever comes of it."""
        body = {"model": model, "max_tokens": n, "ignore_eos": True, "temperature": 0, "service_tier": tier,
                "prompt": [rng.randrange(1000, 20000) for _ in range(n_prompt)]}
        try:
            return self.server.call("POST", "/v1/completions", body, key=self.keys[tenant]).status
        except OSError:
            return 0

    def all_names(self, tier="priority"):
        list(self.pool.map(lambda name: self.ask("cold", name, 1, 1, tier), self.names))

    def measure(self):
        """What the machine takes just now, whoever else uses it, in a class that keeps its promise."""
        for _ in range(2):
            self.all_names("flex")  # loaded, and then warm
        begun = time.monotonic()
        for _ in range(3):
            self.all_names("flex")
        self.all_ms = 1000 * (time.monotonic() - begun) / 3
        self.evict()
        begun = time.monotonic()
        self.all_names("flex")
        self.cold_ms = 1000 * (time.monotonic() - begun)
        begun = time.monotonic()
        for name in self.names:
            self.ask("cold", name, 1, 1, "flex")
        self.one_ms = 1000 * (time.monotonic() - begun) / len(self.names)
        begun = time.monotonic()
        self.ask("acme", n=1, n_prompt=300, tier="flex")
        self.long = max(100, min(2000, int(300 / (time.monotonic() - begun))))  # tokens: some second
        begun = time.monotonic()
        self.ask("acme", n=16, tier="flex")
        self.answer = max(8, min(200, int(16 * 0.5 / (time.monotonic() - begun))))  # tokens: half a second

    def promise(self, ms, tenant="cold"):
        self.server.admin("PATCH", f"/tenants/{tenant}", {"targets": {"interactive": {"ttft_ms": math.ceil(ms)}}})

    def evict(self):
        for name in self.names:
            self.server.admin("POST", f"/tenants/cold/adapters/{name}/evict", expect=(200, 202, 204))

    def keep_asking(self):
        while not self.over.is_set():
            self.ask("acme")
            time.sleep(0.1)

    def ctl(self, *args):
        return subprocess.run([BUILD / "loractl", "--admin-url", f"https://127.0.0.1:{self.server.admin_port}", "--ca", self.server.ca,
                               "--admin-key-file", self.admin_key, *args], capture_output=True, text=True).stdout

    def top(self, screen):
        return subprocess.run([BUILD / "loratop", "--once", "-s", screen, "--width", "200"], capture_output=True, text=True, env={
            **os.environ, "LORAD_ADMIN_URL": f"https://127.0.0.1:{self.server.admin_port}", "LORAD_CA": self.server.ca,
            "LORAD_ADMIN_KEY": self.server.admin_key, "HOME": str(self.server.dir)}).stdout

    def calm(self):
        return all(not c["verdict"] for c in self.server.admin("GET", "/stats?tables=")["classes"])


# ---- incidents: each runs until `stop` is set ------------------------------------------------

def repeat(stage, stop, how_many, *ask):
    def one():
        while not stop.is_set():
            stage.ask(*ask)
    list(stage.pool.map(lambda _: one(), range(how_many)))


def burst(stage, stop):
    """Six for a seat: the last waits for three seconds, of which its class has one."""
    repeat(stage, stop, 24, "abuser", "base", stage.answer)


def cold(stage, stop):
    stage.promise(math.sqrt(stage.all_ms * stage.cold_ms))  # warm keeps it, and cold does not
    while not stop.is_set():
        stage.evict()
        stage.all_names()


def slow_disk(stage, stop):
    """One adapter after the other; each takes some forty reads."""
    stage.promise(3 * stage.one_ms)
    stage.slow.write_text(str(max(20, math.ceil(stage.one_ms / 2))))
    while not stop.is_set():
        stage.evict()
        for name in itertools.takewhile(lambda _: not stop.is_set(), stage.names):
            stage.ask("cold", name, 1, 1)
    stage.slow.unlink()


def share(stage, stop):
    """Of one tenant, interactive takes most of the seats from standard."""
    stage.server.admin("PATCH", "/config", {"class.interactive.weight": 16})
    others = stage.pool.submit(repeat, stage, stop, 8, "acme", "base", 4, 16, "default")
    repeat(stage, stop, 16, "acme", "base", 16)
    others.result()
    stage.server.admin("PATCH", "/config", {"class.interactive.weight": None})


def long_prompts(stage, stop):
    stage.promise(400, "abuser")
    repeat(stage, stop, 1, "abuser", "base", 1, stage.long)


def restart(stage, stop):
    """The device fails every few seconds, under four streams."""
    others = stage.pool.submit(repeat, stage, stop, 3, "acme", "base", 16)
    stays, part = pathlib.Path(str(stage.fault) + ".stays"), stage.fault.with_suffix(".part")
    while not stop.is_set():
        stays.touch()
        part.write_text("3\n")
        os.replace(part, stage.fault)
        time.sleep(2)
        stays.unlink()
        stop.wait(2)
    others.result()


def machine(stage, stop):
    """Whoever is answered when it stops misses: four tokens take more than three times 400 ms then."""
    others = stage.pool.submit(repeat, stage, stop, 3, "acme")
    while not stop.is_set():
        stage.server.process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        stage.server.process.send_signal(signal.SIGCONT)
        stop.wait(0.3)
    others.result()


INCIDENTS = {"burst": (burst, {"queue"}), "cold": (cold, {"adapter_load"}), "slow_disk": (slow_disk, {"storage"}),
             "share": (share, {"queue", "decode_steps"}), "long_prompts": (long_prompts, {"prompt"}), "restart": (restart, {"restart"}),
             "machine": (machine, {"machine"})}


def named(text):
    """The first cause of a verdict, the one of most misses; and the first but the machine."""
    found = re.search(r"missed \(([a-z_:0-9,]+)\)", text)
    causes = [part.split(":")[0] for part in found.group(1).split(",")] if found else []
    return set(causes[:1] + [c for c in causes if c != "machine"][:1])


def began(stage, whose, right, wall):
    """By how many seconds the history's first misses of these causes are off; None: it has none."""
    rows = stage.server.admin("GET", f"/history?by=class&name={whose}&start={int(wall) - 20}&limit=1000")["data"]
    with_cause = [r["start"] for r in rows if r["seconds"] == 10 and any(c in r["causes"] for c in right)]
    return min((s + (0 if wall < s else min(wall - s, 10)) - wall for s in with_cause), key=abs, default=None)


def play(stage, name):
    fault, right = INCIDENTS[name]
    whose = "standard" if name == "share" else "interactive"
    stage.measure()
    until(stage.calm, CALM_S)
    stop, begun, wall = threading.Event(), time.monotonic(), time.time()
    running = stage.pool.submit(fault, stage, stop)
    seen = {}
    while time.monotonic() - begun < LASTS_S and len(seen) < 2:
        why = json.loads(stage.ctl("why", whose, "--json") or "{}").get("verdict", "")
        top = stage.top("slo")
        top = next((line for line in top.split(whose + ":")[1:] if "broken" in line), "").split("TTFT99")[0]
        for who, text in (("loractl", why), ("loratop", top)):
            if who not in seen and named(text) & right:
                seen[who] = time.monotonic() - begun
        last = why
        time.sleep(0.2)
    stop.set()
    running.result()
    # The steady stream is of this class; of another there may be no request any more.
    until(lambda: stage.server.admin("GET", f"/history?by=class&name=interactive&start={int(wall) + 10}")["data"], 30)
    stage.played.append((name, whose, right, wall))
    off = began(stage, whose, right, wall)
    return {"incident": name, "named_s": {k: round(v, 1) for k, v in seen.items()}, "began_off_s": off and round(off, 1),
            "verdict": last, "ok": len(seen) == 2 and max(seen.values()) <= 15 and off is not None and abs(off) <= 10}


def certificate(stage):
    """One that ends in five days takes the place of the present one."""
    tls = stage.server.dir / "tls"
    subprocess.run(["openssl", "req", "-x509", "-key", tls / "key.pem", "-out", tls / "cert.pem", "-subj", "/CN=localhost", "-days", "5",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    stage.server.process.send_signal(signal.SIGHUP)
    begun, wall, seen = time.monotonic(), time.time(), {}
    while time.monotonic() - begun < LASTS_S and len(seen) < 2:
        if "loractl" not in seen and "The certificate ends in" in stage.ctl("why"):
            seen["loractl"] = time.monotonic() - begun
        if "loratop" not in seen and "certificate ends in" in stage.top("overview"):
            seen["loratop"] = time.monotonic() - begun
        time.sleep(0.2)
    told = [e["time_us"] / 1e6 for e in stage.server.admin("GET", "/stats?tables=tenants,events")["events"] if e["kind"] == "certificate.ends"]
    off = told[-1] - wall if told else None
    return {"incident": "certificate", "named_s": {k: round(v, 1) for k, v in seen.items()}, "began_off_s": off and round(off, 1),
            "ok": len(seen) == 2 and max(seen.values()) <= 15 and off is not None and abs(off) <= 10}


def main(model, *only):
    done, later = [], int(os.environ.get("LORAD_LATER", 0))
    with Stage(model) as stage:
        for name in only or itertools.chain(INCIDENTS, ["certificate"]):
            begun = time.monotonic()
            done.append(certificate(stage) if name == "certificate" else play(stage, name))
            print(json.dumps({**done[-1], "took_s": round(time.monotonic() - begun)}), file=sys.stderr, flush=True)
        time.sleep(later)
        for name, *what in stage.played if later else ():
            one, off = next(d for d in done if d["incident"] == name), began(stage, *what)
            one |= {"later_off_s": off and round(off, 1), "ok": one["ok"] and off is not None and abs(off) <= 10}
    print(json.dumps({"incidents": done, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
