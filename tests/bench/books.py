"""books.py disk-full | db-locked | kill-9 [ROUNDS] -- what becomes of usage that the database cannot take, and of usage at
SIGKILL; prints one JSON object.  Clients keep books of their own, request by request (tests/e2e/books.py).

A null model (two layers of 64) answers, so that the books are most of the work.
disk-full   20,000 completions while the data's disk is full (a small tmpfs where this process may mount one, else a limit
            on the size of files), then so many that the smallest spool is full, too
db-locked   the same while another process holds the write lock, for 60 s at least
kill-9      200 kills in the middle of streams, at random moments
"""
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import books  # noqa: E402
from books import Client, ask_each, compare, state, wait_for  # noqa: E402
from gateway import null_model  # noqa: E402
from harness import Server  # noqa: E402
from small_disk import SmallDisk  # noqa: E402

COUNT, LOCK_S, CLIENTS, BUDGET = 20000, 60, 8, 3000
QUIET = {"log.level": "error"}


def p99_ms(seconds):
    return sorted(seconds)[len(seconds) * 99 // 100] * 1000


def first_answer_s(client):
    """Seconds until it is served again."""
    start = time.monotonic()
    while True:
        client.ask(most=1, n=1)
        if client.requests[-1].status == 200:
            return time.monotonic() - start
        time.sleep(0.05)


def has_room(server):
    """Less than three quarters of the spool are taken."""
    _, waits, slots = state(server)
    return 4 * waits < 3 * slots


def through(server, clients, fault, least_s):
    """COUNT completions in the fault, and more for so long, as the spool has room: past that a 503 is right."""
    calm = ask_each(clients, COUNT // 20)
    poor = [Client(server, "bob", 100 + i) for i in range(2)]
    with fault(server):
        begin = time.monotonic()
        ask_each(poor, BUDGET // 10)
        took = ask_each(clients, COUNT)
        while time.monotonic() - begin < least_s:
            if has_room(server):
                took += ask_each(clients, 200)
            else:
                for c in clients:
                    c.hang_up()  # the server would, meanwhile
                time.sleep(0.1)
        now, waits, slots = state(server)
        held_s = time.monotonic() - begin
    served_s = first_answer_s(clients[0])
    settled_s = wait_for(server, "ok")
    calm += ask_each(clients, COUNT // 20)
    refused = [r for c in clients for r in c.requests if r.status != 200]
    return poor, {"completions": len(took), "held_s": held_s, "state": now, "waiting": waits, "slots": slots, "refused": len(refused),
                  "calm_p99_ms": p99_ms(calm), "p99_ms": p99_ms(took), "added_p99_ms": p99_ms(took) - p99_ms(calm),
                  "served_s": served_s, "settled_s": settled_s, "budget": BUDGET, "budget_used": sum(c.used() for c in poor)}


def beyond(server, clients, fault):
    """Until the spool is full."""
    before = [len(c.requests) for c in clients]
    with fault(server):
        while state(server)[0] != "full":
            ask_each(clients, 200, most=2)
        ask_each(clients, 200, most=2)
        ready = server.call("GET", "/readyz", port=server.metrics_port).status
    served_s = first_answer_s(clients[0])
    settled_s = wait_for(server, "ok")
    rest = [r for c, n in zip(clients, before) for r in c.requests[n:] if r.status != 200]
    true = sum(r.status == 503 and r.code == "storage_unavailable" for r in rest)
    return {"refused": true, "other": len(rest) - true, "readyz": ready, "served_s": served_s, "settled_s": settled_s}


def outage(name):
    with SmallDisk(96) as disk:
        full = (lambda _: disk.full()) if disk.mounted else books.no_room
        fault, least_s = (full, 0) if name == "disk-full" else (books.locked, LOCK_S)
        server = Server(model=null_model(), directory=disk.path / "data", settings=QUIET)
        server.log_path = disk.tmp / "log"
        with server:
            server.tenant("alice")
            server.tenant("bob", limits={"tokens_per_day": BUDGET})
            clients = [Client(server, "alice", i) for i in range(CLIENTS)]
            poor, out = through(server, clients, fault, least_s)
            server.stop()
            for c in clients + poor:
                c.hang_up()
            server.settings["data.spool"] = "256KiB"
            server.start()
            out["full spool"] = beyond(server, clients, fault)
            out["books"] = compare(server, clients + poor)
        return out


def kills(rounds):
    with Server(model=null_model(), settings=QUIET) as server:
        server.tenant("alice")
        clients = [Client(server, "alice", i) for i in range(2 * CLIENTS)]
        load_s, start_s = books.kill(server, clients, rounds, seed=9)
        cut = sum(r.status is None for c in clients for r in c.requests)
        seen = compare(server, clients)
    return {"kills": rounds, "per_second": seen["answers"] / load_s, "cut_short": cut, "start_s": start_s, "books": seen}


if __name__ == "__main__":
    what = sys.argv[1]
    print(json.dumps(kills(int(sys.argv[2]) if len(sys.argv) > 2 else 200) if what == "kill-9" else outage(what)))
