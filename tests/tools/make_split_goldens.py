#!/usr/bin/env python3
"""Makes tests/fixtures/splits: pre-tokenisers as tokenizer.json files have them, strings, and where Hugging Face's
tokenizers cuts them.

    make_split_goldens.py [--strings N] [output directory]        (needs tokenizers)

cases.jsonl: a name and the steps of a pre_tokenizer a line.  model.json: one BPE model for all, trained without a
pre-tokeniser, so that its merges reach over every border that a step does not make.  strings.hex: one string a line.
answers.txt: for each string a line, for each case two sums of 16 bits in hex: of its pieces, and of its ids; a letter stands for the sums of an earlier case (A: the first).
test_split.c computes the same two.
"""
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer, models, trainers

ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (ANY_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + r"+|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER +
          r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + ANY_CASE + r"?|[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER +
         "*" + ANY_CASE + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
          r"|\s+(?!\S)|\s+")
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
             r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
CJK2 = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
ENDS = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(regex=False, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def digits(each):
    return {"type": "Digits", "individual_digits": each}


CASES = {
    "gpt2": [byte_level(True)],
    "gpt2-prefix": [byte_level(True, True)],
    "llama3": [split(LLAMA3), byte_level()],
    "o200k": [split(O200K), byte_level()],
    "o200k-removed": [split(O200K, "Removed", True), byte_level()],
    "tekken": [split(TEKKEN), byte_level()],
    "cl100k": [split(CL100K), byte_level()],
    "smollm2": [digits(True), byte_level(True)],
    "digits": [digits(False), byte_level(True, True)],
    "deepseek3": [split(r"\p{N}{1,3}"), split(CJK), split(DEEPSEEK3), byte_level()],
    "deepseek2": [split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CJK2), digits(True), byte_level()],
    "deepseek1": [split(r"[\r\n]"), split(r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba]+"),
                  split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"), split(r"\s+$"), split(CJK2),
                  split(r"\p{N}+"), byte_level()],
    "qwen3.5": [split(ANY_CASE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
                      r"|\s+(?!\S)|\s+"), byte_level()],
    "punctuation": [{"type": "Punctuation", "behavior": "Contiguous"}, split("[0-9][0-9][0-9]"), byte_level(True)],
    "whitespace": [{"type": "Whitespace"}, byte_level()],
    "whitespace-split": [{"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "MergedWithPrevious"}, byte_level()],
    "string": [split("a.", "MergedWithNext", kind="String"), split(" ", "MergedWithPrevious", kind="String"), byte_level()],
    "lazy": [split(r"^.{2,3}?|(?:ab|a|\.\.)+?(?=[a-z]|\s)|(\d\w?){2,}|[^\S\r\n]+(?=\n|\r\n)|\W\D$"), byte_level()],
    "escapes": [split(r"\x20\u0061|[\x{3040}-\x{30ff}\P{^Mn}&&&]|\p{^L}[^\P{Lu}a-c]".replace("&&&", "&")), byte_level()],
    "classes": [split("|".join(rf"\p{{{k}}}+" for k in "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl "
                               "Zp Cf Co".split())), byte_level()],
    "scripts": [split(r"\p{Han}+|[\p{Hiragana}\p{Katakana}]+|\p{^Latin}{2}|[^\P{Cyrillic}а]+|\P{Old_Italic}\p{greek}"), byte_level()],
    "many-scripts": [split("|".join(rf"\p{{{k}}}+" for k in "Arabic Hebrew Thai Devanagari Hangul Armenian Common Inherited Greek "
                                    "Latin Ethiopic Canadian_Aboriginal Yi Runic".split())), byte_level()],
    "words": [split(r"\w+|\s+|\d|[^\w\s]"), byte_level()],
    "any-case": [split(r"(?i:k[a-m]?|'S|x{2})", "MergedWithNext"), byte_level()],
}
CASES |= {f"{end}{'-not' * invert}": [split(r"\s+|[0-9]", end, invert), byte_level()] for end in ENDS for invert in (False, True)}
# Kimi K2's: classes less the characters of one script.
NOT_HAN = UPPER[:-1] + r"&&[^\p{Han}]]", LOWER[:-1] + r"&&[^\p{Han}]]"
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?" + NOT_HAN[0] + "*" + NOT_HAN[1] + "+" + ANY_CASE + r"?|[^\r\n\p{L}\p{N}]?" + NOT_HAN[0] + "+"
        + NOT_HAN[1] + "*" + ANY_CASE + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CASES["kimi"] = [split(KIMI), byte_level()]
CASES["behind"] = [split(r"(?<=\d)[a-z]|(?<!\p{L}|')\p{Lu}\p{Ll}*|(?<=ab|\.\.|\s)\w{1,3}(?=\s|e)|(?<![^\s\p{P}])\p{N}+(?!\p{N})"),
                   byte_level()]
CASES["behind-pieces"] = [digits(False), split(r"(?<!1)[3-9]|(?<=\n)[^\n]|(?<![\s\S])\S{1,4}"), split(r"(?<=.)(?i:K)\w?(?<!\d)", "MergedWithNext"),
                          byte_level()]
CASES["both"] = [split(r"[a-zа-я\d&&[b-y5-9б-я&&[^m7]]]+", "Removed"), byte_level()]
# DeepSeek-V2's: letters with a case one by one.
CASED = ("A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
         "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
         "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"
         "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
         "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113"
         "\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184"
         "\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
         "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
         "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943")
CASES["deepseek-llm"] = [split(r"[\r\n]"), split(r"\s?[" + CASED + "]+"),
                         split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"), split(r"\s+$"), split(CJK2), digits(True),
                         byte_level()]

WORDS = ["Hello", " world", "don't", "I'LL", "WE'VE", "it'S", "'\u017f", "naïve", "über", "日本語", "カタカナ", "中文字", "Привет", "МИР", "مرحبا",
         "नमस्ते", "👩‍👩‍👧", "e\u0301", "E\u0301\u0316A\u0301", "12345", "1234567", "3.14", "  ", "\n\n", " \t ", "\r\n", "\r", "\n  \n", "x²",
         "\u017f", "\u212a", "KELVIN", "kelvin", "_", "▁", "\u00a0", "\u3000", "\u2028", "\x0b", "\x85", "!!!???", "ﬁ", "한국어", "각", "\x1b[0m",
         "\ufeff", "\ufffd", "def f(x):\n    return x\n", "https://x.y/z?q=1", "½", "Ⅷ", "٣٤٥", "๑๒๓", "ไทย", "🇩🇪", "\u200d", "'re", "'VE",
         "Ǆǅǆ", "ʰʱ", "camelCaseWord", "HTTPServer", "ⓐⒶ", "∑≠", "€$", "«»", "“q”", "--", "—", "a.b.", "ab", "..", " a", "..\n/", "$x", "\\", "`", "~",
         " " * 40, "\ua7cb\ua7cc", "\U00010d40", "\U000105c0", "\u1b4e", "\u0897", "\u2427", "\U0001e5f0", "\u166d", "\u061d"]


def strings(n):
    r, out = random.Random(20261123), ["", " ", "a", " a", "a ", "  a  b  ", "\n", "\n\n", "'", "1"]
    while len(out) < n:
        parts = []
        for _ in range(r.randrange(1, 9)):
            kind = r.random()
            if kind < 0.7:
                parts.append(r.choice(WORDS))
            elif kind < 0.9:
                c = r.choice([r.randrange(1, 0x300), r.randrange(0x300, 0x3400), r.randrange(0xA000, 0xD800),
                              r.randrange(0xE000, 0x12000), r.randrange(0x1D000, 0x20000)])
                parts.append(chr(c))
            else:
                parts.append("".join(r.choice("aA1 '\n.é") for _ in range(6)))
            parts.append(" " * (r.random() < 0.3))
        out.append("".join(parts))
    return out


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZghijklmnopqrstuvwxyz"


def summed(data):
    h = 2166136261
    for b in data:
        h = (h ^ b) * 16777619 & 0xFFFFFFFF
    return f"{(h ^ h >> 16) & 0xFFFF:04x}"


def letters():
    """The byte that each letter of GPT-2's alphabet stands for."""
    plain = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    return {**{chr(b): b for b in plain}, **{chr(256 + k): b for k, b in enumerate(sorted(set(range(256)) - set(plain)))}}


def trained(texts):
    t = Tokenizer(models.BPE())
    alphabet = {b: c for c, b in letters().items()}
    t.train_from_iterator(["".join(alphabet[b] for b in s.encode()) for s in texts], trainers.BpeTrainer(
        vocab_size=1200, show_progress=False, initial_alphabet=sorted(alphabet.values()), max_token_length=12))
    return json.loads(t.to_str())["model"]


def main():
    args = sys.argv[1:]
    n = int(args[1]) if args[:1] == ["--strings"] else 1000
    args = args[2:] if args[:1] == ["--strings"] else args
    out = pathlib.Path((args + ["tests/fixtures/splits"])[0])
    out.mkdir(parents=True, exist_ok=True)
    texts, byte_of = strings(n), letters()
    model = trained(strings(1000))
    lines = [[] for _ in texts]
    for name, steps in CASES.items():
        t = Tokenizer.from_str(json.dumps({
            "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None, "model": model,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}))
        for line, s in zip(lines, texts):
            pieces = [bytes(byte_of[c] for c in p) + b"\xff" for p, _ in t.pre_tokenizer.pre_tokenize_str(s)]
            ids = t.encode(s).ids
            line.append(summed(b"".join(pieces)) + summed(b"".join(i.to_bytes(2, "little") for i in ids)))
    (out / "model.json").write_text(json.dumps(model, ensure_ascii=False, separators=(",", ":")) + "\n")
    (out / "cases.jsonl").write_text("".join(json.dumps({"name": name, "steps": steps}, ensure_ascii=False) + "\n"
                                             for name, steps in CASES.items()))
    (out / "strings.hex").write_text("".join(s.encode().hex() + "\n" for s in texts))
    # A sum that the line already has is a letter: 'A' for that of the first case, and so on; none that is a hex digit.
    (out / "answers.txt").write_text("".join(
        "".join(LETTERS[line.index(v)] if line.index(v) < i else v for i, v in enumerate(line)) + "\n" for line in lines))


if __name__ == "__main__":
    main()
