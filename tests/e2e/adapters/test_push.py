"""Adapters that change every minute: vLLM's calls for trainers, as TRL's clients make them, and what a trainer asks of answers."""
import base64
import concurrent.futures
import http.client
import json
import math
import pathlib
import re
import shutil
import socket
import ssl
import tempfile
import threading
import time
import uuid

from harness import Server, events, free_port, run, until
from tiny import FIXTURES, make_model

ADAPTERS = FIXTURES / "models/adapters-a"
tmp = pathlib.Path(tempfile.mkdtemp())
roots = tmp / "runs"
plain_port = free_port()
server = Server(model=make_model(tmp / "llama"), settings={"engine.max_seqs": 16, "adapters.roots": roots, "adapters.keep_versions": 2, "debug.probe": "yes",
                          "server.plain_listen": f"127.0.0.1:{plain_port}"})
PROMPT = list(range(20, 60))


def post(path, body=None, expect=200, headers=None):
    r = server.call("POST", path, body, key=server.tenant_key, headers=headers)
    assert r.status == expect, r
    return r


def load(name, path, expect=200, **more):
    return post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **more}, expect)


def unload(name, expect=200):
    return post("/v1/unload_lora_adapter", {"lora_name": name}, expect)


def form(parts):
    """multipart/form-data as requests writes it: (name, bytes or text) and (name, bytes, file's name)."""
    mark = uuid.uuid4().hex
    out = b""
    for name, value, *file in parts:
        head = f'form-data; name="{name}"' + (f'; filename="{file[0]}"' if file else "")
        out += f"--{mark}\r\nContent-Disposition: {head}\r\n\r\n".encode()
        out += (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
    return out + f"--{mark}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={mark}"}


def files_of(folder):
    return [("files", p.read_bytes(), p.name) for p in sorted(folder.iterdir()) if p.name.startswith("adapter_")]


def push(name, folder, expect=200, inplace="true"):
    body, headers = form([("lora_name", name), ("load_inplace", inplace), *files_of(folder)])
    return post("/v1/load_lora_adapter", body, expect, headers)


def text(model="base", expect=200, **more):
    return post("/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}, expect).json


def said(model, **more):
    return text(model, logprobs=0, **more)["choices"][0]["logprobs"]["token_logprobs"]


def kept(name):
    """Old ones go behind the answer."""
    return [v["version"] for v in server.call("GET", f"/v1/adapters/{name}/versions", key=server.tenant_key).json["data"]]


def folder(name, of):
    where = roots / "acme" / name
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(ADAPTERS / of, where)
    return where


def policies_come_and_go_as_trl_has_it():
    """What AsyncGRPOTrainer's client does with a LoRA: a new name for each policy, the one before last goes."""
    info = server.call("GET", "/server_info?config_format=json", key=server.tenant_key).json["vllm_config"]
    assert info["model_config"]["dtype"] == "torch.float32" and info["parallel_config"]["data_parallel_size"] == 1, info
    assert info["lora_config"] == {"max_loras": 16, "max_lora_rank": 256}, info
    assert server.call("GET", "/health").status == 200
    models = server.call("GET", "/v1/models", key=server.tenant_key).json["data"]
    assert models[0]["id"] == "base" and models[0]["max_model_len"] == info["model_config"]["max_model_len"], models
    want = {}
    for v, of in enumerate(["r1", "r4", "r16", "mlp"], 1):
        name, where = f"trl-policy-v{v}", folder("sync", of)  # the same folder each time, rewritten
        assert post("/pause?mode=keep").json["status"] == "running"
        r = load(name, where, load_inplace=False)
        assert r.body == f"Success: LoRA adapter '{name}' added successfully.".encode(), r
        assert r.headers["x-adapter-version"] == f"{name}@1" and len(r.headers["x-adapter-digest"]) == 64, r.headers
        post("/resume")
        post("/reset_prefix_cache")
        if v > 2:
            assert unload(f"trl-policy-v{v - 2}").body == f"Success: LoRA adapter 'trl-policy-v{v - 2}' removed successfully.".encode()
        want[name] = said(name)
        for old in list(want)[-2:]:
            assert said(old) == want[old], old
        text(f"trl-policy-v{v - 2}", 404)
    assert len({tuple(w) for w in want.values()}) == 4
    for mode in ("", "?mode=abort", "?mode=wait"):
        assert "mode=keep" in post(f"/pause{mode}", expect=400).json["error"]["message"]
    for path in ("/update_weights", "/init_weight_transfer_engine"):
        assert "load_lora_adapter" in post(path, {}, 404).json["error"]["message"]
    e = unload("trl-policy-v1", 404).json["error"]
    assert e["message"] == "The lora adapter 'trl-policy-v1' cannot be found." and e["param"] == "lora_name", e


def trls_generate_finds_what_it_reads():
    """The body of its VLLMClient.generate() and chat(), and how it reads the answers."""
    sampling = {"n": 2, "repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_tokens": 6, "logprobs": 3}
    prompts = [[20, 21, 22], [30, 31]]
    ids = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    choices = post("/v1/completions", {"model": "base", "prompt": prompts, **ids, **sampling}).json["choices"]
    assert [c["prompt_token_ids"] for c in choices[::2]] == prompts, choices
    for c in choices:
        lp = c["logprobs"]
        assert [int(t.removeprefix("token_id:")) for t in lp["tokens"]] == c["token_ids"]
        for token, own, tops in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"], strict=True):
            assert len(tops) == 3 and all(t.startswith("token_id:") for t in tops) and tops.get(token, own) == own
    greedy = {"model": "base", "prompt": prompts[0], **ids, "temperature": 0, "max_tokens": 3, "logprobs": 0}
    end = post("/v1/completions", greedy).json["choices"][0]["token_ids"][1]
    for stream in (True, False):  # the token that ends an answer is among its ids as among its log-probabilities
        r = post("/v1/completions", {**greedy, "stop_token_ids": [end], "stream": stream})
        parts = [c for e in events(r.body) for c in e["choices"]] if stream else r.json["choices"]
        listed = sum((c["token_ids"] for c in parts), [])
        assert listed[-1] == end and parts[-1]["finish_reason"] == "stop", parts
        assert [f"token_id:{i}" for i in listed] == sum((c["logprobs"]["tokens"] for c in parts if c["logprobs"]), []), parts
    chat = {"model": "base", "messages": [{"role": "user", "content": "Hi"}], **ids, **sampling, "logprobs": True, "top_logprobs": 0}
    r = post("/v1/chat/completions", {**chat, "temperature": 0.7}).json
    for c in r["choices"]:
        assert [e["token"] for e in c["logprobs"]["content"]] == [f"token_id:{i}" for i in c["token_ids"]] and r["prompt_token_ids"], r
    scored = post("/v1/completions", {"model": "base", "prompt": [PROMPT], "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 5})
    for i, at in enumerate(scored.json["choices"][0]["prompt_logprobs"][1:], 1):
        assert str(PROMPT[i]) in at and len([t for t in at.values() if t["rank"] <= 5]) == 5, at
    for stream in (True, False):
        body = {"model": "base", "prompt": prompts[0], "max_tokens": 5, "temperature": 0, "ignore_eos": True, **ids}
        r = post("/v1/completions", {**body, "stream": stream})
        parts = [c for e in events(r.body) for c in e["choices"]] if stream else r.json["choices"]
        told = [c["prompt_token_ids"] for c in parts if "prompt_token_ids" in c]
        got = sum((c["token_ids"] for c in parts), [])
        assert told == prompts[:1] and len(got) == 5, parts
    basic = base64.b64encode(f":{server.tenant_key}".encode()).decode()  # requests, of https://:KEY@host
    assert server.call("GET", "/v1/models", headers={"Authorization": f"Basic {basic}"}).status == 200
    for wrong in ("", "?", "YWJj", "Og=="):
        assert server.call("GET", "/v1/models", headers={"Authorization": f"Basic {wrong}"}).status == 401


def answers_to(writes, cut, version):
    """Of three requests one behind the other on one connection: (status, head, body) of each.  A write begins a TLS record;
    what comes of them is sent in pieces of `cut` bytes, with pauses between some."""
    tls = server.tls()
    tls.minimum_version = tls.maximum_version = version
    arrived, leaves = ssl.MemoryBIO(), ssl.MemoryBIO()
    with socket.create_connection(("127.0.0.1", server.port), 60) as s:
        o = tls.wrap_bio(arrived, leaves, server_hostname="localhost")

        def until_done(what):
            while True:
                try:
                    return what()
                except ssl.SSLWantReadError:
                    s.sendall(leaves.read())
                    arrived.write(s.recv(1 << 16))

        until_done(o.do_handshake)
        got, out = b"", []
        for data in writes:
            while data:
                data = data[o.write(data):]
        sent = leaves.read()
        for i in range(0, len(sent), cut):
            s.sendall(sent[i:i + cut])
            if i // cut % 7 == 0:
                time.sleep(0.01)
        while True:
            head, end, rest = got.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            if end and len(rest) >= int(length[1]):
                out.append((int(got[9:12]), head.decode().lower(), rest[:int(length[1])]))
                got = rest[int(length[1]):]
                if len(out) == 3:
                    return out
                continue
            got += until_done(lambda: o.read(1 << 16))


def a_long_body_is_read_in_any_pieces():
    """Past the listener's buffer, by more than a TLS record at once; what stands behind it is the next request."""
    key = f"Authorization: Bearer {server.tenant_key}\r\nHost: localhost\r\n"
    digest = push("wide", ADAPTERS / "r16").headers["x-adapter-digest"]
    ask = f"GET /v1/models HTTP/1.1\r\n{key}\r\n".encode()
    for n, (pad, cut, version) in enumerate([(700_001, 5000, ssl.TLSVersion.TLSv1_3), (1_300_000, 40_001, ssl.TLSVersion.TLSv1_2),
                                             (1_048_576, 1 << 20, ssl.TLSVersion.TLSv1_3), (5_000_003, 300_007, ssl.TLSVersion.TLSv1_3)]):
        form_, head = form([("lora_name", "wide"), ("load_inplace", "true"), ("files", b"x" * pad, "notes.md"),
                            *files_of(ADAPTERS / "r16"), ("files", b"\r\n--" * (pad // 9), "more.md")])
        load_ = f"POST /v1/load_lora_adapter HTTP/1.1\r\n{key}Content-Type: {head['Content-Type']}\r\nContent-Length: {len(form_)}\r\n\r\n".encode()
        first, second, third = answers_to([load_ + form_ + ask + ask] if n == 0 else [load_ + form_, ask, ask], cut, version)
        assert first[0] == 200 and f"x-adapter-digest: {digest}" in first[1], (n, first)
        assert second[0] == third[0] == 200 and json.loads(third[2])["object"] == "list", (n, second, third)
    plain = http.client.HTTPConnection("127.0.0.1", plain_port, timeout=60)
    plain.request("POST", "/v1/load_lora_adapter", form_, {"Authorization": f"Bearer {server.tenant_key}", **head})
    with plain.getresponse() as r:
        assert r.status == 200 and r.headers["x-adapter-digest"] == digest, r.read()
    plain.close()
    for size in (800_000, 3_000_000):  # a client that goes away in the middle leaves the server as it was
        s = server.raw()
        s.sendall(load_ + form_[:size])
        s.close()
    assert push("wide", ADAPTERS / "r16").headers["x-adapter-digest"] == digest


def log_probabilities_are_of_what_was_asked_for():
    def tops(**more):
        c = text(max_tokens=1, logprobs=20, **{"top_p": 1, "top_k": 0, "min_p": 0, **more}, temperature=0.5, seed=3,
                 logit_bias={"7": 4}, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
        return {k: v for k, v in c["top_logprobs"][0].items()} | {c["tokens"][0]: c["token_logprobs"][0]}

    raw, adjusted, drawn = (tops(logprobs_mode=m + "_logprobs") for m in ("raw", "adjusted", "processed"))
    plain = text(max_tokens=1, logprobs=20, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["top_logprobs"][0]
    assert plain.items() <= raw.items() and tops() == adjusted != raw
    both = sorted(set(adjusted) & set(drawn), key=adjusted.get)[-6:]
    for a, b in zip(both, both[1:]):  # over the temperature
        assert math.isclose(drawn[b] - drawn[a], 2 * (adjusted[b] - adjusted[a]), abs_tol=1e-3), (a, b)
    kept = tops(logprobs_mode="processed_logprobs", top_k=3)
    assert len(kept) == 3 and math.isclose(sum(map(math.exp, kept.values())), 1, abs_tol=1e-4), kept
    for wrong in ("raw_logits", "processed_logits", "x"):
        assert "raw_logprobs, processed_logprobs" in text(expect=400, logprobs_mode=wrong)["error"]["message"]


def versions_follow_each_other_by_name():
    """load_inplace, tensors in the body, the last K kept; requests that run keep what they began with."""
    digests = []
    for v, of in enumerate(["r1", "r4", "r16", "mlp"], 1):
        r = push("policy", ADAPTERS / of) if v % 2 else load("policy", folder("again", of), load_inplace=True)
        assert r.headers["x-adapter-version"] == f"policy@{v}", r.headers
        digests.append(r.headers["x-adapter-digest"])
        head = server.call("POST", "/v1/completions", {"model": "policy@latest", "prompt": PROMPT, "max_tokens": 1}, key=server.tenant_key).headers
        assert (head["x-adapter-version"], head["x-adapter-digest"]) == (f"policy@{v}", digests[-1]), head
    assert len(set(digests)) == 4
    of_tar = server.upload(server.tenant_key, "by-tar", ADAPTERS / "mlp").json
    assert of_tar["digest"] == digests[3] and said("policy") == said("by-tar")
    until(lambda: kept("policy") == [4, 3])
    text("policy@2", 404)
    assert "already been loaded" in load("policy", folder("again", "r1"), 400).json["error"]["message"]
    assert "already been loaded" in push("policy", ADAPTERS / "r1", 400, inplace="False").json["error"]["message"]
    # One that a stream holds stays until nobody does.
    stream = server.connect()
    stream.request("POST", "/v1/completions", json.dumps({"model": "policy", "prompt": PROMPT, "max_tokens": 60, "stream": True, "ignore_eos": True}),
                   {"Authorization": f"Bearer {server.tenant_key}", "Content-Type": "application/json"})
    held = stream.getresponse()
    held.readline()
    for of in ("r4", "r16", "mlp"):
        push("policy", ADAPTERS / of)
    assert held.read().endswith(b"data: [DONE]\n\n")
    assert held.headers["x-adapter-version"] == "policy@4"
    until(lambda: kept("policy") == [7, 6])  # its hold ends a moment after its last byte


def what_a_version_changes_is_measured():
    """By the log-probabilities of a fixed prompt, as anybody can ask for them; 0 is a warning."""
    vocab = json.loads((tmp / "llama/config.json").read_text())["vocab_size"]
    prompt = [(7 + i * 7919) % vocab for i in range(16)]
    tiny = tmp / "tiny"
    shutil.copytree(ADAPTERS / "r4", tiny)
    raw = bytearray((tiny / "adapter_model.safetensors").read_bytes())
    head = 8 + int.from_bytes(raw[:8], "little")
    for name, of in json.loads(raw[8:head]).items():
        if "lora_B" in name:
            assert of["dtype"] == "F32", of
            first, end = (head + at for at in of["data_offsets"])
            raw[first:end] = b"\0\0\x80\0" * ((end - first) // 4)  # the least normal number
    (tiny / "adapter_model.safetensors").write_bytes(raw)

    def scores(model):
        r = post("/v1/completions", {"model": model, "prompt": [prompt], "max_tokens": 1, "temperature": 0, "prompt_logprobs": 20})
        return [{t: of["logprob"] for t, of in at.items()} for at in r.json["choices"][0]["prompt_logprobs"][1:]]

    def shown(name):
        r = server.call("GET", f"/v1/adapters/{name}/versions/1", key=server.tenant_key).json
        return r if r["logit_change"] is not None else None

    base = scores("base")
    for name, where in (("some", ADAPTERS / "r4"), ("least", tiny)):
        assert server.upload(server.tenant_key, name, where).json["effect"] == "some"
        got = until(lambda: shown(name))
        want = max(abs(a[t] - b[t]) for a, b in zip(base, scores(name)) for t in a.keys() & b.keys())
        assert math.isclose(got["logit_change"], want, rel_tol=1e-6, abs_tol=1e-9), (got, want)
        assert (want == 0) == (name == "least") == bool(got["warning"]), (name, want, got)


def no_answer_is_of_another_version_under_load():
    """Two adapters take turns under one name, with nothing between; each answer is what its header's version gives alone."""
    ways = ["r4", "mlp"]
    for name in ways:
        server.upload(server.tenant_key, "alone-" + name, ADAPTERS / name)
    want = {n: said("alone-" + n) for n in ways}
    digest = {server.call("GET", f"/v1/adapters/alone-{n}/versions/1", key=server.tenant_key).json["digest"]: n for n in ways}
    assert want["r4"] != want["mlp"]
    push("turns", ADAPTERS / "r4")
    stop, seen = threading.Event(), []

    def ask():
        while not stop.is_set():
            r = post("/v1/completions", {"model": "turns", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 0})
            assert r.json["choices"][0]["logprobs"]["token_logprobs"] == want[digest[r.headers["x-adapter-digest"]]], r.headers
            seen.append(r.headers["x-adapter-version"])

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        try:
            for i in range(20):
                r = push("turns", ADAPTERS / ways[(i + 1) % 2])
                assert r.headers["x-adapter-version"] == f"turns@{i + 2}"
                head = post("/v1/completions", {"model": "turns", "prompt": PROMPT, "max_tokens": 1}).headers
                assert head["x-adapter-version"] == f"turns@{i + 2}", head  # from the answer on
        finally:
            stop.set()
        for a in asking:
            a.result()
    assert len(set(seen)) > 1, set(seen)


def what_cannot_be_is_refused_by_name():
    def refused(status, says, call):
        e = call(status).json["error"]
        assert says in e["message"], (says, e)

    run_1 = folder("run", "r1")
    (roots / "other").mkdir(exist_ok=True)
    shutil.copytree(ADAPTERS / "r1", roots / "other/r1", dirs_exist_ok=True)
    (roots / "acme/link").symlink_to(roots / "other/r1")
    shutil.copytree(ADAPTERS / "r1", tmp / "outside")
    for path in (roots / "other/r1", roots, roots / "acme/link", roots / "acme/../other/r1", tmp / "outside", "/etc", "/no/such"):
        refused(403, "the folder 'acme' of one of adapters.roots", lambda s, p=path: load("x", p, s))
    refused(404, "directory does not exist", lambda s: load("x", roots / "acme/ghost", s))
    refused(400, "absolute", lambda s: load("x", "org/repo", s))
    for body, says in (({"lora_name": "x"}, "'lora_path'"), ({"lora_path": str(run_1)}, "'lora_name'"), ({"lora_name": "", "lora_path": "/x"}, "'lora_name'"),
                       ({"lora_name": "x", "lora_path": str(run_1), "load_inplace": 1}, "load_inplace"),
                       ({"lora_name": "x", "lora_path": str(run_1), "rank": 1}, "rank")):
        refused(400, says, lambda s, b=body: post("/v1/load_lora_adapter", b, s))
    for name in ("Policy", "a/b", "base", "x" * 65):
        refused(400, "name", lambda s, n=name: load(n, run_1, s))
        refused(400, "name", lambda s, n=name: push(n, run_1, s))
    files = files_of(run_1)
    own = [("lora_name", "x")]
    for parts, status, says in ((files, 400, "before the files"), (own, 400, "then the adapter's files"), (own + files[:1], 422, "adapter_model.safetensors"),
                                (own + files + files[:1], 422, "twice"), (own + [("load_inplace", "maybe")] + files, 400, "true or false"),
                                (own + [("what", "x")] + files, 400, "'what'"), (own + [("f", b"x", "model.pt")], 422, "pickle"),
                                (own + [files[0], (*files[1][:1], files[1][1][:900], files[1][2])], 422, "adapter_model.safetensors")):
        body, headers = form(parts)
        refused(status, says, lambda s: post("/v1/load_lora_adapter", body, s, headers))
    body, headers = form(own + files)
    refused(422, "boundary", lambda s: post("/v1/load_lora_adapter", body[:-30], s, headers))
    text("x", 404)
    reader = server.key("acme", scopes=["inference", "adapters.read"])
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/pause?mode=keep"):
        assert server.call("POST", path, {"lora_name": "policy", "lora_path": "/x"}, key=reader).status == 403, path
    assert not list((server.dir / "adapters/tmp").iterdir())


try:
    with server:
        roots.mkdir()
        (roots / "acme").mkdir()
        server.tenant_key = server.tenant("acme")
        run([policies_come_and_go_as_trl_has_it, trls_generate_finds_what_it_reads, log_probabilities_are_of_what_was_asked_for,
             a_long_body_is_read_in_any_pieces, versions_follow_each_other_by_name, what_a_version_changes_is_measured,
             no_answer_is_of_another_version_under_load, what_cannot_be_is_refused_by_name])
finally:
    shutil.rmtree(tmp)
