#!/usr/bin/env python3
"""Makes tests/fixtures/families/gguf: mixtures of experts of that folder as llama.cpp's converter writes them.

Usage: make_family_ggufs.py [fixtures/families]          (needs gguf, safetensors, numpy)

The values are those of the models, F16 or, of OLMoE, whose weights are such that nothing is rounded, Q8_0; so the
goldens of the models, and their adapters, are these files', too.
"""
import json
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import load_file

ARCH = {"mixtral": "llama", "qwen2-moe": "qwen2moe", "qwen3-moe": "qwen3moe", "olmoe": "olmoe"}
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
         "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp"}
EXPERT = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


def turn(w, n_head):
    """What the converter does to q and k of a llama."""
    return w.reshape(n_head, 2, w.shape[0] // n_head // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def tensors_of(model, c, arch):
    """(name, values) in the names of a GGUF, experts stacked."""
    stacks = {}
    for name, v in sorted(model.items()):
        parts = name.split(".")
        if "experts" in parts:
            key = f"blk.{parts[2]}.ffn_{EXPERT[parts[6]]}_exps.weight"
            stacks.setdefault(key, {})[int(parts[5])] = v
        elif name.startswith("model.layers."):
            module, suffix = ".".join(parts[3:]).rsplit(".", 1)
            heads = {"self_attn.q_proj": c["num_attention_heads"], "self_attn.k_proj": c["num_key_value_heads"]}
            if arch == "llama" and module in heads:
                v = turn(v, heads[module])
            if module == "mlp.shared_expert_gate":
                v = v.reshape(-1)
            yield f"blk.{parts[2]}.{NAMES[module]}.{suffix}", v
        else:
            yield {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                   "lm_head.weight": "output.weight"}[name], v
    for key, experts in stacks.items():
        yield key, np.stack([experts[i] for i in range(len(experts))])


def add(writer, name, v, kind):
    if v.ndim == 1 or "gate_inp" in name:
        writer.add_tensor(name, v.astype(np.float32))
    elif kind == Q.F16:
        writer.add_tensor(name, v)
    else:
        raw = gguf.quantize(np.ascontiguousarray(v, dtype=np.float32), kind)
        assert (gguf.dequantize(raw, kind).reshape(v.shape) == v).all(), name
        writer.add_tensor(name, raw, raw_dtype=kind)


def convert(root, name):
    where = root / "models" / name
    c = json.loads((where / "config.json").read_text())
    writer = gguf.GGUFWriter(root / "gguf" / f"{name}.gguf", ARCH[name])
    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_expert_count(c.get("num_experts") or c["num_local_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c:
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in c:
        writer.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if name == "mixtral":
        writer.add_sliding_window(c["sliding_window"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, v in tensors_of(load_file(where / "model.safetensors"), c, ARCH[name]):
        add(writer, key, v, Q.Q8_0 if name == "olmoe" else Q.F16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(name, flush=True)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent / "fixtures/families")
    (root / "gguf").mkdir(exist_ok=True)
    for name in ARCH:
        convert(root, name)


if __name__ == "__main__":
    main()
