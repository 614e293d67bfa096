"""Base models by name (model.path = hf://...): what a hub's repository becomes in data.dir/models, from a server that imitates
the hub over HTTPS. It lists files with their digests, sends large ones from another host, cuts connections, damages bytes."""
import atexit
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import threading

import elsewhere
from harness import BUILD, DEMO, PATIENCE, ROOT, Server, free_port, run, until

BASE = {p.name: p.read_bytes() for p in (DEMO / "base").iterdir()}
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
QUANT = ROOT / "tests/fixtures/quant"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
work = pathlib.Path(tempfile.mkdtemp(prefix="lorad-hub-"))
atexit.register(shutil.rmtree, work, ignore_errors=True)
HUB, STORE = free_port(), free_port()
seen = []  # (port, path, headers) of each request
repos = {}  # "owner/name@revision": {path: bytes}
cut, wrong = {}, {}  # by path: so many bytes come, then the connection ends; what comes in the place of the bytes
held, gate = {}, threading.Event()  # by path: after so many bytes the sender waits for the gate
away, no_ranges, private = [], [], []  # not empty: the hub answers 503; it ignores Range; it wants a token


def listed(path, data):
    """As the hub has it: large files by SHA-256, small ones as git names them."""
    one = {"rfilename": path, "size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
    if path.endswith((".safetensors", ".gguf")):
        one["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return one


class Hub(elsewhere.Handler):
    def do_GET(self):
        port = self.server.server_port
        path, _, query = self.path.partition("?")
        seen.append((port, path, dict(self.headers)))
        if away:
            return self.answer(503)
        if private and port == HUB and self.headers.get("Authorization") != "Bearer sesame":
            return self.answer(401)
        if m := re.fullmatch(r"/api/models/(\w+/[\w.-]+)/revision/([\w.]+)", path):
            files = repos.get(f"{m[1]}@{m[2]}")
            assert query == "blobs=true"
            return self.answer(404) if files is None else self.answer(200, json.dumps(
                {"id": m[1], "sha": COMMIT, "siblings": [listed(p, d) for p, d in files.items()]}).encode())
        m = re.fullmatch(r"/(\w+/[\w.-]+)/resolve/(\w+)/(.+)", path)
        data = next((f[m[3]] for key, f in repos.items() if key.startswith(f"{m[1]}@") and m[3] in f), None) if m else None
        if data is None or m[2] != COMMIT:
            return self.answer(404)
        if port == HUB and m[3].endswith((".safetensors", ".gguf")):
            return self.answer(302, Location=f"https://localhost:{STORE}{self.path}")
        self.send(m[3], data)

    def send(self, path, data):
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        data = wrong.get(path, data)
        part = start > 0 and not no_ranges
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        data = data[start:] if part else data
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if path in held:
            n = held.pop(path)
            self.wfile.write(data[:n])
            self.wfile.flush()
            gate.wait(600)
            data = data[n:]
        self.wfile.write(data[:cut.pop(path, len(data))])
        self.close_connection = True


cert, key = elsewhere.certificate(work)
RULES = {"sources.hub": f"https://localhost:{HUB}", "sources.networks": "127.0.0.1,::1", "sources.ca_file": str(cert)}
for each in (HUB, STORE):
    elsewhere.serve(each, Hub, cert, key)
repos["me/plain@main"] = repos["me/plain@v1"] = BASE


def named(name, **more):
    s = Server(settings={**RULES, "model.path": f"hf://{name}", **more})
    atexit.register(shutil.rmtree, s.dir, ignore_errors=True)
    return s


def answers(server):
    who = server.tenant("acme")
    r = server.ask(who, "base", "What is 7 plus 5?")
    assert r.status == 200, r
    return r.json["choices"][0]["message"]["content"]


def serve(server, limit=None):
    """(exit status, log) of a start that ends by itself."""
    argv = [BUILD / "lorad", "serve", "-c", server.dir / "lorad.conf"]
    for name, value in {**server.settings, "server.listen": "127.0.0.1:0"}.items():
        argv += ["--set", f"{name}={value}"]
    bound = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit else None
    done = subprocess.run(argv, capture_output=True, text=True, preexec_fn=bound, timeout=60 * PATIENCE)
    return done.returncode, done.stdout + done.stderr


def refused(server, *says, limit=None):
    code, log = serve(server, limit)
    last = log.strip().splitlines()[-1]
    assert code == 1 and all(word in last for word in ("model.path: hf://", *says)), (says, code, log[-2000:])


def folders(server):
    return sorted(p.name for p in (server.dir / "models").iterdir())


def ranges(path):
    """The first bytes that were asked for, in order."""
    return [int((h.get("Range") or "bytes=0-")[6:-1]) for port, p, h in seen if port == STORE and p.endswith(path)]


def a_folder():
    """Downloaded, served, and used again while the hub is away; the log says how far it is."""
    with Server() as s:
        want = answers(s)
    seen.clear()
    with named("me/plain@v1") as s:
        assert answers(s) == want
        log = s.log_path.read_text()
        assert f"downloading hf://me/plain@v1: commit {COMMIT[:12]}, {len(BASE)} files" in log, log
        assert f"{WEIGHTS}, 5.4 MiB, digest {hashlib.sha256(BASE[WEIGHTS]).hexdigest()[:12]} verified" in log, log
        [folder] = folders(s)
        there = {p.name: p.read_bytes() for p in (s.dir / "models" / folder).iterdir()}
        record = json.loads(there.pop(".lorad.json"))
        assert there == BASE and (record["source"], record["commit"]) == ("hf://me/plain@v1", COMMIT), record
        assert (s.dir / "models" / folder).stat().st_mode & 0o77 == 0
        check = subprocess.run([BUILD / "lorad", "check", "-c", s.dir / "lorad.conf", "--set", "model.path=hf://me/plain@v1",
                                "--set", f"sources.hub=https://localhost:{HUB}"], capture_output=True, text=True)
        assert check.returncode == 0 and "llama, 6 layers" in check.stdout, check
        shown = {o["option"]: o["value"] for o in s.admin("GET", "/config")["data"]}
        assert shown["model.path"] == "hf://me/plain@v1", shown["model.path"]
        s.stop()
        away.append(1)
        seen.clear()
        s.start()
        assert answers_again(s) == want and not seen, seen
        s.stop()
        away.clear()
        (s.dir / "models" / folder / "tokenizer.json").unlink()  # one file is gone: it alone comes again
        seen.clear()
        s.start()
        assert answers_again(s) == want
        assert [p.rsplit("/", 1)[-1] for _, p, _ in seen] == ["v1", "tokenizer.json"], seen
        assert s.admin("POST", "/reload")["taken"] == [], "the name is what was configured"


def answers_again(server):
    who = server.key("acme")
    r = server.ask(who, "base", "What is 7 plus 5?")
    assert r.status == 200, r
    return r.json["choices"][0]["message"]["content"]


def shards_in_a_folder():
    """Two shards by their index, in a folder of the repository; other files of it are not fetched."""
    raw = BASE[WEIGHTS]
    n = struct.unpack("<Q", raw[:8])[0]
    head, data = json.loads(raw[8:8 + n]), raw[8 + n:]
    tensors = sorted(k for k in head if k != "__metadata__")
    shards, where = {}, {}
    for i, names in enumerate((tensors[::2], tensors[1::2])):
        name, out, body = f"model-{i + 1:05}-of-00002.safetensors", {}, b""
        for t in names:
            a, b = head[t]["data_offsets"]
            out[t] = {**head[t], "data_offsets": [len(body), len(body) + b - a]}
            body += data[a:b]
            where[t] = name
        text = json.dumps(out).encode()
        text += b" " * (-len(text) % 8)
        shards[name] = struct.pack("<Q", len(text)) + text + body
    files = {**BASE, **shards, INDEX: json.dumps({"weight_map": where}).encode(), "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
             "modules.json": json.dumps([{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
                                         {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]).encode()}
    del files[WEIGHTS]
    repos["me/shards@main"] = {**{f"deep/model/{k}": v for k, v in files.items()}, "pytorch_model.bin": b"x", "deep/model/README.md": b"y"}
    with Server() as s:
        want = answers(s)
    with named("me/shards/deep/model") as s:
        assert answers(s) == want
        [folder] = folders(s)
        root = s.dir / "models" / folder
        there = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        del there[".lorad.json"]
        assert there == files, there.keys() ^ files.keys()
    del files["model-00002-of-00002.safetensors"]
    repos["me/half@main"] = files
    s = named("me/half")
    init(s)
    refused(s, "the hub has no file model-00002-of-00002.safetensors")
    files[INDEX] = json.dumps({"weight_map": {"x": "../secret.safetensors"}}).encode()
    refused(s, INDEX, "'x' is not in a plain .safetensors file")


def init(server):
    """A data directory, without a start."""
    out = subprocess.run([BUILD / "lorad", "init", "--dir", server.dir, "--model", DEMO / "base"], check=True, capture_output=True, text=True)
    (server.dir / "admin.key").write_text(next(w for w in out.stdout.split() if w.startswith("lk_")))


def ggufs():
    """A GGUF of a repository, in two parts; and what is said of a repository that has only such."""
    parts = {f"F16/{p.name}": p.read_bytes() for p in (QUANT / "gguf-llama").glob("*.gguf")}
    repos["me/gguf@main"] = {**parts, "F16/other.gguf": b"z"}
    with named("me/gguf/F16/model-00001-of-00002.gguf") as s:
        [folder] = folders(s)
        assert {p.name for p in (s.dir / "models" / folder).iterdir()} == {".lorad.json", *(p.split("/")[1] for p in parts)}
        r = s.call("POST", "/v1/completions", {"model": "base", "prompt": [1, 2, 3], "max_tokens": 2}, key=s.tenant("acme"))
        assert r.status == 200, r
        s.stop()
        s.settings["model.path"] = "hf://me/gguf"
        refused(s, "name a GGUF of it, for example /F16/")
        s.settings["model.path"] = "hf://me/gguf/F16/none.gguf"
        refused(s, "the hub has no file none.gguf")


def a_cut_connection_is_resumed():
    """In one start, behind the bytes that came; also where the server sends the whole file all the same."""
    half = len(BASE[WEIGHTS]) // 2
    for whole in (False, True):
        seen.clear()
        cut[WEIGHTS] = half
        if whole:
            no_ranges.append(1)
        with named("me/plain") as s:
            assert ranges(WEIGHTS) == [0, half], ranges(WEIGHTS)
            assert f"continues at byte {half} of {len(BASE[WEIGHTS])}" in s.log_path.read_text()
            assert answers(s)
        no_ranges.clear()


def a_stop_is_resumed():
    """SIGTERM during the download ends the server at once and well; the next start continues, and so it does after kill -9."""
    size = len(BASE[WEIGHTS])
    s = named("me/plain")
    init(s)
    for sig, first in ((signal.SIGTERM, 1 << 20), (signal.SIGKILL, 1 << 20)):
        held[WEIGHTS] = first
        gate.clear()
        process, log = start_only(s)
        part = until(lambda: next((s.dir / "models").glob(f"*.part/{WEIGHTS}.*.part"), None))
        have = part.stat().st_size
        until(lambda: part.stat().st_size > have or part.stat().st_size >= first)
        process.send_signal(sig)
        code = process.wait(600)
        assert code == (0 if sig == signal.SIGTERM else -sig), (code, log.read_text())
        if sig == signal.SIGTERM:
            assert "stopped; the next start continues" in log.read_text()
        gate.set()
        left = part.stat().st_size
        assert 0 < left < size, left
    seen.clear()
    with s:
        assert ranges(WEIGHTS) == [left], (ranges(WEIGHTS), left)
        assert answers(s)


def start_only(server):
    log = server.dir / "start.log"
    argv = [BUILD / "lorad", "serve", "-c", server.dir / "lorad.conf"]
    for name, value in {**server.settings, "server.listen": "127.0.0.1:0"}.items():
        argv += ["--set", f"{name}={value}"]
    return subprocess.Popen(argv, stdout=log.open("wb"), stderr=subprocess.STDOUT), log


def damage_is_found():
    """A byte of the weights, a byte of a small file, a file of another size: named; and the next start begins that file anew."""
    s = named("me/plain")
    init(s)
    for path, digest in (("config.json", listed("config.json", BASE["config.json"])["blobId"]), (WEIGHTS, hashlib.sha256(BASE[WEIGHTS]).hexdigest())):
        data = bytearray(BASE[path])
        data[-20] ^= 1
        wrong[path] = bytes(data)
        refused(s, path, "its digest is", f"the hub lists {digest}")
        assert not list((s.dir / "models").glob(f"*/{path}*")), list((s.dir / "models").glob("*/*"))
        wrong[path] = BASE[path] + b" "
        refused(s, path, f"the {len(BASE[path])} bytes that the hub lists")
        del wrong[path]
    half = len(BASE[WEIGHTS]) // 2  # a part of a file that was damaged on the disk
    held[WEIGHTS] = half
    gate.clear()
    process, _ = start_only(s)
    part = until(lambda: next((p for p in (s.dir / "models").glob(f"*.part/{WEIGHTS}.*.part") if p.stat().st_size >= half), None))
    process.kill()
    process.wait()
    gate.set()
    with part.open("r+b") as f:
        f.seek(half // 2)
        f.write(b"damage")
    refused(s, WEIGHTS, "its digest is")
    seen.clear()
    with s:
        assert ranges(WEIGHTS) == [0] and answers(s), seen


def errors_name_the_cause():
    s = named("me/plain@none")
    init(s)
    refused(s, "the hub has no me/plain with revision 'none'")
    for path, says in (("me/nothing", "the hub has no me/nothing"), ("me", "hf:// needs owner/repository"), ("me/plain@v1?x", "no query"),
                       ("me/../plain", "'.' or '..'"), ("me/plain/none", "the hub has no file config.json")):
        s.settings["model.path"] = f"hf://{path}"
        refused(s, says)
    s.settings["model.path"] = "hf://me/plain"
    for option, value, says in (("data.min_free", "1000000GiB", "the disk is too full"), ("model.cache_bytes", "5MiB", "model.cache_bytes allows 5.0"),
                                ("sources.hub", "", "hf:// needs sources.hub"), ("sources.networks", "", "may be reached"),
                                ("sources.hub_token_file", "none", "sources.hub_token_file")):
        before = s.settings.get(option)
        s.settings[option] = value
        refused(s, says)
        s.settings[option] = before or "no"
        if before is None:
            del s.settings[option]
    refused(s, WEIGHTS, "writing: File too large", limit=2 << 20)
    away.append(1)
    refused(s, "the other server answered 503")
    away.clear()


def a_private_one():
    """With the operator's token, which goes to the hub alone; tenants may not fetch from there because of it."""
    private.append(1)
    s = named("me/plain")
    init(s)
    refused(s, "401", "sources.hub_token_file")
    (s.dir / "token").write_text("sesame\n")
    (s.dir / "token").chmod(0o644)
    s.settings["sources.hub_token_file"] = "token"
    refused(s, "sources.hub_token_file may be read by others")
    (s.dir / "token").chmod(0o600)
    seen.clear()
    with s:
        assert {h.get("Authorization") for port, _, h in seen if port == HUB} == {"Bearer sesame"}, seen
        assert {h.get("Authorization") for port, _, h in seen if port == STORE} == {None}, seen
        assert "sesame" not in s.log_path.read_text()
        r = s.call("POST", "/v1/adapters/x/versions", {"source": "hf://me/plain"}, key=s.tenant("acme"))
        assert r.status == 400 and "sources.hosts" in r.json["error"]["message"], r
    private.clear()


def the_cache_is_bounded():
    """Room for two: the one that was used least recently goes, an unfinished one too, what is not ours and the running one never."""
    for name in "abc":
        repos[f"me/{name}@main"] = BASE
    s = named("me/a", **{"model.cache_bytes": "12MiB"})
    with s:
        (s.dir / "models/mine").mkdir()
        (s.dir / "models/mine/file").write_bytes(b"x" * (1 << 20))

        def use(name):
            s.stop()
            s.settings["model.path"] = f"hf://me/{name}"
            s.start()
            return [f.split("--")[1].split("-")[0] for f in folders(s) if "--" in f]
        assert use("b") == ["a", "b"]
        assert use("a") == ["a", "b"]
        assert use("c") == ["a", "c"], "b was used least recently"
        s.settings["model.cache_bytes"] = "6MiB"
        assert use("b") == ["b"] and "the least recently used model" in s.log_path.read_text()
        assert (s.dir / "models/mine/file").exists()
        assert answers(s)


def init_by_name():
    """lorad init asks the hub before it writes anything, and leaves the weights to the first start."""
    def lorad(*args, expect=0, env=()):
        done = subprocess.run([BUILD / "lorad", *args], capture_output=True, text=True, env={**os.environ, **dict(env)})
        assert done.returncode == expect, done
        return done.stdout + done.stderr
    data = work / "data"
    rules = [w for name, value in RULES.items() for w in ("--set", f"{name}={value}")]
    assert "sources.hub" in lorad("init", "--dir", data, "--model", "hf://me/plain", expect=1)
    assert "revision 'none'" in lorad("init", "--dir", data, "--model", "hf://me/plain@none", *rules, expect=1)
    repos["me/odd@main"] = {**BASE, "config.json": b'{"model_type": "odd"}'}
    assert "odd" in lorad("init", "--dir", data, "--model", "hf://me/odd", *rules, expect=1)
    assert not (data / "lorad.conf").exists() and not (data / "lorad.db").exists()
    seen.clear()
    said = lorad("init", "--dir", data, "--model", "hf://me/plain@v1", *rules)
    assert not [p for _, p, _ in seen if p.endswith(WEIGHTS)], seen
    (data / "admin.key").write_text(next(w for w in said.split() if w.startswith("lk_")))
    assert "path = hf://me/plain@v1\n" in (data / "lorad.conf").read_text()
    assert "not in data.dir/models yet" in lorad("check", "-c", data / "lorad.conf", expect=1)
    with Server(directory=data) as s:
        assert answers(s)
    other = work / "other"
    env = {"LORAD_" + k.replace(".", "_").upper(): v for k, v in RULES.items()}
    lorad("init", "--dir", other, "--model", "hf://me/gguf/F16/model-00001-of-00002.gguf", env=env)
    assert "\nhub = \n" in (other / "lorad.conf").read_text(), "the environment is not written into the file"


run([a_folder, shards_in_a_folder, ggufs, a_cut_connection_is_resumed, a_stop_is_resumed, damage_is_found, errors_name_the_cause,
     a_private_one, the_cache_is_bounded, init_by_name])
