"""Activated adapters over a cached context: alora.py MODEL [TURNS]

In each turn the base is asked for a context of 2,000 new tokens.  Then come ten times, first the one or the other,
the base's own next turn over it and an activated adapter's, and last a plain adapter's, which must compute the
context anew.  One line of JSON: medians of the milliseconds until the first token, of the ratios of two that came
together and of those under the plain one, and the most prompt tokens that each computed.
"""
import json
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from harness import Server  # noqa: E402

CONTEXT, TAIL, PAIRS, INVOKE = 2000, 16, 10, [11, 12, 13]
WAYS = {"base": "base", "alora": "activated", "plain": "plain"}


def activated(folder, where):
    shutil.copytree(folder, where)
    config = json.loads((where / "adapter_config.json").read_text())
    config["alora_invocation_tokens"] = INVOKE
    (where / "adapter_config.json").write_text(json.dumps(config))
    return where


def ask(server, key, model, prompt):
    began = time.monotonic()
    r = server.call("POST", "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0},
                    key=key, timeout=600)
    took = time.monotonic() - began
    assert r.status == 200, r
    return took * 1000, r.json["usage"]["prompt_tokens"] - r.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def turn(server, key, draw):
    context = [draw.randrange(100, 30000) for _ in range(CONTEXT)]
    ask(server, key, "base", context)
    out = {way: [] for way in WAYS}
    for i in range(PAIRS):
        for way in ["base", "alora"] if i % 2 else ["alora", "base"]:
            tail = INVOKE * (way == "alora") + [draw.randrange(100, 30000) for _ in range(TAIL)]
            out[way].append(ask(server, key, WAYS[way], context + tail[:TAIL]))
    out["plain"].append(ask(server, key, "plain", context + tail[:TAIL]))
    return out


def median(values):
    return statistics.median(list(values))


def main():
    model, turns = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    tmp, draw = pathlib.Path(tempfile.mkdtemp()), random.Random(20)
    with Server(model=model) as server:
        key = server.tenant("t")
        server.upload(key, "activated", activated(model / "adapters/r000", tmp / "activated"))
        server.upload(key, "plain", model / "adapters/r001")
        for name in WAYS.values():  # loaded
            ask(server, key, name, [50, *INVOKE])
        seen = [turn(server, key, draw) for _ in range(turns)]
    shutil.rmtree(tmp)
    print(json.dumps({
        "ms": {w: round(median(a[0] for t in seen for a in t[w]), 1) for w in WAYS},
        "computed": {w: max(a[1] for t in seen for a in t[w]) for w in WAYS},
        "over_base": median(a[0] / b[0] for t in seen for a, b in zip(t["alora"], t["base"])),
        "under_plain": median(t["plain"][0][0] / median(a[0] for a in t["alora"]) for t in seen)}))


main()
