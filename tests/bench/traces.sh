#!/bin/sh
# traces.sh distinct|uniform|skewed|identical|slora -- a published workload (workloads.py) over
# HTTPS on the demo model, every adapter in a budget of 2 GiB: Punica's with 1,024 requests cut at
# 1,024 tokens (the model's context), closed loop of 32; S-LoRA's with its arrival times.  Prints
# bench_load's line of JSON.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/served.sh
if [ "$1" = slora ]; then
    python3 tests/bench/workloads.py slora >"$dir/trace"
else
    python3 tests/bench/workloads.py punica --maxlen 960 --popularity "$1" >"$dir/trace"
fi
serve_init conf/demo/base
serve_start --set engine.kv_memory=2GiB --set server.max_streams=300 --set server.max_connections_per_ip=280
tar -C conf/demo/adapters/json --format=ustar -cf "$dir/a.tar" .
serve_upload "$dir/a.tar" 0 "$(awk '$2 > m { m = $2 } END { print m + 1 }' "$dir/trace")"
serve_load --trace "$dir/trace" --concurrency "$([ "$1" = slora ] && echo 256 || echo 32)" --vocab 1700 --adapter-prefix a
serve_stop
