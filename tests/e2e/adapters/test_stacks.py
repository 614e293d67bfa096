"""Stacks: several adapters in one request, each with a scale, as PEFT's add_weighted_adapter(combination_type="cat")."""
import concurrent.futures
import json
import pathlib
import shutil
import tempfile

from harness import Server, events, run
from tiny import FIXTURES, make_model

GOLDEN = [c for c in json.loads((FIXTURES / "alora/golden.json").read_text())["cases"] if c["stack"]]
PARTS = ["r1", "r4", "r16", "r64", "r256", "rslora", "pattern", "mlp"]  # of fixtures/models/adapters-a
PAGE, NEAR = 32, 1e-4
tmp = pathlib.Path(tempfile.mkdtemp())
server = Server(model=make_model(tmp / "llama"), settings={"engine.max_rows": 40, "engine.max_seqs": 16})


def stack_of(*parts):
    return [{"name": n, "scale": s} for n, s in parts]


def post(path, body, key=None, expect=200):
    r = server.call("POST", path, body, key=key or server.tenant_key)
    assert r.status == expect, r
    return r


def text(parts, prompt, key=None, expect=200, **more):
    body = {"model": "base", "adapters": parts, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True,
            "logprobs": 1, "return_token_ids": True, **more}
    return post("/v1/completions", {k: v for k, v in body.items() if v is not None}, key, expect).json


def cached(r):
    return r["usage"]["prompt_tokens_details"]["cached_tokens"]


def they_answer_as_peft_does_in_mixed_batches():
    assert len(GOLDEN) == 4
    others = [(None, "base"), (None, "r4"), (stack_of(("r4", 3), ("r16", -1)), "base")] * 2
    prompt = list(range(20, 80))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        company = [pool.submit(text, p, prompt, model=m, max_tokens=40) for p, m in others]
        answers = [(c, pool.submit(text, stack_of(*c["stack"][::way]), c["prompt"], n=2)) for c in GOLDEN for way in (1, -1)]
        for case, a in answers:
            for c in a.result()["choices"]:
                assert c["token_ids"] == case["tokens"], (case["stack"], c["token_ids"], case["tokens"])
                far = max(abs(x - y) for x, y in zip(c["logprobs"]["token_logprobs"], case["logprobs"], strict=True))
                assert far < NEAR, (case["stack"], far)
        for (p, m), a in zip(others, company):
            assert a.result()["choices"] == text(p, prompt, model=m, max_tokens=40)["choices"]
    for case in GOLDEN:
        got = text(stack_of(*case["stack"]), case["prompt"], echo=True, max_tokens=0)["choices"][0]["logprobs"]["token_logprobs"]
        assert max(abs(x - y) for x, y in zip(got[1:], case["prompt_logprobs"], strict=True)) < NEAR


def its_pages_are_those_of_its_parts_and_scales():
    prompt = [14 + i * 7 % 250 for i in range(3 * PAGE)]
    assert cached(text(stack_of(("r4", 0.5), ("mlp", 2)), prompt + [20])) == 0
    assert cached(text(stack_of(("mlp", 2), ("r4", 0.5)), prompt + [20])) == 3 * PAGE  # the order says nothing
    for other in ([("r4", 0.5), ("mlp", 2.5)], [("r4", 0.5)], [("r4", 2), ("mlp", 0.5)], [("r4", 0.5), ("mlp", 2), ("r1", 1)]):
        assert cached(text(stack_of(*other), prompt + [20])) == 0, other
    # One adapter as it is, is that adapter.
    one = text(None, prompt + [20], model="r4")
    again = text([{"name": "r4"}], prompt + [20])
    assert cached(one) == 0 and cached(again) == 3 * PAGE and again["choices"] == one["choices"]


def an_adapter_that_does_nothing_says_so():
    """As PEFT saves one that was never trained: B is zero."""
    for name, zero, effect in (("untrained", "lora_B", "none"), ("half", "layers.0.mlp.up_proj.lora_A", "some"), ("whole", "no", "some")):
        where = tmp / name
        shutil.copytree(FIXTURES / "models/adapters-a/r1", where)
        raw = bytearray((where / "adapter_model.safetensors").read_bytes())
        head = 8 + int.from_bytes(raw[:8], "little")
        for tensor, of in json.loads(raw[8:head]).items():
            if zero in tensor:
                first, end = of["data_offsets"]
                raw[head + first:head + end] = bytes(end - first)
        (where / "adapter_model.safetensors").write_bytes(raw)
        r = server.upload(server.tenant_key, name, where).json
        assert r["effect"] == effect and bool(r["warning"]) == (effect == "none") and r["logit_change"] is None, r
        r = server.call("GET", f"/v1/adapters/{name}/versions/1", key=server.tenant_key)
        assert r.json["effect"] == effect, r
        base, own = (text(None, [20, 21, 22], model=m)["choices"] for m in ("base", name))
        assert (own == base) == (effect == "none"), name
    assert "'untrained' changes nothing" in server.log_path.read_text()


def answers_and_usage_name_the_stack():
    said = [post("/v1/completions", {"model": "base", "adapters": stack_of(("mlp@latest", scale), ("r4:default", 0.5)), "prompt": "x",
                                     "max_tokens": 1}).headers for scale in (-0.25, -0.5)]
    assert [h["x-adapter-version"] for h in said] == ["r4@1*0.5+mlp@1*-0.25", "r4@1*0.5+mlp@1*-0.5"], said
    assert len({h["x-adapter-digest"] for h in said}) == 2 and len(said[0]["x-adapter-digest"]) == 64, said
    server.booked()
    rows = server.admin("GET", "/usage?start=0&bucket_width=1h&group_by=model,adapter")["data"]
    assert any(r["model"] == "r4@1*0.5+mlp@1*-0.25" for bucket in rows for r in bucket["results"]), rows


def every_door_takes_them():
    """The demo question through chat, responses and messages; a stack of one is the adapter, of two another."""
    stack = stack_of(("r4", 1), ("r16", -3))
    chat = {"model": "base", "max_tokens": 6, "temperature": 0, "messages": [{"role": "user", "content": "Hello"}]}
    plain = post("/v1/chat/completions", chat).json["choices"][0]["message"]["content"]
    both = post("/v1/chat/completions", {**chat, "adapters": stack}).json["choices"][0]["message"]["content"]
    assert both != plain
    r = post("/v1/responses", {"model": "base", "adapters": stack, "input": "Hello", "max_output_tokens": 6, "temperature": 0})
    assert r.json["output"][0]["content"][0]["text"] == both, r
    r = post("/v1/messages", {"model": "base", "adapters": stack, "max_tokens": 6, "temperature": 0,
                              "messages": [{"role": "user", "content": "Hello"}]})
    assert r.json["content"][0]["text"] == both, r
    r = post("/v1/completions", {"model": "base", "adapters": stack, "prompt": "Hello", "max_tokens": 4, "stream": True})
    assert b"[DONE]" in r.body


def named_stacks_have_versions():
    """A stack with a name answers, is keyed and billed as its parts are, whatever becomes of their aliases."""
    key = server.tenant_key

    def put(name, parts, expect=201, **more):
        r = server.call("PUT", f"/v1/stacks/{name}", {"adapters": parts, **more}, key=key)
        assert r.status == expect, r
        return r.json

    parts = stack_of(("r4", 0.75), ("rslora", -0.5))
    want = text(parts, [20, 21, 22])["choices"]
    made = put("pair", parts)
    assert (made["version"], made["model"]) == (1, "pair@1") and made["adapters"] == stack_of(("r4@1", 0.75), ("rslora@1", -0.5)), made
    assert put("pair", [{"name": "mlp"}])["version"] == 2
    for model, choices in (("pair@1", want), ("pair", text(None, [20, 21, 22], model="mlp")["choices"])):
        assert text(None, [20, 21, 22], model=model)["choices"] == choices, model
    body = {"model": "pair@1", "prompt": "x", "max_tokens": 1}
    assert post("/v1/completions", body).headers["x-adapter-version"] == "r4@1*0.75+rslora@1*-0.5"
    prompt = [31 + i * 3 % 200 for i in range(2 * PAGE)]
    assert cached(text(parts, prompt + [9])) == 0 and cached(text(None, prompt + [9], model="pair@1")) == 2 * PAGE
    for model in ("pair@3", "pair@0", "pair:x", "pair@", "nobody"):
        assert text(None, [20], model=model, expect=404)["error"]["param"] == "model", model
    other = server.tenant("strangers")
    text(None, [20], other, 404, model="pair")
    listed = server.call("GET", "/v1/stacks", key=key).json["data"]
    assert [(s["name"], s["version"]) for s in listed] == [("pair", 2)], listed
    assert [s["version"] for s in server.call("GET", "/v1/stacks/pair", key=key).json["data"]] == [2, 1]
    assert server.call("GET", "/v1/stacks", key=other).json["data"] == []
    for name, parts_, status, says in (("r4", parts, 409, "is an adapter"), ("base", parts, 400, "base"), ("Pair", parts, 400, "name"), ("p", [], 400, "1 to 4"),
                                       ("p", stack_of(("r4", 0)), 400, "scale"), ("p", stack_of(("ghost", 1)), 404, "ghost"), ("p", ["r4"], 400, "object"),
                                       ("p", stack_of(("r4", 1), ("r4", 2)), 400, "twice"), ("p", stack_of(("r256", 1), ("r1", 1)), 400, "257"),
                                       ("p", [{"name": "r4", "weight": 1}], 400, "weight"), ("p", stack_of(("all", 0.5)), 400, "activated")):
        assert says in put(name, parts_, status)["error"]["message"], (name, says)
    server.upload(key, "short", FIXTURES / "models/adapters-a/r1")
    put("lost", stack_of(("short", 0.5), ("r4", 1)))
    assert server.call("DELETE", "/v1/adapters/short", key=key).status == 200
    assert text(None, [20], model="lost", expect=404)["error"]["param"] == "adapters[0]"
    for name, status in (("lost", 200), ("pair", 200), ("pair", 404)):
        assert server.call("DELETE", f"/v1/stacks/{name}", key=key).status == status
    text(None, [20], model="pair", expect=404)


def a_cascade_asks_on_until_an_answer_passes():
    """Each step is billed, the header says what each came to, and a stream begins with the answer that is kept."""
    def put(name, steps, expect=201, **more):
        r = server.call("PUT", f"/v1/stacks/{name}", {"cascade": steps, **more}, key=server.tenant_key)
        assert r.status == expect, r
        return r.json

    def ask(name, stream=False, path="/v1/completions", **body):
        body = body or {"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        return post(path, {"model": name, "stream": stream, **body})

    prompt = [20, 21, 22, 23]
    alone = {m: text(None, prompt, model=m)["choices"][0] for m in ("r4", "r16", "base")}
    mean = {m: round(sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"]), 6) for m, c in alone.items()}
    assert len({c["text"] for c in alone.values()}) == 3, alone
    step = {m: ({"name": m, "min_logprob": round(mean[m] - 0.01, 6)}, {"name": m, "min_logprob": mean[m] + 0.01}) for m in alone}  # it passes, it fails
    made = put("early", [step["r4"][0], {"name": "base"}])
    assert made["model"] == "early@1" and made["cascade"] == [{"name": "r4@1", "min_logprob": round(mean["r4"] - 0.01, 6)}, {"name": "base"}], made
    put("late", [step["r4"][1], step["r16"][0], {"name": "base"}])
    put("last", [step["r4"][1], step["r16"][1], {"name": "base"}])
    put("uncut", [{"name": "r4", "complete": True}, {"name": "base"}])
    usage = {}
    for name, ran in (("early", ["r4"]), ("late", ["r4", "r16"]), ("last", ["r4", "r16", "base"])):
        want = ", ".join(f"{m}@1;logprob={mean[m]:.4f}" if m != "base" else m for m in ran)
        r = ask(name)
        (c,) = r.json["choices"]
        assert c["text"] == alone[ran[-1]]["text"] and c["logprobs"] is None and r.json["model"] == name, (name, r)
        assert r.headers["x-lorad-cascade"] == want and r.headers.get("x-adapter-version", "base") == (f"{ran[-1]}@1" if ran[-1] != "base" else "base"), (want, r.headers)
        streamed = ask(name, True)
        assert "".join(e["choices"][0]["text"] for e in events(streamed.body)) == c["text"] and streamed.headers["x-lorad-cascade"] == want, streamed
        for m in ran:
            usage[m] = usage.get(m, 0) + 2
    assert ask("uncut").json["choices"][0]["text"] == alone["base"]["text"]  # max_tokens cut the first one's
    usage["r4"] += 1
    usage["base"] += 1
    server.booked()
    rows = server.admin("GET", "/usage?start=0&bucket_width=1h&group_by=model")["data"]
    billed = {r["model"]: r["num_model_requests"] for bucket in rows for r in bucket["results"]}
    before = {m: billed.get(f"{m}@1" if m != "base" else m, 0) for m in usage}
    assert ask("last").status == 200
    server.booked()
    rows = server.admin("GET", "/usage?start=0&bucket_width=1h&group_by=model")["data"]
    billed = {r["model"]: r["num_model_requests"] for bucket in rows for r in bucket["results"]}
    assert all(billed[f"{m}@1" if m != "base" else m] == before[m] + 1 and before[m] >= usage[m] for m in usage), (before, billed)
    for more in ({"use_beam_search": True, "n": 2}, {"n": 1, "best_of": 3, "temperature": 1, "seed": 3}, {"n": 2}, {"response_format": {"type": "json_object"}}):
        for name in ("early", "late", "last", "uncut"):
            r = post("/v1/completions", {"model": name, "prompt": prompt, "max_tokens": 5, "temperature": 0, **more})
            assert len(r.json["choices"]) == more.get("n", 1) and 1 <= len(r.headers["x-lorad-cascade"].split(", ")) <= 3, (name, r)
    hello = [{"role": "user", "content": "Hello"}]
    for path, body in (("/v1/chat/completions", {"messages": hello, "max_tokens": 6}), ("/v1/responses", {"input": "Hello", "max_output_tokens": 6}),
                       ("/v1/messages", {"messages": hello, "max_tokens": 6})):
        for stream in (False, True):
            r = ask("uncut", stream, path, **body, temperature=0)
            assert r.headers["x-lorad-cascade"] == "r4@1, base" and r.headers.get("x-adapter-version") is None, (path, r.headers)
            assert len([h for h in r.headers if h == "x-lorad-cascade"]) == 1
    for steps, status, says in (([{"name": "r4", "complete": True}], 400, "2 to 4"), ([{"name": "r4"}, {"name": "base"}], 400, "min_logprob"),
                                ([step["r4"][0], {"name": "base", "complete": True}], 400, "is the last"), ("r4", 400, "2 to 4"),
                                ([{"name": "r4", "min_logprob": 1}, {"name": "base"}], 400, "-100 to 0"), ([{"name": "r4", "complete": 1}, {"name": "base"}], 400, "complete"),
                                ([{"name": "ghost", "complete": True}, {"name": "base"}], 404, "ghost"), ([{"name": "r4", "scale": 2}, {"name": "base"}], 400, "scale"),
                                (["r4", "base"], 400, "object")):
        assert says in put("p", steps, status)["error"]["message"], (steps, says)
    assert "not both" in put("p", [step["r4"][0], {"name": "base"}], 400, adapters=stack_of(("r4", 1)))["error"]["message"]
    assert "cascade" in post("/v1/embeddings", {"model": "late", "input": "x"}, expect=400).json["error"]["message"]
    r = server.call("POST", "/v1/completions", {"model": "late", "prompt": "x", "stream": True}, key=server.tenant_key, headers={"x-lorad-resume": "new"})
    assert r.status == 400 and "cascade" in r.json["error"]["message"], r


def what_cannot_be_is_refused_by_name():
    def refused(parts, status=400, says=None, key=None, **more):
        e = text(parts, [20, 21], key, status, **more)["error"]
        assert not says or says in e["message"], e
        return e

    assert refused(stack_of(("r4", 1), ("ghost", 1)), 404)["param"] == "adapters[1]"
    assert refused(stack_of(("r4", 1)), says="'model' must be the base", model="r4")["param"] == "model"
    refused(stack_of(("r4", 1), ("r4", 2)), says="twice")
    refused(stack_of(("r4", 1), ("r4@1", 2)), says="twice")
    refused(stack_of(*[(n, 1) for n in PARTS[:5]]), says="4")
    refused(stack_of(("r256", 1), ("r1", 1)), says="257")
    refused([], says="adapters")
    refused("r4", says="adapters")
    for odd in ({}, [], "r4", None, 7, {"name": 7}, {"name": ""}, {"name": "x" * 300}):
        assert refused([odd])["param"] == "adapters[0]", odd
    for scale in (0, 101, -101, 1e300, 1e-60, "1", True, []):
        assert refused([{"name": "r4", "scale": scale}], says="scale"), scale
    refused(stack_of(("base", 1), ("r4", 1)), says="no adapter")
    refused(stack_of(("all", 0.5), ("r4", 1)), says="activated")
    refused(stack_of(("dora", 0.5), ("r4", 1)), says="dora@1: an adapter with use_dora")
    refused(stack_of(("norms", 0.5), ("r4", 1)), says="norms@1: an adapter with modules_to_save")
    long = "a" * 60
    server.upload(server.tenant_key, long, FIXTURES / "models/adapters-a/r4")
    server.upload(server.tenant_key, "b" + long, FIXTURES / "models/adapters-a/r16")
    server.upload(server.tenant_key, "c" + long, FIXTURES / "models/adapters-a/r1")
    refused(stack_of((long, 0.5), ("b" + long, 0.125), ("c" + long, 0.5)), says="160 bytes")


def other_tenants_adapters_are_not_there():
    other = server.tenant("other")
    server.upload(other, "own", FIXTURES / "models/adapters-a/r4")
    for parts in ([("own", 0.5), ("r4", 0.5)], [("r4", 0.5)], [("acme/r4", 0.5)]):
        assert text(stack_of(*parts), [20, 21], other, 404)["error"]["code"] == "model_not_found"
    assert text(stack_of(("own", 0.5)), [20, 21], other)["choices"]
    server.upload(other, "more", FIXTURES / "models/adapters-a/r16")
    server.admin("PATCH", "/tenants/other", {"models": ["base", "own"]})
    assert text(stack_of(("own", 0.5)), [20, 21], other)["choices"]
    text(stack_of(("own", 0.5), ("more", 0.5)), [20, 21], other, 404)


def a_part_with_limits_is_counted():
    def limit(name, n):
        server.admin("PATCH", f"/limits/acme/{name}", {"requests_per_minute": n})

    limit("r16", 2)
    seen = [server.call("POST", "/v1/completions", {"model": "base", "adapters": stack_of(("r16", i + 1), ("r1", 0.5)),
                                                    "prompt": "Hello", "max_tokens": 1}, key=server.tenant_key).status
            for i in range(20)]
    assert seen[:2] == [200, 200] and 429 in seen, seen  # on a slow machine some come back
    limit("r1", 100)
    assert "limits of its own" in text(stack_of(("r16", 0.5), ("r1", 0.5)), [20, 21], expect=400)["error"]["message"]
    limit("r16", 0)
    limit("r1", 0)


def a_stack_needs_the_base_in_the_list_of_models():
    """With small scales the base computes the answer: a tenant that may not use it gets no stack."""
    key = server.tenant("narrow", models=["r4", "r16", "both", "faint"])
    for name in ("r4", "r16"):
        server.upload(key, name, FIXTURES / "models/adapters-a" / name)
    text(None, [20, 21], key=key, model="base", expect=404)
    for parts in ([("r4", 1e-30)], [("r4", 0.5)], [("r4", 1e-30), ("r16", 1e-30)], [("r4", 1), ("r16", 1)]):
        text(stack_of(*parts), [20, 21], key=key, expect=404)
        r = server.call("PUT", "/v1/stacks/both", {"adapters": stack_of(*parts)}, key=key)
        assert r.status == 404 and r.json["error"]["code"] == "model_not_found", r
    own = text(None, [20, 21], key=key, model="r4")
    assert text([{"name": "r4"}], [20, 21], key=key)["choices"] == own["choices"]  # one as it is: that adapter
    server.admin("PATCH", "/tenants/narrow", {"models": ["base", "r4", "r16", "both", "faint"]})
    assert server.call("PUT", "/v1/stacks/faint", {"adapters": stack_of(("r4", 1e-30))}, key=key).status == 201
    faint = text(stack_of(("r4", 1e-30)), [20, 21], key=key)["choices"]
    assert faint == text(None, [20, 21], key=key, model="base")["choices"] == text(None, [20, 21], key=key, model="faint")["choices"]
    server.admin("PATCH", "/tenants/narrow", {"models": ["r4", "r16", "both", "faint"]})
    text(None, [20, 21], key=key, model="faint", expect=404)
    text(stack_of(("r4", 1e-30)), [20, 21], key=key, expect=404)


def a_deleted_part_serves_no_new_stack():
    server.upload(server.tenant_key, "gone", FIXTURES / "models/adapters-a/rslora")
    parts = stack_of(("gone", 0.5), ("r4", 0.5))
    text(parts, [20, 21])
    assert server.call("DELETE", "/v1/adapters/gone", key=server.tenant_key).status in (200, 204)
    text(parts, [20, 21], expect=404)


try:
    with server:
        server.tenant_key = server.tenant("acme")
        for name in PARTS:
            server.upload(server.tenant_key, name, FIXTURES / "models/adapters-a" / name)
        server.upload(server.tenant_key, "all", FIXTURES / "alora/all")
        for name in ("dora", "norms"):
            shutil.copytree(FIXTURES / "peft/llama-f32" / name, tmp / name, ignore=shutil.ignore_patterns("golden.bin"))
            server.upload(server.tenant_key, name, tmp / name)
        run([they_answer_as_peft_does_in_mixed_batches, its_pages_are_those_of_its_parts_and_scales, answers_and_usage_name_the_stack,
             an_adapter_that_does_nothing_says_so, every_door_takes_them, named_stacks_have_versions, a_cascade_asks_on_until_an_answer_passes,
             what_cannot_be_is_refused_by_name, other_tenants_adapters_are_not_there,
             a_part_with_limits_is_counted, a_stack_needs_the_base_in_the_list_of_models, a_deleted_part_serves_no_new_stack])
finally:
    shutil.rmtree(tmp)
