"""The cases `spec` and `spec-draft` of run.sh: what guessed tokens gain, with recorded answers (tests/bench/spec) on a real
engine.

JSON by itself and in a form (a schema), extraction and code at one stream; chat at one, four and sixteen; eight adapters among them. Each figure is
the best round without guesses over the best with them, in turns. Of chat, where a few per cent decide, it is the median over
pairs of rounds, each by processor time (LORAD_BENCH_THREADS=1: of one thread).
LORAD_BENCH_SIZE: the model.

--draft: chat at one and four streams with a draft model (15M for 135M, 135M for 1.1B) that is told to be right in 80, or in no
per cent of all places, over the same without it. So the costs are those of two real models; how often a draft model is
right is given."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LORAD_BUILD", ROOT / "build/release"))
TEXTS = ROOT / "tests/bench/spec"
GAIN, CHAT, DRAFT, WRONG = 1.5, 0.98, 1.2, 0.98


def figures(model, text, streams, rounds, *draft, took="s"):
    out = subprocess.run([BUILD / "bench_spec", model, TEXTS / f"{text}.txt", str(streams), str(rounds), *map(str, draft)],
                         check=True, capture_output=True, text=True).stdout
    runs = [json.loads(line) for line in out.splitlines()]
    pairs = [(b, a) if a["with"] else (a, b) for a, b in zip(runs[::2], runs[1::2])]
    if took == "s":  # whoever else works makes a round longer
        ratio = min(off["s"] for off, _ in pairs) / min(on["s"] for _, on in pairs)
    else:
        ratio = statistics.median(off[took] / on[took] for off, on in pairs)
    guessed, right = sum(on["guessed"] for _, on in pairs), sum(on["right"] for _, on in pairs)
    print(f"  {text:8s} {streams:2d} streams: {ratio:.2f} times; {right} of {guessed} guesses right; "
          f"{sum(on['tokens'] for _, on in pairs)} tokens in {sum(on['steps'] for _, on in pairs)} steps, "
          f"{sum(on['drafted'] for _, on in pairs)} by a draft model in {sum(on['draft_s'] for _, on in pairs):.1f} s of "
          f"{sum(on['s'] for _, on in pairs):.1f}", flush=True)
    return ratio, runs


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
            ratio[percent, streams], more = figures(model, "chat", streams, 3, draft, percent)
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
        gains[text], more = figures(model, text, 1, 5)
        runs += more
    for streams, rounds in ((1, 9), (4, 11), (16, 15)):
        chat[streams], more = figures(model, "chat", streams, rounds, took="cpu_s")
        runs += more
    if args.json:
        pathlib.Path(args.json).write_text("".join(json.dumps(r) + "\n" for r in runs))
    ok = min(gains.values()) >= GAIN and min(chat.values()) >= CHAT
    print(f"spec {min(gains.values()):.2f} times at one stream ({', '.join(f'{k} {v:.2f}' for k, v in gains.items())}), "
          f"chat {min(chat.values()):.3f} at {min(chat, key=chat.get)} streams (asked {GAIN}, {CHAT}): {'ok' if ok else 'short'}")
    return 0 if ok else 1


sys.exit(main())
