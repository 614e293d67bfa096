"""Memory that runs out: some allocations of every kind of call fail, of handshakes, starts and ends; tests/bench/run.sh oom
fails many more."""
import random
import sys

from harness import DEMO
from starving import FOREVER, Memory, Run, StarvedServer, ends, handshakes, scenarios, starts

EACH = 2  # places of a scenario, somewhere
LAST = 8  # and of its last ones, where the answer is written
memory = Memory()
server = StarvedServer(memory, settings={"adapters.max_open_uploads": 50, "adapters.loaders": 1})
run = Run(server, memory)


def some(calls):
    return sorted({*random.sample(range(calls), min(calls, EACH)), *range(max(0, calls - LAST), calls)})


def main():
    random.seed(3)
    starts(run, 3, modes=(FOREVER,))
    server.start()
    key = server.tenant("starved")
    server.upload(key, "pirate", DEMO / "adapters/pirate")
    for s in scenarios(server, key):
        run.all_of(s, some)
    handshakes(run, every=16)
    chat = next(s for s in scenarios(server, key) if s.name == "chat").ask(0)
    status = server.stop()
    ends(run, 1, chat, key, modes=(FOREVER,))
    for name, k, n, why in run.wrong:
        print(f"FAILED  {name}, allocation {k}, {'once' if n == 1 else 'from there on'}: {why}")
    print(f"{run.runs} runs with {run.failures} failed allocations: {dict(run.answers)}; exit status {status}")
    ok = not run.wrong and status == 0 and run.runs > 150
    print(f"{1 if ok else 0} passed, {0 if ok else 1} failed")
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    try:
        main()
    finally:
        server.__exit__(*sys.exc_info())
