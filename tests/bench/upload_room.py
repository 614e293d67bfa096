"""upload_room.py [SECONDS] -- 100 hostile tenants at a small disk, and whether the others notice.

Four honest tenants complete, get keys, upload (resumable, then a tar) and delete, first alone, then beside 100
tenants that declare uploads by the dozen, send pieces of some, drop and declare anew, and send tars that end
early.  Then each of 40 of them is deleted while its key is tried, the second twenty on a full disk.  Prints
one line of JSON; exit status 77 where this process may not mount a tmpfs.  Called by run.sh.
"""
import http.client
import json
import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import Server
from killing import CONFIG, WEIGHTS, content, manifest, tar_bytes
from small_disk import SmallDisk

MIB = 1 << 20
HOSTILE, HONEST, ATTACKERS, DISK_MIB = 100, 4, 8, 512
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30
disk = SmallDisk(DISK_MIB)
server = Server(directory=disk.path / "data", settings={"data.min_free": "0", "log.level": "warn"})
server.log_path = disk.tmp / "log"
seen = {"honest": 0, "failed": 0, "hostile": 0, "refused": 0, "least_free_mib": DISK_MIB}
took = {"alone": [], "beside": []}
lock, over, problems = threading.Lock(), threading.Event(), []


class Client:
    """One connection that stays, as an attacker has it."""

    def __init__(self):
        self.c = server.connect()

    def call(self, method, path, key, body=None, **headers):
        if isinstance(body, dict):
            body, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
        try:
            self.c.request(method, path, body, {"Authorization": f"Bearer {key}", **headers})
            r = self.c.getresponse()
            data = r.read()
        except (OSError, http.client.HTTPException):
            self.c.close()
            self.c = server.connect()
            return 0, b""
        return r.status, data


def attack(number, keys):
    rng, c = random.Random(number), Client()
    while not over.is_set():
        key, name = rng.choice(keys), f"a{rng.randrange(19)}"
        path = f"/v1/adapters/{name}/versions"
        files = [{"path": CONFIG, "bytes": 500, "sha256": "11" * 32},
                 {"path": WEIGHTS, "bytes": rng.randrange(4, 120) * MIB, "sha256": f"{rng.randrange(256):02x}" * 32}]
        status, data = c.call("POST", path, key, {"files": files})
        with lock:
            seen["hostile"] += 1
            seen["refused"] += status not in (200, 201)
            seen["least_free_mib"] = min(seen["least_free_mib"], disk.free_bytes() / MIB)
        if status not in (200, 201):
            up = None
            tar = tar_bytes({CONFIG: b"{}", WEIGHTS: bytes(MIB)})[:MIB // 2]
            c.call("POST", path, key, tar, **{"Content-Type": "application/x-tar"})
        else:
            up = f"{path}/{json.loads(data)['id']}"
            c.call("PATCH", f"{up}/files/{WEIGHTS}", key, bytes(65536), **{"Upload-Offset": "0"})
        if up and rng.random() < 0.5:
            c.call("DELETE", up, key)


def timed(phase, what, *args, **kw):
    """The answer's status and JSON; a failure is noted."""
    start = time.monotonic()
    status, data = what(*args, **kw)
    with lock:
        seen["honest"] += 1
        took[phase].append(time.monotonic() - start)
        if status not in (200, 201):
            seen["failed"] += 1
            problems.append(f"{args[:2]}: {status} {data[:200]!r}")
    return json.loads(data) if status in (200, 201) else None


def honest(phase, number, key, end):
    c, admin, n = Client(), Client(), 0
    admin.c = server.connect(server.admin_port)
    while time.monotonic() < end:
        n += 1
        timed(phase, c.call, "POST", "/v1/completions", key, {"model": "base", "prompt": "Once", "max_tokens": 4})
        timed(phase, admin.call, "POST", "/admin/v1/keys", server.admin_key,
              {"tenant": f"honest{number}", "scopes": ["inference"]})
        files = content("shout", (number * 4000 + n * 2 + (phase == "beside")) % 16384)
        path = f"/v1/adapters/mine{n}/versions"
        if n % 3 == 0:
            timed(phase, c.call, "POST", path, key, tar_bytes(files), **{"Content-Type": "application/x-tar"})
        else:
            up = timed(phase, c.call, "POST", path, key, manifest(files))
            for name, data in files.items() if up else ():
                timed(phase, c.call, "PUT", f"{path}/{up['id']}/files/{name}", key, data)
            if up:
                timed(phase, c.call, "POST", f"{path}/{up['id']}/commit", key)
        if n > 4:
            c.call("DELETE", f"/v1/adapters/mine{n - 4}?drain=true", key)


def run_honest(phase, keys, duration):
    end = time.monotonic() + duration
    workers = [threading.Thread(target=honest, args=(phase, i, k, end)) for i, k in enumerate(keys)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()


def lock_out(number, key):
    """Seconds from the sending of DELETE to the first refusal."""
    c, got = Client(), {}
    start = time.monotonic()
    t = threading.Thread(target=lambda: got.update(r=server.call(
        "DELETE", f"/admin/v1/tenants/evil{number}", key=server.admin_key, port=server.admin_port)))
    t.start()
    while c.call("GET", "/v1/models", key)[0] not in (401, 403):
        pass
    gone = time.monotonic() - start
    t.join()
    assert got["r"].status in (200, 202), got["r"]
    return gone


def p99(values):
    return sorted(values)[int(len(values) * 0.99)] if values else 0


with disk, server:
    if not disk.mounted:
        print("upload_room.py: no right to mount a small disk", file=sys.stderr)
        sys.exit(77)
    mine = [server.tenant(f"honest{i}") for i in range(HONEST)]
    evil = [server.tenant(f"evil{i}") for i in range(HOSTILE)]
    run_honest("alone", mine, seconds / 3)
    attackers = [threading.Thread(target=attack, args=(i, evil)) for i in range(ATTACKERS)]
    for a in attackers:
        a.start()
    run_honest("beside", mine, seconds)
    gone = [lock_out(i, evil[i]) for i in range(20)]
    over.set()
    for a in attackers:
        a.join()
    with disk.full():
        gone_full = [lock_out(i, evil[i]) for i in range(20, 40)]
    floor = server.metrics()["lorad_disk_min_free_bytes"] / MIB
    print(json.dumps({**seen, "floor_mib": floor, "p99_alone_ms": round(p99(took["alone"]) * 1e3, 1),
                      "p99_beside_ms": round(p99(took["beside"]) * 1e3, 1), "lock_out_s": round(max(gone), 3),
                      "lock_out_full_s": round(max(gone_full), 3), "problems": problems[:5]}))
