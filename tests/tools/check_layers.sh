#!/bin/sh
# check_layers.sh ROOT -- fails when a file includes one that its street must not know.
#
# The table is the architecture.  A row is a street (a folder, or one file that may more than its
# folder) and what it may include: other streets, or single headers of them, and always its own
# folder.  What goes wrong:
#   - an include that no row allows, or of a folder without a row
#   - a private header (*_inside.h, *_tables.h, *_sql.h) from another folder
#   - rows that make a circle (of programs; tests may)
#   - an entry that nobody uses any more: rows are as narrow as is true
# tests/X may include X, all that X may reach, tests/ and the tests' folders above; its row adds to
# that.  A folder of more than 30 source files is a warning: a part of it with a name of its own may
# be a folder.  test_layers.sh, beside this file, plants forbidden includes and sees each refused.
set -eu
cd "$1"
awk '
function folder(path) { return path ~ /\// ? substr(path, 1, match(path, /\/[^\/]*$/) - 1) : "" }
function street(entry) { return entry ~ /\.[ch]$/ && !(entry in row) ? folder(entry) : entry }
function fail(text) { print text > "/dev/stderr"; bad = 1 }

# Who reaches whom, through any number of rows.
function close_rows(    i, j, k) {
    for (k in row) for (i in row) if ((i, k) in reach)
        for (j in row) if ((k, j) in reach) reach[i, j] = 1
    for (i in row) if ((i, i) in reach && i !~ /^tests/) fail("the rows make a circle: " i " reaches itself")
}

# tests/X/Y: of a parent, of a street that it tests, of the floor under that.
function test_may(dir, to, header,    of) {
    if (dir !~ /^tests\//) return 0
    of = substr(dir, 7)
    if (to == "tests" || (to ~ /^tests\// && index(dir "/", to "/") == 1)) return 1
    return of in row && (to == of || (of, to) in reach)
}

function look(file, header,    dir, from, to) {
    dir = folder(file); to = folder(header)
    from = file in row ? file : dir
    if (!(from in row) && !(dir ~ /^tests\// && substr(dir, 7) in row)) {
        fail(file ": there is no row for \"" from "\"")
        return
    }
    if ((from, header) in may) { used[from, header] = 1; return }
    if (header ~ /_(inside|tables|sql)\.h$/ && to != dir && dir != "tests/" to) {
        fail(file ": \"" header "\" is private to " to "/")
        return
    }
    if (to == dir) return
    if ((from, to) in may) { used[from, to] = 1; return }
    if (test_may(dir, to)) return
    fail(file ": " from " may not include \"" header "\"")
}

table && /^[^#]/ {
    name = $1; sub(/:$/, "", name); row[name] = 1
    for (i = 2; i <= NF; i++) may[name, $i] = 1
    next
}
table { next }
!closed {
    for (pair in may) { split(pair, p, SUBSEP); if (street(p[2]) != p[1]) reach[p[1], street(p[2])] = 1 }
    close_rows(); closed = 1
}
FNR == 1 { n_files[folder(FILENAME)]++ }
/^# *include "/ { split($0, part, "\""); look(FILENAME, part[2]) }

END {
    for (dir in n_files) if (n_files[dir] > 30)
        print "warning: " dir " has " n_files[dir] " source files, more than 30"
    for (pair in may) if (!(pair in used)) {
        split(pair, p, SUBSEP)
        fail("the row of " p[1] " allows " p[2] ", which nobody there includes: take it out")
    }
    exit bad
}
' table=1 /dev/stdin table=0 $(find engine storage adapters gateway tui tests \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) | LC_ALL=C sort) <<'TABLE'
engine/base:
engine/program: engine/base
engine/files: engine/base engine/program/mapping.h engine/sample/sampling_list.h
engine/text/unicode:
engine/text: engine/files/documents.h engine/text/unicode engine/base
engine/chat: engine/files/documents.h engine/text engine/text/unicode engine/base
# the automaton and its masks; GBNF and Lark; expressions; keywords of JSON Schema
engine/grammar/automaton: engine/text/tokenizer.h engine/base
engine/grammar/cfg: engine/grammar/automaton engine/base
engine/grammar/regex: engine/grammar/automaton engine/text/unicode engine/base
engine/grammar/schema: engine/grammar/automaton engine/grammar/regex engine/files/documents.h engine/base
engine/grammar: engine/grammar/automaton engine/grammar/regex engine/grammar/schema engine/text engine/base
engine/sample: engine/base/exp.h engine/base/heap.h
# backend.h, step.h, lora.h: what the streets below it and both backends agree on
engine: engine/sample/sampler.h engine/base engine/program/mapping.h
engine/cpu: engine engine/base
engine/cpu/mixers: engine/cpu
engine/cpu/sets: engine/cpu
engine/cuda: engine engine/sample/sampler.h engine/base engine/cuda/products engine/cuda/rows
engine/cuda/products: engine engine/base
engine/cuda/rows: engine engine/cuda/products
engine/model: engine engine/files engine/sample/bars.h engine/sample/pooling.h engine/sample/sampling_list.h engine/base engine/program/mapping.h
engine/memory: engine engine/base
engine/watch: engine/base
engine/sched: engine engine/model engine/memory engine/grammar/grammar.h engine/sample engine/watch engine/base

storage: engine/base
# sums of the whole fleet
storage/ledger.c: storage/fleet/books.h
storage/fleet: storage/digest.h storage/store.h storage/store_sql.h engine/base
# the writer: it runs the fleet's turns, and the fleet knows its jobs
storage/store.c: storage/fleet/books.h storage/fleet/fleet.h engine/base
storage/seal: storage storage/store_sql.h engine/base
storage/batches: storage storage/store_sql.h engine/base
storage/watch: storage storage/store_sql.h engine/base

adapters/format: engine engine/files/gguf.h engine/sample/pooling.h engine/model engine/text/tokenizer.h engine/base storage/digest.h storage/disk.h
adapters/store: adapters/format engine/backend.h engine/model/model.h engine/text/tokenizer.h engine/base engine/program/mapping.h storage
adapters/residency: adapters/format adapters/store engine engine/sample/pooling.h engine/model/model.h engine/memory/devmem.h engine/base storage/digest.h

gateway/net: engine/base
gateway/http: gateway/net engine/base
gateway/config: gateway/fetch/bucket.h gateway/fetch/source.h gateway/http/networks.h engine/base
gateway/fetch: adapters/store/remote.h gateway/http/networks.h engine/base storage/digest.h storage/disk.h
# the floor of the gateway; the parts of the server know all rooms, main.c makes them
gateway: engine/program/troff.h gateway/config/config.h gateway/http engine/backend.h engine/base storage storage/fleet/lease.h
gateway/engine_parts.h: engine/chat/thinking.h engine/model/model.h engine/model/pooled.h engine/sched/sched.h gateway/config/config.h
gateway/tenant_parts.h: gateway/config/classes.h storage/seal/seal.h storage/store.h storage/tenants.h
gateway/process_parts.h: gateway/config/live.h gateway/http/host.h
gateway/adapter_parts.h: adapters/residency/residency.h adapters/store/registry.h adapters/store/staging.h adapters/store/upload.h gateway/http/exchange.h
gateway/main.c: engine/program/version.h gateway/start/verbs.h
gateway/start: engine/grammar/schema/grammar_documents.h storage/fleet/journal.h gateway gateway/move/mover.h gateway/config gateway/http gateway/net gateway/openai/vocabulary.h gateway/rest/adapter_first.h gateway/rest/effect.h gateway/watch/spans.h gateway/watch/stats.h gateway/watch/webhooks.h adapters/residency/load.h engine/backend.h engine/base engine/model/model.h engine/model/packed.h engine/program engine/sched/sched.h engine/text/tokenizer.h storage gateway/batches/runner.h gateway/doors/background.h engine/model/pooled.h gateway/fetch/bucket.h storage/seal/responses.h storage/watch/self_check.h gateway/fetch/hub.h
gateway/page: engine/base/embed.h gateway/handlers.h gateway/process_parts.h
gateway/watch: engine/program/nice_pool.h gateway/admin_proto.h gateway/auth.h gateway/descriptors.h gateway/fetch/fetch_headers.h gateway/handlers.h gateway/limits.h gateway/http adapters/residency/residency.h adapters/store/registry.h engine/sched/board.h engine/watch/histogram.h engine/sched/request.h engine/base storage storage/watch gateway/engine_parts.h gateway/process_parts.h gateway/adapter_parts.h gateway/tenant_parts.h engine/sched/sched.h
gateway/openai/tools: engine/chat engine/base
gateway/openai: gateway/openai/tools engine/sample/beam.h engine/program/nice_pool.h gateway/move/mover.h gateway/move/ticket.h gateway/auth.h gateway/handlers.h gateway/inflight.h gateway/ratelimit.h gateway/limits.h gateway/http gateway/net/deadline.h gateway/watch/spans.h gateway/watch/stats.h adapters/format/words.h adapters/store/registry.h engine/chat engine/grammar/grammar.h engine/model/pooled.h engine/sample/sampler.h engine/sched/request.h engine/sched/sched.h engine/text/tokenizer.h engine/base storage/adapter_rows.h storage/digest.h storage/ledger.h storage/meter_file.h storage/settler.h storage/stack_rows.h storage/targets.h adapters/store/stacks.h gateway/engine_parts.h gateway/process_parts.h gateway/tenant_parts.h gateway/adapter_parts.h gateway/move/carry.h gateway/move/roster.h
gateway/doors: gateway/auth.h gateway/handlers.h gateway/http gateway/openai engine/base storage/seal/responses.h gateway/ratelimit.h gateway/process_parts.h gateway/tenant_parts.h gateway/engine_parts.h gateway/adapter_parts.h
gateway/rest: storage/digest.h gateway/auth.h gateway/openai/vocabulary.h gateway/config/change.h gateway/fetch gateway/handlers.h gateway/inflight.h gateway/http gateway/watch adapters/residency/inplace.h engine/base engine/program/hurry.h storage/audit.h storage/backup.h storage/keys.h storage/targets.h storage/tenants.h storage/watch/history.h adapters/store storage/seal/source_secrets.h storage/stack_rows.h storage/fleet/lease.h storage/fleet/nodes.h gateway/adapter_parts.h gateway/process_parts.h gateway/tenant_parts.h storage/ledger.h gateway/engine_parts.h gateway/move/facts.h
gateway/move: gateway/fetch/fetch_headers.h engine/sched/sched.h engine/base storage/digest.h storage/fleet/nodes.h gateway/engine_parts.h gateway/process_parts.h gateway/tenant_parts.h storage/seal/seal.h engine/sched/place.h
gateway/move/move_api.c: gateway/handlers.h gateway/http gateway/net/deadline.h gateway/openai/vocabulary.h engine/base gateway/adapter_parts.h gateway/engine_parts.h gateway/process_parts.h
gateway/batches: gateway/auth.h gateway/handlers.h gateway/config/classes.h gateway/doors/door_json.h gateway/http gateway/rest/api_audit.h adapters/store/storeroom.h engine/sched/sched.h engine/base storage/batches storage/digest.h storage/disk.h storage/store.h storage/seal gateway/adapter_parts.h gateway/process_parts.h gateway/tenant_parts.h gateway/engine_parts.h

tui: engine/program/troff.h engine/base
tui/ctl: tui engine/program engine/base
tui/top: tui engine/program gateway/admin_proto.h engine/base

tests:
tests/adapters: adapters/format adapters/residency adapters/store engine/cuda/cuda.h engine/model tests/engine tests/emu/cuda_rt/emu_rt.h tests/gpu/device_here.h
tests/adapters/store: tests/storage/smalldisk.h
tests/engine/cpu: engine/model/quantise.h
tests/bench/peer:
tests/bench: engine engine/base engine/sched engine/cpu/cpu.h engine/grammar engine/model engine/sample engine/text/tokenizer.h tui/top/replay.h tui/top/view.h
tests/e2e: engine/backend.h gateway/move/wire.h engine/text tests/emu/cuda_rt/emu_rt.h
tests/emu: engine/kv_int8.h engine/base engine/cuda engine/cuda/products engine/cuda/rows
tests/emu/cuda_rt: engine engine/base engine/cuda engine/cuda/products engine/model engine/sched tests/engine
tests/emu/include:
tests/engine: engine/model engine/sched tests/emu/cuda_rt/emu_rt.h tests/gpu/device_here.h
tests/engine/stand_ins.h: engine/cpu/cpu.h
tests/engine/grammar: engine/grammar/automaton engine/grammar/regex engine/grammar/schema
tests/gateway: tests/gateway/http/fake_civetweb.h
tests/fuzz/models: engine/backend.h engine/weight_source.h engine/model tests/fuzz
tests/fuzz/wire: gateway/http gateway/move gateway/net gateway/route.h tests/fuzz
tests/fuzz: adapters/format adapters/store engine/base engine/chat engine/grammar/automaton/grammar_automaton.h engine/grammar/schema/grammar_schema.h engine/model engine/text gateway/config/config.h gateway/doors gateway/openai gateway/openai/tools/tool_reader.h storage tui/sse.h tui/top/topdata.h gateway/server.h
tests/gpu: engine tests/emu/cuda_rt/emu_rt.h engine/base engine/cuda engine/model engine/cuda/products
tests/storage/fleet: storage/store_sql.h
tests/storage/seal: storage/store_sql.h
tests/storage: storage/watch
tests/sim: engine/memory engine/sched
tests/tui: gateway/net/devcert.h
TABLE
