#!/usr/bin/env python3
"""Makes conf/openapi.json: the inference and the admin plane, as they answer.

    make_openapi.py [conf/openapi.json]

Answers are described to the last member (additionalProperties: false), each status by its number: the
end-to-end tests hold every answer to it (tests/e2e/contract.py), and a new member must be written down here.
What is asked is described so that what the schemas forbid is refused: tests/e2e/openai/test_schemathesis.py tries.
The admin plane is in openapi_admin.py, other APIs than OpenAI's older ones in openapi_doors.py, files
and batches in openapi_batches.py.
"""
import json
import pathlib
import sys

import openapi_admin
import openapi_batches
import openapi_doors
import sampling_list
from openapi_says import SAYS
from openapi_words import (ANY, BOOL, CLASS, COUNT, FLAG, HEADERS, INT, NUM, STACK, STR, TIME, arr, header, maybe, obj, operation, opt, query, ref)

USAGE = obj({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT,
             "prompt_tokens_details": obj({"cached_tokens": COUNT}),
             "completion_tokens_details": obj({"reasoning_tokens": COUNT})})
TOKEN = {"token": STR, "logprob": maybe(NUM), "bytes": arr({"type": "integer", "minimum": 0, "maximum": 255})}
CHAT_LOGPROBS = obj({"content": arr(obj({**TOKEN, "top_logprobs": arr(obj(TOKEN))})), "refusal": {"type": "null"}})
TEXT_LOGPROBS = obj({"tokens": arr(STR), "token_logprobs": arr(maybe(NUM)),
                     "top_logprobs": arr(maybe({"type": "object", "additionalProperties": maybe(NUM)})),
                     "text_offset": arr(COUNT)})
KINDS = {"function": "arguments", "custom": "input"}  # of calls, and what each is given
CALL = {"anyOf": [obj({"id": {"type": "string", "minLength": 9}, "type": {"const": kind}, kind: obj({"name": STR, given: STR})})
                  for kind, given in KINDS.items()]}
CALL_DELTA = {"anyOf": [obj({"index": COUNT, "id": STR, "type": {"const": kind}, kind: obj({"name": STR, given: STR}, optional=["name"])},
                            optional=["id", "type"]) for kind, given in KINDS.items()]}
THOUGHTS = {"reasoning_content": STR, "reasoning": STR}
MESSAGE = obj({"role": {"const": "assistant"}, "content": maybe(STR), "refusal": {"type": "null"},
               "tool_calls": arr(CALL, minItems=1), **THOUGHTS}, optional=["tool_calls", *THOUGHTS])
DELTA = obj({"role": {"const": "assistant"}, "content": STR, "tool_calls": arr(CALL_DELTA, minItems=1), **THOUGHTS},
            optional=["role", "content", "tool_calls", *THOUGHTS])
CHAT_FINISH = {"enum": ["stop", "length", "tool_calls"]}
TEXT_FINISH = {"enum": ["stop", "length"]}
STOP_REASON = {"type": ["string", "integer", "null"]}
# vLLM's: of a chat in the answer, of a text completion in each choice
PROMPT_IDS = {"prompt_token_ids": arr(COUNT)}
PROMPT = {**PROMPT_IDS, "prompt_logprobs": arr(maybe({"type": "object", "propertyNames": {"pattern": "^[0-9]+$"}, "minProperties": 1,
                                                      "additionalProperties": obj({"logprob": NUM, "decoded_token": STR,
                                                                                   "rank": {"type": "integer", "minimum": 1}})}))}


def choice(what, logprobs, finish, whole, prompt=None):
    """stop_reason stands where finish_reason does."""
    prompt = prompt or {}
    optional = [*prompt, "token_ids"] + ([] if whole else ["stop_reason"])
    return obj({"index": COUNT, **what, "logprobs": maybe(logprobs), "finish_reason": finish if whole else maybe(finish),
                "stop_reason": STOP_REASON, **prompt, "token_ids": arr(COUNT)}, optional=optional)


def answer(prefix, kind, choices, usage=USAGE, optional=(), prompt=None):
    return obj({"id": {"type": "string", "pattern": f"^{prefix}-"}, "object": {"const": kind}, "created": COUNT, "model": STR,
                "service_tier": STR, "system_fingerprint": STR, "choices": choices, "usage": usage, **(prompt or {})},
               optional=["service_tier", *optional, *(prompt or {})])


MODEL = obj({"id": STR, "object": {"const": "model"}, "created": COUNT, "owned_by": STR, "parent": maybe(STR),
             "max_model_len": COUNT})
LIMIT = obj({"limit": maybe(INT), "remaining": maybe(INT)})
LIMITS = obj({n: COUNT for n in ("requests_per_minute", "tokens_per_minute", "max_concurrent", "surcharge_prompt", "surcharge_cached", "surcharge_output")})
RESIDENCY = {"enum": ["disk", "loading", "host", "device", "failed"]}
STATE = {"enum": ["ready", "failed", "draining"]}
VERSION = obj({"object": {"const": "adapter.version"}, "name": STR, "version": COUNT, "model": STR, "state": STATE,
               "error": maybe(STR), "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "bytes": COUNT, "files": {"enum": ["here", "store", "elsewhere", "in_place"]}, "memory_bytes": COUNT,
               "rank": COUNT, "effect": maybe({"enum": ["some", "none"]}), "logit_change": maybe(NUM), "warning": maybe(STR), "residency": RESIDENCY, "host_bytes": COUNT, "hits": COUNT, "loads": COUNT, "load_us": COUNT,
               "idle_seconds": maybe(COUNT), "pinned": BOOL, "in_use": COUNT, "created": COUNT})
ADAPTER = obj({"object": {"const": "adapter"}, "name": STR, "model": STR, "owner": STR, "description": STR, "state": STATE,
               "default_version": maybe(COUNT), "versions": COUNT, "bytes": COUNT, "residency": maybe(RESIDENCY), "pinned": BOOL,
               "generation": COUNT, "aliases": {"type": "object", "additionalProperties": COUNT}, "limits": LIMITS,
               "sharing": {"anyOf": [{"enum": ["none", "all"]}, arr(STR)]}, "created": COUNT}, optional=["sharing"])
SENT = obj({"path": STR, "bytes": COUNT, "sha256": STR, "offset": COUNT, "busy": BOOL,
            "state": {"enum": ["missing", "partial", "complete", "skipped", "ignored"]}}, optional=["sha256", "busy"])
UPLOAD = obj({"object": {"const": "adapter.upload"}, "id": STR, "name": STR, "state": STR, "description": maybe(STR), "activate": BOOL,
              "files": arr(SENT), "bytes": COUNT, "received": COUNT, "expires_in": INT})
DELETED = obj({"object": {"enum": ["adapter", "adapter.version", "adapter.upload"]}, "name": STR, "id": STR, "version": COUNT,
               "deleted": BOOL, "state": {"enum": ["draining", "deleted"]}}, optional=["name", "id", "version", "state"])
STACK_MADE = obj({"object": {"const": "stack"}, "name": STR, "version": COUNT, "model": STR,
                  "adapters": arr(obj({"name": STR, "scale": NUM}), minItems=1, maxItems=4),
                  "cascade": arr(obj({"name": STR, "min_logprob": {"type": "number", "minimum": -100, "maximum": 0}, "complete": {"const": True}},
                                     optional=["min_logprob", "complete"]), minItems=2, maxItems=4), "created": COUNT}, optional=["adapters", "cascade"])
KEPT = obj({"object": {"const": "source_credentials"}, "host": STR, "kind": {"enum": ["bearer", "basic", "s3"]}, "created": COUNT})
EVENT = obj({"object": {"const": "adapter.event"}, "id": STR, "time": COUNT, "actor_key": maybe(STR), "action": STR, "name": STR,
             "detail": maybe(STR)})
USE = {"num_model_requests": COUNT, "input_tokens": COUNT, "input_cached_tokens": COUNT, "output_tokens": COUNT}
USED = obj({"object": {"const": "adapter.usage"}, "version": COUNT, **USE, "by_others": obj(USE)})
SUM = obj({"object": {"const": "usage.completions.result"}, "input_tokens": COUNT, "input_cached_tokens": COUNT,
           "output_tokens": COUNT, "num_model_requests": COUNT, "cost_micros": COUNT, "model": maybe(STR), "api_key_id": maybe(STR),
           "project_id": maybe(STR), "adapter_id": maybe(STR), "class": maybe(STR),
           "tenant": maybe(STR), "key": maybe(STR), "adapter": maybe(STR)})
BUCKET = obj({"object": {"const": "bucket"}, "start_time": INT, "end_time": INT, "results": arr(SUM)})


def page(of, cursor=False):
    return obj({"object": {"const": "list"}, "data": arr(of), "has_more": BOOL, **({"next": maybe(STR)} if cursor else {})})


SCHEMAS = {
    "Error": obj({"error": obj({"message": {"type": "string", "minLength": 1}, "type": STR, "param": maybe(STR),
                                "code": maybe(STR)})}),
    "ChatCompletion": answer("chatcmpl", "chat.completion",
                             arr(choice({"message": MESSAGE}, CHAT_LOGPROBS, CHAT_FINISH, True), minItems=1), prompt=PROMPT),
    "ChatCompletionChunk": answer("chatcmpl", "chat.completion.chunk",
                                  arr(choice({"delta": DELTA}, CHAT_LOGPROBS, CHAT_FINISH, False), maxItems=1),
                                  maybe(USAGE), ["usage"], PROMPT_IDS),
    "Completion": answer("cmpl", "text_completion",
                         arr(choice({"text": STR}, TEXT_LOGPROBS, TEXT_FINISH, True, PROMPT), minItems=1)),
    "CompletionChunk": answer("cmpl", "text_completion",
                              arr(choice({"text": STR}, TEXT_LOGPROBS, TEXT_FINISH, False, PROMPT_IDS), maxItems=1),
                              maybe(USAGE), ["usage"]),
    "Model": MODEL,
    "Models": page(MODEL),
    "Tokens": obj({"count": COUNT, "max_model_len": COUNT, "tokens": arr(COUNT), "token_strs": arr(STR)}, optional=["token_strs"]),
    "Release": obj({"version": STR}),
    "Stack": STACK_MADE, "Stacks": page(STACK_MADE),
    "StackDeleted": obj({"object": {"const": "stack"}, "name": STR, "deleted": {"const": True}}),
    "SourceCredentials": KEPT, "SourceCredentialsList": page(KEPT),
    "SourceCredentialsDeleted": obj({"object": {"const": "source_credentials"}, "host": STR, "deleted": {"const": True}}),
    "Running": obj({"status": {"const": "running"}, "note": STR}),
    "ServerInfo": obj({"vllm_config": obj({
        "model_config": obj({"model": STR, "dtype": STR, "max_model_len": COUNT, "logprobs_mode": STR}),
        "parallel_config": obj({f"{n}_parallel_size": COUNT for n in ("tensor", "pipeline", "data")}),
        "lora_config": obj({"max_loras": COUNT, "max_lora_rank": COUNT})})}),
    "Text": obj({"prompt": STR}),
    "Key": obj({"object": {"const": "key"}, "id": STR, "public_id": STR, "name": STR, "tenant": maybe(STR),
                "scopes": arr(STR), "expires_at": maybe(INT),
                "limits": obj({n: LIMIT for n in ("requests_per_minute", "tokens_per_minute", "concurrent_requests",
                                                  "tokens_per_day", "tokens_per_month", "cost_per_day", "cost_per_month")})}),
    "Usage": obj({"object": {"const": "page"}, "data": arr(BUCKET), "has_more": BOOL, "next_page": maybe(STR)}),
    "Adapter": ADAPTER, "Adapters": page(ADAPTER, True), "Version": VERSION, "Versions": page(VERSION),
    "VersionOrUpload": {"anyOf": [VERSION, UPLOAD]}, "File": SENT, "Deleted": DELETED, "Events": page(EVENT), "Used": page(USED),
    **openapi_doors.SCHEMAS, **openapi_batches.SCHEMAS, **openapi_admin.SCHEMAS,
}

# ------------------------------------------------------------------------------------------ what is asked

PART = {"type": "object", "properties": {"type": {"const": "text"}, "text": STR}, "required": ["type", "text"]}
TEXTS = {"anyOf": [STR, arr(PART), {"type": "null"}]}
CALL_IN = {"anyOf": [{"type": "object", "required": ["id", "function"], "properties": {
    "id": STR, "type": {"enum": ["function", None]}, "function": {"type": "object", "required": ["name"], "properties": {
        "name": STR, "arguments": {"description": "the text of a JSON object; any other value is accepted"}}}}},
    {"type": "object", "required": ["id", "type", "custom"], "properties": {"id": STR, "type": {"const": "custom"}, "custom": {
        "type": "object", "required": ["name"], "properties": {"name": STR, "input": opt(STR)}}}}]}


def message(roles, required, **properties):
    return {"type": "object", "required": ["role", *required], "properties": {
        "role": {"enum": roles}, "content": TEXTS, "name": opt(STR), **properties}}


MESSAGE_IN = {"anyOf": [message(["system", "developer", "user"], []),
                        message(["assistant"], [], reasoning_content=opt(STR), reasoning=opt(STR), tool_calls=opt(arr(CALL_IN, maxItems=128))),
                        message(["tool"], ["tool_call_id"], tool_call_id=STR)]}
TOOL_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
TOOL = {"anyOf": [{"type": "object", "required": ["type", "function"], "properties": {"type": {"const": "function"}, "function": {
    "type": "object", "required": ["name"], "properties": {
        "name": TOOL_NAME, "description": opt(STR), "parameters": {"type": ["object", "null"]}, "strict": opt(BOOL)}}}},
    {"type": "object", "required": ["type", "custom"], "properties": {"type": {"const": "custom"}, "custom": {
        "type": "object", "required": ["name"], "properties": {
            "name": TOOL_NAME, "description": opt(STR), "format": {"type": ["object", "null"], "required": ["type"], "properties": {
                "type": {"const": "text"}}}}}}}]}
TOKEN_ID = {"type": "integer", "minimum": 0}
FORM = {"type": ["object", "null"], "required": ["type"], "properties": {
    "type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]},
    "json_schema": {"type": "object", "properties": {"name": STR, "schema": ANY, "strict": opt(BOOL)}},
    "triggers": arr({"type": "string", "minLength": 1, "maxLength": 256}, minItems=1, maxItems=128),
    "structures": arr({"type": "object", "required": ["begin", "schema", "end"], "properties": {
        "begin": STR, "schema": {"type": ["object", "boolean"]}, "end": STR}}, minItems=1, maxItems=128),
    "format": {"type": "object", "required": ["type"], "properties": {"type": {"const": "triggered_tags"}}}}}
OUTPUTS = {"type": ["object", "null"], "additionalProperties": False, "properties": {
    "json": {"type": ["object", "boolean", "string", "null"]}, "regex": opt(STR), "choice": opt(arr(STR)), "json_object": opt(BOOL), "grammar": opt(STR),
    "structural_tag": {"type": ["object", "string", "null"]},
    "disable_any_whitespace": opt(BOOL), "disable_fallback": opt(BOOL), "disable_additional_properties": opt(BOOL)}}


def whole(lo, hi=None, **more):
    return {"type": ["integer", "null"], "minimum": lo, **({} if hi is None else {"maximum": hi}), **more}


STOP = {"type": "string", "maxLength": 256}
SELECTS = {name: {"type": ["string", "null"], "maxLength": 256, "description": "the name of an adapter, where 'model' is the base"}
           for name in ("lora_path", "lora_adapter", "lora_name", "lora_id", "adapter", "adapter_name", "adapter_id")}
COMMON = {**SELECTS, "model": {"type": "string", "minLength": 1, "maxLength": 256}, "adapters": STACK, **sampling_list.schemas(), "seed": opt(INT), "n": whole(1, 128),
          "best_of": whole(1, 128), "use_beam_search": opt(BOOL), "length_penalty": {"type": ["number", "null"], "minimum": -10, "maximum": 10},
          "early_stopping": {"enum": [True, False, "never", None]},
          "logit_bias": {"type": ["object", "null"], "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
                         "propertyNames": {"pattern": "^[0-9]{1,9}$"}, "maxProperties": 300},
          "stop": {"anyOf": [opt(STOP), arr(STOP, maxItems=16)]}, "stop_token_ids": opt(arr(TOKEN_ID, maxItems=64)),
          "include_stop_str_in_output": opt(BOOL), "skip_special_tokens": opt(BOOL), "truncate_prompt_tokens": {"anyOf": [{"const": -1}, whole(1)]}, "return_token_ids": opt(BOOL),
          "return_tokens_as_token_ids": opt(BOOL), "logprobs_mode": {"enum": ["raw_logprobs", "processed_logprobs", "adjusted_logprobs", None]},
          "prompt_logprobs": whole(0, 20), "allowed_token_ids": opt(arr(TOKEN_ID, minItems=1)),
          "bad_words": opt(arr({"type": "string", "pattern": "\\S", "maxLength": 256}, maxItems=256)),
          "stream": opt(BOOL), "stream_options": {"type": ["object", "null"], "properties": {
              "include_usage": opt(BOOL), "continuous_usage_stats": opt(BOOL)}},
          "service_tier": opt(CLASS), "cache_salt": {"type": ["string", "null"], "maxLength": 1024}, "priority": whole(-1000000, 1000000), "response_format": FORM,
          "structured_outputs": OUTPUTS}
CHAT = {"type": "object", "required": ["model", "messages"], "properties": {
    **COMMON, "messages": arr(MESSAGE_IN, minItems=1, maxItems=2048), "max_tokens": whole(1), "max_completion_tokens": whole(1), "logprobs": opt(BOOL),
    "top_logprobs": whole(0, 20), "add_generation_prompt": opt(BOOL), "continue_final_message": opt(BOOL),
    "documents": opt(arr({"type": "object", "additionalProperties": STR}, maxItems=256)),
    "thinking_budget": whole(0), "include_reasoning": opt(BOOL),
    "reasoning_effort": {"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max", None]}, "modalities": {"enum": [["text"], None]},
    "tools": opt(arr(TOOL, maxItems=128)), "parallel_tool_calls": opt(BOOL),
    "chat_template_kwargs": {"type": ["object", "null"], "maxProperties": 32},
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required", None]}, {
        "type": "object", "required": ["type", "function"], "properties": {"type": {"const": "function"}, "function": {
            "type": "object", "required": ["name"], "properties": {"name": STR}}}}, {
        "type": "object", "required": ["type"], "properties": {
            "type": {"const": "allowed_tools"}, "mode": {"enum": ["auto", "required"]}, "tools": arr(ANY, minItems=1),
            "allowed_tools": {"type": "object", "required": ["mode", "tools"], "properties": {
                "mode": {"enum": ["auto", "required"]}, "tools": arr(ANY, minItems=1)}}}}]}}}
TEXT = {"type": "object", "required": ["model", "prompt"], "properties": {
    **COMMON, "prompt": {"anyOf": [STR, arr(TOKEN_ID, minItems=1), arr({"anyOf": [STR, arr(TOKEN_ID)]}, minItems=1, maxItems=128)]},
    "max_tokens": whole(0), "echo": opt(BOOL), "logprobs": whole(0, 20), "add_special_tokens": opt(BOOL),
    "parse_special": opt(BOOL)}}
MODEL_OPT = {"model": opt(STR)}
TOKENIZE = {"anyOf": [
    {"type": "object", "required": ["prompt"], "properties": {**MODEL_OPT, "prompt": STR, "add_special_tokens": opt(BOOL), "parse_special": opt(BOOL), "return_token_strs": opt(BOOL)},
     "not": {"required": ["messages"]}},
    {"type": "object", "required": ["messages"], "properties": {
        **CHAT["properties"], **MODEL_OPT, "return_token_strs": opt(BOOL)}}]}
DETOKENIZE = {"type": "object", "required": ["tokens"], "properties": {**MODEL_OPT, "tokens": arr(TOKEN_ID)}}
MANIFEST = obj({"files": arr(obj({"path": {"type": "string", "pattern": "^[^./\\\\][^/\\\\]*$", "maxLength": 255}, "bytes": COUNT,
                                  "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"}}), minItems=1, maxItems=64),
                "description": opt(STR), "activate": opt(BOOL)}, optional=["description", "activate"])
BYTES = {"type": "string", "format": "binary"}
SECRET_WORDS = ["bearer", "username", "password", "access_key_id", "secret_access_key", "session_token"]
CREDENTIALS = obj({n: opt(STR) for n in SECRET_WORDS}, optional=SECRET_WORDS)
SOURCE = obj({"source": {"type": "string", "minLength": 1}, "sha256": opt({"type": "string", "pattern": "^[0-9a-f]{64}$"}), "credentials": opt(CREDENTIALS),
              "description": opt(STR), "activate": opt(BOOL)}, optional=["sha256", "credentials", "description", "activate"])
UPLOAD_BODY = {"application/json": {"anyOf": [MANIFEST, SOURCE]}, "application/x-tar": BYTES}
FILE_BODY = {"application/octet-stream": BYTES}
PATCH = obj({"description": opt(STR), "sharing": {"anyOf": [{"enum": ["none", "all"]}, arr(STR, maxItems=1000)]}},
            optional=["description", "sharing"])
STEP = obj({"name": STR, "min_logprob": {"type": ["number", "null"], "minimum": -100, "maximum": 0}, "complete": opt(BOOL)},
           optional=["min_logprob", "complete"])
STACK_BODY = {**obj({"adapters": {**STACK, "type": "array"}, "cascade": arr(STEP, minItems=2, maxItems=4)}, optional=["adapters", "cascade"]),
              "minProperties": 1, "maxProperties": 1}
NAME = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"}
LOAD = {"application/json": obj({"lora_name": NAME, "lora_path": {"type": "string", "pattern": "^/"}, "load_inplace": opt(BOOL), "is_3d_lora_weight": opt(BOOL)},
                                optional=["load_inplace", "is_3d_lora_weight"]),
        "multipart/form-data": {"type": "object", "required": ["lora_name", "files"], "properties": {
            "lora_name": NAME, "load_inplace": {"enum": ["true", "false"]}, "files": arr(BYTES, minItems=1)}}}
UNLOAD = obj({"lora_name": {"type": "string", "minLength": 1}, "lora_int_id": opt(INT)}, optional=["lora_int_id"])
ALIAS = obj({"version": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}})

IF_MATCH = header("If-Match", {"type": "string", "pattern": '^(\\*|"[0-9]{1,19}")$'})
IF_NONE = header("If-None-Match", {"type": "string"})
ACTIVATE = query("activate", FLAG)
LIMIT_1000 = query("limit", {"type": "integer", "minimum": 1, "maximum": 1000})
WINDOW = [query(n, TIME) for n in ("start", "start_time", "end", "end_time")]
USAGE_QUERY = [*WINDOW, query("bucket_width", {"enum": ["1m", "1h", "1d"]}), query("model", STR),
               query("group_by", {"enum": ["model", "key", "adapter", "class", "model,class"]})]
WAYS = (404, 409, 412, 422, 507)  # of changing an adapter to fail

ROUTES = [  # method and path as in gateway/route.c
    operation("POST", "/v1/chat/completions", "ChatCompletion", CHAT, "ChatCompletionChunk", errors=[404, 409, 422, 504], limited=["requests", "tokens"]),
    operation("POST", "/v1/completions", "Completion", TEXT, "CompletionChunk", errors=[404, 409, 422, 504], limited=["requests", "tokens"]),
    operation("POST", "/tokenize", "Tokens", TOKENIZE, errors=[404, 409], limited=["requests"]),
    operation("POST", "/detokenize", "Text", DETOKENIZE, errors=[404, 409], limited=["requests"]),
    operation("GET", "/version", "Release"),
    operation("GET", "/v1/stacks", "Stacks"),
    operation("PUT", "/v1/stacks/{name}", "Stack", STACK_BODY, statuses=[201], errors=WAYS),
    operation("GET", "/v1/stacks/{name}", "Stacks", errors=[404]),
    operation("DELETE", "/v1/stacks/{name}", "StackDeleted", errors=[404]),
    operation("GET", "/v1/source_credentials", "SourceCredentialsList"),
    operation("PUT", "/v1/source_credentials/{host}", "SourceCredentials", CREDENTIALS, errors=[400, 404, 422, 429]),
    operation("DELETE", "/v1/source_credentials/{host}", "SourceCredentialsDeleted", errors=[404]),
    operation("POST", "/v1/load_lora_adapter", None, LOAD, errors=WAYS),
    operation("POST", "/v1/unload_lora_adapter", None, UNLOAD, errors=WAYS),
    operation("POST", "/pause", "Running", parameters=[{**query("mode", {"const": "keep"}), "required": True}]),
    operation("POST", "/resume", "Running"),
    operation("POST", "/reset_prefix_cache", "Running"),
    operation("GET", "/server_info", "ServerInfo", parameters=[query("config_format", {"const": "json"})]),
    operation("GET", "/v1/models", "Models"),
    operation("GET", "/v1/models/{id}", "Model", errors=[404]),
    operation("GET", "/v1/key", "Key"),
    operation("GET", "/v1/usage", "Usage", parameters=USAGE_QUERY, csv=True),
    operation("GET", "/v1/adapters", "Adapters", parameters=[
        LIMIT_1000, query("after", STR), query("prefix", STR), query("state", STATE), query("residency", RESIDENCY),
        query("shared", FLAG)]),
    *(operation(m, "/v1/adapters/" + p, gives, asked, **more) for m, p, gives, asked, more in (
        ("GET", "{name}", "Adapter", None, {"errors": [404]}),
        ("PATCH", "{name}", "Adapter", PATCH, {"errors": WAYS, "parameters": [IF_MATCH]}),
        ("DELETE", "{name}", "Deleted", None, {"errors": WAYS, "statuses": [200, 202], "parameters": [query("drain", FLAG)]}),
        ("POST", "{name}/versions", "VersionOrUpload", UPLOAD_BODY, {
            "errors": (*WAYS, 502), "statuses": [200, 201], "parameters": [ACTIVATE, IF_MATCH, IF_NONE],
            "links": {"upload": ("GET", "/v1/adapters/{name}/versions/{version}",
                                 {"name": "$response.body#/name", "version": "$response.body#/id"})}}),
        ("GET", "{name}/versions", "Versions", None, {"errors": [404]}),
        ("GET", "{name}/versions/{version}", "VersionOrUpload", None, {"errors": [404]}),
        ("DELETE", "{name}/versions/{version}", "Deleted", None, {
            "errors": WAYS, "statuses": [200, 202], "parameters": [query("drain", FLAG)]}),
        ("GET", "{name}/versions/{version}/files/{file}", "File", None, {"errors": [404]}),
        ("PUT", "{name}/versions/{version}/files/{file}", "File", FILE_BODY, {"errors": WAYS}),
        ("PATCH", "{name}/versions/{version}/files/{file}", "File", FILE_BODY, {
            "errors": WAYS, "parameters": [header("Upload-Offset", {"type": "string", "pattern": "^[0-9]{1,18}$"}, True)]}),
        ("POST", "{name}/versions/{version}/commit", "Version", None, {
            "errors": WAYS, "statuses": [200, 201], "parameters": [ACTIVATE, IF_MATCH, IF_NONE]}),
        ("POST", "{name}/versions/{version}/activate", "Adapter", None, {"errors": WAYS, "parameters": [IF_MATCH]}),
        ("GET", "{name}/events", "Events", None, {"errors": [404], "parameters": [LIMIT_1000, query("before", COUNT)]}),
        ("GET", "{name}/usage", "Used", None, {"errors": [404], "parameters": [query("start", TIME), query("end", TIME)]}),
        ("PUT", "{name}/aliases/{alias}", "Adapter", ALIAS, {"errors": WAYS, "parameters": [IF_MATCH]}),
        ("DELETE", "{name}/aliases/{alias}", "Adapter", None, {"errors": WAYS, "parameters": [IF_MATCH]}),
        ("POST", "{name}/rollback", "Adapter", None, {"errors": WAYS, "parameters": [IF_MATCH, query("alias", STR)]}),
        ("POST", "{name}/pin", "Adapter", None, {"errors": WAYS}),
        ("POST", "{name}/unpin", "Adapter", None, {"errors": WAYS}),
        ("POST", "{name}/warm", "Adapter", None, {"errors": [404], "statuses": [200, 202], "parameters": [
            query("version", {"type": "integer", "minimum": 1}), query("wait", {"type": "integer", "minimum": 1, "maximum": 300})]}))),
]


def lines(value, depth, indent=""):
    """JSON with a line for each member down to this depth."""
    if not depth or not isinstance(value, dict) or not value:
        return json.dumps(value)
    inner = ",\n".join(f"{indent} {json.dumps(k)}: {lines(v, depth - 1, indent + ' ')}" for k, v in value.items())
    return f"{{\n{inner}\n{indent}}}"


def main():
    paths = {}
    for method, path, what in ROUTES + openapi_doors.ROUTES + openapi_batches.ROUTES + openapi_admin.ROUTES:
        paths.setdefault(path, {})[method.lower()] = {"summary": SAYS[f"{method} {path}"], **what}
    for path in paths:
        if path.startswith("/admin/"):
            paths[path]["servers"] = [{"url": "https://localhost:8444"}]
    errors = {name: {"description": "an error", "content": {"application/json": {"schema": ref(name)}},
                     "headers": {"x-request-id": ref("x-request-id", "headers")}} for name in ("Error", "MessageError")}
    doc = {"openapi": "3.1.0", "info": {"title": "lorad", "version": "1", "description":
           "The inference and the admin plane. Paths under /v1 also answer without it, /tokenize and /detokenize also under it."},
           "servers": [{"url": "https://localhost:8443"}], "security": [{"key": []}], "paths": paths,
           "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}, "schemas": SCHEMAS,
                          "responses": errors, "headers": HEADERS}}
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "conf/openapi.json")
    out.write_text(lines(doc, 3) + "\n")


if __name__ == "__main__":
    main()
