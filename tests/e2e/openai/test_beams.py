"""Beam search and best_of, from outside: transformers' answers, shared pages, adapters, structured output, bills, refusals."""
import concurrent.futures
import json
import pathlib
import shutil
import tempfile
import threading

import beams
from harness import DEMO, Server, run, until

SPREAD = 8  # every so many-th of the goldens is asked here
QUESTION = [{"role": "user", "content": "Tell me about the lamp."}]
# Pages for few of these searches at once: the others wait, or give way and compute their pages again.
server = Server(settings=beams.EXACT | {"engine.kv_memory": "6MiB", "engine.max_seqs": "20"})


def call(path, body, expect=200):
    r = server.call("POST", path, {"model": "base", **body}, key=key)
    assert r.status == expect, r
    return r


def text(expect=200, **more):
    return call("/v1/completions", {"prompt": "The red lamp", "max_tokens": 8, **more}, expect).json


def search(**more):
    return text(use_beam_search=True, **more)


def refused(param, **more):
    e = search(expect=400, **more)["error"]
    assert e["param"] == param, (param, e)
    return e["message"]


def said(r):
    return [c["text"] for c in r["choices"]]


def some_searches_are_transformers():
    for g in beams.goldens()[::SPREAD]:
        beams.check(server, key, g)


def the_batch_changes_nothing():
    """The same searches beside streams that sample, all at once, with too few pages for all."""
    goldens = [g for g in beams.goldens() if g[2] > 2][:24]

    def noise(i):
        r = text(prompt="The " * (20 + i), max_tokens=60, temperature=1, ignore_eos=True, seed=i)
        assert r["usage"]["completion_tokens"] == 60
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        others = [pool.submit(noise, i) for i in range(24)]
        asked = [pool.submit(beams.check, server, key, g) for g in goldens]
        for f in asked + others:
            f.result()


def chats_are_searched():
    r = call("/v1/chat/completions", {"messages": QUESTION, "use_beam_search": True, "n": 3, "max_tokens": 24, "logprobs": True,
                                      "top_logprobs": 2}).json
    texts = [c["message"]["content"] for c in r["choices"]]
    assert len(set(texts)) == 3 and [c["index"] for c in r["choices"]] == [0, 1, 2], texts
    sums = [sum(t["logprob"] for t in c["logprobs"]["content"]) for c in r["choices"]]
    assert all(len(t["top_logprobs"]) == 2 for c in r["choices"] for t in c["logprobs"]["content"]), sums
    one = call("/v1/chat/completions", {"messages": QUESTION, "use_beam_search": True, "n": 1, "max_tokens": 24}).json
    greedy = call("/v1/chat/completions", {"messages": QUESTION, "temperature": 0, "max_tokens": 24}).json
    assert one["choices"][0]["message"]["content"] == greedy["choices"][0]["message"]["content"]


def what_was_computed_is_billed():
    """The prompt's row makes the first token of all beams; each step after it computes a row for each."""
    for width, n, most in ((4, 1, 8), (4, 4, 8), (3, 2, 1), (1, 1, 5)):
        u = search(best_of=width, n=n, max_tokens=most, ignore_eos=True)["usage"]
        assert u["completion_tokens"] == 1 + (most - 1) * width, (width, n, most, u)


def structured_output_has_a_place_for_each_beam():
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "maximum": 99, "minimum": 0}},
              "required": ["name", "n"], "additionalProperties": False}
    r = search(n=4, max_tokens=60, return_token_ids=True, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}})
    assert all(set(json.loads(t)) == {"name", "n"} for t in said(r)), r
    assert len({tuple(c["token_ids"]) for c in r["choices"]}) == 4, "the same text may be two answers: in other tokens"
    unique = {"type": "array", "items": {"enum": [1, 2, 3, 4]}, "uniqueItems": True, "minItems": 3, "maxItems": 4}
    lists = [json.loads(t) for t in said(search(n=4, max_tokens=40, structured_outputs={"json": unique}))]
    assert all(len(set(one)) == len(one) >= 3 for one in lists), lists
    r = search(n=4, structured_outputs={"choice": ["A", "B"]})
    assert sorted(said(r)) == ["A", "B"], r  # there are no more
    assert [c["finish_reason"] for c in r["choices"]] == ["stop", "stop"]
    r = search(n=3, structured_outputs={"regex": "[ab]{3}"}, max_tokens=12)
    assert len(r["choices"]) == 3 and all(set(t) <= {"a", "b"} and len(t) == 3 for t in said(r)), r


def adapters_and_bars_hold():
    server.upload(key, "shout", DEMO / "adapters/shout")
    r = call("/v1/chat/completions", {"model": "shout", "messages": QUESTION, "use_beam_search": True, "n": 2, "max_tokens": 24}).json
    assert r["choices"][0]["message"]["content"].isupper(), r
    first = said(search(n=1, best_of=4))[0]
    word = first.split()[0]
    assert word not in " ".join(said(search(n=4, bad_words=[word]))).split(), first
    ids = search(n=2, min_tokens=6, return_token_ids=True)["choices"]
    assert all(len(c["token_ids"]) >= 6 for c in ids), ids


def what_makes_no_sense_is_refused():
    assert "does not sample" in refused("temperature", temperature=0.5)
    for param, value in (("top_p", 0.5), ("top_k", 3), ("min_p", 0.1), ("stream", True), ("echo", True), ("prompt_logprobs", 1),
                         ("stop", "x"), ("logprobs_mode", "raw_logprobs"), ("early_stopping", "soon"), ("length_penalty", 11)):
        refused(param, **{param: value})
    assert "server.max_beams" in refused("n", n=9, best_of=None)
    assert "server.max_beams" in refused("best_of", best_of=9)
    refused("best_of", best_of=2, n=3)
    refused("use_beam_search", best_of=8, stop_token_ids=list(range(40, 60)))
    r = call("/v1/chat/completions", {"messages": QUESTION, "use_beam_search": True, "tools": [{"type": "function", "function": {"name": "f"}}]}, 400)
    assert r.json["error"]["param"] == "tools", r
    for param in ("length_penalty", "early_stopping"):
        assert text(expect=400, **{param: 1 if param == "length_penalty" else True})["error"]["param"] == param
    assert search(temperature=0, top_p=1, n=2)["choices"], "neutral values are allowed"


def the_best_of_many_are_returned():
    asked = dict(temperature=1.2, seed=5, max_tokens=12, logprobs=0)
    every = text(n=6, **asked)
    best = sorted(every["choices"], key=lambda c: beams.score(c, 1), reverse=True)
    some = text(n=2, best_of=6, **asked)
    assert said(some) == [c["text"] for c in best[:2]] and [c["index"] for c in some["choices"]] == [0, 1], (some, best)
    assert len({c["text"] for c in best}) > 2 and said(some) != said(every)[:2], best
    assert some["usage"] == every["usage"], "all that was made is billed"
    assert not text(n=1, best_of=3, temperature=1)["choices"][0].get("logprobs")
    two = text(prompt=["The red lamp", "The"], n=1, best_of=4, temperature=1.2, seed=5, max_tokens=12)
    assert [c["index"] for c in two["choices"]] == [0, 1] and said(two)[0] == said(text(n=1, best_of=4, **asked))[0], two
    assert text(expect=400, n=1, best_of=2, stream=True)["error"]["param"] == "best_of"
    r = call("/v1/chat/completions", {"messages": QUESTION, "n": 1, "best_of": 3, "temperature": 1.5, "max_tokens": 8}).json
    assert len(r["choices"]) == 1 and r["usage"]["completion_tokens"] > 8, r


def a_client_that_leaves_ends_its_search():
    c = server.connect()
    body = {"model": "base", "prompt": "The", "use_beam_search": True, "n": 2, "max_tokens": 300, "ignore_eos": True}
    c.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    until(lambda: server.metrics()["lorad_requests_running"])
    c.close()
    until(lambda: server.metrics()["lorad_kv_pages_used"] == 0)


def four_beams_take_little_more_than_one():
    """Peak of the page counter for prompts of 1,024 tokens, over as many requests as it takes to see it: a reading may miss it."""
    with tempfile.TemporaryDirectory() as tmp:
        model = pathlib.Path(tmp) / "base"
        shutil.copytree(DEMO / "base", model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
        with Server(model=model) as big:
            k = big.tenant("t")

            def peak(width, salt):
                most, done = 0, threading.Event()

                def ask():
                    body = {"model": "base", "prompt": [100 + i % 900 for i in range(1024)], "use_beam_search": True, "n": width,
                            "max_tokens": 96, "ignore_eos": True, "cache_salt": f"{width} {salt}"}
                    r = big.call("POST", "/v1/completions", body, key=k)
                    assert r.status == 200, r
                    done.set()
                t = threading.Thread(target=ask)
                t.start()
                while t.is_alive():
                    most = max(most, big.metrics()["lorad_kv_pages_used"])
                t.join()
                assert done.is_set()
                return most
            one = four = 0
            for salt in range(20):
                one, four = max(one, peak(1, salt)), max(four, peak(4, salt))
                if 32 < one < four <= 1.6 * one:
                    return
            assert False, (one, four)


with server:
    key = server.tenant("t")
    for name in ("pirate", "spanish", "json"):
        server.upload(key, name, DEMO / "adapters" / name)
    run([some_searches_are_transformers, the_batch_changes_nothing, chats_are_searched, what_was_computed_is_billed,
         structured_output_has_a_place_for_each_beam, adapters_and_bars_hold, what_makes_no_sense_is_refused,
         the_best_of_many_are_returned, a_client_that_leaves_ends_its_search, four_beams_take_little_more_than_one])
