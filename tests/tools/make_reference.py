#!/usr/bin/env python3
"""Makes docs/reference/ and the marked tables of docs/design/ from the tables that the code has.

    make_reference.py BUILD           BUILD: the folder with lorad, loractl and loratop
    make_reference.py --check BUILD   writes nothing, fails where a page is not current (ctest lint.reference)

configuration.md is lorad's --print-conf, cli.md the man pages of the programs, api.md conf/openapi.json with the scopes of
gateway/route.c and the fields of gateway/openai/openai.c, metrics.md the families of gateway/watch/metrics*.c (which
tests/e2e/watch/test_metrics.py holds to a real answer), errors.md the codes that
gateway/ sends with the words of reference_errors.py, models.md the families of engine/model/family.c with what the goldens adapt, limits.md and the tuning constants the values in the sources.
"""
import ast
import difflib
import json
import pathlib
import re
import subprocess
import sys

import reference_errors
import reference_models
import reference_words as words
import sampling_list

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEAD = "<!-- Made by tests/tools/make_reference.py; edit its sources, not this page. -->\n"


def read(path):
    return (ROOT / path).read_text()


def code(text):
    """As code within a table's cell."""
    return "`" + text.replace("|", "\\|") + "`"


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(str(c) for c in line) + " |\n" for line in lines)


# --------------------------------------------------------------------------------------------------- C sources

def strip_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def arguments(text, at):
    """The arguments of the call whose '(' stands at `at`, and where it ends."""
    out, depth, start, i = [], 0, at + 1, at
    while True:
        c = text[i]
        if c == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                out.append(text[start:i].strip())
                return out, i
        elif c == "," and depth == 1:
            out.append(text[start:i].strip())
            start = i + 1
        i += 1


def string(expression):
    """The value of string literals side by side; None: it is something else."""
    rest = re.sub(r'"(?:[^"\\]|\\.)*"', "", expression)
    if rest.strip() or not expression:
        return None
    return "".join(json.loads(s) for s in re.findall(r'"(?:[^"\\]|\\.)*"', expression))


def table_in(place, name):
    """The members of the table `name`, in a C file or in one of a folder's."""
    p = ROOT / place
    for f in sorted(p.rglob("*.c")) if p.is_dir() else [p]:
        text = sampling_list.expand(strip_comments(f.read_text()))
        at = re.search(r"\b" + name + r"\[[^\]]*\]\s*=\s*\{", text)
        if at:
            return [m for m in arguments(text, at.end() - 1)[0] if m]
    raise SystemExit(f"make_reference.py: {place} has no table {name}")


def initializers(place, name):
    """Its rows {...}, each a list of their members as text."""
    return [arguments(m, 0)[0] for m in table_in(place, name) if m.startswith("{")]


VALUE = r"(?<![\w.]){}\s*=\s*([^,;{{}}=]+?)\s*(?=[,;}}])"


def constant(places, name, text_of={}):
    """(value, [files]) of the constant in these files or folders; its expression may name others there."""
    files = []
    for place in places.split():
        p = ROOT / place
        files += sorted(f for f in p.rglob("*.[ch]")) if p.is_dir() else [p]
    found = {}
    for f in files:
        if f not in text_of:
            text_of[f] = strip_comments(f.read_text())
        for m in re.finditer(VALUE.format(re.escape(name)), text_of[f]):
            expression = m.group(1)
            if not re.fullmatch(r"[\w\s.+*/()<-]+", expression):
                continue
            for other in set(re.findall(r"\b[A-Z][A-Z_0-9]{2,}\b", expression)) - {"INT64_C"}:
                expression = re.sub(rf"\b{other}\b", str(constant(places, other)[0]), expression)
            found[f.relative_to(ROOT).as_posix()] = value_of(expression)
    if not found or len(set(found.values())) > 1:
        raise SystemExit(f"make_reference.py: {name} in {places}: {found or 'not there'}")
    return next(iter(found.values())), sorted(found)


def first_constant(places, names):
    """(name, value, files) of the first of these names that is there."""
    for name in names.split()[:-1]:
        try:
            return (name, *constant(places, name))
        except SystemExit:
            pass
    name = names.split()[-1]
    return (name, *constant(places, name))


def value_of(expression):
    expression = re.sub(r"INT64_C\((\d+)\)", r"\1", expression)
    expression = re.sub(r"(?<=\d)(?:ull|ll|u|l)\b", "", expression, flags=re.I)
    return eval(compile(ast.parse(expression.strip(), mode="eval"), "constant", "eval"), {"__builtins__": {}})


def shown(value, unit):
    if unit == "bytes" and value >= 4096:
        for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value % size == 0:
                return f"{value // size} {name}"
    if unit == "us":
        return f"{value / 1e6:g} s" if value >= 1e6 else f"{value / 1e3:g} ms"
    unit = unit.rstrip("s") if value == 1 else unit
    text = f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return f"{text} {unit}".strip()


# -------------------------------------------------------------------------------------------------------- pages

def configuration(build):
    text = run(build, "lorad", "--print-conf")
    out = [HEAD, "# Configuration\n\n", words.CONFIGURATION, "\n"]
    note = []
    for line in text.splitlines():
        if line.startswith("#"):
            note.append(line[1:].strip())
        elif line.startswith("["):
            section = line.strip("[]")
            out.append(f"## {line}\n\n")
            note = []
        elif "=" in line:
            key, value = (s.strip() for s in line.split("=", 1))
            out.append(f"**`{section}.{key}`** = " + (f"`{value}`" if value else "(empty)") + "\n\n" + "".join(n + "\n" for n in note) + ("\n" if note else ""))
            note = []
        elif not line:
            note = []
    return "".join(out).rstrip() + "\n"


TROFF = [(r"\(aq", "'"), (r"\-", "-"), (r"\&", ""), (r"\e", "\\"), (r"\(ga", "`"), (r"\(ha", "^"), (r"\(ti", "~"), (r"\(dq", '"')]


def plain(text):
    for a, b in TROFF:
        text = text.replace(a, b)
    return re.sub(r"\\f[BIRP]", "", text)


def quoted(text, between):
    """A macro's arguments, as man(7) joins them: .BR without spaces, the others with one."""
    return between.join(a or b for a, b in re.findall(r'"([^"]*)"|(\S+)', text)).strip()


def man(build, program, *page):
    """A man page of ours as markdown, below a heading of its own."""
    out, term, example = [], False, False
    for line in run(build, program, *page).splitlines():
        macro, _, rest = line.partition(" ")
        if macro == ".SH":
            if example:
                out.append("```\n")
            example = False
            title = plain(quoted(rest, " "))
            title = title if title.startswith("[") else title.capitalize()
            out.append(f"\n### {title}\n\n")
        elif macro == ".SS":
            out.append(f"\n#### `{plain(quoted(rest, ' '))}`\n\n")
        elif macro == ".nf":
            out.append("```sh\n")
            example = True
        elif macro == ".fi":
            out.append("```\n")
            example = False
        elif macro == ".TP":
            term = True
        elif macro in (".TH", ".PP", ".br"):
            out.append("\n" if macro == ".PP" else "")
        elif example:
            out.append(plain(line) + "\n")
        else:
            text = plain(quoted(rest, "" if macro == ".BR" else " ") if macro in (".BR", ".B", ".I") else line)
            if term:
                out.append(f"- `{text}`: ")
            elif macro in (".BR", ".B", ".I"):
                out.append(f"`{text}`\n")
            else:
                out.append(text + "\n")
            term = False
    text = re.sub(r"\n### Name\n\n.*?\n### Synopsis\n\n.*?(?=\n### )", "", "".join(out), flags=re.S)
    text = re.sub(r"\n### See also\n.*", "", text, flags=re.S)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"\n(#+ )", r"\n\n\1", text)).lstrip("\n")


def cli(build):
    keys = [string(m) for m in table_in("tui/top/view_draw.c", "help")]
    return "".join([
        HEAD, "# The programs\n\n", words.CLI, "\n## lorad\n\n", man(build, "lorad", "--print-man", "1"),
        "\n## loractl\n\n", man(build, "loractl", "--print-man"), "\n## loratop\n\n", man(build, "loratop", "--print-man"),
        "\n### Keys\n\n```\n", *(k + "\n" for k in keys), "```\n"])


def labels_of(args):
    """Names of labels: every other argument from the first string on, up to NULL."""
    out = []
    while args and args[0] != "NULL":
        if args[0] == "LABELS":
            out += ["engine", "model_name"]
            args = args[1:]
            continue
        name = string(args[0])
        if name is not None:
            out.append(name)
        args = args[2:]
    return out


def families(path):
    """{name: [type, help, {labels}]} of one file, in its order."""
    out, text, tabled = {}, strip_comments(read(path)), []
    calls = re.compile(r"\b(prom_gauge|prom_counter|prom_family|prom_sample|prom_count|prom_histogram|gauge|counter)\(&?p, |"
                       r"(\} list\[\] = )")
    last = []
    for m in calls.finditer(text):
        if m.group(2):
            rows = [arguments(r, 0)[0] for r in arguments(text, m.end())[0] if r.startswith("{")]
            tabled = [(string(r[0]), string(r[1])) for r in rows]
            continue
        fn, args = m.group(1), arguments(text, m.end(1))[0][1:]
        if fn in ("gauge", "counter"):  # of metrics_vllm.c: v first
            last = [string(args[1])]
            out[last[0]] = [fn, string(args[2]), ["engine", "model_name"]]
        elif fn in ("prom_gauge", "prom_counter"):
            last = [string(args[0])]
            out[last[0]] = [fn[5:], string(args[1]), []]
        elif fn == "prom_family" and string(args[0]) is not None:
            last = [string(args[0])]
            out[last[0]] = [string(args[1]), string(args[2]), []]
        elif fn == "prom_family" and args[0] == "list[k].name":
            last = [n for n, _ in tabled]
            out.update({n: [string(args[1]), h, []] for n, h in tabled})
        elif fn in ("prom_sample", "prom_count", "prom_histogram"):
            more = labels_of(args[2 if fn == "prom_histogram" else 1:])
            for name in last:
                out[name][2] += [w for w in more if w not in out[name][2]]
    out.pop(None, None)
    return out


def metrics():
    conf = read("conf/lorad.conf")
    classes = re.findall(r"^\[class\.(\w+)\]", conf, flags=re.M)
    default = {k: re.search(rf"^{k} = (\d+)$", conf, flags=re.M).group(1) for k in ("max_tenants", "max_adapters")}
    named = ", ".join(map(code, classes[:-1])) + " or " + code(classes[-1])
    out = [HEAD, "# Metrics\n\n", words.METRICS.format(classes=named, most_classes=constant("engine/sched/sched.h", "SLO_CLASS_MAX")[0], **default)]
    for title, path, note in (("lorad's own", "gateway/watch/metrics.c", words.METRICS_OWN),
                              ("Under vLLM's names", "gateway/watch/metrics_vllm.c", words.METRICS_VLLM)):
        rows = [[code(n), t, ", ".join(map(code, labels)) or "-", h] for n, (t, h, labels) in families(path).items()]
        out += [f"\n## {title}\n\n", note, "\n", table(["name", "type", "labels", "meaning"], rows)]
    return "".join(out)


def limits():
    out = [HEAD, "# Limits\n\n", words.LIMITS]
    for title, rows in words.LIMIT_TABLES:
        lines = []
        for places, name, unit, text in rows:
            value, files = constant(places, name)
            lines.append([text, shown(value, unit), f"`{name}`, {code(files[0])}"])
        out += [f"\n## {title}\n\n", table(["what", "limit", "constant"], lines)]
    return "".join(out)


def seen():
    """({figure: as it is}, {constant: what its half and its double do}) of tests/sim/constants.txt."""
    figures, said = {}, {}
    for line in read("tests/sim/constants.txt").splitlines():
        name, _, text = line.partition(": ")
        if name == "as it is":
            figures = dict(re.findall(r"([\w-]+) ([\d.e-]+) \(", text))
        elif text:
            constant_of, _, factor = name.partition(" x ")
            said.setdefault(constant_of, []).append(({"0.5": "half", "2": "double"}[factor], text))
    return figures, {k: v[0][1] if len(v) == 2 and v[0][1] == v[1][1] else ". ".join(f"{f.capitalize()}: {t}" for f, t in v)
                     for k, v in said.items()}


def tuning():
    """The block of docs/design/scheduling.md."""
    figures, said = seen()
    out = ["\n", table(["figure", "what it is", "as it is"], [[f"`{n}`", t, figures[n]] for n, t in words.SEEN.items()])]
    for title, rows in words.TUNING_TABLES:
        lines = []
        for places, names, unit, why in rows:
            name, value, files = first_constant(places, names)
            lines.append([f"`{name}`", shown(value, unit), ", ".join(f"`{pathlib.PurePath(f).name}`" for f in files), why,
                          said.get(name, "not measured")])
        out += [f"\n### {title}\n\n", table(["constant", "value", "where", "why", "what shows it"], lines)]
    return "".join(out)


# ---------------------------------------------------------------------------------------------------------- API

def range_of(s):
    """A schema in a few words."""
    if not s:
        return "anything"
    if "anyOf" in s:
        return " or ".join(dict.fromkeys(range_of(x) for x in s["anyOf"] if x.get("type") != "null"))
    if "const" in s:
        return code(json.dumps(s["const"]))
    if "enum" in s:
        return ", ".join(code(json.dumps(e)) for e in s["enum"] if e is not None)
    if "$ref" in s:
        return "`" + s["$ref"].rsplit("/", 1)[1] + "`"
    kinds = s["type"] if isinstance(s.get("type"), list) else [s.get("type")]
    kind = next((k for k in kinds if k != "null"), "anything")
    bound = []
    if "exclusiveMinimum" in s:
        bound.append(f"above {s['exclusiveMinimum']:g}")
    lo, hi = s.get("minimum"), s.get("maximum")
    if lo is not None and hi is not None and hi < 2**40:
        bound.append(f"{lo} to {hi}")
    elif lo is not None:
        bound.append(f"{lo} or more")
    elif hi is not None:
        bound.append(f"at most {hi}")
    if kind == "array":
        most = f", at most {s['maxItems']}" if "maxItems" in s else ""
        return f"list of {range_of(s.get('items'))}{most}"
    if "maxLength" in s:
        bound.append(f"at most {s['maxLength']} bytes")
    if "maxProperties" in s:
        bound.append(f"at most {s['maxProperties']} members")
    if "pattern" in s and kind == "string":
        bound.append(code(s["pattern"]))
    if kind == "object" and s.get("properties"):
        bound.append("with " + ", ".join(code(n) for n in s["properties"]))
    return " ".join([kind, *bound])


def scopes():
    """{"METHOD /path": [scope]} of route.c, with {} for each parameter."""
    names = {}
    for row in initializers("storage", "scopes"):
        names[row[0]] = string(row[1])
    groups = dict(re.findall(r"\b(INFER|READ|WRITE|ADMIN|LOOK) = ([^,]+),", strip_comments(read("gateway/route.c"))))
    out = {}
    for t in ("routes_inference", "routes_admin", "routes_metrics"):
        for method, path, scope, _ in initializers("gateway/route.c", t):
            if string(method) is None:
                continue
            parts = [p.strip() for g in scope.split("|") for p in groups.get(g.strip(), "").split("|")]
            out[f"{string(method)} {string(path).replace('{*}', '{}')}"] = [names[p] for p in parts if p]
    return out


def calls(doc, allowed, plane):
    rows = []
    for path, methods in doc["paths"].items():
        if path.startswith("/admin/") != (plane == "admin"):
            continue
        for method, what in methods.items():
            if method == "servers":
                continue
            key = f"{method.upper()} {re.sub(r'{[^}]*}', '{}', path)}"
            good = sorted(s for s in what["responses"] if s < "300")
            content = what["responses"][good[0]]["content"]
            gives = content["application/json"]["schema"]["$ref"].rsplit("/", 1)[1] if "application/json" in content else "bytes"
            rows.append([code(f"{method.upper()} {path}"), what["summary"], " or ".join(allowed[key]), ", ".join(good), code(gives)])
    return table(["call", "what it does", "scope", "status", "answer"], rows)


def parameters(doc):
    rows = []
    for path, methods in doc["paths"].items():
        for method, what in methods.items():
            if method == "servers":
                continue
            of = {"query": [], "header": []}
            for p in what.get("parameters", ()):
                if p["in"] != "path":
                    of[p["in"]].append(f"{code(p['name'])}: {range_of(p['schema'])}")
            if any(of.values()):
                rows.append([code(f"{method.upper()} {path}"), "; ".join(of["query"]), "; ".join(of["header"])])
    return table(["call", "in the query", "in the head"], rows)


def bodies(doc):
    out = []
    for path, methods in doc["paths"].items():
        for method, what in methods.items():
            body = what.get("requestBody", {}).get("content", {}).get("application/json") if method != "servers" else None
            if not body or path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
                continue
            s = body["schema"]
            if "properties" not in s:
                out += [f"\n#### `{method.upper()} {path}`\n\n", words.API_FREE[path]]
                continue
            must = s.get("required", ())
            out += [f"\n#### `{method.upper()} {path}`\n\n", table(["member", "value", ""], [
                [code(n), range_of(p), "required" if n in must else ""] for n, p in s["properties"].items()])]
    return "".join(out)


def fields(doc):
    where = {"CHAT": "chat", "TEXT": "completions", "BOTH": "both", "TOKENIZE": "tokenize"}
    schema = {p: doc["paths"][f"/v1/{p}"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
              for p in ("chat/completions", "completions")}
    rows = {"TAKEN": [], "IGNORED": [], "REFUSED": []}
    for name, place, fate in initializers("gateway/openai", "fields"):
        name = string(name)
        chat, text = schema["chat/completions"].get(name), schema["completions"].get(name)
        said = range_of(chat if chat is not None else text) if chat is not None or text is not None else words.FIELDS.get(name, "")
        if chat is not None and text is not None and chat != text:
            said = f"chat: {range_of(chat)}; completions: {range_of(text)}"
        rows[fate].append([code(name), where[place], said])
    names = {k: ", ".join(n if of == "both" else f"{n} ({of})" for n, of, _ in rows[k]) for k in ("IGNORED", "REFUSED")}
    return (table(["field", "of", "value"], rows["TAKEN"]) +
            f"\nTaken without effect, and named in the answer's `x-ignored-params`: {names['IGNORED']}.\n"
            f"\nRefused with a 400 that names them: {names['REFUSED']}.\n")


# Functions that send an error: where in their arguments the status and the code are.  A text: the statuses themselves.
SENDERS = {"exchange_error": (1, 3), "openai_refuse": (1, 2), "reply_error": (1, 3)}
OWN_SENDERS = {"auth.c": {"deny": ("401", 1)}, "listener.c": {"answer_busy": ("503", 1)}, "batches_api.c": {"refuse": ("400", 1)},
               "responses_input.c": {"get_row": ("404 409", 3)}, "exchange.c": {}, "openai.c": {}}
PASSED_ON = {"p.code", "p->code", "why.code", "h->code", "http_code(status)"}
CODE = r'"([a-z]+(?:_[a-z]+)*)"'


def codes_of_file(f, found):
    """Adds the codes that a C file sends: {code: {status}}."""
    text, own = strip_comments(f.read_text()), OWN_SENDERS.get(f.name, {})
    senders = {**SENDERS, **own}
    for m in re.finditer(r"\b(" + "|".join(senders) + r")\(", text):
        status_at, code_at = senders[m.group(1)]
        args = arguments(text, m.end() - 1)[0]
        if len(args) <= code_at or "char *" in args[code_at]:  # a definition, or another function of that name
            continue
        status = status_at if isinstance(status_at, str) else args[status_at]
        names = re.findall(CODE, args[code_at])
        if not names and args[code_at] not in PASSED_ON and not (args[code_at] == "code" and f.name in OWN_SENDERS):
            raise SystemExit(f"make_reference.py: {f.name}: which codes does '{args[code_at]}' have? (OWN_SENDERS)")
        for name in names:
            found.setdefault(name, set()).update(re.findall(r"\b[2-5]\d\d\b", status))


def error_codes():
    """{code: {status}} of every error that a client may get."""
    found = {}
    for name, h in initializers("gateway/http/http_status.c", "table"):
        status, _, what = arguments(h, 0)[0]
        found.setdefault(string(what), set()).add(status)
    text = strip_comments(read("gateway/http/http_status.c")).partition("http_code(int status)")[2]
    for status, name in re.findall(r"(?:case (\d+)|default): return " + CODE, text):
        found.setdefault(name, set()).add(status or "400")
    for f in sorted((ROOT / "gateway").rglob("*.c")):
        codes_of_file(f, found)
        if f.name.startswith("limits"):
            for status, rest in re.findall(r"\bstatus = (\d{3})([^}]*?code = [^;}]*?)[;}]", strip_comments(f.read_text())):
                for name in re.findall(CODE, rest.partition("code = ")[2].split(", .")[0]):
                    found.setdefault(name, set()).add(status)
    return found


def held(what, found, said):
    """Fails where the codes of the sources and those of reference_errors.py differ."""
    lacking, gone = sorted(found - set(said)), sorted(set(said) - found)
    if lacking or gone:
        raise SystemExit(f"make_reference.py: reference_errors.{what}: without words: {lacking}; sent by nothing: {gone}")


def errors_page():
    found = error_codes()
    held("CODES", set(found), reference_errors.CODES)
    lines = strip_comments(read("gateway/batches/lines.c"))
    skipped = strip_comments(read("gateway/batches/batch_job.c"))
    held("BATCH", set(re.findall(r"\brefuse\(c, \w+, " + CODE, lines)) | set(re.findall(r"\*code = " + CODE, skipped)), reference_errors.BATCH)
    later = strip_comments(read("gateway/doors/background.c"))
    named = re.search(r"\*code = ([^;]*);", later).group(1)
    held("BACKGROUND", set(re.findall(CODE, named)) | set(re.findall(r'"failed",\s*' + CODE, later)), reference_errors.BACKGROUND)
    rows = [[", ".join(sorted(found[c])), code(c), *said] for c, said in reference_errors.CODES.items()]
    return "".join([
        HEAD, "# Errors\n\n", reference_errors.HEAD, "\n## All codes\n\n",
        table(["status", "code", "cause", "what to do", "send again"], sorted(rows, key=lambda r: (r[0], r[1]))),
        "\n## Batches\n\n", reference_errors.BATCH_HEAD, "\n", table(["code", "cause"], [[code(c), t] for c, t in reference_errors.BATCH.items()]),
        "\n## Responses in the background\n\n", reference_errors.BACKGROUND_HEAD, "\n",
        table(["code", "cause"], [[code(c), t] for c, t in reference_errors.BACKGROUND.items()])])


def api():
    doc = json.loads(read("conf/openapi.json"))
    allowed = scopes()
    own = [[code(k), " or ".join(v) or "none: no key"] for k, v in allowed.items() if k.split()[1] in ("/healthz", "/readyz", "/metrics")]
    return "".join([
        HEAD, "# API\n\n", words.API, "\n## The inference plane\n\n", calls(doc, allowed, "inference"),
        "\n## The admin plane\n\n", calls(doc, allowed, "admin"),
        "\n## The metrics plane\n\n", words.API_METRICS, "\n", table(["call", "scope"], own),
        "\n## Fields of chat and completions\n\n", words.API_FIELDS, "\n", fields(doc),
        "\n## Parameters\n\n", parameters(doc), "\n## Bodies\n\n", words.API_BODIES, bodies(doc),
        "\n## Errors\n\n", words.API_ERRORS])


# --------------------------------------------------------------------------------------------------------- whole

def run(build, program, *args):
    return subprocess.run([pathlib.Path(build) / program, *args], check=True, stdout=subprocess.PIPE, text=True).stdout


def with_block(path, name, text):
    """The page with what stands between its two marks replaced."""
    page = read(path)
    first, last = f"<!-- made: {name} -->\n", "<!-- made: end -->\n"
    before, found, rest = page.partition(first)
    _, found_end, after = rest.partition(last)
    if not found or not found_end:
        raise SystemExit(f"make_reference.py: {path} has no marks for {name}")
    return before + first + text + "\n" + last + after


def main():
    check = "--check" in sys.argv[1:]
    args = [a for a in sys.argv[1:] if a != "--check"]
    if len(args) != 1:
        raise SystemExit(__doc__)
    pages = {"docs/reference/configuration.md": configuration(args[0]), "docs/reference/cli.md": cli(args[0]),
             "docs/reference/api.md": api(), "docs/reference/metrics.md": metrics(), "docs/reference/limits.md": limits(),
             "docs/reference/errors.md": errors_page(),
             "docs/reference/models.md": HEAD + reference_models.page(read, table, code),
             "docs/design/scheduling.md": with_block("docs/design/scheduling.md", "constants", tuning())}
    bad = 0
    for path, text in pages.items():
        old = read(path) if (ROOT / path).exists() else ""
        if old == text:
            continue
        bad += 1
        if check:
            sys.stdout.writelines(list(difflib.unified_diff(old.splitlines(True), text.splitlines(True), path, "as the code has it", n=0))[:40])
        else:
            (ROOT / path).write_text(text)
            print(f"{path}: written")
    if check and bad:
        raise SystemExit(f"{bad} pages are not current: python3 tests/tools/make_reference.py {args[0]}")


if __name__ == "__main__":
    main()
