"""Every field of the two completion calls does what it says, seen from outside (temperature 0 where not said)."""
import json
import math

import contract
import openai_types
from harness import DEMO, Server, events, run

server = Server()
QUESTION = [{"role": "user", "content": "What is 7 plus 5?"}]


def call(path, body, expect=200, **headers):
    r = server.call("POST", path, body, key=key, headers=headers)
    assert r.status == expect, r
    return r


def text(prompt="The red lamp", expect=200, **more):
    r = call("/v1/completions", {"model": "base", "prompt": prompt, "temperature": 0,
                                 "max_tokens": 8, **more}, expect)
    return r.json


def chat(expect=200, **more):
    return call("/v1/chat/completions", {"model": "base", "messages": QUESTION, "temperature": 0,
                                         "max_tokens": 24, **more}, expect).json


def said(r):
    c = r["choices"][0]
    return c["text"] if "text" in c else c["message"]["content"]


def ids_of(s):
    return call("/tokenize", {"model": "base", "prompt": s}).json["tokens"]


def prompts_of_every_kind():
    one = said(text())
    ids = ids_of("The red lamp")
    assert said(text(ids)) == one
    r = text(["The red lamp", "A"])
    assert r["choices"][0]["text"] == one and [c["index"] for c in r["choices"]] == [0, 1]
    r = text([ids, ids_of("A"), ids])
    assert [c["text"] for c in r["choices"]] == [one, said(text("A")), one]
    assert r["usage"]["prompt_tokens"] == 2 * len(ids) + len(ids_of("A"))


def special_tokens_in_texts():
    """A raw prompt's special tokens are parsed, as llama.cpp and vLLM do, unless the request says not to."""
    mark = "The<|end|> red"
    special = ids_of(mark)
    plain = call("/tokenize", {"model": "base", "prompt": mark, "parse_special": False}).json["tokens"]
    assert len(plain) > len(special) and set(special) - set(plain), (special, plain)
    assert text(mark, parse_special=False)["usage"]["prompt_tokens"] == len(plain)
    assert text(mark)["usage"]["prompt_tokens"] == len(special)
    assert text(mark, expect=400, parse_special=1)["error"]["param"] == "parse_special"
    assert call("/detokenize", {"model": "base", "tokens": plain}).json["prompt"].endswith(mark)


def token_ids_have_one_limit():
    """The model's own, however far out the id is."""
    size = json.loads((DEMO / "base/config.json").read_text())["vocab_size"]
    for far in (size, size + 100, 99_999_999, 1 << 31, 1 << 40):
        for body in ({"prompt": [far]}, {"allowed_token_ids": [far]}, {"stop_token_ids": [far]}, {"logit_bias": {str(far): 1}}):
            e = text(body.pop("prompt", "a"), expect=400, **body)["error"]
            assert f"from 0 to {size - 1}" in e["message"], (far, e)
    for wrong in (-1, 1.5):
        assert "whole token ids of at least 0" in text([wrong, 1], expect=400)["error"]["message"]


def several_choices():
    r = text(n=3, best_of=3, temperature=1.1, seed=4)
    assert len({c["text"] for c in r["choices"]}) > 1
    assert [c["index"] for c in r["choices"]] == [0, 1, 2]
    r = text(["The", "A"], n=2, temperature=1.1, seed=4)
    assert [c["index"] for c in r["choices"]] == [0, 1, 2, 3]
    assert text(n=3, best_of=2, expect=400)["error"]["param"] == "best_of"
    r = chat(n=2, temperature=1.5, seed=1)
    assert len(r["choices"]) == 2


def echo_and_log_probabilities():
    r = text(echo=True, logprobs=2)["choices"][0]
    assert r["text"].startswith("The red lamp")
    lp = r["logprobs"]
    assert "".join(lp["tokens"]) == r["text"] and lp["token_logprobs"][0] is None
    assert all(len(t) == 2 for t in lp["top_logprobs"][1:])
    assert lp["text_offset"][0] == 0
    for keep in (True, False):  # offsets are those of the text that is sent, with or without special tokens
        marks = ids_of("<|user|>The<|end|> red") if keep else ids_of("<|bos|>The<|end|> red")
        r = text(marks, echo=True, logprobs=0, max_tokens=4, skip_special_tokens=not keep)["choices"][0]
        lp = r["logprobs"]
        ends = [*lp["text_offset"][1:], len(r["text"])]
        spans = [r["text"][a:b] for a, b in zip(lp["text_offset"], ends)]
        assert [s for s in spans if s] == [t for t in lp["tokens"] if keep or not t.startswith("<|")], (spans, r)
    lp = chat(logprobs=True, top_logprobs=5)["choices"][0]["logprobs"]["content"]
    for t in lp:
        tops = [a["logprob"] for a in t["top_logprobs"]]
        assert tops == sorted(tops, reverse=True) and len(tops) == 5
        assert t["logprob"] == tops[0] and sum(map(math.exp, tops)) <= 1.0001


def sampling_rules():
    greedy = said(chat())
    for more in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
        assert said(chat(temperature=1.5, seed=3, **more)) == greedy, more
    first = chat(return_token_ids=True)["choices"][0]["token_ids"][0]
    other = chat(return_token_ids=True, logit_bias={str(first): -100})["choices"][0]["token_ids"][0]
    assert other != first
    wanted = ids_of("lamp")[0]
    forced = chat(return_token_ids=True, logit_bias={str(wanted): 100}, max_tokens=4)
    assert forced["choices"][0]["token_ids"] == [wanted] * 4
    for more in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 2}):
        ask = dict(return_token_ids=True, ignore_eos=True, max_tokens=120)
        plain = chat(**ask)["choices"][0]["token_ids"]
        less = chat(**ask, **more)["choices"][0]["token_ids"]
        assert less != plain and max(map(less.count, less)) < max(map(plain.count, plain)), more


def ends():
    full = chat(return_token_ids=True)["choices"][0]
    assert full["finish_reason"] == "stop"
    ids, n = full["token_ids"], len(full["token_ids"])
    longer = chat(min_tokens=n + 6)
    assert longer["usage"]["completion_tokens"] > n + 5
    forever = chat(ignore_eos=True, max_tokens=40)
    assert forever["usage"]["completion_tokens"] == 40
    assert forever["choices"][0]["finish_reason"] == "length"
    cut = chat(stop_token_ids=[ids[3]], return_token_ids=True)["choices"][0]
    assert cut["token_ids"] == ids[:ids.index(ids[3])] and cut["stop_reason"] == ids[3]
    answer = full["message"]["content"]
    mark = answer[4:6]
    assert said(chat(stop=mark)) == answer[:answer.index(mark)]
    kept = chat(stop=[mark], include_stop_str_in_output=True)
    assert said(kept) == answer[:answer.index(mark) + 2]
    assert kept["choices"][0]["stop_reason"] == mark
    shown = said(chat(skip_special_tokens=False, ignore_eos=True, max_tokens=40))
    hidden = said(chat(ignore_eos=True, max_tokens=40))
    assert len(shown) > len(hidden), (shown, hidden)


def token_ids_come_back():
    whole = chat(return_token_ids=True)
    r = whole["choices"][0]
    assert call("/detokenize", {"model": "base", "tokens": r["token_ids"]}).json["prompt"] \
        == r["message"]["content"]
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    r = text(return_token_ids=True)["choices"][0]
    assert r["prompt_token_ids"] == ids_of("The red lamp")
    r = call("/v1/chat/completions", {"model": "base", "messages": QUESTION, "temperature": 0,
                                      "max_tokens": 24, "stream": True, "return_token_ids": True})
    assert [e["prompt_token_ids"] for e in events(r.body) if "prompt_token_ids" in e] == [whole["prompt_token_ids"]]
    ids = [i for e in events(r.body) for c in e["choices"] for i in c.get("token_ids") or []]
    assert ids == chat(return_token_ids=True)["choices"][0]["token_ids"]


def streams_with_usage():
    def stream(**options):
        r = call("/v1/completions", {"model": "base", "prompt": "The", "max_tokens": 6, "stream": True,
                                     "ignore_eos": True, "stream_options": options})
        return events(r.body)
    got = stream(include_usage=True)
    assert got[-1]["choices"] == [] and got[-1]["usage"]["completion_tokens"] == 6
    assert all(e["usage"] is None for e in got[:-1])
    got = stream(include_usage=True, continuous_usage_stats=True)
    counts = [e["usage"]["completion_tokens"] for e in got]
    assert counts == sorted(counts) and counts[-1] == 6
    assert all("usage" not in e for e in stream())


def parts_and_tiers():
    parts = [{"role": "user", "content": [{"type": "text", "text": "What is 7"},
                                          {"type": "text", "text": " plus 5?"}]}]
    assert said(chat(messages=parts)) == said(chat())
    assert chat(service_tier="flex")["service_tier"] == "flex"
    for asked, served in (("auto", "default"), ("standard", "default"), ("interactive", "priority"), ("fast", "priority"),
                          ("scale", "default"), ("batch", "flex")):
        assert chat(service_tier=asked)["service_tier"] == served
    assert chat(service_tier="nonsense", expect=400)["error"]["param"] == "service_tier"
    for p, served in ((-5, "priority"), (0, "default"), (7, "flex")):
        assert said(chat(priority=p)) == said(chat()) and chat(priority=p)["service_tier"] == served
    bound = server.tenant("bounded", classes=["standard"])
    r = server.call("POST", "/v1/chat/completions", {"model": "base", "messages": QUESTION,
                    "max_tokens": 2, "priority": -9}, key=bound)
    assert r.status == 200, r  # as soon as it may, no sooner


def salts_part_the_cache():
    prompt = list(range(40, 140))

    def cached(salt):
        r = text(prompt, max_tokens=1, cache_salt=salt)
        return r["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached("a") == 0 and cached("a") > 0 and cached("b") == 0


def tenants_part_the_cache():
    body = {"model": "base", "prompt": list(range(140, 240)), "max_tokens": 1}

    def cached(whose, **more):
        r = server.call("POST", "/v1/completions", {**body, **more}, key=whose)
        return r.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    other = server.tenant("neighbour")
    assert cached(key) == 0 and cached(key) > 0 and cached(other) == 0 and cached(other) > 0
    assert cached(key, cache_salt="s") == 0 and cached(key, cache_salt="s") > 0 and cached(other, cache_salt="s") == 0


def strict_clients_hear_of_unknown_fields():
    body = {"model": "base", "messages": QUESTION, "max_tokens": 1, "temprature": 1, "user": "me"}
    r = call("/v1/chat/completions", body)
    assert sorted(r.headers["x-ignored-params"].replace(",", " ").split()) == ["temprature", "user"]
    r = call("/v1/chat/completions", body, 400, **{"x-lorad-strict-params": "true"})
    assert r.json["error"]["code"] == "unknown_parameter"
    assert r.json["error"]["param"] == "temprature"
    del body["temprature"]
    call("/v1/chat/completions", body, 200, **{"x-lorad-strict-params": "true"})


def variables_for_the_template():
    assert said(chat(chat_template_kwargs={"enable_thinking": False})) == said(chat())
    for bad in ({"messages": []}, {"bos_token": "x"}, [], {str(i): 1 for i in range(40)}):
        assert chat(chat_template_kwargs=bad, expect=400)["error"]["param"] == "chat_template_kwargs"


def also_without_v1():
    body = {"model": "base", "prompt": "The", "max_tokens": 2}
    assert call("/completions", body).json["choices"]
    assert server.call("GET", "/models", key=key).json["data"][0]["id"] == "base"


contract.also.append(openai_types.hold)
with server:
    key = server.tenant("fields")
    run([prompts_of_every_kind, special_tokens_in_texts, token_ids_have_one_limit, several_choices, echo_and_log_probabilities, sampling_rules, ends,
         token_ids_come_back, streams_with_usage, parts_and_tiers, salts_part_the_cache, tenants_part_the_cache,
         strict_clients_hear_of_unknown_fields, variables_for_the_template,
         also_without_v1])
