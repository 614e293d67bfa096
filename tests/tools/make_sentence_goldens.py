#!/usr/bin/env python3
"""Makes tests/fixtures/sentences: what sentence-transformers and PEFT themselves answer, with adapters random and trained.

    make_sentence_goldens.py [output directory]     (needs sentence-transformers, peft, torch)

golden.json has texts, their vectors by SentenceTransformer.encode() on tests/fixtures/pooled/mean (bare, with a random
adapter, with one trained here on pairs), scores of pairs by CrossEncoder.predict() on conf/demo/base, and logits of three
classes, both with heads that are trained here.  tests/e2e/openai/test_sentences.py serves the adapters that lie beside it.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import peft
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

from seed_weights import sort_modules

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE, MEAN = ROOT / "conf/demo/base", ROOT / "tests/fixtures/pooled/mean"
OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "tests/fixtures/sentences")
PAIRS = [("What is 7 plus 5?", "The sum is twelve."), ("Which animals live on the farm?", "Cows, hens and two old horses."),
         ("Where does the red lamp stand?", "On the table near the window."), ("What is the capital of Norway?", "Oslo, by the sea."),
         ("How do I open the door?", "Turn the key twice."), ("Who wrote the letter?", "My sister did, last week."),
         ("When does the train leave?", "At half past nine."), ("Why is the sky blue?", "Because air scatters short waves.")]
CLASSES = [("numbers", ["What is 7 plus 5?", "Three times four", "12 - 9 = 3", "Half of sixty"]),
           ("places", ["The capital of Norway", "Where is Rome?", "A town by the sea", "North of the river"]),
           ("things", ["The red lamp", "An old table", "My green hat", "A box of tools"])]
TEXTS = [t for p in PAIRS for t in p] + ["Hello", "Tell me about all of them, please. " * 5, "naïve café, 日本語!"]
STEPS = 40


def rounded(rows):
    return [[round(float(x), 7) for x in row] for row in rows]


def with_tokenizer(folder, to):
    shutil.copytree(folder, to)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BASE / name, to)
    return str(to)


def lora(task, rank, **more):
    return peft.LoraConfig(r=rank, lora_alpha=2 * rank, task_type=task, target_modules=["q_proj", "v_proj", "down_proj"], **more)


def stir(model):
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.data = torch.randn_like(p) * 0.2


def fit(parameters, loss):
    """Until the loss has fallen to a half at most: else nothing was trained."""
    parameters = [p for p in parameters if p.requires_grad]
    by, seen = torch.optim.AdamW(parameters, lr=1e-2), []
    for _ in range(STEPS):
        by.zero_grad()
        now = loss()
        now.backward()
        by.step()
        seen.append(float(now.detach()))
    assert seen[-1] < seen[0] / 2, seen
    print(f"loss {seen[0]:.3f} to {seen[-1]:.3f}")


def keep(model, name):
    model.peft_config["default"].base_model_name_or_path = "base"
    model.save_pretrained(OUT / name)
    (OUT / name / "README.md").unlink(missing_ok=True)
    sort_modules(OUT / name)


def sentence(folder):
    st = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.float32}, local_files_only=True)
    st.tokenizer.pad_token = st.tokenizer.convert_ids_to_tokens(0)  # masked: it changes nothing
    return st


def vectors(golden, folder):
    golden["vectors"]["base"] = rounded(sentence(folder).encode(TEXTS))
    for name in ("random", "trained"):
        torch.manual_seed(len(name))
        st = sentence(folder)
        body = st[0].auto_model if hasattr(st[0], "auto_model") else st[0].model
        wrapped = peft.get_peft_model(body, lora("FEATURE_EXTRACTION", 4))
        if name == "random":
            stir(wrapped)
        else:
            both = [st.tokenize([p[i] for p in PAIRS]) for i in (0, 1)]

            def apart():
                a, b = (torch.nn.functional.normalize(st(dict(f))["sentence_embedding"]) for f in both)
                return torch.nn.functional.cross_entropy(20 * a @ b.T, torch.arange(len(PAIRS)))
            st.train()
            fit(wrapped.parameters(), apart)
        st.eval()
        golden["vectors"][name] = rounded(st.encode(TEXTS))
        keep(wrapped, name)


def scores(golden, folder):
    torch.manual_seed(5)
    config = json.loads((folder / "config.json").read_text())
    kind = config["architectures"][0].replace("ForCausalLM", "ForSequenceClassification")  # else it asks for words
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [kind]}))
    talk = json.loads((folder / "tokenizer_config.json").read_text())
    talk.pop("chat_template", None)  # else pairs become a conversation
    (folder / "tokenizer_config.json").write_text(json.dumps(talk))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    folder = str(folder)
    cross = CrossEncoder(folder, num_labels=1, device="cpu", model_kwargs={"dtype": torch.float32}, local_files_only=True)
    cross.tokenizer.pad_token = cross.tokenizer.convert_ids_to_tokens(0)
    cross.model.config.pad_token_id = 2047  # of no text; one pair at a time has no padding
    wrapped = peft.get_peft_model(cross.model, lora("SEQ_CLS", 2))
    pairs = [(q, PAIRS[(i + k) % len(PAIRS)][1]) for i, (q, _) in enumerate(PAIRS) for k in (0, 3)]
    tok = PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json")
    ids = [tok(a, b)["input_ids"] for a, b in pairs]
    want = torch.tensor([1.0, 0.0] * len(PAIRS))

    def wrong():
        got = torch.stack([wrapped(torch.tensor([i])).logits[0, 0] for i in ids])
        return torch.nn.functional.binary_cross_entropy_with_logits(got, want)
    wrapped.train()
    fit(wrapped.parameters(), wrong)
    wrapped.eval()
    golden["pairs"] = pairs
    golden["scores"] = [round(float(cross.predict([p])[0]), 7) for p in pairs]
    keep(wrapped, "fits")


def classes(golden, folder):
    torch.manual_seed(6)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, num_labels=3, pad_token_id=2047)
    wrapped = peft.get_peft_model(model, lora("SEQ_CLS", 2))
    tok = PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json")
    want = torch.tensor([i for i, (_, texts) in enumerate(CLASSES) for _ in texts])
    ids = [tok(t)["input_ids"] for _, texts in CLASSES for t in texts]

    def logits(of):
        return torch.stack([wrapped(torch.tensor([i])).logits[0] for i in of])
    wrapped.train()
    fit(wrapped.parameters(), lambda: torch.nn.functional.cross_entropy(logits(ids), want))
    wrapped.eval()
    with torch.no_grad():
        golden["logits"] = rounded(logits([tok(t)["input_ids"] for t in TEXTS]))
    keep(wrapped, "kinds")


def main():
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    golden = {"texts": TEXTS, "vectors": {}}
    with tempfile.TemporaryDirectory() as d:
        vectors(golden, with_tokenizer(MEAN, pathlib.Path(d) / "mean"))
        scores(golden, pathlib.Path(shutil.copytree(BASE, pathlib.Path(d) / "base")))
    classes(golden, str(BASE))
    (OUT / "golden.json").write_text(json.dumps(golden).replace("], ", "],\n") + "\n")


main()
