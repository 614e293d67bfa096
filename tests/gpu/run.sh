#!/bin/sh
# run.sh -- everything that a device alone can show, on a machine with an NVIDIA
# GPU: one table, one JSON.
#
#   sh tests/gpu/run.sh [--built DIR] [--out DIR] [PART...]      all parts, or those named
#   sh tests/gpu/run.sh --call 1|2 --built PACK --out DIR        half of the parts in 7 minutes, for
#                                                a machine that is lent by the call: three files
#   sh tests/gpu/run.sh sparse                   checks out what a call needs alone (20 MB)
#   sh tests/gpu/run.sh pack DIR [BUILD]         DIR and DIR.tar.xz for a machine that
#                                                has no compiler or libraries
#
#   build         120 s  lorad, tests and benches for the compute capability
#                 of device 0, in build/gpu
#   kernels       45 s  the kernels' tests of tests/emu, on the device; cuBLAS's functions
#   conformance   60 s  the engine and PEFT's adapters against the golden log-probabilities
#   invariance    60 s  32 sampled requests together, in chunks, swapped,
#                 pre-empted: the tokens of each alone
#   bench         120 s  Llama-3-8B's shape with random weights:
#                 bench_device, bench_attend, bench_sgmv
#   sweep         60 s  steps of 1 to 256 rows, bare and with adapters; over 128 to 32,768
#                 positions
#   choices       90 s  the same without each kernel that is a choice, and what choices.h would be
#   times         60 s  microseconds of each kernel in bench_device's steps and of the gap before
#                 it, by CUPTI
#   served        60 s  lorad over HTTPS with engine.backend=cuda: answers,
#                 adapters, batches, swapping
#   faults        60 s  real faults under a running lorad: it restarts, nobody is refused
#   sanitizer     75 s  compute-sanitizer: memcheck, racecheck, initcheck,
#                 where it supports the device
#
# The seconds are limits: what is not done then says TIMEOUT, and the rest goes on; 9 minutes
# together. Call 1 has kernels, sweep, choices, times and bench (what decides); call 2 conformance,
# invariance, served, faults and sanitizer (what proves). DIR gets call-N.txt, call-N.json and
# call-N.tar.gz, anew after each part. docs/design/cuda.md says what each figure decides.
#
# Nothing is fetched. It needs: nvidia-smi and the driver, cuBLAS (found in the toolkit, the system
# or Python's nvidia-cublas), python3 for `served` and the report; to build: nvcc, cmake
# 3.25, ninja, pkg-config, a C and C++ compiler and the packages of conf/setup.sh. Where these are
# not to be had, `pack` on a machine of the same system makes what --built takes (either).
#
# Exit status: 0 all of it is well, 1 something failed or took too long, 2 usage, 3 all passed and a
# figure is short of what is asked, 77 there is no device here: nothing was looked at.
set -u
cd "$(dirname "$0")/../.." || exit 2
root=$PWD
parts="build kernels sweep choices times bench conformance invariance served faults sanitizer"
first_call="kernels sweep choices times bench" second_call="conformance invariance served faults sanitizer"
programs="test_attend test_codes test_gemm test_gemm_lora test_rows test_norms test_experts test_sample test_sgmv test_blas_load test_conformance test_golden test_batch_invariance
    bench_device bench_attend bench_sgmv"
bound_build=120 bound_kernels=45 bound_conformance=60 bound_invariance=60 bound_sanitizer=75 bound_served=60 bound_bench=120
bound_times=60 bound_faults=60 bound_sweep=60 bound_choices=90
built= out=build/gpu-report wanted= call= result=

fail() { # fail STATUS SENTENCE...
    code=$1
    shift
    echo "tests/gpu/run.sh: $*" >&2
    exit "$code"
}

# ---- building ------------------------------------------------------------------------------------

# build_into FOLDER ARCH
build_into() {
    missing=
    for tool in nvcc cmake ninja pkg-config cc c++; do
        command -v $tool >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/$tool ] || missing="$missing $tool"
    done
    if command -v pkg-config >/dev/null 2>&1; then
        for lib in openssl libcjson sqlite3 check libcurl libnghttp2 ncursesw; do
            pkg-config --exists $lib || missing="$missing $lib"
        done
    fi
    if [ -n "$missing" ]; then
        echo "to build, this is missing here:$missing. The Debian packages are named in conf/setup.sh; or make a folder" >&2
        echo "with \`sh tests/gpu/run.sh pack DIR\` elsewhere and come back with --built DIR" >&2
        return 1
    fi
    cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLORAD_CUDA=ON "-DLORAD_CUDA_ARCH=$2" \
        '-DCMAKE_BUILD_RPATH=$ORIGIN/lib' -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags &&
        cmake --build "$1" --target lorad gpu_fault gpu_times $(for p in $programs; do echo "gpu.$p"; done)
}

pack() { # pack FOLDER [BUILD]
    [ $# -ge 1 ] && [ $# -le 2 ] || fail 2 "pack takes a folder, and maybe one that was built"
    from=${2:-build/gpu}
    [ $# -eq 2 ] || build_into "$from" "80;90" || exit 1
    mkdir -p "$1/lib" || exit 1
    for p in lorad $(for p in $programs; do echo "gpu.$p"; done); do
        [ -x "$from/$p" ] || fail 1 "$from has no $p: it was built without CUDA"
        strip -o "$1/$p" "$from/$p" || exit 1
        # Libraries that are not the C library's own; the driver's are found where it is.
        ldd "$from/$p" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
            grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|libgcc_s|ld-linux[^/]*)\.so' |
            while read -r lib; do cp -L "$lib" "$1/lib/" || exit 1; done || exit 1
    done
    cp "$from"/libgpu_*.so "$1" || exit 1
    # The programs hold the same kernels, so a dictionary as large as one of them pays.
    tar -cf - -C "$1" . | xz -T1 --lzma2=preset=1,dict=64MiB >"$1.tar.xz" && du -sh "$1" "$1.tar.xz"
    exit
}

# ---- the command line -------------------------------------------------------------------------

case ${1:-} in
pack) shift && pack "$@" ;;
sparse)
    git sparse-checkout set --no-cone /tests/gpu/ /tests/e2e/ /tests/fixtures/ /tests/tools/ /conf/demo/
    exit ;;
--build-into) build_into "$2" "$3" && exit 0 || exit 1 ;;
esac
while [ $# -gt 0 ]; do
    case $1 in
    --built) built=${2:?--built needs a folder}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --call)
        call=${2:?--call needs 1 or 2}
        case $call in 1) wanted=$first_call ;; 2) wanted=$second_call ;; *) fail 2 "--call is 1 or 2, not $call" ;; esac
        shift 2 ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) fail 2 "unknown option $1" ;;
    *)
        case " $parts " in
        *" $1 "*) wanted="$wanted $1" ;;
        *) fail 2 "unknown part $1: there are $parts, and pack" ;;
        esac
        shift ;;
    esac
done
[ -n "$wanted" ] || wanted=$parts
[ -z "$call" ] || [ -n "$built" ] || fail 2 "--call needs --built: a lent machine builds nothing"

# ---- the device -------------------------------------------------------------------------------

if ! command -v nvidia-smi >/dev/null 2>&1; then
    fail 77 "there is no nvidia-smi, so no NVIDIA driver and no device here: nothing was looked at"
fi
if ! device=$(nvidia-smi --query-gpu=name,compute_cap,memory.total,driver_version --format=csv,noheader -i 0 2>&1); then
    fail 77 "nvidia-smi finds no device here ($(echo "$device" | head -n 1)): nothing was looked at"
fi
field() { echo "$device" | head -n 1 | cut -d, -f"$1" | sed 's/^ *//; s/ *$//'; }
arch=$(field 2 | tr -d .)
case $arch in
'' | *[!0-9]*) fail 77 "nvidia-smi names no compute capability ($device): nothing was looked at" ;;
esac
[ "$arch" -ge 80 ] || fail 77 "$(field 1) has compute capability $(field 2); lorad needs 8.0: nothing was looked at"

python3 tests/tools/make_weights.py || exit 2
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
if [ -n "$call" ]; then # many files come to be, and few go back
    result=$out out=$scratch/out
    mkdir "$out" || exit 2
fi
rm -f "$out"/*.status "$out"/*.log "$out"/*.json "$out"/*.txt
{
    echo "device: $(field 1), sm_$arch, $(field 3)"
    echo "driver: $(field 4)"
    echo "host: $(uname -sm), $(nproc) cores"
    echo "toolkit: $( (nvcc --version || /usr/local/cuda/bin/nvcc --version) 2>/dev/null | tail -n 1)"
    echo "commit: $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
    echo "date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
} >"$out/machine.txt"

now() { date +%s%3N; } # milliseconds
began=$(now)
deadline=${LORAD_GPU_SECONDS:-${call:+400}} # of all parts; the variable is for run.sh's own test
deadline=${deadline:-540}

# check PART NAME COMMAND...: within what is left of the part's time and of all; the output goes
# into a log.  States: ok; short (3: passed, and slower than asked); skipped; FAILED; TIMEOUT.
check() {
    part=$1 name=$2 log=$1-$2.log
    shift 2
    start=$(now)
    left=$((part_end - start)) whole=$((began + deadline * 1000 - start))
    [ $left -le $whole ] || left=$whole
    [ $left -ge 1000 ] || left=1000
    timeout -k 5 $((left / 1000)) "$@" >"$out/$log" 2>&1 </dev/null
    case $? in
    0) state=ok ;;
    3) state=short ;;
    77) # a machine with a device has what its parts need, but not always a sanitizer that knows it
        state=FAILED
        case $part in sanitizer | times) state=skipped ;; esac ;;
    124 | 137) state=TIMEOUT ;;
    *) state=FAILED ;;
    esac
    took=$(($(now) - start))
    took=$(printf '%d.%03d' $((took / 1000)) $((took % 1000)))
    printf '%s\t%s\t%s\t%s\n' "$name" "$state" "$took" "$log" >>"$out/$part.status"
    printf '%-12s %-28s %-8s %6.1f s\n' "$part" "$name" "$state" "$took"
    case $state in FAILED | TIMEOUT) tail -n 12 "$out/$log" | sed 's/^/    /' ;; esac
    [ $state != FAILED ] && [ $state != TIMEOUT ]
}
in_tests() { (cd tests && exec "$@"); }

# ---- parts ------------------------------------------------------------------------------------

part_build() {
    [ -z "$built" ] || return 0 # it was
    check build all sh "$root/tests/gpu/run.sh" --build-into build/gpu "$arch"
}

# folder_of PATTERN: where toolkits and Python put a library.
folder_of() {
    for d in /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib /usr/local/cuda*/extras/CUPTI/lib64 \
        $(python3 -c 'import sys, glob
for p in sys.path: print(*glob.glob(p + "/nvidia/*/lib"))' 2>/dev/null); do
        # shellcheck disable=SC2086 # it is a pattern
        [ -z "$(ls "$d"/$1 2>/dev/null)" ] || { echo "$d" && return; }
    done
}

# cuBLAS: as the system has it, else where it is.
find_cublas() {
    "$built/gpu.test_blas_load" --real >/dev/null 2>&1 && return
    d=$(folder_of 'libcublasLt.so.1[2-9]*')
    [ -z "$d" ] || export LD_LIBRARY_PATH="$d${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

# A context does not survive fork(), and arrays that the host reads need launches that have ended.
kernel() { check "$1" "$2" env -C tests CK_FORK=no CUDA_LAUNCH_BLOCKING=1 "$built/gpu.$2"; }

part_kernels() {
    check kernels cublas "$built/gpu.test_blas_load" --real
    for t in test_rows test_norms test_experts test_gemm test_gemm_lora test_codes test_sgmv test_attend test_sample; do kernel kernels $t; done
}

part_conformance() {
    check conformance golden env -C tests "$built/gpu.test_conformance"
    check conformance peft env -C tests "$built/gpu.test_golden"
}

part_invariance() {
    check invariance batch env -C tests "$built/gpu.test_batch_invariance"
}

# First whether it supports this device at all.
part_sanitizer() {
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [ -z "$tool" ]; then
        check sanitizer compute-sanitizer sh -c 'echo "there is no compute-sanitizer here"; exit 77'
        return
    fi
    "$tool" --tool memcheck "$built/gpu.test_conformance" --open >"$out/sanitizer-probe.log" 2>&1
    if grep -Eq 'Device not supported|not supported on this' "$out/sanitizer-probe.log"; then
        check sanitizer compute-sanitizer sh -c 'echo "compute-sanitizer does not support this device"; exit 77'
        return
    fi
    for t in memcheck racecheck initcheck; do
        check sanitizer $t-engine env -C tests CK_FORK=no "$tool" --tool $t --error-exitcode 9 \
            "$built/gpu.test_conformance" --small llama-bf16
    done
    for t in memcheck racecheck; do
        for p in test_rows test_norms test_experts test_gemm test_gemm_lora test_codes test_sgmv test_attend test_sample; do
            check sanitizer $t-$p env -C tests CK_FORK=no CUDA_LAUNCH_BLOCKING=1 "$tool" --tool $t \
                --error-exitcode 9 "$built/gpu.$p"
        done
    done
}

part_served() {
    export LORAD_BUILD="$built" LORAD_BACKEND="${LORAD_BACKEND:-cuda}"
    check served answers python3 tests/gpu/served.py
    for t in invariance swap; do check served $t env PYTHONPATH=tests/e2e python3 tests/e2e/openai/test_$t.py; done
}

part_faults() {
    LORAD_BUILD="$built" check faults restarts python3 tests/gpu/faults.py
}

part_times() {
    if [ ! -f "$built/libgpu_times.so" ]; then
        check times cupti sh -c 'echo "built without CUPTI"; exit 77'
        return
    fi
    cupti=$(folder_of libcupti.so.13)
    for f in decode prefill; do
        check times $f env LD_LIBRARY_PATH="$cupti:${LD_LIBRARY_PATH:-}" CUDA_INJECTION64_PATH="$built/libgpu_times.so" GPU_TIMES="$out/times-$f.txt" \
            "$built/gpu.bench_device" --shape "${LORAD_GPU_SHAPE:-llama-3-8b}" --scratch "$out" $f
    done
}

# sweep NAME [KERNEL]
sweep() {
    check "$1" "sweep${2:+-without-$2}" "$built/gpu.bench_device" --shape "${LORAD_GPU_SHAPE:-llama-3-8b}" --scratch "$scratch" \
        --json "$out/sweep${2:+-without-$2}.json" --without "${2:-none}" sweep
}

part_sweep() {
    sweep sweep
}

part_choices() {
    for k in chain inside; do sweep choices $k; done
    check choices table python3 tests/gpu/choices.py --print "$out"
}

part_bench() {
    check bench bench_device "$built/gpu.bench_device" --shape "${LORAD_GPU_SHAPE:-llama-3-8b}" --scratch "$out" \
        --json "$out/bench_device.json" decode host prefill attention many mixed
    check bench bench_attend "$built/gpu.bench_attend"
    check bench bench_sgmv "$built/gpu.bench_sgmv" --quick
}

if [ -f "$built" ]; then
    mkdir "$scratch/built" && tar -xf "$built" -C "$scratch/built" || exit 2
    built=$scratch/built
fi
[ -z "$built" ] || built=$(cd "$built" && pwd) || exit 2
for p in $wanted; do
    [ "$p" != build ] || continue
    case " $wanted " in *" build "*) ;; *) [ -n "$built" ] || wanted="build $wanted" ;; esac
    break
done
# Once there are programs: their libraries, and cuBLAS.
settle() {
    [ -z "${settled:-}" ] || return 0
    [ -n "$built" ] || built=$root/build/gpu
    [ -x "$built/gpu.test_blas_load" ] || return 1 # it could not be built
    find_cublas
    settled=yes
}

# What there is so far, whole: written beside, then renamed.
hand_back() {
    python3 tests/gpu/report.py "$out"
    tar -czf "$scratch/tar.gz" -C "$out" . && cp "$out/report.txt" "$scratch/txt" && cp "$out/report.json" "$scratch/json" || return
    for f in txt json tar.gz; do cp "$scratch/$f" "$result/.call" && mv "$result/.call" "$result/call-$call.$f"; done
}

for p in $wanted; do
    eval "bound=\$bound_$p"
    [ "$p" = build ] || settle || break
    part_end=$(($(now) + bound * 1000))
    "part_$p"
    [ -z "$call" ] || hand_back >/dev/null
done
echo
python3 tests/gpu/report.py "$out"
status=$?
if [ -n "$call" ]; then
    hand_back >/dev/null
else # all of it as one file, for machines that give few back
    tar -czf "$out/logs.tar.gz" -C "$out" $(cd "$out" && ls | grep -Ev 'built|logs.tar.gz')
fi
exit $status
