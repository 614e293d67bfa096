"""Texts that a grammar must take and texts that it must refuse, judged by jsonschema and re.

    python3 tests/tools/make_grammar_golden.py >tests/fixtures/grammar/cases.jsonl

"yes": instances made from the schema by a small generator of our own, in the schema's order, written as
JSON without spaces or with one after ',' and ':'.  "no": the same texts, damaged, where jsonschema (or
re.fullmatch) says that they do not fit.  Needs jsonschema."""
import json
import pathlib
import random
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import schemas  # noqa: E402

r = random.Random(7)
REGEXES = [r"[0-9]{3}-(foo|bar)+x?", r"^a.{2,40}z$", r"(?:\d{1,3}\.){3}\d{1,3}", r"[^a-z\s]{1,9}!",
           r"\w+@\w+\.(com|org)", r"(yes|no|maybe)( really){0,12}", r"é{2,}|日本?", r"\$\{[A-Z_]{1,64}\}"]
CHOICES = [["yes", "no", "maybe", "may"], ["a b", "a", "日本", "naïve"], ["x"]]


def target(schema, ref):
    at = schema
    for part in ref.removeprefix("#").strip("/").split("/"):
        at = at[part] if part else at
    return at


def instance(root, s, depth=0):
    """One value that fits, or KeyError where this generator does not know how."""
    if s is True or s == {}:
        return r.choice([1, "x", None, [], {}])
    if "$ref" in s:
        return instance(root, target(root, s["$ref"]), depth + 1)
    for word in ("anyOf", "oneOf"):
        if word in s and set(s) == {word}:
            options = list(s[word])
            flat = [o for o in options if "$ref" not in o] or options
            return instance(root, r.choice(flat if depth > 6 else options), depth + 1)
    if "allOf" in s or "anyOf" in s or "pattern" in s or "format" in s:
        raise KeyError("not here")
    if "const" in s:
        return s["const"]
    if "enum" in s:
        return r.choice(s["enum"])
    kind = s.get("type", "object" if "properties" in s else None)
    if isinstance(kind, list):
        kind = r.choice(kind)
    if kind == "object":
        out = {}
        for name, sub in s.get("properties", {}).items():
            if name in s.get("required", []) or (depth < 5 and r.random() < 0.5):
                out[name] = instance(root, sub, depth + 1)
        more = s.get("additionalProperties")
        if isinstance(more, dict) and (s.get("minProperties") or r.random() < 0.5):
            out["zz"] = instance(root, more, depth + 1)
        return out
    if kind == "array":
        first = s.get("prefixItems", [])
        least, most = s.get("minItems", 0), s.get("maxItems", 3)
        if s.get("items") is False:
            least, most = min(least, len(first)), len(first)
        n = least if depth > 6 else r.randrange(least, most + 1)
        return [instance(root, first[i] if i < len(first) else s.get("items", True), depth + 1)
                for i in range(n)]
    if kind == "string":
        least = s.get("minLength", 0)
        n = r.randrange(least, s.get("maxLength", least + 9) + 1)
        return "".join(r.choice("ab\"\\é日 😀\n/") for _ in range(n))
    if kind in ("integer", "number"):
        lo = s.get("minimum", s.get("exclusiveMinimum", -10 ** 6))
        hi = s.get("maximum", s.get("exclusiveMaximum", 10 ** 6))
        if kind == "integer":
            return r.randint(int(lo), int(hi))
        return r.choice([round(r.uniform(lo, hi), r.randrange(9)), lo, hi])
    return {"boolean": r.random() < 0.5, "null": None}[kind]


def written(value, compact):
    spaced = r.random() < 0.5 and not compact
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": ") if spaced else (",", ":"))


def damaged(text):
    i = r.randrange(len(text) + 1)
    c = r.choice('{}[]",:0123456789-.eE ax\\tnu日')
    return r.choice([text[:i] + c + text[i:], text[:i] + text[i + 1:], text[:i] + c + text[i + 1:],
                     text[:i], text + c])


def case(spec, good, fits):
    yes = sorted(set(t for t in good if fits(t)))[:12]
    no = sorted(set(d for t in yes for d in (damaged(t) for _ in range(12)) if not fits(d)))
    r.shuffle(no)
    print(json.dumps({**spec, "yes": yes, "no": no[:24]}, ensure_ascii=False))


def texts_of(pattern):
    known = {0: ["123-foox", "000-barfoobar", "999-bar"], 1: ["abcz", "a" + "é" * 40 + "z", "azzz"],
             2: ["1.2.3.4", "255.255.255.255"], 3: ["A1-!", "日本!"], 4: ["a_1@b.com", "x@y.org"],
             5: ["yes", "maybe really really", "no" + " really" * 12], 6: ["éé", "ééé", "日", "日本"],
             7: ["${A}", "${" + "A_" * 32 + "}"]}
    return known[REGEXES.index(pattern)]


def main():
    for schema in schemas.schemas(90, seed=5):
        good = []
        for _ in range(40):
            try:
                good.append(written(instance(schema, schema), "enum" in schema))
            except KeyError:
                break
        if good:
            case({"schema": schema}, good, lambda t: schemas.check(schema, t) is None)
    for pattern in REGEXES:
        case({"regex": pattern}, texts_of(pattern), lambda t: re.fullmatch(pattern, t) is not None)
    for choice in CHOICES:
        case({"choice": choice}, choice, lambda t: t in choice)


main()
