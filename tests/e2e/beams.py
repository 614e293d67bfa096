"""beams.py -- searches as transformers answered them (tests/tools/make_beam_goldens.py), asked of a server."""
import json
import math

from harness import ROOT


# The reference computes in F32, as these kernels and keys and values do.
EXACT = {"engine.isa": "portable", "engine.kv_type": "f32"}


def goldens():
    return [json.loads(line) for line in (ROOT / "tests/fixtures/beams.jsonl").read_text().splitlines()]


def score(choice, penalty):
    logprobs = choice["logprobs"]["token_logprobs"]
    return math.fsum(logprobs) / len(logprobs) ** penalty


def near(choice, penalty, wanted):
    """Within 1e-4; a negative penalty multiplies the sum, and its error, by the length."""
    return abs(score(choice, penalty) - wanted) < 1e-4 * max(1, len(choice["logprobs"]["token_logprobs"]) ** -penalty)


def check(server, key, golden):
    """One search: equal texts in equal order, equal scores."""
    adapter, prompt, width, n, most, penalty, early, answers = golden
    body = {"model": adapter or "base", "prompt": prompt, "use_beam_search": True, "best_of": width, "n": n, "max_tokens": most,
            "length_penalty": penalty, "early_stopping": early, "logprobs": 0}
    r = server.call("POST", "/v1/completions", body, key=key)
    assert r.status == 200, (golden, r)
    choices = r.json["choices"]
    assert [c["index"] for c in choices] == list(range(n)), r
    got = [[c["text"], score(c, penalty)] for c in choices]
    same = [c["text"] for c in choices] == [a[0] for a in answers] and all(near(c, penalty, a[1]) for c, a in zip(choices, answers))
    assert same, (golden, got)
