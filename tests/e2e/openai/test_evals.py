"""instructor in all of its modes, pydantic-ai with tools and a type, and lm-eval's log-likelihoods, by their own packages.

They live in build/venv-evals (requirements-evals.txt), which tests/run.sh makes; where it is not, the test says so
and is skipped.  lm-eval itself comes without torch; where transformers and torch are there, its sums are held to theirs.
"""
import os
import pathlib
import sys

VENV = pathlib.Path(os.environ.get("LORAD_VENVS", pathlib.Path(__file__).resolve().parents[3] / "build")) / "venv-evals"
if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
    if not (VENV / "bin/python").exists():
        print("skipped: instructor and lm-eval are not installed (sh tests/run.sh --full clients does it)")
        sys.exit(77)
    os.execv(VENV / "bin/python", [str(VENV / "bin/python"), *sys.argv])

os.environ["HF_HUB_OFFLINE"] = "1"

import asyncio
import atexit
import importlib.util
import shutil
import tempfile

import openai
import pydantic

from harness import DEMO, Server, run

QUESTION = [{"role": "user", "content": "What is 7 plus 5?"}]
N = 200
WITH_TORCH = importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")


class Answer(pydantic.BaseModel):
    """The sum."""
    sum: int = pydantic.Field(ge=0, le=99)


def client():
    return openai.OpenAI(base_url=server.url, api_key=key, max_retries=0, http_client=openai.DefaultHttpxClient(verify=server.tls()))


def instructor_in_all_modes():
    import anthropic
    import instructor
    from instructor import Mode
    held = ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS", "RESPONSES_TOOLS_WITH_INBUILT_TOOLS", "PARALLEL_TOOLS"]
    asked = ["JSON", "MD_JSON"]  # the format is only asked for: a tiny model need not keep it, and must not be refused
    for name in held + asked:
        mode = getattr(Mode, name, None)
        if mode is None:
            continue
        c = instructor.from_openai(client(), mode=mode)
        kind = list[Answer] if name == "PARALLEL_TOOLS" else Answer
        if name == "PARALLEL_TOOLS":
            from collections.abc import Iterable
            kind = Iterable[Answer]
        for seed in range(3):
            more = {} if name.startswith("RESPONSES") else {"seed": seed}
            try:
                got = c.chat.completions.create(model="base", messages=QUESTION, response_model=kind, max_retries=0, max_tokens=200,
                                                temperature=1, **more)
            except openai.APIStatusError as e:
                raise AssertionError(f"{name}: {e}")
            except Exception as e:  # no JSON, or another: the model's own doing
                text = repr(e)
                assert "400" not in text and "BadRequest" not in text, (name, text)
                assert name in asked or name == "PARALLEL_TOOLS", (name, text)
                continue
            assert name == "PARALLEL_TOOLS" or isinstance(got, Answer), (name, got)
        print(f"        instructor: {name}")
    own = anthropic.Anthropic(base_url=server.url.removesuffix("/v1"), api_key=key, max_retries=0,
                              http_client=anthropic.DefaultHttpxClient(verify=server.tls()))
    c = instructor.from_anthropic(own, mode=Mode.ANTHROPIC_TOOLS)
    assert isinstance(c.chat.completions.create(model="base", messages=QUESTION, response_model=Answer, max_retries=0, max_tokens=200), Answer)


def pydantic_ai_has_tools_and_a_type():
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        for output in (ToolOutput(Answer), NativeOutput(Answer)):
            async def ask():
                own = openai.AsyncOpenAI(base_url=server.url, api_key=key, max_retries=0,
                                         http_client=openai.DefaultAsyncHttpxClient(verify=server.tls()))
                agent = Agent(kind("base", provider=OpenAIProvider(openai_client=own)), output_type=output,
                              model_settings={"max_tokens": 200, "temperature": 0})

                if isinstance(output, NativeOutput):  # the other one is a forced call, which a tiny model spends on now()
                    @agent.tool_plain
                    def now() -> str:
                        """The time of the day."""
                        return "noon"
                return (await agent.run("What is 7 plus 5?")).output
            assert isinstance(asyncio.run(ask()), Answer)


def exact(pairs):
    """What transformers says of the same tokens."""
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    out = []
    for context, more in pairs:
        with torch.no_grad():
            logits = model(torch.tensor([context + more])).logits[0].log_softmax(-1)
        out.append(sum(float(logits[len(context) + i - 1, t]) for i, t in enumerate(more)))
    return out


def lm_eval_sums_all_tokens():
    """local-completions on 200 prompts, most of which end where the continuation does."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    os.environ["OPENAI_API_KEY"] = key
    lm = LocalCompletionsAPI(base_url=server.url + "/completions", model="base", tokenizer_backend="huggingface",
                             tokenizer=str(DEMO / "base"), tokenized_requests=True, num_concurrent=1, max_retries=1,
                             verify_certificate=True, max_length=512)

    def ids(body):
        return server.call("POST", "/tokenize", {"model": "base", **body}, key=key).json["tokens"]
    pairs = []
    for a in range(1, 11):
        for b in range(1, N // 10 + 1):
            context = ids({"messages": [{"role": "user", "content": f"What is {a} plus {b}?"}]})
            pairs.append((context, ids({"prompt": f"{a} plus {b} is {a + b}.", "add_special_tokens": False})))
    got = [x for x, _ in lm._loglikelihood_tokens([(("a", str(i)), context, more) for i, (context, more) in enumerate(pairs)])]
    if WITH_TORCH:
        right, by = exact(pairs), "transformers"
    else:
        by, right = "scoring the tokens as a prompt", []
        for context, more in pairs:
            r = server.call("POST", "/v1/completions", {"model": "base", "prompt": context + more, "max_tokens": 0, "prompt_logprobs": 0}, key=key)
            scored = r.json["choices"][0]["prompt_logprobs"]
            right.append(sum(scored[len(context) + i][str(t)]["logprob"] for i, t in enumerate(more)))
    off = max(abs(g - w) for g, w in zip(got, right))
    print(f"        lm-eval: {len(got)} prompts, at most {off:.2g} from {by}")
    assert len(got) == N and off < 1e-3, off


def in_floats(folder):
    """The demo model in 32 bits, which both compute in; without transformers as it is."""
    if not WITH_TORCH:
        return DEMO / "base"
    import torch
    import transformers
    out = pathlib.Path(folder) / "base"
    shutil.copytree(DEMO / "base", out)
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO / "base", dtype=torch.float32)
    model.save_pretrained(out)
    for name in ("generation_config.json", "tokenizer_config.json"):
        shutil.copy(DEMO / "base" / name, out / name)
    return out


folder = tempfile.mkdtemp(prefix="lorad-evals-")
base = in_floats(folder)
server = Server(model=base)
with server:
    key = server.tenant("evals")
    os.environ["SSL_CERT_FILE"] = os.environ["REQUESTS_CA_BUNDLE"] = server.ca
    atexit.register(shutil.rmtree, folder)
    run([instructor_in_all_modes, pydantic_ai_has_tools_and_a_type, lm_eval_sums_all_tokens])
