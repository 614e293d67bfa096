#!/bin/sh
# run.sh -- fuzzes the parsers of bytes from outside, and keeps count.
#
#   sh tests/fuzz/run.sh [--minutes N | --nightly] [--jobs N] [--afl] [NAME...]
#
#   --minutes N  all together (10); the named ones, or all, get equal parts, in slices of a minute
#   --nightly    10 minutes for each, then the corpora are minimised (`.ci/run --all` runs this)
#   --jobs N     so many at a time (1)
#   --afl        with AFL++ instead of libFuzzer (one slice each; no count of what came before)
#   NAME         of a harness, fuzz_NAME.c; `differ`: against Python's re, json and Jinja
#
# Needs clang (or, with --afl, afl-clang-fast); builds into build/fuzz (build/afl), with ASan
# and UBSan.  That folder has seeds/, corpus/NAME/ (inputs that reach new code; the next run
# continues with them), log/, found/NAME/ (inputs that are findings) and total/ (executions so
# far, of all runs).  The last line is the sum.  A finding is mended together with a regression
# input, tests/fuzz/found/NAME/<what>, which the suite replays.
set -eu
cd "$(dirname "$0")/../.."

minutes=10
jobs=1
nightly=
fuzzer=libfuzzer
names=
while [ $# -gt 0 ]; do
    case $1 in
    --minutes) minutes=${2:?--minutes needs a number}; shift 2 ;;
    --nightly) nightly=1; shift ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
    --afl) fuzzer=afl; shift ;;
    --slice) shift; one_slice=1; break ;; # --slice NAME SECONDS: from below
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) echo "tests/fuzz/run.sh: unknown option $1" >&2; exit 2 ;;
    *) names="$names $1"; shift ;;
    esac
done
root=$PWD
build=$root/build/fuzz
[ "$fuzzer" = libfuzzer ] || build=$root/build/afl

# Bytes of the longest input: what the format needs to say something, and no more.
longest() {
    case $1 in
    tar | gguf | safetensors | base | experts) echo 16384 ;;
    pattern | regex) echo 128 ;;
    cfg) echo 512 ;;
    split) echo 512 ;;
    sse | calls | chunks | head | config) echo 1024 ;;
    *) echo 4096 ;;
    esac
}
dictionary() {
    case $1 in
    pattern | regex | split | cfg) echo regex ;;
    jinja) echo jinja ;;
    json | body | stats | peft | schema | tokenizer | words | manifest | calls | safetensors | quant | family) echo json ;;
    esac
}

# slice NAME SECONDS: a run of one harness; its executions go into total/NAME.
slice() {
    log=$build/log/$1
    mkdir -p "$build/corpus/$1" "$build/found/$1" "$build/seeds/$1"
    if [ "$1" = differ ]; then
        python3 tests/fuzz/differ.py --ours "$build/fuzz_differ" --seconds "$2" --seed "$(date +%s%N)" \
            --found "$build/found/differ" >"$log" 2>&1 || true
        done_now=$(sed -n 's/^differ \([0-9]*\) comparisons.*/\1/p' "$log")
    else
        dict=$(dictionary "$1")
        known=$root/tests/fuzz/found/$1
        [ -d "$known" ] || known=
        # The names that sanitizers need are found again when a finding is replayed:
        # stacks of allocations cost.
        # what a process that died leaves goes with it
        memory=$(mktemp -d /dev/shm/lorad-fuzz-XXXXXX)
        (cd "$build/log" && TMPDIR=$memory ASAN_OPTIONS=malloc_context_size=2:quarantine_size_mb=16:detect_stack_use_after_return=0 \
            "$build/fuzz.$1" -max_total_time="$2" -timeout=5 -rss_limit_mb=2048 -max_len="$(longest "$1")" \
            -print_final_stats=1 -artifact_prefix="$build/found/$1/" ${dict:+-dict="$root/tests/fuzz/$dict.dict"} \
            "$build/corpus/$1" "$build/seeds/$1" $known >"$log" 2>&1) || true
        rm -rf "$memory"
        done_now=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
    fi
    if [ -z "$done_now" ]; then
        echo "tests/fuzz/run.sh: $1 did not run:" >&2
        tail -n 3 "$log" >&2
        exit 1
    fi
    before=$(cat "$build/total/$1" 2>/dev/null || echo 0)
    echo $((before + $done_now)) >"$build/total/$1"
    echo "$1: $done_now executions in $2 s, $(open_findings "$1") open findings"
}
# minimise NAME: keeps of its corpus the smallest inputs that reach all that the corpus reaches.
minimise() {
    old=$build/corpus/$1 new=$build/corpus/$1.new
    [ -x "$build/fuzz.$1" ] && [ -d "$old" ] || return 0
    rm -rf "$new"
    mkdir "$new"
    memory=$(mktemp -d /dev/shm/lorad-fuzz-XXXXXX)
    was=$(ls "$old" | wc -l)
    if (cd "$build/log" && TMPDIR=$memory "$build/fuzz.$1" -merge=1 -timeout=5 -rss_limit_mb=2048 \
        -max_len="$(longest "$1")" "$new" "$old" >"$build/log/$1.merge" 2>&1); then
        rm -rf "$old"
        mv "$new" "$old"
        echo "$1: corpus of $was inputs minimised to $(ls "$old" | wc -l)"
    else
        rm -rf "$new"
        echo "tests/fuzz/run.sh: the corpus of $1 stays as it is: see $build/log/$1.merge" >&2
    fi
    rm -rf "$memory"
}
# What a fuzzer calls slow is no finding below the time limit.
open_findings() {
    find "$build/found/$1" -type f ! -name 'slow-unit-*' 2>/dev/null | wc -l
}
if [ -n "${one_slice:-}" ]; then
    slice "$1" "$2"
    exit 0
fi

newest() {
    for c in "$1" "$1-19" "$1-18" "$1-17" "$1-16" "$1-15" "$1-14"; do
        command -v "$c" >/dev/null 2>&1 && echo "$c" && return 0
    done
    echo "tests/fuzz/run.sh: $1 is not here; on Debian: apt-get install $2" >&2
    return 1
}
if [ ! -e "$build/build.ninja" ]; then
    if [ "$fuzzer" = afl ]; then
        CC=$(newest afl-clang-fast afl++)
        CXX=afl-clang-fast++
    else
        CC=$(newest clang "clang (or clang-14)")
        CXX=$(echo "$CC" | sed 's/clang/clang++/')
    fi
    export CC CXX
    cmake --preset fuzz -B "$build" >"$build.log" 2>&1 || { tail -n 20 "$build.log" >&2; exit 1; }
fi
# what holds no parser is left as it is: see CMakeLists.txt
export AFL_LLVM_DENYLIST="$build/kernels"
echo 'src: *engine/cpu/*' >"$AFL_LLVM_DENYLIST"
cmake --build "$build" --target fuzzers >"$build.log" 2>&1 || { grep -E 'error|FAILED' "$build.log" >&2; exit 1; }
mkdir -p "$build/log" "$build/total" "$build/corpus" "$build/found"
python3 tests/fuzz/make_seeds.py "$root" "$build/seeds" >/dev/null
[ -n "$names" ] || names="$(ls tests/fuzz/fuzz_*.c tests/fuzz/*/fuzz_*.c | sed 's/.*fuzz_\(.*\)\.c/\1/') differ"
[ -z "$nightly" ] || minutes=$((10 * $(echo "$names" | wc -w) / jobs))

if [ "$fuzzer" = afl ]; then
    for n in $names; do
        mkdir -p "$build/afl/$n"
        count=$(echo "$names" | wc -w)
        AFL_NO_UI=1 AFL_SKIP_CPUFREQ=1 AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 afl-fuzz -V $((minutes * 60 / count)) \
            -m none -t 5000 -i "$build/seeds/$n" -o "$build/afl/$n" -- "$build/fuzz.$n" >"$build/log/$n" 2>&1 || true
        sed -n "s/^execs_done *: *\([0-9]*\)/$n: \1 executions/p" "$build/afl/$n/default/fuzzer_stats"
        find "$build/afl/$n/default/crashes" "$build/afl/$n/default/hangs" -name 'id:*' 2>/dev/null
    done
    exit 0
fi

# Slices of a minute at most, round and round, so that all come on however early this is stopped.
count=$(echo "$names" | wc -w)
each=$((minutes * 60 * jobs / count))
[ "$each" -gt 0 ] || each=1
slice_s=60
[ "$each" -ge $slice_s ] || slice_s=$each
passed=0
while [ $passed -lt $each ]; do
    echo "$names" | tr -s ' ' '\n' | sed '/^$/d' | xargs -P "$jobs" -I '{}' sh "$0" --slice '{}' "$slice_s"
    passed=$((passed + slice_s))
done

if [ -n "$nightly" ]; then
    for n in $names; do minimise "$n"; done
fi

sum=0
open=0
for f in "$build"/total/*; do
    sum=$((sum + $(cat "$f")))
    open=$((open + $(open_findings "$(basename "$f")")))
done
verdict=ok
[ "$sum" -ge 1000000000 ] && [ "$open" -eq 0 ] || verdict=short
echo "fuzz $sum executions, $open open findings (asked 1000000000, 0): $verdict"
[ "$open" -eq 0 ]
