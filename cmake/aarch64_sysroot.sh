#!/bin/sh
# aarch64_sysroot.sh DEST   unpacks the arm64 libraries that lorad needs into DEST, a sysroot
#
# The preset aarch64 compiles against it, and qemu-aarch64 runs programs with its dynamic linker.
# The packages are those of this machine's release, from its own package sources; apt checks their
# signatures.  Needs no root and changes no package of this machine: apt works on lists and a cache
# of its own.  A DEST that is complete is left as it is; remove it to unpack the newest packages.
set -eu
mkdir -p "${1:?usage: aarch64_sysroot.sh DEST}"
dest=$(cd "$1" && pwd)
packages="libc6-dev libgcc-s1 libssl-dev libsqlite3-dev libcjson-dev libcurl4-openssl-dev libnghttp2-dev
    libncurses-dev libedit-dev check"

# What DEST was made of: it comes last, so that its presence means that all is there.
wanted=$(. /etc/os-release && echo "${VERSION_CODENAME:-}" $packages)
[ "$(cat "$dest/packages" 2>/dev/null)" != "$wanted" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
: >"$work/status"
# With an empty list of installed packages, apt fetches all that these depend on.
apt() {
    apt-get -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= \
        -o APT::Install-Recommends=false -o Dir::State="$work" -o Dir::State::status="$work/status" \
        -o Dir::Cache="$work/cache" -o Debug::NoLocking=true -o Acquire::Languages=none \
        -o Acquire::Retries=2 "$@" >>"$work/log" 2>&1
}
if ! { apt update || true; } || ! apt --download-only -y install $packages; then
    tail -n 8 "$work/log" >&2
    echo "aarch64_sysroot.sh: the arm64 packages could not be fetched; the lines above say why." >&2
    echo "Do the package sources of this machine have the architecture arm64?" >&2
    exit 1
fi
# One folder for each of /lib and /usr/lib, as on an installed system.
mkdir -p "$work/root/usr/lib" "$work/root/usr/bin" "$work/root/usr/sbin"
for folder in lib bin sbin; do ln -s "usr/$folder" "$work/root/$folder"; done
db=$work/root/var/lib/dpkg
mkdir -p "$db/info" "$db/updates"
echo 1 >"$db/info/format" # names of files have the architecture
for deb in "$work"/cache/archives/*.deb; do
    # What dpkg-shlibdeps asks dpkg's database for: cmake/package.cmake.
    dpkg-deb -e "$deb" "$work/control"
    name=$(dpkg-deb --field "$deb" Package) file=$db/info/$name
    if grep -q '^Multi-Arch: same' "$work/control/control"; then file=$file:arm64; fi
    { echo "Status: install ok installed"; cat "$work/control/control"; echo; } >>"$db/status"
    for part in shlibs symbols; do
        [ ! -e "$work/control/$part" ] || cp "$work/control/$part" "$file.$part"
    done
    dpkg-deb --fsys-tarfile "$deb" | tar -t | sed -n "s,^\./lib/,./usr/lib/,; s,^\.\(/.*[^/]\)\$,$dest\1,p" >"$file.list"
    rm -rf "$work/control"
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/root" --keep-directory-symlink --no-same-owner \
        --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*'
done
# A link to /lib would lead out of DEST: the linker then takes the static library beside it.
find "$work/root" -type l -lname '/*' -printf '%p %l\n' | while read -r link target; do
    [ ! -e "$work/root$target" ] || ln -sfr "$work/root$target" "$link"
done
echo "$wanted" >"$work/root/packages"
rm -rf "$dest"
mv "$work/root" "$dest"
echo "the arm64 libraries are in $dest"
