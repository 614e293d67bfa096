#!/usr/bin/env python3
"""Makes conf/openapi.json: the inference plane, as it answers.

    make_openapi.py [conf/openapi.json]

Answers of OpenAI's endpoints are described to the last member (additionalProperties: false): the end-to-end
tests hold every answer to it (tests/e2e/contract.py), and a new member must be written down here.  The
adapters' endpoints are described by their shape.
"""
import json
import pathlib
import sys

STR, INT, NUM, BOOL, ANY = ({"type": t} for t in ("string", "integer", "number", "boolean", "object"))


def maybe(schema):
    return {"anyOf": [schema, {"type": "null"}]}


def obj(properties, optional=(), **more):
    return {"type": "object", "properties": properties, "additionalProperties": False,
            "required": [p for p in properties if p not in optional], **more}


def arr(items, **more):
    return {"type": "array", "items": items, **more}


def ref(name):
    return {"$ref": f"#/components/schemas/{name}"}


COUNT = {"type": "integer", "minimum": 0}
USAGE = obj({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT,
             "prompt_tokens_details": obj({"cached_tokens": COUNT}),
             "completion_tokens_details": obj({"reasoning_tokens": COUNT})})
TOKEN = {"token": STR, "logprob": maybe(NUM), "bytes": arr({"type": "integer", "minimum": 0, "maximum": 255})}
CHAT_LOGPROBS = obj({"content": arr(obj({**TOKEN, "top_logprobs": arr(obj(TOKEN))})), "refusal": {"type": "null"}})
TEXT_LOGPROBS = obj({"tokens": arr(STR), "token_logprobs": arr(maybe(NUM)),
                     "top_logprobs": arr(maybe({"type": "object", "additionalProperties": maybe(NUM)})),
                     "text_offset": arr(COUNT)})
CALL = obj({"id": {"type": "string", "minLength": 9}, "type": {"const": "function"},
            "function": obj({"name": STR, "arguments": STR})})
CALL_DELTA = obj({"index": COUNT, "id": STR, "type": {"const": "function"},
                  "function": obj({"name": STR, "arguments": STR}, optional=["name"])}, optional=["id", "type"])
MESSAGE = obj({"role": {"const": "assistant"}, "content": maybe(STR), "refusal": {"type": "null"},
               "tool_calls": arr(CALL, minItems=1)}, optional=["tool_calls"])
DELTA = obj({"role": {"const": "assistant"}, "content": STR, "tool_calls": arr(CALL_DELTA, minItems=1)},
            optional=["role", "content", "tool_calls"])
CHAT_FINISH = {"enum": ["stop", "length", "tool_calls"]}
TEXT_FINISH = {"enum": ["stop", "length"]}
STOP_REASON = {"type": ["string", "integer", "null"]}
IDS = {"prompt_token_ids": arr(COUNT), "token_ids": arr(COUNT)}


def choice(what, logprobs, finish, whole):
    """stop_reason stands where finish_reason does."""
    optional = ["prompt_token_ids", "token_ids"] + ([] if whole else ["stop_reason"])
    return obj({"index": COUNT, **what, "logprobs": maybe(logprobs), "finish_reason": finish if whole else maybe(finish),
                "stop_reason": STOP_REASON, **IDS}, optional=optional)


def answer(prefix, kind, choices, usage=USAGE, optional=()):
    return obj({"id": {"type": "string", "pattern": f"^{prefix}-"}, "object": {"const": kind}, "created": COUNT, "model": STR,
                "service_tier": STR, "system_fingerprint": STR, "choices": choices, "usage": usage},
               optional=["service_tier", *optional])


MODEL = obj({"id": STR, "object": {"const": "model"}, "created": COUNT, "owned_by": STR, "parent": maybe(STR),
             "max_model_len": COUNT})
LIMIT = obj({"limit": maybe(INT), "remaining": maybe(INT)})
SCHEMAS = {
    "Error": obj({"error": obj({"message": {"type": "string", "minLength": 1}, "type": STR, "param": maybe(STR),
                                "code": maybe(STR)})}),
    "ChatCompletion": answer("chatcmpl", "chat.completion",
                             arr(choice({"message": MESSAGE}, CHAT_LOGPROBS, CHAT_FINISH, True), minItems=1)),
    "ChatCompletionChunk": answer("chatcmpl", "chat.completion.chunk",
                                  arr(choice({"delta": DELTA}, CHAT_LOGPROBS, CHAT_FINISH, False), maxItems=1),
                                  maybe(USAGE), ["usage"]),
    "Completion": answer("cmpl", "text_completion",
                         arr(choice({"text": STR}, TEXT_LOGPROBS, TEXT_FINISH, True), minItems=1)),
    "CompletionChunk": answer("cmpl", "text_completion",
                              arr(choice({"text": STR}, TEXT_LOGPROBS, TEXT_FINISH, False), maxItems=1),
                              maybe(USAGE), ["usage"]),
    "Model": MODEL,
    "Models": obj({"object": {"const": "list"}, "data": arr(MODEL), "has_more": BOOL, "next": maybe(STR)}, optional=["next"]),
    "Tokens": obj({"count": COUNT, "max_model_len": COUNT, "tokens": arr(COUNT)}),
    "Text": obj({"prompt": STR}),
    "Key": obj({"object": {"const": "key"}, "id": STR, "public_id": STR, "name": STR, "tenant": maybe(STR),
                "scopes": arr(STR), "expires_at": maybe(INT),
                "limits": obj({n: LIMIT for n in ("requests_per_minute", "tokens_per_minute", "concurrent_requests",
                                                  "tokens_per_day", "tokens_per_month")})}),
    "Page": {"type": "object", "properties": {"object": {"enum": ["list", "page"]}, "data": arr(ANY)},
             "required": ["object", "data"]},
    "Object": ANY,
}

PARTS = arr({"type": "object", "properties": {"type": {"const": "text"}, "text": STR}, "required": ["type", "text"]})
MESSAGE_IN = {"type": "object", "required": ["role"], "properties": {
    "role": {"enum": ["system", "developer", "user", "assistant", "tool"]}, "content": maybe({"anyOf": [STR, PARTS]}),
    "name": STR, "tool_calls": arr(CALL), "tool_call_id": STR, "reasoning_content": STR}}
TOOL = {"type": "object", "required": ["type", "function"], "properties": {"type": {"const": "function"}, "function": {
    "type": "object", "required": ["name"], "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}, "description": STR, "parameters": ANY, "strict": BOOL}}}}
COMMON = {"model": STR, "max_tokens": COUNT, "temperature": {"type": "number", "minimum": 0, "maximum": 2},
          "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "top_k": INT, "min_p": NUM, "repetition_penalty": NUM,
          "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
          "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2}, "logit_bias": ANY, "seed": INT,
          "n": {"type": "integer", "minimum": 1, "maximum": 128}, "stop": {"anyOf": [STR, arr(STR, maxItems=4)]},
          "stop_token_ids": arr(COUNT), "include_stop_str_in_output": BOOL, "ignore_eos": BOOL, "min_tokens": COUNT,
          "skip_special_tokens": BOOL, "truncate_prompt_tokens": INT, "return_token_ids": BOOL, "stream": BOOL,
          "stream_options": {"type": "object", "properties": {"include_usage": BOOL, "continuous_usage_stats": BOOL}},
          "service_tier": STR, "cache_salt": STR, "priority": INT, "response_format": ANY, "structured_outputs": ANY}
CHAT = {"type": "object", "required": ["model", "messages"], "properties": {
    **COMMON, "messages": arr(MESSAGE_IN, minItems=1), "max_completion_tokens": COUNT, "logprobs": BOOL,
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20}, "add_generation_prompt": BOOL,
    "tools": arr(TOOL, minItems=1, maxItems=128), "parallel_tool_calls": BOOL, "chat_template_kwargs": ANY,
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, ANY]}}}
TEXT = {"type": "object", "required": ["model", "prompt"], "properties": {
    **COMMON, "prompt": {"anyOf": [STR, arr({"anyOf": [STR, COUNT, arr(COUNT)]})]}, "echo": BOOL, "best_of": COUNT,
    "logprobs": {"type": "integer", "minimum": 0, "maximum": 5}, "add_special_tokens": BOOL}}

# method and path as in gateway/route.c: what is asked, what comes back, what a stream's frames are
ROUTES = {
    ("POST", "/v1/chat/completions"): (CHAT, "ChatCompletion", "ChatCompletionChunk"),
    ("POST", "/v1/completions"): (TEXT, "Completion", "CompletionChunk"),
    ("POST", "/tokenize"): (ANY, "Tokens", None),
    ("POST", "/detokenize"): (ANY, "Text", None),
    ("GET", "/v1/models"): (None, "Models", None),
    ("GET", "/v1/models/{id}"): (None, "Model", None),
    ("GET", "/v1/key"): (None, "Key", None),
    ("GET", "/v1/usage"): (None, "Page", None),
    ("GET", "/v1/adapters"): (None, "Page", None),
}
ADAPTERS = """GET {name}|PATCH {name}|DELETE {name}|POST {name}/versions|GET {name}/versions|GET {name}/versions/{version}
DELETE {name}/versions/{version}|GET {name}/versions/{version}/files/{file}|PUT {name}/versions/{version}/files/{file}
PATCH {name}/versions/{version}/files/{file}|POST {name}/versions/{version}/commit|POST {name}/versions/{version}/activate
GET {name}/events|GET {name}/usage|PUT {name}/aliases/{alias}|DELETE {name}/aliases/{alias}|POST {name}/rollback
POST {name}/pin|POST {name}/unpin|POST {name}/warm""".replace("\n", "|").split("|")


def operation(path, asked, gives, frames):
    answers = {"application/json": {"schema": ref(gives)}}
    if frames:
        answers["text/event-stream"] = {"schema": ref(frames)}
    out = {"responses": {"2XX": {"description": "what was asked for", "content": answers},
                         "default": {"description": "an error", "content": {"application/json": {"schema": ref("Error")}}}}}
    names = [p[1:-1] for p in path.split("/") if p.startswith("{")]
    if names:
        out["parameters"] = [{"name": n, "in": "path", "required": True, "schema": STR} for n in names]
    if asked:
        out["requestBody"] = {"required": True, "content": {"application/json": {"schema": asked}}}
    return out


def main():
    paths = {}
    for (method, path), (asked, gives, frames) in ROUTES.items():
        paths.setdefault(path, {})[method.lower()] = operation(path, asked, gives, frames)
    for line in ADAPTERS:
        method, rest = line.split(" ")
        path = "/v1/adapters/" + rest
        paths.setdefault(path, {})[method.lower()] = operation(path, None, "Object", None)
    doc = {"openapi": "3.1.0", "info": {"title": "lorad", "version": "1", "description":
           "The inference plane. Paths under /v1 also answer without it, /tokenize and /detokenize also under it."},
           "servers": [{"url": "https://localhost:8443"}], "security": [{"key": []}], "paths": paths,
           "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}, "schemas": SCHEMAS}}
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "conf/openapi.json")
    out.write_text(json.dumps(doc, indent=1) + "\n")


if __name__ == "__main__":
    main()
