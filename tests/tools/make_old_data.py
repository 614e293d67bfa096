#!/usr/bin/env python3
"""Makes tests/e2e/programs/data-0.1: the data directory that lorad 0.1.0 left behind when it was killed.

    make_old_data.py        in a clone with the history; needs what a build needs, takes minutes

Builds the last commit of 0.1.0 and talks to it by that commit's own test harness.  Another process holds the database while two
requests are answered; then the server is killed, so their usage is in its meter file alone.  data.tar.xz has the directory without
certificates, caches and weights (the demo's, which the test puts back); expected.json has the keys and what the API said.
"""
import json
import pathlib
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMIT = "0341b95306ed365856536632d1e62efc72097b6e"
OUT = ROOT / "tests/e2e/programs/data-0.1"
QUESTION = "What is 7 plus 5?"


def built(work):
    """The source of 0.1.0, with its programs in build/release."""
    src = work / "src"
    subprocess.run(["git", "clone", "-q", "--shared", ROOT, src], check=True)
    subprocess.run(["git", "-C", src, "checkout", "-q", "--detach", COMMIT], check=True)
    for command in (["cmake", "--preset", "release", "-DBUILD_TESTING=OFF", "-DLORAD_CUDA=OFF"],
                    ["cmake", "--build", "--preset", "release", "-j", "2", "--target", "lorad"]):
        subprocess.run(command, cwd=src, check=True, stdout=sys.stderr)
    return src


def fill(server, demo):
    """Tenants, keys, adapters and usage; {what: how the API shows it}."""
    keys = {"acme": server.tenant("acme", limits={"requests_per_minute": 600, "tokens_per_day": 100000}, default_class="interactive"),
            "globex": server.tenant("globex"), "reader": server.key("acme", ["adapters.read"])}
    made = server.admin("POST", "/keys", {"tenant": "acme", "name": "old", "scopes": ["inference"]})
    server.admin("DELETE", f"/keys/{made['id']}")
    keys["revoked"] = made["key"]
    for name in "shout", "spanish":
        server.upload(keys["acme"], "voice", demo / "adapters" / name)
    for method, path, body in (("PUT", "/voice/aliases/loud", {"version": 1}), ("PATCH", "/voice", {"sharing": ["globex"]})):
        reply = server.call(method, f"/v1/adapters{path}", body, key=keys["acme"])
        assert reply.status == 200, reply
    for key, model in (("acme", "base"), ("acme", "voice"), ("acme", "voice:loud"), ("globex", "acme/voice@1"), ("globex", "base")):
        assert server.ask(keys[key], model, QUESTION).status == 200, (key, model)
    db = sqlite3.connect(server.dir / "lorad.db", isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    for key in "acme", "globex":
        assert server.ask(keys[key], "base", QUESTION).status == 200, key
    server.stop(signal.SIGKILL)
    db.execute("ROLLBACK")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return keys


def main():
    with tempfile.TemporaryDirectory() as folder:
        src, data = built(pathlib.Path(folder)), pathlib.Path(folder) / "data"
        sys.path.insert(0, str(src / "tests/e2e"))
        import harness
        server = harness.Server(directory=data, settings={"data.spool": "256KiB", "server.threads": 4, "data.usage_days": 0})
        server.start()
        try:
            keys = fill(server, harness.DEMO)
        finally:
            server.stop(signal.SIGKILL)
        keys["admin"] = server.admin_key
        # What it knows: read from the database, for the killed server cannot be asked.
        db = sqlite3.connect(data / "lorad.db")
        rows = db.execute("SELECT t.name, u.model, u.prompt_tokens, u.output_tokens FROM usage u JOIN tenants t ON t.id = u.tenant_id"
                          " ORDER BY u.request_id").fetchall()
        schema, = db.execute("PRAGMA user_version").fetchone()
        db.close()
        conf = data / "lorad.conf"
        conf.write_text(conf.read_text().replace(str(data), "/var/lib/lorad").replace(str(harness.DEMO / "base"), "/srv/model"))
        weights = {}
        OUT.mkdir(parents=True, exist_ok=True)
        with tarfile.open(OUT / "data.tar.xz", "w:xz", format=tarfile.USTAR_FORMAT) as tar:
            for path in sorted(p for p in data.rglob("*") if p.is_file()):
                name = str(path.relative_to(data))
                if name.startswith(("tls/", "packed/", "adapters/tmp/", "adapters/uploads/")) or name in ("admin.key", "lorad.lock"):
                    continue
                same = [p for p in (harness.DEMO / "adapters").rglob("*") if p.is_file() and p.read_bytes() == path.read_bytes()]
                if same:
                    weights[name] = str(same[0].relative_to(harness.DEMO))
                    continue
                entry = tar.gettarinfo(path, name)
                entry.uid = entry.gid = entry.mtime = 0
                entry.uname = entry.gname = "root"
                with open(path, "rb") as f:
                    tar.addfile(entry, f)
        (OUT / "expected.json").write_text(json.dumps(
            {"commit": COMMIT, "schema": schema, "keys": keys, "usage": rows, "unsettled": 2, "files": weights}, indent=1) + "\n")


main()
