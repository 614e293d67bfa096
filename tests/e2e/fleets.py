"""fleets.py -- three lorads that share a PostgreSQL, each over a wire of its own; what is done to them, and what must hold then."""
import http.client
import random
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

from harness import BUILD, DEMO, Server, until
from postgres import Pooler, Postgres, Wire


def lorad(*args):
    return subprocess.run([BUILD / "lorad", *map(str, args)], capture_output=True, text=True)


class Fleet:
    """with Fleet() as f: f.nodes[0] made it, the others joined.  `shared`: options of nodes of a fleet alone."""

    def __init__(self, n=3, settings=None, shared=None, pooled=False):
        self.shared = shared or {}
        self.postgres = Postgres()
        self.pooler = Pooler(self.postgres) if pooled else None
        self.wires = [Wire((self.pooler or self.postgres).port) for _ in range(n)]
        self.nodes = [Server(settings={**(settings or {}), "server.node": str(i)}) for i in range(n)]

    def url(self, i):
        return f"postgres://lorad@127.0.0.1:{self.wires[i].port}/fleet"

    def __enter__(self):
        try:
            first = self.nodes[0]
            first.start()
            first.stop()
            made = lorad("migrate", "-c", first.dir / "lorad.conf", "--to", self.url(0))
            assert made.returncode == 0, made
            for i, node in enumerate(self.nodes):
                if i > 0:
                    made = lorad("init", "--dir", node.dir, "--model", DEMO / "base", "--join", self.url(i),
                                 "--set", f"server.node={i}")
                    assert made.returncode == 0, made
                    (node.dir / "admin.key").write_text(first.admin_key)
                node.settings.update({**self.shared, "storage.database": self.url(i)})
                node.start()
        except BaseException:
            self.__exit__(True)
            raise
        return self

    def __exit__(self, *exc):
        for node in self.nodes:
            if exc[0] and node.log_path.exists():
                print(f"---- {node.dir}\n" + "".join(node.log_path.read_text().splitlines(True)[-25:]))
            try:
                node.stop()
            finally:
                shutil.rmtree(node.dir, ignore_errors=True)
                node.log_path.unlink(missing_ok=True)
        if self.pooler:
            self.pooler.close()
        self.postgres.close()

    def tenant(self, name, **limits):
        """Its key, once all nodes take it."""
        first = self.nodes[0]  # after an outage a session may have to be made anew
        until(lambda: first.call("POST", "/admin/v1/tenants", {"name": name, "limits": limits}, key=first.admin_key,
                                 port=first.admin_port).status in (201, 409))
        key = first.key(name)
        for node in self.nodes:
            until(lambda: node.call("GET", "/v1/models", key=key).status == 200)
        return key

    def usage(self, node, tenant):
        """What /admin/v1/usage says of the fleet, in requests and tokens."""
        page = node.admin("GET", f"/usage?tenant={tenant}")
        rows = [r for b in page["data"] for r in b["results"]]
        return sum(r["num_model_requests"] for r in rows), sum(r["input_tokens"] + r["output_tokens"] for r in rows)

    def books_agree(self):
        """Each row of a node stands in PostgreSQL once, and no other does."""
        mine = {}
        for node in self.nodes:
            until(lambda: node.metrics()["lorad_spool_used"] == 0)
            until(lambda: rows_of(node, "SELECT count(*) FROM usage_unshipped") == [(0,)])
            mine.update({r[0]: r for r in rows_of(node, "SELECT request_id, prompt_tokens, output_tokens FROM usage")})
        text = self.postgres.sql("SELECT request_id, prompt_tokens, output_tokens FROM lorad_usage")
        there = {int(r[0]): tuple(map(int, r)) for r in (line.split("|") for line in text.split())}
        assert there == mine, (len(there), len(mine), set(there.items()) ^ set(mine.items()))
        return len(mine)

    def granted(self, tenant):
        """Of the day's budget, to all nodes."""
        id_ = int(self.nodes[0].admin("GET", f"/tenants/{tenant}")["id"])
        return int(self.postgres.sql(f"SELECT max(s) FROM (SELECT sum(greatest(granted, shipped)) AS s FROM lorad_budgets"
                                     f" WHERE id = {id_} AND period > 0 GROUP BY period) AS x"))

    # -- what happens ------------------------------------------------------------------

    def kill_node(self, rng):
        node = rng.choice(self.nodes)
        node.stop(signal.SIGKILL)
        node.start()

    def kill_database(self, _):
        self.postgres.kill()
        self.postgres.start()

    def cut_wire(self, rng):
        wire = rng.choice(self.wires)
        wire.cut()
        time.sleep(rng.uniform(0.05, 0.6))
        wire.mend()

    def hold_wire(self, rng):
        """Bytes wait: what is asked is read late, what is answered comes late."""
        wire = rng.choice(self.wires)
        wire.hold()
        time.sleep(rng.uniform(0.05, 0.6))
        wire.mend()

    def nothing(self, _):
        time.sleep(0.1)


def rows_of(node, text):
    db = sqlite3.connect(f"file:{node.dir}/lorad.db?mode=ro", uri=True)
    try:
        return db.execute(text).fetchall()
    finally:
        db.close()


class Load:
    """Threads that ask nodes with one key until they are told that the budget is spent."""

    def __init__(self, fleet, key, workers, nodes=None, tokens=6):
        self.key, self.tokens = key, tokens
        self.answers, self.end = [], threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(n,)) for n in (nodes or fleet.nodes) for _ in range(workers)]
        for t in self.threads:
            t.start()

    def work(self, node):
        while not self.end.is_set():
            try:
                r = node.call("POST", "/v1/completions", {"model": "base", "prompt": "What is 7 plus 5?", "temperature": 0,
                                                          "max_tokens": self.tokens}, key=self.key)
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
                continue
            self.answers.append((time.monotonic(), r.status))
            if r.status == 429 and r.json["error"]["type"] == "insufficient_quota":
                return
            if r.status != 200:
                assert r.status in (429, 503), r
                time.sleep(0.05)

    def join(self):
        for t in self.threads:
            t.join()

    def stop(self):
        self.end.set()
        self.join()


def budget_trial(fleet, name, happen, rng, limit=1500, workers=4, nodes=None):
    """What of a day's budget was used by all nodes; never more than it."""
    key = fleet.tenant(name, tokens_per_day=limit)
    load = Load(fleet, key, workers, nodes)
    until(lambda: len(load.answers) > 2 * workers)
    happen(rng)
    load.join()
    for node in fleet.nodes:
        until(lambda: node.metrics()["lorad_fleet_away_seconds"] == 0)
    fleet.books_agree()
    for node in fleet.nodes:
        requests, used = fleet.usage(node, name)
        assert 0 < used <= fleet.granted(name) <= limit, (name, happen.__name__, used, limit)
    return used / limit


def trials(fleet, n, seed=1, limit=700):
    """n of them, kinds in turns: which share of each budget was used."""
    rng = random.Random(seed)
    kinds = [fleet.kill_node, fleet.kill_database, fleet.cut_wire, fleet.hold_wire]
    return [budget_trial(fleet, f"trial-{seed}-{i}", kinds[i % 4], rng, limit) for i in range(n)]
