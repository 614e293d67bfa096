"""conf/grafana and conf/prometheus name only what a real scrape has: metrics, labels, label values."""
import json
import re

import promtext
from harness import DEMO, ROOT, Server, run

FUNCTIONS = {"sum", "rate", "max", "min", "topk", "histogram_quantile", "time", "absent", "increase",
             "label_values", "count", "present_over_time"}
WORDS = {"by", "and", "or", "on", "unless", "without"}
NEVER = {"instance", "le"}  # Prometheus adds the first; the second is checked with the buckets
MACROS = {"$__rate_interval": "5m", "${datasource}": "x", "$instance": ".*", "$tenant": ".*"}

TOKEN = re.compile(r'\s*(?:([0-9.]+[smhd]?)|"((?:[^"\\]|\\.)*)"|([a-zA-Z_:][a-zA-Z0-9_:]*)|(=~|!~|!=|=='
                   r'|>=|<=|[-+*/(){},\[\]=<>]))')


def tokens(text):
    for name, value in MACROS.items():
        text = text.replace(name, value)
    out, at = [], 0
    while at < len(text.rstrip()):
        m = TOKEN.match(text, at)
        assert m, f"not PromQL at {at}: {text!r}"
        kind = next(i for i in (1, 2, 3, 4) if m[i] is not None)
        out.append((" nsio"[kind], m[kind]))
        at = m.end()
    return out


def uses(text):
    """([(metric, [(label, operator, value)])], {labels of by ()}) of one expression."""
    t, metrics, grouped, i = tokens(text), [], set(), 0
    depth = 0
    while i < len(t):
        kind, word = t[i]
        depth += (word == "(") - (word == ")")
        assert depth >= 0, text
        if kind == "i" and word in ("by", "on", "without"):
            i += 2
            while t[i][1] != ")":
                if t[i][0] == "i":
                    grouped.add(t[i][1])
                i += 1
        elif kind == "i" and word in FUNCTIONS:
            assert t[i + 1][1] == "(" or t[i + 1][1] == "by", f"{word} in {text}"
        elif kind == "i" and word not in WORDS:
            matchers = []
            if i + 1 < len(t) and t[i + 1][1] == "{":
                i += 2
                while t[i][1] != "}":
                    (a, label), (_, op), (b, value) = t[i:i + 3]
                    assert a == "i" and b == "s" and op in ("=", "!=", "=~", "!~"), text
                    matchers.append((label, op, value))
                    i += 3
                    i += t[i][1] == ","
            metrics.append((word, matchers))
        i += 1
    assert depth == 0, text
    return metrics, grouped


def check(text, scrape, recorded=()):
    metrics, grouped = uses(text)
    assert metrics, text
    for name, matchers in metrics:
        if name in recorded:
            continue
        series = scrape.select(name)
        assert series, f"no such metric: {name} in {text}"
        for label, op, value in matchers:
            if label in NEVER:
                continue
            values = {l.get(label) for l, _ in series}
            assert None not in values, f"{name} has no label {label}: {text}"
            wanted = value.split("|") if op == "=~" else [value]
            for w in wanted:
                assert w == ".*" or w in values, f"{name} has no {label}={w!r}: {text}"
        for label in grouped - NEVER:
            assert all(label in l for l, _ in series), f"{name} has no label {label}: {text}"


def read_rules(path):
    """The rules of alerts.yml: a list of {key: text}.  Reads the plain part of YAML that it uses."""
    rules, under = [], None
    for n, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        m = re.fullmatch(r"( *)(- )?([a-z]+):(?: (.+))?", line)
        assert m, f"line {n}: {line}"
        indent, key, value = len(m[1] + (m[2] or "")), m[3], (m[4] or "").strip('"')
        if m[2] and key in ("alert", "record"):
            rules.append({})
        if indent == 8:
            assert key not in rules[-1], f"line {n}"
            rules[-1][key] = value
            under = key
        elif indent == 10:
            rules[-1][f"{under}.{key}"] = value
        else:
            assert key in ("groups", "name", "rules"), f"line {n}: {line}"
    return rules


def every_panel_shows_something_that_is_exported():
    board = json.loads((ROOT / "conf/grafana/lorad.json").read_text())
    panels = [p for p in board["panels"] if p["type"] != "row"]
    assert len(panels) > 20 and len({p["id"] for p in board["panels"]}) == len(board["panels"])
    cells = set()
    for p in panels:
        assert p["targets"] and p["title"], p
        for t in p["targets"]:
            check(t["expr"], scrape)
        g = p["gridPos"]
        mine = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert not mine & cells and g["x"] + g["w"] <= 24, f"{p['title']} overlaps"
        cells |= mine
        for link in p["fieldConfig"]["defaults"].get("links", []):  # from a class to its tenants, from a series to its tenant
            to = re.match(r"/d/lorad\?(?:viewPanel=(\d+)|var-tenant=\$\{__field.labels.tenant\})&", link["url"])
            assert to and link["title"], link
            if to[1]:
                assert "tenant" in next(q for q in panels if q["id"] == int(to[1]))["targets"][0]["expr"], link
            else:
                assert re.search(r"by \([^)]*tenant", p["targets"][0]["expr"]), p
    for v in board["templating"]["list"]:
        if v["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", v["query"]).groups()
            assert scrape.select(metric), v
            assert label in NEVER or all(label in l for l, _ in scrape.select(metric)), v


def every_rule_speaks_of_what_is_exported():
    rules = read_rules(ROOT / "conf/prometheus/alerts.yml")
    recorded = {r["record"] for r in rules if "record" in r}
    alerts = [r for r in rules if "alert" in r]
    assert len(recorded) >= 4 and len(alerts) >= 10
    assert len({r["alert"] for r in alerts}) == len(alerts)
    used = set()
    for r in rules:
        check(r["expr"], scrape, recorded)
        used |= {m for m, _ in uses(r["expr"])[0]}
    assert recorded <= used, recorded - used
    page = (ROOT / "docs/runbooks/alerts.md").read_text()
    panels = {p["id"] for p in json.loads((ROOT / "conf/grafana/lorad.json").read_text())["panels"] if p["type"] != "row"}
    assert re.findall(r"^## (.+)", page, re.M) == [r["alert"] for r in alerts], "a heading for each, in the same order"
    for r in alerts:
        assert r.get("annotations.runbook") == f"docs/runbooks/alerts.md#{r['alert'].lower()}", r
        assert r.get("labels.severity") in ("page", "ticket"), r
        assert r.get("annotations.summary"), r
        m = re.fullmatch(r"/d/lorad\?viewPanel=([0-9]+)", r.get("annotations.panel", ""))
        assert m and int(m[1]) in panels, r
        assert re.fullmatch(r"[0-9]+[smh]", r.get("for", "0s")), r


def the_check_itself_sees_what_is_wrong():
    for wrong in ('rate(lorad_no_such_total[5m])', 'sum by (nothing) (lorad_requests_total)',
                  'lorad_requests_total{outcome="lost"}', 'lorad_requests_total{colour="red"}',
                  'sum(lorad_requests_running'):
        try:
            check(wrong, scrape)
        except AssertionError:
            continue
        raise AssertionError(f"passes: {wrong}")


with Server() as server:
    key = server.tenant("alice")
    server.upload(key, "pirate", DEMO / "adapters" / "pirate")
    assert server.ask(key, "base", "What is 7 plus 5?").status == 200
    assert server.ask(key, "pirate", "What is 7 plus 5?").status == 200
    scrape = promtext.Scrape(server.call("GET", "/metrics", port=server.metrics_port).body.decode())
    run([every_panel_shows_something_that_is_exported, every_rule_speaks_of_what_is_exported,
         the_check_itself_sees_what_is_wrong])
