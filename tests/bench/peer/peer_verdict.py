"""peer_verdict.py -- the last line of run.sh's cases beside llama.cpp: peer_verdict.py CASE JSON"""
import json
import statistics
import sys

ASKED = {"peer-1": 1.3, "peer-8": 1.8, "peer-8-adapters": 2.8}
ASKED_QUANTISED = {"peer-1": 1.1, "peer-8": 1.1, "peer-8-adapters": 4.0}


def mid(rows, key):
    return statistics.median(r[key] for r in rows)


# of peer_engines.py: (word, the peer that it is asked of, how many times its tokens in the same processor time)
ENGINES = [("base-1", "ik", 1.1), ("base-8", "ik", 1.1), ("prompt-512", "ik", 1.0), ("lora-8", "llama", 4.0)]
WORDS = {"base-1": "one stream", "base-8": "eight bare", "lora-8": "eight adapters", "prompt-512": "prompts"}
BARE_OF_ADAPTERS = 0.85
REAL_SPEED = {"base-1": 0.97, "base-8": 0.95, "prompt-512": 0.90}  # of model.activations = int8; and at least llama.cpp's
REAL_KL, REAL_TOP_1 = 0.5, 0.97  # of llama.cpp's mean KL divergence to exact values; the share of positions


def against(over, under):
    """(the median of their ratios turn by turn, and it with its spread in words)"""
    ratios = [a / b for a, b in zip(over, under)]
    figure = statistics.median(ratios)
    return figure, f"{figure:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def engines(name, r):
    """Processor time of one thread beside the peers', of the same file."""
    ours, ok = r["lorad"], True
    for word, of, asked in ENGINES:
        for who in ("ik", "llama"):
            if word not in ours or word not in r.get(who, {}):
                continue
            figure, words = against(r[who][word], ours[word])
            bound = 1.0 if name == "peer-moe" else asked
            judged = f" (asked {bound:g}): {'ok' if figure >= bound else 'short'}" if who == of else ""
            ok = ok and (who != of or figure >= bound)
            print(f"{WORDS[word]:15} {who:6} {statistics.median(r[who][word]):8.1f} ms  lorad {statistics.median(ours[word]):8.1f} ms  "
                  f"{words}{judged}")
    text = ""
    if "lora-8" in ours:
        figure, words = against(ours["base-8"], ours["lora-8"])
        ok = ok and figure >= BARE_OF_ADAPTERS
        text = f"eight bare over eight adapters {words} (asked {BARE_OF_ADAPTERS}), "
    lacks = [who for who in ("ik", "llama") if who not in r]
    print(f"{name} {text}load {r['load']:.1f}{', without ' + ' and '.join(lacks) if lacks else ''}: {'ok' if ok else 'short'}")
    return ok


def real_models(name, r):
    """The loss of two real models, and what it is of llama.cpp's."""
    ok, figures = True, []
    for model, of in r.items():
        for who in ("lorad", "adapter", "llama.cpp"):
            if who in of:
                d = of[who]
                print(f"{model:20} {who:10} mean KL {d['kl']:.2e}, p99 {d['kl_p99']:.1e}, same top token {100 * d['top_1']:.2f} %, largest "
                      f"change of a log-probability {d['largest_change']:.2f}, {d.get('positions', of['positions'])} positions")
        ok = ok and of["lorad"]["top_1"] >= REAL_TOP_1
        if "llama.cpp" in of:
            ratio = of["lorad"]["kl"] / of["llama.cpp"]["kl"]
            ok = ok and ratio <= REAL_KL
            figures.append(f"{ratio:.2f} of llama.cpp's mean KL")
        figures.append(f"{100 * of['lorad']['top_1']:.2f} % the same top token")
    print(f"{name} {', '.join(figures)} ({', '.join(r)}; asked {REAL_KL}, {100 * REAL_TOP_1:g} %): {'ok' if ok else 'short'}")
    return ok


def real_speed(name, r):
    """Their speed over that with all activations in 8 bits, and over llama.cpp's."""
    load, least, peer_least = r.pop("load"), {}, None
    for model, of in r.items():
        for word in REAL_SPEED:
            figure, words = against(of["int8"][word], of["lorad"][word])
            least[word] = min(figure, least.get(word, figure))
            if "llama.cpp" in of:
                peer, peer_words = against(of["llama.cpp"][word], of["lorad"][word])
                words += f", {statistics.median(of['llama.cpp'][word]):8.2f} ms of llama.cpp: {peer_words}"
                peer_least = min(peer, peer_least or peer)
            print(f"{model:20} {WORDS[word]:10} {statistics.median(of['lorad'][word]):8.2f} ms, over int8 {words}")
    ok = all(least[word] >= asked for word, asked in REAL_SPEED.items()) and (peer_least or 1) >= 1
    print(f"{name} {', '.join(f'{WORDS[word]} {figure:.3f}' for word, figure in least.items())} of the speed with int8, the lower of two models; "
          f"{f'{peer_least:.2f} times' if peer_least else 'without'} llama.cpp's at least (asked {', '.join(map(str, REAL_SPEED.values()))}; 1), "
          f"load {load:.1f}: {'ok' if ok else 'short'}")
    return ok


def main():
    name, r = sys.argv[1], json.loads(sys.argv[2])
    if name.endswith("-real"):
        return (real_models if name == "kl-real" else real_speed)(name, r)
    if name.startswith("memory-"):
        whole = r["file_mib"] + r["arena_mib"]
        figure = max(r["held_mib"]) / whole
        print(f"{name} {figure:.3f} times the file and the arena ({r['file_mib']:.0f} MiB, {r['arena_mib']}): {r['held_mib'][0]:.0f} MiB after "
              f"a first start, {r['held_mib'][1]:.0f} after a second (asked 1.1): {'ok' if figure <= 1.1 else 'short'}")
        return figure <= 1.1
    if "base-1" in r["lorad"]:
        return engines(name, r)
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
    for who, rows in r.items():
        print(f"{who:6} {mid(rows, 'tokens_per_s'):7.1f} tokens/s  TTFT p50 {mid(rows, 'ttft_p50_ms'):7.0f} ms  "
              f"ITL p50 {mid(rows, 'itl_p50_ms'):6.1f} ms")
    ratios = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(ours, theirs)]
    figure = statistics.median(ratios)
    row, _, form = name.rpartition("-")
    asked = ASKED_QUANTISED[row] if form.startswith("q") else ASKED[name]
    ok = figure >= asked
    print(f"{name} {figure:.2f} times llama.cpp's tokens/s, median of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f} "
          f"(asked {asked}): {'ok' if ok else 'short'}")
    return ok


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
