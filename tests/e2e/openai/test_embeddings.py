"""Prompts as vectors, scores and classes, beside what transformers and PEFT make of them (tests/fixtures/pooled), through OpenAI's
client, in the company of completions of other adapters, and refused by name where they cannot be."""
import base64
import concurrent.futures
import contextlib
import json
import math
import pathlib
import shutil
import sqlite3
import struct
import tempfile

import openai

from harness import DEMO, ROOT, Server, run

POOLED = ROOT / "tests/fixtures/pooled"
GOLDEN = json.loads((POOLED / "golden.json").read_text())
TEXTS, IDS = GOLDEN["texts"], GOLDEN["ids"]
COSINE, NEAR = 0.9999, 1e-3
tmp = pathlib.Path(tempfile.mkdtemp(prefix="lorad-pooled-"))


def model(name):
    """A model of the fixtures, with the demo's tokenizer."""
    where = tmp / name
    shutil.copytree(POOLED / name, where)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / "base" / file, where)
    return where


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def embed(server, key, model, given, expect=200, **more):
    r = server.call("POST", "/v1/embeddings", {"model": model, "input": given, **more}, key=key)
    assert r.status == expect, r
    return r.json if expect >= 400 else [d["embedding"] for d in r.json["data"]]


def near(ours, theirs, what, unit=True):
    assert len(ours) == len(theirs), what
    for o, t in zip(ours, theirs):
        assert len(o) == len(t) and cosine(o, t) >= COSINE, (what, cosine(o, t))
        assert abs(math.hypot(*o) - (1 if unit else math.hypot(*t))) < NEAR * math.hypot(*t), (what, math.hypot(*o))


def classes(server, key, model, given):
    r = server.call("POST", "/v1/classify", {"model": model, "input": given}, key=key)
    assert r.status == 200, r
    return r.json["data"]


def softmax(v):
    e = [math.exp(x - max(v)) for x in v]
    return [x / sum(e) for x in e]


def vectors_are_transformers():
    for name in ("base", "pirate", "formal"):
        near(embed(demo, alice, name, TEXTS), GOLDEN["vectors"][f"{name} last"], name)
        near(embed(demo, alice, name, IDS), GOLDEN["vectors"][f"{name} last"], name)
    base, pirate = (embed(demo, alice, n, TEXTS[0])[0] for n in ("base", "pirate"))
    assert cosine(base, pirate) < COSINE, "the adapter's name answers with the base's vector"


def pools_as_the_option_says():
    with Server(settings={"model.pooling": "mean", "engine.max_rows": "16", "engine.max_seqs": "8"}) as s:
        key = s.tenant("mean")
        s.upload(key, "pirate", DEMO / "adapters/pirate")
        for name in ("base", "pirate"):
            got = embed(s, key, name, TEXTS, encoding_format="base64")
            near([unpack(v) for v in got], GOLDEN["vectors"][f"{name} mean"], name)
            # Alone and with others, whole and a second time, in chunks of another cut: the same bits.
            alone = [embed(s, key, name, t, encoding_format="base64")[0] for t in TEXTS]
            assert got == alone, name
            assert embed(s, key, name, TEXTS[::-1] * 3, encoding_format="base64") == alone[::-1] * 3, name


def folders_say_how():
    for name, unit in (("mean", True), ("late", True), ("top", False)):
        with Server(model=model(name)) as s:
            key = s.tenant("folder")
            near(embed(s, key, "base", TEXTS), GOLDEN["vectors"][name], name, unit)
            e = embed(s, key, "base", [1] * 129, expect=400)["error"]
            assert e["param"] == "input" and "128 tokens" in e["message"] and "129" in e["message"], e
            assert len(embed(s, key, "base", [1] * 129, truncate_prompt_tokens=-1)) == 1
            if name != "mean":
                continue
            s.upload(key, "on", POOLED / "on-mean")
            near(embed(s, key, "on", TEXTS), GOLDEN["vectors"]["on-mean"], "on-mean")
            r = s.call("POST", "/v1/completions", {"model": "base", "prompt": "The"}, key=key)
            assert r.status == 400 and "no output layer" in r.json["error"]["message"], r


def unpack(text):
    raw = base64.b64decode(text)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def openai_python_embeds():
    client = openai.OpenAI(base_url=demo.url, api_key=alice, http_client=openai.DefaultHttpxClient(verify=demo.tls()))
    for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        r = client.embeddings.create(model="pirate", input=TEXTS, **more)
        got = [unpack(d.embedding) if isinstance(d.embedding, str) else d.embedding for d in r.data]
        near(got, GOLDEN["vectors"]["pirate last"], more)
        assert [d.index for d in r.data] == [0, 1, 2, 3] and r.model == "pirate" and r.object == "list"
        assert r.usage.prompt_tokens == r.usage.total_tokens == sum(map(len, IDS)), r.usage
    short = client.embeddings.create(model="base", input=IDS[0], dimensions=16, encoding_format="float").data[0].embedding
    want = GOLDEN["vectors"]["base last"][0][:16]
    near([short], [[x / math.hypot(*want) for x in want]], "dimensions")
    try:
        client.embeddings.create(model="nobody", input="x")
        raise AssertionError("an unknown adapter was served")
    except openai.NotFoundError as e:
        assert e.code == "model_not_found"


def batch_rows():
    demo.booked()
    with contextlib.closing(sqlite3.connect(f"file:{demo.dir / 'lorad.db'}?mode=ro", uri=True, timeout=60)) as db:
        return db.execute("SELECT model, prompt_tokens, output_tokens, status, finish FROM usage WHERE endpoint='embeddings' AND slo_class='batch'"
                          " ORDER BY prompt_tokens").fetchall()


def is_booked_as_completions_are():
    embed(demo, alice, "formal", [TEXTS[0], TEXTS[1]], service_tier="batch")
    want = sorted(len(IDS[i]) for i in (0, 1))
    assert batch_rows() == [("formal@1", n, 0, 200, "stop") for n in want], batch_rows()
    poor = demo.tenant("poor", limits={"requests_per_minute": 1})
    embed(demo, poor, "base", "x")
    assert embed(demo, poor, "base", "x", expect=429)["error"]["type"] == "rate_limit_error"
    embed(demo, poor, "pirate", "x", expect=404)  # another tenant's


def company_changes_no_bit():
    """Vectors of several adapters in the same steps as answers of others, with pages short."""
    names = ["base", "pirate", "formal"]
    alone = {n: embed(demo, alice, n, TEXTS, encoding_format="base64") for n in names}
    said = {n: answer(n) for n in names}

    def one(i):
        n = names[i % 3]
        if i % 2:
            return embed(demo, alice, n, TEXTS, encoding_format="base64") == alone[n]
        return answer(n) == said[n]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        assert all(pool.map(one, range(48)))


def answer(name):
    r = demo.call("POST", "/v1/completions", {"model": name, "prompt": TEXTS[3], "max_tokens": 24, "temperature": 0,
                                              "ignore_eos": True}, key=alice)
    assert r.status == 200, r
    return r.json["choices"][0]["text"]


def many_inputs_are_one_request():
    """More than have room in the queue, and than there are meters: they follow each other."""
    before = len(batch_rows())
    r = demo.call("POST", "/v1/embeddings", {"model": "pirate", "input": [TEXTS[i % 4] for i in range(400)], "encoding_format": "base64",
                                             "service_tier": "batch"}, key=alice)
    got = [d["embedding"] for d in r.json["data"]]
    assert got == [got[i % 4] for i in range(400)] and len(set(got)) == 4
    assert r.json["usage"]["prompt_tokens"] == 100 * sum(map(len, IDS)), r.json["usage"]
    assert len(batch_rows()) - before == 400


def classifies():
    want = [softmax(v) for v in GOLDEN["logits"]["three"]]
    got = classes(demo, alice, "three", TEXTS)
    for g, w in zip(got, want):
        assert g["num_classes"] == 3 and max(abs(a - b) for a, b in zip(g["probs"], w)) < 10 * NEAR, (g, w)  # a BF16 base
        assert g["label"] == f"LABEL_{w.index(max(w))}", (g, w)
    where = model("classes")
    (where / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]))
    with Server(model=where) as s:
        key = s.tenant("classes")
        assert "'Dense'" in embed(s, key, "base", "x", expect=400)["error"]["message"]
        for g, v in zip(classes(s, key, "base", TEXTS), GOLDEN["logits"]["classes"]):
            w = softmax(v)
            assert max(abs(a - b) for a, b in zip(g["probs"], w)) < NEAR, (g, w)
            assert g["label"] == ["calm", "glad", "cross"][w.index(max(w))], (g, w)
        r = s.call("POST", "/v1/score", {"model": "base", "text_1": "a", "text_2": "b"}, key=key)
        assert r.status == 400 and "head of 3 classes" in r.json["error"]["message"], r


def scores_and_ranks():
    """By a head of one class over both texts; by cosines where there is none."""
    heads = [1 / (1 + math.exp(-v[0])) for v in GOLDEN["logits"]["one pairs"]]
    last = GOLDEN["vectors"]["pirate last"]
    for name, want in (("one", heads), ("pirate", [cosine(last[0], v) for v in last])):
        r = demo.call("POST", "/v1/score", {"model": name, "text_1": TEXTS[0], "text_2": TEXTS}, key=alice)
        assert r.status == 200 and r.json["object"] == "list", r
        got = [d["score"] for d in r.json["data"]]
        assert max(abs(a - b) for a, b in zip(got, want)) < 10 * NEAR, (name, got, want)
        assert demo.call("POST", "/score", {"model": name, "text_1": TEXTS[:2], "text_2": TEXTS[:2]}, key=alice).status == 200
        for one, two in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
            r = demo.call("POST", "/v1/score", {"model": name, one: TEXTS[0], two: TEXTS}, key=alice)
            assert [d["score"] for d in r.json["data"]] == got, (one, two, r)
        order = sorted(range(4), key=lambda i: -got[i])
        for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
            r = demo.call("POST", path, {"model": name, "query": TEXTS[0], "documents": [{"text": t} for t in TEXTS], "top_n": 2}, key=alice)
            assert r.status == 200, r
            rows = r.json["results"]
            assert [m["index"] for m in rows] == order[:2], (rows, got)
            assert [m["relevance_score"] for m in rows] == [got[i] for i in order[:2]], (rows, got)
            assert rows[0]["document"]["text"] == TEXTS[order[0]]
        r = demo.call("POST", "/v1/rerank", {"model": name, "query": "x", "documents": ["a"], "return_documents": False}, key=alice)
        assert "document" not in r.json["results"][0], r


def refuses_by_name():
    def no(path, param, words, status=400, **body):
        r = demo.call("POST", path, {"model": "base", **body}, key=alice)
        e = r.json["error"]
        assert r.status == status and e["param"] == param and words in e["message"], r
    e = "/v1/embeddings"
    no(e, "input", "required")
    no(e, "input", "1 to 2048", input=[])
    no(e, "input", "no tokens", input="")
    no(e, "input", "1 to 2048", input=["x"] * 2049)
    no(e, "input[1]", "string", input=["x", 7.5])
    no(e, "input", "2047", input=[2048])
    no(e, "input", "1024 tokens", input=[1] * 1025)
    no(e, "dimensions", "192", input="x", dimensions=193)
    no(e, "dimensions", "1", input="x", dimensions=0)
    no(e, "encoding_format", "'float' or 'base64'", input="x", encoding_format="int8")
    no(e, "messages", "not supported", input="x", messages=[])
    no(e, "adapters", "not supported", input="x", adapters=[{"name": "base"}])
    no(e, "truncate_prompt_tokens", "-1", input="x", truncate_prompt_tokens=0)
    no(e, "model", "does not exist", 404, model="nobody", input="x")
    no("/v1/classify", "model", "no head of classes", input="x")
    no("/v1/classify", "model", "no head of classes", model="pirate", input="x")
    no("/v1/score", "text_1", "2 texts", text_1=["a", "b"], text_2=["a", "b", "c"])
    no("/v1/score", "text_2", "required", text_1="a")
    no("/v1/score", "queries", "another request", queries="a", text_2="b")
    no("/v1/score", "data_1", "another request", data_1="a", queries="b", items="c")
    no("/v1/rerank", "query", "one text", query=["a"], documents=["a"])
    no("/v1/rerank", "documents", "1 to 2048", query="a", documents=[])
    no("/v1/rerank", "documents", "pictures", query="a", documents=[{"image": "x"}])
    no("/v1/rerank", "top_n", "0", query="a", documents=["a"], top_n=-1)
    no("/v1/completions", None, "/v1/classify", model="three", prompt="x")


with Server(settings={"engine.kv_memory": "5MiB", "engine.max_queued": "90"}) as demo:
    alice = demo.tenant("alice")
    for adapter in ("pirate", "formal"):
        demo.upload(alice, adapter, DEMO / "adapters" / adapter)
    for adapter in ("three", "one"):
        demo.upload(alice, adapter, POOLED / adapter)
    try:
        run([vectors_are_transformers, openai_python_embeds, classifies, scores_and_ranks, refuses_by_name, is_booked_as_completions_are,
             company_changes_no_bit, many_inputs_are_one_request, pools_as_the_option_says, folders_say_how])
    finally:
        shutil.rmtree(tmp)
