"""books.py -- clients that keep books of their own, and faults of the database that lorad keeps its books in.

Used by test_spool.py, test_kill.py and by the bench cases disk-full, db-locked and kill-9.  Each client has a key of its own and
sends one request after another, so each usage row falls into the time of just one of its requests: what was answered
has its rows, with the client's counts; what was refused has none; what was cut short has at most its own.
"""
import contextlib
import http.client
import json
import random
import resource
import signal
import sqlite3
import threading
import time


class Request:
    def __init__(self, prompt, most, n):
        self.prompt, self.most, self.n = prompt, most, n
        self.begun, self.ended, self.seconds = time.time(), None, None
        self.status = self.code = self.output = None  # output: the last byte was seen, with this usage


class Client:
    def __init__(self, server, tenant, seed, name="c"):
        made = server.admin("POST", "/keys", {"tenant": tenant, "name": f"{name}{seed}", "scopes": ["inference"]})
        self.server, self.key, self.key_id = server, made["key"], int(made["id"])
        self.rng, self.requests, self.line = random.Random(seed), [], None

    def ask(self, most=8, n=None):
        """One completion, streamed or whole, with n choices (mostly one); False: the line broke off."""
        r = Request(self.rng.randint(1, 24), self.rng.randint(1, most), n or (2 if self.rng.random() < 0.1 else 1))
        stream = self.rng.random() < 0.5
        body = {"model": "base", "prompt": [self.rng.randrange(300, 900) for _ in range(r.prompt)], "n": r.n,
                "max_tokens": r.most, "ignore_eos": True, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        self.requests.append(r)
        start = time.perf_counter()
        try:
            self.line = self.line or self.server.connect(timeout=120)
            self.line.request("POST", "/v1/completions", json.dumps(body),
                              {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"})
            answer = self.line.getresponse()
            text = answer.read()
            self.note(r, answer.status, text, stream)
        except (OSError, http.client.HTTPException, EOFError, ValueError):
            self.hang_up()
        r.seconds, r.ended = time.perf_counter() - start, time.time()
        return r.status is not None

    def hang_up(self):
        if self.line:
            with contextlib.suppress(OSError):
                self.line.close()
        self.line = None

    @staticmethod
    def note(r, status, text, stream):
        if status != 200:
            r.code = json.loads(text)["error"]["code"]
        elif stream:
            frames = [f[6:] for f in text.split(b"\n\n") if f.startswith(b"data: ")]
            if not frames or frames[-1] != b"[DONE]":
                return
            usage = json.loads(frames[-2])["usage"]
        else:
            usage = json.loads(text)["usage"]
        if status == 200:
            assert usage["prompt_tokens"] == r.prompt, (usage, r.prompt)
            r.output = usage["completion_tokens"]
        r.status = status

    def answered(self, status=200):
        return [r for r in self.requests if r.status == status]

    def used(self):
        return sum(r.prompt + r.output for r in self.answered())


def together(clients, go_on, **more):
    """All clients at once, each as long as go_on(client) says so; their threads."""
    def work(c):
        while go_on(c):
            c.ask(**more)
    threads = [threading.Thread(target=work, args=(c,)) for c in clients]
    for t in threads:
        t.start()
    return threads


def ask_each(clients, count, **more):
    """So many requests in all; their seconds."""
    left, lock, before = [count], threading.Lock(), {c: len(c.requests) for c in clients}

    def go_on(_):
        with lock:
            left[0] -= 1
            return left[0] >= 0
    for t in together(clients, go_on, **more):
        t.join()
    return [r.seconds for c in clients for r in c.requests[before[c]:]]


def rows_of(server):
    """{key id: [(started, prompt, output, finish)]}, read by somebody else's hand; and the days' sum."""
    db = sqlite3.connect(f"file:{server.dir / 'lorad.db'}?mode=ro", uri=True, timeout=30)
    out = {}
    for key, started, prompt, output, finish in db.execute(
            "SELECT key_id, started_us, prompt_tokens, output_tokens, finish FROM usage ORDER BY started_us"):
        out.setdefault(key, []).append((started / 1e6, prompt, output, finish))
    days = db.execute("SELECT sum(n_requests), sum(prompt_tokens), sum(output_tokens) FROM usage_days").fetchone()
    db.close()
    return out, days


def compare(server, clients):
    """{"rows", "lost", "doubled", "wrong"}: 0 of the last three is what is asked."""
    rows, days = rows_of(server)
    seen = {"rows": sum(map(len, rows.values())), "answers": 0, "lost": 0, "doubled": 0, "wrong": 0}
    for c in clients:
        mine, at = rows.get(c.key_id, []), 0
        for r in c.requests:
            got = []
            while at < len(mine) and mine[at][0] <= r.ended:
                seen["wrong"] += mine[at][0] < r.begun - 2e-6  # before this request and after the last one
                got.append(mine[at])
                at += 1
            if r.output is not None:
                seen["answers"] += 1
                exact = (sum(g[1] for g in got), sum(g[2] for g in got)) == (r.prompt, r.output)
                seen["lost"] += max(r.n - len(got), 0)
                seen["doubled"] += max(len(got) - r.n, 0)
                seen["wrong"] += len(got) == r.n and not exact
            elif r.status is not None:
                seen["wrong"] += bool(got)  # refused
            else:
                seen["doubled"] += max(len(got) - r.n, 0)  # cut short
                seen["wrong"] += sum(g[1] for g in got) > r.prompt or any(g[2] > r.most for g in got)
        seen["wrong"] += len(mine) - at
    flat = [row for mine in rows.values() for row in mine]
    sums = (len(flat), sum(r[1] for r in flat), sum(r[2] for r in flat))
    seen["wrong"] += sums != tuple(x or 0 for x in days)
    return seen


# ---- the server's own view ------------------------------------------------------------------------------


def state(server):
    """The one state of the spool that /metrics says."""
    m = server.metrics()
    now = [s for s in ("ok", "behind", "full") if m[f'lorad_spool_state{{state="{s}"}}'] == 1]
    assert len(now) == 1, now
    return now[0], int(m["lorad_spool_used"]), int(m["lorad_spool_slots"])


def wait_for(server, wanted, seconds=120):
    """Seconds until the spool is in that state; "ok" means that nothing waits, too."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        now, used, _ = state(server)
        if now == wanted and (wanted != "ok" or used == 0):
            return time.monotonic() - start
        time.sleep(0.02)
    raise AssertionError(f"the spool is not {wanted}: {state(server)}")


def kill(server, clients, rounds, seed):
    """SIGKILL under load, at random moments; (seconds under load, the longest start)."""
    rng, load_s, start_s = random.Random(seed), 0, 0
    for _ in range(rounds):
        stop = threading.Event()
        begin = time.monotonic()
        threads = together(clients, lambda _: not stop.is_set(), most=24)
        time.sleep(0.2 + rng.random())
        server.stop(signal.SIGKILL)
        stop.set()
        load_s += time.monotonic() - begin
        for t in threads:
            t.join()
        for c in clients:
            c.hang_up()
        begin = time.monotonic()
        server.start()
        start_s = max(start_s, time.monotonic() - begin)
    wait_for(server, "ok")
    return load_s, start_s


# ---- faults ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(server):
    """Another process holds the write lock."""
    db = sqlite3.connect(server.dir / "lorad.db", isolation_level=None, timeout=30)
    db.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


@contextlib.contextmanager
def no_room(server):
    """No file of the server can be written beyond its first page."""
    pid, unlimited = server.process.pid, resource.RLIM_INFINITY
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, unlimited))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
