"""Tools that Anthropic defines and the client executes: they come without a schema, and a call's input has the members of its command."""
import shutil
import tempfile

import marked
from harness import Server, run
from marked import ADD

# What Anthropic defines and the client executes: an input's members by its command; one with a question mark may be missing.
EDITS = {"view": "path view_range?", "create": "path file_text", "str_replace": "path old_str new_str?"}
OLD, NEW = {**EDITS, "insert": "path insert_line new_str"}, {**EDITS, "insert": "path insert_line insert_text"}
SHELLS = {None: "command? restart?"}
DEFINED = {"bash_20241022": ("bash", SHELLS), "bash_20250124": ("bash", SHELLS),
           "text_editor_20241022": ("str_replace_editor", {**OLD, "undo_edit": "path"}),
           "text_editor_20250124": ("str_replace_editor", {**OLD, "undo_edit": "path"}),
           "text_editor_20250429": ("str_replace_based_edit_tool", OLD), "text_editor_20250728": ("str_replace_based_edit_tool", NEW),
           "memory_20250818": ("memory", {**NEW, "str_replace": "path old_str new_str", "delete": "path", "rename": "old_path new_path"})}
OTHERS = {"view_range": list, "insert_line": int, "restart": bool}


def post(body, expect=200):
    r = server.call("POST", "/v1/messages", {"model": "base", "temperature": 1, **body}, key=server.key)
    assert r.status == expect, r
    return r


def check_input(given, forms):
    members = {k: v for k, v in given.items() if k != "command" or None in forms}
    allowed = forms[None if None in forms else given["command"]].split()
    assert all(isinstance(v, OTHERS.get(k, str)) for k, v in members.items()), given
    assert set(members) <= {m.rstrip("?") for m in allowed} and members, given
    assert {m for m in allowed if m[-1] != "?"} <= set(members), given
    assert len(given.get("view_range", [1, 2])) == 2 and (None not in forms or len(given) == 1), given


def what_anthropic_defines_and_the_client_executes():
    for kind, (name, forms) in DEFINED.items():
        whole, asked = 0, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 400, "tool_choice": {"type": "tool", "name": name}}
        tools = [{"type": kind, "name": name, "cache_control": {"type": "ephemeral"}}, {"name": "add", "input_schema": ADD["function"]["parameters"]}]
        asked["tools"] = tools
        for seed in range(5):
            r = post({**asked, "seed": seed})
            assert "x-ignored-params" not in r.headers or "tools" not in r.headers["x-ignored-params"], r.headers
            call = next(b for b in r.json["content"] if b["type"] == "tool_use")
            if r.json["stop_reason"] != "tool_use" or call["name"] != name:
                continue
            whole += 1
            check_input(call["input"], forms)
            result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "done"}]}
            after = [*asked["messages"], {"role": "assistant", "content": r.json["content"]}, result]
            post({**asked, "max_tokens": 3, "messages": after})
        assert whole, kind
        e = post({**asked, "tools": [{"type": kind, "name": "other"}]}, 400).json["error"]
        assert kind in e["message"] and f"'{name}'" in e["message"], e


folder = tempfile.mkdtemp(prefix="lorad-tools-")
try:
    marked.make(folder)
    with Server(model=marked.make_brief(folder), settings=marked.settings(folder, "hermes")) as server:
        server.key = server.tenant("tools")
        run([what_anthropic_defines_and_the_client_executes])
finally:
    shutil.rmtree(folder)
