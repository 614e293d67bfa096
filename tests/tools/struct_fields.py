#!/usr/bin/env python3
"""Counts the fields of the product's structs; ctest lint.structs fails where one has more than LIMIT.

    struct_fields.py              prints the widest structs: fields, files that include the definition, name, file
    struct_fields.py --check      fails for each struct above LIMIT that WIDE does not list, and for each stale entry of WIDE
    struct_fields.py --self-test  the counter against small examples

A struct with many fields is a function with many arguments: whoever changes a line of its code must know all of them. The
counter reads declarations: `int a, *b;` are two fields. A struct that is defined inside another one counts with all its fields,
since it is read together with the outer one. A list macro (`SAMPLING_LIST(FIELD)`) counts as one field, because
its rows are defined, and understood, in one place. It does not run the preprocessor.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = ("adapters", "engine", "gateway", "storage", "tui")
LIMIT = 40

# file:struct -> (fields it may have, why it may be wide).
WIDE = {
    "engine/backend_ops.h:backend_ops": (85, "the table of a backend's operations: one function pointer each, filled by one initialiser"),
    "engine/model/family.h:model_family": (95, "one row of the families' table: flags that are zero unless a family needs them"),
    "engine/model/model.h:model_config": (95, "one field for each key of config.json that the forward pass reads"),
    "engine/cuda/cuda.h:cuda_state": (64, "to be split with the plan of fused operations"),
    "gateway/openai/openai.h:openai_request": (65, "one field for each parameter of the API"),
}


def strip(text):
    """Without comments, the contents of strings, and preprocessor lines."""
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)


def closing(text, at):
    """The index of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        if text[i] in "{([":
            depth += 1
        elif text[i] in "})]":
            depth -= 1
            if depth == 0:
                return i
    raise ValueError("a bracket does not close")


def members(body):
    """The declarations of a struct's body, each without its ';', as (text, body of an inner struct or None)."""
    out, start, i, inner = [], 0, 0, None
    while i < len(body):
        c = body[i]
        if c == "{":
            end = closing(body, i)
            inner, i = body[i + 1:end], end
        elif c in "([":
            i = closing(body, i)
        elif c == ";":
            out.append((body[start:i].strip(), inner))
            start, inner = i + 1, None
        i += 1
    rest = body[start:].strip()
    return out + [(rest, None)] if rest else out


def declarators(text):
    """How many names a declaration without an inner struct declares."""
    depth, n = 0, 1
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        n += c == "," and depth == 0
    return n


def count(body):
    total = 0
    for text, inner in members(body):
        while (macro := re.match(r"[A-Z][A-Z_0-9]+\(", text)):  # a list macro has no ';' behind it
            total += 1
            text = text[closing(text, macro.end() - 1) + 1:].strip()
        if not text or text.startswith(("static_assert", "_Static_assert")) or re.fullmatch(r"enum\s*\w*\s*\{[^}]*\}", text):
            continue
        if inner is not None and re.match(r"(?:const |_Alignas\([^)]*\) )*(?:struct|union)\b", text):
            total += count(inner)
        else:
            total += declarators(text)
    return total


def structs(text):
    """(name, fields) of each struct that a file defines at its top level."""
    text = strip(text)
    for m in re.finditer(r"\bstruct\s*(\w*)\s*(?:__attribute__\s*\(\(\w+\)\)\s*)?\{", text):
        before = text[:m.start()]
        if before.count("{") - before.count("}") > before.count('extern "" {') and not outer_is_block(before):
            continue
        end = closing(text, m.end() - 1)
        alias = re.match(r"\s*(\w+)\s*;", text[end + 1:])
        yield m.group(1) or (alias.group(1) if alias else "(no name)"), count(text[m.end():end])


def outer_is_block(before):
    """Whether the innermost open '{' is a linkage or namespace block and not a struct or function."""
    depth = 0
    for i in range(len(before) - 1, -1, -1):
        if before[i] == "}":
            depth += 1
        elif before[i] == "{":
            if depth == 0:
                return re.search(r'(extern ""|namespace\s*\w*)\s*$', before[:i]) is not None
            depth -= 1
    return True


def all_structs():
    out = []
    for folder in PRODUCT:
        for f in sorted((ROOT / folder).rglob("*")):
            if f.suffix in (".h", ".c", ".cu", ".cuh"):
                name = f.relative_to(ROOT).as_posix()
                out += [(n, f"{name}:{struct}") for struct, n in structs(f.read_text())]
    return sorted(out, key=lambda s: (-s[0], s[1]))


def check():
    bad, seen = [], {}
    for n, name in all_structs():
        seen[name] = n
        if n > LIMIT and name not in WIDE:
            bad.append(f"{name} has {n} fields; a struct has at most {LIMIT}: split it by owner or phase")
        elif name in WIDE and n > WIDE[name][0]:
            bad.append(f"{name} has {n} fields; its entry in struct_fields.py allows {WIDE[name][0]}")
    for name in WIDE:
        if seen.get(name, 0) <= LIMIT:
            bad.append(f"struct_fields.py lists {name}, which has {seen.get(name, 0)} fields: remove the entry")
    for line in bad:
        print(line)
    return 1 if bad else 0


def table(least):
    headers = {}
    for folder in PRODUCT:
        for f in (ROOT / folder).rglob("*"):
            if f.suffix in (".h", ".c", ".cu", ".cuh"):
                for name in re.findall(r'^#include "([^"]+)"', f.read_text(), flags=re.M):
                    headers[name] = headers.get(name, 0) + 1
    print("fields  included by  struct")
    for n, name in all_structs():
        if n >= least:
            print(f"{n:6}  {headers.get(name.split(':')[0], 0):11}  {name}")


def self_test():
    for text, want in [
            ("typedef struct a { int x, *y; char z[2]; } a;", [("a", 3)]),
            ("struct a { void (*f)(int x, int y); /* int no; */ struct { int p, q; } in; union { int u; float v; }; };", [("a", 5)]),
            ("typedef struct { LIST(FIELD) int last; } b;", [("b", 2)]),
            ("typedef struct { int first; LIST(FIELD) } b;", [("b", 2)]),
            ('extern "C" {\nstruct a { int x; };\n}', [("a", 1)]),
            ("#define X(a) \\\n  struct a { int b; };\nstruct c { unsigned x : 3, y : 5; };", [("c", 2)]),
            ("int f(void) { struct local { int a, b; } l; return l.a; }", []),
            ("struct a { enum { P, Q } kind; int x; };", [("a", 2)]),
    ]:
        got = list(structs(text))
        if got != want:
            print(f"{text!r}: {got}, not {want}")
            return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    table(int(sys.argv[1]) if len(sys.argv) > 1 else 25)
