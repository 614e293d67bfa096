#!/usr/bin/env python3
"""What each tuning constant of the scheduler does: halved and doubled, one at a time, the simulator's figures again.

    sim_constants.py BUILD [NAME...]      BUILD: a build of this tree with the target sim (release)

A changed copy of the file is compiled and linked before the engine's library; the tree stays as it is.  Prints a line for
each constant, with the figures that moved by more than noise does (the same constants with other seeds), or "no case moves".
The constants are those of tests/tools/reference_words.py; what was seen stands in tests/sim/constants.txt, from which
make_reference.py makes the tables of docs/design/scheduling.md."""
import json
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/tools"))
import make_reference  # noqa: E402
import reference_words as words  # noqa: E402

N = "6000"
CROWDED = ["--requests", N, "--policy", "lorad"]
COLD = ["--requests", "5000", "--slots", "32", "--adapters", "256", "--policy", "lorad"]
WIRE = ["--device", "cpu", "--hiccup", "0.01", "--queue", "--requests", "4400", "--policy", "lorad"]
LATE = [*COLD, "--load-us", "60000"]
ROWS = ["--requests", N, "--base-us", "2500", "--decode-us", "300", "--prefill-us", "60", "--policy", "lorad"]
# name: (arguments of sim, figure, seeds): what sim_cases.py judges, on fewer requests and several seeds
FIGURES = {
    "sim-honest": (CROWDED, lambda r: r["classes"][0]["good_honest"], (1, 2, 3, 4)),
    "goodput": (CROWDED, lambda r: r["good_per_s"], (1, 2, 3, 4)),
    "sim-batch": (CROWDED, lambda r: r["batch_share"], (1, 2, 3, 4)),
    "sim-late": (CROWDED, lambda r: r["late"], (1, 2, 3, 4)),
    "tpot99": (CROWDED, lambda r: r["classes"][0]["tpot_p99_s"], (1, 2, 3, 4)),
    "sim-cold": (COLD, lambda r: r["good_per_s"], (1, 2, 3, 4)),
    "cold-wait": (COLD, lambda r: r["longest_wait_s"], (1, 2, 3, 4)),
    "sim-cold-late": (LATE, lambda r: r["classes"][0]["late"], (1, 2, 3, 4)),
    "tpot-honest": (ROWS, lambda r: r["classes"][0]["good_honest"], (1, 2, 3, 4)),
    "tpot-standard": (ROWS, lambda r: r["classes"][1]["good_honest"], (1, 2, 3, 4)),
    "tpot-goodput": (ROWS, lambda r: r["good_per_s"], (1, 2, 3, 4)),
    "sim-wire": (WIRE, lambda r: r["classes"][0]["ttft_p99_honest_s"], (1, 2, 3, 4)),
}


def measure(sim):
    """{figure: [of each seed]}"""
    runs, out = {}, {}
    for name, (args, figure, seeds) in FIGURES.items():
        for seed in seeds:
            key = (*args, str(seed))
            if key not in runs:
                text = subprocess.run([sim, "--json", *args, "--seed", str(seed)], stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, check=True, text=True).stdout
                runs[key] = json.loads(text.splitlines()[0])
            out.setdefault(name, []).append(figure(runs[key]))
    return out


def compiled(build, changes, folder):
    """The path of a sim with these {file: text} in place of the tree's."""
    commands = json.loads((build / "compile_commands.json").read_text())
    objects = []
    headers = [p for p in changes if p.endswith(".h")]
    for p, text in changes.items():
        (folder / p).parent.mkdir(parents=True, exist_ok=True)
        (folder / p).write_text(text)
    for c in commands:
        path = pathlib.Path(c["file"]).relative_to(ROOT).as_posix()
        # A header changes whoever is part of the scheduler; it stands before the tree in the include path.
        if path not in changes and not (headers and re.match(r"engine/sched/|tests/sim/(?!test_|main)", path)):
            continue
        source = folder / path if path in changes else ROOT / path
        words_of = [w for w in shlex.split(c["command"]) if w not in ("ccache",)]
        at = words_of.index("-o")
        o = folder / (path.replace("/", "_") + ".o")
        words_of[at + 1] = str(o)
        words_of[words_of.index("-c") + 1] = str(source)
        words_of.insert(1, f"-I{folder}")
        subprocess.run(words_of, check=True, cwd=c["directory"])
        objects.append(str(o))
    link = subprocess.run(["ninja", "-C", build, "-t", "commands", "-s", "sim"], stdout=subprocess.PIPE, check=True, text=True).stdout
    line = [w for w in shlex.split(link.splitlines()[-1].replace("&& :", "").lstrip(": &")) if w != "ccache"]
    at = line.index("-o")
    line[at + 1] = str(folder / "sim")
    subprocess.run([*line[:at], *objects, *line[at:]], check=True, cwd=build)
    return str(folder / "sim")


def changed(path, name, factor):
    """The file's text with the constant times `factor`; a whole number stays one, at least 1."""
    text = (ROOT / path).read_text()
    m = re.search(make_reference.VALUE.format(name), text)
    value = make_reference.value_of(make_reference.strip_comments(m.group(1)))
    if isinstance(value, int):
        new = str(max(1, int(value * factor)))
    else:
        new = repr(value * factor)
    return text[:m.start(1)] + new + text[m.end(1):]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    only = sys.argv[2:]
    base = measure(str(build / "sim"))
    noise = {k: 2 * statistics.stdev(v) / len(v) ** 0.5 for k, v in base.items()}
    mean = {k: statistics.mean(v) for k, v in base.items()}
    print("as it is:", ", ".join(f"{k} {mean[k]:.4g} (2 s.e. {noise[k]:.2g})" for k in base), flush=True)
    for _, rows in words.TUNING_TABLES:
        for places, names, *_ in rows:
            if only and not set(names.split()) & set(only):
                continue
            name, _, files = make_reference.first_constant(places, names)
            if not all(f.startswith("engine/sched/") for f in files):
                continue  # not in the simulator
            for factor in (0.5, 2):
                changes = {f: changed(f, name, factor) for f in files}
                if all(text == (ROOT / f).read_text() for f, text in changes.items()):
                    continue
                with tempfile.TemporaryDirectory() as t:
                    try:
                        sim = compiled(build, changes, pathlib.Path(t))
                        got = measure(sim)
                    except subprocess.CalledProcessError as e:
                        print(f"{name} x {factor}: {e.cmd[0]} failed", flush=True)
                        continue
                # Seeds are the same workloads, so differences are taken pair by pair.
                moved = []
                for k in base:
                    d = [b - a for a, b in zip(base[k], got[k])]
                    if abs(statistics.mean(d)) > max(2 * statistics.stdev(d) / len(d) ** 0.5, 0.01 * abs(mean[k]), 0.0005):
                        moved.append(f"{k} {mean[k]:.4g} to {statistics.mean(got[k]):.4g}")
                print(f"{name} x {factor:g}: {'; '.join(moved) or 'no case moves'}", flush=True)


if __name__ == "__main__":
    main()
