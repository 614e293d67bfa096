"""A fleet with an object store: uploaded at one node, served by all; one download for many; what is damaged, slow, away, deleted, too much."""
import concurrent.futures
import pathlib
import subprocess
import tempfile
import time

from fleets import Fleet, lorad
from harness import BUILD, DEMO, run, until
from postgres import skip_unless_there
from s3 import S3

skip_unless_there()
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SIZE = {a.name: sum((a / f).stat().st_size for f in (CONFIG, WEIGHTS)) for a in (DEMO / "adapters").iterdir() if a.is_dir()}
work = pathlib.Path(tempfile.mkdtemp(prefix="lorad-store-"))
s3 = S3()
fleet = Fleet(shared={**s3.settings(work / "keys"), "store.cache_bytes": SIZE["pirate"] + SIZE["spanish"] + SIZE["shout"],
                        "server.max_connections_per_ip": "400"})


def ask(node, model, **more):
    return node.ask(key, model, "What is 7 plus 5?", max_tokens=2, **more)


def publish(node, name, expect=(201,)):
    """The version, once all nodes know it."""
    made = node.upload(key, name, DEMO / "adapters" / name, expect)
    if made.status == 201:
        for n in fleet.nodes:
            until(lambda: n.call("GET", f"/v1/models/{name}", key=key).status == 200)
    return made


def version(node, name):
    return node.call("GET", f"/v1/adapters/{name}/versions/1", key=key).json


def objects(digest):
    return sorted(p for p in s3.objects if digest in p)


def check_tries_it():
    a = fleet.nodes[0]
    argv = [w for name, value in a.settings.items() for w in ("--set", f"{name}={value}")]
    good = lorad("check", "-c", a.dir / "lorad.conf", *argv)
    assert good.returncode == 0 and "s3://adapters/fleet-1" in good.stdout and not s3.objects, good
    assert {m for m, p in s3.calls if "/probe/" in p} == {"PUT", "HEAD", "GET", "DELETE"} and not s3.refused, s3.calls
    wrong = work / "wrong"
    wrong.write_text("AKIDTEST\nanother\n")
    wrong.chmod(0o600)
    bad = lorad("check", "-c", a.dir / "lorad.conf", *argv, "--set", f"store.credentials_file={wrong}")
    assert bad.returncode == 1 and "403" in bad.stderr and "another" not in bad.stderr, bad
    wrong.chmod(0o644)
    bad = lorad("check", "-c", a.dir / "lorad.conf", *argv, "--set", f"store.credentials_file={wrong}")
    assert bad.returncode == 1 and "store.credentials_file" in bad.stderr, bad
    assert s3.refused and not s3.objects
    s3.refused.clear()


def uploaded_at_one_served_by_all():
    a, b, c = fleet.nodes
    s3.away = 2  # tried again
    v = publish(a, "pirate").json
    assert v["files"] == "here" and objects(v["digest"]) == [f"/adapters/fleet-1/sha256/{v['digest']}/{f}" for f in (CONFIG, WEIGHTS)]
    said = ask(a, "pirate").json["choices"]
    for n in (b, c):
        assert version(n, "pirate")["files"] == "store" and version(n, "pirate")["state"] == "ready"
        r = ask(n, "pirate@latest")
        assert r.status == 200 and r.json["choices"] == said, r
        assert version(n, "pirate")["files"] == "here"
    assert s3.count("GET", WEIGHTS) == 2, s3.calls
    p = subprocess.run([BUILD / "loractl", "--url", f"https://localhost:{b.port}", "--ca", b.ca, "adapter", "versions", "pirate"],
                       env={"LORAD_KEY": key, "HOME": str(work)}, capture_output=True, text=True)
    assert p.returncode == 0 and "here" in p.stdout, p


def a_new_name_is_known_at_once():
    """Whoever was told 201 at one node gets no 404 at another."""
    a, b, c = fleet.nodes
    for i in range(8):
        a.upload(key, f"new-{i}", DEMO / "adapters/bullets", (201,))
        assert ask((b, c)[i % 2], f"new-{i}").status == 200, i
    assert ask(b, "new-99").status == 404


def many_requests_make_one_download():
    a, b, _ = fleet.nodes
    publish(a, "spanish")
    before = s3.count("GET", WEIGHTS)
    s3.rate = 1 << 20
    with concurrent.futures.ThreadPoolExecutor(100) as many:
        answers = list(many.map(lambda i: ask(b, "spanish").status, range(100)))
    s3.rate = None
    assert answers == [200] * 100 and s3.count("GET", WEIGHTS) == before + 1, (answers, s3.calls[-5:])


def who_waits_is_told_when():
    """Within the time of its class; then 503, and the time that is left."""
    a, b, _ = fleet.nodes
    publish(a, "shout")
    s3.rate = SIZE["shout"] / 4
    r = ask(b, "shout", service_tier="priority")
    e = r.json["error"]
    assert r.status == 503 and e["code"] == "adapter_not_on_node" and 1000 < int(r.headers["retry-after-ms"]) < 8000, (r, r.headers)
    assert b.metrics()["lorad_store_fetching"] == 1
    s3.rate = None
    until(lambda: ask(b, "shout").status == 200)


def damaged_is_never_served():
    a, b, _ = fleet.nodes
    v = publish(a, "formal").json
    whole = dict(s3.objects)
    for path, spoil in zip(objects(v["digest"]), (lambda b: b[:-2] + b" }", lambda b: b + b"x")):
        s3.objects[path] = spoil(whole[path])
        n = b.metrics()["lorad_store_damaged_total"]
        until(lambda: b.metrics()["lorad_store_damaged_total"] > n or ask(b, "formal").status != 503)
        r = ask(b, "formal")
        assert r.status == 503 and int(r.headers["retry-after-ms"]) <= 2000, (path, r)
        assert version(b, "formal")["files"] == "store"
        s3.objects[path] = whole[path]
    assert "its object is damaged" in b.log_path.read_text()
    assert not list((b.dir / "adapters/tmp").iterdir())
    until(lambda: ask(b, "formal").status == 200)


def a_store_that_is_away_takes_no_upload():
    a, b, _ = fleet.nodes
    s3.away = 1000
    r = publish(a, "json", expect=(503,))
    assert r.json["error"]["code"] == "storage_unavailable" and r.headers["retry-after"], r
    s3.away = 0
    assert a.call("GET", "/v1/models/json", key=key).status == 404
    assert a.metrics()["lorad_store_store_failures_total"] == 1
    publish(a, "json")


def the_cache_has_a_bound():
    """What is on the device stays, and what the store lacks; else the least recently used goes, and comes again."""
    b = fleet.nodes[1]
    here = [n for n in ("pirate", "spanish", "shout", "formal") if version(b, n)["files"] == "here"]
    assert len(here) == 4, here  # all are on the device
    lost = {p: s3.objects.pop(p) for p in objects(version(b, "pirate")["digest"])}
    for name in here[:2]:
        b.admin("POST", f"/tenants/acme/adapters/{name}/evict")
    assert ask(b, "json").status == 200
    until(lambda: version(b, "spanish")["files"] == "store")
    assert version(b, "pirate")["files"] == "here" and b.metrics()["lorad_store_evictions_total"] == 1
    s3.objects.update(lost)
    until(lambda: ask(b, "spanish").status == 200)
    b.stop()
    b.start()  # what went is not missed
    assert [ask(b, n).status for n in here] == [200] * 4


def what_is_deleted_goes_there_too():
    a, b, c = fleet.nodes
    digest = version(a, "spanish")["digest"]
    assert len(objects(digest)) == 2
    r = until(lambda: (r := b.call("DELETE", "/v1/adapters/spanish", key=key)).status != 409 and r)
    assert r.status in (200, 202, 204), r
    until(lambda: not objects(digest))
    assert not s3.refused, s3.refused


def all_of_it():
    global key
    with fleet:
        key = fleet.tenant("acme")
        for step in (check_tries_it, uploaded_at_one_served_by_all, a_new_name_is_known_at_once, many_requests_make_one_download, who_waits_is_told_when, damaged_is_never_served,
                     a_store_that_is_away_takes_no_upload, the_cache_has_a_bound, what_is_deleted_goes_there_too):
            begin = time.monotonic()
            step()
            print(f"  {step.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)


run([all_of_it])
