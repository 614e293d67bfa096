"""A server of a fleet drains under streams: the others go on with them, and clients read what they would have read."""
import json
import pathlib
import tempfile

import fleets
from harness import demo_adapters, run, until
from postgres import skip_unless_there

skip_unless_there()
BASE = {"model": "base", "prompt": "What is 7 plus 5?", "stream": True, "max_tokens": 700, "seed": 1, "ignore_eos": True}


def strangers_are_refused(fleet):
    b = fleet.nodes[1]
    word = fleet.postgres.sql("SELECT door FROM lorad_nodes WHERE node = 1").split()[2]

    def post(order, bearer):
        return b.call("POST", "/fleet/v1/requests", order, headers={"Content-Type": "application/octet-stream", "Authorization": f"Bearer {bearer}"}).status
    for bearer in ("", KEY, b.admin_key, "0" * 64, word[:-1], word + "0"):
        assert post(b"lrdmove1" + b"\0" * 400, bearer) == 401, bearer
    for order in (b"", b"x" * 400, b"lrdmove1", b"lrdmove1" + b"\0" * 400, b"lrdmove1" + b"\xff" * 400):
        assert post(order, word) == 400, order


def what_runs_goes_on_elsewhere(fleet):
    a, b, _ = fleet.nodes
    kinds = fleets.kinds_that_move(NAME)
    differ, taken, away, notes = fleets.moved(fleet, KEY, kinds)
    assert differ == [], differ
    assert taken == away >= len(kinds) - 1 and set(notes) == {"yes"}, (taken, away, notes)
    a.start()
    fleet.books_agree()
    assert fleet.usage(b, "mover")[0] == 2 * (len(kinds) + 1)  # a row for each choice, once


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
    line = a.connect()
    line.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", "x-lorad-resume": "new"})
    r = line.getresponse()
    ticket, first = r.getheader("x-lorad-resume"), b""
    while first.count(b"\n\n") < 6:
        first += r.readline()
    a.process.kill()
    a.process.wait()
    seen = events(first)
    rest, whole = resume(b, seen[-1][0]), resume(c, None)
    assert rest[0][0] > seen[-1][0] and text(seen + rest) == text(whole) and len(text(whole)[1]) == 1, (text(seen + rest), text(whole))
    a.stop()
    a.start()


def all_of_it():
    global KEY, NAME
    key = pathlib.Path(tempfile.mkdtemp(prefix="lorad-move-")) / "key"
    key.write_text("11" * 32)
    with fleets.Fleet(shared={"server.drain_timeout": "300s", "responses.key_file": key}, program="lorad_faulty") as fleet:
        KEY, NAME = fleet.tenant("mover"), demo_adapters()[0]
        fleets.upload_everywhere(fleet, KEY, NAME)
        for step in (strangers_are_refused, what_runs_goes_on_elsewhere, what_cannot_go_stays, a_node_that_took_them_is_killed, a_lost_stream_is_resumed_elsewhere,
                     who_leaves_ends_it_everywhere):
            step(fleet)
            print(f"  {step.__name__}", flush=True)


run([all_of_it])
