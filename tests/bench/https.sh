#!/bin/sh
# https.sh MODEL_DIR -- a model with random adapters through HTTPS, as clients see it: one
# stream, one with one adapter, eight, eight with eight adapters, 128 prompt and 64 output
# tokens each; every row three times in turn.  Called by run.sh; prints the lines of JSON of
# bench_load, four to a turn.
set -eu
model=$1
cd "$(dirname "$0")/../.."
. tests/bench/served.sh
serve_init "$model"
serve_start
for i in 0 1 2 3 4 5 6 7; do
    tar -C "$model/adapters/r00$i" --format=ustar -cf "$dir/a.tar" .
    serve_upload "$dir/a.tar" "$i" $((i + 1))
done
trace() { # trace REQUESTS ADAPTERS
    i=0
    while [ $i -lt "$1" ]; do
        echo "0 $(($2 ? i % $2 : -1)) 128 64"
        i=$((i + 1))
    done
}
trace 3 0 >"$dir/t1"
trace 3 1 >"$dir/t1a"
trace 24 0 >"$dir/t8"
trace 24 8 >"$dir/t8a"
load() { serve_load --trace "$dir/$1" --concurrency "$2" --vocab 30000 --adapter-prefix a --seed "$seed"; }
seed=99
load t8a 8 >/dev/null # brings the adapters in
for turn in 1 2 3; do
    seed=$turn
    load t1 1
    seed=1$turn
    load t1a 1
    seed=2$turn
    load t8 8
    seed=3$turn
    load t8a 8
done
serve_stop
