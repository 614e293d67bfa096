"""Tokenizers and texts for test_reference.py: model directories in many variants, and random strings."""
import json
import pathlib
import unicodedata

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
KINDS = ["gpt2", "llama3", "qwen2", "llama2", "mistral"]
SCRIPTS = [(0x41, 0x7A), (0xC0, 0x24F), (0x250, 0x2AF), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58A), (0x5D0, 0x5F4),
           (0x620, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF), (0xA01, 0xA7F), (0xB80, 0xBFF), (0xC00, 0xC7F), (0xD00, 0xD7F),
           (0xD80, 0xDFF), (0xE01, 0xE5B), (0xE81, 0xEDF), (0xF00, 0xFDA), (0x1000, 0x109F), (0x10A0, 0x10FF),
           (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF), (0x1780, 0x17FF), (0x1E00, 0x1FFE), (0x3041, 0x30FF),
           (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xA000, 0xA4C6), (0x2C00, 0x2CFF), (0x10330, 0x1034A), (0x1E900, 0x1E95F)]
MARKS = [(0x300, 0x36F), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20F0), (0xFE20, 0xFE2F), (0x898, 0x8D3)]
SIGNS = [(0x2000, 0x206F), (0x2070, 0x209F), (0x20A0, 0x20CF), (0x2100, 0x218F), (0x2190, 0x23FF), (0x2460, 0x24FF),
         (0x2500, 0x25FF), (0x2600, 0x27BF), (0x3000, 0x303F), (0xFF01, 0xFFEE), (0x1D400, 0x1D7FF), (0x1F100, 0x1F1FF),
         (0x1F300, 0x1FAFF), (0xE0001, 0xE007F), (0xFE00, 0xFE0F), (0xF900, 0xFAFF)]
WORDS = ["Hello", " world", "don't", "I'LL", "naïve", "日本語", "Привет", "مرحبا", "नमस्ते", "👩‍👩‍👧", "e\u0301", "A\u030a", "12345", "3.14", "  ",
         "   ", "\n\n", " \t ", "\r\n", "<|user|>", "<s>", "</s>", "<unk>", "<|bos|>", "<|im_end|>", "x²", "ſ", "'S", "_", "▁", "▁▁",
         "\u00a0", "\u3000", "aaaaaaaaaaaaaaa", "!!!???", "ﬁ", "한국어", "\u1100\u1161\u11a8", "\x00", "\x1b[0m", "\ufeff", "\ufffd",
         "def f(x):\n    return x\n", "https://x.y/z?q=1", "½", "Ⅷ", "٣", "🇩🇪", "\u200d", "'re", "'VE", "the", "<0x41>", "<0xE9>", "é", "É",
         "paypal", "раураl", "ＡＢ", "\u2028", "\u0085", "\u212b", "\u0344", "\u0f73", "\u0958", "[", "]", "<", ">", "|", "*"]


def character(r):
    kind = r.random()
    if kind < 0.5:
        return chr(r.randint(*r.choice(SCRIPTS)))
    if kind < 0.65:
        return chr(r.randint(*r.choice(MARKS)))
    if kind < 0.8:
        return chr(r.randint(*r.choice(SIGNS)))
    if kind < 0.9:
        return chr(r.randrange(0x250))
    c = r.randrange(0x110000 - 0x800)
    return chr(c if c < 0xD800 else c + 0x800)


def strings(r, n, more=()):
    """`more`: what of this tokenizer the texts must hit."""
    out = ["", " ", "  ", "\n", "a", " a", "a "]
    while len(out) < n:
        parts = []
        for _ in range(r.randrange(1, 9)):
            kind = r.random()
            if more and kind < 0.3:
                parts.append(r.choice(more))
            elif kind < 0.6:
                parts.append(r.choice(WORDS))
            elif kind < 0.75:
                first, last = r.choice(SCRIPTS)
                parts.append("".join(chr(r.randint(first, last)) for _ in range(r.randrange(1, 9))))
            else:
                parts.append("".join(character(r) for _ in range(r.randrange(1, 5))))
            parts.append(" " * r.choice((0, 0, 0, 1, 1, 2)))
        text = "".join(parts)
        out.append(unicodedata.normalize("NFD", text) if r.random() < 0.05 else text)
    return out


def token(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": False, **flags}


def spec(kind):
    path = FIXTURES / ("chat/tok-turns" if kind == "gemma" else f"tokenizers/{kind}") / "tokenizer.json"
    return json.loads(path.read_text())


def add(s, tokens):
    """Ids as the library gives them."""
    have = {a["content"] for a in s["added_tokens"]}
    vocab = s["model"]["vocab"]
    next_id = max([len(vocab)] + [a["id"] + 1 for a in s["added_tokens"]])
    for t in tokens:
        if t["content"] in have:
            continue
        have.add(t["content"])
        if t["content"] in vocab:
            s["added_tokens"].append({"id": vocab[t["content"]], **t})
        else:
            s["added_tokens"].append({"id": next_id, **t})
            next_id += 1
    return s


FRAGMENTS = ["<", ">", "x", "ab", "the", " ", "  ", "▁", "é", "e\u0301", "\n", "Hello", "[", "]", "|", "日", "<s>", "q", "A\u030a", "'s"]


def random_tokens(r):
    """Of few pieces, so that they overlap and begin alike.  One that begins with a space strips none: the library
    dies of a token within the spaces that the one before it has stripped, if it strips them once more."""
    def chance(p):
        return r.random() < p
    out = []
    for _ in range(12):
        content = "".join(r.choice(FRAGMENTS) for _ in range(r.randrange(1, 4)))
        out.append(token(content, normalized=chance(0.6), special=chance(0.25), lstrip=chance(0.2) and not content[0].isspace(),
                         rstrip=chance(0.2), single_word=chance(0.25)))
    return out


def distinct(kind, tokens):
    """Two that look for the same are refused, by the library too."""
    def normal(t):
        s = t["content"]
        if not t["normalized"]:
            return (0, s)
        if kind in ("llama2", "gemma"):
            s = ("▁" if kind == "llama2" else "") + s.replace(" ", "▁")
        return (1, unicodedata.normalize("NFC", s) if kind == "qwen2" else s)
    return list({normal(t): t for t in tokens}.values())


NORMALIZED = [token(c, normalized=True) for c in ("<new>", "user", "Ångström", "e\u0301x", " spaced", "foo▁bar", "<|x|>")]
MIXED = NORMALIZED + [token("<raw>"), token("<left>", lstrip=True), token("<right>", rstrip=True), token("<both>", lstrip=True, rstrip=True),
                      token("word", single_word=True), token("Word", single_word=True, normalized=True), token("  "),
                      token("\n\n\n", rstrip=True), token("<sp>", special=True), token("<sn>", special=True, normalized=True),
                      token("<rn>", rstrip=True, lstrip=True, normalized=True)]
MIXED_NAMES = [t["content"] for t in MIXED]


def plain(kind, tokens=()):
    return {"tokenizer.json": add(spec(kind), tokens)}


def config(kind, model_type="llama", tokens=(), map_=None, added=None, **fields):
    files = {"tokenizer.json": add(spec(kind), tokens), "config.json": {"model_type": model_type},
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **fields}}
    if map_ is not None:
        files["special_tokens_map.json"] = map_
    if added is not None:
        files["added_tokens.json"] = added
    return files


def changed(kind, how):
    s = spec(kind)
    how(s)
    return {"tokenizer.json": s}


def decoder_of(s, **flags):
    """added_tokens_decoder with what is in the file, and more."""
    return {str(a["id"]): {k: v for k, v in a.items() if k != "id"} | flags for a in s["added_tokens"]}


def prefix_space(s):
    s["pre_tokenizer"]["add_prefix_space"] = True


def prefix_pieces(s):
    s["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True


def two_splits(s):
    s["pre_tokenizer"]["pretokenizers"].insert(0, dict(s["pre_tokenizer"]["pretokenizers"][0]))


def split_twice(s):
    s["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = True


def digits(s):
    s["pre_tokenizer"]["pretokenizers"].insert(0, {"type": "Digits", "individual_digits": True})


def metaspace(scheme, split, decoder=None):
    def how(s):
        s["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
        if decoder:
            s["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": decoder, "split": True}
    return how


def looks_back(s):
    s["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"(?<=[a-z])\d+|(?<!x) ?\w|\s+|[^\s\w]+|."


def no_decoder(s):
    s["decoder"] = None


def no_strip(s):
    s["decoder"]["decoders"].pop()


def unknown(fuse):
    """Some bytes have no token: they become the unknown one."""
    def how(s):
        for b in (0x41, 0xC3, 0xE6, 0xF0, 0x9F):
            s["model"]["vocab"][f"<gone{b}>"] = s["model"]["vocab"].pop(f"<0x{b:02X}>")
        s["model"]["fuse_unk"] = fuse
    return how


def nfc(s):
    s["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, s["normalizer"]]}


def variants(r):
    """name: (files, words that must be in the texts)"""
    out = {kind: (plain(kind), []) for kind in [*KINDS, "gemma"]}
    for kind in [*KINDS, "gemma"]:
        out[f"{kind} + tokens"] = (plain(kind, distinct(kind, MIXED)), MIXED_NAMES)
        some = distinct(kind, random_tokens(r))
        out[f"{kind} + random tokens"] = (plain(kind, some), FRAGMENTS + [t["content"] for t in some])
    out["gpt2 add_prefix_space"] = (changed("gpt2", prefix_space), ["\na", "\tx"])
    out["qwen2 add_prefix_space behind its split"] = (changed("qwen2", prefix_pieces), [])
    for name, how in (("the same split twice", two_splits), ("use_regex behind its split", split_twice), ("digits first", digits), ("looks back", looks_back)):
        out[f"llama3 {name}"] = (changed("llama3", how), ["12345"])
    out["llama2 without Strip"] = (changed("llama2", no_strip), [])
    out["llama2 without a decoder"] = (changed("llama2", no_decoder), [])
    out["llama2 NFC"] = (changed("llama2", nfc), [])
    for fuse in (True, False):
        out[f"llama2 without some bytes, fuse_unk {fuse}"] = (changed("llama2", unknown(fuse)), ["A", "AA", "é", "æ日"])
    for scheme, split, decoder in (("always", True, None), ("never", False, None), ("first", True, "first"), ("never", True, "never")):
        out[f"mistral Metaspace {scheme} {split} {decoder}"] = (changed("mistral", metaspace(scheme, split, decoder)), ["▁▁a"])
    # A5: what only other files say
    more = [token("<cfg>"), token("<cfg n>", normalized=True), token("<cfg s>", special=True, rstrip=True)]
    for kind in ("llama2", "qwen2"):
        s = spec(kind)
        base = len(s["model"]["vocab"])
        known = decoder_of(s)
        ids = {str(base + i): t for i, t in enumerate(more)}
        model_type = "llama"
        names = ["<cfg>", "<cfg n>", "<cfg s>", "  ", "<tool>", "<img>", "<pad>", "<x>", "<y>"]
        out[f"{kind} added_tokens_decoder"] = (config(kind, model_type, added_tokens_decoder=known | ids), names)
        flags = {k: v | {"lstrip": True, "normalized": True} for k, v in known.items()}
        out[f"{kind} other flags"] = (config(kind, model_type, added_tokens_decoder=flags), names + ["<s>", "<|im_start|>"])
        out[f"{kind} additional_special_tokens"] = (config(kind, model_type, additional_special_tokens=["<tool>", "<img>", "the"]), names)
        out[f"{kind} names"] = (config(
            kind, model_type, pad_token="<pad>", image_token="<img>", extra_special_tokens={"tool_token": "<tool>"},
            mask_token={"__type": "AddedToken", "content": "<x>", "lstrip": True, "rstrip": False, "normalized": True, "single_word": False},
            added_tokens_decoder=known | {str(base): token("<pad>")}), names)
        out[f"{kind} special_tokens_map.json"] = (config(kind, model_type, map_={
            "pad_token": token("<pad>", normalized=True) | {"special": True}, "additional_special_tokens": ["<tool>", "<y>"]}), names)
        out[f"{kind} added_tokens.json"] = (config(kind, model_type, additional_special_tokens=["<tool>"],
                                                   added={"<tool>": base, "<x>": base + 1, "<y>": base + 2}), names)
    # A13: LlamaTokenizer
    for name, fields in (("", {}), (" legacy", {"legacy": True}), (" without add_prefix_space", {"add_prefix_space": False}),
                         (" null", {"add_prefix_space": None, "legacy": None})):
        for model_type in ("llama", "mistral"):
            out[f"{model_type}: LlamaTokenizer{name}"] = (
                config("llama2", model_type, MIXED if not name else (), **{"tokenizer_class": "LlamaTokenizerFast", **fields}), MIXED_NAMES)
    s = spec("llama2")
    out["LlamaTokenizer added_tokens_decoder"] = (config("llama2", tokenizer_class="LlamaTokenizer", added_tokens_decoder=decoder_of(s) | {
        "900": token("<cfg>"), "901": token("<cfg n>", normalized=True)}), ["<cfg>", "<cfg n>", "  "])
    out["qwen3: LlamaTokenizer"] = (config("llama2", "qwen3", tokenizer_class="LlamaTokenizer"), ["  ", "▁"])
    out["LlamaTokenizer of a byte-level file"] = (config("llama3", tokenizer_class="LlamaTokenizerFast"), [])
    out["Qwen2Tokenizer"] = (config("qwen2", "qwen2", tokenizer_class="Qwen2Tokenizer"), ["<|im_end|>"])
    return out


def put(**fields):
    return lambda s: s.update(fields)


def model(**fields):
    return lambda s: s["model"].update(fields)


def last_split(s):
    s["pre_tokenizer"]["pretokenizers"].append(dict(s["pre_tokenizer"]["pretokenizers"][0]))


def looks_far_back(s):
    s["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?<=a*)b"


def other_id(s):
    s["added_tokens"][-1]["id"] += 3


def same_normal(s):
    add(s, [token("<a b>", normalized=True), token("<a▁b>", normalized=True)])


# What is refused: a kind, what is done to it, words of the sentence.
REFUSED = [
    ("llama3", last_split, "behind ByteLevel"), ("llama3", looks_far_back, "look-behind at more"),
    ("gpt2", put(decoder={"type": "Fuse"}), "ByteLevel"),
    ("llama3", put(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}), "ByteLevel"),
    ("llama2", put(decoder={"type": "Strip", "content": " ", "start": 1, "stop": 0}), "Strip"),
    ("llama2", put(decoder={"type": "Replace", "pattern": {"String": "_"}, "content": " "}), "Replace"),
    ("llama2", put(normalizer={"type": "ByteLevel"}), "ByteLevel"), ("llama2", put(pre_tokenizer={"type": "CharDelimiterSplit"}), "CharDelimiter"),
    ("llama2", model(dropout=0.1), "dropout"), ("llama2", model(continuing_subword_prefix="##"), "continuing_subword_prefix"),
    ("gpt2", model(type="WordPiece"), "WordPiece"),
    ("llama2", lambda s: other_id(add(s, [token("<far>")])), "'<far>' is listed with id 903"), ("llama2", same_normal, "both looked for"),
]
CONTRADICTIONS = [  # fields of tokenizer_config.json for llama2
    ({"added_tokens_decoder": {"905": token("<far>")}}, "'<far>' is listed with id 905"),
    ({"added_tokens_decoder": {"7": token("<s>")}}, "'<s>' is listed with id 7"),
    ({"added_tokens_decoder": {"x": token("<far>")}}, "no added token"), ({"added_tokens_decoder": {"900": "<far>"}}, "no added token"),
    ({"added_tokens_decoder": []}, "added_tokens_decoder"), ({"additional_special_tokens": "<far>"}, "additional_special_tokens"),
    ({"additional_special_tokens": [7]}, "no added token"), ({"split_special_tokens": True}, "split_special_tokens"),
]
