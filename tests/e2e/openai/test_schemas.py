"""Answers with a form: JSON schemas, regular expressions and choices through HTTPS, validated by jsonschema."""
import concurrent.futures
import json
import math
import os
import pathlib
import random
import re
import subprocess
import tempfile
from typing import Literal, Optional

import openai
import pydantic

import contract
import openai_types
import schemas
from harness import BUILD, DEMO, Server, events, in_pieces, run

server = Server()
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3}},
    "required": ["name", "age", "tags"], "additionalProperties": False}
QUESTION = [{"role": "user", "content": "What is 7 plus 5?"}]


def form(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def chat(expect=200, **more):
    body = {"model": "base", "messages": QUESTION, "temperature": 1.3, "max_tokens": 200, **more}
    r = server.call("POST", "/v1/chat/completions", body, key=key, timeout=600)
    assert r.status == expect, r
    return r


def text(expect=200, **more):
    body = {"model": "base", "prompt": "The", "temperature": 1.3, "max_tokens": 200, **more}
    r = server.call("POST", "/v1/completions", body, key=key)
    assert r.status == expect, r
    return r.json["choices"][0] if expect == 200 else r.json["error"]


def message(r):
    return r.json["choices"][0]["message"]["content"]


def client(**more):
    return openai.OpenAI(base_url=server.url, api_key=key, max_retries=0,
                         http_client=openai.DefaultHttpxClient(verify=server.tls()), **more)


def random_walks_validate():
    """Without a model: what is drawn among the allowed tokens fits, for all 200 schemas."""
    todo = schemas.schemas()
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.writelines(json.dumps({"schema": s}) + "\n" for s in todo)
        f.flush()
        p = subprocess.run([BUILD / "bench_grammar", DEMO / "base", f.name, "5"],
                           capture_output=True, text=True, check=True)
    made = [json.loads(line) for line in p.stdout.splitlines()]
    assert len(made) == 5 * len(todo)
    for m in made:
        wrong = schemas.check(todo[m["line"]], m["text"] or "")
        assert wrong is None, (todo[m["line"]], wrong)


def every_answer_parses_and_validates():
    todo = schemas.schemas(60)

    def one(i):
        r = chat(response_format=form(todo[i]), seed=i, max_tokens=300).json["choices"][0]
        return i, r["message"]["content"], r["finish_reason"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for i, answer, finish in pool.map(one, range(len(todo))):
            wrong = schemas.check(todo[i], answer)
            assert finish == "stop" and wrong is None, (todo[i], finish, wrong)


def all_names_of_a_form():
    for more in ({"response_format": form(PERSON)}, {"structured_outputs": {"json": PERSON}},
                 {"structured_outputs": {"json": json.dumps(PERSON)}}, {"guided_json": PERSON},
                 {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}}):
        assert schemas.check(PERSON, message(chat(**more))) is None
        assert schemas.check(PERSON, text(**more)["text"]) is None
    for more in ({"structured_outputs": {"regex": r"\d{3}-(a|b)+"}},
                 {"guided_regex": r"\d{3}-(a|b)+"}):
        got = text(temperature=0.5, **more)
        assert got["finish_reason"] != "stop" or schemas.matches(r"\d{3}-(a|b)+", got["text"]), got
    for more in ({"structured_outputs": {"choice": ["lamp", "door"]}},
                 {"guided_choice": ["lamp", "door"]}):
        assert text(**more)["text"] in ("lamp", "door")
    sums = {"lark": 'start: sum\nsum: sum "+" INT | INT\nINT: /[1-9]/\n%ignore " "', "gbnf": 'root ::= [1-9] ("+" [1-9])*'}
    for more in ({"structured_outputs": {"grammar": sums["lark"]}}, {"guided_grammar": sums["gbnf"]}, {"grammar": sums["gbnf"]}):
        got = text(temperature=0.5, max_tokens=40, **more)
        assert got["text"] and re.fullmatch(r"[1-9]([+][1-9])*[+]?", got["text"].replace(" ", "")), got
    r = chat(response_format={"type": "json_object"}, max_tokens=300, temperature=0)
    if r.json["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(message(r)), dict)
    assert message(r).startswith("{")
    assert chat(response_format={"type": "text"}).status == 200


class Point(pydantic.BaseModel):
    x: float = pydantic.Field(ge=-1.5, le=1.5)
    y: int


class Shape(pydantic.BaseModel):
    kind: Literal["circle", "square"]
    label: Optional[str] = pydantic.Field(default=None, max_length=8)
    corners: list[Point] = pydantic.Field(max_length=2)


def pydantic_through_openai_python():
    for seed in range(3):
        r = client().chat.completions.parse(model="base", messages=QUESTION, response_format=Shape,
                                            temperature=1, seed=seed, max_tokens=300)
        shape = r.choices[0].message.parsed
        assert isinstance(shape, Shape) and shape.kind in ("circle", "square"), r
        assert all(-1.5 <= p.x <= 1.5 for p in shape.corners)


def streams_the_same():
    ask = dict(response_format=form(PERSON), seed=5)
    whole = message(chat(**ask))

    def streamed():
        parts = [c["delta"].get("content") or "" for e in events(chat(stream=True, **ask).body) for c in e["choices"]]
        assert "".join(parts) == whole, parts
        return parts
    in_pieces(streamed, 4)
    with client().chat.completions.stream(model="base", messages=QUESTION, response_format=Shape,
                                          temperature=1, seed=1, max_tokens=300) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Shape)


def each_choice_for_itself():
    r = chat(response_format=form(PERSON), n=4, seed=3).json["choices"]
    texts = [c["message"]["content"] for c in r]
    assert all(schemas.check(PERSON, t) is None for t in texts) and len(set(texts)) > 1, texts
    again = chat(response_format=form(PERSON), n=4, seed=3).json["choices"]
    assert texts == [c["message"]["content"] for c in again]
    r = server.call("POST", "/v1/completions", {"model": "base", "prompt": ["A", "The"], "n": 2,
                    "max_tokens": 200, "structured_outputs": {"json": PERSON}}, key=key)
    assert all(schemas.check(PERSON, c["text"]) is None for c in r.json["choices"]), r


def numbers_are_exact():
    """Ids of 19 digits, and all of what a double cannot hold, as Python's json reads and writes them."""
    seed = random.randrange(1 << 32)
    print("        seed", seed)
    r = random.Random(seed)
    numbers = [2**53 - 1, 2**53 + 1, 10**15, 1700000000000000, 1180920442763083827, -(2**63), 2**64 + 1]
    numbers += [r.choice((1, -1)) * r.randrange(10 ** r.randrange(1, 25)) for _ in range(13)]
    for n in numbers:
        assert json.loads(message(chat(response_format=form({"const": n}), max_tokens=40))) == n, n
    low = 2**53 + 1
    got = json.loads(message(chat(response_format=form({"type": "integer", "minimum": low, "maximum": low + 1}),
                                  max_tokens=40)))
    assert got in (low, low + 1), got


def cut_answers_say_so():
    cut = chat(response_format=form(PERSON), max_tokens=3).json["choices"][0]
    assert cut["finish_reason"] == "length" and cut["message"]["content"].startswith("{")
    stopped = chat(response_format=form(PERSON), stop=['"age"'], seed=1).json["choices"][0]
    assert stopped["finish_reason"] == "stop" and '"age"' not in stopped["message"]["content"]
    exact = chat(response_format=form(PERSON), seed=9).json
    n = exact["usage"]["completion_tokens"]
    same = chat(response_format=form(PERSON), seed=9, max_tokens=n).json["choices"][0]
    assert same["finish_reason"] == "stop" and same["message"] == exact["choices"][0]["message"]


def log_probabilities_are_of_what_is_allowed():
    r = chat(structured_outputs={"choice": ["lamp", "door"]}, logprobs=True, top_logprobs=20)
    steps = r.json["choices"][0]["logprobs"]["content"]
    assert "".join(s["token"] for s in steps) in ("lamp", "door")
    for s in steps:
        total = sum(math.exp(t["logprob"]) for t in s["top_logprobs"])
        assert abs(total - 1) < 1e-3, s  # so few are allowed that all of them are named
        assert all(t["token"] and any(w.find(t["token"]) >= 0 for w in ("lamp", "door"))
                   for t in s["top_logprobs"]), s


def other_rules_go_with_it():
    assert schemas.check(PERSON, message(chat(response_format=form(PERSON), min_tokens=150))) is None
    r = chat(response_format=form(PERSON), ignore_eos=True)
    assert schemas.check(PERSON, message(r)) is None and "ignore_eos" in r.headers["x-ignored-params"]
    for more in (dict(temperature=0), dict(top_k=1), dict(top_p=0.1), dict(min_p=0.9),
                 dict(repetition_penalty=1.8), dict(frequency_penalty=2, presence_penalty=2)):
        r = chat(**{"response_format": form(PERSON), "max_tokens": 300, **more})
        assert schemas.check(PERSON, message(r)) is None, (more, message(r))


def refusals_name_the_keyword():
    def refused(param, says, **more):
        e = text(expect=400, **more)
        assert e["param"] == param and says in e["message"], e
    bad = {"type": "object", "properties": {"a": {"extends": {}}}}
    name = "response_format.json_schema.schema"
    refused(name, "'extends' at #/properties/a", response_format=form(bad))
    refused(name, "required", response_format={"type": "json_schema"})
    refused("response_format", "type", response_format={"type": "xml"})
    refused("structured_outputs.grammar", "line 2", structured_outputs={"grammar": 'root ::= "a"\n  b'})
    refused("guided_grammar", "templates", guided_grammar="start: a{b}")
    refused("structured_outputs.regex", "no finite text", structured_outputs={"regex": "(?=a)"})
    refused("structured_outputs.regex", "look", structured_outputs={"regex": "(?<=a)b"})
    refused("guided_regex", "both", guided_regex="a", structured_outputs={"regex": "b"})
    refused("guided_json", "not JSON", guided_json="{")
    refused("guided_choice", "choice 0", guided_choice=[1])
    refused(name, "no finite", response_format=form({"enum": []}))


def masks_that_are_late_hold_nobody_up():
    """A grammar with more states than are prepared when it is compiled: the helper makes their masks while
    the row waits, and a plain request beside it is as fast as ever."""
    big = {"type": "object", "properties": {
        f"p{i}": {"type": "string", "pattern": f"^(.[^{i % 10}]|..x|[^a-y]..){{{i % 3 + 1},4}}$"}
        for i in range(12)}}
    big["required"] = [f"p{i}" for i in range(0, 12, 2)]
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        made = [pool.submit(chat, response_format=form(big), seed=i, max_tokens=900, temperature=1)
                for i in range(4)]
        plain = chat(temperature=0).json["choices"][0]["message"]
        texts = [message(m.result()) for m in made]
    for i, t in enumerate(texts):
        assert schemas.check(big, t) is None, t
        again = chat(response_format=form(big), seed=i, max_tokens=900, temperature=1)
        assert message(again) == t  # now that the masks are there, the same
    assert chat(temperature=0).json["choices"][0]["message"] == plain


class Expression:
    """Random regular expressions of what is supported, as Python's re understands them."""
    LETTERS = "abcxyz019 ,:\u00e9\u65e5-_/"
    CLASSES = ["\\d", "\\w", "\\s", "\\D", "\\W", "\\S"]
    ITEMS = [*CLASSES, "a-f", "0-5", "_", "\u00e9", "\u65e5", "\\-", "\\.", "\\]", "x", "A-Z", "\\n"]
    COUNTS = ["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "{9,12}", "{0}", "*?", "+?"]

    def __init__(self, seed):
        self.r = random.Random(seed)

    def one_of(self):
        return f"[{self.r.choice(['', '', '^'])}{''.join(self.r.choices(self.ITEMS, k=self.r.randint(1, 3)))}]"

    def atom(self, depth):
        k = self.r.random()
        if k < 0.35:
            return self.r.choice(self.LETTERS)
        if k < 0.5:
            return self.r.choice([*self.CLASSES, ".", "\\.", "\\\\", "\\t", "\\x41"])
        if k < 0.75 or depth == 0:
            return self.one_of()
        return f"{self.r.choice(['(', '(?:'])}{self.either(depth - 1)})"

    def sequence(self, depth):
        return "".join(self.atom(depth) + (self.r.choice(self.COUNTS) if self.r.random() < 0.4 else "")
                       for _ in range(self.r.randint(1, 4)))

    def either(self, depth=2):
        return "|".join(self.sequence(depth) for _ in range(self.r.choice([1, 1, 2, 3])))


def what_an_expression_allows_python_matches():
    """As text that matches as a whole, and as a JSON string with a pattern."""
    matched = 0
    for seed in range(300):
        rx = Expression(seed).either()
        asked = {"json": {"type": "string", "pattern": rx}} if seed % 2 else {"regex": rx}
        r = server.call("POST", "/v1/completions", {"model": "base", "prompt": "x", "max_tokens": 60, "temperature": 1.5,
                                                    "seed": seed, "n": 3, "structured_outputs": asked}, key=key)
        assert r.status == 200 or re.search("has no character|is too large", r.json["error"]["message"]), (rx, r)
        for c in r.json["choices"] if r.status == 200 else ():
            if c["finish_reason"] == "stop":
                fits = re.search(rx, json.loads(c["text"])) if seed % 2 else re.fullmatch(rx, c["text"])
                assert fits, (rx, c["text"])
                matched += 1
    assert matched > 400, matched


def same_answers_in_a_crowd_with_too_few_pages():
    """Rows are pre-empted and recomputed; each goes on where its grammar stood."""
    todo = schemas.schemas(24)
    asks = [dict(response_format=form(s), seed=i, max_tokens=200) for i, s in enumerate(todo)]
    alone = [message(chat(**a)) for a in asks]
    global server, key
    keep = server, key
    with Server(settings={"engine.kv_memory": "2MiB", "engine.max_seqs": "24"}) as small:
        server, key = small, small.tenant("crowd")
        try:
            with concurrent.futures.ThreadPoolExecutor(24) as pool:
                crowd = list(pool.map(lambda a: message(chat(**a)), asks))
        finally:
            server, key = keep
    assert crowd == alone


contract.also.append(openai_types.hold)
with server:
    key = server.tenant("forms")
    run([random_walks_validate, every_answer_parses_and_validates, all_names_of_a_form,
         pydantic_through_openai_python, streams_the_same, each_choice_for_itself, numbers_are_exact,
         cut_answers_say_so, log_probabilities_are_of_what_is_allowed, other_rules_go_with_it,
         refusals_name_the_keyword, masks_that_are_late_hold_nobody_up,
         what_an_expression_allows_python_matches, same_answers_in_a_crowd_with_too_few_pages])
