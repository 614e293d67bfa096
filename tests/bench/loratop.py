"""loratop.py WHAT -- the cases `loratop` and `stats-cost` of run.sh; prints one JSON object.

loratop     a made-up recording of 10,000 adapters, 1,000 tenants and 2,000 requests: how long a key
            takes to its screen (in memory), CPU at one update a second in a real terminal (tmux), and
            memory over 3,600 updates
stats-cost  a real server with 10,000 adapters and 1,000 tenants: its CPU with one stream of /stats at
            one update a second, less what it takes without
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from harness import BUILD, DEMO, Server  # noqa: E402
from process import cpu_s  # noqa: E402

ADAPTERS, TENANTS, REQUESTS, UPDATES = 10000, 1000, 2000, 120


def recording(path):
    """A first picture, then updates in which as much moves as on a busy server."""
    rng = random.Random(1)
    adapters = [{"id": str(10**6 + i), "tenant": f"tenant-{i % TENANTS:04}", "name": f"adapter-{i:05}",
                 "version": 1, "versions": 1, "rank": rng.choice([4, 8, 16, 64]), "bytes": 9 << 20,
                 "memory_bytes": 18 << 20, "tier": "disk", "hits": 0, "loads": 0, "last_used_s": 0}
                for i in range(ADAPTERS)]
    tenants = [{"id": str(10**5 + i), "name": f"tenant-{i:04}", "state": "active", "weight": 1,
                "tokens_per_day": 10**6, "prompt_tokens": 0, "output_tokens": 0, "served": 0.0,
                "met": 0, "missed": 0, "adapters": ADAPTERS // TENANTS} for i in range(TENANTS)]

    def request(i, now):
        return {"id": str(i), "tenant": f"tenant-{i % TENANTS:04}", "adapter": f"adapter-{i % ADAPTERS:05}@1",
                "class_name": "standard", "state": "waiting", "arrived_us": now, "due_us": now + 2 * 10**6,
                "prompt": 200, "computed": 0, "output": 0, "max_tokens": 500}

    number = REQUESTS
    live = [request(i + 1, 1) for i in range(REQUESTS)]
    with open(path, "w") as f:
        for k in range(UPDATES):
            now = (1000 + k) * 10**6
            gone, moved, used, payers = [], [], {}, {}
            for r in live[:64]:
                r["state"], r["output"], r["due_us"] = "decode", r["output"] + 20, now + 10**5
                moved.append(r)
            for _ in range(60):
                gone.append(live.pop(0)["id"])
                number += 1
                live.append(request(number, now))
                moved.append(live[-1])
            for _ in range(200):
                a = rng.choice(adapters)
                a["tier"], a["hits"], a["last_used_s"] = rng.choice(["host", "disk"]), a["hits"] + 3, now // 10**6
                used[a["id"]] = a
                t = rng.choice(tenants)
                t["output_tokens"] += 500
                t["served"] += 500
                payers[t["id"]] = t
            first = k == 0
            stats = {"object": "stats", "cursor": f"1-{k}", "reset": first, "more": False,
                     "server": {"version": "1", "model": "base", "access": "read", "healthy": True, "ready": True,
                                "at_us": now, "now_us": now, "uptime_s": k, "max_seqs": 64},
                     "totals": {"computed_tokens": 5000 * k, "made_tokens": 1300 * k, "steps": 50 * k, "rows": 6000 * k,
                                "busy_us": 900000 * k, "forward_us": 800000 * k, "http_2xx": 60 * k},
                     "rates": {}, "engine": {"running": 64, "waiting": REQUESTS - 64, "pages": 8192,
                                             "pages_used": rng.randint(4000, 8000)},
                     "classes": [{"name": c, "ttft_target_ms": 500, "tpot_target_ms": 50, "ttft_p99_ms": 300,
                                  "met": 60 * k, "missed": k} for c in ("interactive", "standard", "batch")],
                     "tenants": tenants if first else list(payers.values()),
                     "adapters": adapters if first else list(used.values()),
                     "requests": live if first else moved, "events": [],
                     "gone": {} if first else {"requests": gone}}
            f.write(json.dumps({"at_us": now, "server": "made-up", "stats": stats}) + "\n")


def loratop(folder):
    path = pathlib.Path(folder, "made-up.jsonl")
    recording(path)
    env = {**os.environ, "XDG_CONFIG_HOME": folder, "LC_ALL": "C.UTF-8"}

    def bench(*args):
        return json.loads(subprocess.run([BUILD / "bench_view", *args, path], env=env, check=True, capture_output=True,
                                         text=True).stdout)

    keys, hour = bench("60"), bench("-s", "adapters", "3600")
    sock = f"loratop-bench-{os.getpid()}"
    tmux = ["tmux", "-L", sock, "-f", "/dev/null"]
    seconds = 30
    try:
        subprocess.run([*tmux, "new-session", "-d", "-x", "160", "-y", "50", str(BUILD / "loratop"), "--replay",
                        str(path), "-s", "adapters"], env=env, check=True)
        pid = subprocess.run([*tmux, "display", "-p", "#{pane_pid}"], env=env, check=True, capture_output=True,
                             text=True).stdout.strip()
        while "adapter-" not in subprocess.run([*tmux, "capture-pane", "-p"], env=env, capture_output=True,
                                               text=True).stdout:
            time.sleep(0.05)
        start, t0 = cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        share = (cpu_s(pid) - start) / (time.monotonic() - t0)
    finally:
        subprocess.run([*tmux, "kill-server"], env=env, check=False)
    return {"key_p99_ms": keys["draw_p99_ms"], "key_max_ms": keys["draw_max_ms"], "key_mean_ms": keys["draw_mean_ms"],
            "apply_mean_ms": keys["apply_mean_ms"], "cpu_percent": 100 * share,
            "rss_kib_after_a_third": hour["rss_third_kib"], "rss_kib_after_all": hour["rss_kib"]}


def stats_cost(_folder):
    # 1,000 tenants with ten adapters each; the files are the same, so they are stored once
    with Server(settings={"log.level": "warn"}) as s:
        names, lock, errors = list(range(TENANTS)), threading.Lock(), []

        def make():
            try:
                while True:
                    with lock:
                        if not names:
                            return
                        i = names.pop()
                    key = s.tenant(f"tenant-{i:04}")
                    for k in range(ADAPTERS // TENANTS):
                        s.upload(key, f"adapter-{k}", DEMO / "adapters/shout")
            except Exception as e:  # the others end too, and the figure is not taken
                errors.append(e)

        threads = [threading.Thread(target=make) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not errors, errors[0]
        pid, seconds = s.process.pid, 30
        whole = s.admin("GET", "/stats")
        assert len(whole["adapters"]) == ADAPTERS and len(whole["tenants"]) == TENANTS
        # adapters come to rest (loads after the upload)
        while s.admin("GET", "/stats")["engine"]["adapters_loading"]:
            time.sleep(0.5)
        start, t0 = cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        idle = (cpu_s(pid) - start) / (time.monotonic() - t0)
        c = s.connect(s.admin_port, timeout=60)
        c.request("GET", "/admin/v1/stats?stream=1&interval_ms=1000",
                  headers={"Authorization": f"Bearer {s.admin_key}"})
        r = c.getresponse()
        events = [0]

        def read():
            while r.readline():
                events[0] += 1

        threading.Thread(target=read, daemon=True).start()
        while not events[0]:
            time.sleep(0.01)
        before, start, t0 = events[0], cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        busy = (cpu_s(pid) - start) / (time.monotonic() - t0)
        return {"cpu_percent": 100 * (busy - idle), "idle_percent": 100 * idle,
                "updates": (events[0] - before) / 2, "seconds": seconds}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="loratop-bench-") as d:
        print(json.dumps({"loratop": loratop, "stats-cost": stats_cost}[sys.argv[1]](d)))
        sys.stdout.flush()
