#!/usr/bin/env python3
"""Makes tests/fixtures/families: a tiny random model of each family, and what transformers answers.

Usage: make_family_goldens.py [--experts | --parameters] [--only NAME,...] [output directory]
                                          (needs torch, transformers, peft, safetensors)

Each model comes from the family's own configuration class: models/<name>, with golden.bin of the
bare model, and peft/<name>/<kind>, an adapter on every linear layer as PEFT saved it, with a
golden.bin of its own (make_goldens.py has the format).  Weights are random and kept in F16 (or
BF16, where the name says so); the reference computes in F32.  Sequences have up to 64 tokens, and windows, borders of rotations and
caps are so small that each of them matters within that.

Mixtures of experts are made with transformers 4.57, in which each expert is a module that PEFT wraps: --experts.
Adapters for the parameters of all experts of a layer (target_parameters) are made for these models with transformers 5,
which keeps experts so: --parameters.
"""

import json
import os
import shutil
import struct
import sys

import torch
import transformers as tf
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from make_goldens import N_SAMPLE, N_TOP, make_case, write_case

N_VOCAB, N_CASE = 160, 3
LENGTHS = [56, 33, 21]  # and eight tokens more
SHAPE = dict(vocab_size=N_VOCAB, hidden_size=48, num_hidden_layers=3, num_attention_heads=6,
             num_key_value_heads=2, intermediate_size=56, max_position_embeddings=128,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 16}
MIXED = ["full_attention", "sliding_attention", "full_attention"]
TWO_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


def shape(**more):
    return dict(SHAPE, **more)


def longrope(max_pos, n):
    return {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16,
            "short_factor": [1.0 + 0.05 * i for i in range(n)],
            "long_factor": [1.0 + 0.7 * i for i in range(n)]}


VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
              image_size=28, patch_size=14)


def gemma3_text(cap):
    return tf.Gemma3TextConfig(**shape(
        head_dim=64, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=4,
        sliding_window=12, sliding_window_pattern=3,
        query_pre_attn_scalar=48, final_logit_softcapping=cap,
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0,
                                            "rope_theta": 1000000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}))


def wrapped(config, text, vision, **more):
    return config(text_config=text.to_dict(), vision_config=vision, tie_word_embeddings=True, **more)


def qwen_vl(config, text, **vision):
    return config(text_config=text.to_dict(), vision_config=dict(
        depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=48,
        patch_size=14, **vision), tie_word_embeddings=False, image_token_id=150,
        video_token_id=151, vision_start_token_id=152, vision_end_token_id=153)


def gpt_oss(**more):
    return shape(**{**dict(hidden_size=64, intermediate_size=48, head_dim=16, num_local_experts=5, num_experts_per_tok=2,
                           sliding_window=12, rope_parameters=dict(YARN, truncate=False)), **more})


def llama4(**more):
    return shape(**{**dict(num_hidden_layers=4, head_dim=8, intermediate_size=28, intermediate_size_mlp=56,
                           num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2, no_rope_layer_interval=3,
                           attention_chunk_size=12, floor_scale=5, attn_scale=0.4,
                           rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                                            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                            "original_max_position_embeddings": 16}), **more})


def latent(**more):
    return shape(**{**dict(num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=24, qk_nope_head_dim=12,
                           qk_rope_head_dim=8, v_head_dim=16, moe_intermediate_size=24, hidden_size=40), **more})


# name: configuration, and fields of config.json as older files have them
MODELS = {
    "gemma2": tf.Gemma2Config(**shape(
        head_dim=256, hidden_size=24, num_attention_heads=2, num_key_value_heads=1,
        num_hidden_layers=2, sliding_window=12, query_pre_attn_scalar=96,
        attn_logit_softcapping=1.5, final_logit_softcapping=3.0)),
    "gemma2-bf16": tf.Gemma2Config(**shape(
        head_dim=64, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2,
        sliding_window=12, query_pre_attn_scalar=48, attn_logit_softcapping=1.5,
        final_logit_softcapping=2.5)),
    "gemma3": gemma3_text(4.0),
    "gemma3-images": lambda: wrapped(
        tf.Gemma3Config, gemma3_text(None), dict(VISION, model_type="siglip_vision_model",
                                             vision_use_head=False),
        mm_tokens_per_image=4, image_token_index=150, boi_token_index=151, eoi_token_index=152),
    "phi3": tf.Phi3Config(**shape(
        hidden_size=96, num_attention_heads=6, original_max_position_embeddings=16,
        partial_rotary_factor=0.75, rope_parameters=longrope(128, 6))),
    "phi3-short": tf.Phi3Config(**shape(
        max_position_embeddings=64, original_max_position_embeddings=64, sliding_window=12,
        num_key_value_heads=3, rope_parameters=dict(longrope(64, 4)))),
    "granite": tf.GraniteConfig(**shape(
        embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.5,
        logits_scaling=3.0)),
    "olmo2": tf.Olmo2Config(**shape(num_attention_heads=4, num_key_value_heads=4)),
    "olmo3": tf.Olmo3Config(**shape(
        sliding_window=12, layer_types=TWO_MIXED,
        rope_parameters={"full_attention": dict(YARN, attention_factor=1.2),
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})),
    "smollm3": tf.SmolLM3Config(**shape(
        num_hidden_layers=4, no_rope_layer_interval=2, attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    "llama-yarn": tf.LlamaConfig(**shape(rope_parameters=YARN)),
    "llama-dynamic": tf.LlamaConfig(**shape(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})),
    "qwen2-mixed": tf.Qwen2Config(**shape(
        use_sliding_window=True, sliding_window=12, max_window_layers=1,
        rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=0.5, truncate=False))),
    "qwen3-mixed": tf.Qwen3Config(**shape(
        head_dim=80, num_attention_heads=3, num_key_value_heads=1, use_sliding_window=True,
        sliding_window=12, layer_types=MIXED,
        rope_parameters=YARN)),
    "mistral3-images": lambda: tf.Mistral3Config(
        text_config=tf.MistralConfig(**shape(
            head_dim=96, sliding_window=None, tie_word_embeddings=False, hidden_size=32,
            num_attention_heads=3, num_key_value_heads=1,
            rope_parameters={"rope_type": "default", "rope_theta": 1e9})).to_dict(),
        vision_config=dict(VISION, model_type="pixtral", head_dim=8), image_token_index=150,
        tie_word_embeddings=False),
    "qwen2.5-images": lambda: qwen_vl(
        tf.Qwen2_5_VLConfig, tf.Qwen2_5_VLTextConfig(**shape(
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                             "mrope_section": [1, 1, 2]})), fullatt_block_indexes=[0]),
    "qwen3-images": lambda: qwen_vl(
        tf.Qwen3VLConfig, tf.Qwen3VLTextConfig(**shape(
            head_dim=32, rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                                          "mrope_section": [4, 6, 6],
                                          "mrope_interleaved": True})),
        deepstack_visual_indexes=[0], num_position_embeddings=16),
    "cohere2": tf.Cohere2Config(**shape(
        num_hidden_layers=4, sliding_window=12, logit_scale=0.7, layer_types=MIXED + MIXED[1:2])),
    "glm4": tf.Glm4Config(**shape(head_dim=16, partial_rotary_factor=0.5, num_attention_heads=5,
                                  num_key_value_heads=1, hidden_size=40)),
    "starcoder2": tf.Starcoder2Config(**shape(sliding_window=12)),
    "gpt-oss": tf.GptOssConfig(**gpt_oss()),
    "gpt-oss-odd": tf.GptOssConfig(**gpt_oss(
        head_dim=64, num_attention_heads=3, num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=1,
        layer_types=MIXED[:2], num_hidden_layers=2, attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})),
    "gpt-oss-mxfp4": tf.GptOssConfig(**gpt_oss(num_hidden_layers=2, intermediate_size=32)),
    "llama4": tf.Llama4TextConfig(**llama4()),
    "llama4-128e": tf.Llama4TextConfig(**llama4(
        num_hidden_layers=2, moe_layers=[0], no_rope_layers=[1, 0], use_qk_norm=False, attn_temperature_tuning=False,
        num_local_experts=3, head_dim=24, num_attention_heads=3, num_key_value_heads=1)),
}

# Layers without experts, an expert beside all of them, weights of the chosen ones normed or not.
EXPERTS = {
    "mixtral": lambda: tf.MixtralConfig(**shape(
        num_local_experts=5, num_experts_per_tok=2, sliding_window=12, rope_theta=10000.0)),
    "qwen2-moe": lambda: tf.Qwen2MoeConfig(**shape(
        num_hidden_layers=4, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=40,
        shared_expert_intermediate_size=72, mlp_only_layers=[2], norm_topk_prob=False)),
    "qwen3-moe": lambda: tf.Qwen3MoeConfig(**shape(
        num_hidden_layers=4, head_dim=16, num_experts=9, num_experts_per_tok=4, norm_topk_prob=True,
        moe_intermediate_size=33, decoder_sparse_step=2)),
    "olmoe": lambda: tf.OlmoeConfig(**shape(
        hidden_size=64, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
        num_experts=7, num_experts_per_tok=5)),
    "granitemoe": lambda: tf.GraniteMoeConfig(**shape(
        num_local_experts=6, num_experts_per_tok=3, embedding_multiplier=6.0,
        residual_multiplier=0.4, attention_multiplier=0.5, logits_scaling=3.0)),
    "deepseek-v2": lambda: tf.DeepseekV2Config(**latent(
        n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, topk_method="group_limited_greedy",
        routed_scaling_factor=1.7, n_shared_experts=2, q_lora_rank=20, first_k_dense_replace=1)),
    "deepseek-v2-lite": lambda: tf.DeepseekV2Config(**latent(
        n_routed_experts=6, num_experts_per_tok=2, topk_method="greedy", q_lora_rank=None, n_shared_experts=1,
        first_k_dense_replace=1, num_hidden_layers=2, qk_nope_head_dim=24, v_head_dim=40)),
    "deepseek-v3": lambda: tf.DeepseekV3Config(**latent(
        n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, routed_scaling_factor=2.5, n_shared_experts=1,
        q_lora_rank=20, first_k_dense_replace=1, attention_bias=True,
        rope_scaling=dict({k: v for k, v in YARN.items() if k != "rope_theta"}, mscale=1.0, mscale_all_dim=0.7))),
    "deepseek-v3-halves": lambda: tf.DeepseekV3Config(**latent(
        n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1, q_lora_rank=None,
        first_k_dense_replace=0, num_hidden_layers=2, rope_interleave=False, norm_topk_prob=False, v_head_dim=12)),
}

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LATENT = ["q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED = {"phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
         "phi3-short": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
         "starcoder2": ["q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"],
         "glm4": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"],
         "mixtral": ["q_proj", "k_proj", "v_proj", "o_proj", "w1", "w2", "w3"],
         "granitemoe": ["q_proj", "k_proj", "v_proj", "o_proj"],
         "deepseek-v2": LATENT, "deepseek-v2-lite": LATENT, "deepseek-v3": LATENT, "deepseek-v3-halves": LATENT,
         "gpt-oss": ["q_proj", "k_proj", "v_proj", "o_proj"],
         "gpt-oss-odd": ["q_proj", "k_proj", "v_proj", "o_proj"],
         "gpt-oss-mxfp4": ["q_proj", "k_proj", "v_proj", "o_proj"]}


TWO_QUERIES, ONE_QUERY = ["q_proj"], ["q_a_proj", "q_b_proj"]
ABSENT = {"deepseek-v2": TWO_QUERIES, "deepseek-v3": TWO_QUERIES, "deepseek-v2-lite": ONE_QUERY,
          "deepseek-v3-halves": ONE_QUERY}
# LoRA on a table that is multiplied, on a tied one, and on an output layer that is.
EMBED = ["gemma3", "granite", "cohere2"]


def targets(name):
    modules = [m for m in FUSED.get(name, LINEAR) if m not in ABSENT.get(name, [])]
    if "images" in name:
        return r".*language_model.*\.(" + "|".join(modules) + ")"
    return modules


def kinds(name):
    all_of = dict(r=4, lora_alpha=8, target_modules=targets(name))
    more = {"embed": dict(all_of, target_modules=["q_proj", "embed_tokens"])} if name in EMBED else {}
    if name == "starcoder2":
        more = {"biases": dict(all_of, bias="lora_only")}
    if name in EXPERTS and name != "granitemoe":
        more = {"experts": dict(all_of, target_modules=r".*\.experts\.[1-4]\.(down_proj|up_proj|w2)",
                                rank_pattern={r"layers.1.*experts.3.*": 7}, use_rslora=True)}
    return {"all": all_of, "dora": dict(all_of, r=3, use_dora=True), **more}


def is_one_plus(model):
    return "gemma" in model.config.model_type


def randomise(model, gen):
    """Unit gain through every layer; scores, caps and norms far from where they do nothing."""
    tied = any(getattr(c, "tie_word_embeddings", False)
               for c in (model.config, model.config.get_text_config()))
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=gen)
            if "norm" in name:
                p.copy_(0.3 * noise + (0 if is_one_plus(model) else 1))
            elif name.endswith("bias"):
                p.copy_(0.3 * noise)
            elif "sinks" in name:
                p.copy_(1 + noise)
            elif model.config.model_type in ("gpt_oss", "llama4_text") and p.dim() == 3:  # some are clamped
                gain = 4 if "gate_up" in name and model.config.model_type == "gpt_oss" else 1
                p.copy_(noise * gain / p.shape[1] ** 0.5)
            elif "embed_tokens" in name:
                p.copy_(noise * (p.shape[1] ** -0.5 if tied else 1.0))
            elif name.endswith(("mlp.gate.weight", "moe.gate.weight", "router.layer.weight", "router.weight")):
                p.copy_(noise * 2 / p.shape[-1] ** 0.5)
            elif p.dim() >= 2:
                p.copy_(noise * (1.5 if "q_proj" in name else 1.0) / p.shape[-1] ** 0.5)
            else:
                p.copy_(0.1 * noise)
        for name, b in model.named_buffers():
            if "e_score_correction_bias" in name:
                b.copy_(0.3 * torch.rand(b.shape, generator=gen))


def to_grid(model):
    """Weights that Q8_0 of a GGUF holds as they are: each block of 32 reaches 127 steps of 2^-9."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() < 2 or "gate.weight" in name:
                continue
            step = 2.0 ** (-6 if "embed_tokens" in name else -9)
            p.copy_((p / step).round().clamp(-127, 127) * step)
            blocks = p.view(-1, 32)
            blocks[:, 0] = 127 * step


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def to_mxfp4(model, gen):
    """Random experts as MXFP4 has them; what a file holds in place of their weights."""
    tensors = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() != 3:
                continue
            n, cols, rows = p.shape
            codes = torch.randint(0, 16, (n, rows, cols // 32, 32), generator=gen)
            powers = torch.randint(-5, -2, (n, rows, cols // 32), generator=gen) + ("gate_up" in name)
            p.copy_((E2M1[codes] * 2.0 ** powers[..., None]).reshape(n, rows, cols).transpose(1, 2))
            tensors[name + "_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
            tensors[name + "_scales"] = (powers + 127).to(torch.uint8)
    return tensors


def put_mxfp4(where, tensors):
    path = os.path.join(where, "model.safetensors")
    plain = {k: v for k, v in load_file(path).items() if k + "_blocks" not in tensors}
    save_file({**plain, **tensors}, path, metadata={"format": "pt"})
    path = os.path.join(where, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    with open(path, "w") as f:
        json.dump(config, f, indent=2)


def make_model(where, config, dtype, gen):
    auto = tf.AutoModelForCausalLM
    if hasattr(config, "vision_config"):
        auto = tf.AutoModelForImageTextToText
    model = auto.from_config(config, attn_implementation="eager")
    randomise(model, gen)
    if config.model_type == "olmoe":
        to_grid(model)
    packed = to_mxfp4(model, gen) if where.endswith("mxfp4") else None
    model.to(dtype).save_pretrained(where)
    return auto, packed


def load(auto, where):
    model = auto.from_pretrained(where, dtype=torch.float32, attn_implementation="eager").eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model


def make_adapter(where, base, wish, gen):
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **wish))
    with torch.no_grad():
        for module in model.modules():
            if not hasattr(module, "lora_A") or "default" not in module.lora_A:
                continue
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            size = 0.2 / module.scaling["default"] / a.shape[0] ** 0.5
            a.copy_(torch.randn(a.shape, generator=gen) / a.shape[1] ** 0.5)
            b.copy_(torch.randn(b.shape, generator=gen) * size)
            if wish.get("use_dora"):
                m = module.lora_magnitude_vector["default"].weight
                m.copy_(m * (1 + 0.2 * torch.randn(m.shape, generator=gen)))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_embedding_" in name:
                p.copy_(torch.randn(p.shape, generator=gen) * (0.5 if "_A" in name else 0.1))
    model.save_pretrained(where)
    os.remove(os.path.join(where, "README.md"))
    path = os.path.join(where, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["base_model_name_or_path"] = "tiny"
    if isinstance(config["target_modules"], list):
        config["target_modules"] = sorted(config["target_modules"])
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)


def write_golden(where, model, adapter, margin, gen):
    with open(os.path.join(where, "golden.bin"), "wb") as f:
        f.write(b"LGLD" + struct.pack("<IIII", N_VOCAB, N_CASE, N_TOP, N_SAMPLE))
        for n_prompt in LENGTHS:
            # Tokens from 150 on stand for images.
            tokens, logprobs = make_case(model, n_prompt, margin, gen, n_vocab=148)
            write_case(f, adapter, n_prompt, tokens, logprobs, N_VOCAB)


def make_family(out, name, config):
    gen = torch.Generator().manual_seed(20)
    torch.manual_seed(1)
    where = os.path.join(out, "models", name)
    shutil.rmtree(where, ignore_errors=True)
    shutil.rmtree(os.path.join(out, "peft", name), ignore_errors=True)
    dtype, margin = (torch.bfloat16, 0.12) if name.endswith("bf16") else (torch.float16, 0.01)
    auto, packed = make_model(where, config() if callable(config) else config, dtype, gen)
    write_golden(where, load(auto, where), -1, margin, gen)
    for kind, wish in kinds(name).items():
        to = os.path.join(out, "peft", name, kind)
        make_adapter(to, load(auto, where), wish, gen)
        write_golden(to, PeftModel.from_pretrained(load(auto, where), to).eval(), 0,
                     margin, gen)
    if packed:
        put_mxfp4(where, packed)
    print(name, flush=True)


# kind: what both parameters, or one alone, get.
PARAMETERS = {
    "qwen3-moe": {"both": dict(r=3, lora_alpha=6, target_modules=["q_proj"],
                               target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
                               rank_pattern={"layers.1.mlp.experts.down_proj": 5}),
                  "up": dict(r=2, lora_alpha=6, target_modules=[], use_rslora=True,
                             target_parameters=["gate_up_proj"])},
    "mixtral": {"down": dict(r=4, lora_alpha=8, target_modules=["v_proj"],
                             target_parameters=["layers.1.mlp.experts.down_proj"])},
    "granitemoe": {"both": dict(r=4, lora_alpha=8, target_modules=["o_proj"],
                                target_parameters=["experts.down_proj", "experts.gate_up_proj"])},
    "deepseek-v3": {"both": dict(r=3, lora_alpha=6, target_modules=["kv_b_proj"],
                                 target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])},
    "llama4": {"both": dict(r=3, lora_alpha=6, target_modules=["k_proj"],
                            target_parameters=["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"])},
    "gpt-oss": {"both": dict(r=3, lora_alpha=6, target_modules=["k_proj"],
                             target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
                "down": dict(r=4, lora_alpha=8, target_modules=["v_proj"], target_parameters=["down_proj"])},
}


TURNED = ["gpt-oss", "qwen3-moe"]


def make_parameters(out, name):
    gen = torch.Generator().manual_seed(21)
    where = os.path.join(out, "models", name)
    for kind, wish in PARAMETERS[name].items():
        to = os.path.join(out, "peft", name, kind)
        shutil.rmtree(to, ignore_errors=True)
        make_adapter(to, load(tf.AutoModelForCausalLM, where), wish, gen)
        model = PeftModel.from_pretrained(load(tf.AutoModelForCausalLM, where), to)
        write_golden(to, model.eval(), 0, 0.01, gen)
    print(name, flush=True)


def turn_stacks(out, name):
    """The adapter `both` as PEFT wrote it before it told inputs from outputs, and as Unsloth writes it: A and B are each
    other's, transposed expert by expert."""
    where, to = (os.path.join(out, "peft", name, kind) for kind in ("both", "turned"))
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(where, to)
    path = os.path.join(to, "adapter_model.safetensors")
    old = load_file(path)
    n = load_file(os.path.join(out, "models", name, "model.safetensors"))["model.layers.1.mlp.router.weight"
                                                                          if "gpt-oss" in name else
                                                                          "model.layers.1.mlp.gate.weight"].shape[0]
    new = dict(old)
    for key in [k for k in old if "experts." in k and "lora_A" in k]:
        a, b = old[key], old[key.replace("lora_A", "lora_B")]
        a, b = a.reshape(n, -1, a.shape[1]), b.reshape(b.shape[0], -1, n)
        new[key] = b.permute(2, 1, 0).reshape(-1, b.shape[0]).contiguous()
        new[key.replace("lora_A", "lora_B")] = a.permute(2, 1, 0).reshape(a.shape[2], -1).contiguous()
    save_file(new, path, metadata={"format": "pt"})


def list_experts(out, name):
    """The adapter `both` with a module for each expert's gate and up, and one for its down, as Unsloth's 4-bit GPT-OSS has."""
    where, to = (os.path.join(out, "peft", name, kind) for kind in ("both", "lists"))
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(where, to)
    path = os.path.join(to, "adapter_model.safetensors")
    old = load_file(path)
    n = load_file(os.path.join(out, "models", name, "model.safetensors"))["model.layers.1.mlp.router.weight"].shape[0]
    new = {k: v for k, v in old.items() if "experts." not in k}
    for key in [k for k in old if "experts." in k and "lora_A" in k]:
        a, b = old[key].reshape(n, -1, old[key].shape[1]), old[key.replace("lora_A", "lora_B")]
        b = b.reshape(b.shape[0], -1, n)
        at = key.split("experts.")[0] + "experts." + ("gate_up_projs" if "base_layer" in key else "down_projs")
        for k in range(n):
            new[f"{at}.{k}.lora_A.weight"] = a[k].contiguous()
            new[f"{at}.{k}.lora_B.weight"] = b[:, :, k].contiguous()
    save_file(new, path, metadata={"format": "pt"})
    path = os.path.join(to, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["target_parameters"] = None
    config["target_modules"] = r".*(k_proj|gate_up_projs\.\d+|down_projs\.\d+)"
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)


def stack_experts(out, name):
    """The same model and adapters, with all experts of a layer in two tensors, as newer files have them."""
    where = os.path.join(out, "models", name + "-stacked")
    for kind in ("models", "peft"):
        to = os.path.join(out, kind, name + "-stacked")
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(os.path.join(out, kind, name), to, ignore=shutil.ignore_patterns("dora", "experts"))
    path = os.path.join(where, "model.safetensors")
    old, new = load_file(path), {}
    for key in [k for k in old if ".experts.0.down_proj" in k]:
        at, n = key.split("0.down_proj")[0], sum(key.split("0.")[-1] in k for k in old)
        layer = {p: [old.pop(f"{at}{i}.{p}.weight") for i in range(n) if f"{at}{i}.{p}.weight" in old]
                 for p in ("gate_proj", "up_proj", "down_proj")}
        new[at + "gate_up_proj"] = torch.stack([torch.cat(two) for two in zip(layer["gate_proj"], layer["up_proj"])])
        new[at + "down_proj"] = torch.stack(layer["down_proj"])
    save_file({**old, **new}, path, metadata={"format": "pt"})


def main():
    args = sys.argv[1:]
    models = {"--experts": EXPERTS, "--parameters": PARAMETERS}.get(args[0] if args else "", MODELS)
    args = args[1:] if models is not MODELS else args
    only = args[1].split(",") if args[:1] == ["--only"] else list(models)
    rest = args[2:] if args[:1] == ["--only"] else args
    here = os.path.dirname(os.path.abspath(__file__))
    out = rest[0] if rest else os.path.join(here, "..", "fixtures", "families")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for name, config in models.items():
        if name in only and models is PARAMETERS:
            make_parameters(out, name)
            if name in TURNED:
                turn_stacks(out, name)
            if name == "gpt-oss":
                list_experts(out, name)
        elif name in only:
            make_family(out, name, config)
        if name in only and models is EXPERTS and name == "qwen3-moe":
            stack_experts(out, name)


if __name__ == "__main__":
    main()
