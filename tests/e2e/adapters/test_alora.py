"""Activated adapters (PEFT's alora_invocation_tokens): what PEFT says of them, in mixed batches, and whose pages they use."""
import concurrent.futures
import json
import pathlib
import shutil
import tempfile

from harness import Server, run
from tiny import FIXTURES, make_model

GOLDEN = json.loads((FIXTURES / "alora/golden.json").read_text())["cases"]
INVOKE = {"all": [7, 11, 13], "few": [9, 9]}
PAGE = 32
NEAR = 2e-3
tmp = pathlib.Path(tempfile.mkdtemp())
# Small steps, so that prompts come in pieces that are cut within pages.
server = Server(model=make_model(tmp / "llama"), settings={"engine.max_rows": 40, "engine.max_seqs": 16})


def text(model, prompt, key=None, **more):
    r = server.call("POST", "/v1/completions", {
        "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 1,
        "return_token_ids": True, **({"model": model} if model else {}), **more}, key=key or server.tenant_key)
    assert r.status == 200, r
    return r


def cached(r):
    return r.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def check(case, r):
    """Its tokens and log-probabilities are PEFT's."""
    c = r.json["choices"][0]
    assert c["token_ids"] == case["tokens"], (case["adapter"], c["token_ids"], case["tokens"])
    far = max(abs(a - b) for a, b in zip(c["logprobs"]["token_logprobs"], case["logprobs"], strict=True))
    assert far < NEAR, (case["adapter"], far)


def ask_golden(case, **more):
    return text(case["adapter"], case["prompt"], **more)


def they_answer_as_peft_does_in_mixed_batches():
    cases = [c for c in GOLDEN if c["adapter"]]
    assert len(cases) == 9
    others = [("base", [20 + i for i in range(50)]), ("r4", [30 + i for i in range(70)]), ("r16", [40, 41, 42])]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        company = [pool.submit(text, m, p, max_tokens=40) for m, p in others * 2]
        answers = [pool.submit(ask_golden, c, n=2) for c in cases]
        for c, a in zip(cases, answers):
            check(c, a.result())
            assert a.result().json["choices"][0]["token_ids"] == a.result().json["choices"][1]["token_ids"]
            invoked = any(c["prompt"][i:i + len(INVOKE[c["adapter"]])] == INVOKE[c["adapter"]]
                          for i in range(len(c["prompt"])))
            assert a.result().headers["x-adapter-invoked"] == ("true" if invoked else "false"), a.result()
            said = a.result().headers
            assert said["x-adapter-version"] == c["adapter"] + "@1" and said["x-adapter-digest"] == DIGEST[c["adapter"]]
        for (m, p), a in zip(others * 2, company):
            assert a.result().json["choices"] == text(m, p, max_tokens=40).json["choices"]
            assert "x-adapter-invoked" not in a.result().headers


def prompts_are_scored_as_peft_does():
    for case in (c for c in GOLDEN if c["adapter"]):
        got = ask_golden(case, echo=True, max_tokens=0).json["choices"][0]["logprobs"]["token_logprobs"]
        assert got[0] is None and max(abs(a - b) for a, b in zip(got[1:], case["prompt_logprobs"], strict=True)) < NEAR


def llama_cpps_file_is_the_same_adapter():
    for case in (c for c in GOLDEN if c["adapter"] == "few"):
        check(case, text("few-gguf", case["prompt"]))


def one_that_is_not_invoked_is_the_base():
    prompt = [50 + i % 40 for i in range(45)]
    bare, all_ = text("base", prompt), text("all", prompt)
    assert all_.headers["x-adapter-invoked"] == "false" and all_.json["choices"] == bare.json["choices"]
    both = text("all", [prompt, prompt + INVOKE["all"]])
    assert both.headers["x-adapter-invoked"] == "some"
    assert both.json["choices"][0]["token_ids"] == bare.json["choices"][0]["token_ids"]
    # Whoever is asked is paid.
    server.booked()
    rows = server.admin("GET", "/usage?start=0&bucket_width=1h&group_by=model,adapter")["data"]
    ids = {r["model"]: r["adapter_id"] for bucket in rows for r in bucket.get("results", [bucket])}
    assert ids["all@1"] and not ids["base"], rows


def context(seed, pages):
    return [14 + (i * i * 7 + i * 31 + seed * 97) % 280 for i in range(pages * PAGE)]


def what_lies_before_the_invocation_is_everybodys():
    """N adapters over one context: its pages once, and 1 + eps of its tokens computed."""
    ctx = context(1, 10)
    assert cached(text("base", ctx + [20], max_tokens=1)) == 0
    computed, names = len(ctx) + 1, ["all", "few", "all2", "few2", "all3", "few3"]
    pages = cached_pages()
    for name in names:
        tail = INVOKE[name.rstrip("23")] + [21, 22]
        r = text(name, ctx + tail)
        assert r.headers["x-adapter-invoked"] == "true" and cached(r) == len(ctx), (name, r)
        computed += len(ctx) + len(tail) - cached(r)
    assert computed <= len(ctx) + 6 * len(names), computed
    assert cached_pages() - pages <= len(names), (cached_pages(), pages)  # each at most its own last page
    # The other way round, and a plain adapter, which shares nothing.
    ctx = context(2, 4)
    assert cached(text("few", ctx + INVOKE["few"], max_tokens=1)) == 0
    assert cached(text("base", ctx + [20], max_tokens=1)) == len(ctx)
    assert cached(text("r4", ctx + [20], max_tokens=1)) == 0


def cached_pages():
    return server.stats()["engine"]["pages_cached"]


def behind_it_pages_are_the_adapters():
    """A later invocation moves the place where the adapter begins: its former pages are of no use then."""
    ctx = context(3, 2)
    prompt = ctx + INVOKE["few"] + context(4, 2)
    assert cached(text("few", prompt)) == 0
    assert cached(text("few", prompt + [20])) == len(ctx) + 2 * PAGE
    assert cached(text("few3", prompt + [20])) == len(ctx)  # other weights
    later = prompt + INVOKE["few"]
    assert cached(text("few", later)) == len(ctx)
    assert cached(text("base", later)) == len(ctx) + 2 * PAGE  # what has run bare in the last request


def other_tenants_share_nothing():
    ctx = context(5, 4) + INVOKE["all"]
    other = server.tenant("other")
    server.upload(other, "all", FIXTURES / "alora/all")
    assert cached(text("all", ctx)) == 0 and cached(text("all", ctx)) == 4 * PAGE
    assert cached(text("all", ctx, key=other)) == 0 and cached(text("base", ctx, key=other)) == 4 * PAGE


def bare_answers_need_the_base_in_the_list_of_models():
    key = server.tenant("narrow", models=["few"])
    server.upload(key, "few", FIXTURES / "alora/few")
    bare, invoked = context(6, 2), context(6, 2) + INVOKE["few"]
    assert text("few", invoked, key=key).status == 200
    r = server.call("POST", "/v1/completions", {"model": "few", "prompt": bare, "max_tokens": 4}, key=key)
    assert r.status == 400 and "does not invoke" in r.json["error"]["message"], r
    r = server.call("POST", "/v1/completions", {"model": "few", "prompt": [bare, invoked], "max_tokens": 4}, key=key)
    assert r.status == 400, r


def variant(name):
    """The same matrices by another name and in another order of digits: another version's pages."""
    where = tmp / name
    shutil.copytree(FIXTURES / "alora" / name.rstrip("23"), where)
    config = json.loads((where / "adapter_config.json").read_text())
    config["lora_alpha"] = 8 + int(name[-1])
    (where / "adapter_config.json").write_text(json.dumps(config))
    return where


try:
    with server:
        server.tenant_key = server.tenant("acme")
        for name in INVOKE:
            server.upload(server.tenant_key, name, FIXTURES / "alora" / name)
            for more in "23":
                server.upload(server.tenant_key, name + more, variant(name + more))
        for name in ("r4", "r16"):
            server.upload(server.tenant_key, name, FIXTURES / "models/adapters-a" / name)
        DIGEST = {n: server.call("GET", f"/v1/adapters/{n}/versions/1", key=server.tenant_key).json["digest"] for n in INVOKE}
        server.upload(server.tenant_key, "few-gguf", FIXTURES / "alora/few-gguf")
        run([they_answer_as_peft_does_in_mixed_batches, prompts_are_scored_as_peft_does,
             llama_cpps_file_is_the_same_adapter, one_that_is_not_invoked_is_the_base,
             what_lies_before_the_invocation_is_everybodys, behind_it_pages_are_the_adapters,
             other_tenants_share_nothing, bare_answers_need_the_base_in_the_list_of_models])
finally:
    shutil.rmtree(tmp)
