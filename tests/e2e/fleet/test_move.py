"""A server of a fleet drains under streams: the others go on with them, and clients read what they would have read."""
import shutil

import fleets
from harness import DEMO, demo_adapters, run, until
from postgres import skip_unless_there

skip_unless_there()
TEXT = "What is 7 plus 5?"


def asks(adapter):
    """One of each kind that moves: drawn, greedy, penalties and biases, log-probabilities, two choices, chat, an adapter, Anthropic's."""
    base = {"model": "base", "prompt": TEXT, "stream": True, "ignore_eos": True, "max_tokens": 700, "stream_options": {"include_usage": True}}
    chat = {k: v for k, v in base.items() if k != "prompt"} | {"messages": [{"role": "user", "content": TEXT}]}
    text = "/v1/completions"
    return [(text, base | {"seed": 7, "temperature": 1.3}), (text, base | {"temperature": 0}),
            (text, base | {"seed": 3, "presence_penalty": 1, "repetition_penalty": 1.1, "logit_bias": {"42": 3}, "top_p": 0.9}),
            (text, base | {"seed": 5, "logprobs": 3, "max_tokens": 400}), (text, base | {"seed": 9, "n": 2}),
            ("/v1/chat/completions", chat | {"seed": 11}), (text, base | {"seed": 13, "model": adapter}),
            ("/v1/messages", {"model": "base", "stream": True, "max_tokens": 700, "temperature": 0, "messages": [{"role": "user", "content": "Tell " + TEXT}]})]


def what_runs_goes_on_elsewhere(fleet):
    a, b, c = fleet.nodes
    kinds = asks(NAME)
    differ, taken, notes = fleets.moved(fleet, KEY, kinds)
    assert differ == [] and taken >= len(kinds) - 1, (differ, taken, notes)
    assert notes.count("moved=yes") >= len(kinds) - 1, notes
    a.start()
    fleet.books_agree()
    requests, tokens = fleet.usage(b, "mover")
    assert requests == 2 * (len(kinds) + 1), requests  # a row for each choice, once


def what_cannot_go_stays(fleet):
    """By its name, and to its end."""
    a, *_ = fleet.nodes
    base = {"model": "base", "prompt": TEXT, "stream": True, "max_tokens": 700, "seed": 1, "ignore_eos": True}
    held = [("/v1/completions", base | {"guided_regex": "[a-z ]{2000}"}), ("/v1/completions", base | {"bad_words": ["zebra"]})]
    differ, taken, notes = fleets.moved(fleet, KEY, held)
    assert differ == [] and taken == 0, (differ, taken)
    assert sum("moved=\"no:" in n for n in notes) == 2 or "no:" in a.log_path.read_text(), notes
    a.start()


def a_node_that_took_them_is_killed(fleet):
    """The next one goes on, then the one that drains itself; a client that leaves ends its request everywhere."""
    a, b, c = fleet.nodes

    def kill(streams):
        until(lambda: b.metrics()["lorad_moves_in_total"] > 0)
        b.process.kill()
        b.stop()
    differ, taken, notes = fleets.moved(fleet, KEY, asks(NAME)[:4], kill)
    assert differ == [], differ
    b.start()
    a.start()


def strangers_are_refused(fleet):
    b = fleet.nodes[1]
    for head in ({}, {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"Bearer {b.admin_key}"}, {"Authorization": "Bearer " + "0" * 64}):
        r = b.call("POST", "/fleet/v1/requests", b"x" * 400, headers={"Content-Type": "application/octet-stream", **head})
        assert r.status == 401, r
    word = fleet.postgres.sql("SELECT door FROM lorad_nodes WHERE node = 1").split()[2]
    for order in (b"", b"x" * 400, b"lrdmove1" + b"\0" * 400, b"lrdmove1" + b"\xff" * 400):
        r = b.call("POST", "/fleet/v1/requests", order, headers={"Content-Type": "application/octet-stream", "Authorization": f"Bearer {word}"})
        assert r.status == 400, r


def all_of_it():
    global KEY, NAME
    with fleets.Fleet(shared={"server.drain_timeout": "300s"}) as fleet:
        KEY, NAME = fleet.tenant("mover"), demo_adapters()[0]
        first, *others = fleet.nodes
        first.upload(KEY, NAME, DEMO / "adapters" / NAME)
        for node in others:  # without an object store files are each node's own
            shutil.copytree(first.dir / "adapters", node.dir / "adapters", dirs_exist_ok=True)
        for step in (strangers_are_refused, what_runs_goes_on_elsewhere, what_cannot_go_stays, a_node_that_took_them_is_killed):
            step(fleet)
            print(f"  {step.__name__}", flush=True)


run([all_of_it])
