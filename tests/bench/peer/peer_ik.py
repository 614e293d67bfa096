"""peer_ik.py -- the engine beside ik_llama.cpp's llama-bench, in turns: peer_ik.py FORMAT | moe

The same GGUF (1.1B, random weights, made by llama-quantize beside llama-bench), one thread each.  A figure is processor time
of a token, so that other work on the machine weighs little: of the engine as bench_engine tells it, of the peer as the
difference of a long and a short run.  LORAD_PEER_LLAMA_BENCH is the path of llama-bench, LORAD_BENCH_ISA the engine's
instruction set.  One line of JSON: milliseconds for a token of one stream, and of a prompt."""
import json
import os
import resource
import subprocess
import sys

from peer import ROOT, llama_bench, prepared, quantised

TURNS, SHORT, LONG = 3, 8, 40  # tokens of one stream
PROMPTS = 128, 384


def cpu_s(argv):
    """Of a child, all of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def theirs(bench, path, option, sizes):
    other = {"-n": "-p", "-p": "-n"}[option]
    took = [cpu_s([bench, "-m", path, "-t", "1", "-r", "1", "-w", "0", "-fa", "1", other, "0", option, str(n)]) for n in sizes]
    return 1000 * (took[1] - took[0]) / (sizes[1] - sizes[0])


def ours(path, what):
    out = subprocess.run([ROOT / "build/release/bench_engine", path, what], check=True, capture_output=True, text=True,
                         env={**os.environ, "LORAD_BENCH_THREADS": "1"}).stdout
    return json.loads(out)


def prompt(path):
    took = [ours(path, f"prompt-{n}")["prompt_s"] for n in PROMPTS]
    return 1000 * (took[1] - took[0]) / (PROMPTS[1] - PROMPTS[0])


def main():
    bench = llama_bench()
    form = sys.argv[1]  # a mixture as it is, in BF16
    path = prepared("moe") / "gguf/base.gguf" if form == "moe" else quantised(prepared("1.1B") / "gguf", form)
    took = {"lorad": {"token_ms": [], "prompt_token_ms": []}, "peer": {"token_ms": [], "prompt_token_ms": []}}
    for _ in range(TURNS):
        took["lorad"]["token_ms"].append(ours(path, "base-1")["decode_s"] * 1000)
        took["peer"]["token_ms"].append(theirs(bench, path, "-n", (SHORT, LONG)))
    for _ in range(TURNS):
        took["lorad"]["prompt_token_ms"].append(prompt(path))
        took["peer"]["prompt_token_ms"].append(theirs(bench, path, "-p", PROMPTS))
    print(json.dumps(took))


if __name__ == "__main__":
    main()
