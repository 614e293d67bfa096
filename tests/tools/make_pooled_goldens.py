#!/usr/bin/env python3
"""Makes tests/fixtures/pooled: what transformers and PEFT make of prompts as vectors and classes.

Usage: make_pooled_goldens.py     (needs torch, transformers, peft, safetensors)

    golden.json        texts, and for each model, adapter and way of pooling their vectors, logits
    mean, late, top    tiny random models as sentence-transformers keeps them: a bare body, with
                       modules.json and 1_Pooling
    classes            a tiny random Qwen2ForSequenceClassification of three classes
    on-mean            an adapter of PEFT's FEATURE_EXTRACTION on `mean`
    three, one         adapters of PEFT's SEQ_CLS on conf/demo/base, with heads of their own

Weights are random (seed_weights.py).  Tokens are those of the demo's tokenizer; the test copies it beside the models.  The reference
computes in F32.
"""
import json
import pathlib
import shutil

import peft
import torch
import transformers as tf

from seed_weights import adopt, forget, sort_modules

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE, ADAPTERS = ROOT / "conf/demo/base", ROOT / "conf/demo/adapters"
OUT = ROOT / "tests/fixtures/pooled"
TEXTS = ["What is 7 plus 5?", "Hello", "The red lamp stands on the old table near the window.",
         "Which animals live on the farm? Tell me about all of them, please. " * 5]
SHAPE = dict(vocab_size=2048, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=48, max_position_embeddings=256,
             bos_token_id=0, eos_token_id=5, pad_token_id=5, tie_word_embeddings=True)
MODES = {"mean": "pooling_mode_mean_tokens", "late": "pooling_mode_weightedmean_tokens",
         "top": "pooling_mode_max_tokens"}


def states(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)


def pool(hidden, how):
    """hidden: [n][dim], behind the last norm."""
    n = hidden.shape[0]
    weight = torch.arange(1, n + 1, dtype=torch.float64)[:, None]
    h = hidden.double()
    return {"last": h[-1], "cls": h[0], "mean": h.mean(0), "top": h.max(0).values,
            "mean_sqrt_len": h.sum(0) / n ** 0.5, "late": (h * weight).sum(0) / weight.sum()}[how]


def vectors(model, ids, how, unit=True):
    out = []
    for one in ids:
        v = pool(states(model, one).hidden_states[-1][0], how)
        out.append([round(x, 7) for x in (v / v.norm() if unit else v).tolist()])
    return out


def logits(model, ids):
    return [[round(x, 7) for x in states(model, one).logits[0].tolist()] for one in ids]


def write(where, name, value):
    (where / name).parent.mkdir(parents=True, exist_ok=True)
    (where / name).write_text(json.dumps(value, indent=1) + "\n")


def stir(model, scale=0.3):
    """Random weights that differ more than a new model's."""
    for p in model.parameters():
        p.data = (p.data + torch.randn_like(p) * scale * (0.3 if p.dim() > 1 else 0.1)).half().float()


def sentence_folder(name, unit):
    torch.manual_seed(len(name))
    model = tf.Qwen3Model(tf.Qwen3Config(head_dim=16, **SHAPE)).eval()
    stir(model)
    where = OUT / name
    model.half().save_pretrained(where)
    adopt(where)
    kind = "sentence_transformers.models."
    modules = [{"idx": 0, "name": "0", "path": "", "type": kind + "Transformer"},
               {"idx": 1, "name": "1", "path": "1_Pooling", "type": kind + "Pooling"}]
    if unit:
        modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": kind + "Normalize"})
    write(where, "modules.json", modules)
    write(where, "1_Pooling/config.json",
          {"word_embedding_dimension": 32, "pooling_mode_cls_token": False,
           "pooling_mode_mean_tokens": False, MODES[name]: True, "include_prompt": True})
    write(where, "sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": False})
    return tf.Qwen3Model.from_pretrained(where, dtype=torch.float32).eval()


def stirred_lora(model, task, **more):
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], task_type=task,
                             **more)
    wrapped = peft.get_peft_model(model, config).eval()
    for n, p in wrapped.named_parameters():
        if "lora_B" in n:
            p.data = torch.randn_like(p) * 0.2
    return wrapped


def save_adapter(wrapped, name):
    """Gives the adapter as PEFT reads it."""
    wrapped.peft_config["default"].base_model_name_or_path = "demo"
    wrapped.save_pretrained(OUT / name)
    (OUT / name / "README.md").unlink(missing_ok=True)
    sort_modules(OUT / name)
    adopt(OUT / name)
    return peft.PeftModel.from_pretrained(wrapped.unload(), OUT / name).eval()


def demo(golden, ids):
    base = tf.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32).eval()
    for how in ("last", "mean"):
        golden["vectors"][f"base {how}"] = vectors(base, ids, how)
    for name in ("pirate", "formal"):
        model = peft.PeftModel.from_pretrained(
            tf.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32), ADAPTERS / name)
        for how in ("last", "mean"):
            golden["vectors"][f"{name} {how}"] = vectors(model.eval(), ids, how)
    for name, n in (("three", 3), ("one", 1)):
        torch.manual_seed(n)
        model = tf.AutoModelForSequenceClassification.from_pretrained(
            BASE, dtype=torch.float32, num_labels=n, pad_token_id=2047)
        wrapped = stirred_lora(model, "SEQ_CLS")
        head = wrapped.base_model.model.score.modules_to_save["default"]
        head.weight.data = torch.randn_like(head.weight) * 0.1
        wrapped = save_adapter(wrapped, name)
        golden["logits"][name] = logits(wrapped, ids)
        golden["logits"][name + " pairs"] = logits(wrapped, [ids[0] + one for one in ids])


def main():
    forget(OUT)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    tok = tf.PreTrainedTokenizerFast(tokenizer_file=str(BASE / "tokenizer.json"))
    ids = [tok(t)["input_ids"] for t in TEXTS]
    golden = {"texts": TEXTS, "ids": ids, "vectors": {}, "logits": {}}
    demo(golden, ids)
    for name in MODES:
        model = sentence_folder(name, name != "top")
        golden["vectors"][name] = vectors_of_body(model, ids, name)
        if name == "mean":
            torch.manual_seed(9)
            wrapped = stirred_lora(model, "FEATURE_EXTRACTION")
            wrapped = save_adapter(wrapped, "on-mean")
            golden["vectors"]["on-mean"] = vectors_of_body(wrapped, ids, name)
    torch.manual_seed(3)
    model = tf.Qwen2ForSequenceClassification(tf.Qwen2Config(
        id2label={0: "calm", 1: "glad", 2: "cross"}, label2id={"calm": 0, "glad": 1, "cross": 2},
        **SHAPE)).eval()
    stir(model)
    model.half().save_pretrained(OUT / "classes")
    adopt(OUT / "classes")
    model = tf.Qwen2ForSequenceClassification.from_pretrained(OUT / "classes", dtype=torch.float32).eval()
    golden["logits"]["classes"] = logits(model, ids)
    (OUT / "golden.json").write_text(json.dumps(golden, separators=(",", ":")).replace("],", "],\n") + "\n")  # a vector on each line


def vectors_of_body(model, ids, how):
    out = []
    for one in ids:
        v = pool(states(model, one).last_hidden_state[0], how)
        v = v if how == "top" else v / v.norm()
        out.append([round(x, 7) for x in v.tolist()])
    return out


if __name__ == "__main__":
    main()
