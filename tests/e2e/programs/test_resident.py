"""A model larger than its memory (model.resident_bytes): the same answers as with all of it, the weights' pages in memory stay within the
budget (by /proc/PID/smaps, while it decodes), /stats and the log name both, lorad check predicts tokens per second, and a budget that is
too small is refused. KV pages of any size (engine.page_tokens): the same answers, and the prefix cache counts shared tokens, not pages."""
import re
import subprocess
import threading

from harness import BUILD, DEMO, ROOT, Server, run, until

PROMPTS = ["Once upon a time", "The cat", "A b c d e f g", "Numbers: 1 2 3"]
ASKED = {"model": "base", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 1}


def answers(s, key):
    out = []
    for prompt in PROMPTS:
        r = s.call("POST", "/v1/completions", {**ASKED, "prompt": prompt}, key=key)
        assert r.status == 200, r
        choice = r.json["choices"][0]
        out.append((choice["text"], choice["logprobs"]["token_logprobs"]))
    return out


def mapped_bytes(pid):
    """Bytes of the packed weights that the process has in memory."""
    total, ours = 0, False
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                ours = ".weights" in line
            elif ours and line.startswith("Rss:"):
                total += int(line.split()[1]) << 10
    return total


def engine(s):
    return s.admin("GET", "/stats?tables=")["engine"]


def half_of_the_weights_serve_the_same():
    with Server() as s:
        key = s.tenant("acme")
        want = answers(s, key)
        packed = until(lambda: next(iter((s.dir / "packed").glob("*.weights")), None))
        assert (engine(s)["weights_budget"], engine(s)["weights_read"]) == (0, 0)
        s.stop()
        budget = (packed.stat().st_size - (2 << 20)) // 2
        s.settings["model.resident_bytes"] = str(budget)
        s.start()
        most, over = [], threading.Event()

        def look():
            while not over.wait(0.002):
                most.append(mapped_bytes(s.process.pid))
        t = threading.Thread(target=look)
        t.start()
        try:
            assert answers(s, key) == want
        finally:
            over.set()
            t.join()
        assert 0 < max(most) <= budget, (max(most), budget)
        e = engine(s)
        assert e["weights_budget"] == budget and 0 < e["weights_bytes"] <= budget, e
        assert e["weights_read"] > 24 * budget, e  # each token reads what does not stay
        assert "within model.resident_bytes" in s.log_path.read_text()
        s.stop()
        check = subprocess.run([BUILD / "lorad", "check", "-c", s.dir / "lorad.conf", "--set", f"model.resident_bytes={budget}"],
                               capture_output=True, text=True)
        line = next((x for x in check.stdout.splitlines() if x.startswith("resident ")), None)
        assert check.returncode == 0 and line, check
        assert re.search(r"a token reads [\d.]+ GiB from the disk, which gives [\d.]+ GB/s: at most [\d.]+ tokens/s", line), line
        print(f"{max(most)} of {budget} bytes mapped at most, {len(most)} looks; {line}")


def the_first_start_packs_within_the_budget():
    """Nothing is kept yet: the weights go to the disk one matrix at a time."""
    with Server(settings={"model.resident_bytes": "3MiB"}) as s:
        key = s.tenant("acme")
        first = answers(s, key)
        assert list((s.dir / "packed").glob("*.weights")) and not list((s.dir / "packed").glob("*.tmp"))
        s.stop()
        s.settings.pop("model.resident_bytes")
        s.start()
        assert answers(s, key) == first


def too_little_is_refused():
    with Server() as s:
        s.stop()
        for settings, said in (({"model.resident_bytes": "100KiB"}, "this model needs at least"),
                               ({"model.resident_bytes": "3MiB", "debug.packed_cache": "no"}, "debug.packed_cache")):
            s.settings.update(settings)
            try:
                s.start()
                raise AssertionError("it started")
            except RuntimeError as e:
                assert said in str(e) + s.log_path.read_text(), e
            s.process = None


def pages_of_any_size_serve_the_same():
    first, second = list(range(40, 140)), list(range(40, 85)) + list(range(200, 255))  # 45 tokens are shared
    want = None
    for page in (32, 1, 8, 64):
        with Server(settings={"engine.page_tokens": str(page)}) as s:
            key = s.tenant("acme")
            got = answers(s, key)
            whole = (len(second) + ASKED["max_tokens"] - 1) // page * page  # pages are published when they are full
            for prompt, cached in ((first, 0), (second, 45), (second, min(len(second) - 1, whole))):
                r = s.call("POST", "/v1/completions", {**ASKED, "prompt": prompt}, key=key).json
                assert r["usage"]["prompt_tokens_details"]["cached_tokens"] == cached, (page, r["usage"])
                got.append((r["choices"][0]["text"], r["choices"][0]["logprobs"]["token_logprobs"]))
            assert got[-1] == got[-2]
        want = want or got
        assert got == want, page
    with Server() as s:
        s.stop()
        s.settings["engine.page_tokens"] = "24"
        try:
            s.start()
            raise AssertionError("it started")
        except RuntimeError as e:
            assert "engine.page_tokens must be 1, 2, 4, 8, 16, 32 or 64, not 24" in str(e), e
        s.process = None


def pages_of_latents_are_whole_blocks():
    path = ROOT / "tests/fixtures/families/models/deepseek-v2-lite"
    for page in (16, 32, 64):
        plan = subprocess.run([BUILD / "lorad", "check", "--plan", path, "--set", "engine.backend=cpu", "--set", f"engine.page_tokens={page}"],
                              capture_output=True, text=True)
        assert (plan.returncode == 0) == (page >= 32), plan
        assert page >= 32 or "engine.page_tokens must be at least 32 for a model with latent attention" in plan.stderr, plan


if __name__ == "__main__":
    run([half_of_the_weights_serve_the_same, the_first_start_packs_within_the_budget, too_little_is_refused,
         pages_of_any_size_serve_the_same, pages_of_latents_are_whole_blocks])
