"""Pages of other origins, by option and by the origin's exact text; probes without a key; URLs that are not there, and why."""
from harness import Server, run

HERE, THERE = "https://app.example", "https://other.example"


def preflight(s, origin, path="/v1/chat/completions", port=None):
    return s.call("OPTIONS", path, headers={"Origin": origin, "Access-Control-Request-Method": "POST",
                                            "Access-Control-Request-Headers": "authorization, content-type"}, port=port)


def a_page_is_let_in_by_its_exact_origin():
    for origin in (HERE, "http://localhost:3000"):
        r = preflight(server, origin)
        assert r.status == 200 and r.headers["access-control-allow-origin"] == origin, r.headers
        assert "POST" in r.headers["access-control-allow-methods"].split(", ")
        assert r.headers["access-control-allow-headers"] == "authorization, content-type"
        assert r.headers["vary"] == "Origin"
    r = server.call("GET", "/v1/models", key=own, headers={"Origin": HERE})
    assert r.status == 200 and r.headers["access-control-allow-origin"] == HERE
    assert "x-request-id" in r.headers["access-control-expose-headers"]
    r = server.call("GET", "/v1/models", headers={"Origin": HERE})  # an error, too, must be readable
    assert r.status == 401 and r.headers["access-control-allow-origin"] == HERE


def others_are_not():
    for origin in (THERE, HERE + ".evil.example", "https://app.exampl", "HTTPS://app.example", "null", "*"):
        for r in (preflight(server, origin), server.call("GET", "/v1/models", key=own, headers={"Origin": origin})):
            assert not [h for h in r.headers if h.lower().startswith("access-control")], (origin, r.headers)
            assert r.headers["vary"] == "Origin"
    r = preflight(server, HERE, "/admin/v1/tenants", port=server.admin_port)  # operators' listener: never
    assert not [h for h in r.headers if h.lower().startswith("access-control")], r.headers


def all_or_none_by_option():
    with Server(settings={"server.cors_origins": "*"}) as any_origin:
        assert preflight(any_origin, THERE).headers["access-control-allow-origin"] == "*"
        any_origin.stop()
        any_origin.settings["server.cors_origins"] = ""
        any_origin.start()
        r = preflight(any_origin, THERE)
        assert r.status == 200 and not [h for h in r.headers if h.lower().startswith("access-control")], r.headers


def probes_need_no_key():
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"), ("HEAD", "/health")):
        assert server.call(method, path).status == 200, (method, path)


def what_is_not_there_says_why():
    for path, word in (("/v1/realtime", "realtime"), ("/v1/images/generations", "images"), ("/v1/audio/speech", "speaks"),
                       ("/v1/videos", "videos")):
        for method in ("GET", "POST"):
            e = server.call(method, path, {} if method == "POST" else None, key=own)
            assert e.status == 404 and word in e.json["error"]["message"].partition(path)[2], e


with Server(settings={"server.cors_origins": f"{HERE}, http://localhost:3000"}) as server:
    own = server.tenant("own")
    run([a_page_is_let_in_by_its_exact_origin, others_are_not, all_or_none_by_option, probes_need_no_key,
         what_is_not_there_says_why])
