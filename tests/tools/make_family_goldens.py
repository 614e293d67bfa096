#!/usr/bin/env python3
"""Makes tests/fixtures/families: a tiny random model of each family, and what transformers answers.

Usage: make_family_goldens.py [--experts | --parameters] [--only NAME,... [--kind KIND]]
                                          (needs torch, transformers, peft, safetensors)

Each model comes from the family's own configuration class: models/<name>, with golden.bin of the
bare model, and peft/<name>/<kind>, an adapter on every linear layer as PEFT saved it, with a
golden.bin of its own (make_goldens.py has the format).  Weights are random (seed_weights.py) and kept in F16 (or
BF16, where the name says so); the reference computes in F32.  Sequences have up to 64 tokens, and windows, borders of rotations and
caps are so small that each of them matters within that.

Mixtures of experts are made with transformers 4.57, in which each expert is a module that PEFT wraps: --experts.
Adapters for the parameters of all experts of a layer (target_parameters) are made for these models with transformers 5,
which keeps experts so: --parameters.
"""

import json
import os
import pathlib
import shutil
import struct
import sys
import tempfile

import torch
import transformers as tf
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from make_goldens import make_case, write_case, write_head
from seed_weights import adopt, derive, forget, indices, same, signs

N_VOCAB, N_TOP, N_SAMPLE = 160, 2, 4
LENGTHS = [56, 33, 21]  # and eight tokens more
FAMILIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "families")
SHAPE = dict(vocab_size=N_VOCAB, hidden_size=48, num_hidden_layers=3, num_attention_heads=6,
             num_key_value_heads=2, intermediate_size=56, max_position_embeddings=128,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 16}
MIXED = ["full_attention", "sliding_attention", "full_attention"]
MIXER_FIRST = ["linear_attention", "full_attention"]
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
    "lfm2": lambda: tf.Lfm2Config(**shape(
        num_hidden_layers=4, layer_types=["conv", "full_attention", "conv", "conv"], block_multiple_of=8, intermediate_size=72,
        block_ffn_dim_multiplier=1.3)),
    "lfm2-biased": lambda: tf.Lfm2Config(**shape(
        num_hidden_layers=2, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False, conv_bias=True,
        conv_L_cache=4, tie_word_embeddings=False)),
    "llama4": tf.Llama4TextConfig(**llama4()),
    "llama4-128e": tf.Llama4TextConfig(**llama4(
        num_hidden_layers=2, moe_layers=[0], no_rope_layers=[1, 0], use_qk_norm=False, attn_temperature_tuning=False,
        num_local_experts=3, head_dim=24, num_attention_heads=3, num_key_value_heads=1)),
}

LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
ALPHA = {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}
TEMPER = dict(YARN, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)


def moe(**more):
    return shape(**{**dict(hidden_size=40, num_attention_heads=5, num_key_value_heads=1, head_dim=16, n_routed_experts=8,
                           num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=24, first_k_dense_replace=1,
                           norm_topk_prob=True, routed_scaling_factor=1.5), **more})


MROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1],
         "mrope_interleaved": True}


def delta(**more):
    return shape(**{**dict(head_dim=32, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=3,
                           layer_types=["linear_attention", "full_attention", "linear_attention"], linear_num_key_heads=2,
                           linear_num_value_heads=4, linear_key_head_dim=12, linear_value_head_dim=16), **more})


# One adapter each, on all linear layers and, of experts, on all parameters.
LATER = {
    "gemma": tf.GemmaConfig(**shape(head_dim=128, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2)),
    "ministral3": tf.Ministral3Config(**shape(head_dim=32, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2,
                                              rope_parameters=TEMPER)),
    "ministral3-images": lambda: tf.Mistral3Config(
        text_config=tf.Ministral3Config(**shape(head_dim=128, hidden_size=32, num_attention_heads=2, num_key_value_heads=1,
                                                num_hidden_layers=2, tie_word_embeddings=False,
                                                rope_parameters=TEMPER)).to_dict(),
        vision_config=dict(VISION, model_type="pixtral", head_dim=8), image_token_index=150, tie_word_embeddings=False),
    "arcee": tf.ArceeConfig(**shape(head_dim=16, num_hidden_layers=2, attention_bias=True, mlp_bias=True)),
    "seed-oss": tf.SeedOssConfig(**shape(head_dim=64, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2,
                                         attention_out_bias=True)),
    "ernie4.5": tf.Ernie4_5Config(**shape(head_dim=64, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2,
                                          use_bias=True)),
    "ernie4.5-moe": tf.Ernie4_5_MoeConfig(**shape(
        num_hidden_layers=5, moe_num_experts=6, moe_k=3, moe_intermediate_size=24, moe_num_shared_experts=2,
        moe_layer_start_index=1, moe_layer_end_index=3, moe_layer_interval=2)),
    "exaone4": tf.Exaone4Config(**shape(head_dim=32, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=4,
                                        sliding_window=12, sliding_window_pattern=2)),
    "exaone4-full": tf.Exaone4Config(**shape(num_hidden_layers=2, sliding_window=None, layer_types=["full_attention"] * 2)),
    "hunyuan": tf.HunYuanDenseV1Config(**shape(head_dim=64, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2,
                                               rope_parameters=ALPHA)),
    "stablelm": tf.StableLmConfig(**shape(hidden_size=96, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2,
                                          use_qkv_bias=True)),
    "stablelm-parallel": tf.StableLmConfig(**shape(num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=2,
                                                   use_parallel_residual=True, partial_rotary_factor=0.5)),
    "cohere": tf.CohereConfig(**shape(hidden_size=96, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2,
                                      logit_scale=0.7, attention_bias=True)),
    "olmo": tf.OlmoConfig(**shape(num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=2)),
    "glm": tf.GlmConfig(**shape(head_dim=64, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=2)),
    "glm4-moe": tf.Glm4MoeConfig(**moe(n_group=4, topk_group=2, use_qk_norm=True, attention_bias=True)),
    "glm4-moe-one": tf.Glm4MoeConfig(**moe(num_hidden_layers=2, n_group=1, topk_group=1, n_shared_experts=2,
                                           norm_topk_prob=False)),
    "qwen3.5": lambda: tf.Qwen3_5TextConfig(**delta(rope_parameters=dict(MROPE), attention_bias=True)),
    "qwen3.5-images": lambda: tf.Qwen3_5Config(
        text_config=tf.Qwen3_5TextConfig(**delta(
            num_hidden_layers=2, linear_conv_kernel_dim=3, linear_num_key_heads=3, linear_num_value_heads=3,
            linear_value_head_dim=20, rope_parameters=dict(MROPE), layer_types=MIXER_FIRST)).to_dict(),
        vision_config=dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=48,
                           num_position_embeddings=16), tie_word_embeddings=True, image_token_id=150,
        video_token_id=151, vision_start_token_id=152, vision_end_token_id=153),
    "qwen3.5-moe": lambda: tf.Qwen3_5MoeTextConfig(**delta(
        num_hidden_layers=2, layer_types=MIXER_FIRST, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24,
        shared_expert_intermediate_size=40, rope_parameters=dict(MROPE))),
    "qwen3-next": lambda: tf.Qwen3NextConfig(**delta(
        num_experts=7, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40)),
    "olmo-hybrid": lambda: tf.OlmoHybridConfig(**delta(linear_key_head_dim=12, linear_value_head_dim=20)),
    "olmo-hybrid-nope": lambda: tf.OlmoHybridConfig(**delta(
        num_hidden_layers=2, layer_types=MIXER_FIRST, linear_allow_neg_eigval=False,
        rope_parameters={"rope_theta": None, "rope_type": "default"})),
    "kimi-linear": lambda: tf.KimiLinearConfig(**{**SHAPE, **dict(
        num_key_value_heads=6, num_hidden_layers=4, linear_num_heads=3, linear_head_dim=20, kv_lora_rank=24, qk_nope_head_dim=12,
        qk_rope_head_dim=8, v_head_dim=16, moe_intermediate_size=24, num_local_experts=6, num_experts_per_tok=3, n_group=2,
        topk_group=1, layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"])}),
    "dots1": tf.Dots1Config(**moe(n_group=2, topk_group=1, max_window_layers=2, sliding_window=12, rms_norm_eps=1e-5)),
}
def gemma4(**more):
    return tf.Gemma4TextConfig(**shape(**{**dict(
        num_hidden_layers=6, layer_types=["sliding_attention", "full_attention"] * 3, sliding_window=12,
        vocab_size_per_layer_input=N_VOCAB, hidden_size_per_layer_input=8), **more}))


# The same, with shorter texts.
SHORT = {
    "granite-swa": tf.GraniteSWAConfig(**shape(
        num_hidden_layers=5, sliding_window=12, embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.5,
        logits_scaling=3.0, layer_rope_theta=[0, 1000.0, 1000.0, 0, 50000.0])),
    "mellum": tf.MellumConfig(**shape(
        head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, layer_types=MIXED, sliding_window=12,
        mlp_layer_types=["sparse", "dense", "sparse"],
        rope_parameters={"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}})),
    "helium": tf.HeliumConfig(**shape(head_dim=8, num_hidden_layers=2, attention_bias=True, mlp_bias=True)),
    "nemotron": tf.NemotronConfig(**shape(head_dim=8, num_hidden_layers=2, attention_bias=True, mlp_bias=True)),
    "jais2": tf.Jais2Config(**shape(head_dim=16, num_hidden_layers=2)),
    "vaultgemma": tf.VaultGemmaConfig(**shape(
        head_dim=16, num_hidden_layers=2, sliding_window=12, query_pre_attn_scalar=48, attn_logit_softcapping=1.5,
        final_logit_softcapping=3.0)),
    "internlm3": tf.InternLM3Config(**shape(head_dim=16, num_hidden_layers=2, attention_bias=True, mlp_bias=True)),
    "iquestcoder": tf.IQuestCoderConfig(**shape(head_dim=16, num_hidden_layers=2)),
    "hyperclovax": tf.HyperCLOVAXConfig(**shape(
        num_hidden_layers=2, embedding_multiplier=6.0, residual_multiplier=0.4, logits_scaling=0.3)),
    "hyperclovax-plain": tf.HyperCLOVAXConfig(**shape(
        num_hidden_layers=2, use_post_norm=False, attention_multiplier=0.5, attention_bias=True)),
    "cwm": tf.CwmConfig(**shape(
        head_dim=16, num_hidden_layers=5, sliding_window=12,
        rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 16})),
    "ministral": tf.MinistralConfig(**shape(head_dim=16, num_hidden_layers=2, sliding_window=12,
                                            layer_types=["sliding_attention", "full_attention"])),
    "youtu": tf.YoutuConfig(**{k: v for k, v in latent(num_hidden_layers=2, q_lora_rank=20, pad_token_id=None).items()
                               if k[:3] != "moe"}),
    "flex-olmo": tf.FlexOlmoConfig(**shape(num_hidden_layers=2, num_experts=5, num_experts_per_tok=2)),
    "glm4-moe-lite": tf.Glm4MoeLiteConfig(**latent(
        q_lora_rank=20, n_routed_experts=8, num_experts_per_tok=3, n_group=1, topk_group=1,
        mlp_layer_types=["sparse", "dense", "sparse"])),
    "solar-open": tf.SolarOpenConfig(**{k: v for k, v in moe(num_hidden_layers=2, n_group=2, topk_group=1).items()
                                        if k not in ("intermediate_size", "first_k_dense_replace")}),
    "exaone-moe": tf.ExaoneMoeConfig(**shape(
        head_dim=16, num_experts=8, num_experts_per_tok=3, num_shared_experts=2, moe_intermediate_size=24, n_group=2,
        topk_group=1, sliding_window=12, sliding_window_pattern=2, num_attention_heads=3, num_key_value_heads=1)),
    "hunyuan-moe": tf.HunYuanMoEV1Config(**shape(
        head_dim=16, num_hidden_layers=2, num_experts=6, moe_topk=2, rope_parameters=ALPHA)),
    "minimax-m2": tf.MiniMaxM2Config(**shape(
        head_dim=16, num_hidden_layers=2, num_local_experts=6, num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})),
    "granitemoe-swa": tf.GraniteMoeSWAConfig(**shape(
        num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, sliding_window=12, attention_multiplier=0.5)),
    "hy3-moe": tf.HYV3Config(**shape(
        head_dim=16, num_experts=6, num_experts_per_tok=2, num_shared_experts=2, moe_intermediate_size=24)),
    "minicpm3": tf.MiniCPM3Config(**{k: v for k, v in latent(
        num_hidden_layers=2, q_lora_rank=20, v_head_dim=None, dim_model_base=16, attention_bias=True).items()
        if k[:3] != "moe"}),
    "nanochat": tf.NanoChatConfig(**shape(num_hidden_layers=2, final_logit_softcapping=3.0, attention_bias=True)),
    "apertus": tf.ApertusConfig(**shape(num_hidden_layers=2, attention_bias=True, rope_parameters=LLAMA3)),
    "phi": tf.PhiConfig(**shape(num_hidden_layers=2, num_key_value_heads=6, intermediate_size=192)),
    "phimoe": tf.PhimoeConfig(**shape(
        num_hidden_layers=2, num_local_experts=6, num_experts_per_tok=2, router_jitter_noise=0.4, attention_bias=True,
        lm_head_bias=True, sliding_window=12)),
    "phimoe-long": tf.PhimoeConfig(**shape(
        num_hidden_layers=2, num_local_experts=3, num_experts_per_tok=2, max_position_embeddings=64,
        original_max_position_embeddings=64,
        rope_parameters=dict(longrope(64, 4), original_max_position_embeddings=64, short_mscale=1.2, long_mscale=1.4))),
    "kolibri1": tf.Kolibri1Config(**{k: v for k, v in shape(
        head_dim=16, sliding_window=12, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=40, norm_topk_prob=True, layer_types=TWO_MIXED).items() if k != "intermediate_size"}),
}
SHORT.update({
    # As many heads in both kinds of layers, as llama.cpp has them.
    "kimi-linear-even": lambda: tf.KimiLinearConfig(**{**SHAPE, **dict(
        num_attention_heads=4, num_key_value_heads=4, num_hidden_layers=2, linear_num_heads=4, linear_head_dim=12, kv_lora_rank=24,
        qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=16, moe_intermediate_size=24, num_local_experts=6,
        num_experts_per_tok=3, n_group=1, topk_group=1, layer_types=["linear_attention", "full_attention"])}),
    "gemma4": lambda: gemma4(head_dim=256, global_head_dim=512, num_attention_heads=1, num_key_value_heads=1, hidden_size=24,
                             num_kv_shared_layers=2, use_double_wide_mlp=True, final_logit_softcapping=3.0),
    "gemma4-keys": lambda: gemma4(num_hidden_layers=3, layer_types=TWO_MIXED[:2] + TWO_MIXED[1:2], head_dim=16, global_head_dim=32,
                                  num_attention_heads=4, attention_k_eq_v=True, num_global_key_value_heads=1,
                                  hidden_size_per_layer_input=0,
                                  rope_parameters={"full_attention": dict(YARN, rope_type="linear"),
                                                   "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}),
    "gemma4-moe": lambda: gemma4(num_hidden_layers=4, layer_types=TWO_MIXED[:2] * 2, head_dim=16, global_head_dim=32,
                                 num_attention_heads=4, num_kv_shared_layers=1, enable_moe_block=True, num_experts=6,
                                 top_k_experts=2, moe_intermediate_size=24),
    "gemma4-images": lambda: tf.Gemma4Config(
        text_config=gemma4(num_hidden_layers=2, layer_types=TWO_MIXED[:2], head_dim=16, global_head_dim=24,
                           final_logit_softcapping=2.0).to_dict(),
        vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                           num_key_value_heads=2, head_dim=8, patch_size=4, position_embedding_size=32),
        audio_config=None, image_token_id=150, boi_token_id=151, eoi_token_id=152, video_token_id=153, audio_token_id=154,
        boa_token_id=155, eoa_token_index=156, tie_word_embeddings=True),
})


def gpt(cls, **more):
    return cls(**{**dict(vocab_size=N_VOCAB, n_embd=48, n_layer=2, n_head=6, n_positions=128, bos_token_id=1,
                         eos_token_id=2, pad_token_id=0), **more})


def falcon(**more):
    return tf.FalconConfig(**{**dict(vocab_size=N_VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=6,
                                     ffn_hidden_size=192, max_position_embeddings=128, bos_token_id=1, eos_token_id=2,
                                     pad_token_id=0), **more})


# Families of before Llama, with names of their own.
OLD = {
    "gpt-neox": lambda: tf.GPTNeoXConfig(**shape(num_hidden_layers=2, num_key_value_heads=6, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})),
    "gpt-neox-serial": lambda: tf.GPTNeoXConfig(**shape(
        num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, use_parallel_residual=False, attention_bias=False)),
    "gpt2": lambda: gpt(tf.GPT2Config),
    "gpt-bigcode": lambda: gpt(tf.GPTBigCodeConfig),
    "gpt-bigcode-heads": lambda: gpt(tf.GPTBigCodeConfig, n_head=3, n_inner=56, multi_query=False),
    "gptj": lambda: gpt(tf.GPTJConfig, n_head=3, rotary_dim=8),
    "gpt-neo": lambda: tf.GPTNeoConfig(
        vocab_size=N_VOCAB, hidden_size=48, num_layers=2, num_heads=6, intermediate_size=56, max_position_embeddings=128,
        attention_types=[[["global", "local"], 1]], window_size=12, bos_token_id=1, eos_token_id=2, pad_token_id=0),
    "falcon": lambda: falcon(),
    "falcon-groups": lambda: falcon(new_decoder_architecture=True, num_kv_heads=2),
    "falcon-one-norm": lambda: falcon(num_attention_heads=3, new_decoder_architecture=True, num_kv_heads=3,
                                      num_ln_in_parallel_attn=1, tie_word_embeddings=False),
    "falcon-serial": lambda: falcon(num_attention_heads=3, multi_query=False, parallel_attn=False, bias=True),
    "opt": lambda: tf.OPTConfig(vocab_size=N_VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, ffn_dim=56,
                                max_position_embeddings=128, word_embed_proj_dim=48, bos_token_id=1, eos_token_id=2,
                                pad_token_id=0),
}
OLD["gemma3n"] = lambda: tf.Gemma3nTextConfig(**shape(
    head_dim=16, num_attention_heads=4, num_key_value_heads=1, num_hidden_layers=6,
    layer_types=["sliding_attention", "full_attention"] * 3, sliding_window=12, vocab_size_per_layer_input=N_VOCAB,
    hidden_size_per_layer_input=8, num_kv_shared_layers=2, laurel_rank=8, altup_num_inputs=4,
    activation_sparsity_pattern=[0.8, 0.8, 0.0, 0.0, 0.0, 0.0], final_logit_softcapping=3.0))
OLD["jamba"] = lambda: tf.JambaConfig(**shape(
    num_hidden_layers=3, attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, num_experts=4,
    num_experts_per_tok=2, mamba_d_state=10, mamba_dt_rank=7))
OLD["jamba-dense"] = lambda: tf.JambaConfig(**shape(
    num_hidden_layers=2, attn_layer_period=2, attn_layer_offset=1, num_experts=1, num_experts_per_tok=1, mamba_proj_bias=True,
    mamba_conv_bias=False, mamba_d_conv=3))
SHORT.update(OLD)
LATER.update(SHORT)
MODELS.update(LATER)
MIXTURES = ["kimi-linear", "kimi-linear-even", "dots1", "qwen3-next", "mellum", "flex-olmo", "solar-open", "minimax-m2", "kolibri1"]


def scan(**more):
    return shape(**{**dict(mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=12, mamba_d_conv=4, mamba_expand=2,
                           mamba_chunk_size=16), **more})


def nemotron(**more):
    config = shape(**{**dict(mamba_num_heads=4, mamba_head_dim=12, n_groups=2, ssm_state_size=10, conv_kernel=4, chunk_size=16,
                             head_dim=16, num_attention_heads=3, num_key_value_heads=1), **more})
    return {k: v for k, v in config.items() if k != "num_hidden_layers"}


# Layers with a selective scan, and what shares parts with such models.
SCANS = {
    "granite-hybrid": lambda: tf.GraniteMoeHybridConfig(**scan(
        layer_types=["mamba", "attention", "mamba"], num_local_experts=4, num_experts_per_tok=2, intermediate_size=24,
        shared_intermediate_size=40, embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.5,
        logits_scaling=3.0)),
    "granite-hybrid-dense": lambda: tf.GraniteMoeHybridConfig(**scan(
        num_hidden_layers=2, layer_types=["attention", "mamba"], num_local_experts=0, num_experts_per_tok=0,
        shared_intermediate_size=40, position_embedding_type="rope", mamba_n_groups=1, mamba_n_heads=3, mamba_d_conv=3,
        mamba_conv_bias=False, mamba_proj_bias=True, attention_bias=True, time_step_limit=(0.3, 0.9))),
    "bamba": lambda: tf.BambaConfig(**scan(attn_layer_indices=[1], num_attention_heads=3, num_key_value_heads=1, mlp_bias=True)),
    "mamba2": lambda: tf.Mamba2Config(
        vocab_size=N_VOCAB, hidden_size=48, num_hidden_layers=2, num_heads=6, head_dim=16, n_groups=3, state_size=10, conv_kernel=4,
        chunk_size=16, use_bias=True, bos_token_id=1, eos_token_id=2, pad_token_id=0),
    "nemotron-h": lambda: tf.NemotronHConfig(**nemotron(
        layers_block_type=["mamba", "mlp", "attention", "moe"], n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2,
        moe_intermediate_size=24, moe_shared_expert_intermediate_size=40, routed_scaling_factor=1.5)),
    "nemotron-h-dense": lambda: tf.NemotronHConfig(**nemotron(
        layers_block_type=["mamba", "attention", "mlp"], use_bias=True, mlp_bias=True, use_conv_bias=False, time_step_min=0.7)),
    "falcon-h1": lambda: tf.FalconH1Config(**scan(
        num_hidden_layers=2, mamba_d_ssm=72, mamba_rms_norm=True, attention_in_multiplier=0.8, attention_out_multiplier=1.3,
        key_multiplier=0.6, embedding_multiplier=1.5, lm_head_multiplier=0.7, mlp_multipliers=[0.9, 1.2], ssm_in_multiplier=1.1,
        ssm_out_multiplier=0.9, ssm_multipliers=[0.8, 1.2, 0.9, 1.1, 0.7])),
    "falcon-h1-gated": lambda: tf.FalconH1Config(**scan(
        num_hidden_layers=2, mamba_d_ssm=None, mamba_rms_norm=False, projectors_bias=True, mamba_norm_before_gate=False,
        head_dim=16, num_attention_heads=3, num_key_value_heads=1)),
    "falcon-h1-normed": lambda: tf.FalconH1Config(**scan(
        num_hidden_layers=1, mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_d_ssm=64, mamba_proj_bias=True)),
}
SCANS["lfm2-moe"] = lambda: tf.Lfm2MoeConfig(**shape(
    layer_types=["conv", "full_attention", "conv"], num_dense_layers=1, num_experts=6, num_experts_per_tok=3,
    moe_intermediate_size=20, routed_scaling_factor=1.5))
SCANS["granitemoe-shared"] = lambda: tf.GraniteMoeSharedConfig(**shape(
    num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, intermediate_size=24, shared_intermediate_size=40,
    embedding_multiplier=6.0, residual_multiplier=0.4, attention_multiplier=0.5, logits_scaling=3.0))
MODELS.update(SCANS)
# PEFT wraps no out_proj of these.
HEADS, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
ALL_BUT_OUT = {"mamba2": ["in_proj"], **{name: ["in_proj", *HEADS, *MLP] for name in SCANS if "falcon" in name},
               **{name: ["in_proj", *HEADS, *MLP[1:]] for name in SCANS if "nemotron" in name}}

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
LFM2 = ["q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3"]
DELTA = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
FUSED = {"phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
         "phi3-short": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
         "starcoder2": ["q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"],
         "glm4": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"],
         "mixtral": ["q_proj", "k_proj", "v_proj", "o_proj", "w1", "w2", "w3"],
         "granitemoe": ["q_proj", "k_proj", "v_proj", "o_proj"],
         "deepseek-v2": LATENT, "deepseek-v2-lite": LATENT, "deepseek-v3": LATENT, "deepseek-v3-halves": LATENT,
         "lfm2": LFM2, "lfm2-biased": LFM2, "qwen3.5-images": LINEAR + DELTA,
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
    if name in SCANS:
        every = dict(r=4, lora_alpha=8, target_modules=ALL_BUT_OUT.get(name, "all-linear"))
        if name in ("granite-hybrid", "granitemoe-shared"):
            every["target_parameters"] = ["router.weight", "gate_up_proj", "down_proj"]
        if name == "lfm2-moe":
            every["target_parameters"] = ["gate.weight", "gate_up_proj", "down_proj"]
        if name == "nemotron-h":
            every["target_parameters"] = ["gate.weight", "experts.up_proj", "experts.down_proj"]
        more = {"biases": dict(every, bias="lora_only")} if name == "granite-hybrid-dense" else {}
        return {"all": every, "dora": dict(every, r=3, use_dora=True, target_parameters=None), **more}
    if name in LATER:
        mixed = "moe" in name or name in MIXTURES
        modules = targets(name) if "images" in name else "all-linear"
        if "phimoe" in name:  # whose router answers more than one tensor
            return {"all": dict(r=4, lora_alpha=8, target_modules=LINEAR[:4],
                                target_parameters=["gate_up_proj", "down_proj"])}
        if name == "gemma4-moe":
            return {"all": dict(r=4, lora_alpha=8, target_modules="all-linear",
                                target_parameters=["experts.gate_up_proj", "experts.down_proj"])}
        if "granitemoe" in name:
            return {"all": dict(r=4, lora_alpha=8, target_modules="all-linear",
                                target_parameters=["router.weight", "gate_up_proj", "down_proj"])}
        later = dict(r=4, lora_alpha=8, target_modules=modules)
        dora = dict(later, r=3, use_dora=True, use_rslora=True)
        more = {}
        if name in ("qwen3.5", "olmo-hybrid", "gpt2", "falcon-groups"):
            more = {"dora": dora}
        if name in ("qwen3.5", "gpt-neox"):
            more["biases"] = dict(later, r=2, bias="lora_only")
        if name == "qwen3-next":
            more = {"dora": dict(dora, target_modules=["q_proj", "o_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"])}
        if name == "kimi-linear":
            more = {"dora": dict(dora, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "b_proj", "kv_b_proj", "g_a_proj",
                                                       "g_b_proj", "f_a_proj", "f_b_proj"])}
        parameters = ["gate.weight", "gate_up_proj", "down_proj"] if mixed else None
        if name == "jamba":
            parameters = ["router.weight", "experts.gate_up_proj", "experts.down_proj"]
        return {"all": dict(later, target_parameters=parameters), **more}
    all_of = dict(r=4, lora_alpha=8, target_modules=targets(name))
    more = {"embed": dict(all_of, target_modules=["q_proj", "embed_tokens"])} if name in EMBED else {}
    if name == "starcoder2":
        more = {"biases": dict(all_of, bias="lora_only")}
    if name == "lfm2-biased":
        return {"biases": dict(all_of, bias="lora_only")}
    if name in EXPERTS and name != "granitemoe":
        more = {"experts": dict(all_of, target_modules=r".*\.experts\.[1-4]\.(down_proj|up_proj|w2)",
                                rank_pattern={r"layers.1.*experts.3.*": 7}, use_rslora=True)}
    return {"all": all_of, "dora": dict(all_of, r=3, use_dora=True), **more}


def is_one_plus(model):
    kind = model.config.model_type
    return kind == "nemotron" or any(part in kind and "gemma4" not in kind and "gemma3n" not in kind for part in ("gemma", "qwen3_5", "qwen3_next"))


def randomise(model, gen):
    """Unit gain through every layer; scores, caps and norms far from where they do nothing."""
    tied = any(getattr(c, "tie_word_embeddings", False)
               for c in (model.config, model.config.get_text_config()))
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = signs(p.shape)
            if any(g in model.config.model_type for g in ("gemma4", "gemma3n")) and name.endswith(("q_norm.weight", "k_norm.weight")):
                p.copy_((0.3 + 0.1 * noise) * min(1, 64 / len(p)) ** 0.25)  # scores are not divided
            elif name.endswith(("router.scale", "per_expert_scale", "correct_output_scale")):
                p.copy_(1 + 0.4 * noise)
            elif "norm" in name or ".ln_" in name:
                p.copy_(0.3 * noise + (0 if is_one_plus(model) and "linear_attn" not in name else 1))
            elif "A_log" in name:
                p.copy_(noise - 1)
            elif name.endswith("bias"):
                p.copy_(0.3 * noise)
            elif "sinks" in name:
                p.copy_(1 + noise)
            elif name.endswith(("A_log", ".D")):
                p.copy_(noise - 1.5 if "A_log" in name else 1 + 0.3 * noise)
            elif model.config.model_type in ("gpt_oss", "llama4_text") and p.dim() == 3:  # some are clamped
                gain = 4 if "gate_up" in name and model.config.model_type == "gpt_oss" else 1
                p.copy_(noise * gain / p.shape[1] ** 0.5)
            elif any(part in name for part in ("embed_tokens", "wte", "embed_in", "word_embeddings")):
                p.copy_(noise * (p.shape[1] ** -0.5 if tied else 1.0))
            elif name.endswith(("mlp.gate.weight", "moe.gate.weight", "gate.wg.weight", "router.layer.weight", "router.weight", "router.proj.weight")):
                p.copy_(noise * 2 / p.shape[-1] ** 0.5)
            elif "modality_router" in name:  # what it reads is divided by the width
                p.copy_(noise * p.shape[1] ** 0.5)
            elif p.dim() >= 2:
                p.copy_(noise * (1.5 if "q_proj" in name else 1.0) / p.shape[-1] ** 0.5)
            else:
                p.copy_(0.1 * noise)
        for i, (name, b) in enumerate(model.named_buffers()):
            if name.endswith("layer_scalar"):
                b.fill_(0.7 + 0.05 * (i % 7))
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                b.copy_(0.3 * torch.rand(b.shape, generator=gen))


def on_grid(name, t):
    """Weights that Q8_0 of a GGUF holds as they are: each block of 32 reaches 127 steps of 2^-9."""
    if t.dim() < 2 or "gate.weight" in name:
        return None
    std = (1.5 if "q_proj" in name else 1.0) / t.shape[-1] ** 0.5
    return ["grid", 1, 2.0 ** -6] if "embed_tokens" in name else ["grid", round(std, 4), 2.0 ** -9]


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def to_mxfp4(model):
    """What a file holds in place of the experts' weights: their scales here, and codes that adopt() makes random."""
    tensors = {}
    for name, p in model.named_parameters():
        if p.dim() != 3:
            continue
        n, cols, rows = p.shape
        powers = torch.arange(n * rows * (cols // 32)).reshape(n, rows, -1) % 3 - 5 + ("gate_up" in name)
        tensors[name + "_blocks"] = (torch.arange(n * rows * (cols // 2)) % 256).to(torch.uint8).reshape(n, rows, -1, 16)
        tensors[name + "_scales"] = (powers + 127).to(torch.uint8)
    return tensors


def from_mxfp4(where, to):
    """A copy of a folder with the values of its MXFP4 experts, for the reference."""
    shutil.copytree(where, to, ignore=shutil.ignore_patterns("golden.bin"))
    path = os.path.join(to, "model.safetensors")
    tensors = load_file(path)
    for key in [k for k in tensors if k.endswith("_blocks")]:
        blocks, scales = tensors.pop(key), tensors.pop(key.replace("_blocks", "_scales"))
        values = E2M1[torch.stack((blocks & 15, blocks >> 4), -1).int()].flatten(-2) * 2.0 ** (scales[..., None] - 127.0)
        tensors[key.removesuffix("_blocks")] = values.flatten(-2).transpose(1, 2).half().contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    path = os.path.join(to, "config.json")
    with open(path) as f:
        config = json.load(f)
    del config["quantization_config"]
    with open(path, "w") as f:
        json.dump(config, f)
    return to


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


def publish(where, model):
    """Files as the publisher has them: transformers writes three convolutions of equal widths for one, and calls each MLP
    as if it had experts."""
    path = os.path.join(where, "model.safetensors")
    tensors = load_file(path)
    for name in [n for n in tensors if ".block_sparse_moe." in n]:
        if name.split(".block_sparse_moe.")[1].split(".")[0] in ("gate_proj", "up_proj", "down_proj"):
            tensors[name.replace(".block_sparse_moe.", ".mlp.")] = tensors.pop(name)
    for name, p in model.state_dict().items():
        if model.config.model_type != "olmo_hybrid" or not name.endswith("conv1d.weight"):
            continue
        c = model.config
        keys = c.linear_num_key_heads * c.linear_key_head_dim
        for part, t in zip("qkv", p.split([keys, keys, p.shape[0] - 2 * keys])):
            tensors[name.replace("conv1d", part + "_conv1d")] = t.contiguous()
    save_file(tensors, path, metadata={"format": "pt"})


def make_model(where, config, dtype, gen):
    auto = tf.AutoModelForCausalLM
    if hasattr(config, "vision_config"):
        auto = tf.AutoModelForImageTextToText
    model = auto.from_config(config, attn_implementation="eager")
    randomise(model, gen)
    model.to(dtype).save_pretrained(where)
    if config.model_type in ("olmo_hybrid", "kimi_linear"):
        publish(where, model)
    if where.endswith("mxfp4"):
        put_mxfp4(where, to_mxfp4(model))
    adopt(where, on_grid if config.model_type == "olmoe" else None)
    return auto


def load(auto, where):
    model = auto.from_pretrained(where, dtype=torch.float32, attn_implementation="eager").eval()
    if model.config.model_type == "jamba":
        model.config._is_quantized = True  # else its forward pass reads dt_proj.weight, and LoRA on dt_proj has no effect
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model


def make_adapter(where, base, model_dir, wish, gen):
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **wish))
    with torch.no_grad():
        for module in model.modules():
            if not hasattr(module, "lora_A") or "default" not in module.lora_A:
                continue
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            size = 0.2 / module.scaling["default"] / a.shape[0] ** 0.5
            a.copy_(signs(a.shape) / a.shape[1] ** 0.5)
            b.copy_(signs(b.shape) * size)
            if wish.get("use_dora"):
                m = module.lora_magnitude_vector["default"].weight
                m.copy_(m * (1 + 0.2 * torch.randn(m.shape, generator=gen)))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_embedding_" in name:
                p.copy_(signs(p.shape) * (0.5 if "_A" in name else 0.1))
    model.save_pretrained(where)
    os.remove(os.path.join(where, "README.md"))
    adopt(where, base=model_dir)
    path = os.path.join(where, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["base_model_name_or_path"] = "tiny"
    for field in ("target_modules", "target_parameters"):
        if isinstance(config.get(field), list):
            config[field] = sorted(config[field])
    with open(path, "w") as f:
        json.dump({k: v for k, v in config.items() if v is not None}, f, sort_keys=True)


def is_short(where):
    return os.path.relpath(where, FAMILIES).split(os.sep)[1] in SHORT


def write_golden(where, model, adapter, margin, gen):
    lengths = LENGTHS
    if is_short(where):
        lengths = [33, 21, 12] if adapter >= 0 else [27]
    with open(os.path.join(where, "golden.bin"), "wb") as f:
        write_head(f, len(lengths), N_VOCAB, N_TOP, N_SAMPLE)
        for n_prompt in lengths:
            # Tokens from 150 on stand for images.
            tokens, logprobs = make_case(model, n_prompt, margin, gen, n_vocab=148)
            write_case(f, adapter, n_prompt, tokens, logprobs, N_VOCAB, N_TOP, N_SAMPLE)


# Prompts by another seed: with 20 a choice of experts comes so near a tie that activations in F16 change it.
PROMPTS = {"llama4": 21}


def make_family(out, name, config):
    gen = torch.Generator().manual_seed(PROMPTS.get(name, 20))
    torch.manual_seed(1)
    where = os.path.join(out, "models", name)
    for old in (where, os.path.join(out, "peft", name)):
        forget(old)
        shutil.rmtree(old, ignore_errors=True)
    dtype, margin = (torch.bfloat16, 0.12) if name.endswith("bf16") else (torch.float16, 0.01)
    auto = make_model(where, config() if callable(config) else config, dtype, gen)
    with tempfile.TemporaryDirectory() as tmp:
        base = from_mxfp4(where, os.path.join(tmp, "base")) if name.endswith("mxfp4") else where
        write_golden(where, load(auto, base), -1, margin, gen)
        for kind, wish in kinds(name).items():
            to = os.path.join(out, "peft", name, kind)
            make_adapter(to, load(auto, base), where, wish, gen)
            write_golden(to, PeftModel.from_pretrained(load(auto, base), to).eval(), 0,
                         margin, gen)
    print(name, flush=True)


# kind: what both parameters, or one alone, get.
PARAMETERS = {
    "qwen3-moe": {"both": dict(r=3, lora_alpha=6, target_modules=["q_proj"],
                               target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
                               rank_pattern={"layers.1.mlp.experts.down_proj": 5}),
                  "up": dict(r=2, lora_alpha=6, target_modules=[], use_rslora=True,
                             target_parameters=["gate_up_proj"]),
                  "linear": dict(r=2, lora_alpha=6, target_modules="all-linear")},
    "olmoe": {"linear": dict(r=3, lora_alpha=6, target_modules="all-linear", exclude_modules=["v_proj"])},
    "deepseek-v2": {"linear": dict(r=3, lora_alpha=6, target_modules="all-linear")},
    "mixtral": {"down": dict(r=4, lora_alpha=8, target_modules=["v_proj"],
                             target_parameters=["layers.1.mlp.experts.down_proj"]),
                "linear": dict(r=3, lora_alpha=6, target_modules="all-linear",
                               rank_pattern={"layers.1.mlp.gate.weight": 5})},
    "qwen2-moe": {"linear": dict(r=2, lora_alpha=6, target_modules="all-linear", use_dora=True),
                  "routers": dict(r=3, lora_alpha=6, target_modules=["shared_expert_gate"], use_rslora=True,
                                  target_parameters=["gate.weight"])},
    "granitemoe": {"both": dict(r=4, lora_alpha=8, target_modules=["o_proj"],
                                target_parameters=["experts.down_proj", "experts.gate_up_proj"]),
                   "routers": dict(r=2, lora_alpha=4, target_modules=[], target_parameters=["router.weight"])},
    "deepseek-v3": {"both": dict(r=3, lora_alpha=6, target_modules=["kv_b_proj"],
                                 target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
                    "linear": dict(r=3, lora_alpha=6, target_modules="all-linear")},
    "llama4": {"both": dict(r=3, lora_alpha=6, target_modules=["k_proj"],
                            target_parameters=["feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"]),
               "routers": dict(r=3, lora_alpha=6, target_modules=["up_proj"], target_parameters=["router.weight"])},
    "gpt-oss": {"both": dict(r=3, lora_alpha=6, target_modules=["k_proj"],
                             target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
                "down": dict(r=4, lora_alpha=8, target_modules=["v_proj"], target_parameters=["down_proj"]),
                "routers": dict(r=3, lora_alpha=6, target_modules=["q_proj"], target_parameters=["mlp.router.weight"])},
}


TURNED = ["gpt-oss", "qwen3-moe"]


def make_parameters(out, name, only):
    gen = torch.Generator().manual_seed(21)
    where = os.path.join(out, "models", name)
    for kind, wish in PARAMETERS[name].items():
        if only and kind != only:
            continue
        to = os.path.join(out, "peft", name, kind)
        forget(to)
        shutil.rmtree(to, ignore_errors=True)
        make_adapter(to, load(tf.AutoModelForCausalLM, where), where, wish, gen)
        model = PeftModel.from_pretrained(load(tf.AutoModelForCausalLM, where), to)
        write_golden(to, model.eval(), 0, 0.01, gen)
    print(name, flush=True)


def turn_stacks(out, name):
    """The adapter `both` as PEFT wrote it before it told inputs from outputs, and as Unsloth writes it: A and B are each
    other's, transposed expert by expert."""
    where, to = (os.path.join(out, "peft", name, kind) for kind in ("both", "turned"))
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(where, to)
    source = indices(os.path.join(where, "adapter_model.safetensors"))
    old = {k: torch.from_numpy(v) for k, v in source.items()}
    n = load_file(os.path.join(out, "models", name, "model.safetensors"))["model.layers.1.mlp.router.weight"
                                                                          if "gpt-oss" in name else
                                                                          "model.layers.1.mlp.gate.weight"].shape[0]
    new = dict(old)
    for key in [k for k in old if "experts." in k and "lora_A" in k]:
        a, b = old[key], old[key.replace("lora_A", "lora_B")]
        a, b = a.reshape(n, -1, a.shape[1]), b.reshape(b.shape[0], -1, n)
        new[key] = b.permute(2, 1, 0).reshape(-1, b.shape[0]).contiguous()
        new[key.replace("lora_A", "lora_B")] = a.permute(2, 1, 0).reshape(a.shape[2], -1).contiguous()
    derive(os.path.join(to, "adapter_model.safetensors"), source, new)


def list_experts(out, name):
    """The adapter `both` with a module for each expert's gate and up, and one for its down, as Unsloth's 4-bit GPT-OSS has."""
    where, to = (os.path.join(out, "peft", name, kind) for kind in ("both", "lists"))
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(where, to)
    source = indices(os.path.join(where, "adapter_model.safetensors"))
    old = {k: torch.from_numpy(v) for k, v in source.items()}
    n = load_file(os.path.join(out, "models", name, "model.safetensors"))["model.layers.1.mlp.router.weight"].shape[0]
    new = {k: v for k, v in old.items() if "experts." not in k}
    for key in [k for k in old if "experts." in k and "lora_A" in k]:
        a, b = old[key].reshape(n, -1, old[key].shape[1]), old[key.replace("lora_A", "lora_B")]
        b = b.reshape(b.shape[0], -1, n)
        at = key.split("experts.")[0] + "experts." + ("gate_up_projs" if "base_layer" in key else "down_projs")
        for k in range(n):
            new[f"{at}.{k}.lora_A.weight"] = a[k].contiguous()
            new[f"{at}.{k}.lora_B.weight"] = b[:, :, k].contiguous()
    derive(os.path.join(to, "adapter_model.safetensors"), source, new)
    path = os.path.join(to, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["target_parameters"] = None
    config["target_modules"] = r".*(k_proj|gate_up_projs\.\d+|down_projs\.\d+)"
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)


def single_experts(out, name):
    """The adapter `all` of a Nemotron-H with a module for each expert's projection, as the model's own code had them."""
    where, to = (os.path.join(out, "peft", name, kind) for kind in ("all", "single"))
    forget(to)
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(where, to)
    source = indices(os.path.join(where, "adapter_model.safetensors"))
    old = {k: torch.from_numpy(v) for k, v in source.items()}
    n = next(v.shape[0] for k, v in old.items() if k.endswith("mixer.gate.lora_B.weight"))
    new = {k.replace(".model.layers.", ".backbone.layers."): v for k, v in old.items() if "experts.base" not in k and
           "experts.lora" not in k}
    for key in [k for k in old if "experts." in k and "shared" not in k and "lora_A" in k]:
        a, b = old[key].reshape(n, -1, old[key].shape[1]), old[key.replace("lora_A", "lora_B")]
        b = b.reshape(b.shape[0], -1, n)
        at = key.split("experts.")[0].replace(".model.layers.", ".backbone.layers.") + "experts."
        for k in range(n):
            of = f"{at}{k}.{'up_proj' if 'base_layer' in key else 'down_proj'}"
            new[f"{of}.lora_A.weight"], new[f"{of}.lora_B.weight"] = a[k].contiguous(), b[:, :, k].contiguous()
    derive(os.path.join(to, "adapter_model.safetensors"), source, new)
    path = os.path.join(to, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["target_parameters"] = None
    config["target_modules"] = r".*\.(gate|in_proj|[qkvo]_proj|up_proj|down_proj)"
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)


def stack_experts(out, name):
    """The same model and adapters, with all experts of a layer in two tensors, as newer files have them."""
    for kind in ("models", "peft"):
        where, to = (os.path.join(out, kind, name + end) for end in ("", "-stacked"))
        forget(to)
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(where, to, ignore=shutil.ignore_patterns("dora", "experts", *PARAMETERS[name], "turned"))
        for adapter in pathlib.Path(to).glob("*/adapter_model.safetensors"):
            same(adapter, os.path.join(where, adapter.parent.name, adapter.name))
    source, new = indices(os.path.join(out, "models", name, "model.safetensors")), {}
    old = {k: torch.from_numpy(v) for k, v in source.items()}
    for key in [k for k in old if ".experts.0.down_proj" in k]:
        at, n = key.split("0.down_proj")[0], sum(key.split("0.")[-1] in k for k in old)
        layer = {p: [old.pop(f"{at}{i}.{p}.weight") for i in range(n) if f"{at}{i}.{p}.weight" in old]
                 for p in ("gate_proj", "up_proj", "down_proj")}
        new[at + "gate_up_proj"] = torch.stack([torch.cat(two) for two in zip(layer["gate_proj"], layer["up_proj"])])
        new[at + "down_proj"] = torch.stack(layer["down_proj"])
    derive(os.path.join(out, "models", name + "-stacked", "model.safetensors"), source, {**old, **new})


def main():
    args = sys.argv[1:]
    models = {"--experts": EXPERTS, "--parameters": PARAMETERS}.get(args[0] if args else "", MODELS)
    args = args[1:] if models is not MODELS else args
    only = args[1].split(",") if args[:1] == ["--only"] else list(models)
    kind = args[3] if args[2:3] == ["--kind"] else None
    out = FAMILIES
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for name, config in models.items():
        if name in only and models is PARAMETERS:
            make_parameters(out, name, kind)
            if name in TURNED and not kind:
                turn_stacks(out, name)
            if name == "gpt-oss" and not kind:
                list_experts(out, name)
        elif name in only:
            make_family(out, name, config)
        if name in only and name == "nemotron-h":
            single_experts(out, name)
        if name in only and models is EXPERTS and name == "qwen3-moe":
            stack_experts(out, name)


if __name__ == "__main__":
    main()
