"""served.py -- the quickstart's answers, over a socket, by the cross-built server under emulation and by this machine's.

    served.py EMULATED NATIVE     folders with a program `lorad`

Both serve the demo model with its adapters, in BF16 and in 4 bits, and answer the same question: word for word the same.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import harness  # noqa: E402

QUESTION = "What is 7 plus 5?"


def answers(folder, weights):
    """{model: text}"""
    harness.BUILD = pathlib.Path(folder).resolve()
    with harness.Server(settings={"model.weights": weights}) as server:
        key = server.tenant("acme")
        for name in harness.demo_adapters():
            server.upload(key, name, harness.DEMO / "adapters" / name)
        texts = {}
        for model in ["base", *harness.demo_adapters()]:
            reply = server.ask(key, model, QUESTION)
            assert reply.status == 200, reply
            texts[model] = reply.json["choices"][0]["message"]["content"]
        return texts


def main():
    emulated, native = sys.argv[1:]
    for weights in "auto", "q4":
        here, there = (answers(folder, weights) for folder in (native, emulated))
        for model, text in here.items():
            print(f"{model}, {weights}: {there[model]!r}")
            assert text.strip() and there[model] == text, (model, weights, text, there[model])


main()
