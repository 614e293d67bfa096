"""Every part of every JSON document that the server reads, in turn something else: a list where an object belongs,
a number where a text does.  Whatever comes of it, it is an answer that the description allows and no server error,
and the server is the same process afterwards.  Schemas are documents of the client's, too."""
import copy
import io
import json
import struct
import tarfile

import contract
from harness import DEMO, Reply, Server, run

ODD = [7, -1.5, None, True, "", "x", [], {}, [[]], [None], ["x", 7], {"a": [7]}, {"": None}, {"a": {"b": {}}}, 1e300]
server = Server(settings={"log.level": "warn"})

TOOLS = [{"type": "function", "function": {"name": "find", "description": "d", "strict": True, "parameters": {
    "type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}}}]
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t", "type": "object",
    "$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}},
    "properties": {
        "a": {"type": "string", "pattern": "^[a-c]+$"}, "l": {"type": "string", "minLength": 1, "maxLength": 4},
        "b": {"type": ["integer", "null"], "minimum": 1, "maximum": 9}, "c": {"enum": ["x", 1, None]}, "d": {"const": {"e": 1}},
        "f": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        "g": {"type": "array", "prefixItems": [{"type": "number"}], "items": False},
        "h": {"oneOf": [{"type": "string", "format": "date"}, {"type": "number"}]},
        "i": {"allOf": [{"type": "object", "properties": {"j": {"type": "string"}}}, {"required": ["j"]}]},
        "k": {"$ref": "#/$defs/node"}},
    "required": ["a", "b"], "additionalProperties": False}
SHORT = {"model": "base", "max_tokens": 1, "max_completion_tokens": 1}
CHAT = {
    **SHORT, "temperature": 0.5, "top_p": 0.9, "n": 2, "stop": ["a", "b"], "seed": 1, "logit_bias": {"5": 1}, "user": "u",
    "presence_penalty": 0.1, "frequency_penalty": 0.1, "logprobs": True, "top_logprobs": 2, "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "service_tier": "auto", "tools": TOOLS,
    "tool_choice": "auto", "parallel_tool_calls": False, "metadata": {"a": "b"}, "chat_template_kwargs": {"a": [{"b": 1}]},
    "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 0, "stop_token_ids": [3], "ignore_eos": False,
    "skip_special_tokens": True, "include_stop_str_in_output": False, "return_token_ids": True, "cache_salt": "s", "priority": 0,
    "add_generation_prompt": True, "truncate_prompt_tokens": 40, "messages": [
        {"role": "system", "content": [{"type": "text", "text": "s"}]}, {"role": "user", "content": "u", "name": "n"},
        {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{\"q\": \"x\"}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "t"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]}
HI = {**SHORT, "messages": [{"role": "user", "content": "hi"}]}
DOCUMENTS = [  # plane, method, path, document
    ("", "POST", "/v1/chat/completions", CHAT),
    ("", "POST", "/v1/chat/completions", {**HI, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "find"}}}),
    ("", "POST", "/v1/chat/completions", {**HI, "response_format": {"type": "json_schema", "json_schema": {
        "name": "n", "strict": True, "schema": SCHEMA}}}),
    ("", "POST", "/v1/chat/completions", {**HI, "structured_outputs": {"choice": ["a", "b"]}}),
    ("", "POST", "/v1/chat/completions", {**HI, "structured_outputs": {"regex": "[ab]"}}),
    ("", "POST", "/v1/completions", {**SHORT, "prompt": [[5, 6], [7]], "echo": True, "logprobs": 1, "best_of": 1, "n": 1}),
    ("", "POST", "/v1/completions", {**SHORT, "prompt": ["a", "b"], "suffix": None, "stop": "x"}),
    ("", "POST", "/tokenize", {"model": "base", "prompt": "a", "add_special_tokens": True}),
    ("", "POST", "/tokenize", {"model": "base", "messages": CHAT["messages"], "add_generation_prompt": True}),
    ("", "POST", "/detokenize", {"model": "base", "tokens": [5, 6]}),
    ("", "PATCH", "/v1/adapters/shaped", {"description": "d", "sharing": ["patched"]}),
    ("", "PUT", "/v1/adapters/shaped/aliases/prod", {"version": 1}),
    ("", "POST", "/v1/adapters/other/versions", {"description": "d", "activate": False, "files": [
        {"path": "adapter_config.json", "bytes": 700, "sha256": "a" * 64},
        {"path": "adapter_model.safetensors", "bytes": 9000, "sha256": "b" * 64}]}),
    ("admin", "POST", "/admin/v1/tenants", {
        "name": "made", "weight": 1, "default_class": "batch", "classes": ["batch"], "models": ["base"], "networks": ["10.0.0.0/8"],
        "limits": {"requests_per_minute": 5, "tokens_per_day": 100, "max_concurrent": 1}}),
    ("admin", "PATCH", "/admin/v1/tenants/patched", {"weight": 2, "classes": ["batch"], "models": ["base"], "networks": []}),
    ("admin", "PATCH", "/admin/v1/limits/patched", {"requests_per_minute": 5, "tokens_per_day": 100, "max_concurrent": 1}),
    ("admin", "PATCH", "/admin/v1/limits/alice/shaped", {"requests_per_minute": 500000, "tokens_per_minute": 1 << 40}),
    ("admin", "POST", "/admin/v1/keys", {
        "tenant": "patched", "name": "n", "scopes": ["inference"], "expires_at": 4000000000, "requests_per_minute": 5,
        "networks": ["10.0.0.0/8"]}),
    ("admin", "POST", "/admin/v1/adapters/register", {"path": "/nonexistent/x", "tenant": "patched", "name": "n"}),
    ("admin", "POST", "/admin/v1/backup", {"path": "/nonexistent/x"})]


def places(tree, path=()):
    """The paths of all parts, the whole first."""
    yield path
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield from places(tree[key], (*path, key))


def changed(tree, path, value):
    if not path:
        return value
    tree = copy.deepcopy(tree)
    at = tree
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return tree


def variants(tree):
    """Each part replaced by each odd value."""
    for path in places(tree):
        for value in ODD:
            yield changed(tree, path, value)


class Line:
    """One kept-alive connection, as fast as it goes."""

    def __init__(self, port=None, key=None):
        self.port, self.key, self.c = port, key, server.connect(port)

    def call(self, method, path, body, kind="application/json"):
        self.c.request(method, path, body, {"Authorization": f"Bearer {self.key}", "Content-Type": kind})
        r = self.c.getresponse()
        reply = Reply(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
        contract.check(method, path, reply.status, reply.headers, reply.body, self.port == server.admin_port)
        assert reply.status < 500 and b"server_error" not in reply.body, (method, path, body[:2000], reply)
        return reply


def every_document():
    lines = {"": Line(None, key), "admin": Line(server.admin_port, server.admin_key)}
    for plane, method, path, document in DOCUMENTS:
        n = refused = 0
        r = lines[plane].call(method, path, json.dumps(document))
        assert r.status < 300 or "nonexistent" in json.dumps(document), (path, document, r)
        for odd in variants(document):
            refused += lines[plane].call(method, path, json.dumps(odd)).status >= 400
            n += 1
        assert n // 3 < refused, (path, refused, n)  # else it reads nothing of it
        print(f"        {method} {path}: {n}, {refused} refused", flush=True)


def tar(config, weights):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as t:
        for name, content in (("adapter_config.json", config), ("adapter_model.safetensors", weights)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            t.addfile(info, io.BytesIO(content))
    return data.getvalue()


def every_part_of_an_adapter():
    line, folder = Line(None, key), DEMO / "adapters/json"
    weights = (folder / "adapter_model.safetensors").read_bytes()
    size = struct.unpack("<Q", weights[:8])[0]
    head, data = json.loads(weights[8:8 + size]), weights[8 + size:]
    layers = json.loads((DEMO / "base/config.json").read_text())["num_hidden_layers"]
    config = {**json.loads((folder / "adapter_config.json").read_text()),
              "rank_pattern": {"q_proj": 8}, "alpha_pattern": {"q_proj": 16}, "exclude_modules": ["lm_head"],
              "layers_to_transform": list(range(layers)), "layers_pattern": ["layers"], "modules_to_save": None,
              "runtime_config": {"ephemeral_gpu_offload": False}}
    r = line.call("POST", "/v1/adapters/odd/versions", tar(json.dumps(config).encode(), weights), "application/x-tar")
    assert r.status == 201, r
    two = dict(sorted(head.items())[:2])  # the rest is as the first
    n = refused = 0
    for odd in variants(config):
        refused += line.call("POST", "/v1/adapters/odd/versions", tar(json.dumps(odd).encode(), weights),
                             "application/x-tar").status >= 400
        n += 1
    for odd in variants(two):
        text = json.dumps({**head, **odd} if isinstance(odd, dict) else odd).encode()
        refused += line.call("POST", "/v1/adapters/odd/versions", tar(
            (folder / "adapter_config.json").read_bytes(), struct.pack("<Q", len(text)) + text + data),
            "application/x-tar").status >= 400
        n += 1
    print(f"        adapters: {n}, {refused} refused", flush=True)
    assert n // 2 < refused, (refused, n)


def it_is_still_the_same_server():
    assert server.process.poll() is None and server.process.pid == pid
    r = server.call("POST", "/v1/chat/completions", HI, key=key)
    assert r.status == 200, r


with server:
    pid = server.process.pid
    key = server.tenant("alice")
    server.tenant("patched")
    server.upload(key, "shaped", DEMO / "adapters/json")
    run([every_document, every_part_of_an_adapter, it_is_still_the_same_server])
