"""What makes loractl easy: help with examples, what was meant, names for shells, fields, colours, watching, next steps."""
import datetime
import json
import re
import shutil
import signal
import subprocess

import test_loractl as base
from harness import DEMO, PATIENCE, ROOT, Server, run, until
from test_loractl import LORACTL, Liar, ctl, environment, home, lie, on_terminal, parsed

ADAPTERS = DEMO / "adapters"
server = None
key = None


def table_of_commands():
    return re.findall(r"^  ([a-z]+(?: [a-z]+)?)(?= |$)", ctl("--help").split("\noptions of")[0], re.M)


def test_help_has_examples():
    names = table_of_commands()
    assert len(names) > 45, names
    for name in names:
        words = name.split()
        text = ctl("help", *words)
        assert text == ctl(*words, "--help") and text.startswith(f"usage: loractl {name}"), text
        examples = re.findall(r"^  (.*loractl .*)$", text.split("\nexamples:\n")[1].split("\n\n")[0], re.M)
        assert examples and all(f"loractl {name}" in e for e in examples), (name, examples)
        for each in examples:  # what stands there is a command line that would be understood
            said = re.sub(r" *[|<>].*", "", each[each.index("loractl "):]).replace("'", "")
            ctl(*said.split()[1:], "--help")
    assert "adapter rollback NAME" in ctl("help", "adapter") and "tenant list" not in ctl("help", "adapter")
    assert "--watch[=TIME]" in ctl("help", "adapter", "list") and "--watch" not in ctl("help", "adapter", "push")
    assert "did you mean 'adapter show'" in (ctl("help", "adapter", "shwo", expect=2) or ctl.errors)
    man = subprocess.run([LORACTL, "--print-man"], capture_output=True, text=True, check=True).stdout
    assert "loractl adapter rollback support" in man and "\\-\\-watch\\fR[=\\fITIME\\fR]" in man


def test_what_was_meant():
    for typed, meant in ((["tennant", "list"], "tenant list"), (["adaptr"], "adapter"), (["chatt", "base"], "chat"),
                         (["tenant", "lsit"], "tenant list"), (["stats", "--jsno=1"], "--json"),
                         (["models", "--feilds", "id"], "--fields")):
        ctl(*typed, expect=2)
        assert f"did you mean '{meant}'?" in ctl.errors, (typed, ctl.errors)
    for typed in (["frobnicate"], ["zz"], ["stats", "-x"], ["why", "x", "--frob"], ["tenant", "frob"], ["tenant", "x"],
                  ["adapter", "push", "x", "--watch"], ["tenant", "delete", "x", "--fields", "name"]):
        ctl(*typed, expect=2)
        assert "did you mean" not in ctl.errors, (typed, ctl.errors)


def complete(*words, **env):
    script = (f"PATH={LORACTL.parent}:$PATH; source <(loractl completion bash); COMP_WORDS=(\"$@\"); "
              "COMP_CWORD=$(($# - 1)); _loractl; printf '%s\\n' \"${COMPREPLY[@]}\"")
    p = subprocess.run(["bash", "-c", script, "bash", "loractl", *words], capture_output=True, text=True,
                       env=environment(LORAD_KEY=key, **env), cwd=home)
    assert p.returncode == 0 and not p.stderr, p
    return p.stdout.split()


def test_completion_asks_the_server():
    server.admin("POST", "/tenants", {"name": "other"})
    assert complete("adapter", "rollback", "pi") == ["pirate"]
    assert complete("adapter", "show", "") == ["pirate", "shout"]
    assert "base" in complete("chat", "b") and "shout" in complete("chat", "")
    assert complete("tenant", "show", "o") == ["other"] and "ease" in complete("limits", "set", "")
    assert complete("key", "list", "--tenant", "ot") == ["other"]
    assert complete("chat", "base", "--class", "inter") == ["interactive"]
    assert complete("limits", "set", "ease", "requests") == ["requests_per_minute="]
    live = complete("config", "set", "")
    assert "data.min_free" in live and "data.dir" not in live, live
    assert complete("config", "show", "data.dir") == ["data.dir"]
    assert complete("help", "ad") == ["adapter"] and "push" in complete("help", "adapter", "")
    ctl("context", "set", "away", "--url", "https://localhost:1", "--ca", server.ca)
    assert complete("context", "use", "a") == ["away"] and complete("-c", "a") == ["away"]
    only = {"LORAD_URL": "", "LORAD_CA": ""}
    assert complete("adapter", "show", "-c", "away", "p", **only) == []  # nobody answers: nothing is offered
    ctl("context", "set", "home", "--url", f"https://localhost:{server.port}", "--ca", server.ca)
    assert complete("adapter", "show", "-c", "home", "p", **only) == ["pirate"]
    (home / "contexts.conf").unlink()
    ctl("completion", "names", "colours", expect=2)
    ctl("completion", "names", expect=2)
    # A server's names reach a shell that would expand them.
    s, env = lie()
    Liar.status, Liar.body = 200, json.dumps({"data": [{"name": n} for n in (
        "good", "$(touch bad)", "`touch bad`", "a b", "*", "-rf", "x;y", "\x1b[2J")]}).encode()
    assert complete("adapter", "show", "", **env) == ["good"]
    assert not (home / "bad").exists()
    s.shutdown()
    for shell in ("zsh", "fish"):
        assert "completion names" in ctl("completion", shell)


def test_fields():
    assert ctl("adapter", "show", "pirate", "--fields", "residency", "-o", "name", key=key).strip() in ("disk", "host", "device", "memory", "cpu", "gpu", "ram"), \
        ctl("adapter", "show", "pirate", "--fields", "residency", "-o", "name", key=key)
    assert parsed("adapter", "list", "--fields", "default_version,name", key=key) == [
        {"default_version": 1, "name": "pirate"}, {"default_version": 1, "name": "shout"}]
    assert ctl("adapter", "list", "--fields", "versions,name", key=key).split() == ["VERSIONS", "NAME", "1", "pirate", "1", "shout"]
    text = ctl("tenant", "list", "--fields", "name,limits.tokens_per_day", "-o", "csv")
    assert text.splitlines()[0] == "name,limits.tokens_per_day" and "ease," in text, text
    assert list(parsed("tenant", "show", "ease", "--fields", "limits.max_concurrent")) == ["limits.max_concurrent"]
    assert ctl("stats", "--fields", "classes.0.name", "-o", "name").strip() == "interactive"
    assert "classes.0.name" in ctl("stats", "--fields", "classes.0.name,classes.1.name")
    counted = server.tenant("counted")
    assert server.ask(counted, "base", "hi", max_tokens=1).status == 200
    rows = until(lambda: parsed("usage", "--fields", "output_tokens,model", "--by", "model", key=counted))
    assert rows == [{"output_tokens": 1, "model": "base"}], rows
    assert "max_concurrent" in ctl("limits", "show", "ease", "--fields", "limit", "-o", "csv")
    for args in (["stats", "--fields", "server.uptime_s"], ["models", "--fields", "id,max_model_len"],
                 ["whoami", "--fields", "tenant,scopes"], ["audit", "--fields", "time,action,object"]):  # as help shows
        assert ctl(*args, "-o", "csv", key=key).splitlines()[1], args
    assert parsed("whoami", "--fields", "tenant", key=key) == {"tenant": "ease"}
    for args, meant in ((["adapter", "list", "--fields", "nmae"], "name"), (["models", "--fields", "onwed_by"], "owned_by"),
                        (["stats", "--fields", "uptime_s"], "server.uptime_s"),
                        (["tenant", "show", "ease", "--fields", "limits.tokens_per_dya"], "limits.tokens_per_day")):
        assert ctl(*args, key=key, expect=2) == ""
        assert f"did you mean '{meant}'?" in ctl.errors, ctl.errors
    ctl("adapter", "list", "--fields", "colour", key=key, expect=2)
    assert "did you mean" not in ctl.errors and "residency" in ctl.errors, ctl.errors
    for wrong in ("", ",", "name,,bytes", "x" * 200, ",".join(["name"] * 30)):
        ctl("adapter", "list", "--fields", wrong, key=key, expect=2)


def test_json_and_colours():
    text = ctl("tenant", "list", "--json")
    assert text.count("\n") == 1 and json.loads(text), text
    shown = on_terminal("tenant", "show", "ease", "--json", env={"NO_COLOR": "1"})
    assert "\x1b" not in shown and shown.count("\n") > 5 and json.loads(shown)["name"] == "ease", shown
    coloured = on_terminal("tenant", "show", "ease", "--json")
    assert "\x1b[34m" in coloured and re.sub(r"\x1b\[\d+m", "", coloured) == shown, coloured
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": ""}):
        assert "\x1b" not in on_terminal("tenant", "list", env=env)
        assert "\x1b" not in on_terminal("tenant", "show", "nobody", env=env, expect=1)
    shown = on_terminal("tenant", "list")
    assert "\x1b[1mNAME\x1b[0m" in shown and "\x1b[32mactive\x1b[0m" in shown, shown
    plain = on_terminal("tenant", "list", env={"NO_COLOR": "1"})
    assert re.sub(r"\x1b\[\d+m", "", shown) == plain, (shown, plain)
    assert "\x1b[31mloractl:\x1b[0m" in on_terminal("tenant", "show", "nobody", expect=1)
    # What a server says is escaped before it is coloured.
    s, env = lie()
    Liar.status, Liar.body = 200, json.dumps({"data": [{"name": "\x1b[2J\\\" : \u202e", "x\x1b": 1}]}).encode()
    for form in ("json", "table"):
        shown = on_terminal("tenant", "list", "-o", form, env=env)
        assert not re.sub(r"\x1b\[(0|1|2|3[1-4])m", "", shown).count("\x1b") and "\u202e" not in shown, shown
    s.shutdown()


def test_watch():
    # Not on a terminal: plain, one after the other; Ctrl-C is a clean end.
    p = subprocess.Popen([LORACTL, "tenant", "list", "--watch=1s", "-o", "name"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=environment())
    names = [p.stdout.readline().strip() for _ in range(5)]
    assert names.count("ease") >= 2, names
    p.send_signal(signal.SIGINT)
    out, errors = p.communicate(timeout=60 * PATIENCE)
    assert p.returncode == 0 and errors == "" and "\x1b" not in out, (p.returncode, out, errors)
    # On a terminal: in place, and what is new is seen.
    shown = on_terminal("tenant", "list", "--watch=1s", keys=[("Ctrl-C ends", ""), ("Ctrl-C ends", "\x03")])
    assert shown.count("\x1b[H\x1b[2J") >= 2 and "every 1 s: loractl tenant list" in shown, shown
    shown = on_terminal("tenant", "list", "--watch=1s", env={"TERM": "dumb"}, keys=[("Ctrl-C ends", ""), ("Ctrl-C ends", "\x03")])
    assert "\x1b" not in shown and shown.count("NAME") >= 1, shown
    # What the screen has no room for is counted: the head stays in sight.
    s, env = lie()
    Liar.status, Liar.body = 200, json.dumps({"data": [{"name": f"t{i:03}"} for i in range(100)]}).encode()
    shown = on_terminal("tenant", "list", "--watch=1s", env={**env, "TERM": "dumb"},
                        keys=[("more)", ""), ("more)", "\x03")])
    picture = shown.split("more)")[-2].split("Ctrl-C ends)")[-1]
    assert picture.count("\n") <= 24 and "t018" in picture and "t019" not in picture and "(81 " in picture, shown
    assert on_terminal("tenant", "list", env=env).count("t0") == 100
    s.shutdown()
    for wrong in ("--watch=0", "--watch=never", "--watch=-1s", "--watch=0.5s"):
        ctl("tenant", "list", wrong, expect=2)
    ctl("tenant", "show", "nobody", "--watch", expect=1)  # wrong from the start: said once
    ctl("tenant", "list", "--watch", env={"LORAD_ADMIN_URL": "https://localhost:1"}, expect=3)
    ctl("adapter", "list", "--watch", "--fields", "nmae", key=key, expect=2, timeout=30 * PATIENCE)


def test_watch_outlives_a_restart():
    s, env = lie()
    Liar.status, Liar.body = 200, json.dumps({"data": [{"name": "first"}]}).encode()
    p = subprocess.Popen([LORACTL, "tenant", "list", "--watch=1s", "-o", "name"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=environment(**env))
    assert p.stdout.readline() == "first\n"
    Liar.status, Liar.body = 503, json.dumps({"error": {"message": "the server is restarting"}}).encode()
    assert "restarting" in p.stderr.readline()
    Liar.status, Liar.body = 200, json.dumps({"data": [{"name": "second"}]}).encode()
    line = until(lambda: (lambda said: said if said != "first\n" else None)(p.stdout.readline() or "gone"))
    assert line == "second\n", line
    p.stdout.close()  # nobody reads on: it ends by itself
    assert p.wait(timeout=60 * PATIENCE) in (0, 1)
    s.shutdown()


def test_next_steps():
    weak = server.key("ease", ["inference"])
    ctl("adapter", "list", key=weak, expect=1)
    assert "lacks the scope adapters.read or adapters.write" in ctl.errors and "loractl key create" in ctl.errors, ctl.errors
    ctl("models", key="lk_wrong", expect=1)
    assert "context set NAME --key" in ctl.errors, ctl.errors
    for args in (["activate", "pirate", "7"], ["show", "pirate@7"], ["alias", "pirate", "canary", "9"],
                 ["delete", "pirate@5", "--yes"]):
        ctl("adapter", *args, key=key, expect=1)
        assert "'pirate' has these versions: 1\n" in ctl.errors, (args, ctl.errors)
    for args in (["show", "priate"], ["pin", "pirat"], ["versions", "pirrate"], ["activate", "pirata", "1"]):
        ctl("adapter", *args, key=key, expect=1)
        assert "did you mean 'pirate'?" in ctl.errors, (args, ctl.errors)
    ctl("adapter", "show", "nothing-like-it", key=key, expect=1)
    assert "did you mean" not in ctl.errors and "loractl adapter list" in ctl.errors, ctl.errors
    ctl("limits", "set", "ease", "requests_per_minute=1")
    ctl("chat", "base", "hi", "-m", "1", key=key)
    ctl("chat", "base", "hi", "-m", "1", key=key, expect=1)
    assert re.search(r"loractl: come back in (\d+s|1m\d+s)\n", ctl.errors), ctl.errors
    ctl("limits", "set", "ease", "requests_per_minute=none")
    # An adapter for another base says which.
    other = home / "other"
    shutil.copytree(ADAPTERS / "pirate", other)
    config = json.loads((other / "adapter_config.json").read_text())
    config.update(base_model_name_or_path="someone/else-7b", target_modules=["nothing_of_ours"])
    (other / "adapter_config.json").write_text(json.dumps(config))
    ctl("adapter", "push", other, key=key, expect=1)
    assert "the adapter's files name 'someone/else-7b' as its base model; this server serves 'base'" in ctl.errors, ctl.errors
    ctl("adapter", "push", other, "-n", "pirate", key=weak, expect=1)
    assert "as its base model" not in ctl.errors, ctl.errors


def test_whole_answers():
    """Names are whole, and what is not set has no line; -o wide has all."""
    asker = server.tenant("asker", limits={"requests_per_minute": 90})
    said, wide = ctl("whoami", key=asker), ctl("whoami", "-o", "wide", key=asker)
    assert re.search(r"^limits\.requests_per_minute\.limit +90$", said, re.M) and re.search(r"^limits\.requests_per_minute\.remaining +90$", said, re.M), said
    assert "tokens_per_day" not in said and "…" not in said and not re.search(r" -$", said, re.M), said
    assert re.search(r"^limits\.tokens_per_month\.remaining +-$", wide, re.M), wide


def test_times_are_utc():
    """Whatever the time zone of the terminal is; environment() sets one that is 9 hours ahead."""
    assert "+0900" in subprocess.run(["date", "+%z"], env=environment(), capture_output=True, text=True, check=True).stdout
    said = ctl("audit", "--fields", "time").splitlines()[1]
    then = datetime.datetime.strptime(said.strip(), "%Y-%m-%d %H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
    assert abs((datetime.datetime.now(datetime.timezone.utc) - then).total_seconds()) < 3600, said


def test_commands_of_the_documents():
    """Each `loractl COMMAND --option` in a document is a command with that option."""
    help_of, seen = {name: ctl("help", *name.split()) for name in table_of_commands()}, 0
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text()
        blocks = re.findall(r"^ *```.*?^ *```", text, re.M | re.S)
        for said in re.findall(r"`loractl ([a-z][^`|#\n]*)`", text) + re.findall(r"\bloractl ([a-z][^|#;()\n]*)", "\n".join(blocks)):
            words = said.split()
            name = next((n for n in (" ".join(words[:2]), words[0]) if n in help_of), None)
            assert name or words[0] in ("help", "loratop", *(n.split()[0] for n in help_of)), (page, said)
            for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]+|-[a-zA-Z])(?![\w-])", said) if name else ():
                assert option in help_of[name], (page, said)
            seen += bool(name)
    assert seen > 100, seen


def test_causes():
    hurried = server.tenant("hurried")
    for _ in range(3):
        assert server.ask(hurried, "base", "What is 7 plus 5?", max_tokens=2, service_tier="priority").status == 200
    def broken():
        rows = {r["name"]: r for r in parsed("classes")}
        return rows if rows["interactive"].get("missed", 0) >= 3 else None
    row = until(broken)["interactive"]
    assert sum(row["causes"].values()) == row["missed"] and row["met"] == 0, row
    cause, count = max(row["causes"].items(), key=lambda c: c[1])
    assert re.fullmatch(rf"\w+ {round(100 * count / row['missed'])}%", row["mostly"]), row
    head, line, *_ = ctl("classes").splitlines()
    assert head.split()[-3:] == ["MET", "MISSED", "MOSTLY"] and row["mostly"] in line, (head, line)
    assert parsed("tenant", "show", "hurried")["missed"] == 3
    assert row["mostly"] in ctl("tenant", "list", "-o", "wide") and "MISSED" in ctl("tenant", "show", "hurried")
    s, env = lie()  # of several causes the biggest, with its share
    Liar.status, Liar.body = 200, json.dumps({"data": [{"name": "x"}], "classes": [
        {"name": "x", "met": 1, "missed": 8, "missed_queue": 2, "missed_swap": 6, "missed_prompt": 0}]}).encode()
    row, = parsed("classes", env=env)
    assert row["mostly"] == "swap 75%" and row["causes"] == {"queue": 2, "swap": 6}, row
    s.shutdown()
    calm = parsed("tenant", "show", "other")
    assert calm["missed"] == 0 and "mostly" not in calm and calm["causes"] == {}, calm


TESTS = [test_next_steps, test_whole_answers, test_times_are_utc, test_commands_of_the_documents, test_fields, test_json_and_colours, test_watch, test_watch_outlives_a_restart, test_help_has_examples, test_what_was_meant, test_completion_asks_the_server, test_causes]

if __name__ == "__main__":
    try:
        with Server(settings={"classes.interactive": "ttft:1us tpot:1h weight:4",
                              "classes.standard": "ttft:1h tpot:1h weight:2"}) as server:
            base.server = server
            key = server.tenant("ease")
            for name in ("pirate", "shout"):
                server.upload(key, name, ADAPTERS / name)
            run(TESTS)
    finally:
        shutil.rmtree(home, ignore_errors=True)
