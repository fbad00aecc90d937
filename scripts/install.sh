#!/bin/sh
# Installs what was built, or removes what was installed: commands, C library, headers, wedjat.pc, manual pages, .proto.
#
# Usage: PREFIX=/usr/local DESTDIR= scripts/install.sh install FOLDER     (FOLDER: where cargo built, target/release)
#        PREFIX=/usr/local DESTDIR= scripts/install.sh uninstall
set -eu
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
case $prefix in
/*) ;;
*)
    echo "scripts/install.sh: found PREFIX=$prefix; allowed: a path that begins with /" >&2
    exit 2
    ;;
esac
root=${DESTDIR:-}$prefix
version=$(sed -n 's/^version = "\([0-9.]*\)"$/\1/p' Cargo.toml | head -n 1)
soname=libwedjat.so.0 # capi/build.rs gives the library the same
commands="wedjat wedjat-pktgen wedjat-testbed"
proto=wedjat/v1/control.proto

install_all() {
    built=$1
    mkdir -p "$root/bin" "$root/lib/pkgconfig" "$root/include" "$root/share/man/man1" "$root/share/man/man3"
    for command in $commands; do
        install -m 755 "$built/$command" "$root/bin/$command"
        "$built/$command" man "$root/share/man/man1"
    done
    install -m 755 "$built/libwedjat_capi.so" "$root/lib/libwedjat.so.$version"
    ln -sf "libwedjat.so.$version" "$root/lib/$soname"
    ln -sf "$soname" "$root/lib/libwedjat.so"
    install -m 644 "$built/libwedjat_capi.a" "$root/lib/libwedjat.a"
    install -m 644 "$built/include/wedjat.h" capi/include/wedjat_dpdk.h "$root/include"
    install -m 644 "$built"/man3/wedjat_*.3 "$root/share/man/man3"
    install -D -m 644 "proto/$proto" "$root/share/wedjat/proto/$proto"
    sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" capi/wedjat.pc.in >"$root/lib/pkgconfig/wedjat.pc"
}

uninstall_all() {
    for command in $commands; do
        rm -f "$root/bin/$command" "$root/share/man/man1/$command.1" "$root/share/man/man1/$command"-*.1
    done
    rm -f "$root/lib/libwedjat.a" "$root/lib/libwedjat.so" "$root/lib/$soname" "$root/lib/libwedjat.so.$version"
    rm -f "$root/share/man/man3"/wedjat_*.3
    rm -rf "$root/share/wedjat/proto"
    rmdir "$root/share/wedjat" 2>/dev/null || true
    rm -f "$root/include/wedjat.h" "$root/include/wedjat_dpdk.h" "$root/lib/pkgconfig/wedjat.pc"
}

case "${1:-} $#" in
"install 2") install_all "$2" ;;
"uninstall 1") uninstall_all ;;
*)
    echo "scripts/install.sh: found '$*'; allowed: install FOLDER, uninstall" >&2
    exit 2
    ;;
esac
