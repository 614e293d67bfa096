"""Pages run short: requests are pre-empted, swapped or recomputed, and nobody can tell from the text."""
import concurrent.futures
import time

from harness import PATIENCE, Server, run

N = 12
PROMPTS = [f"The {c} box is heavy. " * (1 + i % 3) + "Question: What is " + f"{i} plus {i}?"
           for i, c in enumerate(["red", "blue", "green", "old", "new", "small"] * 2)]


def post(server, key, i):
    body = {"model": "base", "prompt": PROMPTS[i], "max_tokens": 230, "ignore_eos": True,
            "temperature": 0.9, "seed": i, "service_tier": "flex" if i % 2 else "priority"}
    r = server.call("POST", "/v1/completions", body, key=key, timeout=300)
    assert r.status == 200, r
    return r.json["choices"][0]["text"]


def crowd(preemption, swap_bytes="64MiB", **more):
    """All at once on few pages; the texts and the last counts."""
    with Server(settings={"engine.kv_memory": "1MiB", "engine.preemption": preemption,
                          "engine.swap_bytes": swap_bytes, "engine.max_seqs": str(N), **more}) as server:
        key = server.tenant("alice")
        pages = server.metrics()["lorad_kv_pages"]
        assert pages < 6 * N, f"{pages} pages are too many to run short"
        for _ in range(10):  # until they have met
            with concurrent.futures.ThreadPoolExecutor(N) as pool:
                texts = list(pool.map(lambda i: post(server, key, i), range(N)))
            m = server.metrics()
            if m["lorad_preemptions_total"] > 0:
                break
        end = time.monotonic() + 60 * PATIENCE
        while m["lorad_requests_running"] or m["lorad_kv_pages_used"]:
            assert time.monotonic() < end, m
            m = server.metrics()
        return texts, m


def alone(**settings):
    with Server(settings=settings) as server:
        key = server.tenant("alice")
        return [post(server, key, i) for i in range(N)]


def swapped_requests_go_on_as_if_nothing_had_been():
    texts, m = crowd("swap")
    assert texts == reference
    out, back = (m[f'lorad_swapped_requests_total{{direction="{d}"}}'] for d in ("out", "in"))
    assert m["lorad_preemptions_total"] > 0 and 0 < back <= out <= m["lorad_preemptions_total"], m
    pages_out = m['lorad_swapped_pages_total{direction="out"}']
    assert pages_out >= out and m['lorad_swapped_pages_total{direction="in"}'] <= pages_out
    assert m["lorad_swap_bytes"] == 0 and 0 < m["lorad_swap_budget_bytes"] <= 64 << 20, m
    assert m["lorad_swap_page_seconds"] > 0, m


def recomputed_ones_too():
    texts, m = crowd("recompute")
    assert texts == reference
    assert m["lorad_preemptions_total"] > 0, m
    assert m['lorad_swapped_requests_total{direction="out"}'] == 0 == m["lorad_swap_budget_bytes"]


def and_as_the_cost_model_likes():
    texts, m = crowd("auto")
    assert texts == reference
    assert m["lorad_preemptions_total"] > 0 and m["lorad_swap_bytes"] == 0, m


def without_room_everything_is_recomputed():
    texts, m = crowd("swap", "0")
    assert texts == reference
    assert m['lorad_swapped_requests_total{direction="out"}'] == 0, m


def in_other_types_as_well():
    """Of a bf16 model: half of its own and twice of it."""
    for kind, room in (("int8", "512KiB"), ("f32", "2MiB")):
        texts, m = crowd("swap", **{"engine.kv_type": kind, "engine.kv_memory": room})
        assert texts == alone(**{"engine.kv_type": kind}), kind
        assert m["lorad_preemptions_total"] > 0 and m['lorad_swapped_pages_total{direction="in"}'] > 0, (kind, m)


reference = alone()
run([swapped_requests_go_on_as_if_nothing_had_been, recomputed_ones_too,
     and_as_the_cost_model_likes, without_room_everything_is_recomputed, in_other_types_as_well])
