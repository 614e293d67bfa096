# setup.sh -- sourced by quickstart.sh and tests/run.sh: makes sure that the
# Debian packages are there.
#
# need_packages NAME...  installs what is missing (as root, or through sudo), or says what to do
#                        and returns 1, with nothing changed.

need_packages() {
    if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
        echo "This script installs packages with Debian's apt-get, which is not here. Elsewhere: install" >&2
        echo "the counterparts of: $*" >&2
        echo "then build with: cmake --preset release && cmake --build --preset release" >&2
        return 1
    fi
    missing=
    for p in "$@"; do
        # dpkg-query, not `command -v`: headers and libraries have no command
        case $(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null) in
        installed*) ;;
        *) missing="$missing $p" ;;
        esac
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ]; then
        as_root=
    elif ! command -v sudo >/dev/null 2>&1; then
        ask_for_packages "and you are not root, nor is sudo here"
        return 1
    elif ! sudo -v; then
        ask_for_packages "and sudo does not let you install them"
        return 1
    else
        as_root=sudo
    fi
    echo "Installing:$missing"
    install_log=$(mktemp)
    # The lists first, for old ones name files that are gone. That some other source fails is no
    # reason to stop. A machine that has just started may be upgrading itself: wait for its lock.
    # shellcheck disable=SC2086  # one word each
    if ! { $as_root env DEBIAN_FRONTEND=noninteractive apt-get update ||
        echo "(the lists could not all be refreshed)"
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y \
            --no-install-recommends $missing; } >"$install_log" 2>&1; then
        tail -n 8 "$install_log" >&2
        rm -f "$install_log"
        echo "The packages could not be installed; the lines above say why. Is the network up, and does" >&2
        echo "\`apt-get update\` work as root? Once it does, run this again." >&2
        return 1
    fi
    rm -f "$install_log"
}

# ask_for_packages WHY: the sentence for people who cannot install anything
ask_for_packages() {
    echo "Debian packages are missing, $1. Nothing was changed." >&2
    echo "Ask whoever looks after this machine to run this as root:" >&2
    echo "    apt-get install --no-install-recommends$missing" >&2
    echo "and then run this again; nothing else here needs root." >&2
}

BUILD_PACKAGES="gcc g++ libc6-dev cmake ninja-build pkg-config patch xz-utils debian-archive-keyring ca-certificates
    libssl-dev libsqlite3-dev libcjson-dev libcurl4-openssl-dev libnghttp2-dev libncurses-dev libedit-dev check file"
CROSS_PACKAGES="gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user"
RUN_PACKAGES="curl openssl"
TEST_PACKAGES="python3 python3-venv sqlite3 git tmux postgresql pgbouncer faketime"
