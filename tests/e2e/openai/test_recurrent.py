"""A model whose layers keep a state (the Qwen3.5 of the goldens), served: adapters in one batch, streams, prefix hits at
snapshots, speculation, a cancelled stream, a restart."""
import concurrent.futures
import json
import pathlib
import shutil
import tempfile

from harness import Server, events, run, until
from hybrid import FAMILIES, NAME, PAGE, TEXT as FIRST, make_model

KINDS = ("all", "dora")
SECOND = FIRST + "says it."
tmp = pathlib.Path(tempfile.mkdtemp())
server = Server(model=make_model(tmp / NAME), settings={
    "engine.max_rows": 48, "engine.max_seqs": 8, "engine.speculate": "auto"})


def chat(model="base", content=FIRST, **more):
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 24, "temperature": 0,
            "ignore_eos": True, "logprobs": True, "top_logprobs": 2, **more}


def ask(body):
    r = server.call("POST", "/v1/chat/completions", body, key=server.tenant_key)
    assert r.status == 200, r
    return r.json


def said(answer):
    """What must be the same each time: tokens and the bits of their log-probabilities."""
    return [(t["token"], t["logprob"], t["top_logprobs"]) for t in answer["choices"][0]["logprobs"]["content"]]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def the_base_and_its_adapters_answer_apart():
    got = {model: said(ask(chat(model))) for model in ("base", *KINDS)}
    assert len({json.dumps(s) for s in got.values()}) == 3, got
    assert all(len(s) == 24 for s in got.values())
    server.alone = got


def they_answer_the_same_in_one_batch():
    models = ["base", *KINDS] * 4
    with concurrent.futures.ThreadPoolExecutor(len(models)) as pool:
        answers = list(pool.map(lambda m: ask(chat(m)), models))
    for model, answer in zip(models, answers):
        assert said(answer) == server.alone[model], model


def a_stream_says_the_same():
    for model in ("base", "all"):
        r = server.call("POST", "/v1/chat/completions", chat(model, stream=True), key=server.tenant_key)
        assert r.status == 200, r
        parts = [c["logprobs"]["content"] for e in events(r.body) for c in e["choices"] if c.get("logprobs")]
        tokens = [(t["token"], t["logprob"], t["top_logprobs"]) for part in parts for t in part]
        assert tokens == server.alone[model], model


def a_prefix_is_found_at_a_snapshot_of_its_adapter_and_salt():
    first = ask(chat(content=SECOND, cache_salt="a"))
    again = ask(chat(content=SECOND, cache_salt="a"))
    assert cached(first) == 0 and cached(again) == len(SECOND) // PAGE * PAGE == 64, (cached(first), cached(again))
    assert said(again) == said(first)
    assert cached(ask(chat(content=SECOND, cache_salt="b"))) == 0
    assert cached(ask(chat("all", content=SECOND, cache_salt="a"))) == 0
    stats = server.stats()["engine"]
    assert stats["snapshots"] > 0 and stats["snapshot_used_bytes"] > 0, stats
    assert server.metrics()["lorad_state_snapshot_hits_total"] >= 1


def states_are_counted_apart_from_copies_for_draft_tokens():
    floats = 2 * (3 * (2 * 2 * 12 + 4 * 16) + 4 * 12 * 16)  # two layers: three inputs of a convolution, four matrices
    stats = server.stats()["engine"]
    assert stats["state_bytes"] == 8 * floats * 4 == stats["state_copy_bytes"], (stats, floats)


def a_cancelled_stream_gives_its_state_back():
    c = server.connect()
    c.request("POST", "/v1/chat/completions", json.dumps(chat(max_tokens=40, stream=True, n=4, temperature=1.0)),
              {"Authorization": f"Bearer {server.tenant_key}", "Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200 and r.readline()
    c.close()
    r.close()
    until(lambda: server.stats()["engine"]["running"] == 0)
    until(lambda: server.stats()["engine"]["state_used_bytes"] == 0)
    assert said(ask(chat())) == server.alone["base"]


def a_restarted_server_answers_the_same():
    assert server.stop() == 0
    server.start()
    for model in ("base", *KINDS):
        assert said(ask(chat(model))) == server.alone[model], model


try:
    with server:
        server.tenant_key = server.tenant("t")
        for kind in KINDS:
            shutil.copytree(FAMILIES / "peft" / NAME / kind, tmp / kind, ignore=shutil.ignore_patterns("golden.bin"))
            server.upload(server.tenant_key, kind, tmp / kind)
        run([the_base_and_its_adapters_answer_apart, they_answer_the_same_in_one_batch, a_stream_says_the_same,
             a_prefix_is_found_at_a_snapshot_of_its_adapter_and_salt, states_are_counted_apart_from_copies_for_draft_tokens,
             a_cancelled_stream_gives_its_state_back, a_restarted_server_answers_the_same])
finally:
    shutil.rmtree(tmp)
