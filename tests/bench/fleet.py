#!/usr/bin/env python3
"""fleet.py CASE -- three lorads, one PostgreSQL, kills and cuts: the figures of fleet-limits, fleet-usage, fleet-revoke, fleet-away.

The last line is "CASE <figure> <unit> (asked <bound>): ok|short". LORAD_TRIALS: how many, instead of each case's own number.
"""
import json
import os
import pathlib
import random
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import fleets  # noqa: E402
from harness import until  # noqa: E402
from postgres import PROGRAMS  # noqa: E402

RNG = random.Random(11)
ASK = {"model": "base", "prompt": "1", "max_tokens": 2, "temperature": 0}


def trials(default):
    return int(os.environ.get("LORAD_TRIALS", default))


def verdict(case, figure, bound, good):
    print(f"{case} {figure} (asked {bound}): {'ok' if good else 'short'}")
    return 0 if good else 1


def limits(fleet):
    """Any token over a budget stops it; shares of budgets with even load, and with all load on one node."""
    even = [fleets.budget_trial(fleet, f"even-{i}", fleet.nothing, RNG, limit=6000) for i in range(3)]
    one = [fleets.budget_trial(fleet, f"one-{i}", fleet.nothing, RNG, limit=6000, workers=8, nodes=fleet.nodes[:1]) for i in range(3)]
    n, over = trials(200), 0
    shares = []
    for seed in range(n // 4):
        try:
            shares += fleets.trials(fleet, 4, seed + 100)
        except AssertionError as e:
            over += 1
            print(e)
    print(f"of budgets were used: {min(even):.3f} by all nodes, {min(one):.3f} by one; under kills {min(shares):.3f} at least, "
          f"{statistics.median(shares):.3f} in the middle")
    good = over == 0 and min(even) >= 0.98 and min(one) >= 0.90
    return verdict("fleet-limits", f"{over} of {n} trials over a limit, {min(even):.3f} and {min(one):.3f} usable", "0, 0.98, 0.90", good)


def usage(fleet):
    """Kills under load without limits: the rows of PostgreSQL are those of the nodes."""
    key = fleet.tenant("many")
    kinds = (fleet.kill_node, fleet.kill_database, fleet.cut_wire)
    load = fleets.Load(fleet, key, 2)
    n = trials(100)
    for i in range(n):
        seen = len(load.answers)
        until(lambda: len(load.answers) > seen + 5)
        kinds[i % 3](RNG)
    load.stop()
    for node in fleet.nodes:
        until(lambda: node.metrics()["lorad_fleet_away_seconds"] == 0)
    rows = fleet.books_agree()
    sums = {fleet.usage(node, "many") for node in fleet.nodes}
    answered = sum(s == 200 for _, s in load.answers)
    good = len(sums) == 1 and sums.pop()[0] >= answered
    return verdict("fleet-usage", f"0 of {rows} rows lost or doubled by {n} kills and cuts", "0", good)


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
    """Answers of a tenant without limits, in turns: the database there, gone for 60 s, there again."""
    key = fleet.tenant("free")
    node, failed = fleet.nodes[1], 0

    def times(seconds):
        nonlocal failed
        end, out = time.monotonic() + seconds, []
        connection = node.connect()
        while time.monotonic() < end:
            begin = time.monotonic()
            connection.request("POST", "/v1/completions", json.dumps(ASK),
                               {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
            r = connection.getresponse()
            r.read()
            failed += r.status != 200
            out.append(time.monotonic() - begin)
        return sorted(out)
    seconds = float(os.environ.get("LORAD_SECONDS", 60))
    before = times(seconds / 2)
    fleet.postgres.kill()
    without = times(seconds)
    fleet.postgres.start()
    after = times(seconds / 2)
    warm = sorted(before + after)
    more = 1000 * (without[int(len(without) * 0.99)] - warm[int(len(warm) * 0.99)])
    fleet.books_agree()
    return verdict("fleet-away", f"{failed} of {len(without)} failed in {seconds:.0f} s, p99 {more:+.2f} ms", "0, 0.10",
                   failed == 0 and more <= 0.1)


CASES = {"fleet-limits": limits, "fleet-usage": usage, "fleet-revoke": revoke, "fleet-away": away}

if __name__ == "__main__":
    if not PROGRAMS:
        print("fleet.py: PostgreSQL is not on this machine (Debian: postgresql)")
        sys.exit(2)
    with fleets.Fleet() as made:
        status = CASES[sys.argv[1]](made)
    sys.exit(status)
