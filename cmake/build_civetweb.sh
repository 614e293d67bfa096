#!/bin/sh
# build_civetweb.sh DEST    builds civetweb 1.16 as DEST/lib/libcivetweb.a, from its source in Debian
# build_civetweb.sh --stamp prints a hash of all that the library is made of; it lies beside the library
#
# Debian 12's binary (1.15) crashes on the first TLS request under OpenSSL 3, so we take the source of
# 1.16, put our own handling of requests into it (civetweb.patch, civetweb-requests.inl), and compile it
# for OpenSSL 3, without files, CGI, forms, WebSockets or Lua.
#
# What is compiled is pinned: the upstream archive by its SHA-256, and beyond it only our own files.
# Debian's patches stay out, for a new revision of its package would either void the pin or break
# every build on the day it comes out; each of them is for code that is not compiled here: redirects to
# folders (CVE-2025-55763, under NO_FILES), forms (CVE-2025-9648, civetweb.patch leaves them out),
# WebDAV and CMake.  All revisions of 1.16 in Debian share this archive.  To take another one, read what
# changed in it, make civetweb.patch fit, and put its hash below.
#
# The machine's own package sources say where to download; only the suite's name is changed. Needs
# no root: apt works on lists and a cache of its own. CC and AR may name other tools, SYSROOT the folder
# with another machine's headers.
set -eu
sha256=41dbfd68cd3b914ce440a5813f21058813b61a972600cc04fb8233a0d2d04fe4 # civetweb_1.16+dfsg.orig.tar.xz
here=$(cd "$(dirname "$0")" && pwd)
stamp=$(cd "$here" && cat build_civetweb.sh civetweb.patch civetweb-requests.inl | sha256sum | cut -c 1-64)
case ${1:?usage: build_civetweb.sh DEST, or --stamp} in --stamp) echo "$stamp"; exit ;; esac
dest=$1
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
cc=${CC:-cc}
ar=${AR:-ar}

say() { echo "civetweb: $*" >&2; }
# A machine without Debian's archive can still bring the library along.
by_hand() {
    say "or bring $dest along from another machine, where this script has made it."
    exit 1
}

missing=
for tool in "$cc:gcc" "$ar:binutils" patch:patch tar:tar xz:xz-utils apt-get:apt; do
    command -v "${tool%:*}" >/dev/null 2>&1 || missing="$missing ${tool##*:}"
done
[ -e "$keyring" ] || missing="$missing debian-archive-keyring"
if [ -n "$missing" ]; then
    say "building it needs packages that are missing:$missing"
    say "Install them (as root: apt-get install$missing), or ask whoever has root to; then run this again,"
    by_hand
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/parts"

# Every archive of the package sources with a plain suite (no -security), "debian" ones first.
archives=$(apt-get -o Dir::State::lists="$work/lists" update --print-uris 2>/dev/null |
    sed -n "s/^'\(.*\)\/dists\/[^/-]*\/InRelease'.*/\1/p" | sort -u |
    awk '/\/debian\/*$/ { print; next } { rest = rest $0 "\n" } END { printf "%s", rest }')
if [ -z "$archives" ]; then
    say "the package sources of this machine (/etc/apt) name no Debian archive."
    say "Add Debian's own archive there,"
    by_hand
fi
# The running suite's source first, where it has 1.16; Debian 12 has not.
running=$(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-}")
suites=
for suite in $running trixie forky sid; do
    case " bookworm $suites " in *" $suite "*) ;; *) suites="$suites $suite" ;; esac
done

# An expired list (a mirror that lags) does no harm: the archive's hash is known.
in_own_lists() {
    apt-get -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts="$work/parts" \
        -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User= \
        -o APT::Update::Error-Mode=any -o Acquire::Check-Valid-Until=false -o Acquire::Retries=1 -o Acquire::http::Timeout=30 \
        -o Acquire::https::Timeout=30 -o Acquire::Languages=none "$@" >>"$work/log" 2>&1
}
# fetch ARCHIVE SUITE: sets src to the unpacked source; else says in a line why not.
fetch() {
    src=
    rm -rf "$work"/civetweb* "$work/lists"
    mkdir -p "$work/lists/partial"
    echo "deb-src [signed-by=$keyring] $1 $2 main" >"$work/sources.list"
    : >"$work/log"
    if ! in_own_lists update; then
        say "$2: its list of sources cannot be fetched: $(grep '^E: ' "$work/log" | head -n 1)"
        return 1
    fi
    listed=1
    if ! (cd "$work" && in_own_lists source --download-only --tar-only civetweb); then
        say "$2: its source cannot be fetched: $(grep '^E: ' "$work/log" | head -n 1)"
        return 1
    fi
    tar=$(find "$work" -maxdepth 1 -name 'civetweb_*.orig.tar.xz')
    if [ -z "$tar" ] || [ "$(sha256sum <"$tar" | cut -c 1-64)" != $sha256 ]; then
        say "$2: ${tar##*/} is not the archive of 1.16 whose hash stands in $0"
        return 1
    fi
    mkdir "$work/civetweb" && tar -xJf "$tar" -C "$work/civetweb" --strip-components=1
    src=$work/civetweb
}
listed=
fetched=
for archive in $archives; do
    for suite in $suites; do
        if fetch "$archive" "$suite"; then
            fetched=$suite
            break 2
        fi
    done
done
if [ -z "$fetched" ] && [ -z "$listed" ]; then
    say "no list of source packages could be fetched from $(echo $archives). Is the network up, and"
    say "does \`apt-get update\` work? (A proxy belongs into /etc/apt/apt.conf.d.) Mend that and run this again,"
    by_hand
elif [ -z "$fetched" ]; then
    say "none of the suites$suites has the source of 1.16 that is pinned. If the mirror is only being"
    say "updated, wait an hour; else name another in /etc/apt; then run this again,"
    by_hand
fi

(cd "$src" && patch -p1 <"$here/civetweb.patch" && cp "$here/civetweb-requests.inl" src/) >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    say "civetweb.patch does not fit the archive whose hash stands in $0"
    exit 1
}
# As the rest of lorad is built (cmake/harden.cmake); not every processor has CET.
harden=-fstack-clash-protection
if echo 'int a;' | "$cc" -fcf-protection=full -xc -c -o "$work/cet.o" - 2>"$work/log"; then harden="$harden -fcf-protection=full"; fi
# A thread that waits looks at the stop flag five times a second: by default a stop took two seconds.
# One file, compiled by itself: its own CMake project would also ask for a C++ compiler.
# The same bytes in any folder: $work has another name each time.
if ! (cd "$work" && "$cc" -std=c11 -O2 -g -DNDEBUG -fPIC -fvisibility=hidden -fstack-protector-strong $harden \
    ${SYSROOT:+"--sysroot=$SYSROOT"} \
    "-ffile-prefix-map=$work=/usr/src" \
    -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -DOPENSSL_API_3_0 -DNO_SSL_DL -DUSE_IPV6 -DNO_FILES -DNO_CGI \
    -DUSE_STACK_SIZE=102400 -DSOCKET_TIMEOUT_QUANTUM=200 -I"$src/include" -c "$src/src/civetweb.c" -o "$work/civetweb.o" &&
    "$ar" rcs "$work/libcivetweb.a" "$work/civetweb.o") >"$work/log" 2>&1; then
    tail -n 30 "$work/log" >&2
    say "the compiler failed; are libc6-dev and libssl-dev installed?"
    exit 1
fi
# The stamp comes last: that it stands there means that all is done.
mkdir -p "$dest/lib" "$dest/include"
rm -f "$dest/lib/stamp"
cp "$src/include/civetweb.h" "$dest/include/"
cp "$work/libcivetweb.a" "$dest/lib/libcivetweb.a.$$"
mv "$dest/lib/libcivetweb.a.$$" "$dest/lib/libcivetweb.a"
echo "$stamp" >"$dest/lib/stamp"
echo "civetweb 1.16 from $fetched is in $dest"
