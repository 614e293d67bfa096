"""mutate.py -- what mutate.sh does: a copy of the tree, one fault at a time, the tests that must see it."""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from mutants import MUTANTS, QUICK
from tiers import outside_gate

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build/mutate"
TREE, BUILD = WORK / "tree", WORK / "build"
LEAST = 60
# A fault may be one that never ends: that is seen, too.  How long is long is learnt from the sound tree's slowest test.
SOUND_S, HANGS_S, HANGS_TIMES = 1800, 120, 3
E2E_PROGRAMS = ["lorad", "loractl", "lorad_faulty"]


def check(mutants):
    """The list against the sources; returns the complaints."""
    wrong, names = [], set()
    tests = {f"{p.stem}" for kind in ("c", "cu", "py") for p in (ROOT / "tests").rglob(f"test_*.{kind}")}
    for name, file, old, new, seen_by, _ in mutants:
        path = ROOT / file
        found = path.read_text().count(old) if path.is_file() else -1
        if found != 1:
            wrong.append(f"{name}: {file} " + ("is not there" if found < 0 else f"has the text {found} times, not once: {old}"))
        if old == new or name in names:
            wrong.append(f"{name}: {'changes nothing' if old == new else 'is there twice'}")
        wrong += [f"{name}: there is no test {t}" for t in seen_by if re.sub("_(early|inside|tp)$", "", t.split(".", 1)[1]) not in tests]
        names.add(name)
    wrong += [f"{q}: --quick names it, the list does not" for q in sorted(QUICK - {m[0] for m in MUTANTS})]
    if len(MUTANTS) < LEAST:
        wrong.append(f"{len(MUTANTS)} faults; there should be {LEAST}")
    return wrong


def sync():
    """Makes the copy what the tree is now; only what differs is written, so that little is built anew."""
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split("\0")
    wanted = {f for f in listed if f and (ROOT / f).is_file()}
    TREE.mkdir(parents=True, exist_ok=True)
    for path in list(TREE.rglob("*")):
        name = str(path.relative_to(TREE))
        if not name.startswith("build") and (path.is_file() or path.is_symlink()) and name not in wanted:
            path.unlink()
    for name in wanted:
        source, copy = ROOT / name, TREE / name
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            copy.chmod(source.stat().st_mode)
    (TREE / "build").mkdir(exist_ok=True)
    for shared in ("deps", "venv", "venv-agents"):  # what a build of the tree itself has made already
        link = TREE / "build" / shared
        if not link.is_symlink():
            link.symlink_to(ROOT / "build" / shared)


def configure(hangs_s):
    flags = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1", "-DCMAKE_CXX_FLAGS_DEBUG=-O1", "-DLORAD_CUDA=OFF",
             "-DLORAD_KERNELS=-O1", "-DLORAD_ALL_ISAS=ON", f"-DLORAD_HANGS={hangs_s}"]
    (ROOT / "build/deps").mkdir(exist_ok=True)
    subprocess.run(["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", *flags], check=True, stdout=subprocess.DEVNULL)


def targets_of(tests):
    out = {"test_weights"}
    for t in tests:
        out |= set(E2E_PROGRAMS) if t.startswith("e2e.") else {re.sub("_(early|inside|tp)$", "", t)}  # a program run in another way
        out |= {"e2e.test_emulated": {"lorad_emulated"}, "e2e.test_loratop": {"loratop", "bench_view"}}.get(t, set())
    return sorted(out)


def build(tests):
    done = subprocess.run(["cmake", "--build", BUILD, "--target", *targets_of(tests)], capture_output=True, text=True)
    return done.returncode == 0, done.stdout[-3000:]


def test(tests):
    """'green', 'red' or 'hangs', and what was printed."""
    names = "|".join(re.escape(t) for t in tests)
    done = subprocess.run(["ctest", "--test-dir", BUILD, "-R", f"^({names})$", "--output-on-failure", "-j2", "--no-tests=error"],
                          capture_output=True, text=True, env={**os.environ, "CK_TIMEOUT_MULTIPLIER": "10"})
    if done.returncode == 0:
        return "green", done.stdout
    return "hangs" if "***Timeout" in done.stdout else "red", done.stdout


def full_only(tests):
    """Whether the gate has none of these tests."""
    return all(outside_gate().search(t) for t in tests)


def try_one(mutant):
    """What becomes of one fault: red, hangs, STAYED GREEN or DOES NOT BUILD."""
    _, file, old, new, seen_by, _ = mutant
    path = TREE / file
    sound = path.read_text()
    path.write_text(sound.replace(old, new))
    try:
        built, said = build(seen_by)
        if not built:
            return "DOES NOT BUILD", said
        verdict, said = test(seen_by)
        return ("STAYED GREEN" if verdict == "green" else verdict), said
    finally:
        path.write_text(sound)


def main():
    p = argparse.ArgumentParser(prog="mutate.sh", description="Plants faults and expects that tests see them.")
    p.add_argument("--only", default="", metavar="REGEX", help="faults whose name has a match")
    p.add_argument("--quick", action="store_true", help="the few that CI runs")
    p.add_argument("--list", action="store_true", help="name them and the rules they break, and mark those that only a full run sees")
    p.add_argument("--check", action="store_true", help="only look whether the texts are there")
    ask = p.parse_args()
    chosen = [m for m in MUTANTS if re.search(ask.only, m[0]) and (not ask.quick or m[0] in QUICK)]
    if ask.list:
        for name, file, _, _, seen_by, rule in chosen:
            print(f"{name:32} {rule} ({', '.join(seen_by)})" + (" [full run only]" if full_only(seen_by) else ""))
        return 0
    wrong = check(MUTANTS if ask.check else chosen)
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong or ask.check:
        return bool(wrong)
    if not chosen:
        print("mutate.sh: no fault has such a name; --list names them", file=sys.stderr)
        return 2
    sync()
    configure(SOUND_S)
    every = sorted({t for m in chosen for t in m[4]})
    built, said = build(every)
    verdict, said = test(every) if built else ("not built", said)
    if verdict != "green":
        print(f"without any fault the tests are {verdict}:\n{said}", file=sys.stderr)
        return 2
    slowest_s = max(float(t) for t in re.findall(r"Passed +([0-9.]+) sec$", said, re.M))
    configure(int(max(HANGS_S, HANGS_TIMES * slowest_s)))
    bad = []
    for m in chosen:
        began = time.monotonic()
        verdict, said = try_one(m)
        print(f"{m[0]:32} {verdict:15} {time.monotonic() - began:5.1f} s  {m[5]}", flush=True)
        if verdict not in ("red", "hangs"):
            bad.append(m[0])
            if verdict == "DOES NOT BUILD":
                print(said, flush=True)
    print(f"{len(chosen) - len(bad)} of {len(chosen)} faults were seen" + (f"; not: {', '.join(bad)}" if bad else ""))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
