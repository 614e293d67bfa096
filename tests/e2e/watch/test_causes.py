"""Why a promise broke: causes that are brought about are named, and metrics, log, usage rows and /stats count the same."""
import collections
import concurrent.futures
import json
import os
import signal
import sqlite3
import subprocess
import time

from harness import BUILD, DEMO, Server, run, until

# Of the class standard every request misses, whatever the machine: what it waited for is the cause.  Batch never does.
server = Server(program="lorad_faulty", settings={
    "engine.max_seqs": "2", "engine.max_queued": "3", "log.format": "json",
    "adapters.host_memory": "0", "classes.interactive": "ttft:1h tpot:20ms weight:4",
    "classes.standard": "ttft:1us tpot:1h weight:2", "classes.batch": "ttft:1h tpot:1h weight:1"})
FAULT, SLOW = server.dir.with_suffix(".fault"), server.dir.with_suffix(".slow")
os.environ["LORAD_TEST_FAULT"], os.environ["LORAD_TEST_SLOW"] = str(FAULT), str(SLOW)
CAUSES = ("queue", "limits", "adapter_load", "prompt", "decode_steps", "preemption", "swap", "storage", "restart", "machine")
keys = {}


def lines():
    """Of completions: what the log says, by request id."""
    all_lines = [json.loads(t) for t in server.log_path.read_text().splitlines() if '"path":"/v1/completions"' in t]
    return {line["id"]: line for line in all_lines}


def line_of(reply):
    """It is written just after the answer."""
    return until(lambda: lines().get(reply.headers["x-request-id"]))


def post(tier="default", tokens=4, model="base", prompt="The red lamp", **more):
    return server.call("POST", "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True,
                                                    "service_tier": tier, **more}, key=keys["acme"])


def open_stream(tier, n):
    """Its first token is there."""
    c = server.connect()
    c.request("POST", "/v1/completions",
              json.dumps({"model": "base", "prompt": "One", "max_tokens": n, "stream": True, "ignore_eos": True,
                          "service_tier": tier}),
              {"Authorization": "Bearer " + keys["acme"], "Content-Type": "application/json"})
    answer = c.getresponse()
    assert answer.status == 200 and answer.readline().startswith(b"data: ")
    return answer


def a_miss_has_a_cause_and_a_kept_promise_none():
    r = post()
    assert r.status == 200 and line_of(r)["missed"] in CAUSES, line_of(r)
    assert "missed" not in line_of(post("flex"))


def unless_the_machine(scene, cause):
    """Of what scene() gives everything has this cause; what a busy machine has held up is tried again."""
    def tried():
        seen = {line_of(r)["missed"] for r in scene()}
        assert seen <= {cause, "machine"}, seen
        return seen == {cause}
    until(tried)


def who_waits_for_a_seat_is_held_by_the_queue():
    def scene():
        streams = [open_stream("flex", 1000) for _ in range(2)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(post) for _ in range(3)]
            until(lambda: server.metrics()["lorad_requests_waiting"] == 3)
            refused = post()  # the queue is full
            for s in streams:
                s.read()
            waited = [w.result() for w in waiting]
        assert refused.status == 429 and line_of(refused)["missed"] == "queue", refused
        for s in streams:
            assert "missed" not in line_of(s)
        return waited
    unless_the_machine(scene, "queue")


def a_slow_disk_is_storage():
    """Also while the load goes on: what is told when the promise is over is told for good."""
    def told():
        return {c["name"]: c["verdict"] for c in server.stats()["classes"]}["standard"]

    def scene():
        before = until(told)  # of what queued above
        server.admin("POST", "/tenants/acme/adapters/pirate/evict", expect=(200, 202, 204))
        SLOW.write_text("1000")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(post, model="pirate")
            verdict = until(lambda: told() if told() != before else None)
            assert "adapter_load" not in verdict and not asked.done(), verdict
            SLOW.unlink()
        assert asked.result().status == 200, asked.result()
        return [asked.result()]
    server.admin("PATCH", "/tenants/acme", {"targets": {"standard": {"ttft_ms": 300}}})
    unless_the_machine(scene, "storage")
    server.admin("PATCH", "/tenants/acme", {"targets": {"standard": None}})


def a_process_that_stands_still_is_the_machine():
    """A stream of 60 tokens may take 1.2 s: it is stopped for longer."""
    stream = open_stream("priority", 60)
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(2)
    server.process.send_signal(signal.SIGCONT)
    stream.read()
    assert line_of(stream)["missed"] == "machine", line_of(stream)


def who_runs_when_the_device_fails_is_told_so():
    part = FAULT.with_suffix(".part")
    part.write_text("10\n")
    os.replace(part, FAULT)
    r = post("flex", 400)
    assert r.status == 503 and line_of(r)["missed"] == "restart", line_of(r)
    until(lambda: server.metrics()["lorad_engine_restarts_total"] == 1)


def history_says_since_when_and_the_verdict_why():
    """Of standard every request misses: its breach is told at once, its spans once they are over."""
    for _ in range(4):
        assert post().status == 200

    def broken():
        stats = server.admin("GET", "/stats")
        told = [e for e in stats["events"] if e["kind"] == "slo.broken" and e["object"] == "standard"]
        verdict = {c["name"]: c["verdict"] for c in stats["classes"]}["standard"]
        return (told, verdict) if told and verdict else None
    told, verdict = until(broken)
    assert "missed (" in told[0]["detail"] and verdict.startswith("since "), (told, verdict)
    assert ctl("why", "standard").startswith("standard misses its targets now, since ")

    def kept():
        found = server.admin("GET", "/history?by=class&name=standard")["data"]
        return sum(r["missed"] for r in found) >= 4 and found
    rows = until(kept)
    assert rows and {r["seconds"] for r in rows} == {10} and sum(r["missed"] for r in rows) >= 4, rows
    assert all(r["start"] % 10 == 0 and r["causes"] for r in rows if r["missed"]), rows
    tenants = server.admin("GET", "/history?by=tenant")["data"]
    assert {r["name"] for r in tenants} == {"acme"}, tenants
    assert {r["seconds"] for r in server.admin("GET", "/history?by=class&step=600")["data"]} <= {600}
    for query in ("by=key", "step=60", "start=x", "limit=0"):
        server.admin("GET", "/history?" + query, expect=(400,))


def ctl(*args, status=0):
    key = server.dir.with_suffix(".adminkey")
    key.write_text(server.admin_key)
    key.chmod(0o600)
    done = subprocess.run([BUILD / "loractl", "--admin-url", f"https://127.0.0.1:{server.admin_port}", "--ca", server.ca,
                           "--admin-key-file", key, *args], capture_output=True, text=True)
    assert done.returncode == status, done
    return done.stdout


def loractl_says_why():
    slow = line_of(post())
    said = ctl("why", slow["id"])
    assert "class standard, tenant acme" in said and f"because of: {slow['missed']}" in said and "prompt, to the first token" in said, said
    for name, who in (("standard", "acme"), ("acme", "acme/pirate")):
        why = json.loads(ctl("why", name, "--json"))
        assert why["missed"] >= 4 and why["missed"] == sum(why["causes"].values()) and why["since"] < why["until"], why
        said = ctl("why", name)
        assert f"{name}: {why['missed']} of {why['requests']} requests" in said and "By cause: " in said, said
    rows = json.loads(ctl("history", "standard", "--json"))
    assert sum(r["missed"] for r in rows) >= 4 and "standard" in ctl("history"), rows
    assert "acme" in ctl("history", "--by", "tenant", "--step", "10s")
    assert said.startswith("acme: ") and ctl("why", "standard").startswith("standard misses its targets now, since "), ctl("why", "standard")
    assert json.loads(ctl("why", "standard", "--json"))["verdict"].startswith("since ")
    assert "standard misses its targets now, since " in ctl("why") and "certificate" not in ctl("why"), ctl("why")
    ctl("why", "nobody", status=1)
    ctl("why", "req_0000000000000000", status=1)
    ctl("history", "--step", "1h", status=2)


def several_choices_are_told_together():
    r = post(n=2)
    line = line_of(r)
    counts = dict(part.split(":") for part in line["missed"].split(","))
    assert r.status == 200 and sum(map(int, counts.values())) == 2 and set(counts) <= set(CAUSES), line


def counts():
    """By class and tenant, the log, the rows, the misses, what was refused at the door, the picture; once they agree."""
    m = server.metrics()
    by_class, by_tenant, log, refused = (collections.Counter() for _ in range(4))
    for cause in CAUSES:
        by_tenant[cause] = m[f'lorad_tenant_slo_missed_total{{tenant="acme",cause="{cause}"}}']
        for c in ("interactive", "standard", "batch"):
            by_class[cause] += m[f'lorad_slo_missed_total{{class="{c}",cause="{cause}"}}']
    for line in lines().values():
        for part in filter(None, line.get("missed", "").split(",")):
            cause, _, n = part.partition(":")
            log[cause] += int(n or 1)
            refused[cause] += line["status"] == 429
    db = sqlite3.connect(f"file:{server.dir}/lorad.db?mode=ro", uri=True)
    rows = collections.Counter(dict(db.execute("SELECT missed, count(*) FROM usage WHERE missed <> '' GROUP BY missed")))
    db.close()
    missed = sum(v for k, v in m.items() if k.startswith("lorad_slo_requests_total") and 'target="both",met="false"' in k)
    stats = server.stats()
    agree = +by_class == +log == rows + refused == shown(stats, "classes")
    return agree and (+by_class, +by_tenant, missed, stats)


def shown(stats, table):
    """Of /stats, whose rows add up."""
    sums = collections.Counter()
    for row in stats[table]:
        assert row["missed"] == sum(row["missed_" + c] for c in CAUSES), row
        sums.update({c: row["missed_" + c] for c in CAUSES})
    return +sums


def all_count_the_same():
    """Metrics by class and by tenant, the log, /stats, and, without what was refused at the door, usage rows."""
    by_class, by_tenant, missed, stats = until(counts)
    assert by_class == by_tenant and sum(by_class.values()) == missed >= 8, (by_class, by_tenant, missed)
    assert {"queue", "storage", "restart", "machine"} <= set(by_class), by_class
    assert shown(stats, "tenants") == by_class and shown(stats, "adapters")["storage"] == 1, stats


with server:
    keys["acme"] = server.tenant("acme")
    server.upload(keys["acme"], "pirate", DEMO / "adapters" / "pirate")
    run([a_miss_has_a_cause_and_a_kept_promise_none, who_waits_for_a_seat_is_held_by_the_queue, a_slow_disk_is_storage,
         a_process_that_stands_still_is_the_machine, who_runs_when_the_device_fails_is_told_so,
         history_says_since_when_and_the_verdict_why, loractl_says_why, several_choices_are_told_together, all_count_the_same])
