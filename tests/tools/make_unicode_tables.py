#!/usr/bin/env python3
"""Writes engine/text/unicode_tables.c: make_unicode_tables.py > engine/text/unicode_tables.c     (needs tokenizers)

Kinds of characters (general categories), numbers, punctuation and word characters; canonical decompositions, combining
classes and compositions for NFC.
What counts is what Hugging Face's tokenizers do with a character, and each of its libraries has another version of
Unicode: so they are asked.  Python's unicodedata only names what there is to ask for.
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

LAST = 0x110000
ALL = [c for c in range(LAST) if not 0xD800 <= c < 0xE000]
MARKS = ["\u0334", "\u0345", "\u0316", "\u0301"]  # of classes 1, 240, 220, 230
nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str


def ranges(which):
    out, start = [], None
    for c in range(LAST + 1):
        inside = c in which
        if inside and start is None:
            start = c
        if not inside and start is not None:
            out.append((start, c - 1))
            start = None
    return out


def in_class(pattern):
    """What the library's own expressions find."""
    others, split = set(), pre_tokenizers.Split(Regex(pattern), "removed")
    for k in range(0, len(ALL), 20000):
        for piece, _ in split.pre_tokenize_str("".join(map(chr, ALL[k:k + 20000]))):
            others.update(map(ord, piece))
    return set(ALL) - others


def word_characters():
    r"""The \w of single_word."""
    split = pre_tokenizers.Whitespace()
    return {c for c in ALL if len(split.pre_tokenize_str("a" + chr(c) + "a")) == 1}


# General categories in the order of unicode.h's; behind them those parts of three that \s and \w have.
KINDS = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn").split()


def kinds():
    """The first character of each run of one kind, and its kind."""
    of, out = {}, []
    for k, name in enumerate(KINDS):
        of.update((c, k) for c in in_class(rf"\p{{{name}}}"))
    of.update((c, len(KINDS)) for c in in_class(r"\s") if KINDS[of[c]] == "Cc")
    for k, name in enumerate(["So", "No"]):
        of.update((c, len(KINDS) + 1 + k) for c in in_class(r"\w") if KINDS[min(of[c], 28)] == name)
    for c in ALL:
        if not out or out[-1][1] != of[c]:
            out.append((c, of[c]))
    return out


def numeric():
    """What the step Digits takes."""
    split = pre_tokenizers.Digits(individual_digits=True)
    return {c for c in ALL if len(split.pre_tokenize_str("a" + chr(c) + "a")) == 3}


def punctuation():
    split, others = pre_tokenizers.Punctuation("removed"), set()
    for k in range(0, len(ALL), 20000):
        for piece, _ in split.pre_tokenize_str("".join(map(chr, ALL[k:k + 20000]))):
            others.update(map(ord, piece))
    return set(ALL) - others


def is_mark(c):
    """Whether the library knows that it is sorted among marks."""
    pairs = [p for m in MARKS for p in (chr(c) + m, m + chr(c))]
    return any(nfd("\u4e00" + p)[1:] != nfd(p[0]) + nfd(p[1]) for p in pairs)


def is_hangul(c):
    return 0xAC00 <= c <= 0xD7A3


def decompositions():
    out = []
    for c in ALL:
        d = unicodedata.decomposition(chr(c))
        if not d or d.startswith("<") or is_hangul(c) or nfd(chr(c)) == chr(c):
            continue
        parts = [int(x, 16) for x in d.split()] + [0]
        out.append((c, parts[0], parts[1]))
    return out


def main():
    decomposed = decompositions()
    composed = sorted((a, b, c) for c, a, b in decomposed if b and nfc(chr(a) + chr(b)) == chr(c))
    classes = []
    for c in ALL:
        k = unicodedata.combining(chr(c))
        if not k or not is_mark(c):
            continue
        if classes and classes[-1][1] == c - 1 and classes[-1][2] == k:
            classes[-1] = (classes[-1][0], c, k)
        else:
            classes.append((c, c, k))
    marks = {c for a, b, _ in classes for c in range(a, b + 1)}
    # What may become one with what stands before it, or change places with it.
    joins = {c for c in ALL if ord(nfd(chr(c))[0]) in marks} | {b for _, b, _ in composed}
    joins |= set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    w = sys.stdout.write
    w("/* unicode_tables.c -- made by tests/tools/make_unicode_tables.py from tokenizers\n"
      f" * {tokenizers.__version__}; not edited by hand. */\n")
    w("/* clang-format off */\n#include \"engine/text/unicode.h\"\n\n")
    for name, table in [("unicode_numbers", ranges(in_class(r"\p{N}"))), ("unicode_digits", ranges(numeric())),
                        ("unicode_punctuation", ranges(punctuation())), ("unicode_words", ranges(word_characters())),
                        ("unicode_joins", ranges(joins))]:
        w(f"const unicode_range {name}[] = {{\n")
        for i in range(0, len(table), 4):
            w("    " + " ".join(f"{{0x{a:X}, 0x{b:X}}}," for a, b in table[i:i + 4]) + "\n")
        w(f"}};\nconst int {name}_n = {len(table)};\n\n")
    table = kinds()
    w("const uint32_t unicode_kinds[] = {\n")
    for i in range(0, len(table), 8):
        w("    " + " ".join(f"0x{k << 24 | c:X}," for c, k in table[i:i + 8]) + "\n")
    w(f"}};\nconst int unicode_kinds_n = {len(table)};\n\n")
    ascii = [next(k for c, k in reversed(table) if c <= at) for at in range(128)]
    w("const unsigned char unicode_ascii_kinds[128] = {\n")
    for i in range(0, 128, 16):
        w("    " + " ".join(f"{k}," for k in ascii[i:i + 16]) + "\n")
    w("};\n\n")
    for name, table in [("unicode_classes", classes), ("unicode_decomposed", decomposed),
                        ("unicode_composed", composed)]:
        w(f"const unicode_triple {name}[] = {{\n")
        for i in range(0, len(table), 4):
            w("    " + " ".join(f"{{0x{a:X}, 0x{b:X}, 0x{c:X}}}," for a, b, c in table[i:i + 4])
              + "\n")
        w(f"}};\nconst int {name}_n = {len(table)};\n\n")


if __name__ == "__main__":
    main()
