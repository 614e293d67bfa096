"""What a cold adapter's first token costs: cold.py MODEL_DIR

One request at a time (no decoding beside it) against adapters of MODEL_DIR/adapters, in turns: its adapter on the
disk alone (evicted, and its file put out of the page cache), in host memory (another one has taken its place on
the device), and on the device.  Beside: how fast such a file is read from the disk and copied in memory by
one thread, and the time of one step.  One line of JSON, times in milliseconds."""
import json
import os
import pathlib
import random
import statistics
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import Server  # noqa: E402

ROUNDS = 15


def forget(path):
    """Out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def read_ms(path, n):
    forget(path)
    buf = bytearray(n)
    t0 = time.monotonic()
    with open(path, "rb", buffering=0) as f:
        at = 0
        while at < n:
            at += f.readinto(memoryview(buf)[at:])
    return 1000 * (time.monotonic() - t0)


def copy_ms(n):
    a, b = np.ones(n, dtype=np.uint8), np.zeros(n, dtype=np.uint8)
    t0 = time.monotonic()
    np.copyto(b, a)
    return 1000 * (time.monotonic() - t0)


class Asking:
    def __init__(self, server, key):
        self.c, self.key, self.rng = server.connect(), key, random.Random(1)

    def tokens_ms(self, model, n):
        """Time to each of n tokens."""
        body = {"model": model, "max_tokens": n, "ignore_eos": True, "stream": True, "temperature": 0,
                "prompt": [self.rng.randrange(1000, 20000) for _ in range(16)]}
        t0, at = time.monotonic(), []
        self.c.request("POST", "/v1/completions", json.dumps(body),
                       {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"})
        r = self.c.getresponse()
        assert r.status == 200, r.read()
        while line := r.readline():
            if line.startswith(b"data: {"):
                at.append(1000 * (time.monotonic() - t0))
        return at


def main(model):
    folders = sorted(p for p in (pathlib.Path(model) / "adapters").iterdir() if p.is_dir())[:4]
    files = [p / "adapter_model.safetensors" for p in folders]
    size = files[0].stat().st_size
    names = [p.name for p in folders]
    # Room for one on the device and for all in host memory.
    settings = {"adapters.roots": pathlib.Path(model).resolve(), "adapters.host_memory": 8 * size,
                "adapters.device_memory": size + size // 2}
    took = {k: [] for k in ("disk", "host", "device", "read", "copy", "step")}
    with Server(model=pathlib.Path(model).resolve(), settings=settings) as server:
        key = server.tenant("t")
        server.admin("POST", "/adapters/register", {"path": str((pathlib.Path(model) / "adapters").resolve()), "tenant": "t"})
        ask = Asking(server, key)
        for name in names:
            ask.tokens_ms(name, 2)
        for i in range(ROUNDS):
            # The disk's speed, by a file of the same size that is not the one asked for.
            took["read"].append(read_ms(files[(i + 1) % len(files)], size))
            took["copy"].append(copy_ms(size))
            k = i % len(files)
            server.admin("POST", f"/tenants/t/adapters/{names[k]}/evict", expect=(200, 202, 204))
            forget(files[k])
            took["disk"].append(ask.tokens_ms(names[k], 1)[0])
            took["device"].append(ask.tokens_ms(names[k], 1)[0])
            steps = ask.tokens_ms(names[k], 9)
            took["step"].append((steps[-1] - steps[0]) / (len(steps) - 1))
            ask.tokens_ms(names[(k + 1) % len(files)], 1)  # takes the place on the device
            took["host"].append(ask.tokens_ms(names[k], 1)[0])
        m = server.metrics()
    mid = {k: round(statistics.median(v), 3) for k, v in took.items()}
    bound = {"disk": mid["read"] + 2 * mid["step"] + mid["device"], "host": mid["copy"] + 2 * mid["step"] + mid["device"]}
    print(json.dumps({"bytes": size, "ms": mid, "bound_ms": {k: round(v, 3) for k, v in bound.items()},
                      "ratio": {k: round(mid[k] / bound[k], 3) for k in bound},
                      "host_hits": m['lorad_adapter_hits_total{tier="host"}'],
                      "stage_s": {k: m[f'lorad_adapter_stage_seconds_total{{stage="{k}"}}'] for k in ("read", "pack")}}))


if __name__ == "__main__":
    main(sys.argv[1])
