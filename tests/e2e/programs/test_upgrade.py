"""The data directory and the file of options that lorad 0.1.0 left when it was killed (tests/tools/make_old_data.py): this version
upgrades it, and tenants, keys, adapters and usage are as they were."""
import json
import pathlib
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile

from harness import BUILD, DEMO, Server, run

FIXTURE = pathlib.Path(__file__).parent / "data-0.1"
QUESTION = "What is 7 plus 5?"
expected = json.loads((FIXTURE / "expected.json").read_text())
keys = expected["keys"]
work = pathlib.Path(tempfile.mkdtemp(prefix="lorad-upgrade-"))
server = Server(directory=work / "data", settings={"data.dir": work / "data", "model.path": DEMO / "base"})


def query(sql):
    db = sqlite3.connect(f"file:{server.dir}/lorad.db?mode=ro", uri=True)
    try:
        return [list(row) for row in db.execute(sql)]
    finally:
        db.close()


def text_of(key, model):
    r = server.ask(keys[key], model, QUESTION)
    assert r.status == 200, r
    return r.json["choices"][0]["message"]["content"]


def it_starts():
    with tarfile.open(FIXTURE / "data.tar.xz") as tar:
        tar.extractall(server.dir, filter="data")
    for name, source in expected["files"].items():
        (server.dir / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DEMO / source, server.dir / name)
    server.dir.chmod(0o700)
    (server.dir / "admin.key").write_text(keys["admin"])
    (server.dir / "tls").mkdir()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", server.dir / "tls/key.pem",
                    "-out", server.ca, "-subj", "/CN=localhost", "-days", "9", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    (server.dir / "tls/key.pem").chmod(0o600)
    assert query("PRAGMA user_version") == [[expected["schema"]]]
    server.start()
    assert query("PRAGMA user_version")[0][0] > expected["schema"]
    assert "option 'server.threads' is now 'server.max_streams'" in server.log_path.read_text()


def tenants_and_keys():
    acme = server.admin("GET", "/tenants/acme")
    assert acme["limits"]["requests_per_minute"] == 600 and acme["limits"]["tokens_per_day"] == 100000, acme
    assert acme["default_class"] == "interactive", acme
    assert [t["name"] for t in server.admin("GET", "/tenants")["data"]] == ["acme", "globex"]
    assert server.call("GET", "/v1/adapters", key=keys["reader"]).status == 200
    assert server.ask(keys["reader"], "base", QUESTION).status == 403
    assert server.ask(keys["revoked"], "base", QUESTION).status == 401


def usage():
    """What was in the books, and what only the meter file knew."""
    server.booked()
    was = len(expected["usage"])
    rows = query("SELECT t.name, u.model, u.prompt_tokens, u.output_tokens FROM usage u JOIN tenants t ON t.id = u.tenant_id"
                 f" ORDER BY u.request_id LIMIT {was + expected['unsettled']}")
    assert rows[:was] == expected["usage"], rows
    # The same question was asked again.
    again = {tenant: row for row in rows[:was] if row[1] == "base" for tenant in [row[0]]}
    assert sorted(rows[was:]) == sorted(again.values()), rows[was:]


def usage_of_a_tenant_is_shown():
    shown = {r["tenant"]: r for b in server.admin("GET", "/usage?start=0&group_by=tenant")["data"] for r in b["results"]}
    for tenant in "acme", "globex":
        rows = query(f"SELECT u.output_tokens FROM usage u JOIN tenants t ON t.id = u.tenant_id WHERE t.name = '{tenant}'")
        assert shown[tenant]["output_tokens"] == sum(n for n, in rows), (tenant, shown)


def adapters():
    voice = server.call("GET", "/v1/adapters/voice", key=keys["acme"]).json
    assert voice["aliases"]["loud"] == 1 and voice["default_version"] == 2, voice
    plain = text_of("acme", "base")
    assert text_of("acme", "voice:loud") == text_of("globex", "acme/voice@1") == plain.upper()
    assert text_of("acme", "voice") not in (plain, plain.upper())
    server.upload(keys["acme"], "voice", DEMO / "adapters/json")
    assert text_of("acme", "voice").startswith("{")


def it_stops_and_starts_again():
    n = query("SELECT count(*) FROM usage")
    assert server.stop() == 0
    conf = server.dir / "lorad.conf"
    sets = [w for name, value in {**server.settings, "server.listen": "127.0.0.1:0"}.items() for w in ("--set", f"{name}={value}")]
    done = subprocess.run([BUILD / "lorad", "check", "-c", conf, *sets], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    server.start()
    assert query("SELECT count(*) FROM usage") == n
    assert text_of("globex", "acme/voice@1").isupper()


if __name__ == "__main__":
    try:
        run([it_starts, usage, tenants_and_keys, adapters, usage_of_a_tenant_is_shown, it_stops_and_starts_again])
    finally:
        server.stop()
        shutil.rmtree(work, ignore_errors=True)
