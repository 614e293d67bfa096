"""Tokens in time over HTTPS: tpot_wire.py MODEL_DIR [SECONDS [ROUNDS]]

Four interactive and 28 batch streams of one tenant, in turns: the four alone; all, with a target for the interactive
ones of twice what a token of the four took, and a looser one for batch; all, with no target that binds. Targets are the
tenant's own and are set while the server runs, so that each round has its own measure of the machine. A token is in
time by the server's own rule: at its stream's pace since the first token, and never more than GAP targets after the one
before. What is left for batch is what the server's cost model says in the window itself (a step's time before any row, and
a row's), since the machine's speed differs from one window to the next: as many rows as fit into the target beside the four.
Nothing is guessed ahead (engine.speculate). One line of JSON."""
import json
import pathlib
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import Server  # noqa: E402

FEW, MANY, GAP, LOOSE = 4, 28, 16, 10  # streams of each class; targets; batch's target over the other
HOUR_MS = 3_600_000


class Stream:
    """One answer, read until it is closed: when each of its tokens came."""

    def __init__(self, server, key, tier, token, token_chars, most):
        self.at, self.token_chars = [], token_chars
        self.connection = server.connect(timeout=600)
        body = {"model": "base", "prompt": [token] * 8, "max_tokens": most, "ignore_eos": True, "stream": True,
                "service_tier": tier, "logit_bias": {str(token): 100}}
        self.connection.request("POST", "/v1/completions", json.dumps(body),
                                {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        try:
            answer = self.connection.getresponse()
            assert answer.status == 200, answer.read()
            for line in answer:  # what waited for its reader comes together, so an event may hold some
                if line.startswith(b"data: {"):
                    text = json.loads(line[6:])["choices"][0]["text"]
                    self.at += [time.monotonic()] * (len(text) // self.token_chars)
        except (OSError, ValueError, AttributeError):
            pass  # closed by close()

    def close(self):
        if self.connection.sock:
            self.connection.sock.shutdown(2)
        self.thread.join()
        self.connection.close()

    def between(self, start, end):
        return sum(start <= t < end for t in self.at)

    def in_time(self, start, end, tpot_s):
        """(in time, all) of the tokens of the window."""
        kept = seen = 0
        for k in range(1, len(self.at)):
            due = min(self.at[0] + k * tpot_s, self.at[k - 1] + GAP * tpot_s)
            if start <= self.at[k] < end:
                seen += 1
                kept += self.at[k] <= due
        return kept, seen


class Bench:
    def __init__(self, server, key, seconds):
        self.server, self.key, self.seconds = server, key, seconds
        words = server.call("POST", "/tokenize", {"prompt": " the"}, key=key).json
        self.token, self.most = words["tokens"][-1], words["max_model_len"] - 16
        text = server.call("POST", "/detokenize", {"tokens": [self.token]}, key=key).json["prompt"]
        self.token_chars = len(text)

    def set_targets(self, few_ms, many_ms):
        self.server.admin("PATCH", "/tenants/t", {"targets": {"interactive": {"tpot_ms": few_ms}, "batch": {"tpot_ms": many_ms}}})

    def phase(self, n_few, n_many, settle_s):
        """Streams of both classes, and the window in which they are looked at."""
        many = [Stream(self.server, self.key, "flex", self.token, self.token_chars, self.most) for _ in range(n_many)]
        few = [Stream(self.server, self.key, "priority", self.token, self.token_chars, self.most) for _ in range(n_few)]
        while not all(len(s.at) > 1 for s in few):
            time.sleep(0.01)
        time.sleep(settle_s)
        start = time.monotonic()
        self.costs = []
        while time.monotonic() < start + self.seconds:
            engine = self.server.stats()["engine"]
            self.costs.append((engine["cost_step_us"] / 1e6, engine["cost_row_us"] / 1e6))
            time.sleep(0.25)
        end = time.monotonic()
        for s in few + many:
            s.close()
        return few, many, start, end

    def alone(self):
        few, _, start, end = self.phase(FEW, 0, 1)
        return (end - start) * FEW / sum(s.between(start, end) for s in few)

    def left_per_s(self, tpot_s):
        """Batch tokens a second, were each step of the window as long as the target allows."""
        rows = statistics.mean(min(MANY, max(0, (tpot_s - step_s) / max(row_s, 1e-6) - FEW)) for step_s, row_s in self.costs)
        step_s = statistics.mean(min(tpot_s, step_s + (FEW + MANY) * row_s) for step_s, row_s in self.costs)
        return rows / step_s

    def together(self, tpot_s, bound):
        self.set_targets(int(1000 * tpot_s) if bound else HOUR_MS, int(1000 * LOOSE * tpot_s) if bound else HOUR_MS)
        few, many, start, end = self.phase(FEW, MANY, 10 * tpot_s)
        kept, seen = (sum(x) for x in zip(*(s.in_time(start, end, tpot_s) for s in few)))
        loose, all_loose = (sum(x) for x in zip(*(s.in_time(start, end, LOOSE * tpot_s) for s in many)))
        per_s, left = sum(s.between(start, end) for s in many) / (end - start), self.left_per_s(tpot_s)
        return {"in_time": kept / seen, "step_s": (end - start) * FEW / seen, "batch_in_time": loose / max(1, all_loose),
                "batch_per_s": per_s, "left_per_s": left, "batch_share": per_s / left,
                "batch_seated": sum(len(s.at) > 0 for s in many)}


def main(model, seconds=20, rounds=3):
    server = Server(model=pathlib.Path(model).resolve(), settings={
        "engine.speculate": "off", "engine.max_seqs": FEW + MANY, **{f"classes.{name}": f"ttft:1h tpot:1h weight:{weight}"
        for name, weight in (("interactive", 4), ("standard", 2), ("batch", 1))}})
    with server:
        key = server.tenant("t")
        bench, out = Bench(server, key, seconds), []
        for _ in range(rounds):
            bench.set_targets(HOUR_MS, HOUR_MS)
            four_s = bench.alone()
            without = bench.together(2 * four_s, False)
            again_s = bench.alone()
            tpot_s = 2 * max(four_s, again_s)
            kept = bench.together(tpot_s, True)
            out.append({"four_ms": [1e3 * four_s, 1e3 * again_s], "tpot_ms": 1e3 * tpot_s, "with": kept, "without": without})
            print(json.dumps(out[-1]), file=sys.stderr, flush=True)
    middle = {k: statistics.median(r["with"][k] for r in out) for k in ("in_time", "batch_in_time", "batch_seated", "batch_share")}
    print(json.dumps({**middle, "without": statistics.median(r["without"]["in_time"] for r in out), "rounds": out}))


if __name__ == "__main__":
    main(sys.argv[1], *(int(x) for x in sys.argv[2:]))
