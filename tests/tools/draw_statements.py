#!/usr/bin/env python3
"""Draws statements from users' documents, to be tried on the program: draw_statements.py SEED [COUNT]

A statement is a sentence, a list item or a row of a table that says something; code blocks and headings are none.  The
same seed gives the same ones as long as the documents are the same.
"""
import pathlib
import random
import re
import sys

import check_documents

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", "SECURITY.md", "docs/tutorial.md", *sorted(p.relative_to(ROOT).as_posix() for d in ("howto", "reference", "runbooks")
                                                                for p in (ROOT / "docs" / d).glob("*.md"))]


def statements(page):
    """(line, text) of each."""
    line, block = 1, []
    lines = list(check_documents.prose((ROOT / page).read_text())) + [(0, "")]
    for i, text in lines:
        row = text.startswith("|")
        begins = re.match(r"\s*([-*+]|\d+[.)])\s", text) or text.startswith("#") or row or not text.strip()
        if begins and block:
            yield from ((line, s) for s in re.split(r"(?<=[.:])\s+(?=[A-Z`])", " ".join(block)))
            block = []
        if row and not re.fullmatch(r"[|\s:-]+", text):
            yield i, text
        elif text.strip() and not text.startswith("#") and not row:
            line = line if block else i
            block.append(text.strip())


def main(seed, count="100"):
    drawn = [(page, line, s) for page in PAGES for line, s in statements(page) if len(s.split()) >= 5]
    for page, line, s in sorted(random.Random(int(seed)).sample(drawn, int(count))):
        print(f"{page}:{line}: {s}")


if __name__ == "__main__":
    main(*sys.argv[1:])
