"""Guessed tokens change no answer: the same requests with engine.speculate off, always and auto give the
same bits: texts, log-probabilities, ends, counts, stream events.  Forms, penalties, n, stop strings, adapters,
streams and scores are in the mix; and what stands behind a stop string costs nothing.  With draft models, too:
the base model itself, and half of its layers."""
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile

from harness import BUILD, DEMO, Server, demo_adapters, run

N = 24
THING = {"type": "object", "required": ["topic", "answer", "sure"], "additionalProperties": False,
         "properties": {"topic": {"enum": ["sum", "fact", "list", "talk"]}, "answer": {"type": "string", "maxLength": 40},
                        "sure": {"type": "boolean"}}}
TALK = [("What is 7 plus 5?", "7 plus 5 is 12."), ("Where is the lamp?", "The lamp is in the kitchen."),
        ("Name three fruits.", "Three fruits are apple, pear and plum."),
        ("Count from 3 to 8.", "3, 4, 5, 6, 7, 8."), ("Say it politely: sell the piano.", "Could you please sell the piano?")]


def forms(rng):
    form = rng.randrange(4)
    if form == 0:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": THING, "strict": True}}}
    if form == 1:
        return {"structured_outputs": {"regex": r"(The [a-z]+ is [a-z]+\. ){2,6}"}}
    if form == 2:
        return {"structured_outputs": {"choice": ["The lamp is in the kitchen.", "The lamp is in the cellar.", "Nobody knows."]}}
    return {"response_format": {"type": "json_object"}}


def make(i, models):
    rng = random.Random(4000 + i)
    body = {"model": models[i % len(models)], "seed": i, "max_tokens": rng.randrange(8, 64),
            "temperature": rng.choice([0, 0, 0.3, 0.8]), "top_p": rng.choice([0.7, 1.0]), "stream": i % 4 == 1}
    if i % 5 == 0:
        body["ignore_eos"] = True
    if i % 3 == 0:
        body.update(forms(rng))
    if i % 7 == 2:
        body.update(presence_penalty=0.3, frequency_penalty=0.2)
    if i % 7 == 4:
        body["repetition_penalty"] = 1.1
    if i % 6 == 5:
        body["stop"] = [" and", "7", "is in"]
    if i % 8 == 3:
        body["n"] = 3
    if i % 9 == 4:
        body["min_tokens"] = 10
    if i % 5 == 2 and i % 3:
        body["bad_words"] = ["lamp", " kitchen"]
    if i % 2:
        turns = rng.sample(TALK, 3) * rng.randrange(1, 3)
        body["messages"] = [m for q, a in turns for m in ({"role": "user", "content": q}, {"role": "assistant", "content": a})]
        body["messages"].append({"role": "user", "content": rng.choice(turns)[0]})
        body.update(logprobs=True, top_logprobs=3)
        return "/v1/chat/completions", body
    body["prompt"] = " ".join(q + " " + a for q, a in rng.sample(TALK, 4)) * rng.randrange(1, 4)
    body.update(logprobs=2, echo=i % 12 == 10 and "structured_outputs" not in body and "response_format" not in body)
    return "/v1/completions", body


def answer(request):
    """All of it but what differs each time."""
    path, body = request
    got = server.complete(key, path, body)
    for e in got:
        for name in ("id", "created", "system_fingerprint"):
            e.pop(name, None)
        if "usage" in e:
            e["made"] = (e.pop("usage") or {}).get("completion_tokens")
    if not body["stream"]:
        return got
    # How much text an event has is the reader's pace; what it adds up to is not.
    out = {"made": [e["made"] for e in got if e.get("made")]}
    for e in got:
        for c in e["choices"]:
            o = out.setdefault(str(c["index"]), {"text": "", "logprobs": [], "finish": None})
            o["text"] += (c["delta"].get("content") or "") if "delta" in c else c["text"]
            o["finish"] = c.get("finish_reason") or o["finish"]
            if c.get("logprobs"):
                o["logprobs"] += [c["logprobs"]["content"]] if "delta" in c else [json.dumps(c["logprobs"])]
    for o in out.values():
        if isinstance(o, dict) and "messages" in body:
            o["logprobs"] = [t for part in o["logprobs"] for t in part or []]
        elif isinstance(o, dict):
            o["logprobs"] = None  # by pieces of text
    return out


def serve(how, crowd, **more):
    """The answers to all requests, and how many guesses of each source were right and wrong."""
    global server, key
    server = Server(settings={"engine.speculate": how, "engine.kv_memory": "24MiB", **more})
    with server:
        key = server.tenant("alice")
        models = ["base"] + demo_adapters()[:4]
        for m in models[1:]:
            server.upload(key, m, DEMO / "adapters" / m)
        requests = [make(i, models) for i in range(N)]
        with concurrent.futures.ThreadPoolExecutor(crowd) as pool:
            got = list(pool.map(answer, requests))
        m = server.metrics()
        stats = server.stats()["engine"]
    count = {s: [m[f'lorad_speculated_tokens_total{{result="{r}",source="{s}"}}'] for r in ("accepted", "rejected")]
             for s in ("lookup", "form", "draft")}
    assert (stats["draft_bytes"] > 0) == ("model.draft" in more) and stats["draft_used_bytes"] == 0, stats
    return requests, got, count, m


def half_of_the_base(folder):
    """A model of its first layers, which says something else."""
    shutil.copytree(DEMO / "base", folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = n = config["num_hidden_layers"] // 2
    (folder / "config.json").write_text(json.dumps(config))
    raw = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header, data, at = json.loads(raw[8:8 + size]), b"", {}
    for name, t in header.items():
        layer = name.split(".")[2] if ".layers." in name else "0"
        if name == "__metadata__" or int(layer) >= n:
            continue
        begin, end = t["data_offsets"]
        at[name] = {**t, "data_offsets": [len(data), len(data) + end - begin]}
        data += raw[8 + size + begin:8 + size + end]
    text = json.dumps(at).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def the_answers_are_the_same():
    requests, want, none, _ = serve("off", 4)
    assert sum(map(sum, none.values())) == 0, none
    half = pathlib.Path(tempfile.mkdtemp(prefix="lorad-e2e-"))
    half_of_the_base(half)
    runs = [("always", 12, {"engine.kv_memory": "5MiB", "engine.speculate_tokens": 16}),
            ("auto", 4, {} if on_device else {"model.draft": DEMO / "base"})]
    if not on_device:
        runs += [("always", 12, {"engine.kv_memory": "5MiB", "model.draft": half})]
    for how, crowd, more in runs:
        _, got, count, m = serve(how, crowd, **more)
        for i in range(N):
            assert got[i] == want[i], (how, i, requests[i], want[i], got[i])
        print(f"    {how}, {crowd} at once: {count}, {m['lorad_preemptions_total']:.0f} pre-empted")
        if how == "always":
            right, wrong = (sum(c[i] for c in count.values()) for i in range(2))
            assert right > 50 and wrong > 50, count
            assert (count["draft"][0] > 50) == ("model.draft" in more), count
    shutil.rmtree(half)


def another_vocabulary_is_refused():
    """By name; so is a folder without one, and a device."""
    with tempfile.TemporaryDirectory() as folder:
        other = pathlib.Path(folder) / "other"
        half_of_the_base(other)
        tokens = json.loads((other / "tokenizer.json").read_text())
        vocab = tokens["model"]["vocab"]
        a, b = sorted(vocab, key=vocab.get)[1000:1002]
        vocab[a], vocab[b] = vocab[b], vocab[a]
        (other / "tokenizer.json").write_text(json.dumps(tokens))
        subprocess.run([BUILD / "lorad", "init", "--dir", f"{folder}/data", "--model", DEMO / "base"], check=True,
                       capture_output=True)

        def start_with(verb, draft, *more):
            return subprocess.run([BUILD / "lorad", verb, "-c", f"{folder}/data/lorad.conf", "--set", f"model.draft={draft}",
                                   *more], capture_output=True, text=True)
        for verb in ("check", "serve"):
            p = start_with(verb, other)
            assert p.returncode == 1 and "model.draft: its tokenizer is not the base model's: token 1" in p.stderr, p
            p = start_with(verb, folder)
            assert p.returncode == 1 and "model.draft: " in p.stderr, p
        p = start_with("check", DEMO / "base")
        assert p.returncode == 0 and "draft        llama, 6 layers of 192, about" in p.stdout, p


on_device = os.environ.get("LORAD_BACKEND", "cpu") != "cpu"
run([the_answers_are_the_same] + ([] if on_device else [another_vocabulary_is_refused]))
