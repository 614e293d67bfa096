"""The openai-python client against a real server: what an application does on its first day."""
import concurrent.futures

import openai

from harness import DEMO, PATIENCE, Server, demo_adapters, in_pieces, run

QUESTION = "What is 7 plus 5?"
server = Server()


def client(key, **more):
    return openai.OpenAI(base_url=server.url, api_key=key,
                         http_client=openai.DefaultHttpxClient(verify=server.tls()), **more)


def lists_models_of_this_key_only():
    ids = [m.id for m in client(alice).models.list()]
    assert "base" in ids, ids
    assert set(demo_adapters()) <= set(ids), ids
    other = [m.id for m in client(bob).models.list()]
    assert other == ["base"], other
    assert client(alice).models.retrieve("base").object == "model"


def chats():
    r = client(alice).chat.completions.create(
        model="base", messages=[{"role": "user", "content": QUESTION}], temperature=0,
        max_tokens=32)
    assert r.choices[0].finish_reason == "stop", r
    assert r.choices[0].message.role == "assistant"
    assert r.choices[0].message.content.strip(), r
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r._request_id


def streams_the_same_text():
    ask = dict(model="base", messages=[{"role": "user", "content": QUESTION}], temperature=0,
               max_tokens=32)
    whole = client(alice).chat.completions.create(**ask).choices[0].message.content
    chunks = in_pieces(lambda: list(client(alice).chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask)), 5)
    parts = [c.delta.content or "" for chunk in chunks for c in chunk.choices]
    assert "".join(parts) == whole, (parts, whole)
    assert chunks[-1].usage.completion_tokens > 0


def completes_text():
    r = client(alice).completions.create(model="base", prompt="The", max_tokens=5, temperature=0)
    assert r.object == "text_completion" and r.choices[0].text
    assert r.usage.completion_tokens <= 5
    r = client(alice).completions.create(model="base", prompt=["The", "A"], n=2, max_tokens=4,
                                         temperature=0.7, seed=3)
    assert [c.index for c in r.choices] == [0, 1, 2, 3]


def gives_log_probabilities():
    r = client(alice).chat.completions.create(
        model="base", messages=[{"role": "user", "content": QUESTION}], logprobs=True,
        top_logprobs=3, max_tokens=6, temperature=0)
    content = r.choices[0].logprobs.content
    assert content and all(t.logprob <= 0 and len(t.top_logprobs) == 3 for t in content)
    assert all(t.top_logprobs[0].token == t.token for t in content)  # greedy
    r = client(alice).completions.create(model="base", prompt="The red lamp", max_tokens=0,
                                         echo=True, logprobs=2)
    lp = r.choices[0].logprobs
    assert lp.token_logprobs[0] is None and all(v <= 0 for v in lp.token_logprobs[1:])
    assert "".join(lp.tokens) == r.choices[0].text


def same_seed_same_text():
    def ask():
        return client(alice).chat.completions.create(
            model="base", messages=[{"role": "user", "content": QUESTION}], temperature=1.2,
            seed=11, max_tokens=24).choices[0].message.content
    first = ask()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: ask(), range(8))) == {first}


def stops_at_strings():
    c = client(alice)
    full = c.chat.completions.create(model="base", temperature=0, max_tokens=32,
                                     messages=[{"role": "user", "content": QUESTION}])
    text = full.choices[0].message.content
    mark = text[len(text) // 2:len(text) // 2 + 2]
    cut = c.chat.completions.create(model="base", temperature=0, max_tokens=32, stop=[mark],
                                    messages=[{"role": "user", "content": QUESTION}])
    assert cut.choices[0].message.content == text[:text.index(mark)]
    assert cut.choices[0].finish_reason == "stop"


def errors_have_their_classes():
    ask = dict(messages=[{"role": "user", "content": "hi"}])
    for error, fn in [
            (openai.AuthenticationError,
             lambda: client("lk_nothing").chat.completions.create(model="base", **ask)),
            (openai.NotFoundError,
             lambda: client(alice).chat.completions.create(model="nobody", **ask)),
            (openai.NotFoundError,
             lambda: client(bob).chat.completions.create(model=demo_adapters()[0], **ask)),
            (openai.BadRequestError,
             lambda: client(alice).chat.completions.create(model="base", temperature=9, **ask)),
            (openai.BadRequestError,
             lambda: client(alice).chat.completions.create(model="base", max_tokens=10**6,
                                                           **ask))]:
        try:
            fn()
        except error as e:
            assert e.body and e.body["message"], e.body
        else:
            raise AssertionError(f"no {error.__name__}")


def retries_on_429():
    key = server.tenant("hasty", limits={"requests_per_minute": 30})
    seen = []
    http = openai.DefaultHttpxClient(verify=server.tls(),
                        event_hooks={"response": [lambda r: seen.append(r.status_code)]})
    c = openai.OpenAI(base_url=server.url, api_key=key, http_client=http, max_retries=6)
    for _ in range(64):
        c.completions.create(model="base", prompt="The", max_tokens=1)
        if 429 in seen:
            break
    assert 429 in seen and seen[-1] == 200, seen


def breaking_off_a_stream_frees_the_request():
    import time
    stream = client(alice).completions.create(model="base", prompt="The", max_tokens=900,
                                              stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    end = time.monotonic() + 10 * PATIENCE
    while time.monotonic() < end:
        m = server.metrics()
        if m.get("lorad_requests_running", 0) == 0 and m.get("lorad_kv_pages_used", 0) == 0:
            return
        time.sleep(0.05)
    raise AssertionError(f"still running: {m}")


with server:
    alice, bob = server.tenant("alice"), server.tenant("bob")
    for adapter in demo_adapters():
        server.upload(alice, adapter, DEMO / "adapters" / adapter)
    run([lists_models_of_this_key_only, chats, streams_the_same_text, completes_text,
         gives_log_probabilities, same_seed_same_text, stops_at_strings,
         errors_have_their_classes, retries_on_429, breaking_off_a_stream_frees_the_request])
