#!/bin/sh
# test_run.sh BUILD -- tests/gpu/run.sh without a device: what it refuses, and its whole course over
# programs that run on the emulated one, behind an nvidia-smi of our own.
set -eu
build=$1
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/built"

fail() { echo "FAILED: $*"; cat "$dir/said" 2>/dev/null; exit 1; }
smi() { printf '#!/bin/sh\n%s\n' "$1" >"$dir/bin/nvidia-smi"; chmod +x "$dir/bin/nvidia-smi"; }
program() { printf '#!/bin/sh\n%s\n' "$2" >"$dir/built/$1"; chmod +x "$dir/built/$1"; }
# expect STATUS TEXT ARGUMENT...
expect() {
    want=$1 text=$2 rc=0
    shift 2
    PATH=$dir/bin:$PATH LD_LIBRARY_PATH='' LORAD_GPU_SHAPE=tiny sh tests/gpu/run.sh "$@" >"$dir/said" 2>&1 || rc=$?
    [ $rc = "$want" ] || fail "run.sh $* ended with $rc, not $want"
    grep -q -- "$text" "$dir/said" || fail "run.sh $* does not say '$text'"
}

# Machines that have none, or too old a one.
smi 'echo "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver"; exit 9'
expect 77 'finds no device here (NVIDIA-SMI has failed' kernels
smi 'echo "Tesla T4, 7.5, 15360 MiB, 550.1"'
expect 77 'Tesla T4 has compute capability 7.5; lorad needs 8.0'
smi 'echo "[N/A], [N/A], [N/A], [N/A]"'
expect 77 'names no compute capability'
expect 2 'unknown part speed' speed
expect 2 'unknown option --fast' --fast

# The course: kernels and bench on the emulated device, the sanitizer as some machines have it.
smi 'echo "emulated device, 8.0, 160 MiB, 0.0"'
for t in test_rows test_norms test_experts test_attend test_codes test_gemm test_gemm_lora test_sample test_sgmv; do program gpu.$t 'exit 0'; done
# cuBLAS is where Python has it
program gpu.test_blas_load '[ -n "${LD_LIBRARY_PATH:-}" ] || exit 77'
mkdir -p "$dir/py/nvidia/cu13/lib"
: >"$dir/py/nvidia/cu13/lib/libcublasLt.so.13"
export PYTHONPATH="$dir/py"
ln -s "$(cd "$build" && pwd)/emu.bench_device" "$dir/built/gpu.bench_device"
program gpu.bench_attend 'echo "CASE attention_alone 0.900 of something (asked >= 0.85): ok"'
program gpu.bench_sgmv '[ "$1" = --quick ]'
program gpu.test_conformance 'exit 0'
printf '#!/bin/sh\necho "Device not supported"; exit 1\n' >"$dir/bin/compute-sanitizer"
chmod +x "$dir/bin/compute-sanitizer"
tar -chzf "$dir/built.tar.gz" -C "$dir/built" .
expect 3 'attention_alone' --built "$dir/built.tar.gz" --out "$dir/out" kernels sanitizer sweep choices bench
for line in 'kernels *cublas *ok' 'kernels *test_rows *ok' 'sanitizer *compute-sanitizer *skipped' 'bench *bench_device *\(ok\|short\)' \
    'decode_of_copy' 'decode_distinct' 'prefill_of_matrix' 'many_tokens' 'host_share' 'mixed_of_parts'; do
    grep -q "$line" "$dir/said" || fail "no line '$line'"
done
python3 - "$dir/out/report.json" <<'PY' || fail "report.json"
import json, sys
r = json.load(open(sys.argv[1]))
assert r["machine"]["device"].startswith("emulated device, sm_80"), r["machine"]
assert r["figures"]["decode_of_copy"]["asked"] == ">= 0.8", r["figures"]
assert r["measured"]["copy_tb_s"] > 0 and r["status"] == 3
assert {c["part"] for c in r["checks"]} == {"kernels", "sanitizer", "sweep", "choices", "bench"}
assert all(c["state"] == "ok" for c in r["checks"] if c["part"] in ("sweep", "choices")), r["checks"]
PY

# The table by a device's sweeps: one chain was faster to 32 rows, LoRA inside at 16 and at 64.
mkdir "$dir/sweeps"
python3 - "$dir/sweeps" <<'PY' || fail "choices.py"
import json, pathlib, sys
to = pathlib.Path(sys.argv[1])
def put(name, bare, distinct):
    steps = {f"step_{r}_512_{kind}_ms": t for kind, all_ in (("bare", bare), ("distinct", distinct)) for r, t in zip((16, 32, 64), all_)}
    (to / name).write_text(json.dumps({**steps, "step_32_8192_bare_ms": 1, "load_s": 3}))
put("sweep.json", (5, 6, 8), (6, 8, 9))
put("sweep-without-chain.json", (5.5, 6.5, 7), (7, 8, 9))
put("sweep-without-inside.json", (5, 6, 8), (6.5, 7.5, 9.5))
PY
python3 tests/gpu/choices.py --print "$dir/sweeps" >"$dir/said" || fail "choices.py"
for line in 'one chain up to 32 rows, LoRA inside up to 16' '{90, 32, 16, 1024}'; do
    grep -q "$line" "$dir/said" || fail "choices.py does not say $line"
done

# A call on a lent machine: three files, whole after each part, also where a part never ends.
program gpu.test_conformance 'cp "$OUT_SEEN"/call-2.json "$OUT_SEEN.json" 2>/dev/null; exit 0'
program gpu.test_golden 'exit 0'
program gpu.test_batch_invariance 'cp "$OUT_SEEN/call-2.json" "$OUT_SEEN.json"; exec sleep 1000'
export OUT_SEEN="$dir/call"
expect 2 'a lent machine builds nothing' --call 2 --out "$dir/call"
expect 2 'is 1 or 2, not 3' --call 3
LORAD_GPU_SECONDS=8 expect 1 'invariance *batch *TIMEOUT' --call 2 --built "$dir/built" --out "$dir/call"
[ "$(ls -A "$dir/call")" = "call-2.json
call-2.tar.gz
call-2.txt" ] || fail "a call hands back: $(ls -A "$dir/call")"
grep -q '"golden"' "$dir/call.json" || fail "nothing was handed back before the part that never ends"
tar -tzf "$dir/call/call-2.tar.gz" | grep -q 'conformance-golden.log' || fail "the logs are not handed back"

# What fails, and what never ends, is told, and what comes after it still runs.
program gpu.test_rows 'echo "row 7 is wrong"; exit 1'
program gpu.test_attend 'exec sleep 1000'
LORAD_GPU_SECONDS=4 expect 1 'row 7 is wrong' --built "$dir/built" --out "$dir/out" kernels
for line in 'kernels *test_rows *FAILED' 'kernels *test_attend *TIMEOUT' 'kernels *test_sgmv *ok'; do
    grep -q "$line" "$dir/said" || fail "no line '$line'"
done
echo ok
