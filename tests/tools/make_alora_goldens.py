#!/usr/bin/env python3
"""Makes tests/fixtures/alora: activated adapters, and what PEFT answers with them and with stacks.

Usage: make_alora_goldens.py     (needs torch, transformers, peft, safetensors)

The base is fixtures/models/llama-f32, the parts of stacks are fixtures/models/adapters-a; both must
be there already.  Weights are random (seed_weights.py).  golden.json: {"cases": [{"adapter": name or null, "stack": [[name, weight], ...] or
null, "prompt": ids, "prompt_logprobs": of each of its ids but the first, "tokens": what generate()
says greedily, "logprobs": of these}]}.  Activated ones are asked through PeftModel.generate(), stacks
are made by add_weighted_adapter(combination_type="cat").  Prompts whose greedy path comes near a tie
are thrown away.  few-gguf is few as llama.cpp has it.
"""

import json
import os
import shutil
import struct

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from make_goldens import ALL, N_VOCAB, load
from make_peft_goldens import write_gguf
from seed_weights import adopt, forget, indices, signs

N_NEW, MARGIN = 12, 0.01
ADAPTERS = {
    "all": dict(r=4, lora_alpha=8, target_modules=ALL + ["lm_head"],
                alora_invocation_tokens=[7, 11, 13]),
    "few": dict(r=16, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "v_proj", "up_proj"],
                alora_invocation_tokens=[9, 9]),
}
# adapter, length of the prompt, where its invocation stands
INVOKED = [("all", 24, []), ("all", 24, [0]), ("all", 40, [5, 30]), ("all", 37, [34]), ("all", 150, [100]),
           ("few", 30, []), ("few", 33, [31]), ("few", 70, [3, 4, 40]), ("few", 150, [64])]
# The first one has no use_rslora and layers_to_transform, which PEFT would give to the whole.
STACKS = [[("r4", 0.7), ("rslora", -0.5)], [("r16", 1.0), ("pattern", 0.6), ("mlp", 1.5)],
          [("r1", 2.0)], [("r64", 0.25), ("mlp", -1.0), ("r4", 0.5), ("r1", 1.0)]]


def make_adapter(base, where, wish):
    model = get_peft_model(load(base), LoraConfig(task_type="CAUSAL_LM", **wish))
    with torch.no_grad():
        for module in model.modules():
            if not hasattr(module, "lora_A") or "default" not in module.lora_A:
                continue
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            size = 0.3 / module.scaling["default"] / a.shape[0] ** 0.5
            a.copy_(signs(a.shape) / a.shape[1] ** 0.5)
            b.copy_(signs(b.shape) * size)
    model.save_pretrained(where)
    os.remove(os.path.join(where, "README.md"))
    adopt(where, base=base)
    path = os.path.join(where, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["base_model_name_or_path"] = "tiny"
    config["target_modules"] = sorted(config["target_modules"])
    with open(path, "w") as f:
        json.dump(config, f, indent=2, sort_keys=True)


def answer(model, prompt):
    """Ids and log-probabilities of a greedy answer, of the prompt, and the least margin."""
    ids = torch.tensor([prompt])
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=N_NEW,
                         min_new_tokens=N_NEW, do_sample=False, output_logits=True, pad_token_id=0,
                         return_dict_in_generate=True)
    tokens = out.sequences[0, len(prompt):].tolist()
    rows = [torch.log_softmax(row[0].double(), -1) for row in out.logits]
    least = min(float(r.topk(2).values[0] - r.topk(2).values[1]) for r in rows)
    if any(int(r.argmax()) != t for r, t in zip(rows, tokens)):  # it would have ended
        least = 0
    own = torch.log_softmax(model(input_ids=ids).logits[0].double(), -1)
    return {"prompt": prompt, "prompt_logprobs": [float(own[i, t]) for i, t in enumerate(prompt[1:])],
            "tokens": tokens, "logprobs": [float(r[t]) for r, t in zip(rows, tokens)]}, least


def make_case(model, n, gen, calls=(), invocation=()):
    while True:
        prompt = torch.randint(14, N_VOCAB, (n,), generator=gen).tolist()
        for at in calls:
            prompt[at:at + len(invocation)] = invocation
        case, least = answer(model, prompt)
        if least > MARGIN:
            return case


def make_stacked(base, adapters, parts):
    model = None
    for name, _ in parts:
        where = os.path.join(adapters, name)
        model = (PeftModel.from_pretrained(load(base), where, adapter_name=name) if model is None else model)
        if name not in model.peft_config:
            model.load_adapter(where, adapter_name=name)
    model.add_weighted_adapter([n for n, _ in parts], [w for _, w in parts], "stack", combination_type="cat")
    model.set_adapter("stack")
    return model.eval()


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    fixtures = os.path.join(here, "..", "fixtures")
    out = os.path.join(fixtures, "alora")
    base, adapters = os.path.join(fixtures, "models", "llama-f32"), os.path.join(fixtures, "models", "adapters-a")
    forget(out)
    shutil.rmtree(out, ignore_errors=True)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    gen = torch.Generator().manual_seed(20)
    cases, models = [], {}
    for name, wish in ADAPTERS.items():
        make_adapter(base, os.path.join(out, name), wish)
        models[name] = PeftModel.from_pretrained(load(base), os.path.join(out, name)).eval()
    bare = load(base)
    few, ids = ADAPTERS["few"], ADAPTERS["few"]["alora_invocation_tokens"]
    os.mkdir(os.path.join(out, "few-gguf"))
    write_gguf(os.path.join(out, "few-gguf", "adapter.gguf"),
               indices(os.path.join(out, "few", "adapter_model.safetensors")), "llama-f32", bare.config,
               few["lora_alpha"] * few["r"] ** 0.5,  # GGUF has no rsLoRA: the scale is alpha / rank
               [("adapter.alora.invocation_tokens", 9, struct.pack(f"<IQ{len(ids)}I", 4, len(ids), *ids))])
    for name, n, calls in INVOKED:
        case = make_case(models[name], n, gen, calls, ADAPTERS[name]["alora_invocation_tokens"])
        ids = torch.tensor([case["prompt"]])
        far = (bare(ids).logits - models[name](input_ids=ids).logits).abs()[0].max(-1).values
        first = max(calls) if calls else n
        assert (far[:first] == 0).all() and (first == n or far[first:].min() > 0.01), (name, calls, far)
        cases.append({"adapter": name, "stack": None, **case})
    for parts in STACKS:
        case = make_case(make_stacked(base, adapters, parts), 45, gen)
        cases.append({"adapter": None, "stack": parts, **case})
    with open(os.path.join(out, "golden.json"), "w") as f:
        json.dump({"cases": cases}, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
