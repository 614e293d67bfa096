"""The chat page in headless Chromium, at 1280 and at 390 pixels: list models, compare two adapters, stream, stop; nothing in the
console, nothing wider than the window.  The browser is driven over its debugging pipe."""
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile

from harness import DEMO, PATIENCE, Server, run, until

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page; commands and events are JSON objects, each ended by a NUL, on descriptors 3 and 4 of the browser."""

    def __init__(self, profile):
        mine, self.out = os.pipe()
        self.inn, yours = os.pipe()
        to_read, to_write = fcntl.fcntl(mine, fcntl.F_DUPFD, 10), fcntl.fcntl(yours, fcntl.F_DUPFD, 10)  # out of the way of 3 and 4
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec \"$@\" 3<&{to_read} 4>&{to_write}", "bash", BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--ignore-certificate-errors", "--remote-debugging-pipe", f"--user-data-dir={profile}",
             "about:blank"], pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (mine, yours, to_read, to_write):
            os.close(fd)
        self.pending, self.number, self.events, self.session = b"", 0, [], None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(domain + ".enable")

    def receive(self):
        while b"\0" not in self.pending:
            more = os.read(self.inn, 1 << 16)
            assert more, "the browser has ended"
            self.pending += more
        one, self.pending = self.pending.split(b"\0", 1)
        return json.loads(one)

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def js(self, code):
        r = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, (code, r)
        return r["result"].get("value")

    def complaints(self):
        """What a console would show."""
        bad = [e for e in self.events if e.get("method") == "Runtime.exceptionThrown" or
               e.get("method") == "Runtime.consoleAPICalled" and e["params"]["type"] in ("error", "warning", "assert") or
               e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] in ("error", "warning")]
        return [e for e in bad if "401" not in json.dumps(e)]

    def close(self):
        self.send("Browser.close")
        self.process.wait(60 * PATIENCE)


server = Server()
key = None
browser = None


def fill(name, text):
    browser.js(f"document.getElementById({name!r}).value = {json.dumps(text)}")


def click(selector):
    browser.js(f"document.querySelector({json.dumps(selector)}).click()")


def text_of(selector):
    return browser.js(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")


def open_page(width):
    browser.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    browser.send("Page.navigate", url=f"https://localhost:{server.port}/")
    until(lambda: browser.js("document.readyState === 'complete' && !!document.getElementById('key-form')"))


def two_adapters_side_by_side(width):
    open_page(width)
    fill("key", "sk-wrong")
    click("#key-form button")
    until(lambda: "key" in text_of("#status")[0].lower())
    fill("key", key)
    click("#key-form button")
    until(lambda: "3 models" in text_of("#status"))
    for name in ("pirate", "shout"):
        click(f"#models input[value='{name}']")
    assert text_of(".answer h2") == ["pirate", "shout"]
    fill("temperature", "0")
    fill("prompt", "What is 7 plus 5?")
    click("#send")
    until(lambda: len(text_of(".figures")) == 2)
    said = [t for t in text_of(".turn") if t != "What is 7 plus 5?"]
    assert said == ["Arr! 7 plus 5 be 12, matey!", "7 PLUS 5 IS 12."], said
    assert all("tokens in" in f and "ms to the first token" in f for f in text_of(".figures"))
    assert browser.js("document.documentElement.scrollWidth <= window.innerWidth"), "the page is wider than its window"
    columns = browser.js("[...document.querySelectorAll('.answer')].map(e => Math.round(e.getBoundingClientRect().top))")
    assert (columns[0] == columns[1]) == (width > 600), columns
    assert browser.complaints() == [], browser.complaints()


def wide():
    two_adapters_side_by_side(1280)


def narrow():
    two_adapters_side_by_side(390)


def a_long_answer_is_stopped():
    """Also where the server does not answer; the slot is free again: the request ended with the connection."""
    click("#clear")
    assert text_of(".turn") == []
    fill("system", "<b>no markup</b>")
    fill("prompt", "<img src=x onerror=alert(1)>")
    server.process.send_signal(signal.SIGSTOP)
    click("#send")
    until(lambda: browser.js("document.getElementById('send').disabled"))
    click("#stop")
    until(lambda: text_of(".error"))
    server.process.send_signal(signal.SIGCONT)
    until(lambda: browser.js("!document.getElementById('send').disabled"))
    until(lambda: server.metrics()["lorad_requests_running"] == 0)
    assert text_of(".error") == ["stopped", "stopped"], text_of(".error")
    assert browser.js("document.querySelectorAll('#answers img, #answers b').length") == 0
    assert "<img src=x onerror=alert(1)>" in text_of(".turn")


with server, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
    assert BROWSER, "this test needs Chromium: apt-get install chromium"
    key = server.tenant("acme")
    for adapter in ("pirate", "shout"):
        server.upload(key, adapter, DEMO / "adapters" / adapter)
    browser = Browser(profile)
    try:
        run([wide, narrow, a_long_answer_is_stopped])
    finally:
        browser.close()
