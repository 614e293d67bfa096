"""A stack of two adapters beside one of the sum of their ranks: stack.py MODEL WIDE [PAIRS]

MODEL has adapters r000 and r001 of one rank, WIDE the same base and an adapter of twice that rank.  Eight streams of
48 tokens use the stack and then the wide one, or the other way round.  One line of JSON: the median of the ratios of
two that came together, milliseconds a token of both, and from a new stack's request to its first token, beside that of
one that is resident.
"""
import concurrent.futures
import json
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from harness import Server  # noqa: E402

STREAMS, TOKENS = 8, 48


def ask(server, key, i, n, **model):
    r = server.call("POST", "/v1/completions", {**model, "prompt": [50 + i, 60, 70], "max_tokens": n, "ignore_eos": True},
                    key=key, timeout=600)
    assert r.status == 200, r


def stack(scale):
    return {"model": "base", "adapters": [{"name": "one", "scale": scale}, {"name": "two", "scale": -0.5}]}


def took(server, key, pool, model):
    began = time.monotonic()
    for done in [pool.submit(ask, server, key, i, TOKENS, **model) for i in range(STREAMS)]:
        done.result()
    return time.monotonic() - began


def first_token(server, key, scale):
    began = time.monotonic()
    ask(server, key, 0, 1, **stack(scale))
    return (time.monotonic() - began) * 1000


def main():
    model, wide = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 15
    seen = {"stack": [], "wide": []}
    with Server(model=model) as server, concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        key = server.tenant("t")
        server.upload(key, "one", model / "adapters/r000")
        server.upload(key, "two", model / "adapters/r001")
        server.upload(key, "wide", wide / "adapters/r000")
        ways = {"stack": stack(0.5), "wide": {"model": "wide"}}
        for way in ways.values():  # loaded
            took(server, key, pool, way)
        for i in range(pairs):
            for way in list(ways) if i % 2 else reversed(list(ways)):
                seen[way].append(took(server, key, pool, ways[way]))
        new = [first_token(server, key, 1 + i / 64) for i in range(pairs)]
        old = [first_token(server, key, 0.5) for i in range(pairs)]
    print(json.dumps({"ratio": statistics.median(a / b for a, b in zip(seen["stack"], seen["wide"])),
                      "ms_a_token": {w: round(statistics.median(t) * 1000 / TOKENS, 2) for w, t in seen.items()},
                      "first_token_ms": {"new": round(statistics.median(new), 1), "resident": round(statistics.median(old), 1)}}))


main()
