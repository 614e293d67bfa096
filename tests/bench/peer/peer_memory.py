"""peer_memory.py -- what a server of a quantised 1.1B holds in memory: peer_memory.py FORM

Eight streams with an adapter each, in the default arena (engine.kv_memory) alone (adapters.host_memory 0), once after a first
start, which packs the weights, and once after a second, which maps them.  The arena is counted whole, for it fills up in
time.  One line of JSON."""
import json
import pathlib
import random
import re
import sys
import tempfile
import time

import peer
from process import status_kib

ARENA_MIB = 1024  # conf/lorad.conf: on the CPU


def peak_mib(pid):
    """The most that was resident, with all of the arena."""
    arenas = [int(m[2]) / 1024 for m in re.finditer(r"\nSize:\s+(\d+) kB\n(?:.*\n){2}Rss:\s+(\d+) kB\n",
                                                    pathlib.Path(f"/proc/{pid}/smaps").read_text())
              if int(m[1]) == 1024 * ARENA_MIB]
    assert len(arenas) == 1, arenas
    return status_kib(pid, "VmHWM") / 1024 + ARENA_MIB - arenas[0]


def main():
    where, held, key = peer.prepared("1.1B"), [], None
    model = peer.quantised(where / "gguf", sys.argv[1])
    vocabulary, rng = peer.vocabulary_of(where), random.Random(1)
    with tempfile.TemporaryDirectory() as data:
        for _ in range(2):
            with peer.Lorad(model, data, {"adapters.host_memory": 0}) as s:
                key = key or s.adapters(where)
                headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
                peer.measure(lambda s=s: s.connect(timeout=600), headers,
                             [[peer.body_of(rng, vocabulary, {"model": f"a{i}"})] for i in range(peer.STREAMS)])
                while not list(pathlib.Path(data).glob("packed/*.weights")):
                    time.sleep(0.1)
                held.append(round(peak_mib(s.process.pid), 1))
    print(json.dumps({"held_mib": held, "file_mib": round(model.stat().st_size / 2**20, 1), "arena_mib": ARENA_MIB}))


if __name__ == "__main__":
    main()
