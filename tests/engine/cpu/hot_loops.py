"""hot_loops.py -- what the compiler made of the CPU kernels' inner loops, without running them.

    hot_loops.py [--show] ARCHIVE     libengine_cpu.a of a build without sanitizers

Disassembles the kernels (objdump).  A hot loop is an innermost loop with products in it, of the functions
below.  Its sums must stay in registers: no vector goes to or comes from the stack, and none is taken to
pieces; a few pointers may be on the stack.  Fails (1) where one does, and where an object has no loop of
the size that its tile has.  77: no objdump, nothing was looked at.
"""
import argparse
import re
import shutil
import subprocess
import sys

# Functions by object, and the products of one turn of the largest loop: TILE_ROWS x 2 vectors, as tile.h has it.
TILES = {"portable": 4 * 2, "avx2": 6 * 2, "avx512": 8 * 2}
HOT = {f"linear_{isa}": (("block_f32", "block_f16", "block_bf16", "shrink", "expand"), n) for isa, n in TILES.items()}
HOT["linear_avxvnni"] = HOT["linear_avx2"]
HOT["linear_avx512vnni"] = HOT["linear_avx512"]
HOT |= {f"attend_{isa}": (("page_f32", "page_bf16", "page_f16", "page_scores_i8", "page_values_i8", "gather_end_f32", "gather_end_bf16", "gather_end_f16"), n) for isa, n in TILES.items()}
HOT["linear_avx512bf16"] = (("rows_of",), 8 * 2)
HOT["linear_amx"] = (("linear_block_tile", "linear_panel_tile"), 4)
PRODUCT = re.compile(r"v?mulps$|vfn?madd\d+ps$|vdpbf16ps$|tdpbf16ps$|v?pmaddwd$")
PIECES = re.compile(r"v?(?:pinsr|pextr)[bwdq]$")
POINTERS_MOST = 4  # stack accesses of pointers and counters in one turn
SMALLEST = 4  # products of a loop that counts as hot


def functions(archive):
    """(object, function, [(address, mnemonic, operands)]) of an archive."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", archive], check=True, capture_output=True,
                          text=True).stdout
    member = name = None
    code = []
    for line in text.splitlines():
        if m := re.match(r"(\S+?)\.c\.o:\s+file format", line):
            new = (m.group(1), None)
        elif m := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            new = (member, m.group(1))
        else:
            if m := re.match(r"\s+([0-9a-f]+):\s+(\S+)\s*(.*)", line):
                code.append((int(m.group(1), 16), m.group(2), m.group(3)))
            continue
        if name:
            yield member, name, code
        (member, name), code = new, []
    if name:
        yield member, name, code


def loops(code):
    """Bodies of the innermost loops that have products."""
    spans = []
    for at, op, args in code:
        m = re.match(r"([0-9a-f]+) <", args)
        if op.startswith("j") and m and code[0][0] <= int(m.group(1), 16) <= at:
            body = [c for c in code if int(m.group(1), 16) <= c[0] <= at]
            if sum(1 for c in body if PRODUCT.match(c[1])):
                spans.append(body)
    for body in spans:
        if not any(o is not body and o[0][0] >= body[0][0] and o[-1][0] <= body[-1][0] for o in spans):
            yield body


def look(body, framed):
    """Products, vectors and others on the stack, vectors taken to pieces, of one turn."""
    stack = r"\(%rsp|-0x[0-9a-f]+\(%rbp" if framed else r"\(%rsp"
    touch = [c for c in body if re.search(stack, c[2])]
    vectors = sum(1 for c in touch if re.search(r"%[xyz]mm", c[2]))
    return (sum(1 for c in body if PRODUCT.match(c[1])), vectors, len(touch) - vectors,
            sum(1 for c in body if PIECES.match(c[1])))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--show", action="store_true")
    p.add_argument("archive")
    a = p.parse_args()
    if not shutil.which("objdump"):
        print("no objdump: nothing was looked at")
        return 77
    bad, seen, most = 0, 0, {}
    for member, name, code in functions(a.archive):
        if name.split(".")[0] not in HOT.get(member, ((), 0))[0]:
            continue
        framed = any(c[1] == "mov" and c[2] == "%rsp,%rbp" for c in code[:16])
        for body in loops(code):
            products, vectors, others, pieces = look(body, framed)
            most[member] = max(most.get(member, 0), products)
            if products < SMALLEST:
                continue
            seen += 1
            wrong = vectors or pieces or others > POINTERS_MOST
            bad += bool(wrong)
            if wrong or a.show:
                print(f"{member} {name}+{body[0][0] - code[0][0]:#x}: {products} products, {len(body)} instructions, "
                      f"{vectors} vectors and {others} others on the stack, {pieces} taken to pieces"
                      + (": not in registers" if wrong else ""))
    for member, (_, n) in HOT.items():
        if most.get(member, 0) < n:
            print(f"{member}: its largest loop has {most.get(member, 0)} products a turn, {n} were to be there")
            bad += 1
    print(f"{seen} hot loops, {bad} faults")
    return 1 if bad else 0


sys.exit(main())
