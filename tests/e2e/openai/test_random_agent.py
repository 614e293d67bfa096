"""An agent that does everything at random: tools and formats, calls that are cut, empty fields, each API, streamed and not.

No answer is a 5xx, nothing that lorad returned is refused when it comes back, every call and every structured answer is valid, and
a streamed answer says what the whole one says.  The seed is printed; LORAD_SEED sets it, LORAD_ASKS how many requests there are.
"""
import copy
import json
import os
import pathlib
import random
import shutil
import tempfile
import threading

import jsonschema

import dialects
import marked
from harness import Server, run
from marked import ADD, NOW, WEATHER

SEED = int(os.environ.get("LORAD_SEED") or random.SystemRandom().randrange(10**6))
ASKS = int(os.environ.get("LORAD_ASKS", "400"))
MEMBERS = """{# <tool_call> #}{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}
{{- '<|' + m.role + '|>\n' + m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}
{%- for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}</tool_call>{% endfor %}{{ '<|end|>\n' }}{% endfor %}
{{- '<|assistant|>\n' }}"""
THINKS = """{# <tool_call> #}{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
<think>
{% endif %}"""
LS = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}
TOOLS = [WEATHER, ADD, NOW, LS]
SCHEMAS = [{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False},
           {"type": "object", "properties": {}},
           {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "minimum": 0, "maximum": 2**64}},
            "required": ["name", "n"], "additionalProperties": False},
           {"type": "array", "items": {"enum": ["<tool_call>", "x"]}, "minItems": 1, "maxItems": 3},
           {"type": "string", "maxLength": 10}, {"anyOf": [{"type": "null"}, {"type": "boolean"}]}]
BUDGET = 460  # tokens of a conversation: then another one begins


def wrong(a, case):
    """What is wrong with one answer; None: nothing is."""
    tools, schema, choice = case.get("tools") or [], case.get("schema"), case.get("choice")
    if "<tool_call>" in a.text and schema is None and tools and choice != "none":
        return "a mark in the content"
    calls = [{"function": {"name": n, "arguments": x}} for _, n, x in (a.calls[:-1] if a.cut else a.calls)]
    bad = marked.wrong({"message": {"tool_calls": calls}, "finish_reason": "length" if a.cut else "stop"}, tools)
    if bad:
        return bad
    if a.calls and choice == "none":
        return "a call that was not allowed"
    if choice and choice not in ("auto", "none"):
        if not a.cut and (len(a.calls) != 1 or (choice != "required" and a.calls[0][1] != choice)):
            return "not the call that was asked for"
        return "text beside a forced call" if a.text else None
    if schema is None or a.cut:
        return None
    if a.calls:
        return "text beside calls" if a.text else None
    try:
        jsonschema.validate(json.loads(a.text), schema)
    except (ValueError, jsonschema.ValidationError) as e:
        return f"not of the format: {str(e)[:80]}"


def spoiled(r, api, items):
    """What came back, as some clients send it: empty fields, cut or odd arguments."""
    items = copy.deepcopy(items)
    for m in items:
        if isinstance(m.get("tool_calls"), list) and r.random() < 0.3:
            for c in m["tool_calls"]:
                c["function"]["arguments"] = r.choice([c["function"]["arguments"][:-1], "", None, "{", "[1]", c["function"]["arguments"]])
        if m.get("type") == "function_call" and r.random() < 0.3:
            m["arguments"] = r.choice([m["arguments"][:-1], "", None, "ls", m["arguments"]])
        if m.get("role") == "assistant" and api.path.endswith("completions") and r.random() < 0.3:
            m.setdefault("tool_calls", r.choice([[], None]))
            m["content"] = m.get("content") or r.choice([None, [], ""])
        for key in ("id", "status"):
            if r.random() < 0.2 and api.path.endswith("responses"):
                m.pop(key, None)
    return items


class Agent:
    """One conversation after another with one server, in one API at a time."""

    def __init__(self, name, server, seed):
        self.name, self.server, self.seed, self.r = name, server, seed, random.Random(f"{SEED} {name} {seed}")
        self.counts = {"asks": 0, "calls": 0, "texts": 0, "structured": 0, "cut": 0}
        self.begin()

    def begin(self):
        self.api_name = self.r.choice(list(dialects.APIS))
        self.api = dialects.APIS[self.api_name]
        self.messages = self.api.user(self.r.choice(["What is 7 plus 5?", "a", "Weather in Oslo?"]))
        self.before = None  # id of the stored response that all but the last messages are in

    def case(self):
        r = self.r
        case = {"messages": self.messages, "seed": r.randrange(2**31), "most": r.choice([1, 2, 3, 5, 8, 13, 21, 40, 80, 120, 120, 200]),
                "temperature": r.choice([0, 0.7, 1])}
        if r.random() < 0.85:
            case["tools"] = r.sample(TOOLS, r.randrange(len(TOOLS) + 1))
            names = [t["function"]["name"] for t in case["tools"]]
            case["choice"] = r.choice([None, "auto", "auto", "none"] + (["required", r.choice(names)] if names else []))
        if r.random() < 0.6:
            case["schema"] = r.choice(SCHEMAS)
        if self.api_name != "messages" and r.random() < 0.6:
            case["logit_bias"] = {str(ids["<tool_call>"]): r.choice([10, 14, 22, 22, -100])}
        if self.name == "thinks" and self.api_name == "messages" and r.random() < 0.5:
            case["thinking"] = {"type": "enabled", "budget_tokens": 30}
        elif self.name == "thinks" and self.api_name == "chat" and r.random() < 0.5:
            case["thinking_budget"] = r.choice([0, 3, 30])
        if self.before:
            case["previous_response_id"] = self.before
        return case

    def step(self):
        case = self.case()
        got = [dialects.ask(self.server, self.server.key, self.api, case, stream) for stream in (False, True)]
        self.counts["asks"] += 2
        where = f"{self.name}, {self.api_name}, agent {self.seed}: {json.dumps(self.api.body(case))}\n{got}"
        if {a.status for a in got} == {400} and got[0].error.get("code", "context_length_exceeded") == "context_length_exceeded" and \
                ("context" in got[0].error["message"] or "too long" in got[0].error["message"]):
            return self.begin()
        assert [a.status for a in got] == [200, 200], where
        assert got[0].said == got[1].said and got[0].thoughts == got[1].thoughts, where
        for a in got:
            bad = wrong(a, case)
            assert bad is None, f"{bad}: {where}"
        a = got[self.r.randrange(2)]
        self.counts["calls"] += len(a.calls)
        self.counts["texts"] += bool(a.text)
        self.counts["structured"] += bool(a.text) and "schema" in case and not a.cut
        self.counts["cut"] += a.cut
        news = [x for id, _, _ in a.calls for x in self.api.result(id, self.r.choice(["12", "", "no"]))]
        if not news or self.r.random() < 0.3:
            news = news + self.api.user(self.r.choice(["go on", "a", "And now?"]))
        if self.r.random() < 0.3:
            self.begin()
        elif self.api_name == "responses" and self.r.random() < 0.5:
            self.messages, self.before = news, a.id
        else:
            back = self.api.back(a)
            self.messages = [*self.messages, *(spoiled(self.r, self.api, back) if self.api_name != "messages" else back), *news]
            if len(json.dumps(self.messages)) > 3 * BUDGET:
                self.begin()


def nothing_goes_wrong():
    print(f"seed {SEED} (LORAD_SEED sets it), {ASKS} requests")
    agents = [Agent(name, s, i) for i, (name, s) in enumerate(list(servers.items()) * 2)]
    failed = []

    def live(agent):
        try:
            while agent.counts["asks"] < ASKS / len(agents) and not failed:
                agent.step()
        except Exception as e:  # the others end, and the main thread raises it
            failed.append(e)
    threads = [threading.Thread(target=live, args=(a,)) for a in agents]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]
    total = {k: sum(a.counts[k] for a in agents) for k in agents[0].counts}
    print(total)
    assert ASKS < 200 or all(total[k] > ASKS / 100 for k in total), total


folder = tempfile.mkdtemp(prefix="lorad-agent-")
try:
    base, ids = marked.make(folder)
    even = marked.make_even(folder, ids)
    for name, text in (("members", MEMBERS), ("thinks", THINKS)):
        (pathlib.Path(folder) / f"{name}.jinja").write_text(text)
    with Server(model=even, settings=marked.settings(folder, "hermes")) as hermes, \
            Server(model=even, settings=marked.settings(folder, "members")) as members, \
            Server(model=even, settings=marked.settings(folder, "thinks")) as thinks:
        servers = {"hermes": hermes, "members": members, "thinks": thinks}
        for each in servers.values():
            each.key = each.tenant("own")
        run([nothing_goes_wrong])
finally:
    shutil.rmtree(folder)
