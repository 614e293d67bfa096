"""Room on the disk: one tenant cannot take it from the others, and is locked out whatever the disk says.

On a small tmpfs where this process may mount one; without that right what needs a full disk is left out by
name, and a database that another program has locked stands for a disk that takes nothing.
"""
import contextlib
import json
import signal
import sqlite3
import subprocess
import threading
import time

from harness import BUILD, DEMO, PATIENCE, Server, run
from killing import CONFIG, WEIGHTS, content, manifest
from small_disk import SmallDisk

MIB = 1 << 20
QUESTION = "What is 7 plus 5?"
LONG = {"model": "base", "prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "n": 8, "stream": True}
disk = SmallDisk(64)
# The default floor and quota of a disk of 64 MiB: 8 MiB and 16 MiB.
server = Server(directory=disk.path / "data", settings={
    "data.min_free": "0" if disk.mounted else "1MiB", "adapters.tenant_bytes": "0" if disk.mounted else "16MiB",
    "adapters.max_open_uploads": 100, "data.spool": "1MiB"})
server.log_path = disk.tmp / "log"


@contextlib.contextmanager
def locked_database():
    db = sqlite3.connect(server.dir / "lorad.db", isolation_level=None, timeout=60)
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        db.close()


def eventually(what, seconds=60):
    end = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < end:
        if what():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come to that in time")


def declare(key, name, size):
    """A manifest of `size` bytes, of which none is ever sent."""
    files = [{"path": CONFIG, "bytes": 500, "sha256": "11" * 32},
             {"path": WEIGHTS, "bytes": size - 500, "sha256": "22" * 32}]
    return server.call("POST", f"/v1/adapters/{name}/versions", {"files": files}, key=key)


def serves(key, name):
    """Completions, keys and both kinds of uploads go on."""
    assert server.ask(key, "base", QUESTION, max_tokens=8).status == 200
    server.key("alice")
    server.upload(key, name, DEMO / "adapters/shout")
    files = content("acme-support", 1)
    up = server.call("POST", f"/v1/adapters/{name}/versions", manifest(files), key=key)
    assert up.status == 201, up
    at = f"/v1/adapters/{name}/versions/{up.json['id']}"
    for path, data in files.items():
        assert server.call("PUT", f"{at}/files/{path}", data, key=key).status == 200
    assert server.call("POST", f"{at}/commit", key=key).status == 201
    assert server.ask(key, name, QUESTION, max_tokens=8).status == 200


def refused(key):
    return server.call("GET", "/v1/models", key=key).status in (401, 403)


def a_quota_ends_the_attack():
    evil = server.tenant("greedy")
    answers = [declare(evil, f"a{i}", 5 * MIB) for i in range(19)]
    assert [r.status for r in answers] == [201] * 3 + [413] * 16, answers
    error = answers[-1].json["error"]
    assert error["code"] == "limit_exceeded" and "adapters.tenant_bytes" in error["message"], error
    assert str(15 * MIB) in error["message"] and str(16 * MIB) in error["message"], error
    limits = server.admin("GET", "/limits/greedy")
    assert limits["used"]["max_adapter_bytes"] == 15 * MIB and limits["tenant_bytes"] == 16 * MIB, limits
    serves(alice, "one")
    # One with a larger limit of its own has nothing to do with the server's.
    server.admin("PATCH", "/limits/greedy", {"max_adapter_bytes": 1 << 40})
    assert declare(evil, "a4", 5 * MIB).status == 201
    assert server.admin("GET", "/limits/greedy")["tenant_bytes"] is None
    server.admin("DELETE", "/tenants/greedy")
    assert server.admin("GET", "/limits/greedy")["used"]["max_adapter_bytes"] == 0


def reserved_is_lent():
    evils = [server.tenant(f"evil{i}", limits={"max_adapter_bytes": 1 << 40}) for i in range(3)]
    for i in range(10):
        for evil in evils:
            assert declare(evil, f"a{i}", 8 * MIB).status in (201, 507)
            assert disk.free_bytes() >= 8 * MIB, "the floor was touched"
    serves(alice, "two")
    assert disk.free_bytes() >= 8 * MIB
    assert declare(alice, "far", 60 * MIB).status == 413
    server.admin("PATCH", "/limits/alice", {"max_adapter_bytes": 1 << 40})
    r = declare(alice, "far", 60 * MIB)
    assert r.status == 507 and r.json["error"]["code"] == "insufficient_storage", r


def a_full_disk_stops_no_revocation():
    assert server.metrics()["lorad_disk_reserve"] == 1
    evil = server.tenant("full")
    gone = server.admin("POST", "/keys", {"tenant": "full", "scopes": ["inference"]})
    with disk.full():
        r = server.call("DELETE", f"/admin/v1/keys/{gone['id']}", key=server.admin_key, port=server.admin_port)
        assert r.status == 200 and r.json["revoked"] and refused(gone["key"]), r
        r = server.call("DELETE", "/admin/v1/tenants/full", key=server.admin_key, port=server.admin_port)
        assert r.status == 200 and r.json["state"] == "disabled" and refused(evil), r
        eventually(lambda: not server.admin("GET", "/stats")["server"]["disk_reserve"])
        assert server.metrics()["lorad_disk_reserve"] == 0
        assert server.call("PUT", "/v1/adapters/one/versions/x/files/y", b"", key=evil).status in (401, 403)
        assert declare(alice, "three", MIB).status == 507
        assert server.ask(alice, "one", QUESTION, max_tokens=8).status == 200
        assert refused(evil) and refused(gone["key"])
    eventually(lambda: server.admin("GET", "/stats")["server"]["disk_reserve"])
    assert (server.dir / "reserve").stat().st_size == MIB
    kinds = [e["kind"] for e in server.stats()["events"]]
    assert kinds.index("disk.full") != kinds.index("disk.room"), kinds


def locked_out_at_once_and_after_a_kill():
    """While nothing can be written: in force before the answer, told truly, and not undone by kill -9."""
    evil, keep = server.tenant("evil"), server.tenant("suspended")
    gone = server.admin("POST", "/keys", {"tenant": "evil", "scopes": ["inference"]})
    stream = server.connect()
    stream.request("POST", "/v1/completions", json.dumps(LONG),
                   {"Authorization": f"Bearer {evil}", "Content-Type": "application/json"})
    assert stream.getresponse().readline().startswith(b"data: ")
    assert server.metrics()["lorad_requests_running"] > 0
    with locked_database():
        told = {}

        def ask(method, path, body=None):
            told[path] = server.call(method, f"/admin/v1/{path}", body, key=server.admin_key, port=server.admin_port)

        def loractl():
            told["ctl"] = subprocess.run(
                [BUILD / "loractl", "key", "revoke", "--yes", gone["id"]], capture_output=True, text=True, check=True,
                env={"LORAD_CA": server.ca, "LORAD_ADMIN_URL": f"https://localhost:{server.admin_port}",
                     "LORAD_ADMIN_KEY": server.admin_key, "HOME": str(disk.tmp)})
        workers = [threading.Thread(target=ask, args=["DELETE", "tenants/evil"]), threading.Thread(target=loractl),
                   threading.Thread(target=ask, args=["PATCH", "tenants/suspended", {"disabled": True}])]
        for w in workers:
            w.start()
        eventually(lambda: refused(evil) and refused(gone["key"]) and refused(keep))
        for w in workers:
            w.join()
        for path in ("tenants/evil", "tenants/suspended"):
            r = told[path]
            assert r.status == 202 and r.json["durable"] is False and r.json["state"] == "disabled", r
        assert "revoked" in told["ctl"].stdout and "in force, but" in told["ctl"].stderr, told["ctl"]
        eventually(lambda: server.metrics()["lorad_requests_running"] == 0)  # what ran is cancelled
        assert server.metrics()["lorad_lockouts_pending"] == 3
        server.stop(signal.SIGKILL)
    stream.close()
    server.start()
    assert refused(evil) and refused(gone["key"]) and refused(keep)
    eventually(lambda: server.metrics()["lorad_lockouts_pending"] == 0)
    server.stop(signal.SIGKILL)
    server.start()
    assert refused(evil) and refused(gone["key"]) and refused(keep)
    server.admin("PATCH", "/tenants/suspended", {"disabled": False})
    assert not refused(keep) and refused(evil)


with disk, server:
    alice = server.tenant("alice")
    tests = [a_quota_ends_the_attack, locked_out_at_once_and_after_a_kill]
    if disk.mounted:
        tests[1:1] = [reserved_is_lent, a_full_disk_stops_no_revocation]
    else:
        print("left out, no right to mount: reserved_is_lent, a_full_disk_stops_no_revocation")
    run(tests)
