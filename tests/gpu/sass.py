"""sass.py -- what the compiler made of our CUDA kernels, without a device and without the toolkit's tools (cubin.py).

    sass.py OBJECT...     objects of build/<preset>/cuda, or of nvcc by hand

Prints for each kernel and architecture: registers, shared memory, stack, tensor-core instructions, loads and
stores of local memory, and how many threads of a multiprocessor registers, shared memory and block size admit.
Fails (1) when a hot kernel has no tensor-core instruction or touches local memory, or a hot kernel is missing; where one that
may begin early does not wait, or lets the next one begin only after that; where one whose stages follow each other waits for
all of memory; where no PTX goes along for devices to come, or older than the newest.
"""
import re
import sys

import cubin
from predict import SM, resident

# Kernels of which each instance must use tensor cores and keep everything in registers; by object.
HOT = {
    "sgmv": {"shrink_kernel": True, "shrink_tile_kernel": True, "expand_kernel": True,
             "expand_gated_kernel": True},
    "sgmv_f32": {"shrink_f32_kernel": False, "expand_f32_kernel": False},
    "attend": {"small_kernel": True, "large_kernel": True, "plain_kernel": False},
    "gemm": {"gemm_small_kernel": True, "gemm_large_kernel": True},
    "gemm_wide": {"gemm_wide_kernel": True},
    "gemm_stream": {"gemm_stream_kernel": True},
    "gemm_lora": {"gemm_lora_kernel": True},
    "gemm_codes": {"gemm_codes_few_kernel": True, "gemm_codes_many_kernel": True, "gemm_codes_plain_kernel": False},
    "rows": {"rms_norm_kernel": False, "rope_kernel": False, "silu_kernel": False, "embed_kernel": False,
             "spread_kernel": False},
    "exchange": {"push_kernel": False},
    "sample": {"sample_kernel": False},
    "grouped": {"grouped_small_kernel": True, "grouped_large_kernel": True, "grouped_plain_kernel": False},
    "experts": {"route_kernel": False, "list_kernel": False, "gather_kernel": False, "combine_kernel": False},
    "norms": {"layer_norm_kernel": False, "wide_norm_kernel": False},
}
ONLY = {"gemm_wide": 90}  # objects whose kernels are of one architecture alone, and empty where that is not asked for
# Launched by CU_LAUNCH_EARLY; from sm_90 on.
EARLY = {"gemm_small_kernel", "gemm_stream_kernel", "gemm_lora_kernel", "gemm_codes_few_kernel", "expand_kernel", "expand_gated_kernel", "small_kernel", "rms_norm_kernel"}
# So many MEMBAR at most, for all that has been written, which takes as long as a stage: those of LoRA's shrink alone.
FLOWING = {"gemm_stream_kernel": 0, "gemm_lora_kernel": 2}


def main(objects):
    bad = []
    print(f"{'kernel':34} {'sm':>4} {'regs':>5} {'shared':>7} {'stack':>6} {'mma':>5} {'local':>6} {'threads/SM':>11}")
    for path in objects:
        stem = re.sub(r".*/|\.o$", "", path)
        missing = set(HOT.get(stem, {}))
        kernels = cubin.kernels(path)
        if stem in ONLY and ONLY[stem] not in {arch for arch, _ in kernels}:
            print(f"{stem}: left out, for LORAD_CUDA_ARCH has no {ONLY[stem]}")
            continue
        newest = max((arch for arch, _ in kernels), default=0)
        if stem in HOT and stem not in ONLY and not [a for a in cubin.portable(path) if a >= min(newest, 90)]:
            bad.append(f"{stem}: no PTX goes along that devices to come can make their code of")
        for (arch, _), k in sorted(kernels.items(), key=lambda i: (i[1].label, i[0][0])):
            mma, local = k.count("HMMA", "HGMMA"), k.count("LDL", "STL")
            threads = resident(arch, k, k.threads, 0) * k.threads if arch in SM else "-"
            print(f"{k.label:34} {arch:4} {k.registers:5} {k.shared:7} {k.stack:6} {mma:5} {local:6} {threads:>11}")
            base = k.label.split("<")[0]
            if base not in HOT.get(stem, {}):
                continue
            missing.discard(base)
            if HOT[stem][base] and not mma:
                bad.append(f"{k.label} for sm_{arch} uses no tensor cores")
            if base in EARLY and arch >= 90:
                ops = k.ops
                if "PREEXIT" not in ops or "ACQBULK" not in ops[ops.index("PREEXIT"):]:
                    bad.append(f"{k.label} for sm_{arch} does not begin early, or does not wait")
            if k.count("MEMBAR") > FLOWING.get(base, sys.maxsize):
                bad.append(f"{k.label} for sm_{arch} waits for memory ({k.count('MEMBAR')} times)")
            if local or k.stack:
                bad.append(f"{k.label} for sm_{arch} touches local memory ({local} instructions)")
        bad += [f"{m} is not in {path}" for m in missing]
    for b in bad:
        print(b)
    print("ok" if not bad else f"{len(bad)} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
