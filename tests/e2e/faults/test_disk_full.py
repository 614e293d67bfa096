"""A full disk: uploads get 507, what is published goes on being served, and nothing is lost.

A small tmpfs where this process may mount one; else, as in a container without that right, the limit on
the size of files that prlimit() can set on the running server stands for it.
"""
import contextlib
import resource

from harness import DEMO, Server, run, tar_of
from killing import CONFIG, WEIGHTS, content, manifest
from small_disk import SmallDisk

QUESTION = "What is 7 plus 5?"
disk = SmallDisk(12)
# Neither floor nor quota here (test_room.py): what follows is about the disk's own end.
server = Server(directory=disk.path / "data", settings={"data.spool": "1MiB", "data.min_free": "1", "adapters.tenant_bytes": "1GiB"})
server.log_path = disk.tmp / "log"


@contextlib.contextmanager
def full(bytes_left):
    """Room for about `bytes_left` more in any file."""
    if disk.mounted:
        with disk.full(bytes_left):
            yield
    else:
        pid, unlimited = server.process.pid, resource.RLIM_INFINITY
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (bytes_left, unlimited))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))


def text_of(model):
    r = server.ask(key, model, QUESTION)
    assert r.status == 200, r
    return r.json["choices"][0]["message"]["content"]


def names_on_disk():
    return {p.name for p in (server.dir / "adapters").iterdir() if len(p.name) == 64}


def send_tar(name, folder):
    return server.call("POST", f"/v1/adapters/{name}/versions", tar_of(DEMO / "adapters" / folder),
                       key=key, headers={"Content-Type": "application/x-tar"})


def a_tar_gets_507():
    before = names_on_disk()
    with full(600 << 10):
        r = send_tar("poet", "acme-support")
        assert r.status == 507 and r.json["error"]["code"] == "insufficient_storage", r
        assert names_on_disk() == before and not list((server.dir / "adapters/tmp").iterdir())
    assert text_of("poet") == loud
    assert server.call("GET", "/v1/adapters/poet", key=key).json["versions"] == 1
    assert server.call("GET", "/readyz", port=server.metrics_port).status == 200


def a_resumable_upload_waits_for_room():
    files = content("acme-support", 1)
    path = "/v1/adapters/poet/versions"
    with full(600 << 10):
        r = server.call("POST", path, manifest(files), key=key)
        if disk.mounted:  # its room is reserved at once, so that it shows before a byte is sent
            assert r.status == 507, r
            assert not list((server.dir / "adapters/uploads").iterdir())
    up = server.call("POST", path, manifest(files), key=key).json
    at = f"{path}/{up['id']}/files"
    assert server.call("PUT", f"{at}/{CONFIG}", files[CONFIG], key=key).status == 200
    offset = 0
    with full(600 << 10):
        r = server.call("PATCH", f"{at}/{WEIGHTS}", files[WEIGHTS], key=key,
                        headers={"Upload-Offset": "0"})
        if disk.mounted:  # reserved is reserved: a full disk does not stop it
            assert r.status == 200, r
        else:
            assert r.status == 507 and r.json["error"]["code"] == "insufficient_storage", r
        offset = int(r.headers["upload-offset"])
        assert offset == (len(files[WEIGHTS]) if disk.mounted else 600 << 10), offset
    r = server.call("PATCH", f"{at}/{WEIGHTS}", files[WEIGHTS][offset:], key=key,
                    headers={"Upload-Offset": str(offset)})
    assert r.status == 200 and r.json["state"] == "complete", r
    r = server.call("POST", f"{path}/{up['id']}/commit", key=key)
    assert r.status == 201, r
    assert text_of("poet") != loud and text_of("poet@1") == loud


def all_of_it_outlives_a_restart():
    with full(64 << 10):
        assert send_tar("late", "pirate").status == 507
    server.stop()
    server.start()
    assert text_of("poet@1") == loud and text_of("poet").startswith("Acme support")
    assert send_tar("late", "pirate").status == 201
    assert text_of("late").startswith("Arr!")


with disk, server:
    key = server.tenant("alice")
    server.upload(key, "poet", DEMO / "adapters/shout")
    loud = text_of("poet")
    server.stop()
    server.start()  # the write-ahead log begins short
    print("on a small tmpfs" if disk.mounted else "by a limit on file sizes", flush=True)
    run([a_tar_gets_507, a_resumable_upload_waits_for_room, all_of_it_outlives_a_restart])
