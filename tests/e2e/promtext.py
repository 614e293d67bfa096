"""promtext.py -- a strict reader of Prometheus' text format, which fails on what a server would drop.

Checks what `promtool check metrics` checks and more: one HELP and TYPE for each family, before its
samples; samples of a family together; no series twice; counters end in _total and are not negative;
labels well formed and escaped; a histogram's buckets sorted, cumulative, with +Inf equal to _count.
"""
import math
import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(,|})')
VALUE = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|Inf)|NaN")


class Family:
    def __init__(self, name, help_text):
        self.name, self.help, self.type, self.samples = name, help_text, None, []


def unescape(text):
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text)


def sample(line):
    """(name, {label: value}, number) of one line."""
    m = NAME.match(line)
    assert m, f"no name: {line!r}"
    labels, at = {}, m.end()
    if line[at] == "{":
        at += 1
        while True:
            label = LABEL.match(line, at)
            assert label, f"bad label at {at}: {line!r}"
            assert label[1] not in labels, f"label twice: {line!r}"
            labels[label[1]] = unescape(label[2])
            at = label.end()
            if label[3] == "}":
                break
    assert line[at] == " ", line
    assert VALUE.fullmatch(line[at + 1:]), f"bad value: {line!r}"
    return m[0], labels, float(line[at + 1:])


def check_histogram(f):
    by_labels = {}
    for name, labels, value in f.samples:
        part = name.removeprefix(f.name)
        assert part in ("_bucket", "_sum", "_count"), name
        le = labels.get("le")
        assert (part == "_bucket") == (le is not None), (name, labels)
        key = frozenset((k, v) for k, v in labels.items() if k != "le")
        h = by_labels.setdefault(key, {"_bucket": []})
        if part == "_bucket":
            h["_bucket"].append((float(le), value))
        else:
            assert part not in h
            h[part] = value
    for key, h in by_labels.items():
        bounds = [b for b, _ in h["_bucket"]]
        counts = [c for _, c in h["_bucket"]]
        where = f"{f.name} {sorted(key)}"
        assert len(bounds) > 1 and bounds == sorted(set(bounds)), f"{where}: bounds {bounds}"
        assert bounds[-1] == math.inf, where
        assert counts == sorted(counts), f"{where}: not cumulative: {counts}"
        assert counts[-1] == h["_count"], f"{where}: +Inf is not the count"
        assert h["_sum"] >= 0 and (h["_count"] > 0 or h["_sum"] == 0), f"{where}: {h}"


def parse(text):
    """{family name: Family}; AssertionError says what is wrong."""
    assert text.endswith("\n")
    families, current, seen = {}, None, set()
    for line in text.split("\n")[:-1]:
        assert line and line == line.strip(), f"odd line {line!r}"
        if line.startswith("# HELP "):
            name, _, help_text = line[7:].partition(" ")
            assert NAME.fullmatch(name) and help_text.strip(), line
            assert name not in families, f"{name} a second time"
            current = families[name] = Family(name, help_text)
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert current and name == current.name and current.type is None, line
            assert kind in ("counter", "gauge", "histogram"), line
            assert not current.samples
            current.type = kind
        else:
            assert not line.startswith("#"), line
            name, labels, value = sample(line)
            assert current and current.type, line
            base = re.sub(r"_(bucket|sum|count)$", "", name) if current.type == "histogram" else name
            assert base == current.name, f"{name} stands among {current.name}"
            key = (name, frozenset(labels.items()))
            assert key not in seen, f"series twice: {line}"
            seen.add(key)
            if current.type == "counter":
                assert name.endswith("_total") and value >= 0, line
            current.samples.append((name, labels, value))
    for f in families.values():
        assert f.type and f.samples, f.name
        if f.type == "histogram":
            check_histogram(f)
    return families


class Scrape:
    """value("lorad_requests_total", outcome="stop"): the sum over all series that have these labels."""

    def __init__(self, text):
        self.families = parse(text)
        self.series = [s for f in self.families.values() for s in f.samples]

    def select(self, name, **labels):
        return [(l, v) for n, l, v in self.series
                if n == name and all(l.get(k) == w for k, w in labels.items())]

    def value(self, name, **labels):
        found = self.select(name, **labels)
        assert found, f"no series {name} {labels}"
        return sum(v for _, v in found)

    def names(self):
        return {n for n, _, _ in self.series}


def never_backwards(before, after):
    """Counters and histograms of two scrapes of one process."""
    for f in before.families.values():
        if f.type == "gauge":
            continue
        later = {(n, frozenset(l.items())): v for n, l, v in after.families[f.name].samples}
        for n, l, v in f.samples:
            assert later[n, frozenset(l.items())] >= v, (n, l)
