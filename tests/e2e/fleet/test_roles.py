"""A fleet with a server for prompts and one for streams: clients read what one undivided server says, whoever is killed; nothing is billed twice."""
import pathlib
import queue
import re
import signal
import tempfile
import threading

import elsewhere
import fleets
import hybrid
from harness import demo_adapters, first_events, free_port, run, until
from postgres import skip_unless_there

skip_unless_there()
KV = 'lorad_moves_kv_total{outcome="%s"}'
LONG = "What is 7 plus 5? " * 30
BASE = {"model": "base", "prompt": LONG, "stream": True, "max_tokens": 120, "seed": 1, "ignore_eos": True, "stream_options": {"include_usage": True}}
PREFILL, DECODE, ALONE = range(3)
EACH = {PREFILL: {"server.fleet_role": "prefill"}, DECODE: {"server.fleet_role": "decode"}, ALONE: {"server.fleet_address": ""}}  # it belongs to neither


def asks(word, n):
    """Requests of all kinds that move, with prompts that no server has seen."""
    kinds = fleets.kinds_that_move(NAME)
    made = []
    for i in range(n):
        path, body = kinds[i % len(kinds)]
        words = f"{word} {i}: {LONG}"
        own = {"messages": [{"role": "user", "content": words}]} if "messages" in body else {"prompt": words}
        made.append((path, body | own | {"max_tokens": 60 + i % 50} | ({"seed": i} if path != "/v1/messages" else {})))
    return made


def said(node, asked):
    return [s.whole() for s in [fleets.Stream(node, KEY, *ask) for ask in asked]]


def count(node, *names):
    metrics = node.metrics()
    return [metrics[name] for name in names]


def grown(node, names, do):
    before = count(node, *names)
    got = do()
    return got, [now - was for now, was in zip(count(node, *names), before)]


def all_know_the_roles(fleet):
    """In the list of nodes, in /stats, and where it counts: prompts and streams move."""
    roles = ["prefill", "decode", None]  # the last one gives and accepts no requests
    until(lambda: [n["role"] for n in fleet.nodes[0].admin("GET", "/nodes")["data"]] == roles)
    for node, role in zip(fleet.nodes, (*roles[:2], "both")):
        assert node.admin("GET", "/stats")["server"]["fleet_role"] == role
    for node, name in ((fleet.nodes[PREFILL], "lorad_moves_out_total"), (fleet.nodes[DECODE], "lorad_moves_prompts_total")):
        def moves():
            said(node, [("/v1/completions", BASE)])
            return count(node, name)[0] > 0
        until(moves)


def streams_go_on_at_the_other(fleet):
    """The prompts are computed here, only their ends there; the adapter is known there before."""
    a, b, alone = fleet.nodes
    asked = asks("streams", 16)
    want = said(alone, asked)
    names = ("lorad_moves_in_total", KV % "taken", KV % "here", "lorad_prefill_tokens_total")
    with fleet.slow_steps(10):  # of the server for prompts: no stream ends there before it is moved
        got, (taken, came, here, prefill) = grown(b, names, lambda: said(a, asked))
    assert got == want, [(g, w) for g, w in zip(got, want) if g != w]
    choices = sum(body.get("n", 1) for _, body in asked)
    assert taken == choices and came + here == choices and came >= len(asked), (taken, came, here, choices)
    assert prefill < 33 * choices, prefill
    assert "/fleet/v1/adapters" in b.log_path.read_text()


def prompts_are_computed_at_the_other(fleet):
    """And nothing of them here, but for their ends; what its cache had is billed as such."""
    a, b, alone = fleet.nodes
    asked = [ask for ask in asks("prompts", 16) if ask[1].get("n", 1) == 1]
    want = said(alone, asked)
    names = ("lorad_moves_prompts_total", KV % "taken", "lorad_prefill_tokens_total")
    got, (moved, came, prefill) = grown(b, names, lambda: said(b, asked))
    assert got == want, [(g, w) for g, w in zip(got, want) if g != w]
    assert moved == came == len(asked) and prefill < 33 * len(asked), (moved, came, prefill)
    body = {"model": "base", "prompt": "cached: " + LONG, "max_tokens": 4, "temperature": 0}
    cached = [alone.call("POST", "/v1/completions", body, key=KEY).json["usage"] for _ in range(2)]
    assert [b.call("POST", "/v1/completions", body, key=KEY).json["usage"] for _ in range(2)] == cached, cached
    assert cached[1]["prompt_tokens_details"]["cached_tokens"] > 0


def no_key_of_a_client_helps(fleet):
    b = fleet.nodes[DECODE]
    word = fleet.postgres.sql("SELECT door FROM lorad_nodes WHERE node = 1").split()[2]

    def post(body, bearer):
        return b.call("POST", "/fleet/v1/adapters", body, headers={"Content-Type": "application/octet-stream", "Authorization": f"Bearer {bearer}"}).status
    notice = b"lrdnote1" + b"fp".ljust(32, b"\0") + b"".ljust(48, b"\0") + b"none@1".ljust(112, b"\0") + bytes(64)
    assert post(notice, KEY) == post(notice, b.admin_key) == 401
    assert [post(body, word) for body in (b"", notice[:-1], b"x" * 264, b"lrdnote1" + b"\xff" * 256)] == [400] * 4
    assert post(notice + b"x", word) == 413
    assert post(notice, word) == 404


def the_first_token_waits_for_nothing(fleet):
    """A node that is chosen answers nothing until the client has the first token; then it refuses, and this one goes on."""
    a, _, alone = fleet.nodes
    have, asked = threading.Event(), queue.Queue()

    class Node(elsewhere.Handler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.put(self.path)
            have.wait()
            self.answer(503)
    cert, key = elsewhere.certificate(pathlib.Path(tempfile.mkdtemp(prefix="lorad-roles-")))
    port = free_port()
    elsewhere.serve(port, Node, cert, key)
    fleet.postgres.sql("INSERT INTO lorad_nodes(node, instance, name, epoch, heartbeat, applied, door, facts) VALUES (9, 'other', 'other', 1,"
                       f" now() + interval '1 hour', 0, 'https://127.0.0.1:{port} {elsewhere.key_digests(cert)[0]} {'5' * 64}',"
                       " '1 decode 99 0 1 0 0 0 0 0 0 900 1e9 0 0 0 0 0 0 0 0')")
    fleet.nodes[DECODE].stop()
    ask = ("/v1/completions", BASE | {"prompt": "first: " + LONG})
    want = said(alone, [ask])[0]

    def chosen():
        have.clear()
        stream = fleets.Stream(a, KEY, *ask)
        assert stream.begun.wait(600)
        have.set()
        assert stream.whole() == want
        return not asked.empty()
    until(chosen)
    assert asked.get() == "/fleet/v1/requests"
    fleet.postgres.sql("DELETE FROM lorad_nodes WHERE node = 9")
    fleet.nodes[DECODE].start()
    moves_again(fleet)


def moves_again(fleet):
    """Both directions, after a server was away; a node that failed is avoided for some seconds."""
    for node, name in ((fleet.nodes[PREFILL], "lorad_moves_out_total"), (fleet.nodes[DECODE], "lorad_moves_prompts_total")):
        until(lambda: grown(node, (name, "lorad_moves_back_total"), lambda: said(node, [("/v1/completions", BASE)]))[1] == [1, 0])


def without_the_other_all_is_done_here(fleet):
    a, b, alone = fleet.nodes
    asked = asks("alone", 8)
    want = said(alone, asked)
    b.stop()
    assert said(a, asked) == want
    b.start()
    a.stop()
    assert said(b, asked) == want
    a.start()
    moves_again(fleet)


def whoever_is_killed_nothing_is_lost(fleet, kills=4, n=6):
    """Streams at one server while the other is killed; and the other way round."""
    a, b, alone = fleet.nodes
    differ, moved = [], 0
    for k in range(kills):
        node, victim = ((a, b), (b, a))[k % 2]
        asked = [ask for ask in asks(f"killed {k}", 2 * n) if ask[1].get("n", 1) == 1][:n]
        want = said(alone, asked)
        before = count(node, "lorad_moves_out_total", "lorad_moves_prompts_total")
        streams = [fleets.Stream(node, KEY, *ask) for ask in asked]
        for s in streams[:k % n + 1]:
            assert s.begun.wait(600)
        victim.stop(signal.SIGKILL)
        got = [s.whole() for s in streams]
        differ += [(w, g) for w, g in zip(want, got) if w != g]
        moved += sum(count(node, "lorad_moves_out_total", "lorad_moves_prompts_total")) - sum(before)
        victim.start()
        moves_again(fleet)
    assert differ == [], differ
    assert moved >= kills, moved
    return moved


def a_client_of_the_killed_one_resumes(fleet):
    """Its stream ran at the other server; any server gives the rest."""
    a, b, alone = fleet.nodes
    body = BASE | {"max_tokens": 300, "temperature": 1.0}
    r, first = first_events(a, "/v1/completions", body, KEY, 3)
    ticket, last = r.getheader("x-lorad-resume"), re.findall(rb"id: ([0-9]+)", first)[-1].decode()
    a.stop(signal.SIGKILL)
    rest = [node.call("POST", "/v1/completions", body, key=KEY, headers={"x-lorad-resume": ticket, "last-event-id": last}) for node in (b, alone)]
    assert rest[0].status == rest[1].status == 200

    def text(r):
        return re.findall(rb'"text":"((?:[^"\\]|\\.)*)"', r.body)
    assert b"".join(text(rest[0])) == b"".join(text(rest[1])) != b""
    a.start()
    moves_again(fleet)


def usage_is_billed_once(fleet):
    rows = fleet.books_agree()
    assert rows == fleet.usage(fleet.nodes[ALONE], "roles")[0] > 0


def costs_decide(fleet):
    """By the cost models, without `always`: an idle server's stream stays, and a stream's texts are the same."""
    a, b, alone = fleet.nodes
    for node in fleet.nodes:
        node.admin("PATCH", "/config", {"server.fleet_kv": "auto"})
    asked = asks("auto", 16)
    want = said(alone, asked)
    assert said(a, asked) == want and said(b, asked) == want
    for node in fleet.nodes:
        node.admin("PATCH", "/config", {"server.fleet_kv": "never"})
    names = ("lorad_moves_out_total", "lorad_moves_prompts_total")
    for node in (a, b):
        got, moved = grown(node, names, lambda: said(node, asked))
        assert got == want and moved == [0, 0], moved
    for node in fleet.nodes:
        node.admin("PATCH", "/config", {"server.fleet_kv": "always"})


def begin(fleet):
    global KEY, NAME
    KEY, NAME = fleet.tenant("roles"), demo_adapters()[0]
    fleets.upload_everywhere(fleet, KEY, NAME)


def all_of_it():
    key = pathlib.Path(tempfile.mkdtemp(prefix="lorad-roles-")) / "key"
    key.write_text("11" * 32)
    with fleets.Fleet(shared={"responses.key_file": key, "server.fleet_kv": "always"}, each=EACH, program="lorad_faulty") as fleet:
        begin(fleet)
        for step in (all_know_the_roles, streams_go_on_at_the_other, prompts_are_computed_at_the_other, no_key_of_a_client_helps,
                     the_first_token_waits_for_nothing, without_the_other_all_is_done_here, whoever_is_killed_nothing_is_lost,
                     a_client_of_the_killed_one_resumes, costs_decide, usage_is_billed_once):
            step(fleet)
            print(f"  {step.__name__}", flush=True)


def states_go_along():
    """Of a hybrid model: streams and prompts are moved with the snapshot behind the second page."""
    global KEY
    model = hybrid.make_model(pathlib.Path(tempfile.mkdtemp(prefix="lorad-roles-")) / hybrid.NAME)
    with fleets.Fleet(shared={"server.fleet_kv": "always"}, each=EACH, program="lorad_faulty", model=model) as fleet:
        KEY = fleet.tenant("roles")
        a, b, alone = fleet.nodes
        names = (KV % "taken", "lorad_moves_kv_tokens_total", "lorad_state_snapshot_hits_total")
        for word, node in (("stream", a), ("prompt", b)):
            for i in range(100):
                asked = [("/v1/completions", BASE | {"prompt": f"{word} {i} {k}: {hybrid.TEXT}", "max_tokens": 20, "logprobs": 2}) for k in range(3)]
                want = said(alone, asked)
                with fleet.slow_steps(10):
                    got, came = grown(b, names, lambda: said(node, asked))
                assert got == want, (word, got, want)
                if came == [3, 3 * 64, 3]:
                    break
            assert i < 99, (word, came)


if __name__ == "__main__":
    run([all_of_it, states_go_along])
