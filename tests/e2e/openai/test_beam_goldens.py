"""Beam search gives transformers' texts and scores: all 300 searches (test_beams.py asks a few of them)."""
import concurrent.futures

import beams
from harness import DEMO, Server, run

server = Server(settings=beams.EXACT)


def all_searches_are_transformers():
    goldens = beams.goldens()
    assert len(goldens) == 300
    for name in {g[0] for g in goldens} - {""}:
        server.upload(key, name, DEMO / "adapters" / name)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda g: beams.check(server, key, g), goldens))


with server:
    key = server.tenant("t")
    run([all_searches_are_transformers])
