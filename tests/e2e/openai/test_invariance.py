"""The batch changes nothing: 32 sampled requests at once, over eight models of one base, give what each
gives alone, while others arrive and are cut off in mid-stream, and pages are short."""
import concurrent.futures
import json
import random
import threading
import time

from harness import DEMO, Server, demo_adapters, run

N, ROUNDS = 32, 3
# Room for about a dozen of these requests: the others wait, or give their pages back and start over.
server = Server(settings={"engine.kv_memory": "5MiB", "engine.max_seqs": "24"})
QUESTIONS = ["What is 7 plus 5?", "Which animals live on the farm? Tell me about all of them, please.",
             "Say it in other words: the red lamp stands on the old table near the window.",
             "What color is the sky?", "Hello"]


def make(i, models):
    rng = random.Random(1000 + i)
    body = {"model": models[i % len(models)], "seed": rng.randrange(1 << 40), "ignore_eos": True,
            "temperature": rng.choice([0.3, 0.7, 1.0, 1.3]), "top_p": rng.choice([0.5, 0.9, 1.0]),
            "max_tokens": rng.randrange(8, 160), "stream": i % 3 == 0}
    if rng.random() < 0.5:
        body["top_k"] = rng.choice([1, 5, 40])
    if rng.random() < 0.3:
        body["presence_penalty"] = 0.7
    if i % 2:
        body["messages"] = [{"role": "user", "content": rng.choice(QUESTIONS)}]
        return "/v1/chat/completions", body
    body["prompt"] = rng.choice(QUESTIONS) * rng.randrange(1, 6)
    return "/v1/completions", body


def answer(request):
    """(text, tokens made) of one request."""
    path, body = request
    text, made = "", None
    for e in server.complete(key, path, body):
        for c in e["choices"]:
            said = c.get("delta") or c.get("message")
            text += (said.get("content") or "") if said else c.get("text") or ""
        if e.get("usage"):
            made = e["usage"]["completion_tokens"]
    return text, made


def cut_off(models, stop):
    """Clients that go away after some bytes of a long answer, one after the other."""
    rng = random.Random(5)
    while not stop.is_set():
        c = server.connect(timeout=30)
        body = {"model": rng.choice(models), "prompt": "The", "max_tokens": 400, "ignore_eos": True,
                "stream": True, "temperature": 1}
        c.request("POST", "/v1/completions", json.dumps(body),
                  {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        r = c.getresponse()
        r.read(rng.randrange(1, 2000))
        c.close()
        time.sleep(0.01)


def each_gives_what_it_gives_alone():
    models = ["base"] + demo_adapters()[:7]
    for m in models[1:]:
        server.upload(key, m, DEMO / "adapters" / m)
    requests = [make(i, models) for i in range(N)]
    alone = [answer(r) for r in requests]
    assert [made for _, made in alone] == [b["max_tokens"] for _, b in requests]
    assert len({text for text, _ in alone}) > N * 3 // 4, "the requests hardly differ"
    before = server.metrics()
    stop = threading.Event()
    cutters = [threading.Thread(target=cut_off, args=(models, stop)) for _ in range(2)]
    for t in cutters:
        t.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(N) as pool:
            for turn in range(ROUNDS):
                order = list(range(N))
                random.Random(turn).shuffle(order)
                got = dict(zip(order, pool.map(lambda i: answer(requests[i]), order)))
                for i in range(N):
                    assert got[i] == alone[i], (turn, requests[i], alone[i], got[i])
    finally:
        stop.set()
        for t in cutters:
            t.join()
    after = server.metrics()
    for counter in ("lorad_preemptions_total", "lorad_cancelled_total"):
        assert after[counter] > before[counter], (counter, "the test did not meet what it is about")


with server:
    key = server.tenant("alice")
    run([each_gives_what_it_gives_alone])
