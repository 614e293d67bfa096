"""The rows of engine/sample/sampling_list.h, for conf/openapi.json, docs/reference/ and orders between nodes."""
import pathlib
import re
import struct

TEXT = (pathlib.Path(__file__).resolve().parents[2] / "engine/sample/sampling_list.h").read_text()
ROW = re.compile(r'^ +X\((real|above|whole|flag), *(\w+), *(-?\w+), *(\w+), *(\w+), *\w+, *"[^"]*"\)', re.M)


def rows():
    """(kind, name, low, high, neutral) of each parameter; high is None where the model sets it."""
    out = [(kind, name, int(low), int(high) if high.isdigit() else None, int(neutral)) for kind, name, low, high, neutral in ROW.findall(TEXT)]
    if len(out) != len(re.findall(r"^ +X\(", TEXT, flags=re.M)):
        raise SystemExit("sampling_list.py: a row of sampling_list.h that it does not understand")
    return out


def schema(kind, low, high):
    if kind == "flag":
        return {"type": ["boolean", "null"]}
    least = "exclusiveMinimum" if kind == "above" else "minimum"
    return {"type": ["integer" if kind == "whole" else "number", "null"], least: low, **({} if high is None else {"maximum": high})}


def schemas():
    return {name: schema(kind, low, high) for kind, name, low, high, _ in rows()}


def order(weight, **given):
    """The end of struct move_head (gateway/move/wire.h): the weight and all parameters, by default without effect."""
    out = struct.pack("<f", weight)
    for kind, name, _, _, neutral in rows():
        out += struct.pack("<f" if kind in ("real", "above") else "<i", given.pop(name, neutral))
    assert not given, given
    return out + bytes(-len(out) % 8)


def expand(text):
    """C text in which each `#define ROW(kind, name, ...) {...}, SAMPLING_LIST(ROW)` is replaced by its rows."""
    def each(m):
        return "".join(re.sub(r"#name\b", f'"{name}"', m.group(2)) for _, name, *_ in rows()) + "\n"
    return re.sub(r"^ *#define (\w+)\([\w, ]*\) +(\{[^\n]*\},)\n *SAMPLING_LIST\(\1\)[^\n]*\n *#undef \1\n", each, text, flags=re.M)
