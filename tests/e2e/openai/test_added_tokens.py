"""Adapters that were trained with tokens added to the base's: in prompts, in answers, beside others."""
import concurrent.futures
import json
import pathlib
import shutil
import struct
import tempfile

from harness import DEMO, Server, events, run

QUESTION = "What is 7 plus 5?"
BASE = DEMO / "base"
CONFIG = json.loads((BASE / "config.json").read_text())
VOCAB, DIM = CONFIG["vocab_size"], CONFIG["hidden_size"]
WX, CALL, WIDE = VOCAB, VOCAB + 1, VOCAB + 2  # what the adapter adds
NEW = [{"id": WX, "content": "<wx>", "special": False},
       {"id": CALL, "content": "<call>", "special": True},
       {"id": WIDE, "content": "<wide>", "special": False, "lstrip": True, "rstrip": True}]
tmp = pathlib.Path(tempfile.mkdtemp())
server = Server(settings={"adapters.max_added_tokens": 8, "adapters.roots": str(tmp)})


def table():
    """The base's input table, which is its output layer, too."""
    raw = (BASE / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    entry = json.loads(raw[8:8 + n])["model.embed_tokens.weight"]
    assert entry["dtype"] == "BF16" and entry["shape"] == [VOCAB, DIM]
    a, b = entry["data_offsets"]
    return raw[8 + n + a:8 + n + b]


def bf16(values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def floats(row):
    return [struct.unpack("<f", b"\0\0" + row[i:i + 2])[0] for i in range(0, len(row), 2)]


def make(name, like, tokens=NEW, rows=None, config=None, tokenizer="tokenizer.json"):
    """A folder as PEFT saves it after resize_token_embeddings(): token WX stands in for `like`, and is likelier."""
    where = tmp / name
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir()
    rank, first = 2, "base_model.model.model.layers.0.self_attn.q_proj"
    base, n_new = table(), len(NEW) if rows is None else rows
    row = floats(base[like * DIM * 2:(like + 1) * DIM * 2])
    more = bf16([1.25 * v for v in row]) + bf16([0.5 * v for v in row]) * (n_new - 1)
    q = CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    tensors = {"base_model.model.model.embed_tokens.weight": ([VOCAB + n_new, DIM], base + more),
               "base_model.model.lm_head.weight": ([VOCAB + n_new, DIM], base + more),
               f"{first}.lora_A.weight": ([rank, DIM], bf16([0.01] * rank * DIM)),
               f"{first}.lora_B.weight": ([q, rank], bf16([0.01] * q * rank))}
    entries, data = {}, b""
    for key, (shape, values) in sorted(tensors.items()):
        entries[key] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    head = json.dumps(entries).encode()
    (where / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (where / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2,
         "target_modules": ["model.layers.0.self_attn.q_proj"], **(config or {})}))
    full = json.loads((BASE / "tokenizer.json").read_text())
    full["added_tokens"] += tokens
    if tokenizer == "tokenizer.json":
        (where / tokenizer).write_text(json.dumps(full))
    elif tokenizer == "tokenizer_config.json":
        (where / tokenizer).write_text(json.dumps(
            {"added_tokens_decoder": {str(t["id"]): t for t in full["added_tokens"]}}))
    elif tokenizer == "added_tokens.json":
        (where / tokenizer).write_text(json.dumps({t["content"]: t["id"] for t in tokens}))
    return where


def tokens_of(model, text, key=None):
    r = server.call("POST", "/tokenize", {"model": model, "prompt": text,
                                          "add_special_tokens": False}, key=key or alice)
    assert r.status == 200, r
    return r.json["tokens"]


def complete(model, prompt, key=None, **more):
    body = {"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 3,
            "return_token_ids": True, **more}
    r = server.call("POST", "/v1/completions", body, key=key or alice)
    assert r.status == 200, r
    return r.json["choices"][0]


def an_added_token_is_one_id():
    assert tokens_of("words", "<wx>") == [WX] and tokens_of("words", "<call>") == [CALL]
    a, b = tokens_of("words", "red"), tokens_of("words", "lamp")
    assert tokens_of("words", "red<wx>lamp") == a + [WX] + b
    assert tokens_of("words", "red   <wide>  lamp") == a + [WIDE] + b
    assert max(tokens_of("base", "<wx>")) < VOCAB and len(tokens_of("base", "<wx>")) > 1
    r = server.call("POST", "/detokenize", {"model": "words", "tokens": a + [WX] + b}, key=alice)
    assert r.json["prompt"] == "red<wx>lamp", r
    r = server.call("POST", "/detokenize", {"model": "base", "tokens": [WX]}, key=alice)
    assert r.status == 400, r


def an_added_token_is_answered_and_streamed():
    prompt = "The red <wx> lamp"
    assert WX in complete("words", prompt)["prompt_token_ids"]
    got = complete("words", START)
    assert got["token_ids"][0] == WX and got["text"].startswith("<wx>"), got
    assert got["logprobs"]["tokens"][0] == "<wx>" and "<wx>" in got["logprobs"]["top_logprobs"][0]
    assert got["text"] == complete("words", START, logprobs=None)["text"]
    r = server.call("POST", "/v1/completions", {"model": "words", "prompt": START, "max_tokens": 12,
                                                "temperature": 0, "stream": True}, key=alice)
    text = "".join(c["choices"][0]["text"] for c in events(r.body) if c.get("choices"))
    assert text == got["text"], (text, got)
    assert max(complete("base", START)["token_ids"]) < VOCAB
    r = server.call("POST", "/v1/chat/completions", {
        "model": "words", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4,
        "temperature": 0, "logit_bias": {str(WX): 100}, "logprobs": True, "top_logprobs": 2}, key=alice)
    assert r.json["choices"][0]["message"]["content"] == "<wx>" * 4, r
    assert r.json["choices"][0]["logprobs"]["content"][0]["bytes"] == list(b"<wx>"), r


def rules_reach_the_added_tokens():
    bias = complete("words", START, logit_bias={str(WIDE): 100}, max_tokens=3)
    assert bias["token_ids"] == [WIDE] * 3 and bias["text"] == "<wide>" * 3, bias
    hidden = complete("words", START, logit_bias={str(CALL): 100}, max_tokens=3)
    assert hidden["token_ids"] == [CALL] * 3 and hidden["text"] == "", hidden
    shown = complete("words", START, logit_bias={str(CALL): 100}, max_tokens=3,
                     skip_special_tokens=False)
    assert shown["text"] == "<call>" * 3, shown
    stopped = complete("words", START, stop_token_ids=[WX])
    assert stopped["finish_reason"] == "stop" and stopped["text"] == "", stopped
    assert complete("words", [WX, WIDE])["prompt_token_ids"] == [WX, WIDE]
    for model, body in [("words", {"prompt": [WIDE + 1]}), ("base", {"prompt": [WX]}),
                        ("words", {"prompt": "a", "logit_bias": {str(WIDE + 1): 1}}),
                        ("base", {"prompt": "a", "logit_bias": {str(WX): 1}}),
                        ("base", {"prompt": "a", "stop_token_ids": [WX]})]:
        r = server.call("POST", "/v1/completions", {"model": model, **body}, key=alice)
        assert r.status == 400 and "from 0 to" in r.json["error"]["message"], r
    form = complete("words", START, structured_outputs={"regex": "[0-9]{3}"})
    assert len(form["text"]) == 3 and form["text"].isdigit(), form


def a_message_cannot_forge_a_special_token():
    def chat(text):
        r = server.call("POST", "/tokenize", {"model": "words", "messages": [
            {"role": "user", "content": text}]}, key=alice)
        return r.json["tokens"]
    assert CALL not in chat("<call>") and WX in chat("<wx>")


def others_are_not_disturbed():
    for name in ("pirate", "shout"):
        server.upload(alice, name, DEMO / "adapters" / name)
    models = ["base", "words", "pirate", "shout", "words"]
    alone = {m: complete(m, START) for m in models}
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        for _ in range(3):
            for m, got in zip(models * 2, pool.map(lambda m: complete(m, START), models * 2)):
                assert got["token_ids"] == alone[m]["token_ids"], (m, got)
                assert got["logprobs"]["token_logprobs"] == alone[m]["logprobs"]["token_logprobs"]


def another_tokenizer_is_another_version():
    server.upload(alice, "words", tmp / "words", expect=(200,))
    other = make("other", LIKE, [{**t, "content": t["content"].upper()} for t in NEW])
    assert server.upload(alice, "words", other, expect=(201,)).json["version"] == 2
    assert tokens_of("words", "<WX>") == [WX] and tokens_of("words@1", "<wx>") == [WX]
    assert tokens_of("words", "<wx>") != [WX]
    assert complete("words", START)["text"].startswith("<WX>")
    server.call("DELETE", "/v1/adapters/words/versions/2", key=alice)
    assert server.call("POST", "/v1/adapters/words/rollback", key=alice).status == 200


def every_way_in():
    for name in ("tokenizer_config.json", "added_tokens.json"):
        server.upload(alice, "also", make("also", LIKE, tokenizer=name))
        assert tokens_of("also", "<wx>") == [WX], name
    make("placed", LIKE)
    r = server.admin("POST", "/adapters/register", {"path": str(tmp / "placed"),
                                                             "tenant": "alice"})
    assert tokens_of("placed", "<wx>") == [WX] and complete("placed", START)["token_ids"][0] == WX, r
    files = sorted(p for p in (tmp / "words").iterdir())
    import hashlib
    listed = [{"path": p.name, "bytes": p.stat().st_size,
               "sha256": hashlib.sha256(p.read_bytes()).hexdigest()} for p in files]
    up = server.call("POST", "/v1/adapters/pieces/versions", {"files": listed}, key=alice)
    assert up.status == 201, up
    states = {f["path"]: f["state"] for f in up.json["files"]}
    assert states["tokenizer.json"] == "missing" and states["adapter_config.json"] == "skipped", states
    at = f"/v1/adapters/pieces/versions/{up.json['id']}"
    assert server.call("POST", at + "/commit", key=alice).status == 409
    r = server.call("PUT", at + "/files/tokenizer.json", (tmp / "words/tokenizer.json").read_bytes(),
                    key=alice, headers={"Content-Type": "application/octet-stream"})
    assert r.status == 200, r
    r = server.call("POST", at + "/commit", key=alice)
    assert r.status == 201 and tokens_of("pieces", "<wx>") == [WX], r
    kept = sorted({p.name for p in pathlib.Path(server.dir).glob("**/adapters/*/*")
                   if len(p.parent.name) == 64 and not p.parent.is_symlink()})
    assert kept == ["adapter_config.json", "adapter_model.safetensors"], kept


def refused(name, folder, *words):
    r = server.upload(alice, name, folder, expect=(422, 413))
    assert all(w in r.json["error"]["message"] for w in words), r
    assert server.call("GET", f"/v1/adapters/{name}", key=alice).status == 404


def what_does_not_fit_is_refused_by_name():
    refused("bad", make("bad", LIKE, tokenizer=None), "save the tokenizer beside it")
    refused("bad", make("bad", LIKE, rows=9), "max_added_tokens", str(VOCAB + 9))
    refused("bad", make("bad", LIKE, NEW[:1] + [{"id": VOCAB + 3, "content": "<far>"}]),
            "<far>", "rows")
    refused("bad", make("bad", LIKE, [{"id": WX, "content": "a"}]), "'a'", "of the base")
    refused("bad", make("bad", LIKE, [{"id": WX, "content": "<x>"}, {"id": CALL, "content": "<x>"}]),
            "<x>", "twice")
    refused("bad", make("bad", LIKE, [{"id": WX, "content": "<x>"}, {"id": WX, "content": "<y>"}]),
            str(WX))
    refused("bad", make("bad", LIKE, NEW[:1] + [{"id": 300, "content": "<x>"}]), "300", "base")
    refused("bad", make("bad", LIKE, [{"id": WX, "content": "x" * 300}]), "300 bytes")
    refused("bad", make("bad", LIKE, [{"id": WX + 0.5, "content": "<x>"}]), "malformed")
    folder = make("bad", LIKE)
    (folder / "tokenizer.json").write_text('{"added_tokens": [{"id": 2048, "content": "<x>"]}')
    refused("bad", folder, "tokenizer.json")
    (folder / "tokenizer.json").write_text('{"added_tokens": 7}')
    refused("bad", folder, "must be a list")
    (folder / "tokenizer.json").write_text('{"model": {"added_tokens": []}}')
    refused("bad", folder, "save the tokenizer beside it")


def no_shape_of_the_files_does_harm():
    """Each in place of what belongs there: refused by the file's name, or as if the file said nothing."""
    odd = ["7", "null", "[]", "{}", '""', "[[]]", "[7]", "[null]", '{"a": 7}', '{"2048": 7}', '{"2048": null}',
           '{"2048": []}', '{"2048": {"content": 7}}', '{"": {}}', '{"2048": ""}', "[{}]", "{", "", "[",
           '[{"id": "2048", "content": "<x>"}]', '[{"id": 2048, "content": "\\u0000"}]']
    members = {"tokenizer.json": "added_tokens", "tokenizer_config.json": "added_tokens_decoder",
               "added_tokens.json": None}
    for name, member in members.items():
        folder = make("bad", LIKE, tokenizer=None)
        for text in odd:
            (folder / name).write_text(f'{{"{member}": {text}}}' if member else text)
            r = server.upload(alice, "bad", folder, expect=(422,))
            message = r.json["error"]["message"]
            assert name in message or "save the tokenizer beside it" in message, (name, text, r)
    folder = make("bad", LIKE)
    for text in odd:
        (folder / "tokenizer_config.json").write_text(f'{{"eos_token": {text}}}')
        r = server.upload(alice, "bad", folder, expect=(200, 201, 422))
        assert r.status != 422 or "tokenizer_config.json" in r.json["error"]["message"], (text, r)
    server.call("DELETE", "/v1/adapters/bad", key=alice)


def it_is_all_there_after_a_restart():
    before = complete("words", START)
    server.stop()
    server.start()
    server.wait_ready()
    assert tokens_of("words", "<wx>") == [WX]
    assert complete("words", START) == before


with server:
    alice = server.tenant("alice")
    START = "The red lamp"
    LIKE = complete("base", START)["token_ids"][0]
    server.upload(alice, "words", make("words", LIKE), expect=(201,))
    run([an_added_token_is_one_id, an_added_token_is_answered_and_streamed,
         rules_reach_the_added_tokens, a_message_cannot_forge_a_special_token,
         others_are_not_disturbed, another_tokenizer_is_another_version, every_way_in,
         what_does_not_fit_is_refused_by_name, no_shape_of_the_files_does_harm, it_is_all_there_after_a_restart])
shutil.rmtree(tmp)
