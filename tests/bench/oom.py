"""oom.py -- allocations that fail, one by one and all from one on, over everything that the server does; JSON at the end.

oom.py [--each N] [--starts N] [--build DIR]: at most N places of each scenario (drawn, the same each time), of N call stacks of a start.
"""
import argparse
import json
import os
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
a = argparse.ArgumentParser()
a.add_argument("--each", type=int, default=36)
a.add_argument("--starts", type=int, default=20)
a.add_argument("--build", default="build/asan")
args = a.parse_args()
os.environ["LORAD_BUILD"] = str(pathlib.Path(args.build).resolve())
os.environ.setdefault("LORAD_PATIENCE", "10")

from harness import DEMO  # noqa: E402  (the environment says which build)
from starving import Memory, Run, StarvedServer, ends, handshakes, scenarios, starts  # noqa: E402

memory = Memory()
server = StarvedServer(memory, settings={"adapters.max_open_uploads": 50})
run = Run(server, memory, verbose=True)
rng = random.Random(15)


def some(calls):
    return sorted(rng.sample(range(calls), min(calls, args.each)))


def main():
    starts(run, args.starts)
    print(f"starts: {run.runs} runs", flush=True)
    server.start()
    key = server.tenant("starved")
    server.upload(key, "pirate", DEMO / "adapters/pirate")
    for s in scenarios(server, key):
        run.all_of(s, some)
    handshakes(run)
    chat = next(s for s in scenarios(server, key) if s.name == "chat").ask(0)
    status = server.stop()  # not 0: leaks, too
    ends(run, 8, chat, key)
    return status


status = 1
try:
    status = main()
finally:
    server.__exit__(*sys.exc_info())
    crashed = bool(status) or any("Remote" in w[3] or "refused" in w[3] for w in run.wrong)
    print(json.dumps({"runs": run.runs, "failures": run.failures, "answers": run.answers, "wrong": len(run.wrong),
                      "exit": status, "crashed": crashed, "allocations": run.sizes}))
