#!/bin/sh
# slo.sh [SECONDS] -- three classes 20/50/30 from 100 tenants (one sends half of all), each with an
# adapter of its own, on the demo model over HTTPS: first as fast as it goes (that is the capacity),
# then for SECONDS (120) at 120 % of it, arrivals as they come.  A machine with other work is not as
# fast in the second part as in the first: the server has something to do until the last answer, so
# the load was wall time over SECONDS, and where that is not 110 to 130 % both parts are done again,
# twice at most.  Called by run.sh; prints bench_load's lines of JSON for the last two parts, then
# what /metrics says of all (the engine's own histograms).
set -eu
cd "$(dirname "$0")/../.."
. tests/bench/served.sh
seconds=${1:-120}
tenants=100
serve_init conf/demo/base
serve_start --set server.max_streams=2000 --set server.max_connections=1700 --set server.max_connections_per_ip=1650 \
    --set engine.max_queued=4096
tar -C conf/demo/adapters/formal --format=ustar -cf "$dir/a.tar" .
: >"$dir/keys"
tenant=0
while [ $tenant -lt $tenants ]; do
    serve_post "$admin" "https://localhost:$((port + 1))/admin/v1/tenants" "{\"name\":\"t$tenant\"}" >/dev/null
    serve_post "$admin" "https://localhost:$((port + 1))/admin/v1/keys" \
        "{\"tenant\":\"t$tenant\",\"name\":\"k\",\"scopes\":[\"inference\",\"adapters.read\",\"adapters.write\"]}" |
        grep -o 'lk_[A-Za-z0-9_]*' | head -n 1 >"$dir/key"
    serve_upload "$dir/a.tar" 0 1
    cat "$dir/key" >>"$dir/keys"
    tenant=$((tenant + 1))
done
cp "$dir/keys" "$dir/key"
for seed in 2 3 4; do
    python3 tests/bench/workloads.py slo --tenants $tenants --seed 1 >"$dir/trace"
    serve_load --trace "$dir/trace" --concurrency 64 --vocab 1700 --adapter-prefix a >"$dir/closed"
    rate=$(python3 -c 'import json, sys; r = json.load(sys.stdin); print(1.2 * r["requests"] / r["wall_s"])' <"$dir/closed")
    python3 tests/bench/workloads.py slo --tenants $tenants --rate "$rate" --duration "$seconds" --seed $seed >"$dir/trace"
    serve_load --trace "$dir/trace" --concurrency 1600 --vocab 1700 --adapter-prefix a >"$dir/run" || true
    load=$(python3 -c 'import json, sys; print(round(100 * json.load(sys.stdin)["wall_s"] / float(sys.argv[1])))' "$seconds" <"$dir/run")
    echo "slo.sh: $rate requests/s were $load % of what was served" >&2
    [ "$load" -lt 110 ] || [ "$load" -gt 130 ] || break
done
cat "$dir/closed"
cat "$dir/run"
curl -sf --cacert "$ca" "https://localhost:$((port + 2))/metrics" |
    grep -E '^lorad_time_(to_first|per_output)_token_seconds_bucket|^lorad_slo_'
serve_stop
