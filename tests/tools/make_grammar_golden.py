"""Texts that a grammar must take and texts that it must refuse, judged by jsonschema, re and lark.

    python3 tests/tools/make_grammar_golden.py >tests/fixtures/grammar/cases.jsonl

"yes": instances made from the schema by a small generator of our own, in the schema's order, written as
JSON without spaces or with one after ',' and ':'.  "no": the same texts, damaged, where jsonschema (or
re.fullmatch, or Lark's own Earley parser) says that they do not fit.  A grammar in GBNF is judged by one
in Lark that says the same.  Needs jsonschema and lark (1.3.1)."""
import json
import pathlib
import random
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import lark  # noqa: E402
import schemas  # noqa: E402

r = random.Random(7)
REGEXES = [r"[0-9]{3}-(foo|bar)+x?", r"^a.{2,40}z$", r"(?:\d{1,3}\.){3}\d{1,3}", r"[^a-z\s]{1,9}!",
           r"\w+@\w+\.(com|org)", r"(yes|no|maybe)( really){0,12}", r"é{2,}|日本?", r"\$\{[A-Z_]{1,64}\}"]
# (in Lark, in GBNF, texts)
GRAMMARS = [
    (r"""start: sum
sum: product | sum "+" product | sum "-" product   // begins with itself
product: atom | product "*" atom | product "/" atom
?atom: NUMBER -> number
     | "-" atom -> neg
     | "(" sum ")"
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE""",
     r"""# sums
root ::= ws sum
sum ::= product | sum ("+" | "-") ws product
product ::= atom | product [*/] ws atom
atom ::= number ws | "-" ws atom | "(" ws sum ")" ws
number ::= ([0-9]+ ("." [0-9]*)? | "." [0-9]+) ([eE] [-+]? [0-9]+)?
ws ::= [ \t]*""",
     ["1+2*3", " 4 - -5", "(1+2)*3/4", "((7))", "1.5e3-.5", "2*(3+(4-5))*6", "1+2+3+4+5+6+7+8+9", "1.+2"]),
    (r"""start: value
value: object | array | STRING | NUMBER | "true" | "false" | "null"
object: "{" [pair ("," pair)*] "}"
pair: STRING ":" value
array: "[" [value ("," value)*] "]"
STRING: "\"" (/[^"\\\x00-\x1f]/ | "\\" /["\\\/bfnrt]/)* "\""
NUMBER: "-"? ("0" | /[1-9]/ /[0-9]/*) ("." /[0-9]/+)?
WS: " " | "\n"
%ignore WS""",
     r"""root   ::= ws value
value  ::= object | array | string ws | number ws | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ws ":" ws value
    ("," ws string ws ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x00-\x1F] | "\\" ["\\/bfnrt] )* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
ws     ::= [ \n]*""",
     ['{"a": [1, 2.5, -0], "b": {"c": null}}', "[]", "{}", '"é日\\n"', "[[[1],[2]],[]]", ' [true , false]\n', '{"x":"\\""}']),
    (r"""start: statement+
statement: "let" NAME "=" NAME ";" | "if" NAME "then" statement ["else" statement]
NAME: ("a".."c")+
WS: /[ \n]+/
%ignore WS""",
     r"""root ::= ws statement+
statement ::= "let" ws name "=" ws name ";" ws | "if" ws name "then" ws statement ("else" ws statement)?
name ::= [a-c]+ ws
ws ::= [ \n]*""",
     ["let a = b;", "if a then let b=c; else let c=a;", "if a then if b then let a=a;", "letab=c;leta=b;", "let abc = cab;\n let b = b;"]),
    (r"""start: move ("\n" move)* "\n"?
move: /[1-9][0-9]?/ ". " san " " san
san: PIECE? ("a".."h")~1..2 "1".."8" ("+" | "#")? | "O-O" "-O"~0..1
PIECE: "N" | "B"i | "Q" """,
     r"""root ::= move ("\n" move)* "\n"?
move ::= [1-9] [0-9]? ". " san " " san
san ::= [NBbQ]? [a-h]{1,2} [1-8] [+#]? | "O-O" "-O"{0,1}""",
     ["1. e4 e5", "1. e4 e5\n2. Nf3 Nc6\n", "12. bbc4 Qhd8#", "3. O-O O-O-O", "9. be3+ Bc5"]),
    (r"""start: item+
item: "- " /[^\r\n]/~1..40 "\n" """,
     r"""root ::= item+
item ::= "- " [^\r\n]{1,40} "\n" """,
     ["- one\n", "- é日本 x\n- two\n", "- " + "y" * 40 + "\n", "-  \n"]),
    (r"""start: a
a: b "x" | "s"
b: a "y" | c
c: a "z" | "t" """,
     r"""root ::= a
a ::= b "x" | "s"
b ::= a "y" | c
c ::= a "z" | "t" """,
     ["s", "syx", "szx", "tx", "txyx", "szxyxzx", "txzxyx"]),
    (r"""start: "begin"i body "end"i
body: (("(" body ")")+ | ["," start]) """,
     r"""root ::= [Bb][Ee][Gg][Ii][Nn] body [Ee][Nn][Dd]
body ::= (("(" body ")")+ | ("," root)?) """,
     ["beginend", "BEGIN()()End", "begin(())end", "begin,BeginENDend", "begin((,beginend)())end"]),
    (r"""start: /[ぁ-ゟァ-ヿ]/+ "。" | "\u00e9\x41\t" "\U0001F600"~2""",
     r"""root ::= [ぁ-ゟァ-ヿ]+ "。" | "\u00e9\x41\t" "\U0001F600"{2}""",
     ["ひらがな。", "カタカナ。", "éA\t😀😀"]),
    (r"""start: "SELECT"i cols "FROM"i CNAME [where]
cols: "*" | CNAME ("," CNAME)*
where: "WHERE"i cond (("AND"i | "OR"i) cond)*
cond: CNAME ("=" | "<" | ">") (SIGNED_INT | "'" /[a-z]/* "'")
%import common (CNAME, SIGNED_INT)
%import common.WS -> BLANK
%ignore BLANK
%ignore /--[^\n]*\n/""", None,
     ["select * from t", "SELECT a, b FROM t WHERE a = 1 AND b > -2", "select a from t where a='x'", "select a -- c\n from t"]),
]
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
    print(json.dumps({**spec, "yes": yes, "no": no[:24]}, ensure_ascii=False, separators=(",", ":")))


def texts_of(pattern):
    known = {0: ["123-foox", "000-barfoobar", "999-bar"], 1: ["abcz", "a" + "é" * 40 + "z", "azzz"],
             2: ["1.2.3.4", "255.255.255.255"], 3: ["A1-!", "日本!"], 4: ["a_1@b.com", "x@y.org"],
             5: ["yes", "maybe really really", "no" + " really" * 12], 6: ["éé", "ééé", "日", "日本"],
             7: ["${A}", "${" + "A_" * 32 + "}"]}
    return known[REGEXES.index(pattern)]


def earley(text):
    parser = lark.Lark(text, parser="earley", lexer="dynamic_complete", ambiguity="forest")

    def fits(t):
        try:
            parser.parse(t)
            return True
        except lark.exceptions.UnexpectedInput:
            return False
    return fits


def drawn_grammar():
    """Rules that may begin with themselves and with each other, and none that may be empty: ambiguous, but not beyond
    what is kept of a text's readings."""
    names = ["start", "p"]

    def item(first, depth):
        kind = r.random()
        often = "" if first else r.choice(["", "", "?", "*", "~0..2"])
        if kind < 0.4:
            return r.choice(['"a"', '"b"', '"ab"', "/[ab]c/", "C"]) + often
        if kind < 0.75 or depth == 0:
            return r.choice(names)
        return "(" + " | ".join(sequence(depth - 1) for _ in range(r.randrange(1, 3))) + ")"

    def sequence(depth=1):
        return " ".join(item(i == 0, depth) for i in range(r.randrange(1, 4 if depth else 3)))
    lines = [f"{n}: " + " | ".join(sequence() for _ in range(r.randrange(2, 4))) for n in names]
    return "\n".join([*lines, 'C: "c" | "d"+ "c"'])


def drawn_grammars(n):
    while n:
        text = drawn_grammar()
        try:
            fits = earley(text)
        except lark.exceptions.LarkError:  # a rule has one expansion twice
            continue
        good = [t for t in sorted({"".join(r.choice("abcd") for _ in range(k % 6 + 1)) for k in range(120)}) if fits(t)]
        if len(good) >= 4:
            case({"grammar": text}, good, fits)
            n -= 1


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
    for text, gbnf, good in GRAMMARS:
        fits = earley(text)
        assert all(fits(t) for t in good), (text, [t for t in good if not fits(t)])
        for each in [text] + [gbnf] * (gbnf is not None):
            case({"grammar": each}, good, fits)
    drawn_grammars(30)


main()
