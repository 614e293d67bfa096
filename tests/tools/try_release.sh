#!/bin/sh
# try_release.sh -- checks what conf/release.sh made, and installs it:
#
#   sh tests/tools/try_release.sh DIR [SUITE...]     (as root; SUITE: bookworm, trixie)
#
# The digests are right; the source archive names its commit; programs for arm64 run where there is
# qemu-aarch64; in a bare Debian of each suite, the tarball for other distributions runs before any
# library is installed, the package installs, and the demo model answers within 60 s of
# `lorad init`.
# Exit status 77: there is no debootstrap.
set -eu
dir=$(cd "${1:?usage: try_release.sh DIR [SUITE...]}" && pwd)
shift
[ $# -gt 0 ] || set -- bookworm
here=$(cd "$(dirname "$0")/../.." && pwd)
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null 2>&1 || { echo "needs root and debootstrap" >&2; exit 77; }
die() { echo "try_release.sh: $*" >&2; exit 1; }

(cd "$dir" && sha256sum -c --quiet SHA256SUMS) || die "a digest is wrong"
work=$(mktemp -d)
mounted=
pid=
clean() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    for m in $mounted; do umount "$m" || true; done
    rm -rf --one-file-system "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM

source=$(ls "$dir" | grep -Ex 'lorad-[0-9.]+\.tar\.xz')
tar -C "$work" -xf "$dir/$source"
grep -q 'set(commit "[0-9a-f]\{7,\}")' "$work"/lorad-*/cmake/version.cmake || die "the source archive does not name its commit"

# The emulator runs these on the libraries of Debian's arm64 packages.
arm64=$(find "$dir" -name 'lorad_*_arm64.deb')
if [ -n "$arm64" ] && command -v qemu-aarch64 >/dev/null 2>&1; then
    sh "$here/cmake/aarch64_sysroot.sh" "$work/sysroot"
    dpkg-deb -x "$arm64" "$work/arm64"
    for program in lorad loractl loratop; do
        qemu-aarch64 -L "$work/sysroot" "$work/arm64/usr/bin/$program" --version || die "arm64: $program does not run"
    done
fi

for suite; do
    root=$work/$suite
    debootstrap --variant=minbase "$suite" "$root" >"$work/debootstrap.log" 2>&1 || { tail -n 5 "$work/debootstrap.log" >&2; die "debootstrap failed"; }
    mount -t proc proc "$root/proc"
    mounted="$mounted $root/proc"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    cp -R "$here/conf/demo/base" "$root/srv/model"
    chmod -R a+rX "$root/srv/model"
    chroot="chroot $root env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive"
    inside() { $chroot "$@"; }

    tar -C "$root/opt" -xf "$dir"/lorad-*-linux-*.tar.xz
    for program in lorad loractl loratop; do
        inside sh -c "/opt/lorad-*/bin/$program --version" || die "$suite: $program of the tarball does not run"
    done

    rm -rf "$root"/opt/lorad-*
    cp "$dir"/lorad_*_"$(dpkg --print-architecture)".deb "$root/opt/"
    { inside apt-get update && inside sh -c 'apt-get install -y --no-install-recommends /opt/lorad_*.deb'; } >"$work/apt.log" 2>&1 ||
        { tail -n 5 "$work/apt.log" >&2; die "$suite: the package does not install"; }
    begun=$(date +%s)
    inside lorad init --model /srv/model >"$work/init.txt"
    key=$(grep -o 'lk_[A-Za-z0-9_]*' "$work/init.txt" | head -n 1)
    # Ports of the machine that nobody has: the chroot shares its network.
    # Not by the function: $! must be the server, not a shell that waits for it.
    $chroot setpriv --reuid=lorad --regid=lorad --clear-groups lorad serve --set server.listen=127.0.0.1:19443 \
        --set admin.listen=127.0.0.1:19444 --set metrics.listen=127.0.0.1:19445 >"$work/serve.log" 2>&1 &
    pid=$!
    ctl() {
        inside env LORAD_URL=https://localhost:19443 LORAD_ADMIN_URL=https://localhost:19444 LORAD_ADMIN_KEY="$key" \
            LORAD_CA=/var/lib/lorad/tls/cert.pem LORAD_KEY="${tenant_key:-}" loractl "$@"
    }
    until ctl tenant list >/dev/null 2>&1; do
        kill -0 "$pid" 2>/dev/null || { cat "$work/serve.log" >&2; die "$suite: the server ended"; }
        sleep 0.2
    done
    ctl tenant create acme >/dev/null
    tenant_key=$(ctl key create --tenant acme | grep -o 'lk_[A-Za-z0-9_]*' | head -n 1)
    answer=$(ctl chat base 'What is 7 plus 5?')
    took=$(($(date +%s) - begun))
    kill "$pid"
    stopped=0
    wait "$pid" || stopped=$?
    pid=
    [ "$stopped" = 0 ] || die "$suite: the server ended with $stopped"
    [ -n "$answer" ] || die "$suite: no answer"
    [ "$took" -le 60 ] || die "$suite: the first answer came after $took s"
    echo "$suite: installed; first answer after $took s: $answer"
    inside apt-get purge -y lorad >"$work/apt.log" 2>&1 || die "$suite: the package can't be purged"
done
