"""An adapter's life over HTTPS: upload, versions, roll-back, isolation, delete while in use."""
import concurrent.futures
import time

from harness import DEMO, PATIENCE, Server, demo_adapters, events, run, tar_of

QUESTION = "What is 7 plus 5?"
server = Server()


def text_of(key, model):
    r = server.ask(key, model, QUESTION)
    assert r.status == 200, r
    return r.json["choices"][0]["message"]["content"]


def an_upload_is_live_at_once():
    r = server.upload(alice, "mine", DEMO / "adapters/shout")
    assert r.status == 201 and r.json["version"] == 1 and r.json["state"] == "ready", r
    assert text_of(alice, "mine") == text_of(alice, "base").upper()


def the_same_content_is_the_same_version():
    r = server.upload(alice, "mine", DEMO / "adapters/shout")
    assert r.status == 200 and r.json["version"] == 1, r


def versions_aliases_and_rollback():
    r = server.upload(alice, "mine", DEMO / "adapters/pirate")
    assert r.status == 201 and r.json["version"] == 2, r
    assert text_of(alice, "mine").startswith("Arr!")
    assert text_of(alice, "mine@1") == text_of(alice, "base").upper()
    r = server.call("POST", "/v1/adapters/mine/rollback", key=alice)
    assert r.status == 200 and r.json["default_version"] == 1, r
    assert text_of(alice, "mine") == text_of(alice, "base").upper()
    etag = server.call("GET", "/v1/adapters/mine", key=alice).headers["etag"]
    r = server.call("PUT", "/v1/adapters/mine/aliases/next", {"version": 2}, key=alice,
                    headers={"If-Match": etag})
    assert r.status == 200 and r.json["aliases"]["next"] == 2, r
    assert text_of(alice, "mine:next").startswith("Arr!")
    r = server.call("PUT", "/v1/adapters/mine/aliases/next", {"version": 1}, key=alice,
                    headers={"If-Match": etag})
    assert r.status == 412, r


def tenants_do_not_see_each_other():
    foreign = server.ask(bob, "mine", QUESTION)
    unknown = server.ask(bob, "m1ne", QUESTION)
    assert foreign.status == unknown.status == 404
    assert foreign.body.replace(b"mine", b"m1ne") == unknown.body
    assert server.call("GET", "/v1/adapters/mine", key=bob).status == 404
    assert server.call("DELETE", "/v1/adapters/mine", key=bob).status == 404
    server.upload(bob, "mine", DEMO / "adapters/json")
    assert text_of(bob, "mine").startswith("{")
    assert text_of(alice, "mine") == text_of(alice, "base").upper()


def all_adapters_in_one_batch():
    for name in demo_adapters():
        server.upload(alice, name, DEMO / "adapters" / name)
    names = ["base"] + demo_adapters()
    alone = {n: text_of(alice, n) for n in names}
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for _ in range(4):
            got = list(pool.map(lambda n: text_of(alice, n), names * 3))
            assert got == [alone[n] for n in names * 3]
    assert len(set(alone.values())) == len(names), alone


def delete_while_in_use():
    server.upload(alice, "doomed", DEMO / "adapters/formal")
    body = {"model": "doomed", "prompt": "The", "max_tokens": 600, "ignore_eos": True,
            "stream": True, "temperature": 0}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.call, "POST", "/v1/completions", body, alice)
        end = time.monotonic() + 20 * PATIENCE
        while server.metrics()["lorad_requests_running"] == 0 and time.monotonic() < end:
            time.sleep(0.005)
        r = server.call("DELETE", "/v1/adapters/doomed?drain=true", key=alice)
        assert r.status in (200, 202), r
        assert server.ask(alice, "doomed", QUESTION).status in (404, 409)
        done = running.result()
    chunks = events(done.body)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length", chunks[-1]
    assert server.call("GET", "/v1/adapters/doomed", key=alice).status == 404


def usage_is_what_was_answered():
    key = server.tenant("counted")
    want = [0, 0]
    for n in (3, 5):
        r = server.call("POST", "/v1/completions", {"model": "base", "prompt": "The red lamp",
                                                    "max_tokens": n, "ignore_eos": True}, key=key)
        want[0] += r.json["usage"]["prompt_tokens"]
        want[1] += r.json["usage"]["completion_tokens"]
    server.booked()
    rows = [x for b in server.call("GET", "/v1/usage", key=key).json["data"] for x in b["results"]]
    assert [sum(x["input_tokens"] for x in rows), sum(x["output_tokens"] for x in rows)] == want
    assert sum(x["num_model_requests"] for x in rows) == 2 and want[1] == 8


def bad_folders_are_refused():
    for names, status in [(["adapter_config.json"], 422), (["adapter_model.safetensors"], 422)]:
        r = server.call("POST", "/v1/adapters/half/versions",
                        tar_of(DEMO / "adapters/pirate", names), key=alice,
                        headers={"Content-Type": "application/x-tar"})
        assert r.status == status and r.json["error"]["code"] == "adapter_invalid", r
    assert server.call("GET", "/v1/adapters/half", key=alice).status == 404


with server:
    alice, bob = server.tenant("alice"), server.tenant("bob")
    run([an_upload_is_live_at_once, the_same_content_is_the_same_version,
         versions_aliases_and_rollback, tenants_do_not_see_each_other, all_adapters_in_one_batch,
         delete_while_in_use, usage_is_what_was_answered, bad_folders_are_refused])
