"""peer_real.py -- the speed of kl_real.py's two models, in turns: as they are served, with model.activations = int8, and in llama.cpp

A figure is the processor time of one thread, so that other work on the machine weighs little: a token of one stream and of eight, 256
positions before each, and a prompt of 512.  All programs stay, and one works at a time, in an order that turns about (bench_engine.c,
peer_engine.c).  llama.cpp: as in kl_real.py.  LORAD_PEER_TURNS is the number of turns.  One line of JSON."""
import json
import os

import kl_real
from peer import compiled
from peer_engines import Engine

WORDS = ["base-1", "base-8", "prompt-512"]
TURNS = int(os.environ.get("LORAD_PEER_TURNS", "5"))


def measured(path, program):
    alone = {"LORAD_BENCH_THREADS": "1"}
    bench = [kl_real.BUILD / "bench_engine", path, "-"]
    engines = [("lorad", Engine(bench, alone)), ("int8", Engine(bench, {**alone, "LORAD_BENCH_ACTIVATIONS": "int8"})),
               *([("llama.cpp", Engine([program, path]))] if program else [])]
    took = {name: {word: [] for word in WORDS} for name, _ in engines}
    for turn in range(TURNS):
        for word in WORDS:
            for name, engine in engines[::1 if turn % 2 else -1]:
                took[name][word].append(engine.ms(word))
    for _, engine in engines:
        engine.close()
    return took


def main():
    kl_real.enter()
    program = None if os.environ.get("LORAD_KL_PEER") == "no" else compiled("llama", *kl_real.llama())
    took = {name: measured(path, program) for name, path in kl_real.models().items()}
    print(json.dumps({**took, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
