"""The device fails: what runs gets 503 engine_restarting, the rest is served, the server lives on."""
import concurrent.futures
import json
import os
import socket
import subprocess
import threading
import time

from harness import BUILD, DEMO, PATIENCE, Server, answered, run

QUESTION = "What is 7 plus 5?"


class Faults:
    """Tells lorad_faulty when its device shall fail (faulty.c)."""

    def __init__(self, server):
        self.path = server.dir.with_suffix(".fault")
        self.stays = server.dir.with_suffix(".fault.stays")
        self.process = server.dir.with_suffix(".fault.process")
        self.trial = server.dir.with_suffix(".fault.trial")
        os.environ["LORAD_TEST_FAULT"] = str(self.path)

    def after(self, steps):
        part = self.path.with_suffix(".part")
        part.write_text(f"{steps}\n")
        os.replace(part, self.path)

    def clear(self):
        for p in (self.path, self.stays, self.process, self.trial):
            p.unlink(missing_ok=True)


def complete(server, key, **more):
    body = {"model": "base", "prompt": "Question: " + QUESTION, "max_tokens": 24, "temperature": 0,
            "ignore_eos": True, **more}
    return server.call("POST", "/v1/completions", body, key=key)


def text(reply):
    assert reply.status == 200, reply
    return reply.json["choices"][0].get("text") or reply.json["choices"][0]["message"]["content"]


def is_restarting(reply):
    assert reply.status == 503, reply
    assert reply.json["error"]["code"] == "engine_restarting", reply
    assert reply.json["error"]["type"] == "server_error", reply
    assert int(reply.headers["retry-after"]) >= 1, reply.headers
    assert "restart" in reply.json["error"]["message"], reply


def wait_metric(server, name, value):
    end = time.monotonic() + 60 * PATIENCE
    while server.metrics()[name] != value:
        assert time.monotonic() < end, (name, server.metrics()[name])
        time.sleep(0.05)


def running_fails_waiting_goes_on():
    server = Server(settings={"engine.max_seqs": "1"}, program="lorad_faulty")
    faults = Faults(server)
    with server:
        key = server.tenant("acme")
        server.upload(key, "pirate", DEMO / "adapters" / "pirate")
        right = text(complete(server, key))
        pirate = text(server.ask(key, "pirate", QUESTION))

        faults.after(3)
        is_restarting(complete(server, key))
        assert text(complete(server, key)) == right
        assert text(server.ask(key, "pirate", QUESTION)) == pirate
        wait_metric(server, "lorad_engine_restarts_total", 1)
        assert server.call("GET", "/readyz", port=server.metrics_port).status == 200

        def told():
            return [e["kind"] for e in server.stats()["events"] if e["kind"].startswith("engine.")]

        stats = server.stats()
        assert stats["totals"]["engine_restarts"] == 1 and told() == ["engine.restart"], (stats["totals"], told())
        assert stats["server"]["healthy"] and stats["server"]["ready"] and not stats["server"]["restarting"], stats["server"]

        # One seat: one runs when it happens, the others wait and are served after it.
        faults.after(5)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            replies = list(pool.map(lambda i: complete(server, key) if i % 2 else
                                    server.ask(key, "pirate", QUESTION), range(6)))
        failed = [r for r in replies if r.status != 200]
        assert len(failed) == 1, replies
        is_restarting(failed[0])
        for i, r in enumerate(replies):
            if r.status == 200:
                assert text(r) == (right if i % 2 else pirate), (i, r)
        wait_metric(server, "lorad_engine_restarts_total", 2)

        # A stream says it in its last event, or with its status where nothing was written before; it is never said to be whole.
        # Guesses make fewer steps than tokens, so the fault comes early.
        faults.after(6)
        reply = complete(server, key, stream=True, max_tokens=200)
        body = reply.body.decode()
        if reply.status == 503:
            is_restarting(reply)
        else:
            events = [json.loads(line[6:]) for line in body.splitlines()
                      if line.startswith("data: {")]
            assert events[-1]["error"]["code"] == "engine_restarting", body
        assert "[DONE]" not in body, body
        assert text(complete(server, key)) == right
        m = server.metrics()
        assert m["lorad_engine_healthy"] == 1 and m["lorad_failed_total"] == 3, m
        assert server.stop() == 0
    faults.clear()


def a_device_that_does_not_come_back():
    server = Server(program="lorad_faulty")
    faults = Faults(server)
    with server:
        key = server.tenant("acme")
        faults.stays.touch()
        faults.after(3)
        is_restarting(complete(server, key))
        seen = server.call("GET", "/readyz", port=server.metrics_port)
        assert seen.status == 503 and seen.json["status"] == "engine restarting", seen
        assert server.call("GET", "/healthz", port=server.metrics_port).status == 200
        top = server.stats()["server"]
        assert top["restarting"] and top["healthy"] and not top["ready"], top
        reply = complete(server, key)  # waits in the queue until the device is given up
        assert reply.status == 503 and reply.json["error"]["code"] == "device_error", reply
        for path in ("/readyz", "/healthz"):
            seen = server.call("GET", path, port=server.metrics_port)
            assert seen.status == 503 and seen.json["status"] == "device failed", seen
        assert server.metrics()["lorad_engine_healthy"] == 0
        top = server.stats()
        assert not top["server"]["healthy"] and not top["server"]["restarting"], top["server"]
        assert [e["kind"] for e in top["events"] if e["kind"].startswith("engine.")] == ["engine.restart", "engine.failed"]
        assert complete(server, key).status == 503
        assert server.stop() == 0
    faults.clear()


def text_again(server, key):
    """Who comes waits in the sockets' queues, however many processes it takes."""
    return text(answered(server, lambda: complete(server, key), is_restarting))


def another_process_takes_its_place():
    """A fault after which the device is of no use to this process: the next one has its number, its sockets and its books."""
    server = Server(settings={"engine.max_seqs": "1"}, program="lorad_faulty")
    faults = Faults(server)
    with server:
        key = server.tenant("acme")
        right = text(complete(server, key))
        refused, enough = [], threading.Event()

        def knock():
            while not enough.wait(0.005):
                try:
                    socket.create_connection(("127.0.0.1", server.port), 60 * PATIENCE).close()
                except ConnectionRefusedError as e:
                    refused.append(e)

        for n in (1, 2):
            faults.process.touch()
            faults.after(3)
            knocking = threading.Thread(target=knock)
            knocking.start()
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                for reply in pool.map(lambda _: complete(server, key), range(3)):
                    is_restarting(reply)  # those who wait for the one seat, too
            faults.process.unlink()
            assert text_again(server, key) == right
            enough.set()
            knocking.join()
            enough.clear()
            assert not refused, refused
            assert server.process.poll() is None
            wait_metric(server, "lorad_engine_restarts_total", n)
        log = server.log_path.read_text()
        assert log.count("restarting: a new process replaces this one") == 2
        assert log.count("a second fault in a row: continuing without kernels that change no answer") == 1
        assert len(os.listdir(f"/proc/{server.process.pid}/task")) > 1
        assert server.stop() == 0
    faults.clear()


def kernels_that_the_device_fails_at():
    """A fault while kernels are tried at the start: the next process goes without them, and so do those after it."""
    server = Server(settings={"engine.max_seqs": "1"}, program="lorad_faulty")
    faults = Faults(server)

    def said(what):
        return server.log_path.read_text().count(what)

    def lives_through_a_fault(key):
        faults.process.touch()
        faults.after(3)
        is_restarting(complete(server, key))
        faults.process.unlink()
        again = text_again(server, key)
        assert said("failed while kernels 'inside' were tried: continuing without them") == 1
        assert said("a new process replaces this one") == 2, server.log_path.read_text()
        wait_metric(server, "lorad_engine_restarts_total", 1)  # of requests: the other one had none
        assert server.stop() == 0
        faults.clear()
        return again

    faults.trial.touch()  # at the first start of all
    with server:
        key = server.tenant("acme")
        right = text(complete(server, key))
        assert said("while kernels") == said("a new process replaces this one") == 1
        assert lives_through_a_fault(key) == right
    server = Server(settings={"engine.max_seqs": "1"}, program="lorad_faulty")
    faults = Faults(server)
    with server:
        key = server.tenant("acme")
        faults.trial.touch()  # in the process that follows a fault: the sockets go from hand to hand
        assert lives_through_a_fault(key) == right
    # The device heals by being opened again, and is lost when its kernels are tried again.
    server = Server(settings={"engine.max_seqs": "1"}, program="lorad_faulty")
    faults = Faults(server)
    with server:
        key = server.tenant("acme")
        faults.trial.touch()
        faults.after(3)
        is_restarting(complete(server, key))
        assert text_again(server, key) == right
        assert said("while kernels 'inside' were tried: continuing without them") == said("a new process replaces this one") == 1
        assert said("to bring the device back") == 1  # further attempts are another process's
        wait_metric(server, "lorad_engine_restarts_total", 1)
        assert server.stop() == 0
    faults.clear()
    # By name: nothing is tried, so nothing fails.  A name that is none is refused.
    server = Server(settings={"debug.cuda_without": "chain, inside"}, program="lorad_faulty")
    faults = Faults(server)
    faults.trial.touch()
    with server:
        assert said("a new process replaces this one") == 0
        check = [BUILD / "lorad", "check", "-c", server.dir / "lorad.conf", "--set", "debug.cuda_without=wgmma,fast"]
        wrong = subprocess.run(check, capture_output=True, text=True)
        assert wrong.returncode == 1 and "debug.cuda_without: 'fast' is none of wgmma, chain, inside" in wrong.stderr, wrong
        assert server.stop() == 0
    faults.clear()


run([running_fails_waiting_goes_on, a_device_that_does_not_come_back, another_process_takes_its_place,
     kernels_that_the_device_fails_at])
