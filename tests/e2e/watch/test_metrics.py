"""/metrics: valid as text, and the figures are those of what was sent, also under vLLM's names."""
import concurrent.futures
import json
import os
import re
import ssl
import time

import promtext
from harness import DEMO, ROOT, Server, run, until

MODEL = 'odd "base\\ é'
CLASSES = {"priority": "interactive", "default": "standard", "flex": "batch"}
# Targets that nobody can miss, and one that everybody does: no figure depends on the machine's speed.
server = Server(settings={"model.name": MODEL, "traces.endpoint": "http://127.0.0.1:9/", "webhooks.url": "http://127.0.0.1:9/", "metrics.max_tenants": "2", "engine.max_seqs": "2",
                          "engine.max_queued": "6",
                          "class.interactive.ttft": "1h", "class.interactive.tpot": "1h",
                          "class.standard.ttft": "1us", "class.standard.tpot": "1h",
                          "class.batch.ttft": "1h", "class.batch.tpot": "1us"})
(server.dir / "webhooks.secret").write_text("a" * 32)
(server.dir / "webhooks.secret").chmod(0o600)
keys = {}


def scrape():
    r = server.call("GET", "/metrics", port=server.metrics_port)
    assert r.status == 200 and r.headers["content-type"].startswith("text/plain; version=0.0.4"), r
    return promtext.Scrape(r.body.decode())


def scrape_when(what):
    """The first scrape for which `what` holds: counts follow the last byte by a moment."""
    return until(lambda: next((s for s in [scrape()] if what(s)), None))


def post(who, tier="default", max_tokens=8, prompt="The red lamp", headers=None, model=MODEL, **more):
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True,
            "service_tier": tier, **more}
    return server.call("POST", "/v1/completions", body, key=keys[who], headers=headers)


def idle(s):
    return s.value("lorad_requests_running") == 0 and s.value("lorad_requests_waiting") == 0


def a_fresh_server_has_valid_metrics_and_no_requests():
    s = scrape()
    assert s.value("lorad_requests_total") == 0
    assert s.value("lorad_time_to_first_token_seconds_count") == 0
    assert s.value("lorad_engine_healthy") == 1
    assert 0 <= s.value("lorad_engine_heartbeat_age_seconds") < 30
    assert {l["model_name"] for l, _ in s.select("vllm:num_requests_running")} == {MODEL}
    assert s.value("lorad_slo_target_seconds", **{"class": "standard", "target": "ttft"}) == 1e-6


def the_figures_are_those_of_what_was_sent():
    before, sent = scrape(), []
    for tier, sizes in (("priority", (3, 1, 9)), ("default", (5, 6, 2, 12)), ("flex", (7, 4))):
        for i, n in enumerate(sizes):
            start = time.monotonic()
            r = post("alice", tier, n, prompt="The blue box is heavy " * (i + 1))
            assert r.status == 200, r
            sent.append((CLASSES[tier], r.json["usage"], time.monotonic() - start))
    ends = None  # greedily, then once more with one of the tokens made as the end
    for n in (9, 40):
        start = time.monotonic()
        r = post("alice", "flex", n, temperature=0, return_token_ids=True,
                 **({"stop_token_ids": [ends]} if ends else {}))
        assert r.json["choices"][0]["finish_reason"] == ("stop" if ends else "length"), r
        sent.append(("batch", r.json["usage"], time.monotonic() - start))
        ends = r.json["choices"][0]["token_ids"][-1] if not ends else ends
    s = scrape_when(lambda s: idle(s) and s.value("lorad_e2e_latency_seconds_count") == len(sent))
    promtext.never_backwards(before, s)
    for name in CLASSES.values():
        mine = [(u, t) for c, u, t in sent if c == name]
        cls = {"class": name}
        stops = int(name == "batch")
        assert s.value("lorad_requests_total", outcome="length", **cls) == len(mine) - stops
        assert s.value("lorad_requests_total", outcome="stop", **cls) == stops
        assert s.value("lorad_requests_total", **cls) == len(mine)
        for series in ("time_to_first_token_seconds", "e2e_latency_seconds", "queue_seconds"):
            assert s.value(f"lorad_{series}_count", **cls) == len(mine), series
        # too few for a prediction: max_tokens is all that is known
        assert s.value("lorad_length_predictions_total", result="bounded", **cls) == len(mine)
        assert s.value("lorad_length_predictions_total", **cls) == len(mine)
        assert s.value("lorad_length_prediction_loss_tokens_total", **cls) == 0
        prompts = sum(u["prompt_tokens"] for u, _ in mine)
        assert s.value("lorad_prompt_tokens_sum", **cls) == prompts
        outputs = sum(u["completion_tokens"] for u, _ in mine)
        several = sum(u["completion_tokens"] > 1 for u, _ in mine)
        assert s.value("lorad_output_tokens_sum", **cls) == outputs
        assert s.value("lorad_inter_token_latency_seconds_count", **cls) == outputs - len(mine)
        assert s.value("lorad_time_per_output_token_seconds_count", **cls) == several
        ttft, e2e = (s.value(f"lorad_{n}_seconds_sum", **cls)
                     for n in ("time_to_first_token", "e2e_latency"))
        itl = s.value("lorad_inter_token_latency_seconds_sum", **cls)
        assert 0 < s.value("lorad_queue_seconds_sum", **cls) <= ttft <= e2e
        assert e2e <= sum(t for _, t in mine), (e2e, mine)
        assert ttft < ttft + itl < e2e + 1e-6, (ttft, itl, e2e)
        # which promise was kept follows from the targets alone
        for target in ("ttft", "tpot", "both"):
            broken = {"standard": ("ttft", "both"), "batch": ("tpot", "both")}.get(name, ())
            met = s.value("lorad_slo_requests_total", target=target, met="true", **cls)
            assert met == (0 if target in broken else len(mine)), (name, target, met)
            assert s.value("lorad_slo_requests_total", target=target, **cls) == len(mine)
    assert s.value("vllm:prompt_tokens_total") == sum(u["prompt_tokens"] for _, u, _ in sent)
    assert s.value("vllm:generation_tokens_total") == s.value("lorad_output_tokens_sum")
    assert s.value("vllm:request_success_total", finished_reason="length") == len(sent) - 1
    assert s.value("vllm:request_success_total", finished_reason="stop") == 1
    for ours, theirs in (("time_to_first_token", "time_to_first_token"),
                         ("inter_token_latency", "inter_token_latency"),
                         ("inter_token_latency", "time_per_output_token"),
                         ("e2e_latency", "e2e_request_latency"),
                         ("queue", "request_queue_time")):
        for part in ("sum", "count"):
            a = s.value(f"lorad_{ours}_seconds_{part}")
            b = s.value(f"vllm:{theirs}_seconds_{part}")
            assert abs(a - b) < 1e-6 * (a + b) + 1e-9, (ours, theirs, a, b)
    hits, asked = s.value("vllm:prefix_cache_hits_total"), s.value("vllm:prefix_cache_queries_total")
    assert hits == sum(u["prompt_tokens_details"]["cached_tokens"] for _, u, _ in sent)
    assert asked == sum(u["prompt_tokens"] for _, u, _ in sent)
    assert s.value("lorad_tenant_requests_total", tenant="alice") == len(sent)
    assert s.value("lorad_tenant_time_to_first_token_seconds_count", tenant="alice") == len(sent)


def full(s):
    return s.value("vllm:num_requests_running") == 2 and s.value("vllm:num_requests_waiting") == 2


def stream_of(model):
    c = server.connect()
    c.request("POST", "/v1/completions",
              json.dumps({"model": model, "prompt": "One", "max_tokens": 900, "stream": True,
                          "ignore_eos": True}),
              {"Authorization": "Bearer " + keys["alice"], "Content-Type": "application/json"})
    return c


def running_and_waiting_requests_and_their_adapters_are_shown():
    info = scrape().select("vllm:lora_requests_info")
    assert len(info) == 1 and info[0][0]["waiting_lora_adapters"] == "", info
    assert info[0][0]["max_lora"] == "2" and abs(info[0][1] - time.time()) < 60, info
    cancelled = scrape().value("lorad_requests_total", outcome="cancelled")
    names = {"pirate", "shout", "formal"}
    for _ in range(20):  # until a look falls between the last one's coming and the first one's end
        ended = scrape().value("lorad_requests_total")
        streams = [stream_of(n) for n in (*names, "pirate")]
        scrape_when(lambda s: full(s) or s.value("lorad_requests_total") > ended)
        s = scrape()
        if full(s) and full(scrape()):
            break
        for c in streams:
            c.close()
        scrape_when(idle)
    labels = s.select("vllm:lora_requests_info")[0][0]
    running, waiting = (labels[k + "_lora_adapters"].split(",") for k in ("running", "waiting"))
    assert set(running) | set(waiting) == names, labels
    assert 1 <= len(waiting) <= 2, labels  # those that run are told with those that are resident
    for some in (running, waiting):
        assert len(some) == len(set(some)), labels
    use = s.value("vllm:kv_cache_usage_perc")
    assert 0 < use <= 1 and use == s.value("vllm:gpu_cache_usage_perc"), use
    config = s.select("vllm:cache_config_info")[0][0]
    assert int(config["num_gpu_blocks"]) == s.value("lorad_kv_pages"), config
    assert int(config["block_size"]) >= 1, config
    for c in streams:
        c.close()
    s = scrape_when(lambda s: idle(s) and s.value("lorad_kv_pages_used") == 0)
    ended = s.value("lorad_requests_total", outcome="cancelled") - cancelled
    assert ended >= 2, ended  # at least those that waited
    labels = s.select("vllm:lora_requests_info")[0][0]
    assert set(labels["running_lora_adapters"].split(",")) == names and labels["waiting_lora_adapters"] == "", labels
    assert s.value("vllm:request_success_total", finished_reason="abort") == \
        s.value("lorad_requests_total", outcome="cancelled")


def every_outcome_is_told_apart():
    before = scrape()

    def grown(s, outcome):
        return (s.value("lorad_requests_total", outcome=outcome)
                - before.value("lorad_requests_total", outcome=outcome))

    def missed(s):  # of the batch class every complete request misses its target
        return (s.value("lorad_slo_requests_total", target="both", met="false")
                - s.value("lorad_slo_requests_total", target="tpot", met="false"))
    assert post("limited", "priority", max_tokens=2).status == 200
    assert post("limited", "priority", max_tokens=2).status == 429
    statuses = []
    while 429 not in statuses:  # more than the queue holds, and one that finds it full
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            many = [pool.submit(post, "alice", "flex", 900) for _ in range(12)]
            many.append(pool.submit(post, "alice", "priority"))
            statuses += [f.result().status for f in many]
    while 504 not in statuses:  # its client gives up before there is a seat
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            many = [pool.submit(post, "alice", "flex", 900) for _ in range(4)]
            many.append(pool.submit(post, "alice", "flex", headers={"x-request-timeout": "0.01"}))
            statuses += [f.result().status for f in many]
    refused, failed, length = (statuses.count(k) for k in (429, 504, 200))
    assert refused + failed + length == len(statuses), statuses
    s = scrape_when(idle)
    assert {k: grown(s, k) for k in ("limited", "refused", "failed")} == \
        {"limited": 1, "refused": refused, "failed": failed}
    assert grown(s, "length") == 1 + length
    assert missed(s) - missed(before) == refused + failed  # the limited one is nobody's fault


def a_stop_string_is_a_good_end():
    before = scrape().value("lorad_requests_total", outcome="stop")
    for _ in range(20):  # the engine may have made all tokens before the string was seen
        r = post("alice", "priority", 900, stop=["e", " "])
        assert r.json["choices"][0]["finish_reason"] == "stop", r
        if scrape_when(idle).value("lorad_requests_total", outcome="stop") > before:
            return
    raise AssertionError("never counted as a stop")


def tenants_beyond_the_limit_share_one_series():
    for who in ("other", "dave", "other"):  # a tenant may be called so
        assert post(who, "priority", 3).status == 200
    s = scrape_when(idle)
    tenants = {l["tenant"] for l, _ in s.select("lorad_tenant_requests_total")}
    assert tenants == {"alice", "limited", "_other"}, tenants
    assert s.value("lorad_tenant_requests_total", tenant="_other", outcome="length") == 3
    assert s.value("lorad_tenant_slo_requests_total", tenant="_other", met="true") == 3
    assert s.value("lorad_tenant_tokens_total", tenant="_other", kind="output") == 9
    for outcome in ("stop", "length", "refused", "limited", "cancelled", "failed"):
        assert s.value("lorad_tenant_requests_total", outcome=outcome) == \
            s.value("lorad_requests_total", outcome=outcome), outcome


def what_the_operator_must_renew_or_watch_is_there():
    s = scrape()
    with server.raw() as sock:
        not_after = ssl.cert_time_to_seconds(sock.getpeercert()["notAfter"])
    shown = s.value("lorad_tls_certificate_expiry_timestamp_seconds")
    assert abs(shown - not_after) < 5, (shown, not_after)
    assert abs(s.value("process_start_time_seconds") - time.time()) < 3600
    assert 0 <= s.value("lorad_ledger_lag_seconds") < 60
    assert s.value("lorad_ledger_commits_total") > 0 and s.value("lorad_ledger_failed_total") == 0


def without_vllm_names_there_are_none():
    with Server(settings={"metrics.vllm_names": "no"}) as other:
        text = other.call("GET", "/metrics", port=other.metrics_port).body.decode()
    assert promtext.Scrape(text).value("lorad_requests_running") == 0
    assert "vllm" not in text


def a_gpu_that_goes_unused_is_shown():
    if os.environ.get("LORAD_BACKEND") == "cuda":
        return  # it is used
    root = server.dir / "machine"
    (root / "dev").mkdir(parents=True)
    (root / "dev" / "nvidia0").touch()
    assert scrape().value("lorad_gpu_unused") == 0 and server.stats()["server"]["gpu_unused"] == ""
    with Server(settings={"debug.device_root": str(root), "engine.backend": "auto"}) as other:
        said = other.call("GET", "/readyz", port=other.metrics_port).json["warnings"]
        assert len(said) == 1 and said[0].startswith("the CPU serves and an NVIDIA GPU is unused: "), said
        assert other.stats()["server"]["gpu_unused"] == said[0]
        text = other.call("GET", "/metrics", port=other.metrics_port).body.decode()
        assert promtext.Scrape(text).value("lorad_gpu_unused") == 1
        line = next(l for l in other.log_path.read_text().splitlines() if said[0] in l)
        assert " WARN " in line.upper() and "set engine.backend: cpu accepts it, cuda refuses to start" in line, line
    with Server(settings={"debug.device_root": str(root), "engine.backend": "cpu"}) as other:
        assert "warnings" not in other.call("GET", "/readyz", port=other.metrics_port).json


def the_reference_names_every_family_with_its_labels():
    """docs/reference/metrics.md is read out of the sources (tests/tools/make_reference.py): here is the truth."""
    row = re.compile(r"\| `([\w:]+)` \| (\w+) \| (.*?) \| (.*) \|")
    page = (ROOT / "docs/reference/metrics.md").read_text()
    told = {m[1]: (m[2], set(re.findall(r"`(\w+)`", m[3])), m[4]) for m in map(row.match, page.splitlines())
            if m and not m[1].startswith(("lorad_fleet_", "lorad_moves_", "lorad_store_"))}  # of a fleet's alone: test_fleet and on
    seen = {f.name: (f.type, {k for _, labels, _ in f.samples for k in labels if k != "le"}, f.help)
            for f in scrape().families.values()}
    assert told == seen, {n for n in {*told, *seen} if told.get(n) != seen.get(n)}


with server:
    keys["alice"] = server.tenant("alice")
    keys["limited"] = server.tenant("limited", limits={"requests_per_minute": 1})
    keys["other"] = server.tenant("other")
    keys["dave"] = server.tenant("dave")
    for a in ("pirate", "shout", "formal"):
        server.upload(keys["alice"], a, DEMO / "adapters" / a)
    run([a_fresh_server_has_valid_metrics_and_no_requests, the_figures_are_those_of_what_was_sent,
         running_and_waiting_requests_and_their_adapters_are_shown, every_outcome_is_told_apart,
         a_stop_string_is_a_good_end, tenants_beyond_the_limit_share_one_series,
         what_the_operator_must_renew_or_watch_is_there, the_reference_names_every_family_with_its_labels,
         without_vllm_names_there_are_none, a_gpu_that_goes_unused_is_shown])
