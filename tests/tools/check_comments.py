"""Holds comments to what exists: check_comments.py ROOT words|columns

words:   a function written word() and a file written with its ending (.c, .h, .cu, .py, .sh; with or without folders)
         in a comment exist in the tree; what others wrote stands in `foreign`.  In a file's name * and NAME stand
         for any characters.
columns: no line with a comment is longer than 100 columns.  Python is left out: its heads are what --help prints.

Looks at C, C++ and CUDA, Python, shell and CMake.  Each run first looks at a comment made wrong on purpose, so a check
that finds nothing says so.
"""

import fnmatch
import io
import os
import re
import sys
import tokenize

ENDINGS = (".c", ".h", ".cu", ".cuh", ".cpp", ".inl", ".py", ".sh", ".cmake")
COLUMNS = 100
NAME = re.compile(r"(?<![\w.$])([A-Za-z_]\w+)\(\)")
FILE = re.compile(r"(?<![\w*:/.-])([\w*][\w./*-]*\.(?:c|h|cu|cuh|py|sh))(?![\w(/.-]*[\w(/-])")
CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(|\(\s*\*\s*(?:const\s+)?([A-Za-z_]\w*)\s*(?:\[[^]]*\])?\)\s*\(|"
                    r"\bdef\s+(\w+)|\b(\w+)\s*\(\)\s*\{|#\s*define\s+(\w+)")
C_TOKEN = re.compile(r'(/\*.*?\*/|//[^\n]*)|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

# Functions of libraries and languages that no line of ours calls, and other projects' files.
foreign = set("""
    convert_ids_to_tokens get_rows make_attrgetter process_new_connection soft_str
""".split())
foreign_files = set("""
    civetweb.c convert_lora_to_gguf.py
""".split())


def split_c(text):
    """The comments as (line, text), and the code without comments and strings."""
    comments = [(text.count("\n", 0, m.start()) + 1, m.group(1)) for m in C_TOKEN.finditer(text) if m.group(1)]
    return comments, C_TOKEN.sub(" ", text)


def split_python(text):
    comments, code = [], []
    last = tokenize.NEWLINE
    for t in tokenize.generate_tokens(io.StringIO(text).readline):
        starts = last in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
        if t.type == tokenize.COMMENT or (t.type == tokenize.STRING and starts):
            comments.append((t.start[0], t.string))
        elif t.type == tokenize.OP or t.type == tokenize.NAME:
            code.append(t.string)
        if t.type not in (tokenize.COMMENT, tokenize.NL):
            last = t.type
    return comments, " ".join(code)


def split_shell(text):
    comments, code = [], []
    for n, line in enumerate(text.split("\n"), 1):
        for m in re.finditer(r"(?:^|(?<=\s))#", line):
            before = line[:m.start()]
            if before.count("'") % 2 == 0 and before.count('"') % 2 == 0:
                comments.append((n, line[m.start():]))
                line = before
                break
        code.append(line)
    return comments, "\n".join(code)


def split(path, text):
    if path.endswith(".py"):
        return split_python(text)
    return split_shell(text) if path.endswith((".sh", ".cmake", "CMakeLists.txt")) else split_c(text)


def read_tree(root):
    """Path to text of all that is ours; `files` has every other path, too."""
    texts, files = {}, set()
    for folder, folders, names in os.walk(root):
        folders[:] = [d for d in folders if d not in (".git", "__pycache__") and
                      (folder != root or d != "build")]
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root)
            files.add(path)
            if name.endswith(ENDINGS) or name == "CMakeLists.txt":
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    texts[path] = f.read()
    return texts, files


def wrong_words(texts, files):
    parts = {path: split(path, text) for path, text in texts.items()}
    known, included = set(foreign), set(foreign_files)
    for path, (_, code) in parts.items():
        known.update(name for hit in CALLED.findall(code) for name in hit if name)
        included.update(re.findall(r"#\s*include\s*<([^>]+)>", texts[path]))
    ends = {"/".join(p.split("/")[i:]) for p in files for i in range(p.count("/") + 1)}
    for path, (comments, _) in sorted(parts.items()):
        for line, comment in comments:
            for m in NAME.finditer(comment):
                if m.group(1) not in known:
                    yield f"{path}:{line + comment.count(chr(10), 0, m.start())}: there is no {m.group(1)}()"
            for m in FILE.finditer(comment):
                name = m.group(1)
                if name in ends | included or fnmatch.filter(ends, name.replace("NAME", "*")):
                    continue
                yield f"{path}:{line + comment.count(chr(10), 0, m.start())}: there is no {name}"


# A change of these builds civetweb anew wherever it lies.
stamped = {"cmake/build_civetweb.sh", "cmake/civetweb-requests.inl"}


def long_comments(texts, _files):
    for path, text in sorted(texts.items()):
        if path in stamped or path.endswith(".py"):
            continue
        lines = text.split("\n")
        for first, comment in split(path, text)[0]:
            for n in range(first, first + comment.count("\n") + 1):
                if len(lines[n - 1]) > COLUMNS:
                    yield f"{path}:{n}: a comment of {len(lines[n - 1])} columns"


CHECKS = {"words": wrong_words, "columns": long_comments}
PLANTED = {
    "a.c": "/* Calls planted_gone() of gone.c and b/a.h,\n * and is_there() of a.c. */\nint is_there(void);\n",
    "b/b.py": '"""Like planted_too()."""\n' + "x = 1  # " + "long " * 20 + "\n",
    "c.sh": "# " + "long " * 20 + "\nf() {\n    echo 'no # planted_quoted()' # lost.sh\n}\n",
}
EXPECTED = {"words": 5, "columns": 1}


def main():
    root, what = sys.argv[1:]
    found = list(CHECKS[what](PLANTED, set(PLANTED)))
    if len(found) != EXPECTED[what]:
        sys.exit(f"the check is broken: of {EXPECTED[what]} planted faults it finds {found}")
    found = list(CHECKS[what](*read_tree(root)))
    for line in found:
        print(line, file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
