"""cubin.py -- what nvcc made, read from the objects themselves: no tool of the toolkit is needed.

An object of the host holds a fat binary (section .nv_fatbin): for each architecture an ELF file with a section of code for
each kernel.  Instructions are 16 bytes; the lower 12 bits name them.  kernels() gives for each (architecture, name) a Kernel:
registers, shared memory, stack, the block size it was compiled for, and its instructions with their ways.
"""
import collections
import ctypes
import functools
import heapq
import re
import struct

FAT, ENTRY_PTX, ENTRY_ELF = 0xBA55ED50, 1, 2
OPS = {0x23C: "HMMA", 0x9F0: "HGMMA", 0x221: "FADD", 0xFAE: "LDGSTS", 0x981: "LDG", 0x986: "STG", 0x984: "LDS", 0x388: "STS", 0x988: "STS",
       0x83B: "LDSM", 0x9A8: "ATOMG", 0x983: "LDL", 0x387: "STL", 0xB1D: "BAR", 0x308: "MUFU", 0x229: "DADD", 0x22B: "DFMA", 0x228: "DMUL",
       0x992: "MEMBAR", 0x82E: "ACQBULK", 0x82D: "PREEXIT"}  # the last two: griddepcontrol's wait and launch_dependents
BRA, CALL, EXIT, RET = 0x947, 0x944, 0x94D, 0x950


def short(name):
    """_Z13expand_kernelILi4ELb1EEv9sgmv_argsii -> expand_kernel<4,1>"""
    m = re.match(r"_ZN?L?(?:\d+_GLOBAL__N__\w+?)?L?(\d+)(.*)", name)
    if not m:
        return name
    n = int(m.group(1))
    base, rest = m.group(2)[:n], m.group(2)[n:]
    args = re.match(r"I((?:L[a-z]\d+E)+)E", rest)
    return base + ("<" + ",".join(re.findall(r"L[a-z](\d+)E", args.group(1))) + ">" if args else "")


def sections(elf):
    """[(name, bytes, size)] of an ELF file."""
    at, = struct.unpack_from("<Q", elf, 0x28)
    n, names = struct.unpack_from("<HH", elf, 0x3C)
    heads = [struct.unpack_from("<IIQQQQIIQQ", elf, at + 64 * i) for i in range(n)]
    strings = heads[names][4]
    out = []
    for h in heads:
        begin = strings + h[0]
        data = b"" if h[1] == 8 else elf[h[4]:h[4] + h[5]]  # 8: no bytes in the file
        out.append((elf[begin:elf.index(b"\0", begin)].decode(), data, h[5]))
    return out


def plain(data):
    """An entry's bytes, which --compress-mode=size makes one frame of Zstandard (RFC 8878): magic, content size."""
    if data[:4] != b"\x28\xb5\x2f\xfd":
        return data
    zstd = ctypes.CDLL("libzstd.so.1")
    zstd.ZSTD_getFrameContentSize.restype = ctypes.c_ulonglong
    zstd.ZSTD_findFrameCompressedSize.restype = zstd.ZSTD_decompress.restype = ctypes.c_size_t
    size = zstd.ZSTD_getFrameContentSize(data, ctypes.c_size_t(len(data)))
    if size > 1 << 30:
        raise ValueError(f"a frame without its content's size, or damaged: {size}")
    frame = zstd.ZSTD_findFrameCompressedSize(data, ctypes.c_size_t(len(data)))  # zeros pad the entry
    out = ctypes.create_string_buffer(size)
    done = zstd.ZSTD_decompress(out, ctypes.c_size_t(size), data, ctypes.c_size_t(frame))
    if done != size:
        raise ValueError(f"a damaged frame: {done} bytes, not {size}")
    return out.raw


def entries(path):
    """[(kind, architecture, bytes)] of an object of the host."""
    with open(path, "rb") as f:
        whole = f.read()
    for name, data, _ in sections(whole):
        at = 0
        while name == ".nv_fatbin" and at + 16 <= len(data):
            magic, _, head, size = struct.unpack_from("<IHHQ", data, at)
            if magic != FAT:
                at += 8
                continue
            p, at = at + head, at + head + size
            while p < at:
                kind, _, entry, bytes_ = struct.unpack_from("<HHIQ", data, p)
                arch, = struct.unpack_from("<I", data, p + 28)
                yield kind, arch, plain(data[p + entry:p + entry + bytes_])
                p += entry + bytes_


def images(path):
    """[(architecture, ELF)] of an object of the host."""
    return [(arch, data) for kind, arch, data in entries(path) if kind == ENTRY_ELF]


def portable(path):
    """The architectures whose PTX goes along."""
    return [arch for kind, arch, _ in entries(path) if kind == ENTRY_PTX]


class Kernel:
    def __init__(self, arch, name):
        self.arch, self.name, self.label = arch, name, short(name)
        self.registers = self.shared = self.stack = 0
        self.threads = 1024  # of the largest block
        self.code = b""

    @functools.cached_property
    def ops(self):
        """Their names; the numbers of those that OPS does not name."""
        return [OPS.get(op & 0xFFF, op & 0xFFF) for op, in struct.iter_unpack("<H14x", self.code)]

    def __len__(self):
        return len(self.code) // 16

    def count(self, *names):
        return sum(op in names for op in self.ops)

    def target(self, i):
        """Of a jump: the number of an instruction."""
        low, high = struct.unpack_from("<QQ", self.code, 16 * i)
        far = low >> 34 | (high & 0x3FFFF) << 30
        far -= (far >> 47) << 48
        offset = far * 4 if self.arch < 90 else far * 1024 + (low >> 16 & 0xFF) * 4
        return i + 1 + offset // 16

    @functools.cached_property
    def blocks(self):
        """{first: (one behind the last, [next], {name: how often})}: code without jumps into or out of it."""
        n, begins, ways = len(self), {0}, {}
        for i, op in enumerate(self.ops):
            if op in (BRA, CALL, EXIT, RET):
                always = struct.unpack_from("<H", self.code, 16 * i)[0] >> 12 == 7
                ways[i] = [self.target(i)] if op in (BRA, CALL) else []
                if not always or op == CALL:  # a call comes back, where it is no jump
                    ways[i].append(i + 1)
                begins.update(w for w in ways[i] + [i + 1] if 0 <= w < n)
        order = sorted(begins)
        out = {}
        for a, b in zip(order, order[1:] + [n]):
            out[a] = (b, [w for w in ways.get(b - 1, [b]) if 0 <= w < n], collections.Counter(self.ops[a:b]))
        return out

    def least(self, wanted, late=False):
        """The fewest instructions of a walk from the first to an EXIT with at least so many of each of `wanted`
        ({"LDG": 4}; "MUFU>=8" counts them only where so many stand together): what one warp issues for a piece of work of that size, where nothing slow happens.
        late: only those behind the first griddepcontrol.wait.  None: there is no such walk."""
        names = sorted(wanted)
        some = [(n.split(">=")[0], int((n + ">=0").split(">=")[1])) for n in names]
        most = tuple(wanted[n] for n in names)
        blocks = self.blocks
        marks, ends, waits = {}, set(), {}
        for a, (b, _, ops) in blocks.items():
            counts = [ops[n] for n, _ in some]
            marks[a] = tuple(c if c >= least else 0 for c, (_, least) in zip(counts, some))
            if ops[EXIT]:
                ends.add(a)
            if ops["ACQBULK"]:
                waits[a] = self.ops.index("ACQBULK", a) - a
        # Of the others only the shortest ways through them matter.
        stops = {0} | {a for a in blocks if any(marks[a]) or late and a in waits}
        ways = {a: self.ways(a, stops, ends) for a in stops}
        start = (0, tuple(0 for _ in names), not late)
        best, heap = {start: 0}, [(0, start)]
        while heap:
            cost, (at, had, counts) = heapq.heappop(heap)
            if cost > best[at, had, counts]:
                continue
            if at < 0:
                return cost
            got = tuple(min(h + m, w) for h, m, w in zip(had, marks[at], most))
            length = blocks[at][0] - at
            took = length if counts else length - waits[at] if at in waits else 0
            counts = counts or at in waits
            for stop, between in ways[at].items():
                if stop < 0 and got != most:
                    continue
                state, new = (stop, got, counts), cost + took + (between if counts else 0)
                if new < best.get(state, 1 << 60):
                    best[state] = new
                    heapq.heappush(heap, (new, state))
        return None

    def ways(self, a, stops, ends):
        """{a block of `stops` that may come next, -1 for an EXIT: the fewest instructions between}"""
        best, heap = {}, [(0, w) for w in self.blocks[a][1]] + [(0, -1)] * (a in ends)
        heapq.heapify(heap)
        while heap:
            cost, at = heapq.heappop(heap)
            if at in best:
                continue
            best[at] = cost
            if at >= 0 and at not in stops:
                b, ways, _ = self.blocks[at]
                for w in ways + [-1] * (at in ends):
                    heapq.heappush(heap, (cost + b - at, w))
        return {w: cost for w, cost in best.items() if w < 0 or w in stops}


def kernels(path):
    """{(architecture, mangled name): Kernel}"""
    out = {}
    for arch, elf in images(path):
        found = {}
        for name, data, size in sections(elf):
            if m := re.match(r"\.text\.(.+)", name):
                k = found.setdefault(m.group(1), Kernel(arch, m.group(1)))
                k.code = data
            elif (m := re.match(r"\.nv\.shared\.(.+)", name)) and "reserved" not in name:
                found.setdefault(m.group(1), Kernel(arch, m.group(1))).shared = size
            elif m := re.match(r"\.nv\.info\.(.+)", name):
                k = found.setdefault(m.group(1), Kernel(arch, m.group(1)))
                for attribute, value in facts(data):
                    if attribute == 0x05:  # EIATTR_MAX_THREADS
                        x, y, z = struct.unpack("<III", value)
                        k.threads = x * y * z
        frames(elf, found)
        out.update(((arch, n), k) for n, k in found.items() if k.code)
    return out


def facts(data):
    """The entries of a section .nv.info: (attribute, bytes)."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, n = struct.unpack_from("<BBH", data, at)
        size = n if form == 4 else 0
        yield attribute, data[at + 4:at + 4 + size]
        at += 4 + size


def frames(elf, found):
    """Registers and bytes of stack of each kernel."""
    by = {name: data for name, data, _ in sections(elf)}
    symbols, strings = by[".symtab"], by[".strtab"]
    for attribute, value in facts(by.get(".nv.info", b"")):
        if attribute not in (0x11, 0x2F):  # EIATTR_FRAME_SIZE, EIATTR_REGCOUNT
            continue
        symbol, n = struct.unpack("<II", value)
        at, = struct.unpack_from("<I", symbols, 24 * symbol)
        name = strings[at:strings.index(b"\0", at)].decode()
        if name in found:
            setattr(found[name], "stack" if attribute == 0x11 else "registers", n)
