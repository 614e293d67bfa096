"""sass.py -- what the compiler made of our CUDA kernels, without a device.

    sass.py [--cuobjdump PROGRAM] OBJECT...     objects of build/<preset>/cuda, or of nvcc by hand

Prints for each kernel and architecture: registers, shared memory, stack, tensor-core instructions, loads and
stores of local memory, and how many threads of a multiprocessor registers, shared memory and block size admit.
Fails (1) when a hot kernel has no tensor-core instruction or touches local memory, or a hot kernel is missing.
77: no cuobjdump (CUDA toolkit, or the Python package nvidia-cuda-cuobjdump): nothing was looked at.
"""
import argparse
import re
import shutil
import subprocess
import sys

# Kernels of which each instance must use tensor cores and keep everything in registers; by object.
HOT = {
    "sgmv": {"shrink_kernel": True, "shrink_tile_kernel": True, "expand_kernel": True},
    "sgmv_f32": {"shrink_f32_kernel": False, "expand_f32_kernel": False},
    "attend": {"small_kernel": True, "large_kernel": True, "merge_kernel": False, "plain_kernel": False},
    "rows": {"rms_norm_kernel": False, "rope_kernel": False, "silu_kernel": False, "embed_kernel": False},
    "sample": {"sample_kernel": False},
}
# registers, shared memory and threads of a multiprocessor, blocks
SM = {80: (65536, 164 << 10, 2048, 32), 89: (65536, 100 << 10, 1536, 24), 90: (65536, 228 << 10, 2048, 32),
      100: (65536, 228 << 10, 2048, 32)}


def short(name):
    """_Z13expand_kernelILi4ELb1EEv9sgmv_argsii -> expand_kernel<4,1>"""
    m = re.match(r"_ZN?L?(?:\d+_GLOBAL__N__\w+?)?L?(\d+)(.*)", name)
    if not m:
        return name
    n = int(m.group(1))
    base, rest = m.group(2)[:n], m.group(2)[n:]
    args = re.match(r"I((?:L[a-z]\d+E)+)E", rest)
    return base + ("<" + ",".join(re.findall(r"L[a-z](\d+)E", args.group(1))) + ">" if args else "")


def dump(program, option, path):
    return subprocess.run([program, option, path], check=True, capture_output=True, text=True).stdout


def kernels_of(program, path):
    """{(arch, name): dict} of one object."""
    out = {}
    arch = name = None
    for line in dump(program, "-res-usage", path).splitlines():
        if m := re.match(r"arch = sm_(\d+)", line):
            arch = int(m.group(1))
        elif m := re.match(r" Function (\S+):", line):
            name = m.group(1)
        elif "REG:" in line and name:
            out[arch, name] = {k: int(v) for k, v in re.findall(r"(\w+):(\d+)", line)}
            out[arch, name].update(mma=0, local=0, threads=1024)
            name = None
    for line in dump(program, "-sass", path).splitlines():
        if m := re.match(r"arch = sm_(\d+)", line):
            arch = int(m.group(1))
        elif m := re.search(r"Function : (\S+)", line):
            name = m.group(1)
        elif re.search(r"\b(HMMA|HGMMA|UTCHMMA)\b|\bHMMA\.", line):
            out[arch, name]["mma"] += 1
        elif re.search(r"\b(LDL|STL)\b|\b(LDL|STL)\.", line):
            out[arch, name]["local"] += 1
    section = None
    wanted = False
    for line in dump(program, "-elf", path).splitlines():
        if m := re.match(r"arch = sm_(\d+)", line):
            arch = int(m.group(1))
        elif m := re.match(r"\s*\.nv\.info\.(\S+)", line):
            section = m.group(1)
        elif "EIATTR_MAX_THREADS" in line:
            wanted = True
        elif wanted and (m := re.search(r"Value:\s+(0x\w+) (0x\w+) (0x\w+)", line)):
            x, y, z = (int(v, 16) for v in m.groups())
            if (arch, section) in out:
                out[arch, section]["threads"] = x * y * z
            wanted = False
    return out


def resident(arch, k):
    """Threads of a multiprocessor at a time, by static limits (dynamic shared memory not counted)."""
    regs, shared, threads, blocks = SM.get(arch, SM[90])
    warps = -(-k["threads"] // 32)
    per_warp = -(-k["REG"] * 32 // 256) * 256
    n = min(blocks, threads // k["threads"], regs // per_warp // warps)
    if k["SHARED"]:
        n = min(n, shared // (k["SHARED"] + (1024 if arch < 90 else 0)))  # what the system keeps of each block
    return n * k["threads"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--cuobjdump", default="cuobjdump")
    ap.add_argument("object", nargs="+")
    args = ap.parse_args()
    program = shutil.which(args.cuobjdump)
    if not program:
        print("no cuobjdump here: nothing was looked at")
        return 77
    bad = []
    print(f"{'kernel':34} {'sm':>4} {'regs':>5} {'shared':>7} {'stack':>6} {'mma':>5} {'local':>6} {'threads/SM':>11}")
    for path in args.object:
        found = kernels_of(program, path)
        stem = re.sub(r".*/|\.o$", "", path)
        missing = set(HOT.get(stem, {}))
        for (arch, name), k in sorted(found.items(), key=lambda i: (short(i[0][1]), i[0][0])):
            label = short(name)
            print(f"{label:34} {arch:4} {k['REG']:5} {k['SHARED']:7} {k['STACK']:6} {k['mma']:5} {k['local']:6} "
                  f"{resident(arch, k):11}")
            base = label.split("<")[0]
            if base not in HOT.get(stem, {}):
                continue
            missing.discard(base)
            if HOT[stem][base] and not k["mma"]:
                bad.append(f"{label} for sm_{arch} uses no tensor cores")
            if k["local"]:
                bad.append(f"{label} for sm_{arch} touches local memory ({k['local']} instructions)")
        bad += [f"{m} is not in {path}" for m in missing]
    for b in bad:
        print(b)
    print("ok" if not bad else f"{len(bad)} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
