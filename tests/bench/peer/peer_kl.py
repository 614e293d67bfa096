"""peer_kl.py -- what quantising costs in the answers, beside llama.cpp: peer_kl.py FORMAT

conf/demo's base, a small trained model, as BF16 and as FORMAT (q8_0, q4_0, q4_k_s: the first of LORAD_PEERS
makes it, see peer_engines.py).  llama.cpp's server draws sequences from the BF16 file.  After each of their tokens
the next one's distribution is taken of the quantised file, by both; the reference is ours of the BF16 file with F32
arithmetic.  One line of JSON: the mean KL divergences from it, of each turn; "plain": llama.cpp's of the BF16 file."""
import http.client
import json
import os
import pathlib
import subprocess
import sys

from peer import Peer, ROOT, VENV, quantised, ready

OPENINGS = ["What is the capital of Norway?", "Please repair the lantern.", "What is 7 plus 12?", "Name three birds.",
            "What is the opposite of early?", "Hello!", "The red ladder is in the", "List the colours of the wagon."]
TURNS, LENGTH = 7, 24


def prepared():
    where = ROOT / "build/bench/demo"
    where.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        if not (where / name).exists():
            (where / name).symlink_to(ROOT / "conf/demo/base" / name)
    ready()
    subprocess.run([VENV / "bin/python", ROOT / "tests/bench/peer/peer_gguf.py", where], check=True)
    return where


def ask(port, **body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    text = r.read()
    assert r.status == 200, text[:500]
    return json.loads(text)


def drawn(path, turn):
    """Sequences of tokens."""
    with Peer(path) as p:
        out = []
        for i, words in enumerate(OPENINGS):
            c = http.client.HTTPConnection("127.0.0.1", p.port)
            c.request("POST", "/tokenize", json.dumps({"content": words}), {"Content-Type": "application/json"})
            ids = json.loads(c.getresponse().read())["tokens"]
            answer = ask(p.port, prompt=ids, n_predict=LENGTH, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0,
                         ignore_eos=True, seed=100 * turn + i, return_tokens=True)
            out.append(ids + answer["tokens"])
        return out


def theirs(path, sequences, vocabulary):
    """Log-probabilities after each token [positions][vocabulary]."""
    import numpy as np
    rows = []
    with Peer(path) as p:
        for ids in sequences:
            for n in range(1, len(ids) + 1):
                r = ask(p.port, prompt=ids[:n], n_predict=1, n_probs=vocabulary, temperature=1.0, top_k=0, top_p=1.0,
                        min_p=0.0, cache_prompt=True)
                row = np.full(vocabulary, np.nan)
                for t in r["completion_probabilities"][0]["top_logprobs"]:
                    row[t["id"]] = t["logprob"]
                assert not np.isnan(row).any()
                rows.append(row)
    return np.array(rows)


def ours(path, sequences, vocabulary, isa=None):
    import numpy as np
    text = "".join(" ".join(map(str, ids)) + "\n" for ids in sequences)
    env = {**os.environ, "LORAD_BENCH_ISA": isa} if isa else os.environ
    raw = subprocess.run([ROOT / "build/release/bench_logits", path], input=text.encode(), capture_output=True, check=True,
                         env=env).stdout
    v = np.frombuffer(raw, dtype=np.float32).reshape(-1, vocabulary).astype(np.float64)
    v = v - v.max(axis=1, keepdims=True)
    return v - np.log(np.exp(v).sum(axis=1, keepdims=True))


def divergence(p, q):
    import numpy as np
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def main():
    where = prepared()
    if pathlib.Path(sys.prefix) != VENV:  # numpy is there
        os.execv(VENV / "bin/python", [str(VENV / "bin/python"), *sys.argv])
    plain, path = where / "gguf/base.gguf", quantised(where / "gguf", sys.argv[1])
    vocabulary = json.loads((where / "config.json").read_text())["vocab_size"]
    took = {"lorad": [], "peer": [], "plain": [], "positions": 0}
    for turn in range(TURNS):
        sequences = drawn(plain, turn)
        reference = ours(plain, sequences, vocabulary, "avx2")
        took["positions"] += len(reference)
        took["lorad"].append(divergence(reference, ours(path, sequences, vocabulary)))
        took["peer"].append(divergence(reference, theirs(path, sequences, vocabulary)))
        took["plain"].append(divergence(reference, theirs(plain, sequences, vocabulary)))
    print(json.dumps(took))


if __name__ == "__main__":
    main()
