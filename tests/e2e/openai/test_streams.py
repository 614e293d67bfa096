"""Attention sinks over HTTPS: an answer three times as long as the model's own context, beside an adapter's, in a few pages; what cannot be so
is refused at the start."""
from harness import DEMO, Server, run

SETTINGS = {"model.attention_sinks": "4", "model.attention_window": "300", "engine.max_context": "4096", "engine.kv_memory": "4MiB",
            "engine.max_rows": "64", "engine.max_seqs": "4"}


def ask(server, key, model, tokens):
    r = server.call("POST", "/v1/completions", {"model": model, "prompt": "Once", "max_tokens": tokens, "temperature": 0, "ignore_eos": True},
                    key=key)
    assert r.status == 200 and r.json["usage"]["completion_tokens"] == tokens, r
    return r.json["choices"][0]["text"]


def answers_go_beyond_the_models_context():
    with Server(settings=SETTINGS) as s:
        key = s.tenant("streams")
        s.upload(key, "pirate", DEMO / "adapters/pirate")
        card = s.call("GET", "/v1/models/base", key=key).json
        assert card["max_model_len"] == 4096, card  # the model's own is 1024
        base, pirate = ask(s, key, "base", 3000), ask(s, key, "pirate", 1500)
        assert base != pirate and ask(s, key, "base", 1200) == base[:len(ask(s, key, "base", 1200))]


def what_cannot_be_is_refused():
    for more, words in (({"model.attention_window": "0"}, "both"), ({"model.attention_window": "1021"}, "1024 positions")):
        try:
            with Server(settings={**SETTINGS, **more}):
                raise AssertionError(f"it serves with {more}")
        except RuntimeError as e:
            assert words in str(e), e


run([answers_go_beyond_the_models_context, what_cannot_be_is_refused])
