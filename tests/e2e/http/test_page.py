"""The chat page at / of the inference listener, and /openapi.json: served without a key, under a strict policy, on that listener
alone, and switched off by server.page."""
import json
import re

from harness import ROOT, Server, run

server = Server()
FILES = {"/": "text/html; charset=utf-8", "/page.css": "text/css; charset=utf-8", "/page.js": "text/javascript; charset=utf-8",
         "/openapi.json": "application/json"}


def get(path, **more):
    return server.call("GET", path, **more)


def the_files_of_the_tree_are_served():
    for path, kind in FILES.items():
        r = get(path)
        name = {"/": "gateway/page/index.html", "/openapi.json": "conf/openapi.json"}.get(path, "gateway/page" + path)
        assert r.status == 200 and r.headers["content-type"] == kind, (path, r)
        assert r.body == (ROOT / name).read_bytes(), path
        policy = r.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ") and "unsafe" not in policy, policy
        assert "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy and "form-action 'none'" in policy, policy
        assert r.headers["x-content-type-options"] == "nosniff" and r.headers["referrer-policy"] == "no-referrer", r.headers
        assert server.call("HEAD", path).status == 200 and server.call("POST", path, {}).status == 405
    assert json.loads(get("/openapi.json").body)["openapi"].startswith("3.1")


def the_page_obeys_its_policy():
    """No script, style or handler within the markup, nothing from elsewhere."""
    html = get("/").body.decode()
    assert not re.search(r"<script(?! src=\"page\.js\">)|<style|\son\w+=|\sstyle=|https?://", html), html
    script = get("/page.js").body.decode()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|https?://", script)
    assert not re.search(r"@import|url\(|https?://", get("/page.css").body.decode())


def other_listeners_have_none():
    for port in (server.admin_port, server.metrics_port):
        assert get("/", port=port).status in (401, 404) and get("/page.js", port=port).status in (401, 404)


def it_is_switched_off():
    server.admin("PATCH", "/config", {"server.page": "no"})
    for path in FILES:
        r = get(path)
        assert r.status == 404 and r.json["error"]["code"] == "unknown_url", r
    server.admin("PATCH", "/config", {"server.page": None})
    assert get("/").status == 200


with server:
    run([the_files_of_the_tree_are_served, the_page_obeys_its_policy, other_listeners_have_none, it_is_switched_off])
