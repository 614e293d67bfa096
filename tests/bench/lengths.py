#!/usr/bin/env python3
"""lengths.py BENCH_LENGTHS [--trace FILE.csv] -- how well the learnt p90 of answers' lengths holds.

Three traces, made anew with a seed from published distributions of output lengths:

  conv   Azure's trace of a conversation service of 2023 (AzurePublicDataset, AzureLLMInferenceTrace_conv): 19,366 answers of a
         mean of 211 tokens, drawn from its quantiles, which change in the course of an hour as those of the trace do
  code   the same of a coding service (AzureLLMInferenceTrace_code): 8,819 answers, 28 tokens on average, with a long tail
  shift  S-LoRA's lengths (uniform, 8 to 512) for half of 40 tenants, conv's for the others; in the middle all change sides

Requests are of 40 tenants with power-law shares, each with up to three adapters and a scale of its own (log-normal, 0.5), in three
classes; half of the tenants set max_tokens to 256, 512, 1,024 or 2,048, the others leave 4,096.  --trace takes GeneratedTokens of a
file of that dataset as they are, in its order, instead.

Last line: the share that is farthest from 0.9.  Needs numpy.
"""
import argparse
import csv
import json
import subprocess
import sys

import numpy as np

AT = [0, 1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 98, 99, 99.9, 100]
CONV = [7, 16, 24, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400, 411, 424, 451, 540, 601, 954, 1000]
CODE = [6, 6, 6, 6, 7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 29, 39, 55, 90, 170, 251, 825, 1899]
# The medians of the eight parts of conv's hour, as shares of its own: which of its answers prevail.
DRIFT = [362, 182, 156, 93, 93, 116, 128, 217]
TENANTS = 40


def drawn(rng, table, n, bias=None):
    """n lengths by the table's quantiles; bias > 0.5 prefers long ones (median of the share that is drawn)."""
    u = rng.random(n)
    if bias is not None:
        u = u ** (np.log(bias) / np.log(0.5))
    return np.interp(100 * u, AT, table)


def conv(rng):
    parts = np.array_split(np.arange(19366), len(DRIFT))
    at = [np.interp(median, CONV, AT) / 100 for median in DRIFT]
    return np.concatenate([drawn(rng, CONV, len(p), a) for p, a in zip(parts, at)])


def requests(rng, lengths):
    """Lines for bench_lengths: tenant adapter class max_tokens length."""
    n = len(lengths)
    share = 1.0 / np.arange(1, TENANTS + 1) ** 0.8
    who = rng.choice(TENANTS, n, p=share / share.sum())
    scale = rng.lognormal(0, 0.5, TENANTS)
    bound = np.where(np.arange(TENANTS) % 2, rng.choice([256, 512, 1024, 2048], TENANTS), 4096)
    slo = rng.choice(3, TENANTS, p=[0.2, 0.5, 0.3])
    adapter = who * 3 + rng.integers(0, 3, n) + 1
    natural = np.maximum(1, np.rint(lengths * scale[who])).astype(int)
    return "".join(f"{w + 1} {a} {slo[w]} {bound[w]} {x}\n" for w, a, x in zip(who, adapter, natural))


def shift(rng, n=16000):
    uniform, talk = rng.integers(8, 513, n), drawn(rng, CONV, n)
    who = np.arange(n) % TENANTS
    first = (who % 2 == 0) == (np.arange(n) < n // 2)
    scale = rng.lognormal(0, 0.5, TENANTS)
    lengths = np.maximum(1, np.rint(np.where(first, uniform, talk) * scale[who])).astype(int)
    return "".join(f"{w + 1} {w + 1} {w % 3} 4096 {x}\n" for w, x in zip(who, lengths))


def recorded(path):
    with open(path) as f:
        lengths = [int(row["GeneratedTokens"]) for row in csv.DictReader(f)]
    return "".join(f"1 0 0 4096 {x}\n" for x in lengths)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("program")
    ap.add_argument("--trace", action="append", default=[])
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    rng = np.random.Generator(np.random.PCG64(args.seed))
    traces = {path: recorded(path) for path in args.trace} or {
        "conv": requests(rng, conv(rng)), "code": requests(rng, drawn(rng, CODE, 8819)), "shift": shift(rng)}
    shares = []
    for name, text in traces.items():
        out = subprocess.run([args.program], input=text, capture_output=True, text=True, check=True).stdout
        figures = json.loads(out)
        shares.append(figures["held"])
        print(f"{name:6} " + "  ".join(f"{k} {v}" for k, v in figures.items()))
    print(f"{max(shares, key=lambda s: abs(s - 0.9)):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
