"""Pictures of loratop for docs/screens: make_captures.py (in tests/e2e's environment, as its tests).

A server with the demo model under load, loratop in tmux, and what tmux has on the screen: as SVG with its colours, as text
where there are none.  LORAD_BUILD names the build."""
import html
import itertools
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests/e2e"), str(ROOT / "tests/e2e/programs")]
from harness import BUILD, DEMO, Server, demo_adapters  # noqa: E402
from test_loratop import Term  # noqa: E402

OUT = ROOT / "docs/screens"
WARM_S = 75  # of load, so that charts and spans of ten seconds have something
CELL, LINE, FONT = 8, 17, 13  # pixels
BACK, FRONT = "#16181d", "#d5d7da"
BASE = ["#000000", "#e0605e", "#7fc06e", "#d7a95b", "#6f9fd8", "#b98bd0", "#5fb7b7", "#d5d7da",
        "#70747c", "#ff7b72", "#98d982", "#f0c674", "#8ab8f0", "#d0a6e8", "#7fd7d7", "#ffffff"]


def colour(n):
    """Of the palette of 256."""
    if n < 16:
        return BASE[n]
    if n >= 232:
        return "#" + f"{8 + 10 * (n - 232):02x}" * 3
    n -= 16
    return "#" + "".join(f"{0 if v == 0 else 55 + 40 * v:02x}" for v in (n // 36, n // 6 % 6, n % 6))


class Pen:
    def __init__(self):
        self.clear()

    def clear(self):
        self.front, self.back, self.bold, self.dim, self.turned, self.under = None, None, False, False, False, False

    def take(self, codes):
        """The numbers of one SGR sequence."""
        n = iter([int(c) if c else 0 for c in re.split("[;:]", codes)])
        for c in n:
            if c == 0:
                self.clear()
            elif c in (1, 2, 4, 7):
                setattr(self, {1: "bold", 2: "dim", 4: "under", 7: "turned"}[c], True)
            elif c in (22, 24, 27):
                for what in {22: ("bold", "dim"), 24: ("under",), 27: ("turned",)}[c]:
                    setattr(self, what, False)
            elif c in (38, 48):
                assert next(n) == 5, "only palettes are used"
                setattr(self, "front" if c == 38 else "back", colour(next(n)))
            elif c in (39, 49):
                setattr(self, "front" if c == 39 else "back", None)
            elif 30 <= c % 60 <= 37 and c < 100:
                self.front = colour(c % 60 - 30 + (8 if c >= 90 else 0))
            elif 40 <= c <= 47 or 100 <= c <= 107:
                self.back = colour(c - 40 if c < 50 else c - 92)

    def look(self):
        front, back = self.front or FRONT, self.back
        if self.turned:
            front, back = back or BACK, front
        return front, back, self.bold, self.dim, self.under


def runs(line):
    """[(column, text, look)] of a line with escapes; the pen goes on from line to line in tmux's output."""
    at = 0
    for part in re.split(r"(\x1b\[[0-9;:]*m)", line):
        if part.startswith("\x1b["):
            pen.take(part[2:-1])
        elif part:
            yield at, part, pen.look()
            at += len(part)


pen = Pen()


def svg(text, cols, rows):
    names, boxes, out = {}, [], []
    pen.clear()
    for y, line in enumerate(text.rstrip("\n").split("\n")):
        spans = []
        for x, part, (front, back, bold, dim, under) in runs(line):
            if back:
                boxes.append(f'<rect x="{x * CELL}" y="{y * LINE}" width="{len(part) * CELL}" height="{LINE}" fill="{back}"/>')
            for m in re.finditer(r"\S+(?: \S+)*", part):
                style = f"fill:{front}" + (";font-weight:bold" if bold else "") + (";opacity:.65" if dim else "") + \
                    (";text-decoration:underline" if under else "")
                name = names.setdefault(style, f"a{len(names)}")
                spans.append(f'<tspan class="{name}" x="{(x + m.start()) * CELL}" textLength="{len(m[0]) * CELL}">{html.escape(m[0])}</tspan>')
        if spans:
            out.append(f'<text y="{y * LINE + FONT}">{"".join(spans)}</text>')
    css = "".join(f".{name}{{{style}}}" for style, name in names.items())
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{cols * CELL}" height="{rows * LINE}" xml:space="preserve">'
            f"<style>text{{font:{FONT}px monospace}}{css}</style>"
            f'<rect width="100%" height="100%" fill="{BACK}"/>\n' + "".join(boxes) + "\n" + "\n".join(out) + "\n</svg>\n")


def load(server, keys, stop):
    """Chats of all adapters; batch work of one tenant, too much of it at times."""
    names, n = itertools.cycle(demo_adapters() + ["base"]), itertools.count()

    def ask(tenant, tier, most):
        while not stop.is_set():
            server.ask(keys[tenant], next(names) if tenant == "acme" else "base", f"Tell me a story, {next(n)}.",
                       max_tokens=random.randrange(20, most), ignore_eos=True, service_tier=tier)
            stop.wait(random.random() * 0.4)
    workers = [threading.Thread(target=ask, args=a) for a in 3 * [("acme", "priority", 120)] + 3 * [("globex", "default", 200)]
               + 5 * [("initech", "flex", 250)]]
    for w in workers:
        w.start()
    return workers


def shoot(server, name, cols, rows, keys=(), wait="ready", env=None, args=(), term="tmux-256color"):
    with Term(*args, cols=cols, rows=rows, env=env, server=server, term=term) as t:
        t.wait("ready")
        for key in keys:
            t.key(key)
        t.wait(wait)
        time.sleep(8)  # some samples of its own
        if name.endswith(".svg"):
            text = svg(t.screen(True), cols, rows)
        else:
            text = t.screen().rstrip("\n") + "\n"
    (OUT / name).write_text(text)
    print(f"{name}: {len(text)} bytes")


def refused(server):
    """What a terminal without a cursor gets."""
    p = subprocess.run(["script", "-qec", str(BUILD / "loratop"), "/dev/null"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                       env={**os.environ, "TERM": "dumb", "LORAD_ADMIN_URL": f"https://localhost:{server.admin_port}",
                            "LORAD_ADMIN_KEY": server.admin_key, "LORAD_CA": str(server.ca)}, check=False)
    assert "--once" in p.stdout, p
    (OUT / "dumb.txt").write_text("$ TERM=dumb loratop\n" + p.stdout.replace("\r", ""))


def main():
    with Server(settings={"engine.max_seqs": 8}) as server:
        keys = {name: server.tenant(name, limits=limits) for name, limits in
                (("acme", {"tokens_per_day": 2000000}), ("globex", {"max_concurrent": 3}), ("initech", {"requests_per_minute": 90}))}
        for each in demo_adapters():
            server.upload(keys["acme"], each, DEMO / "adapters" / each)
        stop = threading.Event()
        workers = load(server, keys, stop)
        time.sleep(WARM_S)
        try:
            OUT.mkdir(exist_ok=True)
            for cols, rows in ((80, 24), (120, 40), (200, 60)):
                shoot(server, f"overview-{cols}x{rows}.svg", cols, rows)
            shoot(server, "requests-80x24.svg", 80, 24, keys=["4", "Right", "Right"], wait="<")
            shoot(server, "ended-120x40.svg", 120, 40, keys=["4", "e", ">"], wait="MISSED")
            shoot(server, "adapters-120x40.svg", 120, 40, keys=["3", "t"], wait="acme (")
            shoot(server, "slo-120x40.svg", 120, 40, keys=["6"], wait="10 s a point")
            shoot(server, "linux-80x24.svg", 80, 24, env={"TERM": "linux"})
            shoot(server, "no-color-80x24.txt", 80, 24, env={"NO_COLOR": "1"})
            shoot(server, "ascii-80x24.txt", 80, 24, args=["--ascii"])
            refused(server)
        finally:
            stop.set()
            for w in workers:
                w.join()


main()
