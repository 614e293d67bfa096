"""asking.py -- budgets of a fleet that are used up over many connections that one thread keeps, while things happen to the fleet.

A trial is one tenant's budget of a day, asked for at all nodes at once, of which a part was used when an event began, or was over: a kill
(until the node or the database is back), a cut, a step of a clock.  Events come one after another; a budget that is used up is followed by a fresh one.  Whatever happens, what the nodes' ledgers
have of a budget is at most what PostgreSQL granted, and that at most the limit.
"""
import collections
import heapq
import http.client
import itertools
import json
import queue
import random
import re
import selectors
import socket
import threading
import time

from harness import until

TOKENS = re.compile(rb'"total_tokens":\s*([0-9]+)')
LENGTH = re.compile(rb"\r\ncontent-length:\s*([0-9]+)", re.I)
WAITS_S = (0.02, 0.3)  # before the same is asked again
BODIES = [json.dumps({"model": "base", "prompt": prompt, "max_tokens": n, "temperature": 0}).encode()
          for prompt in ("1", "1 2 3", "What is 7 plus 5?") for n in (1, 2, 3, 6)]


class Budget:
    """limit None: there is none."""

    def __init__(self, name, key, limit=None):
        self.name, self.key, self.limit = name, key, limit
        self.answers = self.tokens = self.broken = self.open = 0  # 200s, what they said was used; no answer; connections that still ask
        self.met, self.known = set(), set()  # events that began or ended in its middle; nodes that have had its key


class Asker:
    """One request after another, until the budget is spent."""
    __slots__ = ("budget", "node", "socket", "got", "wait", "steps", "known")

    def __init__(self, budget, node):
        self.budget, self.node, self.socket, self.got, self.wait = budget, node, None, b"", WAITS_S[0]
        self.steps, self.known = 0, False  # of the node, and whether it had the key, when it was asked


class Asking(threading.Thread):
    def __init__(self, nodes, rng, feed=None, together=0):
        super().__init__(daemon=True)
        self.nodes, self.rng, self.feed, self.together = nodes, rng, feed, together
        self.free = {node: [] for node in nodes}  # connections that nobody uses
        self.answers, self.good = dict.fromkeys(nodes, 0), 0  # of all kinds, by node; of all nodes, 200
        self.done, self.running, self.turn, self.orders, self.later = [], set(), 0, queue.SimpleQueue(), []
        self.selector, self.stop, self.error = selectors.DefaultSelector(), False, None

    # -- from other threads --------------------------------------------------------------

    def add(self, budget, each):
        """each: {node: so many connections}."""
        self.orders.put(lambda: self.begin(budget, each))

    def mark(self, what):
        """Budgets of which a part is used meet this."""
        marked = threading.Event()

        def act():
            for budget in self.running:
                if budget.answers:
                    budget.met.add(what)
            marked.set()
        self.orders.put(act)
        self.until(marked.is_set)

    def until(self, condition):
        def there():
            if self.error:
                raise self.error
            return condition()
        return until(there)

    def end(self):
        self.stop = True
        self.join()
        if self.error:
            raise self.error

    # -- the thread ----------------------------------------------------------------------

    def run(self):
        try:
            while not self.stop:
                self.step()
        except BaseException as e:
            self.error = e
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        for socket_ in sum(self.free.values(), []):
            socket_.close()

    def step(self):
        while not self.orders.empty():
            self.orders.get()()
        if self.feed and self.feed.error:
            raise self.feed.error
        while self.feed and len(self.running) < self.together and not self.feed.ready.empty():
            self.begin(self.feed.ready.get(), dict.fromkeys(self.nodes, 1))
        now = time.monotonic()
        while self.later and self.later[0][0] <= now:
            self.ask(heapq.heappop(self.later)[2])
        wait = min(0.02, max(0, self.later[0][0] - now)) if self.later else 0.02
        if not self.selector.get_map():
            time.sleep(wait)
        for key, _ in self.selector.select(wait):
            self.read(key.data)

    def begin(self, budget, each):
        self.running.add(budget)
        for node, n in each.items():
            for _ in range(n):
                budget.open += 1
                self.ask(Asker(budget, node))

    def again(self, asker):
        """Later, and later each time."""
        self.turn += 1
        heapq.heappush(self.later, (time.monotonic() + asker.wait * self.rng.uniform(0.5, 1), self.turn, asker))
        asker.wait = min(2 * asker.wait, WAITS_S[1])

    def ask(self, asker):
        free, body = self.free[asker.node], self.rng.choice(BODIES)
        try:
            if free:
                asker.socket = free.pop()
            else:
                asker.socket = socket.create_connection(("127.0.0.1", asker.node.plain_port), 5)
                asker.socket.setblocking(False)
            asker.got, asker.steps, asker.known = b"", asker.node.steps, asker.node in asker.budget.known
            asker.socket.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"
                              b"Content-Length: %d\r\n\r\n%s" % (asker.budget.key.encode(), len(body), body))
        except OSError:
            if asker.socket:
                asker.socket.close()
            asker.socket = None
            self.again(asker)
            return
        self.selector.register(asker.socket, selectors.EVENT_READ, asker)

    def read(self, asker):
        try:
            data = asker.socket.recv(1 << 16)
        except OSError:
            data = b""
        asker.got += data
        head, gap, body = asker.got.partition(b"\r\n\r\n")
        if data and (not gap or len(body) < int(LENGTH.search(head)[1])):
            return
        self.selector.unregister(asker.socket)
        if data and b"\r\nConnection: close" not in head:
            self.free[asker.node].append(asker.socket)
        else:
            asker.socket.close()
        asker.socket = None
        if data:
            self.take(asker, int(head[9:12]), body)
        else:  # its server was killed
            asker.budget.broken += 1
            self.again(asker)

    def take(self, asker, status, body):
        budget, node = asker.budget, asker.node
        self.answers[node] += 1
        if status != 401:
            budget.known.add(node)
        if status == 200:
            self.good += 1
            budget.answers += 1
            budget.tokens += int(TOKENS.search(body)[1])
            asker.wait = WAITS_S[0]
            self.ask(asker)
        elif status == 429 and b"insufficient_quota" in body and node.steps % 2 == 0 and asker.steps == node.steps:
            budget.open -= 1
            if budget.open == 0:
                self.running.remove(budget)
                self.done.append(budget)
        elif status in (429, 503) or (status == 401 and not asker.known):
            self.again(asker)
        else:
            raise AssertionError((budget.name, status, body))


class Maker:
    """Of tenants, at any node, whatever happens to it."""

    def __init__(self, fleet):
        self.fleet, self.connection, self.stop = fleet, None, False

    def post(self, path, body):
        while not self.stop:
            try:
                if not self.connection:
                    self.node = random.choice(self.fleet.nodes)
                    self.connection = self.node.connect(self.node.admin_port)
                self.connection.request("POST", "/admin/v1" + path, json.dumps(body),
                                        {"Authorization": f"Bearer {self.node.admin_key}", "Content-Type": "application/json"})
                r = self.connection.getresponse()
                text = r.read()
                if r.status in (201, 409):  # made by a call whose answer was lost
                    return json.loads(text)
                assert r.status >= 500 or r.status == 404, (r.status, text)  # the tenant is not known here yet
            except (OSError, http.client.HTTPException):
                self.connection.close() if self.connection else None
                self.connection = None
            time.sleep(0.02)

    def make(self, name, limit):
        self.post("/tenants", {"name": name, "limits": {"tokens_per_day": limit} if limit else {}})
        made = self.post("/keys", {"tenant": name, "name": "test", "scopes": ["inference"]})
        return Budget(name, made["key"], limit) if made else None


class Feed:
    """Makes budgets ahead of their use; one call after another would be too slow."""

    def __init__(self, fleet, name, limits, ahead, threads=4):
        self.fleet, self.name, self.limits, self.ahead = fleet, name, limits, ahead
        self.ready, self.number, self.error, self.makers = queue.Queue(), itertools.count(), None, [Maker(fleet) for _ in range(threads)]
        self.threads = [threading.Thread(target=self.run, args=(m,), daemon=True) for m in self.makers]
        [t.start() for t in self.threads]

    def run(self, maker):
        try:
            while not maker.stop:
                if self.ready.qsize() < self.ahead:
                    self.ready.put(maker.make(f"{self.name}-{next(self.number)}", self.limits()))
                else:
                    time.sleep(0.02)
        except BaseException as e:
            self.error = e

    def end(self):
        for maker in self.makers:
            maker.stop = True
        [t.join() for t in self.threads]


def trials(fleet, n, seed=1, together=120, least=40, most=100, crowd=0, every=10, events=None):
    """The budgets that met events, at least n; how many events of which kind there were; for how many of the budgets a crowd of so many
    connections asked at once, when the first of `every` events began."""
    rng, came = random.Random(seed), collections.Counter()
    feed = Feed(fleet, f"trial-{seed}", lambda: rng.randrange(least, most), together)
    asking = Asking(fleet.nodes, random.Random(seed + 1), feed, together)
    asking.start()
    kinds, crowds, maker = [], [], Maker(fleet)
    while sum(bool(b.met) for b in asking.done) < n:
        before = asking.good
        asking.until(lambda: asking.good >= before + together)
        kinds = kinds or rng.sample(events or fleet.events, len(events or fleet.events))
        kind = kinds.pop()
        if crowd and sum(came.values()) % every == 0:
            crowds.append(maker.make(f"crowd-{seed}-{len(crowds)}", 4 * crowd))
            asking.add(crowds[-1], {node: -(-crowd // len(fleet.nodes)) for node in fleet.nodes})
            asking.until(lambda: crowds[-1].answers > crowd // 20)
        asking.mark(kind.__name__)
        kind(rng, asking)
        asking.mark(kind.__name__)
        came[kind.__name__] += 1
    asking.feed = None
    asking.until(lambda: not asking.running)
    feed.end()
    asking.end()
    return [b for b in asking.done if b.met], came, len(crowds)


def spend(fleet, name, limit, each):
    """One budget, and nothing happens: which share of it was used."""
    budget = Maker(fleet).make(name, limit)
    asking = Asking(fleet.nodes, random.Random(1))
    asking.start()
    asking.add(budget, each)
    asking.until(lambda: asking.done)
    asking.end()
    used, wrong = fleet.held([budget])
    assert not wrong, wrong
    return used[budget.name] / limit
