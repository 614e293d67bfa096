"""One limit for three servers, and one ledger: to the token, whatever is killed, cut or late."""
import json
import os
import shutil
import signal
import threading
import time

import asking
import fleets
from harness import run, until
from postgres import skip_unless_there

skip_unless_there()


def a_budget_is_spent_and_not_more(fleet):
    even = asking.spend(fleet, "even", 1500, dict.fromkeys(fleet.nodes, 4))
    one = asking.spend(fleet, "one", 1500, {fleet.nodes[0]: 8})
    print(f"    used of a budget: {even:.3f} by all nodes, {one:.3f} by one")
    assert even >= 0.98 and one >= 0.98, (even, one)  # the smallest request reserves 2, the largest 14 of 1500


def a_budget_in_money_is_the_fleet_s(fleet):
    """With prices of one micro a token; usage of all servers has the costs, and so does what PostgreSQL knows of the budget."""
    for node in fleet.nodes:
        node.admin("PATCH", "/config", {"class.standard.price_prompt": 1_000_000, "class.standard.price_output": 1_000_000})
    key, limit, used = fleet.tenant("money", cost_per_day=1500), 1500, []

    def work(node):
        while True:
            r = node.call("POST", "/v1/completions", {"model": "base", "prompt": "1", "max_tokens": 3, "ignore_eos": True, "service_tier": "default"},
                          key=key)
            if r.status == 200:
                used.append(r.json["usage"]["total_tokens"])
            elif r.json["error"]["code"] == "insufficient_quota" and "retry-after" not in r.headers:
                assert "0.001500 of cost per day" in r.json["error"]["message"] and "00:00 UTC" in r.json["error"]["message"], r
                return
            else:
                time.sleep(0.02)
    threads = [threading.Thread(target=work, args=(n,)) for n in fleet.nodes for _ in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert 0.98 * limit <= sum(used) <= limit, sum(used)
    for node in fleet.nodes:  # the others' last rows are shipped a moment after their answers
        until(lambda: sum(r["cost_micros"] for b in node.admin("GET", "/usage?tenant=money")["data"] for r in b["results"]) == sum(used))
    tenant = fleet.nodes[0].admin("GET", "/tenants/money")["id"]
    shipped = fleet.postgres.sql(f"SELECT sum(shipped) FROM lorad_budgets WHERE id = -{tenant} AND period > 0")
    assert str(sum(used)) in str(shipped), (shipped, sum(used))
    for node in fleet.nodes:
        node.admin("PATCH", "/config", {"class.standard.price_prompt": None, "class.standard.price_output": None})


def whatever_happens(fleet):
    budgets, events, _ = asking.trials(fleet, 40, together=10)
    used, wrong = fleet.held(budgets)
    assert not wrong, wrong
    print(f"    {len(budgets)} budgets, {sum(events.values())} events; used: {min(used[b.name] / b.limit for b in budgets):.3f} at least")


def a_minute_is_the_fleet_s(fleet):
    key = fleet.tenant("minute", requests_per_minute=30)
    begin = time.monotonic()
    load = fleets.Load(fleet, key, 2)
    until(lambda: sum(s == 429 for _, s in load.answers) > 20)
    load.stop()
    came = sum(s == 200 for _, s in load.answers)
    most = 30 * (1 + (time.monotonic() - begin) / 60)
    assert 27 <= came <= most, (came, most)
    r = fleet.nodes[0].call("POST", "/v1/completions", {"model": "base", "prompt": "1", "max_tokens": 1}, key=key)
    assert r.status == 200 or int(r.headers["retry-after-ms"]) > 0, r


def seats_are_the_fleet_s(fleet):
    """At no time more answers run than there are seats, by what the ledgers say of their first and last tokens."""
    key = fleet.tenant("seats", max_concurrent=3)
    answers, end = [], threading.Event()

    def work(node):
        while not end.is_set():
            r = node.call("POST", "/v1/completions", {"model": "base", "prompt": "1 2 3", "max_tokens": 200, "ignore_eos": True}, key=key)
            answers.append(r.status)
            time.sleep(0 if r.status == 200 else 0.02)
    threads = [threading.Thread(target=work, args=(n,)) for n in fleet.nodes for _ in range(3)]
    [t.start() for t in threads]
    until(lambda: answers.count(200) > 30)
    end.set()
    [t.join() for t in threads]
    fleet.books_agree()
    changes = []
    for node in fleet.nodes:
        for first, last in fleets.rows_of(node, "SELECT started_us + 1000 * ttft_ms + 1000, ended_us - 5000 FROM usage"
                                                " WHERE output_tokens = 200"):
            if first < last:
                changes += [(first, 1), (last, -1)]
    running, most = 0, 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    assert len(changes) > 30 and most == 3, (len(changes), most)


def without_the_database(fleet):
    """Who has no limits notices nothing; who has some is told to wait, once what is leased is used up."""
    free, bound = fleet.tenant("free"), fleet.tenant("bound", tokens_per_minute=100000)
    ask = {"model": "base", "prompt": "1", "max_tokens": 1}
    for wire in fleet.wires:
        wire.cut()
    for node in fleet.nodes:
        for _ in range(5):
            assert node.call("POST", "/v1/completions", ask, key=free).status == 200
        r = until(lambda: (r := node.call("POST", "/v1/completions", ask, key=bound)).status != 200 and r)
        assert r.status == 503 and r.json["error"]["code"] == "storage_unavailable" and r.headers["retry-after"], r
        r = node.call("GET", "/admin/v1/usage", key=node.admin_key, port=node.admin_port)
        assert r.status == 503 and r.json["error"]["code"] == "storage_unavailable", r
    for wire in fleet.wires:
        wire.mend()
    for node in fleet.nodes:
        until(lambda: node.call("POST", "/v1/completions", ask, key=bound).status == 200)
    fleet.books_agree()


def servers_are_seen_drained_and_fenced(fleet):
    first, second, third = fleet.nodes

    def states():
        return [n["state"] for n in first.admin("GET", "/nodes")["data"]]

    def act(node, what):
        r = first.call("POST", f"/admin/v1/nodes/{node}/{what}", key=first.admin_key, port=first.admin_port)
        return r.status, r.json.get("error", {}).get("param") or r.json.get("status")
    assert states() == ["alive"] * 3
    nodes = first.admin("GET", "/nodes")["data"]
    assert [(n["node"], n["this"]) for n in nodes] == [(0, True), (1, False), (2, False)], nodes
    key = fleet.tenant("fenced", max_concurrent=1)
    assert act(1, "drain") == (202, "draining")
    assert second.process.wait(60) == 0  # it ends by itself
    second.stop()
    assert states()[1] == "stopped", first.admin("GET", "/nodes")
    assert act(1, "drain") == (404, "node") and act(7, "drain") == (404, "node") and act("x", "drain") == (400, "node")
    second.start()
    assert states() == ["alive"] * 3
    assert act(2, "fence") == (409, "node"), "it is alive"
    # It dies with the only seat taken: that is nobody else's before it comes back, or is fenced.
    c = third.connect()
    c.request("POST", "/v1/completions", json.dumps({"model": "base", "prompt": "1 2 3", "max_tokens": 400, "stream": True,
                                                     "ignore_eos": True}),
              {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    assert c.getresponse().status == 200
    third.stop(signal.SIGKILL)
    ask = {"model": "base", "prompt": "1", "max_tokens": 1}
    assert first.call("POST", "/v1/completions", ask, key=key).status == 429
    fleet.postgres.sql("UPDATE lorad_nodes SET heartbeat = heartbeat - interval '1 minute' WHERE node = 2")
    assert states() == ["alive", "alive", "silent"]
    assert first.call("POST", "/v1/completions", ask, key=key).status == 429
    assert act(2, "fence") == (200, "fenced")
    assert first.call("POST", "/v1/completions", ask, key=key).status == 200
    third.start()
    assert states() == ["alive"] * 3


def a_node_s_directory_is_backed_up(fleet):
    node = fleet.nodes[2]
    key = fleet.tenant("kept")
    fleet.wires[2].cut()
    assert node.call("POST", "/v1/completions", {"model": "base", "prompt": "1", "max_tokens": 1}, key=key).status == 200
    node.stop()
    copy = node.dir.with_suffix(".copy")
    made = fleets.lorad("backup", "-c", node.dir / "lorad.conf", "--dir", copy)
    assert made.returncode == 0, made
    assert fleets.rows_of(node, "SELECT count(*) > 0 FROM usage_unshipped") == [(1,)]
    fleet.wires[2].mend()
    shutil.move(node.dir, node.dir.with_suffix(".lost"))
    shutil.copytree(node.dir.with_suffix(".lost"), node.dir)  # the certificate, the configuration
    for name in ("lorad.db", "lorad.db-wal", "lorad.db-shm"):
        (node.dir / name).unlink(missing_ok=True)
    shutil.copy(copy / "lorad.db", node.dir / "lorad.db")
    node.start()
    fleet.books_agree()
    assert fleet.usage(fleet.nodes[0], "kept")[0] == 1
    for suffix in (".copy", ".lost"):
        shutil.rmtree(node.dir.with_suffix(suffix))


def an_older_fleet_gets_its_tables(fleet):
    """From before there were leases: the first node that starts makes what is missing, the others use it."""
    first = fleet.nodes[0]
    first.stop()
    fleet.postgres.sql("DROP TABLE lorad_limits, lorad_leases, lorad_budgets, lorad_usage, lorad_usage_hours;"
                       " DROP FUNCTION lorad_lease; DROP TYPE lorad_ask, lorad_ask_limit; ALTER TABLE lorad_meta DROP COLUMN migration;"
                       " ALTER TABLE lorad_nodes DROP COLUMN lease_turn, DROP COLUMN drain, DROP COLUMN door, DROP COLUMN facts")
    first.start()
    key = fleet.tenant("older", tokens_per_day=50)
    assert fleets.Load(fleet, key, 1).join() is None
    for node in fleet.nodes:
        assert 0 < fleet.usage(node, "older")[1] <= 50


def a_fleet_from_before_prices(fleet):
    """Its usage is kept, and has cost nothing; new usage has its cost."""
    first = fleet.nodes[0]
    key = fleet.tenant("unpriced")
    ask = {"model": "base", "prompt": "1", "max_tokens": 2, "ignore_eos": True, "service_tier": "default"}
    assert first.call("POST", "/v1/completions", ask, key=key).status == 200
    tokens = fleet.usage(first, "unpriced")
    first.stop()
    fleet.postgres.sql("ALTER TABLE lorad_usage DROP COLUMN cost; ALTER TABLE lorad_usage_hours DROP COLUMN cost;"
                       " ALTER TABLE lorad_nodes DROP COLUMN facts; UPDATE lorad_meta SET migration = 4")
    first.start()
    assert fleet.usage(first, "unpriced") == tokens
    first.admin("PATCH", "/config", {"class.standard.price_output": 5_000_000})
    assert first.call("POST", "/v1/completions", ask, key=key).status == 200
    rows = [r for b in first.admin("GET", "/usage?tenant=unpriced")["data"] for r in b["results"]]
    assert sum(r["cost_micros"] for r in rows) == 10, rows
    first.admin("PATCH", "/config", {"class.standard.price_output": None})


def all_of_it():
    only = os.environ.get("LORAD_STEP")
    with fleets.Fleet(clocks=True) as fleet:
        for step in (a_budget_is_spent_and_not_more, a_budget_in_money_is_the_fleet_s, a_minute_is_the_fleet_s, seats_are_the_fleet_s,
                     without_the_database, servers_are_seen_drained_and_fenced, a_node_s_directory_is_backed_up, whatever_happens,
                     an_older_fleet_gets_its_tables, a_fleet_from_before_prices):
            if only and step.__name__ != only:
                continue
            begin = time.monotonic()
            step(fleet)
            print(f"  {step.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)


run([all_of_it])
