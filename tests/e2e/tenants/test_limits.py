"""A tenant's limits as its client meets them: the queue, concurrency, rates, a budget."""
import json
import threading

from harness import DEMO, Server, demo_adapters, events, run, until

# One seat and one slow thread, so that requests do wait.
server = Server(settings={"engine.threads": 1, "engine.isa": "portable", "engine.max_seqs": 1})


def ask(key, n=1, max_tokens=8, model="base"):
    return server.call("POST", "/v1/completions",
                       {"model": model, "prompt": "The", "max_tokens": max_tokens, "n": n,
                        "ignore_eos": True}, key=key)


def refused(r, says, code="rate_limit_exceeded", kind="rate_limit_error"):
    assert r.status == 429, r
    e = r.json["error"]
    assert e["code"] == code and e["type"] == kind and says in e["message"], r
    if code == "rate_limit_exceeded":
        assert 1 <= int(r.headers["retry-after"]) <= 60, r.headers
        assert int(r.headers["retry-after-ms"]) >= 1, r.headers
    else:
        assert r.headers["x-should-retry"] == "false", r.headers


def queued(tenant):
    """Of this tenant alone: how many of Held's choices still wait is a matter of time."""
    return server.admin("GET", f"/limits/{tenant}")["used"]["max_queued"]


class Held:
    """A stream that holds the one seat until it is closed."""

    def __enter__(self):
        self.c = server.connect()
        self.c.request("POST", "/v1/completions", json.dumps(
            {"model": self.model, "prompt": "The", "max_tokens": 900, "n": 8, "ignore_eos": True,
             "stream": True}),
            {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"})
        self.r = self.c.getresponse()
        assert self.r.status == 200 and self.r.readline().startswith(b"data: ")
        return self

    def __init__(self, key, model="base"):
        self.key, self.model = key, model

    def __exit__(self, *exc):
        self.c.sock.close()
        self.r.close()
        self.c.close()


def the_queue_of_a_tenant():
    key = server.tenant("queue", limits={"max_queued": 2})
    other = server.tenant("bystander")
    with Held(other):  # its own seven further choices wait, but they are no one else's queue
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(ask(key))) for _ in range(2)]
        for t in threads:
            t.start()
        until(lambda: queued("queue") == 2)
        for _ in range(3):  # a refused request takes no place
            refused(ask(key), "limit of 2 queued requests")
        assert queued("queue") == 2
    for t in threads:
        t.join()
    assert [r.status for r in answers] == [200, 200], answers
    assert ask(key).status == 200
    server.admin("PATCH", "/tenants/queue", {"limits": {"max_queued": 1}})
    with Held(key):  # what runs is not queued
        gone = server.connect()
        gone.request("POST", "/v1/completions", json.dumps(
            {"model": "base", "prompt": "The", "max_tokens": 8}),
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        until(lambda: queued("queue") == 1)
        refused(ask(key), "limit of 1 queued requests")
        gone.close()  # a client that leaves the queue frees its place
        until(lambda: queued("queue") == 0)
        before = server.metrics()["lorad_rate_limited_total"]
        late = threading.Thread(target=lambda: answers.append(ask(key)))
        late.start()
        until(lambda: queued("queue") == 1 or not late.is_alive())
        assert server.metrics()["lorad_rate_limited_total"] == before
    late.join()
    assert answers[-1].status == 200, answers[-1]


def concurrent_requests():
    key = server.tenant("concurrent", limits={"max_concurrent": 1})
    with Held(key):
        refused(ask(key), "limit of 1 concurrent requests")
    until(lambda: server.metrics()["lorad_requests_running"] == 0)
    until(lambda: ask(key).status == 200)


def rates_and_budgets():
    key = server.tenant("rates", limits={"requests_per_minute": 2})
    assert [ask(key).status for _ in range(2)] == [200, 200]
    r = ask(key)
    refused(r, "limit of 2 requests per minute")
    assert r.headers["x-ratelimit-limit-requests"] == "2"
    assert r.headers["x-ratelimit-remaining-requests"] == "0"
    key = server.tenant("budget", limits={"tokens_per_day": 20})
    assert ask(key).status == 200
    refused(ask(key, max_tokens=100), "tokens per day", "insufficient_quota", "insufficient_quota")


def what_is_over_a_limit_is_not_tokenised():
    key = server.tenant("long", limits={"requests_per_minute": 1})
    long = {"model": "base", "prompt": "word " * 100_000, "max_tokens": 1}
    r = server.call("POST", "/v1/completions", long, key=key)
    assert r.status == 400 and r.json["error"]["code"] == "context_length_exceeded", r
    assert ask(key).status == 200  # what was refused took nothing
    refused(server.call("POST", "/v1/completions", long, key=key), "limit of 1 requests per minute")


def token_counts_are_counted_apart():
    key = server.tenant("counts", limits={"requests_per_minute": 2, "tokens_per_day": 20,
                                          "tokens_per_minute": 1000})
    other = server.tenant("unlimited")

    def count(path="/tokenize", key=key, text="The"):
        body = {"tokens": [5]} if "detok" in path else {"model": "base", "prompt": text}
        return server.call("POST", path, body, key=key)

    r = count()
    assert r.status == 200 and r.headers["x-ratelimit-remaining-requests"] == "1", r
    assert "x-ratelimit-limit-tokens" not in r.headers, r.headers
    assert count("/v1/detokenize").status == 200
    refused(count(), "tenant's limit of 2 requests per minute")
    refused(count("/detokenize"), "tenant's limit of 2 requests per minute")
    assert ask(key).status == 200
    server.admin("PATCH", "/tenants/counts", {"limits": {"requests_per_minute": 0, "max_concurrent": 1}})
    assert count(text="The " * 100).status == 200  # has no part in the budget
    big = json.dumps({"model": "base", "prompt": "a b c d " * 500_000})
    c = server.connect()
    c.request("POST", "/tokenize", big, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    r = c.getresponse()  # of megabytes, and nobody reads on
    assert r.status == 200
    refused(count(), "tenant's limit of 1 concurrent requests")
    assert count(key=other).status == 200
    c.sock.close()
    r.close()
    until(lambda: count().status == 200)
    assert server.admin("GET", "/limits/counts")["used"]["max_concurrent"] == 0


def tokens_of_models_that_a_tenant_may_not_use_are_not_counted():
    key = server.tenant("narrow", models=["tuned"])
    server.upload(key, "tuned", DEMO / "adapters" / demo_adapters()[0])
    for path, body in (("/tokenize", {"prompt": "The"}), ("/detokenize", {"tokens": [5]})):
        for model, status in (({}, 404), ({"model": "base"}, 404), ({"model": "tuned"}, 200)):
            r = server.call("POST", path, {**body, **model}, key=key)
            assert r.status == status, (path, model, r)


def writes_are_limited_apart():
    """Calls that change stored state: as many a minute as requests, and these have theirs all the same."""
    rate = 5
    key = server.tenant("writer", limits={"requests_per_minute": rate, "max_concurrent": 1})
    server.upload(key, "mine", DEMO / "adapters" / demo_adapters()[0])
    for method, path, body in (("PATCH", "/v1/adapters/mine", {"description": "x"}), ("PUT", "/v1/adapters/mine/aliases/a", {"version": 1}),
                               ("POST", "/v1/conversations", {}), ("DELETE", "/v1/responses/resp_none", None),
                               ("POST", "/v1/batches/batch_none/cancel", None), ("DELETE", "/v1/stacks/none", None)):
        seen = [server.call(method, path, body, key=key) for _ in range(4 * rate)]
        good = [r for r in seen if r.status != 429]
        assert len(good) <= 2 * rate, (path, len(good))  # some come back meanwhile
        refused(seen[-1], f"tenant's limit of {rate} requests per minute")
    assert server.call("GET", "/v1/adapters/mine", key=key).status == 200  # looking is free
    assert ask(key).status == 200
    server.tenant("free")
    assert [server.call("POST", "/v1/conversations", {}, key=server.key("free")).status for _ in range(30)] == [200] * 30


def texts_that_cannot_fit_are_not_tokenised():
    key = server.tenant("wordy")
    for text in (" " * 900000, "a b " * 200000, "\u00e9" * 300000):
        for path, body in (("/v1/completions", {"model": "base", "prompt": text, "max_tokens": 1}),
                           ("/v1/embeddings", {"model": "base", "input": text}),
                           ("/v1/chat/completions", {"model": "base", "messages": [{"role": "user", "content": text}], "max_tokens": 1})):
            r = server.call("POST", path, body, key=key)
            assert r.status == 400 and r.json["error"]["code"] == "context_length_exceeded" and "bytes" in r.json["error"]["message"], (path, r)
    long = "word " * 6000  # more than the context, within the bound of bytes, and beyond what is done on the worker itself
    counted = server.call("POST", "/tokenize", {"prompt": long}, key=key)
    assert counted.status == 200 and counted.json["count"] > counted.json["max_model_len"], counted
    cut = server.call("POST", "/v1/completions", {"model": "base", "prompt": "x" * 900000, "max_tokens": 1, "truncate_prompt_tokens": 16}, key=key)
    assert cut.status == 200 and cut.json["usage"]["prompt_tokens"] == 16, cut


def an_unread_stream_is_sent_in_small_events():
    """What was made while nobody read comes in events of some tokens, not in one of all: the server holds no more text than that."""
    key = server.tenant("unread")
    c = server.connect()
    c.request("POST", "/v1/chat/completions", json.dumps(
        {"model": "base", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 400, "n": 8, "ignore_eos": True, "stream": True,
         "logprobs": True, "top_logprobs": 20, "seed": 1}),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    r = c.getresponse()
    read = [r.read(1)]

    def made_all():
        read.append(r.read(4096))  # so little that the server waits, and not so long that it gives the client up
        m = server.metrics()
        return m["lorad_requests_running"] == 0 and m["lorad_requests_waiting"] == 0

    until(made_all)
    frames = events(b"".join(read) + r.read())
    made = [len(ch["logprobs"]["content"]) for f in frames for ch in f["choices"] if ch.get("logprobs")]
    assert sum(made) == 8 * 400 and max(made) <= 32, (sum(made), max(made))
    c.close()


def an_adapters_own():
    key = server.tenant("owner", limits={"requests_per_minute": 6})  # on a slow machine some come back
    server.upload(key, "small", DEMO / "adapters" / demo_adapters()[0])
    shown = server.call("GET", "/v1/adapters/small", key=key).json
    assert set(shown["limits"].values()) == {0} and {"requests_per_minute", "tokens_per_minute", "max_concurrent"} <= set(shown["limits"]), shown
    set_to = server.admin("PATCH", "/limits/owner/small", {"requests_per_minute": 2})
    assert set_to["limits"]["requests_per_minute"] == 2 and set_to["adapter"] == "small"
    assert server.call("GET", "/v1/adapters/small", key=key).json["limits"]["requests_per_minute"] == 2
    assert [ask(key, model=m).status for m in ("small", "small@1")] == [200, 200]
    r = ask(key, model="small")
    refused(r, "adapter's limit of 2 requests per minute")
    assert r.headers["x-ratelimit-limit-requests"] == "2" and r.headers["x-ratelimit-remaining-requests"] == "0"
    assert ask(key).status == 200  # the base is another matter
    assert 1 <= server.admin("GET", "/limits/owner")["used"]["requests_per_minute"] <= 3  # a refused one took nothing
    server.admin("PATCH", "/limits/owner/small", {"requests_per_minute": 0, "max_concurrent": 1})
    with Held(key, "small"):
        assert server.admin("GET", "/limits/owner/small")["used"] == {"max_concurrent": 1}
        refused(ask(key, model="small"), "adapter's limit of 1 concurrent requests")
    until(lambda: server.admin("GET", "/limits/owner/small")["used"]["max_concurrent"] == 0)
    server.upload(key, "small", DEMO / "adapters" / demo_adapters()[1])  # a new version keeps the name's limits
    assert server.admin("GET", "/limits/owner/small")["limits"]["max_concurrent"] == 1
    for body in ({"tokens_per_day": 1}, {"max_concurrent": -1}, {"max_concurrent": "x"}, []):
        server.admin("PATCH", "/limits/owner/small", body, expect=(400,))
    path, by = "/admin/v1/limits/owner/small", {"key": server.admin_key, "port": server.admin_port}
    tag = server.call("GET", path, **by).headers["etag"]
    for asked, status in (('"0-0-7"', 412), ("x", 412), (tag, 200), (tag, 412), ("*", 200)):
        r = server.call("PATCH", path, {"max_concurrent": 3}, headers={"If-Match": asked}, **by)
        assert r.status == status and (status == 412 or r.headers["etag"] != tag), (asked, r)
    server.admin("PATCH", "/limits/owner/none", {"max_concurrent": 1}, expect=(404,))
    server.admin("PATCH", "/limits/nobody/small", {"max_concurrent": 1}, expect=(404,))
    assert any(a["action"] == "adapter.limits" for a in server.admin("GET", "/audit")["data"])


def nothing_is_left():
    until(lambda: server.metrics()["lorad_requests_waiting"] == 0)
    m = server.metrics()
    assert m["lorad_requests_running"] == 0 and m["lorad_kv_pages_used"] == 0, m


with server:
    run([the_queue_of_a_tenant, concurrent_requests, rates_and_budgets,
         what_is_over_a_limit_is_not_tokenised, token_counts_are_counted_apart,
         tokens_of_models_that_a_tenant_may_not_use_are_not_counted, writes_are_limited_apart,
         texts_that_cannot_fit_are_not_tokenised, an_unread_stream_is_sent_in_small_events, an_adapters_own, nothing_is_left])
