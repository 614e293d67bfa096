"""Quantised bases as they lie on the disk, with adapters beside them: a GGUF in two files and a GPTQ folder give the
tokens that transformers and PEFT give with the dequantised values; `check`, metrics, statistics and the log say what is
served, and of an adapter that was trained beside other weights."""
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile

from harness import BUILD, Server, run

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "fixtures"
QUANT, ADAPTERS = FIXTURES / "quant", FIXTURES / "models" / "adapters-a"
NAMES = ["r1", "r4", "r16", "r64", "r256", "rslora", "pattern", "mlp"]  # as golden.bin counts them


def cases(path):
    """(adapter's name or None, prompt, answer) of each case of a golden.bin."""
    data = path.read_bytes()
    n_vocab, n_case, n_top, n_sample = struct.unpack_from("<IIII", data, 4)
    at, (kind, size) = 20, ("B", 1) if n_vocab <= 256 else ("H", 2)
    for _ in range(n_case):
        adapter, n_prompt, n_new = struct.unpack_from("<iII", data, at)
        at += 12
        tokens = struct.unpack_from(f"<{n_prompt + n_new}{kind}", data, at)
        at += size * len(tokens) + (len(tokens) - 1) * ((size + 3) * n_top + 3 * n_sample)
        yield (NAMES[adapter] if adapter >= 0 else None), tokens[:n_prompt], tokens[n_prompt:]


def serves_the_goldens(path, golden, form, weights, served):
    with Server(path, {"model.weights": weights}) as s:
        alice, asked = s.tenant("alice"), set()
        for adapter, prompt, answer in cases(golden):
            if adapter and adapter not in asked:
                s.upload(alice, adapter, ADAPTERS / adapter)
            asked.add(adapter)
            r = s.call("POST", "/v1/completions", {
                "model": adapter or "base", "prompt": list(prompt), "temperature": 0, "max_tokens": len(answer),
                "ignore_eos": True, "return_token_ids": True}, key=alice)
            assert r.status == 200, r
            assert tuple(r.json["choices"][0]["token_ids"]) == answer, (adapter, prompt, answer, r)
        assert len(asked) == 9
        build = next(k for k in s.metrics() if k.startswith("lorad_build_info"))
        assert f'weights="{form}"' in build, build
        assert f"weights {form}," in s.stats()["server"]["backend"]
        other_bases(s, alice, form)
        # `check` reads the file alone, in which the option is not
        check = subprocess.run([BUILD / "lorad", "check", "-c", s.dir / "lorad.conf"], capture_output=True, text=True)
        assert check.returncode == 0 and f"weights      {form}, " in check.stdout and f"files, {served} " in check.stdout, check


def other_bases(s, alice, form):
    """One line in the log for each upload that names a base in another form; none for our own."""
    for name, says in (("x/y-bnb-4bit", "was trained on a base in NF4"), ("x/y-AWQ", "names a base in AWQ"),
                       ("x/y-GGUF" if form == "F16" else "x/y-GPTQ-Int4", None)):
        with tempfile.TemporaryDirectory() as tmp:
            folder = pathlib.Path(tmp) / "a"
            shutil.copytree(ADAPTERS / "r1", folder)
            config = json.loads((folder / "adapter_config.json").read_text())
            (folder / "adapter_config.json").write_text(json.dumps(dict(config, base_model_name_or_path=name)))
            before = s.log_path.read_text().count("a base in")
            s.upload(alice, "named", folder)
            log = s.log_path.read_text()
            assert log.count("a base in") == before + (says is not None), (name, log[-400:])
            assert says is None or f"'named' {says}" in log, (name, log[-400:])


def a_gguf():
    """By its codes, that is with x in int8: no two tokens of these answers are so near that it matters."""
    serves_the_goldens(QUANT / "gguf-llama" / "model-00001-of-00002.gguf", QUANT / "gguf-llama" / "golden.bin", "F16",
                       "auto", "by their codes")


def a_gptq_folder():
    serves_the_goldens(QUANT / "gptq", QUANT / "gptq" / "golden.bin", "GPTQ 4 bits", "plain", "by their codes")


def a_gguf_chats():
    """Its own template, its own ends."""
    with Server(model=QUANT / "gguf-qwen3" / "model.gguf") as s:
        r = s.ask(s.tenant("alice"), "base", "the cat", max_tokens=4)
        assert r.status == 200 and r.json["usage"]["prompt_tokens"] > 5, r


run([a_gguf, a_gptq_folder, a_gguf_chats])
