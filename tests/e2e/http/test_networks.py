"""From where a key may be used: bounds of tenant and key, over IPv4 and IPv6, behind a proxy; a refused
request has taken nothing of any limit."""
import http.client
import json
import socket
import ssl

from harness import Server, free_port, run

port = free_port()
server = Server(settings={"server.trusted_proxies": "127.0.0.9/32", "server.listen": f"127.0.0.1:{port},[::1]:{port}"})
server.port = port


def ask(key, source="127.0.0.1", path="/v1/completions", plane=None, **headers):
    to = "::1" if source == "::1" else "127.0.0.1"
    context = ssl._create_unverified_context()
    c = http.client.HTTPSConnection(to, plane or server.port, timeout=60, context=context, source_address=(source, 0))
    body = json.dumps({"model": "base", "prompt": "The", "max_tokens": 2}) if path == "/v1/completions" else None
    c.request("POST" if body else "GET", path, body, {
        "Authorization": f"Bearer {key}", "Content-Type": "application/json",
        **{k.replace("_", "-"): v for k, v in headers.items()}})
    r = c.getresponse()
    answer = json.loads(r.read())
    c.close()
    if r.status == 403:
        assert answer["error"]["code"] == "network_not_allowed" and answer["error"]["type"] == "permission_error", answer
    else:
        assert r.status == 200, (r.status, answer)
    return r.status, answer


def status(*args, **more):
    return ask(*args, **more)[0]


def bounds_of_a_tenant_and_of_a_key():
    key = server.tenant("bound", networks=["127.0.0.0/30", "::ffff:127.0.0.8"], limits={"requests_per_minute": 5})
    assert server.admin("GET", "/tenants/bound")["networks"] == ["127.0.0.0/30", "127.0.0.8/32"]
    refused = ask(key, "127.0.0.5")
    assert refused[0] == 403 and "(127.0.0.5)" in refused[1]["error"]["message"], refused
    for source in ("127.0.0.4", "127.0.0.7", "::1"):
        assert status(key, source) == 403
    assert status(key, "127.0.0.5", "/v1/models") == 403
    used = server.admin("GET", "/limits/bound")["used"]
    assert used["requests_per_minute"] == 0 and used["max_concurrent"] == 0 and used["tokens_per_day"] == 0, used
    assert [status(key, s) for s in ("127.0.0.1", "127.0.0.3", "127.0.0.8")] == [200] * 3
    narrow = server.key("bound", networks=["127.0.0.2", "127.0.0.5"])
    assert [status(narrow, s) for s in ("127.0.0.2", "127.0.0.1", "127.0.0.5")] == [200, 403, 403]  # both must hold it


def changes_apply_at_once_and_stay():
    made = server.admin("POST", "/keys", {"tenant": "bound", "scopes": ["inference"], "networks": ["10.0.0.0/8"]})
    path, key = f"/keys/{made['id']}", made["key"]
    assert made["networks"] == ["10.0.0.0/8"] and status(key, path="/v1/models") == 403
    now = server.admin("PATCH", path, {"networks": ["127.0.0.1"], "name": "moved", "max_concurrent": 3})
    assert (now["networks"], now["name"], now["max_concurrent"]) == (["127.0.0.1/32"], "moved", 3)
    assert status(key, path="/v1/models") == 200 and status(key, "127.0.0.2", "/v1/models") == 403
    assert server.admin("PATCH", path, {"tokens_per_minute": 9})["networks"] == ["127.0.0.1/32"]
    server.stop()
    server.start()
    assert status(key, path="/v1/models") == 200 and status(key, "127.0.0.2", "/v1/models") == 403
    kept = server.admin("GET", path)
    assert (kept["name"], kept["max_concurrent"], kept["tokens_per_minute"]) == ("moved", 3, 9), kept
    assert server.admin("PATCH", path, {"networks": []})["networks"] == []
    assert status(key, "127.0.0.2", "/v1/models") == 200
    assert server.admin("PATCH", "/tenants/bound", {"networks": []})["networks"] == []
    assert status(key, "127.0.0.5", "/v1/models") == 200
    for bad in (["10.0.0.1/8"], ["x"], "10.0.0.0/8", [1], [""], ["10.0.0.0/8,::1"], [f"10.0.{i}.0/24" for i in range(200)]):
        for where in (path, "/tenants/bound"):
            server.admin("PATCH", where, {"networks": bad}, expect=(400,))
    server.admin("PATCH", path, {"scopes": ["admin"]}, expect=(400,))
    server.admin("PATCH", "/keys/1", {"name": "x"}, expect=(404,))
    server.admin("DELETE", path)
    server.admin("PATCH", path, {"name": "x"}, expect=(409,))
    assert any(a["action"] == "key.update" for a in server.admin("GET", "/audit")["data"])


def ipv6():
    key = server.tenant("six", networks=["::1/128"])
    assert status(key, "::1") == 200 and status(key, "127.0.0.1") == 403


def an_operators_key():
    made = server.admin("POST", "/keys", {"scopes": ["admin.read"], "networks": ["127.0.0.2"]})
    look = {"path": "/admin/v1/classes", "plane": server.admin_port}
    assert status(made["key"], "127.0.0.2", **look) == 200 and status(made["key"], "127.0.0.1", **look) == 403


def only_a_trusted_proxy_is_believed():
    key = server.tenant("proxied", networks=["192.0.2.0/24"])
    assert status(key, "127.0.0.1", X_Forwarded_For="192.0.2.1") == 403
    assert status(key, "127.0.0.9", X_Forwarded_For="192.0.2.1") == 200
    assert status(key, "127.0.0.9") == 403
    assert status(key, "127.0.0.9", X_Forwarded_For="192.0.2.1, 198.51.100.1") == 403  # the client's own claim
    refused = ask(key, "127.0.0.9", X_Forwarded_For="nonsense")
    assert refused[0] == 403 and "(unknown)" in refused[1]["error"]["message"]
    direct = server.tenant("direct", networks=["127.0.0.9/32"])
    assert status(direct, "127.0.0.9") == 200 and status(direct, "127.0.0.9", X_Forwarded_For="192.0.2.1") == 403


def mapped_addresses():
    """A listener for both families sees IPv4 clients as ::ffff:a.b.c.d."""
    both = free_port()
    with Server(settings={"server.listen": f"+{both}"}) as s:
        s.port = both
        key = s.tenant("mapped", networks=["127.0.0.1"])
        server_port, server.port = server.port, both
        try:
            assert status(key, "127.0.0.1", "/v1/models") == 200 and status(key, "127.0.0.2", "/v1/models") == 403
        finally:
            server.port = server_port


def with_socket(family, address):
    try:
        with socket.socket(family) as s:
            s.bind((address, 0))
        return True
    except OSError:
        return False


tests = [bounds_of_a_tenant_and_of_a_key, changes_apply_at_once_and_stay, an_operators_key,
         only_a_trusted_proxy_is_believed]
if with_socket(socket.AF_INET6, "::1"):
    tests += [ipv6, mapped_addresses]
else:  # a container without IPv6
    server.settings["server.listen"] = f"127.0.0.1:{port}"
with server:
    run(tests)
