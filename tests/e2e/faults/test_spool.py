"""A database that cannot be written: requests are served, their usage waits in the spool, limits hold, and nothing
is lost or doubled, over a restart as well; a full spool refuses new work and says so."""
import os
import signal
import threading

import books
from books import Client, ask_each, compare, state, wait_for
from harness import Server, run, until

FAULTS = {"locked": books.locked, "no room": books.no_room}
server = Server(settings={"data.spool": "256KiB", "log.level": "warn"})
clients = []


def make_clients():
    clients.extend(Client(server, "alice", i) for i in range(8))


def restart(sig):
    assert server.stop(sig) == (0 if sig == signal.SIGTERM else -sig)
    for c in clients:
        c.hang_up()
    server.start()


def settled():
    wait_for(server, "ok")
    seen = compare(server, clients)
    assert seen["lost"] == seen["doubled"] == seen["wrong"] == 0, seen
    return seen


def stats():
    return server.stats("?tables=events")


def answers_go_on_through_each_fault():
    for name, fault in FAULTS.items():
        with fault(server):
            ask_each(clients, 100, most=4)
            assert state(server)[0] == "behind", (name, state(server))
            assert server.call("GET", "/readyz", port=server.metrics_port).status == 200
            told = stats()
            assert told["server"]["storage"] == "behind" and told["server"]["ready"], told["server"]
            assert told["server"]["spool_used"] >= 100 and told["server"]["spool_oldest_us"] > 0
            # The event is recorded while nobody asks for /stats.
            until(lambda: name != "locked" or server.metrics()["lorad_spool_oldest_seconds"] > 7.5)
            # This process holds the lock; a disk without room has no holder.
            now = until(lambda: (o := stats()["server"])["storage_reason"] and o)
            holder = now["storage_holder"]
            assert holder.startswith(f"{os.getpid()} (python") if name == "locked" else holder == "", now
        assert all(r.status == 200 for c in clients for r in c.requests), name
        assert settled()["answers"] == sum(len(c.requests) for c in clients)
        told = stats()
        assert told["server"]["storage"] == "ok" and not told["server"]["storage_reason"] + told["server"]["storage_holder"]
        kinds = [e["kind"] for e in told["events"] if e["kind"].startswith("storage.")]
        assert kinds == ["storage.behind", "storage.ok"], told["events"]  # the other fault is over within 5 s: no event
        assert server.metrics()["lorad_spool_oldest_seconds"] == 0
    assert server.metrics()["lorad_ledger_commit_failures_total"] > 0


def budgets_hold_meanwhile():
    server.tenant("bob", limits={"tokens_per_day": 600})
    mine = [Client(server, "bob", 100 + i) for i in range(4)]
    clients.extend(mine)
    with books.locked(server):
        ask_each(mine, 100)
        used = sum(c.used() for c in mine)
        refused = [r for c in mine for r in c.requests if r.status != 200]
        assert 500 < used <= 600 and {r.code for r in refused} == {"insufficient_quota"}, (used, refused)
        restart(signal.SIGKILL)  # what it used is in the spool alone
        assert state(server)[1] > 0
        view = server.call("GET", "/v1/key", key=mine[0].key).json["limits"]["tokens_per_day"]
        assert view == {"limit": 600, "remaining": 600 - used}, (used, view)
        ask_each(mine, 20)
        assert sum(c.used() for c in mine) <= 600
    settled()


def operators_are_told_in_time(done):
    r = server.call("POST", "/admin/v1/tenants", {"name": "late"}, key=server.admin_key, port=server.admin_port)
    done.append((r.status, r.json.get("error", {}).get("code")))


def a_stop_keeps_what_cannot_be_written():
    with books.locked(server):
        ask_each(clients[:8], 100)
        restart(signal.SIGTERM)
        assert state(server)[0] == "behind" and state(server)[1] >= 100
        ask_each(clients[:8], 50)
        restart(signal.SIGKILL)
        assert state(server)[1] >= 150
    settled()


def a_full_spool_refuses_and_recovers():
    told_operator = []
    with books.locked(server):
        operator = threading.Thread(target=operators_are_told_in_time, args=(told_operator,))
        operator.start()
        slots = state(server)[2]
        while state(server)[0] != "full":
            ask_each(clients[:8], 50, most=1, n=8)
        ready = server.call("GET", "/readyz", port=server.metrics_port)
        assert ready.status == 503 and ready.json["status"] == "storage unavailable", ready
        assert server.call("GET", "/healthz", port=server.metrics_port).status == 200
        told = stats()["server"]
        assert told["storage"] == "full" and not told["ready"] and told["spool_used"] >= slots, told
        r = server.ask(clients[0].key, "base", "What is 7 plus 5?")
        assert r.status == 503 and r.json["error"]["code"] == "storage_unavailable", r
        assert int(r.headers["retry-after"]) > 0
        refused = [r for c in clients[:8] for r in c.requests if r.status == 503]
        assert refused and {r.code for r in refused} == {"storage_unavailable"}
        assert all(r.status in (200, 503) for c in clients[:8] for r in c.requests)
        operator.join()
        assert told_operator == [(503, "storage_unavailable")], told_operator
    wait_for(server, "ok")
    assert server.call("GET", "/readyz", port=server.metrics_port).status == 200
    ask_each(clients[:8], 20)
    assert all(c.requests[-1].status == 200 for c in clients[:8])
    settled()


with server:
    server.tenant("alice")
    make_clients()
    run([answers_go_on_through_each_fault, budgets_hold_meanwhile, a_stop_keeps_what_cannot_be_written,
         a_full_spool_refuses_and_recovers])
