"""starving.py -- a server whose memory runs out when told (starved.c), and what it is asked meanwhile.

A scenario is a call with a known right answer.  It is made once to count its allocations, then with the k-th failing, and
with all from the k-th on.  Each time the answer must be the right one or a 503 in OpenAI's shape; a stream that has begun may
also end in an error event or broken, never whole and wrong.  Then the same call without a fault must be right again.
"""
import collections
import hashlib
import http.client
import json
import mmap
import os
import random
import re
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import time
import urllib.parse

import contract
from harness import BUILD, DEMO, PATIENCE, Reply, Server, tar_of

SITES_MAX = 16384
ARMED, FROM, UPTO, COUNTED, FAILED, SEEK, N_SITES, SITE = (8 * i for i in range(8))
FOREVER = 1 << 62
IDLE_S = 4  # civetweb closes a silent connection after eight
NOBODY = {"LSAN_OPTIONS": "exitcode=23", "ASAN_OPTIONS": "exitcode=23:detect_leaks=1:allocator_may_return_null=1"}


class Wrong(AssertionError):
    """An answer that starved.c has no excuse for."""


class Memory:
    """The mapped file of starved.c."""

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile(prefix="lorad-starved-")
        self.file.truncate(SITE + 8 * SITES_MAX)
        self.map = mmap.mmap(self.file.fileno(), 0)

    def put(self, at, value):
        struct.pack_into("q", self.map, at, value)

    def get(self, at):
        return struct.unpack_from("q", self.map, at)[0]

    def arm(self, first=FOREVER, n=1, seek=False):
        """From the call `first` on, n fail."""
        for at, value in ((ARMED, 0), (FROM, first), (UPTO, min(first + n, FOREVER)), (COUNTED, 0), (FAILED, 0),
                          (SEEK, seek), (N_SITES, 0), (ARMED, 1)):
            self.put(at, value)

    def disarm(self):
        """(calls, failures) since it was armed."""
        self.put(ARMED, 0)
        return self.get(COUNTED), self.get(FAILED)

    def sites(self):
        """The first call of each stack since it was armed to seek them."""
        n = min(self.get(N_SITES), SITES_MAX)
        return list(struct.unpack_from(f"{n}q", self.map, SITE))


class StarvedServer(Server):
    def __init__(self, memory, trace=None, **more):
        super().__init__(program="lorad_starved", **more)
        self.memory, self.trace, self.open, self.used = memory, trace, {}, {}

    def start(self):
        self.said = self.log_path.stat().st_size if self.log_path.exists() else 0
        old = dict(os.environ)
        os.environ.update(NOBODY, LORAD_STARVED=self.memory.file.name, **({"LORAD_STARVED_TRACE": self.trace} if self.trace else {}))
        try:
            super().start()
        finally:
            os.environ.clear()
            os.environ.update(old)

    def wait_ready(self, seconds=120):
        """While memory runs out, until it says that it serves: there may be no memory for a handshake."""
        end = time.monotonic() + seconds * PATIENCE
        while self.memory.get(ARMED) and self.process.poll() is None and time.monotonic() < end:
            if re.search(rb" gateway: serving \S+ on \S+ \(", self.log_path.read_bytes()[self.said:]):
                return
            time.sleep(0.02)
        super().wait_ready(seconds)

    def stop(self, *args, **more):
        for c in self.open.values():
            c.close()
        self.open = {}
        return super().stop(*args, **more)

    def wire(self, port):
        """A connection that stands: what fails in a call is not its handshake."""
        if time.monotonic() - self.used.get(port, 0) > IDLE_S:
            self.hang_up(port)
        self.used[port] = time.monotonic()
        if port not in self.open:
            self.open[port] = self.connect(port, timeout=30)
            # The server ends its handshake after us: only an answer says that it is over.
            self.open[port].request("GET", "/stands")
            self.open[port].getresponse().read()
        return self.open[port]

    def hang_up(self, port):
        if port in self.open:
            self.open.pop(port).close()

    def say(self, ask):
        """One call on a standing connection: a Reply, whose body is None where the stream broke."""
        port, method, path, body, headers = ask
        c = self.wire(port)
        c.request(method, path, body, headers)
        r = c.getresponse()
        got = dict((k.lower(), v) for k, v in r.getheaders())
        try:
            data = r.read()
        except (http.client.IncompleteRead, ConnectionError, ssl.SSLError):
            if got.get("transfer-encoding") != "chunked":
                raise
            data = None
        if data is None or got.get("connection") == "close":
            self.hang_up(port)
        return Reply(r.status, got, data)


# ---- what is right --------------------------------------------------------------------------

VOLATILE = {"id", "created", "created_at", "request_id", "key", "public_id", "last_used_at", "at", "time", "updated_at",
            "started_at", "usage", "etag", "generation", "secrets", "expires_at", "seed", "version", "name", "uploaded_at",
            "prefix", "revoked_at", "hits", "host_bytes", "in_use", "load_us", "loads", "residency", "model",
            "idle_seconds", "events", "n_uses", "activated_at", "ended_at", "started_us", "object_id", "old_key_expires_at"}


def shape(value):
    """What of an answer must be the same each time."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items() if k not in VOLATILE}
    return [shape(v) for v in value] if isinstance(value, list) else value


def frames_of(body):
    return [f.removeprefix("data: ") for f in body.decode().split("\n\n") if f and not f.startswith(":")]


def text_of_stream(body):
    """{choice: text and calls, finish}; None: it does not end as a whole one does."""
    frames = frames_of(body)
    if not frames or frames[-1] != "[DONE]":
        return None
    said = collections.defaultdict(lambda: ["", "", None])
    for f in map(json.loads, frames[:-1]):
        if "error" in f:
            raise Wrong(f"an error and [DONE]: {body[-400:]!r}")
        for c in f["choices"]:
            s = said[c["index"]]
            d = c.get("delta", c)
            s[0] += d.get("content") or d.get("text") or ""
            for call in d.get("tool_calls") or []:
                s[1] += (call["function"].get("name") or "") + call["function"]["arguments"]
            s[2] = c["finish_reason"] or s[2]
    return dict(said)


class Scenario:
    """A call.  `ask(i)` and `before(i)`: the i-th time, for names that must be fresh."""

    def __init__(self, name, ask, before=None, same=None, after=None, expect=(200,), check=None):
        self.name, self.ask, self.before, self.after = name, ask, before, after
        self.expect, self.check = expect, check or (lambda r: json.dumps(shape(r.json), sort_keys=True) if r.body else "")
        self.right = None

    def view(self, r):
        return self.check(r)


class Run:
    """Goes through scenarios and counts."""

    def __init__(self, server, memory, verbose=False):
        self.server, self.memory, self.verbose = server, memory, verbose
        self.i, self.runs, self.failures, self.answers, self.wrong = 0, 0, 0, collections.Counter(), []
        self.sizes = {}

    def judge(self, s, ask, r):
        """'right', 'refused' or 'broken'; raises Wrong."""
        _, method, path, _, _ = ask
        if r.status == 503:
            if r.body is None:
                raise Wrong("a broken 503")
            if method == "HEAD":
                return "refused"
            error = r.json["error"]
            if not (error["code"] and error["message"] and error["type"]):
                raise Wrong(f"a 503 without a word: {r}")
            contract.check(method, path, r.status, r.headers, r.body, "/admin/" in path)
            return "refused"
        if r.status not in s.expect:
            raise Wrong(f"{r}")
        if r.body is None:
            return "broken"
        if r.headers.get("content-type", "").startswith("text/event-stream"):
            said = text_of_stream(r.body)
            if said is None:
                last = frames_of(r.body)[-1]
                if "error" not in json.loads(last):
                    raise Wrong(f"a stream that ends whole, but without [DONE]: {r.body[-400:]!r}")
                return "broken"
        view = s.view(r)
        if s.right is not None and view != s.right:
            raise Wrong(f"not the right answer\n   got {view}\nright {s.right}")
        return "right"

    def once(self, s, first=FOREVER, n=1):
        """One call with the failures asked for, judged; (verdict, calls, failures)."""
        self.i += 1
        what = s.before(self.i) if s.before else None
        ask = s.ask(self.i, what) if s.before else s.ask(self.i)
        self.server.wire(ask[0])
        self.memory.arm(first, n)
        try:
            r = self.server.say(ask)
        finally:
            calls, failures = self.memory.disarm()
        verdict = self.judge(s, ask, r)
        if verdict != "right" and not failures:
            raise Wrong(f"{verdict} without a failure: {r}")
        if s.after:
            s.after(self.i, what, r)
        return verdict, calls, failures, r

    def learn(self, s):
        """The right answer, and how many allocations it takes."""
        for _ in range(3):  # what the first call prepares once is not counted
            _, calls, _, r = self.once(s)
            s.right = s.view(r)
        self.sizes[s.name] = calls
        return calls

    def try_one(self, s, k, n):
        try:
            verdict, _, failures, _ = self.once(s, k, n)
            if failures:
                self.runs += 1
                self.failures += failures
                self.answers[verdict] += 1
            self.once(s)
        except Exception as e:  # whatever it is: noted, and on with a new connection
            self.memory.disarm()
            self.wrong.append((s.name, k, n, f"{type(e).__name__}: {e}"))
            if self.verbose:
                print(f"WRONG {s.name} k={k} {'once' if n == 1 else 'on'}: {type(e).__name__}: {str(e)[:600]}", flush=True)
            for port in list(self.server.open):
                self.server.hang_up(port)
            if self.server.process.poll() is not None:
                raise

    def note(self, name, k, n, good, failures, said):
        if failures:
            self.runs += 1
            self.failures += failures
            self.answers["right" if good else "wrong"] += 1
        if not good:
            self.wrong.append((name, k, n, said))
            if self.verbose:
                print(f"WRONG {name} k={k} {'once' if n == 1 else 'on'}: {said}", flush=True)

    def all_of(self, s, ks=None, modes=(1, FOREVER)):
        try:
            calls = self.learn(s)
        except Wrong as e:
            self.note(s.name, 0, 0, False, 0, f"without any failure: {e}")
            return
        before = self.runs
        for k in ks(calls) if ks else range(calls):
            for n in modes:
                self.try_one(s, k, n)
        if self.verbose:
            print(f"{s.name}: {calls} allocations, {self.runs - before} runs with failures", flush=True)


# ---- what is asked ---------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "add", "strict": True, "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/n"}},
    "required": ["a", "b"], "additionalProperties": False, "$defs": {"n": {"type": "integer"}}}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": {
    "type": "object", "properties": {"x": {"enum": ["a", "b"]}, "y": {"type": "array", "items": {"type": "boolean"},
                                                                    "maxItems": 2}},
    "required": ["x", "y"], "additionalProperties": False}}}
QUESTION = [{"role": "user", "content": "What is 7 plus 5?"}]


def answer_of(r):
    """Texts and figures of a completion, whole or streamed."""
    if r.headers["content-type"].startswith("text/event-stream"):
        return json.dumps(text_of_stream(r.body), sort_keys=True)
    j = r.json
    for c in j["choices"]:
        for call in c.get("message", {}).get("tool_calls") or []:
            call.pop("id")
    return json.dumps([j["choices"], j["usage"]["prompt_tokens"], j["usage"]["completion_tokens"]], sort_keys=True)


def scenarios(server, key, big=False):
    """All of them, on the planes of `server`; key: of the tenant 'starved'."""
    files = {p.name: p.read_bytes() for p in (DEMO / "adapters/shout").iterdir()
             if p.name in ("adapter_config.json", "adapter_model.safetensors")}
    adapters = {n: tar_of(DEMO / "adapters" / n) for n in ("shout", "pirate")}
    fresh = {n: random.Random(7).randbytes(5000) for n in files}  # that no version has: nothing is there already

    def listed(what):
        return {"files": [{"path": n, "bytes": len(b), "sha256": hashlib.sha256(b).hexdigest()} for n, b in what.items()]}

    spare = tempfile.mkdtemp(prefix="lorad-starved-")

    def to(method, path, body=None, port=None, who=key, **headers):
        h = {"Authorization": f"Bearer {who}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            h.setdefault("Content-Type", "application/json")
        return port or server.port, method, path, body, h

    def ask(path, **body):
        return lambda i: to("POST", "/v1" + path, {"temperature": 0, "max_tokens": 6, **body})

    def admin(method, path, body=None, **headers):
        return to(method, "/admin/v1" + path, body, server.admin_port, server.admin_key, **headers)

    def done(call, expect=(200, 201, 202, 204)):
        r = server.say(call)
        if r.status not in expect:
            raise Wrong(f"unfaulted {call[1]} {call[2]}: {r}")
        return r

    def tar(name, what="shout", query=""):
        return to("POST", f"/v1/adapters/{name}/versions{query}", adapters[what], Content_Type="application/x-tar")

    def forget(name):
        done(to("DELETE", f"/v1/adapters/{name}"), (200, 204, 404))

    def staged(i, whole=True):
        up = done(to("POST", f"/v1/adapters/up{i}/versions", listed(files if whole else fresh))).json
        at = f"/v1/adapters/up{i}/versions/{up['id']}"
        for n, b in files.items() if whole else ():
            done(to("PUT", f"{at}/files/{n}", b))
        return at

    def usable(name):
        r, call = None, to("POST", "/v1/chat/completions", {"model": name, "messages": QUESTION, "temperature": 0, "max_tokens": 3})
        for _ in range(20):  # who waited for a load that had no memory hears so for a moment
            r = server.say(call)
            if r.status != 503 or r.json["error"]["code"] != "out_of_memory":
                break
            time.sleep(0.05)
        if r.status != 200:
            raise Wrong(f"{name} can't be used: {r}")
        if not r.json["choices"][0]["message"]["content"].isupper():
            raise Wrong(f"{name} does not shout: {r}")

    def let_go(name):
        """Published, loaded, and in nobody's hands."""
        done(tar(name))
        for _ in range(500):
            v = done(to("GET", f"/v1/adapters/{name}/versions/1")).json
            if v["residency"] == "device" and not v["in_use"]:
                return
            time.sleep(0.02)
        raise Wrong(f"{name} is never loaded: {v}")

    def published(i, what, r, name):
        """After a refusal it is there whole, or not at all."""
        if r.status != 503 or server.say(to("GET", f"/v1/adapters/{name}")).status == 200:
            usable(name)
        forget(name)

    def no_tenant(i, what, r):
        """The row and the memory must agree: what exists can be had and deleted, what does not can be made."""
        name = f"new{i}"
        there = server.say(admin("GET", f"/tenants/{name}")).status
        if r.status == 503:
            done(admin("POST", "/tenants", {"name": name}), (200, 201) if there == 404 else (409,))
        elif there != 200:
            raise Wrong(f"a tenant made and not found: {there}")
        done(admin("DELETE", f"/tenants/{name}"))

    def key_made(i, what, r):
        if r.status != 503:
            done(to("GET", "/v1/models", who=r.json["key"]))
            done(admin("DELETE", f"/keys/{r.json['id']}"))

    def new_key(i):
        return done(admin("POST", "/keys", {"tenant": "starved", "name": f"k{i}", "scopes": ["inference"]})).json

    def drop_key(i, what, r):
        done(admin("DELETE", f"/keys/{what['id']}"), (200, 202, 204, 404, 409))

    def rotated(i, what, r):
        done(to("GET", "/v1/models", who=r.json["key"] if r.status != 503 else what["key"]),
             (200,) if r.status != 503 else (200, 401))
        drop_key(i, what, r)

    def revoked(i, what, r):
        got = server.say(to("GET", "/v1/models", who=what["key"])).status
        if got != 401 and r.status != 503:
            raise Wrong(f"a revoked key is let in: {got}")
        drop_key(i, what, r)

    def new_tenant(i):
        done(admin("POST", "/tenants", {"name": f"gone{i}"}))

    def drop_tenant(i, what, r):
        if r.status == 503:
            done(admin("DELETE", f"/tenants/gone{i}"), (200, 202, 204, 404))

    def copy_gone(i, what, r):
        path = f"{spare}/copy{i}.db"
        if r.status != 503 and not os.path.getsize(path):
            raise Wrong("a backup without a byte")
        if os.path.exists(path):
            os.unlink(path)

    def status(r):
        return str(r.status)

    def columns(r):
        """The names, not the figures."""
        return json.dumps(sorted(r.json))

    def families(r):
        return "\n".join(sorted(line for line in r.body.decode().splitlines() if line.startswith("# TYPE")))

    def table(r):
        return r.body.decode().splitlines()[0]

    yes = (200, 201, 202, 204)
    out = lambda r: "out"  # 200, or 202: in force, and not on the disk yet
    made = (200, 201)
    all_of = [
        Scenario("chat", ask("/chat/completions", model="base", messages=QUESTION), check=answer_of),
        Scenario("chat-stream", ask("/chat/completions", model="base", messages=QUESTION, stream=True,
                                    stream_options={"include_usage": True}), check=answer_of),
        Scenario("text", ask("/completions", model="base", prompt="The sum", n=2, seed=3, temperature=1, logprobs=3,
                             echo=True, stop=["zz", "qq"]), check=answer_of),
        Scenario("text-stream", ask("/completions", model="base", prompt=["One", "Two"], logprobs=2, stream=True),
                 check=answer_of),
        Scenario("tools", ask("/chat/completions", model="base", messages=QUESTION, tools=[TOOL], tool_choice="required",
                              max_tokens=60), check=answer_of),
        Scenario("tools-stream", ask("/chat/completions", model="base", messages=QUESTION, tools=[TOOL], stream=True,
                                     tool_choice="required", max_tokens=60), check=answer_of),
        Scenario("schema", lambda i: ask("/chat/completions", model="base", messages=QUESTION, max_tokens=40, response_format={
            **SCHEMA, "json_schema": {**SCHEMA["json_schema"], "name": f"s{i}", "schema": {
                **SCHEMA["json_schema"]["schema"], "title": f"n{i}"}}})(i), check=answer_of),
        Scenario("regex", lambda i: ask("/completions", model="base", prompt="x", max_tokens=12,
                                        structured_outputs={"regex": "(ab|c[0-9]{2,3}){1,2}"})(i), check=answer_of),
        Scenario("adapter", ask("/chat/completions", model="pirate", messages=QUESTION), check=answer_of),
        Scenario("adapter-cold", lambda i, _: ask("/chat/completions", model=f"cold{i}", messages=QUESTION)(i),
                 before=lambda i: done(tar(f"cold{i}")), after=lambda i, what, r: published(i, what, r, f"cold{i}"),
                 check=answer_of),
        Scenario("tokenize", ask("/tokenize", model="base", messages=QUESTION)),
        Scenario("tokenize-text", ask("/tokenize", model="pirate", prompt="Some words to count", return_token_strs=True)),
        Scenario("detokenize", ask("/detokenize", model="base", tokens=[5, 9, 17, 30])),
        Scenario("models", lambda i: to("GET", "/v1/models")),
        Scenario("model", lambda i: to("GET", "/v1/models/pirate")),
        Scenario("unknown-model", ask("/chat/completions", model="nobody", messages=QUESTION), expect=(404,)),
        Scenario("bad-json", lambda i: to("POST", "/v1/chat/completions", b"{]", Content_Type="application/json"), expect=(400,)),
        Scenario("bad-key", lambda i: to("GET", "/v1/models", who="lk_nobody"), expect=(401,)),
        Scenario("unknown-url", lambda i: to("GET", "/v1/nothing/at/all"), expect=(404,)),
        Scenario("whoami", lambda i: to("GET", "/v1/key"), check=columns),
        Scenario("usage", lambda i: to("GET", "/v1/usage?bucket_width=1d&group_by=model"), check=columns),
        Scenario("adapters", lambda i: to("GET", "/v1/adapters?limit=5&prefix=p")),
        Scenario("adapter-get", lambda i: to("GET", "/v1/adapters/pirate")),
        Scenario("adapter-events", lambda i: to("GET", "/v1/adapters/pirate/events"), check=columns),
        Scenario("adapter-patch", lambda i: to("PATCH", "/v1/adapters/pirate", {"description": "says arr"})),
        Scenario("adapter-warm", lambda i: to("POST", "/v1/adapters/pirate/warm"), expect=(200, 202), check=status),
        Scenario("alias", lambda i: to("PUT", "/v1/adapters/pirate/aliases/next", {"version": 1}), expect=made, check=status),
        Scenario("upload", lambda i: tar(f"tar{i}"), after=lambda i, what, r: published(i, what, r, f"tar{i}"), expect=made),
        Scenario("adapter-delete", lambda i, _: to("DELETE", f"/v1/adapters/old{i}"), before=lambda i: let_go(f"old{i}"),
                 after=lambda i, what, r: forget(f"old{i}"), expect=yes, check=status),
        Scenario("staging-begin", lambda i: to("POST", f"/v1/adapters/st{i}/versions", listed(files)),
                 after=lambda i, what, r: r.status == 503 or done(to("DELETE", f"/v1/adapters/st{i}/versions/{r.json['id']}")),
                 expect=(201,), check=columns),
        Scenario("staging-put", lambda i, at: to("PUT", f"{at}/files/adapter_model.safetensors", fresh["adapter_model.safetensors"]),
                 before=lambda i: staged(i, False), after=lambda i, at, r: done(to("DELETE", at)), expect=yes, check=status),
        Scenario("staging-patch", lambda i, at: to("PATCH", f"{at}/files/adapter_model.safetensors",
                                                   fresh["adapter_model.safetensors"], Upload_Offset="0",
                                                   Content_Type="application/octet-stream"),
                 before=lambda i: staged(i, False), after=lambda i, at, r: done(to("DELETE", at)), expect=yes, check=status),
        Scenario("staging-commit", lambda i, at: to("POST", f"{at}/commit"), before=staged,
                 after=lambda i, at, r: (r.status == 503 and done(to("POST", f"{at}/commit"), (200, 201, 404)),
                                         published(i, at, r, f"up{i}")), expect=made),
        Scenario("tenant-create", lambda i: admin("POST", "/tenants", {"name": f"new{i}", "weight": 2}), after=no_tenant,
                 expect=made),
        Scenario("tenant-get", lambda i: admin("GET", "/tenants/starved")),
        Scenario("tenants", lambda i: admin("GET", "/tenants?limit=5")),
        Scenario("tenant-patch", lambda i: admin("PATCH", "/tenants/starved", {"limits": {"requests_per_minute": 1000000}})),
        Scenario("tenant-delete", lambda i, _: admin("DELETE", f"/tenants/gone{i}"), before=new_tenant, after=drop_tenant,
                 expect=yes, check=out),
        Scenario("key-create", lambda i: admin("POST", "/keys", {"tenant": "starved", "name": f"n{i}", "scopes": ["inference"]}),
                 after=key_made, expect=made),
        Scenario("keys", lambda i: admin("GET", "/keys?tenant=starved"), check=columns),
        Scenario("key-patch", lambda i, k: admin("PATCH", f"/keys/{k['id']}", {"name": "other"}), before=new_key, after=drop_key),
        Scenario("key-rotate", lambda i, k: admin("POST", f"/keys/{k['id']}/rotate", {}), before=new_key, after=rotated,
                 expect=made),
        Scenario("key-revoke", lambda i, k: admin("DELETE", f"/keys/{k['id']}"), before=new_key, after=revoked, expect=yes,
                 check=out),
        Scenario("limits", lambda i: admin("GET", "/limits"), check=columns),
        Scenario("limits-patch", lambda i: admin("PATCH", "/limits/starved", {"tokens_per_minute": 100000000}), check=columns),
        Scenario("stats", lambda i: admin("GET", "/stats"), check=columns),
        Scenario("classes", lambda i: admin("GET", "/classes")),
        Scenario("admin-adapters", lambda i: admin("GET", "/adapters?limit=3"), check=columns),
        Scenario("requests", lambda i: admin("GET", "/requests"), check=columns),
        Scenario("admin-usage", lambda i: admin("GET", "/usage?bucket_width=1h"), check=columns),
        Scenario("admin-csv", lambda i: admin("GET", "/usage?bucket_width=1h&group_by=key", Accept="text/csv"),
                 check=table),
        Scenario("audit", lambda i: admin("GET", "/audit?limit=20"), check=columns),
        Scenario("backup", lambda i: admin("POST", "/backup", {"path": f"{spare}/copy{i}.db"}), after=copy_gone, expect=yes,
                 check=status),
        Scenario("reload", lambda i: admin("POST", "/reload"), expect=(200, 202), check=status),
        Scenario("metrics", lambda i: to("GET", "/metrics", port=server.metrics_port), check=families),
        Scenario("health", lambda i: to("GET", "/healthz", port=server.metrics_port)),
    ]
    return all_of


# ---- handshakes, starts and ends ------------------------------------------------------------------


def handshakes(run, every=1):
    """A new connection and a call on it: while there is no request yet, the server may hang up; after that it answers."""
    s, memory = run.server, run.memory

    def attempt(k, n):
        memory.arm(k, n)
        try:
            c = s.connect(timeout=30)
            c.connect()
            c.request("GET", "/v1/key", headers={"Authorization": f"Bearer {s.admin_key}"})
            status = c.getresponse().status
        except (OSError, http.client.HTTPException):
            status = None
        calls, failures = memory.disarm()
        c.close()
        return status, calls, failures

    right, calls, _ = attempt(FOREVER, 1)
    for k in range(0, calls, every):
        for n in (1, FOREVER):
            status, _, failures = attempt(k, n)
            run.note("handshake", k, n, status in (None, 503, right) and attempt(FOREVER, 1)[0] == right, failures,
                     f"status {status}")


SENTENCE = re.compile(r"^lorad: \S.*", re.M)


def start_once(server, memory, k, n, seek=False):
    """(ended by itself: status, else None; what it said; calls, failures): a server that starts or refuses to."""
    memory.arm(k, n, seek)
    before = server.log_path.stat().st_size if server.log_path.exists() else 0
    try:
        server.start()
        status = None
    except RuntimeError:
        status = server.process.poll()
    calls, failures = memory.disarm()
    if status is None:
        server.wait_ready()
    else:
        server.process = None
        server.log.close()
    with open(server.log_path, "rb") as f:
        f.seek(before)
        said = f.read().decode(errors="replace")
    return status, said, calls, failures


def starts(run, limit, modes=(1, FOREVER)):
    """A start that lacks memory serves rightly, or ends with status 1 and a sentence.  One call of each stack fails."""
    s, memory = run.server, run.memory
    status, said, calls, _ = start_once(s, memory, FOREVER, 1, True)
    sites = memory.sites()
    if status is not None or s.stop() != 0:
        raise Wrong(f"an unfaulted start fails: {said[-2000:]}")
    if len(sites) > limit:
        sites = sorted(random.Random(1).sample(sites, limit))
    for k in sites:
        for n in modes:
            try:
                status, said, _, failures = start_once(s, memory, k, n)
                if status is None:
                    ok = s.call("GET", "/readyz", port=s.metrics_port).status == 200
                    status = s.stop()
                    good = ok and status == 0
                else:
                    good = status == 1 and SENTENCE.search(said)
            except Exception as e:  # hangs, too
                good, said, failures = False, f"{type(e).__name__}: {e}", 1
                if s.process:
                    s.process.kill()
                    s.stop()
            run.note("start", k, n, good, failures, f"status {status}: {said[-1500:]}")
    run.sizes["start"] = calls


def booked(server, key):
    """Requests in the books of a tenant."""
    days = server.call("GET", "/v1/usage?bucket_width=1d", key=key).json["data"]
    return sum(r["num_model_requests"] for d in days for r in d["results"])


def ends(run, limit, ask, key, modes=(1, FOREVER)):
    """SIGTERM: the end is clean, and what was answered stands in the books at the next start."""
    s, memory = run.server, run.memory
    s.start()
    before, answered = booked(s, key), 0
    s.stop()
    for k in range(limit):
        for n in modes:
            s.start()
            for _ in range(2):
                answered += s.say(ask).status == 200
            memory.arm(k * k, n)
            s.process.send_signal(signal.SIGTERM)
            status = s.process.wait(60 * PATIENCE)
            _, failures = memory.disarm()
            s.stop()
            run.note("end", k * k, n, status == 0, failures, f"status {status}")
    s.start()
    found = booked(s, key) - before
    s.stop()
    run.note("books", 0, 1, found == answered, 1, f"{answered} answered, {found} in the books")
