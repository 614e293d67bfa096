#!/usr/bin/env python3
"""Makes tests/fixtures/quant: tiny models in the formats that people have, and what the formats' own libraries read in them.

Usage: make_quant_goldens.py [name ...]
       (needs torch, transformers, peft, safetensors, gguf, sentencepiece, tokenizers, compressed-tensors, bitsandbytes)

Each folder has expected.txt: for each matrix Hugging Face's name and the FNV-1a of its dequantised values, little-endian
F32, as the format's library gives them.  Where golden.bin lies beside it, transformers + peft ran with these values (its
form is in make_goldens.py), with the adapters of fixtures/models.  words.txt: texts in hex, and their ids by
SentencePiece or tokenizers.  awq-task has a LoRA, a task that it learnt, and how often transformers + peft are right.
"""
import json
import os
import pathlib
import shutil
import sys
import tempfile

import gguf
import numpy as np
import sentencepiece
import torch
from gguf import GGMLQuantizationType as Q
from safetensors.torch import load_file, save_file

import make_goldens
import make_quant_folders
from seed_weights import derive_gguf

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parent / "fixtures" / "models"
TEXTS = ["", "a", " a", "the cat sat on the mat", "  two  spaces ", "naïve", "日本", "line\nbreak", "the the", "x" * 9,
         "catsat mat.", "é", "\u00a0", "cat's \t mat", "<s> the", "123", "the\n\n\ncat", "that then there hatch heath matheat",
         "satthatat thehehat", "an ran than hasat noonon nthe"]
CORPUS = ["the cat sat on the mat", "a hat that the man has", "mats and cats and hats", "she sat then he ran at noon"] * 50
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def fnv(data):
    h = 14695981039346656037
    for b in data:
        h = (h ^ b) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return h


def write_expected(out, tensors):
    """tensors: Hugging Face's name -> F32 values."""
    lines = []
    for name, v in sorted(tensors.items()):
        v = np.ascontiguousarray(np.asarray(v, dtype="<f4"))
        if v.ndim == 2:
            lines.append(f"{name} {v.shape[0]} {v.shape[1]} {fnv(v.tobytes()):016x}\n")
    (out / "expected.txt").write_text("".join(lines))


def write_golden(out, config_of, tensors, adapters, seed):
    """transformers with the dequantised values, and the adapters of fixtures/models."""
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copy(MODELS / config_of / "config.json", tmp)
        shutil.copy(MODELS / config_of / "generation_config.json", tmp)
        save_file({k: torch.tensor(np.ascontiguousarray(v, dtype=np.float32)) for k, v in tensors.items()},
                  os.path.join(tmp, "model.safetensors"), metadata={"format": "pt"})
        make_goldens.make_golden(tmp, str(MODELS / adapters), 0.01, torch.Generator().manual_seed(seed))
        shutil.copy(os.path.join(tmp, "golden.bin"), out)


def gguf_name(name):
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        module, suffix = rest.rsplit(".", 1)
        return f"blk.{layer}.{NAMES[module]}.{suffix}"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight"}[name]


def turn(w, n_head):
    """What llama.cpp's converter does to q and k of a llama."""
    return w.reshape(n_head, 2, w.shape[0] // n_head // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def add_tensor(writer, name, data, kind):
    """Writes it as `kind`, and gives what the library reads."""
    raw = gguf.quantize(np.ascontiguousarray(data, dtype=np.float32), kind)
    if kind == Q.F16:
        writer.add_tensor(name, raw.view(np.float16).reshape(data.shape))
    else:
        writer.add_tensor(name, raw, raw_dtype=kind)
    return gguf.dequantize(raw, kind).reshape(data.shape)


def sentence_words(writer, n_vocab, out):
    with tempfile.TemporaryDirectory() as tmp:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS), model_prefix=os.path.join(tmp, "m"), vocab_size=n_vocab, model_type="bpe",
            byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
            add_dummy_prefix=True, character_coverage=1.0, minloglevel=2)
        sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(tmp, "m.model"))
    kinds = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1 for i in range(n_vocab)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([sp.id_to_piece(i).encode() for i in range(n_vocab)])
    writer.add_token_scores([sp.get_score(i) for i in range(n_vocab)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    # A marker's text is a marker to us, and text to SentencePiece.
    texts = [t for t in TEXTS if "<s>" not in t and t != ""]
    write_words(out, [(t, [1] + sp.encode(t)) for t in texts])


def byte_tokenizer(n_vocab):
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from make_tokenizer_goldens import QWEN2
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=n_vocab, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def byte_words(writer, n_vocab, out):
    t = byte_tokenizer(n_vocab - 1)
    spec = json.loads(t.to_str())
    vocab = {i: s for s, i in spec["model"]["vocab"].items()}
    n = len(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([vocab.get(i, f"[PAD{i}]") for i in range(n_vocab)])
    writer.add_token_types([5 if i >= n else 3 if vocab[i] in SPECIAL else 1 for i in range(n_vocab)])
    writer.add_token_merges([" ".join(m) for m in spec["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    write_words(out, [(s, t.encode(s).ids) for s in TEXTS + ["<|im_start|>the"]])


def write_words(out, pairs):
    (out / "words.txt").write_text("".join(f"{s.encode().hex() or '-'} {' '.join(map(str, ids))}\n" for s, ids in pairs))


def shape_keys(writer, c, head_dim):
    rope = c["rope_parameters"]
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_llama(out):
    """A llama in six types, its q and k turned, its rope scaled by a tensor; in two files."""
    c = json.loads((MODELS / "llama-f32" / "config.json").read_text())
    w = {k: v.numpy() for k, v in load_file(MODELS / "llama-f32" / "model.safetensors").items()}
    writer = gguf.GGUFWriter(out / "model.gguf", "llama", split_max_tensors=12)
    shape_keys(writer, c, 16)
    sentence_words(writer, c["vocab_size"], out)
    r, i = c["rope_parameters"], np.arange(0, 16, 2, dtype=np.float32)
    freq = 1.0 / r["rope_theta"] ** (i / 16)
    wave = 2 * np.pi / freq
    low, high = (r["original_max_position_embeddings"] / r[k] for k in ("low_freq_factor", "high_freq_factor"))
    smooth = (r["original_max_position_embeddings"] / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
    divisor = np.where(wave < high, 1.0, np.where(wave > low, r["factor"], 1 / ((1 - smooth) / r["factor"] + smooth)))
    writer.add_tensor("rope_freqs.weight", divisor.astype(np.float32))
    kinds = [Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q8_0]  # IQ4_NL has no quantiser there: gguf_k has it
    read = {}
    for n, (name, v) in enumerate(sorted(w.items())):
        heads = c["num_attention_heads"] if "q_proj" in name else c["num_key_value_heads"] if "k_proj" in name else 0
        kind = Q.F32 if v.ndim == 1 else Q.F16 if v.shape[1] % 32 else kinds[n % len(kinds)]
        there = add_tensor(writer, gguf_name(name), turn(v, heads) if heads else v, kind)
        if heads:  # back: the converter's way the other way round
            there = there.reshape(heads, there.shape[0] // heads // 2, 2, *there.shape[1:]).swapaxes(1, 2).reshape(there.shape)
        read[name] = there
    close(writer)
    write_expected(out, read)
    write_golden(out, "llama-f32", read, "adapters-a", 41)


def gguf_qwen3(out):
    """BF16 and Q8_0, a byte-level vocabulary, a chat template."""
    c = json.loads((MODELS / "qwen3-f32" / "config.json").read_text())
    w = {k: v.numpy() for k, v in load_file(MODELS / "qwen3-f32" / "model.safetensors").items()}
    writer = gguf.GGUFWriter(out / "model.gguf", "qwen3")
    shape_keys(writer, c, 32)
    byte_words(writer, c["vocab_size"], out)
    writer.add_float32("general.sampling.temp", 0.6)
    writer.add_int32("general.sampling.top_k", 20)
    read = {}
    for name, v in sorted(w.items()):
        kind = Q.F32 if v.ndim == 1 else Q.BF16 if v.shape[1] % 32 else Q.Q8_0
        read[name] = add_tensor(writer, gguf_name(name), v, kind)
    close(writer)
    write_expected(out, read)
    write_golden(out, "qwen3-f32", read, "adapters-b", 42)


# Where a block's f16 scales lie.
HALVES = {Q.Q2_K: (80, 82), Q.Q3_K: (108,), Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,), Q.IQ4_XS: (0,), Q.IQ4_NL: (0,)}


def gguf_k(out):
    """A qwen2 with every type of 256 values a block, and IQ4_NL. The library has no quantiser for these: blocks are
    random but for finite scales (seed_weights.py)."""
    writer, tensors = gguf.GGUFWriter(out / "model.gguf", "qwen2"), []
    shape_keys(writer, dict(num_hidden_layers=1, max_position_embeddings=64, hidden_size=256, intermediate_size=256,
                            num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-6,
                            rope_parameters={"rope_theta": 10000.0}), 32)
    plan = {"model.embed_tokens": (32, 256, Q.Q4_K), "self_attn.q_proj": (64, 256, Q.Q2_K),
            "self_attn.k_proj": (32, 256, Q.Q3_K), "self_attn.v_proj": (32, 256, Q.Q4_K),
            "self_attn.o_proj": (256, 64, Q.IQ4_NL), "mlp.gate_proj": (256, 256, Q.Q6_K),
            "mlp.up_proj": (256, 256, Q.IQ4_XS), "mlp.down_proj": (256, 256, Q.Q5_K)}
    names = {}
    for module, (rows, cols, kind) in plan.items():
        name = (module if module.startswith("model.") else "model.layers.0." + module) + ".weight"
        names[gguf_name(name)] = name
        values, size = gguf.GGML_QUANT_SIZES[kind]
        shape = (rows, cols // values * size)
        writer.add_tensor(gguf_name(name), np.zeros(shape, dtype=np.uint8), raw_dtype=kind)
        tensors.append(("U8", shape, ["blocks", size, 0.0005, *HALVES[kind]]))
    for module, n in (("q", 64), ("k", 32), ("v", 32)):
        writer.add_tensor(f"blk.0.attn_{module}.bias", np.zeros(n, dtype=np.float32))
        tensors.append(("F32", (n,), [0.5, 0.3]))
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(256, dtype=np.float32))
        tensors.append(("F32", (256,), [1, 0]))
    close(writer)
    path = out / "model.gguf"
    derive_gguf(path, None, path.read_bytes()[:gguf.GGUFReader(path).data_offset], tensors)
    write_expected(out, {names[t.name]: gguf.dequantize(t.data, t.tensor_type)
                         for t in gguf.GGUFReader(path).tensors if t.name in names})


MAKERS = {"gguf-llama": gguf_llama, "gguf-qwen3": gguf_qwen3, "gguf-k": gguf_k}


def main():
    out = HERE.parent / "fixtures" / "quant"
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    makers = dict(MAKERS, **make_quant_folders.MAKERS)
    for name in sys.argv[1:] or makers:
        shutil.rmtree(out / name, ignore_errors=True)
        (out / name).mkdir(parents=True)
        makers[name](out / name)
        print(name, sum(f.stat().st_size for f in (out / name).iterdir()), flush=True)


if __name__ == "__main__":
    main()
