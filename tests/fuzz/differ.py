#!/usr/bin/env python3
"""Our readers against the references: expressions against Python's re, JSON against its json, templates against jinja2.

    differ.py --ours PROGRAM [--seconds N] [--seed N] [--found FOLDER]

PROGRAM is made of differ.c.  Cases are drawn by small grammars and by changes to what was drawn.  Where both can
read a thing they must agree; what one side alone refuses to read is told apart below, with its reason.  The last
line: how many comparisons, how many differences.  A difference ends with status 1, and lies in FOLDER.
Without jinja2 the templates are left out, and the last line says so."""
import argparse
import json
import pathlib
import random
import re
import subprocess
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
    import make_jinja_golden
except ImportError:
    jinja2 = None

UNSUPPORTED, LIMIT = "14", "6"  # of engine/base/err.h
BATCH = 400


def left_out(answer):
    """Refused for what it is, not for being wrong."""
    return answer[0] == "e" and answer.split(" ")[1] in (UNSUPPORTED, LIMIT)


def drawn(r, options):
    return r.choice(options)


# ------------------------------------------------------------------------------------------- expressions --
LETTERS = "ab_1.-"
CLASSES = [r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"]


def atom(r, depth):
    kind = r.random()
    if kind < 0.40:
        return drawn(r, "ab1_-")
    if kind < 0.48:
        return drawn(r, [".", r"\.", r"\-", r"\n", r"\t", r"\\", r"\*", r"\]"])
    if kind < 0.56:
        return drawn(r, CLASSES)
    if kind < 0.70:
        inside = "".join(drawn(r, ["a", "b", "1", "_", ".", "a-c", "0-9", "-", *CLASSES, r"\]", "^"]) for _ in range(r.randint(1, 3)))
        return "[" + drawn(r, ["", "", "^"]) + drawn(r, ["", "", "]"]) + inside + "]"
    if kind < 0.74:
        return drawn(r, ["^", "$", r"\b", r"\B"])
    if depth <= 0:
        return "b"
    return drawn(r, ["(", "(", "(?:", "(?P<n%d>" % r.randrange(1 << 30), "(?=", "(?!"]) + expression(r, depth - 1) + ")"


def repeated(r, depth):
    what = atom(r, depth)
    if r.random() < 0.7:
        return what
    return what + drawn(r, ["*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "{0}", "{", "{a}", "{2"]) + drawn(r, ["", "", "", "?"])


def expression(r, depth=2):
    return "|".join("".join(repeated(r, depth) for _ in range(r.randint(0, 4))) for _ in range(drawn(r, [1, 1, 1, 2, 3])))


def change(r, s, letters):
    s = list(s)
    for _ in range(r.randint(1, 2)):
        at = r.randrange(len(s) + 1)
        if r.random() < 0.5 and s:
            del s[at - 1]
        else:
            s.insert(at, drawn(r, letters))
    return "".join(s)


def text_for(r, pattern):
    """Some letters; or the expression's own, which come nearer to a match."""
    if r.random() < 0.5:
        return "".join(drawn(r, LETTERS + "c\n ") for _ in range(r.randint(0, 8)))
    return "".join(c for c in pattern if c in LETTERS + "c2 ")[:10]


def expressions(r, kind):
    for _ in range(BATCH):
        p = expression(r)
        if r.random() < 0.3:
            p = change(r, p, "ab1()[]{}|*+?^$.\\-,:<>P=!dwsbBDWS2")
        t = text_for(r, p)
        yield f"{kind} {p.encode().hex()} {t.encode().hex()}", (p, t)


def judge_expression(kind, case, answer):
    """None: they agree; else what is wrong."""
    pattern, text = case
    if left_out(answer) or "no character" in answer:  # [^\s\S]: a mistake, though Python takes it
        return None
    try:
        want = re.compile(pattern).fullmatch(text) is not None
    except (re.error, OverflowError, RecursionError) as e:
        # Names of groups are of no use to a yes or no, and are read as anything.  The grammar's expressions may be
        # JSON Schema's: JavaScript writes names otherwise, and has ranges that begin or end with a class.
        known = ["group name", "unterminated name", "redefinition"]
        known += ["unknown extension ?<", "bad character range"] if kind == "g" else []
        if answer[0] == "e" or any(w in str(e) for w in known):
            return None
        return f"taken, but for Python: {e}"
    if answer[0] == "e":
        return "refused, but taken by Python"
    if (answer == "y") != want and (text or "\\B" not in pattern):  # \B in no text: Python 3.14 changed its mind
        return f"answers {answer}, Python {want}"
    return None


# ------------------------------------------------------------------------------------------------- JSON --
def value(r, depth=3):
    kind = r.random()
    if depth and kind < 0.35:
        n = r.randint(0, 3)
        if kind < 0.2:
            return "{" + ",".join(string(r) + drawn(r, [":", " : "]) + value(r, depth - 1) for _ in range(n)) + "}"
        return "[" + drawn(r, [",", ", "]).join(value(r, depth - 1) for _ in range(n)) + drawn(r, ["]", "]", " ]"])
    if kind < 0.55:
        return drawn(r, ["true", "false", "null"])
    if kind < 0.8:
        return number(r)
    return string(r)


def number(r):
    return (drawn(r, ["", "", "-"]) + drawn(r, ["0", str(r.randrange(10 ** drawn(r, [1, 3, 17, 40])))]) +
            drawn(r, ["", "", "." + str(r.randrange(1000))]) + drawn(r, ["", "", drawn(r, ["e", "E"]) + drawn(r, ["", "+", "-"]) +
                                                                           str(r.randrange(drawn(r, [9, 400])))]))


def string(r):
    return '"' + "".join(drawn(r, ["a", "b", "", "é", "日", "😀", "\\n", "\\\"", "\\\\", "\\u0041", "\\u00e9", "\\ud83d\\ude00", "\\/"])
                         for _ in range(r.randint(0, 2))) + '"'


def jsons(r):
    for _ in range(BATCH):
        s = value(r)
        if r.random() < 0.4:
            s = change(r, s, '{}[]",:0123456789eE.+-truefalsn \n\t\\u\x00\x1f\x7f\ud800')
        data = s.encode("utf-8", "surrogatepass")
        if r.random() < 0.05 and data:
            at = r.randrange(len(data))
            data = data[:at] + bytes([r.randrange(256)]) + data[at + 1:]
        yield f"j {data.hex()}", data


def no_twins(pairs):
    names = [k for k, _ in pairs]
    if len(set(names)) != len(names):
        raise ValueError("twice")
    return dict(pairs)


def refuse(what):
    raise ValueError(what)


def finite(text):
    if not abs(float(text)) < float("inf"):
        raise ValueError("too large")
    return float(text)


def sound(v):
    """No lone surrogates, no NUL: we are stricter than RFC 8259 here."""
    if isinstance(v, str):
        v.encode("utf-8")
        if "\0" in v:
            raise ValueError("NUL")
    elif isinstance(v, list):
        for x in v:
            sound(x)
    elif isinstance(v, dict):
        for k, x in v.items():
            sound(k)
            sound(x)


def python_json(text):
    v = json.loads(text, object_pairs_hook=no_twins, parse_constant=refuse, parse_float=finite, parse_int=finite)
    sound(v)
    return v


def same(a, b):
    """cJSON prints what is within one unit of the last place."""
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 2.3e-16 * max(abs(a), abs(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a == b and type(a) is type(b)


def judge_json(_, data, answer):
    if left_out(answer):
        return None
    try:
        want = python_json(data.decode("utf-8"))
    except ValueError as e:
        return None if answer[0] == "e" else f"taken, but for Python: {e}"
    if answer[0] == "e":
        return "refused, but taken by Python"
    got = python_json(bytes.fromhex(answer[2:]).decode("utf-8"))
    return None if same(got, want) else f"read as {got}"


# -------------------------------------------------------------------------------------------- templates --
def environment():
    """As transformers' apply_chat_template sets Jinja up."""
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("as_it_is"), [], [], body).set_lineno(line)

        def as_it_is(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def templates(r):
    yield "v " + json.dumps(make_jinja_golden.VARS).encode().hex(), None
    for _ in range(BATCH // 4):
        text = make_jinja_golden.Maker(r.randrange(1 << 48)).body(3)
        # Not drawn: a variable of ours that is set below where an inner block reads it.  Jinja, which gives names
        # their places before it runs, has it undefined there; with us it has its value until it is set.
        hidden = set(re.findall(r"set (\w+)", text)) & set(make_jinja_golden.VARS)
        if len(text) < 1500 and not hidden:
            yield f"t {text.encode().hex()}", text


def judge_template(env, text, answer):
    want = make_jinja_golden.render(text, make_jinja_golden.VARS, env.from_string)
    # Whole numbers have 64 bits.
    if not make_jinja_golden.comparable(want) or left_out(answer) or "too large" in answer:
        return None
    got = None if answer[0] == "e" else bytes.fromhex(answer[2:]).decode("utf-8")
    return None if got == want else f"printed {got!r}, Jinja {want!r}"


# ------------------------------------------------------------------------------------------------- a run --
def compare(ours, cases, judge, context):
    """(how many, [difference])"""
    lines = list(cases)
    run = subprocess.run([ours], input="\n".join(x for x, _ in lines) + "\n", capture_output=True, text=True)
    answers = run.stdout.splitlines()
    asked = [(line, case) for line, case in lines if line[0] != "v"]
    if run.returncode != 0 or len(answers) != len(asked):
        at = asked[min(len(answers), len(asked) - 1)][0]
        return len(answers), [f"{at}: our program ended with {run.returncode}: {run.stderr[-2000:]}"]
    wrong = []
    for (line, case), answer in zip(asked, answers):
        why = judge(context, case, answer)
        if why:
            wrong.append(f"{line}\n  {case!r}: {why}")
    return len(asked), wrong


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ours", required=True)
    ap.add_argument("--seconds", type=float, default=2)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--found")
    a = ap.parse_args()
    warnings.simplefilter("ignore")
    r = random.Random(a.seed)
    kinds = [(lambda: expressions(r, "p"), judge_expression, "p"), (lambda: expressions(r, "g"), judge_expression, "g"),
             (lambda: jsons(r), judge_json, None)]
    if jinja2:
        kinds.append((lambda: templates(r), judge_template, environment()))
    end, total, wrong = time.monotonic() + a.seconds, 0, []
    while not wrong and (total == 0 or time.monotonic() < end):
        for make, judge, context in kinds:
            n, bad = compare(a.ours, make(), judge, context)
            total += n
            wrong += bad
    for w in wrong[:20]:
        print(w)
    if wrong and a.found:
        folder = pathlib.Path(a.found)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"seed-{a.seed}").write_text("\n".join(wrong) + "\n")
    print(f"differ {total} comparisons, {len(wrong)} differences" + ("" if jinja2 else " (no jinja2: templates were left out)"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
