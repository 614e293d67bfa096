"""GET /admin/v1/stats against a real server under load: what it says, deltas, pages, the stream."""
import json
import threading
import urllib.parse

from harness import DEMO, Server, demo_adapters, run, until

s = None
key = None


last_us = 0


def stats(**query):
    """A picture that was taken after this call: the server takes at most ten a second."""
    global last_us
    q = "?" + urllib.parse.urlencode(query) if query else ""
    while True:
        a = s.admin("GET", "/stats" + q)
        if a["server"]["at_us"] != last_us or a["more"] or "limit" in query:
            last_us = a["server"]["at_us"]
            return a


def rows(answer, table, by="id"):
    return {r[by]: r for r in answer[table]}


def apply(held, answer):
    """A reader's copy of the tables."""
    if answer["reset"]:
        for t in held:
            held[t].clear()
    for t in held:
        for r in answer[t]:
            held[t][r["id"]] = r
        for i in answer["gone"].get(t, []):
            held[t].pop(i, None)


def test_the_whole_picture():
    # A picture may be a tenth of a second old.
    a = until(lambda: (x := stats()) and rows(x, "tenants", "name")["acme"]["adapters"] == len(demo_adapters()) and x)
    assert a["reset"] and not a["more"]
    assert a["server"]["model"] == "base" or a["server"]["model"]
    assert a["server"]["access"] == "admin" and a["server"]["ready"]
    tenants = rows(a, "tenants", "name")
    assert set(tenants) == {"acme", "globex"}, set(tenants)
    assert tenants["acme"]["requests_per_minute"] == 600
    assert tenants["acme"]["adapters"] == len(demo_adapters())
    adapters = rows(a, "adapters", "name")
    assert set(adapters) == set(demo_adapters())
    assert all(r["version"] == 1 and r["tenant"] == "acme" and r["rank"] > 0
               for r in adapters.values())
    assert a["engine"]["adapters_registered"] == len(demo_adapters())
    assert {c["name"] for c in a["classes"]} == {"interactive", "standard", "batch"}
    kinds = {e["kind"] for e in a["events"]}
    assert {"tenant.create", "key.create", "adapter.publish"} <= kinds, kinds


def picture_with(cursor, hits):
    """What has changed since then, once these adapters have so many hits: a picture may be older than what the ledger has."""
    def whole():
        x = stats(cursor=cursor)
        seen = rows(x, "adapters", "name")
        return x if all(seen.get(name, {}).get("hits") == n for name, n in hits.items()) else None
    return until(whole)


def test_counts_equal_the_ledger():
    held = {t: {} for t in ("tenants", "adapters", "requests", "events")}
    a = stats()
    apply(held, a)
    before = {r["name"]: r for r in held["adapters"].values()}
    for name in demo_adapters()[:3]:
        for _ in range(2):
            r = s.ask(key, name, "What is 7 plus 5?")
            assert r.status == 200, r
    s.booked()
    b = picture_with(a["cursor"], {name: before[name]["hits"] + 2 for name in demo_adapters()[:3]})
    assert not b["reset"]
    assert len(b["adapters"]) <= len(demo_adapters())
    apply(held, b)
    after = {r["name"]: r for r in held["adapters"].values()}
    for name in demo_adapters()[:3]:
        assert after[name]["tier"] == "device", after[name]
        assert after[name]["last_used_s"] > 0
        assert after[name]["met"] + after[name]["missed"] == after[name]["hits"] and after[name]["ttft_p99_ms"] > 0, after[name]
    untouched, shared = demo_adapters()[-1], demo_adapters()[0]
    assert after[untouched]["hits"] == before[untouched]["hits"]
    # the ledger and the metrics say the same
    usage = s.admin("GET", "/usage?group_by=tenant")
    text = json.dumps(usage)
    t = next(r for r in held["tenants"].values() if r["name"] == "acme")
    assert f'"input_tokens": {t["prompt_tokens"]}' in text or \
        f'"prompt_tokens": {t["prompt_tokens"]}' in text, (t, text[:600])
    assert t["day_tokens"] == t["prompt_tokens"] + t["output_tokens"]
    m = s.metrics()
    for name in demo_adapters()[:3]:
        of = f'{{tenant="acme",adapter="{name}"}}'
        assert m["lorad_adapter_ended_total" + of] == after[name]["hits"]
        assert m["lorad_adapter_output_tokens_total" + of] == after[name]["output_tokens"]
        assert abs(m["lorad_adapter_wait_seconds_total" + of] - after[name]["wait_us"] / 1e6) < 1e-6
    assert b["totals"]["output_tokens"] == m['lorad_tokens_total{kind="output"}']
    c = next(c for c in b["classes"] if c["is_default"])
    assert c["ended"] >= 6 and c["met"] + c["missed"] == c["ended"] and c["ttft_p50_ms"] > 0
    assert sum(c["ttft_hist"]) == c["ended"]
    assert len(c["ttft_hist"]) == len(b["hist_bounds_us"]) + 1
    # another tenant's use of a shared adapter is the adapter's use
    assert s.call("PATCH", f"/v1/adapters/{shared}", {"sharing": "all"}, key=key).status == 200
    assert s.ask(s.key("globex"), f"acme/{shared}", "What is 7 plus 5?").status == 200
    s.booked()
    d = picture_with(b["cursor"], {shared: after[shared]["hits"] + 1})
    apply(held, d)
    mine = {r["name"]: r for r in held["adapters"].values()}[shared]
    assert mine["tenant"] == "acme", mine
    assert mine["output_tokens"] > after[shared]["output_tokens"], mine
    assert s.metrics()[f'lorad_adapter_ended_total{{tenant="acme",adapter="{shared}"}}'] == mine["hits"]


def test_loads_and_evictions_are_counted():
    name = demo_adapters()[0]

    def row():
        return next(r for r in stats()["adapters"] if r["name"] == name)

    def is_at(tier, loads):
        r = row()
        return r["tier"] == tier and r["loads"] == loads and r
    was = row()["loads"]  # of residency, whatever pictures saw
    assert was > 0 and is_at("device", was)["evictions"] == was - 1
    s.admin("POST", f"/tenants/acme/adapters/{name}/evict", expect=(200, 202, 204))
    gone = until(lambda: row()["tier"] != "device" and row())
    assert gone["loads"] == gone["evictions"] == was, gone
    for _ in range(2):  # twice between two pictures, perhaps
        assert s.ask(key, name, "hi", max_tokens=1).status == 200
        s.admin("POST", f"/tenants/acme/adapters/{name}/evict", expect=(200, 202, 204))
    assert s.ask(key, name, "hi", max_tokens=1).status == 200
    assert until(lambda: is_at("device", was + 3))["evictions"] == was + 2


def test_nothing_new_is_small():
    def small():
        b = stats(cursor=stats()["cursor"])
        return all(b[table] == [] for table in ("tenants", "adapters", "events")) and b

    b = until(small)  # an adapter may still be on its way to the device
    assert b["gone"].get("adapters", []) == []


def test_pages_make_the_whole():
    whole = stats(tables="adapters,tenants")
    held = {t: {} for t in ("tenants", "adapters")}
    cursor, pages = {}, 0
    while True:
        a = stats(limit=2, tables="adapters,tenants", **cursor)
        assert sum(len(a[t]) for t in held) <= 2
        apply(held, a)
        cursor, pages = {"cursor": a["cursor"]}, pages + 1
        assert pages < 500
        if not a["more"]:
            break
    assert pages > 4
    assert set(held["adapters"]) == set(rows(whole, "adapters"))
    assert set(held["tenants"]) == set(rows(whole, "tenants"))


def test_what_goes_is_told():
    s.upload(key, "short-lived", DEMO / "adapters" / demo_adapters()[0])
    a = stats()
    ids = {r["name"]: r["id"] for r in a["adapters"]}
    assert "short-lived" in ids
    assert s.call("DELETE", "/v1/adapters/short-lived?drain=true", key=key).status in (200, 202)
    b = stats(cursor=a["cursor"])
    assert b["gone"]["adapters"] == [ids["short-lived"]], b["gone"]
    assert any(e["kind"] == "adapter.delete" and e["object"] == "short-lived" for e in b["events"])
    # a cursor of another life starts over
    assert stats(cursor="1234-7")["reset"]
    assert stats(cursor="nonsense")["reset"]


def test_running_requests_are_rows():
    def one():
        s.ask(key, "pirate", "Tell me a long story.", max_tokens=400, ignore_eos=True)

    threads = [threading.Thread(target=one) for _ in range(6)]
    for t in threads:
        t.start()
    held = {t: {} for t in ("tenants", "adapters", "requests", "events")}
    cursor, best, fair, used, running = {}, 0, False, 0, 0
    while any(t.is_alive() for t in threads):
        a = stats(**cursor)
        apply(held, a)
        cursor = {"cursor": a["cursor"]}
        for r in held["requests"].values():
            assert r["tenant"] == "acme" and r["adapter"] == "pirate@1", r
            assert r["state"] in ("waiting", "prefill", "decode")
            assert r["output"] <= r["max_tokens"] == 400
            assert r["computed"] <= r["prompt"] + r["output"]
        best = max(best, len(held["requests"]))
        fair |= any(t["served"] > 0 for t in held["tenants"].values())
        used = max(used, *(r["in_use"] for r in held["adapters"].values()))
        running = max(running, next(t["running"] for t in held["tenants"].values()
                                    if t["name"] == "acme"))
    for t in threads:
        t.join()
    assert best == 6 and running == 6 and fair and used >= 1, (best, running, fair, used)
    # the last of them goes from the board with the next picture
    while held["requests"]:
        a = stats(**cursor)
        apply(held, a)
        cursor = {"cursor": a["cursor"]}


def test_refusals_are_counted():
    poor = s.key("acme", requests_per_minute=1)
    before = stats()
    statuses = [s.ask(poor, "pirate", "hi", max_tokens=1).status for _ in range(3)]
    assert statuses == [200, 429, 429], statuses
    after = stats()
    assert after["totals"]["rate_limited"] == before["totals"]["rate_limited"] + 2
    limited = [rows(a, "tenants", "name")["acme"]["limited"] for a in (before, after)]
    assert limited[1] == limited[0] + 2


def test_the_stream_tells_changes():
    c = s.connect(s.admin_port, timeout=30)
    c.request("GET", "/admin/v1/stats?stream=1&interval_ms=100",
              headers={"Authorization": f"Bearer {s.admin_key}"})
    r = c.getresponse()
    assert r.status == 200 and r.getheader("content-type").startswith("text/event-stream")

    def event():
        line = r.readline()
        while not line.startswith(b"data: "):
            line = r.readline()
        return json.loads(line[6:])

    first = event()
    assert first["reset"] and len(first["adapters"]) == len(demo_adapters())
    second = event()
    assert not second["reset"] and second["adapters"] == []
    assert s.ask(key, "pirate", "What is 2 plus 2?").status == 200
    seen = []
    while "pirate" not in seen:
        seen += [a["name"] for a in event()["adapters"]]
    c.close()


def test_bad_queries_are_refused():
    for q in ("limit=0", "limit=x", "limit=999999", "tables=what", "interval_ms=5"):
        s.admin("GET", "/stats?" + q, expect=(400,))
    assert s.call("GET", "/admin/v1/stats", port=s.admin_port).status == 401
    assert s.call("GET", "/admin/v1/stats", key=key, port=s.admin_port).status in (401, 403)
    assert stats(tables="")["server"]["ready"]


if __name__ == "__main__":
    with Server() as s:
        key = s.tenant("acme", limits={"requests_per_minute": 600})
        s.tenant("globex")
        for each in demo_adapters():
            s.upload(key, each, DEMO / "adapters" / each)
        run([v for k, v in list(globals().items()) if k.startswith("test_")])
