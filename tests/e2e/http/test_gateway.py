"""Behind an inference gateway: the API without TLS for the networks that may, probes at its own addresses, what pickers
read and write, the server's number in ids."""
import http.client
import json
import signal
import socket

from harness import DEMO, Server, events, free_port, run, until

plain = free_port()
server = Server(settings={"server.plain_listen": f"127.0.0.1:{plain}", "server.plain_networks": "127.0.0.1,127.0.0.2/31",
                          "metrics.inference_networks": "127.0.0.2", "server.node": "201",
                          "engine.prefix_cache": "no", "class.interactive.ttft": "1us", "class.standard.ttft": "1us",
                          "class.interactive.overload": "reject", "class.batch.ttft": "1h", "class.batch.tpot": "1h"})


def connect(source="127.0.0.1"):
    return http.client.HTTPConnection("127.0.0.1", plain, timeout=60, source_address=(source, 0))


def ask(method, path, body=None, key=None, source="127.0.0.1", connection=None, **headers):
    c = connection or connect(source)
    c.request(method, path, body and json.dumps(body), {
        **({"Authorization": f"Bearer {key}"} if key else {}), "Content-Type": "application/json",
        **{k.replace("_", "-"): v for k, v in headers.items()}})
    r = c.getresponse()
    data = r.read()
    if not connection:
        c.close()
    return r, data


def served_without_tls():
    key = server.tenant("acme")
    body = {"model": "base", "prompt": "The", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    same = server.call("POST", "/v1/completions", body, key=key).json["choices"]
    c = connect()
    for _ in range(2):  # on one connection
        r, data = ask("POST", "/v1/completions", body, key, connection=c)
        assert r.status == 200 and json.loads(data)["choices"] == same, data
    r, data = ask("POST", "/v1/completions", {**body, "stream": True}, key, connection=c)
    assert r.status == 200 and "".join(e["choices"][0]["text"] for e in events(data)) == same[0]["text"], data
    r, data = ask("POST", "/v1/completions", body, connection=c)
    assert r.status == 401, data
    c.close()
    id = int(r.getheader("x-request-id")[4:], 16)
    assert id >> 14 & 255 == 201, hex(id)
    with socket.create_connection(("127.0.0.1", plain)) as s:  # half a head, and the end
        s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x")
        s.shutdown(socket.SHUT_WR)
        assert s.makefile("rb").read().startswith(b"HTTP/1.1 400 "), "cut"
    with socket.create_connection(("127.0.0.1", plain)) as s:  # TLS where there is none
        s.sendall(b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(160))
        assert s.makefile("rb").read().startswith(b"HTTP/1.1 400 "), "TLS"


def others_are_told_to_use_tls():
    for _ in range(3):
        r, data = ask("GET", "/v1/models", key="lk_x", source="127.0.0.4")
        assert r.status == 400 and json.loads(data)["error"]["code"] == "https_required", data
    assert ask("GET", "/v1/models", source="127.0.0.3")[0].status == 401


def probes_where_the_requests_go():
    assert ask("GET", "/readyz", source="127.0.0.2")[0].status == 200
    assert ask("GET", "/healthz", source="127.0.0.2")[0].status == 200
    assert ask("POST", "/metrics", source="127.0.0.2")[0].status == 405
    for path in ("/metrics", "/readyz", "/healthz"):
        r, data = ask("GET", path, source="127.0.0.3")
        assert r.status == 404 and json.loads(data)["error"]["code"] == "unknown_url", data
        assert server.call("GET", path).status == 404
    assert ask("GET", "/v1/metrics", source="127.0.0.2")[0].status == 404


def scrape():
    r, data = ask("GET", "/metrics", source="127.0.0.2")
    assert r.status == 200 and "version=0.0.4" in r.getheader("Content-Type"), r
    return [line for line in data.decode().splitlines() if line.startswith("vllm:") and "lora" in line]


def idle_adapters_are_told():
    key = server.key("acme")
    server.upload(key, "pirate", DEMO / "adapters/pirate")
    assert server.ask(key, "pirate", "Hello").status == 200
    lines = scrape()
    info = next(line for line in lines if line.startswith("vllm:lora_requests_info{"))
    assert 'running_lora_adapters="pirate"' in info and 'waiting_lora_adapters=""' in info, info
    gpu = next(line for line in lines if line.startswith("vllm:lora_adapter_loaded{"))
    for label in ('adapter_name="pirate"', 'version="1"', 'level="gpu"', 'pinned="false"', 'rank="16"'):
        assert label in gpu, gpu
    assert server.call("DELETE", "/v1/adapters/pirate", key=key).status in (200, 202)
    until(lambda: not [line for line in scrape() if "pirate" in line])


def misses(key, tier, **headers):
    """Whether the log says of a request of this class that it missed a target."""
    body = {"model": "base", "prompt": "The " * 900, "max_tokens": 2, "temperature": 0, "service_tier": tier}
    r, data = ask("POST", "/v1/completions", body, key, **headers)
    line = until(lambda: [x for x in server.log_path.read_text().splitlines() if r.getheader("x-request-id") in x])[0]
    return r, "missed=" in line


def a_longer_target_is_taken_a_shorter_is_not():
    """Nine hundred tokens in a microsecond cannot be; in the hour that the picker passes on they can."""
    key = server.key("acme")
    r, _ = until(lambda: (r := misses(key, "interactive"))[0].status == 429 and r)  # once the engine knows its speed
    assert r.getheader("x-llm-d-request-dropped-reason") == "rejected-saturated", r.headers
    assert misses(key, "standard")[1] and not misses(key, "batch")[1]
    for name in ("x_slo_ttft_ms", "x_llm_d_slo_ttft_ms"):
        r, missed = misses(key, "standard", **{name: "3600000"})
        assert r.status == 200 and not missed, name
        for wrong in ("0.0005", "-1", "soon", "nan", "1e300", ""):
            assert misses(key, "standard", **{name: wrong})[1], wrong
        assert not misses(key, "batch", **{name: "0.001"})[1], name


def not_ready_while_draining():
    key = server.key("acme")
    body = json.dumps({"model": "base", "prompt": "The", "max_tokens": 1}).encode()
    c = connect("127.0.0.2")
    assert ask("GET", "/readyz", connection=c)[0].status == 200
    with socket.create_connection(("127.0.0.1", plain)) as late, late.makefile("rb") as answer:
        late.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nExpect: 100-continue\r\n"
                     f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        assert answer.readline() == b"HTTP/1.1 100 Continue\r\n" and answer.readline() == b"\r\n"
        server.process.send_signal(signal.SIGTERM)  # who has begun to ask is waited for
        until(lambda: "draining:" in server.log_path.read_text())
        r, data = ask("GET", "/readyz", connection=c)
        assert r.status == 503 and json.loads(data)["status"] == "draining", data
        late.sendall(body)
        said = answer.read()
    assert said.startswith(b"HTTP/1.1 503 ") and b"x-llm-d-request-dropped-reason: rejected-shutting-down\r\n" in said, said
    assert server.stop() == 0


with server:
    run([served_without_tls, others_are_told_to_use_tls, probes_where_the_requests_go, idle_adapters_are_told,
         a_longer_target_is_taken_a_shorter_is_not, not_ready_while_draining])
