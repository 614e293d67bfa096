"""A model whose vocabulary has the marks of tool calls, and what its answers must keep.

The demo model with tokens renamed that no text has (bytes that are never UTF-8): <tool_call>, </tool_call>, [TOOL_CALLS],
<|python_tag|>; these two are special, as in Mistral's and Llama's vocabularies; and how two calls of Llama's begin.
"""
import json
import pathlib
import shutil

import jsonschema

from harness import DEMO

DEEPSEEK = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")
MARKS = {"<tool_call>": "ÿ", "</tool_call>": "þ", "[TOOL_CALLS]": "ý", "<|python_tag|>": "ü", '{"name": "add"': "û", '; {"name":"get_weather"': "ú",
         "<|tool_call|>": "ù", DEEPSEEK[0]: "ø", DEEPSEEK[1]: "÷", "to=functions.": "ö", "[add(": "õ", "<tool_call>\n<function=": "ô", ", get_weather(": "ó",
         "<|tool_call>": "ò", '<|"|>': "ñ"}
# The families' ways of writing a call, told by what their templates have.
PLAIN = """{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}
{{- '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}{{ '<|assistant|>\n' }}"""
TEMPLATES = {"hermes": "{# <tool_call> #}" + PLAIN, "mistral": "{# [TOOL_CALLS] #}" + PLAIN, "llama": PLAIN,
             "channel": "{# <|call|> #}" + PLAIN, "python": "{# [func_name1( #}" + PLAIN, "xml": "{# <tool_call> <function= #}" + PLAIN,
             "glm": "{# <tool_call> <arg_key> #}" + PLAIN, "phi": "{# <|tool_call|> #}" + PLAIN, "deepseek": "{# ```json " + DEEPSEEK[0] + " #}" + PLAIN,
             "gemma": "{# <|tool_call> #}" + PLAIN}
OPENS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": '{"name": "add"', "phi": "<|tool_call|>", "deepseek": DEEPSEEK[0],
         "channel": "to=functions.", "python": "[add(", "xml": "<tool_call>\n<function=", "glm": "<tool_call>", "gemma": "<|tool_call>"}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a town", "strict": True,
    "parameters": {"type": "object", "properties": {
        "town": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "at": {"$ref": "#/$defs/Point"}},
        "required": ["town", "days"], "additionalProperties": False,
        "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 10**6}},
                            "required": ["x"], "additionalProperties": False}}}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999},
                                     "b": {"enum": ["one", "two", None, "<tool_call>"]}},
    "required": ["a", "b"], "additionalProperties": False}}}
NOW = {"type": "function", "function": {"name": "now"}}
LOOSE = {"type": "function", "function": {"name": "loose", "strict": False, "parameters": {
    "type": "object", "properties": {"only": {"const": 1}}, "required": ["only"], "additionalProperties": False}}}
TOOLS = [WEATHER, ADD, NOW]

def make(folder):
    """The model, and a template of each family beside it; returns the marks' ids."""
    base = pathlib.Path(folder) / "base"
    shutil.copytree(DEMO / "base", base)
    path = base / "tokenizer.json"
    t = json.loads(path.read_text(encoding="utf-8"))
    vocab, ids = t["model"]["vocab"], {}
    for mark, letter in MARKS.items():
        ids[mark] = vocab[mark] = vocab.pop(letter)
        t["added_tokens"].append({"id": ids[mark], "content": mark, "single_word": False, "lstrip": False, "rstrip": False,
                                  "normalized": False, "special": mark[:2] == "[T" or mark[1] in "|｜"})
    path.write_text(json.dumps(t, ensure_ascii=False), encoding="utf-8")
    for name, text in TEMPLATES.items():
        (pathlib.Path(folder) / f"{name}.jinja").write_text(text)
    return base, ids


def bias(opens, ids):
    """For what opens a call, and, where nothing marks it, for what opens the next one."""
    more = {'{"name": "add"': '; {"name":"get_weather"', "[add(": ", get_weather("}.get(opens)
    return {str(ids[opens]): 22, str(ids[more]): 21} if more else {str(ids[opens]): 14}


def settings(folder, family):
    return {"model.chat_template": str(pathlib.Path(folder) / f"{family}.jinja")}


def whole_calls(choice):
    """Those of one answer that came to their end."""
    calls = choice["message"].get("tool_calls") or []
    if choice["finish_reason"] == "length" and calls:
        try:
            json.loads(calls[-1]["function"]["arguments"])
        except ValueError:
            return calls[:-1]
    return calls


def wrong(choice, tools):
    """What is wrong with the calls of one answer; None: nothing is."""
    for call in whole_calls(choice):
        f = next((t["function"] for t in tools if t["function"]["name"] == call["function"]["name"]), None)
        if not f:
            return f"{call['function']['name']} is not offered"
        try:
            args = json.loads(call["function"]["arguments"])
            jsonschema.validate(args, {"type": "object"} if f.get("strict") is False else f.get("parameters", {"maxProperties": 0}))
        except (ValueError, jsonschema.ValidationError) as e:
            return f"{call['function']}: {str(e)[:200]}"
    return None


def make_alike(folder, name, like, **config):
    """The same model, in which each token of `like` (its id) is as likely as another (its text): its row is that one's."""
    made = pathlib.Path(folder) / name
    shutil.copytree(pathlib.Path(folder) / "base", made)
    vocab = vocabulary(made)
    path = made / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    for tensor_name, tensor in json.loads(data[8:8 + size]).items():
        if tensor_name not in ("model.embed_tokens.weight", "lm_head.weight"):
            continue
        begin, end = (8 + size + x for x in tensor["data_offsets"])
        row = (end - begin) // tensor["shape"][0]
        for to, of in like.items():
            data[begin + to * row:begin + to * row + row] = data[begin + vocab[of] * row:begin + vocab[of] * row + row]
    path.write_bytes(data)
    words = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**words, **config}))
    return made


def vocabulary(base):
    return json.loads((pathlib.Path(base) / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]


def make_even(folder, ids):
    """<tool_call> is as likely as the bracket that begins JSON."""
    return make_alike(folder, "even", {ids["<tool_call>"]: "{"})


def make_brief(folder):
    """Quotes are as likely as what the model repeats in a long text: strings end.  And the context is longer."""
    vocab = vocabulary(pathlib.Path(folder) / "base")
    return make_alike(folder, "brief", {vocab[q]: "\u0120owl" for q in ('"', '",', '"}')}, max_position_embeddings=4096)
