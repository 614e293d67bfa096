"""Are broken promises given their cause?  causes.py MODEL_DIR

A server of its own for each scene, in which one thing goes wrong and is known: a burst on few seats, a disk on which
each read is slow, adapters that are cold all at once, a process that is stopped for as long as a promise.  What the log's
`missed` says of each request of the class interactive is compared with what was done.

Others may use the machine, too, and then requests miss by themselves.  So targets come from the same requests without the
fault, on the scene's own server just before; and a round with the fault counts only if all promises were kept in a round
without it right before and right after.  One line of JSON."""
import collections
import concurrent.futures
import json
import math
import os
import pathlib
import random
import signal
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import Server, until  # noqa: E402

LEAST, MOST = 40, 60  # misses, or a scene shows nothing; rounds
rng = random.Random(1)


class Scene:
    def __init__(self, model, settings=None):
        self.adapters = pathlib.Path(model).resolve() / "adapters"
        self.names = sorted(p.name for p in self.adapters.iterdir() if p.is_dir())[:8]
        self.ttft_ms = self.tpot_ms = 3_600_000
        self.server = Server(model=pathlib.Path(model).resolve(), program="lorad_faulty", settings={
            "log.format": "json", "adapters.roots": pathlib.Path(model).resolve(), "adapters.host_memory": 0,
            "classes.interactive": "ttft:1h tpot:1h weight:4", **(settings or {})})
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

    def line(self):
        c = self.server.connect()
        c.connect()
        return c

    def ask(self, model, n, n_prompt=16, tier="priority", line=None):
        """The answer's id."""
        body = {"model": model, "max_tokens": n, "ignore_eos": True, "temperature": 0, "service_tier": tier,
                "prompt": [rng.randrange(1000, 20000) for _ in range(n_prompt)]}
        c = line or self.line()
        c.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"})
        r = c.getresponse()
        said = r.read()
        c.close()
        assert r.status == 200, said
        return r.headers["x-request-id"]

    def ask_all(self, many, ahead=False):
        """At once; with their connections made `ahead`, or else the first ones' steps stand back behind the others' handshakes."""
        lines = [self.line() if ahead else None for _ in many]
        with concurrent.futures.ThreadPoolExecutor(len(many)) as pool:
            return [f.result() for f in [pool.submit(self.ask, *one, line=line) for one, line in zip(many, lines)]]

    def evict(self, names):
        for name in names:
            self.server.admin("POST", f"/tenants/t/adapters/{name}/evict", expect=(200, 202, 204))

    def lines_of(self, ids):
        """Of the log; a line is written just after its answer."""
        def all_there():
            texts = self.server.log_path.read_text().splitlines()
            lines = {x["id"]: x for x in (json.loads(t) for t in texts if '"path":"/v1/completions"' in t)}
            return [lines[i] for i in ids] if set(ids) <= set(lines) else None
        return until(all_there)

    def causes_of(self, ids):
        return collections.Counter(x["missed"] for x in self.lines_of(ids) if "missed" in x)

    def promise(self, control):
        """Three times the first token, twice each further one, of the worst of each round without the fault."""
        rounds = [self.lines_of(control()) for _ in range(5)]
        worst = {k: statistics.median(max(float(x.get(k, 0)) for x in r) for r in rounds) for k in ("ttft_ms", "tpot_ms")}
        self.ttft_ms, self.tpot_ms = math.ceil(3 * worst["ttft_ms"]), max(1, math.ceil(2 * worst["tpot_ms"]))
        self.server.admin("PATCH", "/tenants/t", {"targets": {"interactive": {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms}}})

    def judge(self, control, fault, *right):
        """Both make a round's requests and return their ids."""
        self.promise(control)
        calm, causes, rounds, counted = not self.causes_of(control()), collections.Counter(), 0, 0
        while sum(causes.values()) < LEAST and rounds < MOST:
            seen, before = self.causes_of(fault()), calm
            calm, rounds = not self.causes_of(control()), rounds + 1
            if before and calm:
                causes, counted = causes + seen, counted + 1
        return {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms, "rounds": rounds, "counted": counted,
                "missed": sum(causes.values()), "right": sum(causes[c] for c in right), "causes": dict(causes)}


def burst(model):
    with Scene(model, {"engine.max_seqs": 4}) as s:
        def fault():
            return s.ask_all([("base", 8)] * 40, ahead=True)
        return s.judge(lambda: [s.ask("base", 8) for _ in range(4)], fault, "queue", "decode_steps")


def slow_disk(model):
    with Scene(model) as s:
        def fault():
            s.evict(s.names[:4])
            s.slow.write_text(str(max(40, s.ttft_ms)))
            ids = [s.ask(name, 1) for name in s.names[:4]]
            s.slow.unlink()
            return ids
        return s.judge(lambda: [s.ask(name, 1) for name in s.names[:4]], fault, "storage")


def cold(model):
    with Scene(model) as s:
        def control():
            return s.ask_all([(name, 1, 1) for name in s.names])

        def fault():
            s.evict(s.names)
            return control()
        return s.judge(control, fault, "adapter_load")


def stopped(model):
    """Each stream is stopped once, at any time of what it takes alone."""
    with Scene(model) as s, concurrent.futures.ThreadPoolExecutor(1) as pool:
        def fault():
            asked = pool.submit(s.ask, "base", 8)
            time.sleep(rng.uniform(0, s.ttft_ms / 3 + 7 * s.tpot_ms / 2) / 1e3)
            s.server.process.send_signal(signal.SIGSTOP)
            time.sleep(max(s.ttft_ms, 8 * s.tpot_ms, 200) / 1e3)
            s.server.process.send_signal(signal.SIGCONT)
            return [asked.result()]
        return s.judge(lambda: [s.ask("base", 8)], fault, "machine")


def main(model, *only):
    scenes = {}
    for f in (burst, slow_disk, cold, stopped):
        if not only or f.__name__ in only:
            scenes[f.__name__] = f(model)
            print(json.dumps({f.__name__: scenes[f.__name__]}), file=sys.stderr, flush=True)
    print(json.dumps({"least": LEAST, "scenes": scenes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
