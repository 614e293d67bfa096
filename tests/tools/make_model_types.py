#!/usr/bin/env python3
"""Writes tests/fixtures/model_types.jsonl: a line for each model type that transformers has a causal language model for.

Usage: make_model_types.py          (needs transformers and torch)

A line is [the model's class, config.json]. Of the types of engine/model/family.c, config.json is as the configuration
class writes it with few layers; what is the same in all families, and what concerns training, dropout or caches, is left
out, and so are parts for images and sound. Of all others it has the type alone. tests/engine/model/test_model_types.c
reads the file.
"""

import json
import pathlib
import re
import warnings

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "tests" / "fixtures" / "model_types.jsonl"
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
NO_PARTS = ("vision_config", "audio_config", "vocoder_config", "encoder", "decoder", "backbone_config")


def made(cls):
    """With two layers, or one or more where the class wants it so."""
    for n in (2, 4, None):
        for name in LAYERS if n else LAYERS[:1]:
            try:
                config = cls(**({name: n} if n else {}))
            except Exception:
                continue
            if not n or n >= getattr(config, "altup_num_inputs", 0):
                return config
    return None


def is_json(v):
    """Without Infinity, which a Mamba's time_step_limit has."""
    try:
        return bool(json.dumps(v, allow_nan=False))
    except ValueError:
        return False


def plain(config, usual):
    def matters(k, v):
        return (k not in usual and k not in NO_PARTS and k != "use_cache" and is_json(v)
                and not k.startswith(("_", "initializer", "linear_a_log", "linear_dt", "output_router", "router_aux"))
                and not k.endswith(("_token_id", "dropout", "_pdrop", "_coef", "initializer_range")))
    return {k: v for k, v in config.items() if k == "model_type" or matters(k, v)}


def main():
    warnings.filterwarnings("ignore")
    usual = set(PreTrainedConfig().to_dict())
    table = (ROOT / "engine" / "model" / "family.c").read_text()
    served = set(re.findall(r'(?:\.type = |DEEPSEEK_V3\(|^    \{)"(\w+)"', table, re.M))
    lines = []
    for name, architecture in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()):
        config = made(CONFIG_MAPPING[name]) if name in served else None
        config = plain(config.to_dict(), usual) if config else {}
        config["model_type"] = name
        if isinstance(config.get("text_config"), dict):
            config["text_config"] = plain(config["text_config"], usual)
        first = architecture if isinstance(architecture, str) else architecture[0]
        lines.append(json.dumps([first, config], separators=(",", ":"), sort_keys=True))
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
