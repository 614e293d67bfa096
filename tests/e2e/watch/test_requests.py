"""Operators see what runs and waits, end it, and set limits: /admin/v1/requests, /admin/v1/limits."""
import json
import threading

from harness import Server, run, until

# One seat and eight choices: what is begun runs for many thousand steps, what comes after it waits.
ONE_SEAT = {"engine.max_seqs": 1}
LONG = {"model": "base", "prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "n": 8}
server = None


def begin(key, **more):
    """A streamed completion that has sent its first bytes: (connection, response)."""
    c = server.connect()
    c.request("POST", "/v1/completions", json.dumps({**LONG, "stream": True, **more}),
              {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200, r.read()
    assert r.readline().startswith(b"data: ")
    return c, r


def requests(**query):
    tail = "?" + "&".join(f"{k}={v}" for k, v in query.items()) if query else ""
    return server.admin("GET", "/requests" + tail)["data"]


def test_list_and_cancel():
    key, other = server.tenant("acme"), server.tenant("globex")
    assert requests() == []
    c, stream = begin(key)
    mine = stream.headers["x-request-id"]
    got = {}
    t = threading.Thread(target=lambda: got.update(
        r=server.call("POST", "/v1/completions", LONG, key=other, timeout=300)))
    t.start()
    behind = until(lambda: [rows for rows in [requests(tenant="globex")] if len(rows) == 8])[0]
    assert all(r["state"] == "waiting" for r in behind), behind
    assert all(not r["stream"] and r["output_tokens"] == 0 for r in behind), behind
    rows = requests(tenant="acme")
    assert {r["request_id"] for r in rows} == {mine} and {r["model"] for r in rows} == {"base"}
    assert all(r["stream"] and r["max_tokens"] == 1000 and r["prompt_tokens"] >= 1 for r in rows)
    first = until(lambda: requests(tenant="acme", state="decode"))
    assert len(first) == 1 and first[0]["age_ms"] >= 0, first
    until(lambda: any(r["id"] != first[0]["id"] or r["output_tokens"] > first[0]["output_tokens"]
                      for r in requests(tenant="acme", state="decode")))
    assert len(requests(limit=3)) == 3

    # A waiting one, by the id of one of its choices: all of it ends, with an answer that says why.
    gone = server.admin("DELETE", f"/requests/{behind[3]['id']}", expect=(202,))
    assert gone["cancelled"] and gone["request_id"] == behind[0]["request_id"], gone
    t.join()
    r = got["r"]
    assert r.status == 403 and r.json["error"]["code"] == "request_cancelled", r
    assert r.headers["x-should-retry"] == "false"
    assert until(lambda: not requests(tenant="globex"))

    # A running one, by the id that the client knows.
    server.admin("DELETE", f"/requests/{mine}", expect=(202,))
    tail = stream.read()
    assert b"request_cancelled" in tail and b"[DONE]" not in tail, tail[-300:]
    c.close()
    assert until(lambda: requests() == [])
    acts = [(r["action"], r["object"]) for r in server.admin("GET", "/audit")["data"]]
    assert ("request.cancel", mine) in acts, acts
    until(lambda: sum(x["output_tokens"] for b in server.admin("GET", "/usage?tenant=acme&group_by=model")["data"]
                      for x in b["results"]) >= 1)  # billed all the same


def test_what_has_ended():
    """With the phases of its time; the latest first, or the slowest."""
    key = server.tenant("slow")
    r = server.call("POST", "/v1/completions", {**LONG, "n": 1, "max_tokens": 200}, key=key)
    quick = server.call("POST", "/v1/completions", {**LONG, "n": 1, "max_tokens": 1}, key=key)
    rows = requests(state="ended", tenant="slow")
    assert [x["request_id"] for x in rows] == [quick.headers["x-request-id"], r.headers["x-request-id"]], rows
    one = rows[1]
    assert (one["state"], one["status"], one["finish"], one["output_tokens"]) == ("ended", 200, "length", 200), one
    assert one["decode_ms"] > 0 and one["ttft_ms"] >= 0 and one["missed"] in (None, "machine", "queue", "decode_steps", "prompt")
    phases = sum(one[p + "_ms"] for p in ("queue", "adapter", "prompt", "decode", "rest"))
    assert abs(phases - one["duration_ms"]) <= 1, (phases, one)
    assert requests(state="ended", slow=one["duration_ms"] + 1, tenant="slow") == []
    assert requests(state="ended", slow=one["duration_ms"], tenant="slow")[0]["id"] == one["id"]
    gone = requests(state="ended", tenant="acme")
    assert len(gone) == 8 and any(x["finish"] == "cancelled" for x in gone), gone
    assert len(requests(state="ended", limit=2)) == 2
    for query in ("slow=5", "state=ended&slow=0", "state=ended&slow=x", "state=decode&slow=5"):
        server.admin("GET", "/requests?" + query, expect=(400,))


def test_what_is_not_there():
    for which in ("1", "req_none", "%20", "x" * 200):
        server.admin("DELETE", f"/requests/{which}", expect=(404,))
    for limit in ("0", "99999999", "-1", "x"):
        server.admin("GET", f"/requests?limit={limit}", expect=(400,))
    key = server.tenant("nosy")
    for path in ("/admin/v1/requests", "/admin/v1/limits"):
        assert server.call("GET", path, key=key, port=server.admin_port).status == 403


def test_limits():
    key = server.tenant("limited", limits={"requests_per_minute": 1})
    r = server.admin("PATCH", "/limits/limited", {"tokens_per_day": 1000, "max_concurrent": 3})
    assert r["limits"]["tokens_per_day"] == 1000 and r["limits"]["requests_per_minute"] == 1
    assert server.call("POST", "/v1/completions", {**LONG, "n": 1, "max_tokens": 3}, key=key).status == 200
    r = server.admin("GET", "/limits/limited")
    assert r["used"]["requests_per_minute"] == 1 and r["used"]["tokens_per_day"] >= 4, r
    assert any(t["tenant"] == "limited" for t in server.admin("GET", "/limits")["data"])
    for body in ({"tokens_per_century": 1}, {"tokens_per_day": -1}, {"tokens_per_day": "many"}, [1],
                 {"limits": {"tokens_per_day": 1}}):
        server.admin("PATCH", "/limits/limited", body, expect=(400,))
    server.admin("PATCH", "/limits/nobody", {"tokens_per_day": 1}, expect=(404,))
    assert server.admin("GET", "/limits/limited")["limits"]["tokens_per_day"] == 1000


if __name__ == "__main__":
    with Server(settings=ONE_SEAT) as server:
        run([test_list_and_cancel, test_what_has_ended, test_what_is_not_there, test_limits])
