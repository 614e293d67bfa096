"""postgres.py -- a real PostgreSQL in a directory of its own, and a wire to it that can be cut."""
import glob
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

from harness import free_port, until

CLOCK = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")  # Debian: faketime
PROGRAMS = sorted(glob.glob("/usr/lib/postgresql/*/bin"))


def skip_unless_there():
    """77: ctest counts it as skipped."""
    if not PROGRAMS:
        print("skipped: PostgreSQL is not on this machine (Debian: postgresql)")
        sys.exit(77)


def can_be_stepped(program):
    """A sanitizer wants to be the first that is loaded."""
    return CLOCK and not {b"libasan.so", b"libtsan.so"} & set(re.findall(rb"lib[at]san\.so", program.read_bytes()))


class Clock:
    """Of one program that is started with `env`; without Debian's faketime there is none to step. The monotonic one stays."""

    def __init__(self, path):
        self.path, self.ahead = path, 0
        self.path.write_text("+0")
        self.env = {"LD_PRELOAD": CLOCK[0], "FAKETIME_TIMESTAMP_FILE": str(path), "FAKETIME_NO_CACHE": "1",
                    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                    "FAKETIME_FORCE_MONOTONIC_FIX": "0"} if CLOCK else {}  # else waits on the monotonic clock end at once

    def step(self, seconds):
        """At once."""
        self.ahead += seconds
        new = self.path.with_suffix(".new")
        new.write_text(f"{self.ahead:+d}")
        new.replace(self.path)  # whoever reads it reads all of it


class Postgres:
    """It does not run as root; whoever is root runs it as the user postgres, whom the package makes."""

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="lorad-pg-"))
        self.port, self.process = free_port(), None
        self.log = open(self.dir.with_suffix(".log"), "ab")
        self.become = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self.clock = Clock(self.dir.with_suffix(".clock"))
        if self.become:
            shutil.chown(self.dir, "postgres")
        self.program("initdb", "-D", self.dir, "-A", "trust", "-U", "lorad", "-N")
        self.start()
        self.sql("CREATE DATABASE fleet", database="postgres")

    def program(self, name, *args):
        done = subprocess.run([*self.become, f"{PROGRAMS[-1]}/{name}", *map(str, args)], cwd="/", text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start(self):
        """Again and again while what is left of a killed one ends."""
        until(self.answers)

    def answers(self):
        if not self.process or self.process.poll() is not None:
            clock = ["env", *(f"{name}={value}" for name, value in self.clock.env.items())]
            self.process = subprocess.Popen(
                [*self.become, *clock, f"{PROGRAMS[-1]}/postgres", "-D", self.dir, "-p", str(self.port), "-h", "127.0.0.1", "-k", "",
                 "-F"], cwd="/", stdout=self.log, stderr=self.log)
        ready = [f"{PROGRAMS[-1]}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready).returncode == 0

    def kill(self, sig=signal.SIGKILL):
        """The postmaster; its children end with it."""
        pid = int((self.dir / "postmaster.pid").read_text().split()[0])
        os.kill(pid, sig)
        self.process.wait()

    def sql(self, text, database="fleet"):
        return self.program("psql", "-h", "127.0.0.1", "-p", self.port, "-U", "lorad", "-d", database, "-Atqc", text)

    def close(self):
        if self.process.poll() is None:
            self.kill(signal.SIGINT)
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        self.dir.with_suffix(".log").unlink(missing_ok=True)
        self.clock.path.unlink(missing_ok=True)


POOLER = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")


class Pooler:
    """pgbouncer in transaction mode: what a client says next may be said in another session of PostgreSQL."""

    def __init__(self, to, sessions=3):
        self.port, self.dir = free_port(), pathlib.Path(tempfile.mkdtemp(prefix="lorad-pool-"))
        (self.dir / "ini").write_text(
            f"[databases]\nfleet = host=127.0.0.1 port={to.port} dbname=fleet user=lorad\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {sessions}\n")
        self.dir.chmod(0o755)
        self.log = open(self.dir / "log", "wb")
        self.process = subprocess.Popen([*to.become, POOLER, self.dir / "ini"], cwd="/", stdout=self.log, stderr=self.log)
        until(self.answers)

    def answers(self):
        assert self.process.poll() is None, (self.dir / "log").read_text()
        ready = [f"{PROGRAMS[-1]}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready).returncode == 0

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


class Wire:
    """A TCP proxy: cut() ends what goes through it and takes nobody until mend(); hold() lets bytes wait."""

    def __init__(self, to_port):
        self.to_port, self.whole, self.flows = to_port, True, threading.Event()
        self.flows.set()
        self.pairs = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                if not self.whole:
                    raise OSError
                server = socket.create_connection(("127.0.0.1", self.to_port))
            except OSError:
                client.close()
                continue
            self.pairs.append((client, server))
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=(a, b), daemon=True).start()

    def copy(self, a, b):
        try:
            while data := a.recv(1 << 16):
                self.flows.wait()
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        self.whole = False
        for pair in self.pairs:
            for s in pair:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.pairs.clear()

    def mend(self):
        self.whole = True
        self.flows.set()

    def hold(self):
        self.flows.clear()
