"""hot_loops.py -- what the compiler made of the CPU kernels' inner loops, without running them.

    hot_loops.py [--show] [--objdump TOOL] ARCHIVE SET...
                     libengine_cpu.a of a build without sanitizers, for x86-64 or aarch64, and the sets in it

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
PLAIN = ("block_f32", "block_f16", "block_bf16", "shrink", "expand")
PAGES = ("page_f32", "page_bf16", "page_f16", "page_scores_i8", "page_values_i8", "gather_end_f32", "gather_end_bf16",
         "gather_end_f16", "latent_scores", "latent_values", "halves_values")
FEW = tuple(f"product_{n}" for n in range(1, 9)) + ("product_8_wide", "product_8_asks")


def tiles(sets):
    return {f"linear_{isa}": (PLAIN, n) for isa, n in sets.items()} | {f"attend_{isa}": (PAGES, n) for isa, n in sets.items()}


class X86:
    hot = tiles({"portable": 4 * 2, "avx2": 6 * 2, "avx512": 8 * 2})
    hot["linear_avxvnni"] = hot["linear_avx2"]
    hot["linear_avx512vnni"] = hot["linear_avx512"]
    hot["linear_avx512bf16"] = (("rows_of",), 8 * 2)
    hot["attend_avx512bf16"] = hot["attend_avx512"]
    hot["linear_amx"] = (("block_tile", "panel_tile"), 4)
    product = re.compile(r"v?mulps$|vfn?madd\d+ps$|vdpbf16ps$|tdpbf16ps$|v?pmaddwd$")
    pieces = re.compile(r"v?(?:pinsr|pextr)[bwdq] ")
    jump = re.compile(r"j\w+ ([0-9a-f]+) <")
    frame, turns = "mov %rsp,%rbp", 1
    stack, framed = r"\(%rsp", r"\(%rsp|-0x[0-9a-f]+\(%rbp"
    vector = re.compile(r"%[xyz]mm")


class Arm:
    hot = tiles({"portable": 8 * 2})
    hot["linear_neon"] = (FEW, 64)
    hot["linear_i8mm"] = (FEW + ("many_planes", "many_mapped", "many_bytes", "many_halves", "sweep_4", "sweep_alone"), 64)
    product = re.compile(r"fmla$|u?sdot$|usmmla$|bfmmla$|bfdot$|[su]mull2?$")
    pieces = re.compile(r"(?:[su]mov|ins) |mov (?:v\d+\.\w+\[\d+\], [wx]|[wx]\d+, v)")
    jump = re.compile(r"(?:b(?:\.\w+)?|cbn?z|tbn?z) (?:\w+, )?(?:#\d+, )?([0-9a-f]+) <")
    frame, turns = "mov x29, sp", 3  # a turn is a block of quantised weights
    stack, framed = r"\[sp", r"\[sp|\[x29"
    vector = re.compile(r"\b[qv]\d+")


POINTERS_MOST = 4  # stack accesses of pointers and counters in one turn times `turns`
SMALLEST = 4  # products of a loop that counts as hot


def functions(objdump, archive):
    """(machine, object, function, [(address, mnemonic, operands)]) of an archive."""
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", archive], check=True, capture_output=True,
                          text=True).stdout
    member = name = None
    code = []
    machine = Arm if "elf64-littleaarch64" in text[:4096] else X86
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
            yield machine, member, name, code
        (member, name), code = new, []
    if name:
        yield machine, member, name, code


def loops(machine, code):
    """Bodies of the innermost loops that have products."""
    spans = []
    for at, op, args in code:
        m = machine.jump.match(f"{op} {args}")
        if m and code[0][0] <= int(m.group(1), 16) <= at:
            body = [c for c in code if int(m.group(1), 16) <= c[0] <= at]
            if sum(1 for c in body if machine.product.match(c[1])):
                spans.append(body)
    for body in spans:
        if not any(o is not body and o[0][0] >= body[0][0] and o[-1][0] <= body[-1][0] for o in spans):
            yield body


def look(machine, body, framed):
    """Products, vectors and others on the stack, vectors taken to pieces, of one turn."""
    touch = [c for c in body if re.search(machine.framed if framed else machine.stack, c[2])]
    vectors = sum(1 for c in touch if machine.vector.search(c[2]))
    return (sum(1 for c in body if machine.product.match(c[1])), vectors, len(touch) - vectors,
            sum(1 for c in body if machine.pieces.match(f"{c[1]} {c[2]}")))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--show", action="store_true")
    p.add_argument("--objdump", default="objdump")
    p.add_argument("archive")
    p.add_argument("sets", nargs="+")
    a = p.parse_args()
    if not shutil.which(a.objdump):
        print(f"no {a.objdump}: nothing was looked at")
        return 77
    bad, seen, most, machine = 0, 0, {}, X86
    for machine, member, name, code in functions(a.objdump, a.archive):
        if name.split(".")[0] not in machine.hot.get(member, ((), 0))[0]:
            continue
        framed = any(f"{c[1]} {c[2]}" == machine.frame for c in code[:16])
        for body in loops(machine, code):
            products, vectors, others, pieces = look(machine, body, framed)
            most[member] = max(most.get(member, 0), products)
            if products < SMALLEST:
                continue
            seen += 1
            wrong = vectors or pieces or others > POINTERS_MOST * machine.turns
            bad += bool(wrong)
            if wrong or a.show:
                print(f"{member} {name}+{body[0][0] - code[0][0]:#x}: {products} products, {len(body)} instructions, "
                      f"{vectors} vectors and {others} others on the stack, {pieces} taken to pieces"
                      + (": not in registers" if wrong else ""))
    for member, (_, n) in machine.hot.items():
        if member.split("_")[1] in a.sets and most.get(member, 0) < n:
            print(f"{member}: its largest loop has {most.get(member, 0)} products a turn, {n} were to be there")
            bad += 1
    print(f"{seen} hot loops, {bad} faults")
    return 1 if bad else 0


sys.exit(main())
