"""OpenAI's files and batches: openai-python end to end, what is refused, whose they are, cancelled and expired ones, limits, and
kill -9 in the middle: each line once in a file, its usage once in the books."""
import collections
import json
import pathlib
import random
import signal
import sqlite3
import tempfile
import time

import openai

from harness import Server, run, until

ENDED = ("failed", "completed", "expired", "cancelled")
SETTINGS = {"files.tenant_bytes": "1MiB", "files.max_bytes": "256KiB", "files.tenant_files": "40", "batches.tenant_batches": "3",
            "batches.in_flight": "6", "engine.max_seqs": "8", "files.keep": "2h"}


def client(s, key):
    return openai.OpenAI(base_url=s.url, api_key=key, max_retries=0, http_client=openai.DefaultHttpxClient(verify=s.tls()))


def line(i, url="/v1/completions", body=None, **more):
    return {"custom_id": f"line-{i}", "method": "POST", "url": url, "body": body or {
        "model": "base", "prompt": f"The {i}", "max_tokens": 1 + i % 5, "ignore_eos": True}, **more}


def jsonl(lines):
    return "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines).encode()


def upload(lines, api=None):
    return (api or mine).files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")


def start(lines, endpoint="/v1/completions", api=None, **more):
    api = api or mine
    return api.batches.create(input_file_id=upload(lines, api).id, endpoint=endpoint, completion_window="24h", **more)


def ended(b, api=None):
    api = api or mine
    return until(lambda: next((x for x in [api.batches.retrieve(b.id)] if x.status in ENDED), None))


def lines_of(file_id, api=None):
    if file_id is None:
        return []
    return [json.loads(x) for x in (api or mine).files.content(file_id).text.splitlines()]


def results(b, api=None):
    """{custom_id: result} of both files, each id once."""
    answered, refused = lines_of(b.output_file_id, api), lines_of(b.error_file_id, api)
    assert (len(answered), len(refused)) == (b.request_counts.completed, b.request_counts.failed), b
    out = {x["custom_id"]: x for x in answered + refused}
    assert len(out) == len(answered) + len(refused), "a line is there twice"
    assert len({x["id"] for x in out.values()}) == len(out)
    return out


def clean(api=None):
    for f in (api or mine).files.list():
        (api or mine).files.delete(f.id)


def rows(s, query):
    s.booked()
    return rows_now(s, query)


def rows_now(s, query):
    db = sqlite3.connect(f"file:{s.dir / 'lorad.db'}?mode=ro", uri=True)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def refused(kind, call, **args):
    try:
        call(**args)
    except kind as e:
        return e.body
    raise AssertionError("it was taken")


def files_are_kept():
    data = jsonl([line(0)])
    f = mine.files.create(file=("some/käse.jsonl", data), purpose="batch",
                          expires_after={"anchor": "created_at", "seconds": 3600})
    assert (f.object, f.bytes, f.filename, f.purpose, f.status) == ("file", len(data), "käse.jsonl", "batch", "processed"), f
    assert f.expires_at == f.created_at + 3600 and f.id.startswith("file-")
    assert mine.files.retrieve(f.id) == f and mine.files.content(f.id).content == data
    ids = [f.id] + [upload([line(i)]).id for i in range(4)]
    assert [x.id for x in mine.files.list(order="asc")] == ids and [x.id for x in mine.files.list()] == ids[::-1]
    page = mine.files.list(limit=2, order="asc")
    assert [x.id for x in page.data] == ids[:2] and page.has_more and [x.id for x in page] == ids
    assert [x.id for x in mine.files.list(after=ids[2], order="asc")] == ids[3:]
    assert [x.id for x in mine.files.list(purpose="batch_output")] == []
    for i in ids:
        assert mine.files.delete(i).deleted
    assert not list(mine.files.list()) and not [p for p in (server.dir / "files").rglob("*") if p.is_file()]
    assert refused(openai.NotFoundError, mine.files.retrieve, file_id=f.id)["code"] == "not_found"


def form(fields, boundary="x", end="--x--\r\n"):
    out = b""
    for name, file, value in fields:
        head = f'Content-Disposition: form-data; name="{name}"' + (f'; filename="{file}"' if file is not None else "")
        out += f"--{boundary}\r\n{head}\r\n\r\n".encode() + value + b"\r\n"
    return out + end.encode()


def files_are_refused_by_name():
    def post(body, kind="multipart/form-data; boundary=x", status=400):
        r = server.call("POST", "/v1/files", body, key=own, headers={"Content-Type": kind})
        assert r.status == status, r
        return r.json["error"]
    one = ("file", "a.jsonl", b"{}\n")
    assert "fine-tune" in post(form([("purpose", None, b"fine-tune"), one]))["message"]
    assert post(form([one]))["param"] == "purpose"
    assert post(form([("purpose", None, b"batch")]))["param"] == "file"
    assert post(form([("purpose", None, b"batch"), ("file", "a", b"")]))["param"] == "file"
    assert "two files" in post(form([one, one]))["message"]
    assert "'colour'" in post(form([("colour", None, b"red"), one]))["message"]
    assert "boundary" in post(form([one], end=""))["message"]
    assert "multipart" in post(b"{}", "application/json", 415)["message"]
    assert "boundary" in post(b"{}", "multipart/form-data", 415)["message"]
    assert post(form([("purpose", None, b"batch"), ("expires_after[seconds]", None, b"5"), one]))["param"] == \
        "expires_after[seconds]"
    assert "262144" in post(form([("purpose", None, b"batch"), ("file", "a", b"x" * 300000)]), status=413)["message"]
    until(lambda: not [p for p in (server.dir / "files").rglob("*") if p.is_file()])  # what was refused leaves nothing
    for i in range(4):
        mine.files.create(file=("a", b"x" * 250000), purpose="batch")
    assert "1048576" in post(form([("purpose", None, b"batch"), ("file", "a", b"x" * 60000)]), status=413)["message"]
    clean()
    for i in range(40):
        upload([line(i)])
    assert "40" in post(form([("purpose", None, b"batch"), one]), status=413)["message"]
    clean()


def a_batch_is_carried_out():
    chat = {"model": "base", "max_tokens": 4, "messages": [{"role": "user", "content": "What is 7 plus 5?"}], "temperature": 0}
    b = start([line("a", "/v1/chat/completions", chat), "", line("b", "/v1/chat/completions", {**chat, "temperature": -3}),
               line("c", "/v1/chat/completions", {**chat, "model": "nobody"}),
               line("d", "/v1/chat/completions", {**chat, "n": 2, "temperature": 1})],
              "/v1/chat/completions", metadata={"night": "7"})
    assert b.object == "batch" and b.status == "validating" and b.metadata == {"night": "7"} and b.completion_window == "24h"
    assert b.output_file_id is None and b.expires_at == b.created_at + 86400 and b.endpoint == "/v1/chat/completions"
    b = ended(b)
    assert b.status == "completed" and b.request_counts.total == 4, b
    assert b.created_at <= b.in_progress_at <= b.finalizing_at <= b.completed_at
    got = results(b)
    assert set(got) == {f"line-{x}" for x in "abcd"}
    direct = server.call("POST", "/v1/chat/completions", chat, key=own).json
    body = got["line-a"]["response"]["body"]
    assert body["choices"] == direct["choices"] and body["usage"] == {**direct["usage"], **{
        "prompt_tokens_details": body["usage"].get("prompt_tokens_details")}}, (body, direct)
    assert body["service_tier"] == "flex" and got["line-a"]["error"] is None
    assert got["line-b"]["response"]["status_code"] == 400
    assert got["line-b"]["response"]["body"]["error"]["param"] == "temperature"
    assert got["line-c"]["response"]["status_code"] == 404
    assert len(got["line-d"]["response"]["body"]["choices"]) == 2
    out = mine.files.retrieve(b.output_file_id)
    assert out.purpose == "batch_output" and out.filename == b.id + "_output.jsonl"
    r = start([line(1, "/v1/responses", {"model": "base", "input": "Hi", "max_output_tokens": 3})], "/v1/responses")
    got = results(ended(r))["line-1"]["response"]["body"]
    assert got["object"] == "response" and mine.responses.retrieve(got["id"]).id == got["id"]
    classes = rows(server, "SELECT slo_class, count(*) FROM usage WHERE slo_class = 'batch' GROUP BY 1")
    assert classes == [("batch", 4)], classes  # a, two choices of d, and the response
    listed = list(mine.batches.list(limit=1))
    assert [x.id for x in listed] == [r.id, b.id]
    clean()


def vectors_are_lines_too():
    """As many inputs as ids are a line's own: each has its row of usage, once."""
    before = rows(server, "SELECT count(*) FROM usage")[0][0]
    lines = [line(i, url="/v1/embeddings", body={"model": "base", "input": [f"{i} {k}" for k in range(n)]})
             for i, n in enumerate((2, 128, 129))]
    b = ended(start(lines, endpoint="/v1/embeddings"))
    assert (b.request_counts.completed, b.request_counts.failed) == (2, 1), b
    got = results(b)
    assert [len(got[f"line-{i}"]["response"]["body"]["data"]) for i in (0, 1)] == [2, 128]
    wrong = json.loads(mine.files.content(b.error_file_id).text)
    assert "at most 128" in wrong["response"]["body"]["error"]["message"], wrong
    assert rows(server, "SELECT count(*) FROM usage")[0][0] == before + 130
    clean()


def bad_lines_fail_the_batch():
    good = line(0)
    b = ended(start([good, good, "{", line(1, method="GET"), line(2, url="/v1/rerank"), {**line(3), "body": 7},
                     line(4, body={"prompt": "x"}), line(5, body={"model": "base", "prompt": "x", "stream": True}),
                     {k: v for k, v in line(6).items() if k != "custom_id"}]))
    assert b.status == "failed" and b.failed_at and b.output_file_id is None and b.error_file_id is None, b
    wrong = [(e.line, e.code, e.param) for e in b.errors.data]
    assert wrong == [(2, "duplicate_custom_id", "custom_id"), (3, "invalid_json_line", None), (4, "invalid_method", "method"),
                     (5, "invalid_url", "url"), (6, "invalid_request", "body"), (7, "missing_required_parameter", "body.model"),
                     (8, "invalid_request", "body.stream"), (9, "missing_required_parameter", "custom_id")], wrong
    assert ended(start(["", " "])).errors.data[0].code == "empty_file"
    f = upload([good])
    args = {"input_file_id": f.id, "endpoint": "/v1/completions", "completion_window": "24h"}

    def no(param, **more):
        assert refused(openai.BadRequestError, mine.batches.create, **{**args, **more})["param"] == param
    no("endpoint", endpoint="/v1/images")
    no("completion_window", completion_window="1h")
    no("metadata", metadata={"a": 1})
    no("output_expires_after", extra_body={"output_expires_after": {"anchor": "created_at", "seconds": 5}})
    no("colour", extra_body={"colour": 1})
    assert refused(openai.NotFoundError, mine.batches.create, **{**args, "input_file_id": "file-x"})["code"] == "not_found"
    clean()


def strangers_find_nothing():
    b = ended(start([line(1)]))
    for call in (lambda: theirs.files.retrieve(b.input_file_id), lambda: theirs.files.content(b.output_file_id),
                 lambda: theirs.files.delete(b.input_file_id), lambda: theirs.batches.retrieve(b.id),
                 lambda: theirs.batches.cancel(b.id), lambda: theirs.batches.create(
                     input_file_id=b.input_file_id, endpoint="/v1/completions", completion_window="24h"),
                 lambda: list(theirs.files.list(after=b.input_file_id)), lambda: list(theirs.batches.list(after=b.id))):
        assert refused(openai.NotFoundError, call)["code"] == "not_found"
    assert not list(theirs.files.list()) and not list(theirs.batches.list())
    clean()


def slow(n, most=200):
    return [line(i, body={"model": "base", "prompt": "The", "max_tokens": most, "ignore_eos": True}) for i in range(n)]


def cancelled_ends():
    b = start(slow(40))
    until(lambda: mine.batches.retrieve(b.id).status == "in_progress")
    assert refused(openai.ConflictError, mine.files.delete, file_id=b.input_file_id)["code"] == "conflict"
    assert mine.batches.cancel(b.id).status == "cancelling"
    b = ended(b)
    assert b.status == "cancelled" and b.cancelling_at and b.cancelled_at, b
    got = results(b)
    assert len(got) == 40 and b.request_counts.failed > 0
    codes = {x["error"] and x["error"]["code"] for x in got.values()}
    assert codes <= {None, "batch_cancelled"} and "batch_cancelled" in codes
    assert refused(openai.ConflictError, mine.batches.cancel, batch_id=b.id)["code"] == "conflict"
    events = [e["action"] for e in server.admin("GET", "/audit")["data"]]
    assert {"file.create", "file.delete", "batch.create", "batch.cancel"} <= set(events), events
    clean()


def limits_make_lines_wait():
    server.admin("PATCH", "/limits/theirs", {"max_concurrent": 1})

    def meets_a_stream():
        """The only one that may run, unless it was over before a line came: then once more."""
        stream = theirs.completions.create(model="base", prompt="The", max_tokens=900, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        b = start([line(i) for i in range(6)], api=theirs)
        until(lambda: server.metrics()["lorad_batch_lines_retried_total"] or theirs.batches.retrieve(b.id).status in ENDED)
        stream.close()
        b = ended(b, theirs)
        assert b.status == "completed" and len(results(b, theirs)) == 6 and b.request_counts.failed == 0
        return server.metrics()["lorad_batch_lines_retried_total"]
    until(meets_a_stream)
    server.admin("PATCH", "/limits/theirs", {"max_concurrent": 0, "tokens_per_minute": 40})
    b = ended(start([line("big", body={"model": "base", "prompt": "x", "max_tokens": 60})], api=theirs), theirs)
    assert results(b, theirs)["line-big"]["response"]["status_code"] == 429, "it can never pass, so it must not wait"
    server.admin("PATCH", "/limits/theirs", {"tokens_per_minute": 0})
    waiting = [start(slow(30), api=theirs) for _ in range(3)]
    f = upload([line(1)], theirs)
    assert refused(openai.RateLimitError, theirs.batches.create, input_file_id=f.id, endpoint="/v1/completions",
                   completion_window="24h")["code"] == "batch_limit_exceeded"
    until(lambda: server.metrics()["lorad_batches"] == 3)
    # A key that is revoked takes its batches with it.
    public = next(k for k in server.admin("GET", "/keys?tenant=theirs")["data"] if k["name"] == "test")
    server.admin("DELETE", f"/keys/{public['id']}")
    again = client(server, server.key("theirs"))
    for b in waiting:
        b = ended(b, again)
        assert b.status == "cancelled" and len(results(b, again)) == 30, b
    clean(again)


def expired_ends():
    with Server(settings={"batches.window": "2s", "batches.in_flight": "2", "files.keep": "4s"}) as s:
        api = client(s, s.tenant("own"))
        b = ended(start(slow(400, 900), api=api), api)
        assert b.status == "expired" and b.expired_at and b.expires_at == b.created_at + 2, b
        got = results(b, api)
        assert len(got) == 400 and b.request_counts.failed > 0
        assert {x["error"]["code"] for x in got.values() if x["error"]} == {"batch_expired"}
        # What is kept for four seconds is gone after them: to clients at once, on the disk soon.
        until(lambda: not list(api.files.list()))
        s.stop()
        s.start()
        assert not [p for p in (s.dir / "files").rglob("*") if p.is_file()]


def done_lines(s):
    """Since its start, as they are done: a batch's own counts are a second old."""
    m = s.metrics()
    return m['lorad_batch_lines_total{result="completed"}'] + m['lorad_batch_lines_total{result="failed"}']


def nothing_is_lost_or_doubled():
    """kill -9, again and again; the ends of files torn by hand between."""
    rng, n = random.Random(11), 300
    with Server(settings={"batches.in_flight": "6", "engine.max_seqs": "8"}) as s:
        key = s.tenant("own")
        api = client(s, key)
        b = start([line(i, body={"model": "base", "prompt": f"The {i}", "max_tokens": 20 + i % 7, "ignore_eos": True,
                                 "n": 1 + (i % 10 == 0), "temperature": 1}) if i % 9 else
                   line(i, body={"model": "base", "prompt": 7.5}) for i in range(n)], api=api)
        for kill in range(6):
            until(lambda: done_lines(s) >= 12)
            time.sleep(rng.random() * 0.05)
            s.stop(signal.SIGKILL)
            assert rows_now(s, "SELECT status FROM batches") == [(1,)], "the batch has ended before the test has"
            for p in (s.dir / "files").rglob("file-*"):
                data = p.read_bytes()
                if kill % 2 and data.startswith(b'{"id":"batch_req_') and len(data) > 100:
                    p.write_bytes(data[:-1 - rng.randrange(60)])  # a torn last line
            s.start()
            api = client(s, key)
        b = ended(b, api)
        assert b.status == "completed" and b.request_counts.total == n, b
        got = results(b, api)
        assert set(got) == {f"line-{i}" for i in range(n)}
        answered = {k: x["response"]["body"] for k, x in got.items() if x["response"]["status_code"] == 200}
        assert len(answered) == n - (n + 8) // 9
        usage = rows(s, "SELECT request_id, prompt_tokens, output_tokens, recovered FROM usage")
        assert len(usage) == sum(len(x["choices"]) for x in answered.values()), (len(usage), len(answered))
        assert not any(r[3] for r in usage), "a row of an attempt that was cut stands for the answer"
        said = collections.Counter()
        for x in answered.values():
            said += collections.Counter(prompt=x["usage"]["prompt_tokens"], output=x["usage"]["completion_tokens"])
        assert (sum(r[1] for r in usage), sum(r[2] for r in usage)) == (said["prompt"], said["output"])
        days = rows(s, "SELECT sum(n_requests), sum(prompt_tokens), sum(output_tokens) FROM usage_days")
        assert days == [(len(usage), said["prompt"], said["output"])], days


def stops_and_goes_on():
    with Server(settings={"batches.in_flight": "4"}) as s:
        key = s.tenant("own")
        b = start(slow(60, 300), api=client(s, key))
        until(lambda: done_lines(s) > 3)
        assert s.stop() == 0
        s.settings["data.min_free"] = "1000000GiB"  # as if the disk were full: nothing comes in, nothing is begun
        s.start()
        api = client(s, key)
        f = {"file": ("a", b"{}"), "purpose": "batch"}
        assert refused(openai.InternalServerError, api.files.create, **f)["code"] == "insufficient_storage"
        until(lambda: s.metrics()["lorad_batch_lines_retried_total"] > 2)
        assert api.batches.retrieve(b.id).status == "in_progress"
        assert not [p for p in (s.dir / "files").rglob("*.part")]
        s.stop()
        s.settings["data.min_free"] = "1MiB"
        s.start()
        api = client(s, key)
        b = ended(b, api)
        assert b.status == "completed" and len(results(b, api)) == 60 and b.request_counts.failed == 0


def found(s, word):
    return [str(p) for p in s.dir.rglob("*") if p.is_file() and word.encode() in p.read_bytes()]


def deleted_is_gone():
    """Names, bytes and what a batch made of them: in no file any more, the database's log among them."""
    word = "xylophone-quetzal"
    f = mine.files.create(file=(word + ".jsonl", jsonl([line(i, custom_id=f"{word}-{i}") for i in range(2)])), purpose="batch")
    b = ended(mine.batches.create(input_file_id=f.id, endpoint="/v1/completions", completion_window="24h"))
    assert b.status == "completed" and len(found(server, word)) >= 3, found(server, word)
    for name in (f.id, b.output_file_id):
        assert mine.files.delete(name).deleted
    assert not found(server, word), found(server, word)


def files_are_sealed():
    """With a key: nothing that tenants store stands there in clear, whatever happens; what was changed is no answer."""
    word, n = "xylophone-quetzal", 120
    with tempfile.TemporaryDirectory() as folder, Server(settings={"batches.in_flight": "6", "engine.max_seqs": "8"}) as s:
        key_file = pathlib.Path(folder) / "key"
        key_file.write_text("07" * 32)
        own = s.tenant("own")
        plain = upload([line(1)], client(s, own))
        s.stop()
        s.settings["responses.key_file"] = str(key_file)
        s.start()
        api = client(s, own)
        assert api.files.content(plain.id).text == jsonl([line(1)]).decode()
        lines = [line(f"{word}-{i}", body={"model": "base", "prompt": f"The {i}", "max_tokens": 20 + i % 7, "ignore_eos": True})
                 for i in range(n)]
        lines[7]["body"]["max_tokens"] = -1
        b = start(lines, api=api)
        for kill in range(3):
            until(lambda: done_lines(s) >= 12)
            s.stop(signal.SIGKILL)
            assert not found(s, word), found(s, word)
            if kill:  # a torn last record
                p = s.dir / "files" / next((s.dir / "files").iterdir()).name / output_of(s, b)
                p.write_bytes(p.read_bytes()[:-1 - kill * 40])
            s.start()
            api = client(s, own)
        b = ended(b, api)
        assert b.status == "completed" and set(results(b, api)) == {f"line-{word}-{i}" for i in range(n)}, b
        assert api.files.content(b.input_file_id).content == jsonl(lines) and api.files.retrieve(b.input_file_id).bytes == len(jsonl(lines))
        assert len(rows(s, "SELECT request_id FROM usage")) == n - 1 and not found(s, word), found(s, word)
        whole = api.files.content(b.output_file_id).content
        path = next(p for p in (s.dir / "files").rglob(b.output_file_id))
        raw = path.read_bytes()
        for at in (9, len(raw) // 2, len(raw) - 1):  # one bit of it
            path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1:])
            try:
                got = api.files.content(b.output_file_id).content
            except openai.APIError:
                continue
            raise AssertionError(f"{len(got)} bytes came of a damaged file")
        path.write_bytes(raw[:len(raw) // 2])
        assert refused(openai.InternalServerError, api.files.content, file_id=b.output_file_id)["code"] == "storage_unavailable"
        path.write_bytes(raw)
        assert api.files.content(b.output_file_id).content == whole
        path = next(p for p in (s.dir / "files").rglob(b.input_file_id))
        raw = path.read_bytes()
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        again = ended(api.batches.create(input_file_id=b.input_file_id, endpoint="/v1/completions", completion_window="24h"), api)
        assert again.status == "failed" and again.errors.data[0].code == "invalid_file", again
        key_file.write_text("08" * 32)
        s.stop()
        s.start()
        assert client(s, own).files.retrieve(b.output_file_id).bytes == len(whole)
        assert refused(openai.PermissionDeniedError, client(s, own).files.content, file_id=b.output_file_id)


def output_of(s, b):
    return rows_now(s, f"SELECT output_file FROM batches WHERE id = '{b.id}'")[0][0]


with Server(settings=SETTINGS) as server:
    own = server.tenant("mine")
    mine, theirs = client(server, own), client(server, server.tenant("theirs"))
    run([files_are_kept, files_are_refused_by_name, a_batch_is_carried_out, vectors_are_lines_too, bad_lines_fail_the_batch, strangers_find_nothing,
         cancelled_ends, limits_make_lines_wait, deleted_is_gone, expired_ends, nothing_is_lost_or_doubled, files_are_sealed,
         stops_and_goes_on])
