#!/usr/bin/env python3
"""fleet.py CASE -- three lorads, one PostgreSQL, kills and cuts: the figures of fleet-limits, fleet-usage, fleet-revoke, fleet-away, fleet-adapter, fleet-move,
fleet-roles.

The last line is "CASE <figure> <unit> (asked <bound>): ok|short". LORAD_TRIALS: how many, instead of each case's own number.
"""
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "e2e" / sub) for sub in ("", "fleet")]
import asking  # noqa: E402
import fleets  # noqa: E402
import harness  # noqa: E402
from harness import DEMO, Server, demo_adapters, free_port, until  # noqa: E402
from postgres import CLOCK, PROGRAMS  # noqa: E402
from s3 import S3  # noqa: E402
import test_roles  # noqa: E402

RNG = random.Random(11)
RATE = 4 << 20
EACH_FLEET, CROWD_EVERY = 1000, 10  # budgets; events
MANY = {"server.max_streams": "1100", "server.max_connections": "1050", "server.max_connections_per_ip": "1050", "engine.max_queued": "2000"}
MORE = {"fleet-limits": {"settings": MANY, "clocks": True}, "fleet-adapter": {"settings": MANY},
        "fleet-roles": {"settings": {"server.fleet_kv": "always"}, "each": test_roles.EACH, "program": "lorad_faulty"},
        "fleet-move": {"settings": {"server.drain_timeout": "600s", "server.max_connections_per_ip": "200"}}}
ASK = {"model": "base", "prompt": "1", "max_tokens": 2, "temperature": 0}


def trials(default):
    return int(os.environ.get("LORAD_TRIALS", default))


def verdict(case, figure, bound, good):
    print(f"{case} {figure} (asked {bound}): {'ok' if good else 'short'}")
    return 0 if good else 1


def limits(fleet):
    """Tokens over a budget; shares of budgets with even load, and with all load on one node.  Fleets of some thousand budgets each."""
    even = [asking.spend(fleet, f"even-{i}", 6000, dict.fromkeys(fleet.nodes, 4)) for i in range(3)]
    one = [asking.spend(fleet, f"one-{i}", 6000, {fleet.nodes[0]: 8}) for i in range(3)]
    n, wrong, shares, came, crowds, begin = trials(10000), [], [], collections.Counter(), 0, time.monotonic()
    for part in range(-(-n // EACH_FLEET)):
        with contextlib.nullcontext(fleet) if part == 0 else fleets.Fleet(**MORE["fleet-limits"]) as one_fleet:
            budgets, events, crowd = asking.trials(one_fleet, min(EACH_FLEET, n - len(shares)), part + 100, crowd=1000, every=CROWD_EVERY)
            used, bad = one_fleet.held(budgets)
        came, wrong, crowds = came + events, wrong + bad, crowds + crowd
        shares += [used[b.name] / b.limit for b in budgets]
        print(f"{len(shares)} budgets, {sum(came.values())} events, {crowds} budgets with 1,000 connections at once, "
              f"{time.monotonic() - begin:.0f} s", flush=True)
        for w in bad[:20]:
            print("    ", *w)
    print(", ".join(f"{name} {k}" for name, k in sorted(came.items())) + ("" if CLOCK else "; no clock was stepped: Debian has faketime"))
    print(f"of budgets were used: {min(even):.3f} by all nodes, {min(one):.3f} by one; under kills {min(shares):.3f} at least, "
          f"{statistics.median(shares):.3f} in the middle")
    good = not wrong and min(even) >= 0.98 and min(one) >= 0.90
    return verdict("fleet-limits", f"{len(wrong)} of {len(shares)} trials over a limit, {min(even):.3f} and {min(one):.3f} usable", "0, 0.98, 0.90", good)


def usage(fleet):
    """Each node, and PostgreSQL, has somebody who kills it again and again, under load without limits: the rows of PostgreSQL are those of the nodes."""
    n, kills, faults, begin = trials(1000), collections.Counter(), [], time.monotonic()
    maker = asking.Maker(fleet)
    budgets = [maker.make(f"many-{i}", None) for i in range(4)]
    load = asking.Asking(fleet.nodes, random.Random(3))
    load.start()
    for budget in budgets:
        load.add(budget, dict.fromkeys(fleet.nodes, 2))

    def of_node(node, rng):
        seen, more = load.answers[node], rng.randrange(1, 20)
        load.until(lambda: load.answers[node] > seen + more)
        fleet.kill_node(rng, node=node)

    def shipped():
        """0 while it recovers, which begins a moment after the kill."""
        try:
            return int(fleet.postgres.sql("SELECT count(*) FROM lorad_usage"))
        except AssertionError:
            return 0

    def of_database(_, rng):
        before = load.until(shipped)
        load.until(lambda: shipped() > before)
        rng.choice((fleet.kill_database, fleet.kill_in_database))(rng)

    def killer(kind, whom, seed):
        rng = random.Random(seed)
        try:
            while sum(kills.values()) < n and not faults:
                kind(whom, rng)
                kills[kind.__name__] += 1
        except BaseException as e:
            faults.append(e)
    killers = [threading.Thread(target=killer, args=a) for a in [(of_node, node, i) for i, node in enumerate(fleet.nodes)] + [(of_database, None, 9)]]
    [t.start() for t in killers]
    [t.join() for t in killers]
    if faults:
        raise faults[0]
    load.end()
    _, wrong = fleet.held(budgets)
    rows = fleet.books_agree()
    print(f"{kills['of_node']} kills of nodes and {kills['of_database']} of PostgreSQL in {time.monotonic() - begin:.0f} s; {load.good} answers, "
          f"{sum(b.broken for b in budgets)} requests without one", *wrong, sep="\n")
    sums = {fleet.usage(node, b.name) for node in fleet.nodes for b in budgets}
    good = not wrong and len(sums) == len(budgets)
    return verdict("fleet-usage", f"{len(wrong)} of {rows} rows lost or doubled by {sum(kills.values())} kills", "0", good)


def revoke(fleet):
    key = fleet.tenant("brief")
    took = []
    for _ in range(trials(100)):
        made = fleet.nodes[0].admin("POST", "/keys", {"tenant": "brief", "name": "short", "scopes": ["inference"]})
        for node in fleet.nodes:
            until(lambda: node.call("GET", "/v1/models", key=made["key"]).status == 200)
        begin = time.monotonic()
        RNG.choice(fleet.nodes).admin("DELETE", f"/keys/{made['id']}", expect=(200, 204))
        for node in fleet.nodes:
            until(lambda: node.call("GET", "/v1/models", key=made["key"]).status == 401)
        took.append(time.monotonic() - begin)
    p99 = sorted(took)[int(len(took) * 0.99)]
    return verdict("fleet-revoke", f"{1000 * p99:.0f} ms p99 of {len(took)} to be refused everywhere", "1000", key and p99 <= 1)


def away(fleet):
    """Answers of a tenant without limits, of a node whose database is gone and, in turns with it, of a server that knows no fleet."""
    seconds, turn = float(os.environ.get("LORAD_SECONDS", 60)), 2.0
    took = {"fleet": [], "one": []}
    with Server(settings={"server.plain_listen": f"127.0.0.1:{free_port()}"}) as lone:
        asked = {"fleet": (fleet.nodes[1], fleet.tenant("free")), "one": (lone, lone.tenant("free"))}
        wires = {who: node.connect() for who, (node, _) in asked.items()}

        def ask(who):
            wires[who].request("POST", "/v1/completions", json.dumps(ASK),
                               {"Authorization": f"Bearer {asked[who][1]}", "Content-Type": "application/json"})
            r = wires[who].getresponse()
            r.read()
            return r.status

        assert {ask(who) for who in took for _ in range(200)} == {200}
        fleet.postgres.kill()
        begin = time.monotonic()
        while time.monotonic() < begin + 2 * seconds:
            for who in took:
                end = time.monotonic() + turn
                while (at := time.monotonic()) < end:
                    took[who].append((ask(who), time.monotonic() - at))
        gone = time.monotonic() - begin
        fleet.postgres.start()
        fleet.books_agree()
    p99 = {who: 1000 * sorted(t for _, t in all_)[int(0.99 * len(all_))] for who, all_ in took.items()}
    failed, more = sum(status != 200 for status, _ in took["fleet"]), p99["fleet"] - p99["one"]
    print(f"p50 {', '.join(f'{who} {1000 * statistics.median(t for _, t in all_):.3f}' for who, all_ in took.items())} ms; p99 {p99}")
    return verdict("fleet-away", f"{failed} of {len(took['fleet'])} failed in {gone:.0f} s, p99 {more:+.2f} ms", "0, 0.10", failed == 0 and more <= 0.1)


def adapter(fleet):
    """Uploads at one node, asked for at another at once; many first requests; damaged objects.  The store gives 4 MiB a second."""
    a, b, c = fleet.nodes
    key, s3 = fleet.tenant("many"), fleet.s3
    parts = {n: (DEMO / "adapters/acme-support" / n).read_bytes() for n in ("adapter_config.json", "adapter_model.safetensors")}
    size = sum(map(len, parts.values()))

    def publish(name, blanks):
        """Other bytes each time."""
        with tempfile.TemporaryDirectory() as folder:
            for n, data in parts.items():
                (pathlib.Path(folder) / n).write_bytes(data + b" " * blanks * n.endswith(".json"))
            a.upload(key, name, folder, (201,))

    def first_token(node, name):
        begin = time.monotonic()
        connection = node.connect()
        connection.request("POST", "/v1/completions", json.dumps({**ASK, "model": name, "stream": True}),
                           {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        r = connection.getresponse()
        r.readline()
        took = time.monotonic() - begin
        r.read()
        connection.close()
        return r.status, took
    n, statuses, shares = trials(20), [], []
    warm = []
    for i in range(n):
        publish(f"a-{i}", 2 * i + 1)
        a.admin("POST", f"/tenants/many/adapters/a-{i}/evict")
        warm.append(first_token(a, f"a-{i}")[1])  # its files lie here: what is left is the load and the step
        s3.rate = RATE
        status, took = first_token(b, f"a-{i}")
        s3.rate = None
        statuses.append(status)
        shares.append(took / (size / RATE + warm[-1]))
    publish("crowd", 1001)
    before, s3.rate = s3.count("GET", ".safetensors"), RATE
    with concurrent.futures.ThreadPoolExecutor(1000) as crowd:
        answers = list(crowd.map(lambda _: first_token(c, "crowd")[0], range(1000)))
    downloads, s3.rate = s3.count("GET", ".safetensors") - before, None
    served = 0
    for i in range(n):
        publish(f"bad-{i}", 2 * i + 2000)
        digest = a.call("GET", f"/v1/adapters/bad-{i}/versions/1", key=key).json["digest"]
        path = RNG.choice([p for p in s3.objects if digest in p])
        bytes_ = bytearray(s3.objects[path])
        bytes_[RNG.randrange(len(bytes_))] ^= 1 << RNG.randrange(8)
        s3.objects[path] = bytes(bytes_)
        served += first_token(b, f"bad-{i}")[0] != 503
    print(f"warm {1000 * statistics.median(warm):.0f} ms, {size} bytes in {1000 * size / RATE:.0f} ms; of them "
          f"{statistics.median(shares):.3f} in the middle; of 1000 answers {answers.count(200)} were 200")
    good = set(statuses) == {200} and max(shares) <= 1.2 and downloads == 1 and set(answers) <= {200, 503} and served == 0
    return verdict("fleet-adapter", f"{n - statuses.count(200)} of {n} not 200, {max(shares):.3f} times at most; {downloads} download for 1000; "
                   f"{served} of {n} damaged served", "0, 1.2, 1, 0", good)


def move(fleet):
    """A server drains under 64 streams, of all kinds that move and with seeds of their own: without keys and values, and again with them."""
    key, name = fleet.tenant("mover"), demo_adapters()[0]
    fleets.upload_everywhere(fleet, key, name)
    kinds, n, computed, wrong, lost, came = fleets.kinds_that_move(name), trials(64), {}, 0, 0, 0
    ends = ("taken", "here", "cheaper", "off", "refused", "damaged", "lost", "full")
    names = ("lorad_prefill_tokens_total", "lorad_moves_kv_tokens_total", *(f'lorad_moves_kv_total{{outcome="{end}"}}' for end in ends))
    for mode in ("never", "auto", "always"):
        fleet.brings_pages(mode)
        asks = []
        for i in range(n):  # what no server has seen: a cache of theirs would hide what is computed
            path, body = kinds[i % len(kinds)]
            words = f"{mode} {i}: {'What is 7 plus 5? ' * 20}"
            own = {"messages": [{"role": "user", "content": words}]} if "messages" in body else {"prompt": words}
            asks.append((path, body | own | ({"seed": i} if path != "/v1/messages" else {})))
        before = fleet.of_others(*names)
        differ, taken, away, _ = fleets.moved(fleet, key, asks)
        computed[mode], brought, *became = (now - was for now, was in zip(fleet.of_others(*names), before))
        wrong, lost, came = wrong + len(differ), lost + sum(got is None for _, got in differ), came + (away >= len(asks) * 0.9)
        fleet.nodes[0].start()
        print(f"{mode}: {taken:.0f} choices were taken by other servers, {away} of them ended there; "
              f"{computed[mode]:.0f} tokens were computed there again, {brought:.0f} came with their keys and values (" + ", ".join(f"{k:.0f} {end}" for k, end in zip(became, ends) if k) + ")", flush=True)
    rows = fleet.books_agree()
    print(f"{rows} rows of usage, each once")
    good = wrong == 0 and came == 3 and computed["always"] * 4 <= computed["never"]
    return verdict("fleet-move", f"{wrong} of {3 * n} differ, {lost} lost; computed again {computed['always']:.0f} tokens, without keys and values "
                   f"{computed['never']:.0f}", "0, 0, a quarter", good)


def longer_context(folder):
    """The demo model for prompts of 2,048 tokens: it has rotary positions, so any are computed alike."""
    made = pathlib.Path(folder) / "demo"
    shutil.copytree(DEMO, made)
    config = made / "base/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 4096}))
    harness.DEMO = fleets.DEMO = made
    harness.Server.__init__.__defaults__ = (made / "base", *harness.Server.__init__.__defaults__[1:])


def begins_after(node, key, prompt):
    """Seconds until the first text of a stream."""
    begin = time.monotonic()
    stream = fleets.Stream(node, key, "/v1/completions", {"model": "base", "prompt": prompt, "stream": True, "max_tokens": 16, "ignore_eos": True, "temperature": 0})
    assert stream.begun.wait(600)
    took = time.monotonic() - begin
    stream.whole()
    return took


def roles(fleet):
    """Streams of all kinds at a server for prompts and at one for streams, beside an undivided one's; each role killed; times of first tokens."""
    test_roles.begin(fleet)
    test_roles.all_know_the_roles(fleet)
    a, b, alone = fleet.nodes
    n, wrong, lost, moved, wave = trials(500), 0, 0, 0, 20
    names = ("lorad_moves_out_total", "lorad_moves_prompts_total")
    for part in range(-(-n // wave)):
        node = (a, b)[part % 2]
        asked = [ask for ask in test_roles.asks(f"roles {part}", 2 * wave) if ask[1].get("n", 1) == 1][:wave]
        want = test_roles.said(alone, asked)
        before = test_roles.count(node, *names)
        with fleet.slow_steps(5):
            streams = [fleets.Stream(node, test_roles.KEY, *ask) for ask in asked]
            got = []
            for s in streams:
                s.join()
                got.append(None if s.error else s.whole())
        moved += sum(test_roles.count(node, *names)) - sum(before)
        wrong, lost = wrong + sum(w != g for w, g in zip(want, got)), lost + got.count(None)
    print(f"{n} streams, {moved:.0f} of them moved: {wrong} differ, {lost} lost", flush=True)
    ratios = {}
    text = "What is 7 plus 5? " * 341
    times = {node: [] for node in fleet.nodes}
    for i in range(max(3, n // 12)):
        for node in fleet.nodes:
            times[node].append(begins_after(node, test_roles.KEY, f"{i} {node.port} {text}"))
    tokens = alone.call("POST", "/tokenize", {"model": "base", "prompt": text}, key=test_roles.KEY).json["count"]
    for name, node in (("prefill", a), ("decode", b)):
        ratios[name] = statistics.median(times[node]) / statistics.median(times[alone])
        print(f"{name}: first token of {tokens} prompt tokens after {statistics.median(times[node]) * 1e3:.1f} ms, undivided "
              f"{statistics.median(times[alone]) * 1e3:.1f} ms", flush=True)
    kills = n // 5
    killed = test_roles.whoever_is_killed_nothing_is_lost(fleet, kills, 4)
    rows = fleet.books_agree()
    print(f"{kills} kills, {killed:.0f} requests moved meanwhile: none lost, none differs; {rows} rows of usage, each once")
    good = wrong == 0 and moved >= 0.9 * n and max(ratios.values()) <= 1.1
    return verdict("fleet-roles", f"{wrong} of {n} differ, {lost} lost; first token {ratios['prefill']:.3f} and {ratios['decode']:.3f} of an undivided server's",
                   "0, 0; 1.1", good)


CASES = {"fleet-limits": limits, "fleet-usage": usage, "fleet-revoke": revoke, "fleet-away": away, "fleet-adapter": adapter, "fleet-move": move, "fleet-roles": roles}

if __name__ == "__main__":
    if not PROGRAMS:
        print("fleet.py: PostgreSQL is not on this machine (Debian: postgresql)")
        sys.exit(2)
    with tempfile.TemporaryDirectory() as keys:
        if sys.argv[1] == "fleet-roles":
            longer_context(keys)
        store = S3() if sys.argv[1] == "fleet-adapter" else None
        with fleets.Fleet(**MORE.get(sys.argv[1], {}), shared=store and store.settings(pathlib.Path(keys) / "keys")) as made:
            made.s3 = store
            status = CASES[sys.argv[1]](made)
    sys.exit(status)
