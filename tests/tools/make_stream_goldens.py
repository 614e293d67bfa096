#!/usr/bin/env python3
"""Makes tests/fixtures/streams: what StreamingLLM (Xiao et al. 2023) answers on the models of tests/fixtures/models.

    make_stream_goldens.py [output directory]        (needs numpy)

Written after the paper and nothing else: the cache keeps keys as they are before their rotation, drops what lies between the
first tokens and the last ones, and turns each key by its place in the cache, for each token anew.  NAME.bin: int32 tokens,
sinks, window, then the tokens, then for each but the last: the log-probability of the next one and the likeliest id's
(float32).  The texts are longer than the models' max_position_embeddings.
"""
import json
import pathlib
import struct
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASES = [("llama", "llama-f32", 4, 24, 600), ("qwen3", "qwen3-f32", 40, 100, 600), ("one", "llama-f32", 1, 1, 80)]


def tensors(path):
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    assert all(t["dtype"] == "F32" for t in head.values())
    return {name: np.frombuffer(raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]], "<f4")
            .reshape(t["shape"]).astype(np.float64) for name, t in head.items()}


def frequencies(c, dim):
    r = c.get("rope_parameters") or c.get("rope_scaling") or {}
    theta = r.get("rope_theta", c.get("rope_theta", 10000.0))
    f = theta ** -(np.arange(0, dim, 2) / dim)
    if r.get("rope_type", "default") == "default":
        return f
    assert r["rope_type"] == "llama3"
    old, low, high = r["original_max_position_embeddings"], r["low_freq_factor"], r["high_freq_factor"]
    turns = old * f / (2 * np.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - smooth) * f / r["factor"] + smooth * f


def norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def turned(x, at, f):
    """x [places][heads][dim], each by its place."""
    a = np.asarray(at)[:, None, None] * f
    half = x.shape[-1] // 2
    u, v = x[..., :half], x[..., half:]
    return np.concatenate([u * np.cos(a) - v * np.sin(a), v * np.cos(a) + u * np.sin(a)], -1)


def stream(c, w, tokens, sinks, window):
    """Log-probabilities behind each token."""
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    dim, eps = c.get("head_dim") or c["hidden_size"] // heads, c["rms_norm_eps"]
    f = frequencies(c, dim)
    cache = [([], []) for _ in range(c["num_hidden_layers"])]
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    out = []
    for token in tokens:
        x = w["model.embed_tokens.weight"][token]
        for i, (keys, values) in enumerate(cache):
            p = f"model.layers.{i}."
            h = norm(x, w[p + "input_layernorm.weight"], eps)
            q, k, v = ((w[p + f"self_attn.{n}_proj.weight"] @ h).reshape(-1, dim) for n in "qkv")
            if p + "self_attn.q_norm.weight" in w:
                q, k = norm(q, w[p + "self_attn.q_norm.weight"], eps), norm(k, w[p + "self_attn.k_norm.weight"], eps)
            keys.append(k)
            values.append(v)
            if len(keys) > sinks + window:
                del keys[sinks], values[sinks]
            n = len(keys)
            k = np.repeat(turned(np.stack(keys), range(n), f), heads // kv_heads, 1)
            v = np.repeat(np.stack(values), heads // kv_heads, 1)
            score = np.einsum("hd,nhd->hn", turned(q[None], [n - 1], f)[0], k) / np.sqrt(dim)
            share = np.exp(score - score.max(-1, keepdims=True))
            share /= share.sum(-1, keepdims=True)
            x = x + w[p + "self_attn.o_proj.weight"] @ np.einsum("hn,nhd->hd", share, v).reshape(-1)
            h = norm(x, w[p + "post_attention_layernorm.weight"], eps)
            gate = w[p + "mlp.gate_proj.weight"] @ h
            x = x + w[p + "mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * (w[p + "mlp.up_proj.weight"] @ h))
        z = head @ norm(x, w["model.norm.weight"], eps)
        z -= z.max()
        out.append(z - np.log(np.exp(z).sum()))
    return out


def main():
    to = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/fixtures/streams"
    to.mkdir(parents=True, exist_ok=True)
    for name, model, sinks, window, n in CASES:
        folder = ROOT / "tests/fixtures/models" / model
        c = json.loads((folder / "config.json").read_text())
        w = tensors(folder / "model.safetensors")
        tokens = np.random.default_rng(20261125).integers(3, c["vocab_size"], n)
        rows = stream(c, w, tokens, sinks, window)
        seen = [(r[t], r.max()) for r, t in zip(rows, tokens[1:])]
        (to / f"{name}.bin").write_bytes(struct.pack("<3i", n, sinks, window) + tokens.astype("<i4").tobytes() +
                                         np.array(seen, "<f4").tobytes())


main()
