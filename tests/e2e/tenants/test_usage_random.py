"""5,000 random requests: whole, several choices, cut at random points, wrong, and a kill -9 in the middle; the
ledger's sums are what the clients counted."""
import http.client
import json
import os
import random
import signal
import socket
import threading
import time

from harness import PATIENCE, Server, run

COUNT = 5 * int(os.environ.get("LORAD_CROWD", "1000"))
CLIENTS = 24
server = Server(settings={"engine.max_seqs": 16, "log.level": "warn"})
lock = threading.Lock()
killed = threading.Event()
# Requests of one kind have a tenant of their own, so that each sum can be compared with its own bound.
KINDS = ("whole", "many", "cut", "wrong")
count = {k: {"requests": 0, "prompt": 0, "output": 0, "most": 0} for k in KINDS}


def usage(kind):
    server.booked()
    rows = [x for b in server.admin("GET", f"/usage?tenant={kind}")["data"] for x in b["results"]]
    return (sum(x["input_tokens"] for x in rows), sum(x["output_tokens"] for x in rows),
            sum(x["num_model_requests"] for x in rows))


def note(kind, prompt, output, most, rows=1):
    with lock:
        c = count[kind]
        c["requests"] += rows
        c["prompt"] += prompt
        c["output"] += output
        c["most"] += most


class Client:
    def __init__(self, seed):
        self.rng, self.c = random.Random(seed), None

    def post(self, kind, body):
        if self.c is None:
            self.c = server.connect()
        self.c.request("POST", "/v1/completions", json.dumps({"model": "base", **body}),
                       {"Authorization": f"Bearer {keys[kind]}", "Content-Type": "application/json"})
        return self.c.getresponse()

    def one(self):
        kind = self.rng.choice(KINDS)
        prompt = [self.rng.randrange(300, 1700) for _ in range(self.rng.randint(1, 40))]
        most = self.rng.randint(1, 24)
        body = {"prompt": prompt, "max_tokens": most, "seed": self.rng.randrange(1000)}
        if kind == "wrong":
            r = self.post(kind, {**body, **self.rng.choice([{"temperature": -1}, {"model": "nobody"}, {"top_p": 2},
                                                            {"prompt": [1] * 5000}, {"max_tokens": -1}])})
            r.read()
            assert r.status in (400, 404), r.status
        elif kind == "cut":
            r = self.post(kind, {**body, "max_tokens": 200, "ignore_eos": True, "stream": True, "return_token_ids": True})
            got, frames = 0, self.rng.randint(0, 12)
            while frames and (line := r.readline()):
                if line.startswith(b"data: {"):
                    frames -= 1
                    got += sum(len(c.get("token_ids") or []) for c in json.loads(line[6:])["choices"])
            self.c.sock.shutdown(socket.SHUT_RDWR)
            self.c.close()
            self.c = None
            note(kind, len(prompt), got, 200)
        else:
            n = self.rng.randint(2, 4) if kind == "many" else 1
            stream = self.rng.random() < 0.5
            r = self.post(kind, {**body, "n": n, "stream": stream, "stream_options": {"include_usage": True}} if stream
                          else {**body, "n": n})
            text = r.read()
            assert r.status == 200, (r.status, text)
            if stream:
                last = [f for f in text.split(b"\n\n") if f.startswith(b"data: {")][-1]
                u = json.loads(last[6:])["usage"]
            else:
                u = json.loads(text)["usage"]
            assert u["prompt_tokens"] == len(prompt) and u["completion_tokens"] <= n * most, u
            note(kind, u["prompt_tokens"], u["completion_tokens"], n * most, n)


def storm(total):
    """Ends early, quietly, when the server dies under it."""
    left, errors, dead = [total], [], []

    def work(seed):
        client = Client(seed)
        while not dead and not errors:
            with lock:
                if left[0] == 0:
                    return
                left[0] -= 1
            try:
                client.one()
            except (OSError, http.client.HTTPException, ValueError) as e:
                if not killed.is_set():
                    errors.append(e)
                dead.append(e)
            except AssertionError as e:
                errors.append(e)
    threads = [threading.Thread(target=work, args=(total * 100 + i,)) for i in range(CLIENTS)]
    for t in threads:
        t.start()
    return threads, errors


def settled():
    """All that runs has ended: cut streams end a step later."""
    end = time.monotonic() + 120 * PATIENCE
    while server.metrics()["lorad_requests_running"] or server.metrics()["lorad_requests_waiting"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    while server.metrics().get("lorad_connections", 0) > 10 and time.monotonic() < end:
        time.sleep(0.05)


def sums_are_exact():
    threads, errors = storm(COUNT // 2)
    for t in threads:
        t.join()
    assert not errors, errors[:3]
    settled()
    for kind in ("whole", "many"):
        c = count[kind]
        assert c["requests"] > 0 and usage(kind)[1] == c["output"], (kind, usage(kind), c)
        assert usage(kind)[0] == c["prompt"], (kind, usage(kind), c)
    assert usage("wrong")[:2] == (0, 0), usage("wrong")
    c = count["cut"]
    assert c["output"] <= usage("cut")[1] <= c["most"] and usage("cut")[0] <= c["prompt"], (usage("cut"), c)


def sums_hold_over_a_kill():
    """What was in flight at the kill may be billed beyond what reached a client, by no more than it asked for."""
    before = {k: usage(k)[1] for k in KINDS}
    had = {k: count[k]["output"] for k in KINDS}
    threads, errors = storm(COUNT // 2)
    while sum(c["requests"] for c in count.values()) < COUNT // 2 + COUNT // 4 and any(t.is_alive() for t in threads):
        threads[0].join(0.01)
    killed.set()
    server.process.send_signal(signal.SIGKILL)
    for t in threads:
        t.join()
    server.stop()
    assert not errors, errors[:3]
    server.start()
    for kind in ("whole", "many", "cut"):
        billed, counted = usage(kind)[1] - before[kind], count[kind]["output"] - had[kind]
        slack = CLIENTS * (4 * 24) if kind != "cut" else 200 * (count["cut"]["requests"] + CLIENTS)
        assert counted <= billed <= counted + slack, (kind, billed, counted)
    assert usage("wrong")[:2] == (0, 0)


with server:
    keys = {k: server.tenant(k) for k in KINDS}
    run([sums_are_exact, sums_hold_over_a_kill])
