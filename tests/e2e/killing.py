"""killing.py -- SIGKILL at random points of uploads: what a restart finds is the old version or the new
one, whole, and nothing else on the disk.

Used by test_kill_upload.py (a bounded number) and by the bench case kill-upload (200).  Each round
publishes content that the server has never seen, over the old version of one name, in pieces or as one
tar, and kills the server in or after a step chosen at random.
"""
import hashlib
import http.client
import io
import random
import signal
import tarfile
import threading
import time

from harness import DEMO, Server

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
QUESTION = "What is 7 plus 5?"
NAME = "phoenix"
STYLES = ("shout", "pirate", "formal")  # their answers tell them apart


def content(style, n):
    """The folder of a demo adapter, one bit pattern of its own in the last weights' mantissas."""
    files = {p.name: p.read_bytes() for p in (DEMO / "adapters" / style).iterdir()
             if p.name in (CONFIG, WEIGHTS)}
    w = bytearray(files[WEIGHTS])
    for at, bits in ((-2, n & 127), (-4, n >> 7 & 127)):
        w[at] = w[at] & 0x80 | bits
    files[WEIGHTS] = bytes(w)
    return files


def tar_bytes(files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as t:
        for n, b in files.items():
            info = tarfile.TarInfo(n)
            info.size = len(b)
            t.addfile(info, io.BytesIO(b))
    return data.getvalue()


def answer(server, key, model=NAME):
    r = server.ask(key, model, QUESTION)
    return r.json["choices"][0]["message"]["content"] if r.status == 200 else f"<{r.status}>"


class Steps:
    """Counts the client's steps and lets the killer wait for one."""

    def __init__(self):
        self.done, self.changed = 0, threading.Condition()

    def step(self):
        with self.changed:
            self.done += 1
            self.changed.notify_all()

    def wait_for(self, n, thread):
        with self.changed:
            while self.done < n and thread.is_alive():
                self.changed.wait(0.05)


def send_slowly(server, key, method, path, body, headers, steps, pieces):
    """One request whose body goes out in pieces, a step each; the status, or None for a broken line."""
    head = {"Host": "localhost", "Authorization": f"Bearer {key}",
            "Content-Length": str(len(body)), **headers}
    s = server.raw(timeout=30)
    try:
        s.sendall((f"{method} {path} HTTP/1.1\r\n" +
                   "".join(f"{k}: {v}\r\n" for k, v in head.items()) + "\r\n").encode())
        cut = -(-len(body) // pieces)
        for at in range(0, len(body), cut):
            steps.step()
            s.sendall(body[at:at + cut])
        steps.step()
        r = http.client.HTTPResponse(s)
        r.begin()
        r.read()
        return r.status
    finally:
        s.close()


def upload_tar(server, key, files, steps, result):
    result["status"] = send_slowly(server, key, "POST", f"/v1/adapters/{NAME}/versions",
                                   tar_bytes(files), {"Content-Type": "application/x-tar"}, steps, 6)
    steps.step()


def manifest(files):
    return {"files": [{"path": n, "bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()}
                      for n, b in files.items()]}


def upload_resumable(server, key, files, steps, result):
    """Begins, or goes on where an earlier one stood."""
    steps.step()
    up = server.call("POST", f"/v1/adapters/{NAME}/versions", manifest(files), key=key).json
    at = f"/v1/adapters/{NAME}/versions/{up['id']}"
    result["resumed_at"] = sum(f["offset"] for f in up["files"])
    for f in up["files"]:
        data, offset = files[f["path"]], f["offset"]
        cut = -(-len(data) // 3)
        while offset < len(data):
            steps.step()
            status = send_slowly(server, key, "PATCH", f"{at}/files/{f['path']}",
                                 data[offset:offset + cut], {"Upload-Offset": str(offset)}, steps, 2)
            assert status == 200, status
            sent = len(data[offset:offset + cut])
            offset += sent
            result["confirmed"] = result.get("confirmed", 0) + sent
    steps.step()
    result["status"] = server.call("POST", at + "/commit", key=key).status
    steps.step()


def quiet(fn, *args):
    try:
        fn(*args)
    except (OSError, http.client.HTTPException, ValueError, EOFError):
        pass  # the line broke off: the server was killed


def check_disk(server, key):
    """Each published version's folder is there with both files, and nothing besides."""
    r = server.call("GET", f"/v1/adapters/{NAME}/versions", key=key)
    versions = r.json["data"] if r.status == 200 else []
    assert all(v["state"] == "ready" for v in versions), versions
    root = server.dir / "adapters"
    known = {v["digest"]: v for v in versions}
    there = {p.name for p in root.iterdir()} - {"tmp", "uploads"}
    assert there == set(known), (there ^ set(known), "orphans or losses")
    for d, v in known.items():
        sizes = {p.name: p.stat().st_size for p in (root / d).iterdir()}
        assert set(sizes) == {CONFIG, WEIGHTS} and sum(sizes.values()) == v["bytes"], (v, sizes)
    assert not list((root / "tmp").iterdir()) if (root / "tmp").exists() else True
    ups = {p.name for p in (root / "uploads").iterdir()}
    assert {u for u in ups if u.endswith(".json")} == {u + ".json" for u in ups if "." not in u}, ups
    return len(versions)


def kill_rounds(rounds, seed):
    """Returns what happened, counted; raises on the first thing that is neither old nor new."""
    rng = random.Random(seed)
    seen = {"old": 0, "new": 0, "resumed": 0, "rounds": 0}
    with Server(settings={"adapters.max_upload": "16MiB"}) as server:
        key = server.tenant("alice")
        texts = {}
        for s in STYLES:
            server.upload(key, s, DEMO / "adapters" / s)
            texts[s] = answer(server, key, s)
            server.call("DELETE", f"/v1/adapters/{s}?drain=true", key=key)
        assert len(set(texts.values())) == len(STYLES), texts
        old, n_versions = None, 0
        for i in range(rounds):
            style = rng.choice([s for s in STYLES if s != old])
            files, steps, result = content(style, i + 1), Steps(), {}
            way = rng.choice([upload_tar, upload_resumable])
            client = threading.Thread(target=quiet, args=(way, server, key, files, steps, result))
            client.start()
            # 8 or 16 steps; the later ones (validate, publish) take longest, so kill there more often.
            steps.wait_for(rng.choice([rng.randrange(1, 17), 8, 16]), client)
            time.sleep(rng.random() ** 2 * 0.03)
            server.stop(signal.SIGKILL)
            client.join()
            server.start()
            got, told = answer(server, key), result.get("status") in (200, 201)
            allowed = {texts[style]} if told else \
                {texts[style], texts[old] if old else "<404>"}
            assert got in allowed, (i, way.__name__, old, style, told, got)
            new = got == texts[style]
            n = check_disk(server, key)
            assert n == n_versions + new, (i, n, n_versions, new)
            seen["new" if new else "old"] += 1
            # Whatever was cut short can be finished; what was confirmed need not be sent again.
            again = {}
            upload_resumable(server, key, files, Steps(), again)
            assert again["status"] == (200 if new else 201), again
            if way is upload_resumable and not new:
                assert again["resumed_at"] >= result.get("confirmed", 0), (result, again)
                seen["resumed"] += again["resumed_at"] > 0
            assert answer(server, key) == texts[style]
            old, n_versions = style, n_versions + 1
            seen["rounds"] += 1
            if n_versions == 12:  # the disk stays small, and deletes are part of it
                server.call("DELETE", f"/v1/adapters/{NAME}?drain=true", key=key)
                assert check_disk(server, key) == 0
                old, n_versions = None, 0
    return seen
