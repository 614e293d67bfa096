"""openai_types.py -- answers against openai-python's own types, which are generated from OpenAI's published
description: every type exact, every required member there, every enumeration kept, no member that OpenAI does
not have but for the ones below.

Who has OpenAI's openapi.json puts its path into LORAD_OPENAI_DOCUMENT: answers are held to its schemas, too.

openai-python itself checks none of this (it builds its objects without validation and takes any member), so
its client can run against answers that its types do not allow.
"""
import functools
import json
import os
import pathlib

try:
    import jsonschema
    import openai.types
    import openai.types.chat
    import pydantic
except ImportError:  # benches run without it; test_contract.py does not
    openai = None

# What vLLM's clients read beside OpenAI's members, where it may stand, and what it must be.
VLLM = {"ChatCompletion": {"prompt_token_ids", "prompt_logprobs"},
        "ChatCompletion.choices": {"stop_reason", "token_ids"},
        "ChatCompletion.choices.message": {"reasoning_content", "reasoning"},
        "ChatCompletionChunk.choices.delta": {"reasoning_content", "reasoning"},
        "ChatCompletionChunk": {"prompt_token_ids"},
        "ChatCompletionChunk.choices": {"stop_reason", "token_ids"},
        "Completion": {"service_tier"},  # for who asks for one
        "Completion.choices": {"stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs"},
        "Model": {"parent", "max_model_len"}}
LISTS = {"Models": "Model"}
SCHEMAS = {"ChatCompletion": "CreateChatCompletionResponse", "ChatCompletionChunk": "CreateChatCompletionStreamResponse",
           "Completion": "CreateCompletionResponse", "CompletionChunk": "CreateCompletionResponse", "Model": "Model",
           "Models": "ListModelsResponse", "Error": "ErrorResponse"}  # in OpenAI's document


@functools.cache
def published(name):
    path = os.environ.get("LORAD_OPENAI_DOCUMENT")
    if not path or name not in SCHEMAS:
        return None
    parts = json.loads(pathlib.Path(path).read_text())["components"]
    return jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{SCHEMAS[name]}", "components": parts})


@functools.cache
def model(name):
    return {"ChatCompletion": openai.types.chat.ChatCompletion,
            "ChatCompletionChunk": openai.types.chat.ChatCompletionChunk,
            "Completion": openai.types.Completion, "CompletionChunk": openai.types.Completion,
            "Model": openai.types.Model}.get(name)


def extras(value, path, found):
    """Members that the type does not have, as (path, name)."""
    if isinstance(value, pydantic.BaseModel):
        found.update((path, name) for name in value.model_extra or ())
        for name in type(value).model_fields:
            extras(getattr(value, name), f"{path}.{name}", found)
    elif isinstance(value, list):
        for each in value:
            extras(each, path, found)
    elif isinstance(value, dict):
        for each in value.values():
            extras(each, path, found)
    return found


def as_published(name, value):
    """As as_typed; what the published document does not say: all chunks but the last of a stream with
    include_usage have a usage that is null, with OpenAI as well."""
    if name == "CompletionChunk" and value.get("usage", 0) is None:
        value = {k: v for k, v in value.items() if k != "usage"}
    return as_typed(name, value)


def as_typed(name, value):
    """What OpenAI's own answers have and the generated types don't say: an echoed prompt's first token has no
    log-probability (null), and a stream of text completions has no finish_reason until its last chunk."""
    if name not in ("Completion", "CompletionChunk"):
        return value
    value = {**value, "choices": [dict(c) for c in value["choices"]]}
    for choice in value["choices"]:
        if name == "CompletionChunk" and choice["finish_reason"] is None:
            choice["finish_reason"] = "stop"
        odds = choice.get("logprobs")
        if odds and odds["token_logprobs"][:1] == [None] and odds["top_logprobs"][:1] == [None]:
            choice["logprobs"] = {**odds, "token_logprobs": [0.0, *odds["token_logprobs"][1:]],
                                  "top_logprobs": [{}, *odds["top_logprobs"][1:]]}
    return value


def hold(name, value, what):
    """Raises where OpenAI's type does not allow the value; names that OpenAI does not have are not looked at."""
    if openai is None:
        return
    document = published(name)
    wrong = document and next(document.iter_errors(as_published(name, value)), None)
    if wrong:
        raise AssertionError(f"{what}: no {SCHEMAS[name]} of OpenAI: {wrong.json_path}: {wrong.message}\n{str(value)[:600]}")
    if name in LISTS:
        for each in value["data"]:
            hold(LISTS[name], each, what)
        return
    kind = model(name)
    if kind is None:
        return
    try:
        made = kind.model_validate(as_typed(name, value), strict=True)
    except pydantic.ValidationError as e:
        raise AssertionError(f"{what}: no {kind.__name__} of openai-python: {e}\n{str(value)[:600]}") from None
    odd = {f"{path}: {extra}" for path, extra in extras(made, kind.__name__, set()) if extra not in VLLM.get(path, ())}
    if odd:
        raise AssertionError(f"{what}: members that openai-python's {kind.__name__} does not have: {sorted(odd)}")
