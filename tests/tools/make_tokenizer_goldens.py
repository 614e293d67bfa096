#!/usr/bin/env python3
"""Makes tests/fixtures/tokenizers: small tokenizer.json files of each kind, strings, and Hugging Face's ids.

    make_tokenizer_goldens.py [--train] [output directory]        (needs tokenizers)

Each kind's tokenizer.json is the one that lies in the directory; --train makes them anew (another version of the
library merges in another order where counts are equal).  strings.hex: one string a line, UTF-8 in hex.
<kind>/ids.txt: ids of each string, a line each; <kind>/decoded.hex: what decode() makes of them.
<kind>/more_ids.txt, more_decoded.hex: the same after add_tokens(MORE), which test_tokenizer.c has in a table of its own.
A line "=" of decoded.hex and more_decoded.hex is the line of strings.hex, and one of more_ids.txt is the line of ids.txt.
"""
import pathlib
import random
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
WORDS = ["Hello", " world", "don't", "I'LL", "naïve", "über", "日本語", "中文字", "Привет", "مرحبا", "नमस्ते",
         "👩‍👩‍👧", "e\u0301", "12345", "3.14", "  ", "\n\n", " \t ", "\r\n", "<|user|>", "<s>", "</s>", "x²", "ſ", "'S",
         "_", "▁", "\u00a0", "\u3000", "a" * 60, "!!!???", "ﬁ", "한국어", "ᄀ", "각", "\x00", "\x1b[0m", "\ufeff", "\ufffd",
         "def f(x):\n    return x\n", "https://x.y/z?q=1", "½", "Ⅷ", "٣", "ไทย", "🇩🇪", "\u200d", "'re", "'VE", "the"]


MORE = [AddedToken("world", single_word=True, normalized=False), AddedToken("worl", normalized=False),
        AddedToken("user|>", lstrip=True, special=True, normalized=False),
        AddedToken("def f", lstrip=True, rstrip=True, normalized=False),
        AddedToken("//x.y", rstrip=True, normalized=False)]


def strings():
    r = random.Random(20261120)
    out = ["", " ", "a", " a", "a ", "  a  b  ", "\n", "What is 7 plus 5?", "<|bos|>", "<s> hi </s>"]
    while len(out) < 2100:
        parts = []
        for _ in range(r.randrange(1, 10)):
            kind = r.random()
            if kind < 0.6:
                parts.append(r.choice(WORDS))
            elif kind < 0.8:
                parts.append(chr(r.choice([r.randrange(1, 0x300), r.randrange(0x300, 0xD800),
                                           r.randrange(0xE000, 0x2FFFF)])))
            else:  # hostile bytes, as a lenient reader sees them
                parts.append(bytes(r.randrange(256) for _ in range(4)).decode("utf-8", "replace"))
            parts.append(" " * (r.random() < 0.4))
        out.append("".join(parts).replace("\x00", ""))
    return out


def byte_level(corpus, pre, special, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def with_bos(t, bos):
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, t.token_to_id(bos))])])
    return t


def sentence_piece(corpus, metaspace):
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    meta = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    t.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<unk>", "<s>", "</s>"] + byte_tokens, show_progress=False,
        limit_alphabet=120))
    import json
    spec = json.loads(t.to_str())
    spec["added_tokens"] = [a for a in spec["added_tokens"] if not a["content"].startswith("<0x")]
    spec["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    t = Tokenizer.from_str(json.dumps(spec))
    if metaspace:
        t.pre_tokenizer = meta
    else:
        t.pre_tokenizer = None
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                   decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def trained(corpus):
    split = lambda pattern: pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    qwen = byte_level(corpus, split(QWEN2), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    qwen.normalizer = normalizers.NFC()
    gpt2 = byte_level(corpus, pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|bos|>"])
    gpt2.add_tokens([AddedToken("https", special=False)])
    return {
        "gpt2": gpt2,
        "llama3": with_bos(byte_level(corpus, split(LLAMA3), ["<|bos|>", "<|eot_id|>"],
                                      ignore_merges=True), "<|bos|>"),
        "qwen2": qwen,
        "llama2": sentence_piece(corpus, False),
        "mistral": sentence_piece(corpus, True),
    }


def lines(of, same):
    """Lines, with "=" for each that `same` has too."""
    return "".join("=\n" if line == other else line + "\n" for line, other in zip(of, same))


def main():
    train = sys.argv[1:2] == ["--train"]
    out = pathlib.Path(([*sys.argv[1 + train:], "tests/fixtures/tokenizers"])[0])
    texts = strings()
    if train:
        kinds = trained(texts[:1500])
    else:
        kinds = {name: Tokenizer.from_file(str(out / name / "tokenizer.json"))
                 for name in ("gpt2", "llama3", "qwen2", "llama2", "mistral")}
    out.mkdir(parents=True, exist_ok=True)
    strings_hex = [s.encode().hex() for s in texts]
    (out / "strings.hex").write_text("".join(s + "\n" for s in strings_hex))
    for name, t in kinds.items():
        d = out / name
        d.mkdir(exist_ok=True)
        if train:
            t.save(str(d / "tokenizer.json"), pretty=False)
        plain = None
        for more in ("", "more_"):
            if more:
                t.add_tokens(MORE)
            ids = [t.encode(s).ids for s in texts]
            ids_text = [" ".join(map(str, i)) for i in ids]
            plain = plain or [None] * len(ids)
            (d / f"{more}ids.txt").write_text(lines(ids_text, plain))
            (d / f"{more}decoded.hex").write_text(lines([t.decode(i).encode().hex() for i in ids], strings_hex))
            plain = ids_text


if __name__ == "__main__":
    main()
