#!/bin/sh
# run.sh CASE -- one figure: a last line "CASE <figure> <unit> (asked <bound>): ok|short".
#
#   sh tests/bench/run.sh --list
#   sh tests/bench/run.sh CASE [--json FILE]
#
# decode-1, lora-8, streams-8, prompt-512, long-context:
# moe: LORAD_BENCH_THREADS=1 counts one thread's processor time, which load beside does not move.
# LORAD_BENCH_ISA=avx2 takes that instruction set (engine.isa) instead of the best,
# LORAD_BENCH_SIZE=135M the small model.
#
# Figures are ratios within one run of one machine.  Random-weight models are made once under
# build/bench.  Exit status: 0 ok, 1 short, 2 could not be measured.
set -eu
cd "$(dirname "$0")/../.."

sim_cases="sim-honest sim-fair sim-jain sim-batch sim-fcfs sim-late sim-cold sim-cold-late sim-cold-wait sim-wire sim-tpot sim-tpot-kept sim-tpot-slow sim-nodes sim-nodes-picker sim-nodes-hash sim-million plan-cost"
cases="$sim_cases decode-1 lora-8 streams-8 prompt-512 long-context kv-int8 page-size resident top-p-flat startup-1.1B peer-1 peer-8 peer-8-adapters peer-q8_0 peer-q4_0 peer-q4_k_s peer-bf16 peer-moe peer-1-q8_0 peer-8-q8_0 peer-8-adapters-q8_0 peer-1-q4_0 peer-8-q4_0 peer-8-adapters-q4_0 peer-1-q4_k_s peer-8-q4_k_s peer-8-adapters-q4_k_s kl-q8_0 kl-q4_0 kl-q4_k_s kl-real peer-real memory-q8_0 memory-q4_0 memory-q4_k_s embeddings https-1.1B https-135M workloads kill-upload adapters-1000 adapters-10000 tiers arena cold-ttft causes breach punica-distinct why
    punica-uniform punica-skewed punica-identical slora stall slo-wire overhead token-cpu alora stack push streams-2000 slowloris idle-sockets writer loratop stats-cost schemas tools-auto schema-cost schemathesis
    disk-full db-locked kill-9 batch-beside upload-room fuzz oom lengths spec spec-draft tpot-wire moe fleet-limits fleet-usage fleet-revoke fleet-away fleet-adapter fleet-move fleet-roles"
json=
[ $# -gt 0 ] || set -- --list
case $1 in
--list) for c in $cases; do echo "$c"; done; exit 0 ;;
esac
name=$1
shift
while [ $# -gt 0 ]; do
    case $1 in
    --json) json=${2:?--json needs a file}; shift 2 ;;
    *) echo "run.sh: unknown option $1" >&2; exit 2 ;;
    esac
done
case " $cases " in *" $name "*) ;; *) echo "run.sh: unknown case $name; --list names them" >&2; exit 2 ;; esac

if [ "$name" = workloads ]; then
    # The generators against known values of the published workloads; needs numpy.
    if python3 tests/bench/workloads.py check; then verdict=ok rc=0; else verdict=short rc=1; fi
    echo "workloads $rc differing (asked 0): $verdict"
    exit $rc
fi

[ "$name" != fuzz ] || exec sh tests/fuzz/run.sh

case $name in
fleet-*) exec build/venv/bin/python tests/bench/fleet.py "$name" ;;
esac

if [ "$name" = lengths ]; then
    # The share of answers up to their learnt p90, of the trace where it is farthest from 0.9.
    [ -x build/release/bench_lengths ] || { echo "run.sh: build first (sh tests/run.sh)" >&2; exit 2; }
    out=$(python3 tests/bench/lengths.py build/release/bench_lengths) || exit 2
    echo "$out"
    share=$(echo "$out" | tail -n 1)
    if echo "$share" | awk '{ exit !($1 >= 0.88 && $1 <= 0.92) }'; then verdict=ok rc=0; else verdict=short rc=1; fi
    echo "lengths $share of answers up to their p90, the worst of three traces (asked 0.88 to 0.92): $verdict"
    exit $rc
fi

if [ "$name" = schemathesis ]; then
    # Many cases for every call of both planes by our own description; what fails is printed whole.
    log=$(mktemp)
    if LORAD_EXAMPLES=${LORAD_EXAMPLES:-150} sh tests/e2e/run.sh test_schemathesis >"$log"; then rc=0; else rc=$?; fi
    [ $rc -ne 77 ] || { cat "$log"; exit 2; }
    [ $rc -eq 0 ] || cat "$log"
    cases=$(sed -n 's/^ *\([0-9]*\) generated.*/\1/p' "$log" | paste -sd+ | sed 's/^$/0/')
    rm -f "$log"
    if [ $rc -eq 0 ]; then verdict=ok failed=0; else verdict=short failed=1; fi
    echo "schemathesis $failed planes differing, $((cases)) cases (asked 0): $verdict"
    exit $rc
fi

if [ "$name" = adapters-1000 ]; then
    out=$(sh tests/bench/adapters_1000.sh)
    echo "$out"
    exec python3 - "$out" <<'PY'
import json, statistics, sys
runs = [json.loads(line) for line in sys.argv[1].splitlines()]
ratios = [cold["itl_p99_ms"] / warm["itl_p99_ms"] for cold, warm in zip(runs[::2], runs[1::2])]
figure, errors = statistics.median(ratios), sum(r["errors"] for r in runs)
ok = figure <= 1.5 and errors == 0
print(f"adapters-1000 {figure:.3f} times resident p99, median of {len(ratios)}, {errors} errors (asked 1.5, 0): "
      f"{'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

if [ "$name" = kill-upload ]; then
    # Every kill must leave the old version or the new one, whole, and nothing else on the disk.
    out=$(sh tests/bench/kill_upload.sh 200)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1].splitlines()[-1])
ok = r["wrong"] == 0 and r.get("rounds") == r["asked"]
print(f"kill-upload {r['wrong']} of {r['asked']} kills left neither old nor new (asked 0): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

if [ "$name" = upload-room ]; then
    # A hundred tenants after the whole disk: nobody else's call fails, and who
    # is deleted is out at once.
    out=$(build/venv/bin/python tests/bench/upload_room.py) || exit 2
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
below = max(0, r["floor_mib"] - r["least_free_mib"])
ok = r["failed"] == 0 and below == 0 and max(r["lock_out_s"], r["lock_out_full_s"]) <= 1
print(f"upload-room {r['failed']} of {r['honest']} honest calls failed beside 100 hostile tenants, {below:.1f} MiB below the floor; "
      f"locked out in {r['lock_out_s']:.2f} s, on a full disk {r['lock_out_full_s']:.2f} s (asked 0, 0, 1, 1): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

[ "$name" != spec ] || exec python3 tests/bench/spec.py ${json:+--json "$json"}
[ "$name" != spec-draft ] || exec python3 tests/bench/spec.py --draft ${json:+--json "$json"}

if [ "$name" = alora ]; then
    model=build/bench/135M
    [ -e "$model/adapters" ] || python3 tests/tools/make_random_model.py 135M "$model" --adapters 8 >&2
    out=$(python3 tests/bench/alora.py "$model")
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
over, under, n = r["over_base"], r["under_plain"], r["computed"]
ok = over <= 1.1 and under >= 50 and n["alora"] == n["base"]
print(f"alora {over:.3f} of the base's own turn over 2,000 cached tokens, {under:.0f} times under a plain adapter's; prompt tokens "
      f"computed {n['alora']}, {n['base']}, {n['plain']} (asked 1.1, 50, the same): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

if [ "$name" = stack ]; then
    model=build/bench/135M
    [ -e "$model/adapters/r001" ] || python3 tests/tools/make_random_model.py 135M "$model" --adapters 8 >&2
    [ -e "$model-wide/adapters" ] || python3 tests/tools/make_random_model.py 135M "$model-wide" --adapters 1 --rank 32 >&2
    out=$(python3 tests/bench/stack.py "$model" "$model-wide")
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
ok = r["ratio"] <= 1.1
print(f"stack {r['ratio']:.3f} of one adapter of the sum of the ranks, eight streams; first token of a new one "
      f"{r['first_token_ms']['new']} ms, of a resident one {r['first_token_ms']['resident']} (asked 1.1): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

if [ "$name" = writer ]; then
    out=$(python3 tests/bench/writer.py "${LORAD_BENCH_SECONDS:-600}" | tail -n 1)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
grown = (r["after"] - r["before"]) / 2**20
ok = grown <= 64 and r["ratio"] <= 1.1 and r["errors"] == 0
print(f"writer {grown:.1f} MiB more in the database after {r['seconds']} s of {sum(r['count'].values()) / r['seconds']:.0f} calls a second that write, "
      f"{r['ratio']:.3f} times the p99 time to first token of another tenant alone, {r['errors']} errors of it, load {r['load']:.0f} "
      f"(asked 64, 1.1, 0): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

if [ "$name" = push ]; then
    model=build/bench/15M-r150 small=build/bench/15M-r4
    [ -e "$model/adapters" ] || python3 tests/tools/make_random_model.py 15M "$model" --adapters 2 --rank 150 >&2
    [ -e "$small/adapters" ] || python3 tests/tools/make_random_model.py 15M "$small" --adapters 2 --rank 4 >&2
    out=$(python3 tests/bench/push.py "$model" 3 "${LORAD_BENCH_UPDATES:-10000}" "$small" | tail -n 1)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
ok = r["beside"]["ms"] <= 100 and r["p99_minute"] <= 1.1 and r["wrong"] == 0 and r["memory"] <= 0.05
print(f"push {r['beside']['ms']} ms from {r['mb']} MB to the first token beside 64 streams ({r['beside']['answer_ms']} to the answer; {r['quiet']['ms']} alone), "
      f"their p99 {r['p99_minute']:.3f} times alone with a push each 15 s, {r['p99']:.3f} with one each 0.4 s ({r['p99_trainer']:.3f} beside the trainer's {r['beside']['trainer_cpu_ms']} ms of processor time alone), {r['wrong']} of {r['answers']} answers wrong over {r['updates']} updates, memory {100 * r['memory']:+.1f} %, "
      f"load {r['load']} (asked 100, 1.1, 0, 5): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

if [ "$name" = cold-ttft ]; then
    model=build/bench/135M
    [ -e "$model/adapters" ] || python3 tests/tools/make_random_model.py 135M "$model" --adapters 8 >&2
    out=$(python3 tests/bench/cold.py "$model")
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
figure = max(r["ratio"].values())
print(f"cold-ttft {r['ratio']['disk']:.2f} from disk, {r['ratio']['host']:.2f} from host memory, of bytes / bandwidth + 2 steps + "
      f"the warm time to first token (asked 1): {'ok' if figure <= 1 else 'short'}")
sys.exit(0 if figure <= 1 else 1)
PY
fi

if [ "$name" = tpot-wire ]; then
    size=${LORAD_BENCH_SIZE:-1.1B}
    [ -e "build/bench/$size/config.json" ] || python3 tests/tools/make_random_model.py "$size" "build/bench/$size" >&2
    out=$(build/venv/bin/python tests/bench/tpot_wire.py "build/bench/$size") || exit 2
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
ok = r["in_time"] >= 0.99 and r["batch_share"] >= 0.9 and r["batch_in_time"] >= 0.99
print(f"tpot-wire {r['in_time']:.4f} of interactive tokens in time beside 28 batch streams, {r['without']:.4f} without the rule; batch got "
      f"{r['batch_share']:.2f} of what is left, {r['batch_in_time']:.4f} of it in time (asked 0.99, -, 0.9, 0.99): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

if [ "$name" = causes ]; then
    model=build/bench/135M
    [ -e "$model/adapters" ] || python3 tests/tools/make_random_model.py 135M "$model" --adapters 8 >&2
    out=$(python3 tests/bench/causes.py "$model")
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
share = {k: v["right"] / v["missed"] if v["missed"] else 0 for k, v in r["scenes"].items()}
figure, few = min(share.values()), [k for k, v in r["scenes"].items() if v["missed"] < r["least"]]
ok = figure >= 0.95 and not few
print(f"causes {figure:.3f} of the misses named right in the worst of {len(share)} scenes ("
      + ", ".join(f"{k} {v['right']} of {v['missed']} in {v['counted']} of {v['rounds']} rounds" for k, v in r["scenes"].items())
      + f"){', too few in ' + ' '.join(few) if few else ''} (asked 0.95): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

if [ "$name" = why ]; then
    # Twelve incidents, and LORAD_HEALTHY seconds (1800) of load in which nothing may be reported.
    [ -x build/release/lorad_faulty ] || { echo "run.sh: build first (sh tests/run.sh)" >&2; exit 2; }
    out=$(build/venv/bin/python tests/bench/why.py) || exit 2
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
incidents = [i for i in r["incidents"] if i["incident"] != "healthy"]
good, calm = [i for i in incidents if i["ok"]], [i for i in r["incidents"] if i["incident"] == "healthy"]
ok = len(good) == len(incidents) and all(i["ok"] for i in calm)
print(f"why {len(good)} of {len(incidents)} incidents explained, the slowest after {max((i['s'] or 0 for i in incidents), default=0):.1f} s"
      + "".join(f"; not {i['incident']}" for i in incidents if not i["ok"])
      + "".join(f"; {len(i['reports'])} reports and {len(i['events'])} warnings in {i['s']} s of load, {i['requests']} requests" for i in calm)
      + f"; load {r['load']:.0f} (asked all, {r['bound_s']}, 0, 0): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

if [ "$name" = breach ]; then
    model=build/bench/135M
    [ -e "$model/adapters" ] || python3 tests/tools/make_random_model.py 135M "$model" --adapters 8 >&2
    out=$(build/venv/bin/python tests/bench/breach.py "$model") || exit 2
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
good, slowest = [i for i in r["incidents"] if i["ok"]], max((max(i["named_s"].values(), default=0) for i in r["incidents"]), default=0)
ok = len(good) == len(r["incidents"])
print(f"breach {len(good)} of {len(r['incidents'])} incidents named right, the slowest after {slowest:.1f} s, and found in the history to 10 s"
      + "".join(f"; not {i['incident']}" for i in r["incidents"] if not i["ok"]) + f"; load {r['load']:.0f} (asked all, 15): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

if [ "$name" = tiers ] || [ "$name" = adapters-10000 ] || [ "$name" = arena ]; then
    part=$name
    [ "$name" != adapters-10000 ] || part=registered
    out=$(python3 tests/bench/many.py $part)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$name" "$out" <<'PY'
import json, statistics, sys
name, runs = sys.argv[1], [json.loads(line) for line in sys.argv[2].splitlines()]
if name == "tiers":
    kinds = {k: sorted((r for r in runs if r["kind"] == k), key=lambda r: r["pair"]) for k in ("tiers", "resident")}
    pairs = list(zip(kinds["tiers"], kinds["resident"]))
    speed = statistics.median(a["tokens_per_s"] / b["tokens_per_s"] for a, b in pairs)
    itl = statistics.median(a["itl_p99_ms"] / b["itl_p99_ms"] for a, b in pairs)
    errors = sum(r["errors"] for r in runs)
    ok = speed >= 0.85 and itl <= 1.3 and errors == 0
    print(f"tiers {speed:.3f} of resident throughput, {itl:.2f} times its p99 inter-token latency, median of {len(pairs)}, "
          f"{errors} errors (asked 0.85, 1.3, 0): {'ok' if ok else 'short'}")
elif name == "arena":
    r = runs[0]
    least, end = min(r["contexts"]["pages"], r["contexts again"]["pages"]), r["end"]
    errors = sum(r[k]["errors"] for k in ("contexts", "adapters", "contexts again"))
    leaked = end["chunks"] - end["free"] - end["kv_cached"] - end["adapters_idle"]
    ok = least > 0.95 and r["adapters"]["adapters"] > 0.95 and leaked == 0 and errors == 0
    print(f"arena {least:.3f} held by long contexts before and after, {r['adapters']['adapters']:.3f} by adapters between, "
          f"{leaked} leaked, {errors} errors (asked 0.95, 0.95, 0, 0): {'ok' if ok else 'short'}")
else:
    r = runs[0]
    start = (r["start_ms"]["full"] - r["start_ms"]["none"]) / 1000
    each = max(r["bytes_each"], r["bytes_each_looked_at"])
    page = max(r["page_ms"]) / r["page_ms_of_200"]
    ok = start < 3 and each < 2048 and page < 1.5 and r["errors"] == 0 and r["listed"] == r["registered"]
    print(f"adapters-10000 {start:.2f} s more to start, {each} bytes each, the slowest page {page:.2f} times one of 200 names, "
          f"{r['errors']} errors (asked 3, 2048, 1.5, 0): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi

case $name in
sim-* | plan-cost)
    out=$(python3 tests/bench/sim_cases.py "$name") && rc=0 || rc=$?
    [ -z "$json" ] || echo "$out" | grep '^{' >"$json" || true
    echo "$out"
    exit $rc
    ;;
punica-* | slora)
    out=$(sh tests/bench/traces.sh "${name#punica-}")
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$name" "$out" <<'PY'
import json, sys
name, r = sys.argv[1], json.loads(sys.argv[2])
print(f"{name} {r['errors']} errors of {r['requests']} requests, {r['tokens_per_s']:.0f} tokens/s (asked 0): "
      f"{'ok' if r['errors'] == 0 else 'short'}")
sys.exit(0 if r["errors"] == 0 else 1)
PY
    ;;
loratop | stats-cost)
    [ -x build/release/loratop ] || { echo "run.sh: build first (sh tests/run.sh)" >&2; exit 2; }
    out=$(python3 tests/bench/loratop.py "$name")
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$name" "$out" <<'PY'
import json, sys
name, r = sys.argv[1], json.loads(sys.argv[2])
if name == "stats-cost":
    ok = r["cpu_percent"] < 0.5 and r["updates"] >= 0.9 * r["seconds"]
    print(f"stats-cost {r['cpu_percent']:.2f} % of a core at one update a second (asked 0.5): {'ok' if ok else 'short'}")
else:
    grown = r["rss_kib_after_all"] / r["rss_kib_after_a_third"] - 1
    ok = r["key_p99_ms"] < 50 and r["cpu_percent"] < 3 and grown < 0.02
    print(f"loratop {r['key_p99_ms']:.1f} ms (p99) from key to screen, {r['cpu_percent']:.2f} % of a core, memory "
          f"{100 * grown:+.1f} % over 2,400 updates (asked 50, 3, 2): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
    ;;
oom)
    # Under ASan: its exit status tells leaks, too.
    [ -x build/asan/lorad_starved ] || { echo "run.sh: build the preset asan first" >&2; exit 2; }
    log=$(mktemp)
    build/venv/bin/python tests/bench/oom.py | tee "$log"
    out=$(tail -n 1 "$log")
    rm -f "$log"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
ok = r["failures"] >= 20000 and r["wrong"] == 0 and r["exit"] == 0
print(f"oom {r['wrong']} wrong answers, ends or starts in {r['runs']} runs with {r['failures']} failed allocations, exit status "
      f"{r['exit']} (asked 0, -, 20000, 0): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
    ;;
disk-full | db-locked | kill-9)
    [ -x build/release/lorad ] || { echo "run.sh: build first (sh tests/run.sh)" >&2; exit 2; }
    out=$(build/venv/bin/python tests/bench/books.py "$name")
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$name" "$out" <<'PY'
import json, sys
name, r = sys.argv[1], json.loads(sys.argv[2])
b = r["books"]
ok = b["lost"] == b["doubled"] == b["wrong"] == 0
if name == "kill-9":
    ok = ok and r["per_second"] >= 50 and r["cut_short"] > 0
    print(f"kill-9 {b['lost']} lost, {b['doubled']} doubled, {b['wrong']} otherwise wrong of {b['answers']} answers over {r['kills']} kills "
          f"at {r['per_second']:.0f} answers/s, {r['cut_short']} cut short (asked 0, 0, 0, -, 200, 50): {'ok' if ok else 'short'}")
else:
    f = r["full spool"]
    back = max(r["served_s"], r["settled_s"], f["served_s"], f["settled_s"])
    ok = ok and r["refused"] == 0 and r["state"] == "behind" and r["added_p99_ms"] <= 150 and back <= 5 and r["budget_used"] <= r["budget"]
    ok = ok and f["refused"] > 0 and f["other"] == 0 and f["readyz"] == 503
    print(f"{name} {r['completions']} completions in {r['held_s']:.0f} s of it, {r['refused']} refused before the spool was full, p99 {r['added_p99_ms']:+.1f} ms, "
          f"served and settled {back:.1f} s after its end, {b['lost']} lost, {b['doubled']} doubled, {b['wrong']} otherwise wrong, a budget of "
          f"{r['budget']} used to {r['budget_used']} (asked 20000, -, 0, 150, 5, 0, 0, 0, no more): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
    ;;
overhead | token-cpu | streams-2000 | slowloris | idle-sockets)
    [ -x build/release/lorad ] || { echo "run.sh: build first (sh tests/run.sh)" >&2; exit 2; }
    out=$(python3 tests/bench/gateway.py "$name")
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$name" "$out" <<'PY'
import json, sys
name, r = sys.argv[1], json.loads(sys.argv[2])
if name == "overhead":
    ok = r["p99_ms"] < 2 and r["errors"] == 0
    print(f"overhead {r['p99_ms']:.2f} ms p99 at 200 requests/s with a null model, {r['disk_p99_ms']:.2f} with usage on this disk, "
          f"which alone takes {r['sync_p99_ms']:.2f} (p99), {r['errors']} errors (asked 2, -, -, 0): {'ok' if ok else 'short'}")
elif name == "token-cpu":
    ok = r["added_us"] < 50 and r["frames_per_token"] > 0.5
    print(f"token-cpu {r['added_us']:.1f} us of CPU more for a streamed token, {r['frames_per_token']:.2f} frames a token "
          f"(asked 50, above 0.5): {'ok' if ok else 'short'}")
elif name == "streams-2000":
    grown = r["rss_kib"][-1] / r["rss_kib"][1] - 1 # all threads have had their turn by then
    ok = r["errors"] == 0 and min(r["most_running"], r["most_beside_idle"]) >= 1900 and r["idle"] >= 0.95 and grown < 0.05
    print(f"streams-2000 {r['errors']} errors, {r['most_running']:.0f} at once, memory {100 * grown:+.1f} % after two more rounds, "
          f"{(r['rss_kib'][-1] - r['rss_before_kib']) / 2000:.0f} KiB a stream; {r['most_beside_idle']:.0f} at once beside "
          f"{r['idle']:.2f} of {r['idle_asked']} idle connections (asked 0, 1900, 5, -, 1900, 0.95): {'ok' if ok else 'short'}")
elif name == "idle-sockets":
    ok = (r["control"] <= 1.05 and r["one_control"] <= 1.05 and r["errors"] == 0 and r["held"] >= 9500 and r["mib"] <= 200
          and r["healthz_ms"] < 50 and r["one_held"] <= 400)
    print(f"idle-sockets {r['control']:.3f} times the p99 time to first token beside the same attack on another server ({r['ratio']:.3f} of alone) "
          f"beside {r['held']} idle connections, {r['mib']:.0f} MiB more, /healthz {r['healthz_ms']:.1f} ms; {r['one_control']:.3f} times "
          f"({r['one_ratio']:.3f}) beside one address, which holds {r['one_held']}, {r['errors']} errors (asked 1.05, 9500, 200, 50, 1.05, 400, 0): {'ok' if ok else 'short'}")
else:
    ok = r["ratio"] <= 1.2 and r["errors"] == 0
    print(f"slowloris {r['ratio']:.3f} times the streams' p99 inter-token latency alone, {r['thrown_out']} sockets thrown out, "
          f"{r['server_cores']:.3f} cores of the server and {r['attacker_cores']:.3f} of the attacker for it, "
          f"{r['errors']} errors (asked 1.2, -, 0): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
    ;;
batch-beside)
    [ -x build/release/lorad ] || { echo "run.sh: build first (sh tests/run.sh)" >&2; exit 2; }
    model=build/bench/15M
    [ -e "$model/config.json" ] || python3 tests/tools/make_random_model.py 15M "$model" >&2
    out=$(build/venv/bin/python tests/bench/batch_beside.py "$model" 10 12)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
ok = r["p99"] <= 1.05 and r["used"] >= 0.95
print(f"batch-beside {r['p99']:.3f} times the first tokens' p99 alone ({r['p50']:.3f} of p50), {100 * r['used']:.0f} % of the idle time used, "
      f"load {r['load']:.1f} (asked 1.05, -, 95): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
    ;;
stall)
    out=$(sh tests/bench/stall.sh)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, statistics, sys
runs = [json.loads(line) for line in sys.argv[1].splitlines()]
turns = list(zip(runs[::3], runs[1::3], runs[2::3]))
figure = statistics.median(b["itl_p99_ms"] / a["itl_p99_ms"] for a, b, _ in turns)
errors = sum(r["errors"] for r in runs)
for a, b, prompts in turns:
    print(f"{a['itl_p99_ms']:.2f} ms alone, {b['itl_p99_ms']:.2f} beside {prompts['requests']} prompts "
          f"({prompts['requests'] / prompts['wall_s']:.2f} a second, TTFT p50 {prompts['ttft_p50_ms']:.0f} ms): "
          f"{b['itl_p99_ms'] / a['itl_p99_ms']:.2f}")
ok = figure <= 1.3 and errors == 0
print(f"stall {figure:.3f} times the streams' p99 inter-token latency alone, {errors} errors (asked 1.3, 0): "
      f"{'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
    ;;
slo-wire)
    out=$(sh tests/bench/slo.sh)
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, re, sys
closed, run, *metrics = sys.argv[1].splitlines()
closed, run = json.loads(closed), json.loads(run)
print(f"capacity {closed['requests'] / closed['wall_s']:.1f} requests/s, {closed['tokens_per_s']:.0f} tokens/s as fast as it goes; "
      f"{run['requests'] / run['wall_s']:.1f}, {run['tokens_per_s']:.0f} in the run, whose load was {100 * run['wall_s'] / 120:.0f} % of that")
buckets = {}
for line in metrics:
    m = re.match(r'lorad_time_(to_first|per_output)_token_seconds_bucket\{class="([^"]+)",le="([^"]+)"\} (\d+)', line)
    if m:
        buckets.setdefault((m[2], m[1]), []).append((float(m[3]), int(m[4])))
def upper(name, what): # the bucket's end below which 99 of 100 lie; both runs
    rows = buckets.get((name, what), [])
    return next((le * 1000 for le, n in rows if n >= 0.99 * rows[-1][1]), float("nan"))
for name, c in sorted(run["classes"].items()):
    print(f"{name:17} {c['requests']:5} done {c['refused']:4} refused {c['errors']} errors  TTFT p50 {c['ttft_p50_ms']:8.1f} "
          f"p99 {c['ttft_p99_ms']:8.1f} (all of the class, by the server: below {upper(name.split('/')[0], 'to_first'):.0f}) ms  TPOT p99 {c['tpot_p99_ms']:6.2f} "
          f"(below {upper(name.split('/')[0], 'per_output'):.1f}) ms  least in 10 s {c['least_tokens_10s']} tokens")
i, b = run["classes"]["interactive"], run["classes"]["batch"]
# The heavy tenant asks for more than its share by far: what it gets is in the lines above.
figure = max(i["ttft_p99_ms"] / 500, i["tpot_p99_ms"] / 50)
errors = sum(c["errors"] for c in run["classes"].values())
ok = figure <= 1 and b["least_tokens_10s"] > 0 and errors == 0
print(f"slo-wire {figure:.2f} of interactive's targets at p99 (99 tenants beside one that sends half), batch at least {b['least_tokens_10s']} tokens in any 10 s, "
      f"{errors} errors (asked 1, above 0, 0): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
    ;;
schemas | tools-auto | schema-cost)
    python=build/venv/bin/python # made by tests/run.sh
    if [ "$name" = schemas ]; then
        out=$($python tests/bench/forms.py schemas)
    elif [ "$name" = tools-auto ]; then
        out=$($python tests/bench/forms.py tools)
    else
        model=build/bench/135M
        [ -e "$model/config.json" ] || python3 tests/tools/make_random_model.py 135M "$model" --adapters 8 >&2
        out=$($python tests/bench/forms.py cost "$model")
    fi
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$name" "$out" <<'PY'
import json, sys
name, r = sys.argv[1], json.loads(sys.argv[2])
if name == "schemas":
    ok = r["valid"] == r["answers"] == 10000
    print(f"schemas {r['valid']} of {r['answers']} whole answers parse and validate, {r['cut']} others were cut by max_tokens (asked 10000): {'ok' if ok else 'short'}")
elif name == "tools-auto":
    ok = r["valid"] == r["answers"] == 10000 and not r["wrong"]
    print(f"tools-auto {r['valid']} of {r['answers']} answers with calls in auto are valid, {r['calls']} calls (asked 10000): {'ok' if ok else 'short'}")
else:
    ok = r["ratio"] >= 0.95
    print(f"schema-cost {r['ratio']:.3f} of the throughput without (asked 0.95): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
    ;;
startup-1.1B | embeddings | peer-* | kl-* | memory-*)
    [ -x build/release/lorad ] || { echo "run.sh: build first (sh tests/run.sh)" >&2; exit 2; }
    case $name in
    peer-q* | peer-bf16 | peer-moe) out=$(python3 tests/bench/peer/peer_engines.py "${name#peer-}") ;;
    memory-*) out=$(python3 tests/bench/peer/peer_memory.py "${name#memory-}") ;;
    kl-real | peer-real) out=$(python3 "tests/bench/peer/${name%-real}_real.py") ;;
    kl-*) out=$(python3 tests/bench/peer/peer_kl.py "${name#kl-}") ;;
    embeddings) out=$(python3 tests/bench/peer/peer.py embeddings 135M) ;;
    startup-*) out=$(python3 tests/bench/peer/peer.py startup "${name#startup-}") ;;
    peer-*-q*) row=${name#peer-} && out=$(python3 tests/bench/peer/peer.py "${row%-q*}" 1.1B "q${row##*-q}") ;;
    *) out=$(python3 tests/bench/peer/peer.py "${name#peer-}" 135M) ;;
    esac || exit 2
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 tests/bench/peer/peer_verdict.py "$name" "$out"
    ;;
top-p-flat)
    [ -x build/release/bench_engine ] || { echo "run.sh: build first (sh tests/run.sh)" >&2; exit 2; }
    for size in 135M 135M-152k; do
        [ -e build/bench/$size/config.json ] || python3 tests/tools/make_random_model.py $size build/bench/$size --adapters 8 >&2
    done
    out=$(for size in 135M 135M-152k; do build/release/bench_engine build/bench/$size sample; done)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
runs = [json.loads(line) for line in sys.argv[1].splitlines()]
figure = max(r["top_p_s"] / r["top_k_s"] for r in runs)
each = ", ".join(f"{r['top_p_s'] / r['top_k_s']:.3f} of {1000 * r['top_k_s']:.1f} ms with {r['vocabulary']} tokens" for r in runs)
print(f"top-p-flat {figure:.3f} times the step with top-k 40 ({each}) (asked 1.15): {'ok' if figure <= 1.15 else 'short'}")
sys.exit(0 if figure <= 1.15 else 1)
PY
    ;;
https-*)
    size=${name#https-}
    model=build/bench/$size
    [ -d "$model/adapters" ] || python3 tests/tools/make_random_model.py "$size" "$model" --adapters 8 >&2
    out=$(sh tests/bench/https.sh "$model")
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$name" "$out" <<'PY'
import json, statistics, sys
runs = [json.loads(line) for line in sys.argv[2].splitlines()]
rows = ["1 stream", "1 stream, 1 adapter", "8 streams", "8 streams, 8 adapters"]
def mid(row, key):
    return statistics.median(r[key] for r in runs[row::4])
for i, row in enumerate(rows):
    print(f"{row:24s} {mid(i, 'tokens_per_s'):7.1f} tokens/s  TTFT p50 {mid(i, 'ttft_p50_ms'):7.1f} p99 "
          f"{mid(i, 'ttft_p99_ms'):7.1f} ms  ITL p50 {mid(i, 'itl_p50_ms'):6.1f} p99 {mid(i, 'itl_p99_ms'):6.1f} ms")
lora = statistics.median(b["tokens_per_s"] / a["tokens_per_s"] for a, b in zip(runs[2::4], runs[3::4]))
many = statistics.median(b["tokens_per_s"] / a["tokens_per_s"] for a, b in zip(runs[1::4], runs[3::4]))
errors = sum(r["errors"] for r in runs)
ok = lora >= 0.80 and many >= 3.0 and errors == 0
print(f"{sys.argv[1]} {lora:.3f} of base, {many:.2f} times one stream, {errors} errors (asked 0.80, 3.0, 0): "
      f"{'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
    ;;
esac

bin=build/release
[ -x $bin/bench_engine ] || { echo "run.sh: build first (sh tests/run.sh)" >&2; exit 2; }
if [ "$name" = kv-int8 ]; then
    for heads in 1 2 4 8; do $bin/bench_attend 8192 $heads; done | python3 tests/bench/kv_int8.py ${json:+"$json"}
    exit
fi
if [ "$name" = page-size ]; then
    # Attention by the size of pages; small ones cost the gathering of blocks (engine/cpu/attend.h).
    out=$($bin/bench_attend pages)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
for kind in ("bf16", "int8"):
    t = r[f"{kind}_s"]
    print(f"{kind}: processor time over that of 32 tokens: " + ", ".join(f"{n}: {s / t['32']:.2f}" for n, s in t.items()))
figure = r["bf16_s"]["64"] / r["bf16_s"]["32"]
print(f"page-size {figure:.2f} of pages of 32 tokens with 64: decode attention over {r['context']} positions, {r['heads']} heads on a kv head, "
      f"with {r['backend']} (asked 1.1): {'ok' if figure <= 1.1 else 'short'}")
sys.exit(0 if figure <= 1.1 else 1)
PY
fi
if [ "$name" = long-context ]; then
    out=$($bin/bench_attend 8192)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, os, sys
r = json.loads(sys.argv[1])
asked = min(0.75 * os.cpu_count(), 6) # a memory that is shared ends it sooner or later
figure = r["one_thread_s"] / r["all_threads_s"]
print(f"long-context {figure:.2f} times one thread: decode attention of one kv head over {r['context']} positions with {r['backend']}, "
      f"{r['kv_bytes'] / r['all_threads_s'] / 1e9:.1f} GB/s (asked {asked:g}): {'ok' if figure >= asked else 'short'}")
sys.exit(0 if figure >= asked else 1)
PY
fi
size=${LORAD_BENCH_SIZE:-1.1B}
[ "$name" != moe ] || size=moe
model=build/bench/$size
[ -e "$model/config.json" ] || python3 tests/tools/make_random_model.py "$size" "$model" >&2
if [ "$name" = moe ]; then
    # Eight streams on a Qwen3-MoE, bare and with adapters on attention and every expert, in turns.
    out=$(for i in 1 2 3 4 5 6 7; do $bin/bench_engine "$model" base-8 && $bin/bench_engine "$model" lora-8; done)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, os, statistics, sys
runs = [json.loads(line)["decode_s"] for line in sys.argv[1].splitlines()]
ratios = [base / lora for base, lora in zip(runs[::2], runs[1::2])]
figure = statistics.median(ratios)
print(f"moe {figure:.3f} of base, median of {len(ratios)} ({min(ratios):.2f} to {max(ratios):.2f}), "
      f"{8 / statistics.median(runs[::2]):.0f} tokens/s bare, load {os.getloadavg()[0]:.0f} (asked 0.8): "
      f"{'ok' if figure >= 0.8 else 'short'}")
sys.exit(0 if figure >= 0.8 else 1)
PY
fi
if [ "$name" = resident ]; then
    # A model of which half fits into memory: the rest comes from the disk in each step.
    out=$($bin/bench_resident "$model" "$model/packed-resident" 0.5)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, sys
r = json.loads(sys.argv[1])
figure = r["step_bytes"] / r["disk_bytes_per_s"] / r["step_s"]
over = r["resident_bytes"] / r["budget_bytes"]
ok = figure >= 0.8 and over <= 1
print(f"resident {figure:.3f} of the disk's rate: {1 / r['step_s']:.2f} tokens/s, {r['step_bytes'] / 1e9:.2f} GB for each "
      f"({r['step_bytes_of_system'] / 1e9:.2f} by the system's count) at {r['disk_bytes_per_s'] / 1e9:.2f} GB/s; {over:.2f} of the budget in memory "
      f"(asked 0.8, 1): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
fi
if [ "$name" = decode-1 ]; then
    # Bandwidth of a shared machine can double within a minute: the two are measured in turns.
    out=$(for i in 1 2 3 4 5; do $bin/bench_machine && $bin/bench_engine "$model" base-1; done)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, statistics, sys
runs = [json.loads(line) for line in sys.argv[1].splitlines()]
# tokens/s of one stream over what the read bandwidth allows for the weights' bytes
figure = statistics.median(e["weight_bytes"] / m["read_gb_per_s"] / 1e9 / e["decode_s"]
                           for m, e in zip(runs[::2], runs[1::2]))
read = statistics.median(e["weight_bytes"] / 1e9 / e["decode_s"] for e in runs[1::2])
print(f"decode-1 {figure:.3f} of bandwidth, {read:.1f} GB/s of weights with {runs[0]['isa']}, median of 5 "
      f"(asked 0.75): {'ok' if figure >= 0.75 else 'short'}")
sys.exit(0 if figure >= 0.75 else 1)
PY
fi
if [ "$name" = prompt-512 ]; then
    # The processor's pace moves, too: a prompt is held against the better of the
    # peaks before and after it.
    out=$(for i in 1 2 3 4 5; do $bin/bench_machine && $bin/bench_engine "$model" prompt; done; $bin/bench_machine)
    echo "$out"
    [ -z "$json" ] || echo "$out" >"$json"
    exec python3 - "$out" <<'PY'
import json, statistics, sys
runs = [json.loads(line) for line in sys.argv[1].splitlines()]
isa = runs[0]["isa"]
peaks = [m["peak_gflops"] for m in runs[::2]]
done = [e["linear_flop"] / e["prompt_s"] / 1e9 for e in runs[1::2]]
# multiply-adds of the linear layers over the measured peak of the instruction set
figure = statistics.median(d / max(p) for d, p in zip(done, zip(peaks, peaks[1:])))
asked = {"amx": 0.40, "portable": 0.30}.get(isa, 0.60)
print(f"prompt-512 {figure:.3f} of peak, {statistics.median(done):.0f} GFLOP/s of {statistics.median(peaks):.0f} with {isa}, "
      f"median of 5 (asked {asked}): {'ok' if figure >= asked else 'short'}")
sys.exit(0 if figure >= asked else 1)
PY
fi
machine=$($bin/bench_machine)
engine=$($bin/bench_engine "$model")
echo "$machine"
echo "$engine"
[ -z "$json" ] || printf '{"machine":%s,"engine":%s}\n' "$machine" "$engine" >"$json"
exec python3 - "$name" "$machine" "$engine" <<'PY'
import json, sys
name, m, e = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
figure, unit, asked = {
    # eight streams with eight adapters over eight streams on the bare base
    "lora-8": (e["eight_s"] / e["eight_lora_s"], "of base", 0.80),
    # eight streams with eight adapters over one stream with one adapter
    "streams-8": (8 / e["eight_lora_s"] * e["one_lora_s"], "times one stream", 3.0),
}[name]
ok = figure >= asked
print(f"{name} {figure:.3f} {unit} (asked {asked}): {'ok' if ok else 'short'}")
sys.exit(0 if ok else 1)
PY
