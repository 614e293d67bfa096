#!/usr/bin/env python3
"""Writes engine/unicode_tables.c from Python's unicodedata: make_unicode_tables.py > engine/unicode_tables.c

Letters and numbers as ranges; canonical decompositions, combining classes and compositions for NFC.
"""
import sys
import unicodedata

LAST = 0x110000


def ranges(test):
    out, start = [], None
    for c in range(LAST + 1):
        inside = c < LAST and test(c)
        if inside and start is None:
            start = c
        if not inside and start is not None:
            out.append((start, c - 1))
            start = None
    return out


def is_hangul(c):
    return 0xAC00 <= c <= 0xD7A3


def main():
    cat = unicodedata.category
    letters = ranges(lambda c: cat(chr(c))[0] == "L")
    numbers = ranges(lambda c: cat(chr(c))[0] == "N")
    decomposed, composed = [], []
    for c in range(LAST):
        d = unicodedata.decomposition(chr(c))
        if not d or d.startswith("<") or is_hangul(c):
            continue
        parts = [int(x, 16) for x in d.split()] + [0]
        decomposed.append((c, parts[0], parts[1]))
        if parts[1] and unicodedata.normalize("NFC", chr(parts[0]) + chr(parts[1])) == chr(c):
            composed.append((parts[0], parts[1], c))
    classes = []
    for c in range(LAST):
        k = unicodedata.combining(chr(c))
        if k and classes and classes[-1][1] == c - 1 and classes[-1][2] == k:
            classes[-1] = (classes[-1][0], c, k)
        elif k:
            classes.append((c, c, k))
    w = sys.stdout.write
    w("/* unicode_tables.c -- made by tests/tools/make_unicode_tables.py from Unicode "
      f"{unicodedata.unidata_version}; not edited by hand. */\n")
    w("/* clang-format off */\n#include \"engine/unicode.h\"\n\n")
    for name, table in [("unicode_letters", letters), ("unicode_numbers", numbers)]:
        w(f"const unicode_range {name}[] = {{\n")
        for i in range(0, len(table), 4):
            w("    " + " ".join(f"{{0x{a:X}, 0x{b:X}}}," for a, b in table[i:i + 4]) + "\n")
        w(f"}};\nconst int {name}_n = {len(table)};\n\n")
    for name, table in [("unicode_classes", classes), ("unicode_decomposed", decomposed),
                        ("unicode_composed", sorted(composed))]:
        w(f"const unicode_triple {name}[] = {{\n")
        for i in range(0, len(table), 4):
            w("    " + " ".join(f"{{0x{a:X}, 0x{b:X}, 0x{c:X}}}," for a, b, c in table[i:i + 4])
              + "\n")
        w(f"}};\nconst int {name}_n = {len(table)};\n\n")


if __name__ == "__main__":
    main()
