"""The case `spec` of run.sh: what guessed tokens gain, with recorded answers (tests/bench/spec) on a real engine.

JSON, extraction and code at one stream; chat at one, four and sixteen; eight adapters among them. Each figure is
the median over rounds of time without guesses over time with them, the two in turns. LORAD_BENCH_SIZE: the model."""
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
GAIN, CHAT = 1.5, 0.98


def figures(model, text, streams, rounds):
    out = subprocess.run([BUILD / "bench_spec", model, TEXTS / f"{text}.txt", str(streams), str(rounds)],
                         check=True, capture_output=True, text=True).stdout
    runs = [json.loads(line) for line in out.splitlines()]
    pairs = [(a, b) if a["speculate"] == 0 else (b, a) for a, b in zip(runs[::2], runs[1::2])]
    ratio = statistics.median(off["s"] / on["s"] for off, on in pairs)
    guessed, right = sum(on["guessed"] for _, on in pairs), sum(on["right"] for _, on in pairs)
    print(f"  {text:8s} {streams:2d} streams: {ratio:.2f} times; {right} of {guessed} guesses right; "
          f"{sum(on['tokens'] for _, on in pairs)} tokens in {sum(on['steps'] for _, on in pairs)} steps", flush=True)
    return ratio, runs


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--json")
    args = args.parse_args()
    size = os.environ.get("LORAD_BENCH_SIZE", "135M")
    model = ROOT / "build/bench" / size
    if not (BUILD / "bench_spec").exists():
        sys.exit(2)
    if not (model / "config.json").exists():
        subprocess.run([sys.executable, ROOT / "tests/tools/make_random_model.py", size, model], check=True)
    runs, gains, chat = [], {}, {}
    for text in ("json", "extract", "code"):
        gains[text], more = figures(model, text, 1, 5)
        runs += more
    for streams in (1, 4, 16):
        chat[streams], more = figures(model, "chat", streams, 3)
        runs += more
    if args.json:
        pathlib.Path(args.json).write_text("".join(json.dumps(r) + "\n" for r in runs))
    ok = min(gains.values()) >= GAIN and min(chat.values()) >= CHAT
    print(f"spec {min(gains.values()):.2f} times at one stream ({', '.join(f'{k} {v:.2f}' for k, v in gains.items())}), "
          f"chat {min(chat.values()):.3f} at {min(chat, key=chat.get)} streams (asked {GAIN}, {CHAT}): {'ok' if ok else 'short'}")
    return 0 if ok else 1


sys.exit(main())
