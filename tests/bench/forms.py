"""Structured answers, measured: forms.py schemas | tools [N] | cost MODEL_DIR

schemas   200 schemas, 50 whole answers each through HTTPS by the demo model at temperature 1.2; one line of
          JSON: how many were made, how many are valid, and how many more were cut by max_tokens (they
          say "length"; another seed is asked instead).
tools     N answers (10,000) in which the model has called tools, in auto, of every family's way of writing calls, at
          temperature 1.4 with a bias for what opens a call; one line of JSON: how many calls, how many are valid.
cost      tokens per second of 8 requests at once with a schema and without, in turns; one line of JSON."""
import concurrent.futures
import json
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import marked  # noqa: E402
import schemas  # noqa: E402
from harness import Server  # noqa: E402

# Never done within the tokens asked for: keys, strings, numbers, nesting, an enum, one of each again and again.
LONG = {"type": "array", "minItems": 1000, "items": {
    "type": "object", "additionalProperties": False, "required": ["name", "kind", "score", "tags"],
    "properties": {"name": {"type": "string", "minLength": 4, "maxLength": 60},
                   "kind": {"enum": ["small", "large", "unknown"]},
                   "score": {"type": "number", "minimum": 0, "maximum": 100},
                   "notes": {"type": "string"},
                   "tags": {"type": "array", "items": {"type": "string", "maxLength": 12},
                            "minItems": 1, "maxItems": 5}}}}
TOKENS, STREAMS, TURNS = 96, 8, 7


def form(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def all_schemas(each=50):
    todo = schemas.schemas()
    count = {"answers": 0, "valid": 0, "cut": 0, "wrong": []}
    with Server() as server:
        key = server.tenant("forms")

        def one(job):
            i, seed = job
            for cut in range(10):
                r = server.call("POST", "/v1/chat/completions", {
                    "model": "base", "temperature": 1.2, "seed": seed + 100 * cut, "max_tokens": 700,
                    "messages": [{"role": "user", "content": "What is 7 plus 5?"}],
                    "response_format": form(todo[i])}, key=key, timeout=600)
                if r.status != 200 or r.json["choices"][0]["finish_reason"] != "length":
                    break
            return i, r, cut
        jobs = [(i, 1000 * i + k) for i in range(len(todo)) for k in range(each)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for i, r, cut in pool.map(one, jobs):
                count["answers"] += 1
                count["cut"] += cut
                wrong = repr(r) if r.status != 200 else None
                if not wrong:
                    choice = r.json["choices"][0]
                    wrong = schemas.check(todo[i], choice["message"]["content"])
                if wrong:
                    count["wrong"].append([i, wrong[:300]])
                else:
                    count["valid"] += 1
    count["wrong"] = count["wrong"][:20]
    print(json.dumps(count))


def family_tools(folder, base, ids, family, n, count):
    """Answers until n of them have a whole call."""
    bias = marked.bias(marked.OPENS[family], ids)
    with Server(model=base, settings=marked.settings(folder, family)) as server:
        key = server.tenant("forms")

        def one(seed):
            return server.call("POST", "/v1/chat/completions", {
                "model": "base", "temperature": 1.4, "seed": seed, "max_tokens": 100, "tools": marked.TOOLS, "logit_bias": bias,
                "messages": [{"role": "user", "content": "What is 7 plus 5?"}]}, key=key, timeout=600)
        done = first = 0
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            while done < n:
                for r in pool.map(one, range(first, first + 256)):
                    choice = r.json["choices"][0] if r.status == 200 else None
                    calls = marked.whole_calls(choice) if choice else []
                    wrong = marked.wrong(choice, marked.TOOLS) if choice else repr(r)
                    if wrong:
                        count["wrong"].append([family, wrong])
                    if calls and done < n:
                        done += 1
                        count["calls"] += len(calls)
                        count["valid"] += not wrong
                    count["asked"] += 1
                first += 256
        count["answers"] += done


def all_tools(n):
    count = {"answers": 0, "valid": 0, "calls": 0, "asked": 0, "wrong": []}
    with tempfile.TemporaryDirectory() as folder:
        base, ids = marked.make(folder)
        for k, family in enumerate(marked.OPENS):
            family_tools(folder, base, ids, family, n * (k + 1) // len(marked.OPENS) - n * k // len(marked.OPENS), count)
    count["wrong"] = count["wrong"][:20]
    print(json.dumps(count))


def cost(model):
    rates = {"plain": [], "schema": []}
    with Server(model=model) as server:
        key = server.tenant("forms")

        def one(more, seed):
            r = server.call("POST", "/v1/completions", {
                "model": "base", "prompt": [9] * 16, "max_tokens": TOKENS, "temperature": 1,
                "seed": seed, **more}, key=key, timeout=600)
            assert r.status == 200, r
            assert r.json["usage"]["completion_tokens"] == TOKENS, r
        kinds = {"plain": {"ignore_eos": True}, "schema": {"response_format": form(LONG)}}
        for turn in range(TURNS + 1):
            for kind, more in kinds.items():
                start = time.monotonic()
                with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
                    list(pool.map(lambda k: one(more, turn * 100 + k), range(2 * STREAMS)))
                if turn:  # the first one warms up
                    rates[kind].append(2 * STREAMS * TOKENS / (time.monotonic() - start))
    ratios = [b / a for a, b in zip(rates["plain"], rates["schema"])]
    print(json.dumps({"ratio": statistics.median(ratios), "ratios": ratios,
                      **{k: statistics.median(v) for k, v in rates.items()}}))


if sys.argv[1] == "schemas":
    all_schemas()
elif sys.argv[1] == "tools":
    all_tools(int((sys.argv + ["10000"])[2]))
else:
    cost(sys.argv[2])
