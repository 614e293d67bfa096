#!/bin/sh
# stall.sh -- eight streams on the demo model through HTTPS, alone, and beside two prompts of 1,000
# tokens a second (2,000 tokens; the model's context is 1,024): seven turns of both, each as long as
# 64 streams of 900 tokens take, first the one, then the other first.  The prompts begin a second
# before their streams and go on until those have ended.  Called by run.sh; prints bench_load's
# lines of JSON for the streams, of each turn alone, then beside, and then the prompts'.
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
while [ $i -lt 600 ]; do
    echo "$((i * 500)) -1 1000 1"
    i=$((i + 1))
done >"$dir/prompts"
alone() {
    serve_load --trace "$dir/streams" --concurrency 8 --vocab 1700 --seed "$1" >"$dir/alone"
}
beside() {
    $bin/bench_load --url "https://localhost:$port" --key-file "$dir/key" --ca "$ca" --trace "$dir/prompts" \
        --concurrency 32 --vocab 1700 --seed "9$1" >"$dir/p" &
    prompts=$!
    sleep 1
    serve_load --trace "$dir/streams" --concurrency 8 --vocab 1700 --seed "5$1" >"$dir/beside"
    kill "$prompts"
    wait "$prompts"
}
for turn in 1 2 3 4 5 6 7; do
    if [ $((turn % 2)) = 1 ]; then
        alone $turn
        beside $turn
    else
        beside $turn
        alone $turn
    fi
    cat "$dir/alone" "$dir/beside" "$dir/p"
done
serve_stop
