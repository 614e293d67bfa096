"""contract.py -- answers of the inference and the admin plane against conf/openapi.json, wherever the harness gets one; and
against OpenAI's own types, where a test asks for it (contract.also.append(openai_types.hold))."""
import functools
import json
import pathlib
import re

try:
    import jsonschema
except ImportError:  # benches run without it; test_contract.py does not
    jsonschema = None

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "conf/openapi.json"


also = []  # called with (name of the schema, value, what was asked) for every answer


@functools.cache
def document():
    return json.loads(DOCUMENT.read_text())


@functools.cache
def routes():
    out = []
    for path, operations in document()["paths"].items():
        pattern = re.sub(r"\\\{id\\\}", "(.+)", re.escape(path))  # a model's id may have slashes
        out.append((re.compile(re.sub(r"\\\{\w+\\\}", "([^/]+)", pattern) + "$"), operations))
    return out


@functools.cache
def validator(name):
    schema = {"$ref": f"#/components/schemas/{name}", "components": document()["components"]}
    return jsonschema.Draft202012Validator(schema)


def operation(method, path):
    """The description of a call; None: not in the document."""
    path = path.split("?")[0].rstrip("/")
    for p in (path, "/v1" + path, path.removeprefix("/v1")):
        for pattern, operations in routes():
            if pattern.match(p):
                return operations.get(method.lower())
    return None


def hold(name, value, what):
    wrong = next(validator(name).iter_errors(value), None)
    if wrong:
        raise AssertionError(f"{what}: the answer is no {name}: {wrong.json_path}: {wrong.message}\n{str(value)[:600]}")


def check(method, path, status, headers, body, admin=False):
    """Raises where the document does not allow this answer (of the admin plane, or of the inference plane)."""
    what = f"{method} {path}: {status}"
    kind = headers.get("content-type", "").split(";")[0]
    if jsonschema is None or method == "HEAD":
        return
    op = operation(method, path) if path.startswith("/admin/") == admin else None
    if status >= 400:
        if kind != "application/json":
            raise AssertionError(f"{what}: an error of the type {kind!r}")
        kind = "MessageError" if re.match("(/v1)?/messages", path) and not admin else "Error"
        hold(kind, json.loads(body), what)
        for each in also:
            each(kind, json.loads(body), what)
    if op and str(status) not in op["responses"]:
        raise AssertionError(f"{what}: the description knows {' '.join(op['responses'])}\n{body[:300]}")
    if status >= 400 or op is None or not body:
        return
    content = op["responses"][str(status)]["content"]
    name = content.get(kind, {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
    if kind == "application/json":
        value = json.loads(body)
        hold(name, value, what)
        for each in also:
            each(name, value, what)
    elif kind == "text/event-stream":
        for frame in body.decode().split("\n\n"):
            if frame and not frame.startswith(":") and frame != "data: [DONE]":
                value = json.loads(frame.rpartition("\n")[2].removeprefix("data: "))
                kind = "Error" if "error" in value else name
                hold(kind, value, what)
                for each in also:
                    each(kind, value, what)
