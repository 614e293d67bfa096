#!/usr/bin/env python3
"""writer.py [SECONDS] -- a tenant without limits that writes rows as fast as it can for so long (600 s), and others beside it.

Six connections of one process at low priority repeat every call that stores something for a tenant: conversations, stored
responses, adapters' descriptions and aliases, stacks, files, batches. Pairs of turns of another tenant's requests, one while
the writer runs and one while it is stopped (SIGSTOP), give the ratio of p99 times to the first token. The last line is
JSON: calls by status, bytes of the database with its log before and after, the ratios.
"""
import collections
import json
import os
import pathlib
import signal
import ssl
import statistics
import http.client
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/bench"))
sys.path.insert(0, str(ROOT / "tests/e2e"))
CONNECTIONS, TURN_REQUESTS = 6, 240


def form(line):
    """A file for batches as multipart/form-data."""
    parts = [('name="purpose"', "batch"), ('name="file"; filename="b.jsonl"', line)]
    return "".join(f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{text}\r\n" for head, text in parts) + "--b--\r\n"


def write(port, ca, key, count, stopped):
    """One connection's calls, until `stopped` is set; `count` gets a number for each status."""
    c = http.client.HTTPSConnection("localhost", port, context=ssl.create_default_context(cafile=ca), timeout=60)

    def call(method, path, body, content_type="application/json"):
        while not stopped.is_set():
            try:
                c.request(method, path, body if isinstance(body, str) else json.dumps(body),
                          {"Authorization": f"Bearer {key}", "Content-Type": content_type})
                r = c.getresponse()
                text = r.read()
            except (http.client.HTTPException, OSError):
                count["broken"] += 1
                c.close()
                continue
            count[r.status] += 1
            return json.loads(text) if r.status < 300 else {}
        return {}
    line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/completions",
                       "body": {"model": "base", "prompt": "x", "max_tokens": 1}}) + "\n"
    while not stopped.is_set():
        conversation = call("POST", "/v1/conversations", {"metadata": {"of": "the writer" * 20}}).get("id")
        call("POST", "/v1/responses", {"model": "base", "input": "x" * 200, "max_output_tokens": 1,
                                       **({"conversation": conversation} if conversation else {})})
        call("PATCH", "/v1/adapters/mine", {"description": "d" * 200 + str(time.time())})
        call("PUT", "/v1/adapters/mine/aliases/a", {"version": 1})
        call("PUT", "/v1/stacks/s", {"adapters": [{"name": "mine", "scale": 0.5}]})
        file = call("POST", "/v1/files", form(line), "multipart/form-data; boundary=b").get("id")
        if file:
            call("POST", "/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})


def writer(port, ca, key):
    """The process that writes: until SIGTERM, then one line of JSON."""
    os.nice(19)
    stopped, count = threading.Event(), collections.Counter()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a handler that sets an Event can wait for itself
    threads = [threading.Thread(target=write, args=(port, ca, key, count, stopped)) for _ in range(CONNECTIONS)]
    for t in threads:
        t.start()
    signal.sigwait({signal.SIGTERM})
    stopped.set()
    for t in threads:
        t.join()
    print(json.dumps({str(k): v for k, v in count.items()}))


def database_bytes(directory):
    return sum(f.stat().st_size for f in pathlib.Path(directory).glob("lorad.db*"))


def main(seconds):
    from gateway import load
    from harness import DEMO, Server, demo_adapters
    with Server(settings={"log.level": "warn"}) as s:
        key, other = s.tenant("writer"), s.tenant("other")
        s.upload(key, "mine", DEMO / "adapters" / demo_adapters()[0])
        trace = [f"{i * 25} -1 16 8" for i in range(TURN_REQUESTS)]
        load(s, other, trace, 8, 1700)
        before, pairs, sizes, wrote_s = database_bytes(s.dir), [], [], 0.0
        child = subprocess.Popen([sys.executable, __file__, "--write", str(s.port), str(s.ca), key], stdout=subprocess.PIPE, text=True)
        while wrote_s < seconds:
            since = time.monotonic()
            beside = load(s, other, trace, 8, 1700, len(pairs), gather=True)
            wrote_s += time.monotonic() - since
            sizes.append(database_bytes(s.dir))
            child.send_signal(signal.SIGSTOP)
            time.sleep(1)
            pairs.append((load(s, other, trace, 8, 1700, 1000 + len(pairs), gather=True), beside))
            child.send_signal(signal.SIGCONT)
        child.terminate()
        count = json.loads(child.communicate()[0])
    ratios = sorted(b["ttft_p99_ms"] / a["ttft_p99_ms"] for a, b in pairs)
    return {"seconds": round(wrote_s), "count": count, "before": before, "after": sizes[-1], "sizes": sizes,
            "ratio": statistics.median(ratios), "ratios": [round(r, 2) for r in ratios], "load": os.getloadavg()[0],
            "errors": sum(r["errors"] for both in pairs for r in both)}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        writer(int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        print(json.dumps(main(float(sys.argv[1]) if len(sys.argv) > 1 else 600)))
