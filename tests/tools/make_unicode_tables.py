#!/usr/bin/env python3
"""Writes engine/text/unicode/unicode_tables.c: make_unicode_tables.py > engine/text/unicode/unicode_tables.c     (needs tokenizers)

Kinds of characters (general categories), scripts, numbers, punctuation and word characters; decompositions, combining
classes and compositions for the normal forms; small letters; what BertNormalizer and Precompiled make of a character.
What counts is what Hugging Face's tokenizers do with a character, and each of its libraries has another version of
Unicode: so they are asked.  Python's unicodedata only names what there is to ask for.
"""
import base64
import json
import struct
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


SCRIPTS = """Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali Bhaiksuki Bopomofo
Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Chorasmian Common Coptic Cuneiform
Cypriot Cypro_Minoan Cyrillic Deseret Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs Elbasan Elymaic Ethiopic Georgian
Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi Gurmukhi Han Hangul Hanifi_Rohingya Hanunoo Hatran Hebrew Hiragana
Imperial_Aramaic Inherited Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kawi Kayah_Li Kharoshthi
Khitan_Small_Script Khmer Khojki Khudawadi Lao Latin Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani Makasar Malayalam
Mandaic Manichaean Marchen Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi
Mongolian Mro Multani Myanmar Nabataean Nag_Mundari Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki
Old_Hungarian Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage
Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian
Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet
Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Toto Ugaritic Vai Vithkuqi Wancho Warang_Citi Yezidi Yi
Zanabazar_Square""".split()


def runs(of, other):
    """The first character of each run of those with one value."""
    out = []
    for c in range(LAST):
        v = of.get(c, other)
        if not out or out[-1][1] != v:
            out.append((c, v))
    return out


def scripts():
    """The names that the library's expressions know, and runs of their numbers; 0 is none."""
    names, of = [], {}
    assigned = [c for c in ALL if unicodedata.category(chr(c)) not in ("Cn", "Co")]
    assigned += sorted(in_class(r"[^\p{Cn}\p{Co}]") - set(assigned))
    for name in SCRIPTS:
        split, others = pre_tokenizers.Split(Regex(rf"\p{{{name}}}"), "removed"), set()
        for k in range(0, len(assigned), 20000):
            for piece, _ in split.pre_tokenize_str("".join(map(chr, assigned[k:k + 20000]))):
                others.update(map(ord, piece))
        names.append(name.lower().replace("_", ""))
        of.update((c, len(names)) for c in assigned if c not in others)
    return names, runs(of, 0)


def steps(table):
    """[(a, b)] as runs: first, last, b's distance from a."""
    out = []
    for a, b in table:
        if out and out[-1][1] == a - 1 and out[-1][2] == b - a:
            out[-1] = (out[-1][0], a, b - a)
        else:
            out.append((a, a, b - a))
    return [(a, b, d & 0xFFFFFFFF) for a, b, d in out]


def compatible():
    """What NFKD makes of single characters beyond NFD: runs of those that become one, all others, what those become."""
    nfkd, single, longer, pool = normalizers.NFKD().normalize_str, [], [], []
    for c in ALL:
        to = nfkd(chr(c))
        if is_hangul(c) or to == nfd(chr(c)):
            continue
        if len(to) == 1:
            single.append((c, ord(to)))
            continue
        want = list(map(ord, to))
        at = next((i for i in range(len(pool)) if pool[i:i + len(want)] == want), len(pool))
        if at == len(pool):
            pool += want
        longer.append((c, at << 8 | len(want)))
    return single, longer, pool


def lower():
    low, out = normalizers.Lowercase().normalize_str, []
    for c in ALL:
        to = low(chr(c))
        assert len(to) == 1 or (c, to) == (0x130, "i\u0307"), hex(c)
        if to != chr(c):
            out.append((c, ord(to[0])))
    return steps(out)


def bert(**what):
    off = {k: False for k in ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")}
    return normalizers.BertNormalizer(**{**off, **what}).normalize_str


def charsmap(keys):
    """A Precompiled that makes "!" of each of these bytes: its trie's first node has a child for each."""
    size = 1024
    units = [0] * size
    units[0] = 256 << 10  # the children of the root, at 256 ^ byte
    for b in keys:
        units[256 ^ b] = b | 1 << 8 | (512 ^ (256 ^ b)) << 10
    for b in keys:
        units[512] = 1 << 31
    blob = struct.pack("<I", 4 * size) + struct.pack(f"<{size}I", *units) + b"!\0"
    spec = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(blob).decode()}
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    spec = {**json.loads(t.to_str()), "normalizer": spec}
    return tokenizers.Tokenizer.from_str(json.dumps(spec)).normalizer.normalize_str


def clusters():
    """Graphemes as far as Precompiled looks at them (below six bytes): 1 breaks on both sides, 2 joins what stands before,
    3 what stands behind, 4 to 6 are the letters of Hangul, 7 its syllables, 8 half a flag."""
    after, before = charsmap([ord("a")]), charsmap([*range(1, 0x61), *range(0x62, 0x80), *range(0xC2, 0xF5)])
    of = {}
    for c in ALL:
        if c == 0 or chr(c) in "a!":
            continue
        joins, leads, open = after("a" + chr(c)) == "!", before(chr(c) + "a") == "!", before(chr(c) + "\u0300")
        if joins:
            of[c] = 2
        elif leads:
            of[c] = 3
        elif len(chr(c).encode()) < 4 and open not in ("!",):
            of[c] = 1
    for first, last, k in [(0x1100, 0x115F, 4), (0xA960, 0xA97C, 4), (0x1160, 0x11A7, 5), (0xD7B0, 0xD7C6, 5),
                           (0x11A8, 0x11FF, 6), (0xD7CB, 0xD7FB, 6), (0xAC00, 0xD7A3, 7),
                           (0x1F1E6, 0x1F1FF, 8)]:
        of.update((c, k) for c in range(first, last + 1))
    of[0] = 1
    return runs(of, 0)


def number(v):
    """The shorter of both ways to write it."""
    return min(f"0x{v:X}", str(v), key=len)


def array(w, kind, name, rows, size="", count=True):
    """A table of numbers or of tuples, as many in a line as fit."""
    w(f"const {kind} {name}[{size}] = {{\n")
    line = ""
    for row in rows:
        text = ("{" + ",".join(map(number, row)) + "}" if isinstance(row, tuple) else number(row)) + ","
        if len(line) + len(text) > 100:
            w(line + "\n")
            line = ""
        line += text
    w(line + "\n};\n" + (f"const int {name}_n = {len(rows)};\n" if count else "") + "\n")


def more_tables(w, marks_of_joins):
    """Behind those that byte-level vocabularies need."""
    clean, accents, chinese = bert(clean_text=True), bert(strip_accents=True), bert(handle_chinese_chars=True)
    strip = normalizers.StripAccents().normalize_str
    single, longer, pool = compatible()
    first_of = {c: nfd(chr(t))[0] for c, t in single} | {c: chr(pool[at >> 8]) for c, at in longer}
    joins = {c for c, t in first_of.items() if ord(t) in marks_of_joins}
    for name, table in [("unicode_joins_compatible", ranges(joins)),
                        ("unicode_bert_gone", ranges({c for c in ALL if clean(chr(c)) == ""})),
                        ("unicode_bert_accents", ranges({c for c in ALL if nfd(chr(c)) == chr(c) and accents(chr(c)) == ""})),
                        ("unicode_bert_chinese", ranges({c for c in ALL if chinese(chr(c)) != chr(c)})),
                        ("unicode_accents", ranges({c for c in ALL if strip(chr(c)) == ""}))]:
        array(w, "unicode_range", name, table)
    assert {c for c in ALL if clean(chr(c)) == " "} == {c for c in ALL if chr(c).isspace()} - set(range(0x1C, 0x20)) - {0x0B, 0x0C, 0x85}
    for name, table in [("unicode_single", steps(single)), ("unicode_lower", lower())]:
        array(w, "unicode_triple", name, table)
    array(w, "unicode_range", "unicode_longer", longer)
    array(w, "uint32_t", "unicode_longer_text", pool, count=False)
    names, script_runs = scripts()
    for name, table in [("unicode_scripts", script_runs), ("unicode_clusters", clusters())]:
        array(w, "uint32_t", name, [k << 24 | c for c, k in table])
    w("const char *const unicode_script_names[] = {\n")
    for i in range(0, len(names), 6):
        w("    " + " ".join(f'"{n}",' for n in names[i:i + 6]) + "\n")
    w(f"}};\nconst int unicode_script_names_n = {len(names)};\n")


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
    w("/* clang-format off */\n#include \"engine/text/unicode/unicode.h\"\n\n")
    for name, table in [("unicode_numbers", ranges(in_class(r"\p{N}"))), ("unicode_digits", ranges(numeric())),
                        ("unicode_punctuation", ranges(punctuation())), ("unicode_words", ranges(word_characters())),
                        ("unicode_joins", ranges(joins))]:
        array(w, "unicode_range", name, table)
    table = kinds()
    array(w, "uint32_t", "unicode_kinds", [k << 24 | c for c, k in table])
    ascii = [next(k for c, k in reversed(table) if c <= at) for at in range(128)]
    array(w, "unsigned char", "unicode_ascii_kinds", ascii, size=128, count=False)
    for name, table in [("unicode_classes", classes), ("unicode_decomposed", decomposed),
                        ("unicode_composed", composed)]:
        array(w, "unicode_triple", name, table)
    more_tables(w, marks | {b for _, b, _ in composed} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3)))


if __name__ == "__main__":
    main()
