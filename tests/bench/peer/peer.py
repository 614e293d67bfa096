"""peer.py -- lorad beside llama.cpp's server, in turns: peer.py startup SIZE | embeddings SIZE | ROW SIZE [FORM]

The same random BF16 weights on both sides, as safetensors and as GGUF (peer_gguf.py), two threads each; lorad over
TLS with keys, llama.cpp over plain HTTP; both run, one is asked.  llama.cpp is what LORAD_PEERS names (peer_engines.py), if its
target llama-server was built as well; lorad takes the instruction set that LORAD_BENCH_ISA says.  Else it is the wheel xllamacpp,
which goes into a virtual environment under build/bench, never into the tests.  That has AVX2's kernels alone, so lorad takes
AVX2's, too.  FORM (q8_0, q4_0, q4_k_s): the same quantised file on both sides.  One line of JSON.

startup  Process start to the first 200 of /readyz, or /health, and the processor time until then, which load beside
         does not move.  Files in the page cache.  llama.cpp's begins where its libraries are loaded: Python has no
         part in it; with_python_s is from the process' start.
embeddings  Prompts of 128 random tokens to vectors of the mean, eight in a request, one client.  The vectors are compared.
ROW      1, 8 or 8-adapters: one stream, eight, eight with an adapter each (rank 16 on all seven layers). Prompts of
         128 random tokens, 64 out, as fast as they go: each client thread asks again when it has its answer."""
import http.client
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tests/bench")]
from harness import Server, free_port  # noqa: E402
from process import cpu_s  # noqa: E402

VENV = ROOT / "build/bench/peer"
STREAMS, CONTEXT, PROMPT, OUT = 8, 512, 128, 64
ROWS = {"1": (1, False, 3), "8": (8, False, 2), "8-adapters": (8, True, 2)}  # streams, adapters, requests of each
TURNS = 3
EMBED_EACH, EMBED_REQUESTS, EMBED_TURNS = 8, 1, 5  # inputs of a request, requests of a turn


def ready():
    """The environment that llama.cpp runs in, made once."""
    if not (VENV / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        subprocess.run([VENV / "bin/pip", "install", "--quiet", "xllamacpp", "gguf", "numpy"], check=True)
        (VENV / "done").write_text("")


def prepared(size):
    """The model's folder, with its GGUF beside."""
    where = ROOT / "build/bench" / size
    if not (where / "config.json").exists() or not (where / "adapters").exists():
        subprocess.run([sys.executable, ROOT / "tests/tools/make_random_model.py", size, where, "--adapters", str(STREAMS)],
                       check=True)
    ready()
    subprocess.run([VENV / "bin/python", ROOT / "tests/bench/peer/peer_gguf.py", where], check=True)
    return where


def compiled(name, source, build):
    """peer_engine.c with a peer's own header and library."""
    to = ROOT / "build/bench" / f"peer_engine_{name}"
    argv = ["cc", "-std=gnu11", "-O2", f"-I{source}/include", f"-I{source}/ggml/include", ROOT / "tests/bench/peer/peer_engine.c",
            "-o", to] + (["-DPEER_IK"] if name == "ik" else [])
    for folder in sorted({p.parent for p in pathlib.Path(build).resolve().rglob("lib*.so") if p.name in ("libllama.so", "libggml.so")}):
        argv += [f"-L{folder}", f"-Wl,-rpath,{folder}"]
    subprocess.run(argv + ["-lllama", "-lggml"], check=True)
    return to


def named_peers():
    """Of LORAD_PEERS, "ik=SOURCE:BUILD llama=SOURCE:BUILD" or one of them: (SOURCE, BUILD) by name."""
    items = [item.partition("=") for item in os.environ.get("LORAD_PEERS", "").split()]
    return {name: where.partition(":")[::2] for name, _, where in items}


def peers():
    """Their programs by name."""
    named = named_peers()
    if not named or any(name not in ("ik", "llama") or not build for name, (_, build) in named.items()):
        print('LORAD_PEERS is not set: "ik=SOURCE:BUILD llama=SOURCE:BUILD", checkouts and where they are built', file=sys.stderr)
        sys.exit(2)
    return {name: compiled(name, *where) for name, where in named.items()}


def quantised(folder, form):
    """base.gguf as `form`, made once by the first peer."""
    if form == "bf16":
        return folder / "base.gguf"
    path = folder / f"{form}.gguf"
    if not path.exists():
        new, program = path.with_suffix(".new"), next(iter(peers().values()))
        subprocess.run([program, "--quantize", folder / "base.gguf", new, form.upper()], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        new.rename(path)
    return path


def answers(port, path, tls=None):
    """Whether it says 200."""
    try:
        c = http.client.HTTPSConnection("localhost", port, timeout=5, context=tls) if tls else \
            http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        c.request("GET", path)
        return c.getresponse().status == 200
    except OSError:
        return False
    finally:
        c.close()


def built_server():
    """The peer's own server and its libraries, or None: the wheel's."""
    _, build = named_peers().get("llama", ("", ""))
    server = pathlib.Path(build) / "bin/llama-server"
    return server if build and server.exists() else None


def own_isa():
    """What lorad takes, so that both sides have the same."""
    return os.environ.get("LORAD_BENCH_ISA") or ("auto" if built_server() else "avx2")


class Lorad(Server):
    def __init__(self, where, directory=None, settings=None):
        super().__init__(where, {"engine.threads": 2, "engine.isa": own_isa(), "log.level": "warn", **(settings or {})}, directory)

    def wait_ready(self, seconds=120):
        """Asks more often than the tests do."""
        tls = self.tls()
        while not answers(self.metrics_port, "/readyz", tls):
            assert self.process.poll() is None, self.log_path.read_text()
            time.sleep(0.01)

    def adapters(self, where):
        key = self.tenant("t")
        for i, folder in enumerate(sorted((where / "adapters").glob("r*"))[:STREAMS]):
            self.upload(key, f"a{i}", folder)
        return key


class Peer:
    """Of one file."""
    def __init__(self, path, adapters=(), embeds=False):
        self.port, server = free_port(), built_server()
        self.wheel = server is None
        if server:
            self.argv = [server, "-m", path, "--host", "127.0.0.1", "--port", str(self.port), "-np", str(STREAMS),
                         "-c", str(STREAMS * CONTEXT), "-t", "2", "-tb", "2", "--lora-init-without-apply"]
            self.argv += ["--embedding", "--pooling", "mean"] if embeds else []
            for adapter in adapters:
                self.argv += ["--lora", adapter]
        else:
            self.argv = [VENV / "bin/python", ROOT / "tests/bench/peer/peer_server.py", path, str(self.port), str(STREAMS), str(CONTEXT)]
            self.argv += [*(["--mean"] if embeds else []), *adapters]
        self.log = tempfile.TemporaryFile("w+")

    def __enter__(self):
        self.started = time.monotonic()
        self.process = subprocess.Popen(self.argv, stdout=subprocess.PIPE if self.wheel else self.log, stderr=self.log, text=True)
        assert not self.wheel or self.process.stdout.readline() == "begins\n"
        self.began, self.began_cpu_s = time.monotonic(), cpu_s(self.process.pid)
        while not answers(self.port, "/health"):
            if self.process.poll() is not None:
                self.log.seek(0)
                raise RuntimeError(self.log.read()[-4000:])
            time.sleep(0.01)
        return self

    def __exit__(self, *exc):
        self.process.terminate()
        self.process.wait(60)


# ------------------------------------------------------------------------------------------------ startup

def startup(where):
    took = {"lorad": [], "peer": []}
    with tempfile.TemporaryDirectory() as data:
        with Lorad(where, data):  # makes the directory, and keeps the packed weights there
            while not list(pathlib.Path(data).glob("packed/*.weights")):
                time.sleep(0.1)
        for _ in range(TURNS):
            with Peer(where / "gguf/base.gguf") as p:
                now = time.monotonic()
                took["peer"].append({"s": now - p.began, "cpu_s": cpu_s(p.process.pid) - p.began_cpu_s,
                                     "with_python_s": now - p.started})
            began = time.monotonic()
            with Lorad(where, data) as s:
                took["lorad"].append({"s": time.monotonic() - began, "cpu_s": cpu_s(s.process.pid)})
    return took


# --------------------------------------------------------------------------------------------------- load

class Client(threading.Thread):
    """One stream of requests over one connection."""

    def __init__(self, connect, headers, bodies):
        super().__init__()
        self.connection, self.headers, self.bodies = connect(), headers, bodies
        self.first, self.gaps, self.tokens, self.failed = [], [], 0, None

    def run(self):
        try:
            for body in self.bodies:
                self.ask(body)
        except (OSError, AssertionError, ValueError, http.client.HTTPException) as e:
            self.failed = repr(e)

    def post(self, body):
        """Once more where the server has closed what it had kept open."""
        for again in (True, False):
            try:
                self.connection.request("POST", "/v1/completions", body, self.headers)
                return self.connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                self.connection.close()
                if not again:
                    raise

    def ask(self, body):
        began, last, usage = time.monotonic(), None, None
        r = self.post(json.dumps(body))
        assert r.status == 200, r.read()
        while line := r.readline():
            if not line.startswith(b"data: {"):
                continue
            now, chunk = time.monotonic(), json.loads(line[6:])
            usage = chunk.get("usage") or usage
            if chunk.get("choices"):
                (self.gaps if last else self.first).append(1000 * (now - (last or began)))
                last = now
        assert usage["completion_tokens"] == OUT, usage
        self.tokens += OUT


def vocabulary_of(where):
    """Without the special tokens."""
    return json.loads((where / "config.json").read_text())["vocab_size"] - 3


def body_of(rng, vocabulary, more):
    return {"prompt": [rng.randrange(vocabulary) for _ in range(PROMPT)], "max_tokens": OUT, "ignore_eos": True,
            "temperature": 0.8, "top_k": 40, "top_p": 0.95, "stream": True, "stream_options": {"include_usage": True},
            **more}


def measure(connect, headers, bodies):
    """One client for each list of bodies."""
    clients = [Client(connect, headers, b) for b in bodies]
    began = time.monotonic()
    for c in clients:
        c.start()
    for c in clients:
        c.join()
    wall = time.monotonic() - began
    failed = [c.failed for c in clients if c.failed]
    assert not failed, failed
    gaps, first = [g for c in clients for g in c.gaps], [f for c in clients for f in c.first]
    return {"tokens_per_s": round(sum(c.tokens for c in clients) / wall, 2), "ttft_p50_ms": round(statistics.median(first), 1),
            "itl_p50_ms": round(statistics.median(gaps), 1)}


def load(where, row, form):
    model = quantised(where / "gguf", form) if form else where
    streams, adapters, each = ROWS[row]
    vocabulary = vocabulary_of(where)
    rng = random.Random(1)

    def bodies(of, n, more):
        return [[body_of(rng, vocabulary, more(i)) for _ in range(n)] for i in range(of)]

    def ours(i):
        return {"model": f"a{i}" if adapters else "base"}

    def theirs(i):
        return {"lora": [{"id": i, "scale": 1.0}]} if adapters else {}

    took, plain = {"lorad": [], "peer": []}, {"Content-Type": "application/json"}
    beside = Peer(model if form else where / "gguf/base.gguf", sorted((where / "gguf").glob("r*.gguf"))[:STREAMS] if adapters else ())
    with tempfile.TemporaryDirectory() as data, Lorad(model, data) as server, beside as peer:
        headers = {"Authorization": f"Bearer {server.adapters(where)}", **plain}

        def connect_peer():
            return http.client.HTTPConnection("127.0.0.1", peer.port, timeout=600)

        def connect():
            return server.connect(timeout=600)

        measure(connect, headers, bodies(streams, 1, ours))  # brings pages and adapters in
        measure(connect_peer, plain, bodies(streams, 1, theirs))
        for _ in range(TURNS):
            took["lorad"].append(measure(connect, headers, bodies(streams, each, ours)))
            took["peer"].append(measure(connect_peer, plain, bodies(streams, each, theirs)))
    return took


# --------------------------------------------------------------------------------------------- embeddings

def vectors(connection, headers, body):
    connection.request("POST", "/v1/embeddings", json.dumps(body), headers)
    r = connection.getresponse()
    text = r.read()
    assert r.status == 200, text[:500]
    return [d["embedding"] for d in sorted(json.loads(text)["data"], key=lambda d: d["index"])]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def embeddings(where):
    vocabulary = vocabulary_of(where)
    rng, plain = random.Random(1), {"Content-Type": "application/json"}
    took = {"lorad": [], "peer": []}

    def body():
        return {"model": "base", "input": [[rng.randrange(vocabulary) for _ in range(PROMPT)] for _ in range(EMBED_EACH)]}

    with tempfile.TemporaryDirectory() as data, Lorad(where, data, {"model.pooling": "mean"}) as server, \
            Peer(where / "gguf/base.gguf", embeds=True) as peer:
        headers = {"Authorization": f"Bearer {server.tenant('t')}", **plain}
        sides = {"lorad": (server.connect(timeout=600), headers),
                 "peer": (http.client.HTTPConnection("127.0.0.1", peer.port, timeout=600), plain)}
        same, pids = body(), {"lorad": server.process.pid, "peer": peer.process.pid}
        ours, theirs = (vectors(*side, same) for side in sides.values())
        took["cosine"] = min(map(cosine, ours, theirs))
        for _ in range(EMBED_TURNS):
            for who, side in sides.items():
                bodies = [body() for _ in range(EMBED_REQUESTS)]
                side[0].close()  # nobody keeps it open while the other one works
                began, began_cpu_s, n = time.monotonic(), cpu_s(pids[who]), EMBED_REQUESTS * EMBED_EACH
                for b in bodies:
                    vectors(*side, b)
                took[who].append({"per_s": round(n / (time.monotonic() - began), 2),
                                  "cpu_ms": round(1000 * (cpu_s(pids[who]) - began_cpu_s) / n, 1)})
    took["load"] = os.getloadavg()[0]
    return took


def main():
    what, size, *form = sys.argv[1:]
    where = prepared(size)
    print(json.dumps(startup(where) if what == "startup" else embeddings(where) if what == "embeddings" else
                     load(where, what, form[0] if form else None)))


if __name__ == "__main__":
    main()
