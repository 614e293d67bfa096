#!/bin/sh
# test_layers.sh ROOT -- plants one forbidden include after another in a copy of the tree:
# check_layers.sh must refuse each by its name, and nothing else.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cd "$1"
find engine storage adapters gateway tui tests \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) \
    -print0 | tar -c --null -T - | tar -x -C "$copy"
cp tests/tools/check_layers.sh "$copy"
cd "$copy"
bad=0

# FILE LINE SAID: with LINE at its end, FILE is refused, with SAID as the one complaint.
plant() {
    cp "$1" kept
    printf '%s\n' "$2" >>"$1"
    if sh check_layers.sh . 2>said >warned; then
        echo "$1: $2: nobody minded" >&2
        bad=1
    elif [ "$(cat said)" != "$3" ]; then
        echo "$1: $2: expected '$3', but it said:" >&2
        cat said >&2
        bad=1
    fi
    mv kept "$1"
}

# FILE HEADER [FROM]: the include is none of FROM's, by default of FILE's folder.
forbidden() {
    plant "$1" "#include \"$2\"" "$1: ${3:-${1%/*}} may not include \"$2\""
}

private() {
    plant "$1" "#include \"$2\"" "$1: \"$2\" is private to ${2%/*}/"
}

sh check_layers.sh .
# Both backends are known to nobody, and not to each other.
forbidden gateway/route.c engine/cuda/cuda.h
forbidden gateway/route.c engine/cpu/linear.h
forbidden engine/memory/kv.c engine/cuda/cuda.h
forbidden engine/cuda/cuda.c engine/cpu/cpu.h
forbidden engine/cpu/cpu.c engine/cuda/cuda.h
forbidden engine/cuda/sample.cu engine/sample/cut.h
forbidden engine/backend.c engine/model/model.h
# Inside the engine arrows go one way.
forbidden engine/base/json.c engine/text/unicode/unicode.h
forbidden engine/text/tokenizer.c engine/chat/chat.h
forbidden engine/grammar/grammar.c engine/chat/jinja.h
forbidden engine/sample/cut.c engine/base/log.h
forbidden engine/model/model.c engine/memory/kv.h
forbidden engine/memory/kv.c engine/sched/sched.h
forbidden engine/sched/policy.c engine/text/tokenizer.h
# Rooms.
forbidden engine/model/model.c storage/store.h
forbidden storage/keys.c adapters/format/peft.h
forbidden adapters/format/validate.c adapters/residency/extras.h
forbidden adapters/format/peft.c storage/store.h
forbidden adapters/store/publish.c adapters/residency/residency.h
forbidden adapters/residency/load.c gateway/config/config.h
forbidden adapters/residency/load.c engine/sched/sched.h
# The gateway's streets: HTTP knows no server, and neighbours meet at its parts.
forbidden gateway/http/listener.c gateway/server.h
forbidden gateway/net/tls.c gateway/http/exchange.h
forbidden gateway/http/listener.c gateway/config/config.h
forbidden gateway/http/exchange.c storage/keys.h
forbidden gateway/http/exchange.c adapters/store/registry.h
forbidden gateway/http/exchange.c engine/text/tokenizer.h
forbidden gateway/openai/completion.c gateway/rest/adapter_fields.h
forbidden gateway/rest/admin_server.c gateway/openai/openai.h
forbidden gateway/rest/admin_server.c gateway/config/config.h
forbidden gateway/watch/stats.c gateway/openai/vocabulary.h
forbidden gateway/auth.c gateway/watch/stats.h
forbidden gateway/limits.c engine/sched/sched.h
forbidden gateway/engine_parts.h gateway/openai/vocabulary.h gateway/engine_parts.h
forbidden gateway/main.c gateway/rest/api_audit.h gateway/main.c
# The programs for terminals.
forbidden tui/client.c tui/ctl/loractl.h
forbidden tui/ctl/loractl.c tui/top/view.h
forbidden tui/top/view.c gateway/server.h
forbidden tui/ctl/loractl.c gateway/admin_proto.h
# Tests, of their own street and what is below it.
forbidden tests/gateway/http/test_alone.c gateway/server.h
forbidden tests/engine/text/test_tokenizer.c engine/model/model.h
forbidden tests/storage/test_keys.c adapters/store/registry.h
forbidden tests/run_suite.h engine/base/err.h tests
# Private headers, where the street itself would be allowed, and in the tests of others.
private engine/sched/sched.c engine/model/model_inside.h
private adapters/residency/residency.c adapters/store/registry_tables.h
private gateway/watch/stats.c storage/store_sql.h
private tests/gateway/watch/test_prom.c engine/sched/sched_inside.h
# Neither folder nor row; then the table itself.
forbidden gateway/route.c server.h
mkdir gateway/grpc
cp gateway/net/spare.c gateway/grpc/spare.c
complains() {
    if sh check_layers.sh . 2>said >warned || ! grep -q "$2" said; then
        echo "$1: nobody minded" >&2
        bad=1
    fi
}
complains "a folder without a row" 'gateway/grpc/spare.c: there is no row for "gateway/grpc"'
rm -r gateway/grpc
for i in $(seq 31); do echo "/* $i */" >"engine/sample/more$i.c"; done
if ! sh check_layers.sh . >said || ! grep -q "warning: engine/sample has .* source files, more than 30" said; then
    echo "a crowded folder: it is an error, or nobody was warned" >&2
    bad=1
fi
rm engine/sample/more*.c
row() {
    sed "s|^$1:|& $2|" "$here/check_layers.sh" >check_layers.sh
    complains "the row of $1 with $2" "$3"
}
row engine/base engine/model "make a circle"
row gateway/http gateway/server.h "make a circle"
row tui/top tui/ctl "the row of tui/top allows tui/ctl, which nobody there includes"
exit $bad
