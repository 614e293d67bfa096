#!/usr/bin/env python3
"""faults.py -- real faults of a device under a running lorad: it restarts, and nobody is refused.

    LORAD_BUILD=build/gpu python3 tests/gpu/faults.py

libgpu_fault.so (fault.cu) breaks the device's context from inside lorad's process: a bad address, an odd one, a trap, a failed
assertion, shared memory left; or takes all of the device for kernels that never end. Each time what ran ends with 503 engine_restarting, also inside its stream, who connects meanwhile
waits, the process has the same id, and the next answers are those of before, bit for bit. 77: lorad finds no device.
"""
import concurrent.futures
import json
import os
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from harness import BUILD, DEMO, PATIENCE, Server, answered, run  # noqa: E402

KINDS = ["address", "misaligned", "trap", "assert", "shared", "endless"]
SETTINGS = {"engine.backend": "cuda", "engine.max_rows": "256", "engine.max_seqs": "32", "engine.max_context": "1024",
            "engine.device_memory_fraction": "0.1", "engine.cuda_patience": "5s"}


def long_stream(seed):
    body = {"model": "base", "prompt": "Question: What is 7 plus 5?", "max_tokens": 900, "ignore_eos": True, "stream": True, "seed": seed}
    return server.call("POST", "/v1/completions", body, key=key)


def answer(model):
    """Asked again as long as the server says that it restarts, as its Retry-After has it."""
    r = answered(server, lambda: server.ask(key, model, "What is 7 plus 5?", temperature=0.8, seed=7), lambda _: time.sleep(0.1))
    return r.json["choices"][0]["message"]["content"]


def answers():
    return [answer(m) for m in ("base", "pirate")]


def code_of(reply):
    if reply.status != 200:
        return reply.json["error"]["code"]
    said = [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]
    return said[-1].get("error", {}).get("code", "whole")


def knock(stop, refused):
    while not stop.is_set():
        try:
            server.call("GET", "/v1/models", key=key)
        except ConnectionRefusedError as e:
            refused.append(str(e))
        except OSError:
            pass  # a connection that was open when the process replaced itself
        time.sleep(0.01)


def breaks(kind):
    right, pid, before = answers(), server.process.pid, server.log_path.read_text().count("gpu_fault:")
    stop, refused = threading.Event(), []
    knocking = threading.Thread(target=knock, args=(stop, refused))
    knocking.start()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(long_stream, i) for i in range(8)]
        end = time.monotonic() + 20 * PATIENCE
        while server.metrics()["lorad_requests_running"] < 8 and time.monotonic() < end:
            time.sleep(0.005)
        part = fault.with_suffix(".part")
        part.write_text(kind)
        began = time.monotonic()
        part.rename(fault)
        codes = [code_of(s.result()) for s in streams]
    while server.log_path.read_text().count("gpu_fault:") == before:
        assert time.monotonic() < end, "no fault was made"
        time.sleep(0.01)
    now = answers()
    took = time.monotonic() - began
    stop.set()
    knocking.join()
    said = server.log_path.read_text().split("gpu_fault:")[-1].splitlines()[0]
    print(f"{kind}:{said.split(':', 1)[1]}; streams: {codes}; right again after {took:.1f} s")
    assert "no error" not in said, said
    assert "engine_restarting" in codes and set(codes) <= {"engine_restarting", "whole"}, codes
    assert not refused, refused
    assert server.process.poll() is None and server.process.pid == pid
    assert now == right, (right, now)


server = Server(settings=SETTINGS)
fault = server.dir.with_suffix(".fault")
server.env = {"LD_PRELOAD": str(BUILD / "libgpu_fault.so"), "GPU_FAULT": str(fault)}
try:
    server.start()
except RuntimeError as e:
    print(e)
    sys.exit(77 if "no CUDA device" in str(e) or "without CUDA" in str(e) else 1)
key = server.tenant("acme")
server.upload(key, "pirate", DEMO / "adapters" / "pirate")


def case(kind):
    def test():
        try:
            breaks(kind)
        except Exception:
            print("".join(server.log_path.read_text().splitlines(True)[-25:]))
            raise
    test.__name__ = f"test_{kind}"
    return test


def test_it_ends():
    assert server.stop() == 0
    os.path.exists(fault) and os.unlink(fault)


run([case(k) for k in KINDS] + [test_it_ends])
