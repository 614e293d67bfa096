"""Resumable uploads: pieces, broken lines, restarts, two writers at once, wrong bytes, expiry."""
import hashlib
import http.client
import os
import signal
import socket
import threading
import time

from harness import DEMO, PATIENCE, Server, run

QUESTION = "What is 7 plus 5?"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
server = Server(settings={"adapters.max_open_uploads": 3, "adapters.max_upload": "4MiB"})


def folder(name):
    return {p.name: p.read_bytes() for p in sorted((DEMO / "adapters" / name).iterdir())
            if p.name in (CONFIG, WEIGHTS)}


def manifest(files, **more):
    return {"files": [{"path": n, "bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()}
                      for n, b in files.items()], **more}


def begin(key, name, files, expect=201, query="", **more):
    r = server.call("POST", f"/v1/adapters/{name}/versions{query}", manifest(files, **more), key=key)
    assert r.status == expect, r
    return r.json


def path_of(up, file=None, name=None):
    at = f"/v1/adapters/{name or up['name']}/versions/{up['id']}"
    return at if file is None else f"{at}/files/{file}"


def patch(key, up, file, data, offset, expect=200):
    r = server.call("PATCH", path_of(up, file), data, key=key, headers={
        "Content-Type": "application/octet-stream", "Upload-Offset": str(offset)})
    assert r.status == expect, r
    return r


def put(key, up, file, data, expect=200):
    r = server.call("PUT", path_of(up, file), data, key=key)
    assert r.status == expect, r
    return r


def commit(key, up, expect=201, query="", headers=None):
    r = server.call("POST", path_of(up) + "/commit" + query, key=key, headers=headers)
    assert r.status == expect, r
    return r


def offset_of(key, up, file):
    r = server.call("HEAD", path_of(up, file), key=key)
    assert r.status == 200 and r.body == b"", r
    return int(r.headers["upload-offset"])


def text_of(key, model):
    r = server.ask(key, model, QUESTION)
    assert r.status == 200, r
    return r.json["choices"][0]["message"]["content"]


def code(reply):
    return reply.json["error"]["code"]


def in_pieces():
    files = folder("shout")
    up = begin(alice, "poet", {**files, "README.md": b"# hello"})
    assert [f["state"] for f in up["files"]] == ["missing", "missing", "ignored"], up
    assert server.call("GET", "/v1/adapters/poet", key=alice).status == 404
    assert code(commit(alice, up, 409)) == "upload_incomplete"
    put(alice, up, CONFIG, files[CONFIG])
    data, at = files[WEIGHTS], 0
    while at < len(data):
        r = patch(alice, up, WEIGHTS, data[at:at + 50001], at)
        at = int(r.headers["upload-offset"])
        assert offset_of(alice, up, WEIGHTS) == at
    assert server.call("GET", path_of(up), key=alice).json["received"] == up["bytes"]
    r = commit(alice, up)
    assert r.json["version"] == 1 and r.json["state"] == "ready" and r.headers["etag"], r
    assert text_of(alice, "poet") == text_of(alice, "base").upper()
    assert server.call("GET", path_of(up), key=alice).status == 404


def what_is_there_is_not_sent_again():
    up = begin(alice, "poet2", folder("shout"))
    assert [f["state"] for f in up["files"]] == ["skipped", "skipped"], up
    assert commit(alice, up).json["version"] == 1
    assert text_of(alice, "poet2") == text_of(alice, "base").upper()
    # Bob has never sent it: he learns nothing of Alice's files.
    up = begin(bob, "poet", folder("shout"))
    assert [f["state"] for f in up["files"]] == ["missing", "missing"], up
    assert server.call("DELETE", path_of(up), key=bob).json["deleted"]
    # A linked file is never written through: the old version still loads after a PUT over it.
    up = begin(alice, "poet3", folder("shout"))
    files = folder("shout")
    put(alice, up, WEIGHTS, b"\0" * len(files[WEIGHTS]), 422)
    assert offset_of(alice, up, WEIGHTS) == 0
    server.call("DELETE", path_of(up), key=alice)
    server.stop()
    server.start()
    assert text_of(alice, "poet") == text_of(alice, "base").upper()


def the_same_manifest_goes_on_after_a_kill():
    files = folder("pirate")
    up = begin(alice, "sailor", files, description="of the seas")
    patch(alice, up, WEIGHTS, files[WEIGHTS][:100000], 0)
    server.stop(signal.SIGKILL)
    server.start()
    again = begin(alice, "sailor", files, expect=200, description="of the seas")
    assert again["id"] == up["id"], (up, again)
    assert {f["path"]: f["offset"] for f in again["files"]} == {CONFIG: 0, WEIGHTS: 100000}
    put(alice, up, CONFIG, files[CONFIG])
    patch(alice, up, WEIGHTS, files[WEIGHTS][100000:], 100000)
    assert commit(alice, up).json["version"] == 1
    assert text_of(alice, "sailor").startswith("Arr!")
    r = server.call("GET", "/v1/adapters/sailor", key=alice)
    assert r.json["description"] == "of the seas", r


def a_broken_line_keeps_what_came():
    files = folder("formal")
    up = begin(alice, "broken", files)
    s = server.raw()
    half = len(files[WEIGHTS]) // 2
    s.sendall((f"PATCH {path_of(up, WEIGHTS)} HTTP/1.1\r\nHost: localhost\r\n"
               f"Authorization: Bearer {alice}\r\nUpload-Offset: 0\r\n"
               f"Content-Length: {len(files[WEIGHTS])}\r\n\r\n").encode() + files[WEIGHTS][:half])
    while offset_and_busy(up, WEIGHTS)[1] is False:
        time.sleep(0.01)
    # Somebody else on the same file is refused while the first one writes.
    r = server.call("PATCH", path_of(up, WEIGHTS), b"x", key=alice, headers={"Upload-Offset": "0"})
    assert r.status == 409 and code(r) == "upload_busy", r
    assert code(server.call("POST", path_of(up) + "/commit", key=alice)) == "upload_busy"
    assert server.call("DELETE", path_of(up), key=alice).status == 409
    s.close()
    end = time.monotonic() + 60 * PATIENCE
    while offset_and_busy(up, WEIGHTS)[1] and time.monotonic() < end:
        time.sleep(0.01)
    at = offset_of(alice, up, WEIGHTS)
    assert 0 < at <= half, (at, half)
    r = patch(alice, up, WEIGHTS, files[WEIGHTS][at + 1:], at + 1, 409)
    assert code(r) == "upload_offset_mismatch" and int(r.headers["upload-offset"]) == at
    patch(alice, up, WEIGHTS, files[WEIGHTS][at:], at)
    put(alice, up, CONFIG, files[CONFIG])
    commit(alice, up)


def offset_and_busy(up, file):
    r = server.call("GET", path_of(up, file), key=alice)
    assert r.status == 200, r
    return r.json["offset"], r.json["busy"]


def two_uploaders_of_one_file():
    files = folder("json")
    up = begin(alice, "race", files)
    put(alice, up, CONFIG, files[CONFIG])
    got = []

    def push():
        try:
            got.append(server.call("PUT", path_of(up, WEIGHTS), files[WEIGHTS], key=alice).status)
        except (OSError, http.client.HTTPException):
            got.append(0)  # refused before the body was taken

    threads = [threading.Thread(target=push) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert 200 in got and set(got) <= {200, 409, 0}, got
    # Whoever won: the bytes are the right ones, and the version is one of them, whole.
    assert commit(alice, up).json["version"] == 1
    assert text_of(alice, "race").startswith("{")


def wrong_bytes_are_refused():
    files = folder("json")
    up = begin(alice, "wrong", {CONFIG: files[CONFIG], WEIGHTS: files[WEIGHTS][:-1] + b"!"})
    r = put(alice, up, WEIGHTS, files[WEIGHTS], 422)
    assert code(r) == "checksum_mismatch" and r.headers["upload-offset"] == "0"
    assert offset_of(alice, up, WEIGHTS) == 0
    put(alice, up, CONFIG, files[CONFIG])
    patch(alice, up, WEIGHTS, files[WEIGHTS][:1000], 0)
    r = patch(alice, up, WEIGHTS, files[WEIGHTS] * 2, 1000, 413)
    assert offset_of(alice, up, WEIGHTS) >= 1000
    put(alice, up, WEIGHTS, files[WEIGHTS] + b"x", 400)
    put(alice, up, WEIGHTS, files[WEIGHTS][:-1] + b"!")  # what the manifest told: another weight
    commit(alice, up)


def hostile_manifests():
    one = {"path": CONFIG, "bytes": 10, "sha256": "0" * 64}
    two = {"path": WEIGHTS, "bytes": 10, "sha256": "0" * 64}
    bad = [({}, 400), ({"files": []}, 400), ({"files": 7}, 400), ({"files": [one]}, 422),
           ({"files": [one, one, two]}, 400), ({"files": [one, two], "color": 1}, 400),
           ({"files": [one, two, {**one, "path": "model.bin"}]}, 422),
           ({"files": [one, two, {**one, "path": "../../etc/passwd"}]}, 400),
           ({"files": [one, {**two, "bytes": -1}]}, 400), ({"files": [one, {**two, "bytes": 0}]}, 400),
           ({"files": [one, {**two, "bytes": 1e15}]}, 413),
           ({"files": [one, {**two, "bytes": 5 << 20}]}, 413),
           ({"files": [{**one, "bytes": 2 << 20}, two]}, 413),
           ({"files": [one, {**two, "sha256": "0" * 63}]}, 400),
           ({"files": [one, {**two, "sha256": "G" * 64}]}, 400),
           ({"files": [one, two], "description": "x" * 600}, 400),
           ({"files": [one, two], "activate": "yes"}, 400)]
    for body, status in bad:
        r = server.call("POST", "/v1/adapters/hostile/versions", body, key=alice)
        assert r.status == status, (body, r)
    r = server.call("POST", "/v1/adapters/base/versions", {"files": [one, two]}, key=alice)
    assert r.status == 400, r
    up = begin(alice, "hostile", {CONFIG: b"{}", WEIGHTS: b"x" * 100})
    for method, path, headers, status in [
            ("PATCH", path_of(up, "README.md"), {"Upload-Offset": "0"}, 404),
            ("PATCH", path_of(up, "..%2fx"), {"Upload-Offset": "0"}, 404),
            ("PATCH", path_of(up, WEIGHTS), {}, 400),
            ("PATCH", path_of(up, WEIGHTS), {"Upload-Offset": "-1"}, 400),
            ("PATCH", path_of(up, WEIGHTS), {"Upload-Offset": "99999999999999999999"}, 400),
            ("PATCH", path_of(up, WEIGHTS, "other"), {"Upload-Offset": "0"}, 404),
            ("PATCH", path_of({**up, "id": "u" + "0" * 16}, WEIGHTS), {"Upload-Offset": "0"}, 404)]:
        r = server.call(method, path, b"x", key=alice, headers=headers)
        assert r.status == status, (method, path, headers, r)
    for method, path in [("GET", path_of(up)), ("DELETE", path_of(up)),
                         ("POST", path_of(up) + "/commit"), ("HEAD", path_of(up, WEIGHTS))]:
        assert server.call(method, path, key=bob).status == 404, (method, path)
    put(alice, up, CONFIG, b"{}")
    put(alice, up, WEIGHTS, b"x" * 100)
    assert code(commit(alice, up, 422)) == "adapter_invalid"
    assert server.call("GET", path_of(up), key=alice).status == 404


def conditions_and_activation():
    first, second = folder("shout"), folder("pirate")
    up = begin(bob, "cas", first, query="?activate=false")
    assert up["activate"] is False
    for n, b in first.items():
        put(bob, up, n, b)
    r = commit(bob, up, headers={"If-None-Match": "*"})
    etag = r.headers["etag"]
    assert text_of(bob, "cas") == text_of(bob, "base").upper()  # the first version always is live
    up = begin(bob, "cas", second, activate=False)
    for n, b in second.items():
        put(bob, up, n, b)
    assert code(commit(bob, up, 412, headers={"If-Match": '"77"'})) == "precondition_failed"
    assert code(commit(bob, up, 412, headers={"If-None-Match": "*"})) == "precondition_failed"
    r = commit(bob, up, headers={"If-Match": etag})
    assert r.json["version"] == 2 and r.headers["etag"] != etag, r
    assert text_of(bob, "cas") == text_of(bob, "base").upper()
    assert text_of(bob, "cas@2").startswith("Arr!")


def too_many_and_expiry():
    key = server.tenant("many")
    ups = [begin(key, f"n{i}", {CONFIG: b"{}", WEIGHTS: bytes([i]) * 100}) for i in range(3)]
    r = server.call("POST", "/v1/adapters/n3/versions",
                    manifest({CONFIG: b"{}", WEIGHTS: b"3" * 100}), key=key)
    assert r.status == 413 and "open" in r.json["error"]["message"], r
    server.stop()
    roots = server.dir / "adapters" / "uploads"
    for u in ups[:2]:
        for p in [roots / u["id"], *(roots / u["id"]).iterdir()]:
            os.utime(p, (time.time() - 90000,) * 2)
    (roots / "u00000000000000ff").mkdir()
    (roots / "u00000000000000fe.json").write_text("{")
    server.start()
    left = {p.name for p in roots.iterdir()}
    assert server.call("GET", path_of(ups[0]), key=key).status == 404
    assert server.call("GET", path_of(ups[2]), key=key).status == 200
    assert ups[0]["id"] not in left and ups[2]["id"] in left, left
    assert not left & {"u00000000000000ff", "u00000000000000fe.json"}, left


with server:
    alice, bob = server.tenant("alice"), server.tenant("bob")
    run([in_pieces, what_is_there_is_not_sent_again, the_same_manifest_goes_on_after_a_kill,
         a_broken_line_keeps_what_came, two_uploaders_of_one_file, wrong_bytes_are_refused,
         hostile_manifests, conditions_and_activation, too_many_and_expiry])
