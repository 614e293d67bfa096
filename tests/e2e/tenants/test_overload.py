"""Overload: a class that rejects answers at once what it could not keep, the others queue; and a
request whose client has given up is not begun."""
import concurrent.futures
import json
import threading

from harness import Server, run

# So much time that a first token is never late but behind a queue, on whatever machine this runs.
server = Server(settings={"class.interactive.ttft": "2s", "class.interactive.tpot": "1s", "class.interactive.overload": "reject",
                          "engine.max_seqs": "2"})


def post(tier, max_tokens, headers=None, prompt="The red lamp"):
    return server.call("POST", "/v1/completions",
                       {"model": "base", "prompt": prompt, "max_tokens": max_tokens,
                        "ignore_eos": True, "service_tier": tier}, key=key, headers=headers)


def nothing_is_refused_before_anything_is_known():
    r = post("priority", 4)
    assert r.status == 200, r
    for _ in range(12):
        assert post("default", 8).status == 200


def an_idle_server_keeps_its_promise():
    r = post("priority", 4)
    assert r.status == 200, r


def a_class_that_rejects_does_so_at_once_and_says_when_to_come_back():
    urgent, patient, full = [], [], threading.Event()

    def press():
        """Long answers, on and on, until somebody is refused."""
        while not full.is_set():
            urgent.append(post("priority", 900))
            if urgent[-1].status != 200:
                full.set()
    with concurrent.futures.ThreadPoolExecutor(48) as pool:
        pressing = [pool.submit(press) for _ in range(40)]
        patient = [f.result() for f in [pool.submit(post, "flex", 4) for _ in range(8)]]
        for f in pressing:
            f.result()
    refused = [r for r in urgent if r.status != 200]
    assert 1 <= len(refused) < len(urgent), [r.status for r in urgent]
    for r in refused:
        assert r.status == 429, r
        message = r.json["error"]["message"]
        assert "interactive" in message and "2000 ms" in message, message
        assert 1 <= int(r.headers["retry-after"]) <= 60, r.headers
        assert 250 <= int(r.headers["retry-after-ms"]) <= 60000, r.headers
    assert all(r.status == 200 for r in patient), [r.status for r in patient]
    r = post("priority", 4)
    assert r.status == 200, r  # the queue is empty again


def nobody_computes_for_a_client_that_is_gone():
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        long_ones = [pool.submit(post, "default", 900) for _ in range(6)]
        while server.metrics()["lorad_requests_waiting"] < 4:
            assert not all(f.done() for f in long_ones)
        made = server.metrics()["lorad_prefill_tokens_total"]
        late = [post("default", 4, {name: "0.02"}, "The blue box is heavy " * 8)
                for name in ("x-stainless-read-timeout", "x-request-timeout")]
        assert all(f.result().status == 200 for f in long_ones)
    for r in late:
        assert r.status in (408, 503, 504), r
        assert "deadline" in json.loads(r.body)["error"]["message"], r
    # six short prompts at most were computed meanwhile, not the two long ones
    assert server.metrics()["lorad_prefill_tokens_total"] - made < 2 * 30
    for nonsense in ("-1", "x", "", "1e999", "nan"):
        assert post("default", 2, {"x-request-timeout": nonsense}).status == 200, nonsense


with server:
    key = server.tenant("alice")
    run([nothing_is_refused_before_anything_is_known, an_idle_server_keeps_its_promise,
         a_class_that_rejects_does_so_at_once_and_says_when_to_come_back,
         nobody_computes_for_a_client_that_is_gone])
