"""Descriptors: the start says what it lacks, and when they are used up, no plane is silenced and nothing spins."""
import os
import re
import resource
import socket
import subprocess
import time

from harness import BUILD, PATIENCE, Server, run

server = Server(settings={"server.max_streams": 8, "server.max_connections": 6, "server.max_connections_per_ip": 6})


def limited(n):
    """An argument for Popen: the process may have so many descriptors."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))}


def start_with(n, verb="serve"):
    settings = [x for name, value in server.settings.items() for x in ("--set", f"{name}={value}")]
    return subprocess.run([BUILD / "lorad", verb, "-c", server.dir / "lorad.conf", *settings], capture_output=True,
                          text=True, timeout=30 * PATIENCE, **limited(n))


def needed():
    said = start_with(64)
    assert said.returncode == 1, said
    return int(re.search(r"needs (\d+) open files and sockets, and the limit is 64: raise it .*, or lower server.max_connections, now 6\n",
                         said.stderr)[1])


def the_start_says_what_it_lacks():
    n = needed()
    assert 200 < n < 1000, n
    for verb in ("serve", "check"):
        said = start_with(n - 1, verb)
        assert said.returncode == 1 and f"needs {n} " in said.stderr, said
    assert start_with(n, "check").returncode == 0


def ticks():
    """Of the processor, spent by the server so far, in seconds."""
    with open(f"/proc/{server.process.pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spends_little(seconds=1.5):
    """A thread that spins takes all it can get; one that waits takes next to nothing."""
    start, before = time.monotonic(), ticks()
    time.sleep(seconds)
    spent, took = ticks() - before, time.monotonic() - start
    assert spent < took / 5, f"{spent:.2f} s of the processor in {took:.2f} s of waiting"


def others_are_served(times):
    for _ in range(times):
        for path, port, who in (("/healthz", server.metrics_port, None), ("/readyz", server.metrics_port, None),
                                ("/admin/v1/tenants", server.admin_port, server.admin_key)):
            r = server.call("GET", path, key=who, port=port, timeout=20)
            assert r.status == 200, r


def hoard(n, port=None, first=b""):
    out = [socket.create_connection(("127.0.0.1", port or server.port), 30 * PATIENCE) for _ in range(n)]
    for s in out:
        s.sendall(first)
    return out


def inference_is_served():
    end = time.monotonic() + 30 * PATIENCE
    while True:  # those of the hoard are still being let go
        try:
            r = server.call("GET", "/v1/models", key=key)
            if r.status == 200:
                return
            assert r.status in (429, 503), r
        except OSError:
            pass
        assert time.monotonic() < end
        time.sleep(0.05)


def a_hoard_on_one_plane_leaves_the_others():
    """More than the limit; the server has no descriptor more than it needs."""
    idle = hoard(300)
    others_are_served(5)
    m = server.metrics()
    assert m["process_open_fds"] < m["process_max_fds"] == allowed, (m["process_open_fds"], allowed)
    spends_little()
    others_are_served(1)
    for s in idle:
        s.close()
    inference_is_served()


def the_silent_give_way_on_the_small_planes():
    """Four of them would hold all workers of /healthz for ten seconds each."""
    for port, path, who in ((server.metrics_port, "/healthz", None), (server.admin_port, "/admin/v1/tenants", server.admin_key)):
        for n, first in ((60, b""), (24, b"\x16\x03")):  # the latter have begun, and are waited for a little
            idle = hoard(n, port, first)
            r = server.call("GET", path, key=who, port=port, timeout=60)
            assert r.status == 200, r
            for s in idle:
                s.close()
    kept = [server.connect(server.metrics_port) for _ in range(5)]  # more than workers, all kept alive
    for c in kept:
        c.request("GET", "/healthz")
        assert c.getresponse().read()
    assert server.call("GET", "/healthz", port=server.metrics_port, timeout=60).status == 200
    for c in kept:
        c.close()


def a_limit_that_falls_later():
    """Then every accept() fails but with the spare descriptors of each plane."""
    n = int(server.metrics()["process_open_fds"])
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (n - 3, allowed))
    idle = hoard(60)
    others_are_served(5)
    spends_little()
    others_are_served(5)
    log = server.log_path.read_text()
    assert 1 <= log.count("a connection can't be taken: Too many open files") < 20, log[-2000:]
    for s in idle:
        s.close()
    inference_is_served()  # with what the hoard has given back
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (allowed, allowed))
    inference_is_served()


with server:  # which makes the directory, too
    server.stop()
    allowed = needed()
    started = subprocess.Popen

    def limited_popen(argv, **more):
        return started(argv, **more, **limited(allowed))

    subprocess.Popen = limited_popen
    server.start()
    subprocess.Popen = started
    key = server.tenant("alice")
    run([the_start_says_what_it_lacks, a_hoard_on_one_plane_leaves_the_others,
         the_silent_give_way_on_the_small_planes, a_limit_that_falls_later])
