"""OpenAI's Agents SDK, unchanged, on /v1/responses: a loop of tools, streamed, a form, what is stored.

It lives in the environment of test_messages.py (build/venv-agents); where that could not be installed, the test says so and is
skipped.
"""
import os
import pathlib
import sys

VENV = pathlib.Path(os.environ.get("LORAD_VENVS", pathlib.Path(__file__).resolve().parents[3] / "build")) / "venv-agents"
if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
    if not (VENV / "bin/python").exists():
        print("skipped: the Agents SDK is not installed (sh tests/run.sh does it)")
        sys.exit(77)
    os.execv(VENV / "bin/python", [str(VENV / "bin/python"), *sys.argv])

import asyncio

import agents
import openai
import pydantic

from harness import Server, run

agents.set_tracing_disabled(True)
called = []


@agents.function_tool
def now() -> str:
    """The time of the day."""
    called.append("now")
    return "noon"


def client():
    return openai.AsyncOpenAI(base_url=server.url, api_key=own, max_retries=0,
                                http_client=openai.DefaultAsyncHttpxClient(verify=server.tls()))


def model():
    return agents.OpenAIResponsesModel("base", client())


def chat_model():
    return agents.OpenAIChatCompletionsModel("base", client())


def agent(made=None, **more):
    settings = agents.ModelSettings(max_tokens=100, temperature=0, **more.pop("settings", {}))
    return agents.Agent(name="a", instructions="Be brief.", model=made or model(), model_settings=settings, **more)


def a_tool_is_called_and_answered():
    called.clear()
    result = asyncio.run(agents.Runner.run(agent(tools=[now], settings={"tool_choice": "required"}), "What time is it?"))
    kinds = [type(i).__name__ for i in result.new_items]
    assert called == ["now"] and kinds[:2] == ["ToolCallItem", "ToolCallOutputItem"] and kinds[-1] == "MessageOutputItem", kinds
    assert isinstance(result.final_output, str)


def streams():
    async def ask():
        result = agents.Runner.run_streamed(agent(tools=[now], settings={"tool_choice": "required"}), "What time is it?")
        return [e.data.type async for e in result.stream_events() if e.type == "raw_response_event"], result.final_output
    types, final = asyncio.run(ask())
    assert types.count("response.completed") == 2 and "response.output_text.delta" in types and isinstance(final, str), types


class Answer(pydantic.BaseModel):
    sum: int = pydantic.Field(ge=0, le=99)


def tools_and_an_output_type():
    """The final answer has its type, and tools can be called before it; in both APIs."""
    for made in (model, chat_model):
        for choice in ("auto", "required", "none"):
            called.clear()
            one = agent(made(), tools=[now], output_type=Answer, settings={"tool_choice": choice})
            result = asyncio.run(agents.Runner.run(one, "What is 7 plus 5?"))
            assert isinstance(result.final_output, Answer), result.final_output
            assert called or choice != "required"

    async def streamed():
        result = agents.Runner.run_streamed(agent(tools=[now], output_type=Answer), "What is 7 plus 5?")
        async for _ in result.stream_events():
            pass
        return result.final_output
    assert isinstance(asyncio.run(streamed()), Answer)


def goes_on_from_the_last_response():
    async def ask():
        first = await agents.Runner.run(agent(), "What is 7 plus 5?")
        return first, await agents.Runner.run(agent(), "And?", previous_response_id=first.last_response_id)
    first, second = asyncio.run(ask())
    assert second.raw_responses[0].usage.input_tokens > first.raw_responses[0].usage.input_tokens


with Server() as server:
    own = server.tenant("own")
    run([a_tool_is_called_and_answered, streams, tools_and_an_output_type, goes_on_from_the_last_response])
