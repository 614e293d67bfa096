"""loratop in a real terminal (tmux) against real servers under load: keys go in, screens come out."""
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import threading
import time

from harness import BUILD, DEMO, PATIENCE, Server, demo_adapters, run

s = None
keys = {}
dirs = []
SCREENS = ["Overview", "Tenants", "Adapters", "Requests", "Engine", "Slo", "Events"]
# what stands on each screen whatever happens
MARKS = ["Tokens out/s", "TENANT", "ADAPTER", "REQUEST", "Step time", "TTFT", "EVENT"]


class Term:
    """loratop in a terminal of its own."""
    count = 0

    def __init__(self, *args, cols=120, rows=40, env=None, server=None, term="tmux-256color", read_last=False):
        """`read_last`: the terminal stays until a key, for tmux may forget what was written just before an end."""
        Term.count += 1
        self.sock = f"loratop-{os.getpid()}-{Term.count}"
        self.config = tempfile.mkdtemp(prefix="loratop-")
        dirs.append(self.config)
        real = {"LORAD_ADMIN_URL": f"https://localhost:{(server or s).admin_port}",
                "LORAD_ADMIN_KEY": (server or s).admin_key, "LORAD_CA": (server or s).ca,
                "XDG_CONFIG_HOME": self.config, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "XYZ-9", **(env or {})}
        conf = pathlib.Path(self.config, "tmux.conf")
        conf.write_text(f"set -g default-terminal {term}\nset -g status off\nset -g remain-on-exit on\n"
                        "set -s escape-time 0\n")
        script = pathlib.Path(self.config, "run.sh")
        lines = [f"export {k}='{v}'" for k, v in real.items() if v is not None]
        lines += [f"unset {k}" for k, v in real.items() if v is None]
        command = " ".join(f"'{a}'" for a in [BUILD / "loratop", *args])
        script.write_text("\n".join(lines) + (f"\n{command}\nread -r key\n" if read_last else f"\nexec {command}\n"))
        # tmux itself takes a UTF-8 locale, whatever the program inside has
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TMUX") and k != "NO_COLOR"}
        self.tmux_env = {**clean, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
        self.tmux("-f", str(conf), "new-session", "-d", "-x", str(cols), "-y", str(rows),
                  f"sh {script}")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if exc[0]:
            print(self.screen())
        self.tmux("kill-server", check=False)

    def tmux(self, *args, check=True):
        r = subprocess.run(["tmux", "-L", self.sock, *args], env=self.tmux_env, capture_output=True,
                           text=True)
        if check and r.returncode:
            raise AssertionError(f"tmux {args}: {r.stderr}")
        return r.stdout

    def screen(self, colours=False):
        return self.tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def lines(self):
        return self.screen().split("\n")

    def key(self, *names):
        self.tmux("send-keys", *names)

    def type(self, text):
        self.tmux("send-keys", "-l", text)

    def click(self, row, col):
        """As terminals send it: the press, and later, read apart from it, the release."""
        at = chr(33 + col) + chr(33 + row)
        self.type("\x1b[M" + chr(32) + at)
        self.wait_drawn()
        self.type("\x1b[M" + chr(35) + at)

    def wait_drawn(self):
        """Until the clock in the first line has moved: the program reads, and draws by itself."""
        before = self.lines()[0]
        self.wait(lambda x: x.split("\n")[0] != before)

    def wait(self, what, seconds=60, colours=False):
        """Until a text, or a predicate of the screen, holds; returns the screen."""
        end = time.monotonic() + seconds * PATIENCE
        while True:
            now = self.screen(colours)
            if what(now) if callable(what) else what in now:
                return now
            if time.monotonic() > end:
                raise AssertionError(f"waited for {what}; the screen:\n{now}")
            time.sleep(0.05)

    def wait_end(self, seconds=60):
        end = time.monotonic() + seconds * PATIENCE
        while self.tmux("display-message", "-p", "#{pane_dead}").strip() != "1":
            assert time.monotonic() < end, self.screen()
            time.sleep(0.05)

    def resize(self, cols, rows):
        self.tmux("resize-window", "-x", str(cols), "-y", str(rows))


class Load:
    """Requests of both tenants, on and on."""

    def __enter__(self):
        self.stop = False
        names = demo_adapters()
        self.threads = [threading.Thread(target=self.ask, args=("acme", m)) for m in names[:3]]
        self.threads.append(threading.Thread(target=self.ask, args=("globex", "base")))
        for t in self.threads:
            t.start()
        return self

    def ask(self, tenant, model):
        while not self.stop:
            s.ask(keys[tenant], model, "Tell me a long story.", max_tokens=150, ignore_eos=True)

    def __exit__(self, *exc):
        self.stop = True
        for t in self.threads:
            t.join()


def first_words(text):
    """The first column of a table; adapters have a line in words above it."""
    lines = text.split("\n")
    top = 4 if "loads/s" in lines[2] else 3
    return [line.split()[0] for line in lines[top:-3] if line.strip()]


def tabs_are_whole(text):
    assert "1 Overview" in text.split("\n")[1] and "7 Events" in text.split("\n")[1], text


# ---------------------------------------------------------------------------- tests

def test_every_screen_in_every_size():
    with Load():
        for cols, rows in ((80, 24), (120, 40), (200, 60)):
            with Term(cols=cols, rows=rows) as t:
                t.wait("ready")
                for i, mark in enumerate(MARKS):
                    t.key(str(i + 1))
                    text = t.wait(lambda x, m=mark: m in "\n".join(x.split("\n")[2:]) and "F10Quit" in x)
                    tabs_are_whole(text)
                    lines = text.rstrip("\n").split("\n")
                    assert len(lines) == rows and max(map(len, lines)) <= cols, (len(lines), rows)
                    assert "F1Help" in lines[-1] and "F10Quit" in lines[-1], lines[-1]
                    assert lines[0].startswith("loratop localhost:")


def test_what_is_shown_is_what_the_api_says():
    for name in demo_adapters():
        r = s.ask(keys["acme"], name, "hi", max_tokens=1)
        assert r.status == 200, r
    with Term(cols=200, rows=60) as t:
        t.wait("ready")
        t.key("3")
        api = {a["name"]: a for a in s.stats()["adapters"]}
        text = t.wait(lambda x: all(n in x for n in demo_adapters()))
        for line in text.split("\n")[4:4 + len(api)]:
            w = line.split()
            a = api[w[0]]
            assert w[1] == "acme" and w[2] == str(a["version"]) and w[3] == a["tier"], (line, a)
            assert w[4] == str(a["rank"]), (line, a)
            assert str(a["hits"]) in w, (line, a)
        t.key("2")
        tenants = {x["name"]: x for x in s.stats()["tenants"]}
        text = t.wait("QUEUE")  # the heading of the tenants alone
        row = next(x for x in text.split("\n") if x.startswith("acme")).split()
        assert row[1] == "active" and "9000" in row, (row, tenants["acme"])
        t.key("7")
        t.wait(lambda x: "EVENT" in x and "adapter.publish" in x and "tenant.create" in x)


def test_what_has_ended():
    r = s.ask(keys["acme"], "pirate", "hi", max_tokens=3)
    assert r.status == 200, r
    with Term(cols=200, rows=40) as t:
        t.wait("ready")
        t.key("4", "e")
        newest = s.admin("GET", "/requests?state=ended&limit=1")["data"][0]
        t.wait(lambda x: "MISSED" in x and newest["request_id"] in x)
    shown = subprocess.run([BUILD / "loratop", "--once", "-s", "ended", "--width", "200"], capture_output=True, text=True, check=True,
                           env={**os.environ, "LORAD_ADMIN_URL": f"https://localhost:{s.admin_port}", "LORAD_CA": s.ca,
                                "LORAD_ADMIN_KEY": s.admin_key}).stdout
    row = next(line for line in shown.split("\n") if newest["request_id"] in line)
    assert newest["model"] in row and newest["tenant"] in row, row


def test_requests_are_those_of_the_api():
    with Load(), Term(cols=160, rows=30) as t:
        t.wait("ready")
        t.key("4")
        t.type("p")  # a moment held still
        text = t.wait(lambda x: "PAUSED" in x and "standard" in x or "none" in x)
        while "standard" not in text:
            t.type("p")
            t.wait(lambda x: "PAUSED" not in x)
            t.wait("standard")
            t.type("p")
            text = t.wait("PAUSED")
        ids = [w for w in first_words(text) if w.isdigit()]
        assert 1 <= len(ids) <= 4 and len(set(ids)) == len(ids), text
        assert "acme" in text or "globex" in text
        frozen = first_words(text)
        assert first_words(t.screen()) == frozen
        t.type("p")
        t.wait(lambda x: "PAUSED" not in x and not set(ids) & set(first_words(x)))


def test_keys_do_what_the_help_says():
    with Term(cols=120, rows=30) as t:
        t.wait("ready")
        t.key("Tab")
        t.wait("TENANT ")
        t.key("BTab")
        t.wait("Tokens out/s")
        t.key("F1")
        t.wait("Help (any key closes)")
        t.key("x")
        t.wait(lambda x: "any key closes" not in x)
        t.key("3")
        t.wait("pirate")
        t.type("<" * 17)  # from USED to the name
        t.wait(lambda x: first_words(x) == sorted(demo_adapters()))
        t.type("I")
        t.wait(lambda x: first_words(x) == sorted(demo_adapters(), reverse=True))
        t.key("F6")
        t.wait("Sort by")
        t.key("Escape")
        t.wait(lambda x: "Sort by" not in x)
        t.key("\\")
        t.wait("Filter:")
        t.type("sh")
        t.key("Enter")
        t.wait(lambda x: first_words(x) == [n for n in sorted(demo_adapters(), reverse=True)
                                            if "sh" in n])
        t.key("F4")
        t.wait("Filter: sh_")
        t.key("Escape")
        t.wait(lambda x: len(first_words(x)) == len(demo_adapters()))
        t.key("/")
        t.wait("Search:")
        t.type("json")
        t.key("Enter", "Enter")
        text = t.wait("Details")
        assert re.search(r"name +json", text), text
        t.key("q")
        t.key("F5")
        t.wait(f"acme ({len(demo_adapters())})")
        t.key("t")
        t.wait(lambda x: "acme (" not in x)
        t.click(1, 16)  # the second tab
        t.wait("TENANT ")
        t.wait_drawn()
        t.type("+")
        t.wait("every 2.0 s")
        t.key("F7")
        t.wait("every 1.0 s")
        t.key("5")
        t.wait("Step time")
        t.key("F10")
        t.wait_end()
        saved = pathlib.Path(t.config, "lorad/loratop.conf").read_text()
        assert "screen = engine" in saved and "adapters.sort = ADAPTER" in saved, saved


def test_settings_are_remembered():
    with Term() as t:
        t.wait("ready")
        t.key("6")
        t.wait("10 s a point")
        t.type("q")
        t.wait_end()
        with Term(env={"XDG_CONFIG_HOME": t.config}) as again:
            again.wait("10 s a point")


def colours_of(text):
    return re.findall(r"\x1b\[([0-9;:]*)m", text)


def has_colour(sgr):
    return any(re.fullmatch(r"3[0-8]|4[0-8]|9[0-7]|10[0-7]", p) for x in sgr for p in re.split("[;:]", x))


def test_colours_follow_the_terminal():
    with Term() as t:
        t.wait("ready")
        assert any(x.startswith("38;5") or ";38;5" in x for x in colours_of(t.screen(True)))
    with Term(env={"NO_COLOR": "1"}) as t:
        t.wait("ready")
        sgr = colours_of(t.screen(True))
        assert sgr and not has_colour(sgr), sgr
    with Load(), Term(env={"TERM": "linux"}) as t:
        t.wait("ready")
        sgr = colours_of(t.screen(True))
        assert has_colour(sgr) and not any("38;5" in x for x in sgr), sgr
        text = t.wait(lambda x: re.search("[\u2580-\u259f]", x))  # consoles' fonts have no braille
        assert not re.search("[\u2800-\u28ff]", text), text
        t.key("4")
        t.wait("REQUEST")
    with Term(env={"TERM": "dumb"}, read_last=True) as t:
        t.wait("try --once")
        t.key("Enter")
        t.wait_end()
    with Term(env={"TERM": "vt100"}) as t:
        t.wait("ready")
        assert not has_colour(colours_of(t.screen(True)))


def test_plain_ascii_where_there_is_no_utf8():
    with Load(), Term(env={"LANG": "C", "LC_ALL": "C"}, cols=100, rows=30) as t:
        t.wait("ready")
        for i, mark in enumerate(MARKS):
            t.key(str(i + 1))
            text = t.wait(lambda x, m=mark: m in "\n".join(x.split("\n")[2:]))
            assert text.isascii(), text


def test_a_storm_of_sizes():
    random.seed(7)
    with Term(cols=120, rows=40) as t:
        t.wait("ready")
        for i in range(60):
            t.resize(random.randint(1, 220), random.randint(1, 70))
            t.key(str(i % 7 + 1))
        t.resize(90, 25)
        t.key("3")
        text = t.wait(lambda x: "ADAPTER" in x and "pirate" in x and "F10Quit" in x.split("\n")[24])
        tabs_are_whole(text)


def test_names_cannot_disturb_the_screen():
    evil = ["\x1b[2J\x1b[Hgone", "a\u0300\u0301\u0302" * 8, "\u202eevil\u202c", "\u05e9\u05dc\u05d5\u05dd",
            "\u540d\u524d" * 20, "tab\there\nand\rthere", "\U0001f600" * 9, "\u200b\u200f\ufeff", "x" * 60,
            "\u009b31m", "%s%n%s"]
    picture = s.stats()
    for i, name in enumerate(evil):
        picture["adapters"].append({"id": str(900 + i), "tenant": name, "name": name, "tier": name[:19],
                                    "hits": 5, "last_used_s": 1 << 40})
        picture["tenants"].append({"id": str(800 + i), "name": name, "state": name[:10]})
        picture["events"].append({"id": str(10**6 + i), "kind": name, "object": name, "detail": name,
                                  "time_us": 1})
        picture["requests"].append({"id": str(700 + i), "tenant": name, "adapter": name, "state": "decode"})
    picture["server"]["model"] = evil[0]
    folder = tempfile.mkdtemp(prefix="loratop-")
    dirs.append(folder)
    path = pathlib.Path(folder, "evil.jsonl")
    path.write_text(json.dumps({"at_us": 1, "server": evil[0], "stats": picture}) + "\n")
    for cols, rows in ((80, 24), (200, 50)):
        with Term("--replay", str(path), cols=cols, rows=rows) as t:
            t.wait("REPLAY")
            for i, mark in enumerate(MARKS):
                t.key(str(i + 1))
                text = t.wait(lambda x, m=mark: m in "\n".join(x.split("\n")[2:]) and "F10Quit" in x)
                tabs_are_whole(text)
                lines = text.rstrip("\n").split("\n")
                assert len(lines) == rows and "F10Quit" in lines[-1], text
                assert lines[0].startswith("loratop ?[2J?[Hgone") and "REPLAY" in lines[0], lines[0]
                for bad in "\u0300\u202e\u05e9\u200b\U0001f600\u009b\t":
                    assert bad not in text, (bad, text)
            t.key("3", "Enter")
            t.wait("Details")
            t.key("x")


def today_of(text, tenant):
    """Its cell under TODAY; both are right-aligned."""
    lines = text.split("\n")
    end = next(x.index("TODAY") for x in lines if "TODAY" in x) + 5
    return next(x for x in lines if x.startswith(tenant + " "))[:end].split()[-1]


def test_the_server_goes_and_comes_back():
    with Server() as other:
        r = other.ask(other.tenant("early"), "base", "hi", max_tokens=3)
        spent = str(r.json["usage"]["total_tokens"])
        other.booked()
        with Term(server=other, cols=100, rows=30) as t:
            t.wait("ready")
            other.stop(signal.SIGKILL)
            text = t.wait("data is ")
            assert "GONE" in text and "Tokens out/s" in text, text
            t.key("7")
            t.wait("EVENT")  # it can still be looked at
            # It comes back with another certificate, in the file that loratop trusts.
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", other.dir / "tls/key.pem", "-out", other.ca, "-subj",
                            "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
            other.start()
            t.wait(lambda x: "ready" in x.split("\n")[0] and "data is" not in x)
            other.tenant("newcomer")
            t.key("2")
            text = t.wait("newcomer")
            assert today_of(text, "early") == spent, text
            t.key("1")
            text = t.wait(lambda x: "newcomer" in x and "Tokens out/s" in x)
            assert today_of(text, "early") == spent, text


def test_several_servers():
    with Server() as other:
        folder = tempfile.mkdtemp(prefix="loratop-")
        dirs.append(folder)
        path = pathlib.Path(folder, "contexts.conf")
        path.write_text("".join(
            f"[{name}]\nadmin_url = https://localhost:{x.admin_port}\nadmin_key = {x.admin_key}\n"
            f"ca = {x.ca}\n" for name, x in (("east", s), ("west", other))))
        path.chmod(0o600)
        env = {"LORAD_CLIENT_CONFIG": str(path), "LORAD_ADMIN_URL": None, "LORAD_ADMIN_KEY": None,
               "LORAD_CA": None}
        with Term("-c", "east", "-c", "west", env=env, cols=120, rows=30) as t:
            t.wait("loratop east")
            t.key("0")
            t.wait(lambda x: re.search(r"east +ready", x) and re.search(r"west +ready", x))
            other.stop()
            t.wait(lambda x: re.search(r"east +ready", x) and re.search(r"west +GONE", x) and "all: 1 of 2 answer" in x)
            once = subprocess.run([BUILD / "loratop", "-c", "east", "-c", "west", "--once", "--screen", "servers"], text=True,
                                  capture_output=True, env={"PATH": os.environ["PATH"], "LORAD_CLIENT_CONFIG": str(path)})
            assert once.returncode == 0 and "all: 1 of 2 answer" in once.stdout and "GONE" in once.stdout, once
            other.start()
            t.wait(lambda x: re.search(r"west +ready", x))
            t.key("Down", "Enter")
            t.wait("loratop west")


def test_actions_ask_and_are_audited():
    with Term(cols=120, rows=30) as t:
        t.wait("ready")
        t.key("3")
        t.wait("pirate")
        t.type("/pirate\n")
        t.type("ap")
        t.wait("pin: keep in memory: pirate? (y/n)")
        t.type("n")
        t.wait("nothing was done")
        t.type("apy")
        t.wait("device*")
        assert s.call("GET", "/v1/adapters/pirate", key=keys["acme"]).json["pinned"]
        t.type("auy")
        t.wait(lambda x: "device*" not in x)
        t.type("aey")
        t.wait("evict acme/pirate: done")
        t.wait(lambda x: re.search(r"pirate .*(disk|host)", x))
        t.key("2")
        t.wait("globex")
        t.type("/globex\n")
        t.type("asy")
        t.wait(lambda x: re.search(r"globex +disabled", x))
        assert s.ask(keys["globex"], "base", "hi").status in (401, 403)
        t.type("ary")
        t.wait(lambda x: re.search(r"globex +active", x))
        t.type("am77\n")
        t.wait("set requests_per_minute to 77: globex? (y/n)")
        t.type("y")
        t.wait("set the limit of globex: done")
        assert s.admin("GET", "/tenants/globex")["limits"]["requests_per_minute"] == 77
        t.type("acc")  # the third class
        t.wait("? (y/n)")
        t.type("y")
        t.wait("set the class of globex: done")
        assert s.admin("GET", "/tenants/globex")["default_class"] == "batch"
        spare = s.key("globex")
        t.type("ak")
        text = t.wait("Revoke which key")
        rows = [x for x in text.split("\n") if re.search(r"[|\u2502] +[a-z]  ", x)]
        assert rows, text
        n = len(rows)
        t.type("abcdefgh"[n - 1])  # the newest one
        t.wait("? (y/n)")
        t.type("y")
        t.wait("revoke the key: done")
        live = [k for k in s.admin("GET", "/keys?tenant=globex")["data"] if not k["revoked"]]
        assert len(live) == n - 1, live
        keys["globex"] = s.key("globex")
        t.key("7")
        t.wait("key.revoke")
    done = {a["action"] for a in s.admin("GET", "/audit")["data"]}
    assert {"adapter.pin", "adapter.unpin", "adapter.evict", "tenant.update", "key.revoke"} <= done, done
    assert spare


def test_a_request_is_cancelled():
    stop, status = [], []

    def long():
        while not stop:
            status.append(s.ask(keys["acme"], "pirate", "Tell me a long story.", max_tokens=900,
                                ignore_eos=True).status)

    def cancels():
        return [a for a in s.admin("GET", "/audit")["data"] if a["action"] == "request.cancel"]

    with Term("-i", "0.2", cols=120, rows=30) as t:
        t.wait("ready")
        t.key("4")
        t.wait("none")
        threads = [threading.Thread(target=long) for _ in range(3)]
        for x in threads:
            x.start()
        try:
            while not cancels():  # the one that is chosen may end just then
                t.wait("pirate@1")
                t.type("acy")
                t.wait(lambda x: re.search(r"cancel \d+: |nothing|What to do", x))
                t.key("Escape")
        finally:
            stop.append(1)
            for x in threads:
                x.join()
        t.wait("none")
    assert any(x != 200 for x in status), status


def test_a_key_that_may_only_look():
    made = s.admin("POST", "/keys", {"name": "eyes", "scopes": ["admin.read"]})
    with Term(env={"LORAD_ADMIN_KEY": made["key"]}) as t:
        t.wait("ready")
        t.key("2")
        t.wait("acme")
        t.type("a")
        t.wait("this key may only look")
    r = s.call("PATCH", "/admin/v1/tenants/acme", {"weight": 3}, key=made["key"], port=s.admin_port)
    assert r.status == 403, r


def plain(*args, **env):
    real = {**os.environ, "LORAD_ADMIN_URL": f"https://localhost:{s.admin_port}",
            "LORAD_ADMIN_KEY": s.admin_key, "LORAD_CA": s.ca, "LC_ALL": "C.UTF-8",
            "XDG_CONFIG_HOME": dirs[0] if dirs else "/nonexistent", **env}
    return subprocess.run([BUILD / "loratop", *args], env=real, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)


def test_without_a_terminal():
    r = plain("--once", "-s", "adapters", "--width", "120")
    assert r.returncode == 0 and all(n in r.stdout for n in demo_adapters()), r
    r = plain("--once", "--json")
    a = json.loads(r.stdout)
    assert a["reset"] and {x["name"] for x in a["adapters"]} == set(demo_adapters())
    r = plain("--csv", "--frames", "3", "-i", "0.2")
    rows = [x.split(",") for x in r.stdout.splitlines()]
    assert len(rows) == 4 and len({len(x) for x in rows}) == 1, r.stdout
    assert rows[0][0] == "time" and float(rows[3][0]) > float(rows[1][0])
    assert rows[1][rows[0].index("adapters_registered")] == str(len(demo_adapters()))
    r = plain()
    assert r.returncode == 1 and "--once" in r.stderr, r
    r = plain("--once", LORAD_ADMIN_KEY="lk_wrong")
    assert r.returncode == 1 and "key" in r.stderr.lower(), r
    r = plain("--once", LORAD_ADMIN_URL="https://localhost:1")
    assert r.returncode == 1 and r.stderr.startswith("loratop: localhost:1:"), r
    for wrong, said in ((("--frames", "x"), "'x' does not fit --frames: "), (("-s", "overvew"), "'overvew' does not fit --screen: overview, "),
                        (("what",), "what")):
        r = plain(*wrong)
        assert r.returncode == 2 and said in r.stderr, r
    assert plain("--help").returncode == 0


def test_record_and_replay():
    folder = tempfile.mkdtemp(prefix="loratop-")
    dirs.append(folder)
    path = pathlib.Path(folder, "incident.jsonl")
    with Load():
        assert plain("--csv", "--record", str(path), "--frames", "20", "-i", "0.1").returncode == 0
    assert len(path.read_text().splitlines()) == 20
    once = plain("--once", "--replay", str(path), "-s", "tenants")
    assert "acme" in once.stdout and once.returncode == 0, once
    csv = plain("--csv", "--replay", str(path), "--speed", "0")
    assert len(csv.stdout.splitlines()) == 21, csv
    with Term("--replay", str(path), "--speed", "4") as t:
        assert "GPU UNUSED" not in t.wait("REPLAY")
        t.key("2")
        t.wait("acme")
        t.type("a")
        t.wait("this is a replay")
    frames = [json.loads(line) for line in path.read_text().splitlines()]
    for f in frames:
        f["stats"]["server"]["now_us"] = 1_000_000_000_000_000  # 01:46:40 UTC, of 2001
        f["stats"]["server"]["gpu_unused"] = "the CPU serves and an NVIDIA GPU is unused: no driver"
    unused = pathlib.Path(folder, "unused.jsonl")
    unused.write_text("".join(json.dumps(f) + "\n" for f in frames))
    with Term("--replay", str(unused), cols=160) as t:
        t.wait(lambda x: "GPU UNUSED: see /readyz" in x.split("\n")[0] and "01:46:40Z" in x.split("\n")[0])
    path.write_text(path.read_text()[:-200])  # cut in the middle: the rest still plays
    r = plain("--csv", "--replay", str(path), "--speed", "0")
    assert len(r.stdout.splitlines()) == 20, r
    path.write_text("{}\n")
    assert plain("--once", "--replay", str(path)).returncode == 1


def test_fifty_refreshes_of_every_screen():
    """With keys of all kinds in between; AddressSanitizer watches in its preset."""
    folder = tempfile.mkdtemp(prefix="loratop-")
    dirs.append(folder)
    path = pathlib.Path(folder, "r.jsonl")
    with Load():
        assert plain("--csv", "--record", str(path), "--frames", "10", "-i", "0.1").returncode == 0
    for args in (("-w", "80", "-h", "24"), ("-w", "220", "-h", "60"), ("-a",)):
        r = subprocess.run([BUILD / "bench_view", *args, "50", path], env={**os.environ, "LC_ALL": "C.UTF-8"},
                           capture_output=True, text=True)
        assert r.returncode == 0 and json.loads(r.stdout)["draws"] == 50 * 9 * 2, r


def test_little_traffic():
    """What an update writes to the terminal when next to nothing changes."""
    with Term("-i", "0.2", cols=120, rows=40) as t:
        t.wait("ready")
        t.key("2")
        t.wait("acme")
        log, began = pathlib.Path(t.config, "out"), time.monotonic()
        t.tmux("pipe-pane", "-O", f"cat >{log}")
        before = s.admin("GET", "/stats")["server"]["uptime_s"]
        while s.admin("GET", "/stats")["server"]["uptime_s"] < before + 4:
            time.sleep(0.2)
        n = log.stat().st_size if log.exists() else 0
        took = time.monotonic() - began
        assert 0 < n < 1500 * took, (n, took)  # five updates a second of a screen of 4800 cells; clocks and ages move


if __name__ == "__main__":
    with Server() as s:
        keys["acme"] = s.tenant("acme", limits={"requests_per_minute": 9000})
        keys["globex"] = s.tenant("globex")
        for each in demo_adapters():
            s.upload(keys["acme"], each, DEMO / "adapters" / each)
        only = os.environ.get("ONLY")
        try:
            run([v for k, v in list(globals().items())
                 if k.startswith("test_") and (not only or re.search(only, k))])
        finally:
            import shutil
            for d in dirs:
                shutil.rmtree(d, ignore_errors=True)
