#!/bin/sh
# adapters_1000.sh -- 1,000 registered adapters, requests over 200 of them by a power law, in a memory
# budget that holds 50; then the same trace with everything resident; three times.  Called by run.sh;
# prints the lines of JSON of bench_load in turn.  Needs numpy for the trace.
set -eu
cd "$(dirname "$0")/../.."
bin=build/release
dir=$(mktemp -d)
pid=
cleanup() {
    [ -z "$pid" ] || { kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; }
    rm -rf "$dir"
}
trap cleanup EXIT
port=${LORAD_BENCH_PORT:-19443}
ca=$dir/data/tls/cert.pem

start() { # start HOST_MEMORY
    $bin/lorad serve -c "$dir/data/lorad.conf" --set "adapters.host_memory=$1" --set log.level=warn \
        --set "server.listen=127.0.0.1:$port" --set "admin.listen=127.0.0.1:$((port + 1))" \
        --set "metrics.listen=127.0.0.1:$((port + 2))" >>"$dir/log" 2>&1 &
    pid=$!
    for _ in $(seq 300); do
        curl -sf --cacert "$ca" "https://localhost:$((port + 2))/readyz" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    cat "$dir/log" >&2
    exit 2
}
stop() { kill "$pid"; wait "$pid" || true; pid=; }
post() { curl -sf --cacert "$ca" -H "Authorization: Bearer $1" -H 'Content-Type: application/json' -d "$3" "$2"; }

python3 tests/bench/workloads.py powerlaw --requests 1500 --adapters 200 --alpha 1.0 --lo 8 --hi 48 >"$dir/trace"
$bin/lorad init --dir "$dir/data" --model conf/demo/base >"$dir/init"
admin=$(grep -o 'lk_[A-Za-z0-9_]*' "$dir/init" | head -n 1)
start 2GiB
post "$admin" "https://localhost:$((port + 1))/admin/v1/tenants" '{"name":"t"}' >/dev/null
post "$admin" "https://localhost:$((port + 1))/admin/v1/keys" \
    '{"tenant":"t","name":"k","scopes":["inference","adapters.read","adapters.write"]}' |
    grep -o 'lk_[A-Za-z0-9_]*' | head -n 1 >"$dir/key"
tar -C conf/demo/adapters/json --format=ustar -cf "$dir/a.tar" .
i=0
{
    printf 'cacert = "%s"\nheader = "Authorization: Bearer %s"\nheader = "Content-Type: application/x-tar"\n' \
        "$ca" "$(cat "$dir/key")"
    while [ $i -lt 1000 ]; do
        [ $i = 0 ] || printf 'next\ncacert = "%s"\nheader = "Authorization: Bearer %s"\nheader = "Content-Type: application/x-tar"\n' \
            "$ca" "$(cat "$dir/key")"
        printf 'url = "https://localhost:%s/v1/adapters/a%s/versions"\ndata-binary = "@%s"\noutput = "/dev/null"\nfail\nsilent\n' \
            "$port" "$i" "$dir/a.tar"
        i=$((i + 1))
    done
} >"$dir/curl"
curl -K "$dir/curl" >&2
stop
load() {
    $bin/bench_load --url "https://localhost:$port" --key-file "$dir/key" --ca "$ca" --trace "$dir/trace" \
        --concurrency 8 --vocab 1700 --adapter-prefix a
}
one=$(wc -c <conf/demo/adapters/json/adapter_model.safetensors) # F32 on disk, BF16 in memory: half
for _ in 1 2 3; do
    start $((one / 2 * 50 + one / 4))
    load
    stop
    start 2GiB
    load >/dev/null # brings all 200 in
    load
    stop
done
