"""lorad as a service: what it tells systemd, its unit, its manual, and a copy of its data directory."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time

from harness import BUILD, DEMO, PATIENCE, ROOT, Server, free_port, run, until

LORAD = (BUILD / "lorad").resolve()


class Manager:
    """The socket that systemd would listen on."""

    def __init__(self, abstract=False, watchdog_us=None, pid=None):
        self.folder = tempfile.mkdtemp(prefix="lorad-notify-")
        name = f"\0lorad-test-{os.getpid()}" if abstract else f"{self.folder}/notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(name)
        self.socket.settimeout(60 * PATIENCE)
        self.env = {"NOTIFY_SOCKET": name.replace("\0", "@")}
        if watchdog_us:
            self.env["WATCHDOG_USEC"] = str(watchdog_us)
        if pid:
            self.env["WATCHDOG_PID"] = str(pid)

    def __enter__(self):
        self.before = {k: os.environ.get(k) for k in self.env}
        os.environ.update(self.env)
        return self

    def __exit__(self, *exc):
        for k, v in self.before.items():
            os.environ.pop(k) if v is None else os.environ.__setitem__(k, v)
        self.socket.close()
        shutil.rmtree(self.folder)

    def next(self):
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    def until(self, name):
        while True:
            message = self.next()
            if name in message:
                return message


def test_ready_reloading_watchdog_stopping():
    with Manager(watchdog_us=400000) as m, Server() as s:
        ready = m.next()
        assert ready["READY"] == "1" and "serving" in ready["STATUS"], ready
        assert s.call("GET", "/readyz", port=s.metrics_port).status == 200  # it is true
        for _ in range(3):
            assert m.until("WATCHDOG")["WATCHDOG"] == "1"
        before = time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6
        s.process.send_signal(signal.SIGHUP)
        told = m.until("RELOADING")
        assert before <= int(told["MONOTONIC_USEC"]) <= time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6
        m.until("READY")
        (s.dir / "lorad.conf").write_text("[nonsense]\n")  # refused, but the reload is over
        s.process.send_signal(signal.SIGHUP)
        m.until("RELOADING")
        m.until("READY")
        s.process.send_signal(signal.SIGTERM)
        told = m.until("STOPPING")
        assert int(told["EXTEND_TIMEOUT_USEC"]) > 30e6, told
        assert s.process.wait(60) == 0


def test_abstract_socket_and_somebody_elses_watchdog():
    with Manager(abstract=True, watchdog_us=100000, pid=1) as m, Server() as s:
        assert m.next()["READY"] == "1"
        s.call("GET", "/healthz", port=s.metrics_port)
        time.sleep(0.6)
        s.process.send_signal(signal.SIGTERM)
        assert "STOPPING" in m.next()  # nothing came in between


def test_no_ready_without_a_start():
    with Manager() as m:
        p = subprocess.run([LORAD, "serve", "-c", "/nonexistent.conf"], capture_output=True, timeout=60 * PATIENCE)
        assert p.returncode == 1
        m.socket.settimeout(0.2)
        try:
            raise AssertionError(m.next())
        except TimeoutError:
            pass


def test_unit_file():
    text = (ROOT / "conf/lorad.service").read_text()
    for line in ("Type=notify", "WatchdogSec=", "ExecReload=/bin/kill -HUP $MAINPID",
                 "NoNewPrivileges=yes", "ProtectSystem=strict"):
        assert line in text, line
    if shutil.which("systemd-analyze"):
        with tempfile.TemporaryDirectory() as d:
            unit = pathlib.Path(d) / "lorad.service"
            unit.write_text(text.replace("/usr/local/bin/lorad", str(LORAD)).replace("User=lorad\n", "")
                            .replace("Group=lorad\n", ""))
            (pathlib.Path(d) / "lorad.service.d").mkdir()
            shutil.copy(ROOT / "conf/lorad-cuda.conf", unit.parent / "lorad.service.d/cuda.conf")
            p = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
            ours = [l for l in (p.stdout + p.stderr).splitlines() if "lorad.service" in l]
            assert not ours, ours


def test_manual():
    for page, pieces in (("1", (".TH LORAD 1", "SIGHUP", "\\-\\-print\\-conf", "backup")),
                         ("5", (".TH LORAD.CONF 5", "[server]", "kv_memory", "drain_timeout"))):
        text = subprocess.run([LORAD, "--print-man", page], capture_output=True, text=True,
                              check=True).stdout
        for piece in pieces:
            assert piece in text, piece
        if shutil.which("groff"):
            p = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=text, text=True,
                               capture_output=True)
            assert p.returncode == 0 and not p.stderr, p.stderr
    # every option of the printed config has its entry
    page = subprocess.run([LORAD, "--print-man", "5"], capture_output=True, text=True).stdout
    conf = subprocess.run([LORAD, "--print-conf"], capture_output=True, text=True).stdout
    for key in re.findall(r"^(\w+) = ", conf, re.M):
        assert f".BR {key} " in page, key
    assert "lorad backup" in subprocess.run([LORAD, "--help"], capture_output=True, text=True).stdout
    for verb in ("init", "key", "cert", "check", "serve", "migrate", "backup"):
        for words in ((verb, "--help"), (verb, "-h"), ("help", verb)):
            told = subprocess.run([LORAD, *words], capture_output=True, text=True)
            assert told.returncode == 0 and told.stdout.startswith(f"lorad {verb} ") and "Example:" in told.stdout, told


def test_backup_of_what_a_crash_left():
    with Server() as s:
        key = s.tenant("acme")
        s.upload(key, "pirate", DEMO / "adapters/pirate")
        want = s.ask(key, "pirate", "What is 7 plus 5?").json["choices"][0]["message"]["content"]
        copy = s.dir.with_suffix(".copy")
        busy = subprocess.run([LORAD, "backup", "-c", s.dir / "lorad.conf", "--dir", copy],
                              capture_output=True, text=True)
        assert busy.returncode == 1 and "loractl backup" in busy.stderr and not copy.exists(), busy
        c = s.connect()
        c.request("POST", "/v1/completions",
                  '{"model":"pirate","prompt":"Once","max_tokens":900,"ignore_eos":true,"n":8,"stream":true}',
                  {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        c.getresponse().readline()
        s.stop(signal.SIGKILL)
        p = subprocess.run([LORAD, "backup", "-c", s.dir / "lorad.conf", "--dir", copy],
                           capture_output=True, text=True)
        assert p.returncode == 0, p
        assert int(re.search(r"settled +(\d+)", p.stdout)[1]) >= 1, p.stdout
        again = subprocess.run([LORAD, "backup", "-c", s.dir / "lorad.conf", "--dir", copy],
                               capture_output=True, text=True)
        assert again.returncode == 1 and "already" in again.stderr
        assert copy.stat().st_mode & 0o777 == 0o700
        assert (copy / "lorad.db").stat().st_mode & 0o777 == 0o600
        # The copy serves, in the place of what it was made of.
        for name in ("lorad.db", "lorad.db-wal", "lorad.db-shm"):
            (s.dir / name).unlink(missing_ok=True)
        shutil.rmtree(s.dir / "adapters")
        shutil.copy(copy / "lorad.db", s.dir)
        shutil.copytree(copy / "adapters", s.dir / "adapters")
        s.start()
        assert s.ask(key, "pirate", "What is 7 plus 5?").json["choices"][0]["message"]["content"] == want
        s.booked()
        rows = s.admin("GET", "/usage?tenant=acme&group_by=model")["data"]
        assert sum(r["num_model_requests"] for b in rows for r in b["results"]) >= 3, rows
        shutil.rmtree(copy)


def lorad(*args, expect=0):
    done = subprocess.run([LORAD, *args], capture_output=True, text=True)
    assert done.returncode == expect, done
    return done.stdout + done.stderr


def test_init_says_what_is_missing():
    """What is no model is refused before anything is written, and a second init says what is wanted instead."""
    with tempfile.TemporaryDirectory() as folder:
        data, empty = f"{folder}/data", f"{folder}/empty"
        os.mkdir(empty)
        assert "sources.hub" in lorad("init", "--dir", data, "--model", "meta-llama/Llama-3.2-1B", expect=1)
        assert "config.json" in lorad("init", "--dir", data, "--model", empty, expect=1)
        assert not os.path.exists(data)
        lorad("init", "--dir", data, "--model", DEMO / "base")
        said = lorad("init", "--dir", data, "--model", DEMO / "base", expect=1)
        assert "lorad key --admin" in said and "lorad cert" in said, said
        lorad("key", "-c", f"{data}/lorad.conf", expect=2)
        assert "unknown command 'srve'" in lorad("srve", expect=2)


def test_a_plan_without_a_configuration():
    """The figures are config.json's, the verdict this machine's."""
    m = json.loads((DEMO / "base/config.json").read_text())
    token = 2 * m["num_hidden_layers"] * m["num_key_value_heads"] * (m["hidden_size"] // m["num_attention_heads"])
    for kv, value_bytes in (("bf16", 2), ("f32", 4)):
        said = lorad("check", "--plan", DEMO / "base", "--set", f"engine.kv_type={kv}", "--set", "engine.kv_memory=64MiB")
        assert f"KV           {token * value_bytes / 1024:.1f} KiB of a token ({kv})" in said and "fits\n" in said, said
        n_fit = (64 << 20) // (token * value_bytes) // m["max_position_embeddings"]
        for n in (1, 4, 16, 64, 256):
            line = next(t for t in said.splitlines() if t.startswith(f"{n:6} requests"))
            assert ("do not fit" in line) == (n > n_fit), (n_fit, line)
    assert "does not fit; lower engine.kv_memory" in lorad("check", "--plan", DEMO / "base", "--set", "engine.kv_memory=1024GiB", expect=1)
    assert "/nonexistent: No such file or directory" in lorad("check", "--plan", "/nonexistent", expect=1)
    for wrong in (DEMO / "adapters", DEMO / "train.py"):
        assert f"{wrong} has no config.json: a model is a folder that transformers saved, or a GGUF" in lorad("check", "--plan", wrong, expect=1)
    assert "unknown argument" in lorad("serve", "--plan", DEMO / "base", expect=2)


def test_init_fills_the_packages_configuration():
    """As after apt: root's file names no model yet, the data directory is another user's."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        conf, data = pathlib.Path(folder, "lorad.conf"), pathlib.Path(folder, "data")
        before = (ROOT / "conf/lorad.conf").read_text().replace("\ndir = /var/lib/lorad\n", f"\ndir = {data}\n")
        conf.write_text("# ours\n" + before)
        conf.chmod(0o640)
        data.mkdir(mode=0o700)
        owner = 65534 if os.geteuid() == 0 else os.geteuid()
        os.chown(data, owner, -1)
        model = shutil.copytree(DEMO / "base", f"{folder}/model")
        assert "sources.hub" in lorad("init", "-c", conf, "--model", "meta-llama/Llama-3.2-1B", expect=1)
        assert "--dir" in lorad("init", "-c", conf, "--model", model, "--set", "server.node=1", expect=1)
        assert conf.read_text() == "# ours\n" + before and not any(data.iterdir()) and not pathlib.Path(f"{conf}.new").exists()
        said = lorad("init", "-c", conf, "--model", model)
        assert "lk_" in said and "systemctl enable --now lorad" in said, said
        assert conf.read_text() == "# ours\n" + before.replace("\npath = \n", f"\npath = {model}\n", 1), "one line is another"
        assert conf.stat().st_mode & 0o777 == 0o640 and conf.stat().st_uid == os.geteuid()
        made = [data, *data.rglob("*")]
        assert {p.name for p in made} >= {"lorad.db", "key.pem", "cert.pem"} and {p.stat().st_uid for p in made} == {owner}, made
        assert "has a model already" in lorad("init", "-c", conf, "--model", model, expect=1)


def test_check_reads_the_files_of_secrets():
    """What serve would refuse, with its sentence; a server may run beside it."""
    with Server() as s:
        def check(text, option, **more):
            path = s.dir / "secret"
            path.write_text(text)
            path.chmod(0o600)
            sets = {option: path, **{k.replace("__", "."): v for k, v in more.items()}}
            done = subprocess.run([LORAD, "check", "-c", s.dir / "lorad.conf", *(w for k, v in sets.items() for w in ("--set", f"{k}={v}"))],
                                  capture_output=True, text=True)
            return done.returncode, done.stderr
        hooks, traces = {"webhooks__url": "https://localhost:1/x"}, {"traces__endpoint": "https://localhost:1/x"}
        assert check("a" * 24, "webhooks.secret_file", **hooks)[0] == check("A: b", "traces.headers", **traces)[0] == check("ab" * 32, "responses.key_file")[0] == 0
        for args, more, says in ((("whsec_YWJj", "webhooks.secret_file"), hooks, "webhooks.secret_file must hold one line"),
                                 (("a" * 24, "webhooks.secret_file"), {"webhooks__url": "ftp://x"}, "webhooks.url must be"),
                                 (("no header", "traces.headers"), traces, "traces.headers: line 1"), (("short", "responses.key_file"), {}, "responses.key_file: ")):
            code, said = check(*args, **more)
            assert code == 1 and says in said, (args, said)


class Dev:
    """lorad serve --dev until the end of the block; what it printed, as words by line."""

    def __init__(self, folder, *args):
        self.port, *others = (free_port() for _ in range(3))
        self.out = pathlib.Path(folder, "out")
        sets = zip(("server", "admin", "metrics"), (self.port, *others))
        self.argv = [LORAD, "serve", "--dev", *args, *(w for part, port in sets for w in ("--set", f"{part}.listen=127.0.0.1:{port}"))]
        self.env = {**os.environ, "TMPDIR": str(folder)}

    def __enter__(self):
        self.process = subprocess.Popen(self.argv, stdout=self.out.open("w"), stderr=subprocess.STDOUT, env=self.env)
        until(lambda: "gateway: serving base on" in self.out.read_text() or self.process.poll() is not None)
        self.said = self.out.read_text()
        assert self.process.poll() is None, self.said
        return self

    def __exit__(self, *exc):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60 * PATIENCE) == 0, self.out.read_text()


def curl(command):
    """The first line that serve --dev says to try, as a shell runs it."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    return json.loads(done.stdout)


def test_from_nothing_to_an_answer():
    """serve --dev: one command, then the request that it prints; nothing stays, unless a folder is given."""
    with tempfile.TemporaryDirectory() as folder:
        with Dev(folder, "--model", DEMO / "base") as dev:
            made = re.search(r"^data +(\S+) \(removed", dev.said, re.M)[1]
            command = dev.said.split("try ")[1].split("\n2")[0]
            assert curl(command)["choices"][0]["message"]["content"], dev.said
            assert made.startswith(folder) and os.stat(made).st_mode & 0o777 == 0o700
            key = re.search(r"^API key +(\S+)", dev.said, re.M)[1]
            assert curl(command.replace(key, key[:-1]))["error"]["code"] == "invalid_api_key"
            # The tutorial's next three: the variables, the adapter, a question to it.
            exports = re.search(r"^loractl +(export LORAD_URL=.*)$", dev.said, re.M)[1]
            done = subprocess.run(["sh", "-ec", f"{exports}; loractl adapter push {DEMO}/adapters/pirate; loractl chat pirate 'What is 7 plus 5?'; loractl tenant list"],
                                  capture_output=True, text=True, env={**os.environ, "PATH": f"{LORAD.parent}:{os.environ['PATH']}", "HOME": "/nonexistent"})
            assert done.returncode == 0 and "Arr! 7 plus 5 be 12, matey!" in done.stdout, done
        assert os.listdir(folder) == ["out"]

        kept = f"{folder}/kept"
        with Dev(folder, "--model", DEMO / "base", "--dir", kept) as dev:
            command, port = dev.said.split("try ")[1].split("\n2")[0], dev.port
        with Dev(folder, "--dir", kept) as dev:
            assert "API key" not in dev.said, dev.said
            assert curl(command.replace(f":{port}/", f":{dev.port}/"))["choices"], command
        assert "change model.path there" in lorad("serve", "--dev", "--dir", kept, "--model", DEMO / "base", expect=1)
        assert "needs --model" in lorad("serve", "--dev", "--dir", f"{folder}/none", expect=1)
        assert "not -c" in lorad("serve", "--dev", "-c", f"{kept}/lorad.conf", expect=2)
        assert "serve --dev" in lorad("serve", "--model", DEMO / "base", expect=2)
        assert "unknown argument" in lorad("check", "--dev", expect=2)
        assert "sources.hub" in lorad("serve", "--dev", "--dir", f"{folder}/none", "--model", "my/model", expect=1)


def test_the_way_back_in():
    """Another admin key while no server runs; the certificate of init anew, under a server that runs."""
    with Server() as s:
        conf, cert, key = (s.dir / p for p in ("lorad.conf", "tls/cert.pem", "tls/key.pem"))
        said = lorad("key", "--admin", "-c", conf, expect=1)
        assert "stop it first" in said, said
        command = s.process.args
        s.stop()
        with socket.create_server(("127.0.0.1", s.admin_port)):
            taken = subprocess.run(command, capture_output=True, text=True, timeout=60 * PATIENCE)
        said = taken.stderr
        assert taken.returncode == 1, taken
        assert f"admin.listen: can't listen on 127.0.0.1:{s.admin_port}: Address already in use ('ss -ltnp' shows by whom)" in said, said
        said = lorad("key", "--admin", "-c", conf)
        s.admin_key = re.search(r"lk_\S+", said)[0]
        (s.dir / "admin.key").write_text(s.admin_key)
        s.start()
        made = [r["detail"] for r in s.admin("GET", "/audit")["data"] if r["action"] == "key.create"]
        assert '{"by":"lorad key"}' in made and '{"by":"lorad init"}' in made, made

        before, secret = cert.read_text(), key.read_text()
        assert "397 days" in lorad("cert", "-c", conf)
        assert cert.read_text() != before and key.read_text() == secret
        s.process.send_signal(signal.SIGHUP)
        until(lambda: "reloaded: the certificate" in s.log_path.read_text())
        assert s.admin("GET", "/tenants")["data"] == []  # the new file is trusted: it is what is shown
        shown = ssl.get_server_certificate(("127.0.0.1", s.admin_port)).strip()
        assert cert.read_text().startswith(shown) and shown not in before
        old = pathlib.Path(s.dir) / "old.pem"
        old.write_text(before)
        assert subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", old, cert], capture_output=True).returncode == 0

        # that of 0.1, which showed what signed it: who trusts it still trusts the server
        subprocess.run(["openssl", "req", "-x509", "-key", key, "-out", old, "-subj", "/CN=lorad development", "-days", "100", "-addext",
                        "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
        cert.write_text(old.read_text())
        assert "397 days" in lorad("cert", "-c", conf)
        assert subprocess.run(["openssl", "verify", "-CAfile", old, cert], capture_output=True).returncode == 0
        # loractl trusts the new file while the server shows the old certificate: its authority signed both
        s.process.send_signal(signal.SIGHUP)
        until(lambda: s.log_path.read_text().count("reloaded: the certificate") == 2)
        assert "397 days" in lorad("cert", "-c", conf)
        s.admin("POST", "/reload")
        until(lambda: ssl.get_server_certificate(("127.0.0.1", s.admin_port)).strip() in cert.read_text())
        assert s.admin("GET", "/tenants")["data"] == []
        ours = cert.read_text()
        subprocess.run(["openssl", "req", "-x509", "-key", key, "-out", cert, "-subj", "/CN=example.org"], check=True, capture_output=True)
        theirs = cert.read_text()
        assert "renew it where it comes from" in lorad("cert", "-c", conf, expect=1) and cert.read_text() == theirs
        cert.write_text(ours)
        subprocess.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key], check=True,
                       capture_output=True)
        assert "is not the key of" in lorad("cert", "-c", conf, expect=1) and cert.read_text() == ours


def test_a_context_below_the_models():
    """The log says why, and the model's card what is left; the model's own length needs no line."""
    own = json.loads((DEMO / "base/config.json").read_text())["max_position_embeddings"]
    for most, line in ((512, f"max_model_len is 512 by engine.max_context; the model in '{DEMO / 'base'}' has {own}"), (own, None)):
        with Server(settings={"engine.max_context": most}) as s:
            assert s.call("GET", "/v1/models/base", key=s.tenant("acme")).json["max_model_len"] == most
            log = s.log_path.read_text()
            assert line in log if line else "engine.max_context" not in log, log


def test_stop_lets_answers_end():
    """Computed whole, but more than the sockets hold, and the client has not read a byte at SIGTERM."""
    with Server() as s:
        key = s.tenant("acme")
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(("127.0.0.1", s.port))
        line = s.connect()
        line.sock = s.tls().wrap_socket(plain, server_hostname="localhost")
        line.request("POST", "/v1/completions",
                     '{"model":"base","prompt":"Once","max_tokens":900,"ignore_eos":true,"n":8,"logprobs":20}',
                     {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        until(lambda: s.metrics()["lorad_requests_running"] > 0)
        until(lambda: s.metrics()["lorad_requests_running"] == 0)
        s.process.send_signal(signal.SIGTERM)
        until(lambda: "draining" in s.log_path.read_text())
        time.sleep(0.6)  # the server used to wait 0.2 s here, whatever was still to be written
        answer = json.loads(line.getresponse().read())
        assert [len(c["logprobs"]["tokens"]) for c in answer["choices"]] == [900] * 8
        assert s.stop() == 0


if __name__ == "__main__":
    run([test_init_says_what_is_missing, test_check_reads_the_files_of_secrets, test_a_plan_without_a_configuration, test_init_fills_the_packages_configuration, test_from_nothing_to_an_answer, test_the_way_back_in, test_ready_reloading_watchdog_stopping, test_abstract_socket_and_somebody_elses_watchdog,
         test_no_ready_without_a_start, test_unit_file, test_manual, test_backup_of_what_a_crash_left,
         test_a_context_below_the_models, test_stop_lets_answers_end])
