"""docs/reference/models.md: a line for each family of engine/model/family.c.

What LoRA may be on is what the goldens have adapters on: their target_modules and target_parameters.
"""
import json
import pathlib
import re

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
INTRO = """# Families

One line for each `model_type`. [Models and adapters](adapters.md) says more about each of them, and what is refused.

- **GGUF**: the architecture of a GGUF that becomes this family; "-": only folders are read.
- **CUDA**: whether the CUDA backend serves it, or what that backend lacks. The CPU backend serves all of them.
- **Prefix cache**: `pages` of keys and values, or `states`: pages, and snapshots of states at some of their ends ([why](../design/recurrent.md#the-prefix-cache)).
- Speculation works with all of them ([how a state is restored](../design/recurrent.md#rows-that-do-not-count)).
- **Modules**: what the adapters have LoRA on that are compared with PEFT. A module that is not in the line is refused where the family does not have it.
- **Parameters**: the same of `target_parameters`, as PEFT calls what all experts of a layer share.

"""
# GGUF architectures that hold other families than the one of their name.
GGUF_TOO = {"ministral3": "mistral3", "granitemoeshared": "granitemoe", "bamba": "granitehybrid", "youtu": "deepseek2", "glm4_moe_lite": "deepseek2",
            "solar_open": "glm4moe", "iquestcoder": "llama", "internlm3": "llama", "mistral": "llama", "mixtral": "llama", "olmo3": "olmo2", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
            "kimi_k2": "deepseek2"}
LACKS = [(r"\.mixer = ", "states"), (r"READS_GEMMA4", "heads of different sizes in different layers"),
         (r"\.streams = true", "streams that layers update together"), (r"\.q_gated = true", "gated attention")]


def rows(source):
    """Each family's name and its row, with macros replaced by what they stand for."""
    macros = dict(re.findall(r"^#define (\w+) +((?:.*\\\n)*.*)$", source, re.M))
    deepseek = re.search(r"#define DEEPSEEK_V3\(name\)((?:.*\\\n)*.*)", source).group(1)
    body = source.split("static const model_family families[] = {")[1].split("\n};")[0]
    for part in re.split(r"\n    (?=\{\.type|DEEPSEEK_V3)", body):
        name = re.match(r'\s*(?:\{\.type = |DEEPSEEK_V3\()"(\w+)"', part)
        if name:
            row = deepseek if "DEEPSEEK_V3" in part else part
            yield name.group(1), re.sub(r"\b[A-Z0-9_]+\b", lambda m: macros.get(m.group(), m.group()), row)


def archs(source):
    table = source.split("const gguf_arch gguf_archs[] = {")[1].split("\n};")[0]
    found = re.findall(r'\.name = "([\w-]+)"(?:,\s*\.family = "(\w+)")?', table)
    return {**{family or name: name for name, family in found}, **GGUF_TOO}


def type_of(folder):
    config = json.loads((folder / "config.json").read_text())
    return config.get("text_config", config).get("model_type", config["model_type"])


def adapted():
    """model_type: what the goldens' adapters are on, modules and parameters."""
    out = {}
    for home in (FIXTURES / "families", FIXTURES):
        for file in sorted(home.glob("peft/*/*/adapter_config.json")):
            base = home / "models" / file.parent.parent.name
            if not (base / "config.json").exists():
                continue
            config = json.loads(file.read_text())
            modules, parameters = out.setdefault(type_of(base), (set(), set()))
            if isinstance(config.get("target_modules"), list):
                modules.update(name.rsplit(".", 1)[-1] for name in config["target_modules"])
            else:  # a pattern of PEFT's
                modules.update(re.findall(r"\w+_proj", config.get("target_modules") or ""))
            parameters.update(name.rsplit("experts.", 1)[-1] for name in config.get("target_parameters") or [])
    return out


def page(read, table, code):
    goldens, gguf, lines = adapted(), archs(read("engine/files/gguf_arch.c")), []
    goldens["kimi_k2"] = goldens["deepseek_v3"]
    for name, row in sorted(rows(re.sub(r"/\*.*?\*/", " ", read("engine/model/family.c"), flags=re.S))):
        modules, parameters = goldens.get(name, ((), ()))
        lacks = [why for pattern, why in LACKS if re.search(pattern, row)]
        lines.append([code(name), "experts" if ".experts = &" in row else "dense", code(gguf[name]) if name in gguf else "-",
                      f"no: {lacks[0]}" if lacks else "yes",
                      code("states" if re.search(LACKS[0][0], row) else "pages"), ", ".join(map(code, sorted(modules))) or "-",
                      ", ".join(map(code, sorted(parameters))) or "-"])
    return INTRO + table(["`model_type`", "MLP", "GGUF", "CUDA", "Prefix cache", "Modules", "Parameters"], lines)
