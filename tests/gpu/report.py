#!/usr/bin/env python3
"""report.py FOLDER -- one table and one JSON of what tests/gpu/run.sh wrote into FOLDER.

<part>.status has lines "name<TAB>state<TAB>seconds<TAB>log"; state: ok, short, FAILED, TIMEOUT, skipped.  Lines "CASE name value
unit (asked <= bound): verdict" of the logs become figures, *.json (of bench_device) goes in as it is.  Exit status:
1 where something failed or ran out of time, 3 where a figure is short of what is asked, else 0.
"""
import json
import pathlib
import re
import sys

CASE = re.compile(r"^CASE (\S+)\s+(-?[\d.]+|nan|inf) (.*) \(asked (.*?)\): (ok|short)$")
BAD = ("FAILED", "TIMEOUT")


def figures(log):
    out = {}
    for line in log.read_text(errors="replace").splitlines():
        m = CASE.match(line)
        if m:
            name, value, unit, asked, verdict = m.groups()
            out[name] = {"value": float(value), "unit": unit, "asked": asked, "verdict": verdict}
    return out


def read(folder):
    report = {"machine": {}, "checks": [], "figures": {}, "measured": {}}
    machine = folder / "machine.txt"
    if machine.exists():
        for line in machine.read_text().splitlines():
            name, _, value = line.partition(": ")
            report["machine"][name] = value
    for status in sorted(folder.glob("*.status"), key=lambda p: p.stat().st_mtime_ns):
        for line in status.read_text().splitlines():
            name, state, seconds, log = line.split("\t")
            found = figures(folder / log) if (folder / log).exists() else {}
            report["figures"].update(found)
            report["checks"].append({"part": status.stem, "name": name, "state": state,
                                     "seconds": float(seconds), "log": log})
    for f in [*sorted(folder.glob("bench*.json")), *folder.glob("sweep.json")]:
        try:
            report["measured"].update(json.loads(f.read_text()))
        except ValueError:
            pass  # it died while writing: its check says so
    return report


def table(report):
    lines = [f"{k}: {v}" for k, v in report["machine"].items()]
    width = max([len(c["name"]) for c in report["checks"]] + [len(n) for n in report["figures"]] + [8])
    lines += ["", f"{'part':<12} {'check':<{width}} {'state':<8} {'s':>7}"]
    for c in report["checks"]:
        lines.append(f"{c['part']:<12} {c['name']:<{width}} {c['state']:<8} {c['seconds']:>7.1f}")
    if report["figures"]:
        lines += ["", f"{'figure':<{width + 13}} {'value':>10}  {'asked':<10} verdict"]
        for name, f in report["figures"].items():
            lines.append(f"{name:<{width + 13}} {f['value']:>10.3f}  {f['asked']:<10} {f['verdict']:<6} {f['unit']}")
    return "\n".join(lines)


def verdict(report):
    if not report["checks"] or any(c["state"] in BAD for c in report["checks"]):
        return 1
    return 3 if any(f["verdict"] == "short" for f in report["figures"].values()) else 0


def main():
    folder = pathlib.Path(sys.argv[1])
    report = read(folder)
    report["status"] = verdict(report)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    text = table(report)
    (folder / "report.txt").write_text(text + "\n")
    print(text)
    return report["status"]


if __name__ == "__main__":
    sys.exit(main())
