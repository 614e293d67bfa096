#!/usr/bin/env python3
"""Makes tests/fixtures/pieces: small tokenizer.json files of Unigram, WordPiece and WordLevel models with the normalisers, steps and
decoders that such models have, strings, and what Hugging Face's tokenizers makes of these.

    make_piece_goldens.py [--train | --train-levels] [output directory]        (needs tokenizers; --train: sentencepiece, too)

Each kind's tokenizer.json is the one that lies in the directory; --train makes them anew, --train-levels WordLevel's alone.  strings.hex: one string a line,
UTF-8 in hex.  answers.txt: for each string a line, for each kind in the order of kinds.txt two sums of 16 bits in hex: of
its ids, and of what decode() makes of these.  test_pieces.c computes the same two.
"""
import base64
import json
import pathlib
import random
import sys
import tempfile

from tokenizers import AddedToken, Tokenizer, models, trainers

from make_split_goldens import summed

WORDS = ["Hello", " world", "don't", "I'LL", "naïve", "Über", "日本語", "中文字", "カタカナ", "ｶﾞｷﾞ", "Привет", "МИР", "مرحبا", "नमस्ते",
         "👩‍👩‍👧", "e\u0301", "E\u0301\u0316", "12345", "3.14", "  ", "\n\n", " \t ", "\r\n", "<s>", "</s>", "[MASK]", "[CLS]",
         "x²", "½", "Ⅷ", "㎏", "ﬁne", "ﷺ", "Å", "Ω", "ＦＵＬＬ", "İstanbul", "ΑΣ", "ß", "_", "▁", "▁▁the", "\u00a0", "\u3000", "\u2028",
         "a" * 60, "b" * 120, "!!!???", "``quoted''", "한국어", "각", "ᄀ\u1161\u11a8", "\x1b[0m", "\ufeff", "\ufffd", "\u200b", "\u00ad",
         "def f(x):\n    return x\n", "https://x.y/z?q=1", "٣٤٥", "ไทย", "🇩🇪", "\u200d", "the", "The", "running", "unbelievable", "do not",
         "he's", "we've", "can't", " .", " ,", " ' ", "\u0301", "\u0600a", "a\u0903", "\r", "\r\u0301", "\u2581a", "<unk>", "[UNK]",
         "\u1e9b\u0323", "\u3099", "か\u3099", "\uff76\uff9e", "\u0344", "\u212b", "𝐀𝐁", "㌀", "\ufdfa", "①", "…", "™", "\u0958"]


def strings():
    r, out = random.Random(20261124), ["", " ", "a", " a", "a ", "  a  b  ", "\n", "\u0301", "\u00a0", "the the", "<s> hi </s>"]
    while len(out) < 1000:
        parts = []
        for _ in range(r.randrange(1, 10)):
            kind = r.random()
            if kind < 0.7:
                parts.append(r.choice(WORDS))
            elif kind < 0.9:
                parts.append(chr(r.choice([r.randrange(1, 0x300), r.randrange(0x300, 0x3400), r.randrange(0x3400, 0xD800),
                                           r.randrange(0xE000, 0x2FFFF)])))
            else:  # hostile bytes, as a lenient reader sees them
                parts.append(bytes(r.randrange(256) for _ in range(4)).decode("utf-8", "replace"))
            parts.append(" " * (r.random() < 0.5))
        out.append("".join(parts).replace("\x00", ""))
    return out


def charsmap():
    """A part of nmt_nfkc's rules, compiled by SentencePiece itself."""
    import sentencepiece
    import unicodedata
    rules = {}
    for c in [*range(0xA0, 0x180), *range(0x300, 0x350), *range(0x1E00, 0x1F00), *range(0x2000, 0x2200), *range(0x2460, 0x2500),
              *range(0x3000, 0x3400), *range(0xFB00, 0xFB10), *range(0xFF00, 0xFFA0)]:
        composed = unicodedata.normalize("NFKC", chr(c))
        if composed != chr(c):
            rules[chr(c)] = composed
        decomposed = unicodedata.normalize("NFD", chr(c))
        if len(decomposed) == 2 and unicodedata.normalize("NFC", decomposed) == chr(c):
            rules[decomposed] = chr(c)
    rules |= {"\t": " ", "\n": " ", "\r": " ", "\u00a0": " ", "\u200b": " ", "\u200d": "", "\ufeff": "", "\x1b": "", "ab": "x"}
    with tempfile.TemporaryDirectory() as d:
        at = pathlib.Path(d)
        codes = lambda s: " ".join(f"{ord(c):X}" for c in s)
        (at / "rules.tsv").write_text("".join(f"{codes(a)}\t{codes(b)}\n" for a, b in rules.items()))
        (at / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 50)
        sentencepiece.SentencePieceTrainer.train(input=str(at / "text.txt"), model_prefix=str(at / "m"), vocab_size=30, hard_vocab_limit=False,
                                                 normalization_rule_tsv=str(at / "rules.tsv"), minloglevel=2)
        data = (at / "m.model").read_bytes()
    return precompiled(data)


def field(data, number):
    """The last field of this number of a message."""
    i, found = 0, None

    def varint():
        nonlocal i
        n = shift = 0
        while True:
            b = data[i]
            i += 1
            n |= (b & 127) << shift
            shift += 7
            if b < 128:
                return n
    while i < len(data):
        key = varint()
        if key & 7 == 2:
            n = varint()
            if key >> 3 == number:
                found = data[i:i + n]
            i += n
        elif key & 7 == 5:
            i += 4
        elif key & 7 == 1:
            i += 8
        else:
            varint()
    return found


def precompiled(model):
    return base64.b64encode(field(field(model, 3), 2)).decode()


META = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
BLOCKS = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                                           {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def sequence(*steps, of="normalizers"):
    return {"type": "Sequence", of: list(steps)}


def replace(pattern, by, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": by}


def pipelines(charmap):
    """normaliser, pre-tokeniser, decoder of each kind."""
    map_ = {"type": "Precompiled", "precompiled_charsmap": charmap}
    words = sequence({"type": "WhitespaceSplit"}, META, of="pretokenizers")
    return {
        "t5": (sequence(map_, {"type": "Strip", "strip_left": False, "strip_right": True}, replace(" {2,}", "▁", "Regex")),
               META, META),
        "xlmr": (map_, words, META),
        "albert": (sequence(replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, {"type": "StripAccents"},
                            {"type": "Lowercase"}, map_, replace(" {2,}", " ", "Regex")), words, META),
        "bytes": (sequence({"type": "Nmt"}, {"type": "NFKC"}), {**META, "prepend_scheme": "first", "split": False}, BLOCKS),
        "never": (sequence({"type": "NFD"}, {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Prepend",
                                                                                                       "prepend": "▁"}),
                  {**META, "prepend_scheme": "never"}, {**META, "prepend_scheme": "never"}),
        "uncased": (BERT, {"type": "BertPreTokenizer"}, {"type": "WordPiece", "prefix": "##", "cleanup": True}),
        "cased": ({**BERT, "lowercase": False}, {"type": "BertPreTokenizer"},
                  {"type": "WordPiece", "prefix": "##", "cleanup": False}),
        "accents": ({**BERT, "clean_text": False, "strip_accents": True, "lowercase": False, "handle_chinese_chars": False},
                    sequence({"type": "Whitespace"}, {"type": "Digits", "individual_digits": True}, of="pretokenizers"),
                    {"type": "WordPiece", "prefix": "_", "cleanup": True}),
        "words": (BERT, {"type": "BertPreTokenizer"}, {"type": "WordPiece", "prefix": "##", "cleanup": True}),
        "plain": (None, sequence({"type": "Whitespace"}, {"type": "Split", "pattern": {"Regex": r"(?<=\p{L})\d"}, "behavior": "Isolated",
                                                          "invert": False}, of="pretokenizers"), None),
    }


LEVELS = ("words", "plain")


def level(name, steps, texts):
    normalizer, pre, decoder = steps
    spec = {**json.loads(Tokenizer(models.WordLevel(unk_token="[UNK]")).to_str()), "normalizer": normalizer, "pre_tokenizer": pre,
            "decoder": decoder}
    t = Tokenizer.from_str(json.dumps(spec))
    t.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=300, special_tokens=["[UNK]", "[CLS]"], show_progress=False))
    return t


def trained(name, steps, texts):
    normalizer, pre, decoder = steps
    if name in LEVELS:
        return level(name, steps, texts)
    word_piece = decoder["type"] == "WordPiece"
    empty = models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=50 if name == "cased" else 100,
                             continuing_subword_prefix=decoder["prefix"]) if word_piece else models.Unigram()
    spec = {**json.loads(Tokenizer(empty).to_str()), "normalizer": normalizer, "pre_tokenizer": pre, "decoder": decoder}
    t = Tokenizer.from_str(json.dumps(spec))
    if word_piece:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        t.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False,
                                                               limit_alphabet=200, continuing_subword_prefix=decoder["prefix"]))
    else:
        special = ["<s>", "<pad>", "</s>", "<unk>"] + ([f"<0x{b:02X}>" for b in range(256)] if name == "bytes" else [])
        t.train_from_iterator(texts, trainers.UnigramTrainer(vocab_size=900, special_tokens=special, unk_token="<unk>",
                                                             show_progress=False))
    spec = json.loads(t.to_str())
    spec["added_tokens"] = [a for a in spec["added_tokens"] if not a["content"].startswith("<0x")]
    if name == "bytes":
        spec["model"]["byte_fallback"] = True
    first, last = (spec["added_tokens"][2:4] if word_piece else (spec["added_tokens"][0], spec["added_tokens"][2]))
    spec["post_processor"] = {"type": "BertProcessing" if word_piece else "RobertaProcessing",
                              "sep": [last["content"], last["id"]], "cls": [first["content"], first["id"]],
                              **({} if word_piece else {"trim_offsets": True, "add_prefix_space": False})}
    t = Tokenizer.from_str(json.dumps(spec))
    t.add_special_tokens([AddedToken("[NEW]", lstrip=True, special=True)])
    return t


def main():
    args = sys.argv[1:]
    train = args[:1] in (["--train"], ["--train-levels"])
    out = pathlib.Path((args[train:] + ["tests/fixtures/pieces"])[0])
    out.mkdir(parents=True, exist_ok=True)
    texts = strings()
    if train:
        levels = args[0] == "--train-levels"
        steps = pipelines("" if levels else charsmap())
        for name in LEVELS if levels else steps:
            (out / name).mkdir(exist_ok=True)
            trained(name, steps[name], texts[:700]).save(str(out / name / "tokenizer.json"), pretty=False)
        (out / "kinds.txt").write_text("".join(f"{name}\n" for name in steps))
    kinds = [Tokenizer.from_file(str(out / name / "tokenizer.json")) for name in (out / "kinds.txt").read_text().split()]
    lines = []
    for s in texts:
        line = []
        for t in kinds:
            ids = t.encode(s).ids
            line.append(summed(b"".join(i.to_bytes(2, "little") for i in ids)) + summed(t.decode(ids).encode()))
        lines.append("".join(line) + "\n")
    (out / "strings.hex").write_text("".join(s.encode().hex() + "\n" for s in texts))
    (out / "answers.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
