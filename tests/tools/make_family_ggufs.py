#!/usr/bin/env python3
"""Makes tests/fixtures/families/gguf: models of that folder as llama.cpp's converter writes them.

Usage: make_family_ggufs.py [fixtures/families]          (needs gguf, safetensors, numpy)

A file cannot say all that a config.json can: where SAYS has an entry, the file is of a model with these fields
instead, and the test compares it with that.  The values are those of the models, F16 or, of OLMoE, whose weights are such that nothing is rounded, Q8_0; so the
goldens of the models, and their adapters, are these files', too.
"""
import json
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import load_file

ARCH = {"mixtral": "llama", "qwen2-moe": "qwen2moe", "qwen3-moe": "qwen3moe", "olmoe": "olmoe", "glm4": "glm4", "olmo2": "olmo2",
        "granite": "granite", "gemma2": "gemma2", "gemma3": "gemma3", "cohere2": "cohere2", "starcoder2": "starcoder2",
        "smollm3": "smollm3", "phi3": "phi3"}
ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
# The model that the file is of, where its keys do not say what the folder's config.json does.
SAYS = {"gemma2": {"query_pre_attn_scalar": 256},
        "gemma3": {"query_pre_attn_scalar": 64, "layer_types": None, "sliding_window_pattern": 6, "_sliding_window_pattern": 6},
        "cohere2": {"layer_types": None}, "starcoder2": {"sliding_window": None},
        "smollm3": {"no_rope_layers": [1, 1, 1, 0], "no_rope_layer_interval": 4},
        "phi3": {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.75}, "sliding_window": 12}}
# Norms by their place.
NORMS = {"glm4": {"post_self_attn_layernorm": "post_attention_norm", "post_attention_layernorm": "ffn_norm",
                  "post_mlp_layernorm": "post_ffw_norm"},
         "olmo2": {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
         "gemma2": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                    "post_feedforward_layernorm": "post_ffw_norm"}}
NORMS["gemma3"] = NORMS["gemma2"]
# Numbers that only some have: the writer's call, and the field.
OWN = {"gemma2": [("add_attn_logit_softcapping", "attn_logit_softcapping"), ("add_final_logit_softcapping", "final_logit_softcapping")],
       "gemma3": [("add_final_logit_softcapping", "final_logit_softcapping")], "cohere2": [("add_logit_scale", "logit_scale")],
       "granite": [("add_attention_scale", "attention_multiplier"), ("add_embedding_scale", "embedding_multiplier"),
                   ("add_residual_scale", "residual_multiplier"), ("add_logit_scale", "logits_scaling")],
       "phi3": [("add_rope_scaling_orig_ctx_len", "original_max_position_embeddings")]}
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
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
            if arch in ("llama", "granite", "smollm3") and module in heads:
                v = turn(v, heads[module])
            if arch.startswith("gemma") and name.endswith("norm.weight"):
                v = v.astype(np.float32) + 1
            if module == "mlp.shared_expert_gate":
                v = v.reshape(-1)
            yield f"blk.{parts[2]}.{NORMS.get(arch, {}).get(module) or NAMES[module]}.{suffix}", v
        elif name == "lm_head.weight" and c.get("tie_word_embeddings"):
            continue
        else:
            if arch.startswith("gemma") and name == "model.norm.weight":
                v = v.astype(np.float32) + 1
            yield {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                   "model.norm.bias": "output_norm.bias", "lm_head.weight": "output.weight"}[name], v
    for key, experts in stacks.items():
        yield key, np.stack([experts[i] for i in range(len(experts))])


def add(writer, name, v, kind):
    if v.ndim == 1 or "gate_inp" in name:
        writer.add_tensor(name, v.astype(np.float32))
    elif kind == Q.F16 and "qkv" in name:  # rows of one that is fused and quantised; the test allows for the rounding
        writer.add_tensor(name, gguf.quantize(v.astype(np.float32), Q.Q8_0), raw_dtype=Q.Q8_0)
    elif kind == Q.F16:
        writer.add_tensor(name, v)
    else:
        raw = gguf.quantize(np.ascontiguousarray(v, dtype=np.float32), kind)
        assert (gguf.dequantize(raw, kind).reshape(v.shape) == v).all(), name
        writer.add_tensor(name, raw, raw_dtype=kind)


def convert(root, name):
    where = root / "models" / name
    c = json.loads((where / "config.json").read_text())
    if name in SAYS:
        c = {k: v for k, v in {**c, **SAYS[name]}.items() if v is not None}
        (root / "gguf" / f"{name}.json").write_text(json.dumps(c, indent=2, sort_keys=True) + "\n")
    writer = gguf.GGUFWriter(root / "gguf" / f"{name}.gguf", ARCH[name])
    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    if "rms_norm_eps" in c:
        writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(c.get("layer_norm_eps") or c["norm_epsilon"])
    rope = c.get("rope_parameters", c)
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if "partial_rotary_factor" in rope:
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    for call, field in OWN.get(name, []):
        getattr(writer, call)(c[field])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    experts = c.get("num_experts") or c.get("num_local_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c:
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in c:
        writer.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if name in ("mixtral", "gemma2", "gemma3", "cohere2", "phi3"):
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
