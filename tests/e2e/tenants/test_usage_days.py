"""data.usage_days: a row says how long its request waited and which bytes answered; old rows become sums by hour,
and the usage that is shown stays what it was."""
import csv
import io
import sqlite3
import time

from harness import DEMO, PATIENCE, Server, demo_adapters, run

DAY_US = 86400 * 10**6
server = Server()


def rows(query):
    db = sqlite3.connect(server.dir / "lorad.db")
    try:
        got = db.execute(query).fetchall()
        db.commit()
        return got
    finally:
        db.close()


def usage():
    server.booked()
    shown = server.admin("GET", "/usage?start=0&bucket_width=1h&group_by=model,tenant,adapter,class")["data"]
    return [(b["start_time"], b["results"]) for b in shown]


def a_row_says_what_answered():
    digest = server.call("GET", f"/v1/adapters/{adapter}/versions/1", key=key).json["digest"]
    assert server.ask(key, adapter, "What is 7 plus 5?").status == 200
    assert server.ask(key, "base", "What is 7 plus 5?", n=2, temperature=1).status == 200
    server.booked()
    got = rows("SELECT model, hex(adapter_digest), queue_ms, ttft_ms FROM usage ORDER BY request_id")
    assert [(r[0], r[1].lower()) for r in got] == [(f"{adapter}@1", digest), ("base", ""), ("base", "")], got
    assert all(0 <= r[2] <= r[3] for r in got), got


def old_rows_become_sums():
    rows(f"UPDATE usage SET started_us = started_us - {9 * DAY_US}")
    assert server.ask(key, "base", "What is 7 plus 5?").status == 200
    before = usage()
    assert len(before) == 2 and sum(len(r) for _, r in before) == 3, before
    server.stop()
    server.settings["data.usage_days"] = "8"
    server.start()
    end = time.monotonic() + 20 * PATIENCE
    while rows("SELECT count(*) FROM usage") != [(1,)]:
        assert time.monotonic() < end, rows("SELECT * FROM usage")
        time.sleep(0.1)
    assert rows("SELECT sum(n_requests) FROM usage_hours") == [(3,)]
    assert usage() == before


def as_csv_it_is_the_same():
    path = "/admin/v1/usage?start=0&bucket_width=1h&group_by=model,tenant,adapter,class"
    r = server.call("GET", path, key=server.admin_key, port=server.admin_port, headers={"Accept": "text/csv"})
    assert r.status == 200 and r.headers["content-type"].startswith("text/csv"), r
    rows = list(csv.DictReader(io.StringIO(r.body.decode())))
    flat = [{"start_time": start, **one} for start, results in usage() for one in results]
    assert len(rows) == len(flat) == 3
    for row, one in zip(rows, flat):
        assert row["model"] == one["model"] and row["class"] == one["class"] and row["tenant_id"] == one["project_id"]
        for here, there in (("start_time",) * 2, ("requests", "num_model_requests"), ("input_tokens",) * 2,
                            ("input_cached_tokens",) * 2, ("output_tokens",) * 2):
            assert int(row[here]) == one[there], (row, one)


with server:
    key, adapter = server.tenant("old"), demo_adapters()[0]
    server.upload(key, adapter, DEMO / "adapters" / adapter)
    run([a_row_says_what_answered, old_rows_become_sums, as_csv_it_is_the_same])
