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
expect 3 'attention_alone' --built "$dir/built.tar.gz" --out "$dir/out" kernels sanitizer bench
for line in 'kernels *cublas *ok' 'kernels *test_rows *ok' 'sanitizer *compute-sanitizer *skipped' 'bench *bench_device *\(ok\|short\)' \
    'decode_of_copy' 'decode_distinct_extra' 'prefill_of_matrix' 'many_of_bare' 'host_share'; do
    grep -q "$line" "$dir/said" || fail "no line '$line'"
done
python3 - "$dir/out/report.json" <<'PY' || fail "report.json"
import json, sys
r = json.load(open(sys.argv[1]))
assert r["machine"]["device"].startswith("emulated device, sm_80"), r["machine"]
assert r["figures"]["decode_of_copy"]["asked"] == ">= 0.8", r["figures"]
assert r["measured"]["copy_tb_s"] > 0 and r["status"] == 3
assert {c["part"] for c in r["checks"]} == {"kernels", "sanitizer", "bench"}
PY

# What fails, and what never ends, is told, and what comes after it still runs.
program gpu.test_rows 'echo "row 7 is wrong"; exit 1'
program gpu.test_attend 'exec sleep 1000'
LORAD_GPU_SECONDS=4 expect 1 'row 7 is wrong' --built "$dir/built" --out "$dir/out" kernels
for line in 'kernels *test_rows *FAILED' 'kernels *test_attend *TIMEOUT' 'kernels *test_sgmv *ok'; do
    grep -q "$line" "$dir/said" || fail "no line '$line'"
done
echo ok
