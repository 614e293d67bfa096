#!/bin/sh
# quickstart.sh -- from a clean clone to many adapters answering over HTTPS, in one command.
#
#   sh conf/quickstart.sh [--exit] [--port N] [--dir D]
#
#   --exit    stop the server at the end; the exit status is not zero if any step fell short
#   --port N  HTTPS port of the inference API (default 8443; admin is N+1, metrics N+2)
#   --dir D   data directory (default build/quickstart; kept, so a second run starts where it was)
set -eu
cd "$(dirname "$0")/.."
. conf/setup.sh

stop_at_end=
port=8443
dir=build/quickstart
while [ $# -gt 0 ]; do
    case $1 in
    --exit) stop_at_end=1; shift ;;
    --port) port=${2:?--port needs a number}; shift 2 ;;
    --dir) dir=${2:?--dir needs a folder}; shift 2 ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "quickstart.sh: unknown option $1" >&2; exit 2 ;;
    esac
done
case $port in *[!0-9]* | '') echo "quickstart.sh: --port needs a number" >&2; exit 2 ;; esac

step() { printf '\n== %s\n' "$*"; }
die() { echo "quickstart.sh: $*" >&2; exit 1; }

step "Packages and build"
# shellcheck disable=SC2086  # lists of names
need_packages $BUILD_PACKAGES $RUN_PACKAGES
mkdir -p build
log=build/quickstart-build.log
if ! { cmake --preset release && cmake --build --preset release --target lorad loractl loratop; } >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    die "the build failed; the whole log is $log"
fi
lorad=build/release/lorad
echo "built $lorad"

step "A data directory with a certificate and an admin key"
mkdir -p "$dir"
if [ ! -e "$dir/lorad.conf" ]; then
    "$lorad" init --dir "$dir" --model conf/demo/base >"$dir/init.txt"
    chmod 600 "$dir/init.txt"
    grep -o 'lk_[A-Za-z0-9_]*' "$dir/init.txt" | head -n 1 >"$dir/admin.key"
    chmod 600 "$dir/admin.key"
fi
ca=$dir/tls/cert.pem
url=https://localhost:$port
admin=https://localhost:$((port + 1))/admin/v1
echo "$dir (certificate: $ca)"

step "The server"
pid=
stop_server() {
    [ -n "$pid" ] || return 0
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    pid=
}
trap 'stop_server; exit 130' INT TERM
"$lorad" serve -c "$dir/lorad.conf" --set "server.listen=127.0.0.1:$port" \
    --set "admin.listen=127.0.0.1:$((port + 1))" --set "metrics.listen=127.0.0.1:$((port + 2))" \
    >"$dir/lorad.log" 2>&1 </dev/null &
pid=$!
tries=0
until curl -sf --cacert "$ca" "https://localhost:$((port + 2))/readyz" >/dev/null 2>&1; do
    kill -0 "$pid" 2>/dev/null || { tail -n 20 "$dir/lorad.log" >&2; pid=; die "the server ended"; }
    tries=$((tries + 1))
    [ $tries -lt 600 ] || { stop_server; die "the server is not ready after a minute"; }
    sleep 0.1
done
echo "listening on $url (log: $dir/lorad.log, pid $pid)"

# api METHOD PATH KEY [curl options]: the body on standard output; false on an HTTP error
api() {
    method=$1 target=$2 key=$3
    shift 3
    curl -sS --fail-with-body --cacert "$ca" -X "$method" -H "Authorization: Bearer $key" "$@" "$target"
}
json() { api "$1" "$2" "$3" -H 'Content-Type: application/json' --data "$4"; }
# field NAME: the string member NAME of a JSON object on standard input
field() { sed -n 's/.*"'"$1"'" *: *"\([^"]*\)".*/\1/p' | head -n 1; }

step "Two tenants, each with a key"
admin_key=$(cat "$dir/admin.key")
for t in acme globex; do
    [ -s "$dir/$t.key" ] && continue
    json POST "$admin/tenants" "$admin_key" "{\"name\":\"$t\"}" >/dev/null || { stop_server; die "no tenant $t"; }
    json POST "$admin/keys" "$admin_key" "{\"tenant\":\"$t\",\"name\":\"quickstart\",
        \"scopes\":[\"inference\",\"adapters.read\",\"adapters.write\"]}" |
        field key >"$dir/$t.key"
    chmod 600 "$dir/$t.key"
    [ -s "$dir/$t.key" ] || { stop_server; die "no key for $t"; }
done
echo "acme: $dir/acme.key, globex: $dir/globex.key"

step "Adapters, uploaded as PEFT saved them"
i=0
names=
for folder in conf/demo/adapters/*/; do
    name=$(basename "$folder")
    owner=acme
    [ $((i % 2)) = 0 ] || owner=globex
    tar -C "$folder" --format=ustar -cf "$dir/upload.tar" .
    api POST "$url/v1/adapters/$name/versions" "$(cat "$dir/$owner.key")" \
        -H 'Content-Type: application/x-tar' --data-binary "@$dir/upload.tar" >"$dir/upload.json" ||
        { cat "$dir/upload.json" >&2; stop_server; die "upload of $name failed"; }
    echo "  $owner/$name is live"
    names="$names $owner:$name"
    i=$((i + 1))
done
rm -f "$dir/upload.tar" "$dir/upload.json"
[ $i -ge 6 ] || { stop_server; die "fewer than six adapters"; }

question=${LORAD_QUESTION:-"What is 7 plus 5?"}
step "The same question to all of them at once: $question"
mkdir -p "$dir/answers"
rm -f "$dir"/answers/*
pids=
ask() { # ask KEY MODEL FILE
    curl -sSN --fail-with-body --cacert "$ca" -H "Authorization: Bearer $1" -H 'Content-Type: application/json' \
        --data "{\"model\":\"$2\",\"stream\":true,\"temperature\":0,\"max_tokens\":64,
        \"messages\":[{\"role\":\"user\",\"content\":\"$question\"}]}" \
        "$url/v1/chat/completions" >"$3" 2>&1
}
for n in acme:base $names; do
    ask "$(cat "$dir/${n%%:*}.key")" "${n#*:}" "$dir/answers/$n" &
    pids="$pids $!"
done
# text FILE: the streamed pieces joined, escapes undone
text() {
    sed -n 's/^data: .*"content":"\(\([^"\\]\|\\.\)*\)".*/\1/p' "$1" | tr -d '\n' |
        sed 's/\\n/ | /g; s/\\"/"/g; s/\\\\/\\/g'
}
# Redraw all rows while the streams run; without a terminal, print them once at the end.
draw() {
    for n in acme:base $names; do
        printf '  %-8s %-14s %.100s\n' "${n%%:*}" "${n#*:}" "$(text "$dir/answers/$n" 2>/dev/null)"
    done
}
rows=$((i + 1))
fell_short=
if [ -t 1 ]; then
    draw
    running=1
    while [ -n "$running" ]; do
        running=
        for p in $pids; do kill -0 "$p" 2>/dev/null && running=1; done
        printf '\033[%dA' "$rows"
        draw | sed "s/\$/$(printf '\033[K')/"
        sleep 0.05
    done
fi
for p in $pids; do wait "$p" || fell_short=1; done
[ -t 1 ] || draw
for n in acme:base $names; do
    grep -q '^data: \[DONE\]' "$dir/answers/$n" || { echo "no whole answer from $n:" >&2; cat "$dir/answers/$n" >&2; fell_short=1; }
    [ -n "$(text "$dir/answers/$n")" ] || { echo "$n said nothing" >&2; fell_short=1; }
done
# Each adapter must change the answer, or something served the base in its place.
for n in $names; do
    if [ "$(text "$dir/answers/$n")" = "$(text "$dir/answers/acme:base")" ]; then
        echo "  ($n answers this question as the base does)"
    fi
done
distinct=$(for n in acme:base $names; do text "$dir/answers/$n"; echo; done | sort -u | wc -l)
[ "$distinct" -ge 4 ] || { echo "only $distinct different answers" >&2; fell_short=1; }

if [ -n "$stop_at_end" ]; then
    step "Stop"
    stop_server
    [ -z "$fell_short" ] || die "a step fell short"
    echo "stopped; everything worked"
    exit 0
fi
[ -z "$fell_short" ] || { stop_server; die "a step fell short"; }

step "Go on"
cat <<TEXT
The server runs in the background (pid $pid). From here:

  curl:
    curl --cacert $ca -H "Authorization: Bearer \$(cat $dir/acme.key)" -H 'Content-Type: application/json' \\
      -d '{"model":"base","messages":[{"role":"user","content":"$question"}]}' $url/v1/chat/completions

  openai-python (pip install openai):
    SSL_CERT_FILE=$ca OPENAI_BASE_URL=$url/v1 OPENAI_API_KEY=\$(cat $dir/acme.key) python3 -c '
    import openai
    for c in openai.OpenAI().chat.completions.create(model="base", stream=True,
            messages=[{"role": "user", "content": "$question"}]):
        print(c.choices[0].delta.content or "", end="", flush=True)'

  the dashboard, and the command line for operators:
    export LORAD_ADMIN_URL=https://localhost:$((port + 1)) LORAD_ADMIN_KEY=\$(cat $dir/admin.key) LORAD_CA=$ca
    build/release/loratop
    build/release/loractl tenant list

  stop it:
    kill $pid
TEXT
