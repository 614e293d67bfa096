"""choices.py -- writes engine/cuda/products/choices.h from a device's sweeps (bench_device sweep) with and without kernels.

    choices.py [--print] FOLDER

FOLDER has sweep.json, sweep-without-chain.json and sweep-without-inside.json, each with step_ROWS_LEN_KIND_ms. Up to as many rows
as a kernel's steps are at most 0.5 % slower with it, and no fewer rows are, it is used. From how many rows on codes become slices
stays as it is: no sweep has codes.
"""
import json
import pathlib
import re
import sys

HEADER = pathlib.Path(__file__).resolve().parents[2] / "engine/cuda/products/choices.h"
ROWS = (16, 32, 64)  # buckets of products of few rows
NOISE = 1.005


def times(path, kind):
    out = {}
    for name, ms in json.loads(path.read_text()).items():
        m = re.fullmatch(rf"step_(\d+)_(\d+)_{kind}_ms", name)
        if m:
            out[int(m[1]), int(m[2])] = ms
    return out


def rows_for(folder, kernel, kind):
    """Up to so many rows the kernel is no slower; 0: never."""
    by, others = (times(folder / f"sweep{w}.json", kind) for w in ("", f"-without-{kernel}"))
    least = min(length for _, length in by)
    best = 0
    for rows in ROWS:
        at = (rows, least)
        if at not in by or at not in others or by[at] > others[at] * NOISE:
            break
        best = rows
    return best


def rewritten(text, chain, inside, device):
    line = re.compile(r"^    \{90, \d+, \d+, (\d+)\},.*$", re.M)
    slices = line.search(text)[1]
    return line.sub(f"    {{90, {chain}, {inside}, {slices}}}, /* {device}: chain and inside measured; slices estimated */", text)


def main():
    args = [a for a in sys.argv[1:] if a != "--print"]
    if len(args) != 1:
        sys.exit("usage: choices.py [--print] FOLDER")
    folder = pathlib.Path(args[0])
    chain, inside = rows_for(folder, "chain", "bare"), rows_for(folder, "inside", "distinct")
    device = "?"
    if (folder / "machine.txt").exists():
        device = (folder / "machine.txt").read_text().split("device: ", 1)[1].split(",")[0][:30]
    text = rewritten(HEADER.read_text(), chain, inside, device)
    print(f"one chain up to {chain} rows, LoRA inside up to {inside}")
    if "--print" in sys.argv:
        print(text)
    else:
        HEADER.write_text(text)


if __name__ == "__main__":
    main()
