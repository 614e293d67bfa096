"""The cases `spec` and `spec-draft` of run.sh: what guessed tokens gain, with recorded answers (tests/bench/spec) on a real
engine.

JSON by itself and in a form (a schema), extraction and code at one stream; chat at one, four and sixteen; eight adapters among them. Each figure is
the best round without guesses over the best with them, in turns. Of chat, where a few per cent decide, it is the processor time
of two programs that run at the same time, each with one thread on its own core, in two halves with their cores exchanged: whoever
else works on the machine slows both.
LORAD_BENCH_SIZE: the model.

--draft: chat at one and four streams with a draft model (15M for 135M, 135M for 1.1B) that is told to be right in 80, or in no
per cent of all places, over the same without it. So the costs are those of two real models; how often a draft model is
right is given."""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LORAD_BUILD", ROOT / "build/release"))
TEXTS = ROOT / "tests/bench/spec"
GAIN, CHAT, DRAFT, WRONG = 1.5, 0.98, 1.2, 0.98


def start(model, text, streams, rounds, *draft, **env):
    core = env.pop("core", None)
    return subprocess.Popen([BUILD / "bench_spec", model, TEXTS / f"{text}.txt", str(streams), str(rounds), *map(str, draft)],
                            env=os.environ | env, stdout=subprocess.PIPE, text=True,
                            preexec_fn=lambda: os.sched_setaffinity(0, {core}) if core is not None else None)


def rounds_of(program):
    out = program.communicate()[0]
    if program.returncode:
        sys.exit(2)
    return [json.loads(line) for line in out.splitlines()]


def told(text, streams, ratio, runs):
    on = [r for r in runs if r["with"]]
    n = {k: sum(r[k] for r in on) for k in ("guessed", "right", "tokens", "steps", "drafted", "draft_s", "s")}
    print(f"  {text:8s} {streams:2d} streams: {ratio:.3f} times; {n['right']} of {n['guessed']} guesses right; {n['tokens']} tokens "
          f"in {n['steps']} steps, {n['drafted']} by a draft model in {n['draft_s']:.1f} s of {n['s']:.1f}", flush=True)
    return ratio, runs


def in_turns(model, text, streams, rounds, *draft):
    """Whoever else works makes a round longer: the best counts."""
    runs = rounds_of(start(model, text, streams, rounds, *draft))
    best = {w: min(r["s"] for r in runs if r["with"] == w) for w in (False, True)}
    return told(text, streams, best[False] / best[True], runs)


def side_by_side(model, text, streams, rounds):
    runs, cores = [], sorted(os.sched_getaffinity(0))[:2]
    for half in (cores, cores[::-1]):
        both = [start(model, text, streams, rounds, core=core, LORAD_BENCH_THREADS="1", LORAD_BENCH_GUESS=guess)
                for core, guess in zip(half, "01")]
        runs += [r for program in both for r in rounds_of(program)]
    cpu = {w: sum(r["cpu_s"] for r in runs if r["with"] == w) for w in (False, True)}
    return told(text, streams, cpu[False] / cpu[True], runs)


def model_of(size):
    model = ROOT / "build/bench" / size
    if not (model / "config.json").exists():
        subprocess.run([sys.executable, ROOT / "tests/tools/make_random_model.py", size, model], check=True)
    return model


def with_draft(size):
    model, draft = model_of(size), model_of("135M" if size == "1.1B" else "15M")
    runs, ratio = [], {}
    for percent in (80, 0):
        for streams in (1, 4):
            print(f"  right in {percent} % of all places:")
            ratio[percent, streams], more = in_turns(model, "chat", streams, 3, draft, percent)
            runs += more
    good, bad = ratio[80, 1], min(ratio[0, 1], ratio[0, 4])
    ok = good >= DRAFT and bad >= WRONG
    print(f"spec-draft {good:.2f} times at one stream where {draft.name} is right in 80 % ({ratio[80, 4]:.2f} at four), "
          f"{bad:.3f} where it is never right (asked {DRAFT}, {WRONG}): {'ok' if ok else 'short'}")
    return runs, ok


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--json")
    args.add_argument("--draft", action="store_true")
    args = args.parse_args()
    size = os.environ.get("LORAD_BENCH_SIZE", "135M")
    if not (BUILD / "bench_spec").exists():
        sys.exit(2)
    if args.draft:
        runs, ok = with_draft(size)
        if args.json:
            pathlib.Path(args.json).write_text("".join(json.dumps(r) + "\n" for r in runs))
        return 0 if ok else 1
    model = model_of(size)
    runs, gains, chat = [], {}, {}
    for text in ("json", "form", "extract", "code"):
        gains[text], more = in_turns(model, text, 1, 5)
        runs += more
    for streams in (1, 4, 16):
        chat[streams], more = side_by_side(model, "chat", streams, 6)
        runs += more
    if args.json:
        pathlib.Path(args.json).write_text("".join(json.dumps(r) + "\n" for r in runs))
    ok = min(gains.values()) >= GAIN and min(chat.values()) >= CHAT
    print(f"spec {min(gains.values()):.2f} times at one stream ({', '.join(f'{k} {v:.2f}' for k, v in gains.items())}), "
          f"chat {min(chat.values()):.3f} at {min(chat, key=chat.get)} streams (asked {GAIN}, {CHAT}): {'ok' if ok else 'short'}")
    return 0 if ok else 1


sys.exit(main())
