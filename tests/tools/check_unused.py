"""Fails where a function of the product is called by nobody but tests: check_unused.py ROOT

A function without `static` in engine/, storage/, adapters/, gateway/ or tui/ must be named in the code of another
file of theirs (the linker calls those with __wrap_), or in its own and in a test's.  Else it is dead, a door for
tests alone, or should be static; what has a reason to stay stands in `kept`, with the reason.  Scans the sources, so
it needs no build and sees CUDA's, too.  Each run first looks at functions that are unused on purpose, so a check
that finds nothing says so.
"""

import os
import re
import sys

from check_comments import C_TOKEN

ROOMS = ("engine", "storage", "adapters", "gateway", "tui", "tests")
WORD = re.compile(r"[A-Za-z_]\w*")

# name: why it may stay
kept = {
    "chat_template_set_clock": "templates print the date; tests bring theirs",
    "devmem_lease_alive": "asks without changing the order of eviction, which is what is tested",
    "devmem_lease_chunk": "where a lease lies, for arenas of tests, which have no memory behind them",
    "fair_age_us": "tests/sim holds every pick to the ageing bound",
    "fair_check": "tests/sim goes through the books after each step",
    "fair_in_use": "tests/engine/sched/test_fair.c holds the books to what was told them",
    "fair_is_aged": "tests/sim holds every pick to the ageing bound",
    "fair_served": "tests/engine/sched/test_fair.c holds the books to what was told them",
    "json_check": "fuzz_json holds the scan, which comes first, to a scan of its own",
    "kv_check": "tests go through the books after each step",
    "model_load": "tests and benches load with no wish of their own",
    "model_packed_mapped": "tests see where weights come from",
    "model_packed_settled": "tests and benches wait until weights are kept",
    "pace_try": "asks where a loader waits",
    "peers_open": "tests see that nobody stays behind",
}


def code_of(text):
    """Without comments, strings, attributes and extern "C" blocks; what macros say stays."""
    text = C_TOKEN.sub(lambda m: " " if m.group(1) else '""', text)
    text = re.sub(r'extern\s+""\s*\{', " ", text)
    text = re.sub(r'extern\s+""', " exported ", text)
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)(?=\s)", " ", text)
    return re.sub(r"\\\n", " ", text)


def is_for_others(path, head):
    """In CUDA's files that is what C may call; headers are for others in any case."""
    return "exported" in head if path.endswith(".cu") else not re.search(r"\bstatic\b|_INLINE\b", head)


def scan(path, text):
    """Functions that are defined for others, and all words but those of declarations."""
    defined, used = set(), set()
    depth, head = 0, ""
    for piece in re.split(r"(^[ \t]*#[^\n]*|[{};])", code_of(text), flags=re.M):
        if piece.lstrip().startswith("#"):
            used.update(WORD.findall(re.sub(r"#\s*define\s+\w+", "", piece)))
        elif piece == "{":
            name = re.search(r"(\w+)\s*\(", head) if depth == 0 and "=" not in head.split("(")[0] else None
            if name and is_for_others(path, head):
                defined.add(name.group(1))
            if depth == 0 and not name:
                used.update(WORD.findall(head))
            depth, head = depth + 1, ""
        elif piece == "}":
            depth, head = max(depth - 1, 0), ""
        elif piece == ";":
            if "=" in head:
                used.update(WORD.findall(head))
            head = ""
        elif depth > 0:
            used.update(WORD.findall(piece))
        else:
            head += piece
    return defined, used


def unused(texts):
    scans = {path: scan(path, text) for path, text in texts.items()}
    users, pasted = {}, re.findall(r"\b(\w+_)\s*##", "".join(texts.values()))
    for path, (_, used) in scans.items():
        for word in used:
            users.setdefault(word, set()).add(path)
    for path, (defined, _) in sorted(scans.items()):
        for name in sorted(d for d in defined if not re.fullmatch("main|__wrap_.*|[A-Z_]+", d)):
            by = users.get(name, set())
            others = [u for u in by - {path} if not u.startswith("tests/")]
            if others or path.startswith("tests/") or name.startswith(tuple(pasted)):
                continue
            if path not in by:
                yield name, f"{path}: {name}() is called by {'tests alone' if by else 'nobody'}"
            elif by == {path}:
                yield name, f"{path}: {name}() serves its own file alone"


PLANTED = {
    "a.h": "int a_used(void);\nint a_dead(int (*cb)(int));\nint a_own(void);\n"
           "static inline int a_inline(void) { return a_by_header(); }\n",
    "a.c": '/* a_dead() */ int a_used(void)\n{\n    return a_own();\n}\nint a_dead(int (*cb)(int))\n{\n    return "a_dead"[cb(0)];\n}\n'
           "int a_own(void)\n{\n    return 1;\n}\nint a_by_header(void) { return 0; }\nint a_listed(void)\n{\n    return 2;\n}\n",
    "tests/t.c": "int b_tried(void)\n{\n    return a_tested() + a_shown() + a_dead(0);\n}\n",
    "c.c": "int a_tested(void) { return 1; }\nint a_shown(void) { return 1; }\nint c_used(void) { return a_shown(); }\n",
    "b.c": "int main(void) { return a_used() + c_used(); }\nstatic const struct ops all = {a_listed};\n",
}


def main():
    if [name for name, _ in unused(PLANTED)] != ["a_dead", "a_own", "a_tested"]:
        sys.exit(f"the check is broken: of what was planted it finds {list(unused(PLANTED))}")
    texts = {}
    for room in ROOMS:
        for folder, _, names in os.walk(os.path.join(sys.argv[1], room)):
            for name in names:
                if name.endswith((".c", ".h", ".cu", ".cuh", ".cpp")):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as f:
                        texts[os.path.relpath(path, sys.argv[1])] = f.read()
    found = dict(unused(texts))
    for name in sorted(set(kept) - set(found)):
        found[name] = f"{name}() is used now: it needs no exception"
    wrong = [line for name, line in found.items() if name not in kept or "exception" in line]
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
