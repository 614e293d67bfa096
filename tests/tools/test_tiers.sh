#!/bin/sh
# test_tiers.sh ROOT -- tiers.py in a repository of its own: an area is stale until it has passed
# and again when one of its sources changes; clang-tidy follows includes; bad lists are refused.
set -eu
tools=$1/tests/tools
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/tests/tools" "$copy/engine" "$copy/gateway"
cp "$tools/tiers.py" "$copy/tests/tools"
cd "$copy"
git init -q .
git config user.email test@localhost
git config user.name test
printf 'area one\ntests ^a$\nsources engine/ gateway/a.c\narea two\ntests ^b$\nsources gateway/\n' >tests/tiers.txt
printf 'int x;\n' >engine/x.h
printf '#include "engine/x.h"\n' >engine/y.h
printf '#include "engine/y.h"\n' >gateway/a.c
printf 'int b;\n' >gateway/b.c
git add -A
git commit -qm start
bad=0

# expect WHAT WANTED COMMAND...: what it prints, lines joined by blanks
expect() {
    what=$1 wanted=$2
    shift 2
    got=$(python3 tests/tools/tiers.py "$@" 2>&1 | tr '\n' ' ' | sed 's/ $//')
    [ "$got" = "$wanted" ] || { echo "$what: '$got', not '$wanted'" >&2; bad=1; }
}

expect "at first" "one two" stale
expect "recording" "" passed one
expect "one has passed" "two" stale
python3 tests/tools/tiers.py passed two
expect "both have" "" stale
echo 'int c;' >>gateway/b.c
expect "a source of two is edited" "two" stale
git checkout -q gateway/b.c
expect "and is as before" "" stale
expect "nothing is known of clang-tidy" "gateway/a.c gateway/b.c" tidy
python3 tests/tools/tiers.py tidied
expect "all files passed" "" tidy
echo 'int z;' >>engine/x.h
expect "a header that a header includes" "gateway/a.c" tidy
sed -i 's/^tidy .*/tidy 1234567890123456789012345678901234567890/' tests/passed.txt
expect "a commit that is gone" "gateway/a.c gateway/b.c" tidy
expect "no such area" "tiers.py: no area is called three; there are: one two" passed three
echo 'sources gone/' >>tests/tiers.txt
expect "a folder that is gone" "tests/tiers.txt: no tracked file is gone/" digest two
echo 'test ^c$' >>tests/tiers.txt
expect "a word that is unknown" "tests/tiers.txt: a line must begin with area, tests, also or sources, not 'test'" areas
exit $bad
