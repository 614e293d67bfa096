"""A server of a fleet drains under streams: the others go on with them, and clients read what they would have read."""
import hashlib
import json
import pathlib
import re
import struct
import sys
import tempfile
import time
import types

import elsewhere
import fleets
import hybrid
from harness import ROOT, demo_adapters, first_events, free_port, run, until
from postgres import skip_unless_there

sys.path[1:1] = [str(ROOT / "tests/tools")]
import sampling_list  # noqa: E402

skip_unless_there()
LETTERS = iter("ABCDEFGHIJKLMNOPQRST")  # of prompts: what they share is computed once
BASE = {"model": "base", "prompt": "What is 7 plus 5?", "stream": True, "max_tokens": 700, "seed": 1, "ignore_eos": True}


KV = 'lorad_moves_kv_total{outcome="%s"}'
PAGE = 32  # positions of one KV page


def build_of(node):
    return node.call("POST", "/v1/completions", BASE | {"stream": False, "max_tokens": 1}, key=OTHER).json["system_fingerprint"].encode()


def strangers_are_refused(fleet):
    b = fleet.nodes[1]
    word = fleet.postgres.sql("SELECT door FROM lorad_nodes WHERE node = 1").split()[2]

    def post(order, bearer, what="requests"):
        return b.call("POST", f"/fleet/v1/{what}", order, headers={"Content-Type": "application/octet-stream", "Authorization": f"Bearer {bearer}"}).status
    for bearer in ("", KEY, b.admin_key, "0" * 64, word[:-1], word + "0"):
        assert post(b"lrdmove3" + b"\0" * 400, bearer) == 401, bearer
        assert post(b"lrdask_1" + b"\0" * 48, bearer, "pages") == 401, bearer
    for order in (b"", b"x" * 400, b"lrdmove3", b"lrdmove3" + b"\0" * 400, b"lrdmove3" + b"\xff" * 400):
        assert post(order, word) == 400, order
    for ask, status in ((b"", 400), (b"x" * 56, 400), (b"lrdask_1" + b"\xff" * 48, 400), (b"lrdask_1" + b"\0" * 48, 409), (b"x" * 57, 413)):
        assert post(ask, word, "pages") == status, ask
    for first in (0, 1 << 30):  # it lends nothing
        assert post(b"lrdask_1" + build_of(b).ljust(32, b"\0") + struct.pack("<Qq", 7, first), word, "pages") == 404


def what_runs_goes_on_elsewhere(fleet):
    a, b, _ = fleet.nodes
    kinds = fleets.kinds_that_move(NAME)
    differ, taken, away, notes = fleets.moved(fleet, KEY, kinds)
    assert differ == [], differ
    assert taken == away >= len(kinds) - 1 and set(notes) == {"yes"}, (taken, away, notes)
    a.start()
    fleet.books_agree()
    assert fleet.usage(b, "mover")[0] == 2 * (len(kinds) + 1)  # a row for each choice, once


def long_ones(fleet, word, n=4):
    """Requests that no server has seen, no two with the same first letter, and the tokens of all their prompts."""
    bodies = [BASE | {"prompt": f"{next(LETTERS)} {word} {i}: " + "What is 7 plus 5? " * 30, "max_tokens": 200, "seed": i, "temperature": 1.2} for i in range(n)]
    counts = [fleet.nodes[1].call("POST", "/tokenize", {"model": "base", "prompt": b["prompt"]}, key=KEY).json["count"] for b in bodies]
    assert min(counts) > 4 * PAGE, counts
    return [("/v1/completions", b) for b in bodies], sum(counts)


def moved_pages(fleet, word, outcome):
    """All texts are as if nothing had happened, and what became of keys and values is that; tokens that came with theirs, tokens that were computed,
    tokens of prompts."""
    asks, n_prompt = long_ones(fleet, word)
    names = ("lorad_moves_in_total", KV % outcome, "lorad_moves_kv_tokens_total", "lorad_prefill_tokens_total")
    before = fleet.of_others(*names)
    differ, *_ = fleets.moved(fleet, KEY, asks)
    taken, ended, came, computed = (now - was for now, was in zip(fleet.of_others(*names), before))
    fleet.nodes[0].start()
    assert differ == [], differ
    assert taken == ended == len(asks), (word, taken, ended)
    return came, computed, n_prompt


def keys_and_values_come_along(fleet):
    """No prompt is computed again: of each text what follows its last whole page."""
    came, computed, n_prompt = moved_pages(fleet, "with", "taken")
    assert came >= n_prompt - 4 * PAGE and computed <= 4 * PAGE, (came, computed, n_prompt)


def without_them_all_is_computed(fleet):
    fleet.brings_pages("never")
    came, computed, n_prompt = moved_pages(fleet, "without", "off")
    assert came == 0 and computed >= n_prompt, (came, computed, n_prompt)
    fleet.brings_pages("always")


def a_damaged_page_is_computed(fleet):
    """The second of each text: what comes before it is good."""
    with fleet.bad_pages("damage"):
        came, computed, n_prompt = moved_pages(fleet, "damaged", "damaged")
    assert came == 4 * PAGE and computed >= n_prompt - came, (came, computed, n_prompt)
    said = [n.log_path.read_text() for n in fleet.nodes[1:]]
    assert sum(text.count("page 1 of") for text in said) == sum(text.count("came damaged") for text in said) == 4


def pages_of_another_kind_are_refused(fleet):
    with fleet.bad_pages("type"):
        came, computed, n_prompt = moved_pages(fleet, "typed", "refused")
    assert came == 0 and computed >= n_prompt, (came, computed, n_prompt)
    assert sum(n.log_path.read_text().count("its pages have") for n in fleet.nodes[1:]) == 4


def who_gives_them_dies_in_the_middle(fleet):
    """Its clients are lost with it; the others compute, notice, and go on."""
    a, b, c = fleet.nodes
    asks, _ = long_ones(fleet, "dies", 2)
    want = [s.whole() for s in [fleets.Stream(a, KEY, *ask) for ask in asks]]
    lost, = fleet.of_others(KV % "lost")
    with fleet.bad_pages("die"):
        with fleet.slow_steps():
            streams = [fleets.Stream(a, KEY, *ask) for ask in asks]
            for s in streams:
                assert s.begun.wait(600)
            fleet.drains()
        a.process.wait(600)
        for s in streams:
            s.join()
    until(lambda: fleet.of_others(KV % "lost")[0] > lost)
    until(lambda: fleet.of_others("lorad_requests_running") == [0])
    assert [s.whole() for s in [fleets.Stream(n, KEY, *ask) for n, ask in zip((b, c), asks)]] == want
    a.stop()
    a.start()


def order_of(build, prompt, isolation, node=9, n=6):
    """As that node would send it when it drains: greedy tokens of the base (gateway/move/wire.h)."""
    head = struct.pack("<8s32s48s112s32sQQQq", b"lrdmove3", build, b"standard", b"", b"", 0, 0, 77, node)
    head += struct.pack("<QQQQq", 5, 1, isolation, 1, 0) + struct.pack("<8i", 0, len(prompt), 0, n, 0, 0, -1, 0)
    head += sampling_list.order(1, temperature=0, ignore_eos=1)
    return head + struct.pack(f"<{len(prompt)}i", *prompt)


def imposter(fleet, text):
    """Node 9, from which another one gets bytes in place of the pages of this text."""
    b = fleet.nodes[1]
    word = fleet.postgres.sql("SELECT door FROM lorad_nodes WHERE node = 1").split()[2]
    build = build_of(b)
    prompt = b.call("POST", "/tokenize", {"model": "base", "prompt": text}, key=KEY).json["tokens"]
    answer, asked = {"status": 200, "body": b""}, []

    class Node(elsewhere.Handler):
        def do_POST(self):
            time.sleep(answer.get("pause", 0))
            asked.append((self.path, self.headers["Authorization"], self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(answer["status"], answer["body"], answer.get("length"))
    cert, key = elsewhere.certificate(pathlib.Path(tempfile.mkdtemp(prefix="lorad-move-")))
    port = free_port()
    elsewhere.serve(port, Node, cert, key)
    pins = elsewhere.key_digests(cert)
    fleet.postgres.sql("INSERT INTO lorad_nodes(node, instance, name, epoch, heartbeat, applied) VALUES (9, 'other', 'other', 1, '-infinity', 0)")

    def ask(isolation):
        r = b.call("POST", "/fleet/v1/requests", order_of(build, prompt, isolation), headers={"Content-Type": "application/octet-stream", "Authorization": f"Bearer {word}"})
        assert r.status == 200, r
        return [struct.unpack("<ifii", r.body[k:k + 16])[0] for k in range(0, len(r.body), 16)]

    def tokens(i, outcome, pin=pins[0]):
        fleet.postgres.sql(f"UPDATE lorad_nodes SET door = 'https://127.0.0.1:{port} {pin} {'5' * 64}' WHERE node = 9")
        before = b.metrics()[KV % outcome]
        got = ask(1000 + i)
        assert b.metrics()[KV % outcome] == before + 1, (i, outcome, b.log_path.read_text()[-2000:])
        return got

    def head(size, first=0, build=build, magic=b"lrdpage2", state=(0, 0)):
        return struct.pack("<8s32sQiiQq", magic, build, size, PAGE, first, *state)

    def record(data, isolation, i, words):
        """What nobody has computed, with its digest."""
        whose = struct.pack("<QQQ", isolation, 0, i) + bytes(32) + struct.pack(f"<{len(words)}i", *words)
        return hashlib.sha256(whose + data).digest() + data
    answer["status"] = 500
    want = tokens(0, "refused")
    answer["status"] = 200
    assert len(want) == 7 and want[-1] == -1 and min(want[:-1]) >= 0, want

    def size_of(i, what, body):
        answer["body"] = body
        assert tokens(i, "refused") == want
        return int(re.findall(what, b.log_path.read_text())[-1])
    size = size_of(1, "its pages have 1 bytes for 32 positions, not ([0-9]+)", head(1))
    return types.SimpleNamespace(**locals())


def what_a_node_gives_may_be_anything(fleet):
    """Another one's bytes in place of pages: the same tokens, and its reason."""
    w = imposter(fleet, "What is 7 plus 5? " * 30)
    b, build, prompt, answer, asked, pins, ask, tokens, head, want, size = (
        w.b, w.build, w.prompt, w.answer, w.asked, w.pins, w.ask, w.tokens, w.head, w.want, w.size)
    assert asked == [("/fleet/v1/pages", "Bearer " + "5" * 64, struct.pack("<8s32sQq", b"lrdask_1", build, 77, 0))] * 2, asked
    n = (len(prompt) - 1) // PAGE
    record = b"\0" * (32 + size)
    bodies = [(b"", "lost"), (b"x" * 20, "lost"), (head(size)[:-1], "lost"), (head(size), "lost"), (head(size) + record[:-1], "lost"),
              (head(size, 1), "refused"), (head(size, build=b"fp_1"), "refused"), (head(size, magic=b"lrdpage1"), "refused"), (head(2**63), "refused"),
              (b"\xff" * 4096, "refused"), (head(size) + record, "damaged"), (head(size) + n * record, "damaged"), (head(size) + (n + 9) * record, "damaged")]
    for i, (body, outcome) in enumerate(bodies):
        answer.update(body=body)
        assert tokens(2 + i, outcome) == want, i
    answer.update(body=head(size) + record, length=len(head(size)) + n * len(record))  # it ends before it said
    assert tokens(50, "lost") == want

    def records(isolation):
        return b"".join(w.record(bytes(size), isolation, i, prompt[i * PAGE:(i + 1) * PAGE]) for i in range(n))
    answer.pop("length")
    answer.update(body=head(size) + records(1060) + b"x")  # one byte more than there are
    tokens(60, "refused")
    answer.update(body=head(size) + records(1061), pause=0.5)
    tokens(61, "taken")
    answer.pop("pause")
    b.admin("PATCH", "/config", {"server.fleet_kv": "auto"})
    assert tokens(62, "cheaper") == want
    tried = b.metrics()[KV % "damaged"]
    for i in range(1000):  # what was dear once is tried again
        if b.metrics()[KV % "damaged"] > tried:
            break
        ask(2000 + i)
    assert i > 5 and b.metrics()[KV % "damaged"] > tried, i
    b.admin("PATCH", "/config", {"server.fleet_kv": "always"})
    asked.clear()
    assert tokens(51, "lost", pins[1]) == want and asked == []
    fleet.postgres.sql("DELETE FROM lorad_nodes WHERE node = 9")
    assert tokens(52, "lost") == want
    assert tokens(52, "here") == want


def what_cannot_go_stays(fleet):
    """By its name, and to its end."""
    a, *_ = fleet.nodes
    held = [BASE | {"guided_regex": "[a-z ]{2000}"}, BASE | {"bad_words": ["zebra"]}, BASE | {"echo": True, "logprobs": 1}]
    differ, taken, away, notes = fleets.moved(fleet, KEY, [("/v1/completions", body | {"max_tokens": 900}) for body in 4 * held])
    assert differ == [] and taken == away == 0, (differ, taken, away)
    assert {n for n in notes if n != "yes"} == {"no: bars", "no: grammar", "no: prompt_logprobs"}, notes
    a.start()


def a_node_that_took_them_is_killed(fleet):
    """Another one goes on, or the one that drains."""
    a, b, _ = fleet.nodes

    def kill(streams):
        until(lambda: b.metrics()["lorad_moves_in_total"] > 0)
        b.process.kill()
        b.process.wait()
    differ, *_ = fleets.moved(fleet, KEY, [("/v1/completions", BASE | {"seed": i}) for i in range(4)], kill)
    assert differ == [], differ
    for node in (b, a):
        node.stop()
        node.start()


def who_leaves_ends_it_everywhere(fleet):
    a, b, c = fleet.nodes
    before = b.metrics()["lorad_moves_in_total"] + c.metrics()["lorad_moves_in_total"]
    with fleet.slow_steps():
        streams = [fleets.Stream(a, KEY, "/v1/completions", BASE | {"max_tokens": 980}, leaves=True) for _ in range(2)]
        for s in streams:
            assert s.begun.wait(600)
        fleet.drains()
    until(lambda: b.metrics()["lorad_moves_in_total"] + c.metrics()["lorad_moves_in_total"] == before + 2)
    for s in streams:
        s.leave.set()
        s.join()
    until(lambda: a.process.poll() is not None)
    a.stop()
    for node in (b, c):
        until(lambda: sum(v for k, v in node.metrics().items() if k.startswith("lorad_requests_total") and "cancelled" in k) > 0)
    a.start()
    fleet.books_agree()


def a_lost_stream_is_resumed_elsewhere(fleet):
    """Its node is killed; another gives the events behind the last one that came."""
    a, b, c = fleet.nodes
    body = BASE | {"model": NAME, "max_tokens": 300, "temperature": 1.0}

    def events(got):
        parts = [p.split("\n") for p in got.decode().split("\n\n") if p and not p.startswith(":")]
        return [(int(p[0][4:]), json.loads(p[1][6:])) for p in parts if p[0].startswith("id: ")]

    def text(got):
        return "".join(e["choices"][0]["text"] for _, e in got), {(e["id"], e["created"], e["model"]) for _, e in got}

    def resume(node, last):
        r = node.call("POST", "/v1/completions", body, key=KEY, headers={"x-lorad-resume": ticket, **({"last-event-id": str(last)} if last else {})})
        assert r.status == 200, r
        return events(r.body)
    r, first = first_events(a, "/v1/completions", body, KEY, 6)
    ticket = r.getheader("x-lorad-resume")
    a.process.kill()
    a.process.wait()
    seen = events(first)
    rest, whole = resume(b, seen[-1][0]), resume(c, None)
    assert rest[0][0] > seen[-1][0] and text(seen + rest) == text(whole) and len(text(whole)[1]) == 1, (text(seen + rest), text(whole))
    a.stop()
    a.start()


def states_come_along(fleet):
    """Up to the last snapshot, which is behind the second page or a later one; what follows is computed."""
    b, n = fleet.nodes[1], 4
    names = (KV % "taken", "lorad_moves_kv_tokens_total", "lorad_state_snapshot_hits_total")
    asks = [("/v1/completions", BASE | {"prompt": f"{i}: {hybrid.TEXT}", "max_tokens": 700, "logprobs": 2, "seed": i}) for i in range(n)]
    differ, taken, *_ = fleets.moved(fleet, KEY, asks)
    assert differ == [] and taken == n, (differ, taken)
    each = [int(tokens) for tokens in re.findall("kv=taken kv_tokens=([0-9]+)", b.log_path.read_text())]
    assert all(tokens >= 2 * PAGE and tokens % PAGE == 0 for tokens in each), each
    assert fleet.of_others(*names) == [n, sum(each), n] and len(each) == n, (fleet.of_others(*names), each, b.log_path.read_text()[-2000:])


def a_state_may_be_anything(fleet):
    """Without a whole one all is computed, and its reason named."""
    w = imposter(fleet, hybrid.TEXT)
    bytes_of = w.size_of(2, "its states have 0 bytes, not ([0-9]+)", w.head(w.size))
    state, behind, no_page = bytes(bytes_of), w.prompt[:2 * PAGE], 1 << 63

    def given(i, at=2, size=bytes_of, n=2, data=state, place=no_page | 2, more=b""):
        pages = [w.record(bytes(w.size), 1000 + i, k, w.prompt[k * PAGE:(k + 1) * PAGE]) for k in range(n)]
        return w.head(w.size, state=(size, at)) + b"".join(pages) + w.record(data, 1000 + i, place, behind) + more
    bad = [({"at": 0}, "refused"), ({"at": 3}, "refused"), ({"at": -1}, "refused"), ({"at": 1 << 32 | 2}, "refused"),
           ({"size": bytes_of - 4}, "refused"), ({"size": bytes_of + (1 << 32)}, "refused"), ({"data": state[:-1]}, "lost"), ({"n": 1, "more": bytes(1 << 16)}, "damaged"),
           ({"place": 2}, "damaged"), ({"place": no_page | 1}, "damaged")]

    def used():
        return [w.b.metrics()[name] for name in ("lorad_moves_kv_tokens_total", "lorad_state_snapshot_hits_total")]
    before = used()
    for i, (how, outcome) in enumerate(bad, 10):
        w.answer["body"] = given(i, **how)
        got = w.tokens(i, outcome)
        assert got == w.want or outcome != "refused", (how, got)  # else pages came that nobody has computed
    w.answer["body"] = given(30)[:-len(state) - 32]  # the pages alone
    alone = w.tokens(30, "lost")
    assert used() == before, (used(), before)
    w.answer["body"] = given(31)
    assert w.tokens(31, "taken") != alone  # it went on with that state
    assert used() == [before[0] + 2 * PAGE, before[1] + 1], (used(), before)
    w.answer["body"] = given(32, more=b"x")
    w.tokens(32, "refused")


def all_of_it():
    global KEY, NAME, OTHER
    key = pathlib.Path(tempfile.mkdtemp(prefix="lorad-move-")) / "key"
    key.write_text("11" * 32)
    with fleets.Fleet(shared={"server.drain_timeout": "300s", "responses.key_file": key, "server.fleet_kv": "always"}, program="lorad_faulty") as fleet:
        KEY, OTHER, NAME = fleet.tenant("mover"), fleet.tenant("other"), demo_adapters()[0]
        fleets.upload_everywhere(fleet, KEY, NAME)
        for step in (strangers_are_refused, what_runs_goes_on_elsewhere, keys_and_values_come_along, without_them_all_is_computed, a_damaged_page_is_computed,
                     pages_of_another_kind_are_refused, who_gives_them_dies_in_the_middle, what_a_node_gives_may_be_anything, what_cannot_go_stays,
                     a_node_that_took_them_is_killed, a_lost_stream_is_resumed_elsewhere, who_leaves_ends_it_everywhere):
            step(fleet)
            print(f"  {step.__name__}", flush=True)


def with_a_state():
    global KEY, OTHER
    model = hybrid.make_model(pathlib.Path(tempfile.mkdtemp(prefix="lorad-move-")) / hybrid.NAME, 1024)
    with fleets.Fleet(2, shared={"server.drain_timeout": "300s", "server.fleet_kv": "always"}, program="lorad_faulty", model=model) as fleet:
        KEY = OTHER = fleet.tenant("mover")
        states_come_along(fleet)
        a_state_may_be_anything(fleet)


run([all_of_it, with_a_state])
