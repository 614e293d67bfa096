"""Are broken promises given their cause?  causes.py MODEL_DIR

A server of its own for each scene, in which one thing goes wrong and is known: a burst on few seats, a disk on which
each read is slow, adapters that are cold all at once, a process that is stopped for 200 ms.  Targets come from what a
request takes alone on a server without any of that.  What the log's `missed` says of each request of the class
interactive is compared with what was done.  One line of JSON."""
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import Server  # noqa: E402

LEAST = 20  # misses, or a scene shows nothing
STOP_S, SLOW_MS = 0.2, 40
rng = random.Random(1)


class Scene:
    def __init__(self, model, targets, settings=None):
        self.adapters = pathlib.Path(model).resolve() / "adapters"
        self.names = sorted(p.name for p in self.adapters.iterdir() if p.is_dir())[:8]
        ttft_us, tpot_us = targets or (60_000_000, 60_000_000)
        self.server = Server(model=pathlib.Path(model).resolve(), program="lorad_faulty", settings={
            "log.format": "json", "adapters.roots": pathlib.Path(model).resolve(), "adapters.host_memory": 0,
            "classes.interactive": f"ttft:{ttft_us}us tpot:{tpot_us}us weight:4", **(settings or {})})
        self.slow = self.server.dir.with_suffix(".slow")
        os.environ["LORAD_TEST_SLOW"] = str(self.slow)

    def __enter__(self):
        self.server.__enter__()
        self.key = self.server.tenant("t")
        self.server.admin("POST", "/adapters/register", {"path": str(self.adapters), "tenant": "t"})
        # The cost model is taught what prompts, streams and several of them take; in a class that keeps its promise.
        for n in (8, 64, 200, 16):
            self.ask("base", 8, n, tier="flex")
        self.ask_all([("base", 8, 16, "flex")] * 4)
        for name in self.names:
            self.ask(name, 2, tier="flex")
        return self

    def __exit__(self, *exc):
        self.slow.unlink(missing_ok=True)
        self.server.__exit__(*exc)

    def ask(self, model, n, n_prompt=16, tier="priority"):
        body = {"model": model, "max_tokens": n, "ignore_eos": True, "temperature": 0, "service_tier": tier,
                "prompt": [rng.randrange(1000, 20000) for _ in range(n_prompt)]}
        r = self.server.call("POST", "/v1/completions", body, key=self.key)
        assert r.status == 200, r

    def ask_all(self, many):
        with concurrent.futures.ThreadPoolExecutor(len(many)) as pool:
            for f in [pool.submit(self.ask, *one) for one in many]:
                f.result()

    def evict(self, names):
        for name in names:
            self.server.admin("POST", f"/tenants/t/adapters/{name}/evict", expect=(200, 202, 204))

    def lines(self):
        texts = self.server.log_path.read_text().splitlines()
        return [x for x in (json.loads(t) for t in texts if '"path":"/v1/completions"' in t) if x["class"] == "interactive"]

    def judge(self, *right):
        causes = collections.Counter(x["missed"] for x in self.lines() if "missed" in x)
        return {"asked": len(self.lines()), "missed": sum(causes.values()), "right": sum(causes[c] for c in right),
                "causes": dict(causes)}


def calibrate(model):
    """Targets in microseconds: three times the first token, twice each further one, of what runs alone."""
    with Scene(model, None) as s:
        for name in s.names * 2:
            s.ask(name, 16)
        x = s.lines()[len(s.names):]
        return (int(3000 * statistics.median(float(l["ttft_ms"]) for l in x)),
                int(2000 * statistics.median(float(l["tpot_ms"]) for l in x)))


def burst(model, targets):
    with Scene(model, targets, {"engine.max_seqs": 4}) as s:
        s.ask_all([("base", 8)] * 100)
        return s.judge("queue", "decode_steps")


def slow_disk(model, targets):
    with Scene(model, targets) as s:
        s.slow.write_text(str(SLOW_MS))
        for _ in range(3):
            for name in s.names:
                s.evict([name])
                s.ask(name, 1)
        return s.judge("storage")


def cold(model, targets):
    with Scene(model, targets) as s:
        for _ in range(8):
            s.evict(s.names)
            s.ask_all([(name, 1) for name in s.names])
        return s.judge("adapter_load")


def stopped(model, targets):
    """Each stream is stopped once, at any time of what it takes alone."""
    with Scene(model, targets) as s:
        alone_s = (targets[0] / 3 + 7 * targets[1] / 2) / 1e6
        for _ in range(60):
            t = threading.Thread(target=s.ask, args=("base", 8))
            t.start()
            time.sleep(rng.uniform(0, alone_s))
            s.server.process.send_signal(signal.SIGSTOP)
            time.sleep(STOP_S)
            s.server.process.send_signal(signal.SIGCONT)
            t.join()
        return s.judge("machine")


def main(model):
    targets = calibrate(model)
    scenes = {f.__name__: f(model, targets) for f in (burst, slow_disk, cold, stopped)}
    print(json.dumps({"ttft_target_ms": targets[0] / 1e3, "tpot_target_ms": targets[1] / 1e3, "least": LEAST, "scenes": scenes}))


if __name__ == "__main__":
    main(sys.argv[1])
