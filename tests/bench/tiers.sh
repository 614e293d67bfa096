#!/bin/sh
# tiers.sh [ADAPTERS [HIT [REQUESTS [PAIRS]]]] -- ADAPTERS registered (rank 8), a power-law trace over HIT of them, with
# a tenth of those on the device and three tenths in host memory; then the same trace with everything
# resident.  Called by run.sh; prints the lines of JSON of bench_load in turn.  Needs numpy for the trace.
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/served.sh
total=${1:-2000} hit=${2:-2000} requests=${3:-3000} pairs=${4:-3}
python3 tests/bench/workloads.py powerlaw --requests "$requests" --adapters "$hit" --alpha 1.0 --lo 8 --hi 48 >"$dir/trace"
serve_init conf/demo/base
serve_start --set engine.kv_memory=2GiB
tar -C conf/demo/adapters/json --format=ustar -cf "$dir/a.tar" .
serve_upload "$dir/a.tar" 0 "$total"
serve_stop
load() { serve_load --trace "$dir/trace" --concurrency 8 --vocab 1700 --adapter-prefix a; }
one=$(wc -c <conf/demo/adapters/json/adapter_model.safetensors) # F32 on disk, BF16 on the device: half, and a part of a chunk
packed=$((one / 2 + 65536))
for _ in $(seq "$pairs"); do
    serve_start --set engine.kv_memory=2GiB --set "adapters.device_memory=$((packed * hit / 10))" \
        --set "adapters.host_memory=$((one * hit * 3 / 10))"
    load >/dev/null # fills the tiers: first reads are not what is compared
    load
    serve_stop
    serve_start --set engine.kv_memory=4GiB --set adapters.host_memory=0
    load >/dev/null # brings all in
    load
    serve_stop
done
