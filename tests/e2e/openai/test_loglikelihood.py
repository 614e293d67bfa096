"""Every counted token of a text completion has its log-probability, the one that ended it included; so a harness that sums those of a
continuation (echo with one more token, as lm-eval's local-completions does) gets what scoring the same tokens as a prompt gives."""
import json

import dialects
from harness import Server, events, run

QUESTIONS = [f"What is {a} plus {b}?" for a in range(1, 11) for b in range(1, 21)]


def ask(**more):
    r = server.call("POST", "/v1/completions", {"model": "base", "temperature": 0, **more}, key=server.key)
    assert r.status == 200, r
    return r


def tokens(text):
    return server.call("POST", "/tokenize", {"model": "base", "prompt": text, "add_special_tokens": False}, key=server.key).json["tokens"]


def chat_ids(question):
    body = {"model": "base", "messages": [{"role": "user", "content": question}]}
    return server.call("POST", "/tokenize", body, key=server.key).json["tokens"]


def answer_of(question):
    a, b = (int(x) for x in question.removeprefix("What is ").removesuffix("?").split(" plus "))
    return f"{a} plus {b} is {a + b}."


def as_many_as_are_counted():
    for logprobs in (0, 1, 3):
        for echo in (False, True):
            for most in (1, 4, 60):
                body = {"prompt": chat_ids("What is 7 plus 5?"), "logprobs": logprobs, "echo": echo, "max_tokens": most}
                o = ask(**body).json
                u, lp = o["usage"], o["choices"][0]["logprobs"]
                want = u["completion_tokens"] + (u["prompt_tokens"] if echo else 0)
                assert {len(lp[x]) for x in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {want}, (body, o)
                ends = o["choices"][0]["finish_reason"] == "stop"
                assert (lp["tokens"][-1] == "") == ends, lp["tokens"]
                assert "".join(lp["tokens"]) in o["choices"][0]["text"] or echo, o
                got = {x: [] for x in lp}
                for e in events(ask(**body, stream=True).body):
                    for c in e["choices"]:
                        for x in got:
                            got[x] += (c["logprobs"] or {}).get(x, [])
                assert got == lp, (got, lp)
    named = ask(prompt=chat_ids("What is 7 plus 5?"), logprobs=0, max_tokens=60, return_tokens_as_token_ids=True).json["choices"][0]
    assert named["logprobs"]["tokens"][-1].startswith("token_id:"), named
    many = ask(prompt=[chat_ids("What is 7 plus 5?")] * 2, n=2, logprobs=0, max_tokens=60).json
    assert sum(len(c["logprobs"]["tokens"]) for c in many["choices"]) == many["usage"]["completion_tokens"], many


def as_lines_of_a_batch():
    class Text(dialects.Chat):
        path = "/v1/completions"

        def body(self, case):
            return case

        def parse(self, o):
            return o
    got = dialects.batch(server, server.key, Text(), [
        {"model": "base", "prompt": chat_ids("What is 7 plus 5?"), "logprobs": 1, "max_tokens": 60, "temperature": 0}])
    assert len(got[0]["choices"][0]["logprobs"]["tokens"]) == got[0]["usage"]["completion_tokens"], got


def a_chat_lists_the_tokens_of_its_content():
    body = {"model": "base", "messages": [{"role": "user", "content": "What is 7 plus 5?"}], "logprobs": True, "temperature": 0}
    c = server.call("POST", "/v1/chat/completions", body, key=server.key).json["choices"][0]
    assert "".join(t["token"] for t in c["logprobs"]["content"]) == c["message"]["content"], c


def sums_are_what_scoring_the_prompt_gives():
    ended = 0
    for question in QUESTIONS:
        context, more = chat_ids(question), tokens(answer_of(question))
        lp = ask(prompt=context + more, echo=True, max_tokens=1, logprobs=1).json["choices"][0]["logprobs"]
        assert len(lp["token_logprobs"]) == len(context) + len(more) + 1
        harness = sum(lp["token_logprobs"][len(context):-1])
        scored = ask(prompt=context + more, max_tokens=0, prompt_logprobs=0).json["choices"][0]["prompt_logprobs"]
        right = sum(scored[len(context) + i][str(t)]["logprob"] for i, t in enumerate(more))
        assert abs(harness - right) < 1e-3, (question, harness, right)
        ended += lp["tokens"][-1] == ""
    assert ended > 100, f"the model ended {ended} of {len(QUESTIONS)}"


with Server() as server:
    server.key = server.tenant("own")
    run([as_many_as_are_counted, as_lines_of_a_batch, a_chat_lists_the_tokens_of_its_content, sums_are_what_scoring_the_prompt_gives])
