"""batch_beside.py MODEL_DIR [SECONDS [ROUNDS]] -- what a batch does to interactive requests, and what it gets.

Many short rounds, so that a mood of the machine falls on all that is compared: interactive requests alone (streams that come at
random), the very same beside a batch of short lines (every other round these two in the other order), and the batch alone. Looked
at is the time to the first token, at the client: the 99th percentiles of three rounds together, beside over alone, and of these
ratios the median, which one burst of somebody else's work does not move. And what the batch makes of the time that interactive
requests leave: its lines a second over those of the batch alone, times the share of the time in which the engine computed nothing
while they were alone (measured, not assumed). One line of JSON."""
import json
import os
import pathlib
import random
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import Server, until  # noqa: E402

PROMPT, ANSWER, LINE = 96, 24, 24  # tokens; of interactive requests, of a line's answer
LOAD = 0.4  # of the time that interactive requests alone are to take
GROUP = 3  # rounds whose requests are looked at together: a percentile needs some hundreds


class Client(threading.Thread):
    """One interactive request: when its first token came."""

    def __init__(self, server, key, seed):
        super().__init__(daemon=True)
        self.server, self.key, self.seed, self.ttft, self.end = server, key, seed, None, None
        self.start()

    def run(self):
        rng = random.Random(self.seed)
        body = {"model": "base", "prompt": [rng.randrange(100, 5000) for _ in range(PROMPT)], "max_tokens": ANSWER, "ignore_eos": True,
                "stream": True, "service_tier": "priority"}
        c = self.server.connect(timeout=120)
        c.connect()
        begun = time.perf_counter()
        c.request("POST", "/v1/completions", json.dumps(body), {"Authorization": "Bearer " + self.key, "Content-Type": "application/json"})
        answer = c.getresponse()
        assert answer.status == 200, answer.read()
        for line in answer:
            if line.startswith(b"data: {") and self.ttft is None:
                self.ttft = time.perf_counter() - begun
        self.end = time.perf_counter()
        c.close()


def upload(server, key, lines):
    data = "".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {
        "model": "base", "prompt": [100 + i % 4000] * 32, "max_tokens": LINE, "ignore_eos": True}}) + "\n" for i in range(lines))
    body = ("--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--x\r\nContent-Disposition: form-data; "
            f"name=\"file\"; filename=\"a\"\r\n\r\n{data}\r\n--x--\r\n").encode()
    r = server.call("POST", "/v1/files", body, key=key, headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert r.status == 200, r
    return r.json["id"]


def begin(server, key, file):
    r = server.call("POST", "/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}, key=key)
    assert r.status == 200, r
    until(lambda: server.metrics()["lorad_batch_lines_running"] > 0)
    return r.json["id"]


def finish(server, key, batch):
    server.call("POST", f"/v1/batches/{batch}/cancel", {}, key=key)
    until(lambda: server.metrics()["lorad_batches"] == 0)


def done(server):
    return server.metrics()['lorad_batch_lines_total{result="completed"}']


def steps(server):
    return server.metrics()["lorad_step_seconds_total"]


def phase(server, key, seconds, rate, seed, batch):
    """TTFTs, lines a second of the batch, the share of the time that steps took."""
    rng, clients, n = random.Random(seed), [], 0
    was, busy, begun = done(server), steps(server), time.perf_counter()
    due = begun
    while rate:
        due += rng.expovariate(rate)
        if due > begun + seconds:
            break
        time.sleep(max(0, due - time.perf_counter()))
        clients.append(Client(server, key, 1000 * seed + n))
        n += 1
    time.sleep(max(0, begun + seconds - time.perf_counter()))
    took = time.perf_counter() - begun
    lines, busy = (done(server) - was) / took, (steps(server) - busy) / took
    for c in clients:
        c.join()
    return [c.ttft for c in clients], lines if batch else 0, busy


def p(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def one_round(server, key, file, seconds, rate, i):
    """The same requests alone and beside the batch, one way round or the other; then the batch alone."""
    out = {}
    for beside in (False, True) if i % 2 == 0 else (True, False):
        batch = begin(server, key, file) if beside else None
        ttft, lines, busy = phase(server, key, seconds, rate, i, beside)
        if beside:
            out |= {"beside": ttft, "lines": lines, "most": phase(server, key, seconds / 2, 0, i, True)[1]}
            finish(server, key, batch)
        else:
            out |= {"alone": ttft, "busy": busy}
    return out


def together(rounds, which, share):
    return p([x for r in rounds for x in r[which]], share)


def main(model, seconds=10, rounds=12):
    settings = {"engine.speculate": "off", "files.max_bytes": "64MiB", "log.level": "warn"}
    with Server(model=pathlib.Path(model).resolve(), settings=settings) as server:
        key = server.tenant("t", weight=1)
        lone = []
        for i in range(8):  # what one costs, with nothing beside it
            c = Client(server, key, i)
            begun = time.perf_counter()
            c.join()
            lone.append(c.end - begun)
        rate = LOAD / statistics.median(lone)
        file = upload(server, key, 100000)
        all_rounds = [one_round(server, key, file, seconds, rate, i) for i in range(rounds)]
        groups = [all_rounds[i:i + GROUP] for i in range(0, rounds - rounds % GROUP, GROUP)] or [all_rounds]
        out = {"rate": rate, "lone_s": statistics.median(lone), "n": sum(len(r["alone"]) for r in all_rounds), "groups": [
            {which: [together(g, which, share) for share in (0.5, 0.99)] for which in ("alone", "beside")} for g in groups]}
        for name, k in (("p50", 0), ("p99", 1)):
            out[name] = statistics.median(g["beside"][k] / g["alone"][k] for g in out["groups"])
        out["used"] = statistics.median(r["lines"] / r["most"] / (1 - r["busy"]) for r in all_rounds)
        out["busy"] = statistics.median(r["busy"] for r in all_rounds)
        out["load"] = os.getloadavg()[0]  # of this machine, this bench's own share among it
        print(json.dumps(out))


main(sys.argv[1], *(float(x) for x in sys.argv[2:3]), *(int(x) for x in sys.argv[3:4]))
