"""kill -9 in mid-stream: after a restart the ledger holds what the engine had made, for every client."""
import json
import random
import signal
import sqlite3
import struct
import threading
import time

import books
from harness import Server, run

ROUNDS, CLIENTS = 3, 6
server = Server()
begun = threading.Event()  # a stream has reached its client
received = {}  # tenant -> output tokens that reached the client; never more than what is billed


def stream_until_cut(name, key):
    body = {"model": "base", "prompt": "The", "max_tokens": 900, "ignore_eos": True, "stream": True,
            "return_token_ids": True, "temperature": 0}
    try:
        c = server.connect(timeout=30)
        c.request("POST", "/v1/completions", json.dumps(body),
                  {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        r = c.getresponse()
        for line in r:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    received[name] += len(choice.get("token_ids") or [])
                begun.set()
    except (OSError, ValueError, EOFError):
        pass
    except Exception as e:  # http.client's own ways to say that the stream broke off
        if "Incomplete" not in type(e).__name__ and "Remote" not in type(e).__name__:
            raise


def billed(name):
    server.booked()
    page = server.admin("GET", f"/usage?tenant={name}")
    return sum(x["output_tokens"] for b in page["data"] for x in b["results"])


def engine_counts():
    """{tenant: output tokens} that the killed engine had counted for requests it had not finished: the
    slots in use of the meter file (storage/meter_file.c), read by somebody else's hand."""
    data = (server.dir / "meters").read_bytes()
    magic, slot_bytes, n_slots = struct.unpack_from("<8sII", data)
    assert magic == b"LRDMETR2", magic
    db = sqlite3.connect(f"file:{server.dir / 'lorad.db'}?mode=ro", uri=True)
    names = dict(db.execute("SELECT id, name FROM tenants"))
    db.close()
    out = {}
    for i in range(n_slots):
        at = 4096 + i * slot_bytes
        if struct.unpack_from("<I", data, at)[0] == 0:
            continue
        output = struct.unpack_from("<4I", data, at + 64)[2]
        tenant = struct.unpack_from("<2Q", data, at + 128)[1]
        out[names[tenant]] = out.get(names[tenant], 0) + output
    return out


def nothing_is_lost_over_kills():
    rng = random.Random(7)
    keys = {f"t{i}": server.tenant(f"t{i}") for i in range(CLIENTS)}
    received.update({n: 0 for n in keys})
    made = {n: 0 for n in keys}
    for _ in range(ROUNDS):
        threads = [threading.Thread(target=stream_until_cut, args=a) for a in keys.items()]
        begun.clear()
        for t in threads:
            t.start()
        assert begun.wait(600)
        time.sleep(rng.random() * 0.1)
        server.stop(signal.SIGKILL)
        for t in threads:
            t.join()
        unfinished = engine_counts()
        assert unfinished, "the kill met no running request: the test shows nothing"
        server.start()
        for n in keys:
            now = billed(n)
            assert now >= received[n], (n, now, received[n])
            assert now - made[n] == unfinished.get(n, 0), (n, now, made[n], unfinished)
            made[n] = now
    assert sum(received.values()) > 0, "no stream had begun: the test shows nothing"
    # one more whole request: the sum grows by just its tokens
    r = server.call("POST", "/v1/completions", {"model": "base", "prompt": "The", "max_tokens": 7,
                                                "ignore_eos": True}, key=keys["t0"])
    assert r.json["usage"]["completion_tokens"] == 7, r
    assert billed("t0") == made["t0"] + 7


def a_second_start_settles_nothing_again():
    before = [billed(f"t{i}") for i in range(CLIENTS)]
    assert server.stop() == 0
    server.start()
    assert [billed(f"t{i}") for i in range(CLIENTS)] == before


def answers_that_were_finished_keep_their_rows():
    server.tenant("books")
    clients = [books.Client(server, "books", i) for i in range(CLIENTS)]
    books.kill(server, clients, ROUNDS, seed=3)
    seen = books.compare(server, clients)
    assert seen["answers"] > 0 and seen["lost"] == seen["doubled"] == seen["wrong"] == 0, seen


with server:
    run([nothing_is_lost_over_kills, a_second_start_settles_nothing_again,
         answers_that_were_finished_keep_their_rows])
