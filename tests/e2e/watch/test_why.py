"""The incidents that `loractl why`, /readyz and the events must name: limits, a low disk, the holder of the slots, a target that
this machine cannot reach, a database that takes no usage.  Events are recorded while nobody watches."""
import contextlib
import json
import subprocess
import threading

from harness import BUILD, Server, run, until

server = Server(program="lorad_faulty", settings={
    "engine.max_seqs": "2", "engine.max_queued": "50", "classes.interactive": "ttft:1h tpot:1us weight:4",
    "classes.standard": "ttft:1us tpot:1h weight:2", "classes.batch": "ttft:1h tpot:1h weight:1"})
keys = {}


def command(*args):
    path = server.dir.with_suffix(".adminkey")
    if not path.exists():
        path.write_text(server.admin_key)
        path.chmod(0o600)
    return [BUILD / "loractl", "--admin-url", f"https://127.0.0.1:{server.admin_port}", "--ca", server.ca,
            "--admin-key-file", path, *args]


def ctl(*args, status=0):
    done = subprocess.run(command(*args), capture_output=True, text=True)
    assert done.returncode == status, done
    return done.stdout


def kinds():
    return [e["kind"] for e in server.stats("?tables=events")["events"]]


def post(who, tokens=4, tier="flex", **more):
    return server.call("POST", "/v1/completions", {"model": "base", "prompt": "The red lamp", "max_tokens": tokens, "ignore_eos": True,
                                                   "service_tier": tier, **more}, key=keys[who])


def a_tenant_at_its_limits():
    assert ctl("why", "standard") == "standard: no finished request is recorded for the last hour.\n"
    ctl("why", "initech", status=1)
    assert [post("initech").status for _ in range(6)] == [200, 200, 429, 429, 429, 429]
    server.admin("PATCH", "/limits/initech", {"requests_per_minute": 100000, "tokens_per_day": 1})
    until(lambda: post("initech").json["error"]["code"] == "insufficient_quota")
    said = server.admin("GET", "/limits/initech")["refused"]
    by = {(r["scope"], r["limit"]): r["last_hour"] for r in said}
    n = int(server.metrics()["lorad_rate_limited_total"])
    assert by[("tenant", "requests_per_minute")] == n - 1 >= 4 and by[("tenant", "tokens_per_day")] == 1 and len(by) == 2, said
    said = ctl("why", "initech")
    assert f"Limits refused {n} requests of initech in the last hour:" in said and "by tokens_per_day of the tenant, which is 1\n" in said
    assert "  next: loractl limits set initech requests_per_minute=N\n" in said, said
    assert json.loads(ctl("why", "initech", "--json"))["refused"] == server.admin("GET", "/limits/initech")["refused"]
    told = [e for e in server.stats("?tables=events")["events"] if e["kind"] == "limit.reached"]
    assert sorted(e["detail"] for e in told) == ["the tenant's limit requests_per_minute refuses requests",
                                                 "the tenant's limit tokens_per_day refuses requests"], told
    assert {e["tenant"] for e in told} == {"initech"}
    assert server.admin("GET", "/limits/acme")["refused"] == [] and "refused" not in ctl("why")


def a_low_disk():
    """The event is there though nobody looked while it was so."""
    assert "warnings" not in server.call("GET", "/readyz", port=server.metrics_port).json
    server.admin("PATCH", "/config", {"data.min_free": "1048576GiB"})
    ready = server.call("GET", "/readyz", port=server.metrics_port)
    assert ready.status == 200 and ready.json == {"status": "ready", "warnings": ["disk low: uploads are refused"]}, ready
    r = server.call("POST", "/v1/adapters/x/versions", {"files": [
        {"path": "adapter_config.json", "bytes": 500, "sha256": "11" * 32},
        {"path": "adapter_model.safetensors", "bytes": 500, "sha256": "22" * 32}]}, key=keys["acme"])
    assert r.status == 507 and "MiB are free, and data.min_free keeps 1073741824.0 MiB free" in r.json["error"]["message"], r
    said = until(lambda: (t := ctl("why")).startswith("The disk is low: uploads are refused. ") and t)
    assert "keeps 1.0 PiB free" in said, said
    assert "  next: free space on the disk of data.dir, or loractl config set data.min_free=SIZE\n" in said, said
    until(lambda: "disk.low" in kinds())
    server.admin("PATCH", "/config", {"data.min_free": None})
    until(lambda: "disk.enough" in kinds())
    until(lambda: "The disk" not in ctl("why"))


def the_holder_of_the_slots():
    """globex has both slots and more that wait, again and again; acme misses its target for it."""
    stop = threading.Event()

    def flood():
        while not stop.is_set():
            assert post("globex", tokens=500).status == 200

    def wait():
        while not stop.is_set():
            assert post("acme", tier="default").status == 200

    threads = [threading.Thread(target=t) for t in [flood] * 6 + [wait]]
    for t in threads:
        t.start()
    try:
        def named():
            said = ctl("why")
            return "standard misses its targets now" in said and "culprit: globex has 2 of 2 slots and " in said and said
        said = until(named)
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert "  next: loractl limits set globex max_concurrent=N, or raise engine.max_seqs\n" in said, said


def a_target_that_this_machine_cannot_reach():
    for _ in range(5):
        assert post("acme", tokens=20, tier="priority").status == 200
    said = until(lambda: "One request alone takes" in (t := ctl("why", "interactive")) and t)
    assert "per token on this machine; the target is" in said, said
    assert "  next: raise tpot of classes.interactive above " in said, said


def events_and_audit_are_followed():
    """Each is printed once, as it comes, over a restart of the server as well."""
    with contextlib.ExitStack() as ends:
        def follow(*args):
            p = subprocess.Popen(command(*args), stdout=subprocess.PIPE, text=True)
            ends.callback(p.wait)
            ends.callback(p.terminate)
            return p.stdout
        events, audit = follow("events", "--follow", "--json", "--level", "audit"), follow("audit", "--follow", "--json")
        warned = follow("events", "--follow", "--level", "warning")
        assert "limit.reached" in warned.readline()

        def until_named(lines, field, name):
            seen = []
            while not seen or seen[-1]["object"] != name:
                seen.append(json.loads(lines.readline()))
            assert seen[-1][field] == "tenant.create" and len({r["id"] for r in seen}) == len(seen), seen
            return seen
        server.tenant("followed")
        until_named(events, "kind", "followed")
        until_named(audit, "action", "followed")
        assert server.stop() == 0
        server.start()
        server.tenant("again")
        assert "followed" not in {r["object"] for r in until_named(events, "kind", "again")}
        assert "followed" not in {r["object"] for r in until_named(audit, "action", "again")}
    said = ctl("events")
    assert "tenant.create" in said and "LEVEL" in said, said


with server:
    for name, limits in (("acme", None), ("globex", None), ("initech", {"requests_per_minute": 2})):
        keys[name] = server.tenant(name, **({"limits": limits} if limits else {}))
    run([a_tenant_at_its_limits, a_low_disk, the_holder_of_the_slots, a_target_that_this_machine_cannot_reach, events_and_audit_are_followed])
