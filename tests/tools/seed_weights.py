"""seed_weights.py -- writes the recipes of make_weights.py: make_*_goldens.py have their weights from a seed by it.

A maker lets transformers or PEFT save a file and calls adopt(): each tensor gets a rule with the mean and the
standard deviation of its values (about: near()), the recipe goes into tests/fixtures/weights.jsonl, and the file is written anew from the
recipe. The maker then loads the file and computes its goldens. Where a maker uses signs() for its noise, the two numbers
are exact, and tensors of one size share a line of the recipe.

derive() writes the recipe of a file that holds the elements of another file in another order. The maker runs its
conversion on indices(): arrays of the places of elements in place of their values.
"""
import base64
import json
import os
import pathlib
import zlib

import numpy as np
import torch
from safetensors.torch import load_file

from make_weights import FIXTURES, RECIPES, Recipes, names_of

DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8"}
LONG = 200  # bytes of a list of tensors from which on it is packed
GAP = 1 << 32  # between the places of two tensors


def signs(shape):
    """1, -1, 1, ...: noise whose mean and deviation can be read from what was made of it."""
    n = torch.Size(shape).numel()
    return (1.0 - 2.0 * (torch.arange(n) % 2)).reshape(shape)


def read():
    return Recipes(RECIPES.read_text().splitlines() if RECIPES.exists() else [])


def line(recipe):
    """A recipe's line; long lists of tensors are packed."""
    listed = json.dumps(recipe.get("tensors"), separators=(",", ":"))
    if isinstance(recipe.get("tensors"), list) and len(listed) > LONG:
        recipe = {**recipe, "tensors": packed(listed.encode())}
    return json.dumps(recipe, separators=(",", ":")) + "\n"


def write(recipes):
    new = RECIPES.with_suffix(".new")
    new.write_text("".join(line(recipes.of[file]) for file in sorted(recipes.of)))
    os.replace(new, RECIPES)


def relative(path):
    return str(pathlib.Path(os.path.abspath(path)).relative_to(FIXTURES))


def forget(folder):
    """Before a maker removes a folder."""
    recipes, at = read(), relative(folder)
    recipes.of = {file: r for file, r in recipes.of.items() if not (file + "/").startswith(at + "/")}
    write(recipes)


def put(path, recipe):
    """Takes the recipe, and writes the file from it."""
    import hashlib
    recipes, file = read(), relative(path)
    recipes.of[file] = recipe = {"file": file, "sha256": "", **recipe}
    data = recipes.build(file)
    recipe["sha256"] = hashlib.sha256(data).hexdigest()
    write(recipes)
    pathlib.Path(path).write_bytes(data)


STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)


def number(x):
    return int(x) if x == int(x) else x


def exact(x):
    return number(float(f"{x:.3g}"))


def near(x):
    """One of ten numbers to a decade, so that tensors drawn alike share a line."""
    digits, power = f"{abs(x):.9e}".split("e")
    digits = min(STEPS, key=lambda s: abs(s - float(digits)))
    return number(float(f"{'-' if x < 0 else ''}{digits}e{power}"))


def rule_of(t):
    if t.dtype == torch.uint8:
        return ["bytes", int(t.min()), int(t.max())]
    v = t.double()
    if len(v.unique()) <= 2:
        return [exact((v.max() + v.min()) / 2), exact((v.max() - v.min()) / 2)]
    mean, std = v.mean(), v.std(correction=0)
    return [near(mean) if abs(mean) > std / 4 else 0, near(std)]


def joined(names):
    """Patterns that stand for all of these names."""
    rows = [tuple((part,) for part in name.split(".")) for name in names]
    for at in range(max(map(len, rows))):
        alike = {}
        for row in rows:
            key = (row[:at], row[at + 1:]) if at < len(row) else row
            alike.setdefault((len(row), key), []).append(row)
        rows = [row[0][:at] + (sum((r[at] for r in row), ()),) + row[0][at + 1:] if len(row) > 1 else row[0]
                for row in alike.values()]
    return [".".join(alternatives(part) for part in row) for row in rows]


def alternatives(part):
    if len(part) == 1:
        return part[0]
    if part[0].isdigit() and list(part) == [str(int(part[0]) + i) for i in range(len(part))]:
        return f"{{{part[0]}-{part[-1]}}}"
    return "{" + ",".join(part) + "}"


def grouped(tensors):
    """[(dtype, shape, rule, name)] with those that are alike in one entry."""
    alike = {}
    for dtype, shape, rule, name in tensors:
        alike.setdefault(json.dumps([dtype, list(shape), rule]), []).append(name)
    return [[*json.loads(key), pattern] for key, names in alike.items() for pattern in joined(names)]


def table_rule(t, tables):
    """The rule of a table that is the base model's, perhaps with fewer or more tokens; None: it is not."""
    for name, b in tables.items():
        n = min(len(t), len(b))
        if t.shape[1:] != b.shape[1:] or not torch.equal(t[:n].float(), b[:n].float()):
            continue
        width = t.shape[1]
        own = ["copy", name if n == len(b) else [name, 0, [n * width, 1]]]
        if t.dtype != b.dtype:
            own = ["wide", own] if b.dtype == torch.bfloat16 else ["f32", 0, own]
        return own if n == len(t) else ["split", n * width, own, rule_of(t[n:])]
    return None


def adopt(path, rule=None, hidden=False, base=None):
    """Gives a safetensors file, or those of a folder, weights from a seed. rule(name, tensor): another rule, or None.
    base: the folder of an adapter's model, whose tables PEFT may have saved along with the adapter."""
    path = pathlib.Path(path)
    tables = {f"{relative(file)}:{name}": t for file in (sorted(pathlib.Path(base).glob("*.safetensors")) if base else [])
              for name, t in load_file(file).items() if name.endswith(("embed_tokens.weight", "lm_head.weight"))}
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        tensors, seen, out = load_file(file), {}, []
        for name, t in tensors.items():
            own = rule and rule(name, t)
            first = seen.setdefault((t.shape, t.reshape(-1).view(torch.uint8).numpy().tobytes()), name)
            if not own and first != name and t.is_floating_point() and len(t.unique()) > 2:  # a tied table, saved twice
                own = ["copy", first]
            elif not own and t.dim() == 2:
                own = table_rule(t, tables)
            out.append((DTYPES[t.dtype], t.shape, own or rule_of(t), name))
        put(file, {"tensors": grouped(out), **({"hidden": True} if hidden else {})})


class indices(dict):
    """Name: places of the elements of a safetensors file, as NumPy arrays (torch's: by torch.from_numpy)."""

    def __init__(self, path):
        recipes, self.file = read(), relative(path)
        self.names, self.dtype = [], {}
        for i, (name, (dtype, shape, _)) in enumerate(recipes.tensors(self.file).items()):
            self.names.append(name)
            self.dtype[name] = dtype
            self[name] = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape) + i * GAP

    def rule(self, places):
        """The rule "copy" for these places, and their dtype."""
        places = np.ascontiguousarray(places).reshape(-1)
        tensor = places // GAP
        parts, dtype = [], {self.dtype[self.names[i]] for i in np.unique(tensor)}
        for run in np.split(places, np.flatnonzero(np.diff(tensor)) + 1):
            name, at = self.names[run[0] // GAP], run % GAP
            whole = len(run) == self[name].size and (at == np.arange(len(run))).all()
            parts.append(name if whole else [name, int(at[0]), *strides(at)])
        if len(parts) > 1 and all(isinstance(p, str) for p in parts):
            short = joined(parts)
            parts = short if [n for p in short for n in names_of(p)] == parts else parts
        return ["copy", *parts], dtype.pop()


def strides(at):
    """[count, stride] from the outermost, for places with such a structure."""
    if len(at) == 1:
        return []
    step = np.diff(at)
    n = int(np.argmax(step != step[0])) + 1 if (step != step[0]).any() else len(at)
    rows = at.reshape(-1, n)
    assert (np.diff(rows) == step[0]).all(), "no strides fit"
    return strides(rows[:, 0]) + [[n, int(step[0])]]


def derive(path, source, tensors):
    """A safetensors file of places of source's elements: name -> array."""
    out = []
    for name, places in tensors.items():
        rule, dtype = source.rule(places)
        out.append((dtype, np.shape(places), ["copy"] if rule == ["copy", name] else rule, name))
    put(path, {"from": source.file, "tensors": grouped(out)})


def packed(data):
    return base64.b64encode(zlib.compress(data, 9)).decode()


def derive_gguf(path, source, head, tensors):
    """A GGUF file: its bytes in front of the data, and (dtype, shape, rule) of each tensor. source: indices() or None."""
    listed = json.dumps([[dtype, list(shape), rule] for dtype, shape, rule in tensors], separators=(",", ":"))
    put(path, {**({"from": source.file} if source else {}), "head": packed(head), "tensors": packed(listed.encode())})


def sort_modules(folder):
    """PEFT writes a set, whose order differs from run to run."""
    path = pathlib.Path(folder) / "adapter_config.json"
    config = json.loads(path.read_text())
    config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True))


def same(path, source):
    put(path, {"same": relative(source)})
