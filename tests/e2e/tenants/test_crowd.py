"""LORAD_CROWD requests at once (1,000, in the suite fewer) against each kind of limit: never one over; and nothing
stays reserved after cancels, errors and kill -9."""
import http.client
import json
import os
import queue
import signal
import socket
import sqlite3
import threading
import time

from harness import DEMO, PATIENCE, Server, demo_adapters, run

CROWD = int(os.environ.get("LORAD_CROWD", "1000"))
# Both clients and the server speak on this machine: room for all at once, and for the operator's look.
server = Server(settings={"server.max_streams": CROWD + 100, "server.max_connections": CROWD + 50,
                          "server.max_connections_per_ip": CROWD + 50,
                          "engine.max_queued": CROWD, "log.level": "warn"})
TOKENS = 8  # of a request; with the prompt of one token it takes 9 of a budget
BODY = {"model": "base", "prompt": [5], "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}


class Client(threading.Thread):
    """A kept-alive connection that does what it is told, when all are told."""

    def __init__(self):
        super().__init__(daemon=True)
        self.todo, self.done = queue.SimpleQueue(), queue.SimpleQueue()
        self.c = None

    def run(self):
        while True:
            job = self.todo.get()
            if job is None:
                return
            try:
                self.done.put(job(self))
            except (OSError, http.client.HTTPException, AssertionError, ValueError) as e:
                self.c = None
                self.done.put(e)

    def request(self, key, body):
        if self.c:
            try:
                return self.send(key, body)
            except (OSError, http.client.HTTPException):  # it idled for some seconds, and the server has closed it
                self.c.close()
        self.c = http.client.HTTPSConnection("localhost", server.port, timeout=60 * PATIENCE, context=tls)
        self.c.connect()
        return self.send(key, body)

    def send(self, key, body):
        self.c.request("POST", "/v1/completions", json.dumps(body),
                       {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        return self.c.getresponse()


def all_at_once(job, some=None):
    for c in crowd[:some]:
        c.todo.put(job)
    return [c.done.get() for c in crowd[:some]]


def connect_all():
    """TLS first, so that what follows is a crowd and no queue of handshakes."""
    def one(client):
        r = client.request("no-key", BODY)
        r.read()
        return r.status
    assert set(all_at_once(one)) == {401}


def asked(key, body):
    """(status, usage, seconds it took): of a plain request."""
    def one(client):
        if isinstance(key, str):
            r = client.request(key, body)
        else:  # (key, model) in turn
            who, model = key[crowd.index(client) % len(key)]
            r = client.request(who, {**body, "model": model})
        answer = json.loads(r.read())
        assert r.status in (200, 429), (r.status, answer)
        if r.status == 429:
            assert answer["error"]["code"] in ("rate_limit_exceeded", "insufficient_quota"), answer
        return r.status, answer.get("usage")
    start = time.monotonic()
    got = all_at_once(one)
    broken = [g for g in got if isinstance(g, Exception)]
    assert not broken, broken[:3]
    return got, time.monotonic() - start


def used(got):
    return sum(u["total_tokens"] for status, u in got if status == 200)


def whoami(key):
    return server.call("GET", "/v1/key", key=key).json["limits"]


def billed(key):
    """By the ledger."""
    r = server.call("GET", "/v1/usage?start_time=0&bucket_width=1d", key=key)
    assert r.status == 200, r
    return sum(x["input_tokens"] + x["output_tokens"] for b in r.json["data"] for x in b["results"])


def requests_per_minute():
    limit = 60
    for key in (server.tenant("rpm", limits={"requests_per_minute": limit}),
                server.key(server.tenant("rpm-key") and "rpm-key", requests_per_minute=limit)):
        got, took = asked(key, BODY)
        ok = sum(s == 200 for s, _ in got)
        assert limit <= ok <= limit + limit / 60 * took + 1, (ok, took)
        assert len(got) == CROWD


def tokens_per_minute():
    limit = 60 * (TOKENS + 1)
    key = server.tenant("tpm", limits={"tokens_per_minute": limit})
    got, took = asked(key, BODY)
    assert limit <= used(got) <= limit + limit / 60 * took + TOKENS + 1, (used(got), took)
    # What is reserved and not used comes back: far fewer tokens are made than are asked for.
    key = server.tenant("tpm-early", limits={"tokens_per_minute": limit})
    got, took = asked(key, {**BODY, "max_tokens": 100, "ignore_eos": False, "stop": ["e", "a", "o", " "]})
    assert used(got) <= limit + limit / 60 * took, (used(got), took)
    left = whoami(key)["tokens_per_minute"]["remaining"]
    assert left >= limit - used(got) - 1, (left, used(got))


def adapter(name, **limits):
    """Two keys of two tenants, and the shared adapter whose limits count both."""
    owner, guest = server.tenant(name), server.tenant(f"{name}-guest")
    server.upload(owner, "popular", DEMO / "adapters" / demo_adapters()[0])
    r = server.call("PATCH", "/v1/adapters/popular", {"sharing": [f"{name}-guest"]}, key=owner)
    assert r.status == 200, r
    set_to = server.admin("PATCH", f"/limits/{name}/popular", limits)
    assert all(set_to["limits"][k] == v for k, v in limits.items()), set_to
    return (owner, "popular"), (guest, f"{name}/popular")


def of_adapter(name):
    return server.admin("GET", f"/limits/{name}/popular")["used"]


def adapter_rates():
    limit = 60
    got, took = asked(adapter("ad-rpm", requests_per_minute=limit), BODY)
    ok = sum(s == 200 for s, _ in got)
    assert limit <= ok <= limit + limit / 60 * took + 1, (ok, took)
    limit = 60 * (TOKENS + 1)
    got, took = asked(adapter("ad-tpm", tokens_per_minute=limit), BODY)
    assert limit <= used(got) <= limit + limit / 60 * took + TOKENS + 1, (used(got), took)
    assert of_adapter("ad-tpm")["max_concurrent"] == 0


def budgets():
    for kind in ("tokens_per_day", "tokens_per_month"):
        limit = 50 * (TOKENS + 1) + 3
        key = server.tenant(kind.replace("_", "-"), limits={kind: limit})
        got, _ = asked(key, BODY)
        assert sum(s == 200 for s, _ in got) == 50 and used(got) == 50 * (TOKENS + 1), used(got)
        assert whoami(key)[kind]["remaining"] == 3
        while billed(key) != used(got):  # rows follow, where the database is slow
            time.sleep(0.05)


def concurrency():
    """By the ledger, a request holds its place at least from its first token to the time of its row."""
    limit = 5
    for name, limits, more in (("conc", {"max_concurrent": limit}, {}), ("conc-key", {}, {"max_concurrent": limit}),
                               ("conc-ad%", None, {"max_concurrent": limit})):
        if limits is None:  # of an adapter: both tenants' requests together
            key = adapter("conc-ad", **more)
        else:
            server.tenant(name, limits=limits)
            key = server.key(name, **more)
        got, _ = asked(key, {**BODY, "max_tokens": 60})
        answered = sum(s == 200 for s, _ in got)
        db = sqlite3.connect(f"file:{server.dir / 'lorad.db'}?mode=ro", uri=True)
        rows = []
        while len(rows) < answered:  # rows follow, where the database is slow
            rows = db.execute("SELECT started_us + (ttft_ms + 1) * 1000, ended_us FROM usage JOIN tenants ON "
                              "tenants.id = tenant_id WHERE tenants.name LIKE ? AND ttft_ms >= 0", [name]).fetchall()
        db.close()
        assert len(rows) == answered >= limit
        edges = sorted(e for a, b in rows if a < b for e in ((a, 1), (b, -1)))
        now = most = 0
        for _, step in edges:
            now += step
            most = max(most, now)
        assert 1 <= most <= limit, most


def queued():
    """One seat, so that all but one wait; the operator's picture of it must never show more than the limit."""
    limit, seen, stop = 7, [], threading.Event()
    with Server(settings={**server.settings, "engine.max_seqs": 1}) as small:
        key = small.tenant("queued", limits={"max_queued": limit})

        def look():
            while not stop.is_set():
                seen.append(max(t["queued"] for t in small.admin("GET", "/stats")["tenants"]))
        eye = threading.Thread(target=look)
        eye.start()
        c, statuses = [], []
        for _ in range(min(CROWD, 200)):  # connections to another server: fewer
            c.append(small.connect())
        for each in c:
            each.connect()
        for each in c:
            each.request("POST", "/v1/completions", json.dumps({**BODY, "max_tokens": 100}),
                         {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        for each in c:
            r = each.getresponse()
            statuses.append(r.status)
            r.read()
            each.close()
        stop.set()
        eye.join()
        assert max(seen) <= limit and statuses.count(200) >= limit, (max(seen), statuses.count(200))
        assert statuses.count(200) + statuses.count(429) == len(c)


def nothing_stays_reserved():
    """A third are cut in mid-stream, a third are wrong, a third are whole."""
    limited = adapter("leaks", max_concurrent=CROWD)
    server.admin("PATCH", "/limits/leaks", {"max_concurrent": CROWD, "tokens_per_day": 10**7})
    key, model = limited[0]
    plain = {**BODY, "model": model}

    def one(client):
        i = crowd.index(client)
        if i % 3 == 1:
            r = client.request(key, {**plain, "temperature": -1})
            r.read()
            return r.status
        r = client.request(key, {**plain, "stream": True, "max_tokens": 60})
        if i % 3 == 0:
            r.readline()
            client.c.sock.shutdown(socket.SHUT_RDWR)
            client.c.close()
            client.c = None
            return -1
        r.read()
        return r.status
    got = all_at_once(one)
    assert [g for g in got if g not in (200, 400, -1)] == [] and got.count(-1) > CROWD / 4, got
    end = time.monotonic() + 60 * PATIENCE
    while server.metrics()["lorad_requests_running"] or server.metrics()["lorad_requests_waiting"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    while whoami(key)["concurrent_requests"]["remaining"] != CROWD:
        assert time.monotonic() < end, whoami(key)
        time.sleep(0.05)
    spent = 10**7 - whoami(key)["tokens_per_day"]["remaining"]
    while billed(key) != spent:  # limits are charged at once, rows follow
        assert time.monotonic() < end, (billed(key), spent)
        time.sleep(0.05)
    assert of_adapter("leaks")["max_concurrent"] == 0, of_adapter("leaks")


def nothing_stays_reserved_after_a_kill():
    (key, model), _ = adapter("kill", max_concurrent=CROWD)
    server.admin("PATCH", "/limits/kill", {"max_concurrent": CROWD, "tokens_per_day": 10**7})
    n = min(CROWD, 300)
    first = threading.Semaphore(0)

    def one(client):
        r = client.request(key, {**BODY, "model": model, "stream": True, "max_tokens": 900})
        first.release()
        tokens = 0
        try:
            while line := r.readline():
                tokens += line.startswith(b"data: {")
        except (OSError, http.client.HTTPException):
            pass
        client.c = None
        return tokens
    killer = threading.Thread(target=lambda: ([first.acquire() for _ in range(n // 4)],
                                              server.process.send_signal(signal.SIGKILL)))
    killer.start()
    got = all_at_once(one, n)
    killer.join()
    server.stop()
    for c in crowd:
        c.c = None
    server.start()
    received = sum(g for g in got if isinstance(g, int))
    left = whoami(key)
    assert left["concurrent_requests"]["remaining"] == CROWD, left
    spent = 10**7 - left["tokens_per_day"]["remaining"]
    end = time.monotonic() + 60 * PATIENCE
    while billed(key) != spent:  # the spool is settled beside the first requests
        assert time.monotonic() < end, (billed(key), spent)
        time.sleep(0.05)
    assert received <= spent <= n * 901, (received, spent)
    kept = server.admin("GET", "/limits/kill/popular")
    assert kept["limits"]["max_concurrent"] == CROWD and kept["used"]["max_concurrent"] == 0, kept
    assert server.call("POST", "/v1/completions", {**BODY, "model": model}, key=key).status == 200


tls = None
crowd = []
with server:
    tls = server.tls()
    threading.stack_size(256 * 1024)
    crowd = [Client() for _ in range(CROWD)]
    for each in crowd:
        each.start()
    run([connect_all, requests_per_minute, tokens_per_minute, adapter_rates, budgets, concurrency, queued,
         nothing_stays_reserved, nothing_stays_reserved_after_a_kill])
