# served.sh -- a server for a benchmark, sourced by the scripts beside it after `cd` to the root.
#
# serve_init MODEL_DIR        makes a data directory, a tenant "t" and its key ($dir/key)
# serve_start [--set K=V]...  starts lorad and waits until it is ready; serve_stop ends it
# serve_upload TAR FROM TO    registers one tar as the adapters a<FROM> ... a<TO - 1>
# serve_load ARGS...          bench_load against it
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

serve_start() {
    $bin/lorad serve -c "$dir/data/lorad.conf" --set log.level=warn \
        --set "server.listen=127.0.0.1:$port" --set "admin.listen=127.0.0.1:$((port + 1))" \
        --set "metrics.listen=127.0.0.1:$((port + 2))" "$@" >>"$dir/log" 2>&1 &
    pid=$!
    for _ in $(seq 600); do
        curl -sf --cacert "$ca" "https://localhost:$((port + 2))/readyz" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    cat "$dir/log" >&2
    exit 2
}
serve_stop() { kill "$pid"; wait "$pid" || true; pid=; }

serve_post() { # serve_post KEY URL JSON
    curl -sf --cacert "$ca" -H "Authorization: Bearer $1" -H 'Content-Type: application/json' -d "$3" "$2"
}

serve_init() {
    $bin/lorad init --dir "$dir/data" --model "$1" >"$dir/init"
    admin=$(grep -o 'lk_[A-Za-z0-9_]*' "$dir/init" | head -n 1)
    serve_start
    serve_post "$admin" "https://localhost:$((port + 1))/admin/v1/tenants" '{"name":"t"}' >/dev/null
    serve_post "$admin" "https://localhost:$((port + 1))/admin/v1/keys" \
        '{"tenant":"t","name":"k","scopes":["inference","adapters.read","adapters.write"]}' |
        grep -o 'lk_[A-Za-z0-9_]*' | head -n 1 >"$dir/key"
    serve_stop
}

serve_upload() {
    i=$2
    while [ "$i" -lt "$3" ]; do
        [ "$i" = "$2" ] || echo next
        printf 'cacert = "%s"\nheader = "Authorization: Bearer %s"\nheader = "Content-Type: application/x-tar"\n' \
            "$ca" "$(cat "$dir/key")"
        printf 'url = "https://localhost:%s/v1/adapters/a%s/versions"\ndata-binary = "@%s"\noutput = "/dev/null"\nfail\nsilent\n' \
            "$port" "$i" "$1"
        i=$((i + 1))
    done >"$dir/curl"
    curl -K "$dir/curl" >&2
}

serve_load() {
    $bin/bench_load --url "https://localhost:$port" --key-file "$dir/key" --ca "$ca" "$@"
}
