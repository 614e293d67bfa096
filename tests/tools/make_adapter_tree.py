#!/usr/bin/env python3
"""Writes a tree of distinct PEFT adapters for a model, as many as are asked for.

Usage: make_adapter_tree.py MODEL_DIR TREE COUNT [--ranks 8,16,32,64] [--modules q_proj,v_proj] [--seed S]

TREE/a0 ... get what PEFT saves (BF16), the ranks in turn.  Each adapter's numbers are another stretch of one
pool of noise, so ten thousand are as many different contents, made in seconds.  TREE/sizes.txt: the bytes
of each weights file, in order.  Needs numpy.
"""
import argparse
import json
import os
import struct

import numpy as np

POOL = 1 << 22


def shapes(config, module):
    """d_out, d_in and the block's part that holds it."""
    dim, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or dim // heads
    ffn, kv = config["intermediate_size"], config["num_key_value_heads"] * head
    return {"q_proj": (heads * head, dim, "self_attn"), "k_proj": (kv, dim, "self_attn"),
            "v_proj": (kv, dim, "self_attn"), "o_proj": (dim, heads * head, "self_attn"),
            "gate_proj": (ffn, dim, "mlp"), "up_proj": (ffn, dim, "mlp"), "down_proj": (dim, ffn, "mlp")}[module]


def header(config, modules, rank):
    """The safetensors header for one rank, and the number of values behind it."""
    entries, at = {"__metadata__": {"format": "pt"}}, 0
    for layer in range(config["num_hidden_layers"]):
        for module in modules:
            d_out, d_in, part = shapes(config, module)
            for side, shape in (("A", [rank, d_in]), ("B", [d_out, rank])):
                n = 2 * shape[0] * shape[1]
                entries[f"base_model.model.model.layers.{layer}.{part}.{module}.lora_{side}.weight"] = {
                    "dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
                at += n
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at // 2


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("model")
    ap.add_argument("tree")
    ap.add_argument("count", type=int)
    ap.add_argument("--ranks", default="8,16,32,64")
    ap.add_argument("--modules", default="q_proj,v_proj")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    rng = np.random.default_rng(args.seed)
    noise = (rng.standard_normal(POOL, dtype=np.float32) * 0.01).view(np.uint32)
    noise = np.concatenate([noise, noise]) >> 16
    noise = noise.astype(np.uint16)
    modules, sizes = args.modules.split(","), []
    made = {int(r): header(config, modules, int(r)) for r in args.ranks.split(",")}
    starts = rng.permutation(POOL)
    for i in range(args.count):
        rank = list(made)[i % len(made)]
        head, n = made[rank]
        assert n <= POOL and args.count <= POOL
        where = os.path.join(args.tree, f"a{i}")
        os.makedirs(where, exist_ok=True)
        with open(os.path.join(where, "adapter_model.safetensors"), "wb") as f:
            f.write(head)
            f.write(noise[starts[i]:starts[i] + n].tobytes())
        sizes.append(len(head) + 2 * n)
        with open(os.path.join(where, "adapter_config.json"), "w", encoding="utf-8") as f:
            json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank,
                       "lora_dropout": 0.0, "bias": "none", "target_modules": modules}, f)
    with open(os.path.join(args.tree, "sizes.txt"), "w", encoding="utf-8") as f:
        f.writelines(f"{n}\n" for n in sizes)


if __name__ == "__main__":
    main()
