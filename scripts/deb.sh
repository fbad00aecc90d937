#!/bin/sh
# Makes a Debian package of what was built: the files of scripts/install.sh, below /usr.
#
# Usage: scripts/deb.sh FOLDER OUT     (FOLDER: where cargo built, target/release; OUT: the package's folder)
set -eu
cd "$(dirname "$0")/.."

if [ $# != 2 ]; then
    echo "scripts/deb.sh: found '$*'; allowed: FOLDER OUT" >&2
    exit 2
fi
if ! command -v dpkg-deb >/dev/null; then
    echo "scripts/deb.sh: dpkg-deb is missing (Debian: dpkg; Fedora: dpkg)" >&2
    exit 1
fi
built=$1
out=$2
version=$(sed -n 's/^version = "\([0-9.]*\)"$/\1/p' Cargo.toml | head -n 1)
architecture=$(dpkg --print-architecture)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || cc -print-multiarch)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/root
umask 022
mkdir -p "$root/DEBIAN" "$root/etc/wedjat" "$stage/debian"
PREFIX=/usr DESTDIR=$root LIBDIR=lib/$multiarch scripts/install.sh install "$built"
programs=$(find "$root/usr/bin" "$root/usr/lib" -type f \( -path '*/bin/*' -o -name '*.so.*' \))
if command -v strip >/dev/null; then
    # shellcheck disable=SC2086 # a list of paths
    strip --strip-unneeded $programs
    strip --strip-debug "$root/usr/lib/$multiarch/libwedjat.a"
fi

# The programs have the object that is linked with libdpdk within them, in a section of its own.
mkdir "$stage/objects"
for program in "$root"/usr/bin/*; do
    object=$stage/objects/$(basename "$program").so
    if objcopy --dump-section ".wedjat.dpdk=$object" "$program" "$stage/copy" 2>/dev/null; then
        programs="$programs $object"
    fi
done

# The libraries that the programs are linked with, or load. Where dpkg-shlibdeps (dpkg-dev) is missing, only the C library is named.
libraries() {
    printf 'Source: wedjat\n\nPackage: wedjat\nArchitecture: any\n' >"$stage/debian/control"
    # shellcheck disable=SC2086
    (cd "$stage" && dpkg-shlibdeps -O $programs 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
}
depends=$(libraries)

cat >"$root/DEBIAN/control" <<CONTROL
Package: wedjat
Version: $version
Architecture: $architecture
Maintainer: ${DEBFULLNAME:-wedjat developers} <${DEBEMAIL:-wedjat@localhost}>
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Depends: ${depends:-libc6}
Recommends: dpdk, librte-meta-net
Suggests: tshark, wireshark
Section: net
Priority: optional
Description: Leaf scheduler for microsecond tasks, on DPDK
 Clients send each task as a UDP packet to the leaf, which picks a worker with a scheduling policy and forwards it. With
 it come an agent for the workers of a host, a library for DPDK applications, a load generator and a simulator.
CONTROL
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
# With DPKG_ROOT the package is being installed into a folder, where nothing runs.
cat >"$root/DEBIAN/postinst" <<'SCRIPT'
#!/bin/sh
set -e
if [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
SCRIPT
cat >"$root/DEBIAN/prerm" <<'SCRIPT'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -z "${DPKG_ROOT:-}" ] && [ -d /run/systemd/system ]; then
    systemctl stop 'wedjat-leaf@*.service' 'wedjat-agent@*.service' 'wedjat-spine@*.service' 'wedjat-controller@*.service'
fi
SCRIPT
cp "$root/DEBIAN/postinst" "$root/DEBIAN/postrm"
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm" "$root/DEBIAN/postrm"
(cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | sort | xargs -d '\n' md5sum >DEBIAN/md5sums)
mkdir -p "$out"
dpkg-deb --root-owner-group -Zxz -z1 --build "$root" "$out/wedjat_${version}_$architecture.deb"
