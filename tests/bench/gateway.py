"""gateway.py WHAT -- the cases of run.sh about the gateway itself; prints one JSON object.

overhead      a null model (two layers of 64, one token): time to the answer at 200 requests/s over kept-alive TLS, with the
              data in memory and on the disk
token-cpu     the server's CPU for a streamed token, less what it takes for one that is not streamed
streams-2000  2,000 concurrent streams, four times: all whole, and what memory they leave behind
idle-sockets  time to first token at 40 requests/s, alone and, by turns, beside 10,000 idle connections of forty addresses
              (bench_idle: a third raw TCP, a third within the handshake, a third after one response), then of one address
slowloris     inter-token latency of eight streams, alone and, by turns, beside 1,000 sockets that send a byte every five
              seconds (bench_slow: half never finish TLS, half never a header)
"""
import concurrent.futures
import json
import os
import pathlib
import resource
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from harness import BUILD, DEMO, Server  # noqa: E402
from process import cpu_s, rss_kib  # noqa: E402

NULL = ROOT / "build/bench/null"


def null_model():
    if not (NULL / "config.json").exists():
        subprocess.run([sys.executable, ROOT / "tests/tools/make_random_model.py", "tiny", NULL], check=True,
                       stdout=subprocess.DEVNULL)
    return NULL


def load(server, key, trace, concurrency, vocab=1000, seed=1, gather=False):
    """bench_load on lines of "arrival_ms adapter prompt output"; its JSON."""
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as d:
        pathlib.Path(d, "key").write_text(key + "\n")
        pathlib.Path(d, "trace").write_text("".join(line + "\n" for line in trace))
        out = subprocess.run([BUILD / "bench_load", "--url", f"https://localhost:{server.port}", "--key-file",
                              f"{d}/key", "--ca", server.ca, "--trace", f"{d}/trace", "--concurrency",
                              str(concurrency), "--vocab", str(vocab), "--seed", str(seed), "--gather", "yes" if gather else "no"],
                             check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def sync_p99_ms(n=2000, every=0.005):
    """What the disk alone takes to make 4 KiB durable for each of n requests; those that come while it does wait for the
    next time, together."""
    waited = []
    with tempfile.TemporaryFile() as f:
        begin = time.perf_counter()
        while len(waited) < n:
            time.sleep(max(0, begin + len(waited) * every - time.perf_counter()))
            together = min(n, int((time.perf_counter() - begin) / every) + 1) - len(waited)
            f.seek(len(waited) % 1000 * 4096)
            f.write(b"x" * 4096)
            f.flush()
            os.fdatasync(f.fileno())
            end = time.perf_counter()
            waited += [end - begin - (len(waited) + i) * every for i in range(together)]
    return sorted(waited)[n * 99 // 100] * 1000


def overhead():
    """A request's usage is on the disk before its last byte: so once with the data in memory, where that costs nothing, and
    once on the disk.  All connections are there before the first request."""
    def turns(directory):
        with Server(model=null_model(), settings={"log.level": "warn"}, directory=directory) as s:
            key = s.tenant("t")
            load(s, key, ["0 -1 1 1"] * 64, 16)  # warm
            return [load(s, key, [f"{i * 5} -1 1 1" for i in range(2000)], 16, seed=turn, gather=True) for turn in range(3)]

    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gateway-bench-") as d:
        memory = turns(d)
    disk = turns(None)
    return {"p50_ms": statistics.median(r["ttft_p50_ms"] for r in memory),
            "p99_ms": statistics.median(r["ttft_p99_ms"] for r in memory),
            "all_p99_ms": [r["ttft_p99_ms"] for r in memory],
            "disk_p99_ms": statistics.median(r["ttft_p99_ms"] for r in disk),
            "all_disk_p99_ms": [r["ttft_p99_ms"] for r in disk], "sync_p99_ms": statistics.median(sync_p99_ms() for _ in range(3)),
            "errors": sum(r["errors"] for r in memory + disk)}


def token_cpu():
    tokens, clients, rounds = 400, 8, 8
    with Server(model=null_model(), settings={"log.level": "warn"}) as s:
        key = s.tenant("t")
        connections = [s.connect() for _ in range(clients)]

        def ask(job):
            c, stream = job
            c.request("POST", "/v1/completions", json.dumps(
                {"model": "base", "prompt": [5], "max_tokens": tokens, "ignore_eos": True, "stream": stream}),
                {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
            r = c.getresponse()
            frames = r.read().count(b"\ndata: ")
            assert r.status == 200 and (not stream or frames > 0), (r.status, frames)
            return frames

        def turn(stream):
            start = cpu_s(s.process.pid)
            with concurrent.futures.ThreadPoolExecutor(clients) as pool:
                frames = sum(sum(pool.map(ask, [(c, stream) for c in connections])) for _ in range(rounds))
            return (cpu_s(s.process.pid) - start) / (tokens * clients * rounds) * 1e6, frames
        turn(False)
        pairs = [(turn(True), turn(False)) for _ in range(3)]
    return {"added_us": statistics.median(a[0] - b[0] for a, b in pairs),
            "streamed_us": [a[0] for a, b in pairs], "plain_us": [b[0] for a, b in pairs],
            "frames_per_token": pairs[0][0][1] / (tokens * clients * rounds)}


def streams_2000():
    """The last round beside idle connections.  No goal of latency keeps requests waiting: the figure is how many run."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    n, addresses = 2000, 40
    n_idle = 8000 if files >= 24000 else 4500  # of 20,000, which is the hard limit in many containers
    with Server(settings={"log.level": "warn", "server.max_streams": n, "server.max_connections": n + n_idle + 200,
                          "server.max_connections_per_ip": n + n_idle // addresses + 50, "engine.max_queued": 2 * n,
                          "class.standard.tpot": "60s",
                          "engine.max_seqs": n, "engine.max_rows": n + 500, "engine.kv_memory": "2GiB",
                          "engine.prefix_cache": "no"}) as s:  # it would fill the arena bit by bit, as it should
        key = s.tenant("t")
        before, runs, rss, most = rss_kib(s.process.pid), [], [], [0]
        stop = threading.Event()

        def watch():
            while not stop.wait(0.2):
                most[0] = max(most[0], s.metrics()["lorad_requests_running"])
        eye = threading.Thread(target=watch)
        eye.start()
        for turn in range(4):
            runs.append(load(s, key, ["0 -1 16 128"] * n, n, 1700, turn, gather=True))
            rss.append(rss_kib(s.process.pid))
        alone, most[0] = most[0], 0
        hoard = Hoard(s, n_idle, 1, addresses, n_idle * 95 // 100)
        runs.append(load(s, key, ["0 -1 16 128"] * n, n, 1700, 4, gather=True))
        idle = hoard.end()
        stop.set()
        eye.join()
    return {"most_beside_idle": most[0], "idle": idle["open"] / n_idle, "idle_asked": n_idle, "errors": sum(r["errors"] for r in runs), "most_running": alone, "rss_before_kib": before, "rss_kib": rss,
            "tokens_per_s": [r["tokens_per_s"] for r in runs], "ttft_p99_ms": [r["ttft_p99_ms"] for r in runs]}


def slowloris():
    """Short turns with and without the attack, which comes first by turns: what else the machine does goes by both alike."""
    n, turns, pairs, attacks, server_cores = 1000, 9, [], [], []
    with Server(settings={"log.level": "warn", "server.max_streams": n + 200, "server.max_connections": n + 100,
                          "server.max_connections_per_ip": n + 100}) as s:
        key = s.tenant("t")
        trace = ["0 -1 16 600"] * 16
        load(s, key, trace[:8], 8, 1700)

        def alone(turn):
            return load(s, key, trace, 8, 1700, 10 + turn)

        def beside(turn):
            villain = subprocess.Popen([BUILD / "bench_slow", str(s.port), str(n)], stdout=subprocess.PIPE, text=True)
            time.sleep(4)  # until all are there
            got = load(s, key, trace, 8, 1700, 20 + turn)
            if turn % 3 == 0:  # the attack alone
                since = cpu_s(s.process.pid), time.monotonic()
                time.sleep(5)
                server_cores.append((cpu_s(s.process.pid) - since[0]) / (time.monotonic() - since[1]))
            villain.terminate()
            attacks.append(json.loads(villain.communicate()[0]))
            time.sleep(0.5)
            return got
        for turn in range(turns):
            both = {f: f(turn) for f in ((alone, beside) if turn % 2 else (beside, alone))}
            pairs.append((both[alone], both[beside]))
    ratios = sorted(b["itl_p99_ms"] / a["itl_p99_ms"] for a, b in pairs)
    return {"alone_p99_ms": [a["itl_p99_ms"] for a, b in pairs], "beside_p99_ms": [b["itl_p99_ms"] for a, b in pairs],
            "ratio": statistics.median(ratios), "ratios": [round(r, 2) for r in ratios],
            "errors": sum(a["errors"] + b["errors"] for a, b in pairs), "thrown_out": sum(a["thrown_out"] for a in attacks),
            "attacker_cores": statistics.median(a["cpu_s"] / a["seconds"] for a in attacks),
            "server_cores": statistics.median(server_cores), "held": [a["open"] for a in attacks],
            "bytes": sum(a["bytes"] for a in attacks)}


class Hoard:
    """bench_idle, until its `least` connections are idle (or 20 s are over)."""

    def __init__(self, server, n, first, addresses, least):
        self.process = subprocess.Popen([BUILD / "bench_idle", str(server.port), str(n), str(first), str(addresses)],
                                        stdout=subprocess.PIPE, text=True)
        end = time.monotonic() + 20
        time.sleep(0.5)
        while self.count() < least and time.monotonic() < end:
            time.sleep(0.2)

    def count(self):
        self.process.send_signal(signal.SIGUSR1)
        return int(self.process.stdout.readline())

    def end(self):
        open_then = self.count()
        self.process.terminate()
        return {**json.loads(self.process.communicate()[0].splitlines()[-1]), "open": open_then}


def healthz_ms(server, n=40):
    took = []
    for _ in range(n):
        since = time.perf_counter()
        assert server.call("GET", "/healthz", port=server.metrics_port).status == 200
        took.append((time.perf_counter() - since) * 1000)
    return sorted(took)[-1 - n // 40]


def idle_sockets():
    """Short turns, as in slowloris.  127.0.0.1, from which the load comes, has some of the idle connections, too.

    The attack takes processor time from whatever runs on the same machine: what it does to this server's clients while it
    holds the connections of another server is the control."""
    n, addresses, turns = 10000, 40, 5
    settings = {"log.level": "warn", "server.max_connections": n + 2000, "server.max_connections_per_ip": n // addresses + 50}
    with Server(settings=settings) as s, Server(settings=settings) as other:
        key = s.tenant("t")
        trace = [f"{i * 25} -1 16 8" for i in range(320)]
        load(s, key, ["0 -1 16 64"] * 800, 200, 1700, gather=True)  # every worker has its stack
        before, rss, health, hoards = rss_kib(s.process.pid), [], [], {"forty": [], "one": []}

        def alone(turn):
            return load(s, key, trace, 8, 1700, 10 + turn, gather=True)

        def beside(turn, kind, held_by):
            hoard = Hoard(held_by, n, 1, addresses, n * 95 // 100) if kind == "forty" else Hoard(held_by, n, 2, 1, n // addresses)
            got = load(s, key, trace, 8, 1700, 20 + turn, gather=True)
            if held_by is s:
                if kind == "forty":
                    rss.append(rss_kib(s.process.pid))
                    health.append(healthz_ms(s))
                since = cpu_s(s.process.pid), time.monotonic()
                time.sleep(2)
                cores = (cpu_s(s.process.pid) - since[0]) / (time.monotonic() - since[1])
                hoards[kind].append({**hoard.end(), "server_cores": cores})
            else:
                hoard.end()
            time.sleep(1)
            return got
        trios = {"forty": [], "one": []}
        for kind in trios:
            for turn in range(turns):
                three = [("alone", lambda: alone(turn)), ("here", lambda: beside(turn, kind, s)), ("there", lambda: beside(turn, kind, other))]
                trios[kind].append({name: f() for name, f in three[turn % 3:] + three[:turn % 3]})
        threads = len(list(pathlib.Path(f"/proc/{s.process.pid}/task").iterdir()))

    def ratios(kind, over):
        return sorted(t["here"]["ttft_p99_ms"] / t[over]["ttft_p99_ms"] for t in trios[kind])
    every = [r for v in trios.values() for t in v for r in t.values()]
    return {"ratio": statistics.median(ratios("forty", "alone")), "one_ratio": statistics.median(ratios("one", "alone")),
            "control": statistics.median(ratios("forty", "there")), "one_control": statistics.median(ratios("one", "there")),
            "p99_ms": {k: {name: [t[name]["ttft_p99_ms"] for t in v] for name in v[0]} for k, v in trios.items()},
            "errors": sum(r["errors"] for r in every), "held": min(h["open"] for h in hoards["forty"]),
            "one_held": max(h["open"] for h in hoards["one"]), "one_refused": sum(h["refused"] for h in hoards["one"]),
            "mib": (max(rss) - before) / 1024, "rss_before_mib": before / 1024, "healthz_ms": max(health), "threads": threads, "hoards": hoards}


if __name__ == "__main__":
    print(json.dumps({"overhead": overhead, "token-cpu": token_cpu, "streams-2000": streams_2000,
                      "slowloris": slowloris, "idle-sockets": idle_sockets}[sys.argv[1]]()))
