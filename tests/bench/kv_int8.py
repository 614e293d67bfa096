"""kv_int8.py -- the case kv-int8: lines of bench_attend, one for each number of heads on a kv head; the
first argument is a file for them.  Judged by four heads, as Llama 3's have it."""
import json
import sys

ASKED, JUDGED = 1.5, 4
rows = [json.loads(line) for line in sys.stdin]
if len(sys.argv) > 1:
    with open(sys.argv[1], "w") as f:
        json.dump(rows, f)
gain = {r["heads"]: r["all_threads_s"] / r["int8_s"] for r in rows}
print("heads on a kv head, bf16's time over int8's: " + ", ".join(f"{h}: {g:.2f}" for h, g in gain.items()))
figure = gain[JUDGED]
print(f"kv-int8 {figure:.2f} times bf16: decode attention over {rows[0]['context']} positions, {JUDGED} heads on a kv head, with "
      f"{rows[0]['backend']} (asked {ASKED:g}): {'ok' if figure >= ASKED else 'short'}")
sys.exit(0 if figure >= ASKED else 1)
