#!/bin/sh
# run.sh -- sets up, builds, and runs every test through ctest; its closing lines come last.
#
#   sh tests/run.sh [--preset release|dev|asan|tsan] [--only REGEX]
set -eu
cd "$(dirname "$0")/.."
. conf/setup.sh

preset=release
only=
while [ $# -gt 0 ]; do
    case $1 in
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --only) only=${2:?--only needs a regular expression}; shift 2 ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "tests/run.sh: unknown option $1" >&2; exit 2 ;;
    esac
done

# shellcheck disable=SC2086  # lists of names
need_packages $BUILD_PACKAGES $RUN_PACKAGES $TEST_PACKAGES

# Pythons of our own with the clients that most users have; nothing else comes from outside.
# environment FOLDER FILE: as the file says, made anew when it has changed.
environment() {
    cmp -s "$2" "$1/requirements.txt" && return 0
    echo "Installing into $1: $(grep -v '^#' "$2" | tr '\n' ' ')"
    rm -rf "$1"
    mkdir -p build
    if python3 -m venv "$1" && "$1/bin/python" -m pip install --quiet --disable-pip-version-check -r "$2"; then
        cp "$2" "$1/requirements.txt"
        return 0
    fi
    rm -rf "$1"
    return 1
}
if ! environment build/venv tests/e2e/requirements.txt; then
    echo "tests/run.sh: the Python client of the end-to-end tests could not be installed; the lines" >&2
    echo "above say why. It needs python3-venv and a package index that pip can reach." >&2
    exit 1
fi
if ! environment build/venv-clients tests/e2e/requirements-clients.txt; then
    echo "tests/run.sh: LangChain and LiteLLM could not be installed; e2e.test_clients will be skipped" >&2
fi
if ! environment build/venv-agents tests/e2e/requirements-agents.txt; then
    echo "tests/run.sh: Anthropic's SDK and the Agents SDK could not be installed; e2e.test_messages and" >&2
    echo "e2e.test_agents will be skipped" >&2
fi
if ! environment build/venv-schema tests/e2e/requirements-schema.txt; then
    echo "tests/run.sh: schemathesis could not be installed; e2e.test_schemathesis will be skipped" >&2
fi
if ! environment build/venv-reference tests/e2e/requirements-reference.txt; then
    echo "tests/run.sh: transformers could not be installed; e2e.test_reference will be skipped" >&2
fi
if ! environment build/venv-node tests/e2e/requirements-node.txt; then
    echo "tests/run.sh: openai-node could not be installed; e2e.test_openai_node will be skipped" >&2
fi

# The newest one of npm only on demand: a registry that cannot be reached costs npm minutes.
if [ -n "${LORAD_NODE:-}" ] && [ ! -d build/node/node_modules/openai ]; then
    mkdir -p build/node
    if ! npm install --prefix build/node --no-audit --no-fund openai@7; then
        rm -rf build/node
        echo "tests/run.sh: npm could not install openai-node; e2e.test_openai_node takes the one above" >&2
    fi
fi

cmake --preset "$preset"
cmake --build --preset "$preset"
exec ctest --preset "$preset" ${only:+-R "$only"}
