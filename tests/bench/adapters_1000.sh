#!/bin/sh
# adapters_1000.sh -- 1,000 registered adapters, requests over 200 of them by a power law, in a
# memory budget that holds 50; then the same trace with everything resident; three times.  Called by
# run.sh; prints the lines of JSON of bench_load in turn.  Needs numpy for the trace.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/served.sh
python3 tests/bench/workloads.py powerlaw --requests 1500 --adapters 200 --alpha 1.0 --lo 8 --hi 48 >"$dir/trace"
serve_init conf/demo/base
serve_start --set engine.kv_memory=2GiB
tar -C conf/demo/adapters/json --format=ustar -cf "$dir/a.tar" .
serve_upload "$dir/a.tar" 0 1000
serve_stop
load() { serve_load --trace "$dir/trace" --concurrency 8 --vocab 1700 --adapter-prefix a; }
one=$(wc -c <conf/demo/adapters/json/adapter_model.safetensors) # F32 on disk, BF16 in memory: half
for _ in 1 2 3; do
    serve_start --set "adapters.device_memory=$(((one / 2 + 65536) * 50))"
    load
    serve_stop
    serve_start --set engine.kv_memory=2GiB
    load >/dev/null # brings all 200 in
    load
    serve_stop
done
