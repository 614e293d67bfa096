"""batch_beside.py MODEL_DIR [SECONDS [ROUNDS]] -- what a batch does to interactive requests, and what it gets.

In turns, so that the machine's moods fall on all alike: interactive requests alone (streams that come at random, the same ones in
every phase), the same beside a batch of short lines, and the batch alone. Looked at is the time to the first token, at the client,
and what the batch makes of the time that interactive requests leave: its tokens a second over those of the batch alone, times the
share of the time in which the engine computed nothing while they were alone. One line of JSON."""
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


def phase(server, key, seconds, rate, seed, batch):
    """TTFTs, and lines a second of the batch."""
    rng, clients, n = random.Random(seed), [], 0
    was, begun = done(server), time.perf_counter()
    due = begun
    while rate:
        due += rng.expovariate(rate)
        if due > begun + seconds:
            break
        time.sleep(max(0, due - time.perf_counter()))
        clients.append(Client(server, key, 1000 * seed + n))
        n += 1
    time.sleep(max(0, begun + seconds - time.perf_counter()))
    lines = (done(server) - was) / (time.perf_counter() - begun)
    for c in clients:
        c.join()
    return [c.ttft for c in clients], lines if batch else 0


def p(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main(model, seconds=30, rounds=3):
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
        file = upload(server, key, 50000)
        out = {"rate": rate, "lone_s": statistics.median(lone), "rounds": []}
        for i in range(rounds):
            alone, _ = phase(server, key, seconds, rate, i, False)
            batch = begin(server, key, file)
            beside, lines = phase(server, key, seconds, rate, i, True)
            _, most = phase(server, key, seconds / 2, 0, i, True)
            finish(server, key, batch)
            out["rounds"].append({"n": len(alone), "alone": [p(alone, 0.5), p(alone, 0.99)], "beside": [p(beside, 0.5), p(beside, 0.99)],
                                  "lines": lines, "most": most})
        out["p99"] = statistics.median(r["beside"][1] / r["alone"][1] for r in out["rounds"])
        out["p50"] = statistics.median(r["beside"][0] / r["alone"][0] for r in out["rounds"])
        out["used"] = statistics.median(r["lines"] / r["most"] / (1 - LOAD) for r in out["rounds"])
        out["load"] = os.getloadavg()[0]  # of this machine, this bench's own share among it
        print(json.dumps(out))


main(sys.argv[1], *(float(x) for x in sys.argv[2:3]), *(int(x) for x in sys.argv[3:4]))
