"""From a trainer's hands to the first token of the new version: push.py MODEL [TURNS] [UPDATES]

MODEL has adapters r000 and r001 of about 10 MB.  In each turn 64 streams run on the base, first alone, then beside
pushes by /v1/load_lora_adapter with the files in the body, or the other way round.  A push is a version that the
server has never seen; its first token is asked for over a second connection as soon as the answer is there.  The trainer
stands for a machine of its own: meanwhile it goes before server and streams, where the system grants that.  How much of
their delay is its own shows a third way: a thread that takes as much processor time as often, and pushes nothing.

This is done twice: with a push as soon as 300 ms after the last, so that every tenth step and more meets one; and with
one each 15 seconds, four times as often as an adapter that changes every minute.  Last come UPDATES versions of two
small contents in turns, each asked for at once by four clients that know what each says.

One line of JSON: medians of the milliseconds to the answer and from there to the first token, the most of both; the
server's processor time for one push (all its threads but those that compute), the trainer's; p99 between the streams'
tokens, beside over alone, in both rhythms, and beside the trainer's processor time over alone; wrong answers; how much memory grew over the last three quarters of the updates.
"""
import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from harness import BUILD, Server  # noqa: E402

STREAMS, TOKENS, MARK = 64, 250, "push.py"
OFTEN = {"rounds": 1, "pushes": 8, "pause": 0.3}
BY_THE_MINUTE = {"rounds": 12, "pushes": 100, "pause": 15}  # until the streams have ended, some 70 s
PROMPT = list(range(20, 60))
COMPUTE = ("compute", "engine")  # threads of the engine


class Line:
    """A connection that stays open, as trainers' clients keep it."""

    def __init__(self, server, key):
        self.c = http.client.HTTPSConnection("localhost", server.port, timeout=600, context=server.tls())
        self.key = key

    def post(self, path, body, kind="application/json"):
        self.c.request("POST", path, body, {"Authorization": f"Bearer {self.key}", "Content-Type": kind})
        r = self.c.getresponse()
        got = r.read()
        assert r.status == 200, (r.status, got[:300])
        return r.headers, got

    def ask(self, n=1, **more):
        body = {"prompt": PROMPT, "max_tokens": n, "temperature": 0, "ignore_eos": True, **more}
        return self.post("/v1/completions", json.dumps(body).encode())

    def push(self, name, form):
        return self.post("/v1/load_lora_adapter", form, f"multipart/form-data; boundary={MARK}")[0]["x-adapter-version"]


def form_of(name, folder):
    """The body as requests makes it, and where the last file's values end in it."""
    out = b""
    for field, value in (("lora_name", name), ("load_inplace", "true")):
        out += f'--{MARK}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'.encode()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        out += f'--{MARK}\r\nContent-Disposition: form-data; name="files"; filename="{file}"\r\n\r\n'.encode()
        out += (folder / file).read_bytes() + b"\r\n"
    return bytearray(out + f"--{MARK}--\r\n".encode()), len(out) - 2


def other(form, end, draw):
    """The same with another content: low bits of values of BF16."""
    for _ in range(64):
        form[end - 2 - 2 * draw.randrange(100000)] ^= 1
    return bytes(form)


def spent(server):
    """Seconds of processor time of the server's threads but the engine's."""
    total, tick = 0, os.sysconf("SC_CLK_TCK")
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        if not name.startswith(COMPUTE):
            total += sum(map(int, rest.split()[11:13])) / tick
    return total


def memory(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


class Streams:
    """64 of them by bench_load, which prints what it saw at their end; where one ends, the next round's begins."""

    def __init__(self, server, key, tmp, seed, rounds):
        (tmp / "trace").write_text(f"0 -1 16 {TOKENS}\n" * (STREAMS * rounds))
        (tmp / "key").write_text(key + "\n")
        self.p = subprocess.Popen([BUILD / "bench_load", "--url", f"https://localhost:{server.port}", "--key-file", tmp / "key", "--ca", server.ca,
                                   "--trace", tmp / "trace", "--concurrency", str(STREAMS), "--vocab", "30000", "--seed", str(seed), "--gather", "yes"],
                                  stdout=subprocess.PIPE, text=True)

    def p99(self):
        r = json.loads(self.p.communicate()[0].splitlines()[-1])
        assert r["errors"] == 0, r
        return r["itl_p99_ms"]


@contextlib.contextmanager
def first():
    """This thread before others."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, nice - 10)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def push_once(a, b, form, end, draw):
    body = other(form, end, draw)
    for line in (a, b):  # the server closes those that are idle
        line.c.close()
        line.c.connect()
    with first():
        began, own = time.monotonic(), time.thread_time()
        version = a.push("policy", body)
        answered, own = time.monotonic(), time.thread_time() - own
        headers, _ = b.ask(model="policy")
        over = time.monotonic()
    assert headers["x-adapter-version"] == version, headers
    return (answered - began) * 1000, (over - answered) * 1000, own * 1000


def take_time(ms):
    """A trainer's processor time without a push."""
    with first():
        end = time.thread_time() + ms / 1000
        while time.thread_time() < end:
            hashlib.sha256(bytes(1 << 16))


def beside(server, key, tmp, turn, draw, form, end, seen, how, own_ms=None):
    """own_ms: no pushes, but so much of the trainer's time for each."""
    a, b = Line(server, key), Line(server, key)
    b.ask(model="base")
    streams = Streams(server, key, tmp, turn, how["rounds"])
    time.sleep(1.5)  # all of them run
    before = spent(server)
    n = 0
    while n < how["pushes"] and streams.p.poll() is None:
        if own_ms is None:
            seen.append(push_once(a, b, form, end, draw))
        else:
            take_time(own_ms)
        n += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            streams.p.wait(how["pause"])
    idle = spent(server) - before
    return streams.p99(), idle / max(n, 1)


def updates(server, key, model, n):
    """Versions of two contents in turns; clients know each by its digest."""
    forms = [bytes(form_of("turns", model / f"adapters/r{i:03}")[0]) for i in range(2)]
    line, known = Line(server, key), {}
    for form in forms:
        line.push("turns", form)
        headers, got = line.ask(n=4, model="turns", logprobs=0)
        known[headers["x-adapter-digest"]] = json.loads(got)["choices"][0]["logprobs"]["token_logprobs"]
    stop, wrong, answers = threading.Event(), [], []

    def client():
        own = Line(server, key)
        while not stop.is_set():
            headers, got = own.ask(n=4, model="turns", logprobs=0)
            right = json.loads(got)["choices"][0]["logprobs"]["token_logprobs"] == known[headers["x-adapter-digest"]]
            answers.append(right)
            if not right:
                wrong.append(headers["x-adapter-version"])

    sizes = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client) for _ in range(4)]
        try:
            for i in range(n):
                line.push("turns", forms[i % 2])
                if i >= n // 4:
                    sizes.append(memory(server))
        finally:
            stop.set()
        for c in clients:
            c.result()
    tenth = max(len(sizes) // 10, 1)
    grown = statistics.median(sizes[-tenth:]) / statistics.median(sizes[:tenth]) - 1
    return {"updates": n, "answers": len(answers), "wrong": len(wrong), "memory": round(grown, 4)}


def main():
    model, turns = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    n_updates = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    small = pathlib.Path(sys.argv[4]) if len(sys.argv) > 4 else model
    draw, seen, owns, cpu = random.Random(20), [], [], []
    ratios = {"p99": [], "p99_minute": []}
    out = {"load": round(os.getloadavg()[0], 1)}
    settings = {"engine.max_seqs": STREAMS + 8, "server.max_connections_per_ip": 200, "adapters.keep_versions": 2, "log.level": "warn",
                "class.interactive.tpot": "1s"}  # a machine that others load gives nobody a seat else
    with tempfile.TemporaryDirectory() as t, Server(model=model, settings=settings) as server:
        tmp, key = pathlib.Path(t), server.tenant("t")
        form, end = form_of("policy", model / "adapters/r000")
        out["mb"] = round(len(form) / 1e6, 2)
        line = Line(server, key)
        line.push("policy", bytes(form))
        line.ask(model="policy")
        quiet = [push_once(line, line, form, end, draw) for _ in range(OFTEN["pushes"])]
        for i in range(turns):
            for figure, how in (("p99", OFTEN), ("p99_minute", BY_THE_MINUTE)):
                p99 = {}
                ways = ("beside", "trainer", "alone") if how is OFTEN else ("beside", "alone")
                for way in ways if i % 2 else ways[::-1]:
                    if way == "alone":
                        p99[way] = Streams(server, key, tmp, 100 + i, how["rounds"]).p99()
                    elif way == "trainer":
                        own_ms = statistics.median(own for *_, own in seen or quiet)
                        p99[way], _ = beside(server, key, tmp, 200 + i, draw, form, end, seen, how, own_ms)
                    else:
                        p99[way], each = beside(server, key, tmp, i, draw, form, end, seen, how)
                        cpu += [each] if how is OFTEN else []
                ratios[figure].append(p99["beside"] / p99["alone"])
                owns += [p99["trainer"] / p99["alone"]] if how is OFTEN else []
                print(f"turn {i}, {figure}: {p99}", file=sys.stderr)
        if n_updates:
            out |= updates(server, key, small, n_updates)
    for name, list_of in (("quiet", quiet), ("beside", seen)):
        if list_of:
            sums = [a + b for a, b, _ in list_of]
            answer, token, own = (round(statistics.median(each), 1) for each in zip(*list_of, strict=True))
            out[name] = {"answer_ms": answer, "token_ms": token, "trainer_cpu_ms": own, "ms": round(statistics.median(sums), 1), "most_ms": round(max(sums), 1)}
    if turns:
        out |= {figure: round(statistics.median(each), 3) for figure, each in (*ratios.items(), ("p99_trainer", owns))}
        out["cpu_ms"] = round(statistics.median(cpu) * 1000, 1)
    print(json.dumps(out))


main()
