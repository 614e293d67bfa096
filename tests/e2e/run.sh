#!/bin/sh
# run.sh -- runs end-to-end tests by name, as ctest does, and shows all they print.
#
#   [LORAD_BUILD=build/dev] sh tests/e2e/run.sh test_tls [test_http ...]
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || { sed -n '2,4s/^# \{0,1\}//p' tests/e2e/run.sh >&2; exit 2; }
export LORAD_BUILD="$(realpath "${LORAD_BUILD:-build/release}")" PYTHONPATH="$PWD/tests/e2e"
for name; do
    found=$(find tests/e2e -name "${name%.py}.py" -path 'tests/e2e/*/*')
    [ -n "$found" ] || { echo "tests/e2e/run.sh: there is no test $name" >&2; exit 2; }
    build/venv/bin/python "$found"
done
