#!/usr/bin/env python3
"""Writes the weights of the test models and adapters into tests/fixtures, from tests/fixtures/weights.jsonl.

Usage: make_weights.py            write each file that is missing or has other bytes
       make_weights.py --check    only compare; exit 1 if a file is missing or has other bytes

The repository tracks recipes and digests in place of 37 MB of random weights. This program needs only Python (3.6 or
newer) and its standard library. A file has the same bytes on every machine: the random bytes come from SHAKE-256 (FIPS 202), and
the arithmetic is that of IEEE 754 doubles, whose sums and products are exactly specified. A file that does not have the
digest of its recipe is an error. Files are written under another name and then renamed, so two builds may run at once.
seed_weights.py writes the recipes.

A recipe is one line of weights.jsonl, a JSON object:

    file      the path below tests/fixtures
    sha256    of the file
    tensors   a list of [dtype, shape, rule, name]; a.{x,y}.{0-2} in a name stands for six names; a long one is its JSON in
              zlib and base64
    head      for a GGUF file: the bytes in front of the data, zlib, base64; the tensors then have no name, their shapes
              count elements, and each is filled up to 32 bytes
    from      the file that "copy" reads; the default is the file itself
    hidden    true: the file is a source for other files and is not written
    same      in place of tensors: the file has the bytes of this file

A rule makes the bytes of a tensor of n elements:

    [mean, std]           A normal distribution. The random bytes are SHAKE-256("lorad:FILE:NAME"). Byte i (i < n) chooses
                          one of 256 quantiles z: i < 128 is +NORMAL[i] / 1000, the others are -NORMAL[i - 128] / 1000.
                          The element is mean + std * z, rounded to the dtype (to nearest, ties to even). If std is not 0,
                          further random bytes replace the lowest bits of its mantissa: 3 bits for BF16 and 5 for F16 by
                          the lowest bits of byte n + i, 16 for F32 by byte n + i (lower) and byte 2 n + i (upper).
    ["grid", std, step]   A multiple of step: z as above, std * z / step rounded to an integer, at most 127 in size.
                          The first element of each 32 is 127 * step, so Q8_0 holds these values without a rounding.
    ["bytes", low, high]  Byte i is low + (random byte i) % (high - low + 1).
    ["blocks", size, max, offset, ...]   Random bytes; in each block of this size an F16 scale is at each offset:
                          max * (its first byte + 1) / 256.
    ["hex", digits]       These bytes.
    ["split", k, rule, rule]    The first k elements by one rule, the others by another, whose NAME ends in "+".
    ["copy", part, ...]   Elements of other tensors. A part is [name, start, [count, stride], ...]: an array with these
                          counts and strides, counted in elements, or the name of a tensor that is copied whole.
                          A name of the form FILE:NAME is a tensor of that file.
                          No part at all: the tensor of the same name.
    ["f32", add, rule]    Elements of a rule of F16 elements as F32, plus a number.
    ["wide", rule]        Elements of a rule of BF16 elements as F32.
    ["q8_0", rule]        F16 elements as llama.cpp's Q8_0: for each 32 an F16 scale, max / 127, and 32 integers.
    ["mxfp4", scales, blocks]   Two rules of bytes as llama.cpp's MXFP4 (its shape counts bytes): a scale, then 16 bytes of which byte i has
                          element i in its lower half and element i + 16 in its upper half.

A safetensors file has its tensors sorted by the size of the dtype, then by name.
"""
import base64
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import struct
import sys
import zlib

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
RECIPES = FIXTURES / "weights.jsonl"
SIZE = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}
# Quantiles (128 + i + 1/2) / 256 of the normal distribution, times 1000.
NORMAL = [int(z) for z in """
5 15 24 34 44 54 64 74 83 93 103 113 123 133 142 152 162 172 182 192 202 212 222 232 242 252
262 273 283 293 303 313 324 334 345 355 365 376 386 397 408 418 429 440 451 461 472 483 494
505 517 528 539 550 562 573 585 597 608 620 632 644 656 668 681 693 706 718 731 744 757 770
783 796 810 824 837 851 866 880 894 909 924 939 954 970 986 1002 1018 1035 1052 1069 1086
1104 1122 1141 1160 1179 1199 1219 1240 1262 1284 1306 1330 1354 1379 1405 1431 1459 1488
1518 1550 1584 1619 1656 1696 1739 1785 1836 1891 1953 2024 2107 2207 2335 2521 2886""".split()]


def names_of(pattern):
    """The names that a pattern stands for, in order."""
    parts = re.split(r"\{(.*?)\}", pattern)
    for i in range(1, len(parts), 2):
        low, _, high = parts[i].partition("-")
        parts[i] = [str(n) for n in range(int(low), int(high) + 1)] if high.isdigit() else parts[i].split(",")
    parts[::2] = [[part] for part in parts[::2]]
    return ["".join(choice) for choice in itertools.product(*parts)]


def encode(dtype, value):
    """Little-endian bytes of a double, rounded to the dtype."""
    if dtype != "BF16":
        return struct.pack("<e" if dtype == "F16" else "<f", value)
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


@functools.lru_cache(maxsize=None)
def tables(dtype, values, free):
    """For each byte of an element, the table from a random byte to it, and the bits that other random bytes set."""
    coded = [encode(dtype, v) for v in values]
    return [(bytes(c[k] & ~mask & 255 for c in coded), bytes(i & mask for i in range(256)) if mask else None)
            for k, mask in enumerate((free >> 8 * k & 255) for k in range(SIZE[dtype]))]


def draw(dtype, n, seed, values, free):
    """n elements: a byte chooses one of 256 values, further bytes set the bits in `free`."""
    tabs = tables(dtype, values, free)
    n_more = sum(more is not None for _, more in tabs)
    raw = hashlib.shake_256(seed.encode()).digest(n * (1 + n_more))
    out, at = bytearray(n * len(tabs)), n
    for k, (table, more) in enumerate(tabs):
        plane = raw[:n].translate(table)
        if more:
            low = raw[at:at + n].translate(more)
            plane = (int.from_bytes(plane, "little") | int.from_bytes(low, "little")).to_bytes(n, "little")
            at += n
        out[k::len(tabs)] = plane
    return bytes(out)


def gather(source, start, dims):
    if not dims:
        return source[start:start + 1].tobytes()
    (n, stride), rest = dims[0], dims[1:]
    if not rest:
        return source[start:start + (n - 1) * stride + 1:stride].tobytes()
    return b"".join(gather(source, start + i * stride, rest) for i in range(n))


def q8_0(data):
    f32 = struct.Struct("<f")

    def rounded(x):
        return f32.unpack(f32.pack(x))[0]

    out = []
    for block in struct.iter_unpack("<32e", data):
        scale = rounded(max(map(abs, block)) / 127)
        inverse = rounded(1 / scale) if scale else 0.0
        steps = [rounded(x * inverse) for x in block]
        out.append(struct.pack("<e32b", scale, *(int(abs(s) + 0.5) * (1 if s > 0 else -1) for s in steps)))
    return b"".join(out)


def mxfp4(scales, blocks):
    out = []
    for i, scale in enumerate(scales):
        half = [part for byte in blocks[16 * i:16 * i + 16] for part in (byte & 15, byte >> 4)]
        out.append(bytes([scale] + [half[j] | half[j + 16] << 4 for j in range(16)]))
    return b"".join(out)


class Recipes:
    def __init__(self, lines):
        self.of = {}
        for line in lines:
            recipe = json.loads(line)
            self.of[recipe["file"]] = recipe
        self.opened = {}

    def tensors(self, file):
        """Name: (dtype, shape, rule). A GGUF file's tensors are named by their place."""
        if file not in self.opened:
            listed = self.of[file]["tensors"]
            if isinstance(listed, str):
                listed = json.loads(zlib.decompress(base64.b64decode(listed)).decode())
            self.opened[file] = {name: (dtype, shape, rule) for i, (dtype, shape, rule, *pattern)
                                 in enumerate(listed)
                                 for name in (names_of(pattern[0]) if pattern else [str(i)])}
        return self.opened[file]

    @functools.lru_cache(maxsize=256)
    def bytes_of(self, file, name):
        dtype, shape, rule = self.tensors(file)[name]
        n = 1
        for size in shape:
            n *= size
        return self.by_rule(file, name, dtype, n, rule)

    def by_rule(self, file, name, dtype, n, rule):
        kind, seed = rule[0], "lorad:%s:%s" % (file, name)
        again = functools.partial(self.by_rule, file, name)
        if kind == "copy":
            out = b"".join(self.part(self.of[file].get("from", file), p) for p in rule[1:] or [name])
        elif kind == "bytes":
            table = bytes(rule[1] + i % (rule[2] - rule[1] + 1) for i in range(256))
            out = hashlib.shake_256(seed.encode()).digest(n * SIZE[dtype]).translate(table)
        elif kind == "blocks":
            out = bytearray(hashlib.shake_256(seed.encode()).digest(n))
            for at in (start + offset for start in range(0, n, rule[1]) for offset in rule[3:]):
                out[at:at + 2] = struct.pack("<e", rule[2] * (out[at] + 1) / 256)
        elif kind == "hex":
            out = bytes.fromhex(rule[1])
        elif kind == "split":
            out = again(dtype, rule[1], rule[2]) + self.by_rule(file, name + "+", dtype, n - rule[1], rule[3])
        elif kind == "f32":
            data = again("F16", n, rule[2])
            out = struct.pack("<%df" % n, *(x + rule[1] for x in struct.unpack("<%de" % n, data)))
        elif kind == "wide":
            data = again("BF16", n, rule[1])
            out = bytearray(4 * n)
            out[2::4], out[3::4] = data[::2], data[1::2]
        elif kind == "q8_0":
            return q8_0(again("F16", n, rule[1]))
        elif kind == "mxfp4":
            return mxfp4(again("U8", n // 17, rule[1]), again("U8", n // 17 * 16, rule[2]))
        elif kind == "grid":
            values = tuple(rule[2] * max(-127, min(127, round(rule[1] * z / rule[2]))) for z in QUANTILES)
            out = bytearray(draw(dtype, n, seed, values, 0))
            first = encode(dtype, 127 * rule[2])
            for k in range(len(first)):
                out[k::32 * len(first)] = first[k:k + 1] * (n // 32)
        else:
            free = {"BF16": 7, "F16": 31, "F32": 0xFFFF}[dtype] if rule[1] else 0
            out = draw(dtype, n, seed, tuple(rule[0] + rule[1] * z for z in QUANTILES), free)
        assert len(out) == n * SIZE[dtype], (file, name, len(out))
        return bytes(out)

    def part(self, file, part):
        name, *start_dims = [part] if isinstance(part, str) else part
        file, name = name.split(":") if ":" in name else (file, name)
        if not start_dims:
            return b"".join(self.bytes_of(file, n) for n in names_of(name))
        start, *dims = start_dims
        kind = {1: "B", 2: "H", 4: "I"}[SIZE[self.tensors(file)[name][0]]]
        return gather(memoryview(self.bytes_of(file, name)).cast(kind), start, dims)

    def build(self, file):
        """The bytes of a file."""
        recipe = self.of[file]
        if "same" in recipe:
            return self.build(recipe["same"])
        tensors = self.tensors(file)
        if "head" in recipe:
            out = bytearray(zlib.decompress(base64.b64decode(recipe["head"])))
            for name in tensors:
                out += self.bytes_of(file, name)
                out += bytes(-len(out) % 32)
            return bytes(out)
        head, data, at = {"__metadata__": {"format": "pt"}}, [], 0
        for name in sorted(tensors, key=lambda k: (-SIZE[tensors[k][0]], k)):
            dtype, shape, _ = tensors[name]
            data.append(self.bytes_of(file, name))
            head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data[-1])]}
            at += len(data[-1])
        text = json.dumps(head, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + b"".join(data)


QUANTILES = [sign * z / 1000 for sign in (1, -1) for z in NORMAL]


def main():
    with open(RECIPES) as f:
        recipes = Recipes(f)
    bad = 0
    for file, recipe in recipes.of.items():
        path = FIXTURES / file
        if recipe.get("hidden") or path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == recipe["sha256"]:
            continue
        if "--check" in sys.argv[1:]:
            print("%s: missing, or not the bytes of its recipe" % file)
            bad += 1
            continue
        data = recipes.build(file)
        if hashlib.sha256(data).hexdigest() != recipe["sha256"]:
            print("%s: the recipe makes bytes with another digest; weights.jsonl must come from make_*_goldens.py" % file)
            bad += 1
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name("%s.%d.new" % (path.name, os.getpid()))
        new.write_bytes(data)
        os.replace(new, path)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
