"""make_quant_folders.py -- the Hugging Face folders of make_quant_goldens.py.

compressed-tensors and bitsandbytes write and read theirs.  GPTQ's and AWQ's own packers need a GPU: the forms are written
here, and read by the formulas of transformers' and AutoAWQ's dequantisers.
"""
import json
import pathlib
import random

import numpy as np
import torch
from safetensors.torch import load_file, save_file

MODELS = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "models"
LINEARS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
           "mlp.up_proj", "mlp.down_proj"]


def base(whole):
    """llama-f32's configuration and weights in BF16; not whole: one layer, 32 words."""
    c = json.loads((MODELS / "llama-f32" / "config.json").read_text())
    w = {k: v.to(torch.bfloat16) for k, v in load_file(MODELS / "llama-f32" / "model.safetensors").items()}
    if not whole:
        c.update(num_hidden_layers=1, vocab_size=32, dtype="bfloat16")
        w = {k: v[:32].contiguous() if "embed" in k or "lm_head" in k else v for k, v in w.items()
             if not k.startswith("model.layers.1.")}
    return c, w


def save(out, c, tensors, quantization):
    from make_quant_goldens import write_expected, write_golden
    c["quantization_config"] = quantization
    (out / "config.json").write_text(json.dumps(c, indent=1))
    stored, read, golden = tensors
    save_file({k: v.contiguous() for k, v in stored.items()}, out / "model.safetensors", metadata={"format": "pt"})
    write_expected(out, {k: v.float().numpy() for k, v in read.items()})
    if golden:
        write_golden(out, "llama-f32", {k: v.float().numpy() for k, v in read.items()}, "adapters-a", golden)


def each_linear(w, quantise):
    """Every linear layer but lm_head by quantise(module, weight) -> ({suffix: tensor}, dequantised); the others stay."""
    stored, read = {}, {}
    for name, v in w.items():
        module = name.rsplit(".", 1)[0]
        if any(module.endswith(m) for m in LINEARS):
            parts, read[name] = quantise(module, v.float())
            stored.update({f"{module}.{suffix}": t for suffix, t in parts.items()})
        else:
            stored[name] = read[name] = v
    return stored, read


# ---- GPTQ, AWQ ---------------------------------------------------------------------------------------------------

def pack(codes, bits):
    """[n * 32 / bits][m] to int32 [n][m], the first in the lowest bits."""
    per = 32 // bits
    c = codes.numpy().astype(np.uint32).reshape(-1, per, codes.shape[1])
    return torch.from_numpy(np.bitwise_or.reduce(c << (np.arange(per, dtype=np.uint32) * bits)[None, :, None], axis=1)
                            .view(np.int32).copy())


def grid(groups, bits, symmetric):
    """Scale (F16) and zero of each group: groups [G][size][N]."""
    top = 2 ** bits - 1
    low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
    if symmetric:
        scale = torch.maximum(-low, high) * 2 / top
        return scale.half(), torch.full_like(scale, 2 ** (bits - 1)).int()
    scale = ((high - low) / top).half()
    return scale, (-low / scale.float()).round().clamp(1, top).int()


def gptq(bits, size, symmetric, order, version):
    gen = torch.Generator().manual_seed(5)

    def quantise(module, w):
        k, t = w.shape[1], w.t().contiguous()  # [K][N]
        group = k if size < 0 else size
        index = torch.arange(k) // group
        if order:
            index = index[torch.randperm(k, generator=gen)]
        sort = torch.argsort(index, stable=True)
        scale, zero = grid(t[sort].reshape(-1, group, t.shape[1]), bits, symmetric)
        q = (t / scale.float()[index] + zero[index]).round().clamp(0, 2 ** bits - 1).int()
        read = (scale.float()[index] * (q - zero[index]).float()).t()
        parts = {"qweight": pack(q, bits), "scales": scale, "g_idx": index.int(),
                 "qzeros": pack((zero - int(version == "gptq")).t().contiguous(), bits).t().contiguous()}
        return parts, read
    return quantise


def make_gptq(bits, size, symmetric, order, version, whole=False):
    def make(out):
        from make_quant_goldens import byte_tokenizer
        c, w = base(whole)
        if whole:  # it is served, too
            byte_tokenizer(c["vocab_size"]).save(str(out / "tokenizer.json"), pretty=False)
        save(out, c, (*each_linear(w, gptq(bits, size, symmetric, order, version)), 43 if whole else 0),
             {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": order, "sym": symmetric,
              "checkpoint_format": version})
    return make


def awq(module, w):
    where = [0, 2, 4, 6, 1, 3, 5, 7]

    def words(v):  # along N, in AWQ's order
        return pack(v.reshape(v.shape[0], -1, 8)[:, :, where].reshape(v.shape[0], -1).t().contiguous(), 4).t().contiguous()

    t = w.t().contiguous()
    scale, zero = grid(t.reshape(-1, 16, t.shape[1]), 4, False)
    index = torch.arange(t.shape[0]) // 16
    q = (t / scale.float()[index] + zero[index]).round().clamp(0, 15).int()
    parts = {"qweight": words(q), "qzeros": words(zero), "scales": scale}
    return parts, (scale.float()[index] * (q - zero[index]).float()).t()


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}


def make_awq(out):
    c, w = base(False)
    save(out, c, (*each_linear(w, awq), 0), AWQ)


# ---- a task over AWQ ----------------------------------------------------------------------------------------------

YES, NO, END = 89, 78, 63  # tokens


def text(rng):
    """Letters, as tokens; whether more of them are of the first eight than of the last eight."""
    while True:
        letters = [rng.randrange(97, 123) for _ in range(rng.randrange(12, 25))]
        early, late = sum(t < 105 for t in letters), sum(t > 114 for t in letters)
        if early != late:
            return letters + [END], early > late


def together(texts):
    """Tokens, with something after the shorter ones; where each ends; what is to be said then."""
    most = max(len(t) for t, _ in texts)
    return (torch.tensor([t + [0] * (most - len(t)) for t, _ in texts]), torch.tensor([len(t) - 1 for t, _ in texts]),
            torch.tensor([YES if yes else NO for _, yes in texts]))


def said(model, tokens, last):
    return model(input_ids=tokens).logits[torch.arange(len(last)), last]


def awq_task(out):
    """A Llama, a LoRA on all its linear layers that learnt the task beside BF16 weights, and the base in AWQ."""
    from make_quant_goldens import byte_tokenizer
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig
    c, w = base(True)
    byte_tokenizer(c["vocab_size"]).save(str(out / "tokenizer.json"), pretty=False)
    stored, read = each_linear(w, awq)
    save(out, c, (stored, read, 0), AWQ)
    (out / "expected.txt").unlink()  # the folder awq has the matrices
    model = AutoModelForCausalLM.from_config(LlamaConfig(**c)).float()
    model.load_state_dict({k: v.float() for k, v in w.items()})
    targets = [m.rsplit(".", 1)[1] for m in LINEARS]
    tuned = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=targets, base_model_name_or_path="tiny"))
    rng, learns = random.Random(3), [p for p in tuned.parameters() if p.requires_grad]
    steps = torch.optim.AdamW(learns, lr=3e-3, weight_decay=0)
    with torch.enable_grad():
        for _ in range(600):
            tokens, last, answer = together([text(rng) for _ in range(64)])
            steps.zero_grad()
            torch.nn.functional.cross_entropy(said(tuned, tokens, last), answer).backward()
            steps.step()
    for p in learns:
        p.copy_(p.bfloat16().float())
    asked = [text(rng) for _ in range(512)]
    tokens, last, answer = together(asked)
    share = {"bf16": (said(tuned, tokens, last).argmax(1) == answer).float().mean().item()}
    for name, p in tuned.named_parameters():
        if name.endswith(".base_layer.weight"):
            p.copy_(read[name.removeprefix("base_model.model.").replace(".base_layer", "")].float())
    share["awq"] = (said(tuned, tokens, last).argmax(1) == answer).float().mean().item()
    tuned.bfloat16().save_pretrained(out / "adapter")
    (out / "adapter" / "README.md").unlink(missing_ok=True)
    task = {"yes": YES, "no": NO, "accuracy": share, "texts": ["".join(map(chr, t)) for t, _ in asked],
            "answers": "".join("yn"[not yes] for _, yes in asked)}
    (out / "task.json").write_text(json.dumps(task, indent=1))


# ---- FP8 as DeepSeek saves it -------------------------------------------------------------------------------------

def blocks(out):
    def quantise(module, w):
        rows, cols = ((n + 31) // 32 for n in w.shape)
        scale = torch.zeros(rows, cols)
        q = torch.zeros(w.shape, dtype=torch.float8_e4m3fn)
        read = torch.zeros(w.shape, dtype=torch.bfloat16)
        for i in range(rows):
            for k in range(cols):
                at = (slice(32 * i, 32 * i + 32), slice(32 * k, 32 * k + 32))
                scale[i, k] = w[at].abs().max() / 448
                q[at] = (w[at] / scale[i, k]).to(torch.float8_e4m3fn)
                read[at] = (q[at].float() * scale[i, k]).to(torch.bfloat16)
        return {"weight": q, "weight_scale_inv": scale}, read

    c, w = base(False)
    save(out, c, (*each_linear(w, quantise), 0),
         {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [32, 32]})


# ---- compressed-tensors -------------------------------------------------------------------------------------------

def compressed(weights, activations=None, fmt=None):
    def make(out):
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
        from compressed_tensors.quantization.utils import calculate_qparams
        from transformers import AutoModelForCausalLM, LlamaConfig
        c, w = base(False)
        model = AutoModelForCausalLM.from_config(LlamaConfig(**c)).to(torch.bfloat16)
        model.load_state_dict(w)
        spec = {"quant_method": "compressed-tensors", "format": fmt, "ignore": ["lm_head"],
                "quantization_status": "initialized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}}}
        config = QuantizationConfig(**spec)
        apply_quantization_config(model, config)
        read = dict(w)
        for module, layer in model.named_modules():
            args = getattr(getattr(layer, "quantization_scheme", None), "weights", None)
            if args is None:
                continue
            v, size = layer.weight.data.float(), args.group_size
            if args.strategy == "group":
                cut = v.reshape(v.shape[0], -1, size)
                low, high = cut.amin(2), cut.amax(2)
            elif args.strategy == "channel":
                low, high = v.amin(1, keepdim=True), v.amax(1, keepdim=True)
            elif args.strategy == "block":
                b, (n, k) = args.block_structure[0], v.shape
                full = torch.nn.functional.pad(v, (0, -k % b, 0, -n % b))
                cut = full.reshape(full.shape[0] // b, b, -1, b)
                low, high = cut.amin((1, 3)), cut.amax((1, 3))
            else:
                low, high = v.min().reshape(1), v.max().reshape(1)
            scale, zero = calculate_qparams(low, high, args)
            layer.weight_scale.data = scale.to(torch.bfloat16).reshape(layer.weight_scale.shape)
            if hasattr(layer, "weight_zero_point"):
                layer.weight_zero_point.data = zero.to(layer.weight_zero_point.dtype).reshape(layer.weight_zero_point.shape)
        for layer in model.modules():
            if hasattr(layer, "quantization_status"):
                layer.quantization_status = "frozen"
        compressor = ModelCompressor(quantization_config=config)
        compressor.compress_model(model)
        stored = {k: v.detach().clone() for k, v in model.state_dict().items()}
        for layer in model.modules():  # exact: the library rounds to the scales' type
            if hasattr(layer, "weight_scale") and weights["type"] == "int":
                layer.weight_scale.data = layer.weight_scale.data.float()
        compressor.decompress_model(model)
        for name, v in model.state_dict().items():
            if name in read:
                read[name] = v
        config_out = json.loads(json.dumps(dict(spec, quantization_status="compressed")))
        save(out, c, (stored, read, 0), config_out)
    return make


def bnb(out):
    import bitsandbytes.functional as F

    def quantise(module, w):
        q, state = F.quantize_4bit(w.to(torch.bfloat16), blocksize=64, compress_statistics=True, quant_type="nf4")
        parts = {"weight": q, **{"weight." + k: v for k, v in state.as_dict(packed=True).items()}}
        return parts, F.dequantize_4bit(q, state).to(torch.bfloat16)

    c, w = base(False)
    save(out, c, (*each_linear(w, quantise), 0),
         {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
          "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"})


def ints(bits, strategy, symmetric=True, **more):
    return dict(num_bits=bits, type="int", strategy=strategy, symmetric=symmetric, dynamic=False, **more)


def floats(strategy, **more):
    return dict(num_bits=8, type="float", strategy=strategy, symmetric=True, dynamic=False, **more)


DYNAMIC8 = dict(num_bits=8, type="int", strategy="token", symmetric=True, dynamic=True)
MAKERS = {
    "gptq": make_gptq(4, 16, False, True, "gptq", whole=True),
    "gptq-sym": make_gptq(4, 16, True, False, "gptq"),
    "gptq-8": make_gptq(8, -1, False, False, "gptq_v2"),
    "awq": make_awq,
    "awq-task": awq_task,
    "fp8-blocks": blocks,
    "ct-w4": compressed(ints(4, "group", group_size=16), fmt="pack-quantized"),
    "ct-w4-asym": compressed(ints(4, "group", False, group_size=16), fmt="pack-quantized"),
    "ct-w8": compressed(ints(8, "channel"), fmt="pack-quantized"),
    "ct-w8a8": compressed(ints(8, "channel"), DYNAMIC8, fmt="int-quantized"),
    "ct-fp8": compressed(floats("channel"), fmt="float-quantized"),
    "ct-fp8-block": compressed(floats("block", block_structure=[32, 32]), fmt="float-quantized"),
    "ct-fp8-tensor": compressed(floats("tensor"), fmt="float-quantized"),
    "bnb-nf4": bnb,
}
