#!/usr/bin/env python3
"""Writes a Hugging Face model directory with random BF16 weights, and random PEFT adapters.

Usage: make_random_model.py SIZE DIRECTORY [--adapters N] [--rank R] [--seed S]

SIZE is tiny, 15M, 135M or 1.1B: Llama architecture with the shapes that benchmarks are quoted for; 135M-152k is
135M with the vocabulary of a larger family; moe is a Qwen3-MoE of 450 MB, 32 experts of which a row takes 4;
latent has six of DeepSeek-V2-Lite's layers, 1.1 GB, each with one MLP in place of the experts that a row takes.
The answers are noise; speed, memory and every code path are those of a real model.  DIRECTORY gets
the model (config, safetensors, tokenizer, chat template); DIRECTORY/adapters/r000 ... get what
PEFT would have saved, on all seven linear layers.  Needs the standard library alone; 1.1B takes
seconds because weights are cut at random places from one block of normal numbers.

config.json is written last: a directory that has one is complete.
"""

import argparse
import array
import json
import os
import random
import struct
import sys

#        hidden, layers, heads, kv heads, ffn, vocabulary
SIZES = {"tiny": (64, 2, 4, 2, 160, 1024),
         "15M": (288, 6, 6, 6, 768, 32000),
         "135M": (576, 30, 9, 3, 1536, 49152),
         "135M-152k": (576, 30, 9, 3, 1536, 151936),
         "1.1B": (2048, 22, 32, 4, 5632, 32000),
         "moe": (1024, 6, 16, 4, 320, 16384),
         "latent": (2048, 6, 16, 16, 10944, 16384)}
EXPERTS, PER_TOKEN = 32, 4  # of moe
RANK, ROPE, NOPE, V = 512, 64, 128, 128  # of latent: what its keys and values are made of
BLOCK = 1 << 18  # values
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
          "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF


class Noise:
    """Endless BF16 normal numbers of a few standard deviations."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.blocks = {}

    def block(self, std):
        if std not in self.blocks:
            values = array.array("H", (bf16(self.rng.gauss(0, std)) for _ in range(BLOCK)))
            if sys.byteorder == "big":
                values.byteswap()
            self.blocks[std] = values.tobytes() * 2
        return self.blocks[std]

    def write(self, f, count, std):
        if std == 0:  # ones: the weight of a norm
            f.write(struct.pack("<H", bf16(1.0)) * count)
            return
        block = self.block(std)
        while count:
            n = min(count, self.rng.randint(BLOCK // 2, BLOCK))
            at = 2 * self.rng.randrange(BLOCK)
            f.write(block[at:at + 2 * n])
            count -= n


def write_safetensors(path, tensors, noise):
    """tensors: list of (name, shape, std)."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, _ in tensors:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * count]}
        at += 2 * count
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape, std in tensors:
            noise.write(f, shape[0] * (shape[1] if len(shape) > 1 else 1), std)


def modules(size):
    """(name, d_out, d_in) of the linear layers of one block."""
    dim, _, heads, kv_heads, ffn, _ = SIZES[size]
    kv = dim // heads * kv_heads
    if size == "latent":
        return [("self_attn.q_proj", heads * (NOPE + ROPE), dim), ("self_attn.kv_a_proj_with_mqa", RANK + ROPE, dim),
                ("self_attn.kv_b_proj", heads * (NOPE + V), RANK), ("self_attn.o_proj", dim, heads * V),
                ("mlp.gate_proj", ffn, dim), ("mlp.up_proj", ffn, dim), ("mlp.down_proj", dim, ffn)]
    mlps = [f"mlp.experts.{i}" for i in range(EXPERTS)] if size == "moe" else ["mlp"]
    return [("self_attn.q_proj", dim, dim), ("self_attn.k_proj", kv, dim),
            ("self_attn.v_proj", kv, dim), ("self_attn.o_proj", dim, dim)] + [
                (f"{mlp}.{name}", d_out, d_in) for mlp in mlps for name, d_out, d_in in
                (("gate_proj", ffn, dim), ("up_proj", ffn, dim), ("down_proj", dim, ffn))]


def write_weights(where, size, noise):
    """Two files and an index, as large models come."""
    dim, layers, _, _, _, vocab = SIZES[size]
    tensors = [("model.embed_tokens.weight", [vocab, dim], 1.0)]
    for i in range(layers):
        prefix = f"model.layers.{i}."
        tensors += [(prefix + name + ".weight", [d_out, d_in], round(d_in ** -0.5, 4))
                    for name, d_out, d_in in modules(size)]
        tensors += [(prefix + "input_layernorm.weight", [dim], 0),
                    (prefix + "post_attention_layernorm.weight", [dim], 0)]
        if size == "latent":
            tensors += [(prefix + "self_attn.kv_a_layernorm.weight", [RANK], 0)]
        if size == "moe":
            heads = SIZES[size][2]
            tensors += [(prefix + "mlp.gate.weight", [EXPERTS, dim], round(2 * dim ** -0.5, 4)),
                        (prefix + "self_attn.q_norm.weight", [dim // heads], 0),
                        (prefix + "self_attn.k_norm.weight", [dim // heads], 0)]
    tensors += [("model.norm.weight", [dim], 0),
                ("lm_head.weight", [vocab, dim], round(2 * dim ** -0.5, 4))]
    half = len(tensors) // 2
    index = {"metadata": {"total_size": 0}, "weight_map": {}}
    for n, part in enumerate([tensors[:half], tensors[half:]], 1):
        name = f"model-{n:05}-of-00002.safetensors"
        write_safetensors(os.path.join(where, name), part, noise)
        for tensor, shape, _ in part:
            index["weight_map"][tensor] = name
            index["metadata"]["total_size"] += 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    write_json(os.path.join(where, "model.safetensors.index.json"), index)


def byte_characters():
    """GPT-2's printable character of each byte."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + extra)
            extra += 1
    return [table[b] for b in range(256)]


def write_tokenizer(where, vocab_size):
    """Bytes, the pairs of small letters (with their merges), then words that no text reaches."""
    tokens = byte_characters()
    letters = "abcdefghijklmnopqrstuvwxyz"
    room = vocab_size - len(SPECIAL)
    pairs = [(a, b) for a in letters for b in letters][:room - len(tokens)]
    tokens += [a + b for a, b in pairs]
    space = byte_characters()[32]
    tokens += [f"{space}w{i}" for i in range(len(tokens), room)]
    vocab = {t: i for i, t in enumerate(tokens + SPECIAL)}
    assert len(vocab) == vocab_size
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    added = [{"id": vocab[t], "content": t, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for t in SPECIAL]
    write_json(os.path.join(where, "tokenizer.json"), {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for t, i in vocab.items() if t not in SPECIAL},
                  "merges": [[a, b] for a, b in pairs]}})
    write_json(os.path.join(where, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, "bos_token": None,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None,
        "clean_up_tokenization_spaces": False, "model_max_length": 4096,
        "added_tokens_decoder": {
            str(vocab[t]): {"content": t, "single_word": False, "lstrip": False, "rstrip": False,
                            "normalized": False, "special": True} for t in SPECIAL},
        "chat_template": CHATML})
    return vocab["<|im_end|>"]


def write_adapter(where, size, rank, noise):
    os.makedirs(where, exist_ok=True)
    tensors = []
    for i in range(SIZES[size][1]):
        for name, d_out, d_in in modules(size):
            prefix = f"base_model.model.model.layers.{i}.{name}.lora_"
            tensors += [(prefix + "A.weight", [rank, d_in], round(d_in ** -0.5, 4)),
                        (prefix + "B.weight", [d_out, rank], round(0.1 * rank ** -0.5, 4))]
    write_safetensors(os.path.join(where, "adapter_model.safetensors"), tensors, noise)
    write_json(os.path.join(where, "adapter_config.json"), {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": size,
        "inference_mode": True, "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0,
        "bias": "none", "fan_in_fan_out": False, "use_rslora": False, "use_dora": False,
        "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {},
        "target_modules": sorted({name.split(".")[-1] for name, _, _ in modules(size)})})


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=1)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("size", choices=SIZES)
    ap.add_argument("directory")
    ap.add_argument("--adapters", type=int, default=0, metavar="N")
    ap.add_argument("--rank", type=int, default=16)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()

    dim, layers, heads, kv_heads, ffn, vocab = SIZES[args.size]
    os.makedirs(args.directory, exist_ok=True)
    noise = Noise(args.seed)
    write_weights(args.directory, args.size, noise)
    eos = write_tokenizer(args.directory, vocab)
    write_json(os.path.join(args.directory, "generation_config.json"), {"eos_token_id": eos})
    for i in range(args.adapters):
        write_adapter(os.path.join(args.directory, "adapters", f"r{i:03}"), args.size, args.rank,
                      noise)
    family = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    if args.size == "moe":
        family = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": dim // heads,
                  "num_experts": EXPERTS, "num_experts_per_tok": PER_TOKEN, "moe_intermediate_size": ffn,
                  "norm_topk_prob": True}
    if args.size == "latent":
        family = {"architectures": ["YoutuForCausalLM"], "model_type": "youtu", "q_lora_rank": None, "kv_lora_rank": RANK,
                  "qk_rope_head_dim": ROPE, "qk_nope_head_dim": NOPE, "v_head_dim": V}
    write_json(os.path.join(args.directory, "config.json"), {
        **family, "hidden_size": dim,
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": ffn, "vocab_size": vocab,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "rope_scaling": None, "hidden_act": "silu", "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False, "bos_token_id": None, "eos_token_id": eos,
        "torch_dtype": "bfloat16"})


if __name__ == "__main__":
    main()
