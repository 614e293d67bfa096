#!/usr/bin/env python3
"""Makes tests/fixtures/models: tiny models, LoRA adapters, and what transformers + peft answer.

Usage: make_goldens.py             all of them (needs torch, transformers, peft, safetensors)
       make_goldens.py NAME...     these alone, beside those that are there

One directory per family and dtype, written by save_pretrained, with random weights whose scale
keeps logits far from flat; one set of adapters per shape, written by PEFT; weights by
seed_weights.py; and in each model's directory golden.bin: prompts, greedy continuations and log-probabilities at every position.

The reference always computes in float32.  F16 and BF16 weights are upcast, so the differences
that test_conformance.c sees for BF16 come from the engine's rounding of activations, KV and
adapters.  Prompts whose greedy path comes near a tie are thrown away.

golden.bin, little-endian: "LGL2", u32 n_vocab, n_case, n_top, n_sample; then per case:
i32 adapter (-1: none), u32 n_prompt, u32 n_new, id token[n_prompt + n_new], and for each position
but the last token's: id id[n_top], u24 logprob[n_top], u24 logprob[n_sample] of the ids
(31 * position + 17 * k) % n_vocab. An id is a u16, or a u8 where n_vocab is at most 256; a
log-probability is rounded to a multiple of -2^-19.
"""

import itertools
import json
import os
import shutil
import struct
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config,
                          Qwen3Config)

from seed_weights import adopt, forget, signs

N_VOCAB, N_LAYER, N_NEW, N_TOP, N_SAMPLE = 300, 2, 8, 4, 12
LOGIT_STD = 1.0  # the best of 300 tokens is then about ten times as likely as the average one
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
PLAIN = {"rope_type": "default", "rope_theta": 1000000.0}
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

SHAPE = dict(vocab_size=N_VOCAB, hidden_size=64, num_hidden_layers=N_LAYER, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=144, max_position_embeddings=512,
             bos_token_id=1, eos_token_id=2)
SHAPE3 = dict(SHAPE, hidden_size=48, head_dim=32, intermediate_size=112)
# Heads as models have them: those that attention on a CUDA device has tensor cores for.
HEADS128 = dict(SHAPE, head_dim=128, num_key_value_heads=1)
HEADS64 = dict(SHAPE, hidden_size=56, head_dim=64, num_attention_heads=7, num_key_value_heads=1)
# What four devices can share: each has whole heads, and of every matrix whole blocks of 64 rows.
SHARDS4 = dict(SHAPE, hidden_size=256, head_dim=64, num_key_value_heads=4, intermediate_size=256)

# directory: config, dtype, extra wishes, set of adapters
MODELS = {
    "llama-f32": (LlamaConfig(**SHAPE, rope_parameters=LLAMA3), torch.float32, {}, "a"),
    "llama-f16": (LlamaConfig(**SHAPE, rope_parameters=LINEAR, tie_word_embeddings=True,
                              attention_bias=True, mlp_bias=True),
                  torch.float16, {"classic"}, "a"),
    "llama-bf16": (LlamaConfig(**SHAPE, rope_parameters=LLAMA3), torch.bfloat16,
                   {"classic", "shards"}, "a"),
    "mistral-f32": (MistralConfig(**SHAPE, rope_parameters=PLAIN, sliding_window=16),
                    torch.float32, {}, "a"),
    "mistral-f16": (MistralConfig(**SHAPE, rope_parameters=PLAIN, sliding_window=16),
                    torch.float16, {"classic"}, "a"),
    "mistral-bf16": (MistralConfig(**SHAPE, rope_parameters=PLAIN, sliding_window=16),
                     torch.bfloat16, {}, "a"),
    "qwen2-f32": (Qwen2Config(**SHAPE, rope_parameters=PLAIN, tie_word_embeddings=True),
                  torch.float32, {"shards"}, "a"),
    "qwen2-f16": (Qwen2Config(**SHAPE, rope_parameters=PLAIN), torch.float16, {}, "a"),
    "qwen2-bf16": (Qwen2Config(**SHAPE, rope_parameters=PLAIN, tie_word_embeddings=True),
                   torch.bfloat16, {"classic"}, "a"),
    "qwen3-f32": (Qwen3Config(**SHAPE3, rope_parameters=PLAIN), torch.float32, {}, "b"),
    "qwen3-f16": (Qwen3Config(**SHAPE3, rope_parameters=PLAIN, tie_word_embeddings=True),
                  torch.float16, {}, "b"),
    "qwen3-bf16": (Qwen3Config(**SHAPE3, rope_parameters=PLAIN), torch.bfloat16, {"classic"}, "b"),
    "llama-h128-bf16": (LlamaConfig(**HEADS128, rope_parameters=LLAMA3), torch.bfloat16, {}, "c"),
    "llama-h64-f16": (LlamaConfig(**HEADS64, rope_parameters=PLAIN, attention_bias=True), torch.float16, {}, "d"),
    "llama-tp-bf16": (LlamaConfig(**SHARDS4, rope_parameters=LLAMA3), torch.bfloat16, {}, "e"),
}

# In the order that golden.bin counts in.
ADAPTERS = {
    "r1": dict(r=1, lora_alpha=2, target_modules=ALL),
    "r4": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
    "r16": dict(r=16, lora_alpha=16, target_modules="all-linear"),
    "r64": dict(r=64, lora_alpha=32, target_modules=["q_proj", "v_proj", "down_proj"]),
    "r256": dict(r=256, lora_alpha=128, target_modules=["o_proj", "gate_proj"]),
    "rslora": dict(r=8, lora_alpha=4, use_rslora=True, target_modules=ALL),
    "pattern": dict(r=8, lora_alpha=16, target_modules=ALL,
                    rank_pattern={"q_proj": 3, "layers.1.mlp.up_proj": 20},
                    alpha_pattern={"v_proj": 5, "layers.0.mlp.down_proj": 24}),
    "mlp": dict(r=5, lora_alpha=10, target_modules=["gate_proj", "up_proj", "down_proj"],
                layers_to_transform=[1]),
}
SAVED_BF16 = {"r64", "r256"}
VARIANTS = [-1, -1, 0, 1, 2, 3, 4, 5, 6, 7, 0, 2, 4, 5, 6, 7]
LENGTHS = [1, 37, 5, 17, 33, 48, 9, 2, 26, 64, 40, 3, 12, 31, 21, 7]


def randomise(model):
    """Weights as a trained model's are in scale: unit gain per layer, norms near one."""
    tied = model.config.tie_word_embeddings
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = signs(p.shape)
            if "norm" in name:
                p.copy_(1 + 0.1 * noise)
            elif name.endswith("bias"):
                p.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                p.copy_(noise * (LOGIT_STD / p.shape[1] ** 0.5 if tied else 1.0))
            else:
                gain = LOGIT_STD if "lm_head" in name else 1.0
                p.copy_(noise * gain / p.shape[1] ** 0.5)


def classic_config(path):
    """config.json as transformers 4 wrote it."""
    with open(path) as f:
        c = json.load(f)
    rope = c.pop("rope_parameters")
    c["rope_theta"] = rope.pop("rope_theta")
    c["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    if rope["rope_type"] == "linear":  # older still
        rope["type"] = rope.pop("rope_type")
    c["torch_dtype"] = c.pop("dtype")
    c.pop("layer_types", None)
    with open(path, "w") as f:
        json.dump(c, f, indent=2)


def make_model(out, name):
    config, dtype, wishes, _ = MODELS[name]
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomise(model)
    model = model.to(dtype)
    model.generation_config.update(eos_token_id=[2, 3], temperature=0.6, top_p=0.9, top_k=20,
                                   do_sample=True)
    where = os.path.join(out, name)
    model.save_pretrained(where, max_shard_size="100KB" if "shards" in wishes else "1GB")
    adopt(where)
    if "classic" in wishes:
        classic_config(os.path.join(where, "config.json"))
    return where


def load(where):
    return AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32,
                                                attn_implementation="eager").eval()


def make_adapters(out, base):
    for name, wish in ADAPTERS.items():
        model = get_peft_model(load(base), LoraConfig(task_type="CAUSAL_LM", **wish))
        with torch.no_grad():
            for module in model.modules():
                if not hasattr(module, "lora_A") or "default" not in module.lora_A:
                    continue
                a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
                size = 0.2 / module.scaling["default"] / a.shape[0] ** 0.5
                a.copy_(signs(a.shape) / a.shape[1] ** 0.5)
                b.copy_(signs(b.shape) * size)
        where = os.path.join(out, name)
        model.save_pretrained(where)
        os.remove(os.path.join(where, "README.md"))
        path = os.path.join(where, "adapter_config.json")
        with open(path) as f:
            config = json.load(f)
        config["base_model_name_or_path"] = "tiny"
        config["target_modules"] = sorted(config["target_modules"])
        with open(path, "w") as f:
            json.dump(config, f, indent=2, sort_keys=True)
        if name in SAVED_BF16:
            path = os.path.join(where, "adapter_model.safetensors")
            tensors = {k: v.to(torch.bfloat16) for k, v in load_file(path).items()}
            save_file(tensors, path, metadata={"format": "pt"})
        adopt(where)


def greedy(model, prompt):
    """Tokens with N_NEW more, log-probabilities of all positions, and the least top-1 margin."""
    tokens = list(prompt)
    least = 1e9
    for _ in range(N_NEW):
        logits = model(torch.tensor([tokens])).logits[0]
        best = logits[-1].topk(2).values
        least = min(least, float(best[0] - best[1]))
        tokens.append(int(logits[-1].argmax()))
    return tokens, torch.log_softmax(logits.double(), -1), least


def make_case(model, n_prompt, margin, gen, n_vocab=N_VOCAB):
    """Of another vocabulary than the base's: every third token of the prompt is one that was added, unless the prompt
    is one token and each of the few that were added comes near a tie."""
    for tries in itertools.count():
        prompt = torch.randint(4, n_vocab, (n_prompt,), generator=gen).tolist()
        if n_vocab > N_VOCAB and (n_prompt > 1 or tries < 100):
            prompt[::3] = torch.randint(N_VOCAB, n_vocab, (len(prompt[::3]),), generator=gen).tolist()
        tokens, logprobs, least = greedy(model, prompt)
        if least > margin:
            return tokens, logprobs


def write_head(f, n_case, n_vocab=N_VOCAB, n_top=N_TOP, n_sample=N_SAMPLE):
    f.write(b"LGL2" + struct.pack("<IIII", n_vocab, n_case, n_top, n_sample))


def write_case(f, variant, n_prompt, tokens, logprobs, n_vocab=N_VOCAB, n_top=N_TOP, n_sample=N_SAMPLE):
    def ids(list_of_ids):
        return struct.pack(f"<{len(list_of_ids)}{'B' if n_vocab <= 256 else 'H'}", *list_of_ids)

    f.write(struct.pack("<iII", variant, n_prompt, N_NEW) + ids(tokens))
    for pos, lp in enumerate(logprobs):
        top = lp.topk(n_top)
        sample = [float(lp[(31 * pos + 17 * k) % n_vocab]) for k in range(n_sample)]
        f.write(ids(top.indices.tolist()))
        for v in (*top.values.tolist(), *sample):
            f.write(round(-v * (1 << 19)).to_bytes(3, "little"))


def make_golden(where, adapters, margin, gen):
    names = list(ADAPTERS)
    models = {-1: load(where)}
    for i, name in enumerate(names):
        models[i] = PeftModel.from_pretrained(load(where), os.path.join(adapters, name)).eval()
    with open(os.path.join(where, "golden.bin"), "wb") as f:
        write_head(f, len(VARIANTS))
        for variant, n_prompt in zip(VARIANTS, LENGTHS):
            tokens, logprobs = make_case(models[variant], n_prompt, margin, gen)
            write_case(f, variant, n_prompt, tokens, logprobs)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    out = os.path.join(here, "..", "fixtures", "models")
    wanted = sys.argv[1:] or list(MODELS)
    if not sys.argv[1:]:
        forget(out)
        shutil.rmtree(out, ignore_errors=True)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    gen = torch.Generator().manual_seed(20)
    done = set()
    for name in wanted:
        _, dtype, _, adapter_set = MODELS[name]
        where = make_model(out, name)
        adapters = os.path.join(out, "adapters-" + adapter_set)
        if adapter_set not in done:
            make_adapters(adapters, where)
            done.add(adapter_set)
        make_golden(where, adapters, 0.12 if dtype == torch.bfloat16 else 0.01, gen)
        print(name, flush=True)


if __name__ == "__main__":
    main()
