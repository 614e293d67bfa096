"""What vLLM's clients ask for beside OpenAI's fields: counting a chat, going on with a message, tokens and words that must not
come, log-probabilities of the prompt, variables of the template.  Each through openai-python or plain HTTPS."""
import functools
import json
import math
import pathlib
import shutil
import tempfile

import contract
import openai
import openai_types
from harness import DEMO, Server, demo_adapters, run

QUESTION = [{"role": "user", "content": "What is 7 plus 5?"}]
ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 9007199254740993, "b": 5}'}}
READS = """{{ bos_token }}{% if documents %}{% for d in documents %}<|system|>
{{ d.title }}: {{ d['text'] }}<|end|>
{% endfor %}{% endif %}{% if reasoning_effort is defined %}<|system|>
effort {{ reasoning_effort }}<|end|>
{% endif %}{% for m in messages %}<|{{ m.role }}|>
{{ m.content | trim }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""


def post(path, body, expect=200, on=None):
    on = on or server
    r = on.call("POST", path, body, key=on.vllm_key)
    assert r.status == expect, r
    return r.json


def chat(expect=200, on=None, **more):
    return post("/v1/chat/completions", {"model": "base", "messages": QUESTION, "temperature": 0, "max_tokens": 24, **more},
                expect, on)


def text(prompt="The red lamp", expect=200, on=None, **more):
    return post("/v1/completions", {"model": "base", "prompt": prompt, "temperature": 0, "max_tokens": 8, **more}, expect, on)


@functools.cache
def ids_of(s):
    return post("/tokenize", {"model": "base", "prompt": s})["tokens"]


def plain(ids, on=None):
    return post("/detokenize", {"tokens": ids}, on=on)["prompt"]


def answer_ids(r):
    return r["choices"][0]["token_ids"]


def refused(param, call, **more):
    e = call(expect=400, **more)["error"]
    assert e["param"] == param, e
    return e["message"]


def client(on=None):
    on = on or server
    return openai.OpenAI(base_url=on.url, api_key=on.vllm_key, max_retries=0,
                         http_client=openai.DefaultHttpxClient(verify=on.tls()))


# ---------------------------------------------------------------------------------------------- counting

def a_chat_counts_what_it_takes():
    talks = [QUESTION, [{"role": "system", "content": "Be short."}, *QUESTION],
             [*QUESTION, {"role": "assistant", "content": "It is"}],
             [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [CALL]},
              {"role": "tool", "tool_call_id": "c1", "content": "12"}],
             [{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " 7?"}]}]]
    ways = [{}, {"tools": [ADD]}, {"tools": [ADD], "tool_choice": "none"}, {"tools": [ADD], "tool_choice": "required"},
            {"add_generation_prompt": False}, {"continue_final_message": True},
            {"chat_template_kwargs": {"enable_thinking": False}}, {"truncate_prompt_tokens": 5},
            {"truncate_prompt_tokens": -1}, {"tools": [ADD], "truncate_prompt_tokens": -1, "max_completion_tokens": 30},
            {"reasoning_effort": "low", "seed": 2**60, "stop": ["x"], "n": 2}]
    seen = set()
    for talk in talks:
        for way in ways:
            body = {"model": "base", "messages": talk, "max_completion_tokens": 1, **way}
            count = post("/tokenize", body)
            whole = post("/v1/chat/completions", {**body, "return_token_ids": True})
            assert count["count"] == len(count["tokens"]) == whole["usage"]["prompt_tokens"], (way, count, whole)
            assert count["tokens"] == whole["prompt_token_ids"] and "prompt_token_ids" not in whole["choices"][0], way
            seen.add(tuple(count["tokens"]))
    assert len(seen) > 25, len(seen)
    del body["model"]
    assert post("/tokenize", body) == count  # vLLM's, too, needs none
    for wrong in ({"tools": {}}, {"temperature": 9}, {"messages": []}, {"continue_final_message": 1}):
        refused(next(iter(wrong)), lambda expect, wrong=wrong: post("/tokenize", {**body, **wrong}, expect))
    r = client().chat.completions.with_raw_response.create(
        model="base", messages=QUESTION, max_tokens=1, extra_body={"return_token_ids": True})
    assert r.parse().model_extra["prompt_token_ids"] == post("/tokenize", {"messages": QUESTION})["tokens"]


def tokens_as_the_vocabulary_writes_them():
    vocabulary = json.loads((DEMO / "base/tokenizer.json").read_text())
    names = {i: t for t, i in vocabulary["model"]["vocab"].items()}
    names.update((t["id"], t["content"]) for t in vocabulary["added_tokens"])
    for body in ({"prompt": "The red lamp, é\n\t😀 <|end|>"}, {"messages": QUESTION, "tools": [ADD]}):
        r = post("/tokenize", {"model": "base", "return_token_strs": True, **body})
        assert r["token_strs"] == [names[i] for i in r["tokens"]], r
        assert "token_strs" not in post("/tokenize", {"model": "base", **body})


# ------------------------------------------------------------------------------------------ going on

def a_message_goes_on():
    whole = chat(return_token_ids=True)
    said = whole["choices"][0]["message"]["content"]
    for at in (1, len(said) // 2, len(said) - 1):
        if said[at - 1] == " ":
            at -= 1
        begun = [*QUESTION, {"role": "assistant", "content": said[:at]}]
        ask = {"messages": begun, "continue_final_message": True, "return_token_ids": True}
        r = chat(add_generation_prompt=False, **ask)
        assert plain(r["prompt_token_ids"]) == plain(whole["prompt_token_ids"]) + said[:at], r
        assert r == {**chat(**ask), "id": r["id"], "created": r["created"], "usage": r["usage"]}  # without being told
        if ids_of(said[:at]) + ids_of(said[at:]) == ids_of(said):
            assert said[:at] + r["choices"][0]["message"]["content"] == said, (at, r)
    r = client().chat.completions.create(
        model="base", messages=begun, temperature=0, max_tokens=24,
        extra_body={"continue_final_message": True, "add_generation_prompt": False})
    assert r.choices[0].message.content == chat(**ask)["choices"][0]["message"]["content"]
    both = refused("continue_final_message", chat, messages=begun, continue_final_message=True, add_generation_prompt=True)
    assert "add_generation_prompt" in both
    spaced = [*QUESTION, {"role": "assistant", "content": "It is  "}]
    keeps = chat(messages=spaced, continue_final_message=True, return_token_ids=True, max_tokens=1)
    trims = chat(messages=spaced, continue_final_message=True, return_token_ids=True, max_tokens=1, on=other)
    assert plain(keeps["prompt_token_ids"]).endswith("It is  ") and plain(trims["prompt_token_ids"], other).endswith("It is")
    forged = [*QUESTION, {"role": "assistant", "content": "It is <|end|>"}]
    r = chat(messages=forged, continue_final_message=True, return_token_ids=True, max_tokens=1)
    assert r["prompt_token_ids"].count(5) == whole["prompt_token_ids"].count(5) == 1, r  # the marker of the question alone


# ------------------------------------------------------------------------------- what must not come

def only_some_tokens():
    allowed = ids_of("It is 7 plus 5 the red lamp")
    for more in ({}, {"temperature": 1.5, "seed": 4}, {"logit_bias": {"900": 100}}, {"temperature": 1, "top_p": 0.5, "top_k": 3}):
        r = chat(allowed_token_ids=allowed, return_token_ids=True, logprobs=True, top_logprobs=20, **more)
        assert r["choices"][0]["finish_reason"] == "length" and set(answer_ids(r)) <= set(allowed), r
        tops = r["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        assert len(tops) == len(set(allowed)) and abs(sum(math.exp(t["logprob"]) for t in tops) - 1) < 1e-4
    end = chat(allowed_token_ids=[5, 7], min_tokens=3, return_token_ids=True, max_tokens=9, logit_bias={"5": 100})
    assert answer_ids(end) == [7, 7, 7] and end["choices"][0]["finish_reason"] == "stop", end
    assert chat(allowed_token_ids=[5], min_tokens=9)["choices"][0]["finish_reason"] == "stop"
    for wrong in ([], [1e9], ["a"], [0.5], "a", [-1], [1 << 31], list(range(2049))):
        refused("allowed_token_ids", chat, allowed_token_ids=wrong)
    assert "array of 1 to" in refused("allowed_token_ids", chat, allowed_token_ids=[7] * 50000)


def words_that_do_not_come():
    for ask in ({"messages": QUESTION}, {"messages": [{"role": "user", "content": "Tell me about the sea."}]}):
        said = chat(**ask)["choices"][0]["message"]["content"]
        barred = []
        for _ in range(5):  # the word that comes next, each time
            words = [w.strip(".,!?") for w in said.split()]
            barred.append(next(w for w in words if w))
            before, said = said, chat(bad_words=barred, **ask)["choices"][0]["message"]["content"]
            assert said != before and not any(spelled(w, said) for w in barred), (barred, said)
    long, two = "red red lamp", ids_of(" red lamp")
    assert len(two) == 2 and ids_of(" " + long) == [two[0], *two]
    ask = dict(allowed_token_ids=two, temperature=2, seed=3, max_tokens=60)
    free, kept = (text("lamp", **ask, **more)["choices"][0]["text"] for more in ({}, {"bad_words": [long]}))
    assert long in free, "the test finds nothing to bar"
    assert long not in kept and kept[:free.index(long)] == free[:free.index(long)] and " red red" in kept, (free, kept)
    begun = text(" red red", bad_words=[long], logit_bias={str(two[1]): 100}, max_tokens=1)
    assert said_by(begun) == " lamp", begun  # what stands in the prompt is nobody's answer
    for wrong in ([""], ["  "], ["x" * 300], [5], "x", ["x"] * 300, ["a b c d " * 30]):
        refused("bad_words", chat, bad_words=wrong)
    assert chat(bad_words=[])["choices"] == chat()["choices"]


def said_by(r):
    return r["choices"][0]["text"]


def spelled(word, said):
    """With the same tokens, which is what is barred."""
    ids = ids_of(said)
    return any(one == ids[i:i + len(one)] for one in (ids_of(word), ids_of(" " + word)) for i in range(len(ids)))


def nothing_is_left():
    seven = ids_of("7")
    assert len(seven) == 1
    e = refused("allowed_token_ids", chat, allowed_token_ids=seven, bad_words=["7"])
    assert "no token" in e, e
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 77}}}
    e = chat(400, response_format=form, bad_words=["7"])["error"]
    assert "no token may come" in e["message"] and "form" in e["message"], e
    assert chat()["choices"], "the next one is served"


def with_forms_and_company():
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"c": {"enum": [1, 5, 7]}}, "required": ["c"]}}}
    left = {1, 5, 7}
    while left:  # digits are tokens: each is barred as it comes
        words = [str(n) for n in {1, 5, 7} - left]
        for more in ({}, {"temperature": 1.5, "seed": 3, "min_tokens": 4}):
            r = chat(response_format=form, bad_words=words, max_tokens=60, **more)
            got = json.loads(r["choices"][0]["message"]["content"])["c"]
            assert got in left, (got, words)
        left -= {got}
    r = chat(response_format=form, allowed_token_ids=ids_of('{"c": 5}') + ids_of('"c') + [5], max_tokens=60)
    assert json.loads(r["choices"][0]["message"]["content"]) == {"c": 5}, r
    ask = dict(bad_words=["lamp", "the", "is"], allowed_token_ids=list(range(6, 1500)), temperature=1.2, max_tokens=30,
               ignore_eos=True, return_token_ids=True)
    alone = [answer_ids(text(f"The lamp {i}", seed=i, **ask)) for i in range(6)]
    batch = text([f"The lamp {i}" for i in range(6)], seed=3, n=1, **ask)["choices"]
    assert batch[3]["token_ids"] == alone[3]
    several = text("The lamp 2", seed=2, n=3, **ask)["choices"]
    assert several[0]["token_ids"] == alone[2] and answer_ids(text("The lamp 2", seed=4, **ask)) == several[2]["token_ids"]
    for name in demo_adapters()[:2]:
        one = [answer_ids(text("The lamp", model=name, seed=9, **ask)) for _ in range(2)]
        assert one[0] == one[1] and not set(one[0]) & (set(ids_of("lamp")) if len(ids_of("lamp")) == 1 else set())


def models_that_bar_tokens():
    """generation_config.json: suppress_tokens, bad_words_ids."""
    free = chat(return_token_ids=True, ignore_eos=True)
    ids = answer_ids(free)
    r = chat(return_token_ids=True, ignore_eos=True, on=other)
    got = answer_ids(r)
    assert BARRED_ONE in ids and BARRED_ONE not in got, (ids, got)
    pairs = list(zip(got, got[1:]))
    assert BARRED_TWO not in pairs and BARRED_TWO[1] in range(2048)
    forced = text(ids_of("The") + [BARRED_TWO[0]], max_tokens=1, logit_bias={str(BARRED_TWO[1]): 100, "900": 50},
                  return_token_ids=True, on=other)
    assert answer_ids(forced) == [900], forced  # the sequence begins in the prompt
    assert answer_ids(text(max_tokens=2, logit_bias={str(BARRED_TWO[1]): 100}, return_token_ids=True, on=other))[0] == BARRED_TWO[1]


# ---------------------------------------------------------------------------- log-probabilities of the prompt

def close(a, b):
    return abs(a - b) <= 2e-4 * max(1, abs(a))


def hold_prompt(listed, ids, tokens, echoed, k):
    """Against what echo says of the same prompt, which has another writer and n alternatives of its own."""
    assert listed[0] is None and len(listed) == len(ids)
    for i in range(1, len(ids)):
        own, lp = listed[i][str(ids[i])], echoed["token_logprobs"][i]
        assert next(iter(listed[i])) == str(ids[i]) and close(own["logprob"], lp), (i, own, lp)
        tops = echoed["top_logprobs"][i]  # by their texts, of which two tokens may have the same
        best = sorted((v["rank"], v["logprob"], t) for t, v in listed[i].items() if v["rank"] <= k)
        assert [r for r, _, _ in best] == list(range(1, k + 1)) and len(listed[i]) == k + (own["rank"] > k)
        assert len(tops) < k or all(close(a, b) for (_, a, _), b in zip(best, sorted(tops.values(), reverse=True)))
        higher = sum(v > own["logprob"] for _, v, _ in best)
        assert own["rank"] == higher + 1 if own["rank"] <= k else higher == k, (i, own, best)
        assert own["decoded_token"] == tokens[i]


def prompts_are_scored():
    prompts = [ids_of("The red lamp stands in the old house by the sea, and nobody knows why."),
               ids_of("It is 7. " * 30)]  # of several chunks
    for model in ("base", *demo_adapters()[:2]):
        for prompt in prompts:
            for _ in range(2):  # the second time the prefix cache has it
                cached = text(prompt, model=model, max_tokens=1, ignore_eos=True)
                r = text(prompt, model=model, prompt_logprobs=5, logprobs=1, max_tokens=2, n=2, ignore_eos=True)
                echoed = text(prompt, model=model, echo=True, logprobs=5, max_tokens=0)["choices"][0]["logprobs"]
                for c in r["choices"]:
                    hold_prompt(c["prompt_logprobs"], prompt, echoed["tokens"], echoed, 5)
                    assert c["text"].startswith(cached["choices"][0]["text"])
    r = text(prompts[0], prompt_logprobs=20, echo=True, logprobs=2, max_tokens=1)["choices"][0]
    assert all(len(t) == 2 for t in r["logprobs"]["top_logprobs"][1:]) and all(len(t) >= 20 for t in r["prompt_logprobs"][1:])
    bare = text([prompts[0], prompts[1][:9]], prompt_logprobs=0, max_tokens=0)["choices"]
    assert [len(c["prompt_logprobs"]) for c in bare] == [len(prompts[0]), 9] and bare[0]["text"] == ""
    assert all(len(t) == 1 for t in bare[0]["prompt_logprobs"][1:])
    r = client().chat.completions.create(model="base", messages=QUESTION, max_tokens=2, n=2, temperature=0,
                                         extra_body={"prompt_logprobs": 3, "return_token_ids": True})
    ids = r.model_extra["prompt_token_ids"]
    echoed = text(ids, echo=True, logprobs=3, max_tokens=0)["choices"][0]["logprobs"]
    hold_prompt(r.model_extra["prompt_logprobs"], ids, echoed["tokens"], echoed, 3)
    assert "prompt_logprobs" not in chat() and "prompt_logprobs" not in text()["choices"][0]
    for call in (chat, text):
        for wrong in (-1, 21, "1", True):
            refused("prompt_logprobs", call, prompt_logprobs=wrong)
        refused("prompt_logprobs", call, prompt_logprobs=1, stream=True)


# ----------------------------------------------------------------------------------- variables of templates

def templates_get_what_they_read():
    documents = [{"title": "Lamps", "text": "They are <|end|> red."}]
    r = chat(documents=documents, reasoning_effort="high", return_token_ids=True, max_tokens=1, on=other)
    seen = plain(r["prompt_token_ids"], other)
    assert "Lamps: They are <|end|> red." in seen and "effort high" in seen, seen
    assert r["prompt_token_ids"].count(5) == 3, "what a document says became a marker"
    without = plain(chat(return_token_ids=True, max_tokens=1, on=other)["prompt_token_ids"], other)
    assert "effort" not in without and "Lamps" not in without
    kwargs = chat(chat_template_kwargs={"reasoning_effort": "own"}, return_token_ids=True, max_tokens=1, on=other)
    assert "effort own" in plain(kwargs["prompt_token_ids"], other)
    assert "reads none" in refused("documents", chat, documents=documents)
    assert chat(documents=[])["choices"] == chat()["choices"]
    r = server.call("POST", "/v1/chat/completions", {"model": "base", "messages": QUESTION, "max_tokens": 1,
                                                     "reasoning_effort": "low"}, key=server.vllm_key)
    assert r.headers["x-ignored-params"] == "reasoning_effort", r.headers
    r = other.call("POST", "/v1/chat/completions", {"model": "base", "messages": QUESTION, "max_tokens": 1,
                                                    "reasoning_effort": "low"}, key=other.vllm_key)
    assert "x-ignored-params" not in r.headers
    for wrong in ("loud", 3, "", ["low"]):
        refused("reasoning_effort", chat, reasoning_effort=wrong)
    for wrong in ("x", [5], [{"text": 5}], [{}] * 300):
        refused("documents", chat, documents=wrong, on=other)


def small_ones():
    assert chat(stop=[""])["choices"] == chat(stop="")["choices"] == chat()["choices"]
    r = server.call("POST", "/v1/chat/completions", {"model": "base", "messages": QUESTION, "stop": ["", "is", ""]}, key=server.vllm_key)
    assert r.headers["x-ignored-params"] == "stop.empty" and r.json["choices"][0]["stop_reason"] == "is", r
    refused("stop", chat, stop=[5])
    room = server.call("GET", "/v1/models/base", key=server.vllm_key).json["max_model_len"]
    long = ids_of("The red lamp. " * 900)
    assert len(long) > room
    r = text(long, truncate_prompt_tokens=-1, max_tokens=7, return_token_ids=True, ignore_eos=True)
    assert r["choices"][0]["prompt_token_ids"] == long[-(room - 7):] and r["usage"]["completion_tokens"] == 7
    for wrong in (0, -2, "1"):
        refused("truncate_prompt_tokens", text, truncate_prompt_tokens=wrong)
    r = server.call("GET", "/version", key=server.vllm_key)
    assert r.status == 200 and set(r.json) == {"version"} and r.json["version"][0].isdigit(), r


contract.also.append(openai_types.hold)
server = Server()
with tempfile.TemporaryDirectory() as folder, server:
    home = pathlib.Path(folder)
    server.vllm_key = server.tenant("vllm")
    for name in demo_adapters()[:2]:
        server.upload(server.vllm_key, name, DEMO / "adapters" / name)
    own = answer_ids(chat(return_token_ids=True, ignore_eos=True))
    BARRED_ONE, BARRED_TWO = own[2], (own[0], own[1])
    shutil.copytree(DEMO / "base", home / "base")
    (home / "reads.jinja").write_text(READS)
    (home / "base/generation_config.json").write_text(json.dumps({
        "bos_token_id": 0, "eos_token_id": 5, "suppress_tokens": [BARRED_ONE], "bad_words_ids": [[5], list(BARRED_TWO)]}))
    other = Server(model=home / "base", settings={"model.chat_template": str(home / "reads.jinja")})
    with other:
        other.vllm_key = other.tenant("vllm")
        run([a_chat_counts_what_it_takes, tokens_as_the_vocabulary_writes_them, a_message_goes_on, only_some_tokens,
             words_that_do_not_come, nothing_is_left, with_forms_and_company, models_that_bar_tokens, prompts_are_scored,
             templates_get_what_they_read, small_ones])
