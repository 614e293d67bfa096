"""peer_verdict.py -- the last line of run.sh's cases beside llama.cpp: peer_verdict.py CASE JSON"""
import json
import statistics
import sys

ASKED = {"peer-1": 1.3, "peer-8": 1.8, "peer-8-adapters": 2.8}


def mid(rows, key):
    return statistics.median(r[key] for r in rows)


def quantised(name, ours, theirs):
    """Processor time of one thread beside ik_llama.cpp's, of the same file."""
    one, prompt = ([b / a for a, b in zip(ours[key], theirs[key])] for key in ("token_ms", "prompt_token_ms"))
    figure, long = statistics.median(one), statistics.median(prompt)
    asked = 1.0 if name == "peer-moe" else 1.1
    ok = figure >= asked and long >= 1
    print(f"{name} {figure:.2f} times ik_llama.cpp's tokens in the same processor time, one stream, {min(one):.2f} to {max(one):.2f} "
          f"({statistics.median(ours['token_ms']):.1f} ms to {statistics.median(theirs['token_ms']):.1f}); prompts {long:.2f}, "
          f"{min(prompt):.2f} to {max(prompt):.2f} (asked {asked}, 1): {'ok' if ok else 'short'}")
    return ok


def main():
    name, r = sys.argv[1], json.loads(sys.argv[2])
    ours, theirs = r["lorad"], r["peer"]
    if name.startswith("kl-"):
        ratios = [a / b for a, b in zip(ours, theirs)]
        figure = statistics.median(ratios)
        ok = figure <= 1.05
        print(f"{name} {figure:.3f} times llama.cpp's mean KL divergence to BF16 in F32 arithmetic, median of {len(ratios)}, "
              f"{min(ratios):.3f} to {max(ratios):.3f}: {statistics.median(ours):.3g} to {statistics.median(theirs):.3g} over "
              f"{r['positions']} positions of conf/demo's base (its BF16 file: {statistics.median(r['plain']):.1g}) "
              f"(asked 1.05): {'ok' if ok else 'short'}")
        return ok
    if name.startswith("startup-"):
        s, peer_s = mid(ours, "s"), mid(theirs, "s")
        ok = s <= peer_s
        print(f"{name} {s / peer_s:.2f} times llama.cpp's time to ready, median of {len(ours)}: {s:.2f} s to {peer_s:.2f} "
              f"({mid(theirs, 'with_python_s'):.2f} with its Python), processor time {mid(ours, 'cpu_s'):.2f} s to "
              f"{mid(theirs, 'cpu_s'):.2f} (asked 1): {'ok' if ok else 'short'}")
        return ok
    if name == "embeddings":
        ratios = [a["per_s"] / b["per_s"] for a, b in zip(ours, theirs)]
        figure = statistics.median(ratios)
        ok = figure >= 1.3 and r["cosine"] >= 0.9999
        print(f"embeddings {figure:.2f} times llama.cpp's embeddings/s, median of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f}: "
              f"{mid(ours, 'per_s'):.1f} to {mid(theirs, 'per_s'):.1f}, of 128 tokens, processor time "
              f"{mid(ours, 'cpu_ms'):.0f} ms to {mid(theirs, 'cpu_ms'):.0f}, at a load of {r['load']:.1f}; the least cosine of a "
              f"pair {r['cosine']:.6f} (asked 1.3, 0.9999): {'ok' if ok else 'short'}")
        return ok
    if name.startswith("peer-q") or name == "peer-moe":
        return quantised(name, ours, theirs)
    for who, rows in r.items():
        print(f"{who:6} {mid(rows, 'tokens_per_s'):7.1f} tokens/s  TTFT p50 {mid(rows, 'ttft_p50_ms'):7.0f} ms  "
              f"ITL p50 {mid(rows, 'itl_p50_ms'):6.1f} ms")
    ratios = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(ours, theirs)]
    figure = statistics.median(ratios)
    ok = figure >= ASKED[name]
    print(f"{name} {figure:.2f} times llama.cpp's tokens/s, median of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f} "
          f"(asked {ASKED[name]}): {'ok' if ok else 'short'}")
    return ok


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
