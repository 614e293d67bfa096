"""What makes loractl easy: help with examples, what was meant, names for shells, fields, colours, watching, next steps."""
import json
import re
import shutil
import subprocess

import test_loractl as base
from harness import DEMO, Server, run, until
from test_loractl import LORACTL, Liar, ctl, environment, home, lie, on_terminal, parsed

ADAPTERS = DEMO / "adapters"
server = None
key = None


def table_of_commands():
    return re.findall(r"^  ([a-z]+(?: [a-z]+)?)(?= |$)", ctl("--help").split("options of")[0], re.M)


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
    server.upload(key, "pirate", ADAPTERS / "pirate")
    server.upload(key, "shout", ADAPTERS / "shout")
    server.admin("POST", "/tenants", {"name": "other"})
    assert complete("adapter", "rollback", "pi") == ["pirate"]
    assert complete("adapter", "show", "") == ["pirate", "shout"]
    assert "base" in complete("chat", "b") and "shout" in complete("chat", "")
    assert complete("tenant", "show", "o") == ["other"] and "ease" in complete("limits", "set", "")
    assert complete("key", "list", "--tenant", "ot") == ["other"]
    assert complete("chat", "base", "--class", "inter") == ["interactive"]
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


TESTS = [test_help_has_examples, test_what_was_meant, test_completion_asks_the_server]

if __name__ == "__main__":
    try:
        with Server() as server:
            base.server = server
            key = server.tenant("ease")
            run(TESTS)
    finally:
        shutil.rmtree(home, ignore_errors=True)
