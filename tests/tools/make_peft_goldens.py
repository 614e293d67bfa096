#!/usr/bin/env python3
"""Makes tests/fixtures/peft: one adapter of each kind that PEFT can save, and what PEFT answers.

Usage: make_peft_goldens.py [KIND ...]     (needs torch, transformers, peft, safetensors)

The bases are those of make_goldens.py (tests/fixtures/models), which must be there already.  Each
directory is <base>/<kind>: the files as PEFT saved them (config and safetensors), changed only where
the kind is another saver's way of writing the same, and golden.bin in make_goldens.py's format with
adapter 0 throughout.  Adapters are random (seed_weights.py) and strong: magnitudes, biases and tables are moved as far
as matrices are, so that an engine that leaves one out is far off.
"""

import json
import os
import shutil
import struct
import sys

import torch
from peft import IA3Config, LoHaConfig, LoKrConfig, LoraConfig, PeftModel, VeraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file

from make_goldens import ALL, N_NEW, N_SAMPLE, N_TOP, N_VOCAB, load, make_case, write_case, write_head
from seed_weights import adopt, derive, derive_gguf, forget, indices, signs

TWO = ["q_proj", "v_proj"]
REGEX = r".*\.layers\.(0|1)\.(self_attn\.[qo]_proj|mlp\.(up|down)_proj)"

NEW = [5, 306, 9] + list(range(300, 306))

# kind: (bases, LoraConfig, how the saver differs; a number: the base was resized to so many tokens)
KINDS = {
    "regex": (["llama-f32"], dict(r=4, lora_alpha=8, target_modules=REGEX), None),
    "linear": (["llama-f32"], dict(r=3, lora_alpha=6, target_modules="all-linear",
                                   exclude_modules=["k_proj", "layers.1.mlp.up_proj"]), None),
    "layers": (["llama-f32"], dict(r=4, lora_alpha=8, target_modules=ALL, layers_to_transform=[1],
                                   layers_pattern="layers"), None),
    "keys": (["llama-f32"], dict(r=4, lora_alpha=8, target_modules=ALL,
                                 rank_pattern={r".*\.1\.mlp\.\w+": 7, "down_proj": 6,
                                               "^model.layers.0.self_attn.q_proj": 2,
                                               "[kv]_proj": 5},
                                 alpha_pattern={r"layers\.\d\.self_attn\.(q|o)_proj": 3,
                                                "proj": 99, "down_proj": 20}), None),
    "dora": (["llama-f32", "qwen2-f32", "llama-bf16"],
             dict(r=4, lora_alpha=8, target_modules=ALL, use_dora=True), None),
    "dora-rs": (["llama-f32", "llama-bf16"],
                dict(r=40, lora_alpha=10, use_rslora=True, use_dora=True,
                     target_modules=["q_proj", "o_proj", "down_proj"],
                     rank_pattern={"o_proj": 3}, alpha_pattern={"layers.0.mlp.down_proj": 24}), None),
    "lora-bias": (["qwen2-f32"], dict(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj"],
                                      lora_bias=True), None),
    "bias-all": (["qwen2-f32"], dict(r=4, lora_alpha=8, target_modules=["q_proj", "up_proj"],
                                     bias="all"), None),
    "bias-lora": (["qwen2-f32"], dict(r=4, lora_alpha=8, target_modules=["q_proj", "up_proj"],
                                      bias="lora_only"), None),
    "both-bias": (["qwen2-f32"], dict(r=4, lora_alpha=8, target_modules=["q_proj", "k_proj"],
                                      lora_bias=True, bias="lora_only"), None),
    "embed": (["llama-f32", "qwen2-f32", "llama-bf16"],
              dict(r=4, lora_alpha=8, target_modules=["q_proj", "embed_tokens"]), None),
    "head": (["llama-f32", "qwen2-f32", "llama-bf16"],
             dict(r=4, lora_alpha=8, target_modules=["q_proj", "lm_head"]), None),
    "ends-dora": (["llama-f32", "llama-bf16"],
                  dict(r=4, lora_alpha=8, target_modules=["v_proj", "embed_tokens", "lm_head"],
                       use_dora=True), None),
    "save": (["llama-f32", "qwen2-f32", "llama-bf16"],
             dict(r=4, lora_alpha=8, target_modules=TWO, modules_to_save=["embed_tokens", "lm_head"]),
             None),
    "save-head": (["llama-f32"], dict(r=4, lora_alpha=8, target_modules=["embed_tokens"],
                                      modules_to_save=["lm_head"]), None),
    "tie": (["qwen2-f32"], dict(r=4, lora_alpha=8, target_modules=["q_proj", "embed_tokens"],
                                ensure_weight_tying=True), None),
    "tie-save": (["qwen2-f32"], dict(r=4, lora_alpha=8, target_modules=TWO,
                                     modules_to_save=["embed_tokens"], ensure_weight_tying=True), None),
    "fused": (["llama-f32"], dict(r=4, lora_alpha=8, target_modules=ALL), "fused"),
    "fused-dora": (["llama-f32"], dict(r=4, lora_alpha=8, target_modules=ALL, use_dora=True),
                   "fused"),
    "gguf": (["llama-f32", "qwen2-f32", "llama-bf16"],
             dict(r=4, lora_alpha=8, target_modules=ALL + ["lm_head"],
                  rank_pattern={"k_proj": 3, "layers.1.mlp.up_proj": 20}), "gguf"),
    "gguf-ends": (["llama-f32", "llama-bf16"],
                  dict(r=4, lora_alpha=8, target_modules=["q_proj", "embed_tokens", "lm_head"],
                       rank_pattern={"embed_tokens": 6}), "gguf"),
    "tokens": (["llama-f32", "qwen2-f32", "llama-bf16"],
               dict(r=4, lora_alpha=8, target_modules=TWO, trainable_token_indices=list(range(3, 60, 2))),
               None),
    "norms": (["llama-f32", "llama-bf16"],
              dict(r=4, lora_alpha=8, target_modules=TWO, modules_to_save=["norm"]), None),
    "norm-one": (["qwen2-f32"], dict(r=4, lora_alpha=8, target_modules=TWO,
                                     modules_to_save=["1.post_attention_layernorm", "lm_head"],), None),
    "added": (["llama-f32", "qwen2-f32", "llama-bf16"],
              dict(r=4, lora_alpha=8, target_modules=TWO), 307),
    "added-save": (["llama-f32"], dict(r=4, lora_alpha=8, target_modules=TWO,
                                       modules_to_save=["embed_tokens", "lm_head"]), 307),
    "added-tokens": (["llama-f32", "qwen2-f32"],
                     dict(r=4, lora_alpha=8, target_modules=TWO,
                          trainable_token_indices={"embed_tokens": NEW, "lm_head": NEW}), 307),
    "added-embed": (["llama-bf16"],
                    dict(r=4, lora_alpha=8, target_modules=TWO, trainable_token_indices=NEW), 307),
    "added-ends": (["llama-f32"],
                   dict(r=4, lora_alpha=8, target_modules=["v_proj", "embed_tokens", "lm_head"],
                        use_dora=True), 307),
    "added-less": (["llama-f32"], dict(r=4, lora_alpha=8, target_modules=TWO), 290),
    "plain": (["llama-f32"], dict(r=4, lora_alpha=8, target_modules=TWO), "plain"),
    "vision": (["llama-f32"], dict(r=4, lora_alpha=8, target_modules=TWO), "vision"),
    "wrapped": (["llama-f32"], dict(r=4, lora_alpha=8, target_modules=TWO), "wrapped"),
    "loha": (["llama-f32", "qwen2-f32"], dict(peft=LoHaConfig, r=3, alpha=6, target_modules=ALL, rank_pattern={"k_proj": 2, "layers.1.mlp.up_proj": 4},
                                              alpha_pattern={"o_proj": 5}), None),
    "lokr": (["llama-f32"], dict(peft=LoKrConfig, r=2, alpha=3, target_modules=ALL), None),
    "lokr-both": (["llama-f32", "llama-bf16"], dict(peft=LoKrConfig, r=1, alpha=1, decompose_both=True, decompose_factor=4,
                                                    target_modules=["q_proj", "v_proj", "down_proj"]), None),
    "vera": (["llama-f32", "qwen2-f32"], dict(peft=VeraConfig, r=16, target_modules=["q_proj", "v_proj", "down_proj"]), None),
    "ia3": (["llama-f32", "qwen2-f32", "llama-bf16"], dict(peft=IA3Config, target_modules=["k_proj", "v_proj", "up_proj", "down_proj"],
                                                           feedforward_modules=["down_proj"]), None),
}
LENGTHS = [1, 9, 37]
MARGIN = {"llama-bf16": 0.12}
GGUF_TYPES = {"llama-f32": (0, torch.float32), "qwen2-f32": (1, torch.float16),
              "llama-bf16": (30, torch.bfloat16)}
GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down"}


def randomise_other(model, gen):
    """LoHa, LoKr, VeRA, IA3: every trained value at random, each module's change as strong as a LoRA's above."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if any(part in name for part in ("hada_", "lokr_", "vera_lambda")):
                p.copy_(torch.randn(p.shape, generator=gen))
            elif "ia3_l" in name:
                p.copy_(1 + 0.3 * torch.randn(p.shape, generator=gen))
        for module in model.modules():
            first = next((getattr(module, n) for n in ("hada_w1_a", "lokr_w1", "lokr_w1_a", "vera_lambda_b") if "default" in getattr(module, n, {})), None)
            if first is not None:
                delta = module.get_delta_weight("default")
                first["default"].mul_(0.3 / (delta.std() * delta.shape[1] ** 0.5))


def randomise(model, kind, gen):
    """Fills what PEFT leaves at its start: B at zero, magnitudes at the norm, biases at the base's."""
    _, wish, how = KINDS[kind]
    with torch.no_grad():
        for name, module in model.named_modules():
            if not isinstance(module, LoraLayer):
                continue
            scale = module.scaling["default"]
            if "default" in module.lora_embedding_A:
                a, b = module.lora_embedding_A["default"], module.lora_embedding_B["default"]
            else:
                a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            size = 0.2 / scale / max(1, min(a.shape)) ** 0.5
            a.copy_(signs(a.shape) / (a.shape[1] ** 0.5 if a.shape[1] != N_VOCAB else 1))
            b.copy_(signs(b.shape) * size)
            if "default" in module.lora_magnitude_vector:
                m = module.lora_magnitude_vector["default"].weight
                m.mul_(1 + 0.2 * torch.randn(m.shape, generator=gen))
            if wish.get("lora_bias"):
                bias = module.lora_B["default"].bias
                bias.copy_(signs(bias.shape) * 0.2 / scale)
        bias = wish.get("bias", "none")
        for name, p in model.named_parameters():
            if name.endswith(".bias") and "lora_" not in name and bias != "none":
                if bias == "all" or "base_layer" in name:
                    p.add_(0.3 * torch.randn(p.shape, generator=gen))
            if "modules_to_save.default" in name:
                size = 0.3 * p.std() if p.dim() > 1 else 0.3
                p.add_(size * torch.randn(p.shape, generator=gen))
            if "trainable_tokens_delta" in name:
                p.add_(0.5 * p.std() * torch.randn(p.shape, generator=gen))


def one_a(name, _):
    """The rule of the A of a module that is fused with the one before it."""
    for first, *rest in (["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]):
        for other in rest:
            if f".{other}.lora_A" in name:
                return ["copy", name.replace(other, first)]
    return None


def turned(name, t):
    """The rule of an output layer's matrix that is the embedding's, transposed."""
    for ours, other in (("lm_head.lora_A.weight", "B"), ("lm_head.lora_B.weight", "A")):
        if name.endswith(ours):
            rows, columns = t.shape
            return ["copy", [name.replace(ours, f"model.embed_tokens.lora_embedding_{other}"), 0, [rows, 1], [columns, rows]]]
    return None


def fuse(tensors):
    """q, k, v and gate, up as one module each: one A, the rest row after row."""
    out = {}
    for name, value in tensors.items():
        for parts, fused in ((["q_proj", "k_proj", "v_proj"], "qkv_proj"),
                             (["gate_proj", "up_proj"], "gate_up_proj")):
            if not any("." + p + "." in name for p in parts):
                continue
            part = next(p for p in parts if "." + p + "." in name)
            if part == parts[0]:
                all_parts = [tensors[name.replace(part, p)] for p in parts]
                out[name.replace(part, fused)] = (value if "lora_A" in name
                                                  else torch.cat(all_parts).contiguous())
            break
        else:
            out[name] = value
    return out


def rename(tensors, how):
    if how == "fused":
        return fuse(tensors)
    if how == "plain":
        return {k.replace("base_model.model.", "").replace(".weight", ".default.weight"): v
                for k, v in tensors.items()}
    if how == "vision":
        return {k.replace("model.layers", "model.language_model.layers"): v for k, v in tensors.items()}
    if how == "wrapped":
        return {k.replace("base_model.model.", "module._orig_mod.base_model.model.")
                .replace(".self_attn.", "._fsdp_wrapped_module.self_attn."): v for k, v in tensors.items()}
    return tensors


def reconfigure(config, how):
    config["base_model_name_or_path"] = "tiny"
    if isinstance(config["target_modules"], list):
        config["target_modules"] = sorted(config["target_modules"])
    if how == "fused":
        config["target_modules"] = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
    if how == "vision":
        config["target_modules"] = (r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|v_proj).*?)|"
                                    r"(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn)\.(?:(?:q_proj|v_proj)))")


def gguf_string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def write_gguf(path, source, base, config, alpha, more=()):
    """As llama.cpp's convert_lora_to_gguf.py does, for the names and types that we need. source: indices()."""
    ggml_type, _ = GGUF_TYPES[base]
    arch = base.split("-")[0]
    keys = [("general.architecture", 8, gguf_string(arch)), ("general.type", 8, gguf_string("adapter")),
            ("adapter.type", 8, gguf_string("lora")), ("general.name", 8, gguf_string("golden")),
            ("general.tags", 9, struct.pack("<IQ", 8, 2) + gguf_string("a") + gguf_string("b")),
            ("general.quantization_version", 4, struct.pack("<I", 2)),
            ("adapter.lora.alpha", 6, struct.pack("<f", alpha)), *more]
    infos, at, tensors = b"", 0, []
    for name, value in source.items():
        if ".lora_" not in name:
            continue
        module, end = name.removeprefix("base_model.model.").rsplit(".lora_", 1)
        end = end.removeprefix("embedding_")
        if module == "lm_head":
            to = "output"
        elif module == "model.embed_tokens":
            to = "token_embd"
            value = value.T if end[0] == "A" else value  # as get_rows() of llama.cpp wants it
        else:
            _, _, layer, rest = module.split(".", 3)
            to = f"blk.{layer}.{GGUF_NAMES[rest]}"
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        last = module.rsplit(".", 1)[-1]
        if arch == "llama" and end[0] == "B" and last in heads:
            value = (value.reshape(heads[last], 2, value.shape[0] // heads[last] // 2, value.shape[1])
                     .swapaxes(1, 2).reshape(value.shape))
        rule, dtype = source.rule(value)
        tensors.append((dtype, value.shape, rule))
        infos += (gguf_string(f"{to}.weight.lora_{end[0].lower()}") +
                  struct.pack("<IQQIQ", 2, value.shape[1], value.shape[0], ggml_type, at))
        at += -(-value.size * (4 if dtype == "F32" else 2) // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(gguf_string(k) + struct.pack("<I", t) + v for k, t, v in keys) + infos
    derive_gguf(path, source, head + b"\0" * (-len(head) % 32), tensors)


def load_for(base_dir, how, gen=None):
    """The base, resized if the kind is; with `gen` its added rows are as strong as the others."""
    model = load(base_dir)
    if not isinstance(how, int):
        return model
    model.resize_token_embeddings(how, mean_resizing=False)
    for table in dict.fromkeys([model.get_input_embeddings(), model.get_output_embeddings()]) if gen else ():
        p = table.weight
        new = 1.5 * p[:N_VOCAB].std() * torch.randn(p[N_VOCAB:].shape, generator=gen)
        p[N_VOCAB:] = new.to(torch.bfloat16).float()
    return model


def make_kind(base_dir, where, kind, margin, gen):
    _, wish, how = KINDS[kind]
    n_vocab = how if isinstance(how, int) else N_VOCAB
    wish = dict(wish)
    config = wish.pop("peft", LoraConfig)
    model = get_peft_model(load_for(base_dir, how, gen), config(task_type="CAUSAL_LM", **wish))
    if config is LoraConfig:
        randomise(model, kind, gen)
    else:
        randomise_other(model, gen)
    model.save_pretrained(where)
    os.remove(os.path.join(where, "README.md"))
    path = os.path.join(where, "adapter_model.safetensors")
    to = None
    if how == "gguf":
        to = GGUF_TYPES[os.path.basename(base_dir)][1]
    elif isinstance(how, int) and base_dir.endswith("bf16"):  # a model that was loaded as it is saved
        to = torch.bfloat16
    if to:
        save_file({k: v.to(to) if (how == "gguf") == (".lora_" in k) and "delta" not in k else v
                   for k, v in load_file(path).items()}, path, metadata={"format": "pt"})
    saved = os.path.join(where, "saved.safetensors") if isinstance(how, str) else path
    os.rename(path, saved)
    adopt(saved, {"fused": one_a}.get(how) or {"tie": turned}.get(kind), isinstance(how, str), base_dir)
    if saved != path:
        shutil.copy(saved, path)
    model = PeftModel.from_pretrained(load_for(base_dir, how), where).eval()  # what PEFT itself reads
    base = load_for(base_dir, how)
    with open(os.path.join(where, "golden.bin"), "wb") as f:
        write_head(f, len(LENGTHS), n_vocab)
        for n_prompt in LENGTHS:
            tokens, logprobs = make_case(model, n_prompt, margin, gen, n_vocab)
            write_case(f, 0, n_prompt, tokens, logprobs, n_vocab)
    far = (base(torch.tensor([tokens])).logits - model(torch.tensor([tokens])).logits).abs().max()
    assert far > 0.05, f"{kind} does nothing: {far}"
    if isinstance(how, str):
        source = indices(saved)
        os.remove(saved)
        if how == "gguf":
            write_gguf(os.path.join(where, "adapter.gguf"), source, os.path.basename(base_dir), base.config,
                       wish["lora_alpha"])
            os.remove(path)
            os.remove(os.path.join(where, "adapter_config.json"))
            return
        derive(path, source, rename({k: torch.from_numpy(v) for k, v in source.items()}, how))
    path = os.path.join(where, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    reconfigure(config, how)
    with open(path, "w") as f:
        json.dump(config, f, indent=2)  # the order of patterns matters


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    models = os.path.join(here, "..", "fixtures", "models")
    out = os.path.join(here, "..", "fixtures", "peft")
    only = sys.argv[1:]
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    for kind, (bases, _, _) in KINDS.items():
        if only and kind not in only:
            continue
        for base in bases:
            where = os.path.join(out, base, kind)
            forget(where)
            shutil.rmtree(where, ignore_errors=True)
            torch.manual_seed(1)
            gen = torch.Generator().manual_seed(sum(map(ord, kind + base)))
            make_kind(os.path.join(models, base), where, kind, MARGIN.get(base, 0.01), gen)
            print(base, kind, flush=True)


if __name__ == "__main__":
    main()
