#!/usr/bin/env python3
"""Makes the first inputs of the harnesses from the fixtures and the demo.

    make_seeds.py ROOT OUT        OUT/<noun>/<number>; what was there goes

The same every time.  Large files are cut down or left out: a fuzzer learns from small inputs."""
import io
import json
import pathlib
import shutil
import struct
import sys
import tarfile

ROOT, OUT = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
sys.path.insert(1, str(ROOT / "tests/tools"))
import sampling_list  # noqa: E402
FIXTURES = ROOT / "tests/fixtures"
SMALL = 16 << 10

counts = {}


def put(noun, data):
    """One seed; text or bytes."""
    n = counts[noun] = counts.get(noun, 0) + 1
    folder = OUT / noun
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{n:04}").write_bytes(data.encode() if isinstance(data, str) else data)


def lines(path):
    return [json.loads(x) for x in path.read_text(encoding="utf-8").splitlines()]


def small(paths):
    return [p for p in sorted(paths) if p.stat().st_size <= SMALL]


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# -------------------------------------------------------------------------------------- JSON and its users --
FUNCTION = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {
    "type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}}}
MESSAGES = [{"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "n"},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"q\":\"x\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "5"}]
COMMON = {"model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 9007199254740993,
          "stop": ["a", "b"], "stop_token_ids": [1, 2], "logit_bias": {"5": -1.5}, "presence_penalty": 1,
          "frequency_penalty": -1, "repetition_penalty": 1.1, "n": 2, "stream": True,
          "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "user": "u",
          "service_tier": "auto", "priority": 3, "cache_salt": "s", "ignore_eos": True, "min_tokens": 1,
          "skip_special_tokens": False, "include_stop_str_in_output": True, "truncate_prompt_tokens": 4,
          "return_token_ids": True, "store": False, "metadata": {"a": "b"}}
BODIES = [
    {"model": "m", "messages": MESSAGES},
    {"model": "m", "messages": MESSAGES[:2], "tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
    {"model": "m", "messages": MESSAGES[:1], "tools": [FUNCTION],
     "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {**COMMON, "messages": MESSAGES[:1], "max_completion_tokens": 5, "logprobs": True, "top_logprobs": 3,
     "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "object"}}},
     "chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": True},
    {"model": "m", "messages": MESSAGES[:1], "response_format": {"type": "json_object"}},
    {"model": "m", "messages": MESSAGES[:1], "guided_regex": "[a-z]+", "structured_outputs": {"choice": ["a", "b"]}},
]
TEXTS = [
    {**COMMON, "prompt": "hello", "max_tokens": 5, "logprobs": 3, "echo": True, "suffix": None, "best_of": 2},
    {"model": "m", "prompt": ["a", "b"], "guided_json": "{\"type\":\"object\"}"},
    {"model": "m", "prompt": [[1, 2], [3]], "add_special_tokens": False, "guided_choice": ["x"]},
    {"model": "m", "prompt": [1, 2, 3], "guided_grammar": "x"},
]


def bodies():
    for b in BODIES:
        put("body", "c" + compact(b))
    for b in TEXTS:
        put("body", "t" + compact(b))
    for parts in ([{"name": "a", "scale": 0.5}, {"name": "b@2"}], [{"name": 1}], [[]], [{"name": "a", "scale": "1", "x": 0}]):
        put("body", "t" + compact({"model": "base", "prompt": "x", "adapters": parts}))


def json_texts():
    for text in ("null", "true", "[1,-0.5e+3,\"\\ud83d\\ude00\\u00e9\\n\",{}]", " { \"a\" : [ ] , \"b\" : {\"a\":1} } ",
                 "{\"a\":1,\"\\u0061\":2}", "\"\\u0000\"", "[1e999]", "[" * 70 + "]" * 70, "\"\xed\xa0\x80\"", "1" * 130,
                 "9007199254740993", "{\"seed\":-9223372036854775808}"):
        put("json", text)
    for b in BODIES + TEXTS:
        put("json", compact(b))


def stats():
    server = {"id": "x", "version": "0.1.0", "at_us": 5, "uptime_us": 4}
    first = {"object": "stats", "cursor": "1-1", "reset": True, "more": False, "server": server, "totals": {"requests": 1},
             "rates": {}, "engine": {"pages": 4, "pages_used": 1}, "classes": [], "bounds_us": [1000, 2000],
             "tenants": [{"id": "1", "name": "a"}], "adapters": [{"id": "7", "name": "b"}], "requests": [{"id": "9"}],
             "events": [{"id": "3"}], "gone": {"requests": ["4"]}}
    put("stats", compact(first))
    put("stats", compact(first) + "\0" + compact({**first, "reset": False, "cursor": "1-2", "gone": {"tenants": ["1"]}}))
    proto = (ROOT / "gateway/admin_proto.h").read_text(encoding="utf-8")
    put("stats", compact({**first, "server": {**server, "note": proto[:200]}}))


def streams():
    for text in ("data: {\"a\":1}\n\ndata: [DONE]\n\n", "data:a\r\ndata: b\r\n\r\n: ping\n\nevent: x\nid: 3\ndata:\n\n",
                 "\n\n\ndata\n\ndatum: x\n\ndata: unfinished"):
        put("sse", text)


# ------------------------------------------------------------------------------------------- expressions --
def expressions():
    texts = ("model.layers.0.self_attn.q_proj", "model.layers.11.mlp.up_proj", "aaab", "a_1 \n", "")
    for p in (r".*\.(q_proj|v_proj)", r"(?:.*?(?:language|text).*?(?:self_attn|mlp))|(?:\bmodel\.layers\.[\d]{1,}\.mlp)",
              r"^(a|b)*?c{2,3}$", r"[^\W\d_]+\B.", r"(?P<n>x|)y{,2}", r"[]a-z\]-]+\x41\u00e9", r"((a*)*)*b", r"(?!.*mlp).*_proj"):
        for t in texts:
            put("pattern", p + "\0" + t)
            put("regex", p + "\0" + t)
    for case in lines(FIXTURES / "grammar/cases.jsonl"):
        if "regex" in case:
            for t in (case["yes"] + case["no"])[:6]:
                put("regex", case["regex"] + "\0" + t)
        elif "grammar" in case:
            for t in (case["yes"] + case["no"])[:2]:
                put("cfg", case["grammar"] + "\0" + t)
        elif "schema" in case:
            put("schema", compact(case["schema"]) + "\0" + (case["yes"] or [""])[0])


def templates():
    for case in lines(FIXTURES / "jinja/cases.jsonl")[1:]:
        put("jinja", case["t"])
    for p in small((FIXTURES / "chat").glob("*/chat_template.jinja")):
        put("jinja", p.read_bytes())
    for p in small((FIXTURES / "chat").glob("*/tokenizer_config.json")):
        text = json.loads(p.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(text, str):
            put("jinja", text)


# ------------------------------------------------------------------------------------------------ the wire --
def heads():
    put("head", "GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k\r\n\r\n")
    put("head", "POST /v1/chat/completions?a=%20b&c HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                "Content-Length: 12\r\nX-Forwarded-For: 1.2.3.4, [::1]:80, 10.0.0.1\r\n"
                "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n")
    put("head", "PATCH /v1/adapters/a%2e/versions/u0/files/x.json HTTP/1.0\r\nTransfer-Encoding: chunked\r\n"
                "content-encoding: identity\r\nExpect: 100-continue\r\n\r\n")
    put("head", "OPTIONS http://a:80/x?y HTTP/1.1\r\nhost:b\r\nx-api-key: 1\r\napi-key: 2\r\n\r\n")
    put("chunks", "4\r\nWiki\r\n6;x=\"y\"\r\npedia \r\n0\r\nT: v\r\n\r\n")
    put("chunks", "00a\r\n0123456789\r\n0\r\n\r\nGET / HTTP/1.1\r\n")
    part = "--b\r\nContent-Disposition: form-data; name=\"%s\"%s\r\n\r\n%s\r\n"
    form = part % ("purpose", "", "batch") + part % ("file", "; filename=\"a \\\"b.jsonl\"\r\nContent-Type: text/plain", "{}\n\r\n--c\r\r\n--bb")
    put("multipart", "multipart/form-data; boundary=b\0" + form + "--b--\r\n")
    put("multipart", "multipart/form-data; x=y; boundary=\"b\"\0before\r\n" + form + "--b \t--")
    put("multipart", "multipart/form-data; boundary=b\0--b\r\n\r\nno name\r\n--b--")


def frames():
    """Of HTTP/2, behind the preface; heads by the static table and literals."""
    def frame(kind, flags, stream, data=b""):
        return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data

    def literal(name, value):
        return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    get = b"\x82\x87\x04\x0a/v1/models\x41\x01a" + literal("x-api-key", "k")
    post = b"\x83\x87\x04\x14/v1/chat/completions\x41\x01a"
    put("h2", frame(1, 5, 1, get) + frame(4, 1, 0) + frame(1, 5, 3, get))
    put("h2", frame(1, 4, 1, post + literal("content-length", "4")) + frame(0, 0, 1, b"{") + frame(0, 1, 1, b"  }"))
    put("h2", frame(1, 4, 5, post + literal("content-type", "application/json")) + frame(0, 8, 5, b"\x02{}\0\0") + frame(0, 1, 5)
        + frame(6, 0, 0, b"12345678") + frame(8, 0, 0, b"\0\0\1\0") + frame(3, 0, 5, b"\0\0\0\x08"))
    put("h2", frame(1, 0, 1, get[:5]) + frame(9, 0, 1, get[5:9]) + frame(9, 4, 1, get[9:]) + frame(2, 0, 1, b"\0\0\0\0\1")
        + frame(4, 0, 0, b"\0\4\0\0\0\0") + frame(7, 0, 0, bytes(8)))
    put("h2", frame(1, 5, 1, get + literal("transfer-encoding", "chunked")) + frame(1, 5, 3, get + literal("X", "1")) + frame(1, 5, 5, get + literal("a", "b\r\nc: d")))
    put("h2", frame(1, 4, 1, post) + frame(0, 0, 1, b"{}") + frame(1, 5, 1, literal("trailer", "1")) + frame(1, 5, 3, b"\x40\x01a\x04aaaa" + get + b"\xbe" * 40))


# -------------------------------------------------------------------------------------------------- files --
def tar_of(files, fmt):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=fmt) as t:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def tars():
    files = [("adapter_config.json", b"{}"), ("adapter_model.safetensors", b"x" * 700), ("README.md", b"")]
    for fmt in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        put("tar", tar_of(files, fmt))
        put("tar", tar_of([("a/" + "d" * 120 + "/" + name, data) for name, data in files[:2]], fmt))
        put("tar", tar_of([("é" * 40, b"1")], fmt))


def safetensors(tensors):
    head, at = {}, 0
    for name, shape, dtype, size in tensors:
        n = size
        for d in shape:
            n *= d
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = compact(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(at)


def weights():
    def pair(layer, module, d_in, d_out):
        name = f"base_model.model.model.layers.{layer}.{module}"
        return [(f"{name}.lora_A.weight", [2, d_in], "F32", 4), (f"{name}.lora_B.weight", [d_out, 2], "F16", 2),
                (f"{name}.lora_magnitude_vector", [d_out], "BF16", 2)]
    whole = []
    for layer in (0, 1):
        whole += pair(layer, "self_attn.q_proj", 16, 16) + pair(layer, "mlp.down_proj", 24, 16)
    put("safetensors", safetensors(whole))
    put("safetensors", safetensors(whole[:1]))
    put("safetensors", safetensors([("base_model.model.lm_head.weight", [64, 16], "BF16", 2),
                                    ("base_model.model.model.embed_tokens.lora_embedding_A", [2, 64], "F32", 4),
                                    ("base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight", [2, 16], "F32", 4),
                                    ("base_model.model.model.norm.weight", [16], "F32", 4)]))
    put("safetensors", safetensors([("s", [], "I64", 8)]))
    for p in small((FIXTURES / "peft").glob("*/*/adapter_model.safetensors")):
        put("safetensors", p.read_bytes())


def varied(kind, size):
    """Values for a tensor: numbers near 0 where they are F32, else bytes of which each scale is small."""
    if kind == 0:
        return struct.pack(f"<{size // 4}f", *((i * 37 % 19 - 9) / 16 for i in range(size // 4)))
    return bytes((i * 41 + 7) % 251 & 0x3f for i in range(size))


def gguf(pairs, tensors, fill=lambda kind, size: bytes(size)):
    """Key-value pairs (name, type, value) and tensors (name, dims, type, bytes), GGUF version 3."""
    def text(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    for name, kind, value in pairs:
        out += text(name) + struct.pack("<I", kind)
        if kind == 9:  # an array: (type, items)
            out += struct.pack("<IQ", value[0], len(value[1]))
            kind, items = value
        else:
            items = [value]
        for item in items:
            out += text(item) if kind == 8 else struct.pack({4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q"}[kind], item)
    at, data = 0, b""
    for name, dims, kind, size in tensors:
        out += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        out += struct.pack("<IQ", kind, at)
        data += fill(kind, size) + bytes(-size % 32)
        at = len(data)
    return out + bytes(-len(out) % 32) + data


def ggufs():
    head = [("general.architecture", 8, "llama"), ("general.type", 8, "adapter"), ("adapter.type", 8, "lora"),
            ("adapter.lora.alpha", 6, 4.0)]
    q = [("blk.0.attn_q.weight.lora_a", [16, 2], 0, 128), ("blk.0.attn_q.weight.lora_b", [2, 16], 0, 128)]
    down = [("blk.1.ffn_down.weight.lora_a", [24, 2], 1, 96), ("blk.1.ffn_down.weight.lora_b", [2, 16], 1, 64)]
    put("gguf", gguf(head, q))
    put("gguf", gguf(head + [("x", 10, 5), ("y", 7, 1)], q + down))
    for p in small((FIXTURES / "peft").glob("*/*/*.gguf")):
        put("gguf", p.read_bytes())


def bases():
    """GGUFs to serve: one layer, both kinds of vocabulary."""
    words = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581ab", "<0x41>"] + [chr(99 + i) for i in range(23)]
    shape = [("block_count", 4, 1), ("context_length", 4, 64), ("embedding_length", 4, 32), ("feed_forward_length", 4, 32),
             ("attention.head_count", 4, 2), ("attention.head_count_kv", 4, 1), ("attention.layer_norm_rms_epsilon", 6, 1e-5),
             ("rope.freq_base", 6, 1e4), ("rope.dimension_count", 4, 16)]
    types = [2, 3, 3] + [1] * 5 + [6] + [1] * 23
    for arch, model, more in (("llama", "llama", [("tokenizer.ggml.scores", 9, (6, [-float(i) for i in range(32)]))]),
                              ("qwen2", "gpt2", [("tokenizer.ggml.pre", 8, "qwen2"),
                                                 ("tokenizer.ggml.merges", 9, (8, ["a b"]))])):
        keys = [("general.architecture", 8, arch)] + [(f"{arch}.{k}", t, v) for k, t, v in shape] + [
            ("tokenizer.ggml.model", 8, model), ("tokenizer.ggml.tokens", 9, (8, words)),
            ("tokenizer.ggml.token_type", 9, (5, types)), ("tokenizer.ggml.bos_token_id", 4, 1),
            ("tokenizer.ggml.eos_token_id", 4, 2), ("tokenizer.ggml.add_bos_token", 7, 1),
            ("tokenizer.chat_template", 8, "{{ messages }}")] + more
        tensors = [("token_embd.weight", [32, 32], 8, 1088), ("output_norm.weight", [32], 0, 128),
                   ("blk.0.attn_norm.weight", [32], 0, 128), ("blk.0.ffn_norm.weight", [32], 0, 128),
                   ("blk.0.attn_q.weight", [32, 32], 2, 576), ("blk.0.attn_k.weight", [32, 16], 3, 320),
                   ("blk.0.attn_v.weight", [32, 16], 6, 352), ("blk.0.attn_output.weight", [32, 32], 7, 768),
                   ("blk.0.ffn_gate.weight", [32, 32], 20, 576), ("blk.0.ffn_up.weight", [32, 32], 1, 2048),
                   ("blk.0.ffn_down.weight", [32, 32], 30, 2048)]
        biases = [(f"blk.0.attn_{p}.bias", [n], 0, 4 * n) for p, n in (("q", 32), ("k", 16), ("v", 16))]
        put("base", gguf(keys, tensors + (biases if arch == "qwen2" else [])))
    mixture_bases([("tokenizer.ggml.model", 8, "gpt2"), ("tokenizer.ggml.pre", 8, "gpt-4o"), ("tokenizer.ggml.tokens", 9, (8, words)),
                   ("tokenizer.ggml.token_type", 9, (5, types)), ("tokenizer.ggml.merges", 9, (8, ["a b"]))])


def mixture_bases(vocabulary):
    """GGUFs to serve with two experts: attention over latents, its keys and values by codes; and experts in MXFP4 with biases."""
    shape = [("block_count", 4, 1), ("context_length", 4, 64), ("embedding_length", 4, 32), ("feed_forward_length", 4, 32),
             ("attention.head_count", 4, 2), ("attention.layer_norm_rms_epsilon", 6, 1e-5), ("rope.freq_base", 6, 1e4),
             ("expert_count", 4, 2), ("expert_used_count", 4, 1), ("expert_feed_forward_length", 4, 32),
             ("rope.scaling.type", 8, "yarn"), ("rope.scaling.factor", 6, 4.0), ("rope.scaling.original_context_length", 4, 16)]
    latent = [("attention.head_count_kv", 4, 1), ("attention.kv_lora_rank", 4, 32), ("attention.key_length", 4, 48),
              ("attention.value_length", 4, 32), ("attention.key_length_mla", 4, 48), ("attention.value_length_mla", 4, 32),
              ("rope.dimension_count", 4, 16), ("expert_shared_count", 4, 1), ("leading_dense_block_count", 4, 0),
              ("expert_gating_func", 4, 2), ("expert_weights_scale", 6, 2.5), ("expert_weights_norm", 7, 1),
              ("rope.scaling.yarn_log_multiplier", 6, 0.1)]
    sinks = [("attention.head_count_kv", 4, 1), ("attention.key_length", 4, 16), ("attention.value_length", 4, 16),
             ("attention.sliding_window", 4, 8), ("attention.sliding_window_pattern", 4, 2)]
    both = [("token_embd.weight", [32, 32], 8, 1088), ("output_norm.weight", [32], 0, 128), ("blk.0.attn_norm.weight", [32], 0, 128),
            ("blk.0.ffn_gate_inp.weight", [32, 2], 0, 256)] + [(f"blk.0.ffn_{k}_exps.weight", [32, 32, 2], 39, 1088)
                                                               for k in ("gate", "up", "down")]
    served([("general.architecture", 8, "deepseek2")] + [(f"deepseek2.{k}", t, v) for k, t, v in shape + latent] + vocabulary,
           both + [("blk.0.ffn_norm.weight", [32], 0, 128), ("blk.0.attn_q.weight", [32, 96], 2, 1728),
                             ("blk.0.attn_kv_a_mqa.weight", [32, 48], 2, 864), ("blk.0.attn_kv_a_norm.weight", [32], 0, 128),
                             ("blk.0.attn_k_b.weight", [32, 32, 2], 2, 1152), ("blk.0.attn_v_b.weight", [32, 32, 2], 2, 1152),
                             ("blk.0.attn_output.weight", [64, 32], 2, 1152), ("blk.0.exp_probs_b.bias", [2], 0, 8)]
           + [(f"blk.0.ffn_{k}_shexp.weight", [32, 32], 39, 544) for k in ("gate", "up", "down")])
    served([("general.architecture", 8, "gpt-oss")] + [(f"gpt-oss.{k}", t, v) for k, t, v in shape + sinks] + vocabulary,
           both + [("output.weight", [32, 32], 8, 1088), ("blk.0.post_attention_norm.weight", [32], 0, 128),
                             ("blk.0.attn_q.weight", [32, 32], 2, 576), ("blk.0.attn_k.weight", [32, 16], 2, 288),
                             ("blk.0.attn_v.weight", [32, 16], 2, 288), ("blk.0.attn_output.weight", [32, 32], 2, 576),
                             ("blk.0.attn_sinks.weight", [2], 0, 8), ("blk.0.ffn_gate_inp.bias", [2], 0, 8)]
           + [(f"blk.0.ffn_{k}_exps.bias", [32, 2], 0, 256) for k in ("gate", "up", "down")])
    usual = [("attention.head_count_kv", 4, 1), ("attention.key_length", 4, 16), ("attention.value_length", 4, 16)]
    qwen = [x for x in shape if not x[0].startswith("rope.scaling")] + usual
    served([("general.architecture", 8, "qwen3moe")] + [(f"qwen3moe.{k}", t, v) for k, t, v in qwen] + vocabulary,
           both + [("output.weight", [32, 32], 8, 1088), ("blk.0.ffn_norm.weight", [32], 0, 128),
                   ("blk.0.attn_q.weight", [32, 32], 2, 576), ("blk.0.attn_k.weight", [32, 16], 2, 288),
                   ("blk.0.attn_v.weight", [32, 16], 2, 288), ("blk.0.attn_output.weight", [32, 32], 2, 576),
                   ("blk.0.attn_q_norm.weight", [16], 0, 64), ("blk.0.attn_k_norm.weight", [16], 0, 64)])


def served(keys, tensors):
    put("base", gguf(keys, tensors))
    put("experts", gguf(keys, tensors))
    put("experts", gguf(keys, tensors, varied))
    put("experts", gguf(keys, tensors, lambda kind, size: b"\xff" * size))  # no score is a number


QUANTS = [
    ({"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True, "checkpoint_format": "gptq"},
     "qweight I32 8 64\nqzeros I32 4 8\nscales F16 4 64\ng_idx INDEX 0 64\n"),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1},
     "qweight I32 16 64\nqzeros I32 1 16\nscales BF16 1 64\ng_idx INDEX 64 64\n"),
    ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
     "qweight I32 64 8\nqzeros I32 2 8\nscales F16 2 64\n"),
    ({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": {"weights": {
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 16}}}},
     "weight_packed I32 64 8\nweight_scale BF16 64 4\nweight_zero_point I32 8 4\nweight_shape I64 2\nweight_g_idx INDEX 0 64\n"),
    ({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"a": {"weights": {
        "num_bits": 8, "type": "int", "strategy": "channel"}}}},
     "weight I8 64 64\nweight_scale F32 64 1\nweight_zero_point I8 64 1\n"),
    ({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"a": {"weights": {
        "num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]}}}},
     "weight F8_E4M3 64 64\nweight_scale BF16 2 2\n"),
    ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [24, 48]},
     "weight F8_E4M3 64 64\nweight_scale_inv F32 3 2\n"),
    ({"quant_method": "fp8"}, "weight F8_E4M3 64 64\nweight_scale F32 1\n"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
     "weight U8 2048 1\nweight.absmax U8 64\nweight.quant_map F32 16\nweight.nested_absmax F32 1\n"
     "weight.nested_quant_map F32 256\nweight.quant_state.bitsandbytes__nf4 =" + compact(
         {"blocksize": 64, "quant_type": "nf4", "dtype": "bfloat16", "nested_blocksize": 256, "nested_offset": 0.5}) + "\n"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
     "weight U8 2048 1\nweight.absmax F32 64\nweight.quant_map F32 16\nweight.quant_state.bitsandbytes__nf4 ="
     + compact({"blocksize": 64, "dtype": "float16"}) + "\n"),
    ({"quant_method": "mxfp4"}, "model.layers.0.mlp.experts.gate_up_proj_blocks U8 2 64 2 16\n"
                                "model.layers.0.mlp.experts.gate_up_proj_scales U8 2 64 2\n"),
    (None, "weight F32 64 64\nmodel.layers.0.mlp.experts.gate_up_proj BF16 2 64 64\n"
           "model.layers.0.mlp.experts.bias F16 2 128\nmodel.layers.0.conv.conv.weight F32 64 1 4\n"),
]


def quantised():
    """One matrix of 64 x 64 in each form (fuzz_quant.c)."""
    bytes_of = bytes((i * 41 + 7) % 251 & 0x3f for i in range(48))
    for config, tensors in QUANTS:
        put("quant", b"0" + compact(config).encode() + b"\0" + tensors.encode() + b"\0" + bytes_of)


def families():
    for p in small((FIXTURES / "families/models").glob("*/config.json")) + small((FIXTURES / "models").glob("*-bf16/config.json")):
        more = p.parent / "generation_config.json"
        put("family", p.read_bytes() + (b"\0" + more.read_bytes() if more.exists() else b""))
    put("family", (FIXTURES / "models/llama-bf16/config.json").read_text() + "\0" + compact(
        {"eos_token_id": [2, 3], "bos_token_id": 1, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1,
         "repetition_penalty": 1.1, "max_new_tokens": 9, "suppress_tokens": [5], "bad_words_ids": [[6, 7]]}))


def connections():
    """Scripts of fuzz_connection.c: an action in three bits, its argument in five."""
    few, many, rest, wait, work, hang, switch, connect = range(8)

    def act(action, arg=0):
        return bytes([action | arg << 3])
    get, post = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"POST /x HTTP/1.1\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}"
    take, keep, end = act(work, 1), act(work, 0), act(work, 2)

    def say(text):
        return act(rest) + text + b"\0"
    put("connection", b"\x04" + say(get) + take + keep + say(post) + take + end)
    put("connection", b"\x04" + say(get + post + get) + take + keep + take + keep + take + end + act(hang))
    put("connection", b"\x04" + b"".join(act(few) + bytes([b]) for b in get) + take + keep + act(wait, 5))
    put("connection", b"\x04" + act(rest) + get[:9] + b"\0" + act(hang, 1) + act(wait, 3))
    put("connection", b"\x04" + say(b"GET / HTTP/1.1\r\nA: ") + act(many, 31) + b"a" + act(many, 31) + b"a" + act(many, 15) + b"b" + take + end)
    put("connection", b"\x00" + b"".join(act(connect) + say(get) for _ in range(5)) + take + take + act(wait, 2) + keep + end)
    put("connection", b"\x05" + act(connect) + say(get) + act(switch) + say(post) + act(wait) + take + act(hang) + keep)
    put("connection", b"\x06" + say(get) + act(wait, 1))
    hello = bytes([22, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3]) + bytes(32) + b"\0\0\x02\x13\x01\x01\0\0\x0d\0\x2b\0\x03\x02\x03\x04\0\x0a\0\x02\0\x1d"
    put("connection", b"\x06" + act(few, 4) + hello[:5] + b"".join(act(few, 29) + hello[i:i + 30] for i in range(5, len(hello), 30)))
    put("connection", b"\x06" + act(few, 4) + b"\x16\x03\x01\xff\xff" + act(wait, 3))


def tickets():
    """What fuzz_ticket.c reads; the structs of gateway/move/wire.h, version lrdmove3."""
    put("ticket", "t" + "0123456789abcdef" * 17 + "01234567")
    put("ticket", "tnew")
    put("ticket", b"s" + struct.pack("<Qq", 5, 1700000000000000) + bytes(range(32)) + b"chatcmpl-1".ljust(64, b"\0"))
    name = b"fp_1".ljust(32, b"\0") + b"standard".ljust(48, b"\0") + b"mine@7".ljust(112, b"\0") + bytes(32) + struct.pack("<QQQq", 4, 99, 1 << 63, 5)
    head = (b"lrdmove3" + name + struct.pack("<QQQQq", 77, 8, 9, 10, 5000) + struct.pack("<8i", 1, 3, 2, 10, 2, 1, 3, 1)
            + sampling_list.order(2.5, top_k=40, presence_penalty=-0.5, ignore_eos=1))
    put("ticket", b"r" + head + struct.pack("<7i", 5, 6, 7, 11, 12, 2, 3) + struct.pack("<if", 42, 1.5))
    token = struct.pack("<ifii", 9, -1.25, 4, 2) + struct.pack("<iiff", 9, 3, -1.25, -2)
    put("ticket", b"k" + token + struct.pack("<ifii", -2, 0, 0, -1) + token + struct.pack("<ifii", -1, 0, 1, -1))
    put("ticket", b"alrdask_1" + b"fp_1".ljust(32, b"\0") + struct.pack("<Qq", 1 << 63, 3))
    for state in ((0, 0), (512, 7)):
        put("ticket", b"alrdpage2" + b"fp_1".ljust(32, b"\0") + struct.pack("<QiiQq", 4096, 32, 3, *state))


def configs():
    for p in small((FIXTURES / "peft").glob("*/*/adapter_config.json")) + small((FIXTURES / "alora").glob("*/adapter_config.json")) + small((ROOT / "conf/demo").glob("**/adapter_config.json")):
        put("peft", p.read_bytes())
    conf = (ROOT / "conf/lorad.conf").read_text(encoding="utf-8")
    put("config", "\n".join(x for x in conf.splitlines() if x and x[0] != "#"))
    put("config", "[server]\nlisten = :1\n[adapters]\nmax_upload = 5MiB\n# x\n[classes]\nbatch = ttft:1s tpot:1ms weight:2\n")
    put("config", "[class.standard]\nttft = 1s\ntpot = 20ms\n[class.gold]\nttft = 2s\ntpot = 1ms\nweight = 0.5\noverload = reject\ntiers = vip, flex\n")
    put("config", "engine.max_rows=7")


TOKENIZER = {
    "version": "1.0", "added_tokens": [
        {"id": 10, "content": "<s>", "special": True, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False},
        {"id": 11, "content": "<x>", "special": False, "lstrip": True, "rstrip": True, "single_word": True, "normalized": True}],
    "normalizer": None, "decoder": {"type": "ByteLevel"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
    "model": {"type": "BPE", "dropout": None, "unk_token": "!", "continuing_subword_prefix": None, "end_of_word_suffix": None,
              "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
              "vocab": {"!": 0, "a": 1, "b": 2, "ab": 3, "Ġ": 4, "Ġa": 5, "c": 6, "abc": 7},
              "merges": ["a b", "Ġ a", "ab c"]}}


def tokenizers():
    put("tokenizer", compact(TOKENIZER))
    spiece = json.loads(json.dumps(TOKENIZER))
    spiece["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    spiece["pre_tokenizer"] = None
    spiece["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                          {"type": "ByteFallback"}, {"type": "Fuse"},
                                                          {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    spiece["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                                         {"Sequence": {"id": "A", "type_id": 0}}],
                                "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [10], "tokens": ["<s>"]}}}
    spiece["model"].update(unk_token="<unk>", byte_fallback=True, fuse_unk=True, merges=[["a", "b"], ["▁", "a"]],
                           vocab={"<unk>": 0, "a": 1, "b": 2, "ab": 3, "▁": 4, "▁a": 5, "<0x41>": 6, "<0xC3>": 7})
    put("tokenizer", compact(spiece))
    for name in ("xlmr", "uncased"):  # Unigram and WordPiece, with few pieces and a map of a few units
        t = json.loads((FIXTURES / "pieces" / name / "tokenizer.json").read_text(encoding="utf-8"))
        vocab = t["model"]["vocab"]
        t["model"]["vocab"] = vocab[:40] if name == "xlmr" else dict(sorted(vocab.items(), key=lambda x: x[1])[:40])
        if name == "xlmr":
            t["normalizer"] = {"type": "Sequence", "normalizers": [
                {"type": "NFKC"}, {"type": "Precompiled", "precompiled_charsmap": "MAAAA" + "gABA" * 16 + "AGFhAAAAAAAA"}]}
        put("tokenizer", compact(t))
    for name in sorted(p.name for p in (FIXTURES / "tokenizers").iterdir() if p.is_dir()):
        t = json.loads((FIXTURES / "tokenizers" / name / "tokenizer.json").read_text(encoding="utf-8"))
        vocab = dict(sorted(t["model"]["vocab"].items(), key=lambda x: x[1])[:300])
        t["model"]["vocab"] = vocab
        t["model"]["merges"] = [m for m in t["model"]["merges"] if "".join(m if isinstance(m, list) else m.split(" ")) in vocab][:40]
        t["added_tokens"] = t.get("added_tokens", [])[:6]
        put("tokenizer", compact(t))
    for line in (FIXTURES / "splits/cases.jsonl").read_text(encoding="utf-8").splitlines():
        steps = json.loads(line)["steps"]
        put("tokenizer", compact({**TOKENIZER, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}))
        for pattern in (x["pattern"]["Regex"] for x in steps if "Regex" in x.get("pattern", {})):
            put("split", pattern + "\0Don't  stop\r\n  日本 E\u0301 x² 12345 I'LL\n ")
    for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json"):
        for p in small((FIXTURES / "peft").glob("*/*/" + name)):
            put("words", "jca"[("tokenizer.json", "tokenizer_config.json", "added_tokens.json").index(name)].encode() + p.read_bytes())
    put("words", "j" + compact({"added_tokens": [{"id": 64, "content": "<call>", "special": True}, {"id": 65, "content": "x"}]}))
    put("words", "c" + compact({"eos_token": "<call>", "added_tokens_decoder": {"64": {"content": "<call>", "special": True}}}))
    put("words", "a" + compact({"<call>": 64, "<y>": 66}))
    put("words", "w" + compact({"n_vocab": 66, "eos": 65, "tokens": [[64, "<call>", "slrw"], [65, "b", ""]]}))
    put("words", "w" + compact({"n_vocab": 64, "eos": -1, "tokens": [], "invocation": [5, 6, 7]}))


def uploads():
    sha = "ab" * 32
    put("manifest", compact({"tenant": "5", "name": "a", "description": "d", "activate": True,
                             "adapter_config.json": {"bytes": 4, "sha256": sha, "skipped": False},
                             "adapter_model.safetensors": {"bytes": 400, "sha256": sha, "skipped": True},
                             "tokenizer.json": {"bytes": 4, "sha256": sha, "skipped": False}}))


def meters():
    """Header, then slots: state, pad, sum, counts, owner, and the end of a row (storage/meter_file.c)."""
    def slot(state, request, size):
        owner = struct.pack("<QQQQqi", request, 2, 3, 4, 1700000000000000, 0) + b"model\0"
        out = struct.pack("<IIQ", state, 0, 0).ljust(64, b"\0") + struct.pack("<IIII", 5, 1, 7, 12).ljust(64, b"\0") + owner
        end = struct.pack("<IIIi16sqqqqQ", 5, 1, 7, 200, b"stop", 1, 2, 3, 1700000001000000, 0)
        return (out.ljust(size - 128 if size == 576 else size, b"\0") + (bytes(8) + end if size == 576 else b"")).ljust(size, b"\0")[:size]
    for magic, size in ((b"LRDMETR2", 576), (b"LRDMETR1", 448)):
        head = magic + struct.pack("<II", size, 2)
        put("meter", head + slot(0x5553, 9, size) + slot(0x4E44, 10, size))
        put("meter", head + slot(0, 0, size) + slot(0x5553, 11, size))


def calls():
    call = compact({"name": "f", "arguments": {"q": "a\"}", "n": [1, {}]}})
    put("calls", "h" + f"text <tool_call>\n{call}\n</tool_call> and <tool_call>{call}</tool_call>")
    put("calls", "m" + f"[TOOL_CALLS] [{call}, {call}]")
    put("calls", "l" + call.replace("arguments", "parameters") + "; " + call)
    put("calls", "o" + call)
    put("calls", "p" + f"<|tool_call|>[{call},{call}]<|/tool_call|>")
    put("calls", "c" + f"<|START_ACTION|>[{call.replace('name', 'tool_name')}]<|END_ACTION|>")
    put("calls", "x<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>")
    put("calls", "d<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>")


def thoughts():
    put("thinking", "1m<think>\none </thin\n</think>\n\ntwo")
    put("thinking", "1oone</think> two")
    put("thinking", "2m[THINK]a[/THINK]b")
    put("thinking", "5mHere is my thought process: a Here is my response: b")
    put("thinking", "6m<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b")


def doors():
    tool = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    blocks = [{"type": "thinking", "thinking": "t", "signature": ""}, {"type": "text", "text": "x"},
              {"type": "tool_use", "id": "i", "name": "f", "input": {"a": 1}}]
    result = [{"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text", "text": "1"}]}, {"type": "text", "text": "y"}]
    body = {"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "s"}], "tools": [tool], "tool_choice": {"type": "any"},
            "thinking": {"type": "enabled", "budget_tokens": 4}, "stop_sequences": ["."], "messages": [
                {"role": "user", "content": "u"}, {"role": "assistant", "content": blocks}, {"role": "user", "content": result}]}
    put("doors", "m" + compact(body))
    put("doors", "c" + compact({"model": "m", "messages": body["messages"][:2]}))
    items = [{"role": "user", "content": [{"type": "input_text", "text": "u"}]},
             {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
             {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
             {"type": "function_call", "call_id": "i", "name": "f", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "i", "output": "1"}]
    put("doors", "r" + compact({"model": "m", "input": items, "instructions": "s", "truncation": "auto", "reasoning": {"effort": "low"},
                                "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}, "metadata": {"a": "b"}}))
    put("doors", "r" + compact({"model": "m", "input": "u", "tools": [{"type": "function", "name": "f", "parameters": {}}],
                                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}}))


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for fn in (bodies, json_texts, stats, streams, expressions, templates, heads, frames, connections, tickets, tars, weights, ggufs,
               bases, quantised, families, configs, tokenizers, uploads, meters, calls, thoughts, doors):
        fn()
    print(", ".join(f"{k} {v}" for k, v in sorted(counts.items())))


if __name__ == "__main__":
    main()
