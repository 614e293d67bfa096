"""predict.py -- what a step will take on a device, from the machine code of our kernels and what they move.

    predict.py [--budget FILE] [--trace PROGRAM] [--write] [--table] OBJECT...

Reads engine/cuda's kernels out of the objects (cubin.py).  For each: registers, shared memory, the threads that a
multiprocessor holds, and the instructions that a warp issues for one piece of work (WORK).  From these, the bytes of a shape
and the launches of a layer come step times for the DEVICES below.  They are estimates by the ASSUMED figures: what they are
for is to show what a change does before a device is at hand.  How long a step takes: calibrated.py, whose table comes first.  PROGRAM (emu.bench_device) runs steps on the emulated device
and names their launches; they must be the budget's.

Fails (1) where a kernel is heavier than FILE says, a layer has more launches, or a step is slower.  --write makes FILE anew,
--table prints it all.  2: usage.  77: the objects have no code for one of the DEVICES.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

import calibrated
import cubin

# ---- what is assumed, and taken from data sheets ---------------------------------------------------------------------------

# sm, multiprocessors, GHz under load, bytes a second of a copy (read and written), BF16 operations a second
DEVICES = {"H200": (90, 132, 1.75, 4.3e12, 790e12)}
# registers, bytes of shared memory, threads, blocks, bytes that the system keeps of each block
SM = {80: (65536, 164 << 10, 2048, 32, 1024), 90: (65536, 228 << 10, 2048, 32, 0), 100: (65536, 228 << 10, 2048, 32, 0)}  # from 90 on the static part holds it
WEIGHED = (80, 90)
BLOCK_SHARED = {80: 163 << 10, 90: 227 << 10}  # of one block, asked for by name
ASSUMED = {
    "gap_us": 1.0,  # from the end of a launch of a graph to the begin of the next
    # of it, where the next may begin early (programmatic dependent launch): the most that an empty pair of kernels was seen to
    # save, in a graph, at 1,755 MHz (github.com/pegainfer-project/pegainfer, issue 569, comment of 6 July 2026)
    "early_us": 0.96,
    "chain_us": 1.2,  # a kernel's first useful byte, and its last write
    "join_us": 0.5,  # more of the gap before a launch that waits for two branches of a graph: no source, half a gap
    "trip_us": 0.25,  # to the second-level cache and back, for what other blocks wrote: up to 400 cycles on an H100
    # (chipsandcheese.com, "Nvidia's H100: Funny L2"; arXiv 2402.13499)
    "lora_chain_us": 1.5,  # counts, chunk, table and address, one after another
    "warp_ipc": 0.6,  # instructions a cycle of one warp that is alone
    "sm_ipc": 2.0,  # of a multiprocessor that is full
    "memory": 0.90,  # of the copy's bandwidth that a kernel with enough warps reaches
    "product_memory": 0.92,  # cuBLAS's, where its blocks fill the device ...
    "product_cols": 64,  # ... of so many columns each, without split K
    "product_fill": 1.2,  # and this times the share of multiprocessors that have one, where they do not
    "product_rate": 0.70,  # of the matrix rate, with many rows
    "mma_sync": {90: 0.60},  # of the matrix rate that mma.sync reaches in our own products, by sm
    # wgmma reaches the matrix rate: a product of 8192^3 on an H100, 808 TFLOP/s (https://github.com/pranjalssh/fast.cu).  What it
    # reads: of shared memory bytes a cycle of a multiprocessor, reads and copies alike, and of the second-level cache bytes
    # a second, on an H200 with a set of 20 MB (both https://github.com/te42kyfo/gpu-benches), and as many written
    "shared_bytes": 128,
    "cache": 9.7e12,
    # Streams read x through that cache, once a block, and on an H200 it adds to the time of their weights: from 16 to 32 rows
    # 4,096 x 14,336 took 5.4 us more for 59 MB (tests/bench/RESULTS.md)
    "head_and_rest_us": 60,  # sampling, embedding, the last norm
}

SLICE = 32 << 20  # cuda.c's WORKSPACE_BYTES, in which codes become plain

MODEL = {"layers": 32, "dim": 4096, "ffn": 14336, "heads": 32, "kv": 8, "head": 128, "vocab": 128256, "rank": 16}
# weights by their codes (gemm_codes.cu): the number of the form, bits of a code, k that share a scale; the output layer is BF16,
# as files have it, unless codes are "all" (model.weights = fp8)
FORMS = {"FP8": (1, 8, 1 << 30), "FP8, f32 scales of 128": (2, 8, 128), "8 bits": (3, 8, 1 << 30), "Q8_0": (4, 8, 32),
         "4 bits": (6, 4, 128), "Q4_0": (6, 4, 32)}
STEPS = {  # name: rows, positions before and with them, rows of a sequence, adapters, the kind of launches, what are codes
    "1 row over 512": (1, 512, 1, 0, "bare"),
    "8 rows over 512": (8, 512, 1, 0, "bare"),
    "32 rows over 512": (32, 512, 1, 0, "bare"),
    "32 rows over 512, 32 adapters": (32, 512, 1, 32, "adapters"),
    "32 rows over 512, one adapter": (32, 512, 1, 1, "adapters"),
    "32 rows over 8192": (32, 8192, 1, 0, "bare"),
    "32 rows over 1024": (32, 1024, 1, 0, "bare"),  # what bench_device measures, with the next two
    "32 rows over 1024, 32 adapters": (32, 1024, 1, 32, "adapters"),
    "32 rows over 1024, one adapter": (32, 1024, 1, 1, "adapters"),
    "prompts of 4 x 2048": (8192, 2048, 2048, 0, "prompts"),
}
for form in FORMS:
    STEPS[f"32 rows over 512, {form}"] = (*STEPS["32 rows over 512"], form)
for at in ("1 row over 512", "32 rows over 512", "32 rows over 512, 32 adapters"):
    STEPS[f"{at}, FP8, all"] = (*STEPS[at], "FP8", "all")
for at in ("32 rows over 512", "32 rows over 512, FP8", "32 rows over 8192", "prompts of 4 x 2048"):
    STEPS[f"{at}, int8 KV"] = (*STEPS[at], "int8 KV")
for form in ("FP8", "4 bits"):
    for at in ("1 row over 512", "8 rows over 512", "32 rows over 512, 32 adapters", "prompts of 4 x 2048"):
        STEPS[f"{at}, {form}"] = (*STEPS[at], form)

# ---- pieces of work by which kernels are weighed: {instruction: times} of one warp -----------------------------------------

WORK = {}
KV = {2: 2, 3: 1}  # what kernels of attention keep, bf16 or int8: bytes of a value
for hd, (kv, size) in ((hd, kv) for hd in (64, 128) for kv in KV.items()):
    copies, products = 2 * 64 * hd * size // 16 // 32, 16 * hd // 16
    small, large = f"small_kernel<{hd},{kv}>", f"large_kernel<{hd},{kv}>"
    for tiles in (1, 3):  # of 64 keys; the difference is two in the middle of a sequence
        work = {"HMMA>=16": tiles * products, "MUFU>=8": tiles * 34}  # a weight for each of a lane's 32 keys, two rows' factors
        WORK[small, f"{tiles} tiles"] = {f"LDGSTS>={hd * size // 16}": tiles * copies, **work}
        WORK[large, f"{tiles} tiles"] = {f"LDGSTS>={size}": tiles * copies // 8, **work}
        if size == 1:  # codes become values: a piece in two
            WORK[large, f"{tiles} tiles"]["STS"] = tiles * copies // 8 * 2
    WORK[small, "1 tiles, 2 splits merged"] = {**WORK[small, "1 tiles"], "ATOMG": 1, "STG": hd // 8 + hd // 16}
for nt in (1, 4):
    WORK[f"shrink_kernel<{nt},1>", "128 k, 16 ranks"] = {"HMMA": 8 * nt}
    WORK[f"shrink_kernel<{nt},1>", "256 k, 16 ranks"] = {"HMMA": 16 * nt}
    WORK[f"expand_kernel<{nt},1>", "64 columns, 16 ranks"] = {"HMMA": 8 * nt, "STG": 2 * nt}
    WORK[f"expand_kernel<{nt},1>", "64 columns, bare"] = {"STG": 2 * nt}
for rows in (1, 8):
    WORK["expand_gated_kernel", f"64 columns, 16 ranks, {rows} rows"] = {"HMMA": 16, "STG": rows}
for nt, stages in ((2, 6), (4, 3)):  # 32 rows of up to six units of 16 columns, and of more
    for n in (1, 2):
        load, mma = 8 * (nt // 2 + 1) * n, 8 * nt * n
        WORK[f"gemm_stream_kernel<{nt},{stages},1>", f"{128 * n} k"] = {"LDSM": load, "HMMA": mma}
        for gated in (0, 1):
            label = f"gemm_lora_kernel<{nt},{stages},1,{gated}>"
            WORK[label, f"{128 * n} k"] = {"LDSM": load, "HMMA": mma}
            WORK[label, f"shrink of 1024 k, {16 * n} ranks"] = {"HMMA": 64 * n, "ATOMG": 3, "STG": 4 * n}
for nt in (1, 2, 4, 8):
    for k in (128, 256):
        WORK[f"gemm_small_kernel<{nt},1>", f"{k} k"] = {"HMMA": k // 16 * nt}
        WORK[f"gemm_small_kernel<{nt},1>", f"{k} k, split"] = {"HMMA": k // 16 * nt, "BAR": 1}
        if nt in (1, 4):
            WORK[f"grouped_small_kernel<{nt},1>", f"{k} k"] = {"HMMA": k // 16 * nt}
    WORK[f"gemm_small_kernel<{nt},1>", "128 k, gated"] = {"HMMA": 8 * nt, "MUFU": 4 * nt}
    for form in range(1, 7):  # two blocks of 128 k in a turn
        for k in (256, 768):
            WORK[f"gemm_codes_few_kernel<{nt},{form}>", f"{k} k"] = {"HMMA": k // 16 * nt}
            WORK[f"gemm_codes_few_kernel<{nt},{form}>", f"{k} k, split"] = {"HMMA": k // 16 * nt, "BAR": 1}
        WORK[f"gemm_codes_few_kernel<{nt},{form}>", "256 k, gated"] = {"HMMA": 16 * nt, "MUFU": 4 * nt}
for form in range(1, 7):
    WORK[f"gemm_codes_plain_kernel<{form}>", "16 columns, 128 k"] = {"STG": 8}
    for k in (64, 192):
        WORK[f"gemm_codes_many_kernel<{form}>", f"{k} k"] = {"HMMA": k, "STS": k // 16}
for k in (64, 192):
    WORK["gemm_large_kernel<1>", f"{k} k"] = {"HMMA": k}
    WORK["grouped_large_kernel<1>", f"{k} k"] = {"HMMA": k}
    WORK["gemm_wide_kernel<1>", f"{k} k"] = {"HGMMA": k // 16, "LDGSTS>=8": 21 * k // 64}
for n in (1, 2):  # of 64 k, whose copies are left out
    WORK["gemm_wide_kernel<1>", f"{n} stages"] = {"HGMMA": 4 * n}
    WORK["gemm_wide_kernel<1>", f"{n} tiles"] = {"HGMMA": 4 * n, "STG": 52 * n}
    WORK["gemm_wide_kernel<1>", f"{n} tiles, gated"] = {"HGMMA": 4 * n, "MUFU": 104 * n}
    WORK["gemm_wide_kernel<1>", f"{n} chunks"] = {"HGMMA": 4 * n, "FADD>=16": 104 * n}
WORK["shrink_tile_kernel<1>", "64 k, 64 ranks"] = {"HMMA": 32}
WORK["rms_norm_kernel<1>", "8 values a thread"] = {"LDG": 4, "STG": 2}
WORK["rope_kernel", "a head of 128"] = {"STG": 4}
WORK["silu_kernel", "4 values a thread"] = {"LDG": 2, "STG": 1}
WORK["plain_kernel", "a row, any length"] = {"STG": 1}
WORK["sample_kernel", "a row"] = {"STG": 1}
WORK["embed_kernel", "8 values a thread"] = {"LDG": 1, "STG": 2}


def resident(arch, k, threads, shared):
    """Blocks of a multiprocessor at a time."""
    regs, bytes_, most, blocks, kept = SM[arch]
    warps = -(-threads // 32)
    n = min(blocks, most // (warps * 32), regs // (-(-k.registers * 32 // 256) * 256) // warps)
    all_shared = k.shared + shared
    return min(n, bytes_ // (all_shared + kept)) if all_shared else n


def weigh(objects):
    """{kernel: {"sm_90": {...}}} of all that WORK names."""
    out, bad = {}, []
    for path in objects:
        for (arch, _), k in cubin.kernels(path).items():
            if arch not in WEIGHED:
                continue
            if k.registers * -(-k.threads // 32) * 32 > SM[arch][0] or k.shared > BLOCK_SHARED[arch]:
                bad.append(f"{k.label} for sm_{arch}: a block of {k.threads} threads can't be launched")
            work = {what: k.least(marks) for (label, what), marks in WORK.items() if label == k.label}
            if not work:
                continue
            bad += [f"{k.label} for sm_{arch} no longer does '{w}' as predict.py has it" for w, n in work.items() if n is None]
            # before a wait for the launches before, at least; 0: it has none
            ahead = min(n - (k.least(WORK[k.label, w], late=True) or 0) for w, n in work.items() if n) if k.count("ACQBULK") else 0
            out.setdefault(k.label, {})[f"sm_{arch}"] = {"registers": k.registers, "shared": k.shared, "work": work,
                                                         "ahead": ahead, "object": k}
    bad += [f"{label} is in no object" for label in sorted({w[0] for w in WORK} - set(out))]
    return out, bad


# ---- a step ----------------------------------------------------------------------------------------------------------------


class Step:
    """One step on one device; each method is the time of a launch, in us."""

    def __init__(self, device, weights, step, law):
        self.arch, self.n_sm, ghz, self.copy, self.matrix = DEVICES[device]
        self.cycles = ghz * 1e3
        self.weights, self.ours = weights, law == "own"
        self.rows, self.len, self.each, self.adapters, self.kind, *codes = STEPS[step]
        self.form = next((FORMS[c] for c in codes if c in FORMS), None)
        self.head_form = self.form if "all" in codes else None
        self.kv = 3 if "int8 KV" in codes else 2
        self.kv_bytes = 2 * MODEL["kv"] * (MODEL["head"] * KV[self.kv] + (2 if self.kv == 3 else 0))  # of a position, with scales
        self.nt = 1 if self.kind != "prompts" else 4
        self.bytes = self.flop = 0
        m = MODEL
        qkv = (m["heads"] + 2 * m["kv"]) * m["head"]
        self.products = [(qkv, m["dim"], [m["heads"] * m["head"], m["kv"] * m["head"], m["kv"] * m["head"]]),
                         (m["dim"], m["heads"] * m["head"], [m["dim"]]),
                         (2 * m["ffn"], m["dim"], [m["ffn"], m["ffn"]]), (m["dim"], m["ffn"], [m["dim"]])]
        self.at = -1
        self.last = (0, 0, 0)  # us of the last launch: fixed, of its instructions, of its bytes
        self.early = False  # the next one begins beside the last one
        self.before = (0, 0)  # us of that, from its begin: all, and of its bytes

    def work(self, label, what):
        return self.weights[label][f"sm_{self.arch}"]["work"][what]

    def launch(self, label, blocks, threads, instructions, bytes_, shared=0, chain_us=0.0, ahead=0):
        """A kernel of ours: what takes longer, its bytes or its instructions; and what each launch takes.  chain_us: what it
        waits for besides, of a step's lists alone; ahead: bytes that each block asks for before the launch before has ended."""
        k = self.weights[label][f"sm_{self.arch}"]["object"]
        fit = resident(self.arch, k, threads, shared)
        if fit < 1:
            raise SystemExit(f"{label}: {threads} threads with {shared} bytes of shared memory do not fit sm_{self.arch}")
        warps = threads // 32 * min(fit, -(-blocks // self.n_sm))
        ipc = min(ASSUMED["warp_ipc"], ASSUMED["sm_ipc"] / warps)
        waves = -(-blocks // (fit * self.n_sm))
        took, used = self.before
        if self.early and took > ASSUMED["gap_us"]:
            instructions -= self.weights[label][f"sm_{self.arch}"]["ahead"] / waves  # of the first: done before the wait
        issue = waves * instructions / ipc / self.cycles
        self.bytes += bytes_
        rate = self.copy * ASSUMED["memory"] / 1e6
        fixed, moved = ASSUMED["gap_us"] + ASSUMED["chain_us"] + chain_us, bytes_ / rate
        if self.early:
            # It begins a gap after the launch before did.  Until that ends, lists are followed, and memory is free for as long
            # as that launch leaves it, two trips after it was asked.
            fixed -= ASSUMED["early_us"] + min(chain_us, max(0, took - ASSUMED["gap_us"]))
            free = took - used - ASSUMED["gap_us"] - 2 * ASSUMED["trip_us"]
            moved -= max(0, min(free, min(blocks, fit * self.n_sm) * ahead / rate))
        return self.took(fixed, issue, moved)

    def took(self, fixed, issue, moved):
        self.last = (fixed, issue, moved)
        return self.ended(fixed + max(issue, moved))

    def ended(self, us):
        self.before = (us - (ASSUMED["gap_us"] - (ASSUMED["early_us"] if self.early else 0)), self.last[2])
        return us

    def beside(self, branch, main, early):
        """Two launches that nothing orders: each as long as alone, and both together no faster than the device issues their
        instructions and moves their bytes."""
        alone, parts = 0, []
        for launch in (main, branch):  # the product says which one it is
            self.early = early and launch is main
            alone = max(alone, launch())
            parts.append(self.last)
        fixed, self.early = min(p[0] for p in parts), early
        self.last = (fixed, sum(p[1] for p in parts), sum(p[2] for p in parts))
        return self.ended(max(alone, fixed + max(self.last[1:])) + ASSUMED["join_us"])

    def wide_product(self, n, k, bytes_, part=1.0):
        """By wgmma, that part of the columns: a block for each multiprocessor walks tiles of 128 rows by 208 columns.  A stage of
        64 k takes as long as its products, its operands' way into shared memory and out of it, or its instructions; nothing runs
        beside the end of a chunk and of a tile."""
        rows, cols, warps, cycle = 128, 208, 8, 1 / self.cycles
        copied = (rows + cols) * 64 * 2
        read = 2 * (rows // 2 + cols) * 64 * 2  # each of two warpgroups: its rows, and all columns
        label, what = "gemm_wide_kernel<1>", "tiles"
        one, three = (self.work(label, f"{i} k") for i in (64, 192))
        turn = warps / ASSUMED["sm_ipc"] * cycle  # of one instruction of each warp
        stage = max(2e6 * rows * cols * 64 * self.n_sm / self.matrix, (copied + read) / ASSUMED["shared_bytes"] * cycle,
                    1e6 * copied * self.n_sm / ASSUMED["cache"], (three - one) / 2 * turn)
        more = {w: self.work(label, f"2 {w}") - self.work(label, f"1 {w}") for w in ("stages", "chunks", "tiles", "tiles, gated")}
        chunk = (more["chunks"] - more["stages"]) * turn + ASSUMED["trip_us"]
        written = rows * cols * 4 * (2 if n == MODEL["dim"] else 1)  # the residual stream is read, too
        if n == 2 * MODEL["ffn"] and not self.adapters:  # what is written is the gate, bf16 of half of it
            bytes_ -= self.rows * n * part * 3
            written, what = written // 4, "tiles, gated"
        end = max((more[what] - more["stages"]) * turn, 1e6 * written * self.n_sm / ASSUMED["cache"])
        waves = -(-(-(-round(n * part) // cols) * -(-self.rows // rows)) // self.n_sm)
        took = 2 * ASSUMED["trip_us"] + waves * (k / 64 * stage + (-(-k // 2048) - 1) * chunk + ASSUMED["trip_us"] + end)
        return self.took(ASSUMED["gap_us"] + ASSUMED["chain_us"], took, bytes_ / (self.copy * ASSUMED["memory"]) * 1e6)

    def sliced_product(self, n, k):
        """By codes: slices of columns become plain and then go by wgmma.  They fit the second-level cache, but what is written
        of them counts as memory's: the cache holds rows as well."""
        form, bits, group = self.form
        halves = 2 if n == 2 * MODEL["ffn"] and not self.adapters else 1
        each = 208 * halves  # slice_columns() in gemm_codes.cu
        units, tiles = -(-n // each), -(-self.rows // 128) * halves
        most = min(range(min(units, SLICE // (2 * each * k)), 0, -1),
                   key=lambda u: units // u * -(-u * tiles // self.n_sm) + -(-(units % u) * tiles // self.n_sm))
        label, us = f"gemm_codes_plain_kernel<{form}>", 0
        for at in range(0, n, most * each):
            cols = min(most * each, n - at)
            us += self.launch(label, -(-k // 1024) * -(-cols // 16), 256, self.work(label, "16 columns, 128 k"),
                              cols * (k * bits // 8 + 4 * -(-k // group) + 2 * k))
            us += self.wide_product(n, k, self.rows * (2 * k + 4 * cols), cols / n)
        return us

    def our_product(self, n, k, bytes_):
        chunks = -(-k // 2048)  # GEMM_CHUNK
        if self.rows > 64 and self.arch == 90:
            return self.sliced_product(n, k) if self.form else self.wide_product(n, k, bytes_)
        if self.rows > 64:
            label = f"gemm_codes_many_kernel<{self.form[0]}>" if self.form else "gemm_large_kernel<1>"
            one, three = (self.work(label, f"{i} k") for i in (64, 192))
            blocks = -(-n // 128) * -(-self.rows // 128)
            waves = -(-blocks // self.n_sm)
            issue = waves * (one + (k / 64 - 1) * (three - one) / 2) * 8 / ASSUMED["sm_ipc"] / self.cycles
            rate = self.matrix * ASSUMED["mma_sync"][self.arch]
            full = waves * self.n_sm / blocks  # the last wave may be a part
            return self.took(ASSUMED["gap_us"] + ASSUMED["chain_us"], max(issue, 2e6 * n * k * self.rows * full / rate), 0)
        nt = 1 if self.rows <= 8 else 2 if self.rows <= 16 else 4 if self.rows <= 32 else 8
        label = f"gemm_codes_few_kernel<{nt},{self.form[0]}>" if self.form else f"gemm_small_kernel<{nt},1>"
        least, most = (256, 768) if self.form else (128, 256)
        split = 0 if chunks == 1 or -(-n // 64) >= 2 * self.n_sm else 1 if chunks == 2 else 2  # few_split()
        kind = ", split" if split else ""
        first, more = (self.work(label, f"{i} k{kind}") for i in (least, most))
        each = (more - first) / (most - least)  # of one k
        if n == 2 * MODEL["ffn"] and not self.adapters:  # its epilogue is the gate, which leaves bf16 of half of it
            bytes_ -= self.rows * n * 3
            first = self.work(label, f"{least} k, gated")
        summed = -(-chunks // 2 ** split) * 2048 if split else k  # by a warp
        cols, threads = (16, 32 << split) if split else (64, 128)
        # of each thread: 4 steps of two rows, or a block of codes; with 64 rows, codes are not asked for ahead
        ahead = threads * (128 if not self.form else 0 if nt == 8 else 64 if self.form[1] == 8 else 32)
        return self.launch(label, -(-n // cols), threads, first + (summed - least) * each, bytes_, ahead=ahead)

    def cut(self, n):
        """stream_cut_of(): units of 16 columns of a block, and the instance's tiles of rows and stages."""
        if self.rows != 32 or self.arch != 90:
            raise SystemExit("streams are weighed of 32 rows on sm_90")
        units = -(-n // 16)
        units = -(-units // (-(-units // (14 * self.n_sm)) * self.n_sm))
        return (units, 2, 6) if units <= 6 else (units, 4, 3)

    def stream(self, label, n, k, bytes_, chain_us=0.0, more=0):
        """By one chain: the weights, then each block's x through the second-level cache; `more` bytes from there besides."""
        units, nt, _ = self.cut(n)
        blocks, warps = -(-n // (16 * units)), units * (2 if nt == 2 else 1)
        one, two = (self.work(label, f"{i} k") for i in (128, 256))
        issue = (one + (k / 128 - 1) * (two - one)) * warps / ASSUMED["sm_ipc"] / self.cycles
        more += blocks * self.rows * k * 2
        fixed = ASSUMED["gap_us"] + ASSUMED["chain_us"] + chain_us - (ASSUMED["early_us"] if self.early else 0)
        self.bytes += bytes_
        return self.took(fixed, issue, bytes_ / (self.copy * ASSUMED["memory"]) * 1e6 + more / ASSUMED["cache"] * 1e6)

    def gemm_stream_kernel(self):
        self.at += 1
        n, k, outs = self.products[self.at]
        gated = len(outs) == 2 and not self.adapters
        _, nt, stages = self.cut(n)
        return self.stream(f"gemm_stream_kernel<{nt},{stages},1>", n, k, 2 * n * k + self.rows * (2 * k + (n if gated else 4 * n)))

    def gemm_lora_kernel(self):
        """The product and all of LoRA: A's and B's bytes behind those of the weights; a block has four warps that shrink, which
        read x's rows once for each piece."""
        self.at += 1
        n, k, outs = self.products[self.at]
        gated, rank = len(outs) == 2, MODEL["rank"]
        bytes_ = 2 * n * k + self.rows * (2 * k + (n if gated else 4 * n)) + self.adapters * rank * 2 * (len(outs) * k + n)
        again = self.chunks() * len(outs) * 8 * k * 2 + (self.chunks() - self.adapters) * rank * 2 * (len(outs) * k + n)
        _, nt, stages = self.cut(n)
        label = f"gemm_lora_kernel<{nt},{stages},1,{int(gated)}>"
        us = self.stream(label, n, k, bytes_, 2 * ASSUMED["trip_us"], again)
        slices, planes = self.planes(k)
        one, two = (self.work(label, f"shrink of 1024 k, {i} ranks") for i in (16, 32))
        turns = -(-self.chunks() * len(outs) * planes // (4 * self.n_sm))
        chains = 8 * slices * 2 * ASSUMED["trip_us"] + (two - one) * slices / ASSUMED["warp_ipc"] / self.cycles
        return max(us, self.ended(self.last[0] + turns * (chains + 2 * ASSUMED["trip_us"])))

    def product(self):
        self.at += 1
        return self.multiply(*self.products[self.at][:2])

    def multiply(self, n, k):
        bytes_ = 2 * n * k
        if self.form:
            _, bits, group = self.form
            bytes_ = n * k * bits // 8 + 4 * n * -(-k // group)
        bytes_ += self.rows * (2 * k + 4 * n)
        self.flop += 2 * n * k * self.rows
        if self.ours:
            return self.our_product(n, k, bytes_)
        self.bytes += bytes_
        blocks = -(-n // ASSUMED["product_cols"]) * -(-self.rows // 64)
        fill = blocks / (-(-blocks // self.n_sm) * self.n_sm)
        rate = self.copy * min(ASSUMED["product_memory"], ASSUMED["product_fill"] * fill)
        flop = 2 * n * k * self.rows
        self.early = False
        return self.took(ASSUMED["gap_us"], 1e6 * flop / (self.matrix * ASSUMED["product_rate"]), 1e6 * bytes_ / rate)

    def rms_norm_kernel(self):
        d = MODEL["dim"]
        return self.launch("rms_norm_kernel<1>", self.rows, d // 8, self.work("rms_norm_kernel<1>", "8 values a thread"),
                           self.rows * d * 6)

    def rope_kernel(self):
        heads = MODEL["heads"] + 2 * MODEL["kv"]  # q is read and written, k and v go into their page
        return self.launch("rope_kernel", self.rows * heads // 4, 128, self.work("rope_kernel", "a head of 128"),
                           self.rows * (MODEL["head"] * (MODEL["heads"] * 8 + 2 * MODEL["kv"] * 4) + self.kv_bytes))

    def chunks(self):
        if not self.adapters:
            return -(-self.rows // (8 * self.nt))
        return max(self.adapters, -(-self.rows // (8 * self.nt)))

    def planes(self, k):
        """Slices of 128 k in each of a plane's 8 chains, and planes: sgmv_plane_k()."""
        slices = -(-k // 8192)
        return slices, -(-k // (slices * 1024))

    def shrink_kernel(self):
        _, k, outs = self.products[self.at]
        label = f"shrink_kernel<{self.nt},1>"
        first, more = (self.work(label, f"{n} k, 16 ranks") for n in (128, 256))
        slices, planes = self.planes(k)
        return self.launch(label, self.chunks() * len(outs) * planes, 256, first + (slices - 1) * (more - first),
                           self.adapters * len(outs) * MODEL["rank"] * k * 2 + self.rows * k * 2,
                           chain_us=ASSUMED["lora_chain_us"])

    def expand_kernel(self):
        _, _, outs = self.products[self.at]
        label, groups = f"expand_kernel<{self.nt},1>", sum(-(-n // 512) for n in outs)
        what = "64 columns, 16 ranks" if self.adapters else "64 columns, bare"
        added = 12 if len(outs) == 1 else 8  # the residual stream is read, too
        rank16 = 64 if self.kind == "adapters" else 16
        shared = 2 * self.nt * 8 * (rank16 // 2 + 4) * 4 if self.adapters else 0
        return self.launch(label, self.chunks() * groups, 256, self.work(label, what),
                           self.adapters * sum(outs) * MODEL["rank"] * 2 + self.rows * sum(outs) * added, shared,
                           ASSUMED["lora_chain_us"])

    def expand_gated_kernel(self):
        _, _, outs = self.products[self.at]
        label, rank = "expand_gated_kernel", MODEL["rank"] if self.adapters else 0
        one, eight = (self.work(label, f"64 columns, 16 ranks, {n} rows") for n in (1, 8))
        rows = min(8, -(-self.rows // self.chunks()))  # of a chunk
        return self.launch(label, self.chunks() * -(-outs[0] // 512), 256, one + (rows - 1) * (eight - one) / 7,
                           self.adapters * sum(outs) * rank * 2 + self.rows * (sum(outs) * 4 + outs[0] * 2),
                           2 * 16 * (64 // 2 + 4) * 4, ASSUMED["lora_chain_us"])

    def small_kernel(self):
        if self.kind == "prompts":
            return 0  # left out
        label = f"small_kernel<{MODEL['head']},{self.kv}>"
        shared = 3 * 32 * (KV[self.kv] * MODEL["head"] + 16) + (2 * 64 * 4 if self.kv == 3 else 0)
        one, three = (self.work(label, f"{n} tiles") for n in (1, 3))
        chain = 0
        if self.turned:  # its row's heads of q, k and v, as rope_kernel has them; their read, and a write before the tile's
            group = MODEL["heads"] // MODEL["kv"]
            one, three = (n + (group + 2) * self.work("rope_kernel", "a head of 128") for n in (one, three))
            if not self.early or self.len < 128:  # else the first tile is on its way meanwhile
                chain = 3 * ASSUMED["trip_us"]
        splits = -(-self.len // 512)
        items = self.rows * MODEL["kv"] * splits
        tiles = min(self.len, 512) // 64
        work = one + (tiles - 1) * (three - one) / 2
        bytes_ = self.rows * self.len * self.kv_bytes
        if splits == 1:
            return self.launch(label, items, 32, work, bytes_, shared, chain)
        work += self.work(label, "1 tiles, 2 splits merged") - self.work(label, "1 tiles")  # the first two of a merge, in every item
        sums = 2 * self.rows * MODEL["heads"] * splits * MODEL["head"] * 4  # written and read
        trips = 3 + splits  # the ticket and its answer, the maxima, then split after split
        return self.launch(label, items, 32, work, bytes_ + sums, shared, chain + trips * ASSUMED["trip_us"])

    def large_kernel(self):
        label = f"large_kernel<{MODEL['head']},{self.kv}>"
        one, three = (self.work(label, f"{n} tiles") for n in (1, 3))
        group, seqs = MODEL["heads"] // MODEL["kv"], self.rows // self.each
        blocks = seqs * MODEL["kv"] * self.each * group // 128
        mean = self.len / 64 / 2 + 1
        waves = blocks / self.n_sm  # longest first: the last ones fill what is left
        issue = waves * (one + (mean - 1) * (three - one) / 2) * 8 / ASSUMED["sm_ipc"] / self.cycles
        return ASSUMED["gap_us"] + ASSUMED["chain_us"] + issue

    def silu_kernel(self):
        if self.ours and not self.adapters and (self.rows <= 64 or self.arch == 90):
            return 0  # the product itself gates
        n = self.rows * MODEL["ffn"]
        return self.launch("silu_kernel", n // 1024, 256, self.work("silu_kernel", "4 values a thread"), n * 10)

    def total(self, names):
        """Of the whole step, whose layers have the launches `names`: ms, and those of its bytes or products alone."""
        us, names = 0, list(names)
        self.turned = not any("rope_kernel" in n for n in names)  # attention does it on the way
        self.before = (1e9, 1e9)  # the first of a layer comes after its last one
        while names:
            main = names.pop(0)
            branch = main.startswith("~") and getattr(self, main[1:])  # and what it runs beside
            main = names.pop(0) if branch else main
            self.early = main.startswith("+")
            main = getattr(self, main.lstrip("+"))
            us += self.beside(branch, main, self.early) if branch else main()
        us *= MODEL["layers"]
        self.bytes, self.flop = self.bytes * MODEL["layers"], self.flop * MODEL["layers"]
        self.rows = self.rows // self.each  # logits of the last of each sequence
        self.form = self.head_form
        self.early = False
        us += self.multiply(MODEL["vocab"], MODEL["dim"]) + ASSUMED["head_and_rest_us"]
        return us / 1e3, 1e3 * max(self.bytes / self.copy, self.flop / self.matrix)


def steps(weights, launches):
    out = {}
    for device in DEVICES:
        for name, step in STEPS.items():
            sm = f"sm_{DEVICES[device][0]}"
            ours, least = Step(device, weights, name, "own").total(launches[f"{sm} own"][step[4]])
            out[f"{device}: {name}"] = {"ours_ms": round(ours, 3), "least_ms": round(least, 3)}
            if len(step) == 5:  # cuBLAS has none with codes
                ms, least = Step(device, weights, name, "cublas").total(launches[f"{sm} cublas"][step[4]])
                out[f"{device}: {name}"].update(cublas_ms=round(ms, 3), least_ms=round(least, 3))
            if len(step) == 5 and step[0] == 32 and sm == "sm_90":
                ms, _ = Step(device, weights, name, "chain").total(launches[f"{sm} chain"][step[4]])
                out[f"{device}: {name}"]["chain_ms"] = round(ms, 3)
    return out


# ---- what layers launch ----------------------------------------------------------------------------------------------------


def traced(program):
    """{device and products: {kind: [launches of one layer]}}: beside another one behind a ~, early behind a +."""
    return {f"sm_{sm} {products}": traced_on(program, sm, products)
            for sm in sorted(d[0] for d in DEVICES.values()) for products in ("own", "cublas", "chain") if products != "chain" or sm >= 90}


def traced_on(program, sm, products):
    """{kind: [launches of one layer]} of emu.bench_device, whose shape has two layers."""
    chain = products == "chain"  # cuBLAS's, and ours that have its order
    asked = ["--shape", "tiny", "--fraction", "0.9", "--products", "cublas" if chain else products, "launches"]
    said = subprocess.run([pathlib.Path(program).resolve(), *asked], check=True, capture_output=True, text=True,
                          env={**os.environ, "EMU_CAPABILITY": str(sm), **({"EMU_CUBLAS": "chain"} if chain else {})}, cwd=pathlib.Path(__file__).parent.parent).stdout
    out = {}
    for kind, names in re.findall(r"^LAUNCHES (\w+): (.*)$", said, re.M):
        how = [re.match("[~+]?", n).group(0) for n in names.split(";") if n]
        every = [re.search(r"[A-Za-z_]\w+", n).group(0) for n in names.split(";") if n]
        streams = ("gemm_stream_kernel", "gemm_lora_kernel") if chain and kind != "prompts" else ()
        every = [h + ("product" if (n == "cublasLtMatmul" or n.startswith("gemm_")) and n not in streams else n)
                 for h, n in zip(how, every)]
        for n in range(len(every) // 2, 0, -1):  # the longest run that stands there twice
            begin = [i for i in range(len(every) - 2 * n + 1) if every[i:i + n] == every[i + n:i + 2 * n]]
            if begin:
                layer = every[begin[0]:begin[0] + n]
                break
        else:
            raise SystemExit(f"{program}: steps of kind '{kind}' have no layer that repeats: {every}")
        first = next(i for i, n in enumerate(layer) if n.endswith("rms_norm_kernel"))
        out[kind] = layer[first:] + layer[:first]
    return out


# ---- the budget ------------------------------------------------------------------------------------------------------------


def heavier(budget, weights, launches, times):
    bad, room = [], 1.02
    for label, by in sorted(weights.items()):
        for sm, now in by.items():
            was = budget["kernels"].get(label, {}).get(sm)
            if not was:
                bad.append(f"{label} for {sm} is not in the budget")
                continue
            for what in ("registers", "shared"):
                if now[what] > was[what]:
                    bad.append(f"{label} for {sm}: {now[what]} {what}, the budget has {was[what]}")
            for what, n in now["work"].items():
                if n > was["work"].get(what, 0) * room:
                    bad.append(f"{label} for {sm}: {n} instructions for {what}, the budget has {was['work'].get(what)}")
    for label in sorted(set(budget["kernels"]) - set(weights)):
        bad.append(f"{label} is in the budget and in no object")
    for where, kinds in launches.items():
        for kind, names in kinds.items():
            was = budget["launches"].get(where, {}).get(kind, [])
            if names != was:
                bad.append(f"{where}: a layer of kind '{kind}' has {len(names)} launches ({', '.join(names)}), "
                           f"the budget has {', '.join(was)}")
    for name, now in times.items():
        was = budget["steps"].get(name, dict.fromkeys(now, 0))
        bad += [f"{name}: {law} {now[law]}, the budget has {was[law]}" for law in was
                if law != "least_ms" and now[law] > was[law] * 1.01]
    return bad


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--budget", default=str(pathlib.Path(__file__).parent / "budget.json"))
    ap.add_argument("--trace", help="emu.bench_device")
    ap.add_argument("--write", action="store_true")
    ap.add_argument("--table", action="store_true")
    ap.add_argument("object", nargs="+")
    args = ap.parse_args()
    missing = sorted({d[0] for d in DEVICES.values()} - {arch for o in args.object for arch, _ in cubin.kernels(o)})
    if missing:
        print(f"left out: LORAD_CUDA_ARCH has no {', '.join(map(str, missing))}")
        return 77
    weights, bad = weigh(args.object)
    path = pathlib.Path(args.budget)
    if args.write and not args.trace:
        ap.error("--write needs --trace: the budget has the launches, too")
    budget = json.loads(path.read_text()) if path.exists() else {"kernels": {}, "launches": {}, "steps": {}}
    launches = traced(args.trace) if args.trace else budget["launches"]
    if bad:
        print("\n".join(bad))
        return 1
    times = steps(weights, launches)
    if args.table or args.write:
        calibrated.main()
        print(f"{'kernel':24} {'':6} {'regs':>5} {'shared':>7}  instructions of a warp for ...")
        for label, by in sorted(weights.items()):
            for sm, w in sorted(by.items()):
                did = ", ".join(f"{what}: {n}" for what, n in w["work"].items())
                print(f"{label:24} {sm:6} {w['registers']:5} {w['shared']:7}  {did}")
        print()
    for where, kinds in launches.items():
        for kind, names in kinds.items():
            print(f"{where}, {kind}: {len(names)} launches a layer: {', '.join(names)}")
    for name, t in times.items():
        cublas = f"{t['cublas_ms']:9.2f} ms by cuBLAS's law," if "cublas_ms" in t else " " * 30
        if "chain_ms" in t:
            cublas += f" {t['chain_ms']:.2f} with streams of it,"
        print(f"{name:56} {cublas} {t['ours_ms']:8.2f} by ours; its bytes or products alone {t['least_ms']:8.2f}")
    if args.write:
        for by in weights.values():
            for w in by.values():
                del w["object"]
        path.write_text(json.dumps({"assumed": ASSUMED, "launches": launches, "steps": times, "kernels": weights},
                                   indent=1, sort_keys=True) + "\n")
        return 0
    bad = heavier(budget, weights, launches, times)
    print("\n".join(bad) if bad else "ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
