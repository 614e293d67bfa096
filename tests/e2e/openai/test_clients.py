"""LangChain's ChatOpenAI and LiteLLM as clients: basic, streaming, async, tools, JSON schemas, errors.

They need other versions of openai-python than test_openai_client.py uses, so they live in an environment of
their own (build/venv-clients, requirements-clients.txt; made by tests/run.sh).  Where that could not be
installed, the test says so and is skipped.
"""
import os
import pathlib
import sys

VENV = pathlib.Path(os.environ.get("LORAD_VENVS", pathlib.Path(__file__).resolve().parents[3] / "build")) / "venv-clients"
if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
    if not (VENV / "bin/python").exists():
        print("skipped: LangChain and LiteLLM are not installed (sh tests/run.sh does it)")
        sys.exit(77)
    os.execv(VENV / "bin/python", [str(VENV / "bin/python"), *sys.argv])

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no look-ups outside
os.environ["LANGSMITH_TRACING"] = "false"

import asyncio
import json
from typing import Literal

import httpx
import langchain_core.messages as lc
import langchain_openai
import litellm
import openai
import pydantic

from harness import Server, in_pieces, run

QUESTION = "What is 7 plus 5?"
MESSAGES = [{"role": "user", "content": QUESTION}]


class Point(pydantic.BaseModel):
    """A point on the map."""
    kind: Literal["town", "river"]
    x: int = pydantic.Field(ge=-9, le=9)


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


ADD = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"], "additionalProperties": False}}}


# ---------------------------------------------------------------------------- LangChain

def chain(secret=None, **more):
    ask = {"model": "base", "temperature": 0, "max_tokens": 32, **more}
    return langchain_openai.ChatOpenAI(
        base_url=server.url, api_key=secret or key, max_retries=0, http_client=httpx.Client(verify=server.tls()),
        http_async_client=httpx.AsyncClient(verify=server.tls()), **ask)


def langchain_invokes_streams_and_batches():
    whole = chain().invoke([lc.SystemMessage("Be brief."), lc.HumanMessage(QUESTION)])
    assert whole.content and whole.response_metadata["finish_reason"] in ("stop", "length")
    usage = whole.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
    plain = chain().invoke(QUESTION).content
    chunks = in_pieces(lambda: list(chain(stream_usage=True).stream(QUESTION)), 4)
    assert "".join(c.content for c in chunks) == plain
    assert sum((c.usage_metadata or {}).get("output_tokens", 0) for c in chunks) > 0
    assert [m.content for m in chain().batch([QUESTION] * 3)] == [plain] * 3
    scored = chain(logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert scored.response_metadata["logprobs"]["content"][0]["top_logprobs"]


def langchain_is_asynchronous():
    async def both():
        llm = chain()
        whole, parts = await llm.ainvoke(QUESTION), [c.content async for c in llm.astream(QUESTION)]
        many = await asyncio.gather(*(llm.ainvoke(QUESTION) for _ in range(4)))
        return whole.content, "".join(parts), {m.content for m in many}
    whole, parts, many = asyncio.run(both())
    assert whole == parts and many == {whole}


def langchain_calls_tools():
    for choice in ("any", "add"):
        llm = chain(max_tokens=200, seed=1, temperature=1).bind_tools([add, Point], tool_choice=choice)
        call = llm.invoke(QUESTION)
        assert len(call.tool_calls) == 1 and not call.invalid_tool_calls, call
        one = call.tool_calls[0]
        assert one["name"] in ("add", "Point") and one["id"] and isinstance(one["args"], dict)
        total = None
        for chunk in llm.stream(QUESTION):
            total = chunk if total is None else total + chunk
        assert [(c["name"], c["args"]) for c in total.tool_calls] == [(one["name"], one["args"])]
    answer = chain().bind_tools([add]).invoke(
        [lc.HumanMessage(QUESTION), call, lc.ToolMessage("12", tool_call_id=one["id"]), lc.HumanMessage("So?")])
    assert isinstance(answer, lc.AIMessage)


def langchain_goes_on_after_a_cut_call():
    """Its loop sends a call that was cut back as it came, with text for arguments."""
    for most in range(8, 40, 4):
        llm = chain(max_tokens=most, seed=most, temperature=1).bind_tools([add, Point], tool_choice="any")
        for call in (llm.invoke(QUESTION), sum(list(llm.stream(QUESTION))[1:], start=next(iter(llm.stream(QUESTION))))):
            made = [*call.tool_calls, *call.invalid_tool_calls]
            results = [lc.ToolMessage("cut", tool_call_id=c["id"]) for c in made]
            answer = chain().bind_tools([add]).invoke([lc.HumanMessage(QUESTION), call, *results, lc.HumanMessage("go on")])
            assert isinstance(answer, lc.AIMessage)


def langchain_knows_a_prompt_that_is_too_long():
    for ask, llm in (("seven plus " * 1500, chain()), (QUESTION, chain(max_tokens=32000))):
        try:
            llm.invoke(ask)
        except openai.BadRequestError as e:
            assert e.code == "context_length_exceeded" and "context" in type(e).__name__.lower() + str(e), type(e)
        else:
            raise AssertionError("it was not refused")


def langchain_has_tools_and_a_format():
    llm = chain(max_tokens=200, temperature=1, seed=3).bind_tools([add], response_format=Point, strict=True)
    got = llm.invoke(QUESTION)
    assert got.tool_calls or -9 <= Point.model_validate_json(got.content).x <= 9, got


def langchain_gives_structures():
    for method in ("json_schema", "function_calling"):
        llm = chain(max_tokens=200, temperature=1, seed=3).with_structured_output(Point, method=method)
        for got in (llm.invoke(QUESTION), asyncio.run(llm.ainvoke(QUESTION))):
            assert isinstance(got, Point) and -9 <= got.x <= 9, got


def langchain_sees_errors():
    for error, llm in ((openai.AuthenticationError, chain(secret="lk_nothing")),
                       (openai.NotFoundError, chain(model="nobody")),
                       (openai.BadRequestError, chain(temperature=9))):
        for ask in (llm.invoke, lambda q, llm=llm: list(llm.stream(q)), lambda q, llm=llm: asyncio.run(llm.ainvoke(q))):
            try:
                ask(QUESTION)
            except error as e:
                assert e.body["message"]
            else:
                raise AssertionError(f"no {error.__name__}")


# ------------------------------------------------------------------------------ LiteLLM

def lite(**more):
    return {"model": "openai/base", "api_base": server.url, "api_key": key, "messages": MESSAGES, "temperature": 0,
            "max_tokens": 32, "num_retries": 0, "max_retries": 0, **more}


def litellm_completes_and_streams():
    whole = litellm.completion(**lite())
    text = whole.choices[0].message.content
    assert text and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(litellm.completion(stream=True, stream_options={"include_usage": True}, **lite()))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].message.content == text
    assert built.usage.completion_tokens == whole.usage.completion_tokens
    r = litellm.text_completion(model="text-completion-openai/base", prompt="The", max_tokens=4, api_base=server.url,
                                api_key=key, max_retries=0)
    assert r.choices[0].text


def litellm_is_asynchronous():
    async def both():
        whole = await litellm.acompletion(**lite())
        parts = [c.choices[0].delta.content or "" async for c in await litellm.acompletion(stream=True, **lite())]
        return whole.choices[0].message.content, "".join(parts)
    whole, parts = asyncio.run(both())
    assert whole == parts


def litellm_calls_tools():
    ask = lite(tools=[ADD], tool_choice={"type": "function", "function": {"name": "add"}}, max_tokens=200)
    message = litellm.completion(**ask).choices[0].message
    call = message.tool_calls[0]
    assert call.function.name == "add" and set(json.loads(call.function.arguments)) == {"a", "b"}
    chunks = list(litellm.completion(stream=True, **ask))
    built = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0]
    assert built.function.arguments == call.function.arguments and built.function.name == "add"
    more = [*MESSAGES, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "12"}]
    assert litellm.completion(**lite(messages=more, tools=[ADD])).choices[0].finish_reason


def litellm_gives_structures():
    r = litellm.completion(**lite(response_format=Point, max_tokens=200, temperature=1, seed=2))
    assert -9 <= Point.model_validate_json(r.choices[0].message.content).x <= 9
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": Point.model_json_schema()}}
    r = litellm.completion(**lite(response_format=schema, max_tokens=200, temperature=1, seed=2))
    Point.model_validate_json(r.choices[0].message.content)


def litellm_sees_errors():
    for error, more in ((litellm.AuthenticationError, {"api_key": "lk_nothing"}),
                        (litellm.NotFoundError, {"model": "openai/nobody"}),
                        (litellm.BadRequestError, {"temperature": 9})):
        for stream in (False, True):
            try:
                list(litellm.completion(stream=stream, **lite(**more)))
            except error as e:
                assert e.status_code in (400, 401, 404)
            else:
                raise AssertionError(f"no {error.__name__}")


def litellm_knows_a_prompt_that_is_too_long():
    long = [{"role": "user", "content": "seven plus " * 1500}]
    for more in ({"messages": long}, {"max_tokens": 32000}, {"messages": long, "model": "hosted_vllm/base"}):
        for stream in (False, True):
            try:
                list(litellm.completion(stream=stream, **lite(**more)))
            except litellm.ContextWindowExceededError as e:
                assert e.status_code == 400
            else:
                raise AssertionError(f"no ContextWindowExceededError: {more}")


def litellm_has_tools_and_a_format():
    for seed in range(4):
        m = litellm.completion(**lite(tools=[ADD], response_format=Point, max_tokens=200, temperature=1, seed=seed)).choices[0].message
        assert m.tool_calls or -9 <= Point.model_validate_json(m.content).x <= 9, m


server = Server()
with server:
    key = server.tenant("clients")
    os.environ["SSL_CERT_FILE"] = server.ca
    litellm.ssl_verify = server.ca
    run([langchain_invokes_streams_and_batches, langchain_is_asynchronous, langchain_calls_tools,
         langchain_goes_on_after_a_cut_call, langchain_knows_a_prompt_that_is_too_long, langchain_has_tools_and_a_format,
         litellm_knows_a_prompt_that_is_too_long, litellm_has_tools_and_a_format,
         langchain_gives_structures, langchain_sees_errors, litellm_completes_and_streams, litellm_is_asynchronous,
         litellm_calls_tools, litellm_gives_structures, litellm_sees_errors])
