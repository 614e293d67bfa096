#!/bin/sh
# newest_clients.sh -- the client tests with the newest release of every client package.
#
#   sh tests/tools/newest_clients.sh [BUILD]      (BUILD: build/release unless it is given)
#
# Makes environments in build/newest from tests/e2e/requirements-*.txt without their versions, runs
# the tests that use them, and prints for each what was installed and whether it passed.  A package
# that cannot be installed is reported, too.  The exit status is that of the worst.
set -u
cd "$(dirname "$0")/../.." || exit 2
build=${1:-build/release}
folder=$PWD/build/newest
bad=0

newest() { # NAME REQUIREMENTS
    rm -rf "${folder:?}/$1"
    mkdir -p "$folder"
    sed -E 's/[=<>~!]=.*//' "$2" >"$folder/$1.txt"
    python3 -m venv "$folder/$1" &&
        "$folder/$1/bin/python" -m pip install --quiet --disable-pip-version-check -r "$folder/$1.txt" && return 0
    echo "BROKEN  $1: its packages cannot be installed"
    rm -rf "${folder:?}/$1"
    bad=1
    return 1
}

check() { # NAME TEST...
    name=$1
    shift
    versions=$("$folder/$name/bin/python" -m pip list --disable-pip-version-check --format freeze |
        grep -iE "^($(sed -E '/^#/d; s/\[.*//' "$folder/$name.txt" | paste -sd'|'))==" | paste -sd' ')
    for test in "$@"; do
        log=$folder/$test.log
        LORAD_VENVS=$folder LORAD_BUILD=$build PYTHONPATH=tests/e2e "$folder/$name/bin/python" "tests/e2e/openai/$test.py" >"$log" 2>&1
        rc=$?
        if [ $rc = 0 ]; then
            echo "ok      $test: $versions"
        else
            echo "BROKEN  $test ($rc): $versions"
            grep -E '^FAILED|Error' "$log" | head -5 | sed 's/^/        /'
            bad=1
        fi
    done
}

newest venv tests/e2e/requirements.txt && check venv test_openai_client
newest venv-agents tests/e2e/requirements-agents.txt && check venv-agents test_agents test_messages
newest venv-clients tests/e2e/requirements-clients.txt && check venv-clients test_clients
newest venv-evals tests/e2e/requirements-evals.txt && check venv-evals test_evals
exit $bad
