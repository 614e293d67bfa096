#!/usr/bin/env python3
"""lock_table.py [--check] -- the table of all locks in docs/design/locks.md, made from the list that
the checks of developers' builds go by (engine/base/lock_list.h), so that it cannot lie.

Writes what stands between the marks of the document.  --check (ctest lint.locks) writes nothing, and
fails where the document is not current, where a lock of the sources has no line in the list or the
other way round, and where a source calls pthread's locks past engine/base/lock.h.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = "engine/base/lock_list.h"
DOC = "docs/design/locks.md"
BEGIN, END = "<!-- made by lock_table.py: begin -->\n", "<!-- made by lock_table.py: end -->\n"
ROOMS = ("engine", "storage", "adapters", "gateway", "tui")
ROW = re.compile(r'X\((\w+), "([^"]+)", (MAY_WAIT|NO_WAIT), ([^"]+?), "([^"]+)"\)')


def rows():
    """(id, name, may wait, ids that may be held, what it guards), in the list's order"""
    text = re.sub(r"\s*\\\n\s*", " ", (ROOT / LIST).read_text())
    return [(m[1], m[2], m[3] == "MAY_WAIT",
             ["ANYTHING"] if m[4] == "ANYTHING" else re.findall(r"UNDER\((\w+)\)", m[4]), m[5])
            for m in ROW.finditer(text[text.index("#define LOCK_LIST"):])]


def table(locks):
    name = {"ANYTHING": "anything"} | {id: f"`{n}`" for id, n, *_ in locks}
    lines = ["| lock | guards | may be held when it is taken | its holder may wait |",
             "| --- | --- | --- | --- |"]
    for id, n, waits, under, guards in locks:
        held = ", ".join(name[u] for u in under) or "none"
        lines.append(f"| `{n}` | {guards} | {held} | {'yes' if waits else ''} |")
    return "\n".join(lines) + "\n"


def sources():
    files = subprocess.run(["git", "ls-files", *ROOMS], cwd=ROOT, text=True, capture_output=True)
    names = files.stdout.split() or [str(p.relative_to(ROOT)) for r in ROOMS
                                     for p in (ROOT / r).rglob("*")]
    for f in sorted(names):
        if re.search(r"\.(c|h|cu|cuh)$", f) and not f.startswith("engine/base/lock"):
            yield f, re.sub(r"/\*.*?\*/|//[^\n]*", " ", (ROOT / f).read_text(), flags=re.S)


def fields(text):
    """struct.field of each lock, also of a variable's nameless struct"""
    for m in re.finditer(r"struct (?:(\w+) )?\{[^\S\n]*\n(.*?)\n\}(?: (\w+))?", text, re.S):
        for f in re.findall(r"^\s+(?:rw)?lock (\w+(?:, \w+)*);", m[2], re.M):
            for one in f.split(", "):
                yield f"{m[1] or m[3]}.{one}"


def faults(locks):
    ids, names = [r[0] for r in locks], [r[1] for r in locks]
    seen, made = [], []
    for f, text in sources():
        for m in re.finditer(r"pthread_(mutex|rwlock|cond|condattr)_\w+", text):
            yield f"{f}: {m[0]}: take engine/base/lock.h"
        seen += fields(text)
        made += re.findall(r"(?:lock_init\([^;]*?|LOCK_INITIALIZER\()LOCK_(\w+)\)", text)
    for n in sorted(set(seen) - set(names)):
        yield f"{n} has no line in {LIST}"
    for n in sorted(set(names) - set(seen)):
        yield f"{LIST}: {n}: there is no such field"
    for i in ids:
        if made.count(i) != 1:
            yield f"{LIST}: LOCK_{i} is made at {made.count(i)} places"


def main():
    locks, doc = rows(), ROOT / DOC
    if not locks:
        sys.exit(f"{LIST}: no line was understood")
    old = doc.read_text()
    if BEGIN not in old or END not in old:
        sys.exit(f"{DOC}: the marks are missing")
    new = old[:old.index(BEGIN)] + BEGIN + table(locks) + old[old.index(END):]
    if "--check" not in sys.argv:
        doc.write_text(new)
        return
    wrong = list(faults(locks))
    if new != old:
        wrong.append(f"{DOC} is not current: run tests/tools/lock_table.py")
    if wrong:
        sys.exit("\n".join(wrong))


main()
