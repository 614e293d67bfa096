#!/usr/bin/env python3
"""Holds the documents to the tree: what they name exists, and nobody has to read a wall.

    check_documents.py ROOT           names each fault, fails if there is one (ctest lint.documents)
    check_documents.py --self-test    plants each fault in a small tree and wants it found (ctest lint.documents_test)

Rules, for every .md but those in FREE:
  words    no paragraph, list item or cell of a table above 80 words
  lines    README.md at most 120 lines, ARCHITECTURE.md at most 150
  path     a path or file name in backticks is in the tree
  name     a function in backticks, name(), is in the sources
  test     a ctest in backticks, room.test_noun, has its file
  option   an option in backticks, section.key, is in conf/lorad.conf; a metric lorad_... is in the sources
  link     a relative link leads to a file, and to a heading of it
  where    each row of "Where do I ..." names a file, by its whole path; names without one are beside a file of their cell
  listed   docs/README.md links to each page of docs/, and mkdocs.yml has it
  version  a client's version in clients.md is the one that the tests install
  english  users' pages have the standard word, not the project's own (ENGLISH, docs/glossary.md)
"""
import pathlib
import re
import subprocess
import sys
import tempfile

WORDS_MAX = 80
LINES_MAX = {"README.md": 120, "ARCHITECTURE.md": 150, "tests/bench/RESULTS.md": 200}
FREE = {"CHANGELOG.md"}  # of the rule "words"
SOURCE = (".c", ".h", ".cu", ".cpp", ".py", ".sh", ".inl", ".patch", ".cmake", ".mjs", ".cjs", ".dict", ".yml", ".service")
# Of users' pages, but for those that are made from the programs' texts: what to write instead.
ENGLISH = {"promises?": "target", "thoughts?": "reasoning", "seats?": "slot", "anew": "again", "foretold": "predicted", "from afar": "remotely",
           "in force": "in effect", "go(?:es)? on": "continue", "wants? a restart": "needs a restart", "by name for": "with an error that names"}
USERS = re.compile(r"README.md|SECURITY.md|docs/(?:README|tutorial|howto/(?!families).*|runbooks/.*|reference/(?!adapters|cli|configuration).*)(?:\.md)?")
FOREIGN = {"testssl.sh"}  # programs of others
SUITES = {"engine", "base", "cpu", "storage", "adapters", "gateway", "tui", "emu", "smoke", "e2e", "gpu"}


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        try:
            text = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], check=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
            names = [n for n in text.splitlines() if (self.root / n).is_file()]
        except (subprocess.CalledProcessError, OSError):  # a tarball
            names = [p.relative_to(root).as_posix() for p in self.root.rglob("*") if p.is_file()]
            names = [n for n in names if not n.startswith("build/")]
        self.files = set(names)
        self.folders = {p.as_posix() for n in names for p in pathlib.PurePath(n).parents}
        self.bases = {n.rsplit("/", 1)[-1] for n in names}
        self.tops = {n.split("/")[0] for n in names if "/" in n}
        self.documents = sorted(n for n in names if n.endswith(".md"))
        code = [n for n in names if n.endswith((".c", ".h", ".cu", ".cpp", ".py", ".inl", ".patch", ".sh"))]
        self.code = "\n".join(self.read(n) for n in code)
        self.called = set(re.findall(r"\b(\w+)\s*\(", self.code))
        self.words = set(re.findall(r"\w+", self.code))
        self.options = self.options_of("conf/lorad.conf")

    def read(self, name):
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def options_of(self, name):
        section, out = "", {}
        for line in self.read(name).splitlines() if name in self.files else ():
            if line.startswith("["):
                section = line.strip("[]")
                out[section] = set()
            elif "=" in line and not line.startswith("#"):
                out[section].add(line.split("=")[0].strip())
        return out


def prose(text):
    """(line number, line) of what is not in a code block and no comment."""
    fence = False
    for i, line in enumerate(re.sub(r"<!--.*?-->", "", text, flags=re.S).splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            fence = not fence
            yield i, ""
        else:
            yield i, "" if fence else line


def paragraphs(text):
    """(line number, words) of each paragraph, list item and cell."""
    start, words = 0, []
    for i, line in prose(text):
        new = re.match(r"\s*([-*+]|\d+[.)])\s", line) or line.startswith(("#", "|", ">")) or not line.strip()
        if new and words:
            yield start, words
            words = []
        if line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                yield i, cell.split()
        elif line.strip():
            start = start if words else i
            words += line.split()
    if words:
        yield start, words


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-")


def headings(text):
    return {anchor(line.lstrip("#")) for _, line in prose(text) if line.startswith("#")}


def check_words(tree, name, text):
    for line, words in paragraphs(text) if name not in FREE else ():
        if len(words) > WORDS_MAX:
            yield line, "words", f"{len(words)} words in one paragraph: {' '.join(words[:6])} ..."


def check_lines(tree, name, text):
    n, most = len(text.splitlines()), LINES_MAX.get(name)
    if most and n > most:
        yield n, "lines", f"{n} lines, at most {most} are asked"


def is_there(tree, path):
    path = path.rstrip("/")
    if "*" in path:
        pattern = re.compile(re.escape(path).replace(r"\*", "[^/]*") + "$")
        return any(pattern.match(f) for f in tree.files)
    return path in tree.files or path in tree.folders


def check_code(tree, name, text):
    """What stands in backticks."""
    for line, words in prose(text):
        for span in re.findall(r"`([^`]+)`", words):
            yield from ((line, *fault) for fault in faults_of(tree, span))


def faults_of(tree, span):
    for path in re.findall(r"(?<![\w./<>$@{-])[\w.*-]+(?:/[\w.*-]+)+/?(?![\w<{])", span):
        if path.split("/")[0] in tree.tops and not is_there(tree, path):
            yield "path", f"there is no {path}"
    for file in re.findall(r"(?<![\w./*<$-])[A-Za-z]\w*(?:\.\w+)+(?![\w/(])", span):
        if file.endswith(SOURCE) and file not in tree.bases | FOREIGN:
            yield "path", f"there is no {file}"
    for fn in re.findall(r"(?<![\w.])([a-z]\w*)\(\)", span):
        if fn not in tree.called:
            yield "name", f"there is no {fn}()"
    for suite, test in re.findall(r"(?<![\w.])(\w+)\.(test_\w+)(?![\w*./])", span):
        if suite in SUITES and not any(f"{test}{e}" in tree.bases for e in (".c", ".cu", ".py", ".sh")):
            yield "test", f"there is no test {suite}.{test}"
    for section, key in re.findall(r"(?<![\w./-])([a-z]+)\.([a-z][a-z_0-9]*)(?![\w.(/-])", span):
        if section not in tree.options or key in tree.options[section] or key.startswith("test") or f".{key}" in SOURCE:
            continue
        if f'"{section}.{key}"' not in tree.code:  # a scope
            yield "option", f"there is no option {section}.{key}"
    for metric in re.findall(r"(?<![\w.])lorad_[a-z_]+[a-z]", span):
        if metric not in tree.words and metric not in tree.code:
            yield "option", f"nothing is called {metric}"


def check_links(tree, name, text):
    for line, words in prose(text):
        for target in re.findall(r"\]\(([^)\s]+)\)", words):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, part = target.partition("#")
            here = pathlib.PurePath(name).parent
            full = pathlib.PurePosixPath(name) if not path else pathlib.PurePosixPath(
                (tree.root / here / path).resolve().relative_to(tree.root.resolve()).as_posix())
            if not is_there(tree, full.as_posix()):
                yield line, "link", f"{target} leads nowhere"
            elif part and part not in headings(tree.read(full.as_posix())):
                yield line, "link", f"{full} has no heading #{part}"


def check_where(tree, name, text):
    table = False
    for line, words in prose(text):
        if words.startswith("#"):
            table = words.lower().startswith("## where do i")
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", words)[1:-1]] if words.startswith("|") else []
        if not table or len(cells) < 2 or cells[0] in ("I want to", "---"):
            continue
        files = [s for s in re.findall(r"`([^`\s]+)`", cells[1]) if s in tree.files]
        if not files:
            yield line, "where", f"\"{cells[0]}\" names no file"
        for cell in cells[1:]:
            yield from ((line, "where", f"there is no {s} beside the files of its cell") for s in strays(tree, re.findall(r"`([^`\s]+)`", cell)))


def strays(tree, spans):
    """Names without a path: they are in the folder of a file that the cell names by its whole path."""
    folders = {s.rpartition("/")[0] for s in spans if s in tree.files and "/" in s}
    return [s for s in spans if folders and re.fullmatch(r"\w[\w.]*\.\w+", s) and s.endswith(SOURCE) and s not in tree.files and not any(f"{f}/{s}" in tree.files for f in folders)]


def check_listed(tree, name, text):
    """Each page is found: from the list of all pages, and in the site."""
    if name != "docs/README.md":
        return
    linked = {target.partition("#")[0] for _, words in prose(text) for target in re.findall(r"\]\(([^)\s]+)\)", words)}
    site = tree.read("mkdocs.yml") if "mkdocs.yml" in tree.files else None
    for page in tree.documents:
        short = page.removeprefix("docs/")
        if page == name or not page.startswith("docs/"):
            continue
        if short not in linked:
            yield 1, "listed", f"no link to {short}"
        if site is not None and not re.search(rf": {re.escape(short)}$", site, flags=re.M):
            yield 1, "listed", f"mkdocs.yml has no {short}"


def check_versions(tree, name, text):
    """The first table of clients.md, by the requirements of the tests; other kinds of packages than Python's are not in them."""
    if name != "docs/reference/clients.md":
        return
    files = [tree.read(f) for f in tree.files if re.fullmatch(r"tests/e2e/requirements.*\.txt", f)]
    installed = set(re.findall(r"^([\w-]+?)(?:-slim)?(?:\[\w+\])?==(\S+)$", "\n".join(files), flags=re.M))
    for line, words in prose(text):
        if m := re.match(r"\| ([\w-]+)(?: \(Python\))? \| ([\d.]+) \|", words):
            if (m[1].lower(), m[2]) not in installed:
                yield line, "version", f"no test installs {m[1]} {m[2]}"


def check_english(tree, name, text):
    if not USERS.fullmatch(name):
        return
    for line, words in prose(text):
        words = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", words)
        for own, usual in ENGLISH.items():
            if m := re.search(rf"\b(?:{own})\b", words, flags=re.I):
                yield line, "english", f"'{m.group(0)}': write '{usual}'"


CHECKS = (check_words, check_lines, check_code, check_links, check_where, check_listed, check_versions, check_english)


def check(root):
    tree = Tree(root)
    return [(name, line, rule, what) for name in tree.documents for fn in CHECKS
            for line, rule, what in fn(tree, name, tree.read(name))]


# ---------------------------------------------------------------------------------------------------- self-test

SOUND = {
    "README.md": "# A\n\nSee [there](docs/b.md#what-it-is), `gateway/a.c`, `a.c`, `go()`, `base.test_a`, `data.dir`, `lorad_up`.\n",
    "ARCHITECTURE.md": "# B\n\n## Where do I ...\n\n| I want to | go to | test |\n| --- | --- | --- |\n"
                       "| go | `gateway/a.c` | - |\n\n## Else\n\n| x | y |\n| --- | --- |\n| no | file |\n",
    "docs/b.md": "# C\n\n## What it is\n\n" + "word " * 80 + "\n\n```\n" + "word " * 100 + "gateway/none.c\n```\n",
    "docs/README.md": "# D\n\n[b](b.md#what-it-is), [f](reference/clients.md)\n",
    "mkdocs.yml": "nav:\n  - B: b.md\n  - F: reference/clients.md\n",
    "gateway/a.c": "int go(void);\nint lorad_up;\n",
    "tests/test_a.c": "\n",
    "docs/reference/clients.md": "# F\n\n| client | version |\n| --- | --- |\n| openai (Python) | 3.1 |\n| a-b | 2.0 |\n",
    "tests/e2e/requirements.txt": "openai==3.1\na-b-slim[x]==2.0\n",
    "conf/lorad.conf": "[data]\ndir = /x\n",
}
PLANTED = [  # (file, what is added, the rule that must say so)
    ("docs/b.md", "\n" + "word " * 81 + "\n", "words"),
    ("docs/b.md", "\n- " + "word " * 50 + "\n  " + "word " * 40 + "\n", "words"),
    ("docs/b.md", "\n| a |\n| --- |\n| " + "word " * 81 + " |\n", "words"),
    ("README.md", "\n" * 121, "lines"),
    ("ARCHITECTURE.md", "\n" * 150, "lines"),
    ("docs/b.md", "\n`gateway/none.c`\n", "path"),
    ("docs/b.md", "\n`gateway/street/`\n", "path"),
    ("docs/b.md", "\n`none.c`\n", "path"),
    ("docs/b.md", "\n`stay()`\n", "name"),
    ("docs/b.md", "\n`base.test_none`\n", "test"),
    ("docs/b.md", "\n`data.none`\n", "option"),
    ("docs/b.md", "\n`lorad_down`\n", "option"),
    ("docs/b.md", "\n[x](none.md)\n", "link"),
    ("docs/b.md", "\n[x](../README.md#none)\n", "link"),
    ("ARCHITECTURE.md", "\n## Where do I ...\n\n| I want to | go to |\n| --- | --- |\n| stay | `a.c` |\n", "where"),
    ("ARCHITECTURE.md", "\n## Where do I ...\n\n| I want to | go to |\n| --- | --- |\n| stay | `gateway/a.c`, `test_a.c` |\n", "where"),
    ("docs/c.md", "# E\n", "listed"),
    ("docs/reference/clients.md", "| openai (Python) | 3.0 |\n", "version"),
    ("README.md", "\nIt goes on.\n", "english"),
]


def plant(root, files):
    for name, text in files.items():
        path = pathlib.Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def self_test():
    bad = 0
    for case in [None, *PLANTED]:
        with tempfile.TemporaryDirectory() as root:
            files = dict(SOUND)
            if case:
                files[case[0]] = files.get(case[0], "") + case[1]
            plant(root, files)
            found = {rule for _, _, rule, _ in check(root)}
        want = {case[2]} if case else set()
        if found != want:
            print(f"{case and (case[0], case[1][:40])}: found {sorted(found)}, wanted {sorted(want)}")
            bad += 1
    print(f"{len(PLANTED)} faults planted, {bad} answers wrong")
    return bad


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    faults = check(sys.argv[1])
    for name, line, rule, what in faults:
        print(f"{name}:{line}: {rule}: {what}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
