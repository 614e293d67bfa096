#!/usr/bin/env python3
"""served.py -- lorad over HTTPS on a device: the demo's base and adapters answer as on the CPU.

    LORAD_BUILD=build/gpu [LORAD_BACKEND=cuda|cpu] python3 tests/gpu/served.py

Greedy answers of the base and of each adapter are those of the CPU server (two of a hundred may differ: a tie falls otherwise
where sums are rounded otherwise); the same requests all at once give the same texts as one after another, bit for bit; a
stream ends properly; SIGTERM drains. Standard library only. 77: lorad finds no device.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from harness import BUILD, DEMO, Server, demo_adapters, events, run  # noqa: E402

BACKEND = os.environ.get("LORAD_BACKEND", "cuda")
SETTINGS = {"engine.max_rows": "256", "engine.max_seqs": "32", "engine.max_context": "1024"}
QUESTIONS = ["What is 7 plus 5?", "What color is the sky?", "Hello", "Where does the cow live?"]


def start(backend):
    s = Server(settings={**SETTINGS, "engine.backend": backend})
    s.start()
    key = s.tenant("acme")
    for name in demo_adapters():
        s.upload(key, name, DEMO / "adapters" / name)
    return s, key


def text(s, key, model, question, **more):
    r = s.ask(key, model, question, **more)
    assert r.status == 200, r
    return r.json["choices"][0]["message"]["content"]


def models():
    return ["base"] + demo_adapters()


def test_it_is_that_backend():
    out = subprocess.run([BUILD / "lorad", "check", "-c", device.dir / "lorad.conf", "--set",
                          f"engine.backend={BACKEND}"], capture_output=True, text=True)
    print(out.stdout.strip())
    assert out.returncode == 0 and f"{BACKEND}:" in out.stdout, out


def test_answers_are_the_cpus():
    cpu, cpu_key = start("cpu")
    try:
        asked = [(m, q) for m in models() for q in QUESTIONS]
        other = [(a, x, y) for a in asked
                 for x, y in [(text(device, key, *a), text(cpu, cpu_key, *a))] if x != y]
    finally:
        cpu.stop()
    for a, x, y in other:
        print(f"differs: {a}: {x!r}, CPU {y!r}")
    assert len(other) * 50 <= len(asked), f"{len(other)} of {len(asked)} differ"


def test_company_changes_nothing():
    asked = [(m, q, {"seed": i, "temperature": 0.8, "max_tokens": 24})
             for i, (m, q) in enumerate((m, q) for q in QUESTIONS for m in models())]
    alone = [text(device, key, m, q, **more) for m, q, more in asked]
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda a: text(device, key, a[0], a[1], **a[2]), asked))
    assert alone == together, [(a, x, y) for a, x, y in zip(asked, alone, together) if x != y]


def test_streams():
    r = device.ask(key, "pirate", QUESTIONS[0], stream=True)
    assert r.status == 200, r
    whole = "".join(c["delta"].get("content") or "" for e in events(r.body) for c in e["choices"])
    assert whole == text(device, key, "pirate", QUESTIONS[0])


def test_it_drains():
    assert device.stop() == 0


try:
    device, key = start(BACKEND)
except RuntimeError as e:
    print(e)
    sys.exit(77 if "no CUDA device" in str(e) or "without CUDA" in str(e) else 1)
run([test_it_is_that_backend, test_answers_are_the_cpus, test_company_changes_nothing, test_streams, test_it_drains])
