# setup.sh -- sourced by quickstart.sh and tests/run.sh: makes sure that the Debian packages are there.
#
# need_packages NAME...  installs what is missing (as root, or through sudo), or says what to do.

need_packages() {
    missing=
    for p in "$@"; do
        # dpkg-query, not `command -v`: headers and libraries have no command
        case $(dpkg-query -W -f='${Status}' "$p" 2>/dev/null) in
        "install ok installed") ;;
        *) missing="$missing $p" ;;
        esac
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ]; then
        as_root=
    elif command -v sudo >/dev/null 2>&1; then
        as_root=sudo
    else
        echo "These packages are missing and installing them needs root:$missing" >&2
        echo "Install them (apt-get install$missing) and run this again." >&2
        return 1
    fi
    echo "Installing:$missing"
    log=$(mktemp)
    # An old package list fails to download: refresh it once, then install.
    if ! { $as_root env DEBIAN_FRONTEND=noninteractive apt-get update &&
        # shellcheck disable=SC2086  # one word each
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
            $missing; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        echo "The packages could not be installed; see the lines above." >&2
        return 1
    fi
    rm -f "$log"
}

BUILD_PACKAGES="gcc libc6-dev cmake ninja-build pkg-config patch dpkg-dev debian-archive-keyring ca-certificates
    libssl-dev libsqlite3-dev libcjson-dev libcurl4-openssl-dev libncurses-dev check"
RUN_PACKAGES="curl openssl"
TEST_PACKAGES="python3 python3-venv sqlite3 git"
