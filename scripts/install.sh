#!/bin/sh
# Installs what was built, or removes what was installed: commands, C library, headers, files for pkg-config and CMake, manual
# pages, documents, shells' completions, Wireshark's dissector, systemd units, the .proto of control and fabric, examples with
# dashboard and alert rules. LIBDIR is the folder of libraries below PREFIX, lib by default.
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
libdir=${LIBDIR:-lib}
version=$(sed -n 's/^version = "\([0-9.]*\)"$/\1/p' Cargo.toml | head -n 1)
soname=libwedjat.so.0 # scripts/link-library.sh gives the library the same
private="-lutil -lrt -lpthread -lm -ldl" # what a program that is linked with the static library needs
cmake=$libdir/cmake/wedjat
commands="wedjat wedjat-pktgen wedjat-testbed"
completions="bash-completion/completions zsh/site-functions fish/vendor_completions.d"
units="wedjat-leaf@.service wedjat-agent@.service wedjat-spine@.service wedjat-controller@.service"
documents=share/doc/wedjat
plugins=$libdir/wireshark/plugins # where a Wireshark of the same prefix looks
protos="wedjat/v1/control.proto wedjat/fabric/v1/fabric.proto"

install_all() {
    built=$1
    mkdir -p "$root/bin" "$root/$libdir/pkgconfig" "$root/include" "$root/share/man/man1" "$root/share/man/man3" \
        "$root/share/man/man5" "$root/$plugins" "$root/$cmake"
    mkdir -p "$root/lib/systemd/system" "$root/$documents/examples" "$root/$documents/docs"
    for folder in $completions; do mkdir -p "$root/share/$folder"; done
    for command in $commands; do
        install -m 755 "$built/$command" "$root/bin/$command"
        [ "$command" = wedjat ] || "$built/$command" man "$root/share/man/man1"
        "$built/$command" completions bash >"$root/share/bash-completion/completions/$command"
        "$built/$command" completions zsh >"$root/share/zsh/site-functions/_$command"
        "$built/$command" completions fish >"$root/share/fish/vendor_completions.d/$command.fish"
    done
    "$built/wedjat" man "$root/share/man/man1" --configuration "$root/share/man/man5/wedjat.toml.5"
    scripts/link-library.sh "$built" "$root/$libdir/libwedjat.so.$version"
    ln -sf "libwedjat.so.$version" "$root/$libdir/$soname"
    ln -sf "$soname" "$root/$libdir/libwedjat.so"
    scripts/link-archive.sh "$built" "$root/$libdir/libwedjat.a"
    install -m 644 "$built/include/wedjat.h" capi/include/wedjat_dpdk.h "$root/include"
    install -m 644 "$built"/man3/wedjat_*.3 "$root/share/man/man3"
    for proto in $protos; do install -D -m 644 "proto/$proto" "$root/share/wedjat/proto/$proto"; done
    install -m 644 share/wedjat.lua "$root/$plugins/wedjat.lua"
    for unit in $units; do
        sed -e "s|@PREFIX@|$prefix|" "share/systemd/$unit" >"$root/lib/systemd/system/$unit"
    done
    for example in examples/*; do install -m 644 "$example" "$root/$documents/examples"; done
    (cd docs && find . -type f -exec install -D -m 644 {} "$root/$documents/docs/{}" \;)
    install -m 644 LICENSE "$root/$documents/copyright"
    fill_in capi/wedjat.pc.in "$private" >"$root/$libdir/pkgconfig/wedjat.pc"
    for file in wedjatConfig.cmake wedjatConfigVersion.cmake; do
        fill_in "capi/$file.in" "$(echo "$private" | tr ' ' ';')" >"$root/$cmake/$file"
    done
}

fill_in() { # fill_in TEMPLATE LIBRARIES
    up=$(echo "$libdir" | sed 's|[^/][^/]*|..|g')
    sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@UP@|$up|" -e "s|@VERSION@|$version|" -e "s|@SONAME@|$soname|" \
        -e "s|@PRIVATE@|$2|" "$1"
}

uninstall_all() {
    for command in $commands; do
        rm -f "$root/bin/$command" "$root/share/man/man1/$command.1" "$root/share/man/man1/$command"-*.1
        rm -f "$root/share/bash-completion/completions/$command" "$root/share/zsh/site-functions/_$command"
        rm -f "$root/share/fish/vendor_completions.d/$command.fish"
    done
    rm -f "$root/$libdir/libwedjat.a" "$root/$libdir/libwedjat.so" "$root/$libdir/$soname" "$root/$libdir/libwedjat.so.$version"
    rm -f "$root/share/man/man3"/wedjat_*.3 "$root/share/man/man5/wedjat.toml.5"
    rm -rf "$root/share/wedjat/proto"
    rmdir "$root/share/wedjat" 2>/dev/null || true
    rm -f "$root/include/wedjat.h" "$root/include/wedjat_dpdk.h" "$root/$libdir/pkgconfig/wedjat.pc"
    rm -f "$root/$cmake/wedjatConfig.cmake" "$root/$cmake/wedjatConfigVersion.cmake"
    rmdir "$root/$cmake" 2>/dev/null || true
    rm -f "$root/$plugins/wedjat.lua"
    for unit in $units; do rm -f "$root/lib/systemd/system/$unit"; done
    for example in examples/*; do rm -f "$root/$documents/$example"; done
    (cd docs && find . -type f -exec rm -f "$root/$documents/docs/{}" \;)
    rm -f "$root/$documents/copyright"
}

case "${1:-} $#" in
"install 2") install_all "$2" ;;
"uninstall 1") uninstall_all ;;
*)
    echo "scripts/install.sh: found '$*'; allowed: install FOLDER, uninstall" >&2
    exit 2
    ;;
esac
