"""fleets.py -- three lorads that share a PostgreSQL, each over a wire of its own; what is done to them, and what must hold then."""
import collections
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

from harness import BUILD, DEMO, Server, free_port, until
from postgres import CLOCK, Clock, Pooler, Postgres, Wire, can_be_stepped


def lorad(*args):
    return subprocess.run([BUILD / "lorad", *map(str, args)], capture_output=True, text=True)


class Fleet:
    """with Fleet() as f: f.nodes[0] made it, the others joined.  `shared`: options of nodes of a fleet alone.
    `each`: those of one node, by its number. `program`: what nodes[0] runs. `clocks`: those of the nodes can be stepped."""

    def __init__(self, n=3, settings=None, shared=None, each=None, pooled=False, program="lorad", clocks=False, model=DEMO / "base"):
        self.model = model
        self.shared, self.each = shared or {}, each or {}
        self.postgres = Postgres()
        self.pooler = Pooler(self.postgres) if pooled else None
        self.wires = [Wire((self.pooler or self.postgres).port) for _ in range(n)]
        self.nodes = [Server(model=model, settings={**(settings or {}), "server.node": str(i)}, program="lorad" if i else program) for i in range(n)]
        for node in self.nodes:
            node.plain_port, node.steps = free_port(), 0  # steps: odd while its clock is wrong
            node.settings["server.plain_listen"] = f"127.0.0.1:{node.plain_port}"
            node.clock = Clock(node.dir.with_suffix(".clock"))
            node.env = node.clock.env if clocks and can_be_stepped(BUILD / node.program) else {}
        self.pace, self.pages = (self.nodes[0].dir.with_suffix(end) for end in (".pace", ".pages"))

    def url(self, i):
        return f"postgres://lorad@127.0.0.1:{self.wires[i].port}/fleet"

    def __enter__(self):
        os.environ["LORAD_TEST_PACE"], os.environ["LORAD_TEST_PAGES"] = str(self.pace), str(self.pages)
        try:
            first = self.nodes[0]
            first.start()
            first.stop()
            made = lorad("migrate", "-c", first.dir / "lorad.conf", "--to", self.url(0))
            assert made.returncode == 0, made
            for i, node in enumerate(self.nodes):
                if i > 0:
                    made = lorad("init", "--dir", node.dir, "--model", self.model, "--join", self.url(i),
                                 "--set", f"server.node={i}")
                    assert made.returncode == 0, made
                    (node.dir / "admin.key").write_text(first.admin_key)
                node.settings.update({**self.shared, "storage.database": self.url(i),
                                      "server.fleet_address": f"https://127.0.0.1:{node.port}", **self.each.get(i, {})})
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
                node.clock.path.unlink(missing_ok=True)
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

    @contextlib.contextmanager
    def slow_steps(self, ms=50):
        """Of nodes[0], where it is lorad_faulty: what runs there does not end before it is looked at."""
        part = self.pace.with_suffix(".part")
        part.write_text(f"{ms}\n")
        part.replace(self.pace)
        try:
            yield
        finally:
            self.pace.unlink()

    @contextlib.contextmanager
    def bad_pages(self, what):
        """Of nodes[0], where it is lorad_faulty: "damage", "type", "die" (faulty.c)."""
        self.pages.write_text(what)
        try:
            yield
        finally:
            self.pages.unlink()

    def of_others(self, *names):
        """Sums of metrics over the nodes that take what nodes[0] gives."""
        seen = [n.metrics() for n in self.nodes[1:] if n.process.poll() is None]
        return [sum(m[name] for m in seen) for name in names]

    def brings_pages(self, mode):
        """server.fleet_kv of those."""
        for node in self.nodes[1:]:
            node.admin("PATCH", "/config", {"server.fleet_kv": mode})

    def drains(self):
        """nodes[0]; once its engine knows that others are to go on with what runs."""
        first = self.nodes[0]
        said = "other servers are asked to go on"
        before = first.log_path.read_text().count(said)
        first.admin("POST", "/drain", expect=(202,))
        until(lambda: first.log_path.read_text().count(said) > before)

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

    def held(self, budgets):
        """({name: what was used of its budget today}, what does not hold). Of each day of each budget: what the ledgers have is what was
        shipped, at most what was granted, and that at most the limit; each answer has its row, and no row is there without a request."""
        for node in self.nodes:
            until(lambda: node.metrics()["lorad_fleet_away_seconds"] == 0)
        self.books_agree()
        ids = {name: id_ for id_, name in rows_of(self.nodes[0], "SELECT id, name FROM tenants")}
        used, rows, there, today = collections.Counter(), collections.Counter(), {}, int(time.time()) // 86400
        for node in self.nodes:
            for id_, day, tokens, n in rows_of(node, "SELECT tenant_id, started_us / 86400000000, sum(prompt_tokens + output_tokens), count(*)"
                                                     " FROM usage GROUP BY 1, 2"):
                used[id_, day] += tokens
                rows[id_] += n
        for line in self.postgres.sql("SELECT id, period, sum(greatest(granted, shipped)), sum(shipped) FROM lorad_budgets"
                                      " WHERE period > 0 GROUP BY 1, 2").split():
            id_, day, granted, shipped = map(int, line.split("|"))
            there[id_, day] = granted, shipped
        wrong = []
        for b in budgets:
            days = {day for id_, day in used.keys() | there.keys() if id_ == ids[b.name]}
            for day in days:
                tokens, (granted, shipped) = used[ids[b.name], day], there.get((ids[b.name], day), (0, 0))
                if shipped != tokens or (b.limit and not tokens <= granted <= b.limit):
                    wrong.append((b.name, f"day {day - today:+d}", f"used {tokens}, shipped {shipped}, granted {granted} of {b.limit}"))
            n, tokens = rows[ids[b.name]], sum(used[ids[b.name], day] for day in days)
            if not b.answers <= n <= b.answers + b.broken or b.tokens > tokens:
                wrong.append((b.name, f"{b.answers} answers of {b.tokens} tokens, {b.broken} without one; {n} rows of {tokens}"))
        return {b.name: used[ids[b.name], today] for b in budgets}, wrong

    # -- what happens ------------------------------------------------------------------

    @property
    def events(self):
        return ([self.kill_node, self.kill_database, self.kill_in_database, self.cut_wire, self.hold_wire, self.kill_behind_a_cut]
                + [self.step_database] * bool(CLOCK) + [self.step_node] * bool(self.nodes[0].env))

    def kill_node(self, rng, asking=None, node=None):
        node = node or rng.choice(self.nodes)
        node.stop(signal.SIGKILL)
        node.start()

    def kill_database(self, *_):
        self.postgres.kill()
        self.postgres.start()

    def kill_in_database(self, rng, asking=None):
        """One of the postmaster's children, upon which it ends all others."""
        pid = (self.postgres.dir / "postmaster.pid").read_text().split()[0]
        children = open(f"/proc/{pid}/task/{pid}/children").read().split()
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(int(rng.choice(children)), signal.SIGKILL)
        self.postgres.start()

    def cut_wire(self, rng, asking=None):
        wire = rng.choice(self.wires)
        wire.cut()
        time.sleep(rng.uniform(0.05, 0.4))
        wire.mend()

    def hold_wire(self, rng, asking=None):
        """Bytes wait: what is asked is read late, what is answered comes late."""
        wire = rng.choice(self.wires)
        wire.hold()
        time.sleep(rng.uniform(0.05, 0.4))
        wire.mend()

    def kill_behind_a_cut(self, rng, asking=None):
        """Two at once."""
        alone, other = rng.sample(range(len(self.nodes)), 2)
        self.wires[alone].cut()
        self.kill_node(rng, node=self.nodes[other])
        self.wires[alone].mend()

    def step_database(self, rng, asking=None):
        """Back and forth by up to a minute: buckets may be full too early, budgets of a day may not."""
        clock = self.postgres.clock
        clock.step(rng.choice((-1, 1)) * rng.randrange(20, 60) if not clock.ahead else -clock.ahead)

    def step_node(self, rng, asking):
        """By seconds, or into another day, which has a budget of its own; and back, perhaps in another process."""
        node = rng.choice(self.nodes)
        seconds, seen = rng.choice((0, -1, 1, 3)) * 86400 + rng.randrange(-60, 60), asking.answers[node]
        node.steps += 1
        node.clock.step(seconds)
        asking.until(lambda: asking.answers[node] > seen + 30)
        if rng.random() < 0.3:
            self.kill_node(rng, node=node)
        node.clock.step(-seconds)
        node.steps += 1


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


class Stream(threading.Thread):
    """An answer that is read as it comes: what was said of each choice, its end, and the usage."""

    def __init__(self, node, key, path, body, leaves=False):
        super().__init__()
        self.begun, self.error, self.usage = threading.Event(), None, None
        self.said, self.finish, self.leaves, self.leave = {}, {}, leaves, threading.Event()
        self.ask = (node, key, path, body)
        self.start()

    def run(self):
        node, key, path, body = self.ask
        connection = node.connect(timeout=120)
        try:
            connection.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
            r = connection.getresponse()
            self.read(r) if r.status == 200 else self.fail(r.read())
        except (OSError, http.client.HTTPException) as e:
            self.fail(repr(e))
        finally:
            self.begun.set()
            connection.close()

    def fail(self, why):
        self.error = why

    def read(self, r):
        for line in r:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                self.fail(event)
            self.usage = event.get("usage") or self.usage
            for c in event.get("choices", []):
                said = self.said.setdefault(c["index"], ["", []])
                said[0] += c.get("text") or c.get("delta", {}).get("content") or ""
                said[1] += (c.get("logprobs") or {}).get("token_logprobs", [])
                self.finish[c["index"]] = c["finish_reason"] or self.finish.get(c["index"])
                if said[0]:
                    self.begun.set()
            if "type" in event:  # another API: the events' own words, without what an id or a clock makes
                self.said.setdefault(event["type"], []).append(event.get("delta", {}).get("text", "") if event["type"] == "content_block_delta" else "")
                if event["type"] == "content_block_delta":
                    self.begun.set()
            if self.leaves and self.begun.is_set():
                self.leave.wait()
                return

    def whole(self):
        """All that must be the same each time it is asked."""
        self.join()
        assert self.error is None, self.error
        said = {k: "".join(v) if isinstance(k, str) else v for k, v in self.said.items()}
        usage = self.usage and {k: v for k, v in self.usage.items() if "details" not in k and "cache" not in k}
        if usage and "cache_read_input_tokens" in self.usage:  # Anthropic's: input_tokens are those that the cache did not have
            usage["input_tokens"] += self.usage["cache_read_input_tokens"]
        return said, self.finish, usage


def moved(fleet, key, asks, meanwhile=lambda streams: None):
    """All asks at node 0, undisturbed, and again while it drains; what differs, how many others had taken, how many of them for good, and what
    the log says of requests."""
    a = fleet.nodes[0]

    def taken():
        return fleet.of_others("lorad_moves_in_total")[0]
    want = [s.whole() for s in [Stream(a, key, *ask) for ask in asks]]
    before = taken()
    with fleet.slow_steps():
        streams = [Stream(a, key, *ask) for ask in asks]
        for s in streams:
            assert s.begun.wait(600)
        fleet.drains()
    meanwhile(streams)
    got = []
    for s in streams:
        s.join()
        got.append(None if s.error else s.whole())
    a.process.wait(600)
    a.stop()
    log = a.log_path.read_text()
    said = re.findall("([0-9]+) running requests went on at other servers, ([0-9]+) came back", log)
    away, back = map(int, said[-1]) if said else (0, 0)
    return [(w, g) for w, g in zip(want, got) if w != g], taken() - before, away - back, re.findall('moved="?(yes|no: [a-z_]+)', log)


def kinds_that_move(adapter):
    """Drawn, greedy, penalties and biases, log-probabilities, two choices, chat, an adapter, Anthropic's."""
    text, words = "/v1/completions", "What is 7 plus 5?"
    base = {"model": "base", "prompt": words, "stream": True, "ignore_eos": True, "max_tokens": 700, "stream_options": {"include_usage": True}}
    chat = {k: v for k, v in base.items() if k != "prompt"} | {"messages": [{"role": "user", "content": words}]}
    return [(text, base | {"seed": 7, "temperature": 1.3}), (text, base | {"temperature": 0}),
            (text, base | {"seed": 3, "presence_penalty": 1, "repetition_penalty": 1.1, "logit_bias": {"42": 3}, "top_p": 0.9}),
            (text, base | {"seed": 5, "logprobs": 3, "max_tokens": 400}), (text, base | {"seed": 9, "n": 2}),
            ("/v1/chat/completions", chat | {"seed": 11}), (text, base | {"seed": 13, "model": adapter}),
            ("/v1/messages", {"model": "base", "stream": True, "max_tokens": 700, "temperature": 0, "messages": chat["messages"]})]


def upload_everywhere(fleet, key, name):
    """Without an object store files are each node's own."""
    first, *others = fleet.nodes
    first.upload(key, name, DEMO / "adapters" / name)
    for node in others:
        shutil.copytree(first.dir / "adapters", node.dir / "adapters", dirs_exist_ok=True)
