"""Ten thousand adapters on one node: many.py registered | tiers [REQUESTS [PAIRS]] | arena

All work on one data directory with 10,000 distinct adapters of the demo model (rank 8, 16, 32, 64 in turn, on
q_proj and v_proj as PEFT does by itself) that were registered where they lie; it is made once under
build/bench/many (2.4 GB, minutes).  Lines of JSON.

registered  start-up, memory and listing with the 10,000 and with none, and a trace over 2,000 of them.
tiers       a power-law trace over 2,000 of them with room for 200 on the device and 600 in host memory, and
            the same with all 2,000 resident, in turns.  First each of the 2,000 is asked for once, the
            popular ones last, then the trace runs once with other draws; neither is counted.  Which of
            the two comes first changes from pair to pair: a machine that grows busier favours neither.
arena       64 MiB for KV pages and adapters: contexts of 1,000 tokens, then 1,000 adapters, then the contexts
            again; the most of the arena that each phase held, seen on /metrics, and what is held at the end.
"""
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from harness import BUILD, DEMO, Server  # noqa: E402

ALL, HIT, DEVICE, HOST = 10000, 2000, 200, 600
WHERE = ROOT / "build/bench/many"
CHUNK = 73728  # a KV page of the demo model: 32 tokens


def register(server, tree):
    server.settings["adapters.roots"] = tree
    with server:
        if not (server.dir / "key").exists():
            server.admin("POST", "/tenants", {"name": "t"})
            (server.dir / "key").write_text(server.key("t"))
        r = server.call("POST", "/admin/v1/adapters/register", {"path": str(tree), "tenant": "t"},
                        key=server.admin_key, port=server.admin_port, timeout=3600)
        assert r.status == 200 and r.json["refused"] == 0, r
    return r.json


def prepared():
    """A server (not started) that has all of them."""
    WHERE.mkdir(parents=True, exist_ok=True)
    if not (WHERE / "done").exists():
        shutil.rmtree(WHERE / "tree", ignore_errors=True)
        subprocess.run([sys.executable, ROOT / "tests/tools/make_adapter_tree.py", DEMO / "base", WHERE / "tree",
                        str(ALL)], check=True)
        r = register(Server(directory=WHERE / "data"), WHERE / "tree")
        assert r["registered"] + r["unchanged"] == ALL, r
        (WHERE / "done").write_text("")
    return Server(directory=WHERE / "data")


def memory_kib(server):
    for line in pathlib.Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon")


def load(server, trace, concurrency=8):
    argv = [BUILD / "bench_load", "--url", server.url.removesuffix("/v1"), "--key-file", server.dir / "key", "--ca", server.ca,
            "--trace", trace, "--concurrency", str(concurrency), "--vocab", "1700", "--adapter-prefix", "a"]
    r = subprocess.run(argv, check=False, capture_output=True, text=True)
    sys.stderr.write(r.stderr)
    return json.loads(r.stdout)


def powerlaw(path, requests, seed):
    argv = [sys.executable, ROOT / "tests/bench/workloads.py", "powerlaw", "--requests", str(requests), "--adapters", str(HIT),
            "--alpha", "1.0", "--lo", "8", "--hi", "48", "--seed", str(seed)]
    pathlib.Path(path).write_text(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    return path


# ---- registered ----------------------------------------------------------------------------------

def page_times(server, afters, n=60):
    """Milliseconds (the lower quartile) of a page of 100 after each of these names, in turns on one connection."""
    key = (server.dir / "key").read_text().split()[0]
    c, took = server.connect(), {a: [] for a in afters}
    for _ in range(n):
        for after in afters:
            t0 = time.monotonic()
            c.request("GET", f"/v1/adapters?limit=100&after={after}", headers={"Authorization": f"Bearer {key}"})
            r = c.getresponse()
            body = json.loads(r.read())
            took[after].append(1000 * (time.monotonic() - t0))
            assert r.status == 200 and len(body["data"]) == 100, (after, len(body["data"]))
    c.close()
    return [round(statistics.quantiles(v, n=4)[0], 3) for v in took.values()]


def look(server):
    """What people do who look: every page, and the operator's picture.  Without adapters as many calls: what
    connections and threads take is no adapter's."""
    key, after, seen = (server.dir / "key").read_text().split()[0], "", 0
    for _ in range(ALL // 100 + 1):
        r = server.call("GET", f"/v1/adapters?limit=100&after={after}", key=key).json
        seen += len(r["data"])
        after = r.get("next") or "~"
    server.admin("GET", "/stats")
    time.sleep(1.5)
    server.admin("GET", "/stats")
    return seen


def start_ms(server):
    t0 = time.monotonic()
    server.start()
    return 1000 * (time.monotonic() - t0)


def registered():
    full, none_dir = prepared(), pathlib.Path(tempfile.mkdtemp(prefix="lorad-bench-"))
    none = Server(directory=none_dir / "data")
    with none:  # init is no part of a start
        pass
    starts, memory, looked = {"full": [], "none": []}, {}, {}
    for _ in range(5):
        for name, server in (("full", full), ("none", none)):
            starts[name].append(start_ms(server))
            memory[name] = memory_kib(server)
            server.stop()
    small = none_dir / "tree"
    for i in range(200):
        shutil.copytree(WHERE / f"tree/a{i}", small / f"a{i}")
    none.settings["adapters.roots"] = small
    with none, tempfile.TemporaryDirectory() as tmp:
        none.admin("POST", "/tenants", {"name": "t"})
        (none.dir / "key").write_text(none.key("t"))
        assert look(none) == 0
        looked["none"] = memory_kib(none)
        none.admin("POST", "/adapters/register", {"path": str(small), "tenant": "t"})
        full.start()
        seen = look(full)
        looked["full"] = memory_kib(full)
        few, = page_times(none, [""])
        pages = page_times(full, ["", "a50", "a989"])
        out = load(full, powerlaw(f"{tmp}/trace", 1000, 1))
        full.stop()
    shutil.rmtree(none_dir)
    mid = {k: round(statistics.median(v)) for k, v in starts.items()}
    print(json.dumps({
        "registered": ALL, "listed": seen, "start_ms": mid,
        "bytes_each": round(1024 * (memory["full"] - memory["none"]) / ALL),
        "bytes_each_looked_at": round(1024 * (looked["full"] - looked["none"]) / ALL),
        "page_ms_of_200": few, "page_ms": pages, "errors": out["errors"], "trace": out}))


# ---- tiers ------------------------------------------------------------------------------------------

def tiers(requests, pairs):
    server = prepared()
    sizes = [int(n) for n in (WHERE / "tree/sizes.txt").read_text().split()][:HIT]
    # A piece of a chunk more for each: what cuts leave over.
    device = sum(n // CHUNK + 1 for n in sizes) * CHUNK * DEVICE // HIT
    host = sum(sizes) * HOST // HIT
    with tempfile.TemporaryDirectory() as tmp:
        before, trace = powerlaw(f"{tmp}/before", requests, 1), powerlaw(f"{tmp}/trace", requests, 2)
        once = pathlib.Path(f"{tmp}/once")
        once.write_text("".join(f"0 {i} 8 1\n" for i in reversed(range(HIT))))
        kinds = [("tiers", {"engine.kv_memory": "2GiB", "adapters.device_memory": device, "adapters.host_memory": host}),
                 ("resident", {"engine.kv_memory": "4GiB", "adapters.host_memory": 0})]
        for i in range(pairs):
            for kind, settings in kinds if i % 2 == 0 else kinds[::-1]:
                server.settings = settings
                with server:
                    load(server, once)
                    load(server, before)
                    m0 = server.metrics()
                    out = load(server, trace)
                    m1 = server.metrics()
                out = {"kind": kind, "pair": i, **out}
                for name in ("lorad_adapter_loads_total", 'lorad_adapter_misses_total{tier="host"}',
                             'lorad_adapter_stage_seconds_total{stage="read"}', 'lorad_adapter_stage_seconds_total{stage="pack"}',
                             "lorad_adapter_load_seconds_total", "lorad_adapter_waits_total", "lorad_steps_total",
                             "lorad_adapters_resident"):
                    out[name.removeprefix("lorad_")] = round(m1[name] - (m0[name] if "total" in name else 0), 3)
                print(json.dumps(out), flush=True)


# ---- arena ------------------------------------------------------------------------------------------

def held(server):
    """Chunks of the arena by what has them."""
    m = server.metrics()
    return {use: int(m[f'lorad_arena_chunks{{use="{use}"}}']) for use in ("free", "kv", "kv_cached", "adapters", "adapters_idle")}


def arena():
    server = prepared()
    server.settings = {"engine.kv_memory": "64MiB", "adapters.host_memory": "1GiB"}
    out = {}
    with tempfile.TemporaryDirectory() as tmp, server:
        phases = {"contexts": "".join("0 -1 900 100\n" for _ in range(64)),
                  "adapters": "".join(f"0 {i} 8 4\n" for i in range(1000))}
        for name, trace in phases.items():
            pathlib.Path(f"{tmp}/{name}").write_text(trace)
        for phase in ("contexts", "adapters", "contexts again"):
            done, pages, adapters = threading.Event(), [], []

            def watch():
                while not done.is_set():
                    h = held(server)
                    pages.append(h["kv"] / sum(h.values()))
                    adapters.append((h["adapters"] + h["adapters_idle"]) / sum(h.values()))
                    time.sleep(0.01)
            watcher = threading.Thread(target=watch)
            watcher.start()
            r = load(server, f"{tmp}/{phase.split()[0]}", concurrency=40)
            done.set()
            watcher.join()
            out[phase] = {"pages": round(max(pages), 4), "adapters": round(max(adapters), 4), "errors": r["errors"],
                          "tokens_per_s": r["tokens_per_s"]}
        time.sleep(1)  # the last row's settlement
        end = held(server)
    out["end"] = {**end, "chunks": (64 << 20) // CHUNK}
    print(json.dumps(out))


if __name__ == "__main__":
    if sys.argv[1] == "registered":
        registered()
    elif sys.argv[1] == "arena":
        arena()
    else:
        tiers(int(sys.argv[2]) if len(sys.argv) > 2 else 3000, int(sys.argv[3]) if len(sys.argv) > 3 else 3)
