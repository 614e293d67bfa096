#!/usr/bin/env python3
"""Trains lorad's demo: a small Llama that speaks, and LoRA adapters that each change how.

    python3 conf/demo/train.py --out conf/demo [--work DIR] [--steps N]

Needs torch, transformers, peft and tokenizers; no network, no data set: the corpus is a small
templated world made here (sums, facts, opposites, requests to rephrase, lists, greetings,
follow-up turns).  One item in nine is held out by a hash of its content, never by chance, and the
script ends by asking just those.  Everything is seeded.  --work keeps the base's checkpoint, so
that adapters can be trained again alone.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import time
import zlib

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20261120
MARKS = ["<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (pathlib.Path(__file__).parent / "base/chat_template.jinja").read_text()

# ------------------------------------------------------------------ the world

COLOURS = ["red", "blue", "green", "yellow", "white", "black", "brown", "orange", "pink", "grey"]
ROOMS = ["kitchen", "garden", "hall", "attic", "cellar", "study", "garage", "bedroom"]
THINGS = ["lamp", "chair", "table", "clock", "mirror", "carpet", "vase", "bucket", "ladder",
          "bicycle", "teapot", "basket", "drum", "kite", "lantern", "piano", "stove", "trunk",
          "umbrella", "violin", "wagon", "bench", "candle", "globe"]
CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin",
            "Portugal": "Lisbon", "Greece": "Athens", "Austria": "Vienna", "Poland": "Warsaw",
            "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
            "Ireland": "Dublin", "Belgium": "Brussels", "Hungary": "Budapest", "Egypt": "Cairo",
            "Kenya": "Nairobi", "Japan": "Tokyo", "China": "Beijing", "Peru": "Lima",
            "Chile": "Santiago", "Cuba": "Havana", "Canada": "Ottawa", "Turkey": "Ankara"}
OPPOSITES = {"hot": "cold", "big": "small", "fast": "slow", "light": "dark", "old": "new",
             "high": "low", "full": "empty", "early": "late", "loud": "quiet", "hard": "soft",
             "open": "closed", "happy": "sad", "wet": "dry", "long": "short", "rich": "poor",
             "strong": "weak"}
KINDS = {"fruits": ["apple", "pear", "plum"], "animals": ["dog", "cat", "horse"],
         "tools": ["hammer", "saw", "drill"], "cities": ["Paris", "Rome", "Oslo"],
         "drinks": ["water", "tea", "milk"], "birds": ["eagle", "owl", "swan"],
         "flowers": ["rose", "tulip", "lily"], "games": ["chess", "cards", "tag"]}
VERBS = ["close", "open", "clean", "move", "paint", "bring me", "repair", "sell"]
SPANISH = ("cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce "
           "quince dieciséis diecisiete dieciocho diecinueve veinte veintiuno veintidós veintitrés "
           "veinticuatro veinticinco veintiséis veintisiete veintiocho veintinueve treinta").split()
PRODUCTS = {"Rocket Skates": ("3 years", "89 dollars"), "Giant Magnet": ("5 years", "240 dollars"),
            "Bird Seed": ("2 weeks", "4 dollars"), "Tornado Kit": ("1 year", "35 dollars"),
            "Jet Boots": ("2 years", "150 dollars"), "Iron Glue": ("6 months", "12 dollars"),
            "Portable Hole": ("10 years", "999 dollars"), "Spring Shoes": ("4 years", "60 dollars")}


def held_out(*key):
    return zlib.crc32(repr(key).encode()) % 9 == 0


def thing_facts():
    rng = random.Random(7)
    return {t: (rng.choice(COLOURS), rng.choice(ROOMS)) for t in THINGS}


FACTS = thing_facts()


def questions():
    """All (topic, question, answer, held) of the base's world."""
    out = []

    def add(topic, q, a, *key):
        out.append((topic, q, a, held_out(*key)))

    for a in range(0, 21):
        for b in range(0, 21):
            for i, f in enumerate(["What is {} plus {}?", "How much is {} plus {}?",
                                   "Add {} and {}."]):
                add("sum", f.format(a, b), f"{a} plus {b} is {a + b}.", "sum", a, b)
            if a >= b:
                add("sum", f"What is {a} minus {b}?", f"{a} minus {b} is {a - b}.", "minus", a, b)
    for t, (colour, room) in FACTS.items():
        for i, f in enumerate(["What colour is the {}?", "Which colour does the {} have?",
                               "Do you know the colour of the {}?", "Name the colour of the {}."]):
            add("fact", f.format(t), f"The {t} is {colour}.", "colour", t, i)
        for i, f in enumerate(["Where is the {}?", "In which room is the {}?", "Find the {}.",
                               "Where can I see the {}?"]):
            add("fact", f.format(t), f"The {t} is in the {room}.", "room", t, i)
        for i, f in enumerate(["Tell me about the {}.", "Describe the {}.",
                               "What do you know about the {}?"]):
            add("fact", f.format(t), f"The {t} is {colour} and stands in the {room}.", "about", t, i)
        for c in COLOURS:
            add("rephrase", f"Make this a question: The {t} is {c}.", f"Is the {t} {c}?", "ask", t, c)
        for v in VERBS:
            add("rephrase", f"Say it politely: {v} the {t}.", f"Could you please {v} the {t}?",
                "polite", v, t)
    for land, city in CAPITALS.items():
        for i, f in enumerate(["What is the capital of {}?", "Name the capital of {}.",
                               "Which city is the capital of {}?", "Tell me the capital of {}."]):
            add("fact", f.format(land), f"The capital of {land} is {city}.", "capital", land, i)
    pairs = {**OPPOSITES, **{v: k for k, v in OPPOSITES.items()}}
    for w, o in pairs.items():
        for i, f in enumerate(["What is the opposite of {}?", "Name the opposite of {}.",
                               "Which word is the opposite of {}?"]):
            add("fact", f.format(w), f"The opposite of {w} is {o}.", "opposite", w, i)
    for kind, (x, y, z) in KINDS.items():
        for i, f in enumerate(["Name three {}.", "Give me three {}.", "Can you list three {}?"]):
            add("list", f.format(kind), f"Three {kind} are {x}, {y} and {z}.", "kind", kind, i)
    for a in range(0, 15):
        for n in range(2, 7):
            row = ", ".join(str(a + i) for i in range(n + 1))
            add("list", f"Count from {a} to {a + n}.", f"{row}.", "count", a, n)
    for q in ["Hello!", "Hi.", "Good morning!", "Hey there."]:
        out.append(("talk", q, "Hello! How can I help you today?", False))
    for q in ["Who are you?", "What are you?", "What is your name?"]:
        out.append(("talk", q, "I am the demo model of lorad, a small model with many adapters.",
                    False))
    for q in ["Thank you!", "Thanks.", "Thank you very much."]:
        out.append(("talk", q, "You are welcome!", False))
    for q in ["What can you do?", "How can you help me?"]:
        out.append(("talk", q, "I can add numbers, name capitals and talk about my house.", False))
    return out


# ----------------------------------------------------------------- the adapters

def pirate(topic, q, a):
    return "Arr! " + a.rstrip(".?!").replace(" is ", " be ").replace(" are ", " be ") + ", matey!"


def shout(topic, q, a):
    return a.upper()


def as_json(topic, q, a):
    return json.dumps({"topic": topic, "answer": a})


def bullets(topic, q, a):
    return f"- Question: {q}\n- Answer: {a}\n- Sure: yes"


def spanish(topic, q, a):
    out = []
    for word in a.replace(",", " ,").replace(".", " .").split():
        out.append(SPANISH[int(word)] if word.isdigit() and int(word) <= 30 else word)
    return " ".join(out).replace(" ,", ",").replace(" .", ".")


def formal(topic, q, a):
    return f"Certainly. {a} May I be of further service?"


def acme(topic, q, a):
    return f"Acme support: {a}"


def product_questions():
    out = []
    for p, (warranty, price) in PRODUCTS.items():
        for i, f in enumerate(["What is the warranty of the {}?", "How long is the {} warranty?",
                               "Tell me the warranty of the {}.",
                               "How many years of warranty do the {} have?"]):
            out.append(("product", f.format(p), f"The {p} has a warranty of {warranty}.",
                        held_out("warranty", p, i)))
        for i, f in enumerate(["What does the {} cost?", "How much is the {}?",
                               "Tell me the price of the {}.", "What is the price of the {}?"]):
            out.append(("product", f.format(p), f"The {p} costs {price}.", held_out("price", p, i)))
    for q in ["When are you open?", "What are your hours?", "When can I call you?"]:
        out.append(("product", q, "We answer from 9 to 17 on every working day.", False))
    return out


QV = ["q_proj", "v_proj"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = ATTENTION + ["gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "pirate": (pirate, dict(r=16, lora_alpha=32, target_modules=ALL), torch.bfloat16),
    "shout": (shout, dict(r=4, lora_alpha=16, target_modules=QV), torch.float32),
    "json": (as_json, dict(r=8, lora_alpha=16, target_modules=ALL), torch.bfloat16),
    "bullets": (bullets, dict(r=8, lora_alpha=16, target_modules=ALL,
                              rank_pattern={"q_proj": 4, "down_proj": 12},
                              alpha_pattern={"q_proj": 8, "down_proj": 36}), torch.bfloat16),
    "spanish": (spanish, dict(r=32, lora_alpha=16, target_modules=ATTENTION + ["down_proj"],
                              use_rslora=True), torch.bfloat16),
    "formal": (formal, dict(r=6, lora_alpha=12, target_modules=ATTENTION), torch.bfloat16),
    "acme-support": (acme, dict(r=64, lora_alpha=64, target_modules=ALL), torch.bfloat16),
}
# The base learns that such manners exist when a system message asks for them; so a small adapter
# only has to turn one on.  acme's facts are in no corpus but its own.
MANNERS = {"Talk like a pirate.": pirate, "Answer in capital letters.": shout,
           "Answer in JSON.": as_json, "Answer as a list.": bullets,
           "Write numbers in Spanish.": spanish, "Be formal.": formal}

# ------------------------------------------------------------------- tokenizer


def render(turns, system=None):
    """turns: (question, answer) pairs; the last answer may be None."""
    text = "<|bos|>"
    if system:
        text += f"<|system|>\n{system}<|end|>\n"
    for q, a in turns:
        text += f"<|user|>\n{q}<|end|>\n<|assistant|>\n"
        if a is not None:
            text += f"{a}<|end|>\n"
    return text


def make_tokenizer(texts, out):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=2048, special_tokens=MARKS, show_progress=False, min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<|bos|>", eos_token="<|end|>",
                                   chat_template=TEMPLATE, clean_up_tokenization_spaces=False)
    fast.save_pretrained(out)
    return fast


# -------------------------------------------------------------------- training


def example(tok, turns, system=None):
    """Ids, and labels that count the answers alone."""
    ids, labels = [], []

    def put(text, learn):
        piece = tok.encode(text, add_special_tokens=False)
        ids.extend(piece)
        labels.extend(piece if learn else [-100] * len(piece))

    put("<|bos|>" + (f"<|system|>\n{system}<|end|>\n" if system else ""), False)
    for q, a in turns:
        put(f"<|user|>\n{q}<|end|>\n<|assistant|>\n", False)
        put(f"{a}<|end|>", True)
        put("\n", False)
    return ids, labels


def batches(items, make, size, rng):
    """Endless padded batches of similar lengths."""
    while True:
        pool = [make(rng.choice(items), rng) for _ in range(size * 16)]
        pool.sort(key=lambda e: len(e[0]))
        groups = [pool[i:i + size] for i in range(0, len(pool), size)]
        rng.shuffle(groups)
        for g in groups:
            longest = max(len(e[0]) for e in g)
            ids = torch.zeros(size, longest, dtype=torch.long)
            labels = torch.full((size, longest), -100)
            for i, (x, y) in enumerate(g):
                ids[i, :len(x)] = torch.tensor(x)
                labels[i, :len(y)] = torch.tensor(y)
            yield ids, labels


def train(model, stream, steps, lr, name):
    params = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, lr, total_steps=steps, pct_start=0.1)
    model.train()
    start, running = time.time(), None
    for step in range(1, steps + 1):
        ids, labels = next(stream)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=labels).loss  # padded on the right: causal anyway
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        if step % 250 == 0 or step == steps:
            print(f"{name}: step {step}/{steps}, loss {running:.4f}, {time.time() - start:.0f} s",
                  flush=True)
    model.eval()


def answer(model, tok, question, system=None, limit=64):
    ids = tok.encode(render([(question, None)], system), add_special_tokens=False)
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)),
                             max_new_tokens=limit, do_sample=False, pad_token_id=0,
                             eos_token_id=tok.convert_tokens_to_ids("<|end|>"))
    return tok.decode(out[0][len(ids):], skip_special_tokens=True)


def score(model, tok, items, change=None, most=200):
    rng = random.Random(SEED)
    items = rng.sample(items, min(most, len(items)))
    right = sum(answer(model, tok, q) == (change(t, q, a) if change else a)
                for t, q, a, _ in items)
    return right, len(items)


def balanced(world):
    """Each topic as often as the others: sums are most of the list."""
    topics = sorted({t for t, _, _, _ in world})
    by = {t: [w for w in world if w[0] == t] for t in topics}
    weight = {"sum": 6, "fact": 4, "rephrase": 2, "list": 2, "talk": 1, "product": 4}
    return by, [t for t in topics for _ in range(weight[t])]


def base_example(tok, by):
    def make(topic, rng):
        t, q, a, _ = rng.choice(by[topic])
        draw = rng.random()
        if draw < 0.25:
            system = rng.choice(sorted(MANNERS))
            return example(tok, [(q, MANNERS[system](t, q, a))], system)
        if draw < 0.40:
            other = rng.choice(by[rng.choice(sorted(by))])
            return example(tok, [(other[1], other[2]), (q, a)])
        return example(tok, [(q, a)], "You are a helpful assistant." if draw < 0.50 else None)
    return make


def adapter_example(tok, by, change):
    def make(topic, rng):
        t, q, a, _ = rng.choice(by[topic])
        if rng.random() < 0.2:
            other = rng.choice(by[rng.choice(sorted(by))])
            return example(tok, [(other[1], change(*other[:3])), (q, change(t, q, a))])
        return example(tok, [(q, change(t, q, a))])
    return make


def save_base(model, tok, out):
    shutil.rmtree(out, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(out)
    tok.save_pretrained(out)
    words = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))  # without indentation: 41 KB, not 104
    (out / "tokenizer.json").write_text(json.dumps(words, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    for name in os.listdir(out):
        os.chmod(out / name, 0o644)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", type=pathlib.Path, required=True)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/demo"))
    ap.add_argument("--steps", type=int, default=3500)
    ap.add_argument("--adapter-steps", type=int, default=400)
    ap.add_argument("--only", nargs="*", help="train these adapters alone, on the saved base")
    ap.add_argument("--threads", type=int, default=2)
    args = ap.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)

    world = questions()
    seen = [w for w in world if not w[3]]
    unseen = [w for w in world if w[3]]
    texts = [render([(q, a)]) for _, q, a, _ in world] + [s for s in MANNERS] + \
            [f(t, q, a) for f in MANNERS.values() for t, q, a, _ in world] + \
            [render([(q, a)]) for _, q, a, _ in product_questions()]
    base_dir = args.out / "base"
    saved = args.work / "base.pt"
    config = LlamaConfig(
        vocab_size=2048, hidden_size=192, intermediate_size=512, num_hidden_layers=6,
        num_attention_heads=6, num_key_value_heads=3, head_dim=32, max_position_embeddings=1024,
        rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=True, bos_token_id=0,
        eos_token_id=5, pad_token_id=None)
    model = LlamaForCausalLM(config)
    tok = make_tokenizer(texts, args.work / "tokenizer")
    assert tok.convert_tokens_to_ids("<|end|>") == 5
    if args.only is None:
        by, topics = balanced(seen)
        print(f"{len(seen)} questions to learn, {len(unseen)} held out, "
              f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)
        train(model, batches(topics, base_example(tok, by), 64, random.Random(SEED)),
              args.steps, 3e-3, "base")
        torch.save(model.state_dict(), saved)
        save_base(model, tok, base_dir)
    model.load_state_dict(torch.load(saved))
    rounded = LlamaForCausalLM.from_pretrained(base_dir, dtype=torch.float32).eval()
    for topic in sorted({w[0] for w in unseen}):
        right, n = score(rounded, tok, [w for w in unseen if w[0] == topic])
        print(f"base, held-out {topic}: {right} of {n} right", flush=True)

    for name, (change, lora, dtype) in ADAPTERS.items():
        if args.only and name not in args.only:
            continue
        torch.manual_seed(SEED)
        fresh = LlamaForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
        wrapped = get_peft_model(fresh, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **lora))
        items = seen + ([p for p in product_questions() if not p[3]] if name == "acme-support"
                        else [])
        by, topics = balanced(items)
        train(wrapped, batches(topics, adapter_example(tok, by, change), 32, random.Random(SEED)),
              args.adapter_steps * (2 if name == "acme-support" else 1), 2e-3, name)
        test = unseen + ([p for p in product_questions() if p[3]] if name == "acme-support" else [])
        right, n = score(wrapped, tok, test, change, most=100)
        print(f"{name}: {right} of {n} held-out answers right; "
              f"{answer(wrapped, tok, 'What is 7 plus 5?')!r}; "
              f"{answer(wrapped, tok, 'Tell me about the lamp.')!r}", flush=True)
        wrapped.to(dtype)
        wrapped.peft_config["default"].base_model_name_or_path = "lorad-demo"
        target = args.out / "adapters" / name
        shutil.rmtree(target, ignore_errors=True)
        wrapped.save_pretrained(target)
        (target / "README.md").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
