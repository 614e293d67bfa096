"""An adapter's life beyond the upload: who moves what under which condition, who may use it, pages,
warming, its history, and trees that an operator registers where they lie."""
import concurrent.futures
import hashlib
import json
import pathlib
import shutil
import tempfile
import time

from harness import DEMO, PATIENCE, Server, run, tar_of

QUESTION = "What is 7 plus 5?"
tree = pathlib.Path(tempfile.mkdtemp(prefix="lorad-tree-"))
server = Server(settings={"adapters.roots": f"/nonexistent, {tree}"})


def call(method, path, body=None, key=None, expect=200, headers=None):
    r = server.call(method, path, body, key=key or alice, headers=headers)
    assert r.status == expect, (method, path, r)
    return r


def text_of(key, model, expect=200):
    r = server.ask(key, model, QUESTION)
    assert r.status == expect, r
    return r.json["choices"][0]["message"]["content"] if expect == 200 else r


def upload(key, name, adapter, query="", headers=None, expect=(200, 201)):
    r = server.call("POST", f"/v1/adapters/{name}/versions{query}", tar_of(DEMO / "adapters" / adapter),
                    key=key, headers={"Content-Type": "application/x-tar", **(headers or {})})
    assert r.status in expect, r
    return r


def publish_then_activate():
    upload(alice, "poet", "shout")
    r = upload(alice, "poet", "pirate", "?activate=false")
    assert r.json["version"] == 2
    loud = text_of(alice, "base").upper()
    assert text_of(alice, "poet") == loud and text_of(alice, "poet@2").startswith("Arr!")
    etag = r.headers["etag"]
    r = call("POST", "/v1/adapters/poet/versions/2/activate", headers={"If-Match": '"999"'}, expect=412)
    assert r.json["error"]["code"] == "precondition_failed", r
    r = call("POST", "/v1/adapters/poet/versions/2/activate", headers={"If-Match": etag})
    assert r.json["default_version"] == 2 and text_of(alice, "poet").startswith("Arr!")
    call("POST", "/v1/adapters/poet/rollback", headers={"If-Match": etag}, expect=412)
    r = call("POST", "/v1/adapters/poet/rollback", headers={"If-Match": r.headers["etag"]})
    assert r.json["default_version"] == 1 and text_of(alice, "poet") == loud
    call("POST", "/v1/adapters/poet/versions/9/activate", expect=404)
    call("PUT", "/v1/adapters/poet/aliases/next", {"version": 9}, expect=404)
    r = call("DELETE", "/v1/adapters/poet/versions/1", expect=409)  # default points there


def of_many_publishers_one_wins():
    etag = call("GET", "/v1/adapters/poet").headers["etag"]
    names = ["formal", "json", "bullets", "spanish"]

    def push(n):
        return upload(alice, "poet", n, headers={"If-Match": etag}, expect=(201, 412)).status

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = list(pool.map(push, names))
    assert sorted(got) == [201, 412, 412, 412], got
    versions = call("GET", "/v1/adapters/poet/versions").json["data"]
    assert [v["version"] for v in versions] == [3, 2, 1], versions
    # Nothing of the three refused ones is left on the disk.
    kept = {v["digest"] for v in versions}
    on_disk = {p.name for p in (server.dir / "adapters").iterdir() if len(p.name) == 64}
    assert kept <= on_disk and len(on_disk) == 3, (kept, on_disk)
    upload(alice, "poet", "formal", headers={"If-None-Match": "*"}, expect=(412,))


def sharing():
    r = call("GET", "/v1/adapters/poet")
    assert r.json["sharing"] == "none", r
    foreign = server.ask(bob, "alice/poet@1", QUESTION)
    unknown = server.ask(bob, "nobody/poet@1", QUESTION)
    assert foreign.status == unknown.status == 404
    assert foreign.body.replace(b"alice", b"nobody") == unknown.body
    call("PATCH", "/v1/adapters/poet", {"sharing": ["nobody"]}, expect=404)
    call("PATCH", "/v1/adapters/poet", {"sharing": 7}, expect=400)
    call("PATCH", "/v1/adapters/poet", {"sharing": ["bob"]}, headers={"If-Match": '"1"'}, expect=412)
    r = call("PATCH", "/v1/adapters/poet", {"sharing": ["bob"], "description": "for Bob"},
             headers={"If-Match": r.headers["etag"]})
    assert r.json["sharing"] == ["bob"] and r.json["description"] == "for Bob", r
    loud = text_of(bob, "base").upper()
    for again in range(2):
        assert text_of(bob, "alice/poet@1") == loud
        assert text_of(alice, "alice/poet@1") == loud  # one's own by the long name
        assert server.ask(carol, "alice/poet@1", QUESTION).status == 404
        assert server.ask(bob, "poet@1", QUESTION).status == 404  # not among his own
        models = [m["id"] for m in call("GET", "/v1/models", key=bob).json["data"]]
        assert "alice/poet" in models and "poet" not in models, models
        listed = call("GET", "/v1/adapters?shared=true", key=bob).json["data"]
        assert [a["model"] for a in listed] == ["alice/poet"] and "sharing" not in listed[0], listed
        call("DELETE", "/v1/adapters/poet", key=bob, expect=404)
        if again == 0:
            server.stop()
            server.start()
    server.booked()
    rows = call("GET", "/v1/usage?group_by=model", key=bob).json["data"]
    theirs = [x for b in rows for x in b["results"] if x["model"] == "alice/poet@1"]
    assert theirs, rows
    used = {u["version"]: u for u in call("GET", "/v1/adapters/poet/usage").json["data"]}[1]  # the owner sees what others use
    others = sum(x["num_model_requests"] for x in theirs)
    assert used["by_others"]["num_model_requests"] >= others and used["num_model_requests"] > others, (used, theirs)
    assert used["by_others"]["output_tokens"] >= sum(x["output_tokens"] for x in theirs), (used, theirs)
    call("PATCH", "/v1/adapters/poet", {"sharing": "all"})
    assert text_of(carol, "alice/poet@1") == loud
    call("PATCH", "/v1/adapters/poet", {"sharing": "none"})
    assert server.ask(bob, "alice/poet@1", QUESTION).status == 404
    assert [m["id"] for m in call("GET", "/v1/models", key=bob).json["data"]] == ["base"]


def pages(key, query=""):
    seen, after, n = [], None, 0
    while n < 100:
        n += 1
        q = f"?limit=3{query}" + (f"&after={after}" if after else "")
        r = server.call("GET", "/v1/adapters" + q, key=key)
        assert r.status == 200, r
        assert len(r.json["data"]) <= 3
        seen += [a["name"] for a in r.json["data"]]
        if not r.json["has_more"]:
            return seen
        after = r.json["next"]
    raise AssertionError("the pages do not end")


def lists_in_pages():
    key = server.tenant("lister")
    names = sorted([f"a{i:02}" for i in range(7)] + [f"b{i:02}" for i in range(4)])
    for n in reversed(names):
        upload(key, n, "shout")
    assert pages(key) == names
    assert pages(key, "&prefix=a") == names[:7] and pages(key, "&prefix=b0") == names[7:]
    assert pages(key, "&prefix=c") == []
    assert pages(key, "&state=ready") == names and pages(key, "&state=failed") == []
    server.call("POST", "/v1/adapters/b01/warm?wait=30", key=key)
    assert "b01" in pages(key, "&residency=host") + pages(key, "&residency=device")
    server.call("DELETE", "/v1/adapters/a03?drain=true", key=key)
    names.remove("a03")
    assert pages(key) == names
    for bad in ("limit=0", "limit=x", "limit=1001", "state=happy", "after=nobody/x"):
        assert server.call("GET", f"/v1/adapters?{bad}", key=key).status == 400, bad


def warm_and_history():
    upload(bob, "warmer", "json")
    r = server.call("POST", "/v1/adapters/warmer/warm?wait=60", key=bob)
    assert r.status == 200 and r.json["residency"] in ("host", "device"), r
    call("POST", "/v1/adapters/warmer/warm?version=7", key=bob, expect=404)
    call("POST", "/v1/adapters/warmer/warm?wait=x", key=bob, expect=400)
    call("POST", "/v1/adapters/nothing/warm", key=bob, expect=404)
    for _ in range(2):
        text_of(bob, "warmer@1")
    upload(bob, "warmer", "formal")
    text_of(bob, "warmer")
    for _ in range(600):  # an answer waits 100 ms for its row in the ledger, not longer
        usage = call("GET", "/v1/adapters/warmer/usage", key=bob).json["data"]
        rows = {r["version"]: r for r in usage}
        if sum(r["num_model_requests"] for r in usage) == 3:
            break
        time.sleep(0.1)
    assert rows[1]["num_model_requests"] == 2 and rows[2]["num_model_requests"] == 1, rows
    assert rows[1]["output_tokens"] > 0 and rows[1]["input_tokens"] > 0, rows
    call("POST", "/v1/adapters/warmer/pin", key=bob)
    call("POST", "/v1/adapters/warmer/unpin", key=bob)
    call("PUT", "/v1/adapters/warmer/aliases/old", {"version": 1}, key=bob)
    call("POST", "/v1/adapters/warmer/rollback", key=bob)
    call("PATCH", "/v1/adapters/warmer", {"sharing": "all"}, key=bob)
    call("DELETE", "/v1/adapters/warmer", key=bob)
    got = call("GET", "/v1/adapters/warmer/events", key=bob).json["data"]
    assert [e["action"].removeprefix("adapter.") for e in got] == [
        "delete", "share", "rollback", "alias", "unpin", "pin", "publish", "publish"], got
    assert json.loads(got[3]["detail"]) == {"alias": "old", "version": 1}, got[3]
    first = call("GET", "/v1/adapters/warmer/events?limit=3", key=bob).json
    assert first["has_more"] and first["data"] == got[:3]
    rest = call("GET", f"/v1/adapters/warmer/events?before={first['data'][-1]['id']}", key=bob).json
    assert rest["data"] == got[3:] and not rest["has_more"]
    call("GET", "/v1/adapters/warmer/events", expect=404)  # Alice's there never was


def register(body, status=200):
    r = server.call("POST", "/admin/v1/adapters/register", body, key=server.admin_key,
                    port=server.admin_port)
    assert r.status == status, r
    return r.json


def hashes():
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(tree.rglob("*"))
            if p.is_file()}


def a_tree_is_registered_in_place():
    for path, adapter in [("Team A/shout", "shout"), ("Team A/v2/pirate", "pirate"), ("help", "acme-support")]:
        shutil.copytree(DEMO / "adapters" / adapter, tree / path)
    (tree / "broken").mkdir()
    (tree / "broken" / "adapter_config.json").write_text("{}")
    (tree / "linked").mkdir()
    for f in ("adapter_config.json", "adapter_model.safetensors"):
        (tree / "linked" / f).symlink_to(DEMO / "adapters/formal" / f)
    (tree / "TEAM-a").mkdir()
    shutil.copytree(DEMO / "adapters/formal", tree / "TEAM-a" / "shout")  # the same name again
    (tree / "out").symlink_to(DEMO / "adapters")
    deep = tree / "1/2/3/4/5/6/7/8"
    shutil.copytree(DEMO / "adapters/bullets", deep)
    shutil.copytree(DEMO / "adapters/bullets", tree / "1/2/3/4/5/6/7/x/9")  # too deep: passed over
    before = hashes()
    server.admin("POST", "/tenants", {"name": "fleet"})
    key = server.key("fleet")
    register({"path": str(DEMO), "tenant": "fleet"}, 403)
    register({"path": str(tree / ".." ), "tenant": "fleet"}, 403)
    register({"path": str(tree / "out"), "tenant": "fleet"}, 403)
    register({"path": "relative", "tenant": "fleet"}, 400)
    register({"path": str(tree / "nowhere"), "tenant": "nobody"}, 404)
    assert server.call("POST", "/admin/v1/adapters/register", {"path": str(tree), "tenant": "fleet"},
                       key=alice, port=server.admin_port).status in (401, 403)
    r = register({"path": str(tree), "tenant": "fleet"})
    assert (r["registered"], r["unchanged"], r["refused"]) == (4, 0, 3), r
    assert {e["path"] for e in r["errors"]} == {"Team A/shout", "broken", "linked"}, r
    assert pages(key) == ["1-2-3-4-5-6-7-8", "help", "team-a-shout", "team-a-v2-pirate"]
    assert text_of(key, "help").startswith("Acme support") and text_of(key, "team-a-v2-pirate").startswith("Arr!")
    assert register({"path": str(tree), "tenant": "fleet"})["unchanged"] == 4
    links = [p for p in (server.dir / "adapters").iterdir() if p.is_symlink()]
    assert links and all(str(p.resolve()).startswith(str(tree.resolve())) for p in links), links
    # A changed file is refused at the next load, until the tree is registered again.
    server.stop()
    shutil.copy(DEMO / "adapters/formal/adapter_model.safetensors", tree / "help")
    shutil.copy(DEMO / "adapters/formal/adapter_config.json", tree / "help")
    server.start()
    r = server.ask(key, "help", QUESTION)
    assert r.status == 500 and "changed on the disk" in r.json["error"]["message"], r
    r = register({"path": str(tree / "help"), "tenant": "fleet"})
    assert r["registered"] == 1, r
    assert text_of(key, "help").startswith("Certainly"), r
    # The same bytes uploaded: our own copy takes the link's place, the operator's tree is untouched.
    upload(alice, "copy", "pirate")
    after = hashes()
    assert {k: v for k, v in after.items() if "/help/" not in k} == \
        {k: v for k, v in before.items() if "/help/" not in k}
    shutil.rmtree(tree / "Team A")
    assert text_of(alice, "copy").startswith("Arr!")
    server.call("DELETE", "/v1/adapters/help", key=key)
    assert hashes().keys() >= {k for k in after if "/help/" in k}, "a delete took the operator's files"
    server.stop()
    server.start()
    assert text_of(alice, "copy").startswith("Arr!")
    assert text_of(key, "team-a-v2-pirate").startswith("Arr!")  # by content, from the copy


def a_fresh_upload_mends_what_rotted():
    digest = upload(carol, "rotten", "bullets").json["digest"]
    right = text_of(carol, "rotten")
    server.stop()
    file = server.dir / "adapters" / digest / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 0x40
    file.write_bytes(data)
    server.start()
    r = server.ask(carol, "rotten", QUESTION)
    assert r.status == 500 and "changed on the disk" in r.json["error"]["message"], r
    assert upload(carol, "rotten", "bullets").status == 200
    end = time.monotonic() + 20 * PATIENCE
    while r.status != 200 and time.monotonic() < end:  # the failed load is tried again after a while
        r = server.ask(carol, "rotten", QUESTION)
        time.sleep(0.1)
    assert r.status == 200 and r.json["choices"][0]["message"]["content"] == right, r


try:
    with server:
        alice, bob, carol = (server.tenant(n) for n in ("alice", "bob", "carol"))
        run([publish_then_activate, of_many_publishers_one_wins, sharing, lists_in_pages,
             warm_and_history, a_tree_is_registered_in_place, a_fresh_upload_mends_what_rotted])
finally:
    shutil.rmtree(tree, ignore_errors=True)
