"""Thoughts apart from answers: split and streamed, counted, bounded, before forms and forced calls, back in histories."""
import json
import pathlib
import shutil
import tempfile

import contract
import openai
import openai_types
from harness import DEMO, Server, events, run

ASK = [{"role": "user", "content": "What is 7 plus 5?"}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["a"],
    "additionalProperties": False}}}
# As Qwen3's: the model opens its thoughts itself, unless it is told not to think.
MAY = """{{ bos_token }}{% for t in tools or [] %}<tool_call>{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
# As DeepSeek-R1's: the prompt opens them.
OPENED = MAY.replace("<|assistant|>\n{% if", "<|assistant|>\n<think>\n{% if").replace("<think>\n\n</think>", "</think>")


# As GPT-OSS's: the model names the channel of each message.
CHANNEL = """{{ bos_token }}{% for t in tools or [] %}{{ t | tojson }}<|call|>{% endfor %}{% for m in messages %}<|start|>{{ m.role }}<|message|>
{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|channel|>analysis<|message|>{% endif %}"""


def post(on, path, body, expect=200):
    r = on.call("POST", path, body, key=on.own)
    assert r.status == expect, r
    return r.json


def whole(on, expect=200, **more):
    body = {"model": "base", "messages": ASK, "temperature": 0, "max_tokens": 60, **more}
    return post(on, "/v1/chat/completions", body, expect)


def parts(on, **more):
    """Thoughts, answer, how it ended, tokens of thoughts."""
    r = whole(on, **more)
    c = r["choices"][0]
    thoughts = c["message"].get("reasoning_content")
    assert c["message"].get("reasoning") == thoughts
    return thoughts, c["message"]["content"], c["finish_reason"], r["usage"]["completion_tokens_details"]["reasoning_tokens"]


def written(text):
    return {"structured_outputs": {"choice": [text]}}


def ids_of(on, text):
    return post(on, "/tokenize", {"model": "base", "prompt": text, "add_special_tokens": False})["tokens"]


def prompt(on, **more):
    ids = post(on, "/tokenize", {"model": "base", "messages": ASK, **more})["tokens"]
    return post(on, "/detokenize", {"tokens": ids})["prompt"]


def thoughts_stand_apart():
    text = "<think>\nSeven and five.\n</think>\n\nIt is 12."
    thoughts, answer, finish, n = parts(may, **written(text))
    assert (thoughts, answer, finish) == ("Seven and five.", "It is 12.", "stop"), (thoughts, answer, finish)
    ids = whole(may, **written(text), return_token_ids=True)["choices"][0]["token_ids"]
    made = [post(may, "/detokenize", {"tokens": ids[:k]})["prompt"] for k in (n - 1, n)]
    assert "</think>" in made[1] and "</think>" not in made[0], made
    none, answer, _, n = parts(may)
    assert (none, n) == (None, 0) and answer
    cut = parts(may, **written(text), max_tokens=14)
    assert cut[1:3] == ("", "length") and "Seven and five.".startswith(cut[0]) and cut[0] and cut[3] == 14, cut
    hidden = parts(may, **written(text), include_reasoning=False)
    assert hidden[:3] == (None, "It is 12.", "stop") and hidden[3] > 5, hidden


def streams_them_as_they_are_made():
    text = "<think>\nSeven and five.\n</think>\n\nIt is 12."
    r = may.call("POST", "/v1/chat/completions", {"model": "base", "messages": ASK, "stream": True, "max_tokens": 60,
                                                  "stream_options": {"include_usage": True}, **written(text)}, key=may.own)
    frames = events(r.body)
    deltas = [c["delta"] for e in frames for c in e["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}, deltas[0]
    thoughts = [d["reasoning_content"] for d in deltas if "reasoning_content" in d]
    answer = [d["content"] for d in deltas[1:] if "content" in d]
    assert "".join(thoughts) == "Seven and five." and "".join(answer) == "It is 12.", deltas
    last = max(i for i, d in enumerate(deltas) if "reasoning_content" in d)
    assert all("content" not in d for d in deltas[1:last]), deltas
    assert frames[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] > 5


def forms_begin_behind_them():
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["n"],
              "additionalProperties": False}
    for seed in range(3):
        thoughts, answer, finish, n = parts(
            opened, temperature=1, seed=seed, thinking_budget=5, max_tokens=80,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
        assert finish == "stop" and set(json.loads(answer)) == {"n"} and n >= 5, (thoughts, answer)


def calls_are_forced_behind_them():
    for on in (opened, may):
        for choice in ("required", {"type": "function", "function": {"name": "add"}}):
            c = whole(on, tools=[ADD], tool_choice=choice, thinking_budget=4, temperature=1, seed=3, max_tokens=90)["choices"][0]
            call = c["message"]["tool_calls"][0]["function"]
            assert call["name"] == "add" and set(json.loads(call["arguments"])) == {"a"}, c
            assert "<" not in (c["message"]["content"] or ""), c
    assert prompt(opened, tools=[ADD], tool_choice="required").endswith("<think>\n")
    quiet = dict(tools=[ADD], tool_choice="required", reasoning_effort="none")
    assert prompt(may, **quiet).endswith("</think>\n\n<tool_call>\n")
    c = whole(may, **quiet, temperature=1, seed=3)["choices"][0]
    assert c["message"]["tool_calls"][0]["function"]["name"] == "add" and "reasoning_content" not in c["message"], c


def calls_are_found_behind_them():
    text = '<think>a <tool_call> b</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    c = whole(may, tools=[ADD], **written(text), max_tokens=120)["choices"][0]
    assert c["finish_reason"] == "tool_calls" and c["message"]["reasoning_content"] == "a <tool_call> b", c
    assert json.loads(c["message"]["tool_calls"][0]["function"]["arguments"]) == {"a": 1}, c


def their_budget_is_kept():
    for budget in (0, 1, 7):
        thoughts, answer, finish, n = parts(opened, thinking_budget=budget, temperature=1, seed=1, ignore_eos=True)
        close = len(ids_of(opened, "</think>"))
        assert budget <= n <= budget + close and answer and finish == "length", (budget, n, thoughts, answer)
        assert bool(thoughts) <= (budget > 0)
    e = whole(opened, expect=400, thinking_budget=-1)["error"]
    assert e["param"] == "thinking_budget", e
    e = whole(opened, expect=400, thinking_budget=1, thinking_token_budget=2)["error"]
    assert e["param"] == "thinking_token_budget", e


def channels_keep_it_too():
    base = folder / "base"  # where <|end|> ends no answer
    shutil.copytree(DEMO / "base", base)
    for path in base.glob("*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace("<|end|>", "<|return|>"), encoding="utf-8")
    with Server(model=base, settings={"model.chat_template": str(folder / "channel.jinja")}) as on:
        on.own = on.tenant("channel")
        for more in ({"ignore_eos": True}, {"n": 2}, {"response_format": {"type": "json_object"}}):
            r = whole(on, thinking_budget=4, temperature=1, seed=2, max_tokens=200, **more)
            for c in r["choices"]:
                assert c["message"]["reasoning_content"] and "<|" not in c["message"]["reasoning_content"], c
                assert c["message"]["content"] and "channel" not in c["message"]["content"], c
            close = len(ids_of(on, "<|end|>"))
            assert r["usage"]["completion_tokens_details"]["reasoning_tokens"] <= (4 + close) * len(r["choices"]), r["usage"]
        text = json.loads(whole(on, thinking_budget=4, temperature=1, seed=2, max_tokens=300, response_format={
            "type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["a"]}}})["choices"][0]["message"]["content"])
        assert text == "a"


def effort_is_the_templates():
    assert prompt(may, reasoning_effort="none") == prompt(may, chat_template_kwargs={"enable_thinking": False})
    assert prompt(may, reasoning_effort="none") != prompt(may) == prompt(may, reasoning_effort="high")
    assert parts(may, reasoning_effort="none", **written("<think>a</think>b"))[:2] == (None, "<think>a</think>b")


def histories_go_back():
    for name in ("reasoning_content", "reasoning"):
        seen = prompt(may, messages=[*ASK, {"role": "assistant", "content": "12", name: "Count."}, *ASK])
        assert "<think>Count.</think>12<|end|>" in seen, seen


def more_of_an_answer_is_no_thought():
    more = dict(messages=[*ASK, {"role": "assistant", "content": "It"}], continue_final_message=True)
    assert parts(opened, **more, **written(" is</think> 12."))[:2] == (None, " is</think> 12.")


def clients_read_them():
    client = openai.OpenAI(base_url=may.url, api_key=may.own, max_retries=0,
                           http_client=openai.DefaultHttpxClient(verify=may.tls()))
    c = client.chat.completions.create(model="base", messages=ASK, max_tokens=60,
                                       extra_body=written("<think>Hm.</think>Yes."))
    assert c.choices[0].message.reasoning_content == "Hm." and c.choices[0].message.content == "Yes."


def they_may_stay():
    with Server(settings={"model.chat_template": str(path), "model.reasoning": "no"}) as plain:
        plain.own = plain.tenant("plain")
        text = "<think>Hm.</think>Yes."
        assert parts(plain, **written(text)) == (None, text, "stop", 0)
        r = plain.call("POST", "/v1/chat/completions", {"model": "base", "messages": ASK, "max_tokens": 1,
                                                        "thinking_budget": 1}, key=plain.own)
        assert r.headers["x-ignored-params"] == "thinking_budget", r.headers


folder = pathlib.Path(tempfile.mkdtemp(prefix="lorad-reasoning-"))
try:
    contract.also.append(openai_types.hold)
    path = folder / "may.jinja"
    path.write_text(MAY)
    (folder / "opened.jinja").write_text(OPENED)
    (folder / "channel.jinja").write_text(CHANNEL)
    with Server(settings={"model.chat_template": str(path)}) as may, \
            Server(settings={"model.chat_template": str(folder / "opened.jinja")}) as opened:
        may.own, opened.own = may.tenant("may"), opened.tenant("opened")
        run([thoughts_stand_apart, streams_them_as_they_are_made, forms_begin_behind_them, calls_are_forced_behind_them,
             calls_are_found_behind_them, their_budget_is_kept, channels_keep_it_too, effort_is_the_templates, histories_go_back,
             more_of_an_answer_is_no_thought, clients_read_them, they_may_stay])
finally:
    shutil.rmtree(folder)
