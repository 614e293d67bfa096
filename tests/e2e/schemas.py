"""JSON schemas for tests of structured outputs: some by hand, the rest by a generator with a seed.

All of them have short answers: strings, arrays and recursion are bounded, so that an answer that is
cut off is never the schema's fault."""
import random
import re

import jsonschema

WORDS = ["name", "city", "kind", "total", "tags", "when", "size", "owner", "items", "note", "naïve",
         "a b", "x", "日本", "quote\"d", "back\\slash", "new\nline", "ab", "abc", "b"]
TREE = {"$defs": {"node": {"type": "object", "properties": {
    "value": {"type": "integer", "minimum": 0, "maximum": 99},
    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
    "required": ["value"], "additionalProperties": False}}, "$ref": "#/$defs/node"}
LIST = {"type": "object", "properties": {
    "head": {"type": "string", "maxLength": 4},
    "tail": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["head", "tail"]}
EXPR = {"definitions": {
    "expr": {"oneOf": [{"type": "integer", "minimum": -9, "maximum": 9},
                       {"$ref": "#/definitions/sum"}]},
    "sum": {"type": "object", "properties": {"op": {"const": "+"},
                                             "left": {"$ref": "#/definitions/expr"},
                                             "right": {"$ref": "#/definitions/expr"}},
            "required": ["op", "left", "right"], "additionalProperties": False}},
    "$ref": "#/definitions/expr"}
MUTUAL = {"$defs": {"a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}},
                          "required": ["b"]},
                    "b": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 1}},
          "$ref": "#/$defs/a"}
PYDANTIC = {"$defs": {"Colour": {"enum": ["red", "green", "blue"], "title": "Colour",
                                 "type": "string"},
                      "Point": {"properties": {"x": {"title": "X", "type": "number", "minimum": -1.5,
                                                     "maximum": 1.5},
                                               "y": {"title": "Y", "type": "integer",
                                                     "exclusiveMinimum": 0, "maximum": 7}},
                                "required": ["x", "y"], "title": "Point", "type": "object"}},
            "properties": {"colour": {"allOf": [{"$ref": "#/$defs/Colour"}], "default": "red"},
                           "at": {"$ref": "#/$defs/Point", "description": "where"},
                           "label": {"anyOf": [{"type": "string", "maxLength": 8},
                                               {"type": "null"}], "default": None}},
            "required": ["at"], "title": "Shape", "type": "object"}
BY_HAND = [
    TREE, LIST, EXPR, MUTUAL, PYDANTIC,
    {"type": "boolean"}, {"type": "null"}, {"enum": ["a", 1, None, True, {"k": [1, {"z": "é"}]}, 1.5]},
    {"const": "só\n\"x\""}, {"type": ["integer", "null"]},
    {"type": "integer", "minimum": -120, "maximum": -7}, {"type": "integer", "minimum": 995,
                                                         "maximum": 10012},
    {"type": "integer", "exclusiveMinimum": -3, "exclusiveMaximum": 3},
    {"type": "number", "minimum": 0, "maximum": 1}, {"type": "number", "minimum": 0.25,
                                                    "exclusiveMaximum": 0.375},
    {"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": -0.125},
    {"type": "number", "minimum": 9.99}, {"type": "number", "maximum": -1e-3},
    {"type": "number", "minimum": 2.5, "maximum": 2.5}, {"type": "integer", "multipleOf": 1},
    {"type": "string", "minLength": 3, "maxLength": 5}, {"type": "string", "maxLength": 0},
    {"type": "string", "minLength": 20, "maxLength": 20}, {"type": "string", "maxLength": 90},
    {"type": "string", "pattern": r"^(\+\d{1,3} )?\(?\d{3}\)?[- ]\d{4}$"},
    {"type": "string", "pattern": r"^[^\"\\a-z]{2,30}\"\\\t$"},
    {"type": "string", "pattern": r"^(?:[a-c]|x[^y]?|\w{1,9}\s){0,4}?z$"},
    {"type": "string", "pattern": r"^[\u00e0-\u00ff€]{1,4}\.$"},
    {"type": "string", "pattern": "^a{2,12}b{0,20}(c|de?){3}$", "minLength": 5, "maxLength": 38},
    *[{"type": "string", "format": f} for f in (
        "date", "time", "date-time", "duration", "uuid", "email", "hostname", "ipv4", "ipv6")],
    {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3},
    {"type": "array", "maxItems": 0}, {"type": "array", "items": False},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False,
     "minItems": 1},
    {"type": "array", "prefixItems": [{"const": "p"}], "items": {"type": "null"}, "minItems": 2,
     "maxItems": 4},
    {"type": "array", "items": {"type": "array", "items": {"enum": [1, 22, 333]}, "maxItems": 3},
     "minItems": 1, "maxItems": 3},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 4},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1,
     "maxProperties": 2},
    {"type": "object", "additionalProperties": False}, {"type": "object", "maxProperties": 0},
    {"type": "object", "required": ["whatever"], "properties": {"whatever": {"type": "null"}},
     "additionalProperties": {"type": "null"}},
    {"properties": {w: {"type": "boolean"} for w in WORDS}, "required": [WORDS[-1], WORDS[14]]},
    {"type": "object", "properties": {"x": {"type": "integer", "minimum": 1}},
     "allOf": [{"required": ["x"]}, {"properties": {"x": {"maximum": 3}, "y": {"type": "null"}}}]},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
     "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": False},
    {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 5}, {"type": "string", "maxLength": 3},
               {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    {"type": "string", "enum": ["re", "red", "redder", "green"], "nullable": False},
]


def number(r):
    a, b = sorted((r.choice([-1, 1]) * r.randrange(10 ** r.randrange(1, 6)) for _ in range(2)))
    out = {"type": "integer"}
    if r.random() < 0.4:
        out = {"type": "number"}
        a, b = a / 10 ** r.randrange(4), b / 10 ** r.randrange(4)
        a, b = min(a, b), max(a, b) + 1
    if r.random() < 0.8:
        out[r.choice(["minimum", "exclusiveMinimum"])] = a
    if r.random() < 0.8:
        out[r.choice(["maximum", "exclusiveMaximum"])] = b + 2
    return out


def string(r):
    kind = r.randrange(5)
    if kind == 0:
        return {"enum": r.sample(WORDS, r.randrange(1, 7))}
    if kind == 1:
        return {"type": "string", "format": r.choice(["date", "date-time", "uuid", "ipv4", "time"])}
    if kind == 2:
        atoms = ["[a-f]", r"\d", "[A-Z0-9_]", "x", "(foo|ba[rz]|é)", r"\.", "[^0-9]", " "]
        counts = ["", "?", "{2}", "{1,4}", "{0,15}", "{3,9}"]
        return {"type": "string", "pattern": "^" + "".join(
            r.choice(atoms) + r.choice(counts) for _ in range(r.randrange(1, 6))) + "$"}
    least = r.choice([0, 0, 1, 4])
    return {"type": "string", "minLength": least, "maxLength": least + r.randrange(12)}


def value(r, depth):
    kind = r.random()
    if depth <= 0 or kind < 0.25:
        return r.choice([number, string, string, lambda _: {"type": "boolean"},
                         lambda _: {"type": ["null", "boolean"]},
                         lambda _: {"const": r.choice(WORDS)}])(r)
    if kind < 0.65:
        names = r.sample(WORDS, r.randrange(1, 6))
        out = {"type": "object", "properties": {n: value(r, depth - 1) for n in names},
               "required": [n for n in names if r.random() < 0.6]}
        if r.random() < 0.7:
            out["additionalProperties"] = False
        return out
    if kind < 0.85:
        least = r.randrange(3)
        return {"type": "array", "items": value(r, depth - 1), "minItems": least,
                "maxItems": least + r.randrange(1, 3)}
    return {"anyOf": [value(r, depth - 1) for _ in range(r.randrange(1, 4))]}


def schemas(n=200, seed=1):
    """The first `n`: those by hand, then generated ones, each with an object or array on top."""
    r = random.Random(seed)
    out = list(BY_HAND[:n])
    while len(out) < n:
        made = value(r, r.randrange(1, 4))
        if made.get("type") in ("object", "array") or "anyOf" in made:
            out.append(made)
    return out


checker = jsonschema.Draft202012Validator.FORMAT_CHECKER


def check(schema, text):
    """None, or what is wrong with the answer."""
    import json
    try:
        made = json.loads(text)
    except ValueError as e:
        return f"does not parse: {e}: {text!r}"
    problems = jsonschema.Draft202012Validator(schema, format_checker=checker).iter_errors(made)
    first = next(problems, None)
    return None if first is None else f"{first.message}: {text!r}"


def matches(pattern, text):
    return re.fullmatch(pattern, text) is not None
