"""peer_engines.py -- the engine beside ik_llama.cpp's and llama.cpp's, in turns: peer_engines.py FORMAT | moe

The same GGUF on all sides (1.1B, random weights, quantised by the first peer) and the same eight adapters, one thread each.  A figure
is processor time, so that other work on the machine weighs little.  All programs stay, and one works at a time (bench_engine.c,
peer_engine.c).  LORAD_PEERS names the peers, "ik=SOURCE:BUILD llama=SOURCE:BUILD" or one of them: a checkout and where cmake
built its target llama, for the same instruction set as LORAD_BENCH_ISA.  LORAD_PEER_TURNS is their number.

One line of JSON: for each program and word its milliseconds, one for each turn; the load."""
import json
import os
import subprocess
import sys

from peer import ROOT, STREAMS, peers, prepared, quantised

WORDS, MIXTURE = ["base-1", "base-8", "lora-8", "prompt-512"], ["base-1", "prompt-512"]
TURNS = int(os.environ.get("LORAD_PEER_TURNS", "3"))


class Engine:
    """A program that answers words."""

    def __init__(self, argv, settings=None):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                        env={**os.environ, **(settings or {})})

    def ms(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.process.args[0]} ended at {word}")
        r = json.loads(answer)
        return round(1000 * (r["prompt_s"] if "prompt_s" in r else r["decode_s"]), 2)

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def main():
    form = sys.argv[1]
    where = prepared("moe" if form == "moe" else "1.1B") / "gguf"
    path = quantised(where, "bf16" if form == "moe" else form)
    adapters = [] if form == "moe" else sorted(where.glob("r*.gguf"))[:STREAMS]
    engines = {"lorad": Engine([ROOT / "build/release/bench_engine", path, "-"], {"LORAD_BENCH_THREADS": "1"})}
    engines.update({name: Engine([program, path, *adapters]) for name, program in peers().items()})
    took = {name: {} for name in engines}
    for _ in range(TURNS):
        for word in MIXTURE if form == "moe" else WORDS:
            for name, engine in engines.items():
                took[name].setdefault(word, []).append(engine.ms(word))
    for engine in engines.values():
        engine.close()
    print(json.dumps({**took, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
