"""Every route with every kind of key, on every listener: the status each must give, and no other.

The table of routes is read from gateway/route.c, so a route that is added without a line here fails.
"""
import re

from harness import DEMO, ROOT, Server, run, tar_of

server = Server()
INFER, READ, WRITE, ADMIN, LOOK = "inference", "adapters.read", "adapters.write", "admin", "admin.read"
READERS = {READ, WRITE}  # who may write may read
V1, ADM = "/v1", "/admin/v1"
A, R, C, F, B = (V1 + x for x in ("/adapters/", "/responses/", "/conversations/", "/files/", "/batches/"))

# method, pattern, path, scopes of which one is enough, body, status for those who have it, status for
# another tenant who has it (None: the same)
UPLOAD = "pirate/versions/u0123456789abcdef"  # the form of an upload's id, and nobody's
INFERENCE = [
    ("POST", V1 + "/chat/completions", None, {INFER}, {}, 400, None),
    ("POST", V1 + "/completions", None, {INFER}, {"model": "base", "prompt": "x", "max_tokens": 1},
     200, None),
    ("POST", V1 + "/messages", None, {INFER}, {}, 400, None),
    ("POST", V1 + "/messages/count_tokens", None, {INFER}, {}, 400, None),
    ("POST", V1 + "/responses", None, {INFER}, {}, 400, None),
    ("POST", V1 + "/responses/input_tokens", None, {INFER}, {"input": "x"}, 200, None),
    ("GET", R + "{}", R + "resp_none", {INFER}, None, 404, None),
    ("DELETE", R + "{}", R + "resp_none", {INFER}, None, 404, None),
    ("POST", R + "{}/cancel", R + "resp_none/cancel", {INFER}, {}, 404, None),
    ("GET", R + "{}/input_items", R + "resp_none/input_items", {INFER}, None, 404, None),
    ("POST", V1 + "/conversations", None, {INFER}, {}, 200, None),
    ("GET", C + "{}", C + "conv_none", {INFER}, None, 404, None),
    ("DELETE", C + "{}", C + "conv_none", {INFER}, None, 404, None),
    ("GET", C + "{}/items", C + "conv_none/items", {INFER}, None, 404, None),
    *(("POST", path, None, {INFER}, {}, 400, None)
      for path in (V1 + "/embeddings", V1 + "/rerank", "/v2/rerank", V1 + "/score", V1 + "/classify")),
    ("POST", V1 + "/files", None, {INFER}, {}, 415, None),
    ("GET", V1 + "/files", None, {INFER}, None, 200, None),
    ("GET", F + "{}", F + "file-none", {INFER}, None, 404, None),
    ("GET", F + "{}/content", F + "file-none/content", {INFER}, None, 404, None),
    ("DELETE", F + "{}", F + "file-none", {INFER}, None, 404, None),
    ("POST", V1 + "/batches", None, {INFER}, {}, 400, None),
    ("GET", V1 + "/batches", None, {INFER}, None, 200, None),
    ("GET", B + "{}", B + "batch_none", {INFER}, None, 404, None),
    ("POST", B + "{}/cancel", B + "batch_none/cancel", {INFER}, {}, 404, None),
    ("POST", "/tokenize", None, {INFER}, {"model": "base", "prompt": "x"}, 200, None),
    ("POST", V1 + "/tokenize", None, {INFER}, {"model": "base", "prompt": "x"}, 200, None),
    ("POST", "/detokenize", None, {INFER}, {"tokens": [5]}, 200, None),
    ("POST", V1 + "/detokenize", None, {INFER}, {"tokens": [5]}, 200, None),
    ("GET", "/version", None, {INFER}, None, 200, None),
    ("GET", V1 + "/stacks", None, READERS, None, 200, None),
    ("PUT", V1 + "/stacks/{}", V1 + "/stacks/pair", {WRITE}, {}, 400, None),
    ("GET", V1 + "/stacks/{}", V1 + "/stacks/nobody", READERS, None, 404, None),
    ("DELETE", V1 + "/stacks/{}", V1 + "/stacks/nobody", {WRITE}, None, 404, None),
    ("GET", V1 + "/source_credentials", None, READERS, None, 200, None),
    ("PUT", V1 + "/source_credentials/{}", V1 + "/source_credentials/nowhere", {WRITE}, {}, 400, None),
    ("DELETE", V1 + "/source_credentials/{}", V1 + "/source_credentials/nowhere", {WRITE}, None, 404, None),
    ("POST", V1 + "/load_lora_adapter", None, {WRITE}, {}, 400, None),
    ("POST", V1 + "/unload_lora_adapter", None, {WRITE}, {"lora_name": "nobody"}, 404, None),
    ("POST", "/pause", None, {WRITE}, {}, 400, None),
    ("POST", "/resume", None, {WRITE}, {}, 200, None),
    ("POST", "/reset_prefix_cache", None, {WRITE}, {}, 200, None),
    ("GET", "/server_info", None, {INFER}, None, 200, None),
    ("GET", V1 + "/models", None, {INFER}, None, 200, None),
    ("GET", V1 + "/models/{*}", V1 + "/models/pirate", {INFER}, None, 200, 404),
    ("GET", V1 + "/key", None, {INFER} | READERS, None, 200, None),
    ("GET", V1 + "/usage", None, {INFER}, None, 200, None),
    ("GET", V1 + "/adapters", None, READERS, None, 200, None),
    ("GET", A + "{}", A + "pirate", READERS, None, 200, 404),
    ("PATCH", A + "{}", A + "pirate", {WRITE}, {"description": "arr"}, 200, 404),
    ("POST", A + "{}/versions", A + "pirate/versions", {WRITE}, b"no tar" * 200, 422, None),
    ("GET", A + "{}/versions", A + "pirate/versions", READERS, None, 200, 404),
    ("GET", A + "{}/versions/{}", A + "pirate/versions/1", READERS, None, 200, 404),
    ("DELETE", A + "{}/versions/{}", A + "pirate/versions/9", {WRITE}, None, 404, None),
    ("GET", A + "{}/versions/{}/files/{}", A + UPLOAD + "/files/adapter_config.json", READERS, None,
     404, None),
    ("PUT", A + "{}/versions/{}/files/{}", A + UPLOAD + "/files/adapter_config.json", {WRITE}, b"x",
     404, None),
    ("PATCH", A + "{}/versions/{}/files/{}", A + UPLOAD + "/files/adapter_config.json", {WRITE}, b"x",
     400, None),  # no Upload-Offset
    ("POST", A + "{}/versions/{}/commit", A + UPLOAD + "/commit", {WRITE}, {}, 404, None),
    ("POST", A + "{}/versions/{}/activate", A + "pirate/versions/1/activate", {WRITE}, {}, 200, 404),
    ("GET", A + "{}/events", A + "pirate/events", READERS, None, 200, 404),
    ("GET", A + "{}/usage", A + "pirate/usage", READERS, None, 200, 404),
    ("PUT", A + "{}/aliases/{}", A + "pirate/aliases/stable", {WRITE}, {"version": 1}, 200, 404),
    ("DELETE", A + "{}/aliases/{}", A + "pirate/aliases/nobody", {WRITE}, None, 404, None),
    ("POST", A + "{}/rollback", A + "pirate/rollback", {WRITE}, {}, 409, 404),
    ("POST", A + "{}/pin", A + "pirate/pin", {WRITE}, {}, 200, 404),
    ("POST", A + "{}/unpin", A + "pirate/unpin", {WRITE}, {}, 200, 404),
    ("POST", A + "{}/warm", A + "pirate/warm?wait=60", {WRITE}, {}, 200, 404),
    ("DELETE", A + "{}", A + "nobody", {WRITE}, None, 404, None),
]
OPERATOR = [
    ("POST", ADM + "/tenants", None, {}, 400),
    ("GET", ADM + "/tenants", None, None, 200),
    ("GET", ADM + "/tenants/{}", ADM + "/tenants/mine", None, 200),
    ("PATCH", ADM + "/tenants/{}", ADM + "/tenants/mine", {"weight": 1}, 200),
    ("DELETE", ADM + "/tenants/{}", ADM + "/tenants/nobody", None, 404),
    ("POST", ADM + "/tenants/{}/adapters/{}/{}", ADM + "/tenants/nobody/adapters/x/pin", {}, 404),
    ("POST", ADM + "/keys", None, {}, 400),
    ("GET", ADM + "/keys", None, None, 200),
    ("GET", ADM + "/keys/{}", ADM + "/keys/nobody", None, 404),
    ("PATCH", ADM + "/keys/{}", ADM + "/keys/nobody", {}, 404),
    ("POST", ADM + "/keys/{}/rotate", ADM + "/keys/nobody/rotate", {}, 404),
    ("DELETE", ADM + "/keys/{}", ADM + "/keys/nobody", None, 404),
    ("GET", ADM + "/limits", None, None, 200),
    ("GET", ADM + "/limits/{}", ADM + "/limits/mine", None, 200),
    ("PATCH", ADM + "/limits/{}", ADM + "/limits/mine", {}, 200),
    ("GET", ADM + "/limits/{}/{}", ADM + "/limits/mine/pirate", None, 200),
    ("PATCH", ADM + "/limits/{}/{}", ADM + "/limits/mine/pirate", {}, 200),
    ("GET", ADM + "/requests", None, None, 200),
    ("DELETE", ADM + "/requests/{}", ADM + "/requests/nobody", None, 404),
    ("GET", ADM + "/stats", None, None, 200),
    ("GET", ADM + "/history", None, None, 200),
    ("GET", ADM + "/classes", None, None, 200),
    ("GET", ADM + "/adapters", None, None, 200),
    ("POST", ADM + "/adapters/register", None, {}, 400),
    ("GET", ADM + "/usage", None, None, 200),
    ("GET", ADM + "/nodes", None, None, 409),  # it is in no fleet
    *(("POST", ADM + f"/nodes/{{}}/{what}", ADM + f"/nodes/0/{what}", None, 409) for what in ("drain", "fence")),
    ("GET", ADM + "/audit", None, None, 200),
    ("POST", ADM + "/backup", None, {"path": "relative"}, 400),
    ("POST", ADM + "/reload", None, {}, 200),
    ("GET", ADM + "/config", None, None, 200),
    ("PATCH", ADM + "/config", None, {"log.level": "info"}, 200),
    ("POST", ADM + "/drain", None, {}, 202),  # the last of all: it ends the server
]
OPEN = [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"),  # of the inference plane, for vLLM's probes
        ("GET", "/"), ("GET", "/page.js"), ("GET", "/page.css"), ("GET", "/openapi.json")]
NODES = [("POST", "/fleet/v1/requests"), ("POST", "/fleet/v1/pages"), ("POST", "/fleet/v1/adapters")]  # of the inference plane: a word of the fleet's own opens it, no key does
METRICS = [("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/metrics")]


def call(port, method, path, key, body=None):
    headers = {"Content-Type": "application/x-tar"} if isinstance(body, bytes) else {}
    if body is None and method in ("POST", "PUT", "PATCH"):
        body = {}
    return server.call(method, path, body, key=key, headers=headers, port=port)


def code(r):
    """OpenAI's code of an error; of Anthropic's, which has none, what its sentence says."""
    says = {"has expired": "expired_api_key", "is disabled": "tenant_suspended", "no such URL": "unknown_url",
            "is not allowed here": "method_not_allowed", "Incorrect API key": "invalid_api_key", "lacks the scope": "insufficient_scope"}
    error = r.json["error"] if r.body and r.status >= 400 else {}
    return error.get("code", next((c for s, c in says.items() if s in error.get("message", "")), None))


def the_table_is_whole():
    source = (ROOT / "gateway/route.c").read_text()
    tables = re.findall(r"const route routes_(\w+)\[\] = \{(.*?)\n\};", source, re.S)
    found = {plane: set(re.findall(r'\{"(\w+)", "([^"]+)", ', text)) for plane, text in tables}
    assert found == {"inference": {(r[0], r[1]) for r in INFERENCE} | set(OPEN + NODES),
                     "admin": {(r[0], r[1]) for r in OPERATOR},
                     "metrics": set(METRICS)}, found


def inference_routes():
    wrong = []
    for method, pattern, path, scopes, body, status, foreign in INFERENCE:
        path = path or pattern
        for who, key, have in keys:
            r = call(server.port, method, path, key, body)
            if key is None or who in ("wrong", "revoked", "expired"):
                want = (401, "expired_api_key" if who == "expired" else "invalid_api_key")
            elif who == "suspended":
                want = (403, "tenant_suspended")
            elif not scopes & have:
                want = (403, "insufficient_scope")
            else:
                want = (foreign if who == "foreign" and foreign else status, code(r))
            if (r.status, code(r)) != want:
                wrong.append((method, path, who, want, r))
    assert not wrong, "\n".join(map(str, wrong))


def without_v1_and_as_head():
    """The same doors under their other names are as closed."""
    wrong = []
    for method, pattern, path, scopes, body, status, foreign in INFERENCE:
        path = path or pattern
        for who, key, have in keys:
            if have & scopes and who not in ("revoked", "expired", "suspended"):
                continue
            want = 401 if not have or who in ("revoked", "expired") else 403
            r = call(server.port, method, path.removeprefix(V1), key, body)
            if r.status != want:
                wrong.append((method, path.removeprefix(V1), who, want, r))
            if method == "GET":
                r = call(server.port, "HEAD", path, key)
                if r.status != want or r.body:
                    wrong.append(("HEAD", path, who, want, r))
    assert not wrong, "\n".join(map(str, wrong))


def nodes_routes_take_no_key():
    for method, path in NODES:
        for who, key, _ in keys:
            r = call(server.port, method, path, key)
            assert (r.status, code(r)) == (401, "invalid_api_key"), (path, who, r)


def admin_routes():
    wrong = []
    for method, pattern, path, body, status in OPERATOR:
        path = path or pattern
        for who, key, have in keys:
            if path == ADM + "/drain" and ADMIN in have:
                continue
            r = call(server.admin_port, method, path, key, body)
            if key is None or who in ("wrong", "revoked", "expired"):
                want = 401
            elif not have & {ADMIN, LOOK} or (LOOK in have and method != "GET"):
                want = 403
            else:
                want = status
            if r.status != want:
                wrong.append((method, path, who, want, r))
    assert not wrong, "\n".join(map(str, wrong))


def health_needs_no_key():
    for _, path in METRICS:
        for who, key, have in keys:
            assert call(server.metrics_port, "GET", path, key).status == 200, (path, who)
    for method, path in OPEN:
        assert call(server.port, method, path, None).status == 200, path
        assert call(server.admin_port, method, path, None).status == 404, path


def no_listener_serves_anothers_routes():
    routes = {server.port: [(r[0], r[2] or r[1]) for r in INFERENCE],
              server.admin_port: [(r[0], r[2] or r[1]) for r in OPERATOR],
              server.metrics_port: METRICS}
    for port in routes:
        for owner, table in routes.items():
            for method, path in table if owner != port else []:
                for who, key, have in keys:
                    r = call(port, method, path, key)
                    assert (r.status, code(r)) == (404, "unknown_url"), (port, method, path, who, r)


def other_methods_are_named():
    allowed = {}
    for method, pattern, path, *_ in INFERENCE:
        allowed.setdefault((path or pattern).split("?")[0], []).append(method)
    for path, methods in allowed.items():
        # A path that is a pattern itself is no parameter of another: /v1/responses/input_tokens.
        shape = [m for m, p, *_ in INFERENCE if p == path] or \
                [m for m, p, q, *_ in INFERENCE
                 if re.fullmatch(re.escape(p).replace(r"\{\}", "[^/]+").replace(r"\{\*\}", ".+"), path)]
        named = {*shape, "OPTIONS"} | ({"HEAD"} if "GET" in shape else set())
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - named:
            r = call(server.port, method, path, None)
            assert (r.status, code(r)) == (405, "method_not_allowed"), (method, path, r)
            assert set(r.headers["allow"].split(", ")) == named, (path, r.headers)
        r = call(server.port, "OPTIONS", path, None)
        assert r.status == 200 and not r.body, r
        assert set(r.headers["allow"].split(", ")) == named, (path, r.headers)


def nothing_was_changed_by_those_refused():
    r = call(server.port, "GET", A + "pirate", everything)
    assert r.status == 200 and call(server.port, "GET", V1 + "/adapters", foreign).json["data"] == []
    assert call(server.metrics_port, "GET", "/readyz", None).status == 200


def drain_is_the_operators():
    assert call(server.admin_port, "POST", ADM + "/drain", server.admin_key, {}).status == 202
    assert server.process.wait(60) == 0


with server:
    everything, foreign = server.tenant("mine"), server.tenant("foreign")
    server.upload(everything, "pirate", DEMO / "adapters/pirate")
    revoked = server.admin("POST", "/keys", {"tenant": "mine", "name": "r", "scopes": [INFER]})
    server.admin("DELETE", "/keys/" + revoked["id"])
    suspended = server.tenant("suspended")
    server.admin("PATCH", "/tenants/suspended", {"disabled": True})
    looker = server.admin("POST", "/keys", {"name": "eyes", "scopes": [LOOK]})["key"]
    ALL = {INFER, READ, WRITE}
    keys = [("none", None, set()), ("wrong", "lk_0123456789_" + "a" * 49, set()),
            ("revoked", revoked["key"], {INFER}),
            ("expired", server.key("mine", ALL, expires_at=1), ALL),
            ("suspended", suspended, ALL), ("inference", server.key("mine", [INFER]), {INFER}),
            ("read", server.key("mine", [READ]), {READ}),
            ("write", server.key("mine", [WRITE]), {WRITE}), ("all", everything, ALL),
            ("foreign", foreign, ALL), ("operator", server.admin_key, {ADMIN}), ("looker", looker, {LOOK})]
    run([the_table_is_whole, inference_routes, without_v1_and_as_head, nodes_routes_take_no_key, admin_routes,
         health_needs_no_key, no_listener_serves_anothers_routes, other_methods_are_named,
         nothing_was_changed_by_those_refused, drain_is_the_operators])
