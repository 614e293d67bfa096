"""Bytes that change on the disk: no answer has a wrong token. Flipped bits in packed weights, an adapter's files, stored responses,
the meter file and the database; mapped files that get shorter; a write-ahead log with garbage in it."""
import os
import random
import shutil
import signal
import subprocess
import time

from harness import BUILD, DEMO, Server, answered, run, until

SEED = int(os.environ.get("LORAD_SEED", time.time()))
FLIPS, ROUNDS = 200, 20
ASKED = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 1}
random_ = random.Random(SEED)
print("seed", SEED, flush=True)


def completion(s, key, model):
    return s.call("POST", "/v1/completions", {"model": model, **ASKED}, key=key)


def words_of(r):
    return r.json["choices"][0]["text"]


def flip(path, n=1):
    """Flips n bits of what is not zero (padding and holes hold nothing)."""
    raw = bytearray(path.read_bytes())
    used = [i for i, b in enumerate(raw) if b] if len(raw) < 1 << 21 else None
    for _ in range(n):
        at = random_.choice(used) if used else random_.randrange(len(raw))
        while not used and not raw[at]:
            at = random_.randrange(len(raw))
        raw[at] ^= 1 << random_.randrange(8)
    path.write_bytes(raw)


def packed(s):
    return until(lambda: next(iter((s.dir / "packed").glob("*.weights")), None))


def weights(s):
    return next((s.dir / "adapters").glob("*/adapter_model.safetensors"))


def start_or_refuse(s):
    """False: the server says that its database is damaged, and does not start."""
    try:
        s.start()
        return True
    except (RuntimeError, subprocess.CalledProcessError) as e:
        assert "damaged" in str(e) or "corrupt" in str(e) or "not a database" in str(e) or "schema" in str(e) or "lorad.db" in str(e), e
        s.process = None
        return False


def flipped_bits_are_never_served():
    served = refused = unstarted = 0
    with Server(settings={"log.level": "warn"}) as s:
        key = s.tenant("acme")
        s.upload(key, "pirate", DEMO / "adapters/pirate")
        want = {m: words_of(completion(s, key, m)) for m in ("base", "pirate")}
        stored = s.call("POST", "/v1/responses", {"model": "base", "input": "Hello", "max_output_tokens": 24, "temperature": 0}, key=key).json
        said = stored["output"]
        s.booked()
        packed(s)
        s.stop()
        clean = s.dir.with_suffix(".clean")
        shutil.copytree(s.dir, clean)
        targets = [packed, weights, lambda s: s.dir / "lorad.db", lambda s: next(s.dir.glob("*meter*"))]
        for i in range(ROUNDS):
            which = targets[i % len(targets)](s)
            flip(which, FLIPS // ROUNDS)
            if not start_or_refuse(s):
                unstarted += 1
            else:
                for m in want:
                    r = completion(s, key, m)
                    assert r.status != 200 or words_of(r) == want[m], (SEED, which, m, r)
                    served, refused = served + (r.status == 200), refused + (r.status != 200)
                r = s.call("GET", f"/v1/responses/{stored['id']}", key=key)
                assert r.status != 200 or r.json["output"] == said, (SEED, which, r)
                if which.suffix == ".weights":
                    assert "does not match its checksum" in s.log_path.read_text() or "is damaged" in s.log_path.read_text(), which
                s.stop()
            for name in os.listdir(s.dir):
                path = s.dir / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.copytree(clean, s.dir, dirs_exist_ok=True)
        s.start()
        assert words_of(completion(s, key, "pirate")) == want["pirate"]
        shutil.rmtree(clean)
    print(f"   {served} right answers, {refused} refusals, {unstarted} refused starts", flush=True)
    assert served >= ROUNDS


def check_says_what_is_damaged():
    def check(*argv):
        p = subprocess.run([BUILD / "lorad", "check", "-c", s.dir / "lorad.conf", *argv], capture_output=True, text=True)
        assert p.returncode == 0, p
        return dict(line.split(maxsplit=1) for line in p.stdout.splitlines())
    with Server() as s:
        path = packed(s)
        assert "sampled digest" in s.log_path.read_text()
        s.stop()
        good = check("--deep")
        assert good["packed"] == "every matrix matches its checksum", good
        sampled, full = good["digest"].split(", ")
        assert check()["digest"] == sampled and sampled.split()[1] in s.log_path.read_text(), good
        flip(path)
        assert check()["packed"].startswith("damaged"), check()
        path.unlink()
        assert check()["packed"].startswith("none"), check()
        model = s.dir / "model"  # a bit that no sample looks at
        shutil.copytree(DEMO / "base", model)
        file = model / "model.safetensors"
        raw = bytearray(file.read_bytes())
        raw[-3] ^= 1
        file.write_bytes(raw)
        other = check("--deep", "--set", f"model.path={model}")["digest"].split(", ")
        assert other[1] != full, (other, full)


def a_damaged_adapter_comes_again():
    with Server() as s:
        key = s.tenant("acme")
        s.upload(key, "pirate", DEMO / "adapters/pirate")
        want = words_of(completion(s, key, "pirate"))
        flip(weights(s))
        s.admin("POST", "/tenants/acme/adapters/pirate/evict")
        assert completion(s, key, "pirate").json["error"]["code"] == "adapter_damaged"
        assert s.upload(key, "pirate", DEMO / "adapters/pirate").status == 200
        r = completion(s, key, "pirate")
        assert r.status == 200 and words_of(r) == want, r


def a_mapped_file_that_shrinks_is_a_restart():
    with Server(settings={"engine.max_seqs": 4}) as s:
        key = s.tenant("acme")
        want = words_of(completion(s, key, "base"))
        path = packed(s)
        s.stop()
        s.start()  # maps the file
        pid = s.process.pid
        assert words_of(completion(s, key, "base")) == want
        refusals = []
        os.truncate(path, 0)
        r = answered(s, lambda: completion(s, key, "base"), refusals.append)
        assert words_of(r) == want and refusals, refusals
        assert s.process.pid == pid and s.process.poll() is None
        log = s.log_path.read_text()
        assert "became shorter" in log and "replace files by renaming" in log, log[-2000:]
        until(lambda: packed(s).stat().st_size > 1 << 20)


def a_model_file_that_shrinks_is_a_restart():
    """The process that comes next finds the file too short, says so, and ends; with the file as it was it answers as before."""
    with Server(settings={"engine.max_seqs": 4, "debug.packed_cache": "no"}) as s:
        key = s.tenant("acme")
        want = words_of(completion(s, key, "base"))
        s.stop()
        model = s.dir / "model"
        shutil.copytree(DEMO / "base", model)
        file = model / "model.safetensors"
        s.settings["model.path"] = str(model)
        s.start()
        assert words_of(completion(s, key, "base")) == want
        os.truncate(file, 4096)
        r = completion(s, key, "base")
        assert r.status == 503 and r.json["error"]["code"] == "engine_restarting", r
        until(lambda: s.process.poll() is not None)
        log = s.log_path.read_text()
        assert "became shorter" in log and "model.path: model.safetensors:" in log.strip().splitlines()[-1], log[-2000:]
        shutil.copy(DEMO / "base/model.safetensors", file)
        s.start()
        assert words_of(completion(s, key, "base")) == want


def garbage_in_the_log_of_the_database_is_told():
    with Server() as s:
        for i in range(30):
            s.tenant(f"tenant-{i}")
        wal = s.dir / "lorad.db-wal"
        assert s.stop(signal.SIGKILL) == -signal.SIGKILL
        raw = bytearray(wal.read_bytes())
        assert len(raw) > 20000
        raw[len(raw) // 2] ^= 0x10
        wal.write_bytes(raw)
        s.start()
        assert "SQLite discards" in s.log_path.read_text()


def garbage_in_the_database_is_seen():
    with Server(settings={"data.check_every": "200ms"}) as s:
        for i in range(30):
            s.tenant(f"tenant-{i}")
        until(lambda: s.metrics()["lorad_database_checked_timestamp_seconds"] > 0)
        assert s.metrics()["lorad_database_damaged"] == 0
        with open(s.dir / "lorad.db", "r+b") as f:
            f.seek(4096 * 2)
            f.write(b"\x5a" * 4096 * 40)
        until(lambda: s.metrics()["lorad_database_damaged"] == 1)
        assert "the database is damaged" in s.log_path.read_text()


run([flipped_bits_are_never_served, check_says_what_is_damaged, a_damaged_adapter_comes_again, a_mapped_file_that_shrinks_is_a_restart,
     a_model_file_that_shrinks_is_a_restart,
     garbage_in_the_log_of_the_database_is_told, garbage_in_the_database_is_seen])
