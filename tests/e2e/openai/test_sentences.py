"""Vectors, scores and classes beside what sentence-transformers and PEFT themselves make of them (tests/fixtures/sentences), with adapters
random and trained, and heads that were trained."""
import json
import math
import pathlib
import shutil
import tempfile

from harness import DEMO, ROOT, Server, run

SENTENCES = ROOT / "tests/fixtures/sentences"
GOLDEN = json.loads((SENTENCES / "golden.json").read_text())
COSINE, NEAR = 0.9999, 1e-2  # the demo's base is BF16 here, F32 there


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def asked(server, key, path, **body):
    r = server.call("POST", path, body, key=key)
    assert r.status == 200, r
    return r.json["data"]


def vectors_are_those_of_sentence_transformers():
    with tempfile.TemporaryDirectory(prefix="lorad-sentences-") as d:
        where = shutil.copytree(ROOT / "tests/fixtures/pooled/mean", pathlib.Path(d) / "mean")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(DEMO / "base" / file, where)
        with Server(model=where) as s:
            key = s.tenant("sentences")
            seen = {}
            for name, want in GOLDEN["vectors"].items():
                if name != "base":
                    s.upload(key, name, SENTENCES / name)
                seen[name] = [v["embedding"] for v in asked(s, key, "/v1/embeddings", model=name, input=GOLDEN["texts"])]
                least = min(map(cosine, seen[name], want))
                print(f"{name}: cosine {least:.7f} at least")
                assert least >= COSINE, (name, least)
            for name in ("random", "trained"):  # which are others than the base's
                assert min(map(cosine, seen[name], seen["base"])) < 0.99, name


def heads_are_those_that_were_trained():
    with Server() as s:
        key = s.tenant("heads")
        for name in ("fits", "kinds"):
            s.upload(key, name, SENTENCES / name)
        for (query, document), want in zip(GOLDEN["pairs"], GOLDEN["scores"]):
            got = asked(s, key, "/v1/score", model="fits", text_1=query, text_2=document)[0]["score"]
            assert abs(got - want) < NEAR, (query, document, got, want)
        assert min(GOLDEN["scores"]) < 0.3 and max(GOLDEN["scores"]) > 0.7, GOLDEN["scores"]
        for g, logits in zip(asked(s, key, "/v1/classify", model="kinds", input=GOLDEN["texts"]), GOLDEN["logits"]):
            e = [math.exp(x - max(logits)) for x in logits]
            want = [x / sum(e) for x in e]
            assert cosine(g["probs"], want) >= COSINE and max(abs(a - b) for a, b in zip(g["probs"], want)) < NEAR, (g, want)


run([vectors_are_those_of_sentence_transformers, heads_are_those_that_were_trained])
