"""Our grammars beside llguidance's and XGrammar's, in one run: grammars.py TOKENIZER_DIR SUITE [SCHEMABENCH] [N]

Needs an environment with both and the meta-schemas (pip install llguidance xgrammar jsonschema-specifications).  SUITE: a checkout
of the JSON Schema specification's own test suite, whose documents we are given too; SCHEMABENCH: one of JSONSchemaBench, of whose
maskbench/data N files (2,000) are taken, evenly.  Every schema is compiled by each of the three; every example is walked token by
token.  We come last.  One line of JSON for each: schemas accepted, wrong examples
accepted, right ones refused, masks at the 50th and 99th of a hundred, first masks (compiling included), in microseconds of the
processor's time, all threads."""
import importlib.resources
import json
import os
import pathlib
import subprocess
import sys
import time

import llguidance
import llguidance.gbnf_to_lark
import llguidance.numpy
import numpy
import xgrammar
from tokenizers import Tokenizer

TESTS_MAX, TOKENS_MAX, BYTES_MAX = 8, 300, 4000
GRAMMARS = [  # what stands for the context-free kind; texts that are right, and that are not
    ('root ::= expr\nexpr ::= term (("+" | "-") term)*\nterm ::= [0-9]+ | "(" expr ")"\n', ["1+(2-34)", "((7))"], ["1+", "(1", "a"]),
    ('root ::= "[" (item ("," item)*)? "]"\nitem ::= root | [a-z]+\n', ["[a,[b,c],[]]", "[]"], ["[a,]", "[[a]", ""]),
    ('root ::= ("<" [a-z]+ ">" root "</" [a-z]+ ">")*\n', ["<a><b></b></a>", ""], ["<a>", "<a></b"]),
]


def schemas(suite, bench, n):
    for path in sorted((pathlib.Path(suite) / "tests/draft2020-12").glob("*.json")):
        for group in json.loads(path.read_text()):
            yield group["schema"], [(t["data"], t["valid"]) for t in group["tests"]]
    files = sorted((pathlib.Path(bench) / "maskbench/data").glob("*.json")) if bench else []
    for path in files[::max(1, len(files) // n)][:n]:
        one = json.loads(path.read_text())
        yield one["schema"], [(t["data"], t["valid"]) for t in one["tests"]]


def spent():
    return time.process_time_ns()


class LLGuidance:
    name = "llguidance"

    def __init__(self, folder, vocab, eos):
        self.tok = llguidance.LLTokenizer((pathlib.Path(folder) / "tokenizer.json").read_text(), eos_token=eos)
        self.mask = numpy.zeros((1, (self.tok.vocab_size + 31) // 32), dtype=numpy.int32)

    def compile(self, spec):
        grammar = json.dumps({"grammars": [{"json_schema": spec["schema"]}]}) if "schema" in spec else \
            llguidance.grammar_from("lark", llguidance.gbnf_to_lark.any_to_lark(spec["grammar"]))
        self.first = llguidance.LLMatcher(self.tok, grammar)
        if self.first.is_error():
            raise ValueError(self.first.get_error())

    def begin(self):
        self.m = self.first.deep_copy()

    def fill(self):
        llguidance.numpy.fill_next_token_bitmask(self.m, self.mask, 0)

    def take(self, token):
        return self.m.consume_token(token)


class XGrammar:
    name = "xgrammar"

    def __init__(self, folder, vocab, eos):
        info = xgrammar.TokenizerInfo(vocab, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(vocab), stop_token_ids=[eos])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = xgrammar.allocate_token_bitmask(1, len(vocab))
        self.mask = self.bits.numpy()

    def compile(self, spec):
        self.g = self.compiler.compile_json_schema(json.dumps(spec["schema"]), any_whitespace=True, strict_mode=False) \
            if "schema" in spec else self.compiler.compile_grammar(spec["grammar"])

    def begin(self):
        self.m = xgrammar.GrammarMatcher(self.g)

    def fill(self):
        self.m.fill_next_token_bitmask(self.bits)

    def take(self, token):
        return self.m.accept_token(token)


def walk(engine, ids, eos):
    """Whether it is an answer, and each mask's time."""
    times, start = [], spent()
    engine.begin()
    for token in [*ids, eos]:
        engine.fill()
        times.append(spent() - start)
        if not engine.mask[0, token // 32] >> (token % 32) & 1:
            return False, times
        start = spent()
        if token != eos:
            engine.take(token)
    return True, times


def beside(engine, specs, eos):
    for spec in specs:
        start = spent()
        try:
            engine.compile(spec)
        except Exception:  # whatever it raises is a refusal
            yield None
            continue
        compiled = spent() - start
        yield compiled, [walk(engine, ids, eos) for ids in spec["tests"]]


def ours(folder, suite, specs):
    drafts = importlib.resources.files("jsonschema_specifications") / "schemas/draft202012"
    documents = f"https://json-schema.org/draft/2020-12/={drafts},http://localhost:1234/draft2020-12/={suite}/remotes/draft2020-12"
    program = pathlib.Path(os.environ.get("LORAD_BUILD", "build/release")) / "bench_grammar"
    path = pathlib.Path(folder) / "grammars.jsonl"
    path.write_text("".join(json.dumps({k: v for k, v in s.items() if k != "valid"}) + "\n" for s in specs))
    out = subprocess.run([program, folder, path, "1", "--check", "--documents", documents], stdout=subprocess.PIPE, text=True).stdout
    for line in out.splitlines():
        r = json.loads(line)
        yield (r["compile_ns"], list(zip(r["accepted"], r["masks_ns"]))) if r["ok"] else None


def report(name, specs, results):
    n = {"name": name, "schemas": len(specs), "accepted": 0, "kept": 0, "examples": 0, "wrong_accepted": 0, "right_refused": 0}
    masks, first, bad = [], [], []
    for k, (spec, got) in enumerate(zip(specs, results, strict=True)):
        if got is None:
            continue
        n["accepted"] += 1
        wrong = 0
        for i, ((ok, times), valid) in enumerate(zip(got[1], spec["valid"], strict=True)):
            n["examples"] += 1
            wrong += ok and not valid
            n["right_refused"] += valid and not ok
            first += [got[0] + times[0]] if i == 0 else []
            masks += times[1:]
        n["wrong_accepted"] += wrong
        n["kept"] += not wrong
        bad += [k] if wrong else []
    for what, times in (("mask", masks), ("first", first)):
        times.sort()
        n.update({f"{what}_p{p}_us": round(times[min(len(times) - 1, len(times) * p // 100)] / 1000, 1) for p in (50, 99)})
    print(json.dumps({**n, "wrong": bad[:20]}), flush=True)


def main():
    folder, suite, bench, n = [*sys.argv[1:], None, "2000"][:4] if len(sys.argv) < 4 else [*sys.argv[1:], "2000"][:4]
    tok = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
    named = json.loads((pathlib.Path(folder) / "tokenizer_config.json").read_text())["eos_token"]
    eos = tok.token_to_id(named if isinstance(named, str) else named["content"])
    size = tok.get_vocab_size()
    ll = LLGuidance(folder, None, eos)
    vocab = [bytes(ll.tok.decode_bytes([i])) for i in range(size)]
    specs = []
    for schema, tests in schemas(suite, bench, int(n)):
        texts = [(json.dumps(d, ensure_ascii=False), v) for d, v in tests]
        made = [(tok.encode(t, add_special_tokens=False).ids, v) for t, v in texts if len(t) < BYTES_MAX][:TESTS_MAX]
        made = [m for m in made if 0 < len(m[0]) < TOKENS_MAX]
        specs.append({"schema": schema, "tests": [m[0] for m in made], "valid": [m[1] for m in made]})
    for grammar, right, wrong in GRAMMARS:
        specs.append({"grammar": grammar, "tests": [tok.encode(t, add_special_tokens=False).ids for t in right + wrong if t],
                      "valid": [k < len(right) for k, t in enumerate(right + wrong) if t]})
    for engine in (ll, XGrammar(folder, vocab, eos)):
        report(engine.name, specs, beside(engine, specs, eos))
    report("lorad", specs, ours(folder, suite, specs))


main()
