"""tiny.py -- fixtures/models/llama-f32 as a model that lorad serves, for tests that compare with PEFT in F32."""
import json
import shutil

from harness import ROOT

FIXTURES = ROOT / "tests/fixtures"


def make_model(where):
    """The fixture in a new folder, with a chat template and a tokenizer: the bytes, and names for the rest of its 300 ids."""
    shutil.copytree(FIXTURES / "models/llama-f32", where)
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in plain}
    letters.update({b: chr(256 + i) for i, b in enumerate(sorted(set(range(256)) - set(plain)))})
    vocab = {letters[b]: b for b in range(256)} | {f"<{i}>": i for i in range(256, 300)}
    (where / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    (where / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    return where
