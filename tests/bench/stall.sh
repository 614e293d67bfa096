#!/bin/sh
# stall.sh -- eight streams on the demo model through HTTPS, alone, and beside two prompts of 1,000 tokens a
# second (2,000 tokens; the model's context is 1,024); three times in turn.  Called by run.sh; prints
# bench_load's lines of JSON for the streams, alone and beside in turn.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/served.sh
serve_init conf/demo/base
serve_start --set server.max_connections_per_ip=150
i=0
while [ $i -lt 64 ]; do
    echo "0 -1 16 900"
    i=$((i + 1))
done >"$dir/streams"
i=0
while [ $i -lt 60 ]; do
    echo "$((i * 500)) -1 1000 1"
    i=$((i + 1))
done >"$dir/prompts"
for turn in 1 2 3; do
    serve_load --trace "$dir/streams" --concurrency 8 --vocab 1700 --seed "$turn"
    serve_load --trace "$dir/prompts" --concurrency 32 --vocab 1700 --seed "9$turn" >"$dir/p" 2>&1 &
    beside=$!
    sleep 1
    serve_load --trace "$dir/streams" --concurrency 8 --vocab 1700 --seed "5$turn"
    wait "$beside" || true
    cat "$dir/p" >&2
done
serve_stop
