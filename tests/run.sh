#!/bin/sh
# run.sh -- sets up, builds and runs tests through ctest; its closing lines come last.
#
#   sh tests/run.sh                   the gate: what must pass before a change is merged
#   sh tests/run.sh --all             every test, instruction set, and CUDA where nvcc is found
#   sh tests/run.sh --full AREA...    all tests of these areas (tests/tiers.txt)
#
#   --preset release|full|dev|asan|tsan
#   --only REGEX                      the tests whose names match, in the gate or not
set -eu
cd "$(dirname "$0")/.."
. conf/setup.sh

tiers() { python3 tests/tools/tiers.py "$@"; }

preset=release
only=
all=
areas=
while [ $# -gt 0 ]; do
    case $1 in
    --all) all=1 preset=full; shift ;;
    --full)
        preset=full
        shift
        while [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; do
            tiers digest "$1" >/dev/null
            areas="$areas $1"
            shift
        done
        [ -n "$areas" ] || { echo "tests/run.sh: --full needs areas: $(tiers areas | tr '\n' ' ')" >&2; exit 2; } ;;
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --only) only=${2:?--only needs a regular expression}; shift 2 ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "tests/run.sh: unknown option $1" >&2; exit 2 ;;
    esac
done

# shellcheck disable=SC2086  # lists of names
need_packages $BUILD_PACKAGES $RUN_PACKAGES $TEST_PACKAGES

# Pythons of our own with the clients that most users have; nothing else comes from outside.
# environment NAME: makes build/venv-NAME from requirements-NAME.txt, anew if that has changed.
environment() {
    venv=build/venv${1:+-$1} file=tests/e2e/requirements${1:+-$1}.txt
    alone=${file%.txt}-alone.txt # whose dependencies are not installed
    [ -f "$alone" ] || alone=/dev/null
    cat "$file" "$alone" | cmp -s - "$venv/requirements.txt" && return 0
    echo "Installing into $venv: $(cat "$file" "$alone" | grep -v '^#' | tr '\n' ' ')"
    rm -rf "$venv"
    mkdir -p build
    pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"
    if python3 -m venv "$venv" && $pip -r "$file" && $pip --no-deps -r "$alone"; then
        cat "$file" "$alone" >"$venv/requirements.txt"
        return 0
    fi
    rm -rf "$venv"
    echo "tests/run.sh: $venv could not be made; the lines above say why. It needs python3-venv and a" >&2
    echo "package index that pip can reach." >&2
    return 1
}
environment "" || exit 1
# A model of the Hub with the libraries that train it, 1 GB; the area `real` fails without them.
case "$all$only $areas " in 1* | *real*) environment real || exit 1 ;; esac
# The area `aarch64` cross-compiles, and emulates the processor.
case "$all$areas $only" in 1* | *aarch64*) need_packages $CROSS_PACKAGES ;; esac
# The tests of the area `clients` have programs of their own.
clients=$all$only
case " $areas " in *" clients "*) clients=1 ;; esac
if [ -n "$clients" ]; then
    need_packages chromium
    for name in clients agents evals schema reference node; do
        environment $name || exit 1
    done
    # The newest openai-node comes from npm on demand: npm waits minutes for a registry that it
    # cannot reach.
    if [ -n "${LORAD_NODE:-}" ] && [ ! -d build/node/node_modules/openai ]; then
        mkdir -p build/node
        if ! npm install --prefix build/node --no-audit --no-fund openai@7; then
            rm -rf build/node
            echo "tests/run.sh: npm could not install openai-node; e2e.test_openai_node takes the bundled one" >&2
        fi
    fi
fi

cmake --preset "$preset"
# Most end-to-end tests wait more than they compute.
jobs=$(($(nproc) * 2))
if [ -n "$only" ]; then
    more=$(ctest --test-dir "build/$preset" -N -R "$only" -L '^full$' | sed -n '/^ *Test *#/{s/.*/full_tests/p;q}')
    # shellcheck disable=SC2086  # no word or one
    cmake --build --preset "$preset" --target all $more
    exec ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$jobs" -R "$only"
fi
cmake --build --preset "$preset"
if [ -n "$areas" ]; then
    labels=$(echo $areas | tr ' ' '|')
    ctest --preset "$preset" -j "$jobs" -L "^($labels)$"
    tiers passed $areas
elif [ -n "$all" ]; then
    ctest --preset "$preset" -j "$jobs"
    # shellcheck disable=SC2046  # names
    tiers passed $(tiers areas)
else
    exec ctest --preset "$preset" -j "$jobs"
fi
