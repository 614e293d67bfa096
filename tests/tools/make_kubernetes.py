#!/usr/bin/env python3
"""Makes conf/kubernetes/ (for kustomize) from the chart in conf/helm/, so that there is one text of each object.

    make_kubernetes.py            writes the files
    make_kubernetes.py --check    writes nothing, fails where one is not current (tests/e2e/programs/test_kubernetes.py does it, too)

The chart keeps to what render() knows of Helm's language: {{ .Values.a.b }}, {{ .Release.Name }}, {{ .Release.Namespace }},
`| quote`, toYaml with nindent, if, if not, and end.  All else is refused.  It needs PyYAML (build/venv-schema has it)."""
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "conf/helm"
MADE = ROOT / "conf/kubernetes"
HEAD = "# Made by tests/tools/make_kubernetes.py from conf/helm/.\n"
# What each folder has: the templates and, of an overlay, the one below it.
FOLDERS = {"base": ("options.yaml", "servers.yaml", "services.yaml", "disruption.yaml", "autoscaler.yaml", "network.yaml"),
           "gateway": ("gateway.yaml",)}
ALONE = "found.yaml"  # applied once, by hand
ACTION = re.compile(r"[ \t]*{{- (?P<word>.*?) }}\n|{{ (?P<value>.*?) }}")


def merged(own, over):
    """As Helm does it: maps by key, all else replaced; null removes a key."""
    both = {**own, **{k: merged(own[k], v) if isinstance(own.get(k), dict) and isinstance(v, dict) else v for k, v in over.items()}}
    return {k: v for k, v in both.items() if v is not None or k not in over}


def values(*files, **over):
    """The chart's, with those of the files and others in the places of its own: values(gateway={"enabled": True})."""
    v = yaml.safe_load((CHART / "values.yaml").read_text())
    for more in (*(yaml.safe_load((CHART / name).read_text()) for name in files), over):
        assert more.keys() <= v.keys(), more.keys() - v.keys()
        v = merged(v, more)
    return v


def find(name, context):
    for part in name.removeprefix(".").split("."):
        context = context[part]
    return context


def quoted(value):
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def as_yaml(value, indent):
    inside = isinstance(value, list) and any(isinstance(v, dict) for v in value)
    text = yaml.safe_dump(value, default_flow_style=None if inside else False, sort_keys=True, width=1000)
    return "".join(" " * int(indent) + line + "\n" for line in text.rstrip("\n").split("\n"))


def render(text, v, name="lorad"):
    """One template's text; "": it is not wanted."""
    context, out, shown, at = {"Values": v, "Release": {"Name": name, "Namespace": "default"}}, [], [], 0
    for m in ACTION.finditer(text):
        if all(shown):
            out.append(text[at:m.start()])
        at = m.end()
        word = m["word"] or m["value"]
        parts = re.fullmatch(r"(if not |if |toYaml |)(\.[A-Za-z.]+)( \| quote| \| nindent (\d+)|)|end", word)
        assert parts, f"not known of Helm's language: {word}"
        if word == "end":
            shown.pop()
        elif parts[1] in ("if ", "if not "):
            shown.append(bool(find(parts[2], context)) == (parts[1] == "if "))
        elif all(shown):
            value = find(parts[2], context)
            out.append(as_yaml(value, parts[4]) if parts[1] else quoted(value) if parts[3] else "" if value is None else str(value))
    assert not shown, "an if without its end"
    return "".join([*out, text[at:]])


def template(name, v, release="lorad"):
    return render((CHART / "templates" / name).read_text(), v, release)


def kustomization(folder):
    below = "  - ../base\n" if folder != "base" else ""
    return ("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n" + below +
            "".join(f"  - {name}\n" for name in FOLDERS[folder]))


def files():
    v = values(gateway={"enabled": True})
    made = {MADE / ALONE: HEAD + template(ALONE, v)}
    for folder, names in FOLDERS.items():
        made[MADE / folder / "kustomization.yaml"] = HEAD + kustomization(folder)
        made |= {MADE / folder / name: HEAD + template(name, v) for name in names}
    return made


def stale():
    made = files()
    there = {p for p in MADE.rglob("*") if p.is_file()}
    return sorted({p for p, text in made.items() if p not in there or p.read_text() != text} | (there - made.keys()))


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        for p in (old := stale()):
            print(f"{p.relative_to(ROOT)} is not current: tests/tools/make_kubernetes.py", file=sys.stderr)
        sys.exit(bool(old))
    assert not sys.argv[1:], __doc__
    for p, text in files().items():
        p.parent.mkdir(parents=True, exist_ok=True)
        p.write_text(text)
