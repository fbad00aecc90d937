#!/bin/sh
# Makes Debian packages of what was built. They hold the files of scripts/install.sh, below /usr, divided by share/debian.
#
# Usage: scripts/deb.sh FOLDER OUT     (FOLDER: where cargo built, target/release; OUT: the packages' folder)
set -eu
cd "$(dirname "$0")/.."

if [ $# != 2 ]; then
    echo "scripts/deb.sh: found '$*'; allowed: FOLDER OUT" >&2
    exit 2
fi
if ! command -v dh_builddeb >/dev/null; then
    echo "scripts/deb.sh: dh_builddeb is missing: install debhelper" >&2
    exit 1
fi
built=$1
mkdir -p "$2"
out=$(cd "$2" && pwd)
version=$(sed -n 's/^version = "\([0-9.]*\)"$/\1/p' Cargo.toml | head -n 1)-1
maintainer="${DEBFULLNAME:-wedjat developers} <${DEBEMAIL:-wedjat@example.org}>"
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

# Greatest size of the static library, in MB.
most=25

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
umask 022
cp -R share/debian "$stage/debian"
sed -i "s|@MAINTAINER@|$maintainer|" "$stage/debian/control"
cat >"$stage/debian/changelog" <<CHANGELOG
wedjat ($version) unstable; urgency=medium

  * The changes of this release are in /usr/share/doc/wedjat/changelog.gz.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
CHANGELOG
PREFIX=/usr DESTDIR=$stage/debian/tmp LIBDIR=lib/$multiarch scripts/install.sh install "$built"
archive=$stage/debian/tmp/usr/lib/$multiarch/libwedjat.a
if [ "$(stat -c %s "$archive")" -gt $((most * 1000000)) ]; then
    echo "scripts/deb.sh: libwedjat.a has $(stat -c %s "$archive") bytes; allowed: $most MB" >&2
    exit 1
fi

# Commands hold the object that is linked with libdpdk in a section. dpkg-shlibdeps finds its libraries in a copy.
mkdir "$stage/objects"
for program in "$stage"/debian/tmp/usr/bin/*; do
    object=$stage/objects/$(basename "$program").so
    objcopy --dump-section ".wedjat.dpdk=$object" "$program" "$stage/copy" 2>/dev/null || true
done
objects=$(find "$stage/objects" -type f -printf '-e%p ')

changes=$PWD/CHANGELOG.md
cd "$stage"
dh_install
dh_missing --fail-missing
dh_installdirs
dh_installdocs
dh_installchangelogs --package=wedjat "$changes"
dh_installchangelogs --no-package=wedjat
dh_compress -X.md -X/examples/
dh_fixperms
dh_strip --dbg-package=wedjat-dbg
dh_makeshlibs -- -c4
# shellcheck disable=SC2086 # a list of options
dh_shlibdeps --package=wedjat -- $objects
dh_shlibdeps --no-package=wedjat
dh_installdeb
dh_gencontrol
dh_md5sums
dh_builddeb --destdir="$out" --no-package=wedjat-dbg -- -Zxz -z1
# dh_strip has compressed the debug information.
dh_builddeb --destdir="$out" --package=wedjat-dbg -- -Zgzip -z1
