"""peer_gguf.py -- a random model and its adapters as GGUF: peer_gguf.py MODEL_DIR

Writes MODEL_DIR/gguf/base.gguf and MODEL_DIR/gguf/<adapter>.gguf, the same BF16 bits (rows of q and k in the
order that llama.cpp's rotation wants; norms as F32), what is there already excepted.  Needs the packages
gguf and numpy: peer.py runs it in a virtual environment that it makes."""
import json
import pathlib
import sys

import gguf
import numpy as np

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate": "ffn_gate_inp", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
OTHERS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
          "lm_head.weight": "output.weight"}
BF16 = gguf.GGMLQuantizationType.BF16


def tensors(path):
    """(name, BF16 bits) of a safetensors file."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    n = int(data[:8].view("<u8")[0])
    for name, t in json.loads(bytes(data[8:8 + n])).items():
        if name != "__metadata__":
            assert t["dtype"] == "BF16", name
            a, b = t["data_offsets"]
            yield name, data[8 + n + a:8 + n + b].view("<u2").reshape(t["shape"])


def as_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def turned(bits, heads):
    """Rows of a head: the two halves that rotate together side by side."""
    rows, cols = bits.shape
    return bits.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def add(writer, name, bits):
    if bits.ndim == 1 or "gate_inp" in name:
        writer.add_tensor(name, as_f32(bits))
    else:
        writer.add_tensor(name, np.ascontiguousarray(bits).view(np.uint8), raw_dtype=BF16)


def layer_name(name, prefix):
    """("blk.3.attn_q", its heads' key or None)."""
    layer, part = name.removeprefix(prefix).split(".", 1)
    return f"blk.{layer}.{NAMES[part]}", {"self_attn.q_proj": "num_attention_heads",
                                          "self_attn.k_proj": "num_key_value_heads"}.get(part)


def finish(writer, path):
    writer.write_header_to_file(path.with_suffix(".new"))
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".new").rename(path)


def add_words(writer, where, cfg):
    t = json.loads((where / "tokenizer.json").read_text())
    words, special = t["model"]["vocab"], {a["content"]: a["id"] for a in t["added_tokens"]}
    by_id = {i: w for w, i in {**words, **special}.items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    kinds = gguf.TokenType
    writer.add_token_list([by_id.get(i, f"[PAD{i}]") for i in range(cfg["vocab_size"])])
    writer.add_token_types([kinds.UNUSED if i not in by_id else kinds.CONTROL if by_id[i] in special else kinds.NORMAL
                            for i in range(cfg["vocab_size"])])
    writer.add_token_merges([" ".join(m) for m in t["model"]["merges"]])
    writer.add_eos_token_id(special.get("<|im_end|>", cfg["eos_token_id"]))
    writer.add_add_bos_token(False)


def add_experts(w, cfg):
    w.add_expert_count(cfg["num_experts"])
    w.add_expert_used_count(cfg["num_experts_per_tok"])
    w.add_expert_feed_forward_length(cfg["moe_intermediate_size"])
    w.add_key_length(cfg["head_dim"])
    w.add_value_length(cfg["head_dim"])


def write_base(where, cfg, path):
    mixed = "num_experts" in cfg  # a Qwen3-MoE, whose rows of q and k stay in their order
    stacks = {}
    w = gguf.GGUFWriter(None, "qwen3moe" if mixed else "llama")
    w.add_name(where.name)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    w.add_context_length(cfg["max_position_embeddings"])
    w.add_embedding_length(cfg["hidden_size"])
    w.add_block_count(cfg["num_hidden_layers"])
    w.add_feed_forward_length(cfg["intermediate_size"])
    w.add_head_count(cfg["num_attention_heads"])
    w.add_head_count_kv(cfg["num_key_value_heads"])
    w.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    w.add_rope_freq_base(cfg.get("rope_theta") or cfg["rope_parameters"]["rope_theta"])
    w.add_rope_dimension_count(cfg["hidden_size"] // cfg["num_attention_heads"])
    w.add_vocab_size(cfg["vocab_size"])
    if mixed:
        add_experts(w, cfg)
    add_words(w, where, cfg)
    for part in sorted(where.glob("*.safetensors")):
        for name, bits in tensors(part):
            if name in OTHERS:
                add(w, OTHERS[name], bits)
                continue
            if ".experts." in name:
                _, _, layer, _, _, expert, part, _ = name.split(".")
                stacks.setdefault(f"blk.{layer}.{NAMES['mlp.' + part]}_exps.weight", {})[int(expert)] = bits
                continue
            to, heads = layer_name(name.removesuffix(".weight"), "model.layers.")
            add(w, to + ".weight", turned(bits, cfg[heads]) if heads and not mixed else bits)
    for name, experts in stacks.items():
        add(w, name, np.stack([experts[i] for i in range(cfg["num_experts"])]))
    finish(w, path)


def write_adapter(folder, cfg, path):
    peft = json.loads((folder / "adapter_config.json").read_text())
    w = gguf.GGUFWriter(None, "llama")
    w.add_type(gguf.GGUFType.ADAPTER)
    w.add_string(gguf.Keys.Adapter.TYPE, "lora")
    w.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(peft["lora_alpha"]))
    for name, bits in tensors(folder / "adapter_model.safetensors"):
        module, _, side = name.removesuffix(".weight").rpartition(".lora_")
        to, heads = layer_name(module, "base_model.model.model.layers.")
        add(w, f"{to}.weight.lora_{side.lower()}", turned(bits, cfg[heads]) if heads and side == "B" else bits)
    finish(w, path)


def main():
    where = pathlib.Path(sys.argv[1])
    cfg = json.loads((where / "config.json").read_text())
    to = where / "gguf"
    to.mkdir(exist_ok=True)
    if not (to / "base.gguf").exists():
        write_base(where, cfg, to / "base.gguf")
    for folder in sorted((where / "adapters").glob("r*")):
        path = to / (folder.name + ".gguf")
        if not path.exists():
            write_adapter(folder, cfg, path)


if __name__ == "__main__":
    main()
