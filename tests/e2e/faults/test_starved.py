"""Memory that runs out: some allocations of every kind of call fail, of handshakes, starts and ends; tests/bench/run.sh oom
fails many more."""
import random
import ssl
import sys

import frames
from harness import DEMO
from starving import FOREVER, Memory, Run, StarvedServer, ends, handshakes, scenarios, starts

EACH = 2  # places of a scenario, somewhere
LAST = 8  # and of its last ones, where the answer is written
memory = Memory()
server = StarvedServer(memory, settings={"adapters.max_open_uploads": 50, "debug.loaders": 1})
run = Run(server, memory)


def some(calls):
    return sorted({*random.sample(range(calls), min(calls, EACH)), *range(max(0, calls - LAST), calls)})


def over_http2(key):
    """Two streams of a connection, from its handshake on: each is answered rightly or with 503, or reset, or the connection ends."""
    body = {"model": "base", "messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 4}

    def both():
        said = []
        try:
            w = frames.Wire(server, key)
            for id in (w.ask(), w.ask("POST", "/v1/chat/completions", body)):
                said.append(w.answer(id)[0] if w.reset(id) == "whole" else "reset")
            w.close()
        except (AssertionError, OSError, ssl.SSLError):
            said.append("ended")
        return said
    assert both() == [200, 200]
    memory.arm()
    assert both() == [200, 200]
    calls, _ = memory.disarm()
    for k in random.sample(range(calls), 40):
        memory.arm(k, random.choice((1, FOREVER)))
        said = both()
        _, failures = memory.disarm()
        run.runs, run.failures = run.runs + 1, run.failures + failures
        if not set(said) <= {200, 503, "reset", "ended"} or both() != [200, 200]:
            run.wrong.append(("http2", k, 1, said))


def main():
    random.seed(3)
    starts(run, 3, modes=(FOREVER,))
    server.start()
    key = server.tenant("starved")
    server.upload(key, "pirate", DEMO / "adapters/pirate")
    for s in scenarios(server, key):
        run.all_of(s, some)
    handshakes(run, every=16)
    over_http2(key)
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
