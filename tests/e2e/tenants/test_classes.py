"""Classes from the configuration: four of them, asked for by name and by tier, in every place that shows classes; a
tenant's own targets within one; and what becomes of tenants whose class is no more."""
import os
import subprocess

from harness import BUILD, Server, run

# Targets that nobody can miss, and one that everybody does: nothing depends on the machine's speed.
FOUR = """
[class.gold]
ttft = 1h
tpot = 1h
weight = 4
tiers = vip, priority

[class.strict]
ttft = 1us
tpot = 1h
overload = reject

[class.standard]
ttft = 1h
tpot = 1h

[class.bulk-2]
ttft = 1h
tpot = 1h
weight = 0.5
tiers = flex
"""
NAMES = ["gold", "strict", "standard", "bulk-2"]
server = Server()


def reconfigure():
    """The file that lorad init made, with these classes instead of its own."""
    conf = server.dir / "lorad.conf"
    parts = conf.read_text().split("\n[")
    conf.write_text("\n[".join(p for p in parts if not p.startswith("class.")) + FOUR)


def ask(key, tier=None, expect=200, **more):
    body = {"model": "base", "messages": [{"role": "user", "content": "What is 7 plus 5?"}], "max_tokens": 4, "ignore_eos": True, **more}
    r = server.call("POST", "/v1/chat/completions", {**body, **({"service_tier": tier} if tier else {})}, key=key)
    assert r.status == expect, r
    return r


def each_is_asked_for_by_name_and_by_tier():
    for asked, said in (("gold", "vip"), ("vip", "vip"), ("priority", "vip"), ("standard", "standard"), ("bulk-2", "flex"),
                        ("flex", "flex"), ("auto", "standard"), (None, "standard")):
        assert ask(key, asked).json["service_tier"] == said, asked
    message = ask(key, "default", expect=400).json["error"]["message"]
    assert all(name in message for name in NAMES), message
    assert ask(key, priority=-1).json["service_tier"] == "vip"  # vLLM's priority, by its tier


def the_strict_one_refuses_at_once():
    r = ask(key, "strict", expect=429)
    assert "'strict'" in r.json["error"]["message"] and 1 <= int(r.headers["retry-after"]) <= 60, (r, r.headers)


def every_place_shows_all_four():
    listed = server.admin("GET", "/classes")["data"]
    assert [c["name"] for c in listed] == NAMES, listed
    assert [c["name"] for c in listed if c["default"]] == ["standard"]
    assert listed[0]["tiers"] == ["vip", "priority"] and listed[1]["overload"] == "reject", listed
    assert listed[3]["weight"] == 0.5 and listed[2]["tiers"] == [], listed
    m = server.metrics()
    assert m['lorad_requests_total{class="gold",outcome="length"}'] >= 3
    assert m['lorad_requests_total{class="bulk-2",outcome="length"}'] == 2
    assert m['lorad_requests_total{class="strict",outcome="refused"}'] == 1
    assert m['lorad_slo_target_seconds{class="strict",target="ttft"}'] == 1e-6
    server.booked()
    shown = server.stats()["classes"]
    assert [c["name"] for c in shown] == NAMES and [c["on_overload"] for c in shown] == ["queue", "reject", "queue", "queue"]
    assert shown[0]["ended"] >= 3 and shown[3]["ended"] == 2, shown
    groups = server.admin("GET", "/usage?group_by=class")["data"]
    assert {r["class"] for g in groups for r in g["results"]} >= {"gold", "standard", "bulk-2"}, groups
    assert " class=bulk-2 " in server.log_path.read_text()
    top = subprocess.run([BUILD / "loratop", "--once", "--width", "100"], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
                         env={**os.environ, "LORAD_ADMIN_URL": f"https://localhost:{server.admin_port}", "LORAD_CA": server.ca,
                              "LORAD_ADMIN_KEY": server.admin_key, "LC_ALL": "C.UTF-8", "XDG_CONFIG_HOME": str(server.dir)}).stdout
    lines = [line.split() for line in top.splitlines() if line.split()[:1] and line.split()[0] in NAMES]
    assert [line[0] for line in lines] == NAMES, top


def a_tenants_own_targets_are_kept_and_checked():
    def patch(targets, expect=(200,)):
        return server.admin("PATCH", "/tenants/patient", {"targets": targets}, expect=expect)
    assert server.admin("GET", "/tenants/patient")["targets"] == {"strict": {"ttft_ms": 3600000, "tpot_ms": None}}
    assert patch({"gold": {"tpot_ms": 40}})["targets"]["gold"] == {"ttft_ms": None, "tpot_ms": 40}
    for wrong in ({"silver": {"ttft_ms": 1}}, {"gold": {"ttft_ms": 0}}, {"gold": {"tpot_ms": 86400001}}, {"gold": {"ttft": 1}},
                  {"gold": 3}, [], {"gold": {"ttft_ms": 1.5}}):
        r = server.call("PATCH", "/admin/v1/tenants/patient", {"targets": wrong}, key=server.admin_key, port=server.admin_port)
        assert r.status == 400, (wrong, r)
    assert patch({"gold": None, "silver": None})["targets"] == {"strict": {"ttft_ms": 3600000, "tpot_ms": None}}
    assert patch({})["targets"] == patch(None)["targets"] != {}


def requests_are_promised_what_their_tenant_has():
    before = server.metrics()
    assert ask(patient, "strict").json["service_tier"] == "strict"  # looser than the class's 1 us: served
    ask(hasty, "gold", messages=[{"role": "user", "content": "The red lamp. " * 200}])  # 1 ms instead of an hour: missed
    after = server.metrics()

    def risen(what):
        return after[what] - before.get(what, 0)
    assert risen('lorad_slo_requests_total{class="strict",target="both",met="true"}') == 1
    assert risen('lorad_slo_requests_total{class="gold",target="ttft",met="false"}') == 1
    server.booked()
    rows = {t["name"]: t for t in server.stats()["tenants"]}
    assert (rows["patient"]["met"], rows["patient"]["missed"]) == (1, 0), rows["patient"]
    assert (rows["hasty"]["met"], rows["hasty"]["missed"]) == (0, 1), rows["hasty"]


def a_class_that_is_no_more_is_told():
    log = server.log_path.read_text()
    assert "tenant left: its default class 'batch' is not configured" in log, log[-2000:]
    assert "tenant bound: none of the classes that it may use is configured" in log
    assert "tenant left: its own targets in 'batch'" in log
    assert ask(left).json["service_tier"] == "standard"  # the server's default stands in
    assert "batch" in server.admin("GET", "/tenants/left")["targets"]  # for when it comes back
    assert server.admin("PATCH", "/tenants/left", {"targets": {"batch": None}})["targets"] == {}
    assert "may not use the class" in ask(bound, expect=400).json["error"]["message"]


server.start()
left = server.tenant("left", default_class="flex", targets={"batch": {"ttft_ms": 5, "tpot_ms": 6}})
server.admin("PATCH", "/tenants/left", {"default_class": "batch"})
bound = server.tenant("bound", classes=["batch", "interactive"])
server.stop()
reconfigure()
with server:
    key = server.tenant("alice")
    patient = server.tenant("patient", targets={"strict": {"ttft_ms": 3600000}})
    hasty = server.tenant("hasty", targets={"gold": {"ttft_ms": 1, "tpot_ms": 3600000}})
    run([each_is_asked_for_by_name_and_by_tier, the_strict_one_refuses_at_once, every_place_shows_all_four,
         a_tenants_own_targets_are_kept_and_checked, requests_are_promised_what_their_tenant_has,
         a_class_that_is_no_more_is_told])
