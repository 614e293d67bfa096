"""Three servers, one PostgreSQL: keys, tenants, limits and adapters are the same everywhere, whatever is cut or killed."""
import random
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

from harness import BUILD, DEMO, Server, demo_adapters, run, until
from postgres import Postgres, Wire, skip_unless_there

skip_unless_there()
postgres = Postgres()
wire = Wire(postgres.port)
url = f"postgres://lorad@127.0.0.1:{wire.port}/fleet"
adapter = demo_adapters()[0]
first = Server()
nodes = [first]
SHARED = {"tenants": "*", "key_secrets": "*", "adapters": "*", "adapter_versions": "*", "adapter_aliases": "*",
          "adapter_shares": "*", "audit": "*", "high_water": "*",
          "api_keys": "id, tenant_id, public_id, name, scopes, rpm, tpm, expires_us, revoked_us, networks"}


def lorad(*args):
    return subprocess.run([BUILD / "lorad", *map(str, args)], capture_output=True, text=True)


def rows(node):
    db = sqlite3.connect(f"file:{node.dir}/lorad.db?mode=ro", uri=True)
    try:
        return {t: sorted(db.execute(f"SELECT {columns} FROM {t}").fetchall(), key=repr) for t, columns in SHARED.items()}
    finally:
        db.close()


def same_everywhere():
    last = int(postgres.sql("SELECT last_seq FROM lorad_meta"))
    for n in nodes:
        until(lambda: position(n) >= last)
    want = rows(first)
    for n in nodes[1:]:
        got = rows(n)
        assert got == want, [(t, set(map(repr, got[t])) ^ set(map(repr, want[t]))) for t in SHARED if got[t] != want[t]]


def position(node):
    db = sqlite3.connect(f"file:{node.dir}/lorad.db?mode=ro", uri=True)
    try:
        return db.execute("SELECT seq FROM fleet").fetchone()[0]
    finally:
        db.close()


def join(number):
    node = Server(settings={"server.node": str(number)})
    made = lorad("init", "--dir", node.dir, "--model", DEMO / "base", "--join", url, "--set", f"server.node={number}")
    assert made.returncode == 0 and "lk_" not in made.stdout, made
    (node.dir / "admin.key").write_text(first.admin_key)
    return node


def status(node, key, model="base"):
    return node.ask(key, model, "What is 7 plus 5?", max_tokens=2).status


def a_fleet_is_made():
    global key
    first.start()
    key = first.tenant("acme")
    first.upload(key, adapter, DEMO / "adapters" / adapter)
    first.stop()
    conf = first.dir / "lorad.conf"
    refused = lorad("migrate", "-c", conf, "--to", "postgres://lorad:secret@127.0.0.1/fleet")
    assert refused.returncode == 1 and "password" in refused.stderr and "secret" not in refused.stderr, refused
    made = lorad("migrate", "-c", conf, "--to", url)
    assert made.returncode == 0, made
    again = lorad("migrate", "-c", conf, "--to", url)
    assert again.returncode == 1 and "in a fleet already" in again.stderr, again
    alone = lorad("serve", "-c", conf)
    assert alone.returncode == 1 and "set storage.database" in alone.stderr, alone
    first.settings["storage.database"] = url
    first.start()
    nodes.extend(join(n) for n in (1, 2))
    for n in nodes[1:]:
        n.start()
    same_everywhere()


def what_one_node_makes_is_everywhere():
    b, c = nodes[1:]
    assert [status(n, key) for n in nodes] == [200] * 3
    other = b.tenant("beta")
    for n in nodes:
        until(lambda: status(n, other) == 200)
    r = c.call("POST", "/admin/v1/tenants", {"name": "beta"}, key=c.admin_key, port=c.admin_port)
    assert r.status == 409, r
    c.admin("PATCH", "/tenants/beta", {"limits": {"requests_per_minute": 1}})
    for n in (first, b):
        until(lambda: n.admin("GET", "/tenants/beta")["limits"]["requests_per_minute"] == 1)
    same_everywhere()


def two_nodes_do_not_get_one_name():
    """All at once: each name exists once, and who was told 201 has made it."""
    answers = {}

    def make(n, name):
        answers[n, name] = nodes[n].call("POST", "/admin/v1/tenants", {"name": name}, key=first.admin_key,
                                         port=nodes[n].admin_port).status
    threads = [threading.Thread(target=make, args=(n, f"race-{k}")) for k in range(10) for n in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for k in range(10):
        assert sorted(answers[n, f"race-{k}"] for n in range(3)) == [201, 409, 409], answers
    same_everywhere()


def a_revoked_key_is_refused_everywhere():
    took = []
    for _ in range(10):
        made = first.admin("POST", "/keys", {"tenant": "acme", "name": "short", "scopes": ["inference"]})
        for n in nodes:
            until(lambda: n.call("GET", "/v1/models", key=made["key"]).status == 200)
        first.admin("DELETE", f"/keys/{made['id']}", expect=(200, 204))
        begin = time.monotonic()
        for n in nodes:
            until(lambda: n.call("GET", "/v1/models", key=made["key"]).status == 401)
        took.append(time.monotonic() - begin)
    print(f"    refused everywhere after {1000 * sorted(took)[5]:.0f} ms (median), {1000 * max(took):.0f} ms at most")


def adapters_have_one_name_everywhere():
    b, c = nodes[1:]
    r = b.ask(key, adapter, "What is 7 plus 5?", max_tokens=2)
    assert r.status == 503 and r.json["error"]["code"] == "adapter_not_on_node" and r.headers["retry-after"], r
    for folder in (first.dir / "adapters").iterdir():
        if not (b.dir / "adapters" / folder.name).exists():
            shutil.copytree(folder, b.dir / "adapters" / folder.name)
    assert status(b, key, adapter) == 200  # its files have come
    b.upload(key, "from-b", DEMO / "adapters" / adapter)
    until(lambda: status(first, key, "from-b") == 200)  # the same content lies there already
    until(lambda: status(c, key, "from-b") == 503)
    r = c.call("PUT", "/v1/adapters/from-b/aliases/stable", {"version": 1}, key=key)
    assert r.status == 200, r
    until(lambda: status(first, key, "from-b:stable") == 200)
    # An answer is there a moment before its request lets go of the adapter.
    r = until(lambda: (r := first.call("DELETE", "/v1/adapters/from-b", key=key)).status != 409 and r)
    assert r.status in (200, 202, 204), r
    for n in nodes:
        until(lambda: status(n, key, "from-b") == 404)
    assert status(first, key, adapter) == 200 and status(b, key, adapter) == 200  # the shared files stay
    same_everywhere()


def no_alias_points_at_what_is_gone():
    """One node points an alias at a version while another deletes it: one of the two is refused."""
    b, both = nodes[1], 0
    for i in range(1, 21):
        r = first.upload(key, "raced", DEMO / "adapters" / demo_adapters()[i % 2])
        assert r.json["version"] == i, r
        if i == 1:
            continue
        for n in nodes:
            until(lambda: n.call("GET", "/v1/adapters/raced", key=key).json.get("default_version") == i)
        got, ready = {}, threading.Barrier(2)

        def act(node, method, path, body=None):
            ready.wait()
            got[method] = node.call(method, "/v1/adapters/raced" + path, body, key=key).status
        pair = [threading.Thread(target=act, args=(first, "PUT", "/aliases/old", {"version": i - 1})),
                threading.Thread(target=act, args=(b, "DELETE", f"/versions/{i - 1}"))]
        [t.start() for t in pair]
        [t.join() for t in pair]
        both += got["PUT"] == 200 and got["DELETE"] < 300
        assert set(got.values()) & {200, 202, 204}, got
    assert both == 0, both
    same_everywhere()
    first.call("DELETE", "/v1/adapters/raced", key=key)


def away_is_no_outage():
    made = first.admin("POST", "/keys", {"tenant": "acme", "name": "bad", "scopes": ["inference"]})
    until(lambda: nodes[1].call("GET", "/v1/models", key=made["key"]).status == 200)
    wire.cut()
    for n in nodes:
        until(lambda: n.metrics()["lorad_fleet_away_seconds"] > 0)
        assert status(n, key) == 200
        assert n.call("GET", "/readyz", port=n.metrics_port).status == 200
    r = first.call("POST", "/admin/v1/tenants", {"name": "gamma"}, key=first.admin_key, port=first.admin_port)
    assert r.status == 503 and r.json["error"]["code"] == "storage_unavailable" and r.headers["retry-after"], r
    r = first.call("DELETE", f"/admin/v1/keys/{made['id']}", key=first.admin_key, port=first.admin_port)
    assert first.call("GET", "/v1/models", key=made["key"]).status == 401, "in force at once"
    assert nodes[1].call("GET", "/v1/models", key=made["key"]).status == 200
    assert first.stats()["server"]["fleet_away_us"] > 0
    first.stop(signal.SIGKILL)
    first.start()  # from its mirror
    assert status(first, key) == 200 and first.call("GET", "/v1/models", key=made["key"]).status == 401
    wire.mend()
    until(lambda: nodes[1].call("GET", "/v1/models", key=made["key"]).status == 401)
    until(lambda: first.call("POST", "/admin/v1/tenants", {"name": "gamma"}, key=first.admin_key,
                             port=first.admin_port).status in (201, 409))
    same_everywhere()


def a_silent_wire_is_one_too():
    """No byte comes back, and no end: each call gives up by itself."""
    wire.hold()
    r = first.call("POST", "/admin/v1/tenants", {"name": "delta"}, key=first.admin_key, port=first.admin_port)
    assert r.status == 503, r
    assert status(first, key) == 200
    wire.mend()
    until(lambda: first.metrics()["lorad_fleet_away_seconds"] == 0)
    until(lambda: first.call("POST", "/admin/v1/tenants", {"name": "delta"}, key=first.admin_key,
                             port=first.admin_port).status in (201, 409))
    same_everywhere()


def a_number_is_held_by_one():
    twin = join(1)
    try:
        twin.start()
    except RuntimeError as e:
        assert "server.node = 1 is held by another server" in str(e), e
    else:
        raise AssertionError("two servers have one number")
    finally:
        twin.settings.clear()
        shutil.rmtree(twin.dir)


def kills_leave_all_nodes_equal():
    """Changes at all nodes, kill -9 of nodes and of PostgreSQL: who was told 201 has made it, once, everywhere."""
    rng, told, end = random.Random(7), [], threading.Event()

    def work(n):
        k = 0
        while not end.is_set():
            name = f"n{n}-{k}"
            k += 1
            try:
                r = nodes[n].call("POST", "/admin/v1/tenants", {"name": name}, key=first.admin_key, port=nodes[n].admin_port)
                if r.status == 201:
                    told.append(name)
            except OSError:
                pass
            except Exception as e:  # cut in the middle of an answer
                if "IncompleteRead" not in repr(e) and "RemoteDisconnected" not in repr(e):
                    raise
    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    [t.start() for t in threads]
    for kill in range(6):
        seen = len(told)
        until(lambda: len(told) > seen + 3)
        if kill % 3 == 2:
            postgres.kill()
            postgres.start()
        else:
            victim = nodes[rng.randrange(3)]
            victim.stop(signal.SIGKILL)
            victim.start()
    end.set()
    [t.join() for t in threads]
    same_everywhere()
    names = [r[1] for r in rows(first)["tenants"]]
    assert set(told) <= set(names) and len(names) == len(set(names)), set(told) - set(names)


def a_node_goes_by_itself_again():
    node = nodes.pop()
    node.stop()
    left = lorad("migrate", "-c", node.dir / "lorad.conf", "--to", "sqlite")
    assert left.returncode == 0, left
    node.settings["storage.database"] = ""
    node.start()
    assert status(node, key) == 200
    node.tenant("alone")
    assert "alone" not in [r[1] for r in rows(first)["tenants"]]
    node.stop()
    shutil.rmtree(node.dir)
    same_everywhere()


def all_of_it():
    try:
        for step in (a_fleet_is_made, what_one_node_makes_is_everywhere, two_nodes_do_not_get_one_name,
                     a_revoked_key_is_refused_everywhere, adapters_have_one_name_everywhere, no_alias_points_at_what_is_gone, away_is_no_outage,
                     a_silent_wire_is_one_too, a_number_is_held_by_one, kills_leave_all_nodes_equal,
                     a_node_goes_by_itself_again):
            begin = time.monotonic()
            step()
            print(f"  {step.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
    except BaseException:
        for n in nodes:
            print(f"---- {n.dir}\n" + "".join(n.log_path.read_text().splitlines(True)[-25:]) if n.log_path.exists() else "")
        raise
    finally:
        for n in nodes:
            n.stop()
            shutil.rmtree(n.dir, ignore_errors=True)
            n.log_path.unlink(missing_ok=True)
        postgres.close()


run([all_of_it])
