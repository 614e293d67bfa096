"""No request ever sees another tenant's or a mixed version: two tenants with the same adapter name, a
roll-back under load, a delete and a new adapter of the same name under load.

Decoding is greedy and a row's bits do not depend on its company, so each version has one right text for
each question, and a text that began under one version and ended under another is none of them.
"""
import http.client
import json
import threading
import time

from harness import DEMO, Server, run

QUESTIONS = ["What is 7 plus 5?", "What is 3 plus 9?", "Where is the red lamp?", "Who are you?"]
NAME = "poet"
server = Server(settings={"adapters.host_memory": "3MiB"})  # two of three fit: loads go on all the time
right = {}  # (style, question) -> text


def ask(key, model, question, stream=False):
    """(status, text) of one answer."""
    body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0,
            "max_tokens": 64, "stream": stream}
    r = server.call("POST", "/v1/chat/completions", body, key=key)
    if r.status != 200:
        return r.status, r.body.decode()
    if not stream:
        return 200, r.json["choices"][0]["message"]["content"]
    text = ""
    for line in r.body.decode().split("\n\n"):
        if line.startswith("data: {"):
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            text += "".join(c["delta"].get("content") or "" for c in chunk["choices"])
    return 200, text


def version_of(question, text, styles):
    """Which of these versions gave this text; None: none of them, that is another's or a mix."""
    return next((s for s in styles if right[s, question] == text), None)


class Load:
    """Threads that ask until told to stop; every answer goes to `judge`, the first fault is kept."""

    def __init__(self, key, model, judge, threads=3):
        self.stop, self.fault, self.n = threading.Event(), None, 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.work, args=(key, model, judge, i))
                        for i in range(threads)]

    def work(self, key, model, judge, i):
        n = 0
        while not self.stop.is_set() and self.fault is None:
            question = QUESTIONS[(n + i) % len(QUESTIONS)]
            begun = time.monotonic()
            try:
                status, text = ask(key, model, question, stream=n % 2 == 0)
                judge(question, status, text, begun, time.monotonic())
            except (AssertionError, OSError, http.client.HTTPException) as e:
                self.fault = self.fault or f"{type(e).__name__}: {e}"
            n += 1
            with self.lock:
                self.n += 1

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        while exc[0] is None and self.fault is None and self.n <= len(QUESTIONS):  # on slow machines
            time.sleep(0.05)
        self.stop.set()
        for t in self.threads:
            t.join()
        assert exc[0] is not None or self.fault is None, self.fault


def the_judge_would_see_a_mix():
    for s in ("shout", "pirate", "json"):
        for q in QUESTIONS:
            status, right[s, q] = ask(alice, f"teacher-{s}", q)
            assert status == 200
    for q in QUESTIONS:
        a, b, c = (right[s, q] for s in ("shout", "pirate", "json"))
        assert len({a, b, c}) == 3, (q, a, b, c)
        assert version_of(q, a, ("shout", "pirate")) == "shout"
        assert version_of(q, c, ("shout", "pirate")) is None  # another tenant's
        for cut in range(1, min(len(a), len(b))):  # begun as one, ended as the other
            if a[:cut] != b[:cut] and a[cut:] != b[cut:]:
                assert version_of(q, a[:cut] + b[cut:], ("shout", "pirate")) is None, (q, cut)


def roll_backs_under_load():
    flips = []  # [before the call, after it, style from then on]

    def judge_alice(question, status, text, begun, ended):
        assert status == 200, (status, text)
        got = version_of(question, text, ("shout", "pirate"))
        assert got, f"neither version gave {text!r} to {question!r}"
        # What the default was for the whole life of the request, if it was one thing only.
        last = [f for f in list(flips) if f[1] < begun]
        during = [f for f in list(flips) if f[1] >= begun and f[0] <= ended]
        if last and not during:
            assert got == last[-1][2], (got, last[-1], begun, ended)

    def judge_bob(question, status, text, begun, ended):
        assert status == 200 and version_of(question, text, ("json",)), (status, text)

    with Load(alice, NAME, judge_alice), Load(bob, NAME, judge_bob, 2), \
            Load(alice, NAME + "@1", lambda q, s, t, b, e: check(s == 200 and t == right["shout", q], t), 1):
        for _ in range(40):
            flip = [time.monotonic(), float("inf"), None]
            flips.append(flip)  # seen by the judge while it is under way
            r = server.call("POST", f"/v1/adapters/{NAME}/rollback", key=alice)
            assert r.status == 200, r
            flip[2] = STYLE_OF[r.json["default_version"]]
            flip[1] = time.monotonic()
            time.sleep(0.03)
    assert {f[2] for f in flips} == {"shout", "pirate"}


STYLE_OF = {1: "shout", 2: "pirate"}


def check(ok, why):
    assert ok, why


def deletes_under_load():
    gone = [0]

    def judge_alice(question, status, text, begun, ended):
        if status in (404, 409):
            gone[0] += 1
            return
        assert status == 200, (status, text)
        assert version_of(question, text, ("shout", "pirate")), text

    def judge_bob(question, status, text, begun, ended):
        assert status == 200 and version_of(question, text, ("json",)), (status, text)

    style = "shout"
    with Load(alice, NAME, judge_alice, 4), Load(bob, NAME, judge_bob, 2):
        for _ in range(15):
            r = server.call("DELETE", f"/v1/adapters/{NAME}?drain=true", key=alice)
            assert r.status in (200, 202), r
            style = "pirate" if style == "shout" else "shout"
            for _ in range(2000):  # until the last request of the old one is out
                r = server.upload(alice, NAME, DEMO / "adapters" / style, expect=None)
                if r.status != 409:
                    break
                time.sleep(0.005)
            assert r.status == 201 and r.json["version"] >= 1, r
            status, text = ask(alice, NAME, QUESTIONS[0])
            assert status == 200 and text == right[style, QUESTIONS[0]], (style, text)
    assert gone[0] > 0, "no request fell between delete and publish: the test shows little"
    on_disk = [p for p in (server.dir / "adapters").iterdir() if len(p.name) == 64]
    assert len(on_disk) == 3, on_disk


with server:
    alice, bob = server.tenant("alice"), server.tenant("bob")
    for s in ("shout", "pirate", "json"):
        server.upload(alice, f"teacher-{s}", DEMO / "adapters" / s)
    server.upload(alice, NAME, DEMO / "adapters/shout")
    server.upload(alice, NAME, DEMO / "adapters/pirate")
    server.upload(bob, NAME, DEMO / "adapters/json")
    run([the_judge_would_see_a_mix, roll_backs_under_load, deletes_under_load])
