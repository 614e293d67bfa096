#!/usr/bin/env python3
"""tiers.py -- which areas of tests/tiers.txt have changed since their tests last passed in full.

    tiers.py areas               the names of all areas
    tiers.py stale               those whose sources differ from tests/passed.txt
    tiers.py passed AREA...      writes their digests into tests/passed.txt; called by tests/run.sh alone,
                                 after all tests of the area have passed
    tiers.py digest AREA         SHA-256 over names and contents of the area's tracked sources
    tiers.py tidy                product files for clang-tidy: those that changed since `tidy` last passed in
                                 full (its line in passed.txt is a commit), and the files that include them
    tiers.py tidied              writes the present commit into that line

passed.txt has lines "NAME DIGEST".  A source that is edited makes its area stale, whether committed or not.
"""
import hashlib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIERS, PASSED = ROOT / "tests/tiers.txt", ROOT / "tests/passed.txt"
HEAD = "# Written by tests/run.sh (tests/tools/tiers.py): what passed in full.\n"


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def tracked():
    return [f for f in git("ls-files", "-z").split("\0") if f and (ROOT / f).is_file()]


def areas():
    """{name: [source, ...]}"""
    out = {}
    for line in TIERS.read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "area":
            name = rest
            out[name] = []
        elif word == "sources":
            out[name] += rest.split()
        elif word not in ("", "#", "tests", "also"):
            sys.exit(f"tests/tiers.txt: a line must begin with area, tests, also or sources, not '{word}'")
    return out


def outside_gate():
    """The pattern of the tests that the gate leaves to their areas' full runs."""
    lines = TIERS.read_text().splitlines()
    return re.compile("|".join(line.split(" ", 1)[1] for line in lines if line.startswith("tests ")))


def digest(sources, files):
    """Every source must match a file: a folder that was renamed would leave its area without a guard."""
    sha = hashlib.sha256()
    for source in sources:
        found = [f for f in files if f == source or source.endswith("/") and f.startswith(source)]
        if not found:
            sys.exit(f"tests/tiers.txt: no tracked file is {source}")
        for f in sorted(found):
            sha.update(f"{f}\0{hashlib.sha256((ROOT / f).read_bytes()).hexdigest()}\n".encode())
    return sha.hexdigest()


def passed():
    if not PASSED.is_file():
        return {}
    return dict(line.split() for line in PASSED.read_text().splitlines() if line and not line.startswith("#"))


def record(new):
    lines = sorted({**passed(), **new}.items())
    PASSED.write_text(HEAD + "".join(f"{name} {value}\n" for name, value in lines))


def tidy_files():
    files = [f for f in tracked() if re.search(r"\.[ch]$", f) and not f.startswith("tests/")]
    base = passed().get("tidy", "")
    try:
        changed = set(git("diff", "--name-only", base, "--").split("\n")) if base else set(files)
    except subprocess.CalledProcessError:  # the commit is not in this clone's history
        changed = set(files)
    if changed & {".clang-tidy", "CMakeLists.txt"}:
        changed = set(files)
    includes = {f: set(re.findall(r'^#\s*include "([^"]+)"', (ROOT / f).read_text(), re.M)) for f in files}
    grew = True
    while grew:  # through headers that include headers
        more = {f for f in files if includes[f] & changed} - changed
        changed |= more
        grew = bool(more)
    # Those of aarch64 have no command in a build for this processor.
    return [f for f in files if f.endswith(".c") and f in changed and not re.search(r"_(neon|i8mm)\.c$", f)]


def main(verb="", *names):
    all_areas = areas()
    for name in names:
        if name not in all_areas:
            sys.exit(f"tiers.py: no area is called {name}; there are: {' '.join(all_areas)}")
    if verb == "areas" and not names:
        print(*all_areas, sep="\n")
    elif verb == "stale" and not names:
        files, done = tracked(), passed()
        for name, sources in all_areas.items():
            if done.get(name) != digest(sources, files):
                print(name)
    elif verb == "digest" and len(names) == 1:
        print(digest(all_areas[names[0]], tracked()))
    elif verb == "passed" and names:
        files = tracked()
        record({name: digest(all_areas[name], files) for name in names})
    elif verb == "tidy" and not names:
        print(*tidy_files(), sep="\n")
    elif verb == "tidied" and not names:
        record({"tidy": git("rev-parse", "HEAD").strip()})
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
