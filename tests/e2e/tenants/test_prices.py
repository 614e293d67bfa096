"""Prices by class, adapter and direction: costs stay what they were, budgets in money refuse, and the fields say so."""
import csv
import io
import subprocess

from harness import BUILD, DEMO, Server, demo_adapters, run

CLASSES = {"class.interactive.price_prompt": 3_000_000, "class.interactive.price_cached": 300_000,
           "class.interactive.price_output": 9_000_000, "class.batch.price_prompt": 500_000,
           "class.batch.price_output": 700_000}
server = Server(settings={**CLASSES, "classes.default": "interactive"})


def ask(key, model="base", max_tokens=4, tier=None, times=1):
    return server.call("POST", "/v1/completions", {
        "model": model, "prompt": "What is 7 plus 5? Please tell me all of it." * times, "max_tokens": max_tokens, "ignore_eos": True,
        **({"service_tier": tier} if tier else {})}, key=key)


def usage(tenant, by="class,adapter,model"):
    server.booked()
    shown = server.admin("GET", f"/usage?tenant={tenant}&group_by={by}")["data"]
    return [r for b in shown for r in b["results"]]


def cost(u, prompt, cached, output):
    """Of one row, in whole micros, half up."""
    fresh = u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"]
    exact = fresh * prompt + u["prompt_tokens_details"]["cached_tokens"] * cached + u["completion_tokens"] * output
    return (exact + 500_000) // 1_000_000


def each_direction_of_a_class_has_its_price():
    key = server.tenant("classes")
    want = 0
    for _ in range(3):  # the later ones have a part of the prompt from the cache
        u = ask(key, times=6).json["usage"]
        want += cost(u, 3_000_000, 300_000, 9_000_000)
    assert u["prompt_tokens_details"]["cached_tokens"] > 0, u
    [row] = usage("classes")
    assert row["cost_micros"] == want, (row, want)
    u = ask(key, tier="flex", max_tokens=10).json["usage"]  # price_cached: as price_prompt
    [batch] = [r for r in usage("classes") if r["class"] == "batch"]
    assert batch["cost_micros"] == cost(u, 500_000, 500_000, 700_000), (batch, u)
    # The tenant sees the same, and so does the CSV.
    own = server.call("GET", "/v1/usage?group_by=class", key=key).json["data"][0]["results"]
    assert sum(r["cost_micros"] for r in own) == row["cost_micros"] + batch["cost_micros"], own
    r = server.call("GET", "/v1/usage?group_by=class", key=key, headers={"Accept": "text/csv"})
    rows = list(csv.DictReader(io.StringIO(r.body.decode())))
    assert sorted(int(r["cost_micros"]) for r in rows) == sorted(r["cost_micros"] for r in own), rows


def an_adapter_adds_its_surcharge():
    key = server.tenant("adapters")
    server.upload(key, adapter, DEMO / "adapters" / adapter)
    limits = server.admin("PATCH", f"/limits/adapters/{adapter}", {"surcharge_prompt": 1_000_000, "surcharge_output": 2_000_000})
    assert limits["limits"]["surcharge_prompt"] == 1_000_000 and limits["limits"]["surcharge_cached"] == 0, limits
    u = ask(key, adapter).json["usage"]
    [row] = usage("adapters")
    assert row["cost_micros"] == cost(u, 4_000_000, 300_000, 11_000_000), (row, u)
    for bad in (-1, 10**12 + 1, 1.5, "1"):
        r = server.call("PATCH", f"/admin/v1/limits/adapters/{adapter}", {"surcharge_output": bad}, key=server.admin_key, port=server.admin_port)
        assert r.status == 400 and r.json["error"]["param"] == "surcharge_output", (bad, r)


def a_new_price_changes_no_row():
    key = server.tenant("before")
    assert ask(key).status == 200
    before = usage("before")
    assert before[0]["cost_micros"] > 0
    server.admin("PATCH", "/config", {"class.interactive.price_output": "90000000"})
    assert usage("before") == before
    u = ask(key).json["usage"]
    after = usage("before")
    assert after[0]["cost_micros"] - before[0]["cost_micros"] == cost(u, 3_000_000, 300_000, 90_000_000), (before, after, u)
    server.admin("PATCH", "/config", {"class.interactive.price_output": "9000000"})


def a_budget_in_money_refuses():
    """The worst case is reserved before the request begins; the refusal names the budget and when it begins anew."""
    key = server.tenant("budget", limits={"cost_per_day": 400})
    u = ask(key).json["usage"]
    spent = cost(u, 3_000_000, 300_000, 9_000_000)
    shown = server.admin("GET", "/limits/budget")
    assert shown["used"]["cost_per_day"] == spent and shown["limits"]["cost_per_day"] == 400, shown
    mine = server.call("GET", "/v1/key", key=key).json["limits"]["cost_per_day"]
    assert mine == {"limit": 400, "remaining": 400 - spent}, mine
    r = ask(key, max_tokens=200)  # 1,800 micros at most
    assert r.status == 429 and r.json["error"]["code"] == "insufficient_quota", r
    assert r.headers["x-should-retry"] == "false", r.headers
    said = r.json["error"]["message"]
    assert "0.000400 of cost per day" in said and "cost_per_day" in said and "resets at 20" in said and "00:00 UTC" in said, said
    assert server.admin("GET", "/limits/budget")["used"]["cost_per_day"] == spent  # a refusal takes nothing
    assert ask(key).status == 200
    server.stop()  # what is spent outlives the server
    server.start()
    assert server.admin("GET", "/limits/budget")["used"]["cost_per_day"] > spent


def loractl_shows_costs():
    server.booked()
    path = server.dir / "admin.key"
    path.chmod(0o600)
    out = subprocess.run([BUILD / "loractl", "--admin-url", f"https://127.0.0.1:{server.admin_port}", "--ca", server.ca, "--admin-key-file", path,
                          "usage", "--all", "--by", "tenant"], capture_output=True, text=True)
    assert out.returncode == 0, out
    head, *lines = out.stdout.splitlines()
    assert "COST" in head.split(), out.stdout
    rows = {line.split()[0]: line.split()[-1] for line in lines}
    for tenant, shown in rows.items():
        assert shown == f"{sum(r['cost_micros'] for r in usage(tenant)) / 1e6:.6f}", (tenant, out.stdout)


with server:
    adapter = demo_adapters()[0]
    run([each_direction_of_a_class_has_its_price, an_adapter_adds_its_surcharge, a_new_price_changes_no_row, a_budget_in_money_refuses,
         loractl_shows_costs])
