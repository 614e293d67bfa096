#!/bin/sh
# build_civetweb.sh DEST -- builds civetweb 1.16 as DEST/lib/libcivetweb.a, from Debian's source package.
#
# Debian 12's binary (1.15) crashes on the first TLS request under OpenSSL 3, so we take the source
# package of 1.16 with Debian's security patches, add our own for the header parser (see the .patch
# beside this file), and configure it for OpenSSL 3, without files, CGI, WebSockets or Lua.
# The machine's own package sources say where to download; only the suite's name is changed.
set -eu
dest=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# URIs of Debian's main archive, from one-line and deb822 sources.
uris() {
    for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        if [ -r "$f" ]; then sed -n 's/^deb\(-src\)\{0,1\} *\(\[[^]]*\] *\)\{0,1\}\([a-z]*:[^ ]*\).*/\3/p' "$f"; fi
    done
    for f in /etc/apt/sources.list.d/*.sources; do
        if [ -r "$f" ]; then sed -n 's/^URIs: *//p' "$f" | tr ' ' '\n'; fi
    done
}
archive=$(uris | grep '/debian/*$' | sort -u | head -n 1)
if [ -z "$archive" ]; then
    echo "civetweb: no Debian archive in the package sources of this machine." >&2
    echo "Put libcivetweb.a (1.16, OpenSSL 3) and civetweb.h under $dest/lib and $dest/include." >&2
    exit 1
fi

mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/parts"
apt_options="-o Dir::Etc::sourcelist=$work/sources.list -o Dir::Etc::sourceparts=$work/parts
    -o Dir::State::lists=$work/lists -o Dir::Cache=$work/cache -o APT::Sandbox::User="
fetched=
for suite in trixie sid; do
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $suite main" >"$work/sources.list"
    # shellcheck disable=SC2086  # a list of options
    if apt-get $apt_options update >"$work/log" 2>&1 &&
        (cd "$work" && apt-get $apt_options source civetweb >>"$work/log" 2>&1); then
        fetched=$suite
        break
    fi
    rm -rf "$work"/civetweb-* "$work"/civetweb_*
done
if [ -z "$fetched" ]; then
    tail -n 15 "$work/log" >&2
    echo "civetweb: its source package could not be fetched; is the network up, are dpkg-dev and" >&2
    echo "debian-archive-keyring installed?" >&2
    exit 1
fi

src=$(find "$work" -maxdepth 1 -type d -name 'civetweb-*')
(cd "$src" && patch -p1 <"$here/civetweb-strict-headers.patch") >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    echo "civetweb: our patch does not fit $(basename "$src")" >&2
    exit 1
}
if ! { cmake -S "$src" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCIVETWEB_SSL_OPENSSL_API_3_0=ON -DCIVETWEB_SSL_OPENSSL_API_1_1=OFF \
    -DCIVETWEB_ENABLE_SSL_DYNAMIC_LOADING=OFF -DCIVETWEB_ENABLE_IPV6=ON \
    -DCIVETWEB_BUILD_TESTING=OFF -DCIVETWEB_ENABLE_SERVER_EXECUTABLE=OFF -DBUILD_SHARED_LIBS=OFF \
    -DCIVETWEB_ENABLE_CXX=OFF -DCIVETWEB_SERVE_NO_FILES=ON -DCIVETWEB_DISABLE_CGI=ON \
    -DCIVETWEB_ENABLE_WEBSOCKETS=OFF -DCIVETWEB_ENABLE_LUA=OFF -DCIVETWEB_ENABLE_DEBUG_TOOLS=OFF \
    -DCIVETWEB_ENABLE_ASAN=OFF && cmake --build "$work/build"; } >"$work/log" 2>&1; then
    tail -n 30 "$work/log" >&2
    echo "civetweb: the build failed" >&2
    exit 1
fi
mkdir -p "$dest/lib" "$dest/include"
cp "$src/include/civetweb.h" "$dest/include/"
cp "$(find "$work/build" -name libcivetweb.a)" "$dest/lib/libcivetweb.a.new"
mv "$dest/lib/libcivetweb.a.new" "$dest/lib/libcivetweb.a"
echo "civetweb from $fetched is in $dest"
