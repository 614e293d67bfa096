#!/usr/bin/env python3
"""Makes tests/fixtures/beams.jsonl: what transformers' generate(num_beams) answers with the demo model.

Usage: make_beam_goldens.py                        (needs torch, transformers, peft)

One line for each of 300 searches: the adapter ("" is the base), the prompt, beams, answers, max_tokens, length_penalty, early_stopping,
then text and score of each answer, the best first.  The reference computes in F32.  Prompts are the demo's own questions, in its chat
template or bare, some with an end that the model never saw, so that answers differ in length and beams part early and late.
"""
import json
import pathlib
import random

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "conf/demo"
N = 300
QUESTIONS = ["What is {a} plus {b}?", "Count from {a} to {c}.", "Where is the {t}?", "Tell me about the {t}.", "Name three {k}.",
             "What is the opposite of {o}?", "Say it politely: bring me the {t}.", "What is the capital of {l}?",
             "Make this a question: The {t} is red.", "Why is the {t} in {l}?", "Sing of {k} and the {t}."]
BARE = ["The {t} is", "{k} and", "The capital of {l}", "{a} plus {b}", "Three {k} are", "The opposite of {o} is", "Could you please", "I am"]
WORDS = {"t": ["lamp", "chair", "clock", "teapot", "violin", "globe", "candle", "wagon"], "k": ["fruits", "animals", "tools", "birds", "games"],
         "l": ["France", "Peru", "Kenya", "Japan", "Norway"], "o": ["hot", "big", "early", "wet", "rich"]}


def prompt_of(rng):
    words = {k: rng.choice(v) for k, v in WORDS.items()}
    words |= {"a": rng.randrange(15), "b": rng.randrange(15), "c": rng.randrange(15, 22)}
    if rng.random() < 0.35:
        return rng.choice(BARE).format(**words)
    return f"<|bos|><|user|>\n{rng.choice(QUESTIONS).format(**words)}<|end|>\n<|assistant|>\n"


def main():
    rng = random.Random(55)
    tok = AutoTokenizer.from_pretrained(DEMO / "base")
    base = AutoModelForCausalLM.from_pretrained(DEMO / "base", dtype=torch.float32).eval()
    adapters = ["pirate", "spanish", "json"]
    model = PeftModel.from_pretrained(base, DEMO / "adapters" / adapters[0], adapter_name=adapters[0])
    for name in adapters[1:]:
        model.load_adapter(DEMO / "adapters" / name, adapter_name=name)
    lines = []
    for i in range(N):
        adapter = rng.choice(adapters) if i % 4 == 0 else ""
        width = rng.choice([1, 2, 3, 4, 4, 4, 5, 8])
        n = rng.randrange(1, width + 1)
        most = rng.choice([1, 4, 8, 16, 24, 40])
        penalty = rng.choice([1.0, 1.0, 0.0, 0.5, 2.0, -1.0])
        early = rng.choice([False, False, True, "never"])
        prompt = prompt_of(rng)
        ids = tok(prompt, return_tensors="pt")
        asked = dict(num_beams=width, num_return_sequences=n, max_new_tokens=most, length_penalty=penalty, early_stopping=early,
                     do_sample=False, return_dict_in_generate=True, output_scores=True, pad_token_id=tok.eos_token_id)
        with torch.no_grad():
            if adapter:
                model.set_adapter(adapter)
                out = model.generate(**ids, **asked)
            else:
                with model.disable_adapter():
                    out = model.generate(**ids, **asked)
        n_prompt = ids["input_ids"].shape[1]
        texts = [tok.decode(s[n_prompt:], skip_special_tokens=True) for s in out.sequences]
        if width > 1:
            scores = out.sequences_scores.tolist()
        else:  # greedy: transformers gives no score
            made = out.sequences[0, n_prompt:]
            steps = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)[0]
            scores = [float(steps.double().sum() / len(made) ** penalty)]
        answers = [[t, round(s, 6)] for t, s in zip(texts, scores)]
        lines.append(json.dumps([adapter, prompt, width, n, most, penalty, early, answers], ensure_ascii=False, separators=(",", ":")))
    (ROOT / "tests/fixtures/beams.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
