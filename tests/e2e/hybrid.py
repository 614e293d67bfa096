"""hybrid.py -- a model whose layers keep a state, for servers: the Qwen3.5 of the goldens. It has 160 tokens, so prompts are ASCII, and by itself 128 positions."""
import json
import shutil

from harness import ROOT

FAMILIES = ROOT / "tests/fixtures/families"
NAME, PAGE = "qwen3.5", 32
TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind it at all, "  # 82 tokens


def make_model(where, positions=128):
    """The fixture with a tokenizer, a token for each ASCII byte, and a chat template that adds nothing."""
    shutil.copytree(FAMILIES / "models" / NAME, where)
    config = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in plain}
    letters.update({b: chr(256 + i) for i, b in enumerate(sorted(set(range(256)) - set(plain)))})
    vocab = {letters[b]: b for b in range(128)} | {f"<{i}>": i for i in range(128, 160)}
    (where / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    (where / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    return where
