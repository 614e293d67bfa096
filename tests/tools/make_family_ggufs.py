#!/usr/bin/env python3
"""Makes tests/fixtures/families/gguf: models of that folder as llama.cpp's converter writes them.

Usage: make_family_ggufs.py [NAME ...]          (needs gguf, safetensors, torch, numpy)

A file cannot say all that a config.json can: where SAYS has an entry, the file is of a model with these fields
instead, and the test compares it with that.  The values are those of the models, F16 or, of OLMoE, whose weights are such that nothing is rounded, Q8_0; so the
goldens of the models, and their adapters, are these files', too.  The recipe of a file (seed_weights.py) has its header,
and where in the model each value is.
"""
import json
import math
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import load_file

from seed_weights import derive_gguf, indices

ARCH = {"mixtral": "llama", "qwen2-moe": "qwen2moe", "qwen3-moe": "qwen3moe", "olmoe": "olmoe", "glm4": "glm4", "olmo2": "olmo2",
        "granite": "granite", "gemma2": "gemma2", "gemma3": "gemma3", "cohere2": "cohere2", "starcoder2": "starcoder2",
        "smollm3": "smollm3", "phi3": "phi3", "granitemoe": "granitemoe", "llama-yarn": "llama", "olmo3": "olmo2", "mistral3-images": "mistral3", "gpt-oss": "gpt-oss",
        "gpt-oss-mxfp4": "gpt-oss", "deepseek-v2": "deepseek2", "deepseek-v2-lite": "deepseek2", "deepseek-v3": "deepseek2",
        "deepseek-v3-halves": "deepseek2", "llama4": "llama4"}
# Written as before April 2025: the two matrices of a latent's keys and values in one.
JOINED = ("deepseek-v2-lite",)
# The model that the file is of, where its keys do not say what the folder's config.json does.
SAYS = {"gemma2": {"query_pre_attn_scalar": 256},
        "gemma3": {"query_pre_attn_scalar": 64, "layer_types": None, "sliding_window_pattern": 6, "_sliding_window_pattern": 6},
        "cohere2": {"layer_types": None}, "starcoder2": {"sliding_window": None},
        "smollm3": {"no_rope_layers": [1, 1, 1, 0], "no_rope_layer_interval": 4},
        "phi3": {"sliding_window": 12}, "mistral3-images": {},
        "deepseek-v3": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7,
                                         "mscale_all_dim": 0.7}},
        "deepseek-v3-halves": {"rope_interleave": None},
        "llama4": {"attention_chunk_size": 8192, "layer_types": None, "attn_scale": 0.1, "floor_scale": 8192, "moe_layers": None,
                   "no_rope_layers": None, "no_rope_layer_interval": 4}}
# Norms by their place.
NORMS = {"glm4": {"post_self_attn_layernorm": "post_attention_norm", "post_attention_layernorm": "ffn_norm",
                  "post_mlp_layernorm": "post_ffw_norm"},
         "olmo2": {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
         "gemma2": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                    "post_feedforward_layernorm": "post_ffw_norm"}}
NORMS["gemma3"] = NORMS["gemma2"]
NORMS["gpt-oss"] = {"post_attention_layernorm": "post_attention_norm"}
# Numbers that only some have: the writer's call, and the field.
OWN = {"gemma2": [("add_attn_logit_softcapping", "attn_logit_softcapping"), ("add_final_logit_softcapping", "final_logit_softcapping")],
       "gemma3": [("add_final_logit_softcapping", "final_logit_softcapping")], "cohere2": [("add_logit_scale", "logit_scale")],
       "granite": [("add_attention_scale", "attention_multiplier"), ("add_embedding_scale", "embedding_multiplier"),
                   ("add_residual_scale", "residual_multiplier"), ("add_logit_scale", "logits_scaling")],
       "phi3": [("add_rope_scaling_orig_ctx_len", "original_max_position_embeddings")],
       "gpt-oss": [("add_expert_feed_forward_length", "intermediate_size")],
       "llama4": [("add_expert_feed_forward_length", "intermediate_size"),
                  ("add_interleave_moe_layer_step", "interleave_moe_layer_step")]}
OWN["granitemoe"] = OWN["granite"]
OWN["gpt-oss-mxfp4"] = OWN["gpt-oss"]
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
         "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
         "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
         "mlp.router": "ffn_gate_inp", "feed_forward.router": "ffn_gate_inp", "block_sparse_moe.router.layer": "ffn_gate_inp",
         "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
         "self_attn.kv_b_proj": "attn_kv_b", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.kv_a_layernorm": "attn_kv_a_norm"}
for kind in ("gate", "up", "down"):
    NAMES[f"feed_forward.{kind}_proj"] = f"ffn_{kind}"
    NAMES[f"mlp.shared_experts.{kind}_proj"] = NAMES[f"feed_forward.shared_expert.{kind}_proj"] = f"ffn_{kind}_shexp"
EXPERT = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


def turn(w, n_head):
    """What the converter does to q and k of a llama."""
    return w.reshape(n_head, 2, w.shape[0] // n_head // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def mxfp4(rows):
    """Blocks of 32 as ggml has them: the scale, then 16 bytes whose upper halves are columns 16 to 31."""
    blocks = rows.reshape(*rows.shape[:-1], -1, 17)
    codes = np.stack((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), axis=-1).reshape(*blocks.shape[:-1], 32)
    return np.concatenate((blocks[..., :1], codes[..., :16] | codes[..., 16:] << 4), axis=-1).reshape(rows.shape)


def stacked(model, name, v):
    """(kind of GGUF's tensor, values) of a folder's tensor of all experts of a layer; none: it is no such."""
    what = name.split(".", 3)[3]
    if what.endswith("_scales"):
        return
    if what.endswith("_blocks"):
        scales = model[name.replace("_blocks", "_scales")]
        v = np.concatenate((scales[..., None], v), axis=-1).reshape(*scales.shape[:2], -1)
    if what in ("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"):
        parts = np.split(v, 2, axis=1) if "input" in what else [v]
    elif what.startswith("feed_forward.experts."):
        parts = np.split(v.swapaxes(1, 2), 2, axis=1) if "gate_up" in what else [v.swapaxes(1, 2)]
    elif what.endswith(("_bias", "_blocks")):
        parts = [v[:, 0::2], v[:, 1::2]] if "gate_up" in what else [v]
    else:
        v = v.swapaxes(1, 2)
        parts = [v[:, 0::2], v[:, 1::2]] if "gate_up" in what else [v]
    kinds = ("gate", "up") if len(parts) == 2 else ("down",)
    for kind, part in zip(kinds, parts):
        yield f"ffn_{kind}_exps.{'bias' if what.endswith('_bias') else 'weight'}", np.ascontiguousarray(part)


def halves(v, c):
    """The keys of a latent, a column for each, and its values, of each head."""
    nope = c["qk_nope_head_dim"]
    v = v.reshape(c["num_attention_heads"], nope + c["v_head_dim"], -1)
    return np.ascontiguousarray(v[:, :nope].swapaxes(1, 2)), np.ascontiguousarray(v[:, nope:])


def text_of(model):
    """The text part of a model with images."""
    inside = "language_model."
    text = {k.removeprefix(inside): v for k, v in model.items() if k.startswith(inside)}
    return text or model


def tensors_of(name_of, model, c, arch):
    """(name, values) in the names of a GGUF, experts stacked."""
    stacks = {}
    for name, v in sorted(model.items()):
        parts = name.split(".")
        if "experts" in parts and parts[5].isdigit():
            key = f"blk.{parts[2]}.ffn_{EXPERT[parts[6]]}_exps.weight"
            stacks.setdefault(key, {})[int(parts[5])] = v
        elif "experts" in parts or parts[-2] in ("input_linear", "output_linear"):
            for key, part in stacked(model, name, v):
                yield f"blk.{parts[2]}.{key}", part
        elif parts[-1] == "sinks":
            yield f"blk.{parts[2]}.attn_sinks.weight", v
        elif parts[-1] == "e_score_correction_bias":
            yield f"blk.{parts[2]}.exp_probs_b.bias", v
        elif parts[-2] == "kv_b_proj" and name_of not in JOINED:
            for key, half in zip(("k", "v"), halves(v, c)):
                yield f"blk.{parts[2]}.attn_{key}_b.weight", half
        elif name.startswith("model.layers."):
            module, suffix = ".".join(parts[3:]).rsplit(".", 1)
            heads = {"self_attn.q_proj": c["num_attention_heads"], "self_attn.k_proj": c["num_key_value_heads"]}
            if arch in ("llama", "mistral3", "granite", "granitemoe", "smollm3") and module in heads:
                v = turn(v, heads[module])
            if module == "mlp.shared_expert_gate":
                v = v.reshape(-1)
            yield f"blk.{parts[2]}.{NORMS.get(arch, {}).get(module) or NAMES[module]}.{suffix}", v
        elif name == "lm_head.weight" and c.get("tie_word_embeddings"):
            continue
        else:
            yield {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                   "model.norm.bias": "output_norm.bias", "lm_head.weight": "output.weight"}[name], v
    for key, experts in stacks.items():
        yield key, np.stack([experts[i] for i in range(len(experts))])


def rope_divisors(c, head_dim):
    """What llama3's scaling divides each frequency by."""
    r = c["rope_parameters"]
    turns = r["original_max_position_embeddings"] / (2 * np.pi * r["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim))
    low, high = r["low_freq_factor"], r["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / r["factor"] + smooth)).astype(np.float32)


def add(writer, name, v, kind, plus, source, places):
    """Writes a tensor, and gives its dtype, shape and rule. plus: what llama.cpp's norms have more."""
    rule, dtype = source.rule(places)
    if v.dtype == np.uint8:
        writer.add_tensor(name, mxfp4(v), raw_dtype=Q.MXFP4)
        blocks = places.reshape(-1, 17)
        return "U8", v.shape, ["mxfp4", source.rule(blocks[:, 0])[0], source.rule(blocks[:, 1:])[0]]
    if v.ndim == 1 or "gate_inp" in name or name.endswith("_exps.bias"):
        writer.add_tensor(name, v.astype(np.float32) + np.float32(plus))
        return "F32", v.shape, rule if dtype == "F32" else ["f32", plus, rule]
    if kind == Q.F16 and "qkv" not in name:
        writer.add_tensor(name, v)
        return dtype, v.shape, rule
    # Rows of one that is fused and quantised: the test allows for the rounding. The other values are not rounded.
    raw = gguf.quantize(np.ascontiguousarray(v, dtype=np.float32), Q.Q8_0)
    assert kind == Q.F16 or (gguf.dequantize(raw, kind).reshape(v.shape) == v).all(), name
    writer.add_tensor(name, raw, raw_dtype=Q.Q8_0)
    return "Q8_0", v.shape, ["q8_0", rule]


def add_latent(writer, name, c):
    """What DeepSeek's files have besides."""
    rank, rope, key = c["kv_lora_rank"], c["qk_rope_head_dim"], c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    joined = name in JOINED
    writer.add_head_count_kv(c["num_attention_heads"] if joined else 1)
    writer.add_key_length(key if joined else rank + rope)
    writer.add_value_length(c["v_head_dim"] if joined else rank)
    if not joined:
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(c["v_head_dim"])
    writer.add_kv_lora_rank(rank)
    if c["q_lora_rank"]:
        writer.add_q_lora_rank(c["q_lora_rank"])
    writer.add_rope_dimension_count(rope)
    writer.add_leading_dense_block_count(c["first_k_dense_replace"])
    writer.add_expert_shared_count(c["n_shared_experts"])
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    if c["norm_topk_prob"]:
        writer.add_expert_weights_norm(True)
    if c["n_group"]:
        writer.add_expert_group_count(c["n_group"])
        writer.add_expert_group_used_count(c["topk_group"])
    if c["model_type"] == "deepseek_v3":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def convert(root, name):
    where = root / "models" / name
    c = json.loads((where / "config.json").read_text())
    if name in SAYS:
        c = {k: v for k, v in {**c, **SAYS[name]}.items() if v is not None or k not in SAYS[name]}
        (root / "gguf" / f"{name}.json").write_text(json.dumps(c, indent=2, sort_keys=True) + "\n")
    c = c.get("text_config", c)
    path, tensors = root / "gguf" / f"{name}.gguf", []
    writer = gguf.GGUFWriter(path, ARCH[name])

    def plain(tensor, v):
        writer.add_tensor(tensor, v)
        tensors.append(("F32", v.shape, ["hex", v.tobytes().hex()]))

    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c.get("intermediate_size_mlp") or c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    if "kv_lora_rank" not in c:
        writer.add_head_count_kv(c["num_key_value_heads"])
    if "rms_norm_eps" in c:
        writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(c.get("layer_norm_eps") or c["norm_epsilon"])
    rope = c.get("rope_parameters") or {**c, **(c.get("rope_scaling") or {})}
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "attention_factor" in rope:
        writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if rope.get("rope_type") == "longrope":
        scale, original = c["max_position_embeddings"] / c["original_max_position_embeddings"], c["original_max_position_embeddings"]
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for kind in ("long", "short"):
            plain(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], dtype=np.float32))
    if rope.get("rope_type") == "llama3":
        plain("rope_freqs.weight", rope_divisors(c, head_dim))
    if "partial_rotary_factor" in rope:
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    for call, field in OWN.get(name, []):
        getattr(writer, call)(c[field])
    if "kv_lora_rank" in c:
        add_latent(writer, name, c)
    else:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    experts = c.get("num_experts") or c.get("num_local_experts") or c.get("n_routed_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c:
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in c:
        writer.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if name in ("mixtral", "gemma2", "gemma3", "cohere2", "phi3", "gpt-oss", "gpt-oss-mxfp4", "olmo3"):
        writer.add_sliding_window(c["sliding_window"])
    if name == "olmo3":
        writer.add_sliding_window_pattern([x == "sliding_attention" for x in c["layer_types"]])
        writer.add_rope_freq_base_swa(c["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    model, source = where / "model.safetensors", indices(where / "model.safetensors")
    pairs = zip(*(tensors_of(name, text_of(of), c, ARCH[name]) for of in (load_file(model), source)))
    for (key, v), (_, places) in pairs:
        plus = ARCH[name].startswith("gemma") and key.endswith("norm.weight")
        tensors.append(add(writer, key, v, Q.Q8_0 if name == "olmoe" else Q.F16, int(plus), source, places))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    written = path.read_bytes()
    derive_gguf(path, source, written[:gguf.GGUFReader(path).data_offset], tensors)
    assert path.read_bytes() == written, name
    print(name, flush=True)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent / "fixtures/families"
    (root / "gguf").mkdir(exist_ok=True)
    for name in sys.argv[1:] or ARCH:
        convert(root, name)


if __name__ == "__main__":
    main()
