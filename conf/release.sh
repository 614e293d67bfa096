#!/bin/sh
# release.sh -- the artefacts of a release, built from a clean clone of the current commit:
#
#   sh conf/release.sh [--out DIR] [--cuda | --no-cuda] [--arm64] [--native]
#                      [--maintainer 'NAME <MAIL>']
#
#   lorad-V.tar.xz                               source
#   lorad_V_ARCH.deb, lorad-dbgsym_V_ARCH.deb    Debian packages
#   lorad-cuda_V_ARCH.deb, lorad-cuda-dbgsym...  with the CUDA backend, where nvcc is found
#   lorad_V_arm64.deb, lorad-dbgsym...           with --arm64: cross-compiled
#   lorad-V-linux-MACHINE.tar.xz                 programs and libraries, for other distributions
#   lorad-V-container.tar.gz                     context for podman build: Containerfile, packages
#   lorad-V.spdx.json                            components (SBOM)
#   RELEASE_NOTES.md, SHA256SUMS
#
#   --out DIR   default build/release-V; must not exist or be empty
#   --arm64     also the packages for aarch64, from an x86-64 machine; installs the cross compiler
#   --maintainer  of the packages; default: the author of the commit
#   --native    kernels of this machine's processor only: for a trial, in a third of the time
#
# The same commit gives the same bytes on the same Debian release, in any folder: every time is that
# of the commit, paths of the build become /usr/src/lorad-V, archives are sorted and belong to root.
# No compiler cache is used.  tests/tools/try_release.sh checks the result and installs it.
set -eu
umask 022
export LC_ALL=C TZ=UTC
cd "$(dirname "$0")/.."
. conf/setup.sh

out=
cuda=auto
arm64=
preset=full
maintainer=
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --cuda) cuda=yes; shift ;;
    --no-cuda) cuda=no; shift ;;
    --arm64) arm64=yes; shift ;;
    --maintainer) maintainer=${2:?--maintainer needs a name and a mail address}; shift 2 ;;
    --native) preset=release; shift ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "release.sh: unknown option $1" >&2; exit 2 ;;
    esac
done
die() { echo "release.sh: $*" >&2; exit 1; }

# shellcheck disable=SC2086  # lists of names
need_packages $BUILD_PACKAGES ${arm64:+$CROSS_PACKAGES} dpkg-dev git python3
version=$(sed -n 's/^project(lorad VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
[ -n "$maintainer" ] || maintainer=$(git log -1 --format='%an <%ae>')
out=${out:-build/release-$version}
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -z "$(ls -A "$out")" ] || die "$out is not empty"
[ -z "$(git status --porcelain)" ] || echo "release.sh: uncommitted changes are left out" >&2
grep -q "^## \[$version\]" CHANGELOG.md || die "CHANGELOG.md has no section [$version]"
if [ "$cuda" = auto ]; then
    if command -v nvcc >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/nvcc ]; then cuda=yes; else cuda=no; fi
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
src=$work/lorad-$version
build=$src/build/$preset
step() { echo "== $*"; }

step "Source of $commit"
git clone -q . "$src"
git -C "$src" checkout -q --detach "$commit"
# Settings of this user's git, and the number of objects in this clone, have no say in the bytes.
git -C "$src" -c core.abbrev=12 -c tar.umask=0022 archive --prefix="lorad-$version/" "$commit" | xz -6 -T1 >"$out/lorad-$version.tar.xz"

# build LOG OPTIONS...: configures and builds; a second call rebuilds what its options change
build() {
    log=$work/$1.log
    shift
    if ! { cmake -S "$src" --preset "$preset" -DBUILD_TESTING=OFF -DLORAD_CCACHE= "-DLORAD_MAINTAINER=$maintainer" \
        -DCMAKE_C_FLAGS="-ffile-prefix-map=$src=/usr/src/lorad-$version" \
        -DCMAKE_CXX_FLAGS="-ffile-prefix-map=$src=/usr/src/lorad-$version" "$@" && cmake --build "$build"; } >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        die "the build failed"
    fi
}
# packages: cpack's, packed again: cpack writes the current time, and paths of the build into the
# digests of -dbgsym, whose documents are those of the package that it belongs to
packages() {
    rm -rf "$work/cpack"
    cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/cpack" >"$work/cpack.log" 2>&1 || { cat "$work/cpack.log" >&2; die "cpack failed"; }
    for file in "$work"/cpack/*.*deb; do
        rm -rf "$work/deb"
        dpkg-deb -R "$file" "$work/deb"
        package=$(dpkg-deb -f "$file" Package)
        if [ "${package%-dbgsym}" != "$package" ]; then
            sed -i '/^Package-Type:/d' "$work/deb/DEBIAN/control"
            mkdir -p "$work/deb/usr/share/doc"
            ln -s "${package%-dbgsym}" "$work/deb/usr/share/doc/$package"
        fi
        (cd "$work/deb" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' |
            sort -z | xargs -0 md5sum >DEBIAN/md5sums)
        find "$work/deb" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
        name=${file##*/}
        dpkg-deb --root-owner-group --threads-max=1 -Zxz --build "$work/deb" "$out/${name%.*deb}.deb" >/dev/null
    done
}
# archive FOLDER: a tar of it on standard output, the same for the same content
archive() {
    tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$1"
}

step "Package lorad"
build cpu -DLORAD_CUDA=OFF
packages
python3 "$src/tests/tools/make_sbom.py" "$build" >"$out/lorad-$version.spdx.json"

if [ -n "$arm64" ]; then
    step "Package lorad for arm64"
    (
        preset=aarch64 build=$src/build/aarch64
        build arm64
        packages
    )
fi

step "Container context"
context=$work/lorad-$version-container
mkdir "$context"
cp "$out"/lorad_"${version}"_*.deb "$context/"
# The second stage of the image: it takes the package from the context, not from a first stage.
sed -e '/^FROM .* AS build$/,/^$/d' -e 's/^COPY --from=build .*/COPY lorad_*.deb \/tmp\//' \
    -e 's/ -f conf\/Containerfile//; s/, from the source tree:/, from the Debian package:/' \
    conf/Containerfile >"$context/Containerfile"
[ "$(grep -c '^FROM ' "$context/Containerfile")" = 1 ] || die "conf/Containerfile does not have two stages"
archive "${context##*/}" | gzip -9n >"$out/${context##*/}.tar.gz"

step "Tarball for other distributions"
# Its programs look for their libraries beside themselves, before the system's.
build portable -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON "-DCMAKE_INSTALL_RPATH=\$ORIGIN/../lib/lorad" \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags
top=$work/lorad-$version-linux-$(uname -m)
DESTDIR=$work/tree cmake --install "$build" --prefix /usr --strip >"$work/install.log"
mkdir -p "$top/lib/lorad" "$top/share/doc/lorad/licenses"
cp -R "$work/tree/usr/bin" "$work/tree/usr/share" "$top/"
cp conf/lorad.service conf/debian/lorad.sysusers LICENSE "$top/share/doc/lorad/"
# Everything but the C library, which belongs to the system's loader; glibc is backwards compatible.
for program in "$top"/bin/*; do ldd "$build/${program##*/}"; done | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|libanl|libutil)\.so\.[0-9]+$' >"$work/libraries"
while read -r library; do
    cp "$library" "$top/lib/lorad/"
    real=$(readlink -f "$library")
    package=$( (dpkg-query -S "$real" || dpkg-query -S "${real#/usr}") 2>/dev/null | sed 's/:.*//; q')
    [ -n "$package" ] || die "no package owns $library: its licence is unknown"
    cp "/usr/share/doc/$package/copyright" "$top/share/doc/lorad/licenses/$package"
done <"$work/libraries"
glibc=$(ldd --version | sed -n '1s/.* //p')
cat >"$top/INSTALL" <<TEXT
lorad $version for Linux on $(uname -m), glibc $glibc or newer

As root:

    tar -C /usr/local --strip-components=1 --no-same-owner -xf ${top##*/}.tar.xz
    cp /usr/local/share/doc/lorad/lorad.service /etc/systemd/system/
    useradd --system --home-dir /var/lib/lorad --create-home --shell /usr/sbin/nologin lorad
    lorad init --model MODEL      # a folder that user lorad can read; shows the admin key once
    systemctl enable --now lorad

It also runs from any other folder: bin/lorad serve --dev --model MODEL. The libraries in lib/lorad are
Debian's; your distribution does not update them, so install new versions of this tarball.
TEXT
archive "${top##*/}" | xz -6 -T1 >"$out/${top##*/}.tar.xz"

if [ "$cuda" = yes ]; then
    step "Package lorad-cuda"
    build cuda -DLORAD_CUDA=ON -DCMAKE_BUILD_WITH_INSTALL_RPATH=OFF -DCMAKE_INSTALL_RPATH= -DCMAKE_EXE_LINKER_FLAGS=
    packages
fi

step "Release notes and digests"
awk -v head="## [$version]" 'index($0, "## [") == 1 { on = index($0, head) == 1 } on' CHANGELOG.md >"$out/RELEASE_NOTES.md"
(cd "$out" && sha256sum -- * >"$work/SHA256SUMS")
mv "$work/SHA256SUMS" "$out/"
if command -v lintian >/dev/null 2>&1; then
    step "lintian"
    # As root it asks to be told so.
    if [ "$(id -u)" = 0 ]; then as_root=--allow-root; else as_root=; fi
    lintian $as_root --fail-on error --tag-display-limit 0 "$out"/*.deb
fi
cat "$out/SHA256SUMS"
echo "in $out"
