#!/usr/bin/env python3
"""Request traces of published multi-LoRA benchmarks, reproduced draw by draw.

    workloads.py punica  --requests 1024 --maxlen 2048 --popularity skewed
    workloads.py slora   --adapters 200 --alpha 1 --rate 2 --cv 1 --duration 300
    workloads.py powerlaw --requests 400 --adapters 200 --alpha 1.0 --seed 1
    workloads.py slo --rate 10 --duration 120 --tenants 100
    workloads.py check   (compares with known values; exit status 0 or 1)

Writes one line per request to standard output: arrival_ms adapter prompt_tokens output_tokens, and
for slo its class and tenant.
An arrival of 0 for all means a closed loop: the load generator keeps a fixed number in flight.
Needs numpy; the order of draws is that of the authors' code (Punica 591b598, S-LoRA c1ddf48).
"""
import argparse
import math
import sys

import numpy as np

PUNICA_SEED = 0xABCDABCD987


def punica_lengths(n, maxlen):
    """Prompt lengths are log-normal, totals uniform; decode-heavy."""
    rng = np.random.Generator(np.random.PCG64(seed=PUNICA_SEED))
    prompts, outputs = [], []
    for _ in range(n):  # each request draws its normal, then its integer
        p = math.exp(0.8 * rng.standard_normal()) * 18 - 1
        t = int(rng.integers(0, maxlen))
        p = min(max(1.0, p), maxlen - 2)
        t = max(p + 2, t)
        prompts.append(int(p))
        outputs.append(int(t - p))
    return prompts, outputs


def punica_adapter_counts(n, popularity):
    """How many requests each adapter gets."""
    if popularity == "identical":
        return [n]
    if popularity == "distinct":
        return [1] * n
    if popularity == "uniform":
        k = math.ceil(math.sqrt(n))
        counts = [n // k] * k
        diff = n - sum(counts)
        for i in range(abs(diff)):
            counts[i] += 1 if diff > 0 else -1
        return counts
    counts, x = [], 1.0  # "skewed": geometric with ratio 1.5, called zipf by its authors
    while sum(counts) + math.floor(x) < n:
        counts.append(math.floor(x))
        x *= 1.5
    counts.append(n - sum(counts))
    return sorted(counts, reverse=True)


def punica(n, maxlen, popularity):
    prompts, outputs = punica_lengths(n, maxlen)
    counts = punica_adapter_counts(n, popularity)
    adapters = np.repeat(np.arange(len(counts)), counts)
    np.random.Generator(np.random.PCG64(seed=PUNICA_SEED)).shuffle(adapters)
    return [(0, int(a), p, o) for a, p, o in zip(adapters, prompts, outputs)]


def slora(adapters, alpha, rate, cv, duration, lo=8, hi=512, seed=42):
    """Gamma arrivals of one aggregate stream, power-law adapters, uniform lengths."""
    rng = np.random.RandomState(seed)
    n = int(rate * duration)
    which = (rng.power(alpha, n) * adapters).astype(int)
    prompts = rng.randint(lo, hi, n)
    outputs = rng.randint(lo, hi, n)
    gaps = rng.gamma(1 / cv**2, cv**2 / rate, n)
    arrivals = np.cumsum(gaps)
    return [(float(t) * 1000, int(a), int(p), int(o))
            for t, a, p, o in zip(arrivals, which, prompts, outputs)]


def powerlaw(requests, adapters, alpha, seed, lo=8, hi=64):
    """Closed loop; adapter i is asked for with probability proportional to 1 / (i + 1)^alpha."""
    rng = np.random.Generator(np.random.PCG64(seed))
    p = 1.0 / np.arange(1, adapters + 1) ** alpha
    which = rng.choice(adapters, size=requests, p=p / p.sum())
    return [(0, int(a), int(rng.integers(lo, hi)), int(rng.integers(lo, hi))) for a in which]


def slo(rate, duration, tenants, seed, cv=1.0):
    """Three classes 20/50/30, tenant 0 sends half of all ("/heavy"); each tenant has one adapter, its own.

    Gamma arrivals, log-normal lengths; rate 0: all at once (closed loop) of as many as 20 s bring.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    n = int(rate * duration) if rate else 400
    gaps = rng.gamma(1 / cv**2, cv**2 / rate, n) if rate else np.zeros(n)
    classes = rng.choice(["interactive", "standard", "batch"], size=n, p=[0.2, 0.5, 0.3])
    who = np.where(rng.random(n) < 0.5, 0, rng.integers(1, tenants, n))
    prompts = np.clip(rng.lognormal(4.6, 0.8, n), 8, 600).astype(int)
    outputs = np.clip(rng.lognormal(4.4, 0.7, n), 8, 400).astype(int)
    return [(float(t) * 1000, 0, int(p), int(o), str(c) + ("" if w else "/heavy"), int(w))
            for t, p, o, c, w in zip(np.cumsum(gaps), prompts, outputs, classes, who)]


def check():
    """Known values, of numpy's generators and the authors' code."""
    wrong = []

    def same(what, got, want):
        if got != want:
            wrong.append(f"{what}: {got} instead of {want}")

    p, o = punica_lengths(1024, 2048)
    same("punica prompts", p[:8], [24, 42, 8, 27, 3, 29, 18, 14])
    same("punica outputs", o[:8], [45, 1293, 936, 1796, 1502, 770, 1278, 754])
    same("punica sums", (sum(p), sum(o)), (24190, 1009565))
    same("punica skewed 32", punica_adapter_counts(32, "skewed"), [11, 7, 5, 3, 2, 2, 1, 1])
    same("punica skewed 64", punica_adapter_counts(64, "skewed"), [17, 17, 11, 7, 5, 3, 2, 1, 1])
    same("punica skewed 1024", punica_adapter_counts(1024, "skewed"),
         [291, 194, 157, 129, 86, 57, 38, 25, 17, 11, 7, 5, 3, 2, 1, 1])
    same("punica uniform", [len(punica_adapter_counts(n, "uniform")) for n in (32, 64, 1024)],
         [6, 8, 32])
    same("punica shuffle", [r[1] for r in punica(1024, 2048, "skewed")][:16],
         [5, 8, 0, 0, 3, 2, 2, 3, 0, 2, 6, 0, 3, 2, 8, 9])
    s = slora(200, 1, 2, 1, 300)
    same("slora adapters", [r[1] for r in s[:5]], [74, 190, 146, 119, 31])
    same("slora prompts", [r[2] for r in s[:5]], [12, 473, 99, 177, 324])
    same("slora outputs", [r[3] for r in s[:5]], [410, 43, 292, 195, 89])
    same("slora arrivals", [round(r[0] / 1000, 3) for r in s[:5]],
         [0.160, 3.086, 3.363, 3.664, 3.753])
    same("slora sums", (sum(r[2] for r in s), sum(r[3] for r in s)), (153447, 155474))
    same("slora distinct", len({r[1] for r in s}), 187)
    big = slora(2000, 1, 10, 1, 120)
    same("slora 2000 adapters", [r[1] for r in big[:5]], [749, 1901, 1463, 1197, 312])
    same("slora 2000 prompts", [r[2] for r in big[:5]], [388, 467, 14, 36, 402])
    same("slora 2000 distinct", len({r[1] for r in big}), 907)
    same("slora skew", [len({r[1] for r in slora(200, a, 2, 1, 300)}) for a in (0.1, 0.3, 0.6)],
         [107, 163, 188])
    for line in wrong:
        print(line, file=sys.stderr)
    print("workloads: " + (f"{len(wrong)} values differ" if wrong else "all known values match"))
    return 1 if wrong else 0


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    sub = ap.add_subparsers(dest="kind", required=True)
    a = sub.add_parser("punica")
    a.add_argument("--requests", type=int, default=1024)
    a.add_argument("--maxlen", type=int, default=2048)
    a.add_argument("--popularity", default="skewed",
                   choices=["identical", "distinct", "uniform", "skewed"])
    a = sub.add_parser("slora")
    a.add_argument("--adapters", type=int, default=200)
    a.add_argument("--alpha", type=float, default=1)
    a.add_argument("--rate", type=float, default=2)
    a.add_argument("--cv", type=float, default=1)
    a.add_argument("--duration", type=float, default=300)
    a.add_argument("--lo", type=int, default=8)
    a.add_argument("--hi", type=int, default=512)
    a = sub.add_parser("powerlaw")
    a.add_argument("--requests", type=int, default=400)
    a.add_argument("--adapters", type=int, default=200)
    a.add_argument("--alpha", type=float, default=1.0)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--lo", type=int, default=8)
    a.add_argument("--hi", type=int, default=64)
    a = sub.add_parser("slo")
    a.add_argument("--rate", type=float, default=0)
    a.add_argument("--duration", type=float, default=120)
    a.add_argument("--tenants", type=int, default=100)
    a.add_argument("--seed", type=int, default=1)
    sub.add_parser("check")
    args = vars(ap.parse_args())
    kind = args.pop("kind")
    if kind == "check":
        return check()
    if kind == "punica":
        args["n"] = args.pop("requests")
    for t, *rest in {"punica": punica, "slora": slora, "powerlaw": powerlaw, "slo": slo}[kind](**args):
        print(f"{t:.3f}", *rest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
