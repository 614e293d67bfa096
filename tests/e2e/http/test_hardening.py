"""What makes a fault harder to use: how the programs are built, who may read what, where keys stay."""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import frames
from harness import BUILD, DEMO, PATIENCE, Server, free_port, run

NOBODY = 65534
PROGRAMS = ("lorad", "loractl", "loratop")


def tool(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def optimised():
    cache = (BUILD / "CMakeCache.txt").read_text()
    return "CMAKE_BUILD_TYPE:STRING=Debug" not in cache


def the_programs_are_hardened():
    for name in PROGRAMS:
        program = BUILD / name
        dynamic, segments, header = (tool("readelf", "-W", flag, program) for flag in ("-d", "-l", "-h"))
        assert "DYN (Position-Independent" in header, header
        if not optimised():
            continue
        assert "GNU_RELRO" in segments and re.search(r"FLAGS_1.*NOW.*PIE", dynamic), (name, dynamic)
        stack = next(line for line in segments.splitlines() if "GNU_STACK" in line)
        assert "RWE" not in stack, stack
        assert not re.search(r"LOAD.* RWE ", segments), segments
        symbols = tool("nm", "-D", program)
        checked = set(re.findall(r"__(\w+)_chk\b", symbols))
        assert "__stack_chk_fail" in symbols and {"snprintf", "fprintf"} <= checked, (name, checked)
        code = tool("objdump", "-d", "--no-show-raw-insn", program)
        if "x86-64" in header:
            starts = re.findall(r"^[0-9a-f]+ <(main|mg_start|err_set)>:\n\s+\S+\s+(\w+)", code, re.M)
            assert starts and all(first == "endbr64" for _, first in starts), (name, starts)
            # A frame above a page is touched page by page on its way down.
            assert re.search(r"or[ql]\s+\$0x0,\(%rsp\)", code), f"{name}: no stack-clash protection"


def a_key_that_others_may_read_is_refused():
    with Server() as server:
        key = server.dir / "tls/key.pem"
        admin = server.admin_key
        key.chmod(0o644)
        server.process.send_signal(signal.SIGHUP)
        while "may be read by others (mode 0644)" not in server.log_path.read_text():
            time.sleep(0.02)
        assert server.call("GET", "/admin/v1/tenants", key=admin, port=server.admin_port).status == 200
        server.stop()
        for verb in ("check", "serve"):
            r = subprocess.run([BUILD / "lorad", verb, "-c", server.dir / "lorad.conf"], capture_output=True,
                               text=True, timeout=60 * PATIENCE)
            assert r.returncode == 1 and "server.tls_key" in r.stderr and "chmod 600" in r.stderr, r
        key.chmod(0o600)


def the_database_is_nobody_elses():
    old = os.umask(0)
    try:
        with Server() as server:
            server.tenant("acme")
            for file in ("lorad.db", "lorad.db-wal", "lorad.db-shm", "meters"):
                assert (server.dir / file).stat().st_mode & 0o777 == 0o600, file
            server.stop()
            (server.dir / "lorad.db").chmod(0o644)
            server.start()
            assert (server.dir / "lorad.db").stat().st_mode & 0o777 == 0o600
            assert "could be read by others" in server.log_path.read_text()
    finally:
        os.umask(old)


def memory_of(pid):
    """The private, writable memory of a process, piece by piece."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            span, mode, *_ = line.split()
            begin, end = (int(x, 16) for x in span.split("-"))
            if not mode.startswith("rw-p") or end - begin > 64 << 20:  # the arena holds no text
                continue
            try:
                mem.seek(begin)
                yield mem.read(end - begin)
            except OSError:
                pass


def no_key_stays_in_memory():
    if os.geteuid() != 0:
        print("        (not root: the server's memory cannot be read, as it should be)")
        return
    with Server() as server:
        marker = "certainly-not-a-key"
        key = server.tenant(marker)
        for _ in range(3):
            assert server.call("GET", "/v1/key", key=key).status == 200
            assert server.call("GET", "/v1/key", headers={"x-api-key": key}).status == 200
        secret = key.split("_")[2].encode()  # with connections closed and others open
        two = [frames.Wire(server, key) for _ in range(2)]
        for w in two:
            assert [w.answer(w.ask(path="/v1/key"))[0] for _ in range(2)] == [200, 200]
        two[0].close()
        c = server.connect()
        c.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        c.getresponse().read()
        found = {what: sum(piece.count(what) for piece in memory_of(server.process.pid)) for what in (secret, marker.encode())}
        c.close()
        two[1].close()
        assert found[marker.encode()] > 0, "the search finds nothing at all"
        assert found[secret] == 0, f"the key stands in the server's memory {found[secret]} times"


def nobody_reads_the_process():
    """Started by an ordinary user, its files under /proc belong to root: no core, no debugger, no look."""
    with Server() as server:
        limits = pathlib.Path(f"/proc/{server.process.pid}/limits").read_text()
        assert re.search(r"Max core file size\s+0\s+0", limits), limits
        if os.geteuid() != 0:
            assert pathlib.Path(f"/proc/{server.process.pid}/maps").stat().st_uid == 0
            return
    with tempfile.TemporaryDirectory(prefix="lorad-nobody-") as folder:
        os.chmod(folder, 0o711)
        program = shutil.copy(BUILD / "lorad", folder)  # nobody may not reach the build tree
        model = shutil.copytree(DEMO / "base", pathlib.Path(folder) / "model")
        data = pathlib.Path(folder) / "data"
        subprocess.run([program, "init", "--dir", data, "--model", model], check=True, capture_output=True)
        for path in [data, *data.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
        ports = [free_port() for _ in range(3)]
        argv = [program, "serve", "-c", data / "lorad.conf"]
        for name, port in zip(("server", "admin", "metrics"), ports):
            argv += ["--set", f"{name}.listen=127.0.0.1:{port}"]
        with open(f"{folder}/log", "w") as log:
            p = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, user=NOBODY, group=NOBODY)
        try:
            while "serving" not in pathlib.Path(f"{folder}/log").read_text():
                assert p.poll() is None, pathlib.Path(f"{folder}/log").read_text()
                time.sleep(0.05)
            assert pathlib.Path(f"/proc/{p.pid}/maps").stat().st_uid == 0
        finally:
            p.terminate()
            p.wait(60)


run([the_programs_are_hardened, a_key_that_others_may_read_is_refused, the_database_is_nobody_elses,
     no_key_stays_in_memory, nobody_reads_the_process])
