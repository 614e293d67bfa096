"""openapi_words.py -- what the descriptions of both planes are made of (make_openapi.py, openapi_admin.py)."""
import re

STR, INT, NUM, BOOL, ANY = ({"type": t} for t in ("string", "integer", "number", "boolean", "object"))
COUNT = {"type": "integer", "minimum": 0}
TIME = {"type": "integer", "minimum": 0, "maximum": 2**40}  # seconds since 1970
FLAG = {"enum": ["true", "false"]}  # in a query

CLASS = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,15}$"}  # an SLO class, or a tier of one: the configuration says which


def maybe(schema):
    return {"anyOf": [schema, {"type": "null"}]}


def opt(schema):
    """Of a member that may be left out: null says the same."""
    return {**schema, "type": [schema["type"], "null"]}


def obj(properties, optional=(), **more):
    return {"type": "object", "properties": properties, "additionalProperties": False,
            "required": [p for p in properties if p not in optional], **more}


def arr(items, **more):
    return {"type": "array", "items": items, **more}


def ref(name, kind="schemas"):
    return {"$ref": f"#/components/{kind}/{name}"}


def query(name, schema):
    return {"name": name, "in": "query", "schema": schema}


def header(name, schema, required=False):
    return {"name": name, "in": "header", "required": required, "schema": schema}


ALWAYS = (400, 401, 403, 429, 500, 503)
WITH_BODY = (408, 411, 413, 415)
RATES = [f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")]
HEADERS = {"x-request-id": {"required": True, "schema": {"type": "string", "pattern": "^req_[0-9a-f]{16}$"}},
           **{n: {"schema": {"type": "string", "pattern": "^[0-9hms.]+$" if "reset" in n else "^[0-9]+$"}} for n in RATES}}


def operation_id(method, path):
    return method.lower() + "".join(w.capitalize() for w in re.findall(r"\w+", path.replace("/v1/", "/")))


def operation(method, path, gives, asked=None, frames=None, statuses=(200,), errors=(), parameters=(), csv=False,
              limited=(), links=None, error="Error"):
    """(method, path, its description).  `gives`: None for a sentence; `asked`: a schema for JSON, or one by media type; `frames`: of a stream's
    events; `limited`: of what x-ratelimit-* tell; `links`: {name: (method, path, parameters)} from this answer to other calls."""
    content = {"application/json": {"schema": ref(gives)}} if gives else {"text/plain": {"schema": STR}}
    if frames:
        content["text/event-stream"] = {"schema": ref(frames)}
    if csv:
        content["text/csv"] = {"schema": {"type": "string"}}
    good = {"description": "what was asked for", "content": content, 
            "headers": {n: ref(n, "headers") for n in ("x-request-id", *(r for r in RATES if r.endswith(tuple(limited))))}}
    if links:
        good["links"] = {n: {"operationId": operation_id(m, p), "parameters": with_} for n, (m, p, with_) in links.items()}
    failures = sorted({*ALWAYS, *errors, *(WITH_BODY if asked else ())})
    out = {"operationId": operation_id(method, path), "responses": {
        **{str(s): good for s in statuses}, **{str(s): {"$ref": f"#/components/responses/{error}"} for s in failures}}}
    names = [p[1:-1] for p in path.split("/") if p.startswith("{")]
    if names or parameters:
        out["parameters"] = [{"name": n, "in": "path", "required": True, "schema": {**STR, "minLength": 1}} for n in names]
        out["parameters"] += parameters
    if asked:
        by_type = asked if any("/" in t for t in asked) else {"application/json": asked}
        out["requestBody"] = {"required": True, "content": {t: {"schema": s} for t, s in by_type.items()}}
    return method, path, out

# Adapters that are to work together.
STACK = {"type": ["array", "null"], "minItems": 1, "maxItems": 4, "items": {"type": "object", "required": ["name"], "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 256},
    "scale": {"type": ["number", "null"], "minimum": -100, "maximum": 100, "not": {"const": 0}}}}}
